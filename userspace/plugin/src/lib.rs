// SPDX-License-Identifier: GPL-2.0
//! A plugin for QEMU's TCG that counts what a guest executes between two marks of a program in it (see
//! [`marker`]): how often each instruction, with which loads and stores, and how many distinct cache lines an
//! iteration touches (see [`lines`]). Kernel and user space apart.
//!
//! A total of instructions does not tell dear ones from cheap ones; this does. What is dear is the reader's
//! business (the lab's `insns`): the plugin writes each instruction's bytes.
//!
//! Nothing is instrumented before the mark that says that the window is near, so that booting stays fast.
//! In the window each instruction adds to its own counter in translated code; accesses to memory and the
//! first instruction of each line of code make a call. Plugins do not change what the guest does: the count
//! mode's ticks are the same with and without it.
//!
//! One CPU only. Loads and stores are what QEMU reports: an instruction that reads and writes memory does
//! both; walks of page tables and what devices do by themselves are none. An instruction that faults counts
//! each time that it is tried.
//!
//! The lab's build script compiles this crate to a shared object with the standard library alone and with a
//! dynamic libc, since it runs inside QEMU, which has one; the workspace's own settings make static programs.

pub mod lines;
pub mod marker;
// QEMU resolves what it calls; a test program would have nobody to do so.
#[cfg(not(test))]
mod qemu;
