// SPDX-License-Identifier: GPL-2.0
//! What an event costs in the block layer's own path, and nothing besides: no tracer has a reader, and buffers
//! hold the whole window. Beside the kernel's blktrace and ftrace, and beside the least that four probes can be
//! in C (qemu/tests/floor).
//!
//! All arms are read4k boots in count mode, paired with the baseline's as in [`crate::measure`]. The bars stand
//! in one table, [`BARS`].

use crate::insns::{self, Insns};
use crate::kernel::Flavor;
use crate::measure::{self, Sample, Samples, Setup, OFF_MARGIN_PER_IO};
use crate::plan::{plan, Boot};
use crate::state::{State, Workload};
use crate::stats::{self, Estimate};
use crate::summary::{self, Row};
use crate::{cache, module_build};
use anyhow::{ensure, Context, Result};
use comfy_table::{presets, CellAlignment, Table};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The schema of hotpath's summary.json, and what may change under it: see [`summary::SCHEMA`].
pub const SCHEMA: u32 = summary::SCHEMA;

/// All that is measured unless something else is asked for.
pub const STATES: &[State] = &[
    State::Off,
    State::After,
    State::On,
    State::Filtered,
    State::Span,
    State::Slower,
    State::Notsc,
    State::Blktrace,
    State::Ftrace,
    State::Floor,
    State::Dispatch,
];

/// Events of the two traces whose files are compared.
const EVENTS_OF_FILES: u64 = 1_000_000;

/// What a bar is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// What the first state adds to an I/O, as a fraction of what the second adds.
    Share(State, State),
    /// What the first adds to an event, less what the second adds, plus so many instructions.
    PerEvent(State, State, f64),
    /// The median of what a state adds to an I/O, in either direction.
    Free(State),
    /// The size of blkrelay's file as a fraction of blktrace's.
    Files,
    /// The most that a state of ours adds to an I/O of something in [`DEAR`], less what blktrace adds of it.
    Dear,
}

/// What blktrace may not have less of, because a count of instructions hides what it costs.
const DEAR: &[&str] = &[
    "loads",
    "stores",
    "data_lines",
    "rdtsc",
    "locked",
    "cli",
    "sti",
    "pushf",
    "popf",
];

/// Not blkrelay: what it is compared with.
const PEERS: &[State] = &[
    State::Blktrace,
    State::Ftrace,
    State::Floor,
    State::Dispatch,
];

/// The most that a figure may be.
#[derive(Debug, Clone, Copy)]
pub struct Bar {
    /// In words, for who reads the table.
    pub name: &'static str,
    /// What is compared.
    pub figure: Figure,
    /// With what.
    pub at_most: f64,
}

/// The bars. A figure is compared by its point estimate; its interval is printed beside it.
pub const BARS: &[Bar] = &[
    Bar {
        name: "on / blktrace, an I/O",
        figure: Figure::Share(State::On, State::Blktrace),
        at_most: 0.25,
    },
    Bar {
        name: "on / ftrace, an I/O",
        figure: Figure::Share(State::On, State::Ftrace),
        at_most: 0.11,
    },
    Bar {
        name: "on - floor, an event",
        figure: Figure::PerEvent(State::On, State::Floor, 0.0),
        at_most: 12.0,
    },
    Bar {
        name: "span / blktrace, an I/O",
        figure: Figure::Share(State::Span, State::Blktrace),
        at_most: 0.15,
    },
    // The empty probe's one instruction, its return, is part of dispatch; the refusing probe has its own.
    Bar {
        name: "filtered, in the probe: less dispatch, plus the empty probe's return",
        figure: Figure::PerEvent(State::Filtered, State::Dispatch, 1.0),
        at_most: 12.0,
    },
    Bar {
        name: "off, an I/O, either way",
        figure: Figure::Free(State::Off),
        at_most: OFF_MARGIN_PER_IO,
    },
    Bar {
        name: "after, an I/O, either way",
        figure: Figure::Free(State::After),
        at_most: OFF_MARGIN_PER_IO,
    },
    Bar {
        name: "bytes of a trace / blktrace's files",
        figure: Figure::Files,
        at_most: 0.70,
    },
    // The window's timer interrupts are in both, and not the same.
    Bar {
        name: "dear instructions, loads, stores, lines - blktrace, an I/O, the worst",
        figure: Figure::Dear,
        at_most: 0.05,
    },
];

