// SPDX-License-Identifier: GPL-2.0
//! Records of the kernel's blktrace, as its per-CPU files (`DEV.blktrace.CPU`) hold them.
//!
//! Version 7 of the record ("v1", 48 bytes) comes from the setup ioctl that blktrace has always used,
//! version 8 ("v2", 64 bytes) from `BLKTRACESETUP2`. Definition: `include/uapi/linux/blktrace_api.h` of
//! Linux 7.3; the system's header may be older and lack v2.

use crate::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[allow(missing_docs, non_camel_case_types, clippy::all)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/blktrace.rs"));
}

/// `struct blk_io_trace`, 48 bytes.
pub type V1 = sys::blk_io_trace;

/// `struct blk_io_trace2`, 64 bytes: the action has 64 bits, for the categories of zoned devices.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct V2 {
    /// `MAGIC << 8 | 8`
    pub magic: u32,
    /// Event number on its CPU.
    pub sequence: u32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// Sector on the disk, 512 bytes each.
    pub sector: u64,
    /// Transfer length.
    pub bytes: u32,
    /// Who did it.
    pub pid: u32,
    /// Category << 16 | action.
    pub action: u64,
    /// `major << 20 | minor`
    pub device: u32,
    /// On what CPU.
    pub cpu: u32,
    /// Errno of a completion, negative, cut to 16 bits.
    pub error: u16,
    /// Bytes after this record.
    pub pdu_len: u16,
    /// Unused.
    pub pad: [u8; 12],
}

/// `BLK_IO_TRACE_MAGIC`: the record's magic without the version in its low byte.
pub const MAGIC: u32 = 0x6561_7400;

/// Trace categories (`BLK_TC_*`), to be found at bits 16 and up of [`Event::action`].
pub mod category {
    #![allow(missing_docs)]
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 1 << 1;
    pub const FLUSH: u64 = 1 << 2;
    pub const SYNC: u64 = 1 << 3;
    pub const QUEUE: u64 = 1 << 4;
    pub const REQUEUE: u64 = 1 << 5;
    pub const ISSUE: u64 = 1 << 6;
    pub const COMPLETE: u64 = 1 << 7;
    pub const FS: u64 = 1 << 8;
    pub const PC: u64 = 1 << 9;
    pub const NOTIFY: u64 = 1 << 10;
    pub const AHEAD: u64 = 1 << 11;
    pub const META: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const DRV_DATA: u64 = 1 << 14;
    pub const FUA: u64 = 1 << 15;
    pub const ZONE_APPEND: u64 = 1 << 16;
    pub const ZONE_RESET: u64 = 1 << 17;
    pub const ZONE_RESET_ALL: u64 = 1 << 18;
    pub const ZONE_FINISH: u64 = 1 << 19;
    pub const ZONE_OPEN: u64 = 1 << 20;
    pub const ZONE_CLOSE: u64 = 1 << 21;
    pub const WRITE_ZEROES: u64 = 1 << 22;
}

/// Basic actions (`__BLK_TA_*`): [`Event::act`].
pub mod act {
    #![allow(missing_docs)]
    pub const QUEUE: u16 = 1;
    pub const BACKMERGE: u16 = 2;
    pub const FRONTMERGE: u16 = 3;
    pub const GETRQ: u16 = 4;
    pub const SLEEPRQ: u16 = 5;
    pub const REQUEUE: u16 = 6;
    pub const ISSUE: u16 = 7;
    pub const COMPLETE: u16 = 8;
    pub const PLUG: u16 = 9;
    pub const UNPLUG_IO: u16 = 10;
    pub const UNPLUG_TIMER: u16 = 11;
    pub const INSERT: u16 = 12;
    pub const SPLIT: u16 = 13;
    pub const BOUNCE: u16 = 14;
    pub const REMAP: u16 = 15;
    pub const ABORT: u16 = 16;
    pub const DRV_DATA: u16 = 17;
    pub const ZONE_PLUG: u16 = 18;
    pub const ZONE_UNPLUG: u16 = 19;
}

/// `__BLK_TA_CGROUP`: an 8-byte cgroup id precedes the payload and is counted in its length.
const CGROUP: u64 = 1 << 8;
const CATEGORY_SHIFT: u32 = 16;

/// Version of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 7: 48 bytes.
    V1,
    /// 8: 64 bytes.
    V2,
}

/// What stands in front of a record's payload, of either version, in this machine's byte order. Fields as in [`V2`].
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: Version,
    pub sequence: u32,
    pub bytes: u32,
    pub time: u64,
    pub sector: u64,
    pub action: u64,
    pub pid: u32,
    pub device: u32,
    pub cpu: u32,
    pub error: u16,
    /// Of the payload, a cgroup id included.
    pub pdu_len: u16,
}

/// Why there is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// So many bytes are needed.
    Short(usize),
    /// What stands there is no record's magic.
    Magic(u32),
    /// Of a version that is not known.
    Version(u8),
}

