// SPDX-License-Identifier: GPL-2.0
//! A trace of spans says what the full events of the same run say. Here the run is made up: what happened is
//! known, both traces are written from it, and neither from the other.
#![allow(clippy::unwrap_used)]

mod common;

use blkrelay_format::{abi, Action, Record, SubbufBuilder, Times};
use blkrelay_trace::{Counts, IoSpan, RequestSpan, Source, Span, Stats, Totals, Tracker};
use common::*;
use proptest::prelude::*;
use Action::{BackMerge, BioComplete, Complete, GetRq, Issue, Queue, Requeue, Split};

const SYNC: u32 = 1 << 11;
const APPEND: u32 = 7;
const DRV_IN: u32 = 34;

const MISSED: u32 = abi::BLKRELAY_TIMES_MISSED;
const FRONT: u32 = abi::BLKRELAY_TIMES_FRONT;
const REST: u32 = abi::BLKRELAY_TIMES_REST;
const PARTIAL: u32 = abi::BLKRELAY_TIMES_PARTIAL;
const BIO: u32 = abi::BLKRELAY_TIMES_BIO;

/// What becomes of an I/O.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Plain,
    Discard,
    Append,
    /// The driver gives it back, and it is issued again.
    Requeued,
    Failed,
    /// Complete in so many calls, of one bio.
    InParts(u64),
    /// A FUA write to a disk that can do it.
    Fua,
    /// A flush, the data, perhaps a flush, the end.
    Flushed {
        after: bool,
    },
    /// The data, a flush, the end.
    FlushedAfter,
    EmptyFlush,
    Passthrough,
    /// Of a bio-based driver.
    Bio,
    /// Split there, into two; the bio that was queued ends last.
    BioSplit,
    /// The trace has no D of it.
    NoIssue,
    // Of these the spans do not tell all.
    /// So many bios, each merged behind the one before.
    Merged(u64),
    /// Complete in two calls, of one bio each.
    MergedInParts,
    /// Into so many front parts and a rest.
    Cut(u64),
    /// The module has lost the stamp of its Q.
    Missed,
}

use Fate::*;

#[derive(Clone, Debug)]
struct Plan {
    fate: Fate,
    start: u64,
    /// Between its events.
    steps: Vec<u64>,
    write: bool,
    by_cat: bool,
    cpu: u32,
}

fn plan(fates: impl Strategy<Value = Fate>) -> impl Strategy<Value = Plan> {
    let steps = proptest::collection::vec(1u64..300, 12);
    (fates, 0u64..3000, steps, any::<(bool, bool)>(), 0u32..2).prop_map(
        |(fate, start, steps, (write, by_cat), cpu)| Plan {
            fate,
            start,
            steps,
            write,
            by_cat,
            cpu,
        },
    )
}

fn told() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Plain),
        1 => Just(Discard),
        1 => Just(Append),
        1 => Just(Requeued),
        1 => Just(Failed),
        1 => (2u64..4).prop_map(InParts),
        1 => Just(Fua),
        2 => any::<bool>().prop_map(|after| Flushed { after }),
        2 => Just(FlushedAfter),
        2 => Just(EmptyFlush),
        1 => Just(Passthrough),
        1 => Just(Bio),
        1 => Just(BioSplit),
        1 => Just(NoIssue),
    ]
}

fn any_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => told(),
        1 => (2u64..5).prop_map(Merged),
        1 => Just(MergedInParts),
        1 => (1u64..4).prop_map(Cut),
        1 => Just(Missed),
    ]
}

/// The run: what both traces hold, with the CPU.
#[derive(Debug, Default)]
struct Run {
    full: Vec<(u32, Record)>,
    spans: Vec<(u32, Record, Times)>,
    /// Q of the I/Os whose Q2C spans do not tell.
    untold: Vec<u64>,
    merged: u64,
    split_ios: u64,
    missed: u64,
}

/// Numbers that are used again once they are free.
#[derive(Default)]
struct Pool(Vec<u64>);

impl Pool {
    /// One that is free at `from`, until `to`.
    fn take(&mut self, from: u64, to: u64) -> u32 {
        let free = self.0.iter().position(|end| *end < from);
        let number = free.unwrap_or(self.0.len());
        if number == self.0.len() {
            self.0.push(0);
        }
        self.0[number] = to;
        number as u32
    }
}

