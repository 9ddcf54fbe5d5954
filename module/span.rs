// SPDX-License-Identifier: GPL-2.0

//! Spans: one event an I/O, at its completion, that tells its whole life.
//!
//! ```text
//! Q -> a stamp in `QUEUED`, found again by the bio's address        (time and task)
//! X -> the stamps of the two parts say so
//! RQ_A -> the stamp of the clone's bio, which was never queued, says so
//! D -> a stamp in `ISSUED`, at (queue, hardware queue, tag)         (time)
//! C -> both stamps, and what C says anyway: one SPAN and its times
//! ```
//!
//! A tag belongs to one request until that is done, so D's stamp is nobody else's. Bios have no such number:
//! `QUEUED` is direct-mapped, two bios that meet there take it from each other, and the span of the one that lost
//! says that its Q is missed. Its stamps may be torn by such a meeting, too: each carries the sum of its words and
//! of the bio's address, so what does not belong together is not found.
//!
//! The usual request is done without a call (`blkrelay_probe_span_complete()`); all else is told
//! by `slow_complete`: requests of several bios, in parts, of flush sequences or without a stamp.

use crate::{
    abi,
    devices::Queues,
    fast::{
        self,
        Ends,
        Window, //
    },
    filter::{
        FILTER,
        QUEUES,
        REQ_OP_ZONE_APPEND, //
    },
    record::{
        self,
        Words, //
    },
    shared, //
};
use core::{
    ffi::c_void,
    ptr::null_mut,
    sync::atomic::{
        AtomicBool,
        AtomicPtr,
        AtomicU64,
        Ordering::{
            Acquire,
            Relaxed,
            Release, //
        }, //
    }, //
};
use kernel::{
    alloc::KVVec,
    bindings::{
        bio,
        request,
        request_queue, //
    },
    error::to_result,
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*,
};

// ---- Stamps of Q ------------------------------------------------------------------------------------

/// When a bio was queued, and by whom: one line of a cache. Words are read while they may be written.
#[repr(C, align(64))]
#[derive(Default)]
struct Queued {
    /// Of the bio's address and of `time`, `task` and `names`, and a [`mark`].
    sum: AtomicU64,
    time: AtomicU64,
    /// `pid` in the lower half, `tgid` in the upper.
    task: AtomicU64,
    /// [`names`] of the two that follow.
    names: AtomicU64,
    comm: [AtomicU64; 2],
    /// Of a bio of a driver without requests, which may move on in it: where it was queued for, and its bytes. In the
    /// sum as well then.
    sector: AtomicU64,
    bytes: AtomicU64,
}

const _: () = assert!(LINE == 64);

/// Entries, as a power of two: 2 MiB of them.
const QUEUED_BITS: u32 = 15;

const LINE: usize = core::mem::size_of::<Queued>();

/// What of an address tells the entry: bios stand on multiples of at least 64 bytes apart, mostly next to each other.
const QUEUED_MASK: usize = (LINE << QUEUED_BITS) - LINE;

/// What a stamp's sum is marked with.
mod mark {
    /// A bio as it was queued: nothing. The fast path looks for no other.
    pub(super) const WHOLE: u64 = 0;
    /// The front part of one that was split, which is not queued itself.
    pub(super) const FRONT: u64 = 1 << 63;
    /// The bio that was queued, when its front has been split off.
    pub(super) const REST: u64 = 1 << 62;
    /// The bio of a request that a stacked device has cloned: it is not queued itself.
    pub(super) const CLONE: u64 = 1 << 61;
    /// Besides one of these: sector and bytes are in the sum.
    pub(super) const SIZED: u64 = 1 << 60;
}

/// One word that tells two names apart, as far as a task's names go: the multiplier is odd and uses all of its bits, so
/// that names that differ in both halves do not meet by some digits of theirs.
#[inline(always)]
fn names([first, second]: [u64; 2]) -> u64 {
    first.wrapping_add(second.wrapping_mul(u64::from(abi::BLKRELAY_NAMES_MIX)))
}

/// A stamp that was found.
struct Stamp {
    time: u64,
    by: abi::blkrelay_submitter,
    mark: u64,
    /// Sector and bytes, if it tells them.
    extent: Option<(u64, u32)>,
}

