// SPDX-License-Identifier: GPL-2.0
//! The events of a trace by time, with the gaps where they are.

use crate::clock::ClockMap;
use crate::event::{Comm, Detail, Dev, Event, Extra, Gap, GapKind, Item, Times};
use crate::merge::{Merge, Stream};
use crate::op::Opf;
use crate::source::{CpuStream, Source};
use blkrelay_format::{c_bytes, printable, Action, Device, Record, Slot, Slots, Task};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// A traced device, as the module named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceInfo {
    /// The request queue's id.
    pub queue: u16,
    /// The whole disk; `None` for a queue without one.
    pub dev: Option<Dev>,
    /// The disk's name; empty for a queue without one.
    pub name: String,
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Tells a disk from an earlier one of the same name.
    pub diskseq: u64,
    /// Hardware queues; 0 for a bio-based device.
    pub hw_queues: u32,
}

impl DeviceInfo {
    fn new(device: &Device) -> DeviceInfo {
        let name = printable(&String::from_utf8_lossy(c_bytes(&device.name)));
        DeviceInfo {
            queue: device.queue as u16,
            dev: (!name.is_empty()).then_some(Dev {
                major: device.major,
                minor: device.minor,
            }),
            name,
            sectors: device.capacity,
            diskseq: device.diskseq,
            hw_queues: device.hw_queues,
        }
    }
}

/// Time of the last event of a CPU's last sub-buffer.
fn last_event(bytes: &[u8], stream: &CpuStream) -> Option<u64> {
    let records = bytes.get(stream.pieces.last()?.records.clone())?;
    let times = Slots::new(records).filter_map(|slot| match slot {
        Ok(Slot::Event(_, record) | Slot::UnknownEvent(record)) => Some(record.time),
        _ => None,
    });
    times.last()
}

