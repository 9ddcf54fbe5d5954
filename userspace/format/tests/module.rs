// SPDX-License-Identifier: GPL-2.0
//! The module's own pure logic, run on the host: the very files that the kernel runs.
#![allow(clippy::unwrap_used)]

#[path = "common/module.rs"]
mod module;

use blkrelay_format::{Action, Record};
use module::config::{Command, Devices, Error, Events, Mode};
use module::filter::{Asked, Event, Filter, Ops, Place, Selection};
use module::{abi, config, record, slot, stamps};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromBytes;

/// Names of events as the module might have them.
const NAMES: [&str; 4] = ["Q", "D", "C", "BIO_C"];

fn parse(text: &[u8]) -> Result<Command<'_>, Error<'_>> {
    config::parse(text, &NAMES)
}

/// A whole disk.
fn disk(queue: u16) -> Place {
    Place { queue, part: None }
}

/// What the kernel stores: the words in their order, with the time in front and the pid put in.
fn stored(time: u64, words: record::Words, pid: u32) -> Record {
    let id_who = words.id_who | u64::from(pid) << 32;
    let words = [time, words.place, words.size_op, id_who];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Record::read_from_bytes(&bytes).unwrap()
}

#[test]
fn a_request_without_a_sector_has_none() {
    let record = Record {
        place: record::place(u64::MAX, 3),
        ..Record::default()
    };
    assert_eq!((record.sector(), record.queue()), (None, 3));
}

/// What the fast path writes field by field is what the words are.
#[test]
#[cfg(target_endian = "little")]
fn a_record_in_place_is_its_words() {
    let time = 0x0123_4567_89ab_cdef;
    let write = |fill: &dyn Fn(slot::Slot)| {
        let mut record = Record::default();
        // All ones, so that what is not written is seen.
        zerocopy::IntoBytes::as_mut_bytes(&mut record).fill(0xff);
        // SAFETY: A record that is ours, and aligned.
        let slot = unsafe { slot::Slot::new((&raw mut record).cast()) };
        slot.time((time as u32, (time >> 32) as u32));
        fill(slot);
        record
    };
    for (sector, queue, hctx, internal, tag) in [
        (0, 0, 0, -1, 0),
        (1 << 41 | 12345, 300, 7, 513, -1),
        (u64::MAX, 65535, 65535, -1, 65535),
        ((1 << 48) - 2, 1, 0, 0, 9),
    ] {
        let (bytes, opf, bio) = (4096, 0x801, 0xffff_8881_2345_67c0_usize);
        let queued = write(&|slot| {
            slot.place(sector, queue);
            slot.size_op(bytes, opf);
            slot.id(record::bio_id(bio));
            slot.who(record::who(abi::BLKRELAY_Q) | 4242);
        });
        let words = record::Words {
            place: record::place(sector, queue),
            size_op: record::pair(bytes, opf),
            id_who: record::pair(record::bio_id(bio), record::who(abi::BLKRELAY_Q)),
        };
        assert_eq!(queued, stored(time, words, 4242));
        let completed = write(&|slot| {
            slot.place(sector, queue);
            slot.size_op(bytes, opf);
            slot.request_id(hctx, internal, tag);
            slot.complete_who(abi::BLKRELAY_C, 10, record::bio_id(bio));
        });
        let words = record::Words {
            id_who: record::pair(
                record::request_id(hctx, internal, tag),
                record::complete_who(abi::BLKRELAY_C, 10, record::bio_id(bio)),
            ),
            ..words
        };
        assert_eq!(completed, stored(time, words, 0));
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
                       id: u32, pid in 0u32..1 << 24, status: u8, head: u32, n in 0..Action::ALL.len()) {
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
        let Devices::List(found) = start.filter.devices else {
            return Err(TestCaseError::fail("a list"));
        };
        let found: Vec<_> = found.iter().map(|device| (device.major, device.minor)).collect();
        prop_assert_eq!(found, devices);
    }

    /// The bitmap against a set.
    #[test]
    fn the_filter_admits_what_was_selected(
        selected in proptest::collection::btree_set(any::<u16>(), 0..40), asked: i32,
    ) {
        let filter = Box::new(Filter::closed());
        let ids: Vec<u16> = selected.iter().copied().collect();
        let places: Vec<Place> = ids.iter().map(|id| disk(*id)).collect();
        filter.open(Selection::Queues(&places));
        for id in selected.iter().map(|id| i32::from(*id)).chain([asked, asked & 0xffff]) {
            let expected = u16::try_from(id).ok().filter(|id| selected.contains(id));
            prop_assert_eq!(filter.admit(id), expected);
        }
        // Narrowing keeps what both want.
        let half: Vec<Place> = places.iter().copied().step_by(2).chain([disk(77)]).collect();
        filter.narrow(Selection::All);
        filter.narrow(Selection::Queues(&half));
        for (n, id) in ids.iter().enumerate() {
            let kept = n % 2 == 0 || *id == 77;
            prop_assert_eq!(filter.admit((*id).into()).is_some(), kept);
        }
        prop_assert_eq!(filter.admit(77).is_some(), selected.contains(&77));
        filter.close();
        prop_assert!(ids.iter().all(|id| filter.admit((*id).into()).is_none()));
    }
}

