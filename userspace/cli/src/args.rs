// SPDX-License-Identifier: GPL-2.0
//! The command line, as clap sees it. Nothing is resolved here.

use crate::filter::{self, TraceWords, Words};
use clap::{Parser, Subcommand};
use std::convert::Infallible;
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
    /// Print a trace in blkparse's line format; lines that begin with # tell of lost events and of a flight recorder's stops
    Dump(Dump),
    /// Print a table for each device and each process
    Report(Report),
    /// Check a trace: checksums, gaps, counters, order, records
    Verify(File),
    /// Print the state of the kernel module
    Status(Status),
    /// Print blktrace's files as blktrace's own blkparse does, to the byte; its options. Also by that name
    Blkparse(Blkparse),
}

/// `blkrelay blkparse`: the words of blkparse(1).
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Blkparse {
    /// Traces: X of X.blktrace.0, X.blktrace.1 …
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The same
    #[arg(short, long = "input", value_name = "FILE")]
    pub input: Vec<PathBuf>,
    /// Only events of this category; may be given several times
    #[arg(short, long, value_name = "CATEGORY", value_parser = category)]
    pub act_mask: Vec<u32>,
    /// Only events of these categories: a hexadecimal number
    #[arg(short = 'A', long, value_name = "MASK", value_parser = mask)]
    pub set_mask: Option<u32>,
    /// Records that are read ahead
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub batch: usize,
    /// Write the merged records there; - is the standard output
    #[arg(short, long, value_name = "FILE")]
    pub dump_binary: Option<PathBuf>,
    /// Where the files are
    #[arg(short = 'D', long, value_name = "DIR")]
    pub input_directory: Option<PathBuf>,
    /// How events are shown
    #[arg(short, long, value_name = "FORMAT")]
    pub format: Option<OsString>,
    /// How events of an action are shown: X,FORMAT
    #[arg(short = 'F', long, value_name = "X,FORMAT")]
    pub format_spec: Vec<OsString>,
    /// With -s: programs by name
    #[arg(short = 'h', long)]
    pub hash_by_name: bool,
    /// Write the text there
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// No text
    #[arg(short = 'O', long)]
    pub no_text_output: bool,
    /// No counts at the end
    #[arg(short, long)]
    pub quiet: bool,
    /// Counts of each program
    #[arg(short = 's', long)]
    pub per_program_stats: bool,
    /// Only this interval: [START:]END, in seconds of the trace
    #[arg(short = 'w', long, value_name = "[START:]END", value_parser = stopwatch)]
    pub stopwatch: Option<(u64, u64)>,
    /// No messages in the merged records
    #[arg(short = 'M', long)]
    pub no_msgs: bool,
    /// Says more
    #[arg(short, long)]
    pub verbose: bool,
    /// Print this
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// A category by its name, as blkparse knows it.
fn category(text: &str) -> Result<u32, String> {
    const NAMES: [&str; 16] = [
        "read", "write", "flush", "sync", "queue", "requeue", "issue", "complete", "fs", "pc",
        "notify", "ahead", "meta", "discard", "drv_data", "fua",
    ];
    let name = text.to_ascii_lowercase();
    let name = name.strip_prefix("blk_tc_").unwrap_or(&name);
    let at = NAMES.iter().position(|known| *known == name);
    at.map(|at| 1 << at).ok_or_else(|| NAMES.join(", "))
}

fn mask(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u32::from_str_radix(digits, 16) {
        Ok(mask @ 1..=0xffff) => Ok(mask),
        _ => Err("a hexadecimal number from 1 to ffff".to_owned()),
    }
}

/// `[START:]END` in ns.
fn stopwatch(text: &str) -> Result<(u64, u64), String> {
    let (start, end) = text.split_once(':').unwrap_or(("0", text));
    let ns = |text: &str| text.parse::<f64>().map(|seconds| (seconds * 1e9) as u64);
    match (ns(start), ns(end)) {
        (Ok(start), Ok(end)) if start < end => Ok((start, end)),
        _ => Err("[START:]END in seconds, the one before the other".to_owned()),
    }
}

/// `blkrelay record`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ends with CTRL-C, after -w seconds, or when COMMAND ends. Exit status: COMMAND's if it is \
                  not 0 (128 + N if signal N killed it), else 1 if events were lost or \
                  could not be written, else 0.\n\n\
                  COMMAND and all that it starts run in a cgroup of their own, and only their I/O is traced, \
                  wherever it is issued from. That takes cgroup v2 with its io controller: without it all I/O is traced, \
                  and a warning says so; write-back is COMMAND's only with the memory controller. With \
                  --everything, or a --cgroup, COMMAND stays where it is.\n\n\
                  A flight recorder keeps the newest events in memory until it is frozen: by SIGUSR1, by what \
                  --on-error and --slower-than say, or by its end. Then it writes them to FILE."
)]
pub struct Record {
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
    /// Trace what each DEV is made of as well: all devices under a dm or md device
    #[arg(long, requires = "devices")]
    pub stack: bool,
    /// Events to record: default, all, or names as in status [default: all but ERROR, IO_START, IO_DONE]
    #[arg(long, value_name = "NAME,…", value_parser = word)]
    pub events: Option<String>,
    /// Record with each Q its cgroup, I/O priority, write hint, partition and bio flags
    #[arg(long)]
    pub detail: bool,
    /// Record one event an I/O, at its end: when it was queued, issued and complete, and by whom
    #[arg(long)]
    pub span: bool,
    /// Trace all I/O while COMMAND runs, not only COMMAND's own
    #[arg(long, requires = "command")]
    pub everything: bool,
    /// Flight recorder: keep the newest events, and write them when frozen
    #[arg(long)]
    pub flight: bool,
    /// Freeze at the first completion with an error
    #[arg(long, requires = "flight")]
    pub on_error: bool,
    /// Freeze at the first I/O that takes longer, as 20ms: from issue (D) to completion (C), or from Q where a driver has no requests
    #[arg(long, requires = "flight", value_name = "TIME", value_parser = microseconds)]
    pub slower_than: Option<u64>,
    /// Go on after each freeze, and write FILE.1, FILE.2 … (a number before the extension)
    #[arg(long, requires = "flight")]
    pub rearm: bool,
    /// Trace while this runs, then stop
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub filter: Words,
    #[command(flatten)]
    pub not_here: NotHere,
}

