// SPDX-License-Identifier: GPL-2.0
//! How an event is shown: blkparse's default line, and what `-f` and `-F` ask for.

use super::line::{Line, Short};
use super::Options;
use blkrelay_format::blktrace::{act, category as tc, Header, MAGIC};
use std::fmt;
use std::io;
use std::ops::Range;

/// A format that cannot be used.
#[derive(Debug)]
pub struct FormatError(String);

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FormatError {}

/// Actions that may have a format of their own.
const LETTERS: &[u8] = b"ABCDFGIMPQRSTUWX";

/// An event that is shown.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// Its letters; `m` of a message.
    pub(super) act: &'static str,
    /// Its time counts from the first event.
    pub(super) record: Header,
    /// By the file's name.
    pub(super) cpu: u32,
    /// The task's, as far as it is known then.
    pub(super) name: Short<16>,
    /// Where its payload is.
    pub(super) payload: Range<usize>,
}

/// Nanoseconds since 1970 of the first event.
pub(super) type Wall = Option<i128>;

/// A piece of a format.
#[derive(Clone, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Field {
        letter: u8,
        left: bool,
        width: Option<usize>,
    },
}

/// How events are shown.
#[derive(Debug)]
pub(super) struct Formats {
    /// By an action's first letter; nothing is the default.
    by_letter: Vec<Option<Vec<Piece>>>,
    wall: Wall,
}

/// As `fill_rwbs()`, padded with blanks on the left. Categories that only v2 has are not told apart there.
#[inline]
fn rwbs(out: &mut Line, record: &Header, width: usize) {
    let mut text = [b' '; 32];
    let mut len = 8;
    let mut push = |is, byte| {
        text[len] = byte;
        len += usize::from(is);
    };
    push(record.has(tc::FLUSH), b'F');
    push(
        true,
        if record.has(tc::DISCARD) {
            b'D'
        } else if record.has(tc::WRITE) {
            b'W'
        } else if record.bytes > 0 {
            b'R'
        } else {
            b'N'
        },
    );
    push(record.has(tc::FUA), b'F');
    push(record.has(tc::AHEAD), b'A');
    push(record.has(tc::SYNC), b'S');
    push(record.has(tc::META), b'M');
    let start = 8 - width.saturating_sub(len - 8);
    out.part(&text, start, len - start);
}

fn major(device: u32) -> u32 {
    device >> 20
}

fn minor(device: u32) -> u32 {
    device & 0xfffff
}

#[inline]
fn device(out: &mut Line, device: u32) {
    out.number(major(device).into(), 3);
    out.bytes(b",");
    let start = out.len();
    out.number(minor(device).into(), 0);
    for _ in out.len() - start..3 {
        out.bytes(b" ");
    }
}

fn be32(pdu: &[u8], at: usize) -> u32 {
    let bytes = pdu.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_be_bytes(bytes.unwrap_or_default())
}

fn be64(pdu: &[u8], at: usize) -> u64 {
    let bytes = pdu.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_be_bytes(bytes.unwrap_or_default())
}

/// The payload of a command, as far as it is not zeros (`dump_pdu()`).
fn hex(out: &mut Line, pdu: &[u8]) {
    let end = pdu
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    for (n, byte) in pdu.iter().enumerate() {
        let digit = |half: u8| b"0123456789abcdef"[usize::from(half & 15)];
        if n > 0 {
            out.text(b" ");
        }
        out.text(&[digit(byte >> 4), digit(*byte)]);
        if n >= end {
            out.text(b" ..");
            break;
        }
    }
}

/// What was in front of the event before, and mostly stands there again.
#[derive(Debug)]
pub(super) struct Before {
    device: (u32, Short<16>),
    second: (u64, Short<16>),
}

impl Before {
    pub(super) fn new() -> Before {
        Before {
            device: (0, device_text(0)),
            second: (0, second_text(0)),
        }
    }
}

/// As `%5d.` prints it.
fn second_text(second: u64) -> Short<16> {
    Short::new(format!("{:5}.", second as i32).as_bytes())
}

fn device_text(device_number: u32) -> Short<16> {
    let mut line = Line::new(0);
    device(&mut line, device_number);
    line.text(b" ");
    Short::new(line.as_bytes())
}

/// Device, CPU, number and time, in front of each default line. There is room.
#[inline(always)]
fn head(out: &mut Line, before: &mut Before, device: u32, cpu: u32, sequence: i32, time: u64) {
    if before.device.0 != device {
        before.device = (device, device_text(device));
    }
    out.short(&before.device.1);
    out.number(cpu.into(), 2);
    out.bytes(b" ");
    if sequence >= 0 {
        out.number(sequence as u64, 8);
    } else {
        out.text(format!("{sequence:8}").as_bytes());
        out.room();
    }
    out.bytes(b" ");
    let second = time / 1_000_000_000;
    if before.second.0 != second {
        before.second = (second, second_text(second));
    }
    out.short(&before.second.1);
    out.nine((time % 1_000_000_000) as u32);
    out.bytes(b" ");
}

