// SPDX-License-Identifier: GPL-2.0

//! The flight recorder's trigger: what pulls it, and how every CPU comes to a stop.
//!
//! ```text
//! completion -> watch -> pull -> this CPU stops at once
//!                             -> every other stops in an interrupt   } each writes a stop record
//!                             -> a work item stops those that did not, closes the gate,
//!                                and lets the reader in
//! ```
//!
//! A CPU records every event until it stops, so what is kept of it is whole. The gate is closed only
//! when all have stopped: the lag of each is in its stop record, and nothing is missing from it.

use crate::{
    abi,
    cpus::{
        on_cpu,
        possible_cpus,
        synchronize_probes,
        CpusReadLock, //
    },
    filter::FILTER,
    record,
    shared::{
        current,
        Shared, //
    },
    span,
    stamps,
    stream::{
        on_each_cpu,
        Stream, //
    }, //
};
use core::{
    ffi::c_void,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    alloc::KVVec,
    bindings,
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

/// What the trigger was.
#[derive(Clone, Copy)]
pub(crate) struct Trigger {
    /// On the trace's clock.
    pub(crate) time: u64,
    /// See `BLKRELAY_CAUSE_*`.
    pub(crate) value: u64,
    /// Where it was.
    pub(crate) cpu: u32,
    /// `BLKRELAY_CAUSE_*`.
    pub(crate) cause: u32,
}

/// What the recorder waits for besides a command.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    /// Whether an error is waited for.
    pub(crate) on_error: bool,
    /// Ticks of the trace's clock that an I/O may take.
    pub(crate) slower: Option<u64>,
}

/// The table of `stamps.rs`.
struct Stamps(KVVec<AtomicU64>);

impl Stamps {
    fn new() -> Result<Self> {
        let mut table = KVVec::with_capacity(stamps::ENTRIES, GFP_KERNEL)?;

        for _ in 0..stamps::ENTRIES {
            table.push(AtomicU64::new(0), GFP_KERNEL)?;
        }
        Ok(Self(table))
    }

    fn clear(&self) {
        for entry in &self.0 {
            entry.store(0, Ordering::Relaxed);
        }
    }
}

/// `BLK_STS_AGAIN` (`include/linux/blk_types.h`); `layout.rs` compares it with the kernel's.
pub(crate) const STS_AGAIN: u32 = 12;

const RUNNING: u32 = 0;
/// Somebody is writing down what the trigger was.
const PULLED: u32 = 1;
/// It can be read.
const TRIGGERED: u32 = 2;
/// It cannot be pulled any more.
const DISARMED: u32 = 3;

/// A flight recorder's state.
#[pin_data]
pub(crate) struct Flight {
    watch: Watch,
    stamps: Option<Stamps>,
    state: AtomicU32,
    time: AtomicU64,
    value: AtomicU64,
    cpu: AtomicU32,
    cause: AtomicU32,
    /// Whether every CPU has stopped.
    frozen: AtomicBool,
    /// Held while a reader copies and while the recorder is armed again.
    #[pin]
    reading: Mutex<()>,
}

impl Flight {
    /// A recorder that runs. Spans bring their own times.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(watch: Watch, spans: bool) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            watch,
            stamps: match watch.slower {
                Some(_) if !spans => Some(Stamps::new()?),
                _ => None,
            },
            state: AtomicU32::new(RUNNING),
            time: AtomicU64::new(0),
            value: AtomicU64::new(0),
            cpu: AtomicU32::new(0),
            cause: AtomicU32::new(0),
            frozen: AtomicBool::new(false),
            reading <- new_mutex!(()),
        })
    }

    /// What pulled the trigger, if anything has.
    pub(crate) fn trigger(&self) -> Option<Trigger> {
        (self.state.load(Ordering::Acquire) == TRIGGERED).then(|| Trigger {
            time: self.time.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
            cpu: self.cpu.load(Ordering::Relaxed),
            cause: self.cause.load(Ordering::Relaxed),
        })
    }

    /// Whether every CPU has stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Whether completions are watched.
    pub(crate) fn watches(&self) -> bool {
        self.watch.on_error || self.watch.slower.is_some()
    }

    /// Sees to it that no trigger is pulled any more, or, if one has been, that every CPU has stopped.
    /// So the gate can be closed, and no stop record says more than its CPU has recorded.
    pub(crate) fn disarm(&self) {
        let disarmed =
            self.state
                .compare_exchange(RUNNING, DISARMED, Ordering::Relaxed, Ordering::Relaxed);

        if disarmed.is_err() {
            while self.state.load(Ordering::Acquire) == PULLED {
                core::hint::spin_loop();
            }
            freeze_wait();
        }
    }

    /// Forgets which I/Os are under way.
    pub(crate) fn forget(&self) {
        if let Some(table) = &self.stamps {
            table.clear();
        }
    }

    /// Calls `read` if the recorder is frozen, which it stays meanwhile.
    pub(crate) fn read_frozen<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let _reading = self.reading.lock();

        self.is_frozen().then(read)
    }

    /// Runs on: `epoch` begins. Does nothing unless it is frozen.
    ///
    /// The caller opens the gate afterwards.
    pub(crate) fn arm(&self, shared: &Shared, epoch: u32) {
        let _reading = self.reading.lock();

        if !self.is_frozen() {
            return;
        }
        self.frozen.store(false, Ordering::Relaxed);
        // What was stamped before may have been completed unseen.
        self.forget();
        let _cpus = CpusReadLock::new();
        for cpu in possible_cpus() {
            // SAFETY: The gate is closed, and all probes that were inside have returned: see
            // `blkrelay_freeze`.
            unsafe { Stream::new(abi::blkrelay_cpu_ptr(cpu), shared) }.arm(epoch);
        }
        self.state.store(RUNNING, Ordering::Release);
    }
}

