// SPDX-License-Identifier: GPL-2.0
//! What is selected of a trace: the module's filter words, with the module's meaning (`module/filter.rs`),
//! and those that need to have seen the whole of an I/O. A cgroup alone means less here: the module includes
//! those below it, and a trace does not tell what they were.
//!
//! An event by itself is asked for its device, operation, sectors, size and time. Latency, task and cgroup are
//! an I/O's: its events are selected together, from its Q to its completion, with those of the
//! requests that carried it. So the trace is read twice where these are asked for. A span is asked by itself: it
//! tells who queued it and how long it took.

use crate::event::{Dev, Event, Gap, Item};
use crate::events::{DeviceInfo, Events};
use crate::op::Op;
use crate::requests::{IoSpan, Span, Stretch, Submitter, Tracker};
use crate::source::Source;
use blkrelay_format::Action;
use rustc_hash::FxHashMap;

/// What is selected: all that is given must hold; of a list, one. An empty list stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of which devices.
    pub places: Vec<Place>,
    /// Of which operations.
    pub ops: Vec<Op>,
    /// What touches these sectors of 512 bytes, first and last, of the whole disk.
    pub sectors: Option<(u64, u64)>,
    /// What has so many bytes, at least and at most.
    pub sizes: Option<(u32, u32)>,
    /// What happened at least and at most so many ns after the first event of the trace.
    pub window: Option<(u64, u64)>,
    /// What is charged to one of these cgroups themselves, by the details of its Q.
    pub cgroups: Vec<u64>,
    /// What was submitted by a thread or a process of one of these ids.
    pub pids: Vec<u32>,
    /// What was submitted by a task of one of these names.
    pub comms: Vec<String>,
    /// What took at least so many ns: from the last D to C, or from Q where there is no D.
    pub min_latency_ns: Option<u64>,
}

/// A disk or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The whole disk.
    pub disk: Dev,
    /// First and last sector on it, 512 bytes each; `None` for all of it.
    pub part: Option<(u64, u64)>,
}

/// Whether `bytes` bytes from `sector` on touch the sectors `first` to `last`.
fn overlaps(sector: u64, bytes: u32, (first, last): (u64, u64)) -> bool {
    let end = sector.saturating_add(u64::from(bytes).div_ceil(512).max(1));
    sector <= last && end > first
}

impl Filter {
    /// Whether an event passes what can be asked of it alone: devices, operation, sectors, size.
    ///
    /// An event that does not carry what is asked for does not pass: plugs and tag waits have no operation,
    /// place or size, and an empty flush touches no sector. It passes with each part of its disk. The end of a
    /// bio whose driver has moved on in it has 0 bytes: neither place nor size is what it was.
    ///
    /// The flush machinery takes a write's flags and ends it with 0 bytes (`block/blk-flush.c`): at sector 0 what
    /// was an empty flush, else at the first sector of its data, which has been asked for its size. With an error a
    /// completion at another sector is not taken for that: it may be that no bytes of the write were done, this
    /// time. (The module asks the bio, and so knows data at sector 0 as well; where the data is in the trace,
    /// [`Selected`] does.)
    pub fn passes(&self, event: &Event) -> bool {
        // The sizes of these are counts; zone plugs have a place and a size, but no operation.
        let counts = matches!(
            event.action,
            Action::Plug | Action::Unplug | Action::UnplugSchedule | Action::TagWait
        );
        let has_op = !counts && !matches!(event.action, Action::ZonePlug | Action::ZoneUnplug);
        let bytes = event.bytes;
        let ends_flush = event.ends_sequence() && event.sector == Some(0);
        let follows_data =
            event.follows_data() && (event.errno() == 0 || event.action == Action::Span);
        let is = |op| has_op && (event.opf.is(op) || op == Op::Flush && ends_flush);
        let is_flush = bytes == 0 && is(Op::Flush) && !follows_data;
        let of_bio = event.times().is_some_and(|times| times.is_bio());
        let is_consumed = bytes == 0 && (event.action == Action::BioComplete || of_bio);
        let sector = event.sector.filter(|_| !is_flush && !is_consumed);
        let touches = |range| sector.is_some_and(|sector| overlaps(sector, bytes, range));
        let here = |place: &Place| {
            event.dev == Some(place.disk) && place.part.is_none_or(|part| is_flush || touches(part))
        };
        (self.places.is_empty() || self.places.iter().any(here))
            && (self.ops.is_empty() || self.ops.iter().any(|op| is(*op)))
            && self.sectors.is_none_or(touches)
            && self.sizes.is_none_or(|(min, max)| {
                follows_data || !counts && !is_consumed && (min..=max).contains(&bytes)
            })
    }

    /// Whether whole I/Os have to be known.
    fn asks_for_ios(&self) -> bool {
        self.min_latency_ns.is_some() || self.asks_for_task() || !self.cgroups.is_empty()
    }

