// SPDX-License-Identifier: GPL-2.0

//! One small function for each block event, and the table that names them.
//!
//! A probe tries the fast path (`fast.rs`), and there writes raw fields where they stay (`slot.rs`). If that is
//! not for this event, it asks the filter, packs the fields into words (`record.rs`) and calls the shim. It
//! runs in process, softirq or hardirq context, with preemption on where its caller has it on. It does not
//! sleep, allocate, print, lock or panic.
//!
//! Requests and bios are never borrowed: the block layer changes them meanwhile. They are read
//! field by field, through raw pointers.

use crate::{
    abi, config,
    fast::{
        Ends,
        Middle,
        Of,
        Window, //
    },
    filter::FILTER,
    record::{
        self,
        Words, //
    },
    tracepoint::{
        Probes,
        Tracepoint, //
    },
};
use core::ffi::c_void;
use kernel::{
    bindings::{
        bio,
        blk_mq_hw_ctx,
        blk_mq_tags,
        request,
        request_queue, //
    },
    ffi::c_uint,
    prelude::*,
};

/// A block event: the tracepoint, what `control` and `status` call it, whether it is recorded unless
/// something else is asked for, the probe, and the probe that adds its details.
struct Row {
    tracepoint: &'static CStr,
    name: &'static str,
    default: bool,
    probe: *mut c_void,
    detailed: *mut c_void,
}

/// Declares the probes' table, and compares each probe with its declaration in `shim.h`, which the
/// shim in its turn compares with the tracepoint. That a row's two probes are of one tracepoint is in
/// their declarations.
macro_rules! probes {
    ($($tracepoint:literal, $name:literal, $default:literal, $probe:ident, $detailed:ident;)+) => {
        const ROWS: &[Row] = &[$(Row {
            tracepoint: $tracepoint,
            name: $name,
            default: $default,
            probe: $probe as *mut c_void,
            detailed: $detailed as *mut c_void,
        }),+];

        declared!($($probe, $detailed),+);
    };
}

// By default not those that say again what C says.
probes! {
    c"block_bio_queue", "Q", true, blkrelay_probe_bio_queue, blkrelay_probe_bio_queue_detail;
    c"block_bio_backmerge", "M", true, blkrelay_probe_bio_backmerge, blkrelay_probe_bio_backmerge;
    c"block_bio_frontmerge", "F", true, blkrelay_probe_bio_frontmerge, blkrelay_probe_bio_frontmerge;
    c"block_getrq", "G", true, blkrelay_probe_getrq, blkrelay_probe_getrq;
    c"block_rq_insert", "I", true, blkrelay_probe_rq_insert, blkrelay_probe_rq_insert;
    c"block_rq_requeue", "R", true, blkrelay_probe_rq_requeue, blkrelay_probe_rq_requeue;
    c"block_rq_issue", "D", true, blkrelay_probe_rq_issue, blkrelay_probe_rq_issue;
    c"block_rq_complete", "C", true, blkrelay_probe_rq_complete, blkrelay_probe_rq_complete;
    c"block_plug", "P", true, blkrelay_probe_plug, blkrelay_probe_plug;
    c"block_unplug", "U", true, blkrelay_probe_unplug, blkrelay_probe_unplug;
    c"block_split", "X", true, blkrelay_probe_split, blkrelay_probe_split;
    c"block_bio_remap", "A", true, blkrelay_probe_bio_remap, blkrelay_probe_bio_remap;
    c"block_rq_merge", "N", true, blkrelay_probe_rq_merge, blkrelay_probe_rq_merge;
    c"block_bio_complete", "BIO_C", true, blkrelay_probe_bio_complete, blkrelay_probe_bio_complete;
    c"block_rq_remap", "RQ_A", true, blkrelay_probe_rq_remap, blkrelay_probe_rq_remap;
    c"block_rq_error", "ERROR", false, blkrelay_probe_rq_error, blkrelay_probe_rq_error;
    c"block_rq_tag_wait", "W", true, blkrelay_probe_rq_tag_wait, blkrelay_probe_rq_tag_wait;
    c"block_io_start", "IO_START", false, blkrelay_probe_io_start, blkrelay_probe_io_start;
    c"block_io_done", "IO_DONE", false, blkrelay_probe_io_done, blkrelay_probe_io_done;
    c"blkdev_zone_mgmt", "ZONE_MGMT", true, blkrelay_probe_zone_mgmt, blkrelay_probe_zone_mgmt;
    c"disk_zone_wplug_add_bio", "ZONE_PLUG", true, blkrelay_probe_zone_plug, blkrelay_probe_zone_plug;
    c"blk_zone_wplug_bio", "ZONE_UNPLUG", true, blkrelay_probe_zone_unplug, blkrelay_probe_zone_unplug;
    c"blk_zone_append_update_request_bio", "ZONE_APPEND", true, blkrelay_probe_zone_append, blkrelay_probe_zone_append;
}

