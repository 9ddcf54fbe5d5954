// SPDX-License-Identifier: GPL-2.0

//! The relay channel: how records get into sub-buffers, and finished sub-buffers out of them.
//!
//! A CPU's stream has one writer, that CPU with interrupts off, and one reader, who has opened its
//! data file. They meet in two counters of the core's. The writer fills a sub-buffer, head last,
//! and only then has `relay_switch_subbuf()` raise `subbufs_produced`; the reader loads that with
//! acquire and looks at nothing beyond it. The reader copies, then raises `subbufs_consumed`; the
//! writer begins a sub-buffer again only when that says that it is free. The core's own read path
//! is not used: it hands out the sub-buffer that is being switched to.
//!
//! A sub-buffer is begun by the first event that goes into it, so its clock anchor is never older
//! than its first event, and a quiet CPU has nothing to flush.
//!
//! What does not fit is counted, never waited for.

use crate::{
    abi,
    clock::Clock,
    control,
    record::{
        self,
        HEAD,
        SLOT, //
    },
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        barrier::{
            smp_mb,
            Full,
            Write, //
        },
        Mutex, //
    },
    uaccess::UserSliceWriter, //
};

/// `blkrelay_subbuf.epoch`: filters do not change while a trace runs, so there is one.
pub(crate) const EPOCH: u32 = 1;

const _: () = assert!(HEAD == 128);

/// What a trace is made with.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    /// Bytes of a sub-buffer; a power of two, at least a page.
    pub(crate) subbuf_size: u32,
    /// Sub-buffers of each CPU, at least 2.
    pub(crate) subbufs: u32,
    /// Random, new for each trace.
    pub(crate) trace_id: [u8; 16],
    /// What the time stamps count.
    pub(crate) clock: Clock,
}

/// What writers and readers need to know of the channel.
struct Shared {
    chan: NonNull<abi::rchan>,
    config: Config,
    /// Set when nothing is written any more and every sub-buffer is finished.
    ended: Atomic<bool>,
}

/// The open channel, or null.
///
/// Probes reach the channel through this. It is set before the filter lets the first event pass and
/// cleared after the last probe has returned.
static CURRENT: Atomic<*mut Shared> = Atomic::new(core::ptr::null_mut());

/// Who reads.
struct Readers {
    /// Whether data files may be opened.
    admit: bool,
    /// Open data files. While there is one, the channel stays.
    count: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised by `init`, before any file or channel exists.
    unsafe(uninit) static READERS: Mutex<Readers> = Readers { admit: false, count: 0 };
}

/// Prepares what readers wait on.
///
/// # Safety
///
/// Called once, when the module is loaded.
pub(crate) unsafe fn init() {
    // SAFETY: By the contract, once.
    unsafe { READERS.init() };
    // SAFETY: Nobody waits yet.
    unsafe { abi::blkrelay_readers_init() };
}

/// Waits for wake-ups that are still under way. After this the module's memory may go.
pub(crate) fn exit() {
    // SAFETY: May sleep; no channel is open, so no wake-up is asked for any more.
    unsafe { abi::blkrelay_readers_sync() };
}

/// Every CPU that this machine can have.
fn possible_cpus() -> impl Iterator<Item = u32> {
    let ids = kernel::cpu::nr_cpu_ids();

    // SAFETY: Reads a mask that is constant after boot.
    (0..ids).filter(|&cpu| unsafe { abi::blkrelay_cpu_possible(cpu) })
}

/// An open channel, to which this module writes.
///
/// # Invariants
///
/// `CURRENT` points to `shared`, which came from [`KBox::into_raw`]; its `chan` is open.
pub(crate) struct Channel {
    shared: NonNull<Shared>,
}

// SAFETY: What it points to may be used by any thread.
unsafe impl Send for Channel {}