    fn asks_for_task(&self) -> bool {
        !self.pids.is_empty() || !self.comms.is_empty()
    }

    fn is_task(&self, who: &Submitter) -> bool {
        let named = |comm: &String| comm.as_bytes() == who.comm.bytes();
        (self.pids.is_empty() || self.pids.contains(&who.pid) || self.pids.contains(&who.tgid))
            && (self.comms.is_empty() || self.comms.iter().any(named))
    }

    fn is_cgroup(&self, cgroup: u64) -> bool {
        self.cgroups.is_empty() || self.cgroups.contains(&cgroup)
    }

    /// Whether a span passes: what is known of it.
    fn is_span(&self, event: &Event) -> bool {
        let times = event.times().copied().unwrap_or_default();
        let began = times.issue_ns().or(times.queue_ns());
        let took = |began| event.ns.saturating_sub(began);
        let slow = |min| began.is_some_and(|began| took(began) >= min);
        let task = !self.asks_for_task() || event.pid.is_some();
        task && self.is_task(&Submitter::of(event))
            && self.is_cgroup(0)
            && self.min_latency_ns.is_none_or(slow)
    }

    /// Whether an I/O passes, `done` or still on its way.
    fn is_io(&self, span: &IoSpan, done: bool) -> bool {
        let latency = match span.issue_ns {
            Some(issue) => span.data_ns.saturating_sub(issue),
            None => span.complete_ns.saturating_sub(span.queue_ns),
        };
        let slow = |min| done && !span.cut && latency >= min;
        self.is_task(&span.submitter)
            && self.is_cgroup(span.cgroup)
            && self.min_latency_ns.is_none_or(slow)
    }
}

/// A bio or a request of a queue: queue id, whether it is a request, and its id.
type Key = (u16, bool, u32);

/// The events of a trace's I/Os that were selected: when something under a key belonged to one of them.
#[derive(Debug, Default)]
struct Chosen {
    stretches: FxHashMap<Key, Vec<(u64, u64)>>,
    /// Whether the latest event of a request belongs to a selected one: E and ID follow its C.
    latest: FxHashMap<(u16, u32), bool>,
    /// Q of the latest span of each request that asked for one, and whether it was selected: the end of a flush
    /// sequence follows its data.
    spans: FxHashMap<(u16, u32), (Option<u64>, bool)>,
}

impl Chosen {
    fn of(source: &Source, filter: &Filter) -> Chosen {
        let mut chosen = Chosen::default();
        let first = source.events().find_map(|item| match item {
            Item::Event(event) => Some(event.action),
            Item::Gap(_) => None,
        });
        if first == Some(Action::Span) {
            return chosen;
        }
        let mut tracker = Tracker::with_trails(source);
        let mut spans: Vec<Span> = Vec::new();
        let mut take = |tracker: &mut Tracker, spans: &mut Vec<Span>| {
            for span in spans.drain(..) {
                chosen.span(filter, &span, tracker);
            }
        };
        for item in source.events() {
            spans.extend(tracker.item(&item));
            take(&mut tracker, &mut spans);
        }
        let outstanding: Vec<(IoSpan, Vec<Stretch>)> = tracker.outstanding().collect();
        spans.extend(tracker.finish());
        take(&mut tracker, &mut spans);
        for (span, trail) in outstanding {
            if filter.is_io(&span, false) {
                chosen.add(&trail, u64::MAX);
            }
        }
        for stretches in chosen.stretches.values_mut() {
            stretches.sort_unstable();
        }
        chosen
    }

    fn span(&mut self, filter: &Filter, span: &Span, tracker: &mut Tracker) {
        match span {
            Span::Io(span) => {
                let trail = tracker.take_trail(span.number);
                if filter.is_io(span, true) {
                    self.add(&trail, span.complete_ns);
                }
            }
            // One that carries no I/O that was queued here can be asked for its latency alone.
            Span::Request(span) => {
                let latency = span.complete_ns.saturating_sub(span.issue_ns);
                let slow = |min| !span.cut && latency >= min;
                let no_io = !filter.asks_for_task() && filter.cgroups.is_empty();
                if no_io && filter.min_latency_ns.is_none_or(slow) {
                    let key = (span.queue, true, span.id);
                    let stretch = (span.begin_ns, span.complete_ns);
                    self.stretches.entry(key).or_default().push(stretch);
                }
            }
        }
    }

    fn add(&mut self, trail: &[Stretch], end: u64) {
        for stretch in trail {
            let key = (stretch.queue, stretch.request, stretch.id);
            let to = stretch.to.unwrap_or(end);
            let stretches = self.stretches.entry(key).or_default();
            stretches.push((stretch.from, to));
        }
    }

    fn holds(&self, key: Key, ns: u64) -> bool {
        let Some(stretches) = self.stretches.get(&key) else {
            return false;
        };
        let begun = stretches.partition_point(|(from, _)| *from <= ns);
        begun > 0 && stretches[begun - 1].1 >= ns
    }