impl Header {
    /// Reads the header at the start of `bytes`; `swapped`: of a machine of the other byte order.
    ///
    /// # Errors
    ///
    /// See [`HeaderError`].
    #[inline(always)]
    pub fn read(bytes: &[u8], swapped: bool) -> Result<Header, HeaderError> {
        if swapped {
            Header::from(bytes, u16::swap_bytes, u32::swap_bytes, u64::swap_bytes)
        } else {
            Header::from(bytes, |value| value, |value| value, |value| value)
        }
    }

    /// Whether what stands there is of a machine of the other byte order.
    pub fn is_swapped(bytes: &[u8]) -> bool {
        let magic = u32::read_from_prefix(bytes).map_or(0, |(magic, _)| magic);
        magic & !0xff != MAGIC && magic.swap_bytes() & !0xff == MAGIC
    }

    #[inline(always)]
    fn from(
        bytes: &[u8],
        u16: impl Fn(u16) -> u16,
        u32: impl Fn(u32) -> u32,
        u64: impl Fn(u64) -> u64,
    ) -> Result<Header, HeaderError> {
        let short = HeaderError::Short(size_of::<V1>());
        let magic = u32(u32::read_from_prefix(bytes).map_err(|_| short)?.0);
        if magic & !0xff != MAGIC {
            return Err(HeaderError::Magic(magic));
        }
        match magic as u8 {
            7 => {
                let (t, _) = V1::read_from_prefix(bytes).map_err(|_| short)?;
                Ok(Header {
                    version: Version::V1,
                    sequence: u32(t.sequence),
                    bytes: u32(t.bytes),
                    time: u64(t.time),
                    sector: u64(t.sector),
                    action: u32(t.action).into(),
                    pid: u32(t.pid),
                    device: u32(t.device),
                    cpu: u32(t.cpu),
                    error: u16(t.error),
                    pdu_len: u16(t.pdu_len),
                })
            }
            8 => {
                let short = HeaderError::Short(size_of::<V2>());
                let (t, _) = V2::read_from_prefix(bytes).map_err(|_| short)?;
                Ok(Header {
                    version: Version::V2,
                    sequence: u32(t.sequence),
                    bytes: u32(t.bytes),
                    time: u64(t.time),
                    sector: u64(t.sector),
                    action: u64(t.action),
                    pid: u32(t.pid),
                    device: u32(t.device),
                    cpu: u32(t.cpu),
                    error: u16(t.error),
                    pdu_len: u16(t.pdu_len),
                })
            }
            version => Err(HeaderError::Version(version)),
        }
    }

    /// Bytes that it takes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self.version {
            Version::V1 => size_of::<V1>(),
            Version::V2 => size_of::<V2>(),
        }
    }

    /// The basic action: one of [`act`].
    #[inline]
    pub fn act(&self) -> u16 {
        (self.kind() & 0xffff) as u16
    }

    /// The action with its categories, without the flag that says that there is a cgroup.
    #[inline]
    pub fn kind(&self) -> u64 {
        self.action & !CGROUP
    }

    /// Whether it has one of these [`category`] bits.
    #[inline]
    pub fn has(&self, categories: u64) -> bool {
        self.action >> CATEGORY_SHIFT & categories != 0
    }

    /// Whether the payload begins with a cgroup's id.
    #[inline]
    pub fn has_cgroup(&self) -> bool {
        self.action & CGROUP != 0
    }
}

/// A record of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The record's version.
    pub version: Version,
    /// Number on its CPU, from 1, counted before room is reserved, so that a loss leaves a gap. 0 for
    /// notify records.
    pub sequence: u32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// Sector on the whole disk, 512 bytes each; 0 also stands for "none".
    pub sector: u64,
    /// Transfer length.
    pub bytes: u32,
    /// Category << 16 | cgroup flag | action.
    pub action: u64,
    /// The current task.
    pub pid: u32,
    /// `major << 20 | minor` of the traced device.
    pub device: u32,
    /// The CPU.
    pub cpu: u32,
    /// Errno of a completion, negative, cut to 16 bits.
    pub error: u16,
    /// From which cgroup, where the record says so.
    pub cgroup: Option<u64>,
    /// The payload without the cgroup id.
    pub pdu: &'a [u8],
}

/// A record about the trace itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notify<'a> {
    /// Names a pid.
    Process {
        /// Thread id.
        pid: u32,
        /// Its name, up to the first NUL.
        comm: &'a [u8],
    },
    /// The wall clock.
    Timestamp {
        /// Seconds since 1970.
        sec: u32,
        /// Nanoseconds.
        nsec: u32,
    },
    /// Text from a driver or scheduler.
    Message(&'a [u8]),
    /// Of a kind not known here.
    Other(u16),
}

impl<'a> Event<'a> {
    /// The basic action: one of [`act`].
    pub fn act(&self) -> u16 {
        (self.action & 0xffff & !CGROUP) as u16
    }

    /// The categories: bits of [`category`].
    pub fn categories(&self) -> u64 {
        self.action >> CATEGORY_SHIFT
    }

    /// Whether it has all of these categories.
    pub fn has(&self, categories: u64) -> bool {
        self.categories() & categories == categories
    }

