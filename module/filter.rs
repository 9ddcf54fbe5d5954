// SPDX-License-Identifier: GPL-2.0

//! What is recorded.
//!
//! Two questions are asked of an event. The first is asked of each: is its queue traced? One byte for
//! each queue id answers it ([`Filter`]): a bit would save memory and cost two instructions more. That map is
//! also the gate: all zero means that no probe records. So it is before start has registered the last probe,
//! and so stop makes it again before it unregisters the first. The fast path (`fast.rs`) does not ask it
//! again for the queue of the event before.
//!
//! The second ([`Asked`], and parts of disks) is asked only while there is something to ask, because it
//! stands behind a static key: of the operation, the place, the size. (The cgroup is asked where the bio
//! is at hand, in `stream.rs`.) What is asked never changes once it has been published; how it is replaced
//! while a trace runs stands in `channel.rs`.
//!
//! Nothing here has kernel types, allocates or can panic, so a test on the host runs the very code
//! that the kernel runs. Rust's own atomics stand here and not the kernel's: those are two calls into
//! C for each event on a kernel that gcc built, while these are the one load that `READ_ONCE()` is.

use super::{
    abi,
    config,
    record::{
        self,
        Kind, //
    }, //
};
use core::sync::atomic::{
    AtomicU8,
    Ordering, //
};

/// Queue ids that a record can carry.
pub(crate) const QUEUES: usize = 1 << 16;

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

/// A map of queue ids: not 0 for those that are traced.
pub(crate) struct Filter([AtomicU8; QUEUES]);

/// The filter that every probe asks. In `.bss`: a closed gate.
pub(crate) static FILTER: Filter = Filter::closed();

impl Filter {
    /// A filter that lets nothing through.
    pub(crate) const fn closed() -> Self {
        Self([const { AtomicU8::new(0) }; QUEUES])
    }

    /// Whether events of this queue are recorded.
    ///
    /// Takes `request_queue.id` as it is. `None` stands for a queue that is not traced; an id that
    /// a record cannot carry is never traced. The load acquires: who sees the open gate sees the
    /// channel behind it.
    #[inline(always)]
    pub(crate) fn admit(&self, id: i32) -> Option<u16> {
        let traced = self.0.get(id as u32 as usize)?;

        (traced.load(Ordering::Acquire) != 0).then_some(id as u16)
    }