/// One I/O, as it is being told.
struct Told<'a> {
    run: &'a mut Run,
    plan: &'a Plan,
    now: u64,
    step: usize,
    /// Instants are this apart, and each I/O has its own between them: no two are equal.
    unit: u64,
    own: u64,
    queue: u16,
}

impl Told<'_> {
    fn time(&self) -> u64 {
        self.now * self.unit + self.own
    }

    fn pass(&mut self) -> u64 {
        self.now += self.plan.steps[self.step];
        self.step += 1;
        self.time()
    }

    fn record(&self, action: Action, sector: u64, bytes: u64, opf: u32, id: u32) -> Record {
        let pid = if self.plan.by_cat { 200 } else { 100 };
        Record {
            place: Record::pack_place(Some(sector), self.queue),
            who: Record::pack_who(action, pid),
            ..event(action, self.time(), sector, bytes as u32, opf, id)
        }
    }

    /// An event that only the full trace has.
    fn event(&mut self, action: Action, sector: u64, bytes: u64, opf: u32, id: u32) -> u64 {
        let record = self.record(action, sector, bytes, opf, id);
        self.run.full.push((self.plan.cpu, record));
        record.time
    }

    /// A completion, in both.
    #[allow(clippy::too_many_arguments)]
    fn complete(
        &mut self,
        sector: u64,
        bytes: u64,
        opf: u32,
        id: u32,
        head: u32,
        bios: u64,
        times: (u64, u64, u32),
    ) {
        let failed = matches!(self.plan.fate, Failed);
        let status = if failed { 10 } else { 0 };
        let (queue, issue, flags) = times;
        let action = if flags & BIO != 0 {
            BioComplete
        } else {
            Complete
        };
        let record = self.record(action, sector, bytes, opf, id);
        let who = Record::pack_complete(action, status, head);
        self.run
            .full
            .push((1 - self.plan.cpu, Record { who, ..record }));
        let who = Record::pack_complete(Action::Span, status, bios as u32);
        let record = Record { who, ..record };
        let known = queue != 0 || flags & FRONT != 0;
        let pid = if !known {
            0
        } else if self.plan.by_cat {
            200
        } else {
            100
        };
        let times = Times::new(queue, issue, 0, pid, flags as u16);
        self.run.spans.push((1 - self.plan.cpu, record, times));
    }
}

