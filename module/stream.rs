// SPDX-License-Identifier: GPL-2.0

//! A CPU's stream: how records get into sub-buffers.
//!
//! What the fast path (`fast.rs`) and `blkrelay_emit()` in `shim.c` leave comes here: first an event is put to the
//! filter, if more is to be asked than the map of queues answers; then it is recorded, with the names that it
//! needs, in the sub-buffer of now or the next.
//!
//! It has one writer, that CPU with interrupts off, and one reader (`reader.rs`). They meet in two
//! counters of the relay core's. The writer fills a sub-buffer, head last, and only then has
//! `relay_switch_subbuf()` raise `subbufs_produced`. The reader copies, then raises
//! `subbufs_consumed`; the writer begins a sub-buffer again only when that says that it is free, or,
//! in a flight recorder, while there is no reader.
//!
//! A sub-buffer is begun by the first event that goes into it, so its clock anchor is never older
//! than its first event, and a quiet CPU has nothing to flush.
//!
//! What does not fit is counted, never waited for.

use crate::{
    abi,
    config::Mode,
    cpus::{
        on_cpu,
        possible_cpus,
        CpusReadLock, //
    },
    filter::{
        Event,
        FILTER,
        REQ_OP_WRITE,
        REQ_PREFLUSH, //
    },
    flight,
    record::{
        self,
        Kind,
        HEAD,
        SLOT, //
    },
    shared::{
        current,
        FilterSet,
        Shared, //
    },
    span, //
};
use core::ffi::c_void;
use kernel::{
    bindings,
    sync::{
        barrier::{
            smp_mb,
            Full,
            Write, //
        }, //
    }, //
};

const _: () = assert!(HEAD == 128);

/// A CPU's state before its first event.
pub(crate) fn fresh(cpu: u32, epoch: u32, filter: *const c_void) -> abi::blkrelay_cpu {
    let nobody = abi::blkrelay_seen {
        pid: abi::BLKRELAY_NOBODY,
        ..Default::default()
    };

    abi::blkrelay_cpu {
        cpu,
        epoch,
        filter,
        queue: abi::BLKRELAY_NOBODY,
        ends: abi::BLKRELAY_NOBODY,
        pid: abi::BLKRELAY_NOBODY,
        queues: [abi::BLKRELAY_NOBODY; abi::BLKRELAY_QUEUES as usize],
        tasks: [nobody; abi::BLKRELAY_TASKS as usize],
        ..Default::default()
    }
}

/// The writer's end of one CPU's stream.
pub(crate) struct Stream<'a> {
    cpu: &'a mut abi::blkrelay_cpu,
    shared: &'a Shared,
}

impl<'a> Stream<'a> {
    /// # Safety
    ///
    /// `cpu` is the state of a possible CPU, and nobody else writes to that stream for as long as
    /// this lives: either this is that CPU and interrupts are off, or no probe can run there.
    pub(crate) unsafe fn new(cpu: *mut abi::blkrelay_cpu, shared: &'a Shared) -> Self {
        Self {
            // SAFETY: By the contract. `counters` reads single words meanwhile, and says so.
            cpu: unsafe { &mut *cpu },
            shared,
        }
    }

    /// Now, on the trace's clock.
    pub(crate) fn now(&mut self) -> u64 {
        // SAFETY: This CPU's state, exclusively ours.
        unsafe { abi::blkrelay_clock(self.cpu) }
    }

    /// Which CPU's it is.
    pub(crate) fn cpu(&self) -> u32 {
        self.cpu.cpu
    }

    /// Counts an event that found no room.
    fn lose(&mut self) {
        let now = self.now();

        if self.cpu.lost_first == 0 {
            self.cpu.lost_first = now;
        }
        self.cpu.lost_last = now;
        self.cpu.lost = self.cpu.lost.wrapping_add(1);
    }

