// SPDX-License-Identifier: GPL-2.0
//! The agent inside the guest: what a shell script cannot do there.

use anyhow::{bail, Context, Result};
use blkrelay_lab::clock::Clock;
use blkrelay_lab::{agent, blktrace, compare, fault, floor, fuzz, spans, spin};
use blkrelay_trace::{Dev, Item};
use clap::{Parser, Subcommand};
use nix::unistd::{setgid, setuid};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
struct Guest {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says what the clock is; fails if block events cannot be timed with it.
    Clock,
    /// Counts the instructions of a command; exits with its status, or 2 if the CPU was idle.
    Window {
        /// A word that names the window in the results
        name: String,
        /// A file whose growth is reported, e.g. a tracer's output
        #[arg(long)]
        sink: Vec<PathBuf>,
        /// Idle time is expected: the ticks are no instructions
        #[arg(long)]
        idle_ok: bool,
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Counts the instructions of a loop of two.
    Loop {
        /// Rounds
        #[arg(long)]
        count: u64,
    },
    /// Counts the instructions of 4 KiB O_DIRECT reads from the start of a device.
    Read4k {
        #[arg(long)]
        dev: PathBuf,
        /// Reads before the window
        #[arg(long, default_value_t = 0)]
        warm: u64,
        /// Reads in the window
        #[arg(long)]
        count: u64,
        /// A file whose growth is reported, e.g. a tracer's output
        #[arg(long)]
        sink: Vec<PathBuf>,
    },
    /// Prints the number of block events in blktrace's files; notes about the trace do not count.
    CountBlktrace {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Compares a trace with what blktrace and ftrace recorded of the same events.
    Compare {
        /// blkrelay's trace
        #[arg(long)]
        trace: PathBuf,
        /// Directory of blktrace's files
        #[arg(long)]
        blktrace: PathBuf,
        /// Directory of copies of ftrace's per-CPU traces, named cpu0, cpu1, …
        #[arg(long)]
        ftrace: PathBuf,
        /// Letters that must occur
        #[arg(long, default_value = blkrelay_lab::compare::LETTERS)]
        want: String,
        /// blktrace's files are those of its newer setup ioctl
        #[arg(long)]
        setup2: bool,
    },
    /// Compares a trace of spans with what blktrace recorded of the same run.
    Spans {
        /// blkrelay's trace
        #[arg(long)]
        trace: PathBuf,
        /// Directory of blktrace's files
        #[arg(long)]
        blktrace: PathBuf,
    },
    /// Compares what is told of a run by a trace of its spans and one of its events.
    SpanEvents {
        /// The trace of spans
        #[arg(long)]
        spans: PathBuf,
        /// The trace of events
        #[arg(long)]
        events: PathBuf,
    },
    /// Traces a command's I/O by the kernel's blktrace; nobody reads before the end.
    Blktrace(blktrace::Args),
    /// Does one system call in which the NTH allocation fails; prints "hit" or "missed", and "ok" or the
    /// error.
    FailNth(fault::FailNth),
    /// Writes anything to control and checks what comes of it.
    Fuzz(fuzz::Fuzz),
    /// Records a command's I/O by reading the data files without ever waiting.
    Spin(spin::Spin),
    /// Prints each CPU's events and losses as a trace holds them: CPU EVENTS LOST.
    Totals { trace: PathBuf },
    /// Demands that a trace holds each of a number of sequential 4 KiB reads once, and nothing else.
    Once {
        trace: PathBuf,
        /// Reads of each device
        #[arg(long)]
        count: u64,
        /// Other devices may be in the trace as well
        #[arg(long)]
        others: bool,
        /// The devices
        #[arg(required = true)]
        devices: Vec<PathBuf>,
    },
    /// Demands that the floor has written the records that a trace holds.
    Same {
        trace: PathBuf,
        /// The floor's buffers
        #[arg(required = true)]
        floor: Vec<PathBuf>,
    },
    /// Prints what each CPU recorded in each configuration epoch: CPU EPOCH EVENTS, then the devices and the
    /// operations.
    Epochs { trace: PathBuf },
    /// Prints each disk that a trace has events of: MAJ:MIN DISKSEQ QUEUE.
    Disks { trace: PathBuf },
    /// Runs a command as another user; exits with its status.
    As {
        uid: u32,
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// A fixed sequence of reads or writes.
    Io(agent::Io),
}

fn main() -> ExitCode {
    match run(Guest::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("blkrelay-guest: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Clock => {
            let clock = Clock::settle()?;
            println!("{}", clock.line());
            clock.check()?;
        }
        Command::Window {
            name,
            sink,
            idle_ok,
            command,
        } => {
            let (count, status) = agent::run(&name, &sink, &command)?;
            println!("{count}");
            if !idle_ok {
                count.check()?;
            }
            let code = status.code().unwrap_or(1);
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
        }
        Command::Loop { count } => {
            let counted = agent::known_loop(count)?;
            println!("{counted}");
            counted.check()?;
        }
        Command::Read4k {
            dev,
            warm,
            count,
            sink,
        } => {
            let counted = agent::read4k(&dev, warm, count, &sink)?;
            println!("{counted}");
            counted.check()?;
        }
        Command::CountBlktrace { files } => println!("{}", agent::count_blktrace(&files)?),
        Command::Compare {
            trace,
            blktrace,
            ftrace,
            want,
            setup2,
        } => {
            let disks = compare::disks()?;
            let verdict = compare::tracers(&trace, &blktrace, &ftrace, &disks, &want, setup2)?;
            println!("{verdict}");
        }
        Command::Spans { trace, blktrace } => println!("{}", spans::compare(&trace, &blktrace)?),
        Command::SpanEvents { spans, events } => spans::compare_events(&spans, &events)?,
        Command::Blktrace(args) => return blktrace::run(&args),
        Command::FailNth(args) => println!("{}", fault::fail_nth(&args)?),
        Command::Fuzz(args) => fuzz::fuzz(&args)?,
        Command::Spin(args) => return spin::spin(&args),
        Command::Totals { trace } => {
            for (cpu, (events, lost)) in spin::totals(&trace)? {
                println!("{cpu} {events} {lost}");
            }
        }
        Command::Once {
            trace,
            count,
            others,
            devices,
        } => {
            let mut numbers = Vec::new();
            for path in &devices {
                numbers.push(agent::device(path)?);
            }
            println!("{} events", spin::once(&trace, &numbers, count, others)?);
        }
        Command::Same { trace, floor } => {
            println!("{} records", floor::same(&trace, &floor)?);
        }
        Command::Epochs { trace } => epochs(&trace)?,
        Command::Disks { trace } => disks(&trace)?,
        Command::As { uid, command } => {
            setgid(uid.into())?;
            setuid(uid.into())?;
            let error = std::process::Command::new(&command[0])
                .args(&command[1..])
                .exec();
            return Err(error).with_context(|| command[0].clone());
        }
        Command::Io(io) => agent::io(&io)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn epochs(path: &Path) -> Result<()> {
    let mut epochs: BTreeMap<(u32, u32), (u64, BTreeSet<String>)> = BTreeMap::new();
    for item in blkrelay_trace::open(path)?.events() {
        let Item::Event(event) = item else {
            bail!("{}: events are lost", path.display());
        };
        let dev = event.dev.unwrap_or_default();
        let (events, seen) = epochs.entry((event.cpu, event.epoch)).or_default();
        *events += 1;
        seen.insert(format!("dev={dev}"));
        // Nothing else says what the operation of an event of a queue is.
        if event.sector.is_some() {
            seen.insert(format!("op={}", event.opf.0 & 0xff));
        }
    }
    for ((cpu, epoch), (events, seen)) in epochs {
        let seen: Vec<String> = seen.into_iter().collect();
        println!("{cpu} {epoch} {events} {}", seen.join(" "));
    }
    Ok(())
}

fn disks(path: &Path) -> Result<()> {
    let mut disks: BTreeSet<(Dev, u64, u16)> = BTreeSet::new();
    for item in blkrelay_trace::open(path)?.events() {
        if let Item::Event(event) = item {
            let dev = event.dev.unwrap_or_default();
            disks.insert((dev, event.diskseq, event.queue));
        }
    }
    for (dev, diskseq, queue) in disks {
        println!("{dev} {diskseq} {queue}");
    }
    Ok(())
}