/// The probes of a trace of spans, each with its tracepoint.
const SPANS: &[(&CStr, *mut c_void)] = &[
    (
        c"block_bio_queue",
        abi::blkrelay_probe_span_queue as *mut c_void,
    ),
    (
        c"block_split",
        abi::blkrelay_probe_span_split as *mut c_void,
    ),
    (
        c"block_rq_issue",
        abi::blkrelay_probe_span_issue as *mut c_void,
    ),
    (
        c"block_rq_complete",
        abi::blkrelay_probe_span_complete as *mut c_void,
    ),
    (
        c"block_bio_complete",
        abi::blkrelay_probe_span_bio_complete as *mut c_void,
    ),
    (
        c"block_rq_remap",
        abi::blkrelay_probe_span_remap as *mut c_void,
    ),
];

/// What is recorded of the events that are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Each event.
    Events,
    /// Each event, and each Q's details.
    Details,
    /// Spans, which are none of these events.
    Spans,
}

/// Names of all events, in the order of the bits of [`config::Events::Some`].
pub(crate) const NAMES: [&str; ROWS.len()] = {
    let mut names = [""; ROWS.len()];
    let mut n = 0;

    while n < ROWS.len() {
        names[n] = ROWS[n].name;
        n += 1;
    }
    names
};

/// The bits of the events that are wanted.
pub(crate) fn wanted(events: config::Events) -> u32 {
    let all = ROWS.iter().enumerate();

    match events {
        config::Events::Some(mask) => mask,
        config::Events::All => all.fold(0, |mask, (n, _)| mask | bit(n)),
        config::Events::Default => all
            .filter(|(_, row)| row.default)
            .fold(0, |mask, (n, _)| mask | bit(n)),
    }
}

/// The bits of the events that spans are made of.
pub(crate) fn spans() -> u32 {
    ROWS.iter()
        .enumerate()
        .filter(|(_, row)| SPANS.iter().any(|(name, _)| *name == row.tracepoint))
        .fold(0, |mask, (n, _)| mask | bit(n))
}

/// The bits of the events with these names.
pub(crate) fn named(names: &[&str]) -> u32 {
    NAMES
        .iter()
        .enumerate()
        .filter(|(_, name)| names.contains(name))
        .fold(0, |mask, (n, _)| mask | bit(n))
}

fn bit(row: usize) -> u32 {
    1u32.wrapping_shl(row as u32)
}

const _: () = assert!(ROWS.len() <= 32);

/// The block events of this kernel.
pub(crate) struct Events([Option<Tracepoint>; ROWS.len()]);

impl Events {
    /// No events: what there is before [`Events::lookup`].
    pub(crate) const fn none() -> Self {
        Self([None; ROWS.len()])
    }

    /// Finds the tracepoints of the running kernel.
    pub(crate) fn lookup() -> Self {
        let mut names = [c""; ROWS.len()];

        for (name, row) in names.iter_mut().zip(ROWS) {
            *name = row.tracepoint;
        }
        Self(Tracepoint::lookup(&names))
    }