/// Pulls the trigger. Returns whether it was the first to do so.
///
/// This CPU has stopped when this returns, and the others have been told to.
///
/// # Safety
///
/// Interrupts are off; `stream` is this CPU's.
unsafe fn pull(stream: &mut Stream<'_>, flight: &Flight, cause: u32, value: u64) -> bool {
    let first =
        flight
            .state
            .compare_exchange(RUNNING, PULLED, Ordering::Relaxed, Ordering::Relaxed);

    if first.is_err() {
        return false;
    }
    flight.time.store(stream.now(), Ordering::Relaxed);
    flight.value.store(value, Ordering::Relaxed);
    flight.cpu.store(stream.cpu(), Ordering::Relaxed);
    flight.cause.store(cause, Ordering::Relaxed);
    flight.state.store(TRIGGERED, Ordering::Release);

    if let Some(trigger) = flight.trigger() {
        stream.stop(trigger);
    }
    // SAFETY: Interrupts are off.
    unsafe { abi::blkrelay_stop_others() };
    // SAFETY: Any context.
    unsafe { abi::blkrelay_freeze_later() };
    true
}

/// Is the event what is waited for? See `shim.h`. One that the filter has refused (`passed` is false)
/// pulls no trigger, but it may be the end of an I/O whose begin was recorded.
///
/// # Safety
///
/// Called by the shim alone, from a probe, with the state of this CPU and interrupts off; `of` is what
/// the event is of, and `extra` is null or the side record that follows it.
#[no_mangle]
unsafe extern "C" fn blkrelay_watch(
    cpu: *mut abi::blkrelay_cpu,
    time: u64,
    size_op: u64,
    id_who: u64,
    of: *mut c_void,
    extra: *const abi::blkrelay_extra,
    passed: bool,
) {
    // SAFETY: Called from a probe.
    let Some(shared) = (unsafe { current() }) else {
        return;
    };
    let Some(flight) = shared.flight() else {
        return;
    };
    // SAFETY: Called on the CPU whose state this is, with interrupts off.
    let mut stream = unsafe { Stream::new(cpu, shared) };
    let action = record::action(id_who);
    let bytes = record::unpair(size_op).0;
    let mut took = None;

    if flight.watch.slower.is_some() {
        let table = flight.stamps.as_ref().map_or(&[][..], |stamps| &stamps.0);
        let now = match time {
            0 => stream.now(),
            time => time,
        };

        match action {
            abi::BLKRELAY_SPAN => {
                // SAFETY: By the contract: a span's times, or null.
                let times = unsafe { extra.as_ref() };

                took = times.and_then(|times| span::took(&times.slot, now));
            }
            abi::BLKRELAY_D => stamps::begin(table, of as usize, now),
            // SAFETY: The bio is being submitted, so it has a device.
            abi::BLKRELAY_Q if unsafe { is_bio_based(of.cast()) } => {
                stamps::begin(table, of as usize, now)
            }
            abi::BLKRELAY_BIO_C => took = stamps::end(table, of as usize, now, true),
            abi::BLKRELAY_C => {
                // SAFETY: The request is being completed.
                let left = unsafe { (*of.cast::<bindings::request>()).__data_len };

                took = stamps::end(table, of as usize, now, bytes >= left);
            }
            _ => {}
        }
    }

    if !passed {
        return;
    }
    let status = match action {
        abi::BLKRELAY_C | abi::BLKRELAY_BIO_C | abi::BLKRELAY_SPAN if flight.watch.on_error => {
            u32::from(record::status(id_who))
        }
        _ => 0,
    };
    // Who asks not to be made to wait is told to come again: no error of the device's.
    let status = if status == STS_AGAIN { 0 } else { status };
    let slow = took.filter(|took| flight.watch.slower.is_some_and(|limit| *took > limit));

    // SAFETY: By the contract.
    unsafe {
        if status != 0 {
            pull(
                &mut stream,
                flight,
                abi::BLKRELAY_CAUSE_ERROR,
                status.into(),
            );
        } else if let Some(took) = slow {
            pull(&mut stream, flight, abi::BLKRELAY_CAUSE_SLOW, took);
        }
    }
}