/// A bar with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    /// As in [`Bar`]; of [`Figure::Dear`], with what was the worst.
    pub name: String,
    /// The figure.
    pub value: Estimate,
    /// The most that it may be.
    pub at_most: f64,
    /// How much below it; negative: above.
    pub margin: f64,
    /// Whether it is no more than it may be.
    pub met: bool,
}

/// A row with its shares of what the kernel's own tracers add to an I/O.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HotRow {
    /// As everywhere.
    #[serde(flatten)]
    pub row: Row,
    /// Fraction of what blktrace adds; null for a state that adds nothing, and where blktrace was not measured.
    pub of_blktrace: Option<Estimate>,
    /// The same of ftrace.
    pub of_ftrace: Option<Estimate>,
    /// What the kernel executes more for one event, from one boot; null for a state without events.
    pub insns: Option<insns::Counts>,
}

/// The sizes of two traces of the same reads, everything included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Files {
    /// Events in each.
    pub events: u64,
    /// Bytes of blkrelay's file.
    pub blkrelay: u64,
    /// Bytes of blktrace's files.
    pub blktrace: u64,
    /// The first as a fraction of the second.
    pub fraction: f64,
    /// Size of a sub-buffer in bytes, of both.
    pub subbuf_size: u64,
    /// Sub-buffers of both.
    pub subbufs: u64,
}

/// summary.json
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hotpath {
    /// [`SCHEMA`]
    pub schema: u32,
    /// Of each state.
    pub rows: Vec<HotRow>,
    /// Null where states were asked for that do not need it.
    pub files: Option<Files>,
    /// Of each bar for which all was measured.
    pub bars: Vec<Judged>,
}

/// The arm of a state.
fn arm(samples: &Samples, state: State) -> Option<&[Sample]> {
    let arm = samples.get(&(Workload::Hotpath, state))?;
    Some(arm.as_slice())
}

/// What each boot of a state has added to its pair's baseline, in instructions.
fn added(samples: &Samples, state: State) -> Option<Vec<f64>> {
    let with = arm(samples, state)?;
    let without = arm(samples, state.baseline())?;
    let pairs = with.iter().zip(without);
    Some(
        pairs
            .map(|(a, b)| a.ticks as f64 - b.ticks as f64)
            .collect(),
    )
}

/// The first pairs of two arms, as many as both have.
fn pairs(samples: &Samples, a: State, b: State) -> Option<(Vec<f64>, Vec<f64>)> {
    let (mut a, mut b) = (added(samples, a)?, added(samples, b)?);
    let n = a.len().min(b.len());
    a.truncate(n);
    b.truncate(n);
    Some((a, b))
}

/// What `a` adds as a fraction of what `b` adds, from pairs; `None` if one was not measured, or adds nothing.
fn share(samples: &Samples, a: State, b: State) -> Option<Estimate> {
    let (a, b) = pairs(samples, a, b)?;
    let percent = stats::paired_percent(&a, &b).ok()?;
    Some(percent.map(|p| 1.0 + p / 100.0))
}

fn per_event(samples: &Samples, a: State, b: State, plus: f64) -> Option<Estimate> {
    let events = |s| Some(arm(samples, s)?.first()?.events);
    let (events_a, events_b) = (events(a)?, events(b)?);
    let (a, b) = pairs(samples, a, b)?;
    let a: Vec<f64> = a.iter().map(|x| x / events_a).collect();
    let b: Vec<f64> = b.iter().map(|x| x / events_b).collect();
    let difference = stats::paired_difference(&a, &b).ok()?;
    Some(difference.map(|x| x + plus))
}

