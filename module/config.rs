// SPDX-License-Identifier: GPL-2.0

//! The text that is written to `control`, parsed whole before anything changes.
//!
//! ```text
//! start FILTER [events=default|all|NAME,...] [detail=0|1] [span=0|1] [mode=discard|overwrite] [on_error=0|1]
//!       [slower_us=N] [subbuf_size=BYTES] [subbufs=N] [hold=0|1]
//! filter FILTER
//! freeze
//! arm
//! stop
//! flush
//! ```
//!
//! FILTER is `devices=all|MAJ:MIN,... [op=NAME,...] [sector=FIRST-LAST] [size=MIN-MAX] [cgroup=ID,...]`: all
//! that is given must hold; of a list, one. One write is one command. Words are separated by blanks and
//! tabs; one newline may end the text.
//!
//! Nothing here knows of the kernel: no allocation, no kernel types, no `unsafe`, no panic. The
//! host's tests and fuzzers run this very file.

use core::fmt;

/// The longest command, in bytes.
pub(crate) const MAX_COMMAND: usize = 4096;

/// Limits of `subbuf_size`, in bytes. It is a power of two.
pub(crate) const SUBBUF_SIZE: core::ops::RangeInclusive<u32> = 4096..=64 << 20;

/// Limits of `subbufs`, for each CPU.
pub(crate) const SUBBUFS: core::ops::RangeInclusive<u32> = 2..=65536;

/// Limits of `slower_us`: up to an hour.
pub(crate) const SLOWER_US: core::ops::RangeInclusive<u32> = 1..=3_600_000_000;

/// The most cgroups that a filter names.
pub(crate) const MAX_CGROUPS: usize = 16;

/// Limits of a device number (`include/linux/kdev_t.h`).
const MAJOR: core::ops::RangeInclusive<u32> = 0..=(1 << 12) - 1;
const MINOR: core::ops::RangeInclusive<u32> = 0..=(1 << 20) - 1;

/// How much of a word that was refused is repeated in the reason, in characters.
const QUOTED: usize = 40;

/// A whole command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// Begin a trace.
    Start(Start<'a>),
    /// Replace the filter of the trace that runs.
    Filter(Filter<'a>),
    /// Pull the flight recorder's trigger.
    Freeze,
    /// Let the frozen flight recorder run on.
    Arm,
    /// End it: nothing is recorded any more, and every CPU's last sub-buffer is finished.
    Stop,
    /// Finish every CPU's sub-buffer that holds records.
    Flush,
}

/// What a trace is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start<'a> {
    /// What is recorded.
    pub(crate) filter: Filter<'a>,
    /// Which events.
    pub(crate) events: Events,
    /// Whether each Q brings its details.
    pub(crate) detail: bool,
    /// Whether there is one event an I/O, of its whole life, in place of these.
    pub(crate) span: bool,
    /// What happens when the buffer is full.
    pub(crate) mode: Mode,
    /// Whether the first completion with an error freezes the flight recorder.
    pub(crate) on_error: bool,
    /// An I/O that takes longer than this many microseconds freezes the flight recorder.
    pub(crate) slower_us: Option<u32>,
    /// Bytes of a sub-buffer, within [`SUBBUF_SIZE`]; `None` for the module's default.
    pub(crate) subbuf_size: Option<u32>,
    /// Sub-buffers of each CPU, within [`SUBBUFS`]; `None` for the module's default.
    pub(crate) subbufs: Option<u32>,
    /// Whether the trace ends when the file through which it was started is closed.
    pub(crate) hold: bool,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter<'a> {
    /// Of which devices.
    pub(crate) devices: Devices<'a>,
    /// Of which operations: `OP_*`, or 0 for all.
    pub(crate) ops: u32,
    /// What touches these sectors of 512 B, first and last, of the whole disk.
    pub(crate) sectors: Option<(u64, u64)>,
    /// What has so many bytes, at least and at most.
    pub(crate) sizes: Option<(u32, u32)>,
    /// What is charged to these cgroups or to those below them.
    pub(crate) cgroups: Cgroups,
}

/// Ids of cgroups, at most [`MAX_CGROUPS`]; none stands for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cgroups {
    ids: [u64; MAX_CGROUPS],
    count: usize,
}