    /// Registers the probes of the wanted events that this kernel has a tracepoint for. An event
    /// that is not wanted costs nothing.
    ///
    /// # Errors
    ///
    /// The tracepoint that refused, and its error. No probe is left registered then.
    pub(crate) fn register(
        &self,
        wanted: u32,
        recorded: Recorded,
    ) -> Result<Probes, (&'static CStr, Error)> {
        let mut probes = Probes::none();

        for (n, (row, tracepoint)) in ROWS.iter().zip(&self.0).enumerate() {
            let Some(tracepoint) = tracepoint.filter(|_| wanted & bit(n) != 0) else {
                continue;
            };
            let span = SPANS.iter().find(|(name, _)| *name == row.tracepoint);
            let probe = match (recorded, span) {
                (Recorded::Events, _) => row.probe,
                (Recorded::Details, _) => row.detailed,
                (Recorded::Spans, Some((_, probe))) => *probe,
                (Recorded::Spans, None) => continue,
            };

            // SAFETY: The compiler has compared the probe with the tracepoint of that name, see
            // `probes!` and `blkrelay_check_signatures()`. It runs in any context, see above.
            unsafe { probes.register(tracepoint, probe) }.map_err(|e| (row.tracepoint, e))?;
        }
        Ok(probes)
    }

    /// Names of the wanted events that this kernel has.
    pub(crate) fn chosen(&self, wanted: u32) -> impl Iterator<Item = &'static str> + '_ {
        let rows = ROWS.iter().zip(&self.0).enumerate();

        rows.filter_map(move |(n, (row, found))| {
            (found.is_some() && wanted & bit(n) != 0).then_some(row.name)
        })
    }

    /// Names of the events that this kernel has.
    pub(crate) fn present(&self) -> impl Iterator<Item = &'static str> + '_ {
        let rows = ROWS.iter().zip(&self.0);

        rows.filter_map(|(row, found)| found.is_some().then_some(row.name))
    }

    /// Names of the tracepoints that this kernel lacks.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &'static CStr> + '_ {
        let rows = ROWS.iter().zip(&self.0);

        rows.filter_map(|(row, found)| found.is_none().then_some(row.tracepoint))
    }
}

// ---- Events of bios ---------------------------------------------------------------------------------

/// The id of the queue that a bio is for.
///
/// # Safety
///
/// `bio` is a bio that its tracepoint hands out: it has a device, whose queue is live while the bio
/// is.
#[inline(always)]
unsafe fn bio_queue(bio: *mut bio) -> i32 {
    // SAFETY: By the contract, all pointers are valid. `id` is constant for the queue's life.
    unsafe { (*(*(*bio).bi_bdev).bd_queue).id }
}

/// The words of an event of a bio for queue `queue`. `start` is added to the bio's sector, to make it one of the
/// whole disk.
///
/// # Safety
///
/// As [`bio_queue`].
#[inline(always)]
unsafe fn bio_words(bio: *mut bio, queue: u16, start: u64, action: u32) -> Words {
    // SAFETY: Plain reads of integers that nobody writes while the bio is at a tracepoint.
    let (sector, bytes, opf) = unsafe {
        (
            (*bio).bi_iter.bi_sector,
            (*bio).bi_iter.bi_size,
            (*bio).bi_opf,
        )
    };

    Words {
        place: record::place(sector.wrapping_add(start), queue),
        size_op: record::pair(bytes, opf),
        id_who: record::pair(record::bio_id(bio as usize), record::who(action)),
    }
}

/// Records an event of a bio, off the fast path.
///
/// # Safety
///
/// As [`bio_queue`].
#[cold]
#[inline(never)]
unsafe fn slow_bio(bio: *mut bio, queue: u16, action: u32) {
    // SAFETY: By the contract.
    let words = unsafe { bio_words(bio, queue, 0, action) };

    words.emit(bio.cast(), None, None);
}

