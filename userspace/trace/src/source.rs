// SPDX-License-Identifier: GPL-2.0
//! A trace file, taken apart into one stream of sub-buffers per CPU.

use crate::clock::ClockMap;
use crate::event::Stop;
use crate::events::Events;
use crate::filter::{Filter, Selected};
use blkrelay_format::{
    check_magic, parse_devices, read_meta, ChunkType, Chunks, Disk, Error, Header, Meta, Slot,
    Slots, Subbuf, Trailer, FILE_MAGIC, SLOT,
};
use memmap2::Mmap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use thiserror::Error as ThisError;

/// Why a trace cannot be used at all.
#[derive(Debug, ThisError)]
pub enum OpenError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// What it holds is not a trace that this reader can use.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Error,
    },
}

/// Something wrong with a trace that is usable all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// There is no TRAILER: the recording was cut short, and what was lost at its end is not known.
    CutShort,
    /// A chunk is damaged; its sub-buffer is left out.
    Chunk(Error),
    /// A sub-buffer that is in the file already; it is left out.
    Duplicate {
        /// Its CPU.
        cpu: u32,
        /// Its number.
        seq: u64,
    },
    /// The trailer does not add up with the sub-buffers of a CPU.
    Counters {
        /// The CPU.
        cpu: u32,
        /// What does not add up.
        what: &'static str,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::CutShort => write!(
                f,
                "the recording was cut short: there is no trailer, so losses at its end are not known"
            ),
            Problem::Chunk(error) => error.fmt(f),
            Problem::Duplicate { cpu, seq } => {
                write!(f, "CPU {cpu}: sub-buffer {seq} is there twice")
            }
            Problem::Counters { cpu, what } => write!(f, "CPU {cpu}: {what}"),
        }
    }
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// A sub-buffer in the file.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) header: Header,
    /// Its records in the file.
    pub(crate) records: Range<usize>,
}

/// All sub-buffers of one CPU, in the order of their numbers.
#[derive(Clone, Debug)]
pub(crate) struct CpuStream {
    pub(crate) cpu: u32,
    pub(crate) pieces: Vec<Piece>,
    /// Events written and lost by the CPU in all, where the trailer tells.
    pub(crate) totals: Option<(u64, u64)>,
    /// Events that a flight recorder wrote before its oldest sub-buffer here, by the trailer.
    pub(crate) written_over: u64,
}

/// A trace file.
#[derive(Debug)]
pub struct Source {
    bytes: Bytes,
    meta: Meta,
    trailer: Option<Trailer>,
    /// Of META, then of each DEVICES chunk.
    disks: Vec<Disk>,
    streams: Vec<CpuStream>,
    problems: Vec<Problem>,
}

/// Opens a trace file.
///
/// # Errors
///
/// If the file cannot be read, is no trace, or is of a version that this reader does not know. A damaged
/// or cut file opens, with [`Source::problems`].
pub fn open(path: &Path) -> Result<Source, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let format = |source| OpenError::Format {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let data = file.metadata().map_err(io)?;
    if data.is_dir() {
        return Err(io(io::ErrorKind::IsADirectory.into()));
    }
    let bytes = if data.is_file() && data.len() > 0 {
        // SAFETY: the map is only read. Another process that writes to the file meanwhile can make bytes
        // change under us: parsing checks each value where it uses it, and copies what it keeps. One that
        // cuts the file makes us die of SIGBUS, as it does every program that maps files.
        Bytes::Mapped(unsafe { Mmap::map(&file) }.map_err(io)?)
    } else {
        // What has no length may have no end either: /dev/zero is refused by its first bytes.
        let mut bytes = Vec::new();
        let start = FILE_MAGIC.len() as u64;
        (&file).take(start).read_to_end(&mut bytes).map_err(io)?;
        check_magic(&bytes).map_err(format)?;
        (&file).read_to_end(&mut bytes).map_err(io)?;
        Bytes::Owned(bytes)
    };
    Source::new(bytes).map_err(format)
}

/// Puts the disks of a later table among those known: in the place of what they were, or as new ones.
fn know(disks: &mut Vec<Disk>, table: Vec<Disk>) {
    for disk in table {
        let key = |disk: &Disk| (disk.major, disk.minor, disk.diskseq);
        match disks.iter_mut().find(|known| key(known) == key(&disk)) {
            Some(known) => *known = disk,
            None => disks.push(disk),
        }
    }
}

