// SPDX-License-Identifier: GPL-2.0

//! The words of a record: how sector, queue, operation, tag, task and status are packed.
//!
//! Pure arithmetic on plain integers, without kernel types and without `unsafe`, so that a test on
//! the host runs the very code that the kernel runs. Layouts and masks come from the contract
//! (`blkrelay.h`), which whoever includes this file provides as the sibling module `abi`.

use super::abi;

/// Bytes of a slot, as an address difference.
pub(crate) const SLOT: usize = abi::BLKRELAY_RECORD_SIZE as usize;

/// Bytes of a sub-buffer's head.
pub(crate) const HEAD: usize = core::mem::size_of::<abi::blkrelay_subbuf>();

// Slots begin right behind the head, each on a multiple of its own size.
const _: () = assert!(HEAD % SLOT == 0);

// Of `include/linux/blk_types.h`; `layout.rs` compares them with the kernel's. They differ in the lowest bit.
pub(crate) const REQ_OP_DRV_IN: u32 = 34;
pub(crate) const REQ_OP_DRV_OUT: u32 = 35;

/// The words of an event that a probe fills in; the time and the pid are added where interrupts are
/// off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// `blkrelay_record.place`: sector and queue.
    pub(crate) place: u64,
    /// `blkrelay_record.bytes` and, in the upper half, `blkrelay_record.opf`.
    pub(crate) size_op: u64,
    /// `blkrelay_record.id` and, in the upper half, `blkrelay_record.who`.
    pub(crate) id_who: u64,
}

/// Packs two neighbouring 32-bit fields, the one at the lower address first.
///
/// The halves change places on a big-endian machine, where the upper half is stored first.
#[inline(always)]
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "big") {
        (first as u64) << 32 | second as u64
    } else {
        (second as u64) << 32 | first as u64
    }
}

/// Packs `blkrelay_record.place`.
///
/// A sector of 48 bits reaches 128 PiB; the block layer's own "no sector", all ones, becomes
/// `BLKRELAY_SECTOR_NONE`. Passthrough requests have that from their allocation on (`blk_mq_alloc_request()`,
/// `blk_rq_init()`), and no completion moves it (`blk_update_request()`).
#[inline(always)]
pub(crate) const fn place(sector: u64, queue: u16) -> u64 {
    sector & abi::BLKRELAY_SECTOR_MASK | (queue as u64) << abi::BLKRELAY_SECTOR_BITS
}

/// Packs `blkrelay_record.id` of a request event.
///
/// `internal_tag` is the scheduler's tag, `tag` the driver's; -1 means that there is none.
#[inline(always)]
pub(crate) const fn request_id(hctx: u32, internal_tag: i32, tag: i32) -> u32 {
    let tag = if internal_tag < 0 { tag } else { internal_tag };

    hctx << abi::BLKRELAY_ID_HCTX_SHIFT | tag as u32 & abi::BLKRELAY_ID_TAG_MASK
}

/// Packs `blkrelay_record.id` of a bio event: bits of the bio's address.
#[inline(always)]
pub(crate) const fn bio_id(bio: usize) -> u32 {
    (bio >> abi::BLKRELAY_ID_BIO_SHIFT) as u32
}

/// Packs `blkrelay_record.who` of an event that carries a pid, which is still 0 here.
#[inline(always)]
pub(crate) const fn who(action: u32) -> u32 {
    action << abi::BLKRELAY_WHO_SHIFT
}

/// Packs `blkrelay_record.who` of a completion: C, BIO_C, ERROR or SPAN. `head` is the id of
/// the request's first bio, or of the bio itself.
#[inline(always)]
pub(crate) const fn complete_who(action: u32, status: u8, head: u32) -> u32 {
    who(action) | (status as u32) << abi::BLKRELAY_STATUS_SHIFT | head & abi::BLKRELAY_HEAD_MASK
}

/// What an event is of: what its tracepoint hands out, and so what its id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A bio.
    Bio,
    /// A request.
    Request,
    /// A request queue: there is no operation, and of all but the zones' no place either.
    Queue,
}

/// What an event with this action is of. A span's is of a request, unless its side record says otherwise.
pub(crate) const fn kind(action: u32) -> Kind {
    match action {
        abi::BLKRELAY_Q
        | abi::BLKRELAY_M
        | abi::BLKRELAY_F
        | abi::BLKRELAY_G
        | abi::BLKRELAY_X
        | abi::BLKRELAY_A
        | abi::BLKRELAY_BIO_C
        | abi::BLKRELAY_ZONE_MGMT => Kind::Bio,
        abi::BLKRELAY_P
        | abi::BLKRELAY_U
        | abi::BLKRELAY_T
        | abi::BLKRELAY_W
        | abi::BLKRELAY_ZONE_PLUG
        | abi::BLKRELAY_ZONE_UNPLUG => Kind::Queue,
        _ => Kind::Request,
    }
}

/// The two 32-bit fields that [`pair`] has packed, the one at the lower address first.
#[inline(always)]
pub(crate) const fn unpair(word: u64) -> (u32, u32) {
    if cfg!(target_endian = "big") {
        ((word >> 32) as u32, word as u32)
    } else {
        (word as u32, (word >> 32) as u32)
    }
}

/// The action of a packed [`Words::id_who`].
#[inline(always)]
pub(crate) const fn action(id_who: u64) -> u32 {
    unpair(id_who).1 >> abi::BLKRELAY_WHO_SHIFT
}

/// The status of a completion's packed [`Words::id_who`].
pub(crate) const fn status(id_who: u64) -> u8 {
    (unpair(id_who).1 >> abi::BLKRELAY_STATUS_SHIFT) as u8
}

/// The words of `blkrelay_detail`.
pub(crate) const fn detail(
    cgroup: u64,
    flags: u16,
    ioprio: u16,
    write_hint: u8,
    partno: u8,
) -> [u64; 4] {
    // As the three fields after `flags` stand in memory.
    let [p0, p1] = ioprio.to_ne_bytes();
    let rest = u32::from_ne_bytes([p0, p1, write_hint, partno]);

    [
        cgroup,
        pair(flags as u32, rest),
        0,
        pair(0, side_who(abi::BLKRELAY_DETAIL, 1)),
    ]
}

/// The last word of the first slot of a side record that takes `slots` slots.
pub(crate) const fn side_who(code: u32, slots: u32) -> u32 {
    code << abi::BLKRELAY_WHO_SHIFT | slots & abi::BLKRELAY_SLOTS_MASK
}