/// An event as a filter asks it, of what its action says.
fn event(action: u32, queue: u16, sector: u64, bytes: u32, opf: u32) -> Event {
    Event {
        place: record::place(sector, queue),
        size_op: record::pair(bytes, opf),
        id_who: record::pair(0, record::who(action)),
        kind: record::kind(action),
        follows_data: false,
    }
}

const WRITE: u32 = 1;
const PREFLUSH: u32 = 1 << 18;

proptest! {
    /// Sector by sector, against what the words of the filter mean.
    #[test]
    fn a_set_passes_what_touches_it(
        sector in 0u64..40, sectors in 0u32..12, op in 0u32..4, preflush: bool, queue in 1u16..4,
        range in proptest::option::of((0u64..40, 0u64..12)),
        part in proptest::option::of((0u64..40, 0u64..12)),
        sizes in proptest::option::of((0u32..9, 0u32..9)),
        ops in proptest::collection::btree_set(0u32..4, 0..4),
    ) {
        let range = range.map(|(first, more)| (first, first + more));
        let part = part.map(|(first, more)| (first, first + more));
        let sizes = sizes.map(|(a, b)| (a.min(b) * 512, a.max(b) * 512));
        let places = [Place { queue: 1, part }, disk(2)];
        let bits = [config::OP_READ, config::OP_WRITE, config::OP_FLUSH, config::OP_DISCARD];
        let selection = Selection::Queues(&places);
        let asked = Asked {
            ops: Ops::new(ops.iter().map(|op| bits[*op as usize]).sum()),
            sectors: range,
            sizes,
        };
        let opf = op | if preflush { PREFLUSH } else { 0 };
        let event = event(abi::BLKRELAY_Q, queue, sector, sectors * 512, opf);

        let flush = preflush || op == 2;
        // An empty flush is nowhere; any other empty event is where it stands.
        let touched: Vec<u64> = match sectors {
            0 if flush => vec![],
            n => (sector..sector + u64::from(n.max(1))).collect(),
        };
        let touches = |(first, last): (u64, u64)| touched.iter().any(|s| (first..=last).contains(s));
        let here = match (queue, part) {
            (1, Some(part)) => touches(part) || touched.is_empty(),
            (1 | 2, _) => true,
            _ => false,
        };
        let operation = ops.is_empty() || ops.contains(&op) || flush && ops.contains(&2);
        let size = sizes.is_none_or(|(min, max)| min <= sectors * 512 && sectors * 512 <= max);
        let expected = here && operation && range.is_none_or(touches) && size;
        let passes = asked.pass(&event) && selection.pass(&event);
        prop_assert_eq!(passes, expected);
        prop_assert_eq!(selection.is_whole_disks(), part.is_none());
    }

    /// Against a table that says whose an entry is: an I/O is timed exactly, to 64 ticks, as long as nobody
    /// has taken its entry, and else not at all.
    #[test]
    fn stamps_are_right_or_missing(
        steps in proptest::collection::vec((0u64..40, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let table: Vec<AtomicU64> = (0..stamps::ENTRIES).map(|_| AtomicU64::new(0)).collect();
        // Who began last in each of five entries, and when.
        let mut held = std::collections::BTreeMap::new();
        let mut displaced = 0;
        let mut now = 1u64 << 33;
        // At least one that finds its entry taken.
        let taken = [(0, true, false), (5, true, false), (0, false, true)];
        for (n, begins, last) in taken.into_iter().chain(steps) {
            let entry = n % 5;
            let owner = owner_of(entry, n + 1);
            now += 1000 + n * 77;
            if begins {
                stamps::begin(&table, owner, now);
                held.insert(entry, (n, now));
                continue;
            }
            let took = stamps::end(&table, owner, now, last);
            match held.get(&entry) {
                Some((holder, since)) if *holder == n => {
                    let since = now - since;
                    prop_assert!(took.is_some_and(|took| took.abs_diff(since) < 64), "{took:?} for {since}");
                    if last {
                        held.remove(&entry);
                        prop_assert_eq!(stamps::end(&table, owner, now, true), None);
                    }
                }
                holder => {
                    prop_assert_eq!(took, None);
                    displaced += u32::from(holder.is_some());
                }
            }
        }
        prop_assert!(displaced > 0);
    }
}

/// The address that has this entry of the table, and this rest: the table's mixing undone.
fn owner_of(entry: u64, rest: u64) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    // Newton's iteration: an odd number is its own inverse in three bits, and each step doubles them.
    let step = |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(MIX.wrapping_mul(x)));
    let inverse = (0..5).fold(MIX, step);
    let mixed = entry << 24 | rest;
    let key = mixed.wrapping_mul(inverse) & ((1 << 40) - 1);
    assert_eq!(key.wrapping_mul(MIX) & ((1 << 40) - 1), mixed);
    (key << 4) as usize
}