impl Cgroups {
    /// The ids.
    pub(crate) fn ids(&self) -> &[u64] {
        self.ids.get(..self.count).unwrap_or(&[])
    }
}

/// Which events are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Events {
    /// Those that say something that no other says.
    Default,
    /// All.
    All,
    /// Those whose bit is set: the position of their name among those that [`parse`] was given.
    Some(u32),
}

/// What happens when a CPU's buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// New events are counted as lost.
    Discard,
    /// New events overwrite the oldest: a flight recorder.
    Overwrite,
}

impl Mode {
    /// The mode's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Discard => "discard",
            Self::Overwrite => "overwrite",
        }
    }
}

pub(crate) const OP_READ: u32 = 1 << 0;
pub(crate) const OP_WRITE: u32 = 1 << 1;
/// `REQ_OP_FLUSH`, and whatever asks for a flush first.
pub(crate) const OP_FLUSH: u32 = 1 << 2;
pub(crate) const OP_DISCARD: u32 = 1 << 3;
pub(crate) const OP_SECURE_ERASE: u32 = 1 << 4;
pub(crate) const OP_WRITE_ZEROES: u32 = 1 << 5;
pub(crate) const OP_ZONE_APPEND: u32 = 1 << 6;
/// Zone management: reset, reset all, open, close, finish.
pub(crate) const OP_ZONE: u32 = 1 << 7;
pub(crate) const OP_PASSTHROUGH: u32 = 1 << 8;

const OPS: &[(&str, u32)] = &[
    ("read", OP_READ),
    ("write", OP_WRITE),
    ("flush", OP_FLUSH),
    ("discard", OP_DISCARD),
    ("secure_erase", OP_SECURE_ERASE),
    ("write_zeroes", OP_WRITE_ZEROES),
    ("zone_append", OP_ZONE_APPEND),
    ("zone", OP_ZONE),
    ("passthrough", OP_PASSTHROUGH),
];

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices<'a> {
    /// Every block device, and those that appear later.
    All,
    /// Devices by number.
    List(List<'a>),
}

/// A list of device numbers that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List<'a>(&'a str);

