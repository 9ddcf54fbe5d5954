// SPDX-License-Identifier: GPL-2.0
//! One workload seen by three tracers at once: blkrelay's trace against blktrace's and against ftrace's
//! block events, event for event in the order of each CPU.
//!
//! The tracers hang on the same tracepoints and are called one after the other, so for one CPU they must
//! tell the same story. An interrupt (or another task) that comes between two tracers' probes of one event
//! puts its own events before that event in one story and behind it in the other; a task that is moved to
//! another CPU there has the event on two CPUs. Both are accepted, counted, and bounded.
//!
//! What has to be made alike first:
//!
//! | event | blkrelay | blktrace | ftrace |
//! |---|---|---|---|
//! | device | the disk | the traced device, so the disk | the bio's: a partition is taken for its disk |
//! | no sector | said | 0 | 0, or all bits where a flush completes |
//! | merge of two requests | N | M | `block_rq_merge` |
//! | completion of a bio (dm) | C of a bio | C | `block_bio_complete` |
//! | flags | as they are | categories | RWBS as `blk_fill_rwbs` writes it |
//! | FUA, zeroing, zones | said | dropped by the classic setup ioctl, without a count; SETUP2 has them | said |
//! | rest of a split | follows from sector and bytes | 32 bits of its sector | its sector |

use anyhow::{bail, ensure, Context, Result};
use blkrelay_format::blktrace::{self, act, category};
use blkrelay_format::Action;
use blkrelay_trace::{Dev, Event, Item, Opf, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// One event as two tracers can agree on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// blkparse's letter.
    pub action: char,
    /// The disk.
    pub dev: Dev,
    /// First sector; 0 for none.
    pub sector: u64,
    /// Transfer length in the units of the other tracer: bytes, or sectors.
    pub length: u64,
    /// Kind and flags in the form of the other tracer.
    pub flags: String,
    /// C: errno. X: low 32 bits of the sector of the rest.
    pub number: i64,
    /// A: from where.
    pub from: Option<(Dev, u64)>,
    /// The task, where the other tracer has it and an interrupt cannot change it.
    pub pid: Option<u32>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (a, d, s, l) = (self.action, self.dev, self.sector, self.length);
        write!(f, "{a} {d} {s} + {l} {} {}", self.flags, self.number)?;
        if let Some((dev, sector)) = self.from {
            write!(f, " <- {dev} {sector}")?;
        }
        match self.pid {
            Some(pid) => write!(f, " pid {pid}"),
            None => Ok(()),
        }
    }
}

/// Each CPU's events in order.
pub type Stories = BTreeMap<u32, Vec<Seen>>;

/// Categories that tell what kind of I/O it is, of those that the classic blktrace can store.
const KIND: u64 = category::READ
    | category::WRITE
    | category::FLUSH
    | category::SYNC
    | category::AHEAD
    | category::META
    | category::DISCARD;

/// Categories from here on make 7.3's blktrace drop an event of a trace set up by the classic ioctl:
/// `(what >> BLK_TC_SHIFT) > BLK_TC_END_V1` in kernel/trace/blktrace.c, where the bound is FUA's own bit.
const DROPPED: u64 = category::FUA;

/// Categories that only the records of SETUP2 have.
const KIND2: u64 = KIND
    | category::FUA
    | category::ZONE_APPEND
    | category::ZONE_RESET
    | category::ZONE_RESET_ALL
    | category::ZONE_FINISH
    | category::ZONE_OPEN
    | category::ZONE_CLOSE
    | category::WRITE_ZEROES;

/// The letters that are compared, as blkparse has them; plugs are left out.
pub const LETTERS: &str = "QGIDCMFRXA";

fn letter(action: Action) -> Option<char> {
    Some(match action {
        Action::Queue => 'Q',
        Action::GetRq => 'G',
        Action::Insert => 'I',
        Action::Issue => 'D',
        Action::Complete | Action::BioComplete => 'C',
        Action::BackMerge | Action::RqMerge => 'M',
        Action::FrontMerge => 'F',
        Action::Requeue => 'R',
        Action::Split => 'X',
        Action::Remap | Action::RqRemap => 'A',
        // Plugs, and what blkparse does not know.
        _ => return None,
    })
}