/// Records an event of a bio. At Q the task is compared by its name, too: that is where it may be another.
///
/// # Safety
///
/// As [`bio_queue`].
#[inline(always)]
unsafe fn emit_bio<O: Of, const BY_COMM: bool>(bio: *mut bio, action: u32) {
    // SAFETY: By the contract.
    let queue = unsafe { bio_queue(bio) };

    if let Some((window, pid)) = Window::<1>::open::<O>(queue).and_then(Window::task::<BY_COMM>) {
        let slot = window.slot();

        // SAFETY: As in `bio_words`.
        unsafe {
            slot.place((*bio).bi_iter.bi_sector, queue as u16);
            slot.size_op((*bio).bi_iter.bi_size, (*bio).bi_opf);
        }
        slot.id(record::bio_id(bio as usize));
        slot.who(record::who(action) | pid);
        window.close();
    } else if let Some(queue) = FILTER.admit(queue) {
        // SAFETY: By the contract.
        unsafe { slow_bio(bio, queue, action) };
    }
}

// ---- Events of requests -----------------------------------------------------------------------------

/// What of a request tells it from others: hardware queue and tags.
///
/// # Safety
///
/// `rq` is a request that its tracepoint hands out: it has a queue and a hardware context, both
/// live while the request is.
#[inline(always)]
unsafe fn request_tags(rq: *mut request) -> (u32, i32, i32) {
    // SAFETY: Plain reads of integers. `mq_hctx` is set when the request is allocated and stays.
    unsafe { ((*(*rq).mq_hctx).queue_num, (*rq).internal_tag, (*rq).tag) }
}

/// The words of an event of a request for queue `queue`, of so many bytes.
///
/// # Safety
///
/// As [`request_tags`].
#[inline(always)]
unsafe fn request_words(rq: *mut request, queue: u16, bytes: u32, who: u32) -> Words {
    // SAFETY: By the contract, and plain reads.
    let ((hctx, internal_tag, tag), opf, sector) =
        unsafe { (request_tags(rq), (*rq).cmd_flags, (*rq).__sector) };

    Words {
        place: record::place(sector, queue),
        size_op: record::pair(bytes, opf),
        id_who: record::pair(record::request_id(hctx, internal_tag, tag), who),
    }
}

/// Records an event of a request, off the fast path.
///
/// # Safety
///
/// As [`request_tags`].
#[cold]
#[inline(never)]
unsafe fn slow_request(rq: *mut request, queue: u16, action: u32) {
    // SAFETY: By the contract.
    let words = unsafe { request_words(rq, queue, (*rq).__data_len, record::who(action)) };

    words.emit(rq.cast(), None, None);
}

/// Records an event of a request.
///
/// # Safety
///
/// As [`request_tags`].
#[inline(always)]
unsafe fn emit_request<O: Of>(rq: *mut request, action: u32) {
    // SAFETY: By the contract. `id` is constant for the queue's life.
    let queue = unsafe { (*(*rq).q).id };

    if let Some((window, pid)) = Window::<1>::open::<O>(queue).and_then(Window::task::<false>) {
        let slot = window.slot();

        // SAFETY: By the contract, and plain reads.
        unsafe {
            slot.place((*rq).__sector, queue as u16);
            slot.size_op((*rq).__data_len, (*rq).cmd_flags);
            let (hctx, internal_tag, tag) = request_tags(rq);
            slot.request_id(hctx, internal_tag, tag);
        }
        slot.who(record::who(action) | pid);
        window.close();
    } else if let Some(queue) = FILTER.admit(queue) {
        // SAFETY: By the contract.
        unsafe { slow_request(rq, queue, action) };
    }
}

