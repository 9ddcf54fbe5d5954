// SPDX-License-Identifier: GPL-2.0
//! The filter words of `record`, those of `dump` and `report`, and what they stand for: on a running machine by
//! its sysfs, in a trace by what it knows of its devices.

use crate::sysfs::{mounted, CGROUP2};
use crate::Failure;
use blkrelay_trace::{Dev, Filter, Op, Place, Source};
use jiff::SignedDuration;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;

/// What the module can be asked for: all that is given must hold; of a list, one.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filters: all that are given must hold")]
pub struct Words {
    /// Disk or partition: /dev/sda, sda, sda1 or 8:0; may be given several times [default: all]
    #[arg(short, long = "dev", value_name = "DEV")]
    pub devices: Vec<OsString>,
    /// Operations: read, write, flush, discard, secure_erase, write_zeroes, zone_append, zone, passthrough
    #[arg(long = "op", value_name = "OP,…", value_delimiter = ',', value_parser = op)]
    pub ops: Vec<(&'static str, Op)>,
    /// What touches these sectors of 512 bytes of the whole disk
    #[arg(long, value_name = "FIRST-LAST", value_parser = sectors)]
    pub sector: Option<(u64, u64)>,
    /// What has so many bytes: 4K, 4K-64K, 1M- (K and M are powers of 1024)
    #[arg(long, value_name = "MIN-MAX", value_parser = sizes)]
    pub size: Option<(u32, u32)>,
    /// Cgroup: its directory below /sys/fs/cgroup, or its id; may be given several times. Recording includes
    /// those below it; dump and report need a trace with --detail
    #[arg(long = "cgroup", value_name = "PATH|ID")]
    pub cgroups: Vec<OsString>,
}

/// What a trace can be asked for: that, and what needs to have seen the whole of an I/O.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filters: all that are given must hold")]
pub struct TraceWords {
    #[command(flatten)]
    pub words: Words,
    /// I/Os that took at least so long, as 20ms: D to C, or Q to C where there is no D
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    pub min_latency: Option<u64>,
    /// I/Os submitted by this thread or process; may be given several times
    #[arg(long = "pid", value_name = "PID")]
    pub pids: Vec<u32>,
    /// I/Os submitted by tasks of this name; may be given several times
    #[arg(long = "comm", value_name = "NAME")]
    pub comms: Vec<String>,
    /// Not before this second of the trace, as dump prints it
    #[arg(long, value_name = "SECONDS", value_parser = since)]
    pub from: Option<u64>,
    /// Not after this second of the trace
    #[arg(long, value_name = "SECONDS", value_parser = since)]
    pub to: Option<u64>,
}

fn op(text: &str) -> Result<(&'static str, Op), String> {
    let known = Op::ALL.into_iter().find(|(name, _)| *name == text);
    known.ok_or_else(|| Op::ALL.map(|(name, _)| name).join(", "))
}

/// `FIRST-LAST`, `FIRST-` or a single number, each read by `number`.
fn range(text: &str, max: u64, number: fn(&str) -> Option<u64>) -> Option<(u64, u64)> {
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((first, "")) => (number(first)?, max),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    (first <= last && last <= max).then_some((first, last))
}

fn sectors(text: &str) -> Result<(u64, u64), String> {
    // All ones stand for "no sector".
    range(text, (1 << 48) - 2, |text| text.parse().ok())
        .ok_or_else(|| "FIRST-LAST or FIRST-, of sectors up to 281474976710654".to_owned())
}

fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => text
            .strip_suffix(['M', 'm'])
            .map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn sizes(text: &str) -> Result<(u32, u32), String> {
    range(text, u32::MAX.into(), bytes)
        .map(|(min, max)| (min as u32, max as u32))
        .ok_or_else(|| "MIN-MAX, MIN- or one size, below 4096M".to_owned())
}

/// A time with its unit, such as `20ms`, in ns.
pub fn nanoseconds(text: &str) -> Result<u64, String> {
    let time = text.parse::<SignedDuration>().map(|time| time.as_nanos());
    match time.map(u64::try_from) {
        Ok(Ok(ns)) => Ok(ns),
        _ => Err("a time such as 20ms, 1.5s or 300us".to_owned()),
    }
}

/// Seconds, as `dump` prints them, in ns.
fn since(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        // A week is longer than any trace; below it a double is exact to the nanosecond.
        Ok(seconds) if (0.0..=604_800.0).contains(&seconds) => Ok((seconds * 1e9).round() as u64),
        _ => Err("seconds from 0 to 604800".to_owned()),
    }
}

