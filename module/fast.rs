// SPDX-License-Identifier: GPL-2.0

//! The fast path: a probe's event goes from the block layer's structures straight into this CPU's sub-buffer,
//! without a call.
//!
//! It is for the usual case alone, which three comparisons tell: the event is of the same queue as the last one
//! on this CPU, of the same task (and at Q under the same name), and there is room. Whoever has recorded that
//! last event has seen to it that the queue is traced, that this sub-buffer has named both, and that nothing
//! more is to be asked (`remember()` in `shim.c`); whoever changes one of these forgets the queue on every
//! CPU. All else goes by `blkrelay_emit()`.
//!
//! CPU, time, order and slot belong together: interrupts are off from before the queue is compared to
//! after the slot is taken ([`Window`]). The first comparison, outside of that, only saves an event of another disk
//! from turning them off.

#[cfg(all(CONFIG_X86_64, CONFIG_SMP))]
pub(crate) use x86::{
    is_open,
    now,
    time,
    Window, //
};

#[cfg(not(all(CONFIG_X86_64, CONFIG_SMP)))]
pub(crate) use none::{
    is_open,
    now,
    time,
    Window, //
};

/// Which field of `struct blkrelay_cpu` an event's queue is compared with.
pub(crate) trait Of {
    /// Whether it is one of the ends of an I/O.
    const ENDS: bool;
}

/// Q, D or C.
pub(crate) struct Ends;

impl Of for Ends {
    const ENDS: bool = true;
}

/// Another event.
pub(crate) struct Middle;

impl Of for Middle {
    const ENDS: bool = false;
}

#[cfg(all(CONFIG_X86_64, CONFIG_SMP))]
mod x86 {
    use super::Of;
    use crate::{
        abi,
        percpu::{
            self,
            this_cpu_is, //
        },
        record::SLOT,
        slot::Slot, //
    };

    /// Free slots of this CPU's sub-buffer, with interrupts off.
    pub(crate) struct Window<const SLOTS: usize> {
        at: usize,
        flags: u64,
    }

    /// Whether an event of this queue may go by the fast path of this CPU: a hint, with interrupts on.
    ///
    /// `queue` is `request_queue.id` as it is: one that a record cannot carry is never remembered.
    #[inline(always)]
    pub(crate) fn is_open<O: Of>(queue: i32) -> bool {
        // SAFETY: Comparisons with this CPU's state, which is static.
        unsafe {
            if O::ENDS {
                this_cpu_is!(ends, queue, { return false });
            } else {
                this_cpu_is!(queue, queue, { return false });
            }
        }
        true
    }

    const PID: usize = abi::blkrelay_layout_BLKRELAY_AT_task_struct_pid as usize;
    const COMM: usize = abi::blkrelay_layout_BLKRELAY_AT_task_struct_comm as usize;

    /// Now, on the trace's clock. [`is_open`] was true, so that is the TSC.
    #[inline(always)]
    pub(crate) fn time() -> u64 {
        let (low, high) = percpu::rdtscp();

        high << 32 | low
    }

    /// Now, and the current task: its pid with its tgid in the upper half, and its comm.
    #[inline(always)]
    pub(crate) fn now() -> (u64, u64, [u64; 2]) {
        let task = percpu::current();

        // SAFETY: The current task is live. Where its fields are C has said.
        unsafe {
            (
                time(),
                task.add(PID).cast::<u64>().read_unaligned(),
                task.add(COMM).cast::<[u64; 2]>().read_unaligned(),
            )
        }
    }

    impl<const SLOTS: usize> Window<SLOTS> {
        /// Room for `SLOTS` slots of an event of this queue, if it may go by the fast path.
        #[inline(always)]
        pub(crate) fn open<O: Of>(queue: i32) -> Option<Self> {
            if !is_open::<O>(queue) {
                return None;
            }
            Self::open_again::<O>(queue)
        }

        /// The same, if [`is_open`] has just said so.
        #[inline(always)]
        pub(crate) fn open_again<O: Of>(queue: i32) -> Option<Self> {
            let flags = percpu::irq_save();

            // Again: this may be another CPU by now.
            if !is_open::<O>(queue) {
                // SAFETY: As they were.
                unsafe { percpu::irq_restore(flags) };
                return None;
            }
            // SAFETY: Interrupts are off.
            let at = unsafe { percpu::pos() };

            // SAFETY: As above.
            if !unsafe { percpu::has_room(at.wrapping_add(SLOTS * SLOT)) } {
                // SAFETY: As they were.
                unsafe { percpu::irq_restore(flags) };
                return None;
            }
            Some(Self { at, flags })
        }

