// SPDX-License-Identifier: GPL-2.0
//! The lab: see `blkrelay-lab --help`.
//!
//! A subcommand is a module of the library with an `Args` (clap) and a `run(&Args)`, plus one line in
//! each of the two lists here.

use anyhow::Result;
use blkrelay_lab::cli;
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
    /// Boots a guest and runs one script in it; exits with the script's status.
    Boot(cli::boot::Args),
}

fn main() -> ExitCode {
    let result: Result<ExitCode> = match Lab::parse().command {
        Command::Boot(args) => cli::boot::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("blkrelay-lab: {error:#}");
        ExitCode::from(2)
    })
}
