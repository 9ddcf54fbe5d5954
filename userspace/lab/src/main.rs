// SPDX-License-Identifier: GPL-2.0
//! The lab: see `blkrelay-lab --help`.
//!
//! A subcommand is a module of the library with an `Args` (clap) and a `run(&Args)`, plus one line in
//! each of the two lists here.

use anyhow::Result;
use blkrelay_lab::{
    cli, demo, guest_tests, hotpath, insns, kernel, measure, module_build, preflight, progress,
    stress,
};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Builds and boots test kernels and measures what tracing costs.
#[derive(Parser)]
#[command(version)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says what this machine lacks, and which package brings it.
    Preflight(preflight::Args),
    /// Builds a test kernel, or finds it in the cache.
    Kernel(kernel::Args),
    /// Builds blkrelay.ko for a kernel tree.
    Module(module_build::Args),
    /// Boots a guest and runs one script in it; exits with the script's status.
    Boot(cli::boot::Args),
    /// Counts what the states of the tracers cost on the workloads.
    Measure(measure::Args),
    /// Counts what an event costs, without a reader, beside blktrace, ftrace and the least there can be.
    Hotpath(hotpath::Args),
    /// Counts which instructions a tracer adds to an I/O: loads, stores, cache lines, and the dear ones.
    Insns(insns::Args),
    /// Traces a real workload in a test kernel and says what tracing costs.
    Demo(demo::Args),
    /// Runs the tests that need a guest.
    Test(guest_tests::Args),
    /// Hurts the module on kernels that check themselves.
    Stress(stress::Args),
}

fn main() -> ExitCode {
    progress::began();
    let result: Result<ExitCode> = match Lab::parse().command {
        Command::Preflight(args) => preflight::run(&args),
        Command::Kernel(args) => kernel::run(&args),
        Command::Module(args) => module_build::run(&args),
        Command::Boot(args) => cli::boot::run(&args),
        Command::Measure(args) => measure::run(&args),
        Command::Hotpath(args) => hotpath::run(&args),
        Command::Insns(args) => insns::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => guest_tests::run(&args),
        Command::Stress(args) => stress::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("blkrelay-lab: {error:#}");
        ExitCode::from(2)
    })
}