/// A block device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// 0 to 4095.
    pub(crate) major: u32,
    /// 0 to 1048575.
    pub(crate) minor: u32,
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error<'a> {
    /// There is no word in it.
    Empty,
    /// More than [`MAX_COMMAND`] bytes.
    TooLong,
    /// A NUL, another control character, or not UTF-8.
    NotText,
    /// The first word is no command.
    UnknownCommand(&'a str),
    /// A word that does not belong there.
    UnknownWord(&'a str),
    /// A key that was given before.
    Duplicate(&'a str),
    /// `start` without `devices`.
    NoDevices,
    /// Not a device number.
    BadDevice(&'a str),
    /// Not a number, or not one that this key takes.
    BadValue(&'a str),
    /// A number, but out of range.
    OutOfRange(&'a str),
    /// A sub-buffer size that is not a power of two.
    NotPowerOfTwo(&'a str),
    /// No event has this name.
    UnknownEvent(&'a str),
    /// No operation has this name.
    UnknownOp(&'a str),
    /// Not two numbers, the second no less than the first.
    BadRange(&'a str),
    /// Too many cgroups.
    TooManyCgroups,
    /// What spans leave no choice of.
    NotOfSpans(&'a str),
    /// A trigger without a flight recorder.
    NoFlight(&'a str),
}

impl Error<'_> {
    /// Whether the form was right and only a number too small or too large: `ERANGE` and not
    /// `EINVAL`.
    pub(crate) fn is_range(&self) -> bool {
        matches!(self, Error::OutOfRange(_))
    }
}

const VERBS: &str = "write start, filter, freeze, arm, stop or flush";

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, word, hint) = match *self {
            Error::Empty => ("empty command", None, VERBS),
            Error::TooLong => ("command too long", None, "at most 4096 bytes"),
            Error::NotText => ("control character in the command", None, "write plain text"),
            Error::UnknownCommand(word) => ("unknown command", Some(word), VERBS),
            Error::UnknownWord(word) => (
                "unknown word",
                Some(word),
                "filter takes devices= op= sector= size= cgroup=, start these and events= detail= span= mode= \
                 on_error= slower_us= subbuf_size= subbufs= hold=, the others nothing",
            ),
            Error::Duplicate(key) => ("given twice:", Some(key), "give it once"),
            Error::NoDevices => (
                "no devices given",
                None,
                "add devices=all or devices=MAJ:MIN,...",
            ),
            Error::BadDevice(word) => ("not a device number:", Some(word), "write MAJ:MIN"),
            Error::BadValue(word) => (
                "not a valid value:",
                Some(word),
                "write a decimal number, for a switch 0 or 1, for mode discard or overwrite",
            ),
            Error::OutOfRange(word) => (
                "out of range:",
                Some(word),
                "subbuf_size is 4096 to 67108864, subbufs 2 to 65536, slower_us 1 to 3600000000, \
                 size 0 to 4294967295, a sector 0 to 281474976710654, a cgroup up to \
                 18446744073709551614, a device 0:0 to 4095:1048575",
            ),
            Error::NotPowerOfTwo(word) => ("not a power of two:", Some(word), "try 524288"),
            Error::UnknownEvent(word) => (
                "unknown event",
                Some(word),
                "probes= in status names those of this kernel; or write default or all",
            ),
            Error::UnknownOp(word) => (
                "unknown operation",
                Some(word),
                "read, write, flush, discard, secure_erase, write_zeroes, zone_append, zone, passthrough",
            ),
            Error::BadRange(word) => ("not a range:", Some(word), "write FIRST-LAST"),
            Error::TooManyCgroups => ("too many cgroups", None, "name at most 16"),
            Error::NotOfSpans(key) => (
                "not of spans:",
                Some(key),
                "span=1 records one event of its own for an I/O; leave this out",
            ),
            Error::NoFlight(key) => (
                "only for a flight recorder:",
                Some(key),
                "add mode=overwrite",
            ),
        };

        f.write_str(reason)?;
        if let Some(word) = word {
            write!(f, " \"{}\"", Quoted(word))?;
        }
        write!(f, "; {hint}")
    }
}

/// A foreign word, fit to stand in a line of `status`: shortened, and without quotes and control
/// characters.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();

        for c in chars.by_ref().take(QUOTED) {
            let shown = if c.is_ascii_graphic() && c != '"' {
                c
            } else {
                '?'
            };

            fmt::Write::write_char(f, shown)?;
        }
        if chars.next().is_some() {
            f.write_str("...")?;
        }
        Ok(())
    }
}

/// Parses one command. `events` are the names of the events that there are, at most 32.
pub(crate) fn parse<'a>(text: &'a [u8], events: &[&str]) -> Result<Command<'a>, Error<'a>> {
    if text.len() > MAX_COMMAND {
        return Err(Error::TooLong);
    }
    let text = core::str::from_utf8(text).map_err(|_| Error::NotText)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    if text.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
        return Err(Error::NotText);
    }

    let mut words = text.split(blank).filter(|word| !word.is_empty());
    let command = match words.next().ok_or(Error::Empty)? {
        "start" => return parse_start(words, events).map(Command::Start),
        "filter" => return parse_filter(words).map(Command::Filter),
        "freeze" => Command::Freeze,
        "arm" => Command::Arm,
        "stop" => Command::Stop,
        "flush" => Command::Flush,
        word => return Err(Error::UnknownCommand(word)),
    };

    match words.next() {
        None => Ok(command),
        Some(word) => Err(Error::UnknownWord(word)),
    }
}

/// The words of a command's filter but for the devices, as they stand in a text that [`parse`] has taken.
pub(crate) fn filter_words(text: &[u8]) -> impl Iterator<Item = &str> {
    let text = core::str::from_utf8(text).unwrap_or("");
    let text = text.strip_suffix('\n').unwrap_or(text);

    text.split(blank).filter(|word| {
        ["op=", "sector=", "size=", "cgroup="]
            .iter()
            .any(|key| word.starts_with(key))
    })
}

// Functions and not the characters themselves: the search for a character slices, and a slice can
// panic.
fn blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

fn comma(c: char) -> bool {
    c == ','
}

/// The words of a filter as they come.
#[derive(Default)]
struct FilterWords<'a> {
    devices: Option<Devices<'a>>,
    ops: Option<u32>,
    sectors: Option<(u64, u64)>,
    sizes: Option<(u32, u32)>,
    cgroups: Option<Cgroups>,
}

impl<'a> FilterWords<'a> {
    /// Takes a word if it is one of a filter's.
    fn take(&mut self, key: &'a str, value: &'a str) -> Result<bool, Error<'a>> {
        match key {
            "devices" => set(&mut self.devices, key, parse_devices(value)?)?,
            "op" => set(&mut self.ops, key, parse_ops(value)?)?,
            "sector" => set(&mut self.sectors, key, parse_range(value, LAST_SECTOR)?)?,
            "size" => {
                let (min, max) = parse_range(value, u32::MAX.into())?;

                set(&mut self.sizes, key, (min as u32, max as u32))?;
            }
            "cgroup" => set(&mut self.cgroups, key, parse_cgroups(value)?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(self) -> Result<Filter<'a>, Error<'a>> {
        Ok(Filter {
            devices: self.devices.ok_or(Error::NoDevices)?,
            ops: self.ops.unwrap_or(0),
            sectors: self.sectors,
            sizes: self.sizes,
            cgroups: self.cgroups.unwrap_or_default(),
        })
    }
}

/// All ones stand for "no sector".
const LAST_SECTOR: u64 = (1 << 48) - 2;

fn key_value(word: &str) -> Result<(&str, &str), Error<'_>> {
    word.split_once('=').ok_or(Error::UnknownWord(word))
}

fn parse_filter<'a>(words: impl Iterator<Item = &'a str>) -> Result<Filter<'a>, Error<'a>> {
    let mut filter = FilterWords::default();

    for word in words {
        let (key, value) = key_value(word)?;

        if !filter.take(key, value)? {
            return Err(Error::UnknownWord(word));
        }
    }
    filter.finish()
}

fn parse_start<'a>(
    words: impl Iterator<Item = &'a str>,
    names: &[&str],
) -> Result<Start<'a>, Error<'a>> {
    let mut filter = FilterWords::default();
    let mut events = None;
    let mut detail = None;
    let mut span = None;
    let mut mode = None;
    let mut on_error = None;
    let mut slower_us = None;
    let mut subbuf_size = None;
    let mut subbufs = None;
    let mut hold = None;

    for word in words {
        let (key, value) = key_value(word)?;

        match key {
            "events" => set(&mut events, key, parse_events(value, names)?)?,
            "detail" => set(&mut detail, key, parse_flag(value)?)?,
            "span" => set(&mut span, key, parse_flag(value)?)?,
            "mode" => set(&mut mode, key, parse_mode(value)?)?,
            "on_error" => set(&mut on_error, key, parse_flag(value)?)?,
            "slower_us" => set(&mut slower_us, key, parse_number(value, &SLOWER_US)?)?,
            "subbuf_size" => set(&mut subbuf_size, key, parse_subbuf_size(value)?)?,
            "subbufs" => set(&mut subbufs, key, parse_number(value, &SUBBUFS)?)?,
            "hold" => set(&mut hold, key, parse_flag(value)?)?,
            _ if filter.take(key, value)? => {}
            _ => return Err(Error::UnknownWord(word)),
        }
    }

    let span = span.unwrap_or(false);
    if span {
        if events.is_some() {
            return Err(Error::NotOfSpans("events"));
        }
        if detail == Some(true) {
            return Err(Error::NotOfSpans("detail"));
        }
    }
    let mode = mode.unwrap_or(Mode::Discard);
    if mode == Mode::Discard {
        if on_error == Some(true) {
            return Err(Error::NoFlight("on_error"));
        }
        if slower_us.is_some() {
            return Err(Error::NoFlight("slower_us"));
        }
    }
    Ok(Start {
        filter: filter.finish()?,
        events: events.unwrap_or(Events::Default),
        detail: detail.unwrap_or(false),
        span,
        mode,
        on_error: on_error.unwrap_or(false),
        slower_us,
        subbuf_size,
        subbufs,
        hold: hold.unwrap_or(false),
    })
}

fn parse_events<'a>(value: &'a str, names: &[&str]) -> Result<Events, Error<'a>> {
    match value {
        "default" => return Ok(Events::Default),
        "all" => return Ok(Events::All),
        _ => {}
    }
    let mut mask = 0u32;

    for word in value.split(comma) {
        let bit = names.iter().take(32).position(|name| *name == word);

        mask |= 1u32.wrapping_shl(bit.ok_or(Error::UnknownEvent(word))? as u32);
    }
    Ok(Events::Some(mask))
}

