// SPDX-License-Identifier: GPL-2.0
//! What is selected of a trace. Of an event alone the reader must say what the module says: its own code is
//! asked.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "../../format/tests/common/module.rs"]
mod module;

use blkrelay_format::{abi, Action, Detail, Record, SubbufBuilder, Task, Times};
use blkrelay_trace::{Dev, Event, Filter, Item, Op, Place, Source, Stats};
use common::*;
use module::{config, filter, record};
use proptest::prelude::*;
use Action::*;

const SDA: Dev = Dev { major: 8, minor: 0 };
const SDB: Dev = Dev {
    major: 8,
    minor: 16,
};

fn selected(source: &Source, filter: &Filter) -> Vec<Event> {
    let items = source.select(filter).filter_map(|item| match item {
        Item::Event(event) => Some(event),
        Item::Gap(_) => None,
    });
    items.collect()
}

fn source(records: &[Record]) -> Source {
    let mut cpu = stream(0);
    for record in records {
        cpu.event(*record);
    }
    of(cpu)
}

fn of(mut cpu: SubbufBuilder) -> Source {
    let bytes = cpu.finish();
    open(file(&[bytes], &[&cpu]))
}

/// The letters and times of what is selected.
fn letters(source: &Source, filter: &Filter) -> String {
    let events = selected(source, filter);
    let words: Vec<String> = events
        .iter()
        .map(|event| format!("{}{}", event.action.name(), event.time))
        .collect();
    words.join(" ")
}

fn range(max: u64) -> impl Strategy<Value = Option<(u64, u64)>> {
    let two = (0..max, 0..max).prop_map(|(a, b)| (a.min(b), a.max(b)));
    proptest::option::of(two)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever is asked of whatever event, the answer is the module's.
    #[test]
    fn an_event_passes_as_it_does_in_the_module(
        n in 0..Action::ALL.len(),
        op in proptest::sample::select(&[0u32, 1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 34, 35, 36][..]),
        preflush: bool,
        sector in proptest::option::of(0u64..100),
        status in prop_oneof![Just(0u8), Just(10)],
        sectors in prop_oneof![1 => Just(0u32), 2 => 0u32..20],
        odd in 0u32..512,
        queue in 1u16..3,
        asked_ops in proptest::collection::vec(0usize..Op::ALL.len(), 0..3),
        asked_sectors in range(100),
        asked_sizes in range(12),
        asked_places in proptest::collection::vec((1u16..3, range(100)), 0..3),
    ) {
        let action = Action::ALL[n];
        // These never have one.
        let placeless = matches!(action, Plug | Unplug | UnplugSchedule | TagWait);
        let sector = sector.filter(|_| !placeless);
        let bytes = sectors * 512 + odd * u32::from(odd % 3 == 0);
        let opf = op | if preflush { PREFLUSH } else { 0 };
        let record = Record {
            place: Record::pack_place(sector, queue),
            ..event(action, 10, 0, bytes, opf, 7)
        };
        let record = if action.is_completion() {
            Record { who: Record::pack_complete(action, status, 7), ..record }
        } else {
            record
        };

        let filter = Filter {
            places: asked_places
                .iter()
                .map(|(queue, part)| Place { disk: if *queue == 1 { SDA } else { SDB }, part: *part })
                .collect(),
            ops: asked_ops.iter().map(|n| Op::ALL[*n].1).collect(),
            sectors: asked_sectors,
            sizes: asked_sizes.map(|(min, max)| (min as u32 * 1000, max as u32 * 1000)),
            ..Filter::default()
        };
        let ours = !selected(&source(&[record]), &filter).is_empty();

        // The module's words for the same, through its own parser.
        let mut text = String::from("start devices=all");
        let names: Vec<&str> = asked_ops.iter().map(|n| Op::ALL[*n].0).collect();
        if !names.is_empty() {
            text += &format!(" op={}", names.join(","));
        }
        if let Some((first, last)) = asked_sectors {
            text += &format!(" sector={first}-{last}");
        }
        if let Some((min, max)) = asked_sizes {
            text += &format!(" size={}-{}", min * 1000, max * 1000);
        }
        let Ok(config::Command::Start(start)) = config::parse(text.as_bytes(), &[]) else {
            return Err(TestCaseError::fail(text));
        };
        let places: Vec<_> = asked_places
            .iter()
            .map(|(queue, part)| filter::Place { queue: *queue, part: *part })
            .collect();
        let selection = if places.is_empty() {
            filter::Selection::All
        } else {
            filter::Selection::Queues(&places)
        };
        let asked = filter::Asked {
            ops: filter::Ops::new(start.filter.ops),
            sectors: start.filter.sectors,
            sizes: start.filter.sizes,
        };
        // What the module knows of a request besides, by its bio: of an empty flush that has kept its flag. A span
        // says by itself whether bytes are left.
        let ends = matches!(action, Complete | Error | Action::Span);
        let ends_sequence = ends && bytes == 0 && op == 1;
        let done = action == Action::Span || record.status() == 0;
        let follows_data = ends_sequence && sector != Some(0) && done;
        let ends_flush = ends_sequence && sector == Some(0);
        let opf = record.opf | if ends_flush { PREFLUSH } else { 0 };
        let event = filter::Event {
            place: record.place,
            size_op: record::pair(record.bytes, opf),
            id_who: record::pair(record.id, record.who),
            kind: record::kind(action.code().into()),
            follows_data,
        };
        let theirs = selection.pass(&event) && asked.pass(&event);
        prop_assert_eq!(ours, theirs, "{:?} of {:?}", text, record);
    }
}

