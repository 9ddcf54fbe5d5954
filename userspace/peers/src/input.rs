// SPDX-License-Identifier: GPL-2.0
//! blktrace's per-CPU files, `X.blktrace.N`, as one stream in blkparse's order.
//!
//! Memory is bounded: a batch of records of each file. Definitions: `include/uapi/linux/blktrace_api.h`.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Of a record of version 7 and of 8, bytes.
const V1_LEN: usize = 48;
const V2_LEN: usize = 64;
const MAGIC: u32 = 0x6561_7400;

/// An 8-byte cgroup id precedes the payload (`__BLK_TA_CGROUP`).
pub const CGROUP: u64 = 1 << 8;
/// Category of records about the trace itself (`BLK_TC_NOTIFY`), as it stands in an action.
pub const NOTIFY: u64 = 1 << (16 + 10);
/// A task's name (`BLK_TN_PROCESS`).
pub const PROCESS: u64 = NOTIFY;
/// The wall clock (`BLK_TN_TIMESTAMP`).
pub const TIMESTAMP: u64 = NOTIFY | 1;
/// Text (`BLK_TN_MESSAGE`).
pub const MESSAGE: u64 = NOTIFY | 2;

/// A record of either version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Event number on its CPU; 0 of notify records.
    pub sequence: u32,
    /// Transfer length.
    pub bytes: u32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// On the whole disk, 512 bytes each.
    pub sector: u64,
    /// Category << 16 | cgroup flag | action.
    pub action: u64,
    /// The current task.
    pub pid: u32,
    /// `major << 20 | minor`.
    pub device: u32,
    /// The CPU.
    pub cpu: u32,
    /// Errno of a completion, negative, cut to 16 bits.
    pub error: u16,
    /// Length of the payload, a cgroup id included.
    pub pdu_len: u16,
    /// Where the payload stands in the stream's buffer.
    pdu: usize,
}

impl Record {
    /// The basic action without flags.
    pub fn act(&self) -> u16 {
        (self.action & 0xffff & !CGROUP) as u16
    }

    /// Whether it has a category: its bit of `BLK_TC_*`.
    pub fn has(&self, category: u64) -> bool {
        self.action & category << 16 != 0
    }

    /// The action with its categories, without the cgroup flag.
    pub fn kind(&self) -> u64 {
        self.action & !CGROUP
    }
}

/// Why a file ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What stands there is no record.
    Magic(u32),
    /// A record of a version that is not known.
    Version(u8),
    /// A record of another CPU, which is left out.
    Cpu(u32),
    /// The file ends within a record.
    Cut,
}

/// One per-CPU file.
#[derive(Debug)]
pub struct Stream {
    file: File,
    /// Which of the traces it belongs to.
    pub trace: usize,
    /// By its name.
    pub cpu: u32,
    /// Of the other byte order; `None` until its first record.
    swapped: Option<bool>,
    buffer: Vec<u8>,
    /// Bytes of the buffer that hold data, and those of them that have been taken.
    filled: usize,
    taken: usize,
    batch: Vec<Record>,
    next: usize,
    ended: bool,
}

/// What a trace's reader is told of while records are read ahead.
pub trait Ahead {
    /// A record about the trace itself that is not a message, with its payload.
    fn notify(&mut self, record: &Record, pdu: &[u8]);
    /// Something is wrong with a stream; the rest of it is not used, but for [`Fault::Cpu`].
    fn fault(&mut self, stream: usize, fault: Fault);
}

impl Stream {
    /// Of a file of this trace and CPU.
    pub fn new(file: File, trace: usize, cpu: u32) -> Stream {
        Stream {
            file,
            trace,
            cpu,
            swapped: None,
            buffer: Vec::new(),
            filled: 0,
            taken: 0,
            batch: Vec::new(),
            next: 0,
            ended: false,
        }
    }

    /// The payload of a record of the batch.
    fn pdu(&self, record: &Record) -> &[u8] {
        &self.buffer[record.pdu..record.pdu + usize::from(record.pdu_len)]
    }

