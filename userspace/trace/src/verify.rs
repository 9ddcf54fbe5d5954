// SPDX-License-Identifier: GPL-2.0
//! Whether a trace file is whole: looks at every chunk, sub-buffer and slot, and at what they say of each
//! other.

use crate::event::Stop;
use crate::op::Opf;
use crate::source::Source;
use blkrelay_format::{
    abi, parse_devices, printable, read_index, Action, Chunk, ChunkType, Chunks, Error, Header,
    IndexEntry, Record, Slot, Stop as StopRecord, Subbuf, Times, Trailer,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Of the chunk, bytes from the start of the file; `None` if it is about no single chunk.
    pub offset: Option<u64>,
    /// What, in words.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "byte {offset}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// The outcome of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// In the order of the file. Empty: the trace is whole.
    pub findings: Vec<Finding>,
    /// Sub-buffers in the file.
    pub subbufs: u64,
    /// Events in them.
    pub events: u64,
    /// Events among them of codes that this reader does not know.
    pub unknown: u64,
    /// Events that the module counted as lost.
    pub lost: u64,
    /// Of a flight recorder: events before the oldest sub-buffer that each CPU kept. They are no loss.
    pub written_over: u64,
    /// Where a flight recorder stopped, by CPU.
    pub stops: Vec<Stop>,
    /// CPUs that have sub-buffers.
    pub cpus: u64,
}

/// What is known of a CPU's stream up to some sub-buffer.
#[derive(Debug, Default)]
struct Cpu {
    /// Numbers of its sub-buffers.
    seqs: BTreeSet<u64>,
    /// The latest sub-buffer.
    last: Option<Header>,
    /// Time of its latest event.
    latest: u64,
    /// The last word of the latest event; 0 if there is none.
    who: u32,
    /// The flight recorder has stopped, in the epoch of the latest sub-buffer.
    stopped: bool,
    /// Events before the oldest sub-buffer that a flight recorder kept.
    written_over: u64,
}

struct Verifier {
    verdict: Verdict,
    cpus: BTreeMap<u32, Cpu>,
    trace_id: Option<[u8; 16]>,
    index: Vec<IndexEntry>,
    /// What each epoch's stop records say of the trigger: time, value, CPU and cause.
    triggers: BTreeMap<u32, (u64, u64, u32)>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Source {
    /// Looks at everything in the file.
    pub fn verify(&self) -> Verdict {
        let mut verifier = Verifier {
            verdict: Verdict::default(),
            cpus: BTreeMap::new(),
            trace_id: None,
            index: Vec::new(),
            triggers: BTreeMap::new(),
        };
        verifier.walk(self);
        verifier.verdict.stops = self.stops();
        verifier.verdict
    }
}

impl Verifier {
    fn find(&mut self, offset: impl Into<Option<u64>>, text: impl fmt::Display) {
        self.verdict.findings.push(Finding {
            offset: offset.into(),
            text: printable(&text.to_string()),
        });
    }

    fn walk(&mut self, source: &Source) {
        // The source was opened, so it begins as a trace does.
        let Ok(mut chunks) = Chunks::new(source.bytes()) else {
            return;
        };
        let mut trailer = None;
        let mut index = None;
        let mut metas = 0;
        loop {
            let at = chunks.offset();
            let chunk = match chunks.next() {
                None => break,
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    self.find(None, error);
                    if !chunks.resync() {
                        break;
                    }
                    let (from, to) = (at, chunks.offset());
                    self.find(from, format_args!("skipped {} bytes", to - from));
                    continue;
                }
            };
            let payload = match chunk.verify() {
                Ok(payload) => payload,
                Err(error) => {
                    self.find(None, error);
                    continue;
                }
            };
            match chunk.kind() {
                ChunkType::Meta => {
                    metas += 1;
                    if metas > 1 {
                        self.find(at, "a second META chunk");
                    }
                }
                ChunkType::Subbuf => self.subbuf(&chunk, payload, source),
                ChunkType::Trailer => match Trailer::parse(payload) {
                    Ok(parsed) => {
                        if trailer.replace(parsed).is_some() {
                            self.find(at, "a second TRAILER chunk");
                        }
                    }
                    Err(error) => self.find(at, error),
                },
                ChunkType::Index => match read_index(payload) {
                    Ok(parsed) => {
                        if index.replace((at, parsed)).is_some() {
                            self.find(at, "a second INDEX chunk");
                        }
                    }
                    Err(error) => self.find(at, error),
                },
                ChunkType::Devices => {
                    if let Err(error) = parse_devices(payload) {
                        self.find(at, error);
                    }
                }
                ChunkType::Unknown(_) => {}
            }
        }
        self.totals(trailer.as_ref());
        match index {
            Some((at, index)) if index != self.index => {
                self.find(at, "the INDEX does not match the sub-buffers");
            }
            None if trailer.is_some() => self.find(None, "there is no INDEX"),
            _ => {}
        }
        self.verdict.cpus = self.cpus.len() as u64;
    }

