// SPDX-License-Identifier: GPL-2.0
//! `blkrelay report`

use crate::{args, output, Failure, Outcome};
use blkrelay_trace::{
    time, DeviceStats, Latency, Losses, Problem, Quantiles, Source, Stats, Stop, Totals,
};
use comfy_table::{presets, CellAlignment, Table};
use serde_json::{json, Value};
use std::io::{self, Write};

/// Rows of a table: with all that is around them, a report fits on a page.
const DEVICES: usize = 10;
const PROCESSES: usize = 12;

pub fn run(options: &args::Report) -> Result<Outcome, Failure> {
    let source = blkrelay_trace::open(&options.file)?;
    let filter = options.filter.for_trace(&source)?;
    let stats = Stats::of_selected(&source, &filter);
    let mut out = output::stdout();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &as_json(&source, &stats))?;
        writeln!(out)?;
    } else {
        print(&mut out, &source, &stats)?;
    }
    out.flush()?;
    let whole = source.problems().is_empty() && stats.lost.gaps + stats.missing.gaps == 0;
    Ok(if whole {
        Outcome::Good
    } else {
        Outcome::Findings
    })
}

/// `p50 / p99 / max`
fn latency(latency: Option<&Latency>) -> String {
    match latency.map(Latency::quantiles) {
        None => "-".to_owned(),
        Some(Quantiles {
            p50_ns,
            p99_ns,
            max_ns,
            ..
        }) => format!("{} / {} / {}", time(p50_ns), time(p99_ns), time(max_ns)),
    }
}

