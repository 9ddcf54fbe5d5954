// SPDX-License-Identifier: GPL-2.0
//! What a trace is made of once it is merged: events, gaps and a flight recorder's stops; and how a time is
//! written in words.

use crate::clock::ClockMap;
use crate::op::{self, Op, Opf};
use blkrelay_format::{abi, Action, Stop as StopRecord, Times as TimesRecord};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Dev {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Dev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A text that is no device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device number: want MAJOR:MINOR")]
pub struct ParseDevError;

/// `major:minor`, as in sysfs.
impl FromStr for Dev {
    type Err = ParseDevError;

    fn from_str(text: &str) -> Result<Dev, ParseDevError> {
        let number = |text: &str| text.parse().map_err(|_| ParseDevError);
        let (major, minor) = text.split_once(':').ok_or(ParseDevError)?;
        Ok(Dev {
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

/// A task's name: up to 15 bytes, not necessarily UTF-8. Empty if it is not known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Comm(pub [u8; 16]);

impl Comm {
    /// The bytes up to the first NUL.
    pub fn bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for Comm {
    /// Control characters and broken UTF-8 come out as `?`: a name must not steer the terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.bytes());
        let clean: String = text
            .chars()
            .map(|c| {
                if c.is_control() || c == '\u{fffd}' {
                    '?'
                } else {
                    c
                }
            })
            .collect();
        f.pad(&clean)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.bytes()))
    }
}

/// What else a Q carries, where the trace was recorded with details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Detail {
    /// The cgroup that the I/O is charged to: its directory's inode number; 0: none.
    pub cgroup: u64,
    /// `bi_flags`, as `linux/blk_types.h` has them.
    pub flags: u32,
    /// Class << 13 | hint << 3 | level, as `linux/ioprio.h` has it; 0: none.
    pub ioprio: u16,
    /// `enum rw_hint` of `linux/rw_hint.h`.
    pub write_hint: u8,
    /// Number of the partition that it was submitted to; 0: the whole disk.
    pub partno: u8,
}

/// What a span tells of its I/O beside its end.
///
/// A time that lies between two anchors is as exact as an event's. One that lies before the first anchor of
/// the trace is reckoned back from it at the rate measured behind it, or, where that took less than 10 ms, at
/// the clock's nominal one: the error is at most 0.1 % of how long before it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// CLOCK_MONOTONIC, ns; until the merge has made that of it, the trace's clock. 0: not known.
    queue: u64,
    /// As `queue`.
    issue: u64,
    /// CLOCK_MONOTONIC, ns. 0: not known.
    alloc: u64,
    /// `BLKRELAY_TIMES_*`
    flags: u16,
}

impl Times {
    /// What a times record says, still in the trace's clock.
    pub(crate) fn new(times: &TimesRecord) -> Times {
        let unknown =
            abi::BLKRELAY_TIMES_MISSED | abi::BLKRELAY_TIMES_FRONT | abi::BLKRELAY_TIMES_CLONE;
        Times {
            queue: if times.has(unknown) { 0 } else { times.queue },
            issue: if times.has(abi::BLKRELAY_TIMES_BIO) {
                0
            } else {
                times.issue
            },
            alloc: times.alloc,
            flags: times.flags(),
        }
    }

    /// With CLOCK_MONOTONIC for the trace's clock. Apart, so that other events do not pay for it.
    #[inline(never)]
    pub(crate) fn converted(mut self, clock: &mut ClockMap) -> Times {
        for time in [&mut self.queue, &mut self.issue] {
            if *time != 0 {
                *time = clock.ns(*time).max(1);
            }
        }
        self
    }

    fn has(&self, flag: u32) -> bool {
        u32::from(self.flags) & flag != 0
    }

    /// When its first bio was queued, CLOCK_MONOTONIC ns; `None` if that was not seen, or that bio is the
    /// front part of a split one or of a clone.
    pub fn queue_ns(&self) -> Option<u64> {
        (self.queue != 0).then_some(self.queue)
    }

    /// When its request was issued last, CLOCK_MONOTONIC ns; `None` if that was not seen, or the driver is
    /// bio-based.
    pub fn issue_ns(&self) -> Option<u64> {
        (self.issue != 0).then_some(self.issue)
    }

    /// When its request was allocated, CLOCK_MONOTONIC ns; `None` if the kernel did not keep it. The kernel reads
    /// the clock once for all requests of a plug, so this can be before the bio was queued.
    pub fn alloc_ns(&self) -> Option<u64> {
        (self.alloc != 0).then_some(self.alloc)
    }

    /// The Q of its first bio was not seen, or its stamp was lost.
    pub fn is_missed(&self) -> bool {
        self.has(abi::BLKRELAY_TIMES_MISSED)
    }

    /// Its first bio is the front part of a split one, and has no Q.
    pub fn is_front(&self) -> bool {
        self.has(abi::BLKRELAY_TIMES_FRONT)
    }

    /// Its first bio is what was left when its front was split off: the I/O may end later.
    pub fn is_rest(&self) -> bool {
        self.has(abi::BLKRELAY_TIMES_REST)
    }

    /// The completion of a part: the request goes on.
    pub fn is_partial(&self) -> bool {
        self.has(abi::BLKRELAY_TIMES_PARTIAL)
    }

    /// Its request is a stacked device's clone: its bios are not queued.
    pub fn is_clone(&self) -> bool {
        self.has(abi::BLKRELAY_TIMES_CLONE)
    }

    /// Of a bio-based driver: the event's `id` is the bio's.
    pub fn is_bio(&self) -> bool {
        self.has(abi::BLKRELAY_TIMES_BIO)
    }
}

/// What events of some kinds carry and others do not. It stands in one place, because there are very many
/// events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// A: where the bio or request came from, with the sector there.
    From(Dev, u64),
    /// Q, where the trace has details.
    Detail(Detail),
    /// SP.
    Times(Times),
}

