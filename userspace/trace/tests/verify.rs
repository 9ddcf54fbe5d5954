// SPDX-License-Identifier: GPL-2.0
//! Each kind of damage is found, and named.
#![allow(clippy::unwrap_used)]

mod common;

use blkrelay_format::{
    abi, Action, Chunks, Clock, CpuCounters, End, Record, RemapFrom, Stop, SubbufBuilder, Times,
    Trailer,
};
use blkrelay_trace::{Cause, Item, Source};
use common::*;

fn queue(time: u64) -> Record {
    event(Action::Queue, time, 8, 4096, READ, 7)
}

fn findings(file: Vec<u8>) -> Vec<String> {
    let verdict = open(file).verify();
    verdict.findings.iter().map(ToString::to_string).collect()
}

/// One finding, which says this.
fn finds(file: Vec<u8>, text: &str) {
    let findings = findings(file);
    assert!(
        findings.iter().any(|finding| finding.contains(text)),
        "{text:?} in {findings:#?}"
    );
}

fn small() -> Vec<u8> {
    let mut first = stream(0);
    first.event(queue(10)).event(queue(20));
    let one = first.finish();
    names(&mut first);
    first
        .anchor(25, 1025)
        .event(event(Action::Remap, 30, 8, 4096, READ, 7))
        .from(RemapFrom::new(8, 1, 0));
    let two = first.finish();
    let mut second = stream(1);
    second.event(complete(15, 8, 4096, READ, 3, 7));
    let three = second.finish();
    file(&[one, two, three], &[&first, &second])
}

#[test]
fn a_whole_file_has_no_findings() {
    let verdict = open(small()).verify();
    assert_eq!(verdict.findings, []);
    assert_eq!(
        (verdict.events, verdict.subbufs, verdict.cpus, verdict.lost),
        (4, 3, 2, 0)
    );
}

#[test]
fn order_and_counters() {
    let mut cpu = stream(0);
    cpu.event(queue(10));
    let one = cpu.finish();
    names(&mut cpu);
    cpu.event(queue(20));
    let two = cpu.finish();
    names(&mut cpu);
    cpu.event(queue(30));
    let three = cpu.finish();

    finds(cut_short(std::slice::from_ref(&one)), "there is no TRAILER");
    let missing = file(&[one.clone(), three.clone()], &[&cpu]);
    finds(missing.clone(), "sub-buffer 2: number 1 was due");
    finds(
        missing,
        "sub-buffer 2: 2 events before it by its header, 1 in the file",
    );
    finds(
        file(&[one.clone(), two.clone()], &[&cpu]),
        "3 events by the TRAILER, 2 by the last",
    );
    let twice = file(&[one.clone(), one, two, three], &[&cpu]);
    finds(twice, "CPU 0: sub-buffer 0 is there twice");

    let mut back = stream(0);
    back.event(queue(20)).event(queue(10)).event(queue(15));
    let bytes = back.finish();
    finds(file(&[bytes], &[&back]), "time goes back at 1 events");

    let mut lossy = stream(0);
    lossy.event(queue(10));
    let one = lossy.finish();
    names(&mut lossy);
    lossy.anchor(15, 1015).lose(7, 12, 14).event(queue(20));
    let two = lossy.finish();
    let whole = file(&[one.clone(), two.clone()], &[&lossy]);
    assert_eq!(
        findings(whole).len(),
        1,
        "the loss itself, and nothing else"
    );
    finds(file(&[one, two], &[&lossy]), "7 events lost before it");
}