    /// Whether `slots` more slots fit into the sub-buffer that has been begun.
    fn has_room(&self, slots: usize) -> bool {
        (self.cpu.end as usize).wrapping_sub(self.cpu.pos as usize) >= slots * SLOT
    }

    /// Moves on by `slots` slots and returns where they begin.
    fn take<T>(&mut self, slots: usize) -> *mut T {
        let pos = self.cpu.pos;

        self.cpu.pos = pos.wrapping_byte_add(slots * SLOT);
        pos.cast()
    }

    /// Begins the next sub-buffer. Returns whether there is one.
    fn begin(&mut self) -> bool {
        let buf = self.cpu.buf;
        let size = self.shared.config.subbuf_size as usize;
        let overwrite = self.shared.config.mode == Mode::Overwrite;

        if buf.is_null() {
            return false;
        }
        // SAFETY: Our own end of a live buffer, and a counter of the reader's, read once.
        let (offset, produced, consumed) = unsafe {
            (
                (*buf).offset,
                (*buf).subbufs_produced,
                (&raw const (*buf).subbufs_consumed).read_volatile(),
            )
        };
        if offset > size {
            // The ring was full when the last sub-buffer was finished. Asked for again only when it
            // is not any more: this is where each lost event comes along.
            if produced.wrapping_sub(consumed) >= self.shared.config.subbufs as usize {
                return false;
            }
            // SAFETY: Our own end of a live buffer. A slot's room is what a fresh sub-buffer has.
            if unsafe { abi::relay_switch_subbuf(buf, SLOT) } == 0 {
                return false;
            }
        }
        // What the reader read of this sub-buffer it has read before it said so: pairs with the
        // barrier in `Reader::read`.
        smp_mb(Full);

        let cpu_ptr = core::ptr::from_mut(self.cpu);
        let config = &self.shared.config;
        // SAFETY: This CPU's state, exclusively ours.
        let anchor = config
            .clock
            .anchor(|| unsafe { abi::blkrelay_clock(cpu_ptr) });
        let mut flags = 0;
        if !anchor.exact {
            flags |= abi::BLKRELAY_SUBBUF_ANCHOR_BAD;
        }
        if overwrite {
            flags |= abi::BLKRELAY_SUBBUF_OVERWRITE;
        }
        // SAFETY: Our own end of a live buffer.
        let subbuf = unsafe { (*buf).data }.cast::<abi::blkrelay_subbuf>();
        let cpu = &mut *self.cpu;

        // SAFETY: A free sub-buffer: page-aligned, larger than a head, and ours until it is
        // produced.
        unsafe {
            subbuf.write(abi::blkrelay_subbuf {
                magic: abi::BLKRELAY_SUBBUF_MAGIC,
                version: abi::BLKRELAY_ABI_VERSION as u16,
                header_len: HEAD as u16,
                used: 0,
                record_len: abi::BLKRELAY_RECORD_SIZE as u16,
                flags: flags as u16,
                trace_id: config.trace_id,
                cpu: cpu.cpu,
                epoch: cpu.epoch,
                seq: cpu.seq,
                events: cpu.events,
                lost: cpu.lost,
                lost_first: cpu.lost_first,
                lost_last: cpu.lost_last,
                count: 0,
                clock: config.clock.code(),
                anchor: anchor.trace,
                mono: anchor.mono,
                raw: anchor.raw,
                real: anchor.real,
                khz: config.clock.khz(),
                reserved: 0,
            })
        };
        cpu.lost_first = 0;
        cpu.lost_last = 0;
        cpu.subbuf = subbuf;
        cpu.pos = subbuf.wrapping_byte_add(HEAD).cast();
        cpu.end = subbuf.wrapping_byte_add(size).cast();
        true
    }