fn table(first: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        first,
        "I/Os",
        "bytes",
        "reads",
        "writes",
        "flushes",
        "discards",
        "Q2C p50 / p99 / max",
        "D2C p50 / p99 / max",
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn row(name: String, totals: &Totals) -> [String; 9] {
    [
        name,
        totals.ios.to_string(),
        output::size(totals.bytes),
        totals.reads.to_string(),
        totals.writes.to_string(),
        totals.flushes.to_string(),
        totals.discards.to_string(),
        latency(totals.q2c.as_ref()),
        latency(totals.d2c.as_ref()),
    ]
}

fn print_table(
    out: &mut impl Write,
    first: &str,
    rows: impl Iterator<Item = [String; 9]>,
    shown: usize,
    of: usize,
) -> io::Result<()> {
    let mut table = table(first);
    table.add_rows(rows.take(shown));
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    if of > shown {
        writeln!(out, " … and {} more: see --json", of - shown)?;
    }
    writeln!(out)
}

/// A device that came back under its old name has a row for each time that it was there.
fn device_name(device: &DeviceStats, stats: &Stats) -> String {
    let name = &device.name;
    let same = stats.devices.iter().filter(|other| other.name == *name);
    if same.count() > 1 && device.diskseq != 0 {
        format!("{name} (diskseq {})", device.diskseq)
    } else {
        name.clone()
    }
}

/// `stopped 2.35 us after an I/O that took 20.1 ms on CPU 3`
pub fn stop(stop: &Stop) -> String {
    let lag = time(stop.lag_ns);
    format!(
        "stopped {lag} after {} on CPU {}",
        stop.cause, stop.trigger_cpu
    )
}

fn print(out: &mut impl Write, source: &Source, stats: &Stats) -> io::Result<()> {
    let devices = stats
        .devices
        .iter()
        .map(|device| row(device_name(device, stats), &device.totals));
    print_table(out, "device", devices, DEVICES, stats.devices.len())?;
    let processes = stats.processes.iter().map(|process| {
        let who = &process.submitter;
        row(format!("{} ({})", who.comm, who.pid), &process.totals)
    });
    print_table(out, "process", processes, PROCESSES, stats.processes.len())?;

    let rate = if stats.duration_ns > 0 {
        stats.events as f64 * 1e9 / stats.duration_ns as f64
    } else {
        0.0
    };
    writeln!(
        out,
        "{} of {} in {} ({rate:.0} a second)",
        output::count(stats.events, "event"),
        output::count(stats.cpus, "CPU"),
        time(stats.duration_ns)
    )?;
    let losses = |losses: Losses| {
        let events = output::count(losses.events, "event");
        match losses.gaps {
            0 => events,
            gaps => format!("{events} in {}", output::count(gaps, "gap")),
        }
    };
    writeln!(
        out,
        "Q2C: I/Os as they were queued. D2C: requests of a device, which may carry several I/Os; issued I/Os of a process."
    )?;
    if stats.spans > 0 {
        let counts = stats.counts;
        writeln!(
            out,
            "{}, one a completion: Q2C is that of each request's first bio, and so is a process's D2C; I/Os and bytes of a process are those of the requests whose first bio it queued.",
            output::count(stats.spans, "span"),
        )?;
        writeln!(
            out,
            "without a Q2C: {} merged behind another, {} whose Q was not seen, {} split, {} parts of such",
            counts.merged,
            counts.missed,
            counts.split_ios,
            counts.split_ios + counts.splits,
        )?;
        if stats.bio_spans > 0 && stats.devices.len() > 1 {
            writeln!(
                out,
                "spans do not tell what one device has passed on to another: a process's I/O is counted on each"
            )?;
        }
    }
    write!(out, "lost: {}", losses(stats.lost))?;
    if stats.missing.gaps > 0 {
        write!(out, "; not in the file: {}", losses(stats.missing))?;
    }
    writeln!(out)?;
    let counts = stats.counts;
    // Where events are lost, a beginning or an end that is not there may be one of them.
    let or = if stats.lost.gaps + stats.missing.gaps > 0 {
        " or in a loss"
    } else {
        ""
    };
    write!(
        out,
        "left out of the latencies: {} ambiguous, {} across a loss, {} across a change of filters or a stop, {} begun before the trace{or}",
        counts.ambiguous,
        counts.cut_by_gap,
        counts.cut_by_epoch,
        counts.no_issue.max(counts.no_queue),
    )?;
    if stats.spans == 0 {
        writeln!(
            out,
            ", {} unfinished at its end{or}, {} without a completion",
            counts.queued_at_end.max(counts.issued_at_end),
            counts.no_completion,
        )?;
    } else {
        writeln!(out, "; what is not complete has no span")?;
    }
    let errors: u64 = stats
        .devices
        .iter()
        .map(|device| device.totals.errors)
        .sum();
    write!(out, "requests: {errors} with an error, ")?;
    // A span has the last issue only.
    if stats.spans == 0 {
        write!(out, "{} requeued, ", counts.requeued)?;
    }
    writeln!(
        out,
        "{} completions of a part, {} splits, {} flush sequences",
        counts.partial, counts.splits, counts.flush_sequences
    )?;
    if stats.unknown > 0 {
        let events = output::count(stats.unknown, "event");
        writeln!(
            out,
            "not counted: {events} of kinds that this reader does not know"
        )?;
    }
    for one in source.stops() {
        writeln!(out, "CPU {} {}", one.cpu, stop(&one))?;
    }
    for problem in source.problems().iter().take(5) {
        writeln!(out, "{problem}")?;
    }
    if source.problems().len() > 5 {
        writeln!(out, "… and more: see blkrelay verify")?;
    }
    Ok(())
}

fn totals_json(totals: &Totals) -> Value {
    let quantiles = |latency: &Option<Latency>| latency.as_ref().map(Latency::quantiles);
    json!({
        "ios": totals.ios,
        "bytes": totals.bytes,
        "reads": totals.reads,
        "writes": totals.writes,
        "flushes": totals.flushes,
        "discards": totals.discards,
        "q2c": quantiles(&totals.q2c),
        "d2c": quantiles(&totals.d2c),
    })
}

fn as_json(source: &Source, stats: &Stats) -> Value {
    let mut devices = Vec::new();
    for device in &stats.devices {
        let mut value = totals_json(&device.totals);
        value["name"] = json!(device.name);
        value["dev"] = json!(device.dev.map(|dev| dev.to_string()));
        value["diskseq"] = json!(device.diskseq);
        value["requests"] = json!(device.totals.requests);
        value["errors"] = json!(device.totals.errors);
        devices.push(value);
    }
    let mut processes = Vec::new();
    for process in &stats.processes {
        let mut value = totals_json(&process.totals);
        value["comm"] = json!(process.submitter.comm.to_string());
        value["pid"] = json!(process.submitter.pid);
        value["tgid"] = json!(process.submitter.tgid);
        processes.push(value);
    }
    json!({
        "schema": 1,
        "meta": source.meta(),
        "complete": source.trailer().is_some(),
        "problems": source.problems().iter().map(Problem::to_string).collect::<Vec<_>>(),
        "events": stats.events,
        "spans": stats.spans,
        "bio_spans": stats.bio_spans,
        "unknown": stats.unknown,
        "disks": source.disks(),
        "stops": source.stops(),
        "cpus": stats.cpus,
        "duration_ns": stats.duration_ns,
        "lost": stats.lost,
        "missing": stats.missing,
        "counts": stats.counts,
        "devices": devices,
        "processes": processes,
    })
}