fn run(mut plans: Vec<Plan>) -> Run {
    plans.sort_by_key(|plan| plan.start);
    let mut run = Run::default();
    let (mut tags, mut bios) = (Pool::default(), Pool::default());
    let unit = plans.len() as u64 + 1;
    for (own, plan) in plans.iter().enumerate() {
        let from = plan.start + 1;
        let to = from + plan.steps.iter().sum::<u64>();
        let mut tag = || tags.take(from, to);
        // The address says nothing of the I/O's kind.
        let mut bio = || 0x70_1000 + bios.take(from, to);
        let base = 1_000_000 * (own as u64 + 1);
        let mut io = Told {
            run: &mut run,
            plan,
            now: from,
            step: 0,
            unit,
            own: own as u64,
            queue: 1,
        };
        let opf = if plan.write { WRITE } else { READ };
        let (b, t) = (bio(), tag());
        match plan.fate {
            Plain | Failed | Missed | Requeued | NoIssue | Discard | Append | Fua => {
                let opf = match plan.fate {
                    Discard => DISCARD,
                    Append => APPEND,
                    Fua => WRITE | FUA | SYNC,
                    _ => opf,
                };
                let queued = io.event(Queue, base, 4096, opf, b);
                io.event(GetRq, base, 4096, opf, b);
                io.pass();
                let mut issued = 0;
                if !matches!(plan.fate, NoIssue) {
                    issued = io.event(Issue, base, 4096, opf, t);
                }
                if matches!(plan.fate, Requeued) {
                    io.pass();
                    io.event(Requeue, base, 4096, opf, t);
                    io.pass();
                    issued = io.event(Issue, base, 4096, opf, t);
                }
                io.pass();
                let place = if matches!(plan.fate, Append) { 128 } else { 0 };
                let mut times = (queued, issued, 0);
                if matches!(plan.fate, Missed) {
                    times = (0, issued, MISSED);
                    io.run.untold.push(queued);
                    io.run.missed += 1;
                }
                io.complete(base + place, 4096, opf, t, b, 1, times);
            }
            InParts(parts) => {
                let queued = io.event(Queue, base, 4096 * parts, opf, b);
                io.pass();
                let issued = io.event(Issue, base, 4096 * parts, opf, t);
                for part in 0..parts {
                    io.pass();
                    let last = part == parts - 1;
                    let flags = if last { 0 } else { PARTIAL };
                    let times = (queued, issued, flags);
                    io.complete(base + 8 * part, 4096, opf, t, b, last.into(), times);
                }
            }
            Flushed { .. } | FlushedAfter => {
                let before = !matches!(plan.fate, FlushedAfter);
                let after = !matches!(plan.fate, Flushed { after: false });
                let asked = WRITE | SYNC | if before { PREFLUSH } else { FUA };
                // What the flush machinery has seen to, it takes away.
                let opf = WRITE | SYNC;
                let flush = |io: &mut Told<'_>| {
                    io.pass();
                    let issued = io.event(Issue, 0, 0, FLUSH | PREFLUSH, t);
                    io.pass();
                    io.complete(0, 0, FLUSH | PREFLUSH, t, 0, 0, (0, issued, MISSED));
                };
                let queued = io.event(Queue, base, 4096, asked, b);
                if before {
                    flush(&mut io);
                }
                io.pass();
                let issued = io.event(Issue, base, 4096, opf, t);
                io.pass();
                io.complete(base, 4096, opf, t, b, 1, (queued, issued, 0));
                if after {
                    flush(&mut io);
                }
                io.pass();
                io.complete(base, 0, opf, t, b, 1, (queued, issued, 0));
            }
            EmptyFlush => {
                let queued = io.event(Queue, 0, 0, WRITE | SYNC | PREFLUSH, b);
                io.pass();
                let issued = io.event(Issue, 0, 0, FLUSH | PREFLUSH, t);
                io.pass();
                io.complete(0, 0, FLUSH | PREFLUSH, t, 0, 0, (0, issued, 0));
                io.pass();
                io.complete(0, 0, WRITE | SYNC, t, b, 1, (queued, 0, 0));
            }
            Passthrough => {
                io.pass();
                let issued = io.event(Issue, 0, 36, DRV_IN, t);
                io.pass();
                io.complete(0, 36, DRV_IN, t, b, 1, (0, issued, MISSED));
            }
            Bio => {
                io.queue = 2;
                let queued = io.event(Queue, base, 4096, opf, b);
                io.pass();
                io.complete(base, 4096, opf, b, b, 1, (queued, 0, BIO));
            }
            BioSplit => {
                io.queue = 2;
                let front = bio();
                let queued = io.event(Queue, base, 8192, opf, b);
                io.event(Split, base, 4096, opf, front);
                io.pass();
                io.complete(base, 4096, opf, front, front, 1, (0, 0, BIO | FRONT));
                io.pass();
                io.complete(base + 8, 4096, opf, b, b, 1, (queued, 0, BIO | REST));
            }
            Merged(_) | MergedInParts => {
                let n = if let Merged(n) = plan.fate { n } else { 2 };
                let bios: Vec<u32> = (1..n).map(|_| bio()).collect();
                let queued = io.event(Queue, base, 4096, opf, b);
                io.event(GetRq, base, 4096, opf, b);
                let mut behind = Vec::new();
                for (bio, n) in bios.iter().zip(1..) {
                    io.pass();
                    behind.push(io.event(Queue, base + 8 * n, 4096, opf, *bio));
                    io.event(BackMerge, base + 8 * n, 4096, opf, *bio);
                }
                io.pass();
                let issued = io.event(Issue, base, 4096 * n, opf, t);
                io.pass();
                if let Merged(n) = plan.fate {
                    io.complete(base, 4096 * n, opf, t, b, n, (queued, issued, 0));
                    io.run.merged += n - 1;
                    io.run.untold.append(&mut behind);
                } else {
                    // Then the second bio is the first of those that are left, and has its own Q.
                    io.complete(base, 4096, opf, t, b, 1, (queued, issued, PARTIAL));
                    io.pass();
                    let times = (behind[0], issued, 0);
                    io.complete(base + 8, 4096, opf, t, bios[0], 1, times);
                }
            }
            Cut(fronts) => {
                let queued = io.event(Queue, base, 4096 * (fronts + 1), opf, b);
                let mut parts = Vec::new();
                for n in 0..fronts {
                    let (front, tag) = (bio(), tag());
                    io.pass();
                    io.event(Split, base + 8 * n, 4096, opf, front);
                    io.event(GetRq, base + 8 * n, 4096, opf, front);
                    let issued = io.event(Issue, base + 8 * n, 4096, opf, tag);
                    parts.push((base + 8 * n, tag, front, (0, issued, FRONT)));
                }
                io.pass();
                let issued = io.event(Issue, base + 8 * fronts, 4096, opf, t);
                parts.push((base + 8 * fronts, t, b, (queued, issued, REST)));
                if plan.by_cat {
                    parts.reverse();
                }
                for (sector, tag, bio, times) in parts {
                    io.pass();
                    io.complete(sector, 4096, opf, tag, bio, 1, times);
                }
                io.run.untold.push(queued);
                io.run.split_ios += 1;
            }
        }
        assert!(io.now <= to);
    }
    run.full.sort_by_key(|(_, record)| record.time);
    run.spans.sort_by_key(|(_, record, _)| record.time);
    run
}

