// SPDX-License-Identifier: GPL-2.0
//! The same events, printed by us and by the real blkparse: it gets them as a blktrace file.
#![allow(clippy::unwrap_used)]

use blkrelay_export::Text;
use blkrelay_format::blktrace::{self, act, category, Version};
use blkrelay_format::*;
use blkrelay_trace::{Event, Item, Source};
use std::process::Command;

const SYNC: u32 = 1 << 11;
const META: u32 = 1 << 12;
const FUA: u32 = 1 << 17;
const PREFLUSH: u32 = 1 << 18;
const RAHEAD: u32 = 1 << 19;
const IDLE: u32 = 1 << 15;

/// (action, sector, bytes, opf, blk_status_t)
type Row = (Action, Option<u64>, u32, u32, u8);

/// Every action, every operation, sizes and sectors at their edges.
fn rows() -> Vec<Row> {
    use Action::*;
    let mut rows = Vec::new();
    for (op, bytes) in [
        (0, 4096),
        (1, 512),
        (2, 0),
        (3, 1 << 30),
        (5, 4096),
        (9, 65536),
        (1 | PREFLUSH, 0),
        (1 | PREFLUSH | FUA | SYNC, 4096),
        (1 | SYNC | IDLE, 1024),
        (RAHEAD, 131_072),
        (META | 1 << 13, 4096),
        (1 | META | SYNC, 4096),
        (0, 0),
    ] {
        for action in [
            Queue, GetRq, BackMerge, FrontMerge, Insert, Issue, Requeue, Complete, RqMerge,
        ] {
            let sector = if bytes == 0 { 0 } else { 123_456_789_012 };
            rows.push((action, Some(sector), bytes, op, 0));
        }
    }
    rows.push((Queue, Some(0), 4096, 0, 0));
    rows.push((Issue, Some((1 << 48) - 2), 4096, 1, 0));
    rows.push((Plug, Some(0), 0, 0, 0));
    rows.push((Unplug, Some(0), 1, 0, 0));
    rows.push((UnplugSchedule, Some(0), 128, 0, 0));
    rows.push((Split, Some(2048), 1 << 20, 1, 0));
    rows.push((Remap, Some(4096), 4096, 1 | SYNC, 0));
    rows.push((RqRemap, Some(4096), 4096, 1 | SYNC, 0));
    rows.push((BioComplete, Some(64), 4096, 0, 0));
    rows.push((BioComplete, Some(64), 0, 0, 10));
    for status in [1, 2, 3, 7, 9, 10, 13, 16] {
        rows.push((Complete, Some(8), 4096, 0, status));
    }
    // Passthrough: no sector.
    for action in [Insert, Issue, Requeue, Complete] {
        rows.push((action, None, 36, 34, 0));
        rows.push((action, None, 0, 35, 0));
    }
    rows
}