/// Records a completion of a request, off the fast path.
///
/// # Safety
///
/// As [`request_tags`].
#[cold]
#[inline(never)]
unsafe fn slow_completion(rq: *mut request, queue: u16, action: u32, error: u8, nr_bytes: c_uint) {
    // SAFETY: A plain read. The bio itself is not touched.
    let head = record::bio_id(unsafe { (*rq).bio } as usize);
    let who = record::complete_who(action, error, head);
    // SAFETY: By the contract.
    let words = unsafe { request_words(rq, queue, nr_bytes, who) };

    words.emit(rq.cast(), None, None);
}

/// Records a completion of a request, whole or in part.
///
/// # Safety
///
/// As [`request_tags`].
#[inline(always)]
unsafe fn emit_completion<O: Of>(rq: *mut request, action: u32, error: u8, nr_bytes: c_uint) {
    // SAFETY: By the contract. `id` is constant for the queue's life.
    let queue = unsafe { (*(*rq).q).id };

    if let Some(window) = Window::<1>::open::<O>(queue) {
        let slot = window.slot();

        // SAFETY: By the contract, and plain reads.
        unsafe {
            slot.complete_who(action, error, record::bio_id((*rq).bio as usize));
            slot.place((*rq).__sector, queue as u16);
            slot.size_op(nr_bytes, (*rq).cmd_flags);
            let (hctx, internal_tag, tag) = request_tags(rq);
            slot.request_id(hctx, internal_tag, tag);
        }
        window.close();
    } else if let Some(queue) = FILTER.admit(queue) {
        // SAFETY: By the contract.
        unsafe { slow_completion(rq, queue, action, error, nr_bytes) };
    }
}

// ---- Other events -----------------------------------------------------------------------------------

impl Words {
    /// Records the event that these are of, off the fast path; `extra` follows it. `of` is what it is of;
    /// `by` is for spans, others name the current task or nobody.
    #[inline(always)]
    pub(crate) fn emit(
        self,
        of: *mut c_void,
        extra: Option<&abi::blkrelay_extra>,
        by: Option<&abi::blkrelay_submitter>,
    ) {
        let extra = extra.map_or(core::ptr::null(), core::ptr::from_ref);
        let by = by.map_or(core::ptr::null(), core::ptr::from_ref);

        // SAFETY: Who has made the words has read them from `of`, and calls this before it goes.
        unsafe { abi::blkrelay_emit(self.place, self.size_op, self.id_who, of, extra, by) };
    }
}

/// The side record that says where a remap came from.
fn from(dev: u32, sector: u64) -> abi::blkrelay_extra {
    abi::blkrelay_extra {
        slot: [
            sector,
            record::pair(dev, 0),
            0,
            record::pair(0, record::side_who(abi::BLKRELAY_FROM, 1)),
        ],
    }
}

/// Records an event of a queue. `sector` is all ones if it has no place.
///
/// # Safety
///
/// `q` is a live request queue.
#[inline(always)]
unsafe fn emit_queue(
    q: *mut request_queue,
    action: u32,
    sector: u64,
    (bytes, opf): (u32, u32),
    id: u32,
) {
    // SAFETY: By the contract.
    let queue = unsafe { (*q).id };

    if let Some((window, pid)) = Window::<1>::open::<Middle>(queue).and_then(Window::task::<false>)
    {
        let slot = window.slot();

        slot.place(sector, queue as u16);
        slot.size_op(bytes, opf);
        slot.id(id);
        slot.who(record::who(action) | pid);
        window.close();
    } else if let Some(queue) = FILTER.admit(queue) {
        let words = Words {
            place: record::place(sector, queue),
            size_op: record::pair(bytes, opf),
            id_who: record::pair(id, record::who(action)),
        };

        words.emit(q.cast(), None, None);
    }
}

// The probes. Each is called by its tracepoint alone, with what that tracepoint hands out: see
// `include/trace/events/block.h` and the calls of `trace_block_*()` in `block/`.

