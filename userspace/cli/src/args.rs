// SPDX-License-Identifier: GPL-2.0
//! The command line, as clap sees it. Nothing is resolved here.

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Traces the Linux block layer and reads the traces.
#[derive(Debug, Parser)]
#[command(
    name = "blkrelay",
    version,
    after_help = "Exit status: 0 good, 1 usable with losses or findings, 2 error."
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record block events into a file
    Record(Record),
    /// Print a trace in blkparse's line format; lines that begin with # tell of lost events
    Dump(Dump),
    /// Print a table for each device and each process
    Report(Report),
    /// Check a trace: checksums, gaps, counters, order, records
    Verify(File),
    /// Print the state of the kernel module
    Status(Status),
}

/// `blkrelay record`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ends with CTRL-C, after -w seconds, or when COMMAND ends. Exit status: COMMAND's if it is \
                  not 0 (128 + N if signal N killed it), else 1 if events were lost, else 0."
)]
pub struct Record {
    /// Disk to trace: /dev/sda, sda or 8:0; may be given several times [default: all disks]
    #[arg(short, long = "device", value_name = "DEV")]
    pub devices: Vec<OsString>,
    /// File to write [default: DEV-YYYYmmdd-HHMMSS.blkr]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Stop after so many seconds
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Load the kernel module first, from PATH.ko or from /lib/modules
    #[arg(long, value_name = "PATH.ko", num_args = 0..=1, default_missing_value = "")]
    pub load: Option<OsString>,
    /// Overwrite FILE if it exists
    #[arg(long)]
    pub force: bool,
    /// Bytes of a sub-buffer, a power of two [default: the module's]
    #[arg(long, value_name = "BYTES")]
    pub subbuf_size: Option<u64>,
    /// Sub-buffers for each CPU [default: the module's]
    #[arg(long, value_name = "N")]
    pub subbufs: Option<u64>,
    /// Trace while this runs, then stop
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `blkrelay dump`
#[derive(Debug, clap::Args)]
pub struct Dump {
    /// A .blkr file
    pub file: PathBuf,
    /// Print only the first N events
    #[arg(short = 'n', long, value_name = "N")]
    pub events: Option<u64>,
}

/// `blkrelay report`
#[derive(Debug, clap::Args)]
pub struct Report {
    /// A .blkr file
    pub file: PathBuf,
    /// Print JSON, with every process
    #[arg(long)]
    pub json: bool,
}

/// `blkrelay verify`
#[derive(Debug, clap::Args)]
pub struct File {
    /// A .blkr file
    pub file: PathBuf,
}

/// `blkrelay status`
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // A week is longer than any trace; the bound keeps the timer's arithmetic exact.
        Ok(seconds) if seconds > 0.0 && seconds <= 604_800.0 => Ok(seconds),
        _ => Err("a number of seconds greater than 0, at most 604800".to_owned()),
    }
}