impl Channel {
    /// Whether the buffers of the CPUs that are online would take no more than half of the memory.
    /// Returns their bytes.
    ///
    /// # Errors
    ///
    /// [`OpenError::TooLarge`].
    pub(crate) fn fits(subbuf_size: u32, subbufs: u32) -> Result<u64, OpenError> {
        // SAFETY: Plain reads.
        let (cpus, ram) = unsafe { (abi::blkrelay_online_cpus(), abi::blkrelay_ram_bytes()) };
        let needed = u64::from(subbuf_size)
            .saturating_mul(u64::from(subbufs))
            .saturating_mul(u64::from(cpus));

        if needed > ram / 2 {
            return Err(OpenError::TooLarge { needed, ram });
        }
        Ok(needed)
    }

    /// Opens a channel with empty buffers for all CPUs that are online. Later ones follow by
    /// themselves.
    ///
    /// Data files appear in `dir` but cannot be opened before [`Channel::admit`].
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing is left behind.
    ///
    /// # Safety
    ///
    /// No probe is registered and no other channel is open. `dir` is a debugfs directory that
    /// outlives this.
    pub(crate) unsafe fn open(
        dir: *mut bindings::dentry,
        config: Config,
    ) -> Result<Self, OpenError> {
        for cpu in possible_cpus() {
            // SAFETY: The CPU is a possible one, and no probe is registered, so nobody else looks.
            unsafe { abi::blkrelay_cpu_ptr(cpu).write(fresh(cpu)) };
        }

        // Between the count of the CPUs and the list that relay keeps of its channels none may come
        // or go.
        let _cpus = CpusReadLock::new();

        let needed = Self::fits(config.subbuf_size, config.subbufs)?;

        // relay's own allocations would have processes killed before they failed. Only now: until
        // here the last trace may have had that memory.
        // SAFETY: Reads counters.
        if needed > unsafe { abi::blkrelay_available_bytes() } {
            return Err(OpenError::NoMemory);
        }

        // SAFETY: The name is a string, `dir` a directory, and the callbacks live as long as the
        // module, whose exit closes the channel.
        let chan = unsafe {
            abi::relay_open(
                c"data".as_char_ptr(),
                dir,
                config.subbuf_size as usize,
                config.subbufs as usize,
                &CALLBACKS.0,
                core::ptr::null_mut(),
            )
        };
        let chan = NonNull::new(chan).ok_or(OpenError::NoMemory)?;
        let shared = KBox::new(
            Shared {
                chan,
                config,
                ended: Atomic::new(false),
            },
            GFP_KERNEL,
        )
        .map_err(|_| {
            // SAFETY: Opened just now; no probe knows it.
            unsafe { abi::relay_close(chan.as_ptr()) };
            OpenError::NoMemory
        })?;
        let shared = KBox::into_raw(shared);

        CURRENT.store(shared, Release);
        // INVARIANT: Published just now; `into_raw` returns no null pointer.
        // SAFETY: As above.
        let shared = unsafe { NonNull::new_unchecked(shared) };

        Ok(Self { shared })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { self.shared.as_ref() }
    }

    /// What the channel was opened with.
    pub(crate) fn config(&self) -> &Config {
        &self.shared().config
    }

    /// Lets data files be opened from now on.
    pub(crate) fn admit(&self) {
        READERS.lock().admit = true;
    }

    /// Finishes every CPU's sub-buffer that holds records.
    ///
    /// Each CPU does it for itself, because only it may touch its stream; for one that is offline
    /// nobody else can.
    ///
    /// # Errors
    ///
    /// What `smp_call_function_single()` says. Streams of lower CPUs are flushed then.
    pub(crate) fn flush(&self) -> Result {
        let _cpus = CpusReadLock::new();

        for cpu in possible_cpus() {
            // SAFETY: A plain read; with the lock held it stays true.
            if unsafe { abi::blkrelay_cpu_online(cpu) } {
                // SAFETY: `flush_here` may run in an interrupt, and this waits until it has.
                to_result(unsafe {
                    bindings::smp_call_function_single(
                        cpu as i32,
                        Some(flush_here),
                        core::ptr::null_mut(),
                        true,
                    )
                })?;
            } else {
                // SAFETY: An offline CPU runs no probe, and with the lock held it stays offline.
                unsafe { Stream::new(abi::blkrelay_cpu_ptr(cpu), self.shared()) }.finish();
            }
        }
        Ok(())
    }