/// A bio is submitted to a queue.
///
/// # Safety
///
/// For `block_bio_queue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_queue(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being submitted.
    unsafe { emit_bio::<Ends, true>(bio, abi::BLKRELAY_Q) }
}

/// A bio is submitted to a queue; with its details.
///
/// # Safety
///
/// For `block_bio_queue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_queue_detail(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being submitted.
    let Some(queue) = FILTER.admit(unsafe { bio_queue(bio) }) else {
        return;
    };
    // SAFETY: Plain reads of integers, and the bio's own cgroup, which it holds.
    let (cgroup, flags, ioprio, hint, partno) = unsafe {
        (
            abi::blkrelay_bio_cgroup(bio),
            (*bio).bi_flags,
            (*bio).bi_ioprio,
            (*bio).bi_write_hint,
            (*(*bio).bi_bdev).__bd_flags.counter,
        )
    };
    let detail = abi::blkrelay_extra {
        slot: record::detail(cgroup, flags, ioprio, hint, partno as u8),
    };

    // SAFETY: The bio is being submitted.
    let words = unsafe { bio_words(bio, queue, 0, abi::BLKRELAY_Q) };

    words.emit(bio.cast(), Some(&detail), None);
}

/// A bio is appended to a request.
///
/// # Safety
///
/// For `block_bio_backmerge` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_backmerge(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being merged.
    unsafe { emit_bio::<Middle, false>(bio, abi::BLKRELAY_M) }
}

/// A bio is put in front of a request.
///
/// # Safety
///
/// For `block_bio_frontmerge` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_frontmerge(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being merged.
    unsafe { emit_bio::<Middle, false>(bio, abi::BLKRELAY_F) }
}

/// A request has been found for a bio.
///
/// # Safety
///
/// For `block_getrq` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_getrq(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being submitted.
    unsafe { emit_bio::<Middle, false>(bio, abi::BLKRELAY_G) }
}

/// A bio is too large and is split.
///
/// `new_sector` is where the rest begins. It is 32 bits wide in 7.3 and wraps at 2 TiB: sector plus
/// size of the front part, which is the bio at hand, say the same and do not wrap.
///
/// # Safety
///
/// For `block_split` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_split(_: *mut c_void, bio: *mut bio, _new_sector: c_uint) {
    // SAFETY: The bio is being submitted.
    unsafe { emit_bio::<Middle, false>(bio, abi::BLKRELAY_X) }
}

/// A bio has been redirected: from a partition, or by a stacked driver.
///
/// From a partition, the sector is the disk's already and `dev` the bio's own device. A stacked
/// driver may redirect to a partition: then the sector is still the partition's.
///
/// # Safety
///
/// For `block_bio_remap` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_remap(_: *mut c_void, bio: *mut bio, dev: u32, from: u64) {
    // SAFETY: The bio is being submitted.
    let queue = unsafe { bio_queue(bio) };
    // SAFETY: It has a device; plain reads of integers.
    let (target, start) = unsafe { ((*(*bio).bi_bdev).bd_dev, (*(*bio).bi_bdev).bd_start_sect) };
    let start = if target == dev { 0 } else { start };

    if let Some((window, pid)) = Window::<2>::open::<Middle>(queue).and_then(Window::task::<false>)
    {
        let slot = window.slot();

        // SAFETY: As in `bio_words`.
        unsafe {
            slot.place((*bio).bi_iter.bi_sector.wrapping_add(start), queue as u16);
            slot.size_op((*bio).bi_iter.bi_size, (*bio).bi_opf);
        }
        slot.id(record::bio_id(bio as usize));
        slot.who(record::who(abi::BLKRELAY_A) | pid);
        window.side_slot().words(self::from(dev, from).slot);
        window.close();
    } else if let Some(queue) = FILTER.admit(queue) {
        // SAFETY: The bio is being submitted.
        let words = unsafe { bio_words(bio, queue, start, abi::BLKRELAY_A) };

        words.emit(bio.cast(), Some(&self::from(dev, from)), None);
    }
}

