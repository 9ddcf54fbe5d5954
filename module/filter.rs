// SPDX-License-Identifier: GPL-2.0

//! What is recorded.
//!
//! Two questions are asked of an event. The first is asked of each: is its queue traced? One bit for
//! each queue id answers it ([`Filter`]). That bitmap is also the gate: all zero means that no probe
//! records. So it is before start has registered the last probe, and so stop makes it again before it
//! unregisters the first.
//!
//! The second ([`Set`]) is asked only while there is something to ask, because it stands behind a
//! static key: of the operation, the place, the size. (The cgroup is asked where the bio is at hand,
//! in `stream.rs`.) A set never changes once it has been published; how it is replaced while a trace
//! runs stands in `channel.rs`.
//!
//! Nothing here has kernel types, allocates or can panic, so a test on the host runs the very code
//! that the kernel runs. Rust's own atomics stand here and not the kernel's: those are two calls into
//! C for each event on a kernel that gcc built, while these are the one load that `READ_ONCE()` is.

use super::{
    abi, config,
    record::{
        self,
        Kind, //
    },
};
use core::sync::atomic::{
    AtomicUsize,
    Ordering, //
};

/// Queue ids that a record can carry.
pub(crate) const QUEUES: usize = 1 << 16;

const WORDS: usize = QUEUES / usize::BITS as usize;

/// A set of queue ids, ready to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection<'a> {
    /// Every queue, and those that appear later.
    All,
    /// The queues of these places.
    Queues(&'a [Place]),
}

/// A disk or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// `request_queue.id`.
    pub(crate) queue: u16,
    /// First and last sector on the whole disk; `None` for all of it.
    pub(crate) part: Option<(u64, u64)>,
}

/// A bitmap of queue ids.
pub(crate) struct Filter([AtomicUsize; WORDS]);

/// The filter that every probe asks. In `.bss`: a closed gate.
pub(crate) static FILTER: Filter = Filter::closed();

impl Filter {
    /// A filter that lets nothing through.
    pub(crate) const fn closed() -> Self {
        Self([const { AtomicUsize::new(0) }; WORDS])
    }

    /// Whether events of this queue are recorded.
    ///
    /// Takes `request_queue.id` as it is. `None` stands for a queue that is not traced; an id that
    /// a record cannot carry is never traced. The load acquires: who sees the open gate sees the
    /// channel behind it.
    #[inline(always)]
    pub(crate) fn admit(&self, id: i32) -> Option<u16> {
        let id = id as u32;
        let word = self.0.get((id / usize::BITS) as usize)?;

        if word.load(Ordering::Acquire) >> (id % usize::BITS) & 1 == 0 {
            return None;
        }
        Some(id as u16)
    }

    /// Lets the selected queues through, in addition to those that pass already.
    pub(crate) fn open(&self, selection: Selection<'_>) {
        match selection {
            Selection::All => {
                for word in &self.0 {
                    word.store(usize::MAX, Ordering::Release);
                }
            }
            Selection::Queues(places) => {
                for place in places {
                    let id = u32::from(place.queue);

                    if let Some(word) = self.0.get((id / usize::BITS) as usize) {
                        word.fetch_or(1 << (id % usize::BITS), Ordering::Release);
                    }
                }
            }
        }
    }

    /// Lets only the selected queues through, of those that pass already. A probe that has passed
    /// already still records.
    pub(crate) fn narrow(&self, selection: Selection<'_>) {
        let Selection::Queues(places) = selection else {
            return;
        };

        for (index, word) in self.0.iter().enumerate() {
            let mut keep = 0;

            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for place in places {
                let id = u32::from(place.queue);

                if (id / usize::BITS) as usize == index {
                    keep |= 1usize.wrapping_shl(id % usize::BITS);
                }
            }
            word.fetch_and(keep, Ordering::Relaxed);
        }
    }