/// A slow read by dd and a fast one by cat, whose request a worker issues; both with what stands around
/// them.
fn two_reads() -> Source {
    let by_cat = |record: Record| Record {
        who: Record::pack_who(record.action().unwrap(), 200),
        ..record
    };
    let by_worker = |record: Record| Record {
        who: Record::pack_who(record.action().unwrap(), 300),
        ..record
    };
    let failed = |action, time| Record {
        who: Record::pack_complete(action, 10, 1),
        ..complete(time, 8, 4096, READ, 5, 1)
    };
    let mut cpu = stream(0);
    cpu.task(Task::new("kworker/0:1", 300, 300))
        .event(event(Plug, 90, 0, 0, 0, 0))
        .event(event(Remap, 99, 8, 4096, READ, 1))
        .from(blkrelay_format::RemapFrom::new(8, 1, 0))
        .event(event(Queue, 100, 8, 4096, READ, 1))
        .detail(Detail::new(42))
        .event(event(GetRq, 101, 8, 4096, READ, 1))
        .event(event(Insert, 102, 8, 4096, READ, 5))
        .event(by_cat(event(Queue, 110, 64, 8192, READ, 2)))
        .detail(Detail::new(43))
        .event(by_cat(event(GetRq, 111, 64, 8192, READ, 2)))
        .event(by_worker(event(Issue, 120, 64, 8192, READ, 6)))
        .event(by_worker(event(Issue, 130, 8, 4096, READ, 5)))
        .event(complete(150, 64, 8192, READ, 6, 2))
        .event(failed(Complete, 1130))
        .event(failed(Error, 1131))
        .event(event(IoDone, 1132, 8, 4096, READ, 5))
        // Tag and bio are used again, by cat; this one never ends.
        .event(by_cat(event(Queue, 1200, 8, 4096, READ, 1)))
        .event(by_cat(event(GetRq, 1201, 8, 4096, READ, 1)))
        .event(by_cat(event(Issue, 1210, 8, 4096, READ, 5)));
    of(cpu)
}

const DD: &str = "A99 Q100 G101 I102 D130 C1130 E1131 ID1132";

#[test]
fn an_io_is_selected_as_a_whole() {
    let source = two_reads();
    let filter = |change: fn(&mut Filter)| {
        let mut filter = Filter::default();
        change(&mut filter);
        letters(&source, &filter)
    };
    let dd = format!("P90 {DD}");
    assert_eq!(filter(|f| f.pids = vec![100]), dd);
    assert_eq!(filter(|f| f.comms = vec!["dd".into()]), dd);
    // Its second read has no end: its request cannot be told, its bio can.
    let cat = "Q110 G111 D120 C150 Q1200 G1201";
    assert_eq!(filter(|f| f.pids = vec![200]), cat);
    // The worker submitted nothing, though it was there when both were issued.
    assert_eq!(filter(|f| f.pids = vec![300]), "");
    assert_eq!(filter(|f| f.cgroups = vec![42]), DD);
    assert_eq!(filter(|f| f.cgroups = vec![43]), "Q110 G111 D120 C150");
    // D2C are 1000 and 30 ns, Q2C 1030 and 40.
    assert_eq!(filter(|f| f.min_latency_ns = Some(1000)), DD);
    assert_eq!(filter(|f| f.min_latency_ns = Some(1001)), "");
    let both = filter(|f| f.min_latency_ns = Some(30));
    assert_eq!(both.split(' ').count(), DD.split(' ').count() + 4);
    // All that is given must hold.
    let and = |f: &mut Filter| (f.pids, f.min_latency_ns) = (vec![200], Some(100));
    assert_eq!(filter(and), "");
    assert_eq!(
        filter(|f| (f.pids, f.sizes) = (vec![200], Some((8192, 8192)))),
        "Q110 G111 D120 C150"
    );
}