impl Source {
    /// A trace held in memory.
    ///
    /// # Errors
    ///
    /// As [`open`], but for those of the system.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Source, Error> {
        Source::new(Bytes::Owned(bytes))
    }

    fn new(bytes: Bytes) -> Result<Source, Error> {
        let meta = read_meta(&bytes)?;
        let mut problems = Vec::new();
        let mut trailer = None;
        let mut disks = meta.devices.clone();
        let mut by_cpu: BTreeMap<u32, BTreeMap<u64, Piece>> = BTreeMap::new();
        let mut chunks = Chunks::new(&bytes)?;
        loop {
            let chunk = match chunks.next() {
                None => break,
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    let cut = matches!(error, Error::Truncated { .. });
                    problems.push(Problem::Chunk(error));
                    // What lies behind a cut is nothing; what lies behind damage can still be good.
                    if !chunks.resync() && cut {
                        break;
                    }
                    continue;
                }
            };
            if !matches!(
                chunk.kind(),
                ChunkType::Subbuf | ChunkType::Trailer | ChunkType::Devices
            ) {
                continue;
            }
            let payload = match chunk.verify() {
                Ok(payload) => payload,
                Err(error) => {
                    problems.push(Problem::Chunk(error));
                    continue;
                }
            };
            if chunk.kind() == ChunkType::Devices {
                match parse_devices(payload) {
                    Ok(table) => know(&mut disks, table),
                    Err(error) => problems.push(Problem::Chunk(error)),
                }
                continue;
            }
            if chunk.kind() == ChunkType::Trailer {
                match Trailer::parse(payload) {
                    Ok(parsed) => trailer = Some(parsed),
                    Err(error) => problems.push(Problem::Chunk(error)),
                }
                continue;
            }
            let header = match Subbuf::parse(payload) {
                Ok(subbuf) => subbuf.header,
                Err(error @ (Error::NewerVersion { .. } | Error::ForeignEndian)) => {
                    return Err(error)
                }
                Err(error) => {
                    problems.push(Problem::Chunk(error));
                    continue;
                }
            };
            let start = chunk.payload_offset() as usize;
            let piece = Piece {
                header,
                records: start + usize::from(header.header_len)..start + header.used as usize,
            };
            let stream = by_cpu.entry(header.cpu).or_default();
            match stream.entry(header.seq) {
                Entry::Vacant(free) => drop(free.insert(piece)),
                Entry::Occupied(_) => problems.push(Problem::Duplicate {
                    cpu: header.cpu,
                    seq: header.seq,
                }),
            }
        }
        if trailer.is_none() {
            problems.push(Problem::CutShort);
        }
        for counters in trailer.iter().flat_map(|trailer| &trailer.cpus) {
            // A CPU that lost all it had has no sub-buffer, but a gap.
            if counters.events > 0 || counters.lost > 0 {
                by_cpu.entry(counters.cpu).or_default();
            }
        }
        let counters = |cpu| {
            let trailer = trailer.as_ref()?;
            trailer.cpus.iter().find(|counters| counters.cpu == cpu)
        };
        let streams: Vec<CpuStream> = by_cpu
            .into_iter()
            .map(|(cpu, pieces)| CpuStream {
                cpu,
                pieces: pieces.into_values().collect(),
                totals: counters(cpu).map(|counters| (counters.events, counters.lost)),
                written_over: counters(cpu).map_or(0, |counters| counters.written_over),
            })
            .collect();
        for stream in &streams {
            let counters = |what| Problem::Counters {
                cpu: stream.cpu,
                what,
            };
            let Some(last) = stream.pieces.last().map(|piece| &piece.header) else {
                continue;
            };
            match stream.totals {
                Some((events, lost)) => {
                    if events < last.events_after() || lost < last.lost {
                        problems.push(counters("the trailer counts less than the sub-buffers"));
                    }
                }
                None if trailer.is_some() => {
                    problems.push(counters("there are sub-buffers, but not in the trailer"));
                }
                None => {}
            }
        }
        Ok(Source {
            bytes,
            meta,
            trailer,
            disks,
            streams,
            problems,
        })
    }

    /// What was traced, where and how.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Exact counters after stop; `None` if the recording was cut short.
    pub fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// All disks that sysfs showed while the trace was recorded, each as it was last seen. One that came back
    /// under its old name is there twice, with two disk sequence numbers.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Where a flight recorder stopped, by CPU; empty if it was not frozen.
    pub fn stops(&self) -> Vec<Stop> {
        let mut clock = self.clock();
        let mut stops = Vec::new();
        for stream in &self.streams {
            for piece in &stream.pieces {
                let records = self.bytes.get(piece.records.clone()).unwrap_or_default();
                // It is the last record of its sub-buffer.
                let last = records.len().saturating_sub(SLOT);
                let Some(Ok(Slot::Stop(stop))) = Slots::new(&records[last..]).next() else {
                    continue;
                };
                stops.push(Stop::new(stream.cpu, piece.header.epoch, &stop, &mut clock));
            }
        }
        stops
    }

    /// What is wrong with the file. Losses that the module counted are no problem of the file: they are
    /// gaps among its [`Events`].
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The CPUs that have a stream, ascending.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.streams.iter().map(|stream| stream.cpu)
    }

    /// Events and gaps of all CPUs, by time.
    pub fn events(&self) -> Events<'_> {
        Events::new(self)
    }

    /// Those of them that a filter selects, and gaps.
    pub fn select(&self, filter: &Filter) -> Selected<'_> {
        Selected::new(self, filter)
    }

    /// The map from the trace's clock to CLOCK_MONOTONIC.
    pub fn clock(&self) -> ClockMap {
        ClockMap::new(self.headers())
    }

    /// When each configuration epoch but the first began, on the CPU that was the first to go over to it:
    /// CLOCK_MONOTONIC, ns; by epoch.
    pub(crate) fn epochs(&self) -> Vec<(u32, u64)> {
        let first = self.headers().map(|header| header.epoch).min();
        let mut began: BTreeMap<u32, u64> = BTreeMap::new();
        for header in self.headers() {
            if Some(header.epoch) != first && header.anchor_ok() {
                let anchor = began.entry(header.epoch).or_insert(header.anchor);
                *anchor = header.anchor.min(*anchor);
            }
        }
        let mut clock = self.clock();
        let ns = |(epoch, anchor)| (epoch, clock.ns(anchor));
        began.into_iter().map(ns).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn streams(&self) -> &[CpuStream] {
        &self.streams
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = &Header> {
        self.streams
            .iter()
            .flat_map(|stream| stream.pieces.iter().map(|piece| &piece.header))
    }
}
