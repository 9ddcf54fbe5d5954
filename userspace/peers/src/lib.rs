// SPDX-License-Identifier: GPL-2.0
//! What blktrace's own programs print, from the files that they read: for users who have such files, or scripts
//! that read such text.
//!
//! The text is the peer's to the byte, odd as it may be, where the peer is right; where it is not, the difference
//! is listed with the fault that causes it (`docs/reader.md`). Definitions are those of blktrace 1.2.0 and 1.3.0.

pub mod blkparse;
pub mod input;