/// A bio is done: of a driver without requests, or one that has not become a request.
///
/// `q` is the queue that it was submitted to. An nvme multipath head's bio has gone on to one of its
/// paths by then.
///
/// # Safety
///
/// For `block_bio_complete` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_complete(
    _: *mut c_void,
    q: *mut request_queue,
    bio: *mut bio,
) {
    // SAFETY: The queue is live: the caller owns the bio.
    let Some(queue) = FILTER.admit(unsafe { (*q).id }) else {
        return;
    };
    // SAFETY: As above; plain reads of integers.
    let (sector, bytes, opf, status) = unsafe {
        (
            (*bio).bi_iter.bi_sector,
            (*bio).bi_iter.bi_size,
            (*bio).bi_opf,
            (*bio).bi_status,
        )
    };
    let id = record::bio_id(bio as usize);

    let words = Words {
        place: record::place(sector, queue),
        size_op: record::pair(bytes, opf),
        id_who: record::pair(id, record::complete_who(abi::BLKRELAY_BIO_C, status, id)),
    };

    words.emit(bio.cast(), None, None);
}

/// A request goes into the scheduler.
///
/// # Safety
///
/// For `block_rq_insert` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_insert(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Middle>(rq, abi::BLKRELAY_I) }
}

/// A driver gives a request back.
///
/// # Safety
///
/// For `block_rq_requeue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_requeue(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Middle>(rq, abi::BLKRELAY_R) }
}

/// A request goes to its driver.
///
/// # Safety
///
/// For `block_rq_issue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_issue(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Ends>(rq, abi::BLKRELAY_D) }
}

/// A request is swallowed by its neighbour.
///
/// # Safety
///
/// For `block_rq_merge` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_merge(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Middle>(rq, abi::BLKRELAY_N) }
}

/// A request, or the front of it, is done.
///
/// May come several times for one request: each time `nr_bytes` more are done. `bio` is NULL when
/// there is none left, or none was there.
///
/// # Safety
///
/// For `block_rq_complete` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_complete(
    _: *mut c_void,
    rq: *mut request,
    error: u8,
    nr_bytes: c_uint,
) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_completion::<Ends>(rq, abi::BLKRELAY_C, error, nr_bytes) }
}

/// A request, or the front of it, has failed. Comes right after `block_rq_complete`.
///
/// # Safety
///
/// For `block_rq_error` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_error(
    _: *mut c_void,
    rq: *mut request,
    error: u8,
    nr_bytes: c_uint,
) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_completion::<Middle>(rq, abi::BLKRELAY_ERROR, error, nr_bytes) }
}

/// A request has been redirected: a clone of it goes to one of a stacked driver's paths.
///
/// # Safety
///
/// For `block_rq_remap` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_remap(
    _: *mut c_void,
    rq: *mut request,
    dev: u32,
    from: u64,
) {
    // SAFETY: The clone is owned by the caller.
    let Some(queue) = FILTER.admit(unsafe { (*(*rq).q).id }) else {
        return;
    };
    // SAFETY: As above.
    let words =
        unsafe { request_words(rq, queue, (*rq).__data_len, record::who(abi::BLKRELAY_RQ_A)) };

    words.emit(rq.cast(), Some(&self::from(dev, from)), None);
}

/// `BLK_MQ_REQ_RESERVED` (`include/linux/blk-mq.h`); `layout.rs` compares it with the kernel's.
pub(crate) const MQ_REQ_RESERVED: c_uint = 1 << 1;

