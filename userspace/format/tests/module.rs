// SPDX-License-Identifier: GPL-2.0
//! The module's own pure logic, run on the host: the very files that the kernel runs.
#![allow(clippy::unwrap_used)]

/// As the module sees the contract.
mod abi {
    pub use blkrelay_format::abi::*;
}

// They keep the kernel's format, which is not ours.
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::precedence, clippy::manual_is_multiple_of)]
#[path = "../../../module/config.rs"]
mod config;
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
#[path = "../../../module/filter.rs"]
mod filter;
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::precedence)]
#[path = "../../../module/record.rs"]
mod record;

use blkrelay_format::{Action, Record};
use config::{parse, Command, Devices, Error};
use filter::{Filter, Selection};
use proptest::prelude::*;
use zerocopy::FromBytes;

/// What the kernel stores: the words in their order, with the time in front and the pid put in.
fn stored(time: u64, words: record::Words, pid: u32) -> Record {
    let id_who = words.id_who | u64::from(pid) << 32;
    let words = [time, words.place, words.size_op, id_who];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Record::read_from_bytes(&bytes).unwrap()
}

#[test]
fn a_request_without_a_sector_has_none() {
    let drv_in = record::request_sector(34, 2048);
    let drv_out = record::request_sector(35 | 1 << 11, 2048);
    for sector in [drv_in, drv_out, u64::MAX] {
        let record = Record {
            place: record::place(sector, 3),
            ..Record::default()
        };
        assert_eq!((record.sector(), record.queue()), (None, 3));
    }
    for opf in [0, 1, 2, 3, 33, 36] {
        assert_eq!(record::request_sector(opf, 2048), 2048);
    }
}

#[test]
fn the_tag_is_the_schedulers_where_there_is_one() {
    let id = |hctx, internal, tag| Record {
        id: record::request_id(hctx, internal, tag),
        ..Record::default()
    };
    assert_eq!((id(2, 17, 5).hctx(), id(2, 17, 5).tag()), (2, 17));
    assert_eq!((id(2, -1, 5).hctx(), id(2, -1, 5).tag()), (2, 5));
    assert_eq!(
        (id(65535, -1, -1).hctx(), id(0, -1, -1).tag()),
        (65535, 65535)
    );
}

proptest! {
    /// What the module packs is what the reader unpacks.
    #[test]
    fn records_survive(time: u64, sector in 0u64..(1 << 48) - 1, queue: u16, bytes: u32, opf: u32,
                       id: u32, pid in 0u32..1 << 24, status: u8, head: u32, n in 0usize..15) {
        let action = Action::ALL[n];
        let who = if action.is_completion() {
            record::complete_who(action.code().into(), status, head)
        } else {
            record::who(action.code().into())
        };
        let words = record::Words {
            place: record::place(sector, queue),
            size_op: record::pair(bytes, opf),
            id_who: record::pair(id, who),
        };
        prop_assert_eq!(record::is_completion(words.id_who), action.is_completion());
        let pid = if action.is_completion() { 0 } else { pid };
        let record = stored(time, words, pid);
        prop_assert_eq!(record.time, time);
        prop_assert_eq!((record.sector(), record.queue()), (Some(sector), queue));
        prop_assert_eq!((record.bytes, record.opf, record.id), (bytes, opf, id));
        prop_assert_eq!(record.action(), Some(action));
        if action.is_completion() {
            prop_assert_eq!((record.status(), record.head()), (status, head as u16));
        } else {
            prop_assert_eq!(record.pid(), pid);
        }
    }

    /// A C names its bio by the low bits of what Q carries.
    #[test]
    fn a_completion_finds_its_bio(bio: usize) {
        let q = record::bio_id(bio);
        let c = Record { who: record::complete_who(abi::BLKRELAY_C, 0, q), ..Record::default() };
        prop_assert_eq!(c.head(), q as u16);
        prop_assert_eq!(q, (bio >> 4) as u32);
    }

    #[test]
    fn side_records_tell_their_length(code in 0x80u32..0x100, slots in 1u32..256) {
        let who = record::side_who(code, slots);
        prop_assert_eq!((who >> 24, who & 0xff), (code, slots));
    }

    #[test]
    fn any_command_is_parsed_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = parse(&text) {
            let reason = error.to_string();
            prop_assert!(!reason.contains('\n') && reason.is_ascii() && !reason.is_empty());
        }
    }

    #[test]
    fn every_good_start_is_understood(
        devices in proptest::collection::vec((0u32..4096, 0u32..1 << 20), 1..20),
        size in proptest::option::of(12u32..=26), count in proptest::option::of(2u32..=65536),
        hold: Option<bool>, newline: bool,
    ) {
        let list: Vec<String> = devices.iter().map(|(major, minor)| format!("{major}:{minor}")).collect();
        let mut text = format!("  start\tdevices={}", list.join(","));
        if let Some(shift) = size { text += &format!(" subbuf_size={}", 1u32 << shift); }
        if let Some(count) = count { text += &format!("  subbufs={count}"); }
        if let Some(hold) = hold { text += &format!(" hold={}", u8::from(hold)); }
        if newline { text += "\n"; }
        let parsed = parse(text.as_bytes());
        let Ok(Command::Start(start)) = parsed else {
            return Err(TestCaseError::fail(format!("{text:?}: {parsed:?}")));
        };
        prop_assert_eq!(start.subbuf_size, size.map(|shift| 1 << shift));
        prop_assert_eq!(start.subbufs, count);
        prop_assert_eq!(start.hold, hold.unwrap_or(false));
        let Devices::List(found) = start.devices else {
            return Err(TestCaseError::fail("a list"));
        };
        let found: Vec<_> = found.iter().map(|device| (device.major, device.minor)).collect();
        prop_assert_eq!(found, devices);
    }

    /// The bitmap against a set.
    #[test]
    fn the_filter_admits_what_was_selected(selected in proptest::collection::btree_set(any::<u16>(), 0..40), asked: i32) {
        let filter = Box::new(Filter::closed());
        let ids: Vec<u16> = selected.iter().copied().collect();
        filter.open(Selection::Queues(&ids));
        for id in selected.iter().map(|id| i32::from(*id)).chain([asked, asked & 0xffff]) {
            let expected = u16::try_from(id).ok().filter(|id| selected.contains(id));
            prop_assert_eq!(filter.admit(id), expected);
        }
        filter.close();
        prop_assert!(ids.iter().all(|id| filter.admit((*id).into()).is_none()));
    }
}