impl Queued {
    #[inline(always)]
    fn sum(bio: usize, time: u64, task: u64, names: u64) -> u64 {
        (bio as u64)
            .wrapping_add(time)
            .wrapping_add(task)
            .wrapping_add(names)
    }

    /// `extent` is added to the sum, with `mark` set for it.
    #[inline(always)]
    fn put(&self, bio: usize, time: u64, task: u64, comm: [u64; 2], extent: u64, mark: u64) {
        let names = names(comm);

        self.time.store(time, Relaxed);
        self.task.store(task, Relaxed);
        self.names.store(names, Relaxed);
        self.comm[0].store(comm[0], Relaxed);
        self.comm[1].store(comm[1], Relaxed);
        let sum = Self::sum(bio, time, task, names).wrapping_add(extent);
        self.sum.store(sum ^ mark, Relaxed);
    }

    /// A bio that goes by the fast path.
    #[inline(always)]
    fn write_whole(&self, bio: usize, time: u64, task: u64, comm: [u64; 2]) {
        self.put(bio, time, task, comm, 0, mark::WHOLE);
    }

    fn write(&self, bio: usize, stamp: &Stamp) {
        let (mut extent, mut mark) = (0, stamp.mark);

        if let Some((sector, bytes)) = stamp.extent {
            self.sector.store(sector, Relaxed);
            self.bytes.store(bytes.into(), Relaxed);
            extent = sector.wrapping_add(bytes.into());
            mark |= mark::SIZED;
        }
        let task = u64::from(stamp.by.tgid) << 32 | u64::from(stamp.by.pid);

        self.put(bio, stamp.time, task, stamp.by.comm, extent, mark);
    }

    /// The stamp if it is this bio's.
    fn find(&self, bio: usize) -> Option<Stamp> {
        let (time, task) = (self.time.load(Relaxed), self.task.load(Relaxed));
        let comm = [self.comm[0].load(Relaxed), self.comm[1].load(Relaxed)];
        let (sector, bytes) = (self.sector.load(Relaxed), self.bytes.load(Relaxed));
        let (told, sum) = (
            self.sum.load(Relaxed),
            Self::sum(bio, time, task, names(comm)),
        );
        let is_mark = |mark| matches!(mark, mark::WHOLE | mark::FRONT | mark::REST | mark::CLONE);
        let plain = told ^ sum;
        let sized = told ^ sum.wrapping_add(sector).wrapping_add(bytes) ^ mark::SIZED;
        let (mark, extent) = if is_mark(plain) {
            (plain, None)
        } else if is_mark(sized) {
            (sized, Some((sector, bytes as u32)))
        } else {
            return None;
        };

        Some(Stamp {
            time,
            by: abi::blkrelay_submitter {
                pid: task as u32,
                tgid: (task >> 32) as u32,
                comm,
            },
            mark,
            extent,
        })
    }

    /// Nobody's from here on: a bio that comes to the same address later has a stamp of its own, or none.
    #[inline(always)]
    fn forget(&self) {
        self.sum.store(0, Relaxed);
    }
}

/// The entries, or null. Set while events are admitted.
static QUEUED: AtomicPtr<Queued> = AtomicPtr::new(null_mut());

/// The entry of a bio.
///
/// # Safety
///
/// The event was admitted, by a trace of spans.
#[inline(always)]
unsafe fn queued<'a>(bio: usize) -> &'a Queued {
    // SAFETY: By the contract the table is there, and it has an entry at each such offset.
    unsafe { &*QUEUED.load(Relaxed).byte_add(bio & QUEUED_MASK) }
}

// ---- Stamps of D ------------------------------------------------------------------------------------

/// In front of a queue's stamps: tags of a hardware queue, and number of stamps. They never change.
const DEPTH: usize = 0;
const LENGTH: usize = 1;
const FIRST: usize = 2;

/// Of a queue for which there are none.
static NONE: [AtomicU64; FIRST] = [const { AtomicU64::new(0) }; FIRST];

/// The stamps of each queue by its id. Set while events are admitted.
static ISSUED: AtomicPtr<AtomicPtr<AtomicU64>> = AtomicPtr::new(null_mut());