    fn subbuf(&mut self, chunk: &Chunk<'_>, payload: &[u8], source: &Source) {
        let at = chunk.offset;
        let subbuf = match Subbuf::parse(payload) {
            Ok(subbuf) => subbuf,
            Err(error) => return self.find(at, error),
        };
        let header = subbuf.header;
        let (cpu, seq) = (header.cpu, header.seq);
        let mut found: Vec<String> = Vec::new();
        self.index.push(IndexEntry {
            offset: at,
            seq,
            first: subbuf.first(),
            cpu,
            count: header.count,
        });
        if chunk.head.cpu != cpu {
            found.push(format!("the chunk is of CPU {}", chunk.head.cpu));
        }
        if header.used as usize != payload.len() {
            let (used, len) = (header.used, payload.len());
            found.push(format!("uses {used} bytes of a chunk of {len}"));
        }
        let trace_id = *self.trace_id.get_or_insert(header.trace_id);
        if trace_id != header.trace_id {
            let id = hex(&header.trace_id);
            found.push(format!("belongs to another trace: {id}"));
        } else if !source.meta().trace_id.is_empty() && source.meta().trace_id != hex(&trace_id) {
            let (meta, id) = (&source.meta().trace_id, hex(&trace_id));
            found.push(format!("trace {id}, META says {meta}"));
        }
        let state = self.cpus.entry(cpu).or_default();
        if !state.seqs.insert(seq) {
            self.find(
                at,
                format_args!("CPU {cpu}: sub-buffer {seq} is there twice"),
            );
            return;
        }
        self.verdict.subbufs += 1;
        check_sequence(state, &header, &mut found);
        let (events, unknown) = check_slots(state, &subbuf, &mut self.triggers, &mut found);
        self.verdict.events += u64::from(events);
        self.verdict.unknown += u64::from(unknown);
        state.last = Some(header);
        for text in found {
            self.find(at, format_args!("CPU {cpu}: sub-buffer {seq}: {text}"));
        }
    }