/// The filter words that only `dump` and `report` have. `record` knows them to say so.
#[derive(Debug, clap::Args)]
pub struct NotHere {
    #[arg(long, hide = true, value_parser = of_a_trace)]
    min_latency: Option<Infallible>,
    #[arg(long, hide = true, value_parser = of_a_trace)]
    pid: Option<Infallible>,
    #[arg(long, hide = true, value_parser = of_a_trace)]
    comm: Option<Infallible>,
    #[arg(long, hide = true, value_parser = of_a_trace)]
    from: Option<Infallible>,
    #[arg(long, hide = true, value_parser = of_a_trace)]
    to: Option<Infallible>,
}

/// `blkrelay dump`
#[derive(Debug, clap::Args)]
pub struct Dump {
    /// A .blkr file
    pub file: PathBuf,
    /// Print only the first N events
    #[arg(short = 'n', long, value_name = "N")]
    pub events: Option<u64>,
    #[command(flatten)]
    pub filter: TraceWords,
}

/// `blkrelay report`
#[derive(Debug, clap::Args)]
pub struct Report {
    /// A .blkr file
    pub file: PathBuf,
    /// Print JSON, with every process
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub filter: TraceWords,
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

fn of_a_trace(_: &str) -> Result<Infallible, &'static str> {
    Err("it selects from a trace: record without it, and give it to dump or report")
}

/// One word of the module's: what separates words cannot be in it.
fn word(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("default, all, or names with commas between them".to_owned());
    }
    Ok(text.to_owned())
}

/// A time for the module, which counts in microseconds: up to an hour.
fn microseconds(text: &str) -> Result<u64, String> {
    match filter::nanoseconds(text)? / 1000 {
        us @ 1..=3_600_000_000 => Ok(us),
        _ => Err("from 1us to 1h".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // A week is longer than any trace; the bound keeps the timer's arithmetic exact.
        Ok(seconds) if seconds > 0.0 && seconds <= 604_800.0 => Ok(seconds),
        _ => Err("a number of seconds greater than 0, at most 604800".to_owned()),
    }
}