/// Hardware queue and tag of a request.
///
/// # Safety
///
/// `rq` is a request that its tracepoint hands out.
#[inline(always)]
unsafe fn tag(rq: *mut request) -> (u32, u32) {
    // SAFETY: Plain reads of integers. `mq_hctx` is set when the request is allocated and stays.
    let (hctx, internal_tag, tag) =
        unsafe { ((*(*rq).mq_hctx).queue_num, (*rq).internal_tag, (*rq).tag) };

    (
        hctx,
        if internal_tag < 0 { tag } else { internal_tag } as u32,
    )
}

/// Where the stamp of a request is; `None` if its tag has come since the table was made.
///
/// # Safety
///
/// The event was admitted, by a trace of spans, for a queue with this id.
#[inline(always)]
unsafe fn issued<'a>(queue: u32, (hctx, tag): (u32, u32)) -> Option<&'a AtomicU64> {
    // SAFETY: By the contract the tables are there: an id that is admitted is below `QUEUES`.
    let table = unsafe { (*ISSUED.load(Relaxed).add(queue as usize)).load(Acquire) };
    // SAFETY: A table has these two, which nobody writes.
    let (depth, length) = unsafe {
        (
            table.add(DEPTH).cast::<u64>().read(),
            table.add(LENGTH).cast::<u64>().read(),
        )
    };
    // A tag beyond the depth, which a scheduler may have been given since, would be that of the next hardware
    // queue.
    if u64::from(tag) >= depth {
        return None;
    }
    let index = u64::from(hctx)
        .wrapping_mul(depth)
        .wrapping_add(u64::from(tag));

    // SAFETY: A table has so many stamps.
    (index < length).then(|| unsafe { &*table.add(FIRST).add(index as usize) })
}

/// See [`NONE`].
fn none() -> *mut AtomicU64 {
    NONE.as_ptr().cast_mut()
}

/// The tables of a trace of spans.
pub(crate) struct Spans {
    queued: KVVec<Queued>,
    issued: KVVec<AtomicPtr<AtomicU64>>,
    /// Whether disks that come need tables.
    all: AtomicBool,
}

/// For whom [`prepare_disk`] is called.
struct Prepared<'a> {
    spans: &'a Spans,
    queues: &'a Queues,
    all: bool,
}

impl Spans {
    /// Empty tables, for no queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let mut queued = KVVec::with_capacity(1 << QUEUED_BITS, GFP_KERNEL)?;
        let mut issued = KVVec::with_capacity(QUEUES, GFP_KERNEL)?;

