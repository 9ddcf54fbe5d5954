// SPDX-License-Identifier: GPL-2.0
//! Whether the floor (qemu/tests/floor) writes the records that blkrelay writes: else its cost would be no
//! measure of blkrelay's.

use anyhow::{bail, ensure, Context, Result};
use blkrelay_format::{ChunkType, Chunks, Record, Slot, Subbuf, SLOT};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A record without its time: place, bytes, opf, id, who.
type Words = (u64, u32, u32, u32, u32);

/// How often each record occurs. Two probes of one event are two instants, and a task may go to another CPU in
/// between: so neither times nor orders are alike.
type Bag = BTreeMap<Words, i64>;

fn words(r: &Record) -> Words {
    (r.place, r.bytes, r.opf, r.id, r.who)
}

/// The record in 32 bytes of a little-endian machine.
fn record(bytes: &[u8; SLOT]) -> Record {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    Record {
        time: word(0),
        place: word(8),
        bytes: half(16),
        opf: half(20),
        id: half(24),
        who: half(28),
    }
}

/// The records of one CPU of the floor; their times may not go back.
fn of_floor(data: &[u8], bag: &mut Bag) -> Result<u64> {
    let (slots, rest) = data.as_chunks::<SLOT>();
    ensure!(rest.is_empty(), "half a record at the end");
    let mut last = 0;
    for slot in slots {
        let r = record(slot);
        ensure!(r.time >= last, "a time goes back from {last}: {r:?}");
        last = r.time;
        *bag.entry(words(&r)).or_default() += 1;
    }
    Ok(slots.len() as u64)
}

/// The events of a trace.
fn of_trace(data: &[u8], bag: &mut Bag) -> Result<u64> {
    let mut events = 0;
    for chunk in Chunks::new(data)? {
        let chunk = chunk?;
        if chunk.kind() != ChunkType::Subbuf {
            continue;
        }
        for slot in Subbuf::parse(chunk.verify()?)?.slots() {
            if let Slot::Event(_, r) = slot? {
                *bag.entry(words(&r)).or_default() -= 1;
                events += 1;
            }
        }
    }
    Ok(events)
}

/// Demands that the floor's files hold the records of the trace, each as often, and nothing else; returns how
/// many.
///
/// # Errors
///
/// Names a record that one has and the other has not.
pub fn same(trace: &Path, floor: &[PathBuf]) -> Result<u64> {
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    let mut bag = Bag::new();
    let mut written = 0;
    for path in floor {
        written += of_floor(&read(path)?, &mut bag).with_context(|| path.display().to_string())?;
    }
    let traced = of_trace(&read(trace)?, &mut bag).with_context(|| trace.display().to_string())?;
    if let Some((words, n)) = bag.iter().find(|(_, n)| **n != 0) {
        let who = if *n > 0 { "the floor" } else { "blkrelay" };
        bail!("only {who} has (place, bytes, opf, id, who) = {words:x?}");
    }
    ensure!(written > 0 && written == traced, "no records");
    Ok(traced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkrelay_format::{Action, Clock, SubbufBuilder};

    fn event(sector: u64) -> Record {
        Record {
            time: sector,
            place: Record::pack_place(Some(sector), 3),
            bytes: 4096,
            opf: 1,
            id: 7,
            who: Record::pack_who(Action::Queue, 99),
        }
    }

    fn bytes(r: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(r.time.to_le_bytes());
        out.extend(r.place.to_le_bytes());
        for half in [r.bytes, r.opf, r.id, r.who] {
            out.extend(half.to_le_bytes());
        }
        out
    }

    /// A trace of these events, through the reader's own writer.
    fn trace(records: &[Record]) -> Vec<u8> {
        let mut b = SubbufBuilder::new([0; 16], 0, Clock::Tsc, 1000);
        for r in records {
            b.event(*r);
        }
        let meta = blkrelay_format::Meta::default();
        let mut out = Vec::new();
        let mut w = blkrelay_format::Writer::new(&mut out, &meta).unwrap();
        w.subbufs(&b.finish(), &mut blkrelay_format::Appended::default())
            .unwrap();
        w.finish(&blkrelay_format::Trailer::default()).unwrap();
        out
    }

    #[test]
    fn equal_and_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str, data: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, data).unwrap();
            path
        };
        let a = [bytes(&event(8)), bytes(&event(16))].concat();
        // On another CPU, and at another time.
        let b = bytes(&Record {
            time: 5,
            ..event(24)
        });
        let floor = [path("cpu0", &a), path("cpu1", &b)];
        let t = path("trace", &trace(&[event(8), event(16), event(24)]));
        assert_eq!(same(&t, &floor).unwrap(), 3);
        // One too few, one too many, one changed.
        for other in [
            vec![event(8), event(16)],
            vec![event(8), event(16), event(24), event(24)],
            vec![event(8), event(16), event(32)],
        ] {
            assert!(same(&path("other", &trace(&other)), &floor).is_err());
        }
        let back = [bytes(&event(16)), bytes(&event(8))].concat();
        let floor = [path("back", &back), path("cpu1", &b)];
        assert!(same(&t, &floor).is_err());
    }
}