/// What one boot of each state executes.
type Windows = BTreeMap<State, Insns>;

/// The worst of [`Figure::Dear`], and its name.
fn dear(windows: &Windows) -> Option<(f64, String)> {
    let added = |state: &State| {
        let (with, without) = (windows.get(state)?, windows.get(&state.baseline())?);
        Some(with.kernel.less(&without.kernel))
    };
    let theirs = added(&State::Blktrace)?;
    let ours = windows.keys().filter(|s| !PEERS.contains(s));
    let excesses = ours.flat_map(|state| {
        let excess = added(state).map(|counts| counts.less(&theirs));
        let figures = excess.map(|counts| counts.figures()).unwrap_or_default();
        figures
            .into_iter()
            .filter(|(name, _)| DEAR.contains(name))
            .map(|(name, excess)| (excess, format!("{name} of {}", state.name())))
    });
    excesses.max_by(|(a, _), (b, _)| a.total_cmp(b))
}

fn figure(
    figure: Figure,
    samples: &Samples,
    files: Option<&Files>,
    windows: &Windows,
) -> Option<Estimate> {
    match figure {
        Figure::Share(a, b) => share(samples, a, b),
        Figure::PerEvent(a, b, plus) => per_event(samples, a, b, plus),
        Figure::Free(state) => {
            let ios = arm(samples, state)?.first()?.ios as f64;
            let added: Vec<f64> = added(samples, state)?.iter().map(|x| x / ios).collect();
            let median = stats::median(&added).abs();
            Some(exactly(median))
        }
        Figure::Files => files.map(|f| exactly(f.fraction)),
        Figure::Dear => dear(windows).map(|(excess, _)| exactly(excess)),
    }
}

/// A figure without an interval.
fn exactly(x: f64) -> Estimate {
    Estimate {
        estimate: x,
        low: x,
        high: x,
    }
}

/// The bars for which all was measured.
fn judge(samples: &Samples, files: Option<&Files>, windows: &Windows) -> Vec<Judged> {
    let judged = |bar: &Bar| {
        let value = figure(bar.figure, samples, files, windows)?;
        let worst = match bar.figure {
            Figure::Dear => dear(windows).map(|(_, name)| format!(": {name}")),
            _ => None,
        };
        Some(Judged {
            name: bar.name.to_owned() + &worst.unwrap_or_default(),
            value,
            at_most: bar.at_most,
            margin: bar.at_most - value.estimate,
            met: value.estimate <= bar.at_most,
        })
    };
    BARS.iter().filter_map(judged).collect()
}

/// Records the same reads with both tracers and their readers, and compares what lies in the files.
///
/// # Errors
///
/// When a boot fails or a tracer lost events.
fn files(setup: &Setup, seed: u64) -> Result<Files> {
    let states = [State::On, State::Blktrace];
    let mut boots: Vec<Boot> = plan(&[Workload::Bytes], &states, seed, 1);
    boots.retain(|b| states.contains(&b.state));
    let (samples, _) = measure::count(setup, &boots)?;
    let of = |state: State| -> Result<&Sample> {
        let arm = samples.get(&(Workload::Bytes, state));
        let sample = arm.and_then(|a| a.first()).context("no boot")?;
        ensure!(
            sample.lost == 0,
            "{}: {} events lost",
            state.name(),
            sample.lost
        );
        ensure!(
            sample.traced >= EVENTS_OF_FILES,
            "{}: {} events",
            state.name(),
            sample.traced
        );
        Ok(sample)
    };
    let (ours, theirs) = (of(State::On)?, of(State::Blktrace)?);
    ensure!(
        ours.traced == theirs.traced,
        "{} events, and blktrace has {}",
        ours.traced,
        theirs.traced
    );
    let (subbuf_size, subbufs) = Workload::Bytes.buffers();
    Ok(Files {
        events: ours.traced,
        blkrelay: ours.bytes,
        blktrace: theirs.bytes,
        fraction: ours.bytes as f64 / theirs.bytes as f64,
        subbuf_size,
        subbufs,
    })
}