    /// Finishes the sub-buffer that has been begun, if any, and hands it to the reader.
    pub(crate) fn finish(&mut self) {
        let buf = self.cpu.buf;
        let cpu = &mut *self.cpu;

        if cpu.subbuf.is_null() || buf.is_null() {
            return;
        }
        let used = (cpu.pos as usize).wrapping_sub(cpu.subbuf as usize);
        let slots = used.wrapping_sub(HEAD) / SLOT;
        let count = (slots as u32).wrapping_sub(cpu.side);

        // SAFETY: The head of our own sub-buffer.
        unsafe {
            (*cpu.subbuf).used = used as u32;
            (*cpu.subbuf).count = count;
        }
        cpu.events = cpu.events.wrapping_add(u64::from(count));
        cpu.seq = cpu.seq.wrapping_add(1);
        cpu.side = 0;
        cpu.subbuf = core::ptr::null_mut();
        cpu.pos = core::ptr::null_mut();
        cpu.end = core::ptr::null_mut();
        // Each sub-buffer names its own tasks and queues.
        cpu.queue = abi::BLKRELAY_NOBODY;
        cpu.ends = abi::BLKRELAY_NOBODY;
        cpu.pid = abi::BLKRELAY_NOBODY;
        cpu.queues.fill(abi::BLKRELAY_NOBODY);
        for task in &mut cpu.tasks {
            task.pid = abi::BLKRELAY_NOBODY;
        }

        // Records and head first, then the count that publishes them: pairs with the acquire in
        // `Reader::read`.
        smp_mb(Write);
        // SAFETY: Our own end of a live buffer. A length of 0 always fits; whether there is a next
        // sub-buffer is in `offset` afterwards.
        unsafe {
            (*buf).offset = used;
            abi::relay_switch_subbuf(buf, 0);
        }
        if self.shared.config.mode == Mode::Discard {
            // SAFETY: A possible CPU.
            unsafe { abi::blkrelay_reader_wake(self.cpu.cpu) };
        }
    }

    /// Goes over to another filter, or to no other: what is recorded from now on is of `epoch`.
    pub(crate) fn set_epoch(&mut self, epoch: u32, filter: *const c_void) {
        self.finish();
        self.cpu.epoch = epoch;
        self.cpu.filter = filter;
    }

    /// Ends the flight recorder's stream for now. Its last record says when and why.
    pub(crate) fn stop(&mut self, trigger: flight::Trigger) {
        if self.cpu.stopped != 0 {
            return;
        }
        if self.cpu.subbuf.is_null() || !self.has_room(1) {
            self.finish();
            if !self.begin() {
                self.cpu.stopped = 1;
                return;
            }
        }
        let stop = abi::blkrelay_stop {
            time: self.now(),
            trigger: trigger.time,
            value: trigger.value,
            cpu: trigger.cpu | trigger.cause << 16,
            who: record::side_who(abi::BLKRELAY_STOP, 1),
        };

        // SAFETY: `take` returns a free slot, 32 bytes aligned.
        unsafe { self.take::<abi::blkrelay_stop>(1).write(stop) };
        self.cpu.side = self.cpu.side.wrapping_add(1);
        self.finish();
        self.cpu.stopped = 1;
        self.keep_newest();
    }

    /// Of a flight recorder's ring, what has not been written over is what the reader gets.
    pub(crate) fn keep_newest(&mut self) {
        let buf = self.cpu.buf;

        if buf.is_null() {
            return;
        }
        // SAFETY: Our own end of a live buffer. There is no reader while the recorder runs, so
        // nobody else changes the second one.
        unsafe {
            let produced = (*buf).subbufs_produced;
            let held = produced.wrapping_sub((*buf).subbufs_consumed);
            let subbufs = self.shared.config.subbufs as usize;

            if held > subbufs {
                (*buf).subbufs_consumed = produced.wrapping_sub(subbufs);
            }
        }
    }

