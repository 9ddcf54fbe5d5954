// SPDX-License-Identifier: GPL-2.0
//! From files to events: names, numbers, order, gaps.
#![allow(clippy::unwrap_used)]

mod common;

use blkrelay_format::{
    abi, Action, ChunkType, Clock, Detail, Device, Disk, Meta, Record, RemapFrom, SubbufBuilder,
    Times, Trailer, Writer,
};
use blkrelay_trace::{Dev, Event, Gap, GapKind, Item, Problem, Source, Stats};
use common::*;
use proptest::prelude::*;

fn queue(time: u64) -> Record {
    event(Action::Queue, time, time, 4096, READ, 7)
}

fn items(source: &Source) -> (Vec<Event>, Vec<Gap>) {
    let (mut events, mut gaps) = (Vec::new(), Vec::new());
    for item in source.events() {
        match item {
            Item::Event(event) => events.push(event),
            Item::Gap(gap) => gaps.push(gap),
        }
    }
    (events, gaps)
}

#[test]
fn an_event_says_all_that_the_records_say() {
    let mut cpu = stream(3);
    let remap = Record {
        place: Record::pack_place(Some(4096), 2),
        who: Record::pack_who(Action::Remap, 200),
        ..event(Action::Remap, 50, 0, 512, WRITE, 9)
    };
    cpu.event(queue(10))
        .event(remap)
        .from(RemapFrom::new(253, 1, 96))
        .event(Record {
            who: Record::pack_complete(Action::Complete, 10, 0x1234_5678),
            ..queue(60)
        });
    let bytes = cpu.finish();
    let source = open(cut_short(&[bytes]));
    assert_eq!(source.problems(), [Problem::CutShort]);
    let mut events = source.events();
    let all: Vec<Item> = events.by_ref().collect();
    let Item::Event(first) = all[0] else {
        unreachable!("an event")
    };
    assert_eq!(
        (first.cpu, first.seq, first.time, first.ns),
        (3, 1, 10, 1010)
    );
    assert_eq!(first.dev, Some(Dev { major: 8, minor: 0 }));
    assert_eq!((first.pid, first.comm.bytes()), (Some(100), &b"dd"[..]));
    let Item::Event(second) = all[1] else {
        unreachable!("an event")
    };
    let from = Dev {
        major: 253,
        minor: 1,
    };
    assert_eq!(second.from(), Some((from, 96)));
    assert_eq!(
        second.dev,
        Some(Dev {
            major: 8,
            minor: 16
        })
    );
    assert_eq!(
        (second.sector, second.comm.bytes()),
        (Some(4096), &b"cat"[..])
    );
    let Item::Event(third) = all[2] else {
        unreachable!("an event")
    };
    assert_eq!((third.pid, third.errno(), third.head), (None, -5, 0x5678));
    assert_eq!(third.comm.bytes(), b"");
    let names: Vec<String> = events.devices().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["sda", "sdb"]);
}

/// Names hold for one sub-buffer only: without a record of its own, an event has none.
#[test]
fn names_do_not_leak_into_the_next_sub_buffer() {
    let mut cpu = stream(0);
    cpu.event(queue(1));
    let first = cpu.finish();
    cpu.event(queue(2));
    let second = cpu.finish();
    let (events, _) = items(&open(file(&[first, second], &[&cpu])));
    assert_eq!(events[0].comm.bytes(), b"dd");
    assert_eq!(
        (events[1].comm.bytes(), events[1].pid),
        (&b""[..], Some(100))
    );
}

#[test]
fn a_loss_is_a_gap_between_its_two_instants() {
    let mut cpu = stream(0);
    cpu.event(queue(10)).event(queue(20));
    let first = cpu.finish();
    names(&mut cpu);
    cpu.lose(5, 25, 28).event(queue(30));
    let second = cpu.finish();
    cpu.lose(3, 40, 50);
    let source = open(file(&[first, second], &[&cpu]));
    assert_eq!(source.problems(), []);
    let (events, gaps) = items(&source);
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, [1, 2, 8]);
    assert_eq!(
        gaps[0],
        Gap {
            cpu: 0,
            kind: GapKind::Lost,
            events: 5,
            from: 25,
            to: 28,
            from_ns: 1025,
            to_ns: 1028
        }
    );
    // Of what was lost behind the last sub-buffer only the trailer tells, and not when.
    assert_eq!(
        (gaps[1].events, gaps[1].from, gaps[1].kind),
        (3, 30, GapKind::Lost)
    );
    assert_eq!(gaps.len(), 2);
}