/// Measures states, with no more than `most` boots of each, and the files if both tracers are among them.
///
/// # Errors
///
/// When a boot fails, or a tracer lost an event in the window: what was lost was not paid for.
pub fn measure(setup: &Setup, states: &[State], seed: u64, most: usize) -> Result<Hotpath> {
    let (samples, images) = measure::collect(setup, &[Workload::Hotpath], states, seed, most)?;
    for ((_, state), arm) in &samples {
        let lost: u64 = arm.iter().map(|s| s.lost).sum();
        ensure!(lost == 0, "{}: {lost} events lost", state.name());
    }
    let again = |state: State| format!("hotpath --seed {seed} --only {}", state.name());
    let rows = measure::rows(setup, &samples, &images, Workload::Hotpath, &again)?;
    let mut windows = Windows::new();
    for (_, state) in samples.keys() {
        let window = insns::count(setup, Workload::Hotpath, *state, seed)?;
        windows.insert(*state, window);
    }
    let state_of = |row: &Row| samples.keys().find(|(_, s)| s.name() == row.state);
    let rows: Vec<HotRow> = rows
        .into_iter()
        .map(|row| {
            let state = state_of(&row).map(|(_, state)| *state);
            let of = |other| share(&samples, state?, other);
            let added = |state: State| windows[&state].per_event(&windows[&state.baseline()]);
            HotRow {
                of_blktrace: of(State::Blktrace),
                of_ftrace: of(State::Ftrace),
                insns: state.filter(|_| row.events > 0).map(added),
                row,
            }
        })
        .collect();
    let both = [State::On, State::Blktrace]
        .iter()
        .all(|s| states.contains(s));
    let files = both.then(|| files(setup, seed)).transpose()?;
    Ok(Hotpath {
        schema: SCHEMA,
        bars: judge(&samples, files.as_ref(), &windows),
        rows,
        files,
    })
}

/// Kernel, module and the lab's own modules for it.
///
/// # Errors
///
/// See [`Setup::prepare`].
pub fn prepare(dir: &Path) -> Result<Setup> {
    let mut setup = Setup::prepare(dir)?;
    setup.lab_modules = module_build::floor(&setup.kernel.kdir, Flavor::Trace)?;
    Ok(setup)
}

