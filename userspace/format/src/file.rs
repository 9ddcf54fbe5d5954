// SPDX-License-Identifier: GPL-2.0
//! Trace files (`.blkr`): reading the chunks.

use crate::{abi, Error, Meta};
use twox_hash::XxHash3_64;
use zerocopy::FromBytes;

/// The first eight bytes of a trace file.
pub const FILE_MAGIC: [u8; 8] = *b"BLKRELAY";
/// Bytes of a chunk's head.
pub const CHUNK_HEAD: usize = size_of::<ChunkHead>();

/// A chunk's head. See `struct blkrelay_chunk` in `module/blkrelay.h`.
pub type ChunkHead = abi::blkrelay_chunk;
/// Where a sub-buffer stands in the file. See `struct blkrelay_index_entry`.
pub type IndexEntry = abi::blkrelay_index_entry;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkType {
    /// [`Meta`] as JSON.
    Meta,
    /// One sub-buffer.
    Subbuf,
    /// [`Trailer`](crate::Trailer) as JSON.
    Trailer,
    /// [`IndexEntry`] for each sub-buffer.
    Index,
    /// [`Disk`](crate::Disk)s as JSON: they have changed since META or the DEVICES before.
    Devices,
    /// To be skipped.
    Unknown(u16),
}

impl ChunkType {
    /// The code in the file.
    pub fn code(self) -> u16 {
        match self {
            ChunkType::Meta => abi::BLKRELAY_CHUNK_META as u16,
            ChunkType::Subbuf => abi::BLKRELAY_CHUNK_SUBBUF as u16,
            ChunkType::Trailer => abi::BLKRELAY_CHUNK_TRAILER as u16,
            ChunkType::Index => abi::BLKRELAY_CHUNK_INDEX as u16,
            ChunkType::Devices => abi::BLKRELAY_CHUNK_DEVICES as u16,
            ChunkType::Unknown(code) => code,
        }
    }

    /// The type of a code.
    pub fn from_code(code: u16) -> ChunkType {
        match u32::from(code) {
            abi::BLKRELAY_CHUNK_META => ChunkType::Meta,
            abi::BLKRELAY_CHUNK_SUBBUF => ChunkType::Subbuf,
            abi::BLKRELAY_CHUNK_TRAILER => ChunkType::Trailer,
            abi::BLKRELAY_CHUNK_INDEX => ChunkType::Index,
            abi::BLKRELAY_CHUNK_DEVICES => ChunkType::Devices,
            _ => ChunkType::Unknown(code),
        }
    }
}

/// A chunk that lies whole in the file. Its payload is not checked yet: see [`Chunk::verify`].
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Start of its head, bytes from the start of the file.
    pub offset: u64,
    /// Its head.
    pub head: ChunkHead,
    /// The payload as stored.
    pub payload: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// What it holds.
    pub fn kind(&self) -> ChunkType {
        ChunkType::from_code(self.head.type_)
    }

    /// Start of its payload, bytes from the start of the file.
    pub fn payload_offset(&self) -> u64 {
        self.offset + CHUNK_HEAD as u64
    }

    /// The payload, once its checksum is found right.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`]; [`Error::UnknownFlags`] for a payload that is not stored plainly.
    pub fn verify(&self) -> Result<&'a [u8], Error> {
        let found = XxHash3_64::oneshot(self.payload);
        if found != self.head.checksum {
            return Err(Error::Checksum {
                offset: self.offset,
                expected: self.head.checksum,
                found,
            });
        }
        if self.head.flags != 0 {
            return Err(Error::UnknownFlags {
                offset: self.offset,
                flags: self.head.flags,
            });
        }
        Ok(self.payload)
    }
}

/// Bytes that a chunk with this payload takes in the file: head, payload, padding.
pub fn chunk_len(stored: usize) -> usize {
    CHUNK_HEAD + stored.next_multiple_of(8)
}

/// Whether `bytes` begin like a trace file.
///
/// # Errors
///
/// [`Error::Empty`], [`Error::NotATrace`].
pub fn check_magic(bytes: &[u8]) -> Result<(), Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    if !bytes.starts_with(&FILE_MAGIC) {
        return Err(Error::NotATrace);
    }
    Ok(())
}

