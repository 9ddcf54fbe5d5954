// SPDX-License-Identifier: GPL-2.0

//! What the fast path needs of x86-64, instruction by instruction: this CPU's variables, interrupts, time.
//!
//! The kernel crate has per-CPU variables as pointers at most, and a call into C for each of these would cost
//! more than the record itself. Where there is no such machine, there is no fast path: see `fast.rs`.
//!
//! `this_cpu_ptr()` and its like in C are the same instructions: `arch/x86/include/asm/percpu.h`.

use crate::abi;
use core::mem::offset_of;

/// Interrupts were on: `X86_EFLAGS_IF` (`arch/x86/include/uapi/asm/processor-flags.h`).
const EFLAGS_IF: u64 = 1 << 9;

/// Compares a 32-bit field of this CPU's state; `$otherwise` is run where it is another number.
macro_rules! this_cpu_is {
    ($field:ident, $value:expr, $otherwise:block) => {
        kernel::asm!(
            "cmpl {value:e}, %gs:blkrelay_cpus+{at}(%rip); jne {otherwise}";
            value = in(reg) $value,
            at = const core::mem::offset_of!($crate::abi::blkrelay_cpu, $field),
            otherwise = label $otherwise,
            options(nostack, readonly),
        )
    };
}
pub(crate) use this_cpu_is;

/// Whether this is the name under which this CPU's sub-buffer has named the task of its last event.
///
/// # Safety
///
/// Interrupts are off.
#[inline(always)]
pub(crate) unsafe fn is_comm(comm: [u64; 2]) -> bool {
    let [first, second] = comm;

    // SAFETY: Comparisons with this CPU's state.
    unsafe {
        kernel::asm!(
            "cmpq {first}, %gs:blkrelay_cpus+{at}(%rip); jne {otherwise}; \
             cmpq {second}, %gs:blkrelay_cpus+8+{at}(%rip); jne {otherwise}";
            first = in(reg) first,
            second = in(reg) second,
            at = const offset_of!(abi::blkrelay_cpu, comm),
            otherwise = label { return false },
            options(nostack, readonly),
        )
    };
    true
}

/// As [`is_comm`], of the word that stands for both halves in a span's stamp.
///
/// # Safety
///
/// Interrupts are off.
#[inline(always)]
pub(crate) unsafe fn is_names(names: u64) -> bool {
    // SAFETY: A comparison with this CPU's state.
    unsafe {
        kernel::asm!(
            "cmpq {names}, %gs:blkrelay_cpus+{at}(%rip); jne {otherwise}";
            names = in(reg) names,
            at = const offset_of!(abi::blkrelay_cpu, names),
            otherwise = label { return false },
            options(nostack, readonly),
        )
    };
    true
}

/// The next free slot of this CPU's sub-buffer; 0 if none has been begun.
///
/// # Safety
///
/// Interrupts are off, for as long as the result is used.
#[inline(always)]
pub(crate) unsafe fn pos() -> usize {
    let pos: usize;

    // SAFETY: A read of this CPU's state, which is static.
    unsafe {
        kernel::asm!(
            "movq %gs:blkrelay_cpus+{at}(%rip), {pos}";
            pos = lateout(reg) pos,
            at = const offset_of!(abi::blkrelay_cpu, pos),
            options(nostack, preserves_flags, readonly),
        )
    };
    pos
}

/// Whether this CPU's sub-buffer goes on to `pos`, at least.
///
/// # Safety
///
/// Interrupts are off, for as long as the result is used.
#[inline(always)]
pub(crate) unsafe fn has_room(pos: usize) -> bool {
    // SAFETY: A comparison with this CPU's state.
    unsafe {
        kernel::asm!(
            "cmpq {pos}, %gs:blkrelay_cpus+{at}(%rip); jb {otherwise}";
            pos = in(reg) pos,
            at = const offset_of!(abi::blkrelay_cpu, end),
            otherwise = label { return false },
            options(nostack, readonly),
        )
    };
    true
}

/// Moves on by `BYTES` to the next free slot, behind what was written.
///
/// # Safety
///
/// Interrupts are off, and what is passed is written and in this CPU's sub-buffer.
#[inline(always)]
pub(crate) unsafe fn move_on<const BYTES: usize>() {
    // SAFETY: By the contract. The compiler takes it for an access to any memory, so that what was written
    // comes before it.
    unsafe {
        kernel::asm!(
            "addq ${bytes}, %gs:blkrelay_cpus+{at}(%rip)";
            bytes = const BYTES,
            at = const offset_of!(abi::blkrelay_cpu, pos),
            options(nostack),
        )
    };
}

/// Counts a side record.
///
/// # Safety
///
/// Interrupts are off, and a side record is being written to this CPU's sub-buffer.
#[inline(always)]
pub(crate) unsafe fn count_side() {
    // SAFETY: By the contract.
    unsafe {
        kernel::asm!(
            "incl %gs:blkrelay_cpus+{at}(%rip)";
            at = const offset_of!(abi::blkrelay_cpu, side),
            options(nostack),
        )
    };
}

/// The current task: a `struct task_struct` that is live.
#[inline(always)]
pub(crate) fn current() -> *const u8 {
    let task: *const u8;

    // SAFETY: A read of this CPU's variable. Wherever the task goes on, it is its own `current`.
    unsafe {
        kernel::asm!(
            "movq %gs:current_task(%rip), {task}";
            task = lateout(reg) task,
            options(nostack, preserves_flags, pure, readonly),
        )
    };
    task
}

/// Turns interrupts off and returns what they were: `local_irq_save()`.
///
/// lockdep is not told, as with `raw_local_irq_save()`: nothing that it watches happens until
/// [`irq_restore`].
#[inline(always)]
pub(crate) fn irq_save() -> u64 {
    let flags: u64;

    // SAFETY: The stack is as it was, the kernel has no red zone below it, and nobody is called who would want
    // it aligned: so `nostack`, and no instruction to align it.
    unsafe {
        kernel::asm!(
            "pushfq; popq {flags}; cli";
            flags = lateout(reg) flags,
            options(nostack, preserves_flags),
        )
    };
    flags
}

/// Turns interrupts on again if they were: `local_irq_restore()`.
///
/// # Safety
///
/// `flags` is what the last [`irq_save`] has returned.
#[inline(always)]
pub(crate) unsafe fn irq_restore(flags: u64) {
    // SAFETY: By the contract. One block, so that no compiler finds a reason to jump around it.
    unsafe {
        kernel::asm!(
            "testl ${on}, {flags:e}; jz 2f; sti; 2:";
            flags = in(reg) flags,
            on = const EFLAGS_IF,
            options(nostack),
        )
    };
}

/// The TSC, lower and upper half, read after all that comes before it: `rdtsc_ordered()` on a CPU with RDTSCP.
#[inline(always)]
pub(crate) fn rdtscp() -> (u64, u64) {
    let (low, high): (u64, u64);

    // SAFETY: Whoever lets events go by the fast path has asked whether the CPU has it (`blkrelay_ask`). It clears
    // the registers' upper halves.
    unsafe {
        kernel::asm!(
            "rdtscp";
            lateout("rax") low,
            lateout("rdx") high,
            lateout("rcx") _,
            options(nostack, preserves_flags, nomem),
        )
    };
    (low, high)
}