impl Hotpath {
    /// Writes it as JSON.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        cache::write_whole(path, &text).with_context(|| path.display().to_string())
    }

    /// The rows, and the bars, as tables.
    pub fn report(&self) -> String {
        let shown = |e: Option<Estimate>, digits| {
            e.map_or("-".into(), |e| summary::with_interval(e, digits))
        };
        // Of what is a part, not a difference.
        let part = |e, digits| shown(e, digits).trim_start_matches('+').to_owned();
        let mut rows = table(&[
            "state",
            "against",
            "added/I/O",
            "added/event",
            "× blktrace",
            "× ftrace",
            "events",
            "distinct/boots",
        ]);
        for HotRow {
            row,
            of_blktrace,
            of_ftrace,
            ..
        } in &self.rows
        {
            rows.add_row([
                row.state.clone(),
                row.baseline.clone(),
                shown(row.per_io, 2),
                shown(row.per_event, 2),
                part(*of_blktrace, 4),
                part(*of_ftrace, 4),
                row.events.to_string(),
                format!("{}/{}", row.distinct, row.boots),
            ]);
        }
        let mut text = lines(&rows, 2..8);
        text += "\n\nGuest instructions, not time; no reader; 95 % intervals over boots, each perturbed. dispatch and \
                 filtered record\nnothing: their events are the probes' calls.";
        if self.rows.iter().any(|r| r.row.state == State::Notsc.name()) {
            text += "\nnotsc: time stamps are the kernel's CLOCK_MONOTONIC, of a clock source that reads the TSC \
                     under another name\n(qemu/tests/floor/otherclock.c): the way through timekeeping without a \
                     device's registers.";
        }
        if let Some(f) = &self.files {
            text += &format!(
                "\n\n{} events in files: blkrelay {} bytes, blktrace {} bytes, {:.4} ×; {} sub-buffers of {} KiB, \
                 none lost.",
                f.events,
                f.blkrelay,
                f.blktrace,
                f.fraction,
                f.subbufs,
                f.subbuf_size >> 10
            );
        }
        let of_events: Vec<_> = self
            .rows
            .iter()
            .filter_map(|r| Some((r.row.state.as_str(), r.insns?)))
            .collect();
        if !of_events.is_empty() {
            text += "\n\n";
            text += &insns::events(&of_events);
        }
        let mut bars = table(&["", "bar", "measured", "at most", "margin"]);
        for b in &self.bars {
            bars.add_row([
                if b.met { "met" } else { "MISSED" }.to_owned(),
                b.name.clone(),
                part(Some(b.value), 3),
                b.at_most.to_string(),
                format!("{:+.3}", b.margin),
            ]);
        }
        text + "\n\n" + &lines(&bars, 2..5)
    }

    /// The bars that were missed, in a line each.
    pub fn missed(&self) -> Vec<String> {
        let missed = self.bars.iter().filter(|b| !b.met);
        missed
            .map(|b| {
                format!(
                    "{}: {:.3}, more than {}",
                    b.name, b.value.estimate, b.at_most
                )
            })
            .collect()
    }
}

fn table(header: &[&str]) -> Table {
    let mut t = Table::new();
    t.load_preset(presets::NOTHING);
    t.set_header(header);
    t
}

/// The table's text; the columns that hold numbers stand to the right.
fn lines(table: &Table, numbers: std::ops::Range<usize>) -> String {
    let mut table = table.clone();
    for column in numbers {
        if let Some(c) = table.column_mut(column) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text: Vec<String> = table.lines().map(|l| l.trim_end().to_owned()).collect();
    text.join("\n")
}

/// Arguments of `blkrelay-lab hotpath`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these states, and what they are compared with
    #[arg(long, value_enum, value_name = "STATE", num_args = 1..)]
    only: Vec<State>,
    /// Decides order and perturbations of the boots
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where summary.json and the consoles are put
    #[arg(long, default_value = "out/hotpath")]
    dir: PathBuf,
}

