// SPDX-License-Identifier: GPL-2.0
//! The kernel module's pure parts, compiled here as they are: the parser of `control`, the packing of
//! records, and the filter.

#![allow(clippy::panic)]

/// Where the module's files look for the contract.
mod abi {
    pub use blkrelay_format::abi::*;
}

#[allow(dead_code)]
#[path = "../../../module/config.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../../module/filter.rs"]
mod filter;
#[allow(dead_code)]
#[path = "../../../module/record.rs"]
mod record;

use config::{Command, Devices, Error, Start};
use filter::{Filter, Selection};
use proptest::prelude::*;

fn start(text: &str) -> Start<'_> {
    match config::parse(text.as_bytes()) {
        Ok(Command::Start(start)) => start,
        other => panic!("{text}: {other:?}"),
    }
}

fn refused(text: &[u8]) -> Error<'_> {
    match config::parse(text) {
        Err(error) => error,
        Ok(command) => panic!("{:?}: {command:?}", String::from_utf8_lossy(text)),
    }
}

fn devices(devices: Devices<'_>) -> Vec<(u32, u32)> {
    match devices {
        Devices::All => panic!("all"),
        Devices::List(list) => list.iter().map(|d| (d.major, d.minor)).collect(),
    }
}

#[test]
fn commands() {
    assert_eq!(config::parse(b"stop"), Ok(Command::Stop));
    assert_eq!(config::parse(b"flush\n"), Ok(Command::Flush));
    assert_eq!(config::parse(b"\t flush  "), Ok(Command::Flush));
    assert_eq!(
        start("start devices=all"),
        Start {
            devices: Devices::All,
            subbuf_size: None,
            subbufs: None,
            hold: false
        }
    );

    let full =
        start("start hold=1\tsubbufs=2 subbuf_size=67108864 devices=254:16,0:0,4095:1048575\n");
    assert_eq!(
        devices(full.devices),
        [(254, 16), (0, 0), (4095, 1_048_575)]
    );
    assert_eq!(
        (full.subbuf_size, full.subbufs, full.hold),
        (Some(1 << 26), Some(2), true)
    );
    assert_eq!(
        start("start devices=all subbuf_size=4096 subbufs=65536 hold=0").subbufs,
        Some(65536)
    );
}