/// What blktrace must have of an event; `None` if it drops it or it is not compared.
fn for_blktrace(e: &Event) -> Option<Seen> {
    let mut seen = common(e)?;
    let kind = e.opf.categories();
    if kind >= DROPPED {
        return None;
    }
    seen.flags = format!("{:#x}", kind & KIND);
    seen.length = e.bytes.into();
    // Of the completion of a bio we have the task, but blktrace's C may also be a request's.
    seen.pid = e.pid.filter(|_| seen.action != 'C');
    Some(seen)
}

/// What blktrace must have of an event that was set up by SETUP2, which drops none.
fn for_setup2(e: &Event) -> Option<Seen> {
    let mut seen = common(e)?;
    seen.flags = format!("{:#x}", e.opf.categories() & KIND2);
    seen.length = e.bytes.into();
    seen.pid = e.pid.filter(|_| seen.action != 'C');
    Some(seen)
}

/// What ftrace must have of an event.
fn for_ftrace(e: &Event) -> Option<Seen> {
    let mut seen = common(e)?;
    seen.flags = kernel_rwbs(e.opf);
    // The split's line has no length.
    seen.length = if seen.action == 'X' {
        0
    } else {
        e.sectors().into()
    };
    Some(seen)
}

fn common(e: &Event) -> Option<Seen> {
    let action = letter(e.action)?;
    let sector = e.sector.unwrap_or(0);
    Some(Seen {
        action,
        dev: e.dev.unwrap_or_default(),
        sector,
        length: 0,
        flags: String::new(),
        number: match action {
            'C' => e.errno().into(),
            'X' => i64::from((sector + u64::from(e.sectors())) as u32),
            _ => 0,
        },
        from: e.from(),
        pid: None,
    })
}

/// `blk_fill_rwbs()` of kernel/trace/blktrace.c, Linux 7.3; flags as in include/linux/blk_types.h.
fn kernel_rwbs(opf: Opf) -> String {
    let flag = |bit: u32| opf.0 & (1 << bit) != 0;
    let mut s = String::new();
    if flag(18) {
        s.push('F');
    }
    s += match opf.0 & 0xff {
        0 => "R",
        1 => "W",
        2 => "F",
        3 => "D",
        5 => "DE",
        7 => "ZA",
        9 => "WZ",
        11 => "ZO",
        13 => "ZC",
        15 => "ZF",
        17 => "ZR",
        19 => "ZRA",
        _ => "N",
    };
    for (bit, letter) in [(17, 'F'), (19, 'A'), (11, 'S'), (12, 'M')] {
        if flag(bit) {
            s.push(letter);
        }
    }
    s
}

/// The events of a blkrelay trace, each CPU's in order, as `form` makes them. A trace with gaps or damage
/// cannot be compared.
///
/// # Errors
///
/// When the trace is not whole.
pub fn ours(source: &Source, form: fn(&Event) -> Option<Seen>) -> Result<Stories> {
    ensure!(
        source.problems().is_empty(),
        "the trace is not whole: {:?}",
        source.problems()
    );
    let mut stories = Stories::new();
    for item in source.events() {
        match item {
            Item::Event(e) => stories.entry(e.cpu).or_default().extend(form(&e)),
            Item::Gap(gap) => bail!("the trace has a gap: {gap:?}"),
        }
    }
    Ok(stories)
}

/// The events of blktrace's files in a directory.
///
/// # Errors
///
/// When a file cannot be read, or its numbers show that blktrace lost events.
pub fn blktrace_stories(dir: &Path) -> Result<BTreeMap<Dev, Stories>> {
    let mut all: BTreeMap<Dev, Stories> = BTreeMap::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        let Some(file_cpu) = name
            .rsplit_once(".blktrace.")
            .and_then(|(_, cpu)| cpu.parse::<u32>().ok())
        else {
            continue;
        };
        let data = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let mut last = 0;
        for e in blktrace::Reader::new(&data) {
            let e = e.with_context(|| path.display().to_string())?;
            if e.notify().is_some() {
                continue;
            }
            ensure!(
                e.sequence == last + 1,
                "{}: blktrace lost events: number {} follows {last}",
                path.display(),
                e.sequence
            );
            last = e.sequence;
            ensure!(
                e.cpu == file_cpu,
                "{}: event {} is of CPU {}",
                path.display(),
                e.sequence,
                e.cpu
            );
            if let Some(seen) = of_blktrace(&e) {
                let stories = all.entry(seen.dev).or_default();
                stories.entry(file_cpu).or_default().push(seen);
            }
        }
    }
    Ok(all)
}

