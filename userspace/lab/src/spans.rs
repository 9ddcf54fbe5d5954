// SPDX-License-Identifier: GPL-2.0
//! A trace of spans against what others recorded of the same run.
//!
//! Against a trace of events of another blkrelay: what `report` says of each device is the same, but for the Q of
//! what the spans say that they miss it.
//!
//! Against blktrace: each completion that blktrace saw has a span, and where both know when it was issued or queued,
//! they agree on how long it took.
//!
//! The k-th completion of a place and a size in one trace is the k-th in the other. The two tracers' probes of one
//! event run one after the other, and an interrupt may come between, so single latencies differ: percentiles of
//! the pairs are compared.

use crate::stats;
use anyhow::{ensure, Context, Result};
use blkrelay_format::blktrace::{self, act};
use blkrelay_format::Action;
use blkrelay_trace::{Item, Latency, Quantiles, Stats};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Device (`major << 20 | minor`), sector, bytes.
type Place = (u32, u64, u32);

/// How long a completed I/O took, in ns, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
struct Took {
    queue: Option<u64>,
    issue: Option<u64>,
}

/// In the order of their completion.
type Completions = BTreeMap<Place, Vec<Took>>;

/// Largest relative difference of two percentiles.
const AGREE: f64 = 0.1;

/// What the comparison found.
#[derive(Debug)]
pub struct Verdict {
    spans: u64,
    q2c: usize,
    d2c: usize,
    /// Completions that blktrace has not: those of FUA, and of what it drops.
    alone: usize,
    missed: u64,
    split: u64,
    merged: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "@result spans={} q2c={} d2c={} alone={} missed={} split={} merged={}",
            self.spans, self.q2c, self.d2c, self.alone, self.missed, self.split, self.merged
        )
    }
}

fn of_blktrace(dir: &Path) -> Result<Completions> {
    let mut events = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if !path.to_string_lossy().contains(".blktrace.") {
            continue;
        }
        let data = std::fs::read(&path).with_context(|| path.display().to_string())?;
        for e in blktrace::Reader::new(&data) {
            let e = e.with_context(|| path.display().to_string())?;
            if e.notify().is_none() {
                events.push((e.time, e.act(), (e.device, e.sector, e.bytes)));
            }
        }
    }
    events.sort_unstable();
    let (mut queued, mut issued) = (BTreeMap::new(), BTreeMap::new());
    let mut found = Completions::new();
    for (time, act, place) in events {
        match act {
            act::QUEUE => drop(queued.insert(place, time)),
            act::ISSUE => drop(issued.insert(place, time)),
            act::COMPLETE => found.entry(place).or_default().push(Took {
                queue: queued.remove(&place).map(|at| time - at),
                issue: issued.remove(&place).map(|at| time - at),
            }),
            _ => {}
        }
    }
    Ok(found)
}

/// Compares.
///
/// # Errors
///
/// When a file cannot be read, the trace is not whole, or the two do not tell the same.
pub fn compare(trace: &Path, dir: &Path) -> Result<Verdict> {
    let source = blkrelay_trace::open(trace)?;
    ensure!(
        source.problems().is_empty(),
        "the trace is not whole: {:?}",
        source.problems()
    );
    let mut verdict = Verdict {
        spans: 0,
        q2c: 0,
        d2c: 0,
        alone: 0,
        missed: 0,
        split: 0,
        merged: 0,
    };
    let mut spans = Completions::new();
    for item in source.events() {
        let Item::Event(e) = item else { continue };
        ensure!(e.action == Action::Span, "an event that is no span: {e:?}");
        let times = e.times().context("a span without its times")?;
        let dev = e.dev.context("a span of an unnamed device")?;
        // blktrace has 0 for none.
        let sector = e.sector.unwrap_or(0);
        verdict.spans += 1;
        verdict.missed += u64::from(times.is_missed());
        verdict.split += u64::from(times.is_front() || times.is_rest());
        verdict.merged += u64::from(e.head.saturating_sub(1));
        let took = Took {
            queue: times.queue_ns().map(|at| e.ns - at),
            issue: times.issue_ns().map(|at| e.ns - at),
        };
        let place = (dev.major << 20 | dev.minor, sector, e.bytes);
        spans.entry(place).or_default().push(took);
    }
    let (mut q2c, mut d2c) = (Vec::new(), Vec::new());
    let seen = of_blktrace(dir)?;
    for (place, theirs) in &seen {
        let ours = spans.get(place).map_or(&[][..], Vec::as_slice);
        ensure!(
            ours.len() >= theirs.len(),
            "{place:?}: {} spans for {} completions",
            ours.len(),
            theirs.len()
        );
        for (a, b) in ours.iter().zip(theirs) {
            ensure!(
                a.issue.is_some() || b.issue.is_none(),
                "{place:?}: a span without the issue that blktrace saw"
            );
            q2c.extend(a.queue.zip(b.queue));
            d2c.extend(a.issue.zip(b.issue));
        }
    }
    let all = |c: &Completions| c.values().map(Vec::len).sum::<usize>();
    verdict.alone = all(&spans) - all(&seen);
    (verdict.q2c, verdict.d2c) = (q2c.len(), d2c.len());
    agree("Q2C", &q2c)?;
    agree("D2C", &d2c)?;
    Ok(verdict)
}