/// One CPU's stream. Holds what the next item is made of; CLOCK_MONOTONIC is the merge's to add.
#[derive(Debug)]
struct Cursor<'a> {
    bytes: &'a [u8],
    stream: &'a CpuStream,
    /// The piece whose slots are being read, plus one.
    piece: usize,
    slots: Slots<'a>,
    /// Events of this piece that were yielded or are due.
    taken: u32,
    /// This piece's.
    epoch: u32,
    /// Number of the next event on its CPU, less one.
    seq: u64,
    /// Events that must lie before the next piece: written and lost.
    due: (u64, u64),
    /// Clock of the latest event, or of the latest instant known in a gap: the next gap is behind it.
    latest: Option<u64>,
    tasks: FxHashMap<u32, (Comm, u32)>,
    task: (u32, Comm, u32),
    /// Number and diskseq of each queue's disk.
    devices: FxHashMap<u16, (Option<Dev>, u64)>,
    device: Option<(u16, (Option<Dev>, u64))>,
    /// All devices met; the merge collects them.
    news: FxHashSet<DeviceInfo>,
    /// Events of codes that are not known here.
    unknown: u64,
    /// Gaps that come before the record.
    ready: VecDeque<Gap>,
    /// The next event's. What belongs to it is still in the slots: an event is large, and made where it goes to.
    record: Option<(Action, Record)>,
    /// First anchor and last instant known of the whole trace, where a gap has no better bounds.
    bounds: (u64, u64),
    ended: bool,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8], stream: &'a CpuStream, bounds: (u64, u64)) -> Cursor<'a> {
        let mut cursor = Cursor {
            bytes,
            stream,
            piece: 0,
            slots: Slots::new(&[]),
            taken: 0,
            epoch: 0,
            seq: 0,
            due: (0, 0),
            latest: None,
            tasks: FxHashMap::default(),
            task: (u32::MAX, Comm::default(), 0),
            devices: FxHashMap::default(),
            device: None,
            news: FxHashSet::default(),
            unknown: 0,
            ready: VecDeque::with_capacity(4),
            record: None,
            bounds,
            ended: false,
        };
        if stream.pieces.is_empty() {
            cursor.due.0 = stream.written_over;
        }
        cursor.fill();
        cursor
    }

    fn gap(&mut self, kind: GapKind, events: u64, from: u64, to: u64) {
        self.ready.push_back(Gap {
            cpu: self.stream.cpu,
            kind,
            events,
            from,
            to: to.max(from),
            from_ns: 0,
            to_ns: 0,
        });
    }

    /// Gaps between what was read so far and a place where the CPU had written `events` and lost `lost`.
    /// `to` is the first instant behind them, `within` the bounds of the losses where they are known.
    fn gaps(&mut self, events: u64, lost: u64, to: u64, within: (u64, u64)) {
        let from = self.latest.unwrap_or(self.bounds.0.min(to));
        let missing = events.saturating_sub(self.due.0);
        if missing > 0 {
            self.gap(GapKind::Missing, missing, from, to);
        }
        let missed = lost.saturating_sub(self.due.1);
        if missed > 0 {
            // The bounds in the header tell of the losses since the sub-buffer before, so they hold for
            // all of these only if that one is here.
            let (first, last) = match within {
                (0, _) => (from, to),
                (first, last) if missing == 0 => (first.max(from), last),
                (_, last) => (from, last),
            };
            self.gap(GapKind::Lost, missed, first, last);
            if within.0 != 0 {
                self.latest = self.latest.max(Some(first.max(last)));
            }
        }
        self.due = (events.max(self.due.0), lost.max(self.due.1));
        self.seq = self.due.0.saturating_add(self.due.1);
    }

    /// Takes up the next piece, or ends the stream. False at the end.
    #[cold]
    fn next_piece(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let previous = self.piece.checked_sub(1);
        if let Some(previous) = previous.and_then(|index| self.stream.pieces.get(index)) {
            let promised = previous.header.count;
            if self.taken < promised {
                let next = self.stream.pieces.get(self.piece);
                let to = next.map_or(self.bounds.1, |piece| piece.header.anchor);
                let from = self.latest.unwrap_or(previous.header.anchor);
                self.gap(GapKind::Damaged, u64::from(promised - self.taken), from, to);
            }
            let all = u64::from(promised.max(self.taken));
            self.due.0 = previous.header.events.saturating_add(all);
            self.taken = 0;
        }
        let Some(piece) = self.stream.pieces.get(self.piece) else {
            self.ended = true;
            if let Some((events, lost)) = self.stream.totals {
                let to = self.bounds.1.max(self.latest.unwrap_or(0));
                self.gaps(events, lost, to, (0, 0));
            }
            return false;
        };
        self.piece += 1;
        let header = &piece.header;
        if self.piece == 1 && header.overwrites() && header.seq > 0 {
            // What a flight recorder has written over is no gap in what it kept.
            self.due = (header.events, header.lost);
        }
        self.gaps(
            header.events,
            header.lost,
            header.anchor,
            (header.lost_first, header.lost_last),
        );
        self.slots = Slots::new(self.bytes.get(piece.records.clone()).unwrap_or_default());
        self.epoch = header.epoch;
        self.tasks.clear();
        self.task = (u32::MAX, Comm::default(), 0);
        true
    }

    #[cold]
    fn learn_task(&mut self, task: &Task) {
        let mut comm = Comm::default();
        for (to, from) in comm.0.iter_mut().zip(c_bytes(&task.comm)) {
            *to = *from;
        }
        self.tasks.insert(task.pid, (comm, task.tgid));
        self.task = (u32::MAX, Comm::default(), 0);
    }

    #[cold]
    fn learn_device(&mut self, device: &Device) {
        let info = DeviceInfo::new(device);
        self.devices.insert(info.queue, (info.dev, info.diskseq));
        self.device = None;
        self.news.insert(info);
    }

    #[inline]
    fn device(&mut self, queue: u16) -> (Option<Dev>, u64) {
        if let Some((known, disk)) = self.device {
            if known == queue {
                return disk;
            }
        }
        let disk = self.devices.get(&queue).copied().unwrap_or_default();
        self.device = Some((queue, disk));
        disk
    }

    #[inline]
    fn task(&mut self, pid: u32) -> (Comm, u32) {
        if self.task.0 != pid {
            let (comm, tgid) = self.tasks.get(&pid).copied().unwrap_or_default();
            self.task = (pid, comm, tgid);
        }
        (self.task.1, self.task.2)
    }

    /// Sees to it that a gap or a record is ready, unless the stream has ended.
    #[inline]
    fn fill(&mut self) {
        while self.record.is_none() && self.ready.is_empty() {
            let Some(Ok(slot)) = self.slots.next() else {
                // At a bad slot nothing tells where the next one begins: the rest of the piece is a gap.
                self.slots = Slots::new(&[]);
                if !self.next_piece() {
                    return;
                }
                continue;
            };
            match slot {
                Slot::Event(action, record) => {
                    self.count(&record);
                    self.record = Some((action, record));
                }
                Slot::UnknownEvent(record) => {
                    self.count(&record);
                    self.unknown += 1;
                }
                Slot::Task(task) => self.learn_task(&task),
                Slot::Device(device) => self.learn_device(&device),
                Slot::From(_)
                | Slot::Detail(_)
                | Slot::Stop(_)
                | Slot::Times(_)
                | Slot::Unknown { .. } => {}
            }
        }
    }

    #[inline]
    fn count(&mut self, record: &Record) {
        self.seq = self.seq.saturating_add(1);
        self.taken += 1;
        self.latest = Some(record.time);
    }

    /// Who queued a span, and when. Apart, so that other events do not pay for it.
    #[inline(never)]
    fn times(&mut self) -> (Option<u32>, Extra) {
        match self.slots.take_times() {
            Some(times) => (times.submitter(), Extra::Times(Times::new(&times))),
            None => (None, Extra::None),
        }
    }

    /// The event of the record that was read last.
    #[inline]
    fn event(&mut self, action: Action, record: &Record) -> Event {
        let complete = action.is_completion();
        let queue = record.queue();
        let mut pid = (!complete).then(|| record.pid());
        let mut extra = Extra::None;
        if action == Action::Queue {
            if let Some(detail) = self.slots.take_detail() {
                extra = Extra::Detail(Detail {
                    cgroup: detail.cgroup,
                    flags: detail.flags,
                    ioprio: detail.ioprio,
                    write_hint: detail.write_hint,
                    partno: detail.partno,
                });
            }
        } else if action.is_remap() {
            if let Some(from) = self.slots.take_from() {
                let (major, minor) = (from.major(), from.minor());
                extra = Extra::From(Dev { major, minor }, from.sector);
            }
        } else if action == Action::Span {
            (pid, extra) = self.times();
        }
        let (comm, tgid) = pid.map_or_else(Default::default, |pid| self.task(pid));
        let (dev, diskseq) = self.device(queue);
        Event {
            time: record.time,
            ns: 0,
            cpu: self.stream.cpu,
            seq: self.seq,
            action,
            epoch: self.epoch,
            queue,
            dev,
            diskseq,
            sector: record.sector(),
            bytes: record.bytes,
            opf: Opf(record.opf),
            id: record.id,
            pid,
            tgid,
            comm,
            status: if complete { record.status() } else { 0 },
            head: if complete { record.head() } else { 0 },
            extra,
        }
    }
}

