// SPDX-License-Identifier: GPL-2.0

//! The relay channel: every CPU's buffer, from start to the next start; what changes meanwhile (the filter,
//! the epoch), and the counters.
//!
//! `stream.rs` writes into the buffers and `reader.rs` reads them. Each CPU has a relay channel of its
//! own, "global" as the relay core calls one that has a single buffer. So it is ours to decide what
//! happens when a CPU comes up and there is no memory for its buffer: the core's own handling of CPUs
//! would keep the CPU from coming up. It comes up here, and its events are counted as lost.

use crate::{
    abi,
    config::Mode,
    cpus::{
        possible_cpus,
        synchronize_probes,
        CpusReadLock, //
    },
    devices::Queues,
    filter::FILTER,
    flight::{
        freeze_wait,
        Flight, //
    },
    reader,
    record::{
        HEAD,
        SLOT, //
    },
    shared::{
        self,
        Config,
        FilterSet,
        Shared,
        CURRENT, //
    },
    span::Spans,
    stream::{
        self,
        on_each_cpu,
        Stream, //
    }, //
};
use core::{
    ffi::c_void,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    str::CString,
    sync::atomic::{
        Atomic,
        Relaxed,
        Release, //
    }, //
};

/// Prepares for CPUs and disks that come.
///
/// # Errors
///
/// Those of the kernel's CPU hotplug and of its devices; nothing is left behind.
///
/// # Safety
///
/// Called once, when the module is loaded.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: By the contract, once.
    unsafe { reader::init() };
    // SAFETY: By the contract, once.
    unsafe { abi::blkrelay_flight_init() };
    // SAFETY: Its callback finds no channel.
    to_result(unsafe { abi::blkrelay_hotplug_init() })?;
    // SAFETY: May sleep.
    to_result(unsafe { abi::blkrelay_disks_init() }).inspect_err(|_| {
        // SAFETY: Set up just now.
        unsafe { abi::blkrelay_hotplug_exit() };
    })
}

/// After this the module's memory may go. No channel is open any more.
pub(crate) fn exit() {
    // SAFETY: Set up by `init`. May sleep.
    unsafe {
        abi::blkrelay_disks_exit();
        abi::blkrelay_hotplug_exit();
    }
    reader::exit();
}

// ---- The channel --------------------------------------------------------------------------------

/// An open channel, to which this module writes.
///
/// # Invariants
///
/// `CURRENT` points to `shared`, which came from a [`KBox`] that was leaked.
pub(crate) struct Channel {
    shared: NonNull<Shared>,
    filter: KBox<FilterSet>,
    epoch: u32,
}

