// SPDX-License-Identifier: GPL-2.0
//! blkparse's default line format.
//!
//! A line is what blkparse prints for the same event of a blktrace (`process_default` in its
//! `blkparse_fmt.c`), with these differences that a blkrelay trace makes:
//!
//! - the device column always is the whole disk's number, for A as well;
//! - X shows where the part that it names ends; blkparse, where the rest begins. Only device mapper's differ;
//! - C has no pid (it happens in whatever task was interrupted): the column is 0;
//! - times count from the first event of the trace, as blkparse's do;
//! - sequence numbers count the events of a CPU from 1, lost ones included;
//! - what blkparse does not know has names of one or two letters: `E` a completion with an error (as C),
//!   `W` a wait for a tag, `IS` and `ID` the begin and end of a request's accounting, `ZM` zone management,
//!   `ZP` and `ZU` a write that waits for its zone and goes on, `ZA` where a zone append went;
//! - `SP` is an I/O's whole life, at its completion: it goes on with how long that took (`q2c`, `d2c`, and `g2d`
//!   from the request's allocation to its issue), how many bios it carried if not one, and why a time is missing;
//! - Q goes on with what else it carries, where the trace was recorded with details;
//! - a gap, and a flight recorder's stop, are lines that begin with `#`.

use blkrelay_trace::{Action, Detail, Event, Gap, GapKind, Item, Stop, Times};
use std::io::{self, Write};

/// Writes items as lines.
#[derive(Debug)]
pub struct Text<W> {
    out: W,
    /// CLOCK_MONOTONIC of the first event, ns.
    genesis: Option<u64>,
    line: Vec<u8>,
}

/// Appends a number, padded with blanks on the left.
fn right(line: &mut Vec<u8>, number: impl itoa::Integer, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number).as_bytes();
    line.resize(line.len() + width.saturating_sub(digits.len()), b' ');
    line.extend_from_slice(digits);
}

fn number(line: &mut Vec<u8>, number: impl itoa::Integer) {
    right(line, number, 0);
}

/// Appends text, padded with blanks on the left.
fn right_text(line: &mut Vec<u8>, text: &str, width: usize) {
    line.resize(line.len() + width.saturating_sub(text.len()), b' ');
    line.extend_from_slice(text.as_bytes());
}

/// Appends seconds with nine decimals, the seconds padded to five columns.
fn time(line: &mut Vec<u8>, ns: u64) {
    right(line, ns / 1_000_000_000, 5);
    line.push(b'.');
    let start = line.len();
    right(line, ns % 1_000_000_000, 9);
    for blank in line[start..].iter_mut().take_while(|byte| **byte == b' ') {
        *blank = b'0';
    }
}

fn comm(line: &mut Vec<u8>, event: &Event) {
    line.push(b'[');
    let name = event.comm.bytes();
    if name.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        line.extend_from_slice(name);
    } else {
        line.extend_from_slice(event.comm.to_string().as_bytes());
    }
    line.push(b']');
}

/// Appends what is not as it is for most: ` cgroup=42 ioprio=be/4 hint=2 part=1`.
fn details(line: &mut Vec<u8>, detail: &Detail) {
    for (name, value) in [
        (&b" cgroup="[..], detail.cgroup),
        (b" ioprio=", detail.ioprio.into()),
        (b" hint=", detail.write_hint.into()),
        (b" part=", detail.partno.into()),
    ] {
        if value == 0 {
            continue;
        }
        line.extend_from_slice(name);
        if name == b" ioprio=" {
            line.extend_from_slice(match detail.ioprio >> 13 {
                0 => b"none/",
                1 => b"rt/",
                2 => b"be/",
                3 => b"idle/",
                _ => b"?/",
            });
            number(line, detail.ioprio & 7);
        } else {
            number(line, value);
        }
    }
}

