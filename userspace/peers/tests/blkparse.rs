// SPDX-License-Identifier: GPL-2.0
//! The real blkparse and ours get the same files, and print the same.
#![allow(clippy::unwrap_used)]

use blkrelay_format::blktrace::{act, category as tc, Event, Version};
use blkrelay_peers::blkparse::{run, Options, Outputs};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What is drawn of a record: action, direction and flags, bytes, sector, ns since the one before, pid.
type Drawn = (u16, u64, u32, u64, u64, u32);

fn drawn() -> impl Strategy<Value = Drawn> {
    (
        1u16..18,
        prop_oneof![8 => 0u64..64, 1 => 64u64..4096],
        prop_oneof![1 => Just(0u32), 6 => 1u32..300, 1 => 1u32..4_000_000],
        prop_oneof![6 => 0u64..5000, 1 => any::<u64>()],
        // Many at one time.
        prop_oneof![2 => Just(0u64), 3 => 1u64..50, 1 => 0u64..3_000_000_000],
        0u32..8,
    )
}

/// The categories that the kernel gives such an action, with some flags.
fn categories(action: u16, flags: u64) -> u64 {
    let own = match action {
        act::REQUEUE => tc::REQUEUE,
        act::ISSUE => tc::ISSUE,
        act::COMPLETE => tc::COMPLETE,
        act::DRV_DATA => tc::DRV_DATA,
        act::SPLIT | act::BOUNCE => 0,
        _ => tc::QUEUE,
    };
    let mut all = own;
    for (bit, category) in [
        tc::WRITE,
        tc::SYNC,
        tc::META,
        tc::AHEAD,
        tc::FUA,
        tc::FLUSH,
        tc::DISCARD,
        tc::PC,
    ]
    .into_iter()
    .enumerate()
    {
        if flags >> bit & 1 != 0 {
            all |= category;
        }
    }
    all | if all & tc::PC == 0 { tc::FS } else { 0 }
        | if all & tc::WRITE == 0 { tc::READ } else { 0 }
}

/// Writes a per-CPU file of these, with the names of some tasks and some messages.
fn write(path: &Path, cpu: u32, drawn: &[Drawn]) {
    let mut bytes = Vec::new();
    let mut time = 7_000_000_000 + u64::from(cpu % 3);
    for (n, (action, flags, size, sector, since, pid)) in drawn.iter().enumerate() {
        time += since;
        let mut pdu = Vec::new();
        match *action {
            act::UNPLUG_IO | act::UNPLUG_TIMER => pdu.extend(u64::from(*size).to_be_bytes()),
            act::SPLIT => pdu.extend(sector.to_be_bytes()),
            act::REMAP => {
                pdu.extend((8u32 << 20 | 17).to_be_bytes());
                pdu.extend((8u32 << 20 | 16).to_be_bytes());
                pdu.extend(sector.wrapping_add(2048).to_be_bytes());
            }
            act::ISSUE | act::COMPLETE | act::INSERT if flags >> 7 & 1 != 0 => {
                pdu.extend([0x12, 0, 0, 0, 36, 0, 0, 0, 0, 0][..(*pid as usize + 1)].iter());
            }
            _ => {}
        }
        let (name, text) = (*b"kworker/0:1H-kb\0", format!("a message of {n}"));
        let completes = *action == act::COMPLETE;
        let event = |action, pdu| Event {
            version: Version::V1,
            sequence: n as u32 + 1,
            time,
            sector: *sector,
            bytes: size.wrapping_mul(512).wrapping_add(size % 3),
            action,
            pid: 1000 + pid,
            device: 8 << 20 | (16 + pid % 2),
            cpu,
            error: if completes { *size as u16 } else { 0 },
            cgroup: None,
            pdu,
        };
        if n % 11 == 3 {
            Event {
                sequence: 0,
                bytes: 0,
                sector: 0,
                ..event(tc::NOTIFY << 16, &name[(*pid as usize)..])
            }
            .encode(&mut bytes);
        }
        if n % 17 == 5 {
            Event {
                sequence: 0,
                pid: 0,
                ..event(tc::NOTIFY << 16 | 2, text.as_bytes())
            }
            .encode(&mut bytes);
        }
        let action = categories(*action, *flags) << 16 | u64::from(*action);
        event(action, &pdu).encode(&mut bytes);
    }
    fs::write(path, bytes).unwrap();
}

