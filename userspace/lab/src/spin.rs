// SPDX-License-Identifier: GPL-2.0
//! A reader that is as rough with the module as one can be: it never polls and never waits, and asks for
//! flushes all the time, while the events pour in. And the check that what came out is what the
//! workload did, which knows the workload and not the module.

use anyhow::{bail, ensure, Context, Result};
use blkrelay_format::{Appended, CpuCounters, End, Meta, Status, Trailer, Writer, FORMAT_VERSION};
use blkrelay_trace::{Action, Dev, Item, Source};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const DIR: &str = "/sys/kernel/debug/blkrelay";
/// Time between two flushes: each switches sub-buffers under running writers.
const FLUSH: Duration = Duration::from_millis(1);

/// Arguments of `spin`.
#[derive(Debug, clap::Args)]
pub struct Spin {
    /// The trace
    #[arg(short)]
    output: PathBuf,
    /// MAJ:MIN,MAJ:MIN… or all
    #[arg(short)]
    devices: String,
    #[arg(long, default_value_t = 65536)]
    subbuf_size: usize,
    #[arg(long, default_value_t = 16)]
    subbufs: usize,
    /// Traced while it runs; its exit status is ours
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

fn status() -> Result<Status> {
    let path = format!("{DIR}/status");
    let text = std::fs::read_to_string(&path).context(path)?;
    Ok(Status::parse(&text))
}

/// Records a command's I/O by reading without a pause.
///
/// # Errors
///
/// When the module refuses, hands out something bad, or the file cannot be written.
pub fn spin(args: &Spin) -> Result<ExitCode> {
    let mut control = OpenOptions::new()
        .write(true)
        .open(format!("{DIR}/control"))
        .context("control")?;
    let start = format!(
        "start devices={} subbuf_size={} subbufs={} hold=1",
        args.devices, args.subbuf_size, args.subbufs
    );
    control.write_all(start.as_bytes()).context(start)?;
    let mut data: Vec<(u32, File)> = Vec::new();
    for entry in std::fs::read_dir(DIR)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(cpu) = name.strip_prefix("data").and_then(|n| n.parse().ok()) {
            data.push((cpu, File::open(&path)?));
        }
    }
    let begun = status()?;
    let meta = Meta {
        format: FORMAT_VERSION,
        writer: "blkrelay-guest".into(),
        trace_id: begun.get("trace_id").to_owned(),
        clock: begun.get("clock").to_owned(),
        ..Meta::default()
    };
    let out = File::create(&args.output).with_context(|| args.output.display().to_string())?;
    let mut writer = Writer::new(BufWriter::new(out), &meta)?;