/// As `handle_notify()` prints a message.
fn message(out: &mut Line, before: &mut Before, record: &Header, cpu: u32, pdu: &[u8]) {
    if pdu.is_empty() {
        return;
    }
    out.room();
    head(out, before, record.device, cpu, 0, record.time);
    out.number(record.pid.into(), 5);
    out.bytes(b" ");
    let mut text = pdu;
    if record.has_cgroup() {
        cgroup(out, record, pdu);
        out.text(b" ");
        text = pdu.get(8..).unwrap_or_default();
    }
    out.text(b" m   N ");
    let end = text
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(text.len());
    out.text(&text[..end]);
    out.text(b"\n");
}

/// `ino,gen`, hexadecimal.
fn cgroup(out: &mut Line, record: &Header, pdu: &[u8]) {
    let word = |at: usize| {
        let bytes = pdu.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    };
    let (ino, generation) = if record.has_cgroup() {
        (word(0), word(4))
    } else {
        (0, 0)
    };
    out.text(format!("{ino:x},{generation:x}").as_bytes());
}

/// Appends the record as blkparse writes it to its binary output: version 7, whatever it was.
pub(super) fn encode(out: &mut Vec<u8>, record: &Header, pdu: &[u8]) {
    for word in [
        MAGIC | 7,
        record.sequence,
        record.time as u32,
        (record.time >> 32) as u32,
        record.sector as u32,
        (record.sector >> 32) as u32,
        record.bytes,
        record.action as u32,
        record.pid,
        record.device,
        record.cpu,
        u32::from(record.error) | u32::from(record.pdu_len) << 16,
    ] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(pdu);
}

impl Formats {
    /// What is asked for.
    ///
    /// # Errors
    ///
    /// A format that cannot be used.
    pub(super) fn new(options: &Options) -> io::Result<Formats> {
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidInput, FormatError(what));
        let mut by_letter: Vec<Option<Vec<Piece>>> = vec![None; 256];
        for (letter, format) in &options.formats {
            if !LETTERS.contains(letter) {
                return Err(bad(format!("-F: {} is no action", char::from(*letter))));
            }
            by_letter[usize::from(*letter)] = Some(pieces(format).map_err(bad)?);
        }
        if let Some(format) = &options.format {
            let pieces = pieces(format).map_err(bad)?;
            for letter in LETTERS {
                by_letter[usize::from(*letter)].get_or_insert_with(|| pieces.clone());
            }
        }
        Ok(Formats {
            by_letter,
            wall: None,
        })
    }

    /// Tells when the first event was.
    pub(super) fn set_wall(&mut self, wall: Wall) {
        self.wall = wall;
    }

    /// The device that an event is of from here on: `process_default()` changes that of a remap, and the binary
    /// output has it so.
    pub(super) fn device(&self, record: &Header, payload: &[u8]) -> u32 {
        let own = self.by_letter[usize::from(b'A')].is_some();
        if record.act() == act::REMAP && !own {
            be32(payload, 4)
        } else {
            record.device
        }
    }

    /// Shows an event.
    #[inline]
    pub(super) fn show(&self, out: &mut Line, before: &mut Before, shown: &Shown, payload: &[u8]) {
        let letter = shown.act.as_bytes()[0];
        if letter == b'm' {
            return message(out, before, &shown.record, shown.cpu, payload);
        }
        match &self.by_letter[usize::from(letter)] {
            None => default(out, before, shown, payload, letter),
            Some(pieces) => {
                for piece in pieces {
                    match piece {
                        Piece::Bytes(bytes) => out.text(bytes),
                        Piece::Field {
                            letter,
                            left,
                            width,
                        } => self.field(out, shown, payload, *letter, (*left, *width)),
                    }
                }
            }
        }
    }

    /// As `print_field()`.
    fn field(
        &self,
        out: &mut Line,
        shown: &Shown,
        payload: &[u8],
        letter: u8,
        (left, width): (bool, Option<usize>),
    ) {
        let record = &shown.record;
        let mut text = Line::new(0);
        match letter {
            b'a' => text.text(shown.act.as_bytes()),
            b'c' => text.number(shown.cpu.into(), 0),
            b'C' => text.short(&shown.name),
            b'd' => rwbs(&mut text, record, 0),
            b'D' => {
                out.room();
                return device(out, record.device);
            }
            b'e' => text.number(record.error.into(), 0),
            b'g' => cgroup(&mut text, record, payload),
            b'M' => text.number(major(record.device).into(), 0),
            b'm' => text.number(minor(record.device).into(), 0),
            b'n' => text.number((record.bytes >> 9).into(), 0),
            b'N' => text.number(record.bytes.into(), 0),
            b'p' => text.number(record.pid.into(), 0),
            b'P' => {
                if record.has(tc::PC) {
                    hex(out, payload);
                }
                return;
            }
            b's' => text.number(record.sequence.into(), 0),
            b'S' => text.number(record.sector, 0),
            b't' => {
                let width = width.unwrap_or(9);
                return out.text(format!("{:0width$}", record.time % 1_000_000_000).as_bytes());
            }
            b'T' => text.text(
                ((record.time / 1_000_000_000) as i32)
                    .to_string()
                    .as_bytes(),
            ),
            b'U' => text.number(be64(payload, 0) & 0xffff_ffff, 0),
            b'z' => wall(&mut text, self.wall, record.time),
            other => text.text(&[other]),
        }
        let blanks = vec![b' '; width.unwrap_or(0).saturating_sub(text.len())];
        if left {
            out.text(text.as_bytes());
            out.text(&blanks);
        } else {
            out.text(&blanks);
            out.text(text.as_bytes());
        }
    }
}