/// Two CPUs' streams, in sub-buffers of a few events.
fn trace<'a>(records: impl Iterator<Item = (u32, &'a Record, Option<&'a Times>)>) -> Source {
    let mut cpus = [stream(0), stream(1)];
    let mut subbufs = Vec::new();
    let mut events = [0, 0];
    for (cpu, record, times) in records {
        let index = cpu as usize;
        cpus[index].event(*record);
        if let Some(times) = times {
            cpus[index].times(*times);
        }
        events[index] += 1;
        if events[index] % 7 == 0 {
            subbufs.push(cpus[index].finish());
            names(&mut cpus[index]);
            cpus[index].anchor(record.time, record.time + 1000);
        }
    }
    subbufs.extend(cpus.iter_mut().map(SubbufBuilder::finish));
    open(file(&subbufs, &[&cpus[0], &cpus[1]]))
}

impl Run {
    fn full(&self) -> Source {
        trace(self.full.iter().map(|(cpu, record)| (*cpu, record, None)))
    }

    fn spans(&self) -> Source {
        let spans = self.spans.iter();
        trace(spans.map(|(cpu, record, times)| (*cpu, record, Some(times))))
    }
}

fn track(source: &Source) -> (Vec<RequestSpan>, Vec<IoSpan>, Counts) {
    let mut tracker = Tracker::new(source);
    let (mut requests, mut ios) = (Vec::new(), Vec::new());
    let mut sort = |span| match span {
        Span::Request(span) => requests.push(span),
        Span::Io(span) => ios.push(span),
    };
    for item in source.events() {
        tracker.item(&item).for_each(&mut sort);
    }
    tracker.finish().for_each(&mut sort);
    requests.sort_by_key(|request| (request.complete_ns, request.issue_ns));
    ios.sort_by_key(|io| io.queue_ns);
    (requests, ios, tracker.counts())
}

/// What is the same in both, of an I/O.
fn io(io: &IoSpan) -> impl PartialEq + std::fmt::Debug {
    let who = (io.submitter.pid, io.submitter.tgid, io.submitter.comm);
    let times = (io.queue_ns, io.issue_ns, io.data_ns, io.complete_ns);
    (io.queue, io.dev, who, times, io.cut)
}

/// And of a request.
fn request(request: &RequestSpan) -> impl PartialEq + std::fmt::Debug {
    let times = (request.issue_ns, request.complete_ns);
    let what = (request.bytes, request.opf, request.errno, request.cut);
    (request.queue, request.id, request.dev, times, what)
}

