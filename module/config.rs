// SPDX-License-Identifier: GPL-2.0

//! The text that is written to `control`, parsed whole before anything changes.
//!
//! ```text
//! start devices=all|MAJ:MIN[,MAJ:MIN...] [subbuf_size=BYTES] [subbufs=N] [hold=0|1]
//! stop
//! flush
//! ```
//!
//! One write is one command. Words are separated by blanks and tabs; one newline may end the text.
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
    /// End it: nothing is recorded any more, and every CPU's last sub-buffer is finished.
    Stop,
    /// Finish every CPU's sub-buffer that holds records.
    Flush,
}

/// What a trace is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start<'a> {
    /// What is traced.
    pub(crate) devices: Devices<'a>,
    /// Bytes of a sub-buffer, within [`SUBBUF_SIZE`]; `None` for the module's default.
    pub(crate) subbuf_size: Option<u32>,
    /// Sub-buffers of each CPU, within [`SUBBUFS`]; `None` for the module's default.
    pub(crate) subbufs: Option<u32>,
    /// Whether the trace ends when the file through which it was started is closed.
    pub(crate) hold: bool,
}

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
}

impl Error<'_> {
    /// Whether the form was right and only a number too small or too large: `ERANGE` and not
    /// `EINVAL`.
    pub(crate) fn is_range(&self) -> bool {
        matches!(self, Error::OutOfRange(_))
    }
}

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, word, hint) = match *self {
            Error::Empty => ("empty command", None, "write start, stop or flush"),
            Error::TooLong => ("command too long", None, "at most 4096 bytes"),
            Error::NotText => ("control character in the command", None, "write plain text"),
            Error::UnknownCommand(word) => {
                ("unknown command", Some(word), "write start, stop or flush")
            }
            Error::UnknownWord(word) => (
                "unknown word",
                Some(word),
                "start takes devices=, subbuf_size=, subbufs=, hold=; stop and flush nothing",
            ),
            Error::Duplicate(key) => ("given twice:", Some(key), "give it once"),
            Error::NoDevices => (
                "start without devices",
                None,
                "add devices=all or devices=MAJ:MIN,...",
            ),
            Error::BadDevice(word) => ("not a device number:", Some(word), "write MAJ:MIN"),
            Error::BadValue(word) => ("not a valid value:", Some(word), "write a decimal number"),
            Error::OutOfRange(word) => (
                "out of range:",
                Some(word),
                "subbuf_size is 4096 to 67108864, subbufs 2 to 65536, a device 0:0 to 4095:1048575",
            ),
            Error::NotPowerOfTwo(word) => ("not a power of two:", Some(word), "try 524288"),
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

/// Parses one command.
pub(crate) fn parse(text: &[u8]) -> Result<Command<'_>, Error<'_>> {
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
        "start" => return parse_start(words).map(Command::Start),
        "stop" => Command::Stop,
        "flush" => Command::Flush,
        word => return Err(Error::UnknownCommand(word)),
    };

    match words.next() {
        None => Ok(command),
        Some(word) => Err(Error::UnknownWord(word)),
    }
}

// Functions and not the characters themselves: the search for a character slices, and a slice can
// panic.
fn blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

fn comma(c: char) -> bool {
    c == ','
}

fn parse_start<'a>(words: impl Iterator<Item = &'a str>) -> Result<Start<'a>, Error<'a>> {
    let mut devices = None;
    let mut subbuf_size = None;
    let mut subbufs = None;
    let mut hold = None;

    for word in words {
        let (key, value) = word.split_once('=').ok_or(Error::UnknownWord(word))?;

        match key {
            "devices" => set(&mut devices, key, parse_devices(value)?)?,
            "subbuf_size" => set(&mut subbuf_size, key, parse_subbuf_size(value)?)?,
            "subbufs" => set(&mut subbufs, key, parse_number(value, &SUBBUFS)?)?,
            "hold" => set(&mut hold, key, parse_flag(value)?)?,
            _ => return Err(Error::UnknownWord(word)),
        }
    }

    Ok(Start {
        devices: devices.ok_or(Error::NoDevices)?,
        subbuf_size,
        subbufs,
        hold: hold.unwrap_or(false),
    })
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

/// A decimal number of digits only; one that does not fit becomes the largest, which no range
/// contains.
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