/// A task is about to wait for a tag.
///
/// # Safety
///
/// For `block_rq_tag_wait` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_tag_wait(
    _: *mut c_void,
    q: *mut request_queue,
    hctx: *mut blk_mq_hw_ctx,
    is_sched_tag: bool,
    alloc_flags: c_uint,
) {
    // SAFETY: The caller allocates from these tags, so they are live. Plain reads of integers.
    let (number, tags): (u32, *mut blk_mq_tags) = unsafe {
        let tags = if is_sched_tag {
            (*hctx).sched_tags
        } else {
            (*hctx).tags
        };

        ((*hctx).queue_num, tags)
    };
    // SAFETY: As above.
    let (all, reserved) = unsafe { ((*tags).nr_tags, (*tags).nr_reserved_tags) };
    let mut bits = 0;
    let mut depth = all.wrapping_sub(reserved);

    if is_sched_tag {
        bits |= abi::BLKRELAY_W_SCHED;
    }
    if alloc_flags & MQ_REQ_RESERVED != 0 {
        bits |= abi::BLKRELAY_W_RESERVED;
        depth = reserved;
    }
    // SAFETY: As above.
    unsafe {
        emit_queue(
            q,
            abi::BLKRELAY_W,
            u64::MAX,
            (depth, bits),
            number << abi::BLKRELAY_ID_HCTX_SHIFT,
        )
    }
}

/// The accounting of a request begins.
///
/// # Safety
///
/// For `block_io_start` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_io_start(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Middle>(rq, abi::BLKRELAY_IO_START) }
}

/// The accounting of a request ends.
///
/// # Safety
///
/// For `block_io_done` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_io_done(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Middle>(rq, abi::BLKRELAY_IO_DONE) }
}

/// Zones are reset, opened, closed or finished. Comes before the bio's Q.
///
/// # Safety
///
/// For `blkdev_zone_mgmt` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_zone_mgmt(_: *mut c_void, bio: *mut bio, _nr_sectors: u64) {
    // SAFETY: The bio is about to be submitted and has its device.
    unsafe { emit_bio::<Middle, false>(bio, abi::BLKRELAY_ZONE_MGMT) }
}

/// A write to a zone has to wait for those before it.
///
/// # Safety
///
/// For `disk_zone_wplug_add_bio` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_zone_plug(
    _: *mut c_void,
    q: *mut request_queue,
    zone: c_uint,
    sector: u64,
    nr_sectors: c_uint,
) {
    let bytes = (nr_sectors.wrapping_shl(9), 0);

    // SAFETY: A bio for this queue is being submitted.
    unsafe { emit_queue(q, abi::BLKRELAY_ZONE_PLUG, sector, bytes, zone) }
}

/// A write that has waited for its zone goes on.
///
/// # Safety
///
/// For `blk_zone_wplug_bio` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_zone_unplug(
    _: *mut c_void,
    q: *mut request_queue,
    zone: c_uint,
    sector: u64,
    nr_sectors: c_uint,
) {
    let bytes = (nr_sectors.wrapping_shl(9), 0);

    // SAFETY: A bio for this queue is being submitted.
    unsafe { emit_queue(q, abi::BLKRELAY_ZONE_UNPLUG, sector, bytes, zone) }
}

/// An append has been done, and where is known.
///
/// # Safety
///
/// For `blk_zone_append_update_request_bio` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_zone_append(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request::<Middle>(rq, abi::BLKRELAY_ZONE_APPEND) }
}

/// A task begins to collect requests.
///
/// # Safety
///
/// For `block_plug` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_plug(_: *mut c_void, q: *mut request_queue) {
    // SAFETY: The caller is plugging the queue, so it is live.
    unsafe { emit_queue(q, abi::BLKRELAY_P, u64::MAX, (0, 0), 0) }
}

/// Collected requests go to a queue.
///
/// # Safety
///
/// For `block_unplug` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_unplug(
    _: *mut c_void,
    q: *mut request_queue,
    depth: c_uint,
    explicit: bool,
) {
    let action = if explicit {
        abi::BLKRELAY_U
    } else {
        abi::BLKRELAY_T
    };

    // SAFETY: The caller is unplugging the queue, so it is live.
    unsafe { emit_queue(q, action, u64::MAX, (depth, 0), 0) }
}
