// SPDX-License-Identifier: GPL-2.0
//! Counts of devices and CPUs, and how they are printed.

use super::line::Line;
use super::task::Tasks;
use blkrelay_format::blktrace::{act, category as tc, Header};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::io::Write;

/// A number of events and their bytes: whole KiB, and what was left of each.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    events: u64,
    kib: u64,
    rest: u64,
}

impl Amount {
    fn add(&mut self, bytes: u32) {
        self.events += 1;
        self.kib = self.kib.wrapping_add(u64::from(bytes >> 10));
        self.rest = self.rest.wrapping_add(u64::from(bytes & 1023));
    }

    /// A requeue takes back an issue's bytes, not its count.
    fn take_back(&mut self, bytes: u32) {
        self.kib = self.kib.wrapping_sub(u64::from(bytes >> 10));
        self.rest = self.rest.wrapping_sub(u64::from(bytes & 1023));
    }

    fn sum(&mut self, other: &Amount) {
        self.events += other.events;
        self.kib = self.kib.wrapping_add(other.kib);
        self.rest = self.rest.wrapping_add(other.rest);
    }

    fn kib(&self) -> u64 {
        self.kib.wrapping_add(self.rest >> 10)
    }
}

/// Of file systems' requests, or of commands (PC); reads and writes each.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    queued: [Amount; 2],
    issued: [Amount; 2],
    requeued: [u64; 2],
    completed: [Amount; 2],
    merged: [Amount; 2],
}

/// Counts of a CPU, or of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) elements: u64,
    fs: Kinds,
    pc: Kinds,
    unplugs: u64,
    timer_unplugs: u64,
}

/// Of one trace.
#[derive(Debug)]
pub(super) struct Device {
    name: String,
    cpus: Vec<Counts>,
    pub(super) events: u64,
    /// Time of the first event that is shown, and of the last that was seen.
    pub(super) first: u64,
    pub(super) last: u64,
    depth: [u32; 2],
    deepest: [u32; 2],
}

impl Device {
    pub(super) fn new(name: String) -> Device {
        Device {
            name,
            cpus: Vec::new(),
            events: 0,
            first: 0,
            last: 0,
            depth: [0; 2],
            deepest: [0; 2],
        }
    }

    #[inline]
    pub(super) fn cpu(&mut self, cpu: u32) -> &mut Counts {
        let index = cpu as usize;
        if index >= self.cpus.len() {
            self.cpus.resize_with(index + 1, Counts::default);
        }
        &mut self.cpus[index]
    }

    /// As `show_device_and_cpu_stats()`.
    pub(super) fn print(&self, out: &mut Line) {
        let mut total = Counts::default();
        let mut shown = 0;
        for (cpu, counts) in self.cpus.iter().enumerate() {
            if counts.elements == 0 {
                continue;
            }
            total.sum(counts);
            let title = format!("CPU{cpu} ({}):", self.name);
            counts.print(out, cut(&title), Some(self.deepest));
            shown += 1;
        }
        if shown > 1 {
            let title = format!("Total ({}):", self.name);
            out.text(b"\n");
            total.print(out, cut(&title), None);
        }
        let ms = self.last.wrapping_sub(self.first) / 1_000_000;
        let rate = |amount: &Amount| {
            let scaled = amount.kib.wrapping_mul(1000).wrapping_add(amount.rest);
            scaled.checked_div(ms).unwrap_or(0)
        };
        let [reads, writes] = [0, 1].map(|w| rate(&total.fs.completed[w]));
        text(
            out,
            format_args!("\nThroughput (R/W): {reads}KiB/s / {writes}KiB/s\n"),
        );
        text(
            out,
            format_args!("Events ({}): {} entries\n", self.name, self.events),
        );
        // Gaps in the numbers are not looked for where files are read (`check_sequence()`).
        text(out, format_args!("Skips: 0 forward (0 - {:5.1}%)\n", 0.0));
    }
}

/// `snprintf()` into `char line[3 + 8 + 2 + 32 + 3]`, less one.
fn cut(title: &str) -> &str {
    let mut end = title.len().min(46);
    while !title.is_char_boundary(end) {
        end -= 1;
    }
    &title[..end]
}

fn text(out: &mut Line, arguments: std::fmt::Arguments<'_>) {
    // It takes everything.
    let _ = out.write_fmt(arguments);
}

/// As `size_cnv()`: steps of 1000 above a million.
fn size(mut number: u64, in_kib: bool) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "P"];
    let mut unit = usize::from(in_kib);
    while number > 1_000_000 && unit < UNITS.len() - 1 {
        unit += 1;
        number /= 1000;
    }
    format!("{number:8}{}", UNITS[unit])
}