/// Appends what a span tells beside its end: ` q2c=12.345us d2c=12.000us g2d=11.950us bios=3 rest`. What may
/// be more has `>=`, and what is not known is not there.
fn times(line: &mut Vec<u8>, times: &Times, event: &Event) {
    let (queue, issue) = (times.queue_ns(), times.issue_ns());
    // The I/O goes on: it was split, or its first bio is not complete yet.
    let goes_on = times.is_rest() && !times.is_bio() || times.is_partial() && event.head == 0;
    let is = |goes_on| if goes_on { ">=" } else { "=" };
    for (name, from, to, is) in [
        ("q2c", queue, Some(event.ns), is(goes_on)),
        ("d2c", issue, Some(event.ns), is(times.is_partial())),
        ("g2d", times.alloc_ns(), issue, "="),
    ] {
        let took = from.zip(to).and_then(|(from, to)| to.checked_sub(from));
        if let Some(ns) = took {
            line.push(b' ');
            line.extend_from_slice(name.as_bytes());
            line.extend_from_slice(is.as_bytes());
            number(line, ns / 1000);
            line.push(b'.');
            let digits = [100, 10, 1].map(|unit| b'0' + (ns % 1000 / unit % 10) as u8);
            line.extend_from_slice(&digits);
            line.extend_from_slice(b"us");
        }
    }
    if event.head != 1 {
        line.extend_from_slice(b" bios=");
        number(line, event.head);
    }
    for (is, word) in [
        (times.is_missed(), &b" missed"[..]),
        (times.is_front(), b" front"),
        (times.is_clone(), b" clone"),
        (times.is_rest(), b" rest"),
        (times.is_partial(), b" partial"),
        (times.is_bio(), b" bio"),
    ] {
        if is {
            line.extend_from_slice(word);
        }
    }
}

impl<W: Write> Text<W> {
    /// Lines go to `out`, one `write` each: give it a buffer.
    pub fn new(out: W) -> Text<W> {
        Text {
            out,
            genesis: None,
            line: Vec::with_capacity(128),
        }
    }

    /// Times count from this instant, CLOCK_MONOTONIC ns, instead of from the first event given.
    pub fn count_from(&mut self, ns: u64) {
        self.genesis = Some(ns);
    }