// Of linux/magic.h: any other directory's inode number is no cgroup's id.
const CGROUP2_SUPER_MAGIC: rustix::fs::FsWord = 0x6367_7270;
const CGROUP_SUPER_MAGIC: rustix::fs::FsWord = 0x0027_e0eb;

/// A cgroup's id: its directory's inode number.
fn cgroup(word: &OsStr) -> Result<u64, Failure> {
    let shown = word.to_string_lossy();
    if let Ok(id) = shown.parse() {
        return Ok(id);
    }
    let root = mounted("cgroup2", CGROUP2).unwrap_or_else(|| CGROUP2.into());
    let path = root.join(word);
    let said = |error: &dyn std::fmt::Display| {
        format!("{}: {error}: name a cgroup or its id", path.display())
    };
    let kind = rustix::fs::statfs(&path)
        .map_err(|error| said(&error))?
        .f_type;
    if ![CGROUP2_SUPER_MAGIC, CGROUP_SUPER_MAGIC].contains(&kind) {
        return Err(said(&"no cgroup").into());
    }
    let data = std::fs::metadata(&path).map_err(|error| said(&error))?;
    Ok(data.ino())
}

impl Words {
    fn cgroup_ids(&self) -> Result<Vec<u64>, Failure> {
        self.cgroups.iter().map(|word| cgroup(word)).collect()
    }

    /// The words that the module takes as they are, each with a blank before it; not the devices.
    ///
    /// # Errors
    ///
    /// If there is no such cgroup.
    pub fn for_module(&self) -> Result<String, Failure> {
        let mut words = String::new();
        if !self.ops.is_empty() {
            let names: Vec<&str> = self.ops.iter().map(|(name, _)| *name).collect();
            words += &format!(" op={}", names.join(","));
        }
        if let Some((first, last)) = self.sector {
            words += &format!(" sector={first}-{last}");
        }
        if let Some((min, max)) = self.size {
            words += &format!(" size={min}-{max}");
        }
        let ids = self.cgroup_ids()?;
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            words += &format!(" cgroup={}", ids.join(","));
        }
        Ok(words)
    }
}

impl TraceWords {
    /// The filter of a trace.
    ///
    /// # Errors
    ///
    /// If it has no such device, or lacks what is asked for.
    pub fn for_trace(&self, source: &Source) -> Result<Filter, Failure> {
        let words = &self.words;
        let start = &source.meta().options.start;
        if !words.cgroups.is_empty() && start.contains(" span=1") {
            return Err("--cgroup: spans do not tell cgroups: give it to record".into());
        }
        if !words.cgroups.is_empty() && !start.is_empty() && !start.contains(" detail=1") {
            return Err("--cgroup: the trace has no details: record with --detail".into());
        }
        let mut places = Vec::new();
        for word in &words.devices {
            places.extend(find(source, &word.to_string_lossy())?);
        }
        let window = (self.from.unwrap_or(0), self.to.unwrap_or(u64::MAX));
        Ok(Filter {
            places,
            ops: words.ops.iter().map(|(_, op)| *op).collect(),
            sectors: words.sector,
            sizes: words.size,
            window: (self.from.is_some() || self.to.is_some()).then_some(window),
            cgroups: words.cgroup_ids()?,
            pids: self.pids.clone(),
            comms: self.comms.clone(),
            min_latency_ns: self.min_latency,
        })
    }
}