impl Counts {
    fn sum(&mut self, other: &Counts) {
        for (own, other) in [(&mut self.fs, &other.fs), (&mut self.pc, &other.pc)] {
            for w in [0, 1] {
                own.queued[w].sum(&other.queued[w]);
                own.issued[w].sum(&other.issued[w]);
                own.completed[w].sum(&other.completed[w]);
                own.merged[w].sum(&other.merged[w]);
                own.requeued[w] += other.requeued[w];
            }
        }
        self.unplugs += other.unplugs;
        self.timer_unplugs += other.timer_unplugs;
    }

    /// As `dump_io_stats()`; without depths of a sum.
    fn print(&self, out: &mut Line, title: &str, deepest: Option<[u32; 2]>) {
        let amounts = |out: &mut Line, [read, write]: [&str; 2], of: &[Amount; 2]| {
            for (name, amount, end) in [(read, &of[0], '\t'), (write, &of[1], '\n')] {
                let (events, kib) = (size(amount.events, false), size(amount.kib(), true));
                text(out, format_args!(" {name}{events}, {kib}iB{end}"));
            }
        };
        let numbers = |out: &mut Line, [read, write]: [&str; 2], of: [u64; 2]| {
            let [reads, writes] = of.map(|number| size(number, false));
            text(out, format_args!(" {read}{reads}\t\t {write}{writes}\n"));
        };
        out.text(title.as_bytes());
        out.text(b"\n");
        amounts(
            out,
            ["Reads Queued:    ", "Writes Queued:    "],
            &self.fs.queued,
        );
        amounts(
            out,
            ["Read Dispatches: ", "Write Dispatches: "],
            &self.fs.issued,
        );
        numbers(
            out,
            ["Reads Requeued:  ", "Writes Requeued:  "],
            self.fs.requeued,
        );
        amounts(
            out,
            ["Reads Completed: ", "Writes Completed: "],
            &self.fs.completed,
        );
        amounts(
            out,
            ["Read Merges:     ", "Write Merges:     "],
            &self.fs.merged,
        );
        if let Some([read, write]) = deepest {
            text(
                out,
                format_args!(
                    " Read depth:      {read:8}{:8}\t Write depth:      {write:8}\n",
                    ' '
                ),
            );
        }
        let pc = &self.pc;
        let any = [&pc.queued, &pc.issued, &pc.completed];
        let any = any.iter().any(|of| of.iter().any(|one| one.events > 0)) || pc.requeued != [0, 0];
        if any {
            amounts(out, ["PC Reads Queued: ", "PC Writes Queued: "], &pc.queued);
            amounts(out, ["PC Read Disp.:   ", "PC Write Disp.:   "], &pc.issued);
            numbers(
                out,
                ["PC Reads Req.:   ", "PC Writes Req.:   "],
                pc.requeued,
            );
            let completed = [0, 1].map(|w| pc.completed[w].events);
            numbers(out, ["PC Reads Compl.: ", "PC Writes Compl.: "], completed);
        }
        text(
            out,
            format_args!(
                " IO unplugs:      {:8}{:8}\t Timer unplugs:    {:8}\n",
                self.unplugs, ' ', self.timer_unplugs
            ),
        );
    }
}

/// Counts an event; returns the letters that it is shown with, or nothing for one that blkparse does not show.
#[inline]
pub(super) fn account(device: &mut Device, cpu: u32, record: &Header) -> Option<&'static str> {
    let w = usize::from(record.has(tc::WRITE));
    match record.act() {
        // Never below zero: its D may not be in the trace.
        act::REQUEUE | act::COMPLETE => device.depth[w] = device.depth[w].saturating_sub(1),
        act::ISSUE => {
            device.depth[w] += 1;
            device.deepest[w] = device.deepest[w].max(device.depth[w]);
        }
        _ => {}
    }
    count(device.cpu(cpu), record)
}

#[inline]
fn count(counts: &mut Counts, record: &Header) -> Option<&'static str> {
    let w = usize::from(record.has(tc::WRITE));
    let pc = record.has(tc::PC);
    let kinds = if pc { &mut counts.pc } else { &mut counts.fs };
    let bytes = record.bytes;
    Some(match (record.act(), pc) {
        (act::QUEUE, false) => {
            kinds.queued[w].add(bytes);
            "Q"
        }
        (act::QUEUE, true) => {
            // A read's KiB go where those of file systems stand (`__account_pc_queue()`).
            kinds.queued[w].events += 1;
            if w == 1 {
                kinds.queued[1].kib += u64::from(bytes >> 10);
            } else {
                counts.fs.queued[0].kib += u64::from(bytes >> 10);
            }
            counts.pc.queued[w].rest += u64::from(bytes & 1023);
            "Q"
        }
        (act::BACKMERGE, false) => {
            kinds.merged[w].add(bytes);
            "M"
        }
        (act::FRONTMERGE, false) => {
            kinds.merged[w].add(bytes);
            "F"
        }
        (act::GETRQ, _) => "G",
        (act::SLEEPRQ, _) => "S",
        (act::REQUEUE, _) => {
            kinds.requeued[w] += 1;
            kinds.issued[w].take_back(bytes);
            "R"
        }
        (act::ISSUE, _) => {
            kinds.issued[w].add(bytes);
            "D"
        }
        (act::COMPLETE, false) => {
            kinds.completed[w].add(bytes);
            "C"
        }
        (act::COMPLETE, true) => {
            kinds.completed[w].events += 1;
            "C"
        }
        (act::PLUG, false) => "P",
        (act::UNPLUG_IO, false) => {
            counts.unplugs += 1;
            "U"
        }
        (act::UNPLUG_TIMER, false) => {
            counts.timer_unplugs += 1;
            "UT"
        }
        (act::INSERT, _) => "I",
        (act::SPLIT, false) => "X",
        (act::BOUNCE, false) => "B",
        (act::REMAP, false) => "A",
        _ => return None,
    })
}