/// The tag and the bio of dd's read are cat's, once that is over.
#[test]
fn a_tag_is_one_ios_at_a_time() {
    let by_cat = |record: Record| Record {
        who: Record::pack_who(record.action().unwrap(), 200),
        ..record
    };
    let source = source(&[
        event(Queue, 100, 8, 4096, READ, 1),
        event(Issue, 110, 8, 4096, READ, 5),
        complete(150, 8, 4096, READ, 5, 1),
        by_cat(event(Queue, 200, 8, 4096, READ, 1)),
        by_cat(event(Issue, 210, 8, 4096, READ, 5)),
        complete(250, 8, 4096, READ, 5, 1),
    ]);
    let by = |pid| Filter {
        pids: vec![pid],
        ..Filter::default()
    };
    assert_eq!(letters(&source, &by(100)), "Q100 D110 C150");
    assert_eq!(letters(&source, &by(200)), "Q200 D210 C250");
}

/// Of a bio-based driver it is Q to C.
#[test]
fn latency_of_a_bio() {
    let source = source(&[
        event(Queue, 100, 0, 4096, WRITE, 1),
        event(Queue, 110, 8, 4096, WRITE, 2),
        event(BioComplete, 200, 0, 4096, WRITE, 1),
        event(BioComplete, 300, 8, 4096, WRITE, 2),
    ]);
    let slower = |ns| Filter {
        min_latency_ns: Some(ns),
        ..Filter::default()
    };
    assert_eq!(letters(&source, &slower(190)), "Q110 C300");
    assert_eq!(letters(&source, &slower(100)), "Q100 Q110 C200 C300");
}

/// Parts and their requests belong to the I/O that was split.
#[test]
fn a_split_io_is_selected_with_its_parts() {
    let source = source(&[
        event(Queue, 100, 0, 8192, WRITE, 1),
        event(Split, 101, 0, 4096, WRITE, 11),
        event(Issue, 103, 0, 4096, WRITE, 3),
        event(Issue, 104, 8, 4096, WRITE, 4),
        complete(200, 0, 4096, WRITE, 3, 11),
        complete(300, 8, 4096, WRITE, 4, 1),
    ]);
    let dd = Filter {
        comms: vec!["dd".into()],
        ..Filter::default()
    };
    assert_eq!(letters(&source, &dd), "Q100 X101 D103 D104 C200 C300");
}

#[test]
fn a_window_counts_from_the_first_event() {
    let source = two_reads();
    let window = |from, to| Filter {
        window: Some((from, to)),
        ..Filter::default()
    };
    assert_eq!(letters(&source, &window(9, 11)), "A99 Q100 G101");
    assert_eq!(letters(&source, &window(0, 0)), "P90");
    assert_eq!(selected(&source, &window(0, u64::MAX)).len(), 16);
}

/// Statistics of what is selected only.
#[test]
fn statistics_of_a_selection() {
    let source = two_reads();
    let filter = Filter {
        pids: vec![200],
        ..Filter::default()
    };
    let stats = Stats::of_selected(&source, &filter);
    assert_eq!(stats.processes.len(), 1);
    assert_eq!(stats.processes[0].submitter.comm.bytes(), b"cat");
    assert_eq!(stats.devices[0].totals.requests, 1);
    assert_eq!(stats.devices[0].totals.bytes, 8192 + 4096);
    assert_eq!(Stats::of(&source).devices[0].totals.requests, 2);
}

fn part(first: u64, last: u64) -> Filter {
    Filter {
        places: vec![Place {
            disk: SDA,
            part: Some((first, last)),
        }],
        ..Filter::default()
    }
}

fn sized(min: u32) -> Filter {
    Filter {
        sizes: Some((min, u32::MAX)),
        ..Filter::default()
    }
}

fn touching(first: u64, last: u64) -> Filter {
    Filter {
        sectors: Some((first, last)),
        ..Filter::default()
    }
}