/// What a report says of a row.
fn totals(totals: &Totals) -> impl PartialEq + std::fmt::Debug {
    let latency = |of: &Option<blkrelay_trace::Latency>| of.as_ref().map(|of| of.quantiles());
    let kinds = (totals.reads, totals.writes, totals.flushes, totals.discards);
    (
        (totals.ios, totals.bytes, kinds),
        (totals.requests, totals.errors),
        (latency(&totals.q2c), latency(&totals.d2c)),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Where nothing was merged, split or missed, the report is the same.
    #[test]
    fn a_report_of_spans_is_that_of_the_events(plans in proptest::collection::vec(plan(told()), 1..60)) {
        let run = run(plans);
        let (full, spans) = (run.full(), run.spans());
        let (theirs, ours) = (Stats::of(&full), Stats::of(&spans));
        prop_assert_eq!(ours.spans, run.spans.len() as u64);
        let of_bio = run.spans.iter().filter(|(_, record, _)| record.queue() == 2);
        prop_assert_eq!(ours.bio_spans, of_bio.count() as u64);
        let device = |stats: &Stats| -> Vec<_> {
            stats.devices.iter().map(|device| (device.name.clone(), totals(&device.totals))).collect()
        };
        prop_assert_eq!(device(&ours), device(&theirs));
        let process = |stats: &Stats| -> Vec<_> {
            stats.processes.iter().map(|process| (process.submitter, totals(&process.totals))).collect()
        };
        prop_assert_eq!(process(&ours), process(&theirs));
        let expected = Counts { requeued: 0, ..theirs.counts };
        prop_assert_eq!(ours.counts, expected);
        prop_assert_eq!(full.verify().findings, []);
        prop_assert_eq!(spans.verify().findings, []);
    }

    /// Each I/O whose Q2C is told has the same, each request its D2C; the others are counted.
    #[test]
    fn spans_are_what_the_events_tell(plans in proptest::collection::vec(plan(any_fate()), 1..60)) {
        let run = run(plans);
        let (requests, mut ios, counts) = track(&run.full());
        let (span_requests, span_ios, span_counts) = track(&run.spans());
        let bare = |requests: &[RequestSpan]| -> Vec<_> { requests.iter().map(request).collect() };
        prop_assert_eq!(bare(&span_requests), bare(&requests));
        let all = ios.len();
        ios.retain(|io| !run.untold.contains(&(io.queue_ns - 1000)));
        prop_assert_eq!(all - ios.len(), run.untold.len());
        let bare = |ios: &[IoSpan]| -> Vec<_> { ios.iter().map(io).collect() };
        prop_assert_eq!(bare(&span_ios), bare(&ios));
        let expected = Counts {
            requeued: 0,
            merged: run.merged,
            missed: run.missed,
            split_ios: run.split_ios,
            ..counts
        };
        prop_assert_eq!(span_counts, expected);
    }
}

/// A span of queue 1 by dd, of one bio.
fn span(time: u64, sector: u64, bytes: u32, opf: u32, tag: u32) -> Record {
    Record {
        who: Record::pack_complete(Action::Span, 0, 1),
        ..event(Action::Span, time, sector, bytes, opf, tag)
    }
}

fn times(queue: u64, issue: u64, flags: u32) -> Times {
    let pid = if flags & MISSED == 0 { 100 } else { 0 };
    Times::new(queue, issue, 0, pid, flags as u16)
}

fn source(spans: &[(Record, Times)]) -> Source {
    trace(spans.iter().map(|(span, times)| (0, span, Some(times))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whose they are, and how long they took: the same I/Os are selected.
    #[test]
    fn filters_select_the_same(
        plans in proptest::collection::vec(plan(told()), 1..60),
        latency in proptest::option::of(0u64..40_000),
        pids in prop_oneof![Just(vec![]), Just(vec![100]), Just(vec![200]), Just(vec![100, 200])],
        cat in any::<bool>(),
    ) {
        let run = run(plans);
        let filter = blkrelay_trace::Filter {
            pids,
            comms: if cat { vec!["cat".to_owned()] } else { vec![] },
            min_latency_ns: latency,
            ..blkrelay_trace::Filter::default()
        };
        let of = |source: &Source| -> Vec<_> {
            let stats = Stats::of_selected(source, &filter);
            let latency = |of: &Option<blkrelay_trace::Latency>| of.as_ref().map(|of| of.quantiles());
            let row = |name: String, totals: &Totals| {
                (name, totals.ios, totals.requests, latency(&totals.q2c), latency(&totals.d2c))
            };
            let devices = stats.devices.iter().map(|device| row(device.name.clone(), &device.totals));
            let processes = stats.processes.iter().map(|process| {
                row(process.submitter.comm.to_string(), &process.totals)
            });
            // A device of which nothing but a part is selected is there with nothing in it.
            let mut rows: Vec<_> = devices.chain(processes).filter(|row| row.1 + row.2 > 0).collect();
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            rows
        };
        prop_assert_eq!(of(&run.spans()), of(&run.full()));
    }
}

#[test]
fn a_plain_span() {
    let source = source(&[(span(150, 8, 4096, READ, 5), times(100, 110, 0))]);
    let (requests, ios, counts) = track(&source);
    assert_eq!((requests.len(), ios.len()), (1, 1));
    let request = &requests[0];
    assert_eq!(
        (request.begin_ns, request.issue_ns, request.complete_ns),
        (1150, 1110, 1150)
    );
    assert_eq!(
        (ios[0].queue_ns, ios[0].issue_ns, ios[0].data_ns),
        (1100, Some(1110), 1150)
    );
    assert_eq!(ios[0].submitter.comm.bytes(), b"dd");
    assert_eq!(counts, Counts::default());
}

/// Its I/Os are those of the device that has cloned the request: nothing is missed.
#[test]
fn a_clone_has_no_io() {
    let clone = abi::BLKRELAY_TIMES_CLONE;
    let mut two = span(150, 8, 8192, READ, 5);
    two.who = Record::pack_complete(Action::Span, 0, 2);
    let unknown = Times::new(0, 110, 0, 0, clone as u16);
    let (requests, ios, counts) = track(&source(&[(two, unknown)]));
    assert_eq!((requests.len(), ios.len()), (1, 0));
    assert_eq!((requests[0].issue_ns, requests[0].bytes), (1110, 8192));
    assert_eq!(counts, Counts::default());
}

/// The end of a flush sequence whose own stamp was lost might be that of another request, all of which was
/// missed but its end.
#[test]
fn an_end_without_a_q_is_ambiguous() {
    let source = source(&[
        (span(150, 8, 4096, WRITE, 5), times(100, 110, 0)),
        (span(200, 8, 0, WRITE, 5), times(0, 0, MISSED)),
    ]);
    let (requests, ios, counts) = track(&source);
    assert_eq!((requests.len(), ios.len()), (1, 0));
    let expected = Counts {
        ambiguous: 1,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    assert_eq!(Stats::of(&source).devices[0].totals.ios, 1);
}

/// A filter of sizes takes the data away. What is left is no I/O, and was not issued by itself, whatever its stamp
/// says; an empty flush is one.
#[test]
fn the_end_of_a_sequence_alone() {
    for (sector, ios) in [(16, 0), (0, 1)] {
        let source = source(&[(span(200, sector, 0, WRITE, 5), times(100, 110, 0))]);
        let (requests, found, counts) = track(&source);
        assert_eq!((requests.len(), found.len()), (0, ios));
        let ends: Vec<_> = found
            .iter()
            .map(|io| (io.queue_ns, io.complete_ns))
            .collect();
        assert_eq!(ends, [(1100, 1200)][..ios]);
        let expected = Counts {
            flush_sequences: 1,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
        let totals = &Stats::of(&source).devices;
        assert_eq!(
            totals.iter().map(|one| one.totals.ios).sum::<u64>(),
            ios as u64
        );
    }
}

/// A zone that is opened, closed, finished or reset has no bytes either, and nothing is flushed: it is an I/O, and not
/// the end of a write that was complete before under the same tag, or whose bio's address ends in the same bits.
#[test]
fn zone_management_is_no_flush() {
    let (before, bio) = (0x1_1234, 0x2_1234);
    for op in [11, 13, 15, 17, 19] {
        let fua = WRITE | FUA | SYNC;
        let events = [
            event(Queue, 10, 64, 4096, fua, before),
            event(Issue, 20, 64, 4096, fua, 5),
            complete(30, 64, 4096, fua, 5, before),
            event(Queue, 100, 8, 0, op, bio),
            event(Issue, 110, 8, 0, op, 5),
            complete(200, 8, 0, op, 5, bio),
        ];
        let events = trace(events.iter().map(|record| (0, record, None)));
        let spans = source(&[
            (span(30, 64, 4096, fua, 5), times(10, 20, 0)),
            (span(200, 8, 0, op, 5), times(100, 110, 0)),
        ]);
        for source in [events, spans] {
            let (requests, ios, counts) = track(&source);
            let issues: Vec<_> = requests.iter().map(|request| request.issue_ns).collect();
            assert_eq!(issues, [1020, 1110]);
            let times = |io: &IoSpan| (io.queue_ns, io.issue_ns, io.complete_ns);
            let ios: Vec<_> = ios.iter().map(times).collect();
            let expected = [(1010, Some(1020), 1030), (1100, Some(1110), 1200)];
            assert_eq!(ios, expected);
            assert_eq!(counts, Counts::default());
            let totals = &Stats::of(&source).devices[0].totals;
            let kinds = (totals.reads, totals.writes, totals.flushes, totals.discards);
            assert_eq!((totals.ios, kinds), (2, (0, 1, 0, 0)));
        }

        // Nor is one whose own stamp was lost.
        let missed = source(&[
            (span(30, 64, 4096, fua, 5), times(10, 20, 0)),
            (span(200, 8, 0, op, 5), times(0, 110, MISSED)),
        ]);
        let expected = Counts {
            missed: 1,
            ..Counts::default()
        };
        assert_eq!(track(&missed).2, expected);
        assert_eq!(Stats::of(&missed).devices[0].totals.ios, 2);
    }
}

/// A front part and a rest go through the flush machinery as well: each is one part, with two spans.
#[test]
fn parts_of_a_split_write_that_is_flushed() {
    let source = source(&[
        (span(150, 0, 4096, WRITE, 5), times(0, 110, FRONT)),
        (span(160, 8, 4096, WRITE, 6), times(100, 120, REST)),
        (span(170, 0, 0, WRITE, 5), times(0, 110, FRONT)),
        (span(180, 8, 0, WRITE, 6), times(100, 120, REST)),
    ]);
    let (requests, ios, counts) = track(&source);
    assert_eq!((requests.len(), ios.len()), (2, 0));
    let expected = Counts {
        splits: 1,
        split_ios: 1,
        flush_sequences: 2,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    assert_eq!(Stats::of(&source).devices[0].totals.ios, 1);
}

/// What cannot be is not known: a stamp from before the request's time, or from behind its end.
#[test]
fn contradictory_times_are_not_believed() {
    let source = source(&[
        (span(150, 0, 4096, READ, 5), times(100, 90, 0)),
        (span(160, 0, 4096, READ, 5), times(161, 155, 0)),
        (span(170, 0, 4096, READ, 5), times(165, 171, 0)),
    ]);
    let (requests, ios, counts) = track(&source);
    let issued: Vec<u64> = requests.iter().map(|request| request.issue_ns).collect();
    assert_eq!(issued, [1155]);
    let queued: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.issue_ns)).collect();
    assert_eq!(queued, [(1100, None), (1165, None)]);
    assert_eq!((counts.no_issue, counts.missed), (2, 1));
    let findings = source.verify().findings;
    assert_eq!(findings.len(), 1);
    let text = "3 spans that are not queued, issued and complete in this order";
    assert!(findings[0].text.contains(text), "{findings:?}");
}

/// A span whose times record is gone still tells of a completion.
#[test]
fn a_span_without_times() {
    let mut cpu = stream(0);
    cpu.event(span(150, 8, 4096, READ, 5))
        .event(span(160, 8, 4096, READ, 5))
        .times(times(100, 110, 0));
    let bytes = cpu.finish();
    let source = open(file(&[bytes], &[&cpu]));
    let (requests, ios, counts) = track(&source);
    assert_eq!((requests.len(), ios.len()), (1, 1));
    assert_eq!((counts.missed, counts.no_issue), (1, 1));
    let totals = &Stats::of(&source).devices[0].totals;
    assert_eq!((totals.ios, totals.bytes), (2, 8192));
}

/// As with events: what was queued before the end of a loss, or in another epoch, is cut.
#[test]
fn spans_are_cut() {
    let mut cpu = stream(0);
    cpu.event(span(150, 8, 4096, READ, 5))
        .times(times(100, 110, 0));
    let first = cpu.finish();
    names(&mut cpu);
    cpu.anchor(180, 1180).lose(2, 160, 170);
    cpu.event(span(190, 8, 4096, READ, 5))
        .times(times(160, 175, 0))
        .event(span(200, 8, 4096, READ, 6))
        .times(times(180, 185, 0));
    let second = cpu.finish();
    names(&mut cpu);
    cpu.epoch(2).anchor(300, 1300);
    cpu.event(span(310, 8, 4096, READ, 5))
        .times(times(290, 305, 0))
        .event(span(320, 8, 4096, READ, 6))
        .times(times(299, 299, 0))
        .event(span(330, 8, 4096, READ, 7))
        .times(times(300, 305, 0));
    let third = cpu.finish();
    let source = open(file(&[first, second, third], &[&cpu]));
    let (requests, ios, counts) = track(&source);
    let cut: Vec<bool> = ios.iter().map(|io| io.cut).collect();
    assert_eq!(cut, [false, true, false, true, true, false]);
    let cut: Vec<bool> = requests.iter().map(|request| request.cut).collect();
    assert_eq!(cut, [false, false, false, false, true, false]);
    assert_eq!((counts.cut_by_gap, counts.cut_by_epoch), (1, 3));
}

/// An epoch begins where the first CPU goes over to it: another one may have nothing to say for long.
#[test]
fn an_epoch_begins_once() {
    let mut cpus = [stream(0), stream(1)];
    let mut subbufs: Vec<_> = cpus.iter_mut().map(SubbufBuilder::finish).collect();
    for (cpu, anchor) in cpus.iter_mut().zip([900, 300]) {
        names(cpu);
        cpu.epoch(2).anchor(anchor, anchor + 1000);
        for queued in [299, 300] {
            cpu.event(span(950, 8, 4096, READ, 5))
                .times(times(queued, 400, 0));
        }
        subbufs.push(cpu.finish());
    }
    let source = open(file(&subbufs, &[&cpus[0], &cpus[1]]));
    let (_, ios, counts) = track(&source);
    let cut: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.cut)).collect();
    let expected = [(1299, true), (1299, true), (1300, false), (1300, false)];
    assert_eq!(cut, expected);
    assert_eq!(counts.cut_by_epoch, 2);
}

/// A request that was complete in part before a loss may have been another one.
#[test]
fn parts_are_not_added_across_a_loss() {
    let mut cpu = stream(0);
    let failed = Record {
        who: Record::pack_complete(Action::Span, 10, 0),
        ..span(150, 8, 512, READ, 5)
    };
    cpu.event(failed).times(times(100, 110, PARTIAL));
    let first = cpu.finish();
    names(&mut cpu);
    cpu.anchor(180, 1180).lose(2, 160, 170);
    cpu.event(span(290, 8, 4096, READ, 5))
        .times(times(260, 275, 0));
    let second = cpu.finish();
    let source = open(file(&[first, second], &[&cpu]));
    let (requests, _, counts) = track(&source);
    assert_eq!((requests[0].bytes, requests[0].errno), (4096, 0));
    assert_eq!((requests[0].begin_ns, counts.partial), (1290, 1));
}

/// What is held of a disk ends with it: another one has got its queue.
#[test]
fn a_write_of_a_disk_that_went_is_complete() {
    let mut cpu = stream(0);
    let disk = |diskseq| blkrelay_format::Device {
        diskseq,
        ..blkrelay_format::Device::new(1, 8, 0, "sda")
    };
    cpu.device(disk(1))
        .event(span(150, 8, 4096, WRITE, 5))
        .times(times(100, 110, 0))
        .device(disk(2))
        .event(span(200, 16, 0, WRITE, 5))
        .times(times(100, 0, 0));
    let bytes = cpu.finish();
    let source = open(file(&[bytes], &[&cpu]));
    let (_, ios, counts) = track(&source);
    let complete: Vec<u64> = ios.iter().map(|io| io.complete_ns).collect();
    assert_eq!((complete, counts.flush_sequences), (vec![1150], 1));
}