    /// Lets the selected queues through, in addition to those that pass already.
    pub(crate) fn open(&self, selection: Selection<'_>) {
        match selection {
            Selection::All => {
                for traced in &self.0 {
                    traced.store(1, Ordering::Release);
                }
            }
            Selection::Queues(places) => {
                for place in places {
                    if let Some(traced) = self.0.get(usize::from(place.queue)) {
                        traced.store(1, Ordering::Release);
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

        for (id, traced) in self.0.iter().enumerate() {
            if traced.load(Ordering::Relaxed) != 0
                && !places.iter().any(|place| usize::from(place.queue) == id)
            {
                traced.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Lets nothing through. A probe that has passed already still records.
    pub(crate) fn close(&self) {
        for traced in &self.0 {
            traced.store(0, Ordering::Relaxed);
        }
    }
}

/// Operations, ready to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ops {
    /// A bit for each `REQ_OP_*`.
    codes: u64,
    /// Whether whatever asks for a flush first counts as well.
    preflush: bool,
}

impl Ops {
    /// What `config::OP_*` stand for; `None` for 0, which stands for all.
    pub(crate) fn new(mask: u32) -> Option<Self> {
        const CODES: &[(u32, &[u32])] = &[
            (config::OP_READ, &[REQ_OP_READ]),
            (config::OP_WRITE, &[REQ_OP_WRITE]),
            (config::OP_FLUSH, &[REQ_OP_FLUSH]),
            (config::OP_DISCARD, &[REQ_OP_DISCARD]),
            (config::OP_SECURE_ERASE, &[REQ_OP_SECURE_ERASE]),
            (config::OP_ZONE_APPEND, &[REQ_OP_ZONE_APPEND]),
            (config::OP_WRITE_ZEROES, &[REQ_OP_WRITE_ZEROES]),
            (config::OP_ZONE, REQ_OP_ZONES),
            (
                config::OP_PASSTHROUGH,
                &[record::REQ_OP_DRV_IN, record::REQ_OP_DRV_OUT],
            ),
        ];
        let mut codes = 0;

        for (_, ops) in CODES.iter().filter(|(op, _)| mask & op != 0) {
            for op in *ops {
                codes |= 1u64.wrapping_shl(*op);
            }
        }
        (mask != 0).then_some(Self {
            codes,
            preflush: mask & config::OP_FLUSH != 0,
        })
    }

    #[inline(always)]
    fn contain(self, opf: u32) -> bool {
        let code = opf & 0xff;

        code < 64 && self.codes.wrapping_shr(code) & 1 != 0
            || self.preflush && opf & REQ_PREFLUSH != 0
    }
}

// Of `include/linux/blk_types.h`; `layout.rs` compares them with the kernel's.
pub(crate) const REQ_OP_READ: u32 = 0;
pub(crate) const REQ_OP_WRITE: u32 = 1;
pub(crate) const REQ_OP_FLUSH: u32 = 2;
pub(crate) const REQ_OP_DISCARD: u32 = 3;
pub(crate) const REQ_OP_SECURE_ERASE: u32 = 5;
pub(crate) const REQ_OP_ZONE_APPEND: u32 = 7;
pub(crate) const REQ_OP_WRITE_ZEROES: u32 = 9;
/// Open, close, finish, reset, reset all.
pub(crate) const REQ_OP_ZONES: &[u32] = &[11, 13, 15, 17, 19];
pub(crate) const REQ_PREFLUSH: u32 = 1 << 18;

/// All that is asked of an event's record but for its device and its cgroup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) ops: Option<Ops>,
    /// First and last sector.
    pub(crate) sectors: Option<(u64, u64)>,
    /// Fewest and most bytes.
    pub(crate) sizes: Option<(u32, u32)>,
}

/// A bit for each of these actions.
const fn bits(actions: &[u32]) -> u32 {
    let mut bits = 0;
    let mut n = 0;

    while n < actions.len() {
        bits |= 1 << actions[n];
        n += 1;
    }
    bits
}

/// Events whose size is a count, and that have neither operation nor place.
const COUNTS: u32 = bits(&[
    abi::BLKRELAY_P,
    abi::BLKRELAY_U,
    abi::BLKRELAY_T,
    abi::BLKRELAY_W,
]);

/// Events that have a place and a size, but no operation.
const ZONES: u32 = bits(&[abi::BLKRELAY_ZONE_PLUG, abi::BLKRELAY_ZONE_UNPLUG]);

/// What a bio ends with.
const BIO_ENDS: u32 = bits(&[abi::BLKRELAY_BIO_C, abi::BLKRELAY_SPAN]);

/// An event as a filter asks it: its record's words, and what these do not tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) place: u64,
    /// Of a request with the `REQ_PREFLUSH` of its bio, which the flush machinery takes from the request
    /// (`blk_insert_flush()`).
    pub(crate) size_op: u64,
    pub(crate) id_who: u64,
    pub(crate) kind: Kind,
    /// The end of a flush sequence whose data is complete: it stands at the first sector of that, and its size is not
    /// known any more (`blk_flush_restore_request()`).
    pub(crate) follows_data: bool,
}

impl Event {
    #[inline(always)]
    fn is_one_of(&self, actions: u32) -> bool {
        actions.wrapping_shr(record::action(self.id_who)) & 1 != 0
    }

    #[inline(always)]
    fn bytes(&self) -> u32 {
        record::unpair(self.size_op).0
    }

    #[inline(always)]
    fn opf(&self) -> u32 {
        record::unpair(self.size_op).1
    }

    #[inline(always)]
    fn sector(&self) -> u64 {
        self.place & abi::BLKRELAY_SECTOR_MASK
    }

    /// Whether this is of an empty flush: one of the whole disk.
    #[inline(always)]
    fn is_flush(&self) -> bool {
        let opf = self.opf();

        self.bytes() == 0
            && (opf & 0xff == REQ_OP_FLUSH || opf & REQ_PREFLUSH != 0)
            && !self.is_one_of(COUNTS | ZONES)
            && !self.follows_data
    }

    /// Whether this is the end of a bio whose driver (brd) has moved on in it: what it was for is not known
    /// any more.
    #[inline(always)]
    fn is_consumed(&self) -> bool {
        self.kind == Kind::Bio && self.is_one_of(BIO_ENDS) && self.bytes() == 0
    }

    /// Whether this touches the sectors `first` to `last`.
    #[inline(always)]
    fn touches(&self, (first, last): (u64, u64)) -> bool {
        let sector = self.sector();

        if sector == abi::BLKRELAY_SECTOR_NONE || self.is_flush() || self.is_consumed() {
            return false;
        }
        let end = sector + ((u64::from(self.bytes()) + 511) >> 9).max(1);

        sector <= last && end > first
    }
}

impl Asked {
    /// Whether nothing is asked.
    pub(crate) fn is_nothing(&self) -> bool {
        self.ops.is_none() && self.sectors.is_none() && self.sizes.is_none()
    }

    /// Whether an event passes.
    ///
    /// An event that does not carry what is asked for does not pass: plugs and tag waits have no
    /// operation, place or size, and a flush touches no sector. The end of a flush sequence passes with any size: its
    /// data has been asked.
    #[inline(always)]
    pub(crate) fn pass(&self, event: &Event) -> bool {
        if let Some(ops) = self.ops {
            if !ops.contain(event.opf()) || event.is_one_of(COUNTS | ZONES) {
                return false;
            }
        }
        if let Some(range) = self.sectors {
            if !event.touches(range) {
                return false;
            }
        }
        match self.sizes {
            None => true,
            Some((min, max)) => {
                (min..=max).contains(&event.bytes())
                    && !event.is_one_of(COUNTS)
                    && !event.is_consumed()
                    || event.follows_data
            }
        }
    }
}

impl Selection<'_> {
    /// Whether the map says it all.
    pub(crate) fn is_whole_disks(&self) -> bool {
        match self {
            Selection::All => true,
            Selection::Queues(places) => places.iter().all(|place| place.part.is_none()),
        }
    }

    /// Whether an event is one of these places. Asked although the map has been:
    /// while a filter replaces another, that lets through what either wants. A flush is one of the
    /// whole disk, so it is one of each part.
    pub(crate) fn pass(&self, event: &Event) -> bool {
        let Selection::Queues(places) = self else {
            return true;
        };
        let queue = (event.place >> abi::BLKRELAY_SECTOR_BITS) as u16;

        places.iter().any(|one| {
            one.queue == queue
                && match one.part {
                    None => true,
                    Some(part) => event.touches(part) || event.is_flush(),
                }
        })
    }
}