    /// What it notifies of, if it is a notify record.
    pub fn notify(&self) -> Option<Notify<'a>> {
        if !self.has(category::NOTIFY) {
            return None;
        }
        let pdu = self.pdu;
        let word = |at: usize| {
            let bytes = pdu.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        Some(match (self.act(), word(0), word(4)) {
            (0, _, _) => Notify::Process {
                pid: self.pid,
                comm: pdu.split(|byte| *byte == 0).next().unwrap_or_default(),
            },
            (1, Some(sec), Some(nsec)) => Notify::Timestamp { sec, nsec },
            (2, _, _) => Notify::Message(pdu),
            (other, _, _) => Notify::Other(other),
        })
    }

    fn be64(&self, at: usize) -> Option<u64> {
        let bytes = self.pdu.get(at..at + 8)?;
        Some(u64::from_be_bytes(bytes.try_into().ok()?))
    }

    fn be32(&self, at: usize) -> Option<u32> {
        let bytes = self.pdu.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }

    /// Of U and UT: the number of requests unplugged. Of X: the sector where the rest begins, which
    /// kernels cut to 32 bits.
    pub fn number(&self) -> Option<u64> {
        matches!(self.act(), act::UNPLUG_IO | act::UNPLUG_TIMER | act::SPLIT)
            .then(|| self.be64(0))
            .flatten()
    }

    /// Of A: `(device_from, device_to, sector_from)`, devices as `major << 20 | minor`.
    pub fn remap(&self) -> Option<(u32, u32, u64)> {
        if self.act() != act::REMAP {
            return None;
        }
        Some((self.be32(0)?, self.be32(4)?, self.be64(8)?))
    }

    /// Appends the record as the kernel would write it, in its own [`Event::version`]. A v1 record loses
    /// the categories that only v2 has; a payload is cut to 65535 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let cgroup = self.cgroup.map(u64::to_ne_bytes);
        let cgroup_bytes = cgroup.as_ref().map_or(&[][..], |id| &id[..]);
        let pdu = &self.pdu[..self.pdu.len().min(usize::from(u16::MAX) - 8)];
        let pdu_len = (cgroup_bytes.len() + pdu.len()) as u16;
        let flag = if cgroup.is_some() { CGROUP } else { 0 };
        let action = self.action & !CGROUP | flag;
        match self.version {
            Version::V1 => out.extend_from_slice(
                V1 {
                    magic: MAGIC | 7,
                    sequence: self.sequence,
                    time: self.time,
                    sector: self.sector,
                    bytes: self.bytes,
                    action: action as u32,
                    pid: self.pid,
                    device: self.device,
                    cpu: self.cpu,
                    error: self.error,
                    pdu_len,
                }
                .as_bytes(),
            ),
            Version::V2 => out.extend_from_slice(
                V2 {
                    magic: MAGIC | 8,
                    sequence: self.sequence,
                    time: self.time,
                    sector: self.sector,
                    bytes: self.bytes,
                    pid: self.pid,
                    action,
                    device: self.device,
                    cpu: self.cpu,
                    error: self.error,
                    pdu_len,
                    pad: [0; 12],
                }
                .as_bytes(),
            ),
        }
        out.extend_from_slice(cgroup_bytes);
        out.extend_from_slice(pdu);
    }
}

/// Reads the records of one per-CPU file held in memory. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Over the bytes of a file; the version is found record by record.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, offset: 0 }
    }

    fn parse(&self, rest: &'a [u8]) -> Result<(Event<'a>, usize), Error> {
        let offset = self.offset;
        let short = |needed| Error::BlktraceTruncated {
            offset,
            needed,
            have: rest.len(),
        };
        if Header::is_swapped(rest) {
            return Err(Error::ForeignEndian);
        }
        let head = Header::read(rest, false).map_err(|error| match error {
            HeaderError::Short(needed) => short(needed),
            HeaderError::Magic(magic) => Error::BlktraceMagic { offset, magic },
            HeaderError::Version(version) => Error::BlktraceVersion { offset, version },
        })?;
        let end = head.len() + usize::from(head.pdu_len);
        let mut pdu = rest.get(head.len()..end).ok_or_else(|| short(end))?;
        let mut cgroup = None;
        if head.has_cgroup() {
            let needed = head.len() + size_of::<u64>();
            let (id, after) = u64::read_from_prefix(pdu).map_err(|_| short(needed))?;
            cgroup = Some(id);
            pdu = after;
        }
        let event = Event {
            version: head.version,
            sequence: head.sequence,
            time: head.time,
            sector: head.sector,
            bytes: head.bytes,
            action: head.action,
            pid: head.pid,
            device: head.device,
            cpu: head.cpu,
            error: head.error,
            cgroup,
            pdu,
        };
        Ok((event, end))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Event<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset..)?;
        if rest.is_empty() {
            return None;
        }
        Some(match self.parse(rest) {
            Ok((event, len)) => {
                self.offset += len;
                Ok(event)
            }
            Err(error) => {
                self.offset = self.bytes.len();
                Err(error)
            }
        })
    }
}