/// One block event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The trace's clock.
    pub time: u64,
    /// CLOCK_MONOTONIC, ns.
    pub ns: u64,
    /// The CPU that it happened on.
    pub cpu: u32,
    /// Number on its CPU, from 1. Lost events are counted, so that a loss leaves a gap in the numbers.
    pub seq: u64,
    /// What happened.
    pub action: Action,
    /// The configuration epoch: from 1, a new one when filters change, and when a flight recorder is armed
    /// again.
    pub epoch: u32,
    /// The request queue's id.
    pub queue: u16,
    /// The whole disk; `None` if the queue has none or the trace does not name it.
    pub dev: Option<Dev>,
    /// Tells the disk from an earlier one of the same queue id or number; 0 if it is not known.
    pub diskseq: u64,
    /// First sector on the whole disk, 512 bytes each; `None` for passthrough requests, for the flush
    /// machinery's own, and for P, U, UT and W.
    pub sector: Option<u64>,
    /// Bytes of the bio or request; C, E and SP: completed by this call; U and UT: requests unplugged; W: tags
    /// in the pool.
    pub bytes: u32,
    /// Operation and flags; of W: `BLKRELAY_W_*`.
    pub opf: Opf,
    /// Request events: hardware queue << 16 | tag. Bio events: bits of the bio's address. W: hardware queue
    /// << 16. ZP and ZU: number of the zone. SP: as C.
    pub id: u32,
    /// The current task's thread id. `None` for C and E, which come in whatever task was interrupted. SP: that
    /// of the task that queued its first bio; `None` if that is not known.
    pub pid: Option<u32>,
    /// The task's process id; 0 if not known.
    pub tgid: u32,
    /// The task's name.
    pub comm: Comm,
    /// C, E and SP only: `blk_status_t`.
    pub status: u8,
    /// C and E only: low 16 bits of the id of the request's first bio, or of the bio that is complete; 0 if
    /// there is none. SP: number of bios that are complete; 65535: that many or more.
    pub head: u16,
    /// What only some carry.
    pub extra: Extra,
}