/// Until the last event of another CPU: a request that was done there meanwhile may lack its start here.
#[test]
fn a_loss_at_the_end_lasts_as_long_as_the_trace() {
    let mut full = stream(0);
    full.event(queue(10));
    let one = full.finish();
    full.lose(3, 40, 700);
    let mut going_on = stream(1);
    going_on.event(queue(20)).event(queue(900));
    let two = going_on.finish();
    let (_, gaps) = items(&open(file(&[one, two], &[&full, &going_on])));
    assert_eq!(gaps.len(), 1);
    assert_eq!((gaps[0].cpu, gaps[0].from, gaps[0].to), (0, 10, 900));
}

#[test]
fn a_missing_sub_buffer_is_a_gap_of_its_events() {
    let mut cpu = stream(0);
    cpu.event(queue(10));
    let first = cpu.finish();
    cpu.event(queue(20)).event(queue(21));
    cpu.skip();
    cpu.anchor(29, 1029);
    cpu.event(queue(30));
    let third = cpu.finish();
    let (events, gaps) = items(&open(file(&[first, third], &[&cpu])));
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].seq, 4);
    assert_eq!(gaps.len(), 1);
    assert_eq!((gaps[0].kind, gaps[0].events), (GapKind::Missing, 2));
    assert_eq!((gaps[0].from, gaps[0].to), (10, 29));
}

#[test]
fn a_damaged_sub_buffer_is_left_out_and_said() {
    let mut cpu = stream(0);
    cpu.event(queue(10));
    let first = cpu.finish();
    cpu.event(queue(20));
    let second = cpu.finish();
    let mut file = file(&[first.clone(), second], &[&cpu]);
    let at = file.windows(16).position(|bytes| bytes == ID).unwrap();
    file[at + 60] ^= 1;
    let source = open(file);
    assert!(matches!(source.problems(), [Problem::Chunk(_)]));
    let (events, gaps) = items(&source);
    assert_eq!((events.len(), events[0].seq), (1, 2));
    assert_eq!((gaps[0].kind, gaps[0].events), (GapKind::Missing, 1));
}

/// Code 0 ends a sub-buffer: what stands behind it cannot be trusted.
#[test]
fn a_bad_slot_ends_its_sub_buffer() {
    let mut cpu = stream(0);
    cpu.event(queue(10));
    cpu.event(Record {
        who: 0,
        ..queue(20)
    });
    cpu.event(queue(30));
    let first = cpu.finish();
    names(&mut cpu);
    cpu.anchor(35, 1035).event(queue(40));
    let second = cpu.finish();
    let (events, gaps) = items(&open(file(&[first, second], &[&cpu])));
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, [1, 4]);
    assert_eq!((gaps[0].kind, gaps[0].events), (GapKind::Damaged, 2));
    assert_eq!((gaps[0].from, gaps[0].to), (10, 35));
}

/// Of a kind that a later module may have: it is counted, and the numbers go on.
#[test]
fn an_unknown_event_is_skipped() {
    let mut cpu = stream(0);
    cpu.event(queue(10));
    cpu.event(Record {
        who: 0x7f00_0000,
        ..queue(20)
    });
    cpu.event(queue(30));
    let bytes = cpu.finish();
    let source = open(file(&[bytes], &[&cpu]));
    let mut events = source.events();
    let numbers: Vec<u64> = events
        .by_ref()
        .map(|item| match item {
            Item::Event(event) => event.seq,
            Item::Gap(_) => 0,
        })
        .collect();
    assert_eq!(numbers, [1, 3]);
    assert_eq!(events.unknown(), 1);
}

