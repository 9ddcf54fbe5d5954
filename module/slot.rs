// SPDX-License-Identifier: GPL-2.0

//! A record written where it stays, each field with the width that it has: what the fast path does instead of
//! packing words (`record.rs`) and storing those. The sector's upper bits are written over by the queue's id.
//!
//! For little-endian machines only. No kernel types, so that a test on the host runs the very code that the
//! kernel runs and compares it with the words.

use super::abi;
use core::mem::offset_of;

/// A slot that is being written.
#[derive(Clone, Copy)]
pub(crate) struct Slot(*mut u8);

impl Slot {
    /// # Safety
    ///
    /// `at` is a multiple of 8, and 32 bytes from there may be written to for as long as this is used.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *mut u8) -> Self {
        Self(at)
    }

    /// # Safety
    ///
    /// A `T` at `offset` is within the slot.
    #[inline(always)]
    unsafe fn put<T>(self, offset: usize, value: T) {
        // SAFETY: By the contract, and that of `new`; offsets are multiples of what `T` needs.
        unsafe { self.0.add(offset).cast::<T>().write(value) };
    }

    /// `blkrelay_record.time`.
    #[inline(always)]
    pub(crate) fn time(self, (low, high): (u32, u32)) {
        // SAFETY: A field of a record.
        unsafe {
            self.put(offset_of!(abi::blkrelay_record, time), low);
            self.put(offset_of!(abi::blkrelay_record, time) + 4, high);
        }
    }

    /// `blkrelay_record.place`: of a sector that is all ones for "none", the lower 48 bits.
    #[inline(always)]
    pub(crate) fn place(self, sector: u64, queue: u16) {
        const AT: usize = offset_of!(abi::blkrelay_record, place);

        // SAFETY: A field of a record.
        unsafe {
            self.put(AT, sector);
            self.put(AT + abi::BLKRELAY_SECTOR_BITS as usize / 8, queue);
        }
    }

    /// `blkrelay_record.bytes` and `.opf`.
    #[inline(always)]
    pub(crate) fn size_op(self, bytes: u32, opf: u32) {
        // SAFETY: Fields of a record.
        unsafe {
            self.put(offset_of!(abi::blkrelay_record, bytes), bytes);
            self.put(offset_of!(abi::blkrelay_record, opf), opf);
        }
    }

    /// `blkrelay_record.id`.
    #[inline(always)]
    pub(crate) fn id(self, id: u32) {
        // SAFETY: A field of a record.
        unsafe { self.put(offset_of!(abi::blkrelay_record, id), id) };
    }

    /// `blkrelay_record.id` of a request, as `record::request_id` packs it.
    #[inline(always)]
    pub(crate) fn request_id(self, hctx: u32, internal_tag: i32, tag: i32) {
        self.tag(
            hctx,
            if internal_tag < 0 { tag } else { internal_tag } as u32,
        );
    }

    /// `blkrelay_record.id` of a request, of the tag that it goes by.
    #[inline(always)]
    pub(crate) fn tag(self, hctx: u32, tag: u32) {
        const AT: usize = offset_of!(abi::blkrelay_record, id);

        // SAFETY: A field of a record.
        unsafe {
            self.put(AT, tag as u16);
            self.put(AT + abi::BLKRELAY_ID_HCTX_SHIFT as usize / 8, hctx as u16);
        }
    }

    /// `blkrelay_record.who`.
    #[inline(always)]
    pub(crate) fn who(self, who: u32) {
        // SAFETY: A field of a record.
        unsafe { self.put(offset_of!(abi::blkrelay_record, who), who) };
    }

    /// `blkrelay_record.who` of a completion, as `record::complete_who` packs it.
    #[inline(always)]
    pub(crate) fn complete_who(self, action: u32, status: u8, head: u32) {
        const AT: usize = offset_of!(abi::blkrelay_record, who);

        // SAFETY: A field of a record.
        unsafe {
            self.put(AT, head as u16);
            self.put(AT + abi::BLKRELAY_STATUS_SHIFT as usize / 8, status);
            self.put(AT + abi::BLKRELAY_WHO_SHIFT as usize / 8, action as u8);
        }
    }

    /// `blkrelay_times.queue`.
    #[inline(always)]
    pub(crate) fn queued(self, time: u64) {
        // SAFETY: A field of a side record.
        unsafe { self.put(offset_of!(abi::blkrelay_times, queue), time) };
    }

    /// `blkrelay_times.pid`, and `.who` without flags.
    #[inline(always)]
    pub(crate) fn by(self, pid: u32) {
        // SAFETY: Fields of a side record.
        unsafe {
            self.put(offset_of!(abi::blkrelay_times, pid), pid);
            self.put(
                offset_of!(abi::blkrelay_times, who),
                abi::BLKRELAY_TIMES << abi::BLKRELAY_WHO_SHIFT | 1,
            );
        }
    }

    /// `blkrelay_times.issue` and `.alloc`.
    #[inline(always)]
    pub(crate) fn issued(self, issue: u64, alloc: u64) {
        // SAFETY: Fields of a side record.
        unsafe {
            self.put(offset_of!(abi::blkrelay_times, issue), issue);
            self.put(offset_of!(abi::blkrelay_times, alloc), alloc);
        }
    }

    /// A side record's words.
    #[inline(always)]
    pub(crate) fn words(self, words: [u64; 4]) {
        // SAFETY: The whole slot.
        unsafe { self.put(0, words) };
    }
}