        for _ in 0..1 << QUEUED_BITS {
            queued.push(Queued::default(), GFP_KERNEL)?;
        }
        for _ in 0..QUEUES {
            issued.push(AtomicPtr::new(none()), GFP_KERNEL)?;
        }
        Ok(Self {
            queued,
            issued,
            all: AtomicBool::new(false),
        })
    }

    /// Makes room for the requests of the disks that `queues` keeps, or of `all` there are and that come.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn prepare(&self, queues: &Queues, all: bool) -> Result {
        let prepared = Prepared {
            spans: self,
            queues,
            all,
        };

        if all {
            self.all.store(true, Relaxed);
        }
        // SAFETY: Called by commands, which may sleep, one at a time. What it is called with is what it wants.
        to_result(unsafe {
            abi::blkrelay_each_disk(Some(prepare_disk), (&raw const prepared).cast_mut().cast())
        })
    }

    /// Makes room for the requests of a queue, which is kept with its id: its stamps are never those of
    /// another. A queue that has no room goes without: its spans say so. So do those of hardware queues that come
    /// later.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `q` is the queue of a disk that cannot go meanwhile. May sleep.
    unsafe fn make_room(&self, q: *mut request_queue, queues: &Queues) -> Result {
        // SAFETY: By the contract.
        let (id, hctxs, depth) = unsafe {
            (
                (*q).id,
                u64::from((*q).nr_hw_queues),
                abi::blkrelay_queue_tags(q),
            )
        };
        let Ok(id) = u16::try_from(id) else {
            return Ok(());
        };
        let Some(entry) = self.issued.get(usize::from(id)) else {
            return Ok(());
        };
        // SAFETY: A live queue with this id.
        if !unsafe { queues.keep(id, q) } || entry.load(Relaxed) != none() {
            return Ok(());
        }
        // No kernel has as many: tags of one hardware queue are at most 10240.
        let length = hctxs.wrapping_mul(u64::from(depth)).min(u32::MAX.into());
        let total = (length as usize).wrapping_add(FIRST);
        let mut table = KVVec::with_capacity(total, GFP_KERNEL)?;

        table.push(AtomicU64::new(depth.into()), GFP_KERNEL)?;
        table.push(AtomicU64::new(length), GFP_KERNEL)?;
        for _ in 0..length {
            table.push(AtomicU64::new(0), GFP_KERNEL)?;
        }
        let (table, _, _) = table.into_raw_parts();
        if entry
            .compare_exchange(none(), table, Release, Relaxed)
            .is_err()
        {
            // Another was faster.
            // SAFETY: Just now taken apart.
            drop(unsafe { KVVec::from_raw_parts(table, total, total) });
        }
        Ok(())
    }

    /// Clears all stamps. What is under way has no Q and no issue then.
    pub(crate) fn forget(&self) {
        for entry in &self.queued {
            entry.forget();
        }
        for entry in &self.issued {
            let table = entry.load(Acquire);

            // SAFETY: A table has these stamps, of the number that it says.
            unsafe {
                for n in 0..(*table.add(LENGTH)).load(Relaxed) as usize {
                    (*table.add(FIRST).add(n)).store(0, Relaxed);
                }
            }
        }
    }

    /// Probes find these tables from here on. Nobody has others.
    pub(crate) fn publish(&self) {
        QUEUED.store(self.queued.as_ptr().cast_mut(), Release);
        ISSUED.store(self.issued.as_ptr().cast_mut(), Release);
    }
}

impl Drop for Spans {
    /// No probe runs any more.
    fn drop(&mut self) {
        QUEUED.store(null_mut(), Relaxed);
        ISSUED.store(null_mut(), Relaxed);
        for entry in &self.issued {
            let table = entry.load(Relaxed);

            if table != none() {
                // SAFETY: Made by `prepare`, of the length that it says and with nothing to spare.
                unsafe {
                    let total = (*table.add(LENGTH)).load(Relaxed) as usize + FIRST;

                    drop(KVVec::from_raw_parts(table, total, total));
                }
            }
        }
    }
}

