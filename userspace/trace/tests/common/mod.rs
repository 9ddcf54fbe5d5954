// SPDX-License-Identifier: GPL-2.0
//! Small traces, made by hand.
#![allow(dead_code, clippy::unwrap_used)]

use blkrelay_format::*;
use blkrelay_trace::Source;

pub const ID: [u8; 16] = [0xab; 16];
pub const READ: u32 = 0;
pub const WRITE: u32 = 1;
pub const FLUSH: u32 = 2;
pub const DISCARD: u32 = 3;
pub const FUA: u32 = 1 << 17;
pub const PREFLUSH: u32 = 1 << 18;

/// A stream whose clock counts nanoseconds and is CLOCK_MONOTONIC less 1000.
pub fn stream(cpu: u32) -> SubbufBuilder {
    let mut stream = SubbufBuilder::new(ID, cpu, Clock::Tsc, 1_000_000);
    stream.anchor(0, 1000);
    names(&mut stream);
    stream
}

/// The side records that each sub-buffer begins with.
pub fn names(stream: &mut SubbufBuilder) {
    stream
        .device(Device::new(1, 8, 0, "sda"))
        .device(Device::new(2, 8, 16, "sdb"))
        .task(Task::new("dd", 100, 100))
        .task(Task::new("cat", 200, 200));
}

/// An event of queue 1 by dd.
pub fn event(action: Action, time: u64, sector: u64, bytes: u32, opf: u32, id: u32) -> Record {
    Record {
        time,
        place: Record::pack_place(Some(sector), 1),
        bytes,
        opf,
        id,
        who: Record::pack_who(action, 100),
    }
}

/// A completion on queue 1.
pub fn complete(time: u64, sector: u64, bytes: u32, opf: u32, id: u32, head: u32) -> Record {
    Record {
        who: Record::pack_complete(Action::Complete, 0, head),
        ..event(Action::Complete, time, sector, bytes, opf, id)
    }
}

/// The file of these sub-buffers, with a trailer that counts these streams.
pub fn file(subbufs: &[Vec<u8>], streams: &[&SubbufBuilder]) -> Vec<u8> {
    let writer = begin(subbufs);
    let cpus = streams
        .iter()
        .zip(0u32..)
        .map(|(stream, cpu)| {
            let (events, lost) = stream.totals();
            let stored = writer.index().iter().filter(|entry| entry.cpu == cpu);
            let subbufs = stored.count() as u64;
            CpuCounters {
                cpu,
                events,
                lost,
                subbufs,
                ..CpuCounters::default()
            }
        })
        .collect();
    let trailer = Trailer {
        cpus,
        ..Trailer::default()
    };
    writer.finish(&trailer).unwrap()
}

/// The file of these sub-buffers, without a trailer.
pub fn begin(subbufs: &[Vec<u8>]) -> Writer<Vec<u8>> {
    let meta = Meta {
        format: FORMAT_VERSION,
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    for subbuf in subbufs {
        writer.subbufs(subbuf, &mut Appended::default()).unwrap();
    }
    writer
}

pub fn open(file: Vec<u8>) -> Source {
    Source::from_bytes(file).unwrap()
}

/// The file as a killed recording leaves it.
pub fn cut_short(subbufs: &[Vec<u8>]) -> Vec<u8> {
    begin(subbufs).get_ref().clone()
}