/// What a device's name or number stands for in a trace: one place, or one for each disk that had the name.
fn find(source: &Source, word: &str) -> Result<Vec<Place>, Failure> {
    let name = word.strip_prefix("/dev/").unwrap_or(word);
    let number = name.parse().ok();
    let is = |known: &str, major, minor| name == known || number == Some(Dev { major, minor });
    let mut places = Vec::new();
    for disk in source.disks() {
        let (major, minor) = (disk.major, disk.minor);
        let whole = Dev { major, minor };
        if is(&disk.name, major, minor) {
            places.push(Place {
                disk: whole,
                part: None,
            });
        }
        for part in &disk.partitions {
            if is(&part.name, part.major, part.minor) {
                let last = (part.start + part.sectors).saturating_sub(1);
                places.push(Place {
                    disk: whole,
                    part: Some((part.start, last)),
                });
            }
        }
    }
    if places.is_empty() {
        // One that came later, or a trace that has no table: the module has named it.
        let mut events = source.events();
        events.by_ref().for_each(drop);
        let known = events.devices().into_iter();
        places.extend(known.filter_map(|info| {
            let dev = info.dev?;
            is(&info.name, dev.major, dev.minor).then_some(Place {
                disk: dev,
                part: None,
            })
        }));
    }
    if places.is_empty() {
        return Err(format!("{word}: no such device in this trace: report lists them").into());
    }
    Ok(places)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_cgroup_has_no_id() {
        assert_eq!(cgroup("42".as_ref()).ok(), Some(42));
        for (word, what) in [("/proc", "no cgroup"), ("/none", "No such file")] {
            let error = cgroup(word.as_ref()).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains(what)), "{word}");
        }
    }

    #[test]
    fn ranges_are_inclusive_and_may_be_open() {
        assert_eq!(sectors("2048-4095"), Ok((2048, 4095)));
        assert_eq!(sectors("7"), Ok((7, 7)));
        assert_eq!(sectors("8-"), Ok((8, 281_474_976_710_654)));
        assert_eq!(sizes("4K-1M"), Ok((4096, 1_048_576)));
        assert_eq!(sizes("512"), Ok((512, 512)));
        assert_eq!(sizes("64k-"), Ok((65536, u32::MAX)));
        for bad in ["", "-", "-5", "9-8", "x-9", "281474976710655", "1K-2K"] {
            assert!(sectors(bad).is_err(), "{bad}");
        }
        for bad in ["", "K", "4096M", "4G", "2K-1K", "99999999999999999999M"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(nanoseconds("20ms"), Ok(20_000_000));
        assert_eq!(nanoseconds("1.5s"), Ok(1_500_000_000));
        assert_eq!(nanoseconds("300us"), Ok(300_000));
        assert_eq!(nanoseconds("0ns"), Ok(0));
        for bad in ["", "20", "-1s", "fast"] {
            assert!(nanoseconds(bad).is_err(), "{bad}");
        }
        assert_eq!(since("1.000000123"), Ok(1_000_000_123));
        assert_eq!(since("604799.999999999"), Ok(604_799_999_999_999));
        assert!(since("-1").is_err() && since("nan").is_err());
    }

    #[test]
    fn the_modules_words() {
        let words = Words {
            ops: vec![op("read").unwrap(), op("zone").unwrap()],
            sector: Some((8, 15)),
            size: Some((0, 4096)),
            cgroups: vec!["17".into(), "18".into()],
            ..Words::default()
        };
        assert_eq!(
            words.for_module().unwrap(),
            " op=read,zone sector=8-15 size=0-4096 cgroup=17,18"
        );
        assert_eq!(Words::default().for_module().unwrap(), "");
    }
}