#[test]
fn the_later_of_two_has_the_entry() {
    let table: Vec<AtomicU64> = (0..stamps::ENTRIES).map(|_| AtomicU64::new(0)).collect();
    let (earlier, later) = (owner_of(7, 1), owner_of(7, 2));
    stamps::begin(&table, earlier, 6400);
    stamps::begin(&table, later, 12800);
    let used = table.iter().filter(|word| word.load(Relaxed) != 0).count();
    assert_eq!(used, 1);
    assert_eq!(stamps::end(&table, earlier, 19200, true), None);
    // And the earlier one's end has not freed it.
    assert_eq!(stamps::end(&table, later, 19200, true), Some(6400));
}

#[test]
fn an_io_is_timed() {
    let table: Vec<AtomicU64> = (0..stamps::ENTRIES).map(|_| AtomicU64::new(0)).collect();
    let owners = [0x1000_usize, 0x1180, 0xffff_8881_0000_0000];
    for (n, owner) in owners.iter().enumerate() {
        stamps::begin(&table, *owner, 6400 + 64 * n as u64);
    }
    // In parts, and in another order.
    assert_eq!(stamps::end(&table, owners[2], 6400 + 640, false), Some(512));
    assert_eq!(
        stamps::end(&table, owners[2], 6400 + 1280, true),
        Some(1152)
    );
    assert_eq!(stamps::end(&table, owners[0], 6400 + 640, true), Some(640));
    assert_eq!(stamps::end(&table, owners[1], 6400 + 64, true), Some(0));
    assert_eq!(stamps::end(&table, owners[1], 6400 + 64, true), None);
    // Nobody else's time: not that of an address some terabytes away.
    stamps::begin(&table, 0x1000, 6400);
    assert_eq!(stamps::end(&table, 0x1000 + (1 << 43), 6400, true), None);
}