/// Queued and issued by the trace's clock, which is not CLOCK_MONOTONIC's, allocated by that one.
#[test]
fn a_span_has_its_times() {
    // 2.5 GHz by its nominal rate; CLOCK_MONOTONIC runs 400 ppm fast against it.
    let ticks = |ns: u64| 1_000_000_000_000 + ns * 5 / 2 - ns / 1000;
    let mut cpu = SubbufBuilder::new(ID, 0, Clock::Tsc, 2_500_000);
    let mut subbufs = Vec::new();
    // An anchor each 20 ms from 1 s on. Of each span the Q lies before it: of the first, before all.
    for start in [1_000_000_000u64, 1_020_000_000, 1_040_000_000] {
        names(&mut cpu);
        cpu.anchor(ticks(start), start);
        let span = Record {
            time: ticks(start + 3_000_000),
            who: Record::pack_complete(Action::Span, 0, 1),
            ..queue(0)
        };
        let times = (ticks(start - 4_000_000), ticks(start + 1_000_000));
        cpu.event(span)
            .times(Times::new(times.0, times.1, start, 200, 0));
        subbufs.push(cpu.finish());
    }
    let (events, _) = items(&open(file(&subbufs, &[&cpu])));
    for (event, start) in events
        .iter()
        .zip([1_000_000_000u64, 1_020_000_000, 1_040_000_000])
    {
        assert_eq!((event.pid, event.comm.bytes()), (Some(200), &b"cat"[..]));
        assert_eq!((event.head, event.errno()), (1, 0));
        let times = event.times().unwrap();
        let off = |ns: Option<u64>, truth: u64| ns.unwrap().abs_diff(truth);
        assert!(off(Some(event.ns), start + 3_000_000) <= 1);
        assert!(off(times.issue_ns(), start + 1_000_000) <= 1);
        assert!(off(times.queue_ns(), start - 4_000_000) <= 1);
        assert_eq!(times.alloc_ns(), Some(start));
    }

    // With one anchor there is the nominal rate: 400 ppm of 4 ms.
    cpu = SubbufBuilder::new(ID, 0, Clock::Tsc, 2_500_000);
    names(&mut cpu);
    cpu.anchor(ticks(1_000_000_000), 1_000_000_000);
    cpu.event(Record {
        time: ticks(1_000_001_000),
        who: Record::pack_complete(Action::Span, 0, 1),
        ..queue(0)
    })
    .times(Times::new(ticks(996_000_000), 0, 0, 0, 0));
    let (events, _) = items(&open(cut_short(&[cpu.finish()])));
    let times = events[0].times().unwrap();
    let off = times.queue_ns().unwrap().abs_diff(996_000_000);
    assert!((1_599..=1_601).contains(&off), "{off}");
    assert_eq!((times.issue_ns(), times.alloc_ns()), (None, None));
    // The idle task's pid, which no record names here.
    assert_eq!((events[0].pid, events[0].comm.bytes()), (Some(0), &b""[..]));
}

/// What is not known is not there, whatever stands in its place.
#[test]
fn a_span_that_does_not_know() {
    let mut cpu = stream(0);
    let span = |time| Record {
        who: Record::pack_complete(Action::Span, 10, 0xfff0),
        ..queue(time)
    };
    for (n, flags) in [
        abi::BLKRELAY_TIMES_MISSED,
        abi::BLKRELAY_TIMES_FRONT,
        abi::BLKRELAY_TIMES_BIO | abi::BLKRELAY_TIMES_REST,
        abi::BLKRELAY_TIMES_PARTIAL,
        abi::BLKRELAY_TIMES_CLONE,
    ]
    .into_iter()
    .enumerate()
    {
        cpu.event(span(50 + n as u64))
            .times(Times::new(10, 20, 0, 100, flags as u16));
    }
    cpu.event(span(60)).event(queue(61));
    let bytes = cpu.finish();
    let (events, _) = items(&open(file(&[bytes], &[&cpu])));
    let known = |event: &Event| {
        let times = event.times()?;
        Some((event.pid, times.queue_ns(), times.issue_ns()))
    };
    let known: Vec<_> = events.iter().map(known).collect();
    let expected = [
        Some((None, None, Some(1020))),
        Some((Some(100), None, Some(1020))),
        Some((Some(100), Some(1010), None)),
        Some((Some(100), Some(1010), Some(1020))),
        Some((None, None, Some(1020))),
        None,
        None,
    ];
    assert_eq!(known, expected);
    assert_eq!((events[5].pid, events[5].head), (None, 0xfff0));
    assert_eq!(events[5].errno(), -5);
    let flags = |event: &Event| {
        let times = event.times().unwrap();
        let rest = (times.is_rest(), times.is_partial(), times.is_bio());
        (times.is_missed(), times.is_front(), rest, times.is_clone())
    };
    let flags: Vec<_> = events[..5].iter().map(flags).collect();
    let (yes, no) = (true, false);
    let expected = [
        (yes, no, (no, no, no), no),
        (no, yes, (no, no, no), no),
        (no, no, (yes, no, yes), no),
        (no, no, (no, yes, no), no),
        (no, no, (no, no, no), yes),
    ];
    assert_eq!(flags, expected);
}