/// With an error: EIO.
fn failed(record: Record) -> Record {
    Record {
        who: record.who | 10 << 16,
        ..record
    }
}

fn error_of(time: u64, record: Record) -> Record {
    Record {
        time,
        who: Record::pack_complete(Error, 10, u32::from(record.head())),
        ..record
    }
}

/// A span of queue 1 by dd that completes so many bios.
fn span(time: u64, sector: u64, bytes: u32, bios: u32) -> Record {
    Record {
        who: Record::pack_complete(Action::Span, 0, bios),
        ..event(Action::Span, time, sector, bytes, WRITE | SYNC, 5)
    }
}

fn spans(records: &[(Record, u16)]) -> Source {
    let mut cpu = stream(0);
    for (record, flags) in records {
        cpu.event(*record)
            .times(Times::new(100, 110, 0, 100, *flags));
    }
    of(cpu)
}

const SYNC: u32 = 1 << 11;
const PARTIAL: u16 = abi::BLKRELAY_TIMES_PARTIAL as u16;

/// The flush machinery takes the flag that told a flush, of the request and so of its end: fsync's is that of the
/// whole disk all the same, whether it could be done or not.
#[test]
fn the_end_of_an_empty_flush_is_a_flush() {
    let end = complete(200, 0, 0, WRITE | SYNC, 5, 1);
    let fsync = source(&[
        event(Queue, 100, 0, 0, WRITE | SYNC | PREFLUSH, 1),
        end,
        failed(Record { time: 300, ..end }),
        error_of(301, end),
    ]);
    let fsync_span = span(200, 0, 0, 1);
    let failed_span = failed(Record {
        time: 300,
        ..fsync_span
    });
    let fsync_spans = spans(&[(fsync_span, 0), (failed_span, 0)]);
    let flushes = |op| Filter {
        ops: vec![op],
        ..Filter::default()
    };
    for (filter, passes) in [
        (part(2048, 4095), true),
        (part(0, 7), true),
        (flushes(Op::Flush), true),
        (flushes(Op::Write), true),
        (flushes(Op::Read), false),
        (touching(0, 7), false),
        (sized(0), true),
        (sized(1), false),
    ] {
        let expected = |all| if passes { all } else { "" };
        assert_eq!(
            letters(&fsync, &filter),
            expected("Q100 C200 C300 E301"),
            "{filter:?}"
        );
        assert_eq!(
            letters(&fsync_spans, &filter),
            expected("SP200 SP300"),
            "{filter:?}"
        );
    }
}

/// A driver completes 0 bytes of a write that has failed and goes on.
#[test]
fn a_write_of_which_nothing_was_done_is_no_flush() {
    let write = source(&[failed(complete(200, 64, 0, WRITE, 5, 1))]);
    let goes_on = spans(&[
        (failed(span(200, 64, 0, 0)), PARTIAL),
        (failed(span(300, 0, 0, 0)), PARTIAL),
    ]);
    let flushes = Filter {
        ops: vec![Op::Flush],
        ..Filter::default()
    };
    for (filter, expected) in [
        (flushes, ["", ""]),
        (part(2048, 4095), ["", ""]),
        (part(64, 71), ["C200", "SP200"]),
        (part(0, 63), ["", "SP300"]),
        (touching(64, 64), ["C200", "SP200"]),
        (touching(0, 7), ["", "SP300"]),
        (sized(4096), ["", ""]),
    ] {
        let of = [letters(&write, &filter), letters(&goes_on, &filter)];
        assert_eq!(of, expected, "{filter:?}");
    }
}

/// A driver that moves on in its bio (brd) leaves 0 bytes of a write: that is no end of a flush sequence.
#[test]
fn a_bio_that_is_used_up_is_no_flush() {
    let bio = abi::BLKRELAY_TIMES_BIO as u16;
    let source = spans(&[(span(200, 0, 0, 1), bio), (span(300, 16, 0, 1), bio)]);
    let flushes = Filter {
        ops: vec![Op::Flush],
        ..Filter::default()
    };
    for filter in [flushes, sized(0), touching(0, 63), part(0, 63)] {
        assert_eq!(letters(&source, &filter), "", "{filter:?}");
    }
}