    /// Finishes every stream for good: readers see the end of file once they have read what is
    /// there.
    ///
    /// # Safety
    ///
    /// No probe is registered, and none runs any more.
    pub(crate) unsafe fn end(&self) {
        for cpu in possible_cpus() {
            // SAFETY: By the contract nobody else writes. A flush cannot be under way: that borrows
            // the channel as well, under the lock of `control`.
            unsafe { Stream::new(abi::blkrelay_cpu_ptr(cpu), self.shared()) }.finish();
        }
        self.shared().ended.store(true, Release);
        for cpu in possible_cpus() {
            // SAFETY: A possible CPU.
            unsafe { abi::blkrelay_reader_wake(cpu) };
        }
    }

    /// Keeps data files from being opened, so that the channel may be dropped.
    ///
    /// # Errors
    ///
    /// The number of data files that are open. Nothing has changed then.
    pub(crate) fn retire(&self) -> Result<(), usize> {
        let mut readers = READERS.lock();

        if readers.count > 0 {
            return Err(readers.count);
        }
        readers.admit = false;
        Ok(())
    }

    /// The counters of every CPU that has a stream or has lost events.
    ///
    /// Exact after [`Channel::end`]. While the trace runs, a CPU that is just finishing a sub-buffer may
    /// have that one counted twice or not at all.
    pub(crate) fn counters(&self) -> impl Iterator<Item = Counters> + '_ {
        possible_cpus().filter_map(|cpu| self.cpu_counters(cpu))
    }

    fn cpu_counters(&self, cpu: u32) -> Option<Counters> {
        // SAFETY: A possible CPU.
        let state = unsafe { abi::blkrelay_cpu_ptr(cpu) };
        // SAFETY: The state is static. Its CPU may be writing: each word is read once, and whole.
        let (finished, lost, subbuf, pos, side) = unsafe {
            (
                (&raw const (*state).events).read_volatile(),
                (&raw const (*state).lost).read_volatile(),
                (&raw const (*state).subbuf).read_volatile(),
                (&raw const (*state).pos).read_volatile(),
                (&raw const (*state).side).read_volatile(),
            )
        };
        let unfinished = if subbuf.is_null() {
            0
        } else {
            let used = (pos as usize).saturating_sub((subbuf as usize).wrapping_add(HEAD));
            // Read while the CPU went on to the next sub-buffer, these are the ends of two.
            let used = if used < self.config().subbuf_size as usize {
                used
            } else {
                0
            };
            ((used / SLOT) as u64).saturating_sub(u64::from(side))
        };
        // SAFETY: The channel is open and the CPU a possible one.
        let buf = unsafe { abi::blkrelay_buf(self.shared().chan.as_ptr(), cpu) };

        if buf.is_null() && lost == 0 {
            return None;
        }
        let (produced, consumed) = if buf.is_null() {
            (0, 0)
        } else {
            // SAFETY: Buffers live as long as the channel; the counters are read once each.
            unsafe {
                (
                    (&raw const (*buf).subbufs_produced).read_volatile(),
                    (&raw const (*buf).subbufs_consumed).read_volatile(),
                )
            }
        };

        Some(Counters {
            cpu,
            events: finished.wrapping_add(unfinished),
            lost,
            produced,
            consumed,
            // SAFETY: A possible CPU.
            open: unsafe { abi::blkrelay_reader_taken(cpu) },
        })
    }
}

impl Drop for Channel {
    /// Closes the channel. Probes are gone by now, and so are readers: see [`Channel::retire`];
    /// when the module is unloaded there are none because each would hold the module.
    fn drop(&mut self) {
        READERS.lock().admit = false;
        CURRENT.store(core::ptr::null_mut(), Relaxed);
        // SAFETY: By the type invariant the box was ours to take back, and nobody else knows it any
        // more.
        let shared = unsafe { KBox::from_raw(self.shared.as_ptr()) };
        // SAFETY: The channel is open, and nobody writes or reads. This removes the data files, and
        // waits for whoever is just opening one: that does not wait for us, see `Reader::new`.
        unsafe { abi::relay_close(shared.chan.as_ptr()) };
    }
}