    /// Lets nothing through. A probe that has passed already still records.
    pub(crate) fn close(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// All that is asked of an event's record but for its cgroup. `places` decides of which devices, and
/// is asked as well: while a set replaces another, the bitmap lets through what either wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set<'a> {
    /// Of which devices.
    pub(crate) selection: Selection<'a>,
    /// `config::OP_*`, or 0 for all.
    pub(crate) ops: u32,
    /// First and last sector.
    pub(crate) sectors: Option<(u64, u64)>,
    /// Fewest and most bytes.
    pub(crate) sizes: Option<(u32, u32)>,
}

/// The operations that an event counts as. Several: a write that asks for a flush first is both.
fn ops(opf: u32) -> u32 {
    let op = match opf & 0xff {
        0 => config::OP_READ,
        1 => config::OP_WRITE,
        2 => config::OP_FLUSH,
        3 => config::OP_DISCARD,
        5 => config::OP_SECURE_ERASE,
        7 => config::OP_ZONE_APPEND,
        9 => config::OP_WRITE_ZEROES,
        11 | 13 | 15 | 17 | 19 => config::OP_ZONE,
        34 | 35 => config::OP_PASSTHROUGH,
        _ => 0,
    };

    if opf & REQ_PREFLUSH != 0 {
        op | config::OP_FLUSH
    } else {
        op
    }
}

/// `REQ_PREFLUSH` (`include/linux/blk_types.h`); `layout.rs` compares it with the kernel's.
pub(crate) const REQ_PREFLUSH: u32 = 1 << 18;

/// Whether `bytes` bytes from `sector` on touch the sectors `first` to `last`.
fn overlaps(sector: u64, bytes: u32, (first, last): (u64, u64)) -> bool {
    let end = sector.saturating_add(u64::from(bytes).div_ceil(512).max(1));

    sector <= last && end > first
}

impl Set<'_> {
    /// Whether there is nothing to ask that the bitmap does not answer.
    pub(crate) fn is_bitmap(&self) -> bool {
        let whole = match self.selection {
            Selection::All => true,
            Selection::Queues(places) => places.iter().all(|place| place.part.is_none()),
        };

        whole && self.ops == 0 && self.sectors.is_none() && self.sizes.is_none()
    }

    /// Whether an event with these words passes.
    ///
    /// An event that does not carry what is asked for does not pass: plugs and tag waits have no
    /// operation, place or size, and a flush touches no sector. Part of a disk is an exception: a
    /// flush is one of the whole disk, so it passes with each part.
    pub(crate) fn pass(&self, place: u64, size_op: u64, id_who: u64) -> bool {
        let queue = (place >> abi::BLKRELAY_SECTOR_BITS) as u16;
        let sector = place & abi::BLKRELAY_SECTOR_MASK;
        let (bytes, opf) = record::unpair(size_op);
        let kind = record::kind(record::action(id_who));
        let queue_event = kind == Kind::Queue;
        let (bytes, ops) = match record::action(id_who) {
            // Their sizes are counts, and W's operation is none.
            abi::BLKRELAY_P | abi::BLKRELAY_U | abi::BLKRELAY_T | abi::BLKRELAY_W => (0, 0),
            _ if queue_event => (bytes, 0),
            _ => (bytes, ops(opf)),
        };
        let nowhere =
            sector == abi::BLKRELAY_SECTOR_NONE || bytes == 0 && ops & config::OP_FLUSH != 0;

        let here = match self.selection {
            Selection::All => true,
            Selection::Queues(places) => places.iter().any(|place| {
                place.queue == queue
                    && match place.part {
                        None => true,
                        Some(_) if nowhere => ops & config::OP_FLUSH != 0,
                        Some(part) => overlaps(sector, bytes, part),
                    }
            }),
        };

        here && (self.ops == 0 || self.ops & ops != 0)
            && self
                .sectors
                .is_none_or(|range| !nowhere && overlaps(sector, bytes, range))
            && self.sizes.is_none_or(|(min, max)| {
                !(queue_event && bytes == 0) && (min..=max).contains(&bytes)
            })
    }
}
