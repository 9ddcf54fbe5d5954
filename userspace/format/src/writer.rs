// SPDX-License-Identifier: GPL-2.0
//! Trace files (`.blkr`): writing.

use crate::file::{chunk_len, ChunkHead, ChunkType, IndexEntry, CHUNK_HEAD, FILE_MAGIC};
use crate::{abi, Error, Meta, Subbuf, Trailer};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, Write};
use thiserror::Error as ThisError;
use twox_hash::XxHash3_64;
use zerocopy::IntoBytes;

/// Sub-buffers that go into one `writev`. Three slices each stay well below IOV_MAX.
const BATCH: usize = 64;

/// Why sub-buffers could not be appended.
#[derive(Debug, ThisError)]
pub enum WriteError {
    /// What was to be appended is not a sequence of whole sub-buffers.
    #[error("the module handed out a bad sub-buffer: {0}")]
    Subbuf(#[from] Error),
    /// The output failed. [`Writer::len`] tells how much of the file is good.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What [`Writer::subbufs`] appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Sub-buffers.
    pub subbufs: u64,
    /// Events in them.
    pub events: u64,
}

/// Appends chunks to a file.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Bytes of whole chunks written so far.
    len: u64,
    index: Vec<IndexEntry>,
    /// Events before the first sub-buffer of each CPU, by its header.
    before: BTreeMap<u32, u64>,
}

fn head(kind: ChunkType, cpu: u32, payload: &[u8]) -> Result<ChunkHead, io::Error> {
    let stored = u32::try_from(payload.len())
        .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "a chunk of 4 GiB or more"))?;
    Ok(ChunkHead {
        magic: abi::BLKRELAY_CHUNK_MAGIC,
        type_: kind.code(),
        flags: 0,
        stored,
        length: stored,
        cpu,
        reserved: 0,
        checksum: XxHash3_64::oneshot(payload),
    })
}

/// Like `Write::write_all`, of several slices. On an error `written` tells how many bytes went out.
fn write_all<W: Write>(
    out: &mut W,
    mut slices: &mut [IoSlice<'_>],
    written: &mut usize,
) -> io::Result<()> {
    // An empty slice in front would be written for ever.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match out.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                *written += n;
                IoSlice::advance_slices(&mut slices, n);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl<W: Write> Writer<W> {
    /// Writes the file's magic and META.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn new(out: W, meta: &Meta) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            out,
            len: 0,
            index: Vec::new(),
            before: BTreeMap::new(),
        };
        writer.out.write_all(&FILE_MAGIC)?;
        writer.len = FILE_MAGIC.len() as u64;
        writer.chunk(ChunkType::Meta, 0, &serde_json::to_vec(meta)?)?;
        Ok(writer)
    }

    /// Bytes of whole chunks so far. After a failed call, cutting the file to this length leaves it
    /// readable.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where each sub-buffer stands.
    pub fn index(&self) -> &[IndexEntry] {
        &self.index
    }

    /// Events that a CPU wrote before its first sub-buffer here: more than 0 if that is not its first, as of a
    /// flight recorder. `None` if it has no sub-buffer here.
    pub fn events_before(&self, cpu: u32) -> Option<u64> {
        self.before.get(&cpu).copied()
    }

    /// The output.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// The output, for example to cut it to [`Writer::len`].
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Appends one chunk of any type.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn chunk(&mut self, kind: ChunkType, cpu: u32, payload: &[u8]) -> io::Result<()> {
        let head = head(kind, cpu, payload)?;
        let len = chunk_len(payload.len());
        let padding = &[0; 8][..len - CHUNK_HEAD - payload.len()];
        let mut slices = [
            IoSlice::new(head.as_bytes()),
            IoSlice::new(payload),
            IoSlice::new(padding),
        ];
        write_all(&mut self.out, &mut slices, &mut 0)?;
        self.len += len as u64;
        Ok(())
    }

    /// Appends sub-buffers as one or several `read()`s of data files returned them, end to end.
    ///
    /// # Errors
    ///
    /// [`WriteError::Subbuf`] before anything of a batch is written; [`WriteError::Io`] when the output
    /// fails: then those sub-buffers count as appended which lie whole in the file, and `appended` tells
    /// how many these are.
    pub fn subbufs(&mut self, mut bytes: &[u8], appended: &mut Appended) -> Result<(), WriteError> {
        let mut heads = [ChunkHead::default(); BATCH];
        while !bytes.is_empty() {
            let mut entries = [IndexEntry::default(); BATCH];
            let mut bodies: [&[u8]; BATCH] = [&[]; BATCH];
            let mut count = 0;
            let mut offset = self.len;
            while count < BATCH && !bytes.is_empty() {
                let subbuf = Subbuf::parse(bytes)?;
                let (body, rest) = bytes.split_at(subbuf.header.used as usize);
                self.before
                    .entry(subbuf.header.cpu)
                    .or_insert(subbuf.header.events);
                heads[count] = head(ChunkType::Subbuf, subbuf.header.cpu, body)?;
                entries[count] = IndexEntry {
                    offset,
                    seq: subbuf.header.seq,
                    first: subbuf.first(),
                    cpu: subbuf.header.cpu,
                    count: subbuf.header.count,
                };
                bodies[count] = body;
                offset += chunk_len(body.len()) as u64;
                bytes = rest;
                count += 1;
            }
            // `used` is a multiple of 8, so that no padding is due.
            let mut slices = [IoSlice::new(&[]); 2 * BATCH];
            for (pair, (head, body)) in slices
                .chunks_exact_mut(2)
                .zip(heads.iter().zip(&bodies))
                .take(count)
            {
                pair[0] = IoSlice::new(head.as_bytes());
                pair[1] = IoSlice::new(body);
            }
            let mut written = 0;
            let result = write_all(&mut self.out, &mut slices[..2 * count], &mut written);
            let end = self.len + written as u64;
            for (entry, body) in entries.iter().zip(&bodies).take(count) {
                let next = entry.offset + chunk_len(body.len()) as u64;
                if next > end {
                    break;
                }
                self.len = next;
                self.index.push(*entry);
                appended.subbufs += 1;
                appended.events += u64::from(entry.count);
            }
            result?;
        }
        Ok(())
    }

    /// Ends the file: TRAILER and INDEX.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn finish(mut self, trailer: &Trailer) -> io::Result<W> {
        self.chunk(ChunkType::Trailer, 0, &serde_json::to_vec(trailer)?)?;
        let index = std::mem::take(&mut self.index);
        self.chunk(ChunkType::Index, 0, index.as_slice().as_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}