#[test]
fn records() {
    let bad = |change: &dyn Fn(&mut blkrelay_format::SubbufBuilder)| {
        let mut cpu = stream(0);
        change(&mut cpu);
        let bytes = cpu.finish();
        file(&[bytes], &[&cpu])
    };
    let zero = Record {
        who: 0,
        ..queue(10)
    };
    finds(
        bad(&|cpu| {
            cpu.event(zero).event(queue(11));
        }),
        "slot 8: no such action: 0",
    );
    let long = Record {
        who: 0x9000_0009,
        ..queue(10)
    };
    finds(
        bad(&|cpu| {
            cpu.event(long);
        }),
        "side record 0x90 claims 9 slots, 1 are left",
    );
    finds(
        bad(&|cpu| {
            cpu.from(RemapFrom::new(8, 0, 0));
        }),
        "a from record without an A event",
    );
    let remap = event(Action::Remap, 10, 8, 4096, READ, 7);
    finds(
        bad(&|cpu| {
            cpu.event(remap);
        }),
        "no from record behind an A event",
    );
    let stranger = Record {
        place: Record::pack_place(Some(8), 77),
        who: Record::pack_who(Action::Queue, 300),
        ..queue(10)
    };
    finds(
        bad(&|cpu| {
            cpu.event(stranger);
        }),
        "events of queue 77 before a device record",
    );
    finds(
        bad(&|cpu| {
            cpu.event(stranger);
        }),
        "events of pid 300 before a task record",
    );
    finds(
        bad(&|cpu| {
            cpu.anchor(50, 0).event(queue(10));
        }),
        "its anchor lies behind",
    );
}

#[test]
fn spans() {
    let span = |time| Record {
        who: Record::pack_complete(Action::Span, 0, 1),
        ..event(Action::Span, time, 8, 4096, READ, 7)
    };
    let no_bio = Record {
        who: Record::pack_complete(Action::Span, 0, 0),
        ..span(20)
    };
    let flags = |flag: u32| flag as u16;
    let of = |records: &[(Record, Times)]| {
        let mut cpu = stream(0);
        for (record, times) in records {
            cpu.event(*record).times(*times);
        }
        let bytes = cpu.finish();
        findings(file(&[bytes], &[&cpu]))
    };
    let missed = flags(abi::BLKRELAY_TIMES_MISSED);
    let front = flags(abi::BLKRELAY_TIMES_FRONT);
    let bio = flags(abi::BLKRELAY_TIMES_BIO);
    let clone = flags(abi::BLKRELAY_TIMES_CLONE);
    let good = [
        (span(20), Times::new(10, 15, 1, 100, 0)),
        (span(20), Times::new(10, 0, 0, 100, 0)),
        (span(20), Times::new(20, 20, 1020, 200, 0)),
        (span(20), Times::new(0, 15, 0, 0, missed)),
        (span(20), Times::new(0, 15, 0, 0, front)),
        (span(20), Times::new(0, 15, 0, 100, front)),
        (span(20), Times::new(10, 0, 0, 100, bio)),
        (span(20), Times::new(0, 15, 0, 0, clone)),
        (no_bio, Times::new(0, 15, 0, 0, 0)),
    ];
    assert_eq!(of(&good), [""; 0]);
    for (times, text) in [
        (
            Times::new(21, 0, 0, 100, 0),
            "queued, issued and complete in this order",
        ),
        (
            Times::new(10, 21, 0, 100, 0),
            "queued, issued and complete in this order",
        ),
        (
            Times::new(15, 12, 0, 100, 0),
            "queued, issued and complete in this order",
        ),
        (
            Times::new(10, 0, 0, 0, missed),
            "Q was missed, and that tell of it",
        ),
        (
            Times::new(0, 0, 0, 100, missed),
            "Q was missed, and that tell of it",
        ),
        (
            Times::new(10, 0, 0, 100, front),
            "a front part that tell of a Q",
        ),
        (
            Times::new(10, 0, 1, 100, bio),
            "a bio that tell of an allocation",
        ),
        (
            Times::new(0, 15, 0, 100, clone),
            "of a clone that tell of a Q",
        ),
        (
            Times::new(0, 15, 0, 100, 0),
            "without a Q that do not say why",
        ),
        (
            Times::new(10, 15, 0, 100, bio),
            "of a bio that tell of an issue",
        ),
        (
            Times::new(10, 15, 0, 300, 0),
            "events of pid 300 before a task record",
        ),
    ] {
        let found = of(&[(span(20), times), (span(20), times)]);
        assert_eq!(found.len(), 1, "{times:?}: {found:?}");
        assert!(found[0].contains(text), "{found:?}");
        let counted = found[0].contains(": 2 spans ");
        assert!(counted || text.starts_with("events of"), "{found:?}");
    }
    let mut cpu = stream(0);
    cpu.event(span(10))
        .event(queue(11))
        .times(Times::new(5, 6, 0, 100, 0))
        .event(span(12));
    let bytes = cpu.finish();
    let found = findings(file(&[bytes], &[&cpu]));
    let of = |text: &str| found.iter().filter(|found| found.contains(text)).count();
    assert_eq!(of("no times record behind a span"), 2, "{found:?}");
    assert_eq!(of("a times record without a span"), 1, "{found:?}");
    assert_eq!(found.len(), 3, "{found:?}");
}

