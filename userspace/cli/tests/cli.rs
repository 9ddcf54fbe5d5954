// SPDX-License-Identifier: GPL-2.0
//! The commands on good and on bad input. What needs the kernel module is tested in a guest.
#![allow(clippy::unwrap_used)]

use assert_cmd::Command;
use blkrelay_format::*;
use predicates::prelude::*;
use predicates::str::contains;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn blkrelay(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("blkrelay").unwrap();
    command.args(args);
    command
}

/// One line on the standard error, that says this, and the status of an error.
fn fails(args: &[&str], text: &str) {
    blkrelay(args)
        .assert()
        .code(2)
        .stdout("")
        .stderr(contains(text).and(predicate::function(|text: &str| text.lines().count() == 1)));
}

fn queue(time: u64, sector: u64, action: Action) -> Record {
    Record {
        time,
        place: Record::pack_place(Some(sector), 1),
        bytes: 4096,
        opf: 0,
        id: 1,
        who: if action == Action::Complete {
            Record::pack_complete(action, 0, 1)
        } else {
            Record::pack_who(action, 4321)
        },
    }
}

/// Reads of one disk by one process; `lost` events are lost in the middle.
fn write(path: &Path, reads: u64, lost: u64, whole: bool) {
    let mut cpu = SubbufBuilder::new([0xcd; 16], 0, Clock::Mono, 1_000_000);
    let mut bytes = Vec::new();
    for half in 0..2 {
        cpu.device(Device::new(1, 8, 0, "sda"))
            .task(Task::new("dd", 4321, 4321));
        for n in 0..reads / 2 {
            let n = n + half * reads / 2;
            let time = 1_000_000 * (n + 1);
            cpu.event(queue(time, 8 * n, Action::Queue))
                .event(queue(time + 30, 8 * n, Action::Issue))
                .event(queue(time + 1030, 8 * n, Action::Complete));
        }
        bytes.extend(cpu.finish());
        let now = 1_000_000 * (reads / 2) + 2000;
        cpu.anchor(now + 10, now + 10);
        if half == 0 && lost > 0 {
            cpu.lose(lost, now, now + 5);
        }
    }
    let meta = Meta {
        format: FORMAT_VERSION,
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    writer.subbufs(&bytes, &mut Appended::default()).unwrap();
    let (events, lost) = cpu.totals();
    let trailer = Trailer {
        cpus: vec![CpuCounters {
            cpu: 0,
            events,
            lost,
            subbufs: 2,
            ..CpuCounters::default()
        }],
        ..Trailer::default()
    };
    let file = if whole {
        writer.finish(&trailer).unwrap()
    } else {
        writer.get_ref().clone()
    };
    std::fs::write(path, file).unwrap();
}

fn sample(lost: u64, whole: bool) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.blkr");
    write(&path, 100, lost, whole);
    (dir, path)
}

#[test]
fn what_cannot_be_read_is_an_error_of_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let newer = Meta {
        format: 2,
        ..Meta::default()
    };
    let newer = Writer::new(Vec::new(), &newer).unwrap().get_ref().clone();
    let mut foreign = newer.clone();
    foreign[8..12].reverse();
    let cases = [
        (put("empty", b""), "the file is empty"),
        (put("elf", b"\x7fELF and so on"), "not a blkrelay trace"),
        (put("magic", b"BLKRELAY"), "no META chunk"),
        (
            put("newer", &newer),
            "format version 2; this reader knows versions up to 1",
        ),
        (put("foreign", &foreign), "the other byte order"),
        (put("cut", &newer[..50]), "cut short: the chunk at byte 8"),
        (dir.path().to_str().unwrap().to_owned(), "is a directory"),
        ("/dev/null".to_owned(), "the file is empty"),
        // Which has no end.
        ("/dev/zero".to_owned(), "not a blkrelay trace"),
        (
            dir.path().join("none").to_str().unwrap().to_owned(),
            "No such file or directory",
        ),
    ];
    for (path, text) in &cases {
        for command in ["dump", "report", "verify"] {
            fails(&[command, path], text);
        }
    }
}