fn dev(number: u32) -> Dev {
    Dev {
        major: number >> 20,
        minor: number & 0xf_ffff,
    }
}

fn of_blktrace(e: &blktrace::Event) -> Option<Seen> {
    let action = match e.act() {
        act::QUEUE => 'Q',
        act::GETRQ => 'G',
        act::INSERT => 'I',
        act::ISSUE => 'D',
        act::COMPLETE => 'C',
        act::BACKMERGE => 'M',
        act::FRONTMERGE => 'F',
        act::REQUEUE => 'R',
        act::SPLIT => 'X',
        act::REMAP => 'A',
        _ => return None,
    };
    Some(Seen {
        action,
        dev: dev(e.device),
        sector: e.sector,
        length: e.bytes.into(),
        flags: {
            let kind = match e.version {
                blktrace::Version::V1 => KIND,
                blktrace::Version::V2 => KIND2,
            };
            format!("{:#x}", e.categories() & kind)
        },
        number: match action {
            'C' => i64::from(e.error as i16),
            'X' => i64::from(e.number().unwrap_or(0) as u32),
            _ => 0,
        },
        from: e.remap().map(|(from, _, sector)| (dev(from), sector)),
        // A completion comes in whatever task was interrupted.
        pid: (action != 'C').then_some(e.pid),
    })
}

/// The block events in copies of ftrace's per-CPU `trace` files, named `cpuN`. `disks` gives the disk of a
/// partition.
///
/// # Errors
///
/// When a file cannot be read or a line is not understood.
pub fn ftrace_stories(dir: &Path, disks: &BTreeMap<Dev, Dev>) -> Result<Stories> {
    let mut stories = Stories::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(cpu) = name.strip_prefix("cpu").and_then(|n| n.parse().ok()) else {
            continue;
        };
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        for line in String::from_utf8_lossy(&text).lines() {
            if line.starts_with('#') {
                ensure!(
                    !line.contains("LOST"),
                    "{}: ftrace lost events",
                    path.display()
                );
                continue;
            }
            let Some((_, event)) = line.split_once(": block_") else {
                continue;
            };
            let seen = of_ftrace(event)
                .with_context(|| format!("{}: not understood: {line}", path.display()))?;
            if let Some(mut seen) = seen {
                seen.dev = *disks.get(&seen.dev).unwrap_or(&seen.dev);
                stories.entry(cpu).or_default().push(seen);
            }
        }
    }
    Ok(stories)
}

