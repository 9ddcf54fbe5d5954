// SPDX-License-Identifier: GPL-2.0
//! Which events belong to one I/O.
//!
//! Issue and completion carry the request's hardware queue and tag: they pair exactly. Q carries the bio.
//! A completion names its first bio by 16 bits, and covers a range of sectors: the bios that it completes
//! are the chain of queued bios that begins with that one and goes on without a hole. Where two bios could
//! be the next link, the join is ambiguous: it is counted, and no latency is made of it.
//!
//! A flush sequence (`block/blk-flush.c`) completes its data first and the request itself at the very end,
//! by a C of no bytes: until that came, or cannot come any more, such an I/O is kept.
//!
//! Filters that change while tracing, and a flight recorder that is armed again, begin a new epoch. What
//! begins in one epoch and ends in another is cut, as it is by a loss: events of it may have been left out.
//!
//! A span tells of an I/O by itself, whole: nothing has to be joined. What it cannot tell is counted: the Q of a
//! bio that was merged behind another, that of a part of a split one (which ends the I/O, or does not), one that
//! the module has missed. Only a flush sequence has two: its data's, and one of no bytes, under the same tag and
//! with the same Q, at its end. A write is kept until the next span of its tag, which tells. (The request that does
//! the flushing borrows the tag; it has no bio.) One of no bytes that is not at sector 0 follows data that a filter may
//! have left out: it is no I/O of its own.
//!
//! E, IS and ID say nothing of a request that D and C do not. IS may be its first event, and only its time is
//! looked at, where trails are kept.
//!
//! State is bounded by what is outstanding: by tags, and by bios, whose addresses are used again. What does
//! not end at all makes way: see [`CROWD`].

use crate::event::{Comm, Dev, Event, Gap, Item};
use crate::op::{Op, Opf};
use crate::source::Source;
use blkrelay_format::Action;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use slab::Slab;

/// Who queued an I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Submitter {
    /// Thread id.
    pub pid: u32,
    /// Process id; 0 if not known.
    pub tgid: u32,
    /// Name.
    pub comm: Comm,
}

impl Submitter {
    /// Of a Q.
    pub(crate) fn of(event: &Event) -> Submitter {
        Submitter {
            pid: event.pid.unwrap_or(0),
            tgid: event.tgid,
            comm: event.comm,
        }
    }
}

/// A request from its issue to its last completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSpan {
    /// The request queue's id.
    pub queue: u16,
    /// The whole disk.
    pub dev: Option<Dev>,
    /// Tells the disk from an earlier one.
    pub diskseq: u64,
    /// Hardware queue << 16 | tag.
    pub id: u32,
    /// First event seen of it: its insert or, without one, its first issue; CLOCK_MONOTONIC ns. Known of a
    /// tracker [with trails](Tracker::with_trails), else the last issue. Of spans: its first span.
    pub begin_ns: u64,
    /// Last issue, CLOCK_MONOTONIC ns.
    pub issue_ns: u64,
    /// Last completion.
    pub complete_ns: u64,
    /// Bytes at issue; of spans: completed.
    pub bytes: u32,
    /// Operation and flags at issue; of spans: at completion.
    pub opf: Opf,
    /// 0 or a negative errno.
    pub errno: i32,
    /// Events were lost, or an epoch began, between issue and completion: the pair may be wrong.
    pub cut: bool,
}

/// An I/O as it was queued, from Q to the completion of its last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoSpan {
    /// Tells it from all other I/Os of the trace.
    pub number: u64,
    /// The request queue's id.
    pub queue: u16,
    /// The whole disk.
    pub dev: Option<Dev>,
    /// Tells the disk from an earlier one.
    pub diskseq: u64,
    /// The epoch of its Q.
    pub epoch: u32,
    /// Who queued it.
    pub submitter: Submitter,
    /// The cgroup that it is charged to; 0 if there is none, or the trace has no details.
    pub cgroup: u64,
    /// Q, CLOCK_MONOTONIC ns.
    pub queue_ns: u64,
    /// Issue of the request that completed last; `None` if it was not seen or the driver is bio-based.
    pub issue_ns: Option<u64>,
    /// When its data was complete: the completion of that request.
    pub data_ns: u64,
    /// Completion of the whole; later than `data_ns` if a flush followed.
    pub complete_ns: u64,
    /// Bytes at Q; of a span: completed with it.
    pub bytes: u32,
    /// Operation and flags at Q; of a span: at completion, when the flush machinery has taken some flags away.
    pub opf: Opf,
    /// It was mapped here from another traced device, which has an I/O for it as well. Spans do not tell.
    pub stacked: bool,
    /// Events were lost, or an epoch began, between Q and completion: the join may be wrong.
    pub cut: bool,
}