/// Called by [`Spans::prepare`] for each disk.
///
/// # Safety
///
/// `q` is the queue of a disk that cannot go meanwhile, and `data` points to a [`Prepared`].
unsafe extern "C" fn prepare_disk(q: *mut request_queue, data: *mut c_void) -> c_int {
    // SAFETY: By the contract.
    let prepared = unsafe { &*data.cast::<Prepared<'_>>() };
    // SAFETY: As above, a live queue.
    let is_kept = || u16::try_from(unsafe { (*q).id }).is_ok_and(|id| prepared.queues.get(id) == q);

    if prepared.all || is_kept() {
        // SAFETY: By the contract.
        if let Err(error) = unsafe { prepared.spans.make_room(q, prepared.queues) } {
            return error.to_errno();
        }
    }
    0
}

/// See `shim.h`.
///
/// # Safety
///
/// Called by the shim alone, for a disk that comes, with `disks_lock` held: the channel stays.
#[no_mangle]
unsafe extern "C" fn blkrelay_span_disk(q: *mut request_queue) {
    // SAFETY: By the contract.
    let Some(shared) = (unsafe { shared::current() }) else {
        return;
    };

    if let Some(spans) = shared
        .spans
        .as_ref()
        .filter(|spans| spans.all.load(Relaxed))
    {
        // SAFETY: By the contract. Without memory its spans are without an issue.
        let _ = unsafe { spans.make_room(q, &shared.queues) };
    }
}

// ---- Times ------------------------------------------------------------------------------------------

/// The words of `blkrelay_times`. `flags` are `BLKRELAY_TIMES_*`.
#[inline(always)]
fn times(queue: u64, issue: u64, alloc: u64, pid: u32, flags: u32) -> [u64; 4] {
    let who = record::side_who(abi::BLKRELAY_TIMES, 1) | flags << abi::BLKRELAY_TIMES_SHIFT;

    [queue, issue, alloc, record::pair(pid, who)]
}

/// Whether a side record is a span's times, of a bio.
pub(crate) fn is_of_bio(slot: &[u64; 4]) -> bool {
    let who = record::unpair(slot[3]).1;

    who >> abi::BLKRELAY_WHO_SHIFT == abi::BLKRELAY_TIMES
        && who >> abi::BLKRELAY_TIMES_SHIFT & abi::BLKRELAY_TIMES_BIO != 0
}

/// See `shim.h`.
///
/// # Safety
///
/// Called by the shim alone, with a span's side record.
#[no_mangle]
unsafe extern "C" fn blkrelay_span_is_of_bio(extra: *const abi::blkrelay_extra) -> bool {
    // SAFETY: By the contract.
    unsafe { extra.as_ref() }.is_some_and(|times| is_of_bio(&times.slot))
}

/// How many ticks a span took that is complete `now`: from its issue, or of a bio from its Q.
pub(crate) fn took(slot: &[u64; 4], now: u64) -> Option<u64> {
    let begin = if is_of_bio(slot) { slot[0] } else { slot[1] };

    // Clocks of two CPUs may be a little apart: it cannot have ended before it began.
    (begin != 0).then(|| now.saturating_sub(begin))
}

// ---- Probes -----------------------------------------------------------------------------------------

// `probes.rs` registers these in place of its own.

/// `RQF_*` of `include/linux/blk-mq.h`; `layout.rs` compares them with the kernel's.
pub(crate) const RQF_FLUSH_SEQ: u32 = 1 << 1;
pub(crate) const RQF_IO_STAT: u32 = 1 << 8;

/// A bio is submitted to a queue: stamps it.
///
/// # Safety
///
/// For `block_bio_queue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_span_queue(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being submitted: it has a device, whose queue is live.
    let queue = unsafe { (*(*(*bio).bi_bdev).bd_queue).id };

    if fast::is_open::<Ends>(queue) {
        let (time, task, comm) = fast::now();

        // SAFETY: Admitted: it is the queue of the event before.
        unsafe { queued(bio as usize) }.write_whole(bio as usize, time, task, comm);
    } else if FILTER.admit(queue).is_some() {
        // SAFETY: Admitted.
        unsafe { slow_queue(bio) };
    }
}

/// # Safety
///
/// The event was admitted.
#[cold]
#[inline(never)]
unsafe fn slow_queue(bio: *mut bio) {
    let mut stamp = Stamp {
        // SAFETY: Any context.
        time: unsafe { abi::blkrelay_stamp() },
        by: abi::blkrelay_submitter::default(),
        mark: mark::WHOLE,
        extent: None,
    };

    // SAFETY: Fills it in.
    unsafe { abi::blkrelay_submitter_now(&mut stamp.by) };
    // SAFETY: The bio is being submitted: it has a device, whose queue is live. Plain reads.
    unsafe {
        if (*(*(*bio).bi_bdev).bd_queue).mq_ops.is_null() {
            stamp.extent = Some(((*bio).bi_iter.bi_sector, (*bio).bi_iter.bi_size));
        }
    }
    // SAFETY: The event was admitted.
    unsafe { queued(bio as usize) }.write(bio as usize, &stamp);
}

/// A bio is split. The block layer hands out the front, which is a new bio and will not be queued; its
/// `bi_private` is the bio that goes on (`bio_chain()`). Device mapper hands out the bio that goes on.
///
/// # Safety
///
/// For `block_split` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_span_split(_: *mut c_void, bio: *mut bio, _: c_uint) {
    // SAFETY: The bio is being submitted.
    let (q, parent) = unsafe { ((*(*bio).bi_bdev).bd_queue, (*bio).bi_private as usize) };
    // SAFETY: As above.
    let (id, has_requests) = unsafe { ((*q).id, !(*q).mq_ops.is_null()) };

    if FILTER.admit(id).is_none() {
        return;
    }
    // SAFETY: Admitted, for each of these.
    let (own, rest) = unsafe { (queued(bio as usize), queued(parent)) };

    match own.find(bio as usize) {
        // Device mapper's ends once, with all of it.
        Some(mut found) if !has_requests && found.mark != mark::FRONT => {
            found.mark = mark::REST;
            return own.write(bio as usize, &found);
        }
        _ => {}
    }
    let mut front = Stamp {
        time: 0,
        by: abi::blkrelay_submitter::default(),
        mark: mark::FRONT,
        extent: None,
    };

    if let Some(mut found) = rest.find(parent) {
        found.mark = mark::REST;
        // It ends with what is left of it.
        found.extent = None;
        rest.write(parent, &found);
        front.by = found.by;
    }
    own.write(bio as usize, &front);
}