fn parse_ops(value: &str) -> Result<u32, Error<'_>> {
    let mut mask = 0u32;

    for word in value.split(comma) {
        let op = OPS.iter().find(|(name, _)| *name == word);

        mask |= op.ok_or(Error::UnknownOp(word))?.1;
    }
    Ok(mask)
}

/// Two numbers up to `max`, the second no less than the first.
fn parse_range(value: &str, max: u64) -> Result<(u64, u64), Error<'_>> {
    let (first, last) = value.split_once('-').ok_or(Error::BadRange(value))?;
    let first = decimal(first).ok_or(Error::BadRange(value))?;
    let last = decimal(last).ok_or(Error::BadRange(value))?;

    if first > max || last > max {
        return Err(Error::OutOfRange(value));
    }
    if first > last {
        return Err(Error::BadRange(value));
    }
    Ok((first, last))
}

fn parse_cgroups(value: &str) -> Result<Cgroups, Error<'_>> {
    let mut cgroups = Cgroups::default();

    for word in value.split(comma) {
        let id = decimal(word).ok_or(Error::BadValue(word))?;
        if id == u64::MAX {
            return Err(Error::OutOfRange(word));
        }
        let slot = cgroups.ids.get_mut(cgroups.count);

        *slot.ok_or(Error::TooManyCgroups)? = id;
        cgroups.count = cgroups.count.wrapping_add(1);
    }
    Ok(cgroups)
}