/// Two FUA writes to a disk that flushes for them, 4 KiB at sector 8 and 512 bytes at sector 0, which could not be
/// flushed: the C at the end has no bytes, and stands where the data does.
#[test]
fn the_end_of_a_flush_sequence_passes_with_its_data() {
    let end = failed(complete(400, 0, 0, WRITE | SYNC, 6, 2));
    let events = source(&[
        event(Queue, 100, 8, 4096, WRITE | SYNC | FUA, 1),
        event(Queue, 101, 0, 512, WRITE | SYNC | FUA, 2),
        event(Issue, 110, 8, 4096, WRITE | SYNC, 5),
        event(Issue, 111, 0, 512, WRITE | SYNC, 6),
        complete(150, 8, 4096, WRITE | SYNC, 5, 1),
        complete(151, 0, 512, WRITE | SYNC, 6, 2),
        event(Issue, 160, 0, 0, FLUSH | PREFLUSH, 5),
        complete(190, 0, 0, FLUSH | PREFLUSH, 5, 0),
        complete(200, 8, 0, WRITE | SYNC, 5, 1),
        end,
        error_of(401, end),
    ]);
    let flush = Record {
        opf: FLUSH | PREFLUSH,
        ..span(190, 0, 0, 0)
    };
    let of_tag_6 = |record| Record { id: 6, ..record };
    let spans = spans(&[
        (span(150, 8, 4096, 1), 0),
        (of_tag_6(span(151, 0, 512, 1)), 0),
        (flush, 0),
        (span(200, 8, 0, 1), 0),
        (of_tag_6(failed(span(400, 0, 0, 1))), 0),
    ]);
    let (first, second) = ("Q100 D110 C150 C200", "Q101 D111 C151 C400 E401");
    for (filter, expected) in [
        (sized(4096), [first, "SP150 SP200"]),
        // The flush itself has no sector that could be asked for, and the end is not in the first of these.
        (touching(9, 15), [first, "SP150 SP200"]),
        (touching(8, 8), [first, "SP150 SP200"]),
        (touching(16, 63), ["", ""]),
        (touching(0, 0), [second, "SP151 SP400"]),
    ] {
        let of = [letters(&events, &filter), letters(&spans, &filter)];
        assert_eq!(of, expected, "{filter:?}");
    }
    // The Q2C goes to the flush's end. Each span has 100 for its Q.
    for (filter, q2c) in [
        (sized(4096), [100, 100]),
        (touching(9, 15), [100, 100]),
        (touching(0, 0), [299, 300]),
    ] {
        for (source, q2c) in [&events, &spans].into_iter().zip(q2c) {
            let stats = Stats::of_selected(source, &filter);
            let latency = stats.devices[0].totals.q2c.as_ref().unwrap().quantiles();
            assert_eq!((latency.count, latency.max_ns), (1, q2c), "{filter:?}");
            assert_eq!(stats.counts.flush_sequences, 1);
        }
    }
}

/// With data that is not in the trace it is asked by itself: any size may have been its own, and it touches the first
/// sector of that. So is one that follows another I/O of the same tag.
#[test]
fn an_end_whose_data_is_not_there_is_asked_by_itself() {
    let end = complete(200, 8, 0, WRITE | SYNC, 5, 1);
    let others = [
        // Elsewhere, of another tag, of another bio.
        complete(110, 0, 512, WRITE | SYNC, 5, 1),
        complete(110, 8, 512, WRITE | SYNC, 6, 1),
        complete(110, 8, 512, WRITE | SYNC, 5, 2),
    ];
    for (filter, passes) in [
        (sized(4096), true),
        (touching(8, 8), true),
        (touching(7, 7), false),
        (touching(9, 9), false),
    ] {
        let ends = |records: &[Record]| letters(&source(records), &filter).contains("C200");
        assert_eq!(ends(&[end]), passes, "{filter:?}");
        for other in others {
            assert_eq!(ends(&[other, end]), passes, "{filter:?} {other:?}");
        }
        // A span that has failed does not go on. Of a C that is not known.
        let span = spans(&[(failed(span(200, 8, 0, 1)), 0)]);
        assert_eq!(letters(&span, &filter) == "SP200", passes, "{filter:?}");
    }

    // An empty flush behind a write to sector 0 that was queued earlier.
    let mut cpu = stream(0);
    for (record, queue) in [(span(150, 0, 4096, 1), 100), (span(200, 0, 0, 1), 160)] {
        cpu.event(record)
            .times(Times::new(queue, 170.min(record.time), 0, 100, 0));
    }
    let flush = of(cpu);
    assert_eq!(letters(&flush, &sized(4096)), "SP150");
    assert_eq!(letters(&flush, &part(2048, 4095)), "SP200");
    assert_eq!(letters(&flush, &touching(0, 7)), "SP150");
}