/// Why there is no channel.
pub(crate) enum OpenError {
    /// More than half of the memory.
    TooLarge {
        /// Bytes for all CPUs that are online.
        needed: u64,
        /// Bytes of memory.
        ram: u64,
    },
    /// Not enough memory is free.
    NoMemory,
}

/// What a CPU has written and lost, in events, and where reader and writer are, in sub-buffers.
pub(crate) struct Counters {
    /// The CPU.
    pub(crate) cpu: u32,
    /// Events in the stream.
    pub(crate) events: u64,
    /// Events that are not.
    pub(crate) lost: u64,
    /// Sub-buffers finished.
    pub(crate) produced: usize,
    /// Sub-buffers read.
    pub(crate) consumed: usize,
    /// Whether the data file is open.
    pub(crate) open: bool,
}

/// Keeps CPUs from coming and going.
struct CpusReadLock;

impl CpusReadLock {
    fn new() -> Self {
        // SAFETY: May sleep here. Never taken twice: only `open` and `flush` take it, and neither
        // calls the other.
        unsafe { bindings::cpus_read_lock() };
        Self
    }
}

impl Drop for CpusReadLock {
    fn drop(&mut self) {
        // SAFETY: Taken by `new`.
        unsafe { bindings::cpus_read_unlock() };
    }
}

// ---- Writing ------------------------------------------------------------------------------------

/// A CPU's state before its first event.
fn fresh(cpu: u32) -> abi::blkrelay_cpu {
    let nobody = abi::blkrelay_seen {
        pid: abi::BLKRELAY_NOBODY,
        ..Default::default()
    };

    abi::blkrelay_cpu {
        cpu,
        queues: [abi::BLKRELAY_NOBODY; abi::BLKRELAY_QUEUES as usize],
        tasks: [nobody; abi::BLKRELAY_TASKS as usize],
        ..Default::default()
    }
}

/// The writer's end of one CPU's stream.
struct Stream<'a> {
    cpu: &'a mut abi::blkrelay_cpu,
    shared: &'a Shared,
}

impl<'a> Stream<'a> {
    /// # Safety
    ///
    /// `cpu` is the state of a possible CPU, and nobody else writes to that stream for as long as
    /// this lives: either this is that CPU and interrupts are off, or no probe can run there.
    unsafe fn new(cpu: *mut abi::blkrelay_cpu, shared: &'a Shared) -> Self {
        Self {
            // SAFETY: By the contract. `counters` reads single words meanwhile, and says so.
            cpu: unsafe { &mut *cpu },
            shared,
        }
    }

    /// This CPU's buffer; null while it is only just coming up.
    fn buf(&self) -> *mut abi::rchan_buf {
        // SAFETY: The channel is open while a `Shared` is borrowed; the CPU is a possible one.
        unsafe { abi::blkrelay_buf(self.shared.chan.as_ptr(), self.cpu.cpu) }
    }