#[test]
fn a_whole_trace() {
    let (_dir, path) = sample(0, true);
    let path = path.to_str().unwrap();
    blkrelay(&["verify", path])
        .assert()
        .success()
        .stdout(contains(
            "whole: 300 events in 2 sub-buffers of 1 CPU, 0 lost",
        ));
    let first = "  8,0    0        1     0.000000000  4321  Q   R 0 + 8 [dd]\n";
    blkrelay(&["dump", path])
        .assert()
        .success()
        .stderr("")
        .stdout(predicate::str::starts_with(first))
        .stdout(predicate::function(|text: &str| {
            text.lines().count() == 300
        }));
    blkrelay(&["dump", path, "-n", "1"])
        .assert()
        .success()
        .stdout(first);
    blkrelay(&["dump", path, "-n", "0"])
        .assert()
        .success()
        .stdout("");
    blkrelay(&["report", path])
        .assert()
        .success()
        .stdout(contains("sda"))
        .stdout(contains("dd (4321)"))
        .stdout(contains("1.03 us"))
        .stdout(predicate::function(|text: &str| text.lines().count() <= 40));
}

#[test]
fn report_as_json() {
    let (_dir, path) = sample(7, true);
    let output = blkrelay(&["report", "--json", path.to_str().unwrap()])
        .assert()
        .code(1)
        .get_output()
        .stdout
        .clone();
    let report: serde_json::Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["events"], 300);
    assert_eq!(report["lost"]["events"], 7);
    assert_eq!(report["complete"], true);
    assert_eq!(report["devices"][0]["name"], "sda");
    assert_eq!(report["devices"][0]["dev"], "8:0");
    assert_eq!(report["devices"][0]["reads"], 100);
    assert_eq!(report["devices"][0]["bytes"], 409_600);
    assert_eq!(report["devices"][0]["d2c"]["max_ns"], 1000);
    assert_eq!(report["processes"][0]["comm"], "dd");
    assert_eq!(report["processes"][0]["q2c"]["count"], 100);
}

#[test]
fn losses_are_said_and_change_the_status() {
    let (_dir, path) = sample(7, true);
    let path = path.to_str().unwrap();
    blkrelay(&["dump", path]).assert().code(1).stdout(contains(
        "# CPU 0 lost 7 events between 0.049002000 and 0.049002005\n",
    ));
    blkrelay(&["report", path])
        .assert()
        .code(1)
        .stdout(contains("lost: 7 events in 1 gap"))
        .stdout(contains("begun before the trace or in a loss, "));
    blkrelay(&["verify", path])
        .assert()
        .code(1)
        .stdout(contains("sub-buffer 1: 7 events lost before it"))
        .stdout(contains(
            "1 finding: 300 events in 2 sub-buffers of 1 CPU, 7 lost",
        ));
}

#[test]
fn a_recording_that_was_killed() {
    let (_dir, path) = sample(0, false);
    let path = path.to_str().unwrap();
    blkrelay(&["dump", path])
        .assert()
        .code(1)
        .stderr(contains("cut short"))
        .stdout(predicate::function(|text: &str| {
            text.lines().count() == 300
        }));
    blkrelay(&["report", path])
        .assert()
        .code(1)
        .stdout(contains("cut short"));
    blkrelay(&["verify", path])
        .assert()
        .code(1)
        .stdout(contains("there is no TRAILER"));
}

#[test]
fn a_file_cut_in_the_middle_is_shown_up_to_there() {
    let (_dir, path) = sample(0, true);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let path = path.to_str().unwrap();
    blkrelay(&["dump", path])
        .assert()
        .code(1)
        .stderr(contains("cut short: the chunk at byte"));
    blkrelay(&["verify", path]).assert().code(1);
}