// SAFETY: `Shared` may be used by any thread, and the filter is plain data.
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

    /// Bytes of its buffers.
    pub(crate) fn bytes(&self) -> u64 {
        let config = self.config();
        let buffers = self.counters().filter(|c| c.buffer).count() as u64;

        buffers * u64::from(config.subbuf_size) * u64::from(config.subbufs)
    }

    /// Opens a channel with empty buffers for all CPUs that are online. Later ones follow by
    /// themselves.
    ///
    /// Data files appear in `directory` but cannot be opened before [`Channel::run`].
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing is left behind.
    ///
    /// # Safety
    ///
    /// No probe is registered and no other channel is open. `directory` is a debugfs directory that
    /// outlives this.
    pub(crate) unsafe fn open(
        directory: *mut bindings::dentry,
        config: Config,
        queues: Queues,
        spans: Option<Spans>,
        flight: Option<Pin<KBox<Flight>>>,
        filter: KBox<FilterSet>,
    ) -> Result<Self, OpenError> {
        let shared = KBox::new(
            Shared {
                config,
                queues,
                spans,
                flight,
                directory,
                ended: Atomic::new(false),
            },
            GFP_KERNEL,
        )
        .map_err(|_| OpenError::NoMemory)?;
        // From here to the first CPU that comes up by itself none may come or go.
        let _cpus = CpusReadLock::new();

        for cpu in possible_cpus() {
            // SAFETY: The CPU is a possible one, and no probe is registered, so nobody else looks.
            unsafe {
                abi::blkrelay_cpu_ptr(cpu).write(stream::fresh(cpu, FIRST_EPOCH, filter.as_ptr()))
            };
        }

        let needed = Self::fits(config.subbuf_size, config.subbufs)?;
        // relay's own allocations would have processes killed before they failed. Only now: until
        // here the last trace may have had that memory.
        // SAFETY: Reads counters.
        if needed > unsafe { abi::blkrelay_available_bytes() } {
            return Err(OpenError::NoMemory);
        }

        for cpu in possible_cpus() {
            // SAFETY: A plain read; with the lock held it stays true. And the CPU's state is ours.
            if unsafe { abi::blkrelay_cpu_online(cpu) && !open_buffer(cpu, &shared) } {
                close_buffers();
                return Err(OpenError::NoMemory);
            }
        }

        let shared = NonNull::from(KBox::leak(shared));
        CURRENT.store(shared.as_ptr(), Release);

        // INVARIANT: Published just now.
        Ok(Self {
            shared,
            filter,
            epoch: FIRST_EPOCH,
        })
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { self.shared.as_ref() }
    }

    /// What the channel was opened with.
    pub(crate) fn config(&self) -> &Config {
        &self.shared().config
    }

    /// `blkrelay_subbuf.epoch` of what is recorded now.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Sets the keys that say what an event is asked.
    fn ask(&self, filter: bool) {
        let watch = self
            .shared()
            .flight()
            .is_some_and(|flight| flight.watches());

        // SAFETY: Called by commands only, which may sleep.
        unsafe { abi::blkrelay_ask(filter, watch, self.config().names) };
    }

    /// Lets readers in, and events. Probes are registered.
    pub(crate) fn run(&self) {
        reader::admit();
        if let Some(spans) = &self.shared().spans {
            spans.publish();
        }
        self.ask(!self.filter.is_map());
        FILTER.open(self.filter.selection());
    }

    /// Lets no event pass any more: not even by the fast path, once this returns. A probe that has passed
    /// already still records.
    pub(crate) fn shut(&self) {
        FILTER.close();
        // SAFETY: Called by commands only, which may sleep.
        unsafe { abi::blkrelay_forget_queues() };
    }

    /// No span is of what was stamped before: it may have been completed unseen.
    fn forget_stamps(&self) {
        if let Some(spans) = &self.shared().spans {
            spans.forget();
        }
    }

    /// Replaces the filter. On each CPU the old one holds for every event up to an instant and the
    /// new one from then on, and there the epoch changes.
    ///
    /// While both are in use the map of queues lets through what either wants, and each event is put to the
    /// filter of its CPU.
    pub(crate) fn set_filter(&mut self, filter: KBox<FilterSet>) {
        let old = core::mem::replace(&mut self.filter, filter);

        self.ask(true);
        // What a queue's stamps were of may have ended unseen since it was last traced.
        self.forget_stamps();
        FILTER.open(self.filter.selection());
        // A probe that has not been told to ask is gone after this.
        synchronize_probes();

        self.next_epoch();

        FILTER.narrow(self.filter.selection());
        // One that has passed the wider map still asks.
        synchronize_probes();
        self.ask(!self.filter.is_map());
        // No CPU uses it any more.
        drop(old);

        let Some(flight) = self.shared().flight() else {
            return;
        };
        // What began under the old filter may end unseen under the new one.
        flight.forget();
        if flight.trigger().is_some() {
            // The trigger was pulled meanwhile, and the gate may have been closed before it was opened
            // above.
            freeze_wait();
            FILTER.close();
            synchronize_probes();
        }
    }

    /// On every CPU, a new epoch begins, with the filter of now.
    fn next_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        NEXT_EPOCH.store(self.epoch, Relaxed);
        NEXT_FILTER.store(self.filter.as_ptr().cast_mut(), Release);
        // SAFETY: `next_epoch_here` finds the channel that `self` keeps.
        unsafe {
            on_each_cpu(self.shared(), next_epoch_here, |mut stream| {
                stream.set_epoch(self.epoch, self.filter.as_ptr());
            });
        }
    }

    /// Lets a frozen flight recorder run on, in a new epoch.
    pub(crate) fn arm(&mut self) {
        freeze_wait();
        self.epoch = self.epoch.wrapping_add(1);
        if let Some(flight) = self.shared().flight() {
            flight.arm(self.shared(), self.epoch);
        }
        self.forget_stamps();
        FILTER.open(self.filter.selection());
    }

    /// Finishes every CPU's sub-buffer that holds records.
    ///
    /// Each CPU does it for itself, because only it may touch its stream; for one that is offline
    /// nobody else can.
    pub(crate) fn flush(&self) {
        // SAFETY: `flush_here` finds the channel that `self` keeps.
        unsafe { on_each_cpu(self.shared(), flush_here, |mut stream| stream.finish()) };
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
            let mut stream = unsafe { Stream::new(abi::blkrelay_cpu_ptr(cpu), self.shared()) };

            stream.finish();
            if self.config().mode == Mode::Overwrite {
                stream.keep_newest();
            }
        }
        self.shared().ended.store(true, Release);
        for cpu in possible_cpus() {
            // SAFETY: A possible CPU.
            unsafe { abi::blkrelay_reader_wake(cpu) };
        }
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
        let (finished, lost, subbuf, pos, side, buf) = unsafe {
            (
                (&raw const (*state).events).read_volatile(),
                (&raw const (*state).lost).read_volatile(),
                (&raw const (*state).subbuf).read_volatile(),
                (&raw const (*state).pos).read_volatile(),
                (&raw const (*state).side).read_volatile(),
                (&raw const (*state).buf).read_volatile(),
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
            buffer: !buf.is_null(),
        })
    }
}

