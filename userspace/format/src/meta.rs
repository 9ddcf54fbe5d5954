// SPDX-License-Identifier: GPL-2.0
//! The two chunks of JSON: META at the start of a file, TRAILER at its end.
//!
//! Keys that this reader does not know are ignored, and a key that an older file lacks has a default, so
//! both can grow under one format version.

use crate::error::printable;
use crate::{abi, Error};
use serde::{Deserialize, Serialize};

/// The version that [`Writer`](crate::Writer) writes and the newest that can be read.
pub const FORMAT_VERSION: u32 = abi::BLKRELAY_ABI_VERSION;

/// What was traced, where and how: the META chunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// [`FORMAT_VERSION`] of the writer.
    pub format: u32,
    /// Name and version of the program that wrote the file.
    pub writer: String,
    /// The traced kernel.
    pub kernel: Kernel,
    /// Host name of the traced machine.
    pub host: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// 32 hexadecimal digits, as in each sub-buffer's header.
    pub trace_id: String,
    /// CLOCK_REALTIME when the trace was started, ns since 1970.
    pub start_realtime_ns: u64,
    /// `tsc` or `mono`.
    pub clock: String,
    /// Nominal rate of the clock, kHz.
    pub khz: u64,
    /// The traced disks as sysfs showed them at the start.
    pub devices: Vec<Disk>,
    /// What `record` was told.
    pub options: Options,
    /// COMMAND and its arguments; empty if none was given.
    pub command: Vec<String>,
}

/// `uname` of the traced machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// `uname -r`
    pub release: String,
    /// `uname -v`
    pub version: String,
    /// `uname -m`
    pub machine: String,
}

/// A whole disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Its name in `/sys/block`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Capacity in sectors of 512 bytes.
    pub sectors: u64,
    /// `/sys/block/DISK/diskseq`: tells it from an earlier one of the same name. 0 if it is not known.
    pub diskseq: u64,
    /// The I/O scheduler in use; empty for a bio-based device.
    pub scheduler: String,
    /// Its partitions, in the order of their start.
    pub partitions: Vec<Partition>,
}

/// A partition of a [`Disk`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Partition {
    /// Its name in `/sys/block/DISK`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// First sector on the disk, 512 bytes each.
    pub start: u64,
    /// Sectors of 512 bytes.
    pub sectors: u64,
}

/// What `record` was told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// `all`, or `MAJ:MIN,MAJ:MIN…`.
    pub devices: String,
    /// All words of the module's `start` command.
    pub start: String,
    /// Bytes of a sub-buffer.
    pub subbuf_size: u64,
    /// Sub-buffers per CPU.
    pub subbufs: u64,
    /// `-w`: seconds to record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// Why a recording ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// SIGINT or SIGTERM.
    #[default]
    Signal,
    /// The time given by `-w` was over.
    Duration,
    /// COMMAND ended.
    Command,
    /// The file could not be written any further, or the module not be read: the error.
    Error(String),
    /// The trace was stopped by someone else.
    Stopped,
    /// A flight recorder was frozen by its trigger: the stop records tell by which.
    Trigger,
}

/// Exact counters after stop: the TRAILER chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trailer {
    /// CLOCK_REALTIME after stop, ns since 1970.
    pub end_realtime_ns: u64,
    /// Why it ended.
    pub end: End,
    /// One for each CPU that had a stream.
    pub cpus: Vec<CpuCounters>,
}

/// A CPU's counters. `events + lost` is the number of events that the probes saw there; `events` are
/// `written_over`, `unwritten`, or in this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuCounters {
    /// The CPU.
    pub cpu: u32,
    /// Events that the module wrote.
    pub events: u64,
    /// Events that the module lost for want of room.
    pub lost: u64,
    /// Of a flight recorder: events before the oldest sub-buffer kept. Newer ones were written over them, or
    /// they were read at an earlier trigger.
    pub written_over: u64,
    /// Events that the module wrote and the reader could not store.
    pub unwritten: u64,
    /// Sub-buffers stored in this file.
    pub subbufs: u64,
}

impl Meta {
    /// Parses the payload of a META chunk.
    ///
    /// # Errors
    ///
    /// [`Error::BadJson`], [`Error::NewerVersion`].
    pub fn parse(bytes: &[u8]) -> Result<Meta, Error> {
        // The version first: a newer META need not fit the structs of this version.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let bad = |error: serde_json::Error| Error::BadJson {
            what: "META",
            why: printable(&error.to_string()),
        };
        let Version { format } = serde_json::from_slice(bytes).map_err(bad)?;
        if format > FORMAT_VERSION {
            return Err(Error::NewerVersion {
                found: format,
                known: FORMAT_VERSION,
            });
        }
        serde_json::from_slice(bytes).map_err(bad)
    }
}

/// Parses the payload of a DEVICES chunk.
///
/// # Errors
///
/// [`Error::BadJson`].
pub fn parse_devices(bytes: &[u8]) -> Result<Vec<Disk>, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::BadJson {
        what: "DEVICES",
        why: printable(&error.to_string()),
    })
}

impl Trailer {
    /// Parses the payload of a TRAILER chunk.
    ///
    /// # Errors
    ///
    /// [`Error::BadJson`].
    pub fn parse(bytes: &[u8]) -> Result<Trailer, Error> {
        serde_json::from_slice(bytes).map_err(|error| Error::BadJson {
            what: "TRAILER",
            why: printable(&error.to_string()),
        })
    }
}