    /// What the streams say of each other and the trailer of them.
    fn totals(&mut self, trailer: Option<&Trailer>) {
        let Some(trailer) = trailer else {
            self.verdict.lost = self
                .cpus
                .values()
                .filter_map(|cpu| Some(cpu.last?.lost))
                .fold(0, u64::saturating_add);
            self.verdict.written_over = self
                .cpus
                .values()
                .map(|cpu| cpu.written_over)
                .fold(0, u64::saturating_add);
            let text =
                "there is no TRAILER: the recording was cut short, losses at its end are not known";
            return self.find(None, text);
        };
        let mut found = Vec::new();
        if let blkrelay_format::End::Error(error) = &trailer.end {
            found.push(format!("recording ended with an error: {error}"));
        }
        let mut named = BTreeSet::new();
        for counters in &trailer.cpus {
            let cpu = counters.cpu;
            if !named.insert(cpu) {
                found.push(format!("CPU {cpu}: twice in the TRAILER"));
            }
            self.verdict.lost = self.verdict.lost.saturating_add(counters.lost);
            self.verdict.written_over = self
                .verdict
                .written_over
                .saturating_add(counters.written_over);
            let state = self.cpus.get(&cpu);
            let last = state.and_then(|state| state.last);
            // Of a CPU that kept nothing all was written over, or read at an earlier trigger.
            let written = last.map_or(counters.written_over, |last| last.events_after());
            let written_over = state.map_or(counters.written_over, |state| state.written_over);
            if counters.written_over != written_over {
                found.push(format!(
                    "CPU {cpu}: {} events written over by the TRAILER, {written_over} by the first sub-buffer",
                    counters.written_over
                ));
            }
            let lost = last.map_or(0, |last| last.lost);
            if counters.events != written {
                found.push(format!(
                    "CPU {cpu}: {} events by the TRAILER, {written} by the last sub-buffer",
                    counters.events
                ));
            }
            if counters.lost < lost {
                found.push(format!(
                    "CPU {cpu}: {} events lost by the TRAILER, {lost} by the last sub-buffer",
                    counters.lost
                ));
            } else if counters.lost > lost {
                let more = counters.lost - lost;
                found.push(format!(
                    "CPU {cpu}: {more} events lost after the last sub-buffer"
                ));
            }
            if counters.unwritten > 0 {
                let unwritten = counters.unwritten;
                found.push(format!(
                    "CPU {cpu}: {unwritten} events could not be written"
                ));
            }
            let subbufs = state.map_or(0, |state| state.seqs.len() as u64);
            if counters.subbufs != subbufs {
                found.push(format!(
                    "CPU {cpu}: {} sub-buffers by the TRAILER, {subbufs} in the file",
                    counters.subbufs
                ));
            }
        }
        for cpu in self.cpus.keys().filter(|cpu| !named.contains(cpu)) {
            found.push(format!("CPU {cpu}: not in the TRAILER"));
        }
        for text in found {
            self.find(None, text);
        }
    }
}

/// Number, counters and anchor against the sub-buffer before.
fn check_sequence(state: &mut Cpu, header: &Header, found: &mut Vec<String>) {
    let (seq, events, lost, epoch) = match &state.last {
        None if header.overwrites() && header.seq > 0 => {
            // What came before the oldest that is kept was written over, with the losses among it.
            state.written_over = header.events;
            (header.seq, header.events, header.lost, 0)
        }
        None => (0, 0, 0, 0),
        Some(last) => (
            last.seq.saturating_add(1),
            last.events_after(),
            last.lost,
            last.epoch,
        ),
    };
    if header.seq != seq {
        found.push(format!("number {seq} was due"));
    }
    if header.events != events {
        let counted = header.events;
        found.push(format!(
            "{counted} events before it by its header, {events} in the file"
        ));
    }
    match header.lost.checked_sub(lost) {
        None => found.push(format!(
            "{} events lost by its header, {lost} by the one before",
            header.lost
        )),
        Some(0) if header.overwrites() && state.last.is_none() => {}
        Some(0) => {
            if header.lost_first != 0 || header.lost_last != 0 {
                found.push("has times of a loss, but none lost".to_owned());
            }
        }
        Some(new) => {
            found.push(format!("{new} events lost before it"));
            if header.lost_first == 0 || header.lost_last < header.lost_first {
                found.push("the times of the loss are not valid".to_owned());
            }
        }
    }
    if header.epoch < epoch {
        found.push(format!("epoch {} after epoch {epoch}", header.epoch));
    }
    if header.epoch != epoch {
        state.stopped = false;
    }
    if header.anchor_ok() && header.anchor < state.latest {
        found.push("its anchor lies before an event of the sub-buffer before".to_owned());
    }
}

/// A stop record against what this CPU, and the other ones, have written before.
fn check_stop(
    state: &Cpu,
    stop: &StopRecord,
    header: &Header,
    triggers: &mut BTreeMap<u32, (u64, u64, u32)>,
    found: &mut Vec<String>,
) {
    if !header.overwrites() {
        found.push("a stop record, but it is no flight recorder's".to_owned());
    }
    if stop.time < stop.trigger {
        found.push("the CPU stopped before the trigger went off".to_owned());
    }
    if stop.time < state.latest {
        found.push("events later than the stop before it".to_owned());
    }
    let trigger = (stop.trigger, stop.value, stop.cpu);
    if *triggers.entry(header.epoch).or_insert(trigger) != trigger {
        found.push("another trigger than other CPUs say".to_owned());
    }
    let cause = u32::from(stop.cause());
    if !(abi::BLKRELAY_CAUSE_CONTROL..=abi::BLKRELAY_CAUSE_SLOW).contains(&cause) {
        found.push(format!("stopped for no cause known: {cause}"));
    } else if cause != abi::BLKRELAY_CAUSE_CONTROL && u32::from(stop.trigger_cpu()) == header.cpu {
        let event = Record {
            who: state.who,
            ..Record::default()
        };
        let status = match event.action() {
            Some(Action::Complete | Action::BioComplete | Action::Span) => {
                Some(u64::from(event.status()))
            }
            _ => None,
        };
        if status.is_none() || cause == abi::BLKRELAY_CAUSE_ERROR && status != Some(stop.value) {
            found.push("the completion that was the cause is not the last event".to_owned());
        }
    }
}