impl Event {
    /// A only: where the bio or request came from, with the sector there.
    pub fn from(&self) -> Option<(Dev, u64)> {
        match self.extra {
            Extra::From(dev, sector) => Some((dev, sector)),
            _ => None,
        }
    }

    /// Q only, where the trace has details.
    pub fn detail(&self) -> Option<&Detail> {
        match &self.extra {
            Extra::Detail(detail) => Some(detail),
            _ => None,
        }
    }

    /// SP only, if its times record is there.
    pub fn times(&self) -> Option<&Times> {
        match &self.extra {
            Extra::Times(times) => Some(times),
            _ => None,
        }
    }

    /// C, E and SP: 0 or a negative errno.
    pub fn errno(&self) -> i32 {
        op::errno(self.status)
    }

    /// Whether this ends a write of the flush machinery's, which takes its flags and ends it with 0 bytes
    /// (`block/blk-flush.c`): an empty flush at sector 0, any other one where its data was complete last.
    ///
    /// A driver may complete 0 bytes of a write that has failed and goes on. Only a span tells the two apart.
    pub(crate) fn ends_sequence(&self) -> bool {
        let ends = matches!(self.action, Action::Complete | Action::Error | Action::Span);
        let other = |times: &Times| times.is_bio() || times.is_partial();
        ends && self.bytes == 0 && self.opf.is(Op::Write) && !self.times().is_some_and(other)
    }

    /// Whether the write that this ends had data, as far as the sector tells.
    pub(crate) fn follows_data(&self) -> bool {
        self.ends_sequence() && self.sector != Some(0)
    }

    /// Sectors of 512 bytes, rounded down.
    pub fn sectors(&self) -> u32 {
        self.bytes >> 9
    }

    /// W only: the tags waited for are the scheduler's, else the driver's.
    pub fn scheduler_tags(&self) -> bool {
        self.opf.0 & abi::BLKRELAY_W_SCHED != 0
    }

    /// W only: they are reserved ones.
    pub fn reserved_tags(&self) -> bool {
        self.opf.0 & abi::BLKRELAY_W_RESERVED != 0
    }

    /// blktrace's RWBS: what and how, as blkparse makes it from the categories.
    pub fn rwbs(&self) -> Rwbs {
        use blkrelay_format::blktrace::category as tc;
        let (bits, bytes) = match self.action {
            // blktrace records these without an operation, which then counts as a read, of no bytes.
            Action::Plug | Action::Unplug | Action::UnplugSchedule => (tc::READ, 0),
            Action::TagWait | Action::ZonePlug | Action::ZoneUnplug => (tc::READ, 0),
            _ => (self.opf.categories(), self.bytes),
        };
        let mut rwbs = Rwbs::default();
        if bits & tc::FLUSH != 0 {
            rwbs.push(b'F');
        }
        rwbs.push(if bits & tc::DISCARD != 0 {
            b'D'
        } else if bits & tc::WRITE != 0 {
            b'W'
        } else if bytes != 0 {
            b'R'
        } else {
            b'N'
        });
        for (bit, letter) in [
            (tc::FUA, b'F'),
            (tc::AHEAD, b'A'),
            (tc::SYNC, b'S'),
            (tc::META, b'M'),
        ] {
            if bits & bit != 0 {
                rwbs.push(letter);
            }
        }
        rwbs
    }
}

/// At most six letters of RWBS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rwbs {
    letters: [u8; 6],
    len: usize,
}

impl Rwbs {
    fn push(&mut self, letter: u8) {
        if let Some(place) = self.letters.get_mut(self.len) {
            *place = letter;
            self.len += 1;
        }
    }

    /// The letters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.letters[..self.len]).unwrap_or_default()
    }
}

/// Why events are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GapKind {
    /// The module had no room for them.
    Lost,
    /// The module wrote them, the file does not hold them.
    Missing,
    /// The file holds them, damaged.
    Damaged,
}