/// The findings about spans of so many bios.
fn findings_of(mut cpu: SubbufBuilder, spans: &[(Record, u32, Times)]) -> Vec<String> {
    for (record, bios, times) in spans {
        let who = Record::pack_complete(Action::Span, 0, *bios);
        cpu.event(Record { who, ..*record }).times(*times);
    }
    let bytes = cpu.finish();
    findings(file(&[bytes], &[&cpu]))
}

/// CLOCK_MONOTONIC is 1000 ns ahead at the anchor, and runs on by at most an eighth more than the trace's clock has,
/// and a millisecond.
#[test]
fn a_span_is_allocated_before_it_is_issued() {
    let issue = 8_000_000;
    let later = issue + 80_000_000;
    let slack = 1_000_000;
    let of = |op, bios, times| {
        let record = event(Action::Span, later, 8, 4096, op, 7);
        findings_of(stream(0), &[(record, bios, times)])
    };
    let text = "1 spans of requests that were issued or complete before they were allocated";
    let is_found = |found: Vec<String>| match &found[..] {
        [] => false,
        [one] => one.contains(text),
        _ => panic!("{found:?}"),
    };
    let none = abi::BLKRELAY_TIMES_MISSED as u16;
    let latest = 8_001_000 + 1_000_000 + slack;
    for (alloc, wrong) in [(0, false), (latest, false), (latest + 1, true)] {
        assert_eq!(
            is_found(of(READ, 1, Times::new(10, issue, alloc, 100, 0))),
            wrong
        );
        // A flush's own request, and a driver's command.
        assert_eq!(
            is_found(of(FLUSH, 0, Times::new(0, issue, alloc, 0, 0))),
            wrong
        );
        assert_eq!(
            is_found(of(34, 1, Times::new(0, issue, alloc, 0, none))),
            wrong
        );
    }
    // 88 ms behind the anchor: 11 ms more at most.
    let latest = 88_001_000 + 11_000_000 + slack;
    for (alloc, wrong) in [(latest, false), (latest + 1, true)] {
        assert_eq!(
            is_found(of(READ, 1, Times::new(10, 0, alloc, 100, 0))),
            wrong
        );
    }

    // It was issued before this sub-buffer's anchor. Who knows how long the machine has slept since.
    let mut cpu = stream(0);
    cpu.anchor(issue + 1, 1_000);
    let record = event(Action::Span, issue + 1, 8, 4096, READ, 7);
    let of = |alloc| {
        let times = Times::new(10, issue, alloc, 100, 0);
        findings_of(cpu.clone(), &[(record, 1, times)])
    };
    assert!(!is_found(of(1_001_000)));
    assert!(is_found(of(1_001_001)));

    // Two ticks a nanosecond: 4 ms.
    let mut cpu = SubbufBuilder::new(ID, 0, Clock::Tsc, 2_000_000);
    cpu.anchor(0, 1000);
    names(&mut cpu);
    let record = event(Action::Span, later, 8, 4096, READ, 7);
    let latest = 4_001_000 + 500_000 + slack;
    for (alloc, wrong) in [(latest, false), (latest + 1, true)] {
        let times = Times::new(10, issue, alloc, 100, 0);
        let found = findings_of(cpu.clone(), &[(record, 1, times)]);
        assert_eq!(is_found(found), wrong);
    }

    // An anchor that is none (BLKRELAY_SUBBUF_ANCHOR_BAD, in the header's flags).
    cpu.event(record)
        .times(Times::new(10, issue, u64::MAX, 100, 0));
    let mut bytes = cpu.finish();
    bytes[14] |= 1;
    assert!(!is_found(findings(file(&[bytes], &[&cpu]))));
}

