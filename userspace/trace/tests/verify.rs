// SPDX-License-Identifier: GPL-2.0
//! Each kind of damage is found, and named.
#![allow(clippy::unwrap_used)]

mod common;

use blkrelay_format::{Action, Chunks, From, Record};
use blkrelay_trace::{Item, Source};
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
        .from(From::new(8, 1, 0));
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
    let unknown = Record {
        who: 0x7f00_0000,
        ..queue(10)
    };
    finds(
        bad(&|cpu| {
            cpu.event(unknown).event(queue(11));
        }),
        "slot 8: no such action: 127",
    );
    let zero = Record {
        who: 0,
        ..queue(10)
    };
    finds(
        bad(&|cpu| {
            cpu.event(zero);
        }),
        "no such action: 0",
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
            cpu.from(From::new(8, 0, 0));
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