/// Whether the bio is one of a driver that has no requests: its end is `BIO_C`.
///
/// # Safety
///
/// The bio has a device.
unsafe fn is_bio_based(bio: *mut bindings::bio) -> bool {
    // SAFETY: By the contract; the queue is live, and this never changes once it is set up.
    unsafe { (*(*(*bio).bi_bdev).bd_queue).mq_ops.is_null() }
}

/// Waits until nothing of a freeze is under way. Who calls this sees to it that no trigger is pulled
/// any more, or that one has been. May sleep: for commands only.
pub(crate) fn freeze_wait() {
    // SAFETY: By the above. The freeze takes CPU hotplug's lock, which is not held here.
    unsafe { abi::blkrelay_freeze_wait() };
}

/// Pulls the trigger from a command, unless it has been pulled, and waits until every CPU has stopped.
pub(crate) fn freeze_now(shared: &Shared) {
    let Some(flight) = shared.flight() else {
        return;
    };

    // Another CPU may have been first, and not yet have written down what its trigger was: that takes it
    // less than an event does, with interrupts off.
    while flight.trigger().is_none() {
        // SAFETY: Any CPU will do.
        let cpu = unsafe { bindings::raw_smp_processor_id() } as u32;

        // SAFETY: `pull_here` finds the channel that `shared` is of.
        unsafe { on_cpu(&CpusReadLock::new(), cpu, pull_here) };
    }
    freeze_wait();
}

/// # Safety
///
/// Called by [`on_cpu`], for [`freeze_now`], which borrows the channel.
unsafe extern "C" fn pull_here(_: *mut c_void) {
    // SAFETY: By the contract.
    let Some(shared) = (unsafe { current() }) else {
        return;
    };

    if let Some(flight) = shared.flight() {
        // SAFETY: This CPU, with interrupts off.
        unsafe {
            let mut stream = Stream::new(abi::blkrelay_this_cpu(), shared);

            pull(&mut stream, flight, abi::BLKRELAY_CAUSE_CONTROL, 0);
        }
    }
}

/// Stops this CPU, see `shim.h`.
///
/// # Safety
///
/// Called with interrupts off, because the trigger was pulled.
#[no_mangle]
unsafe extern "C" fn blkrelay_stop_here() {
    // SAFETY: The channel stays until `blkrelay_freeze_wait` says that no stop is under way.
    let Some(shared) = (unsafe { current() }) else {
        return;
    };

    if let Some(trigger) = shared.flight().and_then(|flight| flight.trigger()) {
        // SAFETY: This CPU, with interrupts off.
        unsafe { Stream::new(abi::blkrelay_this_cpu(), shared) }.stop(trigger);
    }
}

/// # Safety
///
/// Called by [`on_each_cpu`], for [`blkrelay_freeze`].
unsafe extern "C" fn stop_call(_: *mut c_void) {
    // SAFETY: By the contract.
    unsafe { blkrelay_stop_here() };
}

/// Sees to it that every CPU has stopped, and lets the readers in. See `shim.h`.
///
/// # Safety
///
/// Called by the shim's work item alone, because the trigger was pulled.
#[no_mangle]
unsafe extern "C" fn blkrelay_freeze() {
    // SAFETY: The channel stays until `blkrelay_freeze_wait` says that no freeze is under way.
    let Some(shared) = (unsafe { current() }) else {
        return;
    };
    let Some(flight) = shared.flight() else {
        return;
    };
    let Some(trigger) = flight.trigger() else {
        return;
    };

    // SAFETY: `stop_call` finds the channel that is kept as above.
    unsafe { on_each_cpu(shared, stop_call, |mut stream| stream.stop(trigger)) };
    FILTER.close();
    // Those that are inside already write nothing any more, but must not do so after `Flight::arm`.
    synchronize_probes();

    flight.frozen.store(true, Ordering::Release);
    for cpu in possible_cpus() {
        // SAFETY: A possible CPU.
        unsafe { abi::blkrelay_reader_wake(cpu) };
    }
}

declared!(blkrelay_watch, blkrelay_stop_here, blkrelay_freeze);