/// When a bio's or a request's events belonged to an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The request queue's id.
    pub queue: u16,
    /// Whether `id` is a request's, or a bio's.
    pub request: bool,
    /// As the events have it.
    pub id: u32,
    /// From here, CLOCK_MONOTONIC ns,
    pub from: u64,
    /// to here; `None`: to the end of the I/O.
    pub to: Option<u64>,
}

/// What only a tracker with trails keeps.
#[derive(Debug, Default)]
struct Trails {
    /// First event of each request that is on its way.
    begun: FxHashMap<(u16, u32), u64>,
    /// When a bio was mapped here, until it is queued.
    mapped: FxHashMap<(u16, u32), u64>,
    /// Of the I/Os that are complete.
    done: FxHashMap<u64, Vec<Stretch>>,
}

/// What the tracker finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// A request is complete.
    Request(RequestSpan),
    /// An I/O is complete.
    Io(IoSpan),
}

/// What could not be paired, and what was seen on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Bios that two or more joins were possible for: no latency is stated for their I/Os.
    pub ambiguous: u64,
    /// Requests and I/Os across a loss of events: their latencies are left out.
    pub cut_by_gap: u64,
    /// Requests and I/Os that began in one epoch and ended in another: left out as well.
    pub cut_by_epoch: u64,
    /// Completions of data without an issue: issued before the trace began or in a gap.
    pub no_issue: u64,
    /// Completions of data of which no bio was seen to be queued.
    pub no_queue: u64,
    /// Requests still issued at the end. What is not complete has no span.
    pub issued_at_end: u64,
    /// I/Os still not complete at the end.
    pub queued_at_end: u64,
    /// Requests whose tag, or I/Os whose bio, was used again without a completion seen.
    pub no_completion: u64,
    /// Requests that came back from the driver to be issued again; spans do not tell.
    pub requeued: u64,
    /// Completions of a part of a request.
    pub partial: u64,
    /// I/Os that went through a flush sequence.
    pub flush_sequences: u64,
    /// Bios split in two; of spans: front parts that are not merged behind another bio.
    pub splits: u64,
    /// Of spans: bios merged into a request behind another: neither their Q nor who queued them is told.
    pub merged: u64,
    /// Of spans: I/Os whose Q was not seen, or its stamp lost: queued before the trace began, or beyond what the
    /// module keeps.
    pub missed: u64,
    /// Of spans: I/Os that were split: when the last of their parts was complete cannot be told.
    pub split_ios: u64,
}

#[derive(Clone, Copy, Debug)]
struct Issued {
    ns: u64,
    sector: Option<u64>,
    epoch: u32,
    /// Of a stacked device's request: its bios are not queued here.
    clone: bool,
    bytes: u32,
    done: u32,
    opf: Opf,
    errno: i32,
}

/// A write that a span told of.
#[derive(Clone, Copy, Debug)]
struct Held {
    queue_ns: Option<u64>,
    /// Nothing if its Q2C cannot be told.
    io: Option<IoSpan>,
}

/// A request that spans told of in parts, up to now.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// Its first span.
    ns: u64,
    bytes: u32,
    errno: i32,
}

#[derive(Clone, Debug)]
struct Io {
    span: IoSpan,
    /// The bio that was queued. Of a split one it is the last part's, and ends after all others.
    bio: u32,
    /// Its parts that are still outstanding: one, unless it was split.
    parts: Vec<usize>,
    ambiguous: bool,
    /// Empty without trails.
    trail: Vec<Stretch>,
}

/// A bio on its way: an I/O, or a part of a split one.
#[derive(Clone, Copy, Debug)]
struct Part {
    io: usize,
    queue: u16,
    bio: u32,
    /// First sector that is not complete; [`NO_DATA`] of a flush.
    cursor: u64,
    end: u64,
    /// It was merged into a request behind another bio, or another was merged before it.
    inner: bool,
    write: bool,
}

/// As many parts may begin at one place, or have no place. A device's tags allow for fewer: what is more
/// has been lost sight of, and each completion would have to look at all of it.
const CROWD: usize = 4096;

/// Where parts without data are found.
const NO_DATA: u64 = u64::MAX;

/// Follows requests and I/Os through a trace.
#[derive(Debug, Default)]
pub struct Tracker {
    ios: Slab<Io>,
    parts: Slab<Part>,
    at: FxHashMap<(u16, u64), Vec<usize>>,
    by_bio: FxHashMap<(u16, u32), usize>,
    issued: FxHashMap<(u16, u32), Issued>,
    /// I/Os whose data is complete and that a C of no bytes may still follow, by bits of their bio.
    ending: FxHashMap<(u16, u16), Vec<(u32, IoSpan)>>,
    /// Writes of spans that a span of no bytes may still follow, by their request.
    held: FxHashMap<(u16, u32), Held>,
    begun: FxHashMap<(u16, u32), Begun>,
    /// When each epoch but the first began, ns.
    epochs: Vec<(u32, u64)>,
    /// Bios that an A has just brought here from another traced disk.
    arriving: FxHashSet<(u16, u32)>,
    /// Requests that a stacked device has mapped here and that were not issued yet.
    clones: FxHashSet<(u16, u32)>,
    devices: FxHashSet<Dev>,
    /// The disk that each queue id stands for at present.
    disks: FxHashMap<u16, u64>,
    disk: Option<(u16, u64)>,
    gap_end: Option<u64>,
    queued: u64,
    trails: Option<Trails>,
    counts: Counts,
    found: Vec<Span>,
}