    /// Lets the flight recorder run on. What is in the ring is not handed out again.
    pub(crate) fn arm(&mut self, epoch: u32) {
        let buf = self.cpu.buf;

        if !buf.is_null() {
            // SAFETY: As in `keep_newest`.
            unsafe { (*buf).subbufs_consumed = (*buf).subbufs_produced };
        }
        self.cpu.epoch = epoch;
        self.cpu.stopped = 0;
    }

    /// Records an event that the fast path could not. Returns its time, or 0 if it was not recorded.
    ///
    /// # Safety
    ///
    /// `of` is what the event is of, and what it is of is live.
    unsafe fn record(
        &mut self,
        [place, size_op, id_who]: [u64; 3],
        of: *mut c_void,
        extra: Option<&abi::blkrelay_extra>,
        by: Option<&abi::blkrelay_submitter>,
    ) -> u64 {
        if self.cpu.stopped != 0 {
            return 0;
        }
        let queue = (place >> abi::BLKRELAY_SECTOR_BITS) as u32;
        // SAFETY: By the contract.
        let q = unsafe { self.queue(queue as u16, of, kind(id_who, extra)) };
        let own = if extra.is_some() { 2 } else { 1 };

        if self.cpu.subbuf.is_null() || !self.has_room(own + self.missing_names(queue, by).slots())
        {
            self.finish();
            if !self.begin() {
                self.lose();
                return 0;
            }
        }
        // A new sub-buffer has named nobody yet.
        let names = self.missing_names(queue, by);

        if names.queue && !q.is_null() {
            // SAFETY: A live queue with this id.
            unsafe { self.name_queue(queue as u16, q) };
        }
        if let Some(by) = by.filter(|_| names.task) {
            let task = self.take(1);

            // SAFETY: A free slot, and this CPU's table.
            unsafe { abi::blkrelay_name_task(self.cpu, task, by) };
            self.cpu.side = self.cpu.side.wrapping_add(1);
        }

        let now = self.now();
        // SAFETY: `take` returns a free slot, 32 bytes aligned.
        unsafe {
            self.take::<[u64; 4]>(1)
                .write([now, place, size_op, id_who])
        };
        if let Some(extra) = extra {
            // SAFETY: As above.
            unsafe { self.take::<abi::blkrelay_extra>(1).write(*extra) };
            self.cpu.side = self.cpu.side.wrapping_add(1);
        }
        now
    }

    /// The queue that an event's place names: that of what it is of, or, where an nvme multipath head's bio
    /// ends on one of its paths, the head's. Null if nobody knows it: then it goes without a name.
    ///
    /// # Safety
    ///
    /// As [`queue_of`].
    unsafe fn queue(&self, id: u16, of: *mut c_void, kind: Kind) -> *mut bindings::request_queue {
        // SAFETY: By the contract.
        let q = unsafe { queue_of(of, kind) };

        // SAFETY: As above: a live queue.
        if unsafe { (*q).id } == i32::from(id) {
            q
        } else {
            self.shared.queues.get(id)
        }
    }

    /// Which names the event needs that this sub-buffer does not have.
    fn missing_names(&self, queue: u32, by: Option<&abi::blkrelay_submitter>) -> Names {
        let named = self.cpu.queues.get(queue_entry(queue)) == Some(&queue);

        Names {
            queue: !named,
            // SAFETY: This CPU's table.
            task: by.is_some_and(|by| !unsafe { abi::blkrelay_task_named(self.cpu, by) }),
        }
    }

