// SPDX-License-Identifier: GPL-2.0
//! Files whose checksums are right and whose contents are not: made by a broken module, or by somebody who
//! means ill. Nothing here says what must come out, only that something does: no panic (an overflow is one in
//! a test), no loop without end.
#![allow(clippy::unwrap_used)]

mod common;

use blkrelay_format::{
    Action, ChunkType, Clock, CpuCounters, Device, End, Record, RemapFrom, Stop, SubbufBuilder,
    Times, Trailer,
};
use blkrelay_trace::{Filter, Item, Source, Span, Stats, Tracker};
use common::*;
use proptest::prelude::*;

/// Numbers that arithmetic goes wrong on.
const EXTREMES: [u64; 12] = [
    0,
    1,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    (1 << 48) - 1,
    (1 << 48) - 2,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
    0x0101_0101_0101_0101,
];

fn span(time: u64, bytes: u32, bios: u32) -> Record {
    Record {
        who: Record::pack_complete(Action::Span, 0, bios),
        ..event(Action::Span, time, 8, bytes, WRITE, 3)
    }
}

/// Sub-buffers of two CPUs with a bit of everything.
fn subbufs() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for cpu in 0..2 {
        let mut cpu = stream(cpu);
        for start in [10, 1010, 2010] {
            if start > 10 {
                names(&mut cpu);
            }
            cpu.anchor(start - 5, start + 995)
                .event(event(Action::Queue, start, 8, 8192, WRITE | FUA, 7))
                .event(event(Action::Split, start + 1, 8, 4096, WRITE | FUA, 9))
                .event(event(Action::Remap, start + 2, 16, 4096, READ, 8))
                .from(RemapFrom::new(8, 1, 0))
                .event(event(Action::Queue, start + 3, 16, 4096, WRITE, 8))
                .event(event(Action::BackMerge, start + 4, 16, 4096, WRITE, 8))
                .event(event(Action::Issue, start + 5, 8, 8192, WRITE, 3))
                .event(complete(start + 6, 8, 4096, WRITE, 3, 9))
                .event(complete(start + 7, 16, 4096, WRITE, 3, 7))
                .event(complete(start + 8, 0, 0, WRITE | PREFLUSH, 3, 7))
                .event(span(start + 9, 8, 1))
                .times(Times::new(start, start + 5, 1, 100, 8))
                .event(span(start + 10, 4096, 1))
                .times(Times::new(start, start + 5, 1, 100, 0))
                .event(span(start + 11, 0, 1))
                .times(Times::new(start, start + 5, 1, 100, 0))
                .event(span(start + 12, 0, 2))
                .times(Times::new(start, 0, 0, 200, 20))
                .lose(3, start + 20, start + 30);
            if start == 2010 {
                cpu.overwrite().stop(Stop::new(2020, 2019, 0, 3, 5));
            }
            all.push(cpu.finish());
        }
    }
    all
}

/// A 64-bit word of one sub-buffer, and what stands there instead.
fn damage() -> impl Strategy<Value = (usize, usize, u64, u64)> {
    let value = prop_oneof![proptest::sample::select(&EXTREMES[..]), any::<u64>()];
    let mask =
        proptest::sample::select(&[u64::MAX, 0xffff_ffff, 0xffff_ffff << 32, 0xff << 56][..]);
    // Heads are 16 words of some 110; they get half of the damage.
    let word = prop_oneof![0usize..16, 16usize..130];
    (0usize..6, word, value, mask)
}

#[test]
fn text_does_not_steer_the_terminal() {
    let mut cpu = SubbufBuilder::new(ID, 0, Clock::Tsc, 1_000_000);
    cpu.device(Device::new(1, 8, 0, "s\x1b[2Jda"));
    cpu.event(event(Action::Queue, 5, 0, 4096, READ, 1));
    let mut writer = begin(&[cpu.finish()]);
    writer
        .chunk(ChunkType::Trailer, 0, br#"{"end":"\u001b[2J"}"#)
        .unwrap();
    let trailer = Trailer {
        end: End::Error("a\nb\x07".to_owned()),
        ..Trailer::default()
    };
    let source = open(writer.finish(&trailer).unwrap());
    assert_eq!(Stats::of(&source).devices[0].name, "s?[2Jda");
    let findings = source.verify().findings;
    let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        all.iter().any(|text| text.ends_with("error: a?b?")),
        "{all:?}"
    );
    let problems = source.problems().iter().map(ToString::to_string);
    assert!(all
        .into_iter()
        .chain(problems)
        .all(|text| !text.contains(char::is_control)));
}

fn read(file: Vec<u8>) {
    let Ok(source) = Source::from_bytes(file) else {
        return;
    };
    let events = source
        .events()
        .filter(|item| matches!(item, Item::Event(_)));
    let count = events.count() as u64;
    let stats = Stats::of(&source);
    assert_eq!(stats.events, count);
    let filter = Filter {
        min_latency_ns: Some(1),
        pids: vec![100],
        sectors: Some((0, u64::MAX)),
        window: Some((0, u64::MAX)),
        ..Filter::default()
    };
    assert!(source.select(&filter).count() as u64 <= count + 100);
    let mut tracker = Tracker::with_trails(&source);
    for item in source.events() {
        if let Item::Event(event) = &item {
            tracker.ends_sequence(event);
        }
        let ios: Vec<Span> = tracker.item(&item).collect();
        for io in ios {
            if let Span::Io(io) = io {
                tracker.take_trail(io.number);
            }
        }
    }
    source.stops();
    let verdict = source.verify();
    for finding in &verdict.findings {
        assert!(!finding.to_string().contains('\n'));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn words_of_sub_buffers(
        damages in proptest::collection::vec(damage(), 1..5),
        counters in proptest::collection::vec((0u32..4, proptest::sample::select(&EXTREMES[..]), any::<u64>()), 0..4),
        trailer in any::<bool>(),
    ) {
        let mut subbufs = subbufs();
        for (subbuf, word, value, mask) in damages {
            let at = word * 8;
            if let Some(bytes) = subbufs[subbuf].get_mut(at..at + 8) {
                let old = u64::from_ne_bytes(bytes.try_into().unwrap());
                bytes.copy_from_slice(&(old & !mask | value & mask).to_ne_bytes());
            }
        }
        let mut writer = begin(&[]);
        for subbuf in &subbufs {
            writer.chunk(ChunkType::Subbuf, 0, subbuf).unwrap();
        }
        let cpus = counters.into_iter().map(|(cpu, events, lost)| CpuCounters {
            cpu,
            events,
            lost,
            unwritten: events,
            written_over: lost,
            subbufs: lost,
        });
        let file = if trailer {
            let cpus = cpus.collect();
            writer.finish(&Trailer { cpus, ..Trailer::default() }).unwrap()
        } else {
            writer.get_ref().clone()
        };
        read(file);
    }

    #[test]
    fn bytes_of_the_file(
        at in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        end in any::<proptest::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut file = cut_short(&subbufs());
        for (index, byte) in at {
            let index = index.index(file.len());
            file[index] = byte;
        }
        if cut {
            let end = end.index(file.len());
            file.truncate(end);
        }
        read(file);
    }
}
