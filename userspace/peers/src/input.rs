// SPDX-License-Identifier: GPL-2.0
//! blktrace's per-CPU files, `X.blktrace.N`, as one stream in blkparse's order.
//!
//! Memory is bounded: a batch of records of each file. Definitions: `include/uapi/linux/blktrace_api.h`.

use blkrelay_format::blktrace::{category, Header, HeaderError};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// A task's name (`BLK_TN_PROCESS`).
pub const PROCESS: u64 = category::NOTIFY << 16;
/// The wall clock (`BLK_TN_TIMESTAMP`).
pub const TIMESTAMP: u64 = category::NOTIFY << 16 | 1;
/// Text (`BLK_TN_MESSAGE`).
pub const MESSAGE: u64 = category::NOTIFY << 16 | 2;

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
    batch: Vec<Header>,
    /// Where the payload of each stands in the buffer.
    payloads: Vec<usize>,
    next: usize,
    ended: bool,
}

/// What a trace's reader is told of while records are read ahead.
pub trait Ahead {
    /// A record about the trace itself that is not a message, with its payload.
    /// `swapped`: the payload is of a machine of the other byte order.
    fn notify(&mut self, record: &Header, payload: &[u8], swapped: bool);
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
            payloads: Vec::new(),
            next: 0,
            ended: false,
        }
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

    /// The header at `taken`.
    #[inline(always)]
    fn header(&mut self) -> Result<Header, HeaderError> {
        let bytes = &self.buffer[self.taken..self.filled];
        let swapped = match self.swapped {
            Some(swapped) => swapped,
            None => Header::is_swapped(bytes),
        };
        let header = Header::read(bytes, swapped)?;
        self.swapped = Some(swapped);
        Ok(header)
    }

    /// Reads the next batch, of `most` records. False if there is none.
    fn prime(&mut self, own: usize, most: usize, ahead: &mut impl Ahead) -> io::Result<bool> {
        self.batch.clear();
        self.payloads.clear();
        self.next = 0;
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        while !self.ended && self.batch.len() < most {
            let fault = match self.header() {
                Ok(record) => {
                    let all = record.len() + usize::from(record.pdu_len);
                    if self.filled - self.taken >= all || self.want(all)? {
                        let at = self.taken + record.len();
                        self.taken += all;
                        if record.cpu != self.cpu {
                            ahead.fault(own, Fault::Cpu(record.cpu));
                        } else if record.has(category::NOTIFY) && record.kind() != MESSAGE {
                            let swapped = self.swapped == Some(true);
                            ahead.notify(&record, &self.buffer[at..self.taken], swapped);
                        } else {
                            self.batch.push(record);
                            self.payloads.push(at);
                        }
                        continue;
                    }
                    Some(Fault::Cut)
                }
                Err(HeaderError::Short(len)) => {
                    if self.want(len)? {
                        continue;
                    }
                    (self.filled > self.taken).then_some(Fault::Cut)
                }
                Err(HeaderError::Magic(magic)) => Some(Fault::Magic(magic)),
                Err(HeaderError::Version(version)) => Some(Fault::Version(version)),
            };
            if let Some(fault) = fault {
                ahead.fault(own, fault);
            }
            self.ended = true;
        }
        Ok(!self.batch.is_empty())
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

    /// The next record with its stream and its payload; not taken yet.
    #[inline]
    pub fn peek(&self) -> Option<(&Header, &Stream, &[u8])> {
        let (_, stream) = self.head?;
        let stream = &self.streams[stream];
        let record = stream.batch.get(stream.next)?;
        let at = *stream.payloads.get(stream.next)?;
        let payload = &stream.buffer[at..at + usize::from(record.pdu_len)];
        Some((record, stream, payload))
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
        // As the kernel writes it; no kernel has more CPUs than 16 bits can count.
        let cpu = number.and_then(|number| {
            let cpu: u16 = number.parse().ok()?;
            (cpu.to_string() == number).then_some(cpu.into())
        });
        if let Some(cpu) = cpu {
            let plain = base
                .parent()
                .map_or(entry.clone().into(), |dir| dir.join(&entry));
            found.push((cpu, plain));
        }
    }
    found.sort();
    Ok(found)
}