/// A stacked device has cloned a request for one of its paths: the clone's bios are not queued.
///
/// # Safety
///
/// For `block_rq_remap` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_span_remap(_: *mut c_void, rq: *mut request, _: u32, _: u64) {
    // SAFETY: The clone is owned by the caller. Plain reads.
    let (queue, bio) = unsafe { ((*(*rq).q).id, (*rq).bio as usize) };

    if FILTER.admit(queue).is_some() && bio != 0 {
        let clone = Stamp {
            time: 0,
            by: abi::blkrelay_submitter::default(),
            mark: mark::CLONE,
            extent: None,
        };

        // SAFETY: Admitted.
        unsafe { queued(bio) }.write(bio, &clone);
    }
}

/// A request goes to its driver: stamps it.
///
/// # Safety
///
/// For `block_rq_issue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_span_issue(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    let queue = unsafe { (*(*rq).q).id };

    if fast::is_open::<Ends>(queue) {
        // SAFETY: Admitted: it is the queue of the event before.
        if let Some(stamp) = unsafe { issued(queue as u32, tag(rq)) } {
            stamp.store(fast::time(), Relaxed);
        }
    } else if let Some(queue) = FILTER.admit(queue) {
        // SAFETY: Admitted.
        unsafe { slow_issue(rq, queue) };
    }
}

/// # Safety
///
/// The event was admitted; `rq` is of queue `queue`.
#[cold]
#[inline(never)]
unsafe fn slow_issue(rq: *mut request, queue: u16) {
    // SAFETY: By the contract.
    if let Some(stamp) = unsafe { issued(queue.into(), tag(rq)) } {
        // SAFETY: Any context.
        stamp.store(unsafe { abi::blkrelay_stamp() }, Relaxed);
    }
}

/// A request, or the front of it, is done: its span.
///
/// # Safety
///
/// For `block_rq_complete` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_span_complete(
    _: *mut c_void,
    rq: *mut request,
    error: u8,
    nr_bytes: c_uint,
) {
    // SAFETY: The request is owned by the caller.
    let queue = unsafe { (*(*rq).q).id };

    if !fast::is_open::<Ends>(queue) {
        if FILTER.admit(queue).is_some() {
            // SAFETY: As above, and admitted.
            unsafe { slow_complete(rq, error, nr_bytes) };
        }
        return;
    }
    let Some(window) = Window::<2>::open_again::<Ends>(queue) else {
        // SAFETY: As above.
        return unsafe { other_complete(rq, error, nr_bytes) };
    };
    // SAFETY: Plain reads of a request that is owned by the caller.
    let bio = unsafe { (*rq).bio as usize };
    // SAFETY: As above.
    let usual = unsafe {
        bio == (*rq).biotail as usize
            && error == 0
            && nr_bytes == (*rq).__data_len
            && (*rq).rq_flags & (RQF_IO_STAT | RQF_FLUSH_SEQ) == RQF_IO_STAT
    };
    if !usual {
        window.abandon();
        // SAFETY: As above.
        return unsafe { other_complete(rq, error, nr_bytes) };
    }
    // From here on whatever turns out otherwise is of a whole request without an error: nothing else has to be
    // kept in a register meanwhile. What is written is as good as not written until the window is closed.

    // SAFETY: Admitted: it is the queue of the event before.
    let entry = unsafe { queued(bio) };
    // One word after the other, so that none has to be kept.
    let mut sum = bio as u64;
    let time = entry.time.load(Relaxed);
    window.side_slot().queued(time);
    sum = sum.wrapping_add(time);
    let task = entry.task.load(Relaxed);
    window.side_slot().by(task as u32);
    sum = sum.wrapping_add(task);
    let is_pid = window.is_pid(task as u32);
    let names = entry.names.load(Relaxed);
    sum = sum.wrapping_add(names);
    if !is_pid || !window.is_names(names) || sum != entry.sum.load(Relaxed) {
        window.abandon();
        // SAFETY: As above.
        return unsafe { whole_complete(rq) };
    }
    let slot = window.slot();

    // SAFETY: Plain reads, as above, and admitted.
    unsafe {
        let (hctx, tag) = tag(rq);

        slot.tag(hctx, tag);
        slot.place((*rq).__sector, queue as u16);
        let Some(stamp) = issued(queue as u32, (hctx, tag)) else {
            window.abandon();
            return whole_complete(rq);
        };
        let issue = stamp.load(Relaxed);

        entry.forget();
        stamp.store(0, Relaxed);
        window.side_slot().issued(issue, (*rq).start_time_ns);
        slot.size_op((*rq).__data_len, (*rq).cmd_flags);
    }
    slot.who(record::who(abi::BLKRELAY_SPAN) | 1);
    window.close();
}