        /// The current task, by its pid, if it may go by the fast path; else the window is closed.
        #[inline(always)]
        pub(crate) fn task<const BY_COMM: bool>(self) -> Option<(Self, u32)> {
            let task = percpu::current();
            // SAFETY: The current task is live. Where its fields are C has said.
            let pid = unsafe { task.add(PID).cast::<u32>().read() };

            // SAFETY: Comparisons with this CPU's state; interrupts are off, and go back to what they were
            // where the window ends.
            unsafe {
                this_cpu_is!(pid, pid, {
                    // SAFETY: As they were.
                    unsafe { percpu::irq_restore(self.flags) };
                    return None;
                });
                if BY_COMM {
                    let comm = task.add(COMM).cast::<[u64; 2]>().read_unaligned();

                    if !percpu::is_comm(comm) {
                        percpu::irq_restore(self.flags);
                        return None;
                    }
                }
            }
            Some((self, pid))
        }

        /// Whether the task that the event names is the one that may go by the fast path.
        #[inline(always)]
        pub(crate) fn is_pid(&self, pid: u32) -> bool {
            // SAFETY: A comparison with this CPU's state; interrupts are off.
            unsafe { this_cpu_is!(pid, pid, { return false }) };
            true
        }

        /// Whether it has the same name. `names` as in `struct blkrelay_cpu`.
        #[inline(always)]
        pub(crate) fn is_names(&self, names: u64) -> bool {
            // SAFETY: Interrupts are off.
            unsafe { percpu::is_names(names) }
        }

        /// Nothing is written.
        #[inline(always)]
        pub(crate) fn abandon(self) {
            // SAFETY: As they were in `open`.
            unsafe { percpu::irq_restore(self.flags) };
        }

        /// The event's own slot.
        #[inline(always)]
        pub(crate) fn slot(&self) -> Slot {
            // SAFETY: There is room: see `open`.
            unsafe { Slot::new(core::ptr::with_exposed_provenance_mut(self.at)) }
        }

        /// The slot behind it, of two.
        #[inline(always)]
        pub(crate) fn side_slot(&self) -> Slot {
            // SAFETY: There is room for two: see `open`.
            unsafe {
                Slot::new(core::ptr::with_exposed_provenance_mut(
                    self.at.wrapping_add(SLOT),
                ))
            }
        }

        /// The event is written: stamps it and takes its slots.
        #[inline(always)]
        pub(crate) fn close(self) {
            let (low, high) = percpu::rdtscp();

            self.slot().time((low as u32, high as u32));
            // SAFETY: Interrupts are off since `open`, and as they were there afterwards; all is written.
            unsafe {
                match SLOTS {
                    1 => percpu::move_on::<SLOT>(),
                    _ => {
                        percpu::count_side();
                        percpu::move_on::<{ 2 * SLOT }>();
                    }
                }
                percpu::irq_restore(self.flags);
            }
        }
    }
}

/// Of a machine without a fast path.
#[cfg(not(all(CONFIG_X86_64, CONFIG_SMP)))]
mod none {
    use super::Of;
    use crate::slot::Slot;
    use core::convert::Infallible;

    pub(crate) struct Window<const SLOTS: usize>(Infallible);

    pub(crate) fn is_open<O: Of>(_queue: i32) -> bool {
        false
    }

    pub(crate) fn time() -> u64 {
        0
    }

    pub(crate) fn now() -> (u64, u64, [u64; 2]) {
        (0, 0, [0; 2])
    }

    impl<const SLOTS: usize> Window<SLOTS> {
        pub(crate) fn open<O: Of>(_queue: i32) -> Option<Self> {
            None
        }

        pub(crate) fn open_again<O: Of>(_queue: i32) -> Option<Self> {
            None
        }

        pub(crate) fn task<const BY_COMM: bool>(self) -> Option<(Self, u32)> {
            match self.0 {}
        }

        pub(crate) fn is_pid(&self, _pid: u32) -> bool {
            match self.0 {}
        }

        pub(crate) fn is_names(&self, _names: u64) -> bool {
            match self.0 {}
        }

        pub(crate) fn abandon(self) {
            match self.0 {}
        }

        pub(crate) fn slot(&self) -> Slot {
            match self.0 {}
        }

        pub(crate) fn side_slot(&self) -> Slot {
            match self.0 {}
        }

        pub(crate) fn close(self) {
            match self.0 {}
        }
    }
}