/// Whether a request was allocated later than it was issued, or complete. The allocation is CLOCK_MONOTONIC, read before
/// the issue (`blk_account_io_start()`). So is a time behind the sub-buffer's anchor, to within a tenth of how far
/// behind, which is what `adjtimex()` lets the clocks' rates differ by. Before it the machine may have slept.
fn is_allocated_later(times: &Times, end: u64, header: &Header) -> bool {
    let behind = |time: &u64| *time != 0 && *time >= header.anchor;
    let Some(time) = [times.issue, end].into_iter().find(behind) else {
        return false;
    };
    let ticks = u128::from(time - header.anchor);
    let since = ticks * 1_000_000 / u128::from(header.khz.max(1));
    let latest = u128::from(header.mono) + since + since / 8 + 1_000_000;
    header.anchor_ok() && u128::from(times.alloc) > latest
}

/// A request without a bio, and one of a driver's own, was not: it misses no Q.
fn was_queued(span: &Record) -> bool {
    span.head() > 0 && !Opf(span.opf).is_passthrough()
}

/// A bio has whole sectors (`bio_unaligned()`), and the module counts those whose bytes the completion covers. Only of
/// the first one some may have been done before.
fn has_more_bios_than_sectors(span: &Record) -> bool {
    let covered = span.bytes > 0 && !Opf(span.opf).is_passthrough();
    covered && u32::from(span.head()) > span.bytes.div_ceil(512)
}

/// What is wrong with a span and its times; nothing in most.
fn span_is_wrong(span: &Record, times: &Times, header: &Header) -> Option<&'static str> {
    let end = span.time;
    let has = |flag| times.has(flag);
    let no_queue =
        abi::BLKRELAY_TIMES_MISSED | abi::BLKRELAY_TIMES_FRONT | abi::BLKRELAY_TIMES_CLONE;
    let ordered = |first: u64, second: u64| first == 0 || second == 0 || first <= second;
    if !ordered(times.queue, times.issue)
        || !ordered(times.queue, end)
        || !ordered(times.issue, end)
    {
        Some("spans that are not queued, issued and complete in this order")
    } else if is_allocated_later(times, end, header) {
        Some("spans of requests that were issued or complete before they were allocated")
    } else if has(abi::BLKRELAY_TIMES_BIO) && times.issue != 0 {
        Some("spans of a bio that tell of an issue")
    } else if has(abi::BLKRELAY_TIMES_BIO) && times.alloc != 0 {
        Some("spans of a bio that tell of an allocation")
    } else if has_more_bios_than_sectors(span) {
        Some("spans of more bios than sectors")
    } else if !was_queued(span) && times.queue == 0 {
        None
    } else if has(abi::BLKRELAY_TIMES_MISSED) && (times.queue != 0 || times.pid != 0) {
        Some("spans whose Q was missed, and that tell of it")
    } else if has(abi::BLKRELAY_TIMES_FRONT) && times.queue != 0 {
        Some("spans of a front part that tell of a Q")
    } else if has(abi::BLKRELAY_TIMES_CLONE) && (times.queue != 0 || times.pid != 0) {
        Some("spans of a clone that tell of a Q")
    } else if times.queue == 0 && !has(no_queue) {
        Some("spans without a Q that do not say why")
    } else {
        None
    }
}