/// The span of a request that was not what the fast path is for.
///
/// # Safety
///
/// `rq` is being completed.
#[cold]
#[inline(never)]
unsafe fn other_complete(rq: *mut request, error: u8, nr_bytes: c_uint) {
    // SAFETY: The request is owned by the caller.
    if FILTER.admit(unsafe { (*(*rq).q).id }).is_some() {
        // SAFETY: As above, and admitted.
        unsafe { slow_complete(rq, error, nr_bytes) };
    }
}

/// The same of one that is done at once and without an error.
///
/// # Safety
///
/// `rq` is being completed.
#[cold]
#[inline(never)]
unsafe fn whole_complete(rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { other_complete(rq, 0, (*rq).__data_len) };
}

/// A span of any request.
///
/// # Safety
///
/// The event was admitted; `rq` is being completed.
#[cold]
#[inline(never)]
unsafe fn slow_complete(rq: *mut request, error: u8, nr_bytes: c_uint) {
    // SAFETY: The request is owned by the caller. An id that is admitted fits.
    let queue = unsafe { (*(*rq).q).id } as u16;
    // SAFETY: The request is owned by the caller, and so are its bios.
    let (opf, left, flags, front) =
        unsafe { ((*rq).cmd_flags, (*rq).__data_len, (*rq).rq_flags, (*rq).bio) };
    let mut times_flags = 0;
    let mut issue = 0;

    if nr_bytes < left {
        times_flags |= abi::BLKRELAY_TIMES_PARTIAL;
    }
    // SAFETY: Admitted.
    if let Some(stamp) = unsafe { issued(queue.into(), tag(rq)) } {
        issue = stamp.load(Relaxed);
        if nr_bytes >= left {
            stamp.store(0, Relaxed);
        }
    }
    // SAFETY: Admitted.
    let found = unsafe { queued(front as usize) }.find(front as usize);
    let found = found.filter(|_| !front.is_null());

    // The bios that are done with, as `blk_update_request()` goes through them.
    let (mut bios, mut bytes, mut bio) = (0u32, nr_bytes, front);
    while !bio.is_null() {
        // SAFETY: A bio of the request's.
        let (size, next) = unsafe { ((*bio).bi_iter.bi_size, (*bio).bi_next) };

        if size > bytes {
            break;
        }
        bytes = bytes.wrapping_sub(size);
        bios = bios.saturating_add(1);
        // A flush sequence completes its bio a second time, at its end.
        if flags & RQF_FLUSH_SEQ == 0 {
            // SAFETY: Admitted.
            let entry = unsafe { queued(bio as usize) };

            if entry.find(bio as usize).is_some() {
                entry.forget();
            }
        }
        bio = next;
    }

    let passthrough = opf & 0xfe == record::REQ_OP_DRV_IN;
    // Those are never queued: a stamp that is found is another's.
    let found = found.filter(|_| !passthrough);
    match found.as_ref().map(|stamp| stamp.mark) {
        Some(mark::FRONT) => times_flags |= abi::BLKRELAY_TIMES_FRONT,
        Some(mark::REST) => times_flags |= abi::BLKRELAY_TIMES_REST,
        Some(mark::CLONE) => times_flags |= abi::BLKRELAY_TIMES_CLONE,
        None if !front.is_null() && !passthrough => times_flags |= abi::BLKRELAY_TIMES_MISSED,
        _ => {}
    }
    // SAFETY: Plain reads.
    let (sector, hctx, internal_tag, tag, start) = unsafe {
        (
            (*rq).__sector,
            (*(*rq).mq_hctx).queue_num,
            (*rq).internal_tag,
            (*rq).tag,
            (*rq).start_time_ns,
        )
    };
    let alloc = if flags & RQF_IO_STAT != 0 { start } else { 0 };
    let words = Words {
        place: record::place(sector, queue),
        size_op: record::pair(nr_bytes, opf),
        id_who: record::pair(
            record::request_id(hctx, internal_tag, tag),
            record::complete_who(abi::BLKRELAY_SPAN, error, bios.min(0xffff)),
        ),
    };

    emit(words, rq.cast(), found, issue, alloc, times_flags);
}