impl Drop for Channel {
    /// Closes the channel. Probes are gone by now, and so are readers: see [`reader::retire`];
    /// when the module is unloaded there are none because each would hold the module.
    fn drop(&mut self) {
        reader::expel();
        // A disk that is just coming has its turn first: see `blkrelay_span_disk`.
        // SAFETY: May sleep, and holds none of the locks that are taken before this one.
        unsafe { abi::blkrelay_disks_lock() };
        {
            let _cpus = CpusReadLock::new();

            CURRENT.store(null_mut(), Relaxed);
        }
        // SAFETY: Taken above.
        unsafe { abi::blkrelay_disks_unlock() };
        // This removes the data files, and waits for whoever is just opening one: that does not wait
        // for us, see `Reader::new`.
        close_buffers();
        // SAFETY: By the type invariant the box was ours to take back, and nobody else knows it any
        // more.
        drop(unsafe { KBox::from_raw(self.shared.as_ptr()) });
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
    /// Sub-buffers read, or in a flight recorder passed over.
    pub(crate) consumed: usize,
    /// Whether the data file is open.
    pub(crate) open: bool,
    /// Whether the CPU has a buffer.
    pub(crate) buffer: bool,
}

/// Of a trace's first events.
const FIRST_EPOCH: u32 = 1;

/// What `next_epoch_here` sets.
static NEXT_EPOCH: Atomic<u32> = Atomic::new(0);
static NEXT_FILTER: Atomic<*mut c_void> = Atomic::new(null_mut());

/// # Safety
///
/// Called by [`on_each_cpu`], for [`Channel::next_epoch`], which borrows the channel.
unsafe extern "C" fn next_epoch_here(_: *mut c_void) {
    // SAFETY: By the contract.
    if let Some(shared) = unsafe { shared::current() } {
        // SAFETY: This CPU, with interrupts off.
        unsafe { Stream::new(abi::blkrelay_this_cpu(), shared) }
            .set_epoch(NEXT_EPOCH.load(Relaxed), NEXT_FILTER.load(Relaxed));
    }
}

/// Finishes this CPU's sub-buffer.
///
/// # Safety
///
/// Called by [`on_each_cpu`], for [`Channel::flush`], which borrows the channel.
unsafe extern "C" fn flush_here(_: *mut c_void) {
    // SAFETY: By the contract.
    if let Some(shared) = unsafe { shared::current() } {
        // SAFETY: This CPU, with interrupts off.
        unsafe { Stream::new(abi::blkrelay_this_cpu(), shared) }.finish();
    }
}

// ---- Buffers ------------------------------------------------------------------------------------

/// Makes a CPU's buffer and its data file. Returns false if there is no memory.
///
/// # Safety
///
/// No probe runs on that CPU, and nobody else opens or closes buffers.
unsafe fn open_buffer(cpu: u32, shared: &Shared) -> bool {
    let callbacks = match shared.config.mode {
        Mode::Discard => &DISCARD,
        Mode::Overwrite => &OVERWRITE,
    };
    // SAFETY: The name is a string, the directory outlives the channel, and so do the callbacks.
    let chan = unsafe {
        abi::relay_open(
            c"data".as_char_ptr(),
            shared.directory,
            shared.config.subbuf_size as usize,
            shared.config.subbufs as usize,
            &callbacks.0,
            core::ptr::without_provenance_mut(cpu as usize),
        )
    };

    if chan.is_null() {
        return false;
    }
    // SAFETY: The channel is open and has one buffer; the CPU's state is ours for now, but for
    // `counters` and `Reader`, which read the word whole.
    unsafe {
        let buf = abi::blkrelay_buf(chan);

        (&raw mut (*abi::blkrelay_cpu_ptr(cpu)).buf).write_volatile(buf);
    }
    true
}

/// Closes every buffer there is.
fn close_buffers() {
    for cpu in possible_cpus() {
        // SAFETY: A possible CPU. Nobody writes or reads any more.
        unsafe {
            let state = abi::blkrelay_cpu_ptr(cpu);
            let buf = core::mem::replace(&mut (*state).buf, null_mut());

            if !buf.is_null() {
                abi::relay_close((*buf).chan);
            }
        }
    }
}

/// A CPU is about to come up, see `shim.h`.
///
/// # Safety
///
/// Called by the shim alone, with the CPU hotplug lock held for writing: the channel comes and goes
/// with that lock held for reading, so it stays meanwhile.
#[no_mangle]
unsafe extern "C" fn blkrelay_cpu_prepare(cpu: u32) {
    // SAFETY: By the contract.
    let Some(shared) = (unsafe { shared::current() }) else {
        return;
    };
    let bytes = u64::from(shared.config.subbuf_size) * u64::from(shared.config.subbufs);

    // SAFETY: A possible CPU, and reads of a word and of counters. The CPU's state is ours: it does not
    // run yet.
    let made = unsafe {
        !(*abi::blkrelay_cpu_ptr(cpu)).buf.is_null()
            || bytes <= abi::blkrelay_available_bytes() && open_buffer(cpu, shared)
    };
    if !made {
        pr_warn!("CPU {cpu}: no memory for its buffer; its events are counted as lost\n");
    }
}

declared!(blkrelay_cpu_prepare);

struct Callbacks(abi::rchan_callbacks);

// SAFETY: Function pointers only.
unsafe impl Sync for Callbacks {}

/// Without `subbuf_start` the core refuses a sub-buffer that has not been consumed.
static DISCARD: Callbacks = Callbacks(abi::rchan_callbacks {
    subbuf_start: None,
    create_buf_file: Some(create_buf_file),
    remove_buf_file: Some(remove_buf_file),
});

static OVERWRITE: Callbacks = Callbacks(abi::rchan_callbacks {
    subbuf_start: Some(subbuf_start),
    create_buf_file: Some(create_buf_file),
    remove_buf_file: Some(remove_buf_file),
});

/// The oldest sub-buffer may always be written over: nobody reads while a flight recorder runs.
///
/// # Safety
///
/// None.
unsafe extern "C" fn subbuf_start(
    _buf: *mut abi::rchan_buf,
    _subbuf: *mut c_void,
    _last: *mut c_void,
) -> i32 {
    1
}

/// Called by `relay_open()`.
///
/// # Safety
///
/// `buf` is a buffer that is being made, of a channel whose private data is the CPU, and `parent` a
/// directory that outlives it.
unsafe extern "C" fn create_buf_file(
    _name: *const kernel::ffi::c_char,
    parent: *mut bindings::dentry,
    mode: bindings::umode_t,
    buf: *mut abi::rchan_buf,
    is_global: *mut i32,
) -> *mut bindings::dentry {
    // SAFETY: By the contract.
    let cpu = unsafe { (*(*buf).chan).private_data } as usize as u32;

    // SAFETY: By the contract. One buffer for one channel.
    unsafe { *is_global = 1 };
    match CString::try_from_fmt(fmt!("data{cpu}")) {
        // SAFETY: By the contract.
        Ok(name) => unsafe { reader::create_data_file(&name, parent, mode, cpu) },
        Err(_) => null_mut(),
    }
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