/// Measures, writes summary.json and prints the tables. A bar that is missed is no error.
///
/// # Errors
///
/// See [`prepare`] and [`measure`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let setup = prepare(&args.dir)?;
    let states = if args.only.is_empty() {
        STATES
    } else {
        &args.only
    };
    let hotpath = measure(&setup, states, args.seed, usize::MAX)?;
    let path = args.dir.join("summary.json");
    hotpath.write(&path)?;
    println!("{}\n\n{}", hotpath.report(), path.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ticks: u64, events: f64) -> Sample {
        Sample {
            ticks,
            ios: 100,
            events,
            traced: events as u64,
            lost: 0,
            written: 0,
            left: 0,
            bytes: 0,
        }
    }

    /// A baseline of two boots, 20,000 and 20,010 instructions for 100 I/Os; each state adds to them.
    fn samples(states: &[(State, u64, f64)]) -> Samples {
        let none = vec![sample(20_000, 0.0), sample(20_010, 0.0)];
        let mut samples = Samples::from([((Workload::Hotpath, State::None), none)]);
        for (state, added, events) in states {
            let arm = vec![
                sample(20_000 + added, *events),
                sample(20_010 + added, *events),
            ];
            samples.insert((Workload::Hotpath, *state), arm);
        }
        samples
    }

    #[test]
    fn shares_are_of_what_is_added() {
        let s = samples(&[(State::On, 250, 400.0), (State::Blktrace, 1000, 400.0)]);
        let on = share(&s, State::On, State::Blktrace).unwrap();
        assert!((on.estimate - 0.25).abs() < 1e-9, "{on:?}");
        assert_eq!(share(&s, State::On, State::Ftrace), None);
        // What adds nothing has no share.
        let s = samples(&[(State::Off, 0, 0.0), (State::Blktrace, 1000, 400.0)]);
        assert_eq!(share(&s, State::Off, State::Blktrace), None);
    }

    #[test]
    fn bars_by_hand() {
        let s = samples(&[
            (State::On, 10_000, 400.0),
            (State::Floor, 6_000, 400.0),
            (State::Filtered, 8_800, 400.0),
            (State::Dispatch, 4_000, 400.0),
            (State::Off, 40, 0.0),
        ]);
        let judged = judge(&s, None, &Windows::new());
        let of = |name: &str| {
            let found = judged.iter().find(|j| j.name.starts_with(name)).unwrap();
            (found.value.estimate, found.margin, found.met)
        };
        assert_eq!(of("on - floor"), (10.0, 2.0, true));
        assert_eq!(of("filtered"), (13.0, -1.0, false));
        assert_eq!(of("off"), (0.4, 0.09999999999999998, true));
        // What was not measured is not judged.
        assert_eq!(judged.len(), 3);
    }

    /// A window in which an I/O has so many loads and locked instructions.
    fn window(state: State, loads: f64, locked: f64) -> (State, Insns) {
        let kernel = insns::Counts {
            loads,
            locked,
            ..Default::default()
        };
        let window = Insns {
            state: state.name().to_owned(),
            ios: 1,
            events: 0.0,
            ticks: 0,
            instructions: 0,
            kernel,
            user: insns::Counts::default(),
            profile: Vec::new(),
        };
        (state, window)
    }

    #[test]
    fn the_worst_of_what_is_dear() {
        let mut windows = Windows::from([
            window(State::None, 1000.0, 10.0),
            window(State::Blktrace, 1400.0, 10.0),
            // A peer may have more.
            window(State::Ftrace, 9000.0, 90.0),
            window(State::On, 1100.0, 10.0),
        ]);
        // Nothing of what is 0 in both is more.
        assert_eq!(dear(&windows).map(|(excess, _)| excess), Some(0.0));
        windows.extend([window(State::Slower, 1300.0, 11.0)]);
        let worst = dear(&windows);
        assert_eq!(worst, Some((1.0, "locked of slower".to_owned())));
        let judged = judge(&samples(&[]), None, &windows);
        assert!(
            judged[0].name.ends_with("the worst: locked of slower"),
            "{judged:?}"
        );
        assert!(!judged[0].met);
        windows.remove(&State::Blktrace);
        assert_eq!(dear(&windows), None);
    }

    #[test]
    fn off_may_not_be_less_than_none_either() {
        let none = vec![sample(20_100, 0.0), sample(20_110, 0.0)];
        let off = vec![sample(20_000, 0.0), sample(20_010, 0.0)];
        let s = Samples::from([
            ((Workload::Hotpath, State::None), none),
            ((Workload::Hotpath, State::Off), off),
        ]);
        assert_eq!(
            figure(Figure::Free(State::Off), &s, None, &Windows::new()),
            Some(exactly(1.0))
        );
    }

    #[test]
    fn a_missed_bar_is_named() {
        let files = Files {
            events: 1_114_112,
            blkrelay: 80,
            blktrace: 100,
            fraction: 0.8,
            subbuf_size: 4096,
            subbufs: 8,
        };
        let bars = judge(&samples(&[]), Some(&files), &Windows::new());
        let hotpath = Hotpath {
            schema: SCHEMA,
            rows: Vec::new(),
            files: Some(files),
            bars,
        };
        let missed = hotpath.missed();
        assert_eq!(
            missed,
            ["bytes of a trace / blktrace's files: 0.800, more than 0.7"]
        );
        assert!(hotpath.report().contains("MISSED"), "{}", hotpath.report());
    }
}