/// A bio is done: of a driver without requests, or one that has not become a request. Its span.
///
/// # Safety
///
/// For `block_bio_complete` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_span_bio_complete(
    _: *mut c_void,
    q: *mut request_queue,
    bio: *mut bio,
) {
    // SAFETY: The queue is live: the caller owns the bio.
    let Some(queue) = FILTER.admit(unsafe { (*q).id }) else {
        return;
    };
    // SAFETY: Admitted.
    let entry = unsafe { queued(bio as usize) };
    let found = entry.find(bio as usize);
    let mut flags = abi::BLKRELAY_TIMES_BIO;

    match found.as_ref().map(|stamp| stamp.mark) {
        Some(mark::FRONT) => flags |= abi::BLKRELAY_TIMES_FRONT,
        Some(mark::REST) => flags |= abi::BLKRELAY_TIMES_REST,
        Some(_) => {}
        None => flags |= abi::BLKRELAY_TIMES_MISSED,
    }
    // SAFETY: A bio that is being completed has its device.
    let is_done = unsafe { (*(*bio).bi_bdev).bd_queue } == q;

    // An nvme multipath head's bio is told first, and then the request that it has become on its path: both have
    // the Q.
    if found.is_some() && is_done {
        entry.forget();
    }
    // SAFETY: Plain reads of a bio that the caller owns.
    let (mut sector, mut bytes, opf, status) = unsafe {
        (
            (*bio).bi_iter.bi_sector,
            (*bio).bi_iter.bi_size,
            (*bio).bi_opf,
            (*bio).bi_status,
        )
    };
    // An append was queued for the start of its zone, and tells now where it went.
    if let Some((queued_for, size)) = found.as_ref().and_then(|stamp| stamp.extent) {
        if opf & 0xff != REQ_OP_ZONE_APPEND {
            sector = queued_for;
        }
        bytes = size;
    }
    let words = Words {
        place: record::place(sector, queue),
        size_op: record::pair(bytes, opf),
        id_who: record::pair(
            record::bio_id(bio as usize),
            record::complete_who(abi::BLKRELAY_SPAN, status, 1),
        ),
    };

    emit(words, bio.cast(), found, 0, 0, flags);
}

/// Records a span, off the fast path.
fn emit(words: Words, of: *mut c_void, found: Option<Stamp>, issue: u64, alloc: u64, flags: u32) {
    // Of a front part whose bio had no stamp nobody knows the task.
    let found = found.as_ref();
    let by = found
        .map(|stamp| &stamp.by)
        .filter(|by| by.tgid != 0 || by.comm != [0; 2]);
    let (queue, pid) = (
        found.map_or(0, |stamp| stamp.time),
        by.map_or(0, |by| by.pid),
    );
    let extra = abi::blkrelay_extra {
        slot: times(queue, issue, alloc, pid, flags),
    };

    words.emit(of, Some(&extra), by);
}

declared!(
    blkrelay_span_disk,
    blkrelay_span_is_of_bio,
    blkrelay_probe_span_queue,
    blkrelay_probe_span_split,
    blkrelay_probe_span_issue,
    blkrelay_probe_span_complete,
    blkrelay_probe_span_bio_complete,
    blkrelay_probe_span_remap,
);