impl Tracker {
    /// Of this trace, with nothing outstanding.
    pub fn new(source: &Source) -> Tracker {
        Tracker {
            epochs: source.epochs(),
            ..Tracker::default()
        }
    }

    /// With nothing outstanding, and with an account of each I/O's events: see [`Tracker::take_trail`].
    pub fn with_trails(source: &Source) -> Tracker {
        Tracker {
            trails: Some(Trails::default()),
            ..Tracker::new(source)
        }
    }

    /// Which events belong to an I/O that was returned as complete. To be taken then; nothing later on.
    pub fn take_trail(&mut self, number: u64) -> Vec<Stretch> {
        let trails = self.trails.as_mut();
        let trail = trails.and_then(|trails| trails.done.remove(&number));
        trail.unwrap_or_default()
    }

    /// The I/Os that are not complete, with their trails so far. A span's is complete, whatever may follow.
    pub fn outstanding(&self) -> impl Iterator<Item = (IoSpan, Vec<Stretch>)> + '_ {
        self.ios.iter().map(|(_, io)| (io.span, io.trail.clone()))
    }

    /// What could not be paired so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether this Q's bio was mapped here from another traced device. To be asked before the Q is given
    /// to [`Tracker::item`].
    pub fn is_arriving(&self, event: &Event) -> bool {
        self.arriving.contains(&(event.queue, event.id))
    }

    /// Whether this span is the end of a flush sequence whose data was complete before, and so not of an I/O of
    /// its own. To be asked before the span is given to [`Tracker::item`].
    pub fn ends_sequence(&self, event: &Event) -> bool {
        event.action == Action::Span && event.follows_data() || self.ends_held(event)
    }

    /// The same, if the span of that data is known.
    fn ends_held(&self, event: &Event) -> bool {
        let none = event.bytes > 0 || event.head == 0 || event.opf.is(Op::Zone);
        if event.action != Action::Span || none {
            return false;
        }
        let times = event.times().copied().unwrap_or_default();
        let held = self.held.get(&(event.queue, event.id));
        let same = |held: &Held| times.queue_ns().is_none() || times.queue_ns() == held.queue_ns;
        !times.is_bio() && !times.is_partial() && held.is_some_and(same)
    }

    /// Takes the next item of a trace, and returns what it completes.
    pub fn item(&mut self, item: &Item) -> std::vec::Drain<'_, Span> {
        match item {
            Item::Event(event) => self.event(event),
            Item::Gap(gap) => self.gap(gap),
        }
        self.found.drain(..)
    }

    /// Ends the trace: what is outstanding is counted, what only might have gone on is returned.
    pub fn finish(&mut self) -> std::vec::Drain<'_, Span> {
        let ending = std::mem::take(&mut self.ending);
        for (_, span) in ending.into_values().flatten() {
            self.found.push(Span::Io(span));
        }
        let held = std::mem::take(&mut self.held);
        let ios = held.into_values().filter_map(|held| held.io);
        self.found.extend(ios.map(Span::Io));
        self.counts.issued_at_end += self.issued.len() as u64;
        self.counts.queued_at_end += self.ios.len() as u64;
        self.issued.clear();
        self.ios.clear();
        self.parts.clear();
        self.at.clear();
        self.by_bio.clear();
        self.found.drain(..)
    }

    fn gap(&mut self, gap: &Gap) {
        self.gap_end = self.gap_end.max(Some(gap.to_ns));
    }

    /// Whether what began at `ns` in an epoch and ends in another one, or behind a loss, may be wrong. Counts
    /// it.
    fn is_cut(&mut self, ns: u64, began: u32, ends: u32) -> bool {
        if self.cut_since(ns) {
            self.counts.cut_by_gap += 1;
        } else if began != ends {
            self.counts.cut_by_epoch += 1;
        } else {
            return false;
        }
        true
    }

    /// Another disk has got this queue's id: nothing that is outstanding will ever be complete.
    #[cold]
    fn retire(&mut self, queue: u16, epoch: u32) {
        let parts = self.parts.iter().filter(|(_, part)| part.queue == queue);
        let ios: FxHashSet<usize> = parts.map(|(_, part)| part.io).collect();
        for io in ios {
            let io = self.remove_io(io);
            self.never_completed(io.span.queue_ns, io.span.epoch, epoch);
        }
        let issued: Vec<Issued> = self
            .issued
            .extract_if(|(of, _), _| *of == queue)
            .map(|(_, issued)| issued)
            .collect();
        for issued in issued {
            self.never_completed(issued.ns, issued.epoch, epoch);
        }
        let over = self.ending.extract_if(|(of, _), _| *of == queue);
        let spans = over.flat_map(|(_, spans)| spans);
        self.found.extend(spans.map(|(_, span)| Span::Io(span)));
        let over = self.held.extract_if(|(of, _), _| *of == queue);
        let ios = over.filter_map(|(_, held)| held.io);
        self.found.extend(ios.map(Span::Io));
        self.begun.retain(|(of, _), _| *of != queue);
        self.arriving.retain(|(of, _)| *of != queue);
        self.clones.retain(|(of, _)| *of != queue);
    }

    /// Whether events were lost at or after `ns`, as far as the trace was read.
    fn cut_since(&self, ns: u64) -> bool {
        self.gap_end.is_some_and(|end| end >= ns)
    }

    fn event(&mut self, event: &Event) {
        if let Some(dev) = event.dev {
            self.devices.insert(dev);
        }
        let disk = Some((event.queue, event.diskseq));
        if self.disk != disk && event.diskseq != 0 {
            self.disk = disk;
            let before = self.disks.insert(event.queue, event.diskseq);
            if before.is_some_and(|before| before != event.diskseq) {
                self.retire(event.queue, event.epoch);
            }
        }
        let bio = (event.queue, event.id);
        if let Some(trails) = &mut self.trails {
            match event.action {
                Action::IoStart | Action::Insert | Action::Issue | Action::RqRemap => {
                    trails.begun.entry(bio).or_insert(event.ns);
                }
                Action::RqMerge => drop(trails.begun.remove(&bio)),
                Action::Remap => drop(trails.mapped.insert(bio, event.ns)),
                _ => {}
            }
        }
        match event.action {
            Action::Queue => self.queue(event),
            Action::BackMerge => self.mark_inner(bio),
            Action::FrontMerge => {
                // The bios that were first in that request are so no more.
                if let Some(sector) = event.sector {
                    self.mark_inner_at(event.queue, sector + u64::from(event.sectors()));
                }
            }
            Action::RqMerge => {
                if let Some(sector) = event.sector {
                    self.mark_inner_at(event.queue, sector);
                }
                self.issued.remove(&bio);
            }
            Action::Split => self.split(event),
            Action::Remap => {
                if let Some((from, _)) = event.from() {
                    if Some(from) != event.dev && self.devices.contains(&from) {
                        self.arriving.insert(bio);
                    }
                }
            }
            Action::Issue => self.issue(event),
            Action::Requeue => {
                self.issued.remove(&bio);
                self.counts.requeued += 1;
            }
            Action::Complete => self.complete(event),
            Action::BioComplete => self.bio_complete(event),
            Action::RqRemap => drop(self.clones.insert(bio)),
            Action::Span => self.span(event),
            Action::GetRq
            | Action::Insert
            | Action::Plug
            | Action::Unplug
            | Action::UnplugSchedule
            | Action::Error
            | Action::TagWait
            | Action::IoStart
            | Action::IoDone
            | Action::ZoneMgmt
            | Action::ZonePlug
            | Action::ZoneUnplug
            | Action::ZoneAppend => {}
        }
    }

    fn mark_inner(&mut self, bio: (u16, u32)) {
        if let Some(part) = self.by_bio.get(&bio) {
            self.parts[*part].inner = true;
        }
    }

    fn mark_inner_at(&mut self, queue: u16, sector: u64) {
        for part in self.at.get(&(queue, sector)).into_iter().flatten() {
            self.parts[*part].inner = true;
        }
    }

    fn add_part(&mut self, part: Part) {
        let here = self.at.get(&(part.queue, part.cursor));
        let oldest = here.filter(|here| here.len() >= CROWD);
        if let Some(io) = oldest.map(|here| self.parts[here[0]].io) {
            if io != part.io {
                let now = self.ios[part.io].span.epoch;
                let io = self.remove_io(io);
                self.never_completed(io.span.queue_ns, io.span.epoch, now);
            }
        }
        let index = self.parts.insert(part);
        self.at
            .entry((part.queue, part.cursor))
            .or_default()
            .push(index);
        self.by_bio.insert((part.queue, part.bio), index);
        self.ios[part.io].parts.push(index);
    }

    fn unlink(&mut self, index: usize) {
        let part = self.parts[index];
        let key = (part.queue, part.cursor);
        if let Some(here) = self.at.get_mut(&key) {
            here.retain(|other| *other != index);
            if here.is_empty() {
                self.at.remove(&key);
            }
        }
    }

    fn remove_part(&mut self, index: usize) {
        self.unlink(index);
        let part = self.parts.remove(index);
        let bio = (part.queue, part.bio);
        if self.by_bio.get(&bio) == Some(&index) {
            self.by_bio.remove(&bio);
        }
        if let Some(io) = self.ios.get_mut(part.io) {
            io.parts.retain(|other| *other != index);
        }
    }

    /// Forgets an I/O with all its parts.
    fn remove_io(&mut self, index: usize) -> Io {
        let parts = std::mem::take(&mut self.ios[index].parts);
        for part in parts {
            self.remove_part(part);
        }
        self.ios.remove(index)
    }

    /// A bio's address is used again: what was known under it has come to its end.
    fn bio_is_new(&mut self, queue: u16, bio: u32, epoch: u32) {
        let key = (queue, bio as u16);
        if let Some(same) = self.ending.get_mut(&key) {
            let over = same.extract_if(.., |(known, _)| *known == bio);
            self.found.extend(over.map(|(_, span)| Span::Io(span)));
            if same.is_empty() {
                self.ending.remove(&key);
            }
        }
        if let Some(part) = self.by_bio.get(&(queue, bio)).copied() {
            let io = self.parts[part].io;
            let io = self.remove_io(io);
            self.never_completed(io.span.queue_ns, io.span.epoch, epoch);
        }
    }

    fn never_completed(&mut self, since: u64, began: u32, now: u32) {
        if !self.is_cut(since, began, now) {
            self.counts.no_completion += 1;
        }
    }

    fn queue(&mut self, event: &Event) {
        let bio = (event.queue, event.id);
        self.bio_is_new(event.queue, event.id, event.epoch);
        let number = self.queued;
        self.queued += 1;
        let mut trail = Vec::new();
        if let Some(trails) = &mut self.trails {
            trail.push(Stretch {
                queue: event.queue,
                request: false,
                id: event.id,
                from: trails.mapped.remove(&bio).unwrap_or(event.ns),
                to: None,
            });
        }
        let io = self.ios.insert(Io {
            span: IoSpan {
                number,
                queue: event.queue,
                dev: event.dev,
                diskseq: event.diskseq,
                epoch: event.epoch,
                submitter: Submitter::of(event),
                cgroup: event.detail().map_or(0, |detail| detail.cgroup),
                queue_ns: event.ns,
                issue_ns: None,
                data_ns: event.ns,
                complete_ns: event.ns,
                bytes: event.bytes,
                opf: event.opf,
                stacked: self.arriving.remove(&bio),
                cut: false,
            },
            bio: event.id,
            parts: Vec::new(),
            ambiguous: false,
            trail,
        });
        let (cursor, end) = match event.sector {
            Some(sector) if event.bytes > 0 => (sector, sector + u64::from(event.sectors())),
            _ => (NO_DATA, NO_DATA),
        };
        self.add_part(Part {
            io,
            queue: event.queue,
            bio: event.id,
            cursor,
            end,
            inner: false,
            write: event.opf.is_write(),
        });
    }

    /// The front part goes on as a bio of its own; what is left keeps the bio and begins behind it.
    fn split(&mut self, event: &Event) {
        self.counts.splits += 1;
        let Some(sector) = event.sector else { return };
        let middle = sector + u64::from(event.sectors());
        let write = event.opf.is_write();
        // Device mapper names the rest, which is the bio that was queued: that one ends once, with all of it.
        let queued = self.by_bio.get(&(event.queue, event.id));
        if queued.is_some_and(|part| {
            let part = &self.parts[*part];
            part.cursor < sector && part.end == middle
        }) {
            return;
        }
        let mut whole = self
            .at
            .get(&(event.queue, sector))
            .into_iter()
            .flatten()
            .copied()
            .filter(|index| {
                let part = &self.parts[*index];
                part.end > middle && part.write == write && part.bio != event.id
            });
        let (Some(index), other) = (whole.next(), whole.next()) else {
            return;
        };
        let rivals: Vec<usize> = other.into_iter().chain(whole).collect();
        if !rivals.is_empty() {
            // Two bios at one place, one of them split: which one only their sizes at C might tell.
            self.spoil(index);
            for rival in rivals {
                self.spoil(rival);
            }
            return;
        }
        // The front part's address may be an old one's. That is not the whole's: it is not equal.
        self.bio_is_new(event.queue, event.id, event.epoch);
        let Some(part) = self.parts.get(index).copied() else {
            return;
        };
        self.unlink(index);
        self.parts[index].cursor = middle;
        self.at.entry((part.queue, middle)).or_default().push(index);
        if self.trails.is_some() {
            self.ios[part.io].trail.push(Stretch {
                queue: event.queue,
                request: false,
                id: event.id,
                from: event.ns,
                to: None,
            });
        }
        self.add_part(Part {
            bio: event.id,
            end: middle,
            ..part
        });
    }

    /// The I/O of this part can be joined in more than one way.
    fn spoil(&mut self, part: usize) {
        let io = &mut self.ios[self.parts[part].io];
        if !io.ambiguous {
            io.ambiguous = true;
            self.counts.ambiguous += 1;
        }
    }

    fn issue(&mut self, event: &Event) {
        let key = (event.queue, event.id);
        let issued = Issued {
            ns: event.ns,
            sector: event.sector,
            epoch: event.epoch,
            clone: self.clones.remove(&key),
            bytes: event.bytes,
            done: 0,
            opf: event.opf,
            errno: 0,
        };
        if let Some(before) = self.issued.insert(key, issued) {
            self.never_completed(before.ns, before.epoch, event.epoch);
        }
    }

    fn complete(&mut self, event: &Event) {
        let key = (event.queue, event.id);
        let mut issue_ns = None;
        let mut clone = false;
        let mut over = true;
        let mut sector = event.sector;
        if let Some(issued) = self.issued.get_mut(&key) {
            issue_ns = Some(issued.ns);
            clone = issued.clone;
            if event.opf.is(Op::ZoneAppend) {
                // Only the drive knew where it would go: its bio was queued for the start of the zone.
                sector = issued.sector;
            }
            issued.done = issued.done.saturating_add(event.bytes);
            if issued.errno == 0 {
                issued.errno = event.errno();
            }
            if issued.done >= issued.bytes {
                let issued = *issued;
                self.issued.remove(&key);
                let cut = self.is_cut(issued.ns, issued.epoch, event.epoch);
                let begin_ns = self.begin_ns(event).unwrap_or(issued.ns);
                self.found.push(Span::Request(RequestSpan {
                    queue: event.queue,
                    dev: event.dev,
                    diskseq: event.diskseq,
                    id: event.id,
                    begin_ns,
                    issue_ns: issued.ns,
                    complete_ns: event.ns,
                    bytes: issued.bytes,
                    opf: issued.opf,
                    errno: issued.errno,
                    cut,
                }));
            } else {
                self.counts.partial += 1;
                over = false;
            }
        } else if event.bytes > 0 {
            self.counts.no_issue += 1;
        }
        if !clone && !event.opf.is_passthrough() {
            match sector {
                Some(sector) if event.bytes > 0 => self.complete_range(event, sector, issue_ns),
                _ => self.complete_no_data(event, issue_ns),
            }
        }
        if over {
            if let Some(trails) = &mut self.trails {
                trails.begun.remove(&key);
            }
        }
    }

    /// The first event of the request that this is one of, where trails are kept.
    fn begin_ns(&self, event: &Event) -> Option<u64> {
        let begun = &self.trails.as_ref()?.begun;
        begun.get(&(event.queue, event.id)).copied()
    }

    /// A request until this completion.
    fn request_stretch(&self, event: &Event) -> Stretch {
        Stretch {
            queue: event.queue,
            request: true,
            id: event.id,
            from: self.begin_ns(event).unwrap_or(event.ns),
            to: Some(event.ns),
        }
    }

    /// A C of no bytes: a flush, the end of a flush sequence, or a zone's that was reset or the like.
    fn complete_no_data(&mut self, event: &Event, issue_ns: Option<u64>) {
        let flushes = !event.opf.is(Op::Zone);
        let ending = if flushes {
            self.ending.remove(&(event.queue, event.head))
        } else {
            None
        };
        if let Some(ending) = ending {
            if let [(_, mut span)] = ending[..] {
                span.complete_ns = event.ns;
                // Counted already if its data was cut as well.
                span.cut = span.cut || self.is_cut(span.queue_ns, span.epoch, event.epoch);
                self.counts.flush_sequences += 1;
                let stretch = self.request_stretch(event);
                if let Some(trails) = &mut self.trails {
                    trails.done.entry(span.number).or_default().push(stretch);
                }
                self.found.push(Span::Io(span));
            } else {
                self.counts.ambiguous += ending.len() as u64;
            }
            return;
        }
        let mut named = self
            .at
            .get(&(event.queue, NO_DATA))
            .into_iter()
            .flatten()
            .copied()
            .filter(|index| self.parts[*index].bio as u16 == event.head);
        match (named.next(), named.next()) {
            (Some(index), None) => {
                self.counts.flush_sequences += u64::from(flushes);
                self.part_done(index, 0, event, issue_ns);
            }
            (Some(first), Some(second)) => {
                let all: Vec<usize> = [first, second].into_iter().chain(named).collect();
                self.spoil_and_remove(&all);
            }
            // The request that does the flushing has no bio.
            (None, _) => {}
        }
    }

    fn complete_range(&mut self, event: &Event, sector: u64, issue_ns: Option<u64>) {
        let end = sector + u64::from(event.sectors());
        let write = event.opf.is_write();
        let mut position = sector;
        while position < end {
            let here: Vec<usize> = self
                .at
                .get(&(event.queue, position))
                .into_iter()
                .flatten()
                .copied()
                .filter(|index| self.parts[*index].write == write)
                .collect();
            let candidates: Vec<usize> = if position == sector {
                here.into_iter()
                    .filter(|index| self.parts[*index].bio as u16 == event.head)
                    .collect()
            } else {
                // Only a bio that was merged can stand behind another. If none of these was, the merge may
                // have been lost.
                let inner: Vec<usize> = here
                    .iter()
                    .copied()
                    .filter(|index| self.parts[*index].inner)
                    .collect();
                if inner.is_empty() {
                    here
                } else {
                    inner
                }
            };
            match candidates[..] {
                [] => {
                    self.counts.no_queue += 1;
                    return;
                }
                [index] => {
                    let next = self.parts[index].end.min(end);
                    self.part_done(index, next - position, event, issue_ns);
                    position = next;
                }
                _ => {
                    // Whatever is behind them cannot be told either.
                    self.spoil_and_remove(&candidates);
                    return;
                }
            }
        }
    }

    /// One of these is complete, and nothing tells which: none of them gets a latency. They all go, as none
    /// of them could be joined any better later.
    fn spoil_and_remove(&mut self, parts: &[usize]) {
        for part in parts {
            if self.parts.contains(*part) {
                self.spoil(*part);
                self.remove_io(self.parts[*part].io);
            }
        }
    }

    /// So many sectors of a part are complete.
    fn part_done(&mut self, index: usize, sectors: u64, event: &Event, issue_ns: Option<u64>) {
        let part = self.parts[index];
        let stretch = self.trails.is_some().then(|| self.request_stretch(event));
        let io = &mut self.ios[part.io];
        io.span.issue_ns = issue_ns;
        io.trail.extend(stretch);
        if part.cursor != NO_DATA && part.cursor + sectors < part.end {
            self.unlink(index);
            let cursor = part.cursor + sectors;
            self.parts[index].cursor = cursor;
            self.at.entry((part.queue, cursor)).or_default().push(index);
            return;
        }
        self.remove_part(index);
        if self.ios[part.io].parts.is_empty() {
            self.io_done(part.io, event, part.bio);
        }
    }

    /// Takes out an I/O whose data is complete; nothing if its join was ambiguous.
    fn take_io(&mut self, index: usize, event: &Event) -> Option<IoSpan> {
        let io = self.remove_io(index);
        if io.ambiguous {
            return None;
        }
        let mut span = io.span;
        if let Some(trails) = &mut self.trails {
            trails.done.insert(span.number, io.trail);
        }
        span.data_ns = event.ns;
        span.complete_ns = event.ns;
        span.cut = self.is_cut(span.queue_ns, span.epoch, event.epoch);
        Some(span)
    }

    fn io_done(&mut self, index: usize, event: &Event, bio: u32) {
        let Some(span) = self.take_io(index, event) else {
            return;
        };
        if span.opf.is_durable() && span.bytes > 0 {
            let key = (span.queue, bio as u16);
            self.ending.entry(key).or_default().push((bio, span));
        } else {
            self.found.push(Span::Io(span));
        }
    }

    /// A bio-based driver names the bio itself. Each front part of a split one comes by itself; the bio that
    /// was queued comes last (`bio_chain()`), so that then all is over, parts that were lost included.
    fn bio_complete(&mut self, event: &Event) {
        let Some(part) = self.by_bio.get(&(event.queue, event.id)).copied() else {
            self.counts.no_queue += 1;
            return;
        };
        let index = self.parts[part].io;
        if self.ios[index].bio != event.id {
            self.remove_part(part);
            return;
        }
        let span = self.take_io(index, event);
        self.found.extend(span.map(Span::Io));
    }

    /// As [`Tracker::is_cut`], of a span: it ends in the epoch of its event.
    fn is_span_cut(&mut self, ns: u64, event: &Event) -> bool {
        let began = self.epochs.iter().find(|(epoch, _)| *epoch == event.epoch);
        let before = began.is_some_and(|(_, began)| ns < *began);
        self.is_cut(ns, event.epoch.wrapping_sub(before.into()), event.epoch)
    }

    /// Apart, so that traces of other events do not pay for it.
    #[inline(never)]
    fn span(&mut self, event: &Event) {
        let times = event.times().copied().unwrap_or_default();
        // What contradicts the event, or the other one, is not known.
        let queue_ns = times.queue_ns().filter(|queue| *queue <= event.ns);
        let issue_ns = times
            .issue_ns()
            .filter(|issue| queue_ns.unwrap_or(0) <= *issue && *issue <= event.ns);
        let mut begin_ns = event.ns;
        if !times.is_bio() {
            let key = (event.queue, event.id);
            let ends = self.ends_held(event);
            let flushes = event.head == 0 && event.opf.is(Op::Flush);
            let held = if flushes {
                None
            } else {
                self.held.remove(&key)
            };
            match held {
                Some(held) if ends => return self.sequence_ends(event, held, queue_ns),
                Some(held) => self.found.extend(held.io.map(Span::Io)),
                None => {}
            }
            begin_ns = self.request_span(event, issue_ns, times.is_partial());
        }
        self.io_span(event, queue_ns, issue_ns, begin_ns);
    }

    /// The span of no bytes that the flush machinery ends a request with.
    fn sequence_ends(&mut self, event: &Event, held: Held, queue_ns: Option<u64>) {
        let Some(mut span) = held.io else {
            self.counts.flush_sequences += 1;
            return;
        };
        if queue_ns.is_none() {
            // It may be that of another one, which was not seen before.
            self.counts.ambiguous += 1;
            return;
        }
        self.counts.flush_sequences += 1;
        span.complete_ns = event.ns;
        // Counted already if its data was cut as well.
        span.cut = span.cut || self.is_span_cut(span.queue_ns, event);
        if let Some(trails) = &mut self.trails {
            let stretch = Stretch {
                queue: event.queue,
                request: true,
                id: event.id,
                from: event.ns,
                to: Some(event.ns),
            };
            trails.done.entry(span.number).or_default().push(stretch);
        }
        self.found.push(Span::Io(span));
    }

    /// What a span says of its request. Returns when the first one of it came.
    fn request_span(&mut self, event: &Event, issue_ns: Option<u64>, partial: bool) -> u64 {
        let key = (event.queue, event.id);
        let begun = self.begun.remove(&key);
        let mut now = Begun {
            ns: event.ns,
            bytes: event.bytes,
            errno: event.errno(),
        };
        // Behind a loss it may be another request's.
        if let Some(begun) = begun.filter(|begun| !self.cut_since(begun.ns)) {
            now.ns = begun.ns;
            now.bytes = now.bytes.saturating_add(begun.bytes);
            if begun.errno != 0 {
                now.errno = begun.errno;
            }
        }
        if partial {
            self.counts.partial += 1;
            self.begun.insert(key, now);
            return now.ns;
        }
        // A read or write of no bytes never goes to the driver.
        let is_issued = event.bytes > 0 || !event.opf.is(Op::Read) && !event.opf.is(Op::Write);
        match issue_ns {
            Some(issue_ns) if is_issued => {
                let cut = self.is_span_cut(issue_ns, event);
                self.found.push(Span::Request(RequestSpan {
                    queue: event.queue,
                    dev: event.dev,
                    diskseq: event.diskseq,
                    id: event.id,
                    begin_ns: now.ns,
                    issue_ns,
                    complete_ns: event.ns,
                    bytes: now.bytes,
                    opf: event.opf,
                    errno: now.errno,
                    cut,
                }));
            }
            None if event.bytes > 0 => self.counts.no_issue += 1,
            _ => {}
        }
        now.ns
    }

    /// What a span says of the first of its bios.
    fn io_span(&mut self, event: &Event, queue: Option<u64>, issue: Option<u64>, begin_ns: u64) {
        let times = event.times().copied().unwrap_or_default();
        // A clone's I/O is the stacked device's.
        if event.head == 0 || event.opf.is_passthrough() || times.is_clone() {
            return;
        }
        if event.follows_data() {
            self.counts.flush_sequences += 1;
            return;
        }
        self.counts.merged += u64::from(event.head) - 1;
        let mut io = None;
        if times.is_front() {
            self.counts.splits += 1;
        } else if times.is_rest() && !times.is_bio() {
            self.counts.split_ios += 1;
        } else if let Some(queue_ns) = queue {
            let number = self.queued;
            self.queued += 1;
            if let Some(trails) = &mut self.trails {
                let stretch = Stretch {
                    queue: event.queue,
                    request: !times.is_bio(),
                    id: event.id,
                    from: begin_ns,
                    to: Some(event.ns),
                };
                trails.done.insert(number, vec![stretch]);
            }
            let cut = self.is_span_cut(queue_ns, event);
            io = Some(IoSpan {
                number,
                queue: event.queue,
                dev: event.dev,
                diskseq: event.diskseq,
                epoch: event.epoch,
                submitter: Submitter::of(event),
                cgroup: 0,
                queue_ns,
                issue_ns: issue,
                data_ns: event.ns,
                complete_ns: event.ns,
                bytes: event.bytes,
                opf: event.opf,
                stacked: false,
                cut,
            });
        } else {
            self.counts.missed += 1;
        }
        if times.is_bio() {
            self.found.extend(io.map(Span::Io));
        } else if event.bytes == 0 {
            self.counts.flush_sequences += u64::from(!event.opf.is(Op::Zone));
            self.found.extend(io.map(Span::Io));
        } else if event.opf.is_write() && event.head == 1 && !times.is_partial() {
            // What asks for a flush is not merged.
            let held = Held {
                queue_ns: queue,
                io,
            };
            self.held.insert((event.queue, event.id), held);
        } else {
            self.found.extend(io.map(Span::Io));
        }
    }
}