fn trace(rows: &[Row]) -> Source {
    let mut cpu = SubbufBuilder::new([1; 16], 0, Clock::Mono, 1_000_000);
    cpu.device(Device::new(1, 8, 16, "sdb"))
        .task(Task::new("mkfs.ext4", 4321, 4321));
    let mut time = 5_000_000_000;
    for (action, sector, bytes, opf, status) in rows {
        time += 123_456_789;
        cpu.event(Record {
            time,
            place: Record::pack_place(*sector, 1),
            bytes: *bytes,
            opf: *opf,
            id: 7,
            who: match action {
                action if action.is_completion() => Record::pack_complete(*action, *status, 7),
                action => Record::pack_who(*action, 4321),
            },
        });
        if action.is_remap() {
            // blkparse takes the device of an A line from its payload: there we say the whole disk.
            cpu.from(RemapFrom::new(8, 17, 2048));
        }
    }
    let bytes = cpu.finish();
    let meta = Meta {
        format: FORMAT_VERSION,
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    writer.subbufs(&bytes, &mut Appended::default()).unwrap();
    Source::from_bytes(writer.finish(&Trailer::default()).unwrap()).unwrap()
}

/// The record that the kernel's blktrace writes for the same event (`__blk_add_trace` and its callers).
fn encode(event: &Event, out: &mut Vec<u8>) {
    use category as tc;
    let (act, own) = match event.action {
        Action::Queue => (act::QUEUE, tc::QUEUE),
        Action::BackMerge | Action::RqMerge => (act::BACKMERGE, tc::QUEUE),
        Action::FrontMerge => (act::FRONTMERGE, tc::QUEUE),
        Action::GetRq => (act::GETRQ, tc::QUEUE),
        Action::Insert => (act::INSERT, tc::QUEUE),
        Action::Requeue => (act::REQUEUE, tc::REQUEUE),
        Action::Issue => (act::ISSUE, tc::ISSUE),
        Action::Complete | Action::BioComplete => (act::COMPLETE, tc::COMPLETE),
        Action::Plug => (act::PLUG, tc::QUEUE),
        Action::Unplug => (act::UNPLUG_IO, tc::QUEUE),
        Action::UnplugSchedule => (act::UNPLUG_TIMER, tc::QUEUE),
        Action::Split => (act::SPLIT, 0),
        Action::Remap | Action::RqRemap => (act::REMAP, tc::QUEUE),
        other => unreachable!("blkparse does not know {other:?}"),
    };
    let request = if event.opf.is_passthrough() {
        tc::PC
    } else {
        tc::FS
    };
    let kind = if event.action.is_request() {
        request
    } else {
        0
    };
    let mut bytes = event.bytes;
    let mut pdu = Vec::new();
    match event.action {
        Action::Unplug | Action::UnplugSchedule => {
            pdu.extend(u64::from(event.bytes).to_be_bytes());
            bytes = 0;
        }
        Action::Split => {
            let rest = event.sector.unwrap() + u64::from(event.bytes >> 9);
            pdu.extend(rest.to_be_bytes());
        }
        Action::Remap | Action::RqRemap => {
            let (from, sector) = event.from().unwrap();
            pdu.extend((from.major << 20 | from.minor).to_be_bytes());
            pdu.extend((8u32 << 20 | 16).to_be_bytes());
            pdu.extend(sector.to_be_bytes());
        }
        _ => {}
    }
    blktrace::Event {
        version: Version::V1,
        sequence: event.seq as u32,
        time: event.ns,
        sector: event.sector.unwrap_or(0),
        bytes,
        // A v1 record has room for 16 categories.
        action: (event.opf.categories() & 0xffff | own | kind) << 16 | u64::from(act),
        // A completion's pid is not ours to know.
        pid: event.pid.unwrap_or(0),
        device: 8 << 20 | 16,
        cpu: event.cpu,
        error: event.errno() as u16,
        cgroup: None,
        pdu: &pdu,
    }
    .encode(out);
}

fn notify(pid: u32, comm: &str, out: &mut Vec<u8>) {
    let mut pdu = [0; 16];
    pdu[..comm.len()].copy_from_slice(comm.as_bytes());
    blktrace::Event {
        version: Version::V1,
        sequence: 0,
        time: 0,
        sector: 0,
        bytes: 0,
        action: category::NOTIFY << 16,
        pid,
        device: 0,
        cpu: 0,
        error: 0,
        cgroup: None,
        pdu: &pdu,
    }
    .encode(out);
}

fn lines(source: &Source) -> Vec<String> {
    let mut text = Vec::new();
    let mut output = Text::new(&mut text);
    for item in source.events() {
        output.item(&item).unwrap();
    }
    let text = String::from_utf8(text).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn lines_are_blkparses() {
    let rows = rows();
    let source = trace(&rows);
    let ours = lines(&source);
    assert_eq!(ours.len(), rows.len());

    let dir = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    notify(4321, "mkfs.ext4", &mut file);
    for item in source.events() {
        if let Item::Event(event) = item {
            encode(&event, &mut file);
        }
    }
    std::fs::write(dir.path().join("t.blktrace.0"), &file).unwrap();
    let output = Command::new("blkparse")
        .args(["-q", "-i", "t"])
        .current_dir(dir.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("blkparse is not installed: lines are not compared with its own");
            return;
        }
        Err(error) => unreachable!("blkparse: {error}"),
    };
    assert!(output.status.success(), "{output:?}");
    let theirs = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<&str> = theirs
        .lines()
        // Around the events: 1.2 ends with its input files, 1.3 with the time even of a quiet run.
        .filter(|line| !line.starts_with("Input file"))
        .filter(|line| !line.starts_with("Trace started at") && !line.is_empty())
        .collect();
    for ((ours, theirs), row) in ours.iter().zip(&theirs).zip(&rows) {
        assert_eq!(ours, theirs, "of {row:?}");
    }
    assert_eq!(ours.len(), theirs.len());
}

/// Lines typed by hand from blkparse's manual and its format strings, so that a machine without blkparse
/// checks something too.
#[test]
fn lines_by_hand() {
    use Action::*;
    let rows = [
        (Queue, Some(2048), 4096, 1 | SYNC, 0),
        (Complete, Some(2048), 4096, 1 | SYNC, 10),
        (Unplug, Some(0), 3, 0, 0),
        (Split, Some(2048), 4096, 1, 0),
        (Remap, Some(4096), 4096, 0, 0),
    ];
    let expected = [
        "  8,16   0        1     0.000000000  4321  Q  WS 2048 + 8 [mkfs.ext4]",
        "  8,16   0        2     0.123456789     0  C  WS 2048 + 8 [65531]",
        "  8,16   0        3     0.246913578  4321  U   N [mkfs.ext4] 3",
        "  8,16   0        4     0.370370367  4321  X   W 2048 / 2056 [mkfs.ext4]",
        "  8,16   0        5     0.493827156  4321  A   R 4096 + 8 <- (8,17) 2048",
    ];
    assert_eq!(lines(&trace(&rows)), expected);
}

/// What blkparse has no lines for.
#[test]
fn lines_of_our_own() {
    use Action::*;
    let rows = [
        (Error, Some(2048), 4096, 1, 10),
        (TagWait, None, 64, 3, 0),
        (IoStart, Some(2048), 4096, 1, 0),
        (IoDone, Some(2048), 0, 1, 0),
        (ZoneMgmt, Some(4096), 1 << 20, 17, 0),
        (ZonePlug, Some(4096), 4096, 0, 0),
        (ZoneAppend, Some(4104), 4096, 7, 0),
    ];
    let expected = [
        "  8,16   0        1     0.000000000     0  E   W 2048 + 8 [65531]",
        "  8,16   0        2     0.123456789  4321  W   N [mkfs.ext4] hctx 0, 64 scheduler tags, reserved",
        "  8,16   0        3     0.246913578  4321 IS   W 2048 + 8 [mkfs.ext4]",
        "  8,16   0        4     0.370370367  4321 ID   W 2048 + 0 [mkfs.ext4]",
        "  8,16   0        5     0.493827156  4321 ZM   W 4096 + 2048 [mkfs.ext4]",
        "  8,16   0        6     0.617283945  4321 ZP   N 4096 + 8 [mkfs.ext4] zone 7",
        "  8,16   0        7     0.740740734  4321 ZA   W 4104 + 8 [mkfs.ext4]",
    ];
    assert_eq!(lines(&trace(&rows)), expected);
}

#[test]
fn a_q_shows_its_details() {
    let mut cpu = SubbufBuilder::new([1; 16], 0, Clock::Mono, 1_000_000);
    let queue = Record {
        time: 5,
        place: Record::pack_place(Some(8), 1),
        bytes: 4096,
        who: Record::pack_who(Action::Queue, 4321),
        ..Record::default()
    };
    cpu.device(Device::new(1, 8, 16, "sdb"))
        .task(Task::new("dd", 4321, 4321))
        .event(queue)
        .detail(Detail {
            ioprio: 1 << 13 | 3,
            write_hint: 2,
            ..Detail::new(77)
        })
        .overwrite()
        .stop(Stop::new(2_505, 5, 2, 1, 0));
    let meta = Meta {
        format: FORMAT_VERSION,
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    writer
        .subbufs(&cpu.finish(), &mut Appended::default())
        .unwrap();
    let source = Source::from_bytes(writer.get_ref().clone()).unwrap();
    let line =
        "  8,16   0        1     0.000000000  4321  Q   R 8 + 8 [dd] cgroup=77 ioprio=rt/3 hint=2";
    assert_eq!(lines(&source), [line]);
    let mut text = Vec::new();
    let mut output = Text::new(&mut text);
    for item in source.events() {
        output.item(&item).unwrap();
    }
    for stop in source.stops() {
        output.stop(&stop).unwrap();
    }
    let stop =
        "# CPU 0 stopped at 0.000002500, 2.500 us after a freeze written to control on CPU 2";
    assert_eq!(String::from_utf8(text).unwrap().lines().last(), Some(stop));
}

/// How long an I/O took stands behind what a C and a Q show.
#[test]
fn a_span_shows_how_long_it_took() {
    let mut cpu = SubbufBuilder::new([1; 16], 0, Clock::Mono, 1_000_000);
    cpu.device(Device::new(1, 8, 16, "sdb"))
        .task(Task::new("dd", 4321, 4321));
    let end = 1_000_000;
    let span = |bytes, opf, status, bios| Record {
        time: end,
        place: Record::pack_place(Some(2048), 1),
        bytes,
        opf,
        id: 7,
        who: Record::pack_complete(Action::Span, status, bios),
    };
    let at = |us: u64| end - us * 1000;
    let read = span(4096, 0, 0, 1);
    let drv = Record {
        place: Record::pack_place(None, 1),
        ..span(36, 34, 0, 1)
    };
    let rows = [
        (
            read,
            Times::new(at(45), at(40), at(43), 4321, 0),
            "  R 2048 + 8 [dd] [0] q2c=45.000us d2c=40.000us g2d=3.000us",
        ),
        (
            span(8192, 1 | SYNC, 10, 2),
            Times::new(end - 234_567, at(40), 0, 4321, 0),
            " WS 2048 + 16 [dd] [65531] q2c=234.567us d2c=40.000us bios=2",
        ),
        // Allocated before it was queued and after it was issued: the clock was read once for several.
        (
            read,
            Times::new(at(45), at(40), at(39), 4321, 0),
            "  R 2048 + 8 [dd] [0] q2c=45.000us d2c=40.000us",
        ),
        (
            read,
            Times::new(0, at(40), 0, 0, 1),
            "  R 2048 + 8 [] [0] d2c=40.000us missed",
        ),
        (
            read,
            Times::new(0, at(40), 0, 4321, 2),
            "  R 2048 + 8 [dd] [0] d2c=40.000us front",
        ),
        (
            read,
            Times::new(0, at(40), 0, 0, 32),
            "  R 2048 + 8 [] [0] d2c=40.000us clone",
        ),
        (
            read,
            Times::new(at(45), at(40), 0, 4321, 4),
            "  R 2048 + 8 [dd] [0] q2c>=45.000us d2c=40.000us rest",
        ),
        (
            span(512, 0, 0, 0),
            Times::new(at(45), at(40), 0, 4321, 8),
            "  R 2048 + 1 [dd] [0] q2c>=45.000us d2c>=40.000us bios=0 partial",
        ),
        (
            read,
            Times::new(at(45), 0, 0, 4321, 4 | 16),
            "  R 2048 + 8 [dd] [0] q2c=45.000us rest bio",
        ),
        (
            span(0, 1 | SYNC, 0, 1),
            Times::new(at(45), 0, 0, 4321, 0),
            " WS 2048 [dd] [0] q2c=45.000us",
        ),
        (
            drv,
            Times::new(0, at(40), 0, 0, 1),
            "  R 36 [] [0] d2c=40.000us missed",
        ),
    ];
    for (record, times, _) in &rows {
        cpu.event(*record).times(*times);
    }
    cpu.event(read);
    let meta = Meta {
        format: FORMAT_VERSION,
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    writer
        .subbufs(&cpu.finish(), &mut Appended::default())
        .unwrap();
    let source = Source::from_bytes(writer.get_ref().clone()).unwrap();
    let lines = lines(&source);
    for ((line, n), (_, times, expected)) in lines.iter().zip(1..).zip(&rows) {
        let pid = times.pid;
        let start = format!("  8,16   0 {n:8}     0.000000000 {pid:5} SP ");
        assert_eq!(*line, format!("{start}{expected}"));
    }
    let bare = "  8,16   0       12     0.000000000     0 SP   R 2048 + 8 [] [0]";
    assert_eq!(lines.last().unwrap(), bare);
}

#[test]
fn gaps_are_comments() {
    let mut cpu = SubbufBuilder::new([1; 16], 1, Clock::Mono, 1_000_000);
    cpu.lose(1, 400, 400);
    let event = |time| Record {
        time,
        place: Record::pack_place(None, 9),
        who: Record::pack_who(Action::Plug, 1),
        ..Record::default()
    };
    cpu.event(event(1_000_000_000));
    let mut bytes = cpu.finish();
    cpu.lose(12, 1_500_000_000, 2_000_000_001)
        .event(event(3_000_000_000));
    bytes.extend(cpu.finish());
    let meta = Meta {
        format: FORMAT_VERSION,
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    writer.subbufs(&bytes, &mut Appended::default()).unwrap();
    let source = Source::from_bytes(writer.get_ref().clone()).unwrap();
    let expected = [
        "# CPU 1 lost 1 event before the first event here",
        // A queue without a disk has no number, and this task no name.
        "  0,0    1        2     0.000000000     1  P   N []",
        "# CPU 1 lost 12 events between 0.500000000 and 1.000000001",
        "  0,0    1       15     2.000000000     1  P   N []",
    ];
    assert_eq!(lines(&source), expected);
}