    fn now(&mut self) -> u64 {
        // SAFETY: This CPU's state, exclusively ours.
        unsafe { abi::blkrelay_clock(self.cpu) }
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
        let buf = self.buf();
        let size = self.shared.config.subbuf_size as usize;

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
                flags: if anchor.exact {
                    0
                } else {
                    abi::BLKRELAY_SUBBUF_ANCHOR_BAD as u16
                },
                trace_id: config.trace_id,
                cpu: cpu.cpu,
                epoch: EPOCH,
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
    fn finish(&mut self) {
        let buf = self.buf();
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
        // SAFETY: A possible CPU.
        unsafe { abi::blkrelay_reader_wake(self.cpu.cpu) };
    }

    /// Records an event that the fast path could not.
    ///
    /// # Safety
    ///
    /// `q` is the live queue that the event's place names.
    unsafe fn record(
        &mut self,
        [place, size_op, id_who]: [u64; 3],
        q: *mut bindings::request_queue,
        from: Option<&abi::blkrelay_from>,
    ) {
        let queue = (place >> abi::BLKRELAY_SECTOR_BITS) as u32;
        let own = if from.is_some() { 2 } else { 1 };

        if self.cpu.subbuf.is_null()
            || !self.has_room(own + self.missing_names(queue, id_who).slots())
        {
            self.finish();
            if !self.begin() {
                self.lose();
                return;
            }
        }
        // A new sub-buffer has named nobody yet.
        let names = self.missing_names(queue, id_who);

        if names.queue {
            // SAFETY: By the contract.
            unsafe { self.name_queue(queue, q) };
        }
        if names.task {
            let task = self.take(1);

            // SAFETY: A free slot, and this CPU's table.
            unsafe { abi::blkrelay_name_task(self.cpu, task) };
            self.cpu.side = self.cpu.side.wrapping_add(1);
        }

        let now = self.now();
        // SAFETY: `take` returns a free slot, 32 bytes aligned.
        unsafe {
            self.take::<[u64; 4]>(1)
                .write([now, place, size_op, id_who])
        };
        if let Some(from) = from {
            // SAFETY: As above.
            unsafe { self.take::<abi::blkrelay_from>(1).write(*from) };
            self.cpu.side = self.cpu.side.wrapping_add(1);
        }
    }

    /// Which names the event needs that this sub-buffer does not have.
    fn missing_names(&self, queue: u32, id_who: u64) -> Names {
        let named = self.cpu.queues.get(queue_entry(queue)) == Some(&queue);

        Names {
            queue: !named,
            task: !record::is_completion(id_who)
                // SAFETY: This CPU's table.
                && !unsafe { abi::blkrelay_task_named(self.cpu) },
        }
    }

    /// Writes a device record.
    ///
    /// # Safety
    ///
    /// `q` is a live queue with this id.
    unsafe fn name_queue(&mut self, queue: u32, q: *mut bindings::request_queue) {
        // SAFETY: By the contract.
        let (disk, logical_block_size, hw_queues) = unsafe {
            (
                (&raw const (*q).disk).read_volatile(),
                (*q).limits.logical_block_size,
                (*q).nr_hw_queues,
            )
        };
        let mut device = abi::blkrelay_device {
            queue,
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
        }
        // SAFETY: `take` returns free slots.
        unsafe {
            self.take::<abi::blkrelay_device>(DEVICE_SLOTS)
                .write(device)
        };
        self.cpu.side = self.cpu.side.wrapping_add(DEVICE_SLOTS as u32);
        if let Some(entry) = self.cpu.queues.get_mut(queue_entry(queue)) {
            *entry = queue;
        }
    }
}

const DEVICE_SLOTS: usize = core::mem::size_of::<abi::blkrelay_device>() / SLOT;

const _: () = assert!(core::mem::size_of::<abi::blkrelay_device>() % SLOT == 0);

/// Where a queue stands in the table. The same as in the shim's fast path.
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

/// Where the fast path in the shim turns to, see `shim.h`.
///
/// # Safety
///
/// Called by the shim alone, from a probe, with the state of this CPU and interrupts off.
#[no_mangle]
unsafe extern "C" fn blkrelay_emit_slow(
    cpu: *mut abi::blkrelay_cpu,
    place: u64,
    size_op: u64,
    id_who: u64,
    q: *mut bindings::request_queue,
    from: *const abi::blkrelay_from,
) {
    // SAFETY: Who got past the filter is a probe that has not returned, and until it has the
    // channel stays.
    let Some(shared) = (unsafe { CURRENT.load(Acquire).as_ref() }) else {
        return;
    };
    // SAFETY: Called on the CPU whose state this is, with interrupts off.
    let mut stream = unsafe { Stream::new(cpu, shared) };

    // SAFETY: The probe passes a live queue, and either no `from` or one on its stack.
    unsafe { stream.record([place, size_op, id_who], q, from.as_ref()) };
}

// It is what `shim.h` declares, or this does not compile.
const _: () = {
    if true {
        abi::blkrelay_emit_slow
    } else {
        blkrelay_emit_slow
    };
};

/// Finishes this CPU's sub-buffer.
///
/// # Safety
///
/// Called by an interrupt between processors, for [`Channel::flush`].
unsafe extern "C" fn flush_here(_: *mut c_void) {
    // SAFETY: Whoever asks for a flush borrows the channel until this has run.
    if let Some(shared) = unsafe { CURRENT.load(Acquire).as_ref() } {
        // SAFETY: This CPU, with interrupts off.
        unsafe { Stream::new(abi::blkrelay_this_cpu(), shared) }.finish();
    }
}

// ---- What the relay core calls ------------------------------------------------------------------

struct Callbacks(abi::rchan_callbacks);

// SAFETY: Function pointers only.
unsafe impl Sync for Callbacks {}

/// Without `subbuf_start` the core refuses a sub-buffer that has not been consumed: what we want.
static CALLBACKS: Callbacks = Callbacks(abi::rchan_callbacks {
    subbuf_start: None,
    create_buf_file: Some(create_buf_file),
    remove_buf_file: Some(remove_buf_file),
});

/// Called by `relay_open()`, and later for each CPU that comes up.
///
/// # Safety
///
/// `name` is the string "data" with the CPU's number, `buf` a buffer that is being made.
unsafe extern "C" fn create_buf_file(
    name: *const kernel::ffi::c_char,
    parent: *mut bindings::dentry,
    mode: bindings::umode_t,
    buf: *mut abi::rchan_buf,
    _is_global: *mut i32,
) -> *mut bindings::dentry {
    // SAFETY: By the contract.
    let name = unsafe { CStr::from_char_ptr(name) };
    let cpu = name
        .to_bytes()
        .strip_prefix(b"data")
        .and_then(|digits| core::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse::<u32>().ok());
    let Some(cpu) = cpu else {
        return core::ptr::null_mut();
    };

    // The core fills this in later, but when the file cannot be made it clears the entry of
    // `buf->cpu` among the channel's buffers: CPU 0's, which would be lost.
    // SAFETY: By the contract.
    unsafe { (*buf).cpu = cpu };
    // SAFETY: Called with a directory that lives as long as the channel.
    unsafe { control::create_data_file(name, parent, mode, cpu) }
}

/// Called when the channel is closed, or could not be opened.
///
/// # Safety
///
/// `file` is what [`create_buf_file`] has returned.
unsafe extern "C" fn remove_buf_file(file: *mut bindings::dentry) -> i32 {
    // SAFETY: By the contract.
    unsafe { bindings::debugfs_remove(file) };
    0
}

// ---- Reading ------------------------------------------------------------------------------------

/// The reader's end of one CPU's stream: what an open data file holds.
///
/// # Invariants
///
/// While this exists it is counted in `READERS`, so the channel behind `shared` stays; and it is
/// the only one for its CPU.
#[pin_data(PinnedDrop)]
pub(crate) struct Reader {
    cpu: u32,
    shared: NonNull<Shared>,
    /// Two threads may read from one open file.
    #[pin]
    turn: Mutex<()>,
}

// SAFETY: `Shared` may be used by any thread, and `turn` sees to it that one reads at a time.
unsafe impl Send for Reader {}

// SAFETY: As above.
unsafe impl Sync for Reader {}

impl Reader {
    /// Becomes the reader of a CPU's stream.
    ///
    /// Takes no lock that is held while the channel is opened or closed: closing waits for this.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one already, or the trace is just being started or replaced.
    pub(crate) fn new(cpu: u32) -> Result<Pin<KBox<Self>>> {
        let mut readers = READERS.lock();
        let shared = NonNull::new(CURRENT.load(Acquire)).filter(|_| readers.admit);
        let shared = shared.ok_or(EBUSY)?;

        // SAFETY: A data file is made for possible CPUs only.
        if !unsafe { abi::blkrelay_reader_take(cpu) } {
            return Err(EBUSY);
        }
        // INVARIANT: Counted below or not made; `take` has made sure that there is no other.
        let reader = KBox::pin_init(
            pin_init!(Self {
                cpu,
                shared,
                turn <- new_mutex!(()),
            }),
            GFP_KERNEL,
        );

        match reader {
            Ok(reader) => {
                readers.count = readers.count.wrapping_add(1);
                Ok(reader)
            }
            Err(error) => {
                // SAFETY: As above.
                unsafe { abi::blkrelay_reader_release(cpu) };
                Err(error)
            }
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { self.shared.as_ref() }
    }

    fn buf(&self) -> *mut abi::rchan_buf {
        // SAFETY: The channel is open by the type invariant.
        unsafe { abi::blkrelay_buf(self.shared().chan.as_ptr(), self.cpu) }
    }

    /// Sub-buffers that are finished and not consumed: how many, and the number of the first.
    fn finished(&self, buf: *mut abi::rchan_buf) -> (usize, usize) {
        if buf.is_null() {
            return (0, 0);
        }
        // SAFETY: A buffer lives as long as the channel. The writer raises the counter with a plain
        // store after a barrier, which this load pairs with.
        let produced = unsafe { Atomic::from_ptr(&raw mut (*buf).subbufs_produced) }.load(Acquire);
        // SAFETY: As above; only a reader changes this one.
        let consumed = unsafe { (&raw const (*buf).subbufs_consumed).read_volatile() };

        (produced.wrapping_sub(consumed), consumed)
    }

    /// Copies as many whole finished sub-buffers as fit, each cut to what it holds, and consumes
    /// them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the user's buffer is smaller than a sub-buffer, `EAGAIN` if none is finished and
    /// the trace runs, `EFAULT` if none could be copied. `Ok(0)` means that there will be none any
    /// more.
    pub(crate) fn read(&self, out: &mut UserSliceWriter) -> Result<usize> {
        let shared = self.shared();
        let size = shared.config.subbuf_size as usize;
        let subbufs = shared.config.subbufs as usize;

        if out.len() < size {
            return Err(EINVAL);
        }

        let _turn = self.turn.lock();
        // First whether it is over, then what there is: the other way round the last would be
        // missed.
        let ended = shared.ended.load(Acquire);
        let buf = self.buf();
        let (finished, first) = self.finished(buf);
        let mut copied = 0usize;
        let mut done = 0usize;
        let mut error = if ended { Ok(0) } else { Err(EAGAIN) };

        while done < finished {
            let number = first.wrapping_add(done).checked_rem(subbufs).unwrap_or(0);
            // SAFETY: `start` is the buffer's memory, of `subbufs` times `size` bytes, and `number`
            // is less.
            let subbuf = unsafe { (*buf).start }.wrapping_byte_add(number.wrapping_mul(size));
            // SAFETY: A finished sub-buffer begins with a head. It stays as it is until it is
            // consumed.
            let used = unsafe { (*subbuf.cast::<abi::blkrelay_subbuf>()).used } as usize;
            let used = used.max(HEAD).min(size);

            if used > out.len() {
                break;
            }
            // SAFETY: As above, and `used` bytes are within it.
            let bytes = unsafe { core::slice::from_raw_parts(subbuf.cast::<u8>(), used) };

            if let Err(e) = out.write_slice(bytes) {
                error = Err(e);
                break;
            }
            copied = copied.wrapping_add(used);
            done = done.wrapping_add(1);
        }

        if done == 0 {
            return error;
        }
        // All is read before the writer may have it back: pairs with the barrier in
        // `Stream::begin`.
        smp_mb(Full);
        // SAFETY: The channel is open, and these sub-buffers are produced.
        unsafe { abi::relay_subbufs_consumed(shared.chan.as_ptr(), self.cpu, done) };
        Ok(copied)
    }

    /// Waits on nothing itself, but has `table` woken when [`Reader::read`] has something to say.
    /// Returns whether it has now.
    ///
    /// # Safety
    ///
    /// `file` is the open file that holds this, and `table` what its `poll` was called with.
    pub(crate) unsafe fn poll(
        &self,
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bool {
        // SAFETY: By the contract. What is waited on is the module's, which an open file holds.
        unsafe { abi::blkrelay_reader_poll(self.cpu, file, table) };
        let ended = self.shared().ended.load(Acquire);

        ended || self.finished(self.buf()).0 > 0
    }
}

#[pinned_drop]
impl PinnedDrop for Reader {
    fn drop(self: Pin<&mut Self>) {
        let mut readers = READERS.lock();

        // SAFETY: Taken in `new`.
        unsafe { abi::blkrelay_reader_release(self.cpu) };
        readers.count = readers.count.wrapping_sub(1);
    }
}