/// Events of one CPU that are not in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The CPU.
    pub cpu: u32,
    /// Why.
    pub kind: GapKind,
    /// How many; 0 if that is not known.
    pub events: u64,
    /// Not before this instant: the trace's clock.
    pub from: u64,
    /// Not after this one.
    pub to: u64,
    /// `from` as CLOCK_MONOTONIC, ns.
    pub from_ns: u64,
    /// `to` as CLOCK_MONOTONIC, ns.
    pub to_ns: u64,
}

/// Nanoseconds in a unit that leaves three digits.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match value {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// What froze a flight recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// It was told to, through `control`.
    Control,
    /// A completion with an error: the `blk_status_t`.
    Error(u64),
    /// A completion too long after its request's last issue, or, of a bio-based driver, its bio's Q: ns.
    Slow(u64),
    /// A cause that this reader does not know: its code.
    Other(u16),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Control => f.write_str("a freeze written to control"),
            Cause::Error(status) => {
                let errno = op::errno(u8::try_from(*status).unwrap_or(u8::MAX));
                write!(f, "an I/O error (status {status}, errno {errno})")
            }
            Cause::Slow(ns) => write!(f, "an I/O that took {}", time(*ns)),
            Cause::Other(code) => write!(f, "cause {code}"),
        }
    }
}

/// A flight recorder's stop on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// The CPU that stopped.
    pub cpu: u32,
    /// The configuration epoch that ended.
    pub epoch: u32,
    /// When the trigger went off: CLOCK_MONOTONIC, ns.
    pub trigger_ns: u64,
    /// This CPU recorded every event for so long after the trigger, ns.
    pub lag_ns: u64,
    /// The CPU that the trigger went off on.
    pub trigger_cpu: u16,
    /// What it was.
    pub cause: Cause,
}

impl Stop {
    /// Until when this CPU recorded every event: CLOCK_MONOTONIC, ns.
    pub fn ends_ns(&self) -> u64 {
        self.trigger_ns.saturating_add(self.lag_ns)
    }

    /// What a stop record of this CPU says.
    pub(crate) fn new(cpu: u32, epoch: u32, stop: &StopRecord, clock: &mut ClockMap) -> Stop {
        let trigger_ns = clock.ns(stop.trigger);
        let cause = match u32::from(stop.cause()) {
            abi::BLKRELAY_CAUSE_CONTROL => Cause::Control,
            abi::BLKRELAY_CAUSE_ERROR => Cause::Error(stop.value),
            abi::BLKRELAY_CAUSE_SLOW => {
                let began = clock.ns(stop.trigger.saturating_sub(stop.value));
                Cause::Slow(trigger_ns.saturating_sub(began))
            }
            _ => Cause::Other(stop.cause()),
        };
        Stop {
            cpu,
            epoch,
            trigger_ns,
            lag_ns: clock.ns(stop.time).saturating_sub(trigger_ns),
            trigger_cpu: stop.trigger_cpu(),
            cause,
        }
    }
}

/// What the merge yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event.
    Event(Event),
    /// A gap, at the place where it begins.
    Gap(Gap),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each event is moved several times on its way.
    #[test]
    fn an_event_is_not_large() {
        assert!(size_of::<Event>() <= 160, "{}", size_of::<Event>());
    }

    #[test]
    fn device_numbers() {
        let dev = Dev {
            major: 253,
            minor: 1_048_575,
        };
        assert_eq!("253:1048575".parse(), Ok(dev));
        assert_eq!(dev.to_string().parse(), Ok(dev));
        for bad in ["", "8", ":", "8:", ":0", "8:x", "8:0:0", "8: 0", "-1:0"] {
            assert_eq!(bad.parse::<Dev>(), Err(ParseDevError), "{bad}");
        }
    }

    #[test]
    fn times_keep_three_digits() {
        assert_eq!(time(0), "0 ns");
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(1_234), "1.23 us");
        assert_eq!(time(12_345_678), "12.3 ms");
        assert_eq!(time(123_456_789), "123 ms");
        assert_eq!(time(61_000_000_000), "61.0 s");
    }
}