/// Walks the chunks of a file. After an error it ends, unless [`Chunks::resync`] finds a later chunk.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    file: &'a [u8],
    offset: usize,
    failed: bool,
    /// Bytes that may still be spent on places that only look like a chunk.
    patience: usize,
}

impl<'a> Chunks<'a> {
    /// Over a whole file in memory.
    ///
    /// # Errors
    ///
    /// As [`check_magic`].
    pub fn new(file: &'a [u8]) -> Result<Chunks<'a>, Error> {
        check_magic(file)?;
        Ok(Chunks {
            file,
            offset: FILE_MAGIC.len(),
            failed: false,
            patience: file.len().saturating_mul(8),
        })
    }

    /// Where the next chunk is due, bytes from the start of the file.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    fn at(&self, offset: usize) -> Result<Chunk<'a>, Error> {
        let rest = self.file.get(offset..).unwrap_or_default();
        let start = offset as u64;
        let truncated = |needed: usize| Error::Truncated {
            offset: start,
            needed: needed as u64,
            have: rest.len() as u64,
        };
        let Ok((head, body)) = ChunkHead::read_from_prefix(rest) else {
            return Err(truncated(CHUNK_HEAD));
        };
        if head.magic != abi::BLKRELAY_CHUNK_MAGIC {
            return Err(if head.magic.swap_bytes() == abi::BLKRELAY_CHUNK_MAGIC {
                Error::ForeignEndian
            } else {
                Error::BadChunk { offset: start }
            });
        }
        let plain = u32::from(head.flags) & abi::BLKRELAY_CHUNK_ZSTD == 0;
        if plain && head.length != head.stored {
            return Err(Error::BadChunk { offset: start });
        }
        let stored = head.stored as usize;
        let payload = body
            .get(..stored)
            .ok_or_else(|| truncated(chunk_len(stored)))?;
        Ok(Chunk {
            offset: start,
            head,
            payload,
        })
    }

    /// After an error: finds the next place where a chunk with a right checksum begins. False if there is
    /// none; the walk is then over.
    ///
    /// In all, checksums of eight times the file are tried: damage costs less than one, but a file made of
    /// nothing but heads, each of a chunk up to the end, would take the square of its length.
    pub fn resync(&mut self) -> bool {
        let mut offset = self.offset.saturating_add(8).next_multiple_of(8);
        while let Some(word) = self.file.get(offset..offset.saturating_add(4)) {
            if word == abi::BLKRELAY_CHUNK_MAGIC.to_ne_bytes() {
                if let Ok(chunk) = self.at(offset) {
                    if chunk.verify().is_ok() {
                        self.offset = offset;
                        self.failed = false;
                        return true;
                    }
                    match self.patience.checked_sub(chunk.payload.len()) {
                        Some(left) => self.patience = left,
                        None => break,
                    }
                }
            }
            offset += 8;
        }
        self.offset = self.file.len();
        false
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.offset >= self.file.len() {
            return None;
        }
        let chunk = self.at(self.offset);
        match &chunk {
            // The padding of the last chunk may be missing: nothing reads it.
            Ok(chunk) => self.offset += chunk_len(chunk.payload.len()),
            Err(_) => self.failed = true,
        }
        Some(chunk)
    }
}

/// The META chunk that begins the file.
///
/// # Errors
///
/// As [`check_magic`], [`Chunk::verify`] and [`Meta::parse`]; [`Error::NoMeta`].
pub fn read_meta(file: &[u8]) -> Result<Meta, Error> {
    let first = Chunks::new(file)?.next().ok_or(Error::NoMeta)??;
    if first.kind() != ChunkType::Meta {
        return Err(Error::NoMeta);
    }
    Meta::parse(first.verify()?)
}

/// The entries of an INDEX chunk's payload.
///
/// # Errors
///
/// [`Error::BadIndex`].
pub fn read_index(payload: &[u8]) -> Result<Vec<IndexEntry>, Error> {
    let (entries, rest) = payload.as_chunks::<{ size_of::<IndexEntry>() }>();
    if !rest.is_empty() {
        return Err(Error::BadIndex(payload.len()));
    }
    Ok(entries
        .iter()
        .filter_map(|entry| IndexEntry::read_from_bytes(entry).ok())
        .collect())
}