/// `MAJOR,MINOR`
fn comma_dev(text: &str) -> Option<Dev> {
    let (major, minor) = text.split_once(',')?;
    Some(Dev {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

/// An event's text behind `block_`, in the formats of include/trace/events/block.h. The outer `None` is
/// a line that is not understood, the inner one an event that is not compared.
fn of_ftrace(event: &str) -> Option<Option<Seen>> {
    let (name, rest) = event.split_once(": ")?;
    let action = match name {
        "bio_queue" => 'Q',
        "getrq" => 'G',
        "rq_insert" => 'I',
        "rq_issue" => 'D',
        "rq_complete" | "bio_complete" => 'C',
        "bio_backmerge" | "rq_merge" => 'M',
        "bio_frontmerge" => 'F',
        "rq_requeue" => 'R',
        "split" => 'X',
        "bio_remap" => 'A',
        _ => return Some(None),
    };
    let mut words = rest.splitn(3, ' ');
    let dev = comma_dev(words.next()?)?;
    let flags = words.next()?.to_owned();
    let mut rest = words.next()?;
    if name.starts_with("rq_") {
        // Issue, insert and merge give bytes before the command, all a command in parentheses.
        rest = rest.split_once('(')?.1.split_once(") ")?.1;
    }
    let mut words = rest.split(' ');
    let sector: u64 = words.next()?.parse().ok()?;
    // A completed flush prints its position, which is "none".
    let sector = if sector == u64::MAX { 0 } else { sector };
    let sign = words.next()?;
    let number: u64 = words.next()?.parse().ok()?;
    let mut seen = Seen {
        action,
        dev,
        sector,
        length: number,
        flags,
        number: 0,
        from: None,
        pid: None,
    };
    match action {
        'X' => {
            (sign == "/").then_some(())?;
            seen.length = 0;
            seen.number = i64::from(number as u32);
        }
        'A' => {
            let from = words.nth(1)?.strip_prefix('(')?.strip_suffix(')')?;
            seen.from = Some((comma_dev(from)?, words.next()?.parse().ok()?));
        }
        'C' => {
            let error = rest.rsplit_once('[')?.1.strip_suffix(']')?;
            seen.number = error.parse().ok()?;
        }
        _ => {}
    }
    Some(Some(seen))
}

/// How two stories fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fit {
    /// Events that both have.
    pub events: usize,
    /// Events that stand before what interrupted them in one story and behind it in the other.
    pub swapped: usize,
    /// Events that the tracers saw on different CPUs.
    pub moved: usize,
}

/// Most events that may come between two tracers' probes of one event: those of a time slice, where the
/// interrupt led to another task.
const BETWEEN: usize = 4096;
/// One event in so many may be swapped or moved: more is no accident.
const RARE: usize = 50;

/// Compares what two tracers tell of the same CPUs.
///
/// # Errors
///
/// Says where the stories part, with what stands around it.
pub fn fit(name: &str, ours: &Stories, theirs: &Stories) -> Result<Fit> {
    let mut fit = Fit::default();
    let (mut only_ours, mut only_theirs) = (Vec::new(), Vec::new());
    let empty = Vec::new();
    let cpus: BTreeSet<u32> = ours.keys().chain(theirs.keys()).copied().collect();
    for cpu in cpus {
        let (a, b) = (
            ours.get(&cpu).unwrap_or(&empty),
            theirs.get(&cpu).unwrap_or(&empty),
        );
        let mut walk = Walk::default();
        if let Err((i, j)) = walk.align(a, b, true) {
            let show = |s: &[Seen], at: usize| -> String {
                let from = at.saturating_sub(3);
                let to = (at + 4).min(s.len());
                let mark = |n: usize| if n + from == at { "> " } else { "  " };
                let lines = s[from..to].iter().enumerate();
                lines
                    .map(|(n, e)| format!("\n    {}{e}", mark(n)))
                    .collect()
            };
            bail!(
                "{name}: CPU {cpu}: the stories part after {i} of {} and {j} of {} events\n  blkrelay:{}\n  \
                 {name}:{}",
                a.len(),
                b.len(),
                show(a, i),
                show(b, j)
            );
        }
        fit.events += walk.matched;
        fit.swapped += walk.swapped;
        only_ours.extend(walk.only_a.into_iter().map(|seen| (seen, cpu)));
        only_theirs.extend(walk.only_b.into_iter().map(|seen| (seen, cpu)));
    }
    only_ours.sort();
    only_theirs.sort();
    let moved = |(a, b): (&(Seen, u32), &(Seen, u32))| a.0 == b.0 && a.1 != b.1;
    if only_ours.len() != only_theirs.len() || !only_ours.iter().zip(&only_theirs).all(moved) {
        let first = |s: &[(Seen, u32)]| {
            s.first()
                .map_or("nothing".to_owned(), |(e, cpu)| format!("CPU {cpu}: {e}"))
        };
        bail!(
            "{name}: {} events only in blkrelay's trace ({}), {} only in {name}'s ({})",
            only_ours.len(),
            first(&only_ours),
            only_theirs.len(),
            first(&only_theirs)
        );
    }
    fit.moved = only_ours.len();
    fit.events += fit.moved;
    ensure!(
        (fit.swapped + fit.moved) * RARE <= fit.events,
        "{name}: {} of {} events swapped and {} on other CPUs: too many to be interrupted",
        fit.swapped,
        fit.events,
        fit.moved
    );
    Ok(fit)
}

#[derive(Default)]
struct Walk {
    matched: usize,
    swapped: usize,
    only_a: Vec<Seen>,
    only_b: Vec<Seen>,
}

impl Walk {
    /// Walks both stories; `moves` allows single events that one of them lacks. The error is where they
    /// part.
    fn align(&mut self, a: &[Seen], b: &[Seen], moves: bool) -> Result<(), (usize, usize)> {
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            if a[i] == b[j] {
                self.matched += 1;
                i += 1;
                j += 1;
            } else if let Some(k) = self.rotated(&a[i..], &b[j..]) {
                i += k + 1;
                j += k + 1;
            } else if let Some(k) = self.rotated(&b[j..], &a[i..]) {
                i += k + 1;
                j += k + 1;
            } else if moves && follows(&a[i + 1..], &b[j..]) {
                self.only_a.push(a[i].clone());
                i += 1;
            } else if moves && follows(&b[j + 1..], &a[i..]) {
                self.only_b.push(b[j].clone());
                j += 1;
            } else {
                return Err((i, j));
            }
        }
        if !moves && (i < a.len() || j < b.len()) {
            return Err((i, j));
        }
        self.only_a.extend_from_slice(&a[i..]);
        self.only_b.extend_from_slice(&b[j..]);
        Ok(())
    }

    /// If `x` begins with an event and k others, and `y` with the same k others and then that event: k.
    fn rotated(&mut self, x: &[Seen], y: &[Seen]) -> Option<usize> {
        let first = x.first()?;
        for k in 1..=BETWEEN.min(x.len() - 1).min(y.len().saturating_sub(1)) {
            if y[k] != *first {
                continue;
            }
            let mut inner = Walk::default();
            if inner.align(&x[1..=k], &y[..k], false).is_ok() {
                self.matched += inner.matched + 1;
                self.swapped += inner.swapped + 1;
                return Some(k);
            }
        }
        None
    }
}

/// Whether two stories go on alike for a few events.
fn follows(a: &[Seen], b: &[Seen]) -> bool {
    let n = 3.min(a.len()).min(b.len());
    n > 0 && a[..n] == b[..n]
}

/// What [`tracers`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Against blktrace.
    pub blktrace: Fit,
    /// Against ftrace, all events.
    pub ftrace: Fit,
    /// Events that blktrace dropped and ftrace has.
    pub dropped: usize,
    /// Events with FUA that blkrelay and ftrace have.
    pub fua: usize,
    /// How many of those blktrace has.
    pub fua_by_blktrace: usize,
    /// How many of each letter blktrace and blkrelay both had.
    pub letters: BTreeMap<char, usize>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (b, t) = (&self.blktrace, &self.ftrace);
        write!(
            f,
            "@result blktrace={} blktrace_swapped={} blktrace_moved={} ftrace={} ftrace_swapped={} \
             ftrace_moved={} dropped_by_blktrace={} fua={} fua_by_blktrace={}",
            b.events,
            b.swapped,
            b.moved,
            t.events,
            t.swapped,
            t.moved,
            self.dropped,
            self.fua,
            self.fua_by_blktrace
        )?;
        for (letter, n) in &self.letters {
            write!(f, " {letter}={n}")?;
        }
        Ok(())
    }
}