fn parse_mode(value: &str) -> Result<Mode, Error<'_>> {
    match value {
        "discard" => Ok(Mode::Discard),
        "overwrite" => Ok(Mode::Overwrite),
        _ => Err(Error::BadValue(value)),
    }
}

fn set<'a, T>(slot: &mut Option<T>, key: &'a str, value: T) -> Result<(), Error<'a>> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::Duplicate(key)),
    }
}

fn parse_devices(value: &str) -> Result<Devices<'_>, Error<'_>> {
    if value == "all" {
        return Ok(Devices::All);
    }
    for word in value.split(comma) {
        parse_device(word)?;
    }
    Ok(Devices::List(List(value)))
}

fn parse_device(word: &str) -> Result<Device, Error<'_>> {
    let (major, minor) = word.split_once(':').ok_or(Error::BadDevice(word))?;
    let number = |part, range| match decimal(part) {
        None => Err(Error::BadDevice(word)),
        Some(n) => in_range(n, range).ok_or(Error::OutOfRange(word)),
    };

    Ok(Device {
        major: number(major, &MAJOR)?,
        minor: number(minor, &MINOR)?,
    })
}

fn parse_subbuf_size(value: &str) -> Result<u32, Error<'_>> {
    let size = parse_number(value, &SUBBUF_SIZE)?;

    if size.is_power_of_two() {
        Ok(size)
    } else {
        Err(Error::NotPowerOfTwo(value))
    }
}

fn parse_number<'a>(
    value: &'a str,
    range: &core::ops::RangeInclusive<u32>,
) -> Result<u32, Error<'a>> {
    let number = decimal(value).ok_or(Error::BadValue(value))?;

    in_range(number, range).ok_or(Error::OutOfRange(value))
}

fn parse_flag(value: &str) -> Result<bool, Error<'_>> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Error::BadValue(value)),
    }
}

/// A decimal number of digits only; one that does not fit becomes the largest, which nothing may
/// be.
fn decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

fn in_range(number: u64, range: &core::ops::RangeInclusive<u32>) -> Option<u32> {
    u32::try_from(number).ok().filter(|n| range.contains(n))
}

impl<'a> List<'a> {
    /// The list as it was written.
    pub(crate) fn as_str(&self) -> &'a str {
        self.0
    }

    /// The numbers, in the order in which they were written. The same number may come twice.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Device> + 'a {
        // Each word parsed once already.
        self.0
            .split(comma)
            .filter_map(|word| parse_device(word).ok())
    }
}