/// Takes a format apart, as `process_fmt()` reads it.
fn pieces(format: &[u8]) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = format.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut left = false;
                let mut width = None;
                match rest.peek() {
                    None => {
                        bytes.push(b'%');
                        continue;
                    }
                    Some(b'%') => {
                        rest.next();
                        bytes.push(b'%');
                        continue;
                    }
                    Some(b'-') => {
                        rest.next();
                        left = true;
                    }
                    Some(_) => {}
                }
                while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                    let digit = usize::from(digit - b'0');
                    width = Some((width.unwrap_or(0) * 10 + digit).min(4096));
                }
                if let Some(letter) = rest.next() {
                    if letter == b'u' {
                        return Err("%u: how long it took is not known without -t".to_owned());
                    }
                    if !bytes.is_empty() {
                        pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
                    }
                    pieces.push(Piece::Field {
                        letter,
                        left,
                        width,
                    });
                }
            }
            b'\\' => bytes.push(match rest.next() {
                Some(b'b') => 8,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                other => {
                    let other = other.map_or_else(String::new, |byte| char::from(byte).to_string());
                    return Err(format!("Invalid escape char in format {other}"));
                }
            }),
            other => bytes.push(other),
        }
    }
    if !bytes.is_empty() {
        pieces.push(Piece::Bytes(bytes));
    }
    Ok(pieces)
}

/// Time of day, UTC.
fn wall(out: &mut Line, first: Wall, since: u64) {
    let ns = first.unwrap_or(0) + i128::from(since);
    let (seconds, rest) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let day = seconds.rem_euclid(86400);
    let text = format!(
        "{:02}:{:02}:{:02}.{:06}",
        day / 3600,
        day / 60 % 60,
        day % 60,
        rest / 1000
    );
    out.text(text.as_bytes());
}

/// As `process_default()`.
#[inline]
fn default(out: &mut Line, before: &mut Before, shown: &Shown, payload: &[u8], letter: u8) {
    let record = &shown.record;
    let sectors = u64::from(record.bytes >> 9);
    let of = if letter == b'A' {
        be32(payload, 4)
    } else {
        record.device
    };
    out.room();
    head(
        out,
        before,
        of,
        shown.cpu,
        record.sequence as i32,
        record.time,
    );
    out.number(record.pid.into(), 5);
    let before = if shown.act == "UT" { b'U' } else { b' ' };
    let after = if shown.act == "UT" { b'T' } else { letter };
    out.bytes(&[b' ', before, after, b' ']);
    rwbs(out, record, 3);
    out.bytes(b" ");

    let extent = |out: &mut Line| {
        out.number(record.sector, 0);
        out.bytes(b" + ");
        out.number(sectors, 0);
        out.bytes(b" ");
    };
    let name = |out: &mut Line| {
        out.bytes(b"[");
        out.short(&shown.name);
        out.bytes(b"]");
    };
    let command = |out: &mut Line| {
        if !payload.is_empty() {
            out.text(b"(");
            hex(out, payload);
            out.text(b") ");
            out.room();
        }
    };
    match letter {
        b'R' | b'C' => {
            if record.has(tc::PC) {
                // Only D, C and I of a command come with its payload (`log_pc()`).
                if letter == b'C' {
                    command(out);
                }
            } else if sectors > 0 {
                extent(out);
            } else {
                out.number(record.sector, 0);
                out.bytes(b" ");
            }
            out.bytes(b"[");
            out.number(record.error.into(), 0);
            out.bytes(b"]");
        }
        b'D' | b'I' | b'Q' | b'B' => {
            if record.has(tc::PC) {
                out.number(record.bytes.into(), 0);
                out.bytes(b" ");
                if letter != b'Q' {
                    command(out);
                }
            } else if sectors > 0 {
                extent(out);
            }
            name(out);
        }
        b'P' => name(out),
        b'U' => {
            name(out);
            out.bytes(b" ");
            out.number(be64(payload, 0) & 0xffff_ffff, 0);
        }
        b'A' => {
            extent(out);
            out.bytes(b"<- (");
            let from = be32(payload, 0);
            out.number(major(from).into(), 0);
            out.bytes(b",");
            out.number(minor(from).into(), 0);
            out.bytes(b") ");
            out.number(be64(payload, 8), 0);
        }
        b'X' => {
            out.number(record.sector, 0);
            out.bytes(b" / ");
            out.number(be64(payload, 0) & 0xffff_ffff, 0);
            out.bytes(b" ");
            name(out);
        }
        _ => {
            if sectors > 0 {
                extent(out);
            }
            name(out);
        }
    }
    out.bytes(b"\n");
}