/// A program of `-s`: a task, or with `-h` all tasks of a name.
#[derive(Debug)]
struct Program {
    name: Vec<u8>,
    /// Of the first task that was met.
    pid: u32,
    more: bool,
    counts: Counts,
}

/// Counts by program.
#[derive(Debug, Default)]
pub(super) struct Programs {
    by_name: bool,
    all: Vec<Program>,
    known: FxHashMap<(u32, Vec<u8>), usize>,
}

impl Programs {
    pub(super) fn new(by_name: bool) -> Programs {
        Programs {
            by_name,
            ..Programs::default()
        }
    }

    /// Counts an event. A task without a name is `unknown` from here on (`find_process_io_stats()`).
    pub(super) fn account(&mut self, record: &Header, tasks: &mut Tasks) {
        let pc = record.has(tc::PC);
        let counts = match record.act() {
            act::QUEUE | act::REQUEUE | act::ISSUE | act::COMPLETE => true,
            act::BACKMERGE | act::FRONTMERGE | act::UNPLUG_IO | act::UNPLUG_TIMER => !pc,
            _ => false,
        };
        if !counts {
            return;
        }
        let is_new = tasks.learn(record.pid, b"unknown");
        let name = tasks.name(record.pid).as_bytes().to_vec();
        let key = if self.by_name {
            (0, name.clone())
        } else {
            (record.pid, Vec::new())
        };
        // Each task that has just become unknown is a program of its own, until the next one comes.
        let known = self.known.get(&key).filter(|_| !(self.by_name && is_new));
        let index = known.copied().unwrap_or_else(|| {
            self.all.push(Program {
                name,
                pid: record.pid,
                more: false,
                counts: Counts::default(),
            });
            self.known.insert(key, self.all.len() - 1);
            self.all.len() - 1
        });
        let program = &mut self.all[index];
        program.more |= program.pid != record.pid;
        count(&mut program.counts, record);
    }

    /// As `show_process_stats()`, by name. Waits are those of `-t`.
    pub(super) fn print(&mut self, out: &mut Line) {
        self.all
            .sort_by(|a, b| versions(&a.name, &b.name).then(a.pid.cmp(&b.pid)));
        for program in &self.all {
            let more = if program.more { ", ..." } else { "" };
            out.text(&program.name);
            text(out, format_args!(" ({}{more})", program.pid));
            program.counts.print(out, "", None);
            for word in [
                "Allocation wait: ",
                "Dispatch wait:   ",
                "Completion wait: ",
            ] {
                text(
                    out,
                    format_args!(" {word}{:8}{:8}\t {word} {:8}\n", 0, ' ', 0),
                );
            }
        }
        out.text(b"\n");
    }
}

/// `strverscmp(3)`: runs of digits are compared as numbers, and as fractions where one begins with a zero.
fn versions(a: &[u8], b: &[u8]) -> Ordering {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let is_digit = |text: &[u8], at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    let plain = a.get(same).cmp(&b.get(same));
    let start = a[..same]
        .iter()
        .rposition(|byte| !byte.is_ascii_digit())
        .map_or(0, |at| at + 1);
    if start == same && !(is_digit(a, same) && is_digit(b, same)) {
        return plain;
    }
    // The run that differs begins at `start` in both.
    let zeros = |text: &[u8]| {
        text[start..]
            .iter()
            .take_while(|byte| **byte == b'0')
            .count()
    };
    if zeros(a) > 0 || zeros(b) > 0 {
        let (fraction_a, fraction_b) = (zeros(a), zeros(b));
        let whole = |text: &[u8], zeros: usize| !is_digit(text, start + zeros);
        // More zeros are less, unless the number is nothing but zeros.
        if fraction_a != fraction_b {
            return match (whole(a, fraction_a), whole(b, fraction_b)) {
                (true, false) if fraction_a > fraction_b => Ordering::Less,
                (true, false) => Ordering::Greater,
                _ => fraction_b.cmp(&fraction_a),
            };
        }
        return plain;
    }
    let run = |text: &[u8]| {
        text[same..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    run(a).cmp(&run(b)).then(plain)
}