/// As `head` does: the reader goes away in the middle.
#[test]
fn a_broken_pipe_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.blkr");
    write(&path, 10_000, 0, true);
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("blkrelay"))
        .args(["dump".as_ref(), path.as_os_str()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");
}

/// Reads of sda at 0, 8, 16 …, each of 1 us from D to C. sda1 ends behind the third.
fn filtered() -> (TempDir, String) {
    let (dir, path) = sample(0, true);
    let bytes = std::fs::read(&path).unwrap();
    let meta = Meta {
        format: FORMAT_VERSION,
        devices: vec![Disk {
            name: "sda".to_owned(),
            major: 8,
            sectors: 1000,
            partitions: vec![Partition {
                name: "sda1".to_owned(),
                major: 8,
                minor: 1,
                start: 8,
                sectors: 16,
            }],
            ..Disk::default()
        }],
        options: Options {
            start: "start devices=all hold=1".to_owned(),
            ..Options::default()
        },
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    let mut trailer = Trailer::default();
    for chunk in Chunks::new(&bytes).unwrap() {
        let chunk = chunk.unwrap();
        match chunk.kind() {
            ChunkType::Subbuf => writer
                .subbufs(chunk.payload, &mut Appended::default())
                .unwrap(),
            ChunkType::Trailer => trailer = Trailer::parse(chunk.payload).unwrap(),
            _ => {}
        }
    }
    std::fs::write(&path, writer.finish(&trailer).unwrap()).unwrap();
    (dir, path.to_str().unwrap().to_owned())
}

#[test]
fn filters_of_a_trace() {
    let (_dir, path) = filtered();
    let lines = |words: &[&str]| {
        let all: Vec<&str> = ["dump", &path]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        let output = blkrelay(&all)
            .assert()
            .success()
            .get_output()
            .stdout
            .clone();
        String::from_utf8(output).unwrap().lines().count()
    };
    for (words, expected) in [
        (&["--dev", "sda"][..], 300),
        (&["--dev", "8:0", "--op", "read"], 300),
        (&["--op", "write,discard"], 0),
        (&["-d", "/dev/sda1"], 6),
        (&["--dev", "8:1", "--sector", "16-1000"], 3),
        (&["--sector", "12-20"], 6),
        (&["--size", "4K"], 300),
        (&["--size", "8K-"], 0),
        (&["--min-latency", "1us"], 300),
        (&["--min-latency", "1001ns"], 0),
        (&["--pid", "4321", "--comm", "dd"], 300),
        (&["--comm", "cat"], 0),
        // The first event is at one millisecond.
        (&["--from", "0.001", "--to", "0.00200103"], 6),
    ] {
        assert_eq!(lines(words), expected, "{words:?}");
    }
    // The time is the trace's.
    blkrelay(&["dump", &path, "--from", "0.001", "-n", "1"])
        .assert()
        .success()
        .stdout("  8,0    0        4     0.001000000  4321  Q   R 8 + 8 [dd]\n");
    let report = blkrelay(&["report", "--json", &path, "--dev", "sda1"])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["devices"][0]["reads"], 2);
    fails(
        &["dump", &path, "--dev", "sdz"],
        "sdz: no such device in this trace",
    );
    fails(
        &["report", &path, "--cgroup", "7"],
        "the trace has no details: record with --detail",
    );
    fails(
        &["record", "--cgroup", "none/such"],
        "none/such: No such file",
    );
    for word in ["--min-latency", "--pid", "--comm", "--from", "--to"] {
        blkrelay(&["record", word, "1"])
            .assert()
            .code(2)
            .stderr(contains("give it to dump or report"));
    }
}

/// A flight recorder's file: what came before is no loss, and each CPU's stop is said.
#[test]
fn a_flight_recorders_file() {
    let mut cpu = SubbufBuilder::new([0xcd; 16], 0, Clock::Mono, 1_000_000);
    cpu.overwrite().event(queue(1, 0, Action::Queue));
    cpu.skip();
    cpu.device(Device::new(1, 8, 0, "sda"))
        .task(Task::new("dd", 4321, 4321))
        .event(queue(1000, 0, Action::Queue))
        .event(queue(3000, 0, Action::Issue))
        .event(queue(9000, 0, Action::Complete))
        .stop(Stop::new(9850, 9500, 0, 3, 6000));
    let mut writer = Writer::new(
        Vec::new(),
        &Meta {
            format: FORMAT_VERSION,
            ..Meta::default()
        },
    )
    .unwrap();
    writer
        .subbufs(&cpu.finish(), &mut Appended::default())
        .unwrap();
    let trailer = Trailer {
        end: End::Trigger,
        cpus: vec![CpuCounters {
            events: 4,
            written_over: 1,
            subbufs: 1,
            ..CpuCounters::default()
        }],
        ..Trailer::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.blkr");
    std::fs::write(&path, writer.finish(&trailer).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    let stop = "CPU 0 stopped 350 ns after an I/O that took 6.00 us on CPU 0\n";
    blkrelay(&["verify", path])
        .assert()
        .success()
        .stdout(contains(stop).and(contains(
            "whole: 3 events in 1 sub-buffer of 1 CPU, 0 lost, 1 before them written over\n",
        )));
    blkrelay(&["report", path])
        .assert()
        .success()
        .stdout(contains(stop).and(contains("lost: 0 events\n")));
    let last = "# CPU 0 stopped at 0.000008850, 0.350 us after an I/O that took 6.00 us on CPU 0\n";
    blkrelay(&["dump", path])
        .assert()
        .success()
        .stdout(predicate::str::ends_with(last));
}

/// Reads of sda in spans: half of them by dd, of one bio; half of two, by nobody known.
#[test]
fn a_trace_of_spans() {
    let mut cpu = SubbufBuilder::new([0xcd; 16], 0, Clock::Mono, 1_000_000);
    cpu.device(Device::new(1, 8, 0, "sda"))
        .task(Task::new("dd", 4321, 4321));
    for n in 0..100 {
        let time = 1_000_000 * (n + 1);
        let known = n % 2 == 0;
        cpu.event(Record {
            who: Record::pack_complete(Action::Span, 0, if known { 1 } else { 2 }),
            ..queue(time + 1030, 8 * n, Action::Complete)
        });
        cpu.times(if known {
            Times::new(time, time + 30, time + 10, 4321, 0)
        } else {
            Times::new(0, time + 30, time + 10, 0, 1)
        });
    }
    let meta = Meta {
        format: FORMAT_VERSION,
        options: Options {
            start: "start devices=all span=1 hold=1".to_owned(),
            ..Options::default()
        },
        ..Meta::default()
    };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    writer
        .subbufs(&cpu.finish(), &mut Appended::default())
        .unwrap();
    let trailer = Trailer {
        cpus: vec![CpuCounters {
            events: 100,
            subbufs: 1,
            ..CpuCounters::default()
        }],
        ..Trailer::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("span.blkr");
    std::fs::write(&path, writer.finish(&trailer).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    blkrelay(&["verify", path])
        .assert()
        .success()
        .stdout(contains(
            "whole: 100 events in 1 sub-buffer of 1 CPU, 0 lost",
        ));
    blkrelay(&["dump", path, "-n", "1"]).assert().success().stdout(
        "  8,0    0        1     0.000000000  4321 SP   R 0 + 8 [dd] [0] q2c=1.030us d2c=1.000us g2d=0.020us\n",
    );
    blkrelay(&["report", path])
        .assert()
        .success()
        .stdout(contains("100 spans, one a completion: ").and(contains(
            "without a Q2C: 50 merged behind another, 50 whose Q was not seen, 0 split, 0 parts of such\n",
        )))
        .stdout(contains("0 begun before the trace; what is not complete has no span\n"))
        .stdout(contains("requests: 0 with an error, 0 completions of a part,"));
    let report = |words: &[&str]| -> serde_json::Value {
        let all: Vec<&str> = ["report", "--json", path]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        let output = blkrelay(&all)
            .assert()
            .success()
            .get_output()
            .stdout
            .clone();
        serde_json::from_slice(&output).unwrap()
    };
    let all = report(&[]);
    assert_eq!((&all["events"], &all["spans"]), (&100.into(), &100.into()));
    assert_eq!(all["counts"]["merged"], 50);
    assert_eq!(all["devices"][0]["ios"], 150);
    assert_eq!(all["devices"][0]["d2c"]["count"], 100);
    assert_eq!(all["devices"][0]["q2c"]["count"], 50);
    assert_eq!(all["devices"][0]["q2c"]["max_ns"], 1030);
    assert_eq!(all["processes"][0]["ios"], 50);
    assert_eq!(all["processes"].as_array().unwrap().len(), 1);
    assert_eq!(report(&["--comm", "dd"])["events"], 50);
    assert_eq!(report(&["--pid", "0"])["events"], 0);
    assert_eq!(report(&["--min-latency", "1us"])["events"], 100);
    assert_eq!(report(&["--min-latency", "1001ns"])["events"], 0);
    fails(
        &["report", path, "--cgroup", "7"],
        "spans do not tell cgroups: give it to record",
    );
    fails(
        &["record", "--span", "--detail"],
        "--span records one event of its own an I/O: it does not go with --detail",
    );
    fails(
        &["record", "--span", "--events", "all"],
        "it does not go with --events",
    );
}

#[test]
fn the_command_line() {
    for args in [
        &["record", "-w", "0"][..],
        &["record", "-w", "-1"],
        &["record", "-w", "never"],
        &["record", "--min-latency", "20ms"],
        &["record", "--subbufs", "many"],
        &["dump"],
        &["frobnicate"],
        &[],
    ] {
        blkrelay(args).assert().code(2).stdout("");
    }
    blkrelay(&["--help"])
        .assert()
        .success()
        .stdout(contains("record").and(contains("verify")));
    blkrelay(&["--version"])
        .assert()
        .success()
        .stdout(predicate::str::starts_with("blkrelay "));
    fails(
        &["record", "-d", "/dev/null"],
        "/dev/null: not a block device",
    );
    fails(
        &["record", "-d", "no-such-disk"],
        "no-such-disk: no such block device",
    );
}

/// blktrace's files: of both versions, with a hole in the numbering, and with one that is none.
#[test]
fn blktraces_files() {
    use blkrelay_format::blktrace::{act, category, Event, Version};

    let dir = TempDir::new().unwrap();
    let base = dir.path().join("sdb");
    let base = base.to_str().unwrap();
    for (cpu, version) in [(0, Version::V1), (3, Version::V2)] {
        let mut bytes = Vec::new();
        let event = Event {
            version,
            sequence: 1,
            time: 1_000_000_000 + u64::from(cpu) * 1500,
            sector: 2048,
            bytes: 4096,
            action: (category::QUEUE | category::WRITE | category::FS) << 16
                | u64::from(act::QUEUE),
            pid: 42,
            device: 8 << 20 | 16,
            cpu,
            error: 0,
            cgroup: None,
            pdu: &[],
        };
        event.encode(&mut bytes);
        std::fs::write(format!("{base}.blktrace.{cpu}"), bytes).unwrap();
    }
    let lines = "  8,16   0        1     0.000000000    42  Q   W 2048 + 8 [(null)]\n  \
                 8,16   3        1     0.000004500    42  Q   W 2048 + 8 [(null)]\n";
    let files = format!("Input file {base}.blktrace.0 added\nInput file {base}.blktrace.3 added\n");
    let both = || predicate::eq(format!("{lines}{files}"));
    blkrelay(&["blkparse", "-q", base])
        .assert()
        .code(0)
        .stdout(both());

    // By the peer's name, with its options run together.
    let link = dir.path().join("blkparse");
    std::os::unix::fs::symlink(assert_cmd::cargo::cargo_bin("blkrelay"), &link).unwrap();
    let mut peer = Command::new(link);
    peer.args(["-qi", base]).assert().code(0).stdout(both());

    // What is no CPU's.
    for other in ["03", "+3", "x", "4294967295", "70000"] {
        std::fs::copy(
            format!("{base}.blktrace.3"),
            format!("{base}.blktrace.{other}"),
        )
        .unwrap();
    }
    blkrelay(&["blkparse", "-q", base])
        .assert()
        .code(0)
        .stdout(both());

    std::fs::copy(format!("{base}.blktrace.3"), format!("{base}.blktrace.5")).unwrap();
    blkrelay(&["blkparse", "-q", base])
        .assert()
        .code(1)
        .stdout(contains(lines))
        .stderr(contains(
            "sdb.blktrace.5: left out, because they are of other CPUs: 1 records",
        ));
    std::fs::remove_file(format!("{base}.blktrace.5")).unwrap();
    std::fs::write(format!("{base}.blktrace.4"), [0x55; 100]).unwrap();
    blkrelay(&["blkparse", "-q", base])
        .assert()
        .code(1)
        .stdout(contains(lines))
        .stderr(contains("sdb.blktrace.4: bad trace magic 55555555"));

    fails(&["blkparse"], "no trace is named");
    fails(&["blkparse", "-i", "/no/such"], "/no");
    let none = format!("{base}x");
    fails(&["blkparse", &none], "No input files found for sdbx");
    fails(&["blkparse", "-F", "Z,%a", base], "-F: Z is no action");
    fails(&["blkparse", "-f", "%u", base], "%u");
}