/// The disk of each partition of this machine, from sysfs.
///
/// # Errors
///
/// When sysfs is not mounted.
pub fn disks() -> Result<BTreeMap<Dev, Dev>> {
    const DIR: &str = "/sys/class/block";
    let number = |path: std::path::PathBuf| -> Option<Dev> {
        let text = std::fs::read_to_string(path.join("dev")).ok()?;
        comma_dev(&text.trim().replace(':', ","))
    };
    let mut disks = BTreeMap::new();
    for entry in std::fs::read_dir(DIR).context(DIR)? {
        let path = entry?.path();
        if !path.join("partition").exists() {
            continue;
        }
        // The link leads to …/DISK/PARTITION.
        let real = path.canonicalize()?;
        let disk = real.parent().map(Path::to_owned).and_then(number);
        if let (Some(partition), Some(disk)) = (number(path), disk) {
            disks.insert(partition, disk);
        }
    }
    Ok(disks)
}

/// Events of ours that are compared and have FUA.
fn fua(e: &Event) -> Option<Seen> {
    common(e).filter(|_| e.opf.categories() & category::FUA != 0)
}

/// Whether a compared form of blktrace's event has FUA.
fn has_fua(seen: &Seen) -> bool {
    let kind = seen.flags.strip_prefix("0x");
    let kind = kind.and_then(|hex| u64::from_str_radix(hex, 16).ok());
    kind.unwrap_or(0) & category::FUA != 0
}

