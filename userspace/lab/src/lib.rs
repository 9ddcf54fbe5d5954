// SPDX-License-Identifier: GPL-2.0
//! Builds and boots test kernels and measures what tracing costs.

pub mod agent;
pub mod boot;
pub mod cache;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod console;
pub mod deb;
pub mod demo;
pub mod fault;
pub mod fuzz;
pub mod guest_tests;
pub mod initramfs;
pub mod kernel;
pub mod measure;
pub mod module_build;
pub mod preflight;
pub mod process;
pub mod progress;
pub mod setup2;
pub mod spin;
pub mod stats;
pub mod stress;
pub mod summary;
pub mod tools;