/// What ours prints: the text, what is said of the files, the merged records.
fn ours(base: &Path, options: Options, binary: bool) -> (Vec<u8>, Vec<u8>) {
    let (mut text, mut said, mut errors, mut merged) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let options = Options {
        inputs: vec![base.to_owned()],
        ..options
    };
    run(
        &options,
        Outputs {
            text: &mut text,
            binary: binary.then_some(&mut merged as &mut dyn std::io::Write),
            said: &mut said,
            errors: &mut errors,
        },
    )
    .unwrap();
    text.extend(said);
    (text, merged)
}

fn theirs(base: &Path, words: &[&str], merged: Option<&Path>) -> (Vec<u8>, Vec<u8>) {
    let mut command = Command::new("blkparse");
    command.arg("-i").arg(base).args(words);
    if let Some(merged) = merged {
        command.arg("-d").arg(merged);
    }
    let output = command
        .output()
        .expect("blkparse is needed: qemu/install brings it");
    (
        output.stdout,
        merged.map_or_else(Vec::new, |path| fs::read(path).unwrap()),
    )
}

fn same(base: &Path, words: &[&str], options: Options, binary: bool) {
    let merged = base.with_extension("merged");
    let want = theirs(base, words, binary.then_some(merged.as_path()));
    let got = ours(base, options, binary);
    let lines = |text: &[u8]| {
        String::from_utf8_lossy(text)
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for (n, (want, got)) in lines(&want.0).iter().zip(lines(&got.0)).enumerate() {
        assert_eq!(*want, got, "line {n} with {words:?}");
    }
    let ends = |text: &[u8]| lines(text).into_iter().rev().take(12).collect::<Vec<_>>();
    assert!(
        want == got,
        "{words:?}: {:#?}\n{:#?}",
        ends(&want.0),
        ends(&got.0)
    );
}

/// A record of version 1 as a machine of the other byte order writes it. Payloads are as they are: what the block layer
/// puts into them is big-endian, or text.
fn swap(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (head, after) = rest.split_at(48);
        for (at, len) in [
            (0, 4),
            (4, 4),
            (8, 8),
            (16, 8),
            (24, 4),
            (28, 4),
            (32, 4),
            (36, 4),
            (40, 4),
            (44, 2),
            (46, 2),
        ] {
            out.extend(head[at..at + len].iter().rev());
        }
        let len = usize::from(u16::from_ne_bytes([head[46], head[47]]));
        out.extend_from_slice(&after[..len]);
        rest = &after[len..];
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_same_is_printed(
        cpus in proptest::collection::vec(proptest::collection::vec(drawn(), 0..700), 1..5),
    ) {
        let dir = TempDir::new().unwrap();
        let base = dir.path().join("sdb");
        for (cpu, drawn) in cpus.iter().enumerate() {
            write(&dir.path().join(format!("sdb.blktrace.{cpu}")), cpu as u32, drawn);
        }
        let none = Options::default;
        same(&base, &[], none(), true);
        let (native, _) = ours(&base, none(), false);
        let swapped = dir.path().join("swapped");
        fs::create_dir(&swapped).unwrap();
        for cpu in 0..cpus.len() {
            let name = format!("sdb.blktrace.{cpu}");
            let bytes = fs::read(dir.path().join(&name)).unwrap();
            fs::write(swapped.join(name), swap(&bytes)).unwrap();
        }
        let (foreign, _) = ours(&swapped.join("sdb"), none(), false);
        let said = |text: Vec<u8>| String::from_utf8_lossy(&text).replace("/swapped/", "/");
        prop_assert_eq!(said(foreign), said(native));
        same(&base, &["-q", "-M"], Options { counts: false, messages: false, ..none() }, true);
        same(&base, &["-O"], Options { text: false, ..none() }, true);
        same(&base, &["-s"], Options { programs: true, ..none() }, false);
        same(&base, &["-s", "-h"], Options { programs: true, by_name: true, ..none() }, false);
        same(&base, &["-a", "write", "-a", "issue"], Options { mask: 2 | 64, ..none() }, false);
        same(&base, &["-w", "0.5:2"], Options { from: 500_000_000, to: 2_000_000_000, ..none() }, false);
        let format = r"%a %3c|%-5C|%5C %d %D %e %M,%-4m %n %8N %p %P %s %S %t %5T %%\t\n";
        same(&base, &["-f", format], Options { format: Some(format.into()), ..none() }, false);
        let formats = vec![
            (b'C', br"%a %12S %-3n.\n".to_vec()),
            (b'U', br"%8U:%U\n".to_vec()),
        ];
        let words = ["-F", r"C,%a %12S %-3n.\n", "-F", r"U,%8U:%U\n"];
        same(&base, &words, Options { formats, ..none() }, false);
    }
}