#[test]
fn events_without_what_is_asked_for_do_not_pass() {
    let all = Asked {
        ops: None,
        sectors: None,
        sizes: None,
    };
    assert!(all.is_nothing() && Selection::All.is_whole_disks());
    let sets = [
        Asked {
            ops: Ops::new(config::OP_READ | config::OP_FLUSH),
            ..all
        },
        Asked {
            sectors: Some((0, (1 << 48) - 2)),
            ..all
        },
        Asked {
            sizes: Some((0, u32::MAX)),
            ..all
        },
    ];
    for action in [
        abi::BLKRELAY_P,
        abi::BLKRELAY_U,
        abi::BLKRELAY_T,
        abi::BLKRELAY_W,
    ] {
        let event = event(action, 1, u64::MAX, 3, 0);
        assert!(all.pass(&event));
        for set in &sets {
            assert!(!set.pass(&event), "{action} {set:?}");
            assert!(!set.is_nothing());
        }
    }
    // A passthrough request has no sector, but an operation and a size.
    let passthrough = event(abi::BLKRELAY_D, 1, u64::MAX, 36, 34);
    let passes = sets.map(|set| set.pass(&passthrough));
    assert_eq!(passes, [false, false, true]);
    // A zone's plug has a place and a size, but no operation: 0 is not a read.
    let plug = event(abi::BLKRELAY_ZONE_PLUG, 1, 8, 4096, 0);
    let passes = sets.map(|set| set.pass(&plug));
    assert_eq!(passes, [false, true, true]);
    // Zone management, by its operations: reset, reset all, open, close, finish.
    let zone = Asked {
        ops: Ops::new(config::OP_ZONE),
        ..all
    };
    for op in 0..36 {
        assert_eq!(
            zone.pass(&event(abi::BLKRELAY_Q, 1, 0, 0, op)),
            [11, 13, 15, 17, 19].contains(&op),
            "{op}"
        );
    }
}

/// What the block layer leaves of a flush sequence at its end (`block/blk-flush.c`): a write of no bytes, at sector 0 of
/// an empty flush, else at the first sector of its data. Both are asked with their bio's flags.
#[test]
fn the_end_of_a_flush_sequence_passes_with_its_beginning() {
    let part = |first, last| {
        [Place {
            queue: 1,
            part: Some((first, last)),
        }]
    };
    let asked = |op, sectors, sizes| Asked {
        ops: Ops::new(op),
        sectors,
        sizes,
    };
    for action in [abi::BLKRELAY_C, abi::BLKRELAY_SPAN] {
        let fsync = event(action, 1, 0, 0, WRITE | PREFLUSH);
        assert!(Selection::Queues(&part(2048, 4095)).pass(&fsync));
        assert!(asked(config::OP_FLUSH, None, None).pass(&fsync));
        assert!(!asked(0, Some((0, 7)), None).pass(&fsync));
        assert!(!asked(0, None, Some((4096, 8192))).pass(&fsync));

        // 4 KiB at sector 8, with and without a flush first.
        for flags in [0, PREFLUSH] {
            let end = Event {
                follows_data: true,
                ..event(action, 1, 8, 0, WRITE | flags)
            };
            assert!(asked(config::OP_WRITE, Some((8, 15)), Some((4096, 4096))).pass(&end));
            assert!(!asked(0, Some((16, 31)), None).pass(&end));
            assert!(Selection::Queues(&part(0, 15)).pass(&end));
            assert!(!Selection::Queues(&part(16, 31)).pass(&end));
            let flushes = asked(config::OP_FLUSH, None, None).pass(&end);
            assert_eq!(flushes, flags == PREFLUSH);
        }

        // None of 4 KiB at sector 16 were done, this time.
        let failed = event(action, 1, 16, 0, WRITE);
        assert!(asked(0, Some((16, 31)), None).pass(&failed));
        assert!(!asked(0, Some((8, 15)), None).pass(&failed));
        assert!(!asked(0, None, Some((4096, 4096))).pass(&failed));
    }
}