    fn has(&mut self, event: &Event, filter: &Filter) -> bool {
        let request = (event.queue, event.id);
        match event.action {
            Action::Span => self.has_span(event, filter),
            Action::Error | Action::IoDone => self.latest.get(&request).copied().unwrap_or(false),
            action if action.is_request() => {
                let has = self.holds((event.queue, true, event.id), event.ns);
                self.latest.insert(request, has);
                has
            }
            // The submitter's own: so that one without an end is there as well.
            Action::Queue if filter.min_latency_ns.is_none() => {
                let cgroup = event.detail().map_or(0, |detail| detail.cgroup);
                filter.is_task(&Submitter::of(event)) && filter.is_cgroup(cgroup)
            }
            action if action.is_bio() && action != Action::ZoneMgmt => {
                self.holds((event.queue, false, event.id), event.ns)
            }
            // No I/O's: of these only the task can be asked.
            _ => {
                filter.min_latency_ns.is_none()
                    && filter.cgroups.is_empty()
                    && filter.is_task(&Submitter::of(event))
            }
        }
    }

    fn has_span(&mut self, event: &Event, filter: &Filter) -> bool {
        let has = filter.is_span(event);
        let times = event.times().copied().unwrap_or_default();
        let key = (event.queue, event.id);
        // The request that does the flushing borrows the tag, and has no bio.
        if event.head == 0 || times.is_bio() {
            return has;
        }
        let latest = self.spans.get(&key).copied();
        match latest.filter(|_| event.bytes == 0) {
            Some((queue, has)) if queue == times.queue_ns() => has,
            _ => {
                if event.opf.is_write() {
                    self.spans.insert(key, (times.queue_ns(), has));
                } else {
                    self.spans.remove(&key);
                }
                has
            }
        }
    }
}

/// What a completion of data and the end of its flush sequence have in common: the sector, the bio by what C says of it,
/// and the Q by what a span does.
type Part = (Option<u64>, u16, Option<u64>);

/// The events that a filter selects, and the gaps among them.
#[derive(Debug)]
pub struct Selected<'a> {
    events: Events<'a>,
    filter: Filter,
    /// Nothing is asked, so nothing has to be.
    all: bool,
    chosen: Option<Chosen>,
    /// The data that was complete last of each request that writes, and whether it passed.
    data: FxHashMap<(u16, u32), (Part, bool)>,
    /// CLOCK_MONOTONIC of the trace's first event, ns.
    first: Option<u64>,
}

impl<'a> Selected<'a> {
    pub(crate) fn new(source: &'a Source, filter: &Filter) -> Selected<'a> {
        Selected {
            events: source.events(),
            chosen: filter.asks_for_ios().then(|| Chosen::of(source, filter)),
            filter: filter.clone(),
            all: *filter == Filter::default(),
            data: FxHashMap::default(),
            first: None,
        }
    }

    /// As [`Events::devices`], selected or not.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.events.devices()
    }

    /// As [`Events::unknown`].
    pub fn unknown(&self) -> u64 {
        self.events.unknown()
    }

    /// As [`Filter::passes`]; but the end of a flush sequence passes with its data.
    fn passes(&mut self, event: &Event) -> bool {
        let request = (event.queue, event.id);
        let times = event.times().copied().unwrap_or_default();
        let part = (event.sector, event.head, times.queue_ns());
        if event.ends_sequence() {
            match self.data.get(&request) {
                Some((data, passed)) if *data == part => return *passed,
                _ => {}
            }
        }
        let passes = self.filter.passes(event);
        let completes = matches!(event.action, Action::Complete | Action::Span) && !times.is_bio();
        if completes && event.bytes > 0 && event.opf.is(Op::Write) {
            self.data.insert(request, (part, passes));
        }
        passes
    }

    fn event(&mut self, event: &Event) -> bool {
        let first = *self.first.get_or_insert(event.ns);
        let since = event.ns.saturating_sub(first);
        let in_window = |(from, to)| from <= since && since <= to;
        // Both are asked even of those that do not pass: they follow the requests.
        let passes = self.passes(event);
        let chosen = match &mut self.chosen {
            Some(chosen) => chosen.has(event, &self.filter),
            None => true,
        };
        passes && chosen && self.filter.window.is_none_or(in_window)
    }

    fn gap(&self, gap: &Gap) -> bool {
        let first = self.first.unwrap_or(gap.from_ns);
        let since = |ns: u64| ns.saturating_sub(first);
        let in_window = |(from, to)| since(gap.from_ns) <= to && since(gap.to_ns) >= from;
        self.filter.window.is_none_or(in_window)
    }
}

impl Iterator for Selected<'_> {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        if self.all {
            return self.events.next();
        }
        loop {
            let item = self.events.next()?;
            let passes = match &item {
                Item::Event(event) => self.event(event),
                Item::Gap(gap) => self.gap(gap),
            };
            if passes {
                return Some(item);
            }
        }
    }
}
