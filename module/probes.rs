// SPDX-License-Identifier: GPL-2.0

//! One small function for each block event, and the table that names them.
//!
//! A probe asks the filter, reads raw fields, packs them (`record.rs`) and makes one call into the
//! shim, which opens the window with interrupts off. It runs in process, softirq or hardirq
//! context, with preemption on where its caller has it on. It does not sleep, allocate, print, lock
//! or panic.
//!
//! Requests and bios are never borrowed: the block layer changes them meanwhile. They are read
//! field by field, through raw pointers.

use crate::{
    abi,
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
        request,
        request_queue, //
    },
    ffi::c_uint,
    prelude::*,
};

/// A block event: the tracepoint, what `status` calls it, and the probe.
struct Row {
    tracepoint: &'static CStr,
    name: &'static str,
    probe: *mut c_void,
}

/// Declares the probes' table, and compares each probe with its declaration in `shim.h`, which the
/// shim in its turn compares with the tracepoint.
macro_rules! probes {
    ($($tracepoint:literal, $name:literal, $probe:ident;)+) => {
        const ROWS: &[Row] = &[$(Row {
            tracepoint: $tracepoint,
            name: $name,
            probe: $probe as *mut c_void,
        }),+];

        // The two arms have one type, or this does not compile.
        $(const _: () = {
            if true {
                abi::$probe
            } else {
                $probe
            };
        };)+
    };
}