/// A driver that has moved on in its bio (brd) leaves no bytes, and the end's sector.
#[test]
fn a_bio_that_is_used_up_has_neither_place_nor_size() {
    for action in [abi::BLKRELAY_BIO_C, abi::BLKRELAY_SPAN] {
        let bio = Event {
            kind: record::Kind::Bio,
            ..event(action, 1, 16, 0, WRITE)
        };
        let all = (0, (1 << 48) - 2);
        for (sectors, sizes) in [(Some(all), None), (None, Some((0, u32::MAX)))] {
            let ops = Ops::new(0);
            let asked = Asked {
                ops,
                sectors,
                sizes,
            };
            assert!(!asked.pass(&bio), "{action}");
        }
    }
}

#[test]
fn a_filter_is_understood() {
    let text = b"filter devices=8:1 op=write,flush sector=10-20 size=512-4096 cgroup=7,8";
    let Ok(Command::Filter(filter)) = parse(text) else {
        unreachable!("a filter");
    };
    assert_eq!(filter.ops, config::OP_WRITE | config::OP_FLUSH);
    assert_eq!(
        (filter.sectors, filter.sizes),
        (Some((10, 20)), Some((512, 4096)))
    );
    assert_eq!(filter.cgroups.ids(), [7, 8]);
    let words: Vec<&str> = config::filter_words(text).collect();
    assert_eq!(
        words,
        [
            "op=write,flush",
            "sector=10-20",
            "size=512-4096",
            "cgroup=7,8"
        ]
    );
    let text = b"start cgroup=1 devices=all events=C,Q detail=1 mode=overwrite on_error=1 slower_us=20000\n";
    let Ok(Command::Start(start)) = parse(text) else {
        unreachable!("a start");
    };
    assert_eq!(start.events, Events::Some(0b101));
    assert!(start.detail && start.on_error && start.mode == Mode::Overwrite);
    assert_eq!(start.slower_us, Some(20000));
    let sixteen = (1..=16)
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(",");
    let fits = format!("filter devices=all cgroup={sixteen}");
    assert!(parse(fits.as_bytes()).is_ok());
    assert_eq!(
        parse(format!("{fits},17").as_bytes()),
        Err(Error::TooManyCgroups)
    );
}

#[test]
fn simple_commands() {
    assert_eq!(parse(b"freeze"), Ok(Command::Freeze));
    assert_eq!(parse(b"arm"), Ok(Command::Arm));
    assert_eq!(parse(b"stop"), Ok(Command::Stop));
    assert_eq!(parse(b"\t flush \n"), Ok(Command::Flush));
    let Ok(Command::Start(start)) = parse(b"start devices=all") else {
        unreachable!("a start");
    };
    assert_eq!((start.filter.devices, start.hold), (Devices::All, false));
    assert_eq!((start.events, start.mode), (Events::Default, Mode::Discard));
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
        (b"start devices=all mode=ring", Error::BadValue("ring")),
        (b"start devices=all events=Q,X", Error::UnknownEvent("X")),
        (b"start devices=all events=", Error::UnknownEvent("")),
        (b"start devices=all op=write,wipe", Error::UnknownOp("wipe")),
        (b"start devices=all sector=5", Error::BadRange("5")),
        (b"start devices=all sector=5-4", Error::BadRange("5-4")),
        (b"start devices=all sector=0-1-2", Error::BadRange("0-1-2")),
        (
            b"start devices=all sector=0-281474976710655",
            Error::OutOfRange("0-281474976710655"),
        ),
        (
            b"start devices=all size=0-4294967296",
            Error::OutOfRange("0-4294967296"),
        ),
        (b"start devices=all cgroup=x", Error::BadValue("x")),
        (b"start devices=all on_error=1", Error::NoFlight("on_error")),
        (
            b"start devices=all slower_us=5",
            Error::NoFlight("slower_us"),
        ),
        (
            b"start devices=all mode=overwrite slower_us=0",
            Error::OutOfRange("0"),
        ),
        (b"filter", Error::NoDevices),
        (
            b"filter devices=all events=Q",
            Error::UnknownWord("events=Q"),
        ),
        (b"freeze now", Error::UnknownWord("now")),
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
