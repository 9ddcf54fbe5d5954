// SPDX-License-Identifier: GPL-2.0
//! Statistics of a trace: per device and per process.

use crate::event::{Dev, Event, Item};
use crate::events::DeviceInfo;
use crate::filter::Filter;
use crate::op::Kind;
use crate::requests::{Counts, IoSpan, RequestSpan, Span, Submitter, Tracker};
use crate::{Action, GapKind, Source};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// A latency's distribution. Quantiles are off by at most 1 %, the extremes are exact.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    max: u64,
}

/// A latency in numbers, all in nanoseconds; 0 if there is no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Samples.
    pub count: u64,
    /// Half of the samples are not above it.
    pub p50_ns: u64,
    /// 99 % of the samples are not above it.
    pub p99_ns: u64,
    /// The largest sample.
    pub max_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            // Two digits, one memory word a bucket, ten hours: the bounds are constants, and good ones.
            histogram: Histogram::new_with_bounds(1, 36_000_000_000_000, 2)
                .expect("the bounds are valid"),
            max: 0,
        }
    }
}

impl Latency {
    /// Adds a sample of so many nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.max = self.max.max(ns);
    }

    /// The distribution in numbers.
    pub fn quantiles(&self) -> Quantiles {
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max);
        Quantiles {
            count: self.histogram.len(),
            p50_ns: at(0.50),
            p99_ns: at(0.99),
            max_ns: self.max,
        }
    }
}

/// What one device did, or one process asked for.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// I/Os queued; of spans: completed, those that were merged included. A process has those of the requests
    /// whose first bio it queued.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Flushes without data among them.
    pub flushes: u64,
    /// Discards and erasures among them.
    pub discards: u64,
    /// Requests completed; of a process: 0.
    pub requests: u64,
    /// Requests that ended with an error; of a process: 0.
    pub errors: u64,
    /// Q to C, of each I/O.
    pub q2c: Option<Latency>,
    /// D to C: of a device, of each request; of a process, of the request that completed each I/O.
    pub d2c: Option<Latency>,
}

impl Totals {
    fn queued(&mut self, ios: u64, bytes: u32, kind: Kind) {
        self.ios += ios;
        // A discard moves no data.
        if kind != Kind::Discard {
            self.bytes += u64::from(bytes);
        }
        match kind {
            Kind::Read => self.reads += ios,
            Kind::Write => self.writes += ios,
            Kind::Flush => self.flushes += ios,
            Kind::Discard => self.discards += ios,
            Kind::Other => {}
        }
    }
}

/// A device's totals.
#[derive(Clone, Debug)]
pub struct DeviceStats {
    /// Its number; `None` if the trace does not name it.
    pub dev: Option<Dev>,
    /// Its name, or its number, or `queue N`.
    pub name: String,
    /// Tells it from another one of the same name or number; 0 if it is not known.
    pub diskseq: u64,
    /// What it did.
    pub totals: Totals,
}

/// A process's totals.
#[derive(Clone, Debug)]
pub struct ProcessStats {
    /// Who queued.
    pub submitter: Submitter,
    /// What it asked for.
    pub totals: Totals,
}

/// Lost events of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Gaps.
    pub gaps: u64,
    /// Events in them.
    pub events: u64,
}

/// Statistics of a whole trace.
#[derive(Clone, Debug)]
pub struct Stats {
    /// By number.
    pub devices: Vec<DeviceStats>,
    /// By bytes, then I/Os, descending.
    pub processes: Vec<ProcessStats>,
    /// Events in the trace.
    pub events: u64,
    /// Spans among them.
    pub spans: u64,
    /// Spans of bio-based drivers among those. What such a driver passes on to another traced device is that
    /// one's I/O, and its process's once more: spans do not tell that it was mapped.
    pub bio_spans: u64,
    /// CPUs that have a stream.
    pub cpus: u64,
    /// Events of codes that this reader does not know: in none of the other numbers.
    pub unknown: u64,
    /// From the first event to the last, ns.
    pub duration_ns: u64,
    /// Events that the module had no room for.
    pub lost: Losses,
    /// Events that the module wrote and the file lacks, or holds damaged.
    pub missing: Losses,
    /// What could not be paired.
    pub counts: Counts,
}

/// I/Os that end with a span; `None` if it is of none. A front part is none: what is left when it was split
/// off is. A clone's are the stacked device's.
fn span_ios(event: &Event) -> Option<u64> {
    let times = event.times().copied().unwrap_or_default();
    let is_io =
        !event.opf.is_passthrough() && !times.is_clone() && (event.head > 0 || times.is_partial());
    let parts = u64::from(times.is_front());
    is_io.then(|| u64::from(event.head).saturating_sub(parts))
}

fn is_of_bio(event: &Event) -> bool {
    event.times().is_some_and(|times| times.is_bio())
}

/// The flush machinery has taken away the flag that told a flush without data.
fn span_kind(event: &Event) -> Kind {
    if event.ends_sequence() {
        Kind::Flush
    } else {
        event.opf.kind(event.bytes)
    }
}

