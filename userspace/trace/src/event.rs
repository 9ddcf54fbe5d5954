// SPDX-License-Identifier: GPL-2.0
//! What a trace is made of once it is merged: events and gaps.

use crate::op::{self, Opf};
use blkrelay_format::Action;
use serde::Serialize;
use std::fmt;

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
    /// The request queue's id.
    pub queue: u16,
    /// The whole disk; `None` if the queue has none or the trace does not name it.
    pub dev: Option<Dev>,
    /// First sector on the whole disk, 512 bytes each; `None` for passthrough requests, for the flush
    /// machinery's own, and for P, U and UT.
    pub sector: Option<u64>,
    /// Bytes of the bio or request; C: completed by this call; U and UT: requests unplugged.
    pub bytes: u32,
    /// Operation and flags.
    pub opf: Opf,
    /// Request events: hardware queue << 16 | tag. Bio events: bits of the bio's address.
    pub id: u32,
    /// The current task's thread id. `None` for C, which comes in whatever task was interrupted.
    pub pid: Option<u32>,
    /// The task's process id; 0 if not known.
    pub tgid: u32,
    /// The task's name.
    pub comm: Comm,
    /// C only: `blk_status_t`.
    pub status: u8,
    /// C only: low 16 bits of the id of the request's first bio, or of the bio that is complete; 0 if
    /// there is none.
    pub head: u16,
    /// A only: where the bio came from, with the sector there.
    pub from: Option<(Dev, u64)>,
}

impl Event {
    /// C: 0 or a negative errno.
    pub fn errno(&self) -> i32 {
        op::errno(self.status)
    }

    /// Sectors of 512 bytes, rounded down.
    pub fn sectors(&self) -> u32 {
        self.bytes >> 9
    }

    /// blktrace's RWBS: what and how, as blkparse makes it from the categories.
    pub fn rwbs(&self) -> Rwbs {
        use blkrelay_format::blktrace::category as tc;
        let (bits, bytes) = match self.action {
            // blktrace records these without an operation, which then counts as a read, of no bytes.
            Action::Plug | Action::Unplug | Action::UnplugSchedule => (tc::READ, 0),
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

/// What the merge yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event.
    Event(Event),
    /// A gap, at the place where it begins.
    Gap(Gap),
}