#[test]
fn refusals() {
    let cases: &[(&[u8], Error<'_>)] = &[
        (b"", Error::Empty),
        (b" \t\n", Error::Empty),
        (b"\n\n", Error::NotText),
        (b"stop\0", Error::NotText),
        (b"start\ndevices=all", Error::NotText),
        (b"st\xffp", Error::NotText),
        (b"STOP", Error::UnknownCommand("STOP")),
        (b"stop now", Error::UnknownWord("now")),
        (b"flush devices=all", Error::UnknownWord("devices=all")),
        (b"start", Error::NoDevices),
        (b"start hold=1", Error::NoDevices),
        (b"start devices", Error::UnknownWord("devices")),
        (
            b"start devices=all device=all",
            Error::UnknownWord("device=all"),
        ),
        (
            b"start devices=all devices=1:0",
            Error::Duplicate("devices"),
        ),
        (b"start hold=1 hold=1 devices=all", Error::Duplicate("hold")),
        (b"start devices=", Error::BadDevice("")),
        (b"start devices=sda", Error::BadDevice("sda")),
        (b"start devices=8:0,", Error::BadDevice("")),
        (b"start devices=8:0,all", Error::BadDevice("all")),
        (b"start devices=8:-1", Error::BadDevice("8:-1")),
        (b"start devices=8:+1", Error::BadDevice("8:+1")),
        (b"start devices=8:0:0", Error::BadDevice("8:0:0")),
        (b"start devices=4096:0", Error::OutOfRange("4096:0")),
        (b"start devices=0:1048576", Error::OutOfRange("0:1048576")),
        (
            b"start devices=99999999999999999999999:0",
            Error::OutOfRange("99999999999999999999999:0"),
        ),
        (b"start devices=all subbuf_size=0", Error::OutOfRange("0")),
        (
            b"start devices=all subbuf_size=2048",
            Error::OutOfRange("2048"),
        ),
        (
            b"start devices=all subbuf_size=134217728",
            Error::OutOfRange("134217728"),
        ),
        (
            b"start devices=all subbuf_size=4097",
            Error::NotPowerOfTwo("4097"),
        ),
        (b"start devices=all subbuf_size=4k", Error::BadValue("4k")),
        (b"start devices=all subbuf_size=", Error::BadValue("")),
        (b"start devices=all subbufs=1", Error::OutOfRange("1")),
        (
            b"start devices=all subbufs=65537",
            Error::OutOfRange("65537"),
        ),
        (b"start devices=all hold=yes", Error::BadValue("yes")),
    ];

    for (text, error) in cases {
        assert_eq!(refused(text), *error, "{:?}", String::from_utf8_lossy(text));
    }
    assert_eq!(refused(&[b' '; 4097]), Error::TooLong);
    assert_eq!(refused(&[b' '; 4096]), Error::Empty);
}

#[test]
fn only_a_wrong_number_is_a_range_error() {
    assert!(refused(b"start devices=all subbufs=1").is_range());
    assert!(!refused(b"start devices=all subbufs=x").is_range());
    assert!(!refused(b"start devices=all subbuf_size=4097").is_range());
}

#[test]
fn a_foreign_word_cannot_break_the_status_line() {
    let long = "w".repeat(100);

    assert_eq!(
        refused("start devices=all a\"b\u{e9}\u{85}=1".as_bytes()).to_string(),
        "unknown word \"a?b??=1\"; start takes devices=, subbuf_size=, subbufs=, hold=; stop and flush nothing"
    );
    assert_eq!(
        refused(long.as_bytes()).to_string(),
        format!(
            "unknown command \"{}...\"; write start, stop or flush",
            "w".repeat(40)
        )
    );
}

#[test]
fn packing() {
    let words = record::Words {
        place: record::place(0x1234_5678_9abc, 0xfedc),
        size_op: record::pair(4096, 0x8001),
        id_who: record::pair(record::request_id(3, -1, 17), record::who(abi::BLKRELAY_D)),
    };
    let mut bytes = 7u64.to_ne_bytes().to_vec();
    for word in [words.place, words.size_op, words.id_who] {
        bytes.extend(word.to_ne_bytes());
    }

    // SAFETY: A plain struct of as many bytes.
    let record: abi::blkrelay_record = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    assert_eq!(bytes.len(), size_of::<abi::blkrelay_record>());
    assert_eq!(record.time, 7);
    assert_eq!(record.place, 0xfedc_1234_5678_9abc);
    assert_eq!(record.bytes, 4096);
    assert_eq!(record.opf, 0x8001);
    assert_eq!(record.id, 0x0003_0011);
    assert_eq!(record.who, 7 << 24);
    assert_eq!(record::action(words.id_who), 7);
}

#[test]
fn tags_statuses_and_bios() {
    // The scheduler's tag where there is one, 0 included.
    assert_eq!(record::request_id(1, 0, 9), 0x0001_0000);
    assert_eq!(record::request_id(1, -1, 9), 0x0001_0009);
    assert_eq!(record::request_id(0xffff, 0x1_0005, 9), 0xffff_0005);
    assert_eq!(record::bio_id(0xffff_8880_1234_5670), 0x0123_4567);
    assert_eq!(record::complete_who(10, 0x0123_4567), 0x080a_4567);
    assert_eq!(record::complete_who(0, record::bio_id(0)), 0x0800_0000);
    assert_eq!(record::side_who(abi::BLKRELAY_DEVICE, 3), 0x8100_0003);
}

#[test]
fn requests_without_a_sector() {
    let place = |opf, sector| record::place(record::request_sector(opf, sector), 5);
    let none = abi::BLKRELAY_SECTOR_NONE | 5 << 48;

    // REQ_OP_DRV_IN and REQ_OP_DRV_OUT, with flags above the operation.
    assert_eq!(place(34, 100), none);
    assert_eq!(place(0x8_0000 | 35, 100), none);
    // A flush without data: all ones in the request.
    assert_eq!(place(2, u64::MAX), none);
    assert_eq!(place(33, 100), 5 << 48 | 100);
    assert_eq!(place(36, 100), 5 << 48 | 100);
    assert_eq!(place(0x2201, 100), 5 << 48 | 100);
}

#[test]
fn filter() {
    let filter = Filter::closed();
    assert_eq!(filter.admit(0), None);

    filter.open(Selection::Queues(&[0, 63, 64, 65535]));
    for (id, passes) in [
        (0, true),
        (1, false),
        (62, false),
        (63, true),
        (64, true),
        (65, false),
        (65535, true),
    ] {
        assert_eq!(filter.admit(id), passes.then_some(id as u16), "{id}");
    }
    // Ids that no record can carry, and what is no id at all.
    for id in [65536, i32::MAX, -1, i32::MIN] {
        assert_eq!(filter.admit(id), None, "{id}");
    }

    filter.close();
    assert_eq!(filter.admit(0), None);
    filter.open(Selection::All);
    assert!((0..65536).all(|id| filter.admit(id) == Some(id as u16)));
    assert_eq!(filter.admit(65536), None);
    assert_eq!(filter.admit(-1), None);
}

proptest! {
    /// Whatever is written, the answer is a command or a reason of one plain line.
    #[test]
    fn any_bytes(text in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = config::parse(&text) {
            prop_assert!(error.to_string().bytes().all(|b| (b' '..=b'~').contains(&b)));
        }
    }

    #[test]
    fn any_words(words in prop::collection::vec("(start|stop|flush|devices|hold|subbufs|subbuf_size|all|=|,|:|[0-9]{1,12}| |\t|\n){0,4}", 0..6)) {
        let text = words.join(" ");
        if let Err(error) = config::parse(text.as_bytes()) {
            prop_assert!(error.to_string().bytes().all(|b| (b' '..=b'~').contains(&b)));
        }
    }

    /// What is valid is understood as it was meant.
    #[test]
    fn any_start(
        list in prop::collection::vec((0u32..4096, 0u32..1 << 20), 1..20),
        size in prop::option::of(12u32..=26),
        count in prop::option::of(2u32..=65536),
        hold in any::<bool>(),
    ) {
        let names: Vec<_> = list.iter().map(|(major, minor)| format!("{major}:{minor}")).collect();
        let mut text = format!("start devices={} hold={}", names.join(","), u8::from(hold));
        if let Some(size) = size {
            text += &format!(" subbuf_size={}", 1u32 << size);
        }
        if let Some(count) = count {
            text += &format!(" subbufs={count}");
        }

        let got = start(&text);
        prop_assert_eq!(devices(got.devices), list);
        prop_assert_eq!(got.subbuf_size, size.map(|s| 1 << s));
        prop_assert_eq!(got.subbufs, count);
        prop_assert_eq!(got.hold, hold);
        let Devices::List(named) = got.devices else { unreachable!() };
        prop_assert_eq!(named.as_str(), names.join(","));
    }
}