/// Every slot. Returns the number of events, and of those among them of unknown codes.
fn check_slots(
    state: &mut Cpu,
    subbuf: &Subbuf<'_>,
    triggers: &mut BTreeMap<u32, (u64, u64, u32)>,
    found: &mut Vec<String>,
) -> (u32, u32) {
    let header = &subbuf.header;
    let mut queues = BTreeSet::new();
    let mut pids = BTreeSet::new();
    let mut unnamed_queues = BTreeSet::new();
    let mut unnamed_pids = BTreeSet::new();
    let (mut events, mut unknown) = (0, 0);
    let mut back = 0u32;
    let mut remap = false;
    let mut queued = false;
    let mut spanned: Option<Record> = None;
    let mut wrong_spans: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut behind_stop = false;
    let mut slots = subbuf.slots();
    let mut position = 0;
    while let Some(slot) = slots.next() {
        let after_remap = std::mem::take(&mut remap);
        let after_queue = std::mem::take(&mut queued);
        let after_span = spanned.take();
        if state.stopped && !std::mem::replace(&mut behind_stop, true) {
            found.push(format!(
                "slot {position}: a record behind the stop, in the same epoch"
            ));
        }
        if after_remap && !matches!(slot, Ok(Slot::From(_))) {
            found.push(format!("slot {position}: no from record behind an A event"));
        }
        if after_span.is_some() && !matches!(slot, Ok(Slot::Times(_))) {
            found.push(format!("slot {position}: no times record behind a span"));
        }
        match slot {
            Ok(Slot::UnknownEvent(record)) => {
                events += 1;
                unknown += 1;
                back += u32::from(record.time < state.latest);
                state.latest = record.time;
                state.who = record.who;
            }
            Ok(Slot::Event(action, record)) => {
                if events == 0 && header.anchor_ok() && record.time < header.anchor {
                    found.push("its anchor lies behind its first event".to_owned());
                }
                events += 1;
                if record.time < state.latest {
                    back += 1;
                }
                state.latest = record.time;
                state.who = record.who;
                if !queues.contains(&u32::from(record.queue())) {
                    unnamed_queues.insert(record.queue());
                }
                if !action.is_completion() && !pids.contains(&record.pid()) {
                    unnamed_pids.insert(record.pid());
                }
                remap = action.is_remap();
                queued = action == Action::Queue;
                spanned = (action == Action::Span).then_some(record);
            }
            Ok(Slot::Task(task)) => drop(pids.insert(task.pid)),
            Ok(Slot::Device(device)) => drop(queues.insert(device.queue)),
            Ok(Slot::From(_)) => {
                if !after_remap {
                    found.push(format!("slot {position}: a from record without an A event"));
                }
            }
            Ok(Slot::Detail(_)) => {
                if !after_queue {
                    found.push(format!(
                        "slot {position}: a detail record without a Q event"
                    ));
                }
            }
            Ok(Slot::Times(times)) => match after_span {
                None => found.push(format!("slot {position}: a times record without a span")),
                Some(span) => {
                    if let Some(what) = span_is_wrong(&span, &times, header) {
                        *wrong_spans.entry(what).or_default() += 1;
                    }
                    let pid = times.submitter().filter(|_| was_queued(&span));
                    unnamed_pids.extend(pid.filter(|pid| !pids.contains(pid)));
                }
            },
            Ok(Slot::Stop(stop)) => {
                check_stop(state, &stop, header, triggers, found);
                state.stopped = true;
            }
            Ok(Slot::Unknown { .. }) => {}
            Err(error) => found.push(error.to_string()),
        }
        position = slots.position();
    }
    if remap {
        found.push(format!("slot {position}: no from record behind an A event"));
    }
    if spanned.is_some() {
        found.push(format!("slot {position}: no times record behind a span"));
    }
    for (what, spans) in wrong_spans {
        found.push(format!("{spans} {what}"));
    }
    if back > 0 {
        found.push(format!("time goes back at {back} events"));
    }
    if events != header.count {
        let header = header.count;
        found.push(
            Error::Count {
                header,
                found: events,
            }
            .to_string(),
        );
    }
    for queue in unnamed_queues {
        found.push(format!(
            "events of queue {queue} before a device record names it"
        ));
    }
    for pid in unnamed_pids {
        found.push(format!("events of pid {pid} before a task record names it"));
    }
    (events, unknown)
}