/// 4 KiB are eight sectors, of as many bios at most; of a bio whose beginning is done the last bytes may be left.
#[test]
fn a_bio_has_a_sector() {
    const DRV_IN: u32 = 34;
    let text = "1 spans of more bios than sectors";
    for (op, bytes, bios, wrong) in [
        (READ, 4096, 8, false),
        (READ, 4096, 9, true),
        (DISCARD, 4096, 8, false),
        (DISCARD, 4096, 9, true),
        (READ, 513, 2, false),
        (READ, 513, 3, true),
        // The end of a flush sequence.
        (WRITE, 0, 1, false),
        (DRV_IN, 36, 3, false),
    ] {
        let record = event(Action::Span, 20, 8, bytes, op, 7);
        let found = findings_of(stream(0), &[(record, bios, Times::new(10, 15, 0, 100, 0))]);
        assert_eq!(
            found.len(),
            usize::from(wrong),
            "{bios} of {bytes}: {found:?}"
        );
        assert!(!wrong || found[0].contains(text), "{found:?}");
    }
}

/// Everything that a reader could take from a file.
fn content(file: &[u8]) -> Option<(Vec<Item>, String)> {
    let source = Source::from_bytes(file.to_vec()).ok()?;
    let rest = format!("{:?} {:?}", source.meta(), source.trailer());
    Some((source.events().collect(), rest))
}

#[test]
fn every_flipped_byte_is_found_or_changes_nothing() {
    let good = small();
    let expected = content(&good);
    let mut harmless = 0;
    for at in 0..good.len() {
        for bit in [0x01, 0x80, 0xff] {
            let mut file = good.clone();
            file[at] ^= bit;
            let found = match Source::from_bytes(file.clone()) {
                Err(_) => true,
                Ok(source) => !source.verify().findings.is_empty(),
            };
            if !found {
                assert_eq!(
                    content(&file),
                    expected,
                    "byte {at} ^ {bit:#x} is not found"
                );
                harmless += 1;
            }
        }
    }
    // Padding and reserved fields only: 4 bytes in each chunk's head and up to 7 behind it.
    let chunks = Chunks::new(&good).unwrap().count();
    assert!(harmless <= 3 * 11 * chunks, "{harmless}");
}

#[test]
fn a_file_cut_anywhere_is_said_to_be() {
    let good = small();
    let last = Chunks::new(&good).unwrap().last().unwrap().unwrap();
    let end = last.payload_offset() as usize + last.payload.len();
    for len in 0..end {
        if let Ok(source) = Source::from_bytes(good[..len].to_vec()) {
            assert!(!source.verify().findings.is_empty(), "cut at {len}");
            let events = source
                .events()
                .filter(|item| matches!(item, Item::Event(_)));
            assert!(events.count() <= 4);
        }
    }
}

/// A later module may know more kinds of events.
#[test]
fn unknown_events_are_counted() {
    let mut cpu = stream(0);
    let unknown = Record {
        who: 0x7f00_0000,
        ..queue(15)
    };
    cpu.event(queue(10)).event(unknown).event(queue(20));
    let bytes = cpu.finish();
    let verdict = open(file(&[bytes], &[&cpu])).verify();
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.events, verdict.unknown), (3, 1));
}

/// A flight recorder's: two sub-buffers of three events were written over, then `end` was written.
fn flight(end: &dyn Fn(&mut SubbufBuilder)) -> Vec<u8> {
    let mut cpu = stream(0);
    cpu.overwrite();
    for time in [1, 4] {
        cpu.event(queue(time))
            .event(queue(time + 1))
            .event(queue(time + 2));
        cpu.skip();
    }
    names(&mut cpu);
    cpu.anchor(9, 1009).event(queue(10));
    end(&mut cpu);
    let bytes = cpu.finish();
    flight_file(&[bytes], &cpu, 6)
}

fn flight_file(subbufs: &[Vec<u8>], cpu: &SubbufBuilder, written_over: u64) -> Vec<u8> {
    let (events, lost) = cpu.totals();
    let counters = CpuCounters {
        events,
        lost,
        written_over,
        subbufs: subbufs.len() as u64,
        ..CpuCounters::default()
    };
    let trailer = Trailer {
        cpus: vec![counters],
        end: End::Trigger,
        ..Trailer::default()
    };
    begin(subbufs).finish(&trailer).unwrap()
}

