// SPDX-License-Identifier: GPL-2.0

//! Tracepoints by name, and probes that are unregistered when they are dropped.
//!
//! Only six of the block layer's tracepoints are exported, so none is linked against: all are
//! looked up by name, and one that this kernel lacks is simply not there.

use crate::abi;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*, //
};

/// A tracepoint of the running kernel.
///
/// # Invariants
///
/// Points to a `struct tracepoint` of the kernel proper, which is never freed.
#[derive(Clone, Copy)]
pub(crate) struct Tracepoint(NonNull<bindings::tracepoint>);

// SAFETY: A tracepoint belongs to no thread; the functions that take it lock for themselves.
unsafe impl Send for Tracepoint {}

/// What [`Tracepoint::lookup`] hands to the callback.
struct Lookup<'a> {
    names: &'a [&'static CStr],
    found: &'a mut [Option<Tracepoint>],
}

impl Tracepoint {
    /// Looks up tracepoints by name: `found` gets one entry for each name, `None` where there is no
    /// such tracepoint.
    pub(crate) fn lookup<const N: usize>(names: &[&'static CStr; N]) -> [Option<Self>; N] {
        let mut found = [None; N];
        let mut lookup = Lookup {
            names,
            found: &mut found,
        };

        // SAFETY: `visit` gets what it expects: a live tracepoint, and `lookup`, which outlives the
        // call.
        unsafe {
            bindings::for_each_kernel_tracepoint(
                Some(Self::visit),
                (&raw mut lookup).cast::<c_void>(),
            )
        };
        found
    }

    /// # Safety
    ///
    /// `tracepoint` is a tracepoint of the kernel proper and `lookup` points to a [`Lookup`] that
    /// nobody else uses.
    unsafe extern "C" fn visit(tracepoint: *mut bindings::tracepoint, lookup: *mut c_void) {
        let Some(pointer) = NonNull::new(tracepoint) else {
            return;
        };
        // SAFETY: By the function's contract.
        let lookup = unsafe { &mut *lookup.cast::<Lookup<'_>>() };
        // SAFETY: A tracepoint's name is a constant string of the kernel's.
        let name = unsafe { CStr::from_char_ptr((*tracepoint).name) };

        for (wanted, found) in lookup.names.iter().zip(lookup.found.iter_mut()) {
            if wanted.to_bytes() == name.to_bytes() {
                // INVARIANT: `for_each_kernel_tracepoint` visits only the kernel's own.
                *found = Some(Self(pointer));
            }
        }
    }
}

/// A registered probe.
///
/// # Invariants
///
/// `function` is registered with `tracepoint`.
struct Probe {
    tracepoint: Tracepoint,
    function: *mut c_void,
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this undoes one registration. It fails only if there was
        // none.
        unsafe {
            bindings::tracepoint_probe_unregister(
                self.tracepoint.0.as_ptr(),
                self.function,
                core::ptr::null_mut(),
            )
        };
    }
}

/// Registered probes.
///
/// When this has been dropped, no probe runs any more, on any CPU. Dropping sleeps for a grace
/// period, one for all probes.
pub(crate) struct Probes(KVec<Probe>);

// SAFETY: A probe may be unregistered by any thread.
unsafe impl Send for Probes {}

impl Probes {
    /// No probes.
    pub(crate) fn none() -> Self {
        Self(KVec::new())
    }

    /// Registers `function` with `tracepoint`.
    ///
    /// # Errors
    ///
    /// Whatever `tracepoint_probe_register()` says, and `ENOMEM`. The probes that have been
    /// registered before stay so.
    ///
    /// # Safety
    ///
    /// `function` is a function with that tracepoint's parameters, a `void *` before them, that may
    /// run in any context in which the tracepoint is hit.
    pub(crate) unsafe fn register(
        &mut self,
        tracepoint: Tracepoint,
        function: *mut c_void,
    ) -> Result {
        self.0.reserve(1, GFP_KERNEL)?;
        // SAFETY: The tracepoint is live by its invariant, the function fits by this one's
        // contract.
        to_result(unsafe {
            bindings::tracepoint_probe_register(
                tracepoint.0.as_ptr(),
                function,
                core::ptr::null_mut(),
            )
        })?;
        // INVARIANT: Registered just now. There is room, so this cannot fail and drop the probe.
        self.0.push(
            Probe {
                tracepoint,
                function,
            },
            GFP_KERNEL,
        )?;
        Ok(())
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.0.clear();
        // A probe that was entered before it was unregistered may still run: tracepoints are
        // protected by SRCU, with preemption on.
        // SAFETY: May sleep here: nothing that drops probes holds a spinlock or runs in a probe.
        unsafe { abi::blkrelay_synchronize_probes() };
    }
}
