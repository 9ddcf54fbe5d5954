// SPDX-License-Identifier: GPL-2.0
//! Builds and boots test kernels and measures what tracing costs.

pub mod boot;
pub mod cli;
pub mod clock;
pub mod console;
pub mod initramfs;
pub mod process;
