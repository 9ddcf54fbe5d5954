// SPDX-License-Identifier: GPL-2.0
//! Every way in which a trace can be broken.

use thiserror::Error;

/// Text that stands in a file, for a terminal: what could steer that comes out as `?`.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Why bytes are not (the rest of) a trace. Offsets are bytes from the start of what was parsed: of the
/// file for chunks, of the sub-buffer for records.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A file of no bytes.
    #[error("the file is empty")]
    Empty,
    /// The file does not begin with [`FILE_MAGIC`](crate::FILE_MAGIC).
    #[error("not a blkrelay trace: it does not begin with \"BLKRELAY\"")]
    NotATrace,
    /// Written on a machine of the other byte order.
    #[error("the trace has the other byte order (it comes from a machine unlike this one), which is not supported")]
    ForeignEndian,
    /// A later version of the format than this reader knows.
    #[error("the trace has format version {found}; this reader knows versions up to {known}: use a newer blkrelay")]
    NewerVersion {
        /// The version in the file.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The file ends inside a chunk.
    #[error(
        "cut short: the chunk at byte {offset} needs {needed} bytes, the file has {have} left"
    )]
    Truncated {
        /// Start of the chunk.
        offset: u64,
        /// Its length with head and padding.
        needed: u64,
        /// What is left of the file.
        have: u64,
    },
    /// No chunk begins where one must.
    #[error("no chunk at byte {offset}: damaged or overwritten")]
    BadChunk {
        /// Where a chunk was due.
        offset: u64,
    },
    /// A chunk's payload does not have the checksum in its head.
    #[error("the chunk at byte {offset} has checksum {found:016x}, its head says {expected:016x}")]
    Checksum {
        /// Start of the chunk.
        offset: u64,
        /// From the head.
        expected: u64,
        /// Of the payload.
        found: u64,
    },
    /// A chunk uses a flag that this reader cannot undo.
    #[error("the chunk at byte {offset} has flags {flags:#x}, which this reader does not know")]
    UnknownFlags {
        /// Start of the chunk.
        offset: u64,
        /// All of its flags.
        flags: u16,
    },
    /// META is missing or not first.
    #[error("no META chunk at the start")]
    NoMeta,
    /// META, DEVICES or TRAILER is not the JSON that it should be.
    #[error("the {what} chunk is not valid: {why}")]
    BadJson {
        /// `META`, `DEVICES` or `TRAILER`.
        what: &'static str,
        /// The parser's words.
        why: String,
    },
    /// The INDEX chunk is not a whole number of entries.
    #[error("the INDEX chunk has {0} bytes, not a multiple of 32")]
    BadIndex(usize),
    /// Too few bytes for a sub-buffer's header.
    #[error("a sub-buffer of {0} bytes has no room for its header")]
    ShortSubbuf(usize),
    /// A sub-buffer does not begin with its magic.
    #[error("sub-buffer magic is {0:#010x}, not {expected:#010x}", expected = crate::SUBBUF_MAGIC)]
    SubbufMagic(u32),
    /// A header field of a sub-buffer has a value that it cannot have.
    #[error("sub-buffer header: {field} is {value}")]
    SubbufField {
        /// The field of `struct blkrelay_subbuf`.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A slot with action code 0, which is no event and no side record.
    #[error("slot {slot}: no such action: {action}")]
    UnknownAction {
        /// Number of the slot in its sub-buffer, from 0.
        slot: usize,
        /// The code.
        action: u8,
    },
    /// A side record that says it has no slots or more than are left.
    #[error("slot {slot}: side record {code:#04x} claims {slots} slots, {left} are left")]
    SideLength {
        /// Number of the slot in its sub-buffer, from 0.
        slot: usize,
        /// The side record's code.
        code: u8,
        /// What it claims.
        slots: usize,
        /// What there is.
        left: usize,
    },
    /// A sub-buffer's header counts other events than the sub-buffer holds.
    #[error("the header counts {header} events, the sub-buffer holds {found}")]
    Count {
        /// From the header.
        header: u32,
        /// Counted.
        found: u32,
    },
    /// blktrace: a record does not begin with blktrace's magic.
    #[error("byte {offset}: bad blktrace magic {magic:#010x}")]
    BlktraceMagic {
        /// Start of the record.
        offset: usize,
        /// What stands there.
        magic: u32,
    },
    /// blktrace: a version of the record that is neither 7 nor 8.
    #[error("byte {offset}: blktrace record version {version} (known: 7 and 8)")]
    BlktraceVersion {
        /// Start of the record.
        offset: usize,
        /// The version.
        version: u8,
    },
    /// blktrace: the bytes end inside a record or its payload.
    #[error("byte {offset}: the blktrace record is cut short: {needed} bytes needed, {have} left")]
    BlktraceTruncated {
        /// Start of the record.
        offset: usize,
        /// Header and payload.
        needed: usize,
        /// What is left.
        have: usize,
    },
}