#[test]
fn simple_commands() {
    assert_eq!(parse(b"stop"), Ok(Command::Stop));
    assert_eq!(parse(b"\t flush \n"), Ok(Command::Flush));
    let Ok(Command::Start(start)) = parse(b"start devices=all") else {
        unreachable!("a start");
    };
    assert_eq!((start.devices, start.hold), (Devices::All, false));
    assert_eq!((start.subbuf_size, start.subbufs), (None, None));
}

#[test]
fn bad_commands_are_told_apart() {
    let refused: &[(&[u8], Error<'_>)] = &[
        (b"", Error::Empty),
        (b" \t\n", Error::Empty),
        (&[b' '; 4097], Error::TooLong),
        (b"stop\0", Error::NotText),
        (b"stop\nstop", Error::NotText),
        (b"st\xffop", Error::NotText),
        (b"go", Error::UnknownCommand("go")),
        (b"Start devices=all", Error::UnknownCommand("Start")),
        (b"stop now", Error::UnknownWord("now")),
        (b"flush hold=1", Error::UnknownWord("hold=1")),
        (b"start", Error::NoDevices),
        (b"start hold=1", Error::NoDevices),
        (b"start devices=all verbose", Error::UnknownWord("verbose")),
        (
            b"start devices=all colour=red",
            Error::UnknownWord("colour=red"),
        ),
        (
            b"start devices=all devices=all",
            Error::Duplicate("devices"),
        ),
        (b"start devices=", Error::BadDevice("")),
        (b"start devices=8:0,", Error::BadDevice("")),
        (b"start devices=8", Error::BadDevice("8")),
        (b"start devices=8:0:1", Error::BadDevice("8:0:1")),
        (b"start devices=+8:0", Error::BadDevice("+8:0")),
        (b"start devices=4096:0", Error::OutOfRange("4096:0")),
        (b"start devices=8:1048576", Error::OutOfRange("8:1048576")),
        (b"start devices=all subbuf_size=0", Error::OutOfRange("0")),
        (
            b"start devices=all subbuf_size=2048",
            Error::OutOfRange("2048"),
        ),
        (
            b"start devices=all subbuf_size=5000",
            Error::NotPowerOfTwo("5000"),
        ),
        (
            b"start devices=all subbuf_size=134217728",
            Error::OutOfRange("134217728"),
        ),
        (b"start devices=all subbuf_size=4k", Error::BadValue("4k")),
        (b"start devices=all subbufs=-1", Error::BadValue("-1")),
        (b"start devices=all subbufs=1", Error::OutOfRange("1")),
        (
            b"start devices=all subbufs=99999999999999999999999",
            Error::OutOfRange("99999999999999999999999"),
        ),
        (b"start devices=all hold=yes", Error::BadValue("yes")),
    ];
    for (text, error) in refused {
        let text_shown = String::from_utf8_lossy(text);
        assert_eq!(parse(text), Err(*error), "{text_shown:?}");
    }
}

#[test]
fn a_reason_cannot_break_a_line_of_status() {
    let long = format!("start devices={}", "\"\u{1f600}x".repeat(100));
    let reason = parse(long.as_bytes()).unwrap_err().to_string();
    assert!(
        reason.starts_with("not a device number: \"??x??x"),
        "{reason}"
    );
    assert!(reason.contains("...\""), "{reason}");
    assert!(reason.len() < 120, "{reason}");
}