fn io_done(span: &IoSpan, device: &mut Totals, process: Option<&mut Totals>) {
    if span.cut {
        return;
    }
    let q2c = span.complete_ns.saturating_sub(span.queue_ns);
    device.q2c.get_or_insert_default().add(q2c);
    if let Some(process) = process {
        process.q2c.get_or_insert_default().add(q2c);
        if let Some(issue) = span.issue_ns {
            let d2c = span.data_ns.saturating_sub(issue);
            process.d2c.get_or_insert_default().add(d2c);
        }
    }
}

fn request_done(span: &RequestSpan, device: &mut Totals) {
    device.requests += 1;
    device.errors += u64::from(span.errno != 0);
    if !span.cut {
        let d2c = span.complete_ns.saturating_sub(span.issue_ns);
        device.d2c.get_or_insert_default().add(d2c);
    }
}

/// What a row of the devices' table is about: number, queue id, disk sequence number.
type DeviceKey = (Option<Dev>, u16, u64);

fn device_name((dev, queue, diskseq): DeviceKey, known: &[DeviceInfo]) -> String {
    known
        .iter()
        .find(|info| (info.dev, info.queue, info.diskseq) == (dev, queue, diskseq) && dev.is_some())
        .map(|info| info.name.clone())
        .or_else(|| dev.map(|dev| dev.to_string()))
        .unwrap_or_else(|| format!("queue {queue}"))
}

impl Stats {
    /// Reads a trace to its end.
    pub fn of(source: &Source) -> Stats {
        Stats::of_selected(source, &Filter::default())
    }

    /// Reads a trace to its end, and looks at what a filter selects.
    pub fn of_selected(source: &Source, filter: &Filter) -> Stats {
        let mut events = source.select(filter);
        let mut tracker = Tracker::new(source);
        let mut devices: BTreeMap<DeviceKey, Totals> = BTreeMap::new();
        let mut processes: BTreeMap<Submitter, Totals> = BTreeMap::new();
        let mut stats = Stats {
            devices: Vec::new(),
            processes: Vec::new(),
            events: 0,
            spans: 0,
            bio_spans: 0,
            cpus: source.cpus().count() as u64,
            unknown: 0,
            duration_ns: 0,
            lost: Losses::default(),
            missing: Losses::default(),
            counts: Counts::default(),
        };
        let mut first = None;
        let spans = |spans: std::vec::Drain<'_, Span>,
                     devices: &mut BTreeMap<DeviceKey, Totals>,
                     processes: &mut BTreeMap<Submitter, Totals>| {
            for span in spans {
                match span {
                    Span::Request(span) => {
                        let device = devices
                            .entry((span.dev, span.queue, span.diskseq))
                            .or_default();
                        request_done(&span, device);
                    }
                    Span::Io(span) => {
                        let device = devices
                            .entry((span.dev, span.queue, span.diskseq))
                            .or_default();
                        let process =
                            (!span.stacked).then(|| processes.entry(span.submitter).or_default());
                        io_done(&span, device, process);
                    }
                }
            }
        };
        for item in events.by_ref() {
            match &item {
                Item::Event(event) => {
                    stats.events += 1;
                    let first = *first.get_or_insert(event.ns);
                    stats.duration_ns = event.ns.saturating_sub(first);
                    if event.action == Action::Queue {
                        let kind = event.opf.kind(event.bytes);
                        let device = devices
                            .entry((event.dev, event.queue, event.diskseq))
                            .or_default();
                        device.queued(1, event.bytes, kind);
                        if !tracker.is_arriving(event) {
                            let process = processes.entry(Submitter::of(event)).or_default();
                            process.queued(1, event.bytes, kind);
                        }
                    } else if event.action == Action::Span {
                        stats.spans += 1;
                        stats.bio_spans += u64::from(is_of_bio(event));
                        let ios = span_ios(event);
                        let kind = span_kind(event);
                        if let Some(ios) = ios.filter(|_| !tracker.ends_sequence(event)) {
                            let device = devices
                                .entry((event.dev, event.queue, event.diskseq))
                                .or_default();
                            device.queued(ios, event.bytes, kind);
                            if event.pid.is_some() {
                                let process = processes.entry(Submitter::of(event)).or_default();
                                process.queued(ios, event.bytes, kind);
                            }
                        }
                    }
                }
                Item::Gap(gap) => {
                    let losses = match gap.kind {
                        GapKind::Lost => &mut stats.lost,
                        GapKind::Missing | GapKind::Damaged => &mut stats.missing,
                    };
                    losses.gaps += 1;
                    losses.events = losses.events.saturating_add(gap.events);
                }
            }
            spans(tracker.item(&item), &mut devices, &mut processes);
        }
        spans(tracker.finish(), &mut devices, &mut processes);
        stats.counts = tracker.counts();
        stats.unknown = events.unknown();
        let known = events.devices();
        stats.devices = devices
            .into_iter()
            .map(|(key, totals)| DeviceStats {
                dev: key.0,
                name: device_name(key, &known),
                diskseq: key.2,
                totals,
            })
            .collect();
        stats.processes = processes
            .into_iter()
            .map(|(submitter, totals)| ProcessStats { submitter, totals })
            .collect();
        stats.processes.sort_by(|a, b| {
            let key = |stats: &ProcessStats| (stats.totals.bytes, stats.totals.ios);
            key(b).cmp(&key(a))
        });
        stats
    }
}