#[test]
fn details_belong_to_their_q() {
    let mut cpu = stream(0);
    cpu.event(queue(10)).detail(Detail {
        ioprio: 2 << 13 | 4,
        partno: 3,
        ..Detail::new(42)
    });
    cpu.event(queue(20));
    let bytes = cpu.finish();
    let (events, _) = items(&open(file(&[bytes], &[&cpu])));
    let detail = events[0].detail().unwrap();
    assert_eq!((detail.cgroup, detail.partno), (42, 3));
    assert_eq!(detail.ioprio, 0x4004);
    assert_eq!(events[1].detail(), None);
}

/// A disk goes, and another one comes with its queue id and number.
#[test]
fn a_disk_that_came_back_is_another_one() {
    let disk = |diskseq| Device {
        diskseq,
        ..Device::new(1, 8, 0, "sda")
    };
    let mut cpu = stream(0);
    cpu.device(disk(5)).event(queue(10));
    let first = cpu.finish();
    names(&mut cpu);
    cpu.device(disk(6)).event(Record { id: 8, ..queue(20) });
    let second = cpu.finish();
    let source = open(file(&[first, second], &[&cpu]));
    let (events, _) = items(&source);
    let seqs: Vec<u64> = events.iter().map(|event| event.diskseq).collect();
    assert_eq!(seqs, [5, 6]);
    let stats = Stats::of(&source);
    let rows: Vec<_> = stats
        .devices
        .iter()
        .map(|row| (row.name.as_str(), row.diskseq, row.totals.ios))
        .collect();
    assert_eq!(rows, [("sda", 5, 1), ("sda", 6, 1)]);
    // The first one's read will never be complete.
    assert_eq!(
        (stats.counts.no_completion, stats.counts.queued_at_end),
        (1, 1)
    );
}