probes! {
    c"block_bio_queue", "Q", blkrelay_probe_bio_queue;
    c"block_bio_backmerge", "M", blkrelay_probe_bio_backmerge;
    c"block_bio_frontmerge", "F", blkrelay_probe_bio_frontmerge;
    c"block_getrq", "G", blkrelay_probe_getrq;
    c"block_rq_insert", "I", blkrelay_probe_rq_insert;
    c"block_rq_requeue", "R", blkrelay_probe_rq_requeue;
    c"block_rq_issue", "D", blkrelay_probe_rq_issue;
    c"block_rq_complete", "C", blkrelay_probe_rq_complete;
    c"block_plug", "P", blkrelay_probe_plug;
    c"block_unplug", "U", blkrelay_probe_unplug;
    c"block_split", "X", blkrelay_probe_split;
    c"block_bio_remap", "A", blkrelay_probe_bio_remap;
    c"block_rq_merge", "N", blkrelay_probe_rq_merge;
    c"block_bio_complete", "BIO_C", blkrelay_probe_bio_complete;
}

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

    /// Registers every probe that this kernel has a tracepoint for.
    ///
    /// # Errors
    ///
    /// The tracepoint that refused, and its error. No probe is left registered then.
    pub(crate) fn register(&self) -> Result<Probes, (&'static CStr, Error)> {
        let mut probes = Probes::none();

        for (row, tracepoint) in ROWS.iter().zip(&self.0) {
            let Some(tracepoint) = *tracepoint else {
                continue;
            };
            // SAFETY: The compiler has compared the probe with the tracepoint of that name, see
            // `probes!` and `blkrelay_check_signatures()`. It runs in any context, see above.
            unsafe { probes.register(tracepoint, row.probe) }.map_err(|e| (row.tracepoint, e))?;
        }
        Ok(probes)
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

/// Whether the queue is traced, and as what it appears in records.
///
/// # Safety
///
/// `q` is a live request queue.
#[inline(always)]
unsafe fn admit(q: *mut request_queue) -> Option<u16> {
    // SAFETY: By the contract. `id` is constant for the queue's life.
    FILTER.admit(unsafe { (*q).id })
}

/// The words of an event of a bio, and its queue. `start` is added to the bio's sector, to make it
/// one of the whole disk; `who` is the packed `blkrelay_record.who`.
///
/// # Safety
///
/// `bio` is a bio that its tracepoint hands out: it has a device, whose queue is live while the bio
/// is.
#[inline(always)]
unsafe fn bio_words(bio: *mut bio, start: u64, who: u32) -> Option<(Words, *mut request_queue)> {
    // SAFETY: By the contract, both pointers are valid, and so is the queue behind them.
    let q = unsafe { (*(*bio).bi_bdev).bd_queue };
    // SAFETY: As above.
    let queue = unsafe { admit(q) }?;
    // SAFETY: Plain reads of integers that nobody writes while the bio is at a tracepoint.
    let (sector, bytes, opf) = unsafe {
        (
            (*bio).bi_iter.bi_sector,
            (*bio).bi_iter.bi_size,
            (*bio).bi_opf,
        )
    };

    Some((
        Words {
            place: record::place(sector.wrapping_add(start), queue),
            size_op: record::pair(bytes, opf),
            id_who: record::pair(record::bio_id(bio as usize), who),
        },
        q,
    ))
}

/// Records an event of a bio.
///
/// # Safety
///
/// As [`bio_words`].
#[inline(always)]
unsafe fn emit_bio(bio: *mut bio, action: u32) {
    // SAFETY: By the contract.
    if let Some((words, q)) = unsafe { bio_words(bio, 0, record::who(action)) } {
        // SAFETY: `words` names `q`, which is live.
        unsafe { abi::blkrelay_emit(words.place, words.size_op, words.id_who, q) };
    }
}

/// Place and id of an event of a request, its operation and its queue.
///
/// # Safety
///
/// `rq` is a request that its tracepoint hands out: it has a queue and a hardware context, both
/// live while the request is.
#[inline(always)]
unsafe fn request_words(rq: *mut request) -> Option<(u64, u32, u32, *mut request_queue)> {
    // SAFETY: By the contract.
    let q = unsafe { (*rq).q };
    // SAFETY: As above.
    let queue = unsafe { admit(q) }?;
    // SAFETY: Plain reads of integers. `mq_hctx` is set when the request is allocated and stays.
    let (opf, sector, hctx, internal_tag, tag) = unsafe {
        (
            (*rq).cmd_flags,
            (*rq).__sector,
            (*(*rq).mq_hctx).queue_num,
            (*rq).internal_tag,
            (*rq).tag,
        )
    };

    Some((
        record::place(record::request_sector(opf, sector), queue),
        opf,
        record::request_id(hctx, internal_tag, tag),
        q,
    ))
}

/// Records an event of a request.
///
/// # Safety
///
/// As [`request_words`].
#[inline(always)]
unsafe fn emit_request(rq: *mut request, action: u32) {
    // SAFETY: By the contract.
    if let Some((place, opf, id, q)) = unsafe { request_words(rq) } {
        // SAFETY: A plain read.
        let bytes = unsafe { (*rq).__data_len };

        // SAFETY: `place` names `q`, which is live.
        unsafe {
            abi::blkrelay_emit(
                place,
                record::pair(bytes, opf),
                record::pair(id, record::who(action)),
                q,
            )
        };
    }
}

/// Records an event of a queue.
///
/// # Safety
///
/// `q` is a live request queue.
#[inline(always)]
unsafe fn emit_queue(q: *mut request_queue, action: u32, requests: u32) {
    // SAFETY: By the contract.
    if let Some(queue) = unsafe { admit(q) } {
        // SAFETY: As above, and the place names `q`.
        unsafe {
            abi::blkrelay_emit(
                record::place(u64::MAX, queue),
                record::pair(requests, 0),
                record::pair(0, record::who(action)),
                q,
            )
        };
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
    if let Some((words, q)) = unsafe { bio_words(bio, 0, record::who(abi::BLKRELAY_Q)) } {
        // SAFETY: `words` names `q`, which is live.
        unsafe { abi::blkrelay_emit_bio_queue(words.place, words.size_op, words.id_who, q) };
    }
}

/// A bio is appended to a request.
///
/// # Safety
///
/// For `block_bio_backmerge` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_backmerge(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being merged.
    unsafe { emit_bio(bio, abi::BLKRELAY_M) }
}

/// A bio is put in front of a request.
///
/// # Safety
///
/// For `block_bio_frontmerge` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_frontmerge(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being merged.
    unsafe { emit_bio(bio, abi::BLKRELAY_F) }
}