    let mut child = Command::new(&args.command[0])
        .args(&args.command[1..])
        .spawn()
        .with_context(|| args.command[0].clone())?;
    let mut buffer = vec![0; args.subbuf_size * 4];
    let mut appended = Appended::default();
    let mut stopped = None;
    let mut flushed = Instant::now();
    loop {
        let mut ended = 0;
        for (cpu, file) in &mut data {
            match file.read(&mut buffer) {
                Ok(0) => ended += 1,
                Ok(n) => {
                    let whole = buffer.get(..n).unwrap_or_default();
                    let added = writer.subbufs(whole, &mut appended);
                    added.with_context(|| format!("data{cpu}"))?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e).with_context(|| format!("data{cpu}")),
            }
        }
        if stopped.is_none() {
            stopped = child.try_wait()?;
            if stopped.is_some() {
                control.write_all(b"stop").context("stop")?;
            } else if flushed.elapsed() >= FLUSH {
                flushed = Instant::now();
                control.write_all(b"flush").context("flush")?;
            }
        } else if ended == data.len() {
            break;
        }
    }
    let mut cpus = Vec::new();
    for of in status()?.cpus {
        let stored: Vec<_> = writer.index().iter().filter(|e| e.cpu == of.cpu).collect();
        let events: u64 = stored.iter().map(|e| u64::from(e.count)).sum();
        cpus.push(CpuCounters {
            cpu: of.cpu,
            events: of.events,
            lost: of.lost,
            unwritten: of.events.saturating_sub(events),
            subbufs: stored.len() as u64,
            ..CpuCounters::default()
        });
    }
    writer.finish(&Trailer {
        end: End::Command,
        cpus,
        ..Trailer::default()
    })?;
    let code = stopped.and_then(|s| s.code()).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Opens a trace and demands that no damage was found in it. A loss is not damage.
fn open_undamaged(trace: &Path) -> Result<Source> {
    let source = blkrelay_trace::open(trace)?;
    ensure!(
        source.problems().is_empty(),
        "{}: {:?}",
        trace.display(),
        source.problems()
    );
    Ok(source)
}

/// Each CPU's events in a trace, and events that are in none of its sub-buffers but counted as lost.
///
/// # Errors
///
/// When the trace cannot be read or is damaged.
pub fn totals(trace: &Path) -> Result<BTreeMap<u32, (u64, u64)>> {
    let source = open_undamaged(trace)?;
    let mut totals: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for item in source.events() {
        match item {
            Item::Event(e) => totals.entry(e.cpu).or_default().0 += 1,
            Item::Gap(g) => totals.entry(g.cpu).or_default().1 += g.events,
        }
    }
    Ok(totals)
}

/// Demands that a trace holds the life of each of `count` requests of 4 KiB, one after the other from the
/// start of each device: Q, G, D and C once each, in this order, or one span, and nothing else; with `others`,
/// nothing else of these devices. Each span has its D, and if no other device is traced its Q.
///
/// # Errors
///
/// Names the first request whose life is not that.
pub fn once(trace: &Path, devices: &[Dev], count: u64, others: bool) -> Result<u64> {
    let source = open_undamaged(trace)?;
    let mut next: BTreeMap<(Dev, u64), usize> = BTreeMap::new();
    let life = if source.meta().options.start.contains(" span=1") {
        &[Action::Span][..]
    } else {
        &[
            Action::Queue,
            Action::GetRq,
            Action::Issue,
            Action::Complete,
        ]
    };
    let mut events = 0;
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for item in source.events() {
        let e = match item {
            Item::Event(e) => e,
            Item::Gap(gap) => bail!("{}: {gap:?}", trace.display()),
        };
        let before = last.insert(e.cpu, e.seq).unwrap_or(0);
        ensure!(
            e.seq == before + 1,
            "CPU {}: event {} follows {before}",
            e.cpu,
            e.seq
        );
        if others && !e.dev.is_some_and(|dev| devices.contains(&dev)) {
            continue;
        }
        let place = (e.dev.unwrap_or_default(), e.sector.unwrap_or(u64::MAX));
        let step = next.entry(place).or_default();
        ensure!(
            life.get(*step) == Some(&e.action),
            "sector {} of {}: {} is step {} of its life",
            place.1,
            place.0,
            e.action.name(),
            *step + 1
        );
        ensure!(
            e.bytes == 4096 && e.status == 0 && e.opf.0 & 0xff == 0,
            "sector {} of {}: {e:?}",
            place.1,
            place.0
        );
        if let Some(times) = e.times() {
            let known = times.issue_ns().is_some() && (others || times.queue_ns().is_some());
            ensure!(known, "sector {} of {}: {times:?}", place.1, place.0);
        }
        *step += 1;
        events += 1;
    }
    for dev in devices {
        for n in 0..count {
            let steps = next.remove(&(*dev, n * 8)).unwrap_or(0);
            ensure!(
                steps == life.len(),
                "sector {} of {dev}: its life ends after {steps} events",
                n * 8
            );
        }
    }
    if let Some(((dev, sector), _)) = next.first_key_value() {
        bail!("sector {sector} of {dev}: nobody read it");
    }
    Ok(events)
}