    /// Writes one item as one line.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn item(&mut self, item: &Item) -> io::Result<()> {
        match item {
            Item::Event(event) => self.event(event),
            Item::Gap(gap) => self.gap(gap),
        }
    }

    /// Writes an event. The first one given sets the time that all count from.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let genesis = *self.genesis.get_or_insert(event.ns);
        let line = &mut self.line;
        line.clear();
        let dev = event.dev.unwrap_or_default();
        right(line, dev.major, 3);
        line.push(b',');
        let start = line.len();
        number(line, dev.minor);
        line.resize(line.len().max(start + 3), b' ');
        line.push(b' ');
        right(line, event.cpu, 2);
        line.push(b' ');
        right(line, event.seq, 8);
        line.push(b' ');
        time(line, event.ns.saturating_sub(genesis));
        line.push(b' ');
        right(line, event.pid.unwrap_or(0), 5);
        line.push(b' ');
        right_text(line, event.action.name(), 2);
        line.push(b' ');
        right_text(line, event.rwbs().as_str(), 3);
        line.push(b' ');

        let passthrough = event.opf.is_passthrough();
        let sector = event.sector.unwrap_or(0);
        let extent = |line: &mut Vec<u8>| {
            number(line, sector);
            line.extend_from_slice(b" + ");
            number(line, event.sectors());
            line.push(b' ');
        };
        match event.action {
            Action::Complete | Action::BioComplete | Action::Requeue | Action::Error => {
                if !passthrough {
                    if event.sectors() > 0 {
                        extent(line);
                    } else {
                        number(line, sector);
                        line.push(b' ');
                    }
                }
                line.push(b'[');
                // As blkparse has it: 16 bits without a sign, so that EIO is 65531.
                number(line, event.errno() as u16);
                line.push(b']');
            }
            Action::Span => {
                if passthrough {
                    number(line, event.bytes);
                    line.push(b' ');
                } else if event.sectors() > 0 {
                    extent(line);
                } else {
                    number(line, sector);
                    line.push(b' ');
                }
                comm(line, event);
                line.extend_from_slice(b" [");
                number(line, event.errno() as u16);
                line.push(b']');
                if let Some(known) = event.times() {
                    times(line, known, event);
                }
            }
            Action::Issue | Action::Insert | Action::Queue => {
                if passthrough {
                    number(line, event.bytes);
                    line.push(b' ');
                } else if event.sectors() > 0 {
                    extent(line);
                }
                comm(line, event);
                if let Some(detail) = event.detail() {
                    details(line, detail);
                }
            }
            Action::BackMerge | Action::FrontMerge | Action::GetRq | Action::RqMerge => {
                if event.sectors() > 0 {
                    extent(line);
                }
                comm(line, event);
            }
            // Their sector says something where their size is 0 as well: which zone, which request.
            Action::IoStart | Action::IoDone | Action::ZoneMgmt | Action::ZoneAppend => {
                if event.sector.is_some() {
                    extent(line);
                }
                comm(line, event);
            }
            Action::Plug => comm(line, event),
            Action::Unplug | Action::UnplugSchedule => {
                comm(line, event);
                line.push(b' ');
                number(line, event.bytes);
            }
            Action::Split => {
                number(line, sector);
                line.extend_from_slice(b" / ");
                number(line, sector + u64::from(event.sectors()));
                line.push(b' ');
                comm(line, event);
            }
            Action::TagWait => {
                comm(line, event);
                line.extend_from_slice(b" hctx ");
                number(line, event.id >> 16);
                line.extend_from_slice(b", ");
                number(line, event.bytes);
                line.extend_from_slice(match event.scheduler_tags() {
                    false => b" driver tags",
                    true => b" scheduler tags",
                });
                if event.reserved_tags() {
                    line.extend_from_slice(b", reserved");
                }
            }
            Action::ZonePlug | Action::ZoneUnplug => {
                extent(line);
                comm(line, event);
                line.extend_from_slice(b" zone ");
                number(line, event.id);
            }
            Action::Remap | Action::RqRemap => {
                let (from, from_sector) = event.from().unwrap_or_default();
                extent(line);
                line.extend_from_slice(b"<- (");
                number(line, from.major);
                line.push(b',');
                number(line, from.minor);
                line.extend_from_slice(b") ");
                number(line, from_sector);
            }
        }
        line.push(b'\n');
        self.out.write_all(line)
    }

    /// Writes a gap as a comment: `# CPU 1 lost 12 events between 0.000000123 and 0.000000456`.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn gap(&mut self, gap: &Gap) -> io::Result<()> {
        let what = match gap.kind {
            GapKind::Lost => "lost",
            GapKind::Missing => "wrote, but this file lacks,",
            GapKind::Damaged => "wrote, but this file holds damaged,",
        };
        let plural = if gap.events == 1 { "" } else { "s" };
        write!(
            self.out,
            "# CPU {} {what} {} event{plural}",
            gap.cpu, gap.events
        )?;
        match self.genesis {
            None => writeln!(self.out, " before the first event here"),
            Some(genesis) => {
                let seconds = |ns: u64| {
                    let ns = ns.saturating_sub(genesis);
                    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
                };
                let (from, to) = (seconds(gap.from_ns), seconds(gap.to_ns));
                writeln!(self.out, " between {from} and {to}")
            }
        }
    }

    /// Writes a flight recorder's stop as a comment: `# CPU 1 stopped at 1.000000123, 2.345 us after …`.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn stop(&mut self, stop: &Stop) -> io::Result<()> {
        let ns = stop.ends_ns().saturating_sub(self.genesis.unwrap_or(0));
        writeln!(
            self.out,
            "# CPU {} stopped at {}.{:09}, {}.{:03} us after {} on CPU {}",
            stop.cpu,
            ns / 1_000_000_000,
            ns % 1_000_000_000,
            stop.lag_ns / 1000,
            stop.lag_ns % 1000,
            stop.cause,
            stop.trigger_cpu
        )
    }

    /// Passes on what the output holds back.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
