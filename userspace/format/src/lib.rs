// SPDX-License-Identifier: GPL-2.0
//! File and record formats: blkrelay's (`.blkr`) and the kernel's blktrace.
//!
//! Here is only what the bytes are: layouts, checks, iteration, writing. What they mean together (time,
//! order, requests) is the business of `blkrelay-trace`. Nothing here trusts its input: every way in
//! which bytes can be wrong is a variant of [`Error`].
//!
//! The layouts come from `module/blkrelay.h` through bindgen, so they cannot differ from the module's.
//!
//! ```
//! use blkrelay_format::{Chunks, ChunkType, Meta, Slot, Subbuf, Writer, FORMAT_VERSION};
//!
//! let meta = Meta { format: FORMAT_VERSION, ..Meta::default() };
//! let file = Writer::new(Vec::new(), &meta)?.finish(&Default::default())?;
//! for chunk in Chunks::new(&file)? {
//!     let chunk = chunk?;
//!     if chunk.kind() == ChunkType::Subbuf {
//!         for slot in Subbuf::parse(chunk.verify()?)?.slots() {
//!             if let Slot::Event(action, record) = slot? {
//!                 println!("{} at {:?}", action.name(), record.sector());
//!             }
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod abi;
pub mod blktrace;
mod builder;
mod error;
mod file;
mod meta;
mod record;
mod status;
mod subbuf;
mod writer;

pub use builder::SubbufBuilder;
pub use error::{printable, Error};
pub use file::{
    check_magic, chunk_len, read_index, read_meta, Chunk, ChunkHead, ChunkType, Chunks, IndexEntry,
    CHUNK_HEAD, FILE_MAGIC,
};
pub use meta::{
    parse_devices, CpuCounters, Disk, End, Kernel, Meta, Options, Partition, Trailer,
    FORMAT_VERSION,
};
pub use record::{
    c_array, c_bytes, Action, Detail, Device, Record, RemapFrom, Slot, Slots, Stop, Task, Times,
    SLOT,
};
pub use status::{CpuStatus, Status};
pub use subbuf::{Clock, Header, Subbuf, SUBBUF_MAGIC};
pub use writer::{Appended, WriteError, Writer};