    /// Sees to it that `len` bytes from `taken` on are there. False at the end of the file.
    #[cold]
    fn want(&mut self, len: usize) -> io::Result<bool> {
        while self.filled - self.taken < len {
            if self.buffer.len() - self.filled < len {
                self.buffer.resize((self.buffer.len() * 2).max(1 << 16), 0);
            }
            let read = match self.file.read(&mut self.buffer[self.filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return Ok(false);
            }
            self.filled += read;
        }
        Ok(true)
    }

    /// The bytes that are there from `taken` on, if there are so many.
    #[inline(always)]
    fn there<const N: usize>(&self) -> Option<&[u8; N]> {
        self.buffer[..self.filled].get(self.taken..)?.first_chunk()
    }

    /// The record at `taken`, and the length of its header. Nothing if it is not all there, but for its payload.
    #[inline(always)]
    fn decode(&mut self) -> Result<Option<(Record, usize)>, Fault> {
        let Some(head) = self.there::<V1_LEN>() else {
            return Ok(None);
        };
        let magic = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let swapped = match self.swapped {
            Some(swapped) => swapped,
            None => magic & !0xff != MAGIC && magic.swap_bytes() & !0xff == MAGIC,
        };
        let magic = if swapped { magic.swap_bytes() } else { magic };
        if magic & !0xff != MAGIC {
            return Err(Fault::Magic(magic));
        }
        let record = match (magic as u8, swapped) {
            (7, false) => (v1::<false>(head), V1_LEN),
            (7, true) => (v1::<true>(head), V1_LEN),
            (8, _) => match self.there::<V2_LEN>() {
                Some(head) if swapped => (v2::<true>(head), V2_LEN),
                Some(head) => (v2::<false>(head), V2_LEN),
                None => return Ok(None),
            },
            (version, _) => return Err(Fault::Version(version)),
        };
        self.swapped = Some(swapped);
        Ok(Some(record))
    }

    /// Reads the next batch, of `most` records. False if there is none.
    fn prime(&mut self, own: usize, most: usize, ahead: &mut impl Ahead) -> io::Result<bool> {
        self.batch.clear();
        self.next = 0;
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        while !self.ended && self.batch.len() < most {
            let fault = match self.decode() {
                Ok(Some((mut record, len))) => {
                    let all = len + usize::from(record.pdu_len);
                    if self.filled - self.taken >= all || self.want(all)? {
                        record.pdu = self.taken + len;
                        self.taken += all;
                        if record.cpu != self.cpu {
                            ahead.fault(own, Fault::Cpu(record.cpu));
                        } else if record.action & NOTIFY != 0 && record.kind() != MESSAGE {
                            ahead.notify(&record, self.pdu(&record));
                        } else {
                            self.batch.push(record);
                        }
                        continue;
                    }
                    Some(Fault::Cut)
                }
                // A header's length is not known before its beginning is there.
                Ok(None) => {
                    let left = self.filled - self.taken;
                    let more = if left < V1_LEN { V1_LEN } else { V2_LEN };
                    if self.want(more)? {
                        continue;
                    }
                    (self.filled > self.taken).then_some(Fault::Cut)
                }
                Err(fault) => Some(fault),
            };
            if let Some(fault) = fault {
                ahead.fault(own, fault);
            }
            self.ended = true;
        }
        Ok(!self.batch.is_empty())
    }
}

/// Fields of a header, each at its place; `SWAP`: of the other byte order.
struct Head<'a, const N: usize, const SWAP: bool>(&'a [u8; N]);

impl<const N: usize, const SWAP: bool> Head<'_, N, SWAP> {
    #[inline(always)]
    fn u16(&self, at: usize) -> u16 {
        let value = u16::from_ne_bytes([self.0[at], self.0[at + 1]]);
        if SWAP {
            value.swap_bytes()
        } else {
            value
        }
    }

    #[inline(always)]
    fn u32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        let value = u32::from_ne_bytes(bytes);
        if SWAP {
            value.swap_bytes()
        } else {
            value
        }
    }

    #[inline(always)]
    fn u64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        let value = u64::from_ne_bytes(bytes);
        if SWAP {
            value.swap_bytes()
        } else {
            value
        }
    }
}

/// `struct blk_io_trace`.
#[inline(always)]
fn v1<const SWAP: bool>(bytes: &[u8; V1_LEN]) -> Record {
    let head = Head::<V1_LEN, SWAP>(bytes);
    Record {
        sequence: head.u32(4),
        time: head.u64(8),
        sector: head.u64(16),
        bytes: head.u32(24),
        action: head.u32(28).into(),
        pid: head.u32(32),
        device: head.u32(36),
        cpu: head.u32(40),
        error: head.u16(44),
        pdu_len: head.u16(46),
        pdu: 0,
    }
}