/// A request has been found for a bio.
///
/// # Safety
///
/// For `block_getrq` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_getrq(_: *mut c_void, bio: *mut bio) {
    // SAFETY: The bio is being submitted.
    unsafe { emit_bio(bio, abi::BLKRELAY_G) }
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
    unsafe { emit_bio(bio, abi::BLKRELAY_X) }
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
    // SAFETY: The bio is being submitted, so it has a device; plain reads of integers.
    let (target, start) = unsafe { ((*(*bio).bi_bdev).bd_dev, (*(*bio).bi_bdev).bd_start_sect) };
    let start = if target == dev { 0 } else { start };

    // SAFETY: As above.
    if let Some((words, q)) = unsafe { bio_words(bio, start, record::who(abi::BLKRELAY_A)) } {
        let from = abi::blkrelay_from {
            sector: from,
            dev,
            reserved: [0; 4],
            who: record::side_who(abi::BLKRELAY_FROM, 1),
        };

        // SAFETY: `words` names `q`, which is live, and `from` outlives the call.
        unsafe {
            abi::blkrelay_emit_remap(words.place, words.size_op, words.id_who, q, &from);
        }
    }
}

/// A bio-based driver's bio is done.
///
/// # Safety
///
/// For `block_bio_complete` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_bio_complete(
    _: *mut c_void,
    _q: *mut request_queue,
    bio: *mut bio,
) {
    // SAFETY: A plain read; the caller owns the bio.
    let status = unsafe { (*bio).bi_status };
    let who = record::complete_who(abi::BLKRELAY_BIO_C, status, record::bio_id(bio as usize));

    // SAFETY: The bio is being completed and still has its device, whose queue `q` is.
    if let Some((words, q)) = unsafe { bio_words(bio, 0, who) } {
        // SAFETY: `words` names `q`, which is live.
        unsafe { abi::blkrelay_emit_complete(words.place, words.size_op, words.id_who, q) };
    }
}

/// A request goes into the scheduler.
///
/// # Safety
///
/// For `block_rq_insert` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_insert(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request(rq, abi::BLKRELAY_I) }
}

/// A driver gives a request back.
///
/// # Safety
///
/// For `block_rq_requeue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_requeue(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request(rq, abi::BLKRELAY_R) }
}

/// A request goes to its driver.
///
/// # Safety
///
/// For `block_rq_issue` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_issue(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request(rq, abi::BLKRELAY_D) }
}

/// A request is swallowed by its neighbour.
///
/// # Safety
///
/// For `block_rq_merge` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_rq_merge(_: *mut c_void, rq: *mut request) {
    // SAFETY: The request is owned by the caller.
    unsafe { emit_request(rq, abi::BLKRELAY_N) }
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
    if let Some((place, opf, id, q)) = unsafe { request_words(rq) } {
        // SAFETY: A plain read. The bio itself is not touched.
        let head = record::bio_id(unsafe { (*rq).bio } as usize);

        // SAFETY: `place` names `q`, which is live.
        unsafe {
            abi::blkrelay_emit_complete(
                place,
                record::pair(nr_bytes, opf),
                record::pair(id, record::complete_who(abi::BLKRELAY_C, error, head)),
                q,
            )
        };
    }
}

/// A task begins to collect requests.
///
/// # Safety
///
/// For `block_plug` alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_probe_plug(_: *mut c_void, q: *mut request_queue) {
    // SAFETY: The caller is plugging the queue, so it is live.
    unsafe { emit_queue(q, abi::BLKRELAY_P, 0) }
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
    unsafe { emit_queue(q, action, depth) }
}