impl Stream for Cursor<'_> {
    type Item = Item;

    #[inline]
    fn time(&self) -> Option<u64> {
        match self.ready.front() {
            Some(gap) => Some(gap.from),
            None => self.record.as_ref().map(|(_, record)| record.time),
        }
    }

    #[inline]
    fn next(&mut self) -> Option<Item> {
        if let Some(gap) = self.ready.pop_front() {
            self.fill();
            return Some(Item::Gap(gap));
        }
        let (action, record) = self.record.take()?;
        let event = self.event(action, &record);
        self.fill();
        Some(Item::Event(event))
    }
}

/// Events and gaps of all CPUs by time. Equal times: the lower CPU goes first, then the order on the CPU.
///
/// Memory is bounded by the number of CPUs; the events stay in the file until they are due.
#[derive(Debug)]
pub struct Events<'a> {
    merge: Merge<Cursor<'a>>,
    clock: ClockMap,
}

impl<'a> Events<'a> {
    pub(crate) fn new(source: &'a Source) -> Events<'a> {
        let anchors = || source.headers().map(|header| header.anchor);
        let first = anchors().min().unwrap_or(0);
        // What a CPU lost after its last sub-buffer may be as late as the last event of any other.
        let streams = source.streams().iter();
        let last_events = streams.filter_map(|stream| last_event(source.bytes(), stream));
        let last = anchors().chain(last_events).max().unwrap_or(0);
        let bounds = (first, last);
        let cursors = source
            .streams()
            .iter()
            .map(|stream| Cursor::new(source.bytes(), stream, bounds));
        Events {
            merge: Merge::new(cursors.collect()),
            clock: source.clock(),
        }
    }

    /// The devices named so far, each once. Complete when the events have been read to their end.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let cursors = self.merge.streams().iter();
        let devices: FxHashSet<&DeviceInfo> = cursors.flat_map(|cursor| &cursor.news).collect();
        let mut devices: Vec<DeviceInfo> = devices.into_iter().cloned().collect();
        // By all that tells two apart, so that the order is always the same.
        devices.sort_by(|a, b| {
            let key = |d: &DeviceInfo| (d.dev, d.diskseq, d.queue, d.sectors, d.hw_queues);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        devices
    }
}

impl Events<'_> {
    /// Events so far of codes that this reader does not know: they are skipped.
    pub fn unknown(&self) -> u64 {
        let cursors = self.merge.streams().iter();
        cursors.map(|cursor| cursor.unknown).sum()
    }
}

impl Iterator for Events<'_> {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        let mut item = self.merge.next()?;
        match &mut item {
            Item::Event(event) => {
                event.ns = self.clock.ns(event.time);
                if let Extra::Times(times) = event.extra {
                    event.extra = Extra::Times(times.converted(&mut self.clock));
                }
            }
            Item::Gap(gap) => {
                gap.from_ns = self.clock.ns(gap.from);
                gap.to_ns = self.clock.ns(gap.to);
            }
        }
        Some(item)
    }
}
