// SPDX-License-Identifier: GPL-2.0

//! When each I/O that is under way began, for the flight recorder's latency trigger.
//!
//! A direct-mapped table, one word an entry, so that two I/Os that meet in one entry cannot mix: the
//! later one takes it, and the earlier one is not timed. A word holds 40 bits of time and the 24 bits
//! of the owner's address that its place does not tell. Two addresses that differ by no multiple of
//! 16 TiB are never taken for each other.
//!
//! Who begins or ends an I/O owns it, so nobody else touches its entry but by such a meeting. An end that races with
//! one may wipe out the stamp of the other, which is then not timed either.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};

/// Entries, as a power of two.
const ENTRIES_BITS: u32 = 16;

/// Bits of the owner's mixed address in an entry.
const OWNER_BITS: u32 = 24;

const KEY_MASK: u64 = (1 << (ENTRIES_BITS + OWNER_BITS)) - 1;
const OWNER_MASK: u64 = (1 << OWNER_BITS) - 1;

/// Requests and bios stand on multiples of this power of two.
const ALIGN_BITS: u32 = 4;

/// Time is kept in units of this power of two of clock ticks, 64. It wraps after 2^46 ticks: hours.
const TICK_BITS: u32 = 6;

const TIME_MASK: u64 = (1 << (u64::BITS - OWNER_BITS)) - 1;

/// Odd, so that multiplying by it is a bijection of the keys: neighbours come far apart, and no two
/// keys become one.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where an owner's entry is, and what tells it from others that would be there.
fn locate(owner: usize) -> (usize, u64) {
    let key = (owner as u64 >> ALIGN_BITS) & KEY_MASK;
    let mixed = key.wrapping_mul(MIX) & KEY_MASK;

    ((mixed >> OWNER_BITS) as usize, mixed & OWNER_MASK)
}

/// When `owner`'s I/O begins: its entry is written over.
pub(crate) fn begin(table: &[AtomicU64], owner: usize, now: u64) {
    let (index, owner) = locate(owner);

    if let Some(entry) = table.get(index) {
        let time = (now >> TICK_BITS) & TIME_MASK;

        entry.store(time << OWNER_BITS | owner, Ordering::Relaxed);
    }
}

/// How many ticks ago `owner`'s I/O began, to within 64; `None` if that is not known. If
/// `last`, its entry is free afterwards.
pub(crate) fn end(table: &[AtomicU64], owner: usize, now: u64, last: bool) -> Option<u64> {
    let (index, owner) = locate(owner);
    let entry = table.get(index)?;
    let word = entry.load(Ordering::Relaxed);

    if word == 0 || word & OWNER_MASK != owner {
        return None;
    }
    if last {
        entry.store(0, Ordering::Relaxed);
    }
    let took = (now >> TICK_BITS).wrapping_sub(word >> OWNER_BITS) & TIME_MASK;

    // Clocks of two CPUs may be a little apart: it cannot have ended before it began.
    Some(if took > TIME_MASK / 2 {
        0
    } else {
        took << TICK_BITS
    })
}

/// Entries that a table has.
pub(crate) const ENTRIES: usize = 1 << ENTRIES_BITS;