/// `struct blk_io_trace2`.
#[inline(always)]
fn v2<const SWAP: bool>(bytes: &[u8; V2_LEN]) -> Record {
    let head = Head::<V2_LEN, SWAP>(bytes);
    Record {
        sequence: head.u32(4),
        time: head.u64(8),
        sector: head.u64(16),
        bytes: head.u32(24),
        pid: head.u32(28),
        action: head.u64(32),
        device: head.u32(40),
        cpu: head.u32(44),
        error: head.u16(48),
        pdu_len: head.u16(50),
        pdu: 0,
    }
}

/// All streams, merged by time in blkparse's order: of equal times, the one that is being read goes on, and of the
/// others the one that came to that time last goes first.
#[derive(Debug)]
pub struct Merge {
    streams: Vec<Stream>,
    /// The stream whose record is next, and that record's time.
    head: Option<(u64, usize)>,
    /// The others, the latest first: the next one is the last.
    rest: Vec<(u64, usize)>,
    batch: usize,
}

impl Merge {
    /// Over no stream yet. As many records of each are read ahead as `batch` says.
    pub fn new(batch: usize) -> Merge {
        Merge {
            streams: Vec::new(),
            head: None,
            rest: Vec::new(),
            batch,
        }
    }

    /// Takes in a stream.
    ///
    /// # Errors
    ///
    /// If its file cannot be read.
    pub fn add(&mut self, mut stream: Stream, ahead: &mut impl Ahead) -> io::Result<()> {
        let own = self.streams.len();
        let any = stream.prime(own, self.batch, ahead)?;
        let time = stream.batch.first().map_or(0, |record| record.time);
        self.streams.push(stream);
        if !any {
            return Ok(());
        }
        match self.head {
            None => self.head = Some((time, own)),
            Some(head) if time < head.0 => {
                self.rest.push(head);
                self.head = Some((time, own));
            }
            Some(_) => self.insert(time, own),
        }
        Ok(())
    }

    fn insert(&mut self, time: u64, stream: usize) {
        let at = self.rest.partition_point(|other| other.0 >= time);
        self.rest.insert(at, (time, stream));
    }

    /// The streams, in the order in which they were given.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// The next record with its stream and its payload; not taken yet.
    #[inline]
    pub fn peek(&self) -> Option<(&Record, &Stream, &[u8])> {
        let (_, stream) = self.head?;
        let stream = &self.streams[stream];
        let record = stream.batch.get(stream.next)?;
        Some((record, stream, stream.pdu(record)))
    }

    /// Takes it.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    #[inline]
    pub fn take(&mut self, ahead: &mut impl Ahead) -> io::Result<()> {
        let Some((_, own)) = self.head else {
            return Ok(());
        };
        let stream = &mut self.streams[own];
        stream.next += 1;
        if stream.next == stream.batch.len() && !stream.prime(own, self.batch, ahead)? {
            self.head = self.rest.pop();
            return Ok(());
        }
        let time = stream.batch[stream.next].time;
        match self.rest.last() {
            Some(next) if time > next.0 => {
                self.head = self.rest.pop();
                self.insert(time, own);
            }
            _ => self.head = Some((time, own)),
        }
        Ok(())
    }
}

/// An error of the system, with what it is of.
pub(crate) fn named(path: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The per-CPU files of a trace `X`, ascending: holes in the numbering and empty files included.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn files(base: &std::path::Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let name = base.file_name().unwrap_or_default();
    let mut prefix = name.to_os_string();
    prefix.push(".blktrace.");
    let dir = match base.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => std::path::Path::new("."),
    };
    let mut found = Vec::new();
    let said = |error| named(dir, &error);
    for entry in std::fs::read_dir(dir).map_err(said)? {
        let entry = entry?.file_name();
        let number = entry
            .as_encoded_bytes()
            .strip_prefix(prefix.as_encoded_bytes());
        let number = number.and_then(|number| std::str::from_utf8(number).ok());
        if let Some(cpu) = number.and_then(|number| number.parse().ok()) {
            let plain = base
                .parent()
                .map_or(entry.clone().into(), |dir| dir.join(&entry));
            found.push((cpu, plain));
        }
    }
    found.sort();
    Ok(found)
}