/// Compares what `report` says of a trace of spans and of one of events. Prints a line for each device.
///
/// # Errors
///
/// When a file cannot be read, a trace is not whole, or the two do not tell the same.
pub fn compare_events(spans: &Path, events: &Path) -> Result<()> {
    let stats = |path: &Path| -> Result<Stats> {
        let source = blkrelay_trace::open(path)?;
        let problems = source.problems();
        ensure!(problems.is_empty(), "{}: {problems:?}", path.display());
        Ok(Stats::of(&source))
    };
    let (spans, events) = (stats(spans)?, stats(events)?);
    ensure!(spans.spans == spans.events, "events that are no spans");
    ensure!(events.spans == 0, "spans among the events");
    ensure!(!spans.devices.is_empty(), "no device");
    ensure!(
        spans.devices.len() == events.devices.len(),
        "{} devices of spans, {} of events",
        spans.devices.len(),
        events.devices.len()
    );
    let c = &spans.counts;
    // Whose Q the spans do not tell.
    let without = c.merged + c.missed + c.split_ios;
    let mut less = 0;
    for (a, b) in spans.devices.iter().zip(&events.devices) {
        let name = &a.name;
        let told = |d: &blkrelay_trace::DeviceStats| {
            let t = &d.totals;
            (
                d.dev, t.ios, t.bytes, t.reads, t.writes, t.flushes, t.discards, t.requests,
                t.errors,
            )
        };
        ensure!(
            told(a) == told(b),
            "{name}: {:?} of spans, {:?} of events",
            told(a),
            told(b)
        );
        let of = |latency: &Option<Latency>| latency.as_ref().map(Latency::quantiles);
        let of = |latency| of(latency).unwrap_or_default();
        let (d2c, want) = (of(&a.totals.d2c), of(&b.totals.d2c));
        ensure!(
            d2c.count == want.count,
            "{name}: D2C {d2c:?}, want {want:?}"
        );
        alike(&format!("{name} D2C"), d2c, want)?;
        let (q2c, want) = (of(&a.totals.q2c), of(&b.totals.q2c));
        // With more of them the two would speak of different I/Os.
        if without * 100 <= a.totals.ios {
            alike(&format!("{name} Q2C"), q2c, want)?;
        }
        less += want.count.saturating_sub(q2c.count);
    }
    ensure!(
        less == without,
        "{less} Q2C fewer of spans, which say that they lack {without}"
    );
    println!(
        "@result spans={} events={} without_q={without}",
        spans.spans, events.events
    );
    Ok(())
}

/// Two probes of one event run one after the other: percentiles are a little apart, and the largest, where an
/// interrupt may have come between, is left out.
fn alike(name: &str, a: Quantiles, b: Quantiles) -> Result<()> {
    for (a, b) in [(a.p50_ns, b.p50_ns), (a.p99_ns, b.p99_ns)] {
        let apart = a.abs_diff(b) as f64;
        ensure!(
            apart <= AGREE * b as f64,
            "{name}: {a} ns of spans, {b} ns of events"
        );
        println!("{name}: {a} ns of spans, {b} ns of events");
    }
    Ok(())
}

/// The pairs' medians, and those of their upper halves' upper halves, are the same.
fn agree(name: &str, pairs: &[(u64, u64)]) -> Result<()> {
    ensure!(pairs.len() >= 1000, "only {} pairs for {name}", pairs.len());
    let sorted = |of: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<f64> = pairs.iter().map(|pair| of(pair) as f64).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (ours, theirs) = (sorted(|p| p.0), sorted(|p| p.1));
    for from in [0, pairs.len() * 3 / 4] {
        let (a, b) = (stats::median(&ours[from..]), stats::median(&theirs[from..]));
        ensure!(
            (a - b).abs() <= AGREE * b,
            "{name}: {a} ns of spans, {b} ns of blktrace's events"
        );
    }
    Ok(())
}
