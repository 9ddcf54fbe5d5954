// SPDX-License-Identifier: GPL-2.0
//! The layouts that Rust uses are those that the C compiler uses.
#![allow(clippy::unwrap_used)]

use blkrelay_format::{abi, blktrace};
use std::collections::BTreeMap;
use std::ffi::{c_char, CStr};
use std::mem::{offset_of, size_of};

#[repr(C)]
struct Field {
    name: *const c_char,
    offset: usize,
    size: usize,
}

extern "C" {
    static blkrelay_conformance: [Field; 0];
    static blkrelay_conformance_len: usize;
}

fn from_c() -> BTreeMap<String, (usize, usize)> {
    // SAFETY: conformance.c defines an array of `blkrelay_conformance_len` fields that lives for ever.
    let fields = unsafe {
        std::slice::from_raw_parts(blkrelay_conformance.as_ptr(), blkrelay_conformance_len)
    };
    fields
        .iter()
        .map(|field| {
            // SAFETY: each name is a string literal.
            let name = unsafe { CStr::from_ptr(field.name) };
            (
                name.to_str().unwrap().to_owned(),
                (field.offset, field.size),
            )
        })
        .collect()
}

macro_rules! layouts {
    ($into:ident, $($name:literal = $type:ty { $($c:literal = $field:ident : $size:expr),* })*) => {
        $(
            $into.insert($name.to_owned(), (0, size_of::<$type>()));
            $($into.insert(
                concat!($name, ".", $c).to_owned(),
                (offset_of!($type, $field), $size),
            );)*
        )*
    };
}

#[test]
fn c_and_rust_agree() {
    let mut rust = BTreeMap::new();
    layouts! { rust,
        "blkrelay_record" = abi::blkrelay_record {
            "time" = time: 8, "place" = place: 8, "bytes" = bytes: 4, "opf" = opf: 4, "id" = id: 4,
            "who" = who: 4
        }
        "blkrelay_task" = abi::blkrelay_task {
            "comm" = comm: 16, "pid" = pid: 4, "tgid" = tgid: 4, "who" = who: 4
        }
        "blkrelay_device" = abi::blkrelay_device {
            "capacity" = capacity: 8, "diskseq" = diskseq: 8, "major" = major: 4, "minor" = minor: 4,
            "queue" = queue: 4, "who" = who: 4, "logical_block_size" = logical_block_size: 4,
            "hw_queues" = hw_queues: 4, "name" = name: 32
        }
        "blkrelay_from" = abi::blkrelay_from { "sector" = sector: 8, "dev" = dev: 4, "who" = who: 4 }
        "blkrelay_detail" = abi::blkrelay_detail {
            "cgroup" = cgroup: 8, "flags" = flags: 4, "ioprio" = ioprio: 2, "write_hint" = write_hint: 1,
            "partno" = partno: 1, "who" = who: 4
        }
        "blkrelay_stop" = abi::blkrelay_stop {
            "time" = time: 8, "trigger" = trigger: 8, "value" = value: 8, "cpu" = cpu: 4, "who" = who: 4
        }
        "blkrelay_times" = abi::blkrelay_times {
            "queue" = queue: 8, "issue" = issue: 8, "alloc" = alloc: 8, "pid" = pid: 4, "who" = who: 4
        }
        "blkrelay_subbuf" = abi::blkrelay_subbuf {
            "magic" = magic: 4, "version" = version: 2, "header_len" = header_len: 2, "used" = used: 4,
            "record_len" = record_len: 2, "flags" = flags: 2, "trace_id" = trace_id: 16, "cpu" = cpu: 4,
            "epoch" = epoch: 4, "seq" = seq: 8, "events" = events: 8, "lost" = lost: 8,
            "lost_first" = lost_first: 8, "lost_last" = lost_last: 8, "count" = count: 4,
            "clock" = clock: 4, "anchor" = anchor: 8, "mono" = mono: 8, "raw" = raw: 8, "real" = real: 8,
            "khz" = khz: 4
        }
        "blkrelay_chunk" = abi::blkrelay_chunk {
            "magic" = magic: 4, "type" = type_: 2, "flags" = flags: 2, "stored" = stored: 4,
            "length" = length: 4, "cpu" = cpu: 4, "checksum" = checksum: 8
        }
        "blkrelay_index_entry" = abi::blkrelay_index_entry {
            "offset" = offset: 8, "seq" = seq: 8, "first" = first: 8, "cpu" = cpu: 4, "count" = count: 4
        }
        "blk_io_trace" = blktrace::V1 {
            "magic" = magic: 4, "sequence" = sequence: 4, "time" = time: 8, "sector" = sector: 8,
            "bytes" = bytes: 4, "action" = action: 4, "pid" = pid: 4, "device" = device: 4,
            "cpu" = cpu: 4, "error" = error: 2, "pdu_len" = pdu_len: 2
        }
    }
    assert_eq!(from_c(), rust);
}

/// The kernel's definition of v2, field by field: `include/uapi/linux/blktrace_api.h` of Linux 7.3.
#[test]
fn v2_is_laid_out_as_the_kernel_has_it() {
    assert_eq!(size_of::<blktrace::V2>(), 64);
    assert_eq!(offset_of!(blktrace::V2, bytes), 24);
    assert_eq!(offset_of!(blktrace::V2, pid), 28);
    assert_eq!(offset_of!(blktrace::V2, action), 32);
    assert_eq!(offset_of!(blktrace::V2, device), 40);
    assert_eq!(offset_of!(blktrace::V2, cpu), 44);
    assert_eq!(offset_of!(blktrace::V2, error), 48);
    assert_eq!(offset_of!(blktrace::V2, pdu_len), 50);
    assert_eq!(offset_of!(blktrace::V2, pad), 52);
}