/// The table of META, and what became of it later.
#[test]
fn tables_of_disks_add_up() {
    let disk = |name: &str, minor, diskseq, sectors| Disk {
        name: name.to_owned(),
        major: 8,
        minor,
        diskseq,
        sectors,
        ..Disk::default()
    };
    let meta = Meta {
        format: 1,
        devices: vec![disk("sda", 0, 5, 100), disk("sdb", 16, 6, 100)],
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    let later = [disk("sda", 0, 9, 100), disk("sdb", 16, 6, 200)];
    let json = serde_json::to_vec(&later).unwrap();
    writer.chunk(ChunkType::Devices, 0, &json).unwrap();
    let source = open(writer.finish(&Trailer::default()).unwrap());
    assert_eq!(source.problems(), []);
    let known: Vec<_> = source
        .disks()
        .iter()
        .map(|disk| (disk.name.as_str(), disk.diskseq, disk.sectors))
        .collect();
    assert_eq!(known, [("sda", 5, 100), ("sdb", 6, 200), ("sda", 9, 100)]);
    assert_eq!(source.verify().findings, []);
}

#[test]
fn a_cpu_that_lost_everything_is_a_gap() {
    let mut first = stream(0);
    first.event(queue(10));
    let bytes = first.finish();
    let mut second = stream(1);
    second.lose(9, 5, 6);
    let (events, gaps) = items(&open(file(&[bytes], &[&first, &second])));
    assert_eq!(events.len(), 1);
    assert_eq!(
        (gaps[0].cpu, gaps[0].events, gaps[0].kind),
        (1, 9, GapKind::Lost)
    );
}

#[test]
fn a_duplicate_is_not_read_twice() {
    let mut cpu = stream(0);
    cpu.event(queue(10));
    let first = cpu.finish();
    let source = open(file(&[first.clone(), first], &[&cpu]));
    assert_eq!(source.problems(), [Problem::Duplicate { cpu: 0, seq: 0 }]);
    assert_eq!(items(&source).0.len(), 1);
}

/// What happens to a CPU: an event after so long, a loss, a full sub-buffer, one that goes missing.
#[derive(Clone, Debug)]
enum Step {
    Event(u64),
    Lose(u64),
    Finish,
    Skip,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u64..20).prop_map(Step::Event),
        1 => (1u64..5).prop_map(Step::Lose),
        2 => Just(Step::Finish),
        1 => Just(Step::Skip),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Whatever happens: events are sorted by time, ties by CPU; each CPU's events are in order; every event
    /// is there or in a gap, and its number tells its place.
    #[test]
    fn events_and_gaps_add_up(cpus in proptest::collection::vec(steps(), 1..5)) {
        let mut subbufs: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut streams = Vec::new();
        // (time, cpu, seq) of each event that is in the file, and how many are not.
        let mut expected: Vec<(u64, u32, u64)> = Vec::new();
        let mut absent = vec![0u64; cpus.len()];
        for (cpu, steps) in (0u32..).zip(&cpus) {
            let mut builder = stream(cpu);
            let mut now = 1u64;
            let mut number = 0;
            let mut pending = Vec::new();
            // A loss must lie before the first event of its sub-buffer.
            let mut lost = None;
            for step in steps.iter().chain([&Step::Finish]) {
                match step {
                    Step::Event(wait) => {
                        now += wait;
                        number += 1;
                        builder.event(queue(now));
                        pending.push((now, cpu, number));
                    }
                    Step::Lose(count) if pending.is_empty() && lost.is_none() => {
                        builder.lose(*count, now, now + 2);
                        now += 2;
                        number += count;
                        absent[cpu as usize] += count;
                        lost = Some(*count);
                    }
                    Step::Lose(_) => {}
                    Step::Finish => {
                        let bytes = builder.finish();
                        subbufs.push((now, bytes));
                        expected.append(&mut pending);
                        lost = None;
                        names(&mut builder);
                        builder.anchor(now, now + 1000);
                    }
                    Step::Skip => {
                        builder.skip();
                        absent[cpu as usize] += pending.len() as u64;
                        pending.clear();
                        lost = None;
                        names(&mut builder);
                        builder.anchor(now, now + 1000);
                    }
                }
            }
            streams.push(builder);
        }
        // In the file sub-buffers stand as they were finished.
        subbufs.sort_by_key(|subbuf| subbuf.0);
        let subbufs: Vec<Vec<u8>> = subbufs.into_iter().map(|subbuf| subbuf.1).collect();
        let totals: Vec<_> = streams.iter().collect();
        let source = open(file(&subbufs, &totals));
        prop_assert_eq!(source.problems(), &[][..]);
        expected.sort_by_key(|event| (event.0, event.1));

        let mut found = Vec::new();
        let mut missing = vec![0u64; cpus.len()];
        let mut latest = 0;
        for item in source.events() {
            let time = match item {
                Item::Event(event) => {
                    found.push((event.time, event.cpu, event.seq));
                    prop_assert_eq!(event.ns, event.time + 1000);
                    event.time
                }
                Item::Gap(gap) => {
                    missing[gap.cpu as usize] += gap.events;
                    prop_assert!(gap.from <= gap.to);
                    gap.from
                }
            };
            prop_assert!(time >= latest, "{time} after {latest}");
            latest = time;
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(missing, absent);
    }

    /// Any damage: no panic, no endless loop.
    #[test]
    fn damage_is_survived(at in 0usize..2000, value: u8, cut in 0usize..2000) {
        let mut cpu = stream(0);
        cpu.event(queue(10)).event(queue(20));
        let first = cpu.finish();
        cpu.lose(5, 25, 28).event(queue(30));
        let second = cpu.finish();
        let mut bytes = file(&[first, second], &[&cpu]);
        let len = bytes.len();
        bytes[at % len] = value;
        bytes.truncate(len - cut % len);
        if let Ok(source) = Source::from_bytes(bytes) {
            prop_assert!(source.events().count() < 20);
            blkrelay_trace::Stats::of(&source);
            source.verify();
        }
    }
}