    /// Writes a device record.
    ///
    /// # Safety
    ///
    /// `q` is a live queue with this id.
    unsafe fn name_queue(&mut self, queue: u16, q: *mut bindings::request_queue) {
        // SAFETY: By the contract.
        let kept = unsafe { self.shared.queues.keep(queue, q) };
        // SAFETY: By the contract.
        let (disk, logical_block_size, hw_queues) = unsafe {
            (
                (&raw const (*q).disk).read_volatile(),
                (*q).limits.logical_block_size,
                (*q).nr_hw_queues,
            )
        };
        let mut device = abi::blkrelay_device {
            queue: u32::from(queue),
            who: record::side_who(abi::BLKRELAY_DEVICE, DEVICE_SLOTS as u32),
            logical_block_size,
            hw_queues,
            ..Default::default()
        };

        // A queue without a disk: of a passthrough device, or one whose disk is on its way out.
        if !disk.is_null() {
            // SAFETY: A queue's disk is freed by RCU after the pointer to it has been cleared
            // (`disk_release`, `bdev_free_inode`), and interrupts are off since before it was read.
            // So is its part0, with it.
            unsafe {
                device.capacity = (*(*disk).part0).bd_nr_sectors;
                device.diskseq = (*disk).diskseq;
                device.major = (*disk).major as u32;
                device.minor = (*disk).first_minor as u32;
                device.name = (*disk).disk_name;
            }
            // sd builds its names from the end, and leaves what it began with behind the NUL.
            let mut ended = false;
            for byte in &mut device.name {
                ended |= *byte == 0;
                if ended {
                    *byte = 0;
                }
            }
        }
        // SAFETY: `take` returns free slots.
        unsafe {
            self.take::<abi::blkrelay_device>(DEVICE_SLOTS)
                .write(device)
        };
        self.cpu.side = self.cpu.side.wrapping_add(DEVICE_SLOTS as u32);
        // A name holds for what follows only if the id cannot change its owner, and if there is a
        // name: a queue may get its disk later.
        if let Some(entry) = self.cpu.queues.get_mut(queue_entry(u32::from(queue))) {
            if kept && !disk.is_null() {
                *entry = u32::from(queue);
            }
        }
    }
}