/// Compares a blkrelay trace with blktrace's files and with copies of ftrace's, and demands that each of
/// `want`'s letters occurred. `setup2`: blktrace's files are those of the newer setup ioctl ([`crate::blktrace`]).
///
/// # Errors
///
/// When anything differs, a letter is missing, or a file is not good.
pub fn tracers(
    trace: &Path,
    blktrace: &Path,
    ftrace: &Path,
    disks: &BTreeMap<Dev, Dev>,
    want: &str,
    setup2: bool,
) -> Result<Verdict> {
    let source = blkrelay_trace::open(trace)?;
    let mut verdict = Verdict {
        blktrace: Fit::default(),
        ftrace: Fit::default(),
        dropped: 0,
        fua: 0,
        fua_by_blktrace: 0,
        letters: BTreeMap::new(),
    };
    let theirs = blktrace_stories(blktrace)?;
    let form = if setup2 { for_setup2 } else { for_blktrace };
    let all = ours(&source, form)?;
    verdict.fua = ours(&source, fua)?.values().flatten().count();
    let stories = theirs.values().flat_map(BTreeMap::values).flatten();
    verdict.fua_by_blktrace = stories.filter(|seen| has_fua(seen)).count();
    let devices: BTreeSet<Dev> = all.values().flatten().map(|s| s.dev).collect();
    for dev in devices.iter().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        let mine: Stories = all
            .iter()
            .map(|(cpu, s)| (*cpu, s.iter().filter(|s| s.dev == *dev).cloned().collect()))
            .collect();
        let empty = Stories::new();
        let fit = fit("blktrace", &mine, theirs.get(dev).unwrap_or(&empty))
            .with_context(|| format!("device {dev}"))?;
        verdict.blktrace.events += fit.events;
        verdict.blktrace.swapped += fit.swapped;
        verdict.blktrace.moved += fit.moved;
    }
    for seen in all.values().flatten() {
        *verdict.letters.entry(seen.action).or_default() += 1;
    }
    for letter in want.chars() {
        ensure!(
            verdict.letters.contains_key(&letter),
            "the workload made no {letter}: nothing is proved about it"
        );
    }

    let mine = ours(&source, for_ftrace)?;
    let mut theirs = ftrace_stories(ftrace, disks)?;
    let devices: BTreeSet<Dev> = mine.values().flatten().map(|s| s.dev).collect();
    for story in theirs.values_mut() {
        // Other disks are not traced by us.
        story.retain(|s| devices.contains(&s.dev));
    }
    verdict.ftrace = fit("ftrace", &mine, &theirs)?;
    verdict.dropped = verdict.ftrace.events - verdict.blktrace.events;
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(action: char, sector: u64) -> Seen {
        Seen {
            action,
            dev: Dev { major: 8, minor: 0 },
            sector,
            length: 8,
            flags: "R".into(),
            number: 0,
            from: None,
            pid: None,
        }
    }

    fn story(text: &str) -> Vec<Seen> {
        let words = text.split_whitespace();
        words
            .map(|w| seen(w.chars().next().unwrap(), w[1..].parse().unwrap()))
            .collect()
    }

    fn one(a: &str, b: &str) -> Result<Fit> {
        let stories = |t| Stories::from([(0, story(t))]);
        fit("other", &stories(a), &stories(b))
    }

    /// As many events as it takes for one swap to be rare.
    fn long(middle: &str) -> String {
        let calm: Vec<String> = (1000..1100).map(|n| format!("Q{n}")).collect();
        format!("{} {middle} {}", calm.join(" "), calm.join(" "))
    }

    #[test]
    fn alike() {
        let t = "Q1 G1 D1 C1 Q2 G2 D2 C2";
        assert_eq!(
            one(t, t).unwrap(),
            Fit {
                events: 8,
                ..Fit::default()
            }
        );
    }

    #[test]
    fn an_interrupt_between_two_probes() {
        // Q2 was recorded by us, then C1 and C0 came, then the other tracer recorded Q2; and the reverse.
        for (a, b) in [
            ("G1 Q2 C1 C0 G2", "G1 C1 C0 Q2 G2"),
            ("G1 C1 C0 Q2 G2", "G1 Q2 C1 C0 G2"),
        ] {
            let f = one(&long(a), &long(b)).unwrap();
            assert_eq!((f.events, f.swapped, f.moved), (205, 1, 0));
        }
        // One inside the other.
        let f = one(&long("Q1 Q2 C3 G2"), &long("C3 Q2 G2 Q1"));
        assert_eq!(f.unwrap().swapped, 2);
    }

    #[test]
    fn too_many_swaps_are_no_accident() {
        assert!(one("Q2 C1 G2", "C1 Q2 G2").is_err());
    }

    #[test]
    fn what_differs_is_found() {
        let good = long("Q1 G1 D1 C1");
        for bad in [
            "Q1 G1 D1",          // one is missing
            "Q1 G1 D1 C1 C1",    // one is there twice
            "Q1 G1 D1 C2",       // another sector
            "Q1 D1 G1 C1 Q9 G9", // another order and two too many
            "Q1 G1 C1 D1 C1",
        ] {
            assert!(one(&good, &long(bad)).is_err(), "{bad}");
            assert!(one(&long(bad), &good).is_err(), "{bad}");
        }
        // The same events on a CPU, but far from where they belong.
        let calm: Vec<String> = (2000..=2000 + BETWEEN).map(|n| format!("Q{n}")).collect();
        let calm = calm.join(" ");
        let far = one(&format!("{calm} C1 Q1"), &format!("C1 {calm} Q1"));
        assert!(far.is_err());
    }

    #[test]
    fn a_task_that_moved_between_two_probes() {
        let stories = |a: &str, b: &str| Stories::from([(0, story(a)), (1, story(b))]);
        let a = stories(&long("Q1 G1 D1"), &long("Q2 G2 D2"));
        let b = stories(&long("G1 D1"), &long("Q2 Q1 G2 D2"));
        let f = fit("other", &a, &b).unwrap();
        assert_eq!((f.events, f.moved), (406, 1));
        let c = stories(&long("G1 D1"), &long("Q2 G2 D2"));
        assert!(fit("other", &a, &c).is_err());
    }

    // Lines as 7.3 prints them.
    #[test]
    fn ftrace_lines() {
        let parse = |t| of_ftrace(t).unwrap().unwrap();
        let s = parse("bio_queue: 254,0 FWFS 4096 + 8 [dd]");
        assert_eq!((s.action, s.sector, s.length), ('Q', 4096, 8));
        assert_eq!(s.flags, "FWFS");
        let s = parse("rq_issue: 254,16 WS 4096 () 8 + 8 none,0,0 [kworker/0:1H]");
        assert_eq!((s.action, s.sector, s.length), ('D', 8, 8));
        assert_eq!((s.dev.major, s.dev.minor), (254, 16));
        let s = parse("rq_complete: 254,0 N (12 01 00) 0 + 0 none,0,0 [-5]");
        assert_eq!((s.action, s.number), ('C', -5));
        let s = parse("split: 252,0 R 100 / 4294967400 [dd]");
        assert_eq!((s.action, s.number, s.length), ('X', 104, 0));
        let s = parse("bio_remap: 252,0 R 2058 + 8 <- (259,1) 10");
        let from = Dev {
            major: 259,
            minor: 1,
        };
        assert_eq!((s.action, s.from), ('A', Some((from, 10))));
        assert_eq!(of_ftrace("plug: [dd]"), Some(None));
        assert_eq!(of_ftrace("bio_queue: 254,0"), None);
    }

    // From blk_fill_rwbs(): REQ_OP_WRITE | REQ_FUA | REQ_SYNC, REQ_OP_WRITE | REQ_PREFLUSH, zeroing,
    // a read ahead of metadata.
    #[test]
    fn kernel_rwbs_by_hand() {
        for (opf, text) in [
            (1 | 1 << 17 | 1 << 11, "WFS"),
            (1 | 1 << 18, "FW"),
            (9, "WZ"),
            (1 << 19 | 1 << 12, "RAM"),
            (3, "D"),
            (34, "N"),
        ] {
            assert_eq!(kernel_rwbs(Opf(opf)), text);
        }
    }
}
