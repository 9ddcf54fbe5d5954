// SPDX-License-Identifier: GPL-2.0

//! CPUs: which there are, keeping them from coming and going, and having one do something.

use crate::abi;
use core::{
    ffi::c_void,
    ptr::null_mut, //
};
use kernel::{
    bindings,
    error::to_result, //
};

/// Every CPU that this machine can have.
pub(crate) fn possible_cpus() -> impl Iterator<Item = u32> {
    let ids = kernel::cpu::nr_cpu_ids();

    // SAFETY: Reads a mask that is constant after boot.
    (0..ids).filter(|&cpu| unsafe { abi::blkrelay_cpu_possible(cpu) })
}

/// Keeps CPUs from coming and going.
pub(crate) struct CpusReadLock(());

impl CpusReadLock {
    /// May sleep. Never taken twice by one thread.
    pub(crate) fn new() -> Self {
        // SAFETY: Commands and the work item that freezes take it, and none of them holds it already.
        unsafe { bindings::cpus_read_lock() };
        Self(())
    }
}

impl Drop for CpusReadLock {
    fn drop(&mut self) {
        // SAFETY: Taken by `new`.
        unsafe { bindings::cpus_read_unlock() };
    }
}

/// Calls `function` on a CPU, with interrupts off there, and waits until it has returned. Returns false
/// if that CPU is offline.
///
/// # Safety
///
/// `function` may run in an interrupt, and takes a null pointer.
pub(crate) unsafe fn on_cpu(
    _cpus: &CpusReadLock,
    cpu: u32,
    function: unsafe extern "C" fn(*mut c_void),
) -> bool {
    // SAFETY: Reads the mask of CPUs; with the lock held what it says of this one stays true.
    if !unsafe { abi::blkrelay_cpu_online(cpu) } {
        return false;
    }
    // SAFETY: By the contract. It waits, so nothing of it is left when this returns.
    to_result(unsafe {
        bindings::smp_call_function_single(cpu as i32, Some(function), null_mut(), true)
    })
    .is_ok()
}

/// Waits until every probe that runs now has returned. May sleep: for commands only.
pub(crate) fn synchronize_probes() {
    // SAFETY: By the above. No lock is held that a probe takes: they take none.
    unsafe { abi::blkrelay_synchronize_probes() };
}