/// For each CPU's stream: `online` on the CPU itself, `offline` for it if it is offline.
///
/// # Safety
///
/// As [`on_cpu`].
pub(crate) unsafe fn on_each_cpu(
    shared: &Shared,
    online: unsafe extern "C" fn(*mut c_void),
    mut offline: impl FnMut(Stream<'_>),
) {
    let cpus = CpusReadLock::new();

    for cpu in possible_cpus() {
        // SAFETY: By the contract.
        if !unsafe { on_cpu(&cpus, cpu, online) } {
            // SAFETY: An offline CPU runs no probe, and with the lock held it stays offline.
            offline(unsafe { Stream::new(abi::blkrelay_cpu_ptr(cpu), shared) });
        }
    }
}

const DEVICE_SLOTS: usize = core::mem::size_of::<abi::blkrelay_device>() / SLOT;

const _: () = assert!(core::mem::size_of::<abi::blkrelay_device>() % SLOT == 0);

/// Where a queue stands in the table. The same as in the shim.
fn queue_entry(queue: u32) -> usize {
    (queue % abi::BLKRELAY_QUEUES) as usize
}

/// Side records that are due before an event.
struct Names {
    queue: bool,
    task: bool,
}

impl Names {
    fn slots(&self) -> usize {
        let queue = if self.queue { DEVICE_SLOTS } else { 0 };
        let task = usize::from(self.task);

        queue + task
    }
}

/// What an event is of.
fn kind(id_who: u64, extra: Option<&abi::blkrelay_extra>) -> Kind {
    match extra {
        Some(times) if span::is_of_bio(&times.slot) => Kind::Bio,
        _ => record::kind(record::action(id_who)),
    }
}

/// The queue of an event.
///
/// # Safety
///
/// `of` is what the event is of, and live.
unsafe fn queue_of(of: *mut c_void, kind: Kind) -> *mut bindings::request_queue {
    match kind {
        Kind::Queue => of.cast(),
        // SAFETY: By the contract.
        Kind::Request => unsafe { (*of.cast::<bindings::request>()).q },
        // SAFETY: By the contract. A bio at a tracepoint has a device.
        Kind::Bio => unsafe { (*(*of.cast::<bindings::bio>()).bi_bdev).bd_queue },
    }
}

/// The bio of an event; of a request the first that is left. Null if there is none.
///
/// # Safety
///
/// As [`queue_of`].
unsafe fn bio_of(of: *mut c_void, kind: Kind) -> *mut bindings::bio {
    match kind {
        Kind::Queue => core::ptr::null_mut(),
        // SAFETY: By the contract.
        Kind::Request => unsafe { (*of.cast::<bindings::request>()).bio },
        Kind::Bio => of.cast(),
    }
}

/// Whether the event passes the filter of this CPU, see `shim.h`.
///
/// # Safety
///
/// Called by the shim alone, from a probe, with the state of this CPU and interrupts off; `of` is what
/// the event is of.
#[no_mangle]
unsafe extern "C" fn blkrelay_pass(
    cpu: *const abi::blkrelay_cpu,
    place: u64,
    size_op: u64,
    id_who: u64,
    of: *mut c_void,
    extra: *const abi::blkrelay_extra,
) -> bool {
    // SAFETY: The filter is replaced on its own CPU, or while no probe runs there, before it is freed:
    // see `Channel::set_filter`.
    let Some(filter) = (unsafe { (*cpu).filter.cast::<FilterSet>().as_ref() }) else {
        return true;
    };
    // SAFETY: By the contract.
    let kind = kind(id_who, unsafe { extra.as_ref() });
    // SAFETY: By the contract.
    let bio = unsafe { bio_of(of, kind) };
    let mut event = Event {
        place,
        size_op,
        id_who,
        kind,
        follows_data: false,
    };
    let (bytes, opf) = record::unpair(size_op);

    if kind == Kind::Request && opf & 0xff == REQ_OP_WRITE && !bio.is_null() {
        // SAFETY: The request is the event's own, and so is a write's bio until its last completion. Plain reads.
        let (left, preflush, has_data) = unsafe {
            (
                (*of.cast::<bindings::request>()).__data_len,
                (*bio).bi_opf & REQ_PREFLUSH,
                !(*bio).bi_io_vec.is_null(),
            )
        };

        event.size_op |= record::pair(0, preflush);
        event.follows_data = bytes == 0 && left == 0 && has_data;
    }
    if !filter.asked.pass(&event) || !filter.selection().pass(&event) {
        return false;
    }
    let ids = filter.cgroups();

    ids.is_empty()
        || !bio.is_null()
            && ids.iter().any(|&id| {
                // SAFETY: The event's own bio, which is live.
                unsafe { abi::blkrelay_bio_in_cgroup(bio, id) }
            })
}

/// See `shim.h`.
///
/// # Safety
///
/// Called by the shim alone.
#[no_mangle]
unsafe extern "C" fn blkrelay_is_traced(queue: u32) -> bool {
    FILTER.admit(queue as i32).is_some()
}

/// Where `blkrelay_emit()` turns to, see `shim.h`.
///
/// # Safety
///
/// As [`blkrelay_pass`]; `extra` is null or points to the record that follows the event, and `by` is null or
/// points to the task that it names.
#[no_mangle]
unsafe extern "C" fn blkrelay_emit_slow(
    cpu: *mut abi::blkrelay_cpu,
    place: u64,
    size_op: u64,
    id_who: u64,
    of: *mut c_void,
    extra: *const abi::blkrelay_extra,
    by: *const abi::blkrelay_submitter,
) -> u64 {
    // SAFETY: Called from a probe.
    let Some(shared) = (unsafe { current() }) else {
        return 0;
    };
    // SAFETY: Called on the CPU whose state this is, with interrupts off.
    let mut stream = unsafe { Stream::new(cpu, shared) };

    // SAFETY: By the contract.
    unsafe { stream.record([place, size_op, id_who], of, extra.as_ref(), by.as_ref()) }
}

declared!(blkrelay_pass, blkrelay_is_traced, blkrelay_emit_slow);