fn failed(time: u64, status: u8) -> Record {
    Record {
        who: Record::pack_complete(Action::Complete, status, 7),
        ..complete(time, 8, 4096, READ, 3, 7)
    }
}

#[test]
fn what_a_flight_recorder_kept_is_whole() {
    let source = open(flight(&|cpu| {
        cpu.event(failed(20, 10)).stop(Stop::new(25, 21, 0, 2, 10));
    }));
    let verdict = source.verify();
    assert_eq!(verdict.findings, []);
    assert_eq!(
        (verdict.events, verdict.written_over, verdict.lost),
        (2, 6, 0)
    );
    let stop = blkrelay_trace::Stop {
        cpu: 0,
        epoch: 1,
        trigger_ns: 1021,
        lag_ns: 4,
        trigger_cpu: 0,
        cause: Cause::Error(10),
    };
    assert_eq!(verdict.stops, [stop]);
    // And nothing of it is a gap, but the events go on counting.
    let items: Vec<Item> = source.events().collect();
    let numbers = items.iter().map(|item| match item {
        Item::Event(event) => event.seq,
        Item::Gap(_) => 0,
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn stops() {
    let control = |time, trigger| Stop::new(time, trigger, 1, 1, 0);
    let whole = flight(&|cpu| {
        cpu.stop(control(25, 21));
    });
    assert_eq!(findings(whole), [""; 0]);
    finds(
        flight(&|cpu| {
            cpu.stop(control(25, 26));
        }),
        "stopped before the trigger",
    );
    finds(
        flight(&|cpu| {
            cpu.stop(control(9, 8));
        }),
        "events later than the stop",
    );
    finds(
        flight(&|cpu| {
            cpu.stop(control(25, 21)).event(queue(30));
        }),
        "a record behind the stop",
    );
    let by_error = |status| Stop::new(25, 21, 0, 2, status);
    finds(
        flight(&|cpu| {
            cpu.stop(by_error(10));
        }),
        "the completion that was the cause is not the last event",
    );
    finds(
        flight(&|cpu| {
            cpu.event(failed(20, 9)).stop(by_error(10));
        }),
        "the completion that was the cause is not the last event",
    );
    finds(
        flight(&|cpu| {
            cpu.stop(Stop::new(25, 21, 1, 9, 0));
        }),
        "stopped for no cause known: 9",
    );
    let mut cpu = stream(0);
    cpu.event(queue(10)).stop(control(25, 21));
    let bytes = cpu.finish();
    finds(file(&[bytes], &[&cpu]), "no flight recorder's");

    // In the next sub-buffer: only in the next epoch.
    for (epoch, whole) in [(1, false), (2, true)] {
        let mut cpu = stream(0);
        cpu.overwrite().event(queue(10)).stop(control(25, 21));
        let one = cpu.finish();
        names(&mut cpu);
        cpu.anchor(30, 1030).epoch(epoch).event(queue(40));
        let two = cpu.finish();
        let findings = findings(flight_file(&[one, two], &cpu, 0));
        assert_eq!(findings.is_empty(), whole, "{findings:?}");
    }
}

#[test]
fn a_flight_recorders_counters() {
    let mut cpu = stream(0);
    cpu.overwrite().event(queue(1));
    cpu.skip();
    names(&mut cpu);
    cpu.event(queue(10));
    let one = cpu.finish();
    let good = flight_file(std::slice::from_ref(&one), &cpu, 1);
    assert_eq!(findings(good), [""; 0]);
    finds(
        flight_file(std::slice::from_ref(&one), &cpu, 2),
        "2 events written over by the TRAILER, 1 by the first",
    );
    // Without the flag the stream must begin with its first sub-buffer.
    let mut cpu = stream(0);
    cpu.event(queue(1));
    cpu.skip();
    cpu.event(queue(10));
    let one = cpu.finish();
    finds(flight_file(&[one], &cpu, 0), "number 0 was due");
    // A CPU of which all was read at an earlier trigger.
    let mut cpu = stream(0);
    cpu.overwrite().event(queue(1));
    cpu.skip();
    let file = flight_file(&[], &cpu, 1);
    assert_eq!(findings(file.clone()), [""; 0]);
    assert_eq!(open(file).events().count(), 0);
}
