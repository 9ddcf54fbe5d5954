// SPDX-License-Identifier: GPL-2.0
//! `blkrelay record`: what happens in which order. All that can be refused is tried before the trace is
//! started, and nothing is overwritten before it has been.

mod capture;
mod cgroup;
mod command;
mod priority;
mod table;
mod target;

use crate::module::{self, Module, ModuleError};
use crate::output::{count, size};
use crate::sysfs::{Resolved, Sysfs};
use crate::{args, say, Failure, Outcome};
use blkrelay_format::{
    ChunkType, CpuCounters, End, Kernel, Meta, Options, Status, Trailer, Writer, FORMAT_VERSION,
};
use blkrelay_trace::{time, Dev, Stop};
use capture::Capture;
use cgroup::Cgroup;
use command::Running;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use table::Table;
use target::{Recording, Target};

/// Bytes to read ahead of writing, unless sub-buffers are larger.
const BUFFER: usize = 2 << 20;

/// A trace that has been started.
struct Session {
    module: Module,
    capture: Capture,
    options: args::Record,
    devices: Vec<Resolved>,
    /// The command that started it.
    start: String,
    /// The module's, once it had started.
    begun: Status,
    table: Table,
}

pub fn run(options: args::Record) -> Result<Outcome, Failure> {
    go_together(&options)?;
    let sysfs = Sysfs::system();
    let named = resolve(&sysfs, &options.filter.devices)?;
    let words = options.filter.for_module()?;
    let devices = if options.stack {
        stacks(&sysfs, &named)
    } else {
        named.clone()
    };
    if let Some(path) = &options.load {
        module::load(path.as_ref())?;
    }
    let module = Module::find()?;
    let status = module.status()?;
    if module::is_running(&status) {
        let owner = status.get("owner").to_owned();
        return Err(ModuleError::Busy { owner }.into());
    }
    let path = options
        .output
        .clone()
        .unwrap_or_else(|| default_name(&named));
    let first = file_name(&options, &path, 1);
    let target = Target::open(&first, options.force)?;
    warn_if_traced(&sysfs, &target, &devices);
    let duration = options.seconds.map(Duration::from_secs_f64);
    let mut capture = Capture::new(&module, duration, options.flight)?;

    let cgroup = own_cgroup(&options);
    let start = start_command(&options, &devices, &words, cgroup.as_ref());
    capture.control().command(&start)?;
    let begun = module.status()?;
    capture.open_data(BUFFER.max(begun.number("subbuf_size") as usize))?;
    let command = Running::start(&options.command, cgroup.as_ref())?;
    // Only now: COMMAND has the priority that we were given.
    if let Err(error) = priority::come_first() {
        say(format_args!(
            "no higher priority for the reader ({error}): on busy CPUs it may lose events"
        ));
    }
    let numbers = devices.iter().map(|device| device.disk).collect();
    let mut session = Session {
        table: Table::new(&sysfs, numbers),
        module,
        capture,
        options,
        devices,
        start,
        begun,
    };
    let recorded = session.record(command.as_ref(), target, &path);
    // Stops it, if that has not been done.
    drop(session);
    let (end, whole) = match recorded {
        Ok(recorded) => recorded,
        Err(error) => {
            // Started for the recording's sake, and nobody would wait for it.
            if let Some(command) = command {
                command.finish(&End::Signal)?;
            }
            return Err(error);
        }
    };
    let code = command.map_or(Ok(0), |command| command.finish(&end))?;
    Ok(match (code, whole) {
        (0, true) => Outcome::Good,
        (0, false) => Outcome::Findings,
        (code, _) => Outcome::Status(code),
    })
}

impl Session {
    /// Records until it is enough. Why it ended, and whether all is in the file.
    ///
    /// # Errors
    ///
    /// The last things that can be refused, when the command runs already: a file is not emptied for one
    /// that cannot be watched.
    fn record(
        &mut self,
        command: Option<&Running>,
        target: Target,
        path: &Path,
    ) -> Result<(End, bool), Failure> {
        if let Some(command) = command {
            self.capture.watch(command)?;
        }
        if self.options.flight {
            return self.fly(target, path);
        }
        let mut recording = target.begin(&self.meta())?;
        let end = self.capture.run(&mut recording.writer, &mut self.table);
        self.capture.stop();
        self.save(recording, end)
    }

    /// Waits for the flight recorder to be frozen and saves what it kept, once or time after time.
    fn fly(&mut self, mut target: Target, path: &Path) -> Result<(End, bool), Failure> {
        let mut all = true;
        let mut number = 1;
        loop {
            let end = self.capture.wait_frozen()?;
            let recording = target.begin(&self.meta())?;
            let (end, whole) = self.save(recording, end)?;
            all &= whole;
            if end != End::Trigger || !self.options.rearm {
                self.capture.stop();
                return Ok((end, all));
            }
            number += 1;
            let next = file_name(&self.options, path, number);
            target = Target::open(&next, self.options.force)?;
            self.capture.arm()?;
        }
    }

    /// Reads what the module still holds, and ends the file. Returns why it ended, and whether all is in it.
    fn save(&mut self, mut recording: Recording, mut end: End) -> Result<(End, bool), Failure> {
        if !matches!(end, End::Error(_)) {
            let mut rest = || -> Result<(), String> {
                self.capture.drain(&mut recording.writer)?;
                if let Some(disks) = self.table.refresh() {
                    let written = recording.writer.chunk(ChunkType::Devices, 0, &disks);
                    written.map_err(|error| error.to_string())?;
                }
                Ok(())
            };
            if let Err(error) = rest() {
                end = End::Error(error);
            }
        }
        let status = self.module.status()?;
        let trailer = Trailer {
            end_realtime_ns: realtime_ns(),
            cpus: counters(&status, &recording.writer, self.options.flight),
            end,
        };
        let path = recording.path().to_owned();
        let bytes = recording.finish(&trailer)?;
        let cause = self.options.flight.then(|| frozen(&path, &status));
        let whole = summarise(&trailer, bytes, &path, cause);
        Ok((trailer.end, whole))
    }

    fn meta(&self) -> Meta {
        let uname = rustix::system::uname();
        let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
        let boot_id =
            std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Meta {
            format: FORMAT_VERSION,
            writer: concat!("blkrelay ", env!("CARGO_PKG_VERSION")).to_owned(),
            kernel: Kernel {
                release: text(uname.release()),
                version: text(uname.version()),
                machine: text(uname.machine()),
            },
            host: text(uname.nodename()),
            boot_id: boot_id.trim().to_owned(),
            trace_id: self.begun.get("trace_id").to_owned(),
            start_realtime_ns: realtime_ns(),
            clock: self.begun.get("clock").to_owned(),
            khz: self.begun.number("khz"),
            devices: self.table.disks().to_vec(),
            options: Options {
                devices: devices_word(&self.devices),
                start: self.start.clone(),
                subbuf_size: self.begun.number("subbuf_size"),
                subbufs: self.begun.number("subbufs"),
                seconds: self.options.seconds,
            },
            command: self
                .options
                .command
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
        }
    }
}

/// Spans leave no choice of events, and have no Q that a detail could follow.
///
/// # Errors
///
/// If what is asked for cannot be had together.
fn go_together(options: &args::Record) -> Result<(), Failure> {
    if options.span && (options.events.is_some() || options.detail) {
        let option = if options.detail {
            "--detail"
        } else {
            "--events"
        };
        return Err(format!(
            "--span records one event of its own an I/O: it does not go with {option}"
        )
        .into());
    }
    Ok(())
}

/// The devices of the command line, each once. None: all disks.
fn resolve(sysfs: &Sysfs, words: &[OsString]) -> Result<Vec<Resolved>, Failure> {
    let mut devices: Vec<Resolved> = Vec::new();
    for word in words {
        let found = sysfs.resolve(word)?;
        if !devices.contains(&found) {
            devices.push(found);
        }
    }
    Ok(devices)
}

/// These devices and all that they are made of, each once.
fn stacks(sysfs: &Sysfs, named: &[Resolved]) -> Vec<Resolved> {
    let mut devices: Vec<Resolved> = Vec::new();
    for device in named.iter().flat_map(|device| sysfs.stack(device)) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    devices
}

/// A cgroup for COMMAND, if only its I/O is to be traced and there can be one.
fn own_cgroup(options: &args::Record) -> Option<Cgroup> {
    if options.command.is_empty() || options.everything || !options.filter.cgroups.is_empty() {
        return None;
    }
    match Cgroup::new() {
        Ok(cgroup) => Some(cgroup),
        Err(why) => {
            say(format_args!(
                "COMMAND gets no cgroup of its own ({why}): tracing all I/O while it runs"
            ));
            None
        }
    }
}

/// The file of the trigger of this number, from 1: FILE itself, unless there may be more of them.
fn file_name(options: &args::Record, path: &Path, number: u64) -> PathBuf {
    if !options.rearm {
        return path.to_owned();
    }
    match path.extension() {
        Some(extension) => {
            let mut numbered = OsString::from(format!("{number}."));
            numbered.push(extension);
            path.with_extension(numbered)
        }
        None => path.with_extension(number.to_string()),
    }
}

/// `DEV-YYYYmmdd-HHMMSS.blkr` in the local time.
fn default_name(devices: &[Resolved]) -> PathBuf {
    let names: Vec<String> = devices
        .iter()
        .map(|device| device.name.replace('/', "!"))
        .collect();
    let names = if names.is_empty() {
        "all".to_owned()
    } else {
        names.join("+")
    };
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    PathBuf::from(format!("{names}-{now}.blkr"))
}

fn devices_word(devices: &[Resolved]) -> String {
    if devices.is_empty() {
        return "all".to_owned();
    }
    let numbers: Vec<String> = devices
        .iter()
        .map(|device| device.dev.to_string())
        .collect();
    numbers.join(",")
}

fn start_command(
    options: &args::Record,
    devices: &[Resolved],
    filter: &str,
    cgroup: Option<&Cgroup>,
) -> String {
    let mut command = format!("start devices={}{filter}", devices_word(devices));
    let mut add = |key: &str, value: Option<u64>| {
        if let Some(value) = value {
            command += &format!(" {key}={value}");
        }
    };
    add("cgroup", cgroup.map(Cgroup::id));
    add("detail", options.detail.then_some(1));
    add("span", options.span.then_some(1));
    add("on_error", options.on_error.then_some(1));
    add("slower_us", options.slower_than);
    add("subbuf_size", options.subbuf_size);
    add("subbufs", options.subbufs);
    if let Some(events) = &options.events {
        command += &format!(" events={events}");
    }
    if options.flight {
        command += " mode=overwrite";
    }
    command + " hold=1"
}

/// Each write of the file is then an event of the trace, which makes the file grow.
fn warn_if_traced(sysfs: &Sysfs, target: &Target, devices: &[Resolved]) {
    let below = sysfs.disks_below(target.device());
    // Of a partition that is traced only what lies on it: its disk is not.
    let on = target.device();
    let traced = |dev: &Dev| {
        let is = |known: &Resolved| known.dev == *dev || known.disk == *dev && known.dev == on;
        devices.is_empty() || devices.iter().any(is)
    };
    if let Some(dev) = below.iter().find(|dev| traced(dev)) {
        let disks = sysfs.disks(&[*dev]);
        let name = disks.first().map_or("", |disk| disk.name.as_str());
        say(format_args!(
            "warning: {} lies on {name}, which is being traced: its own writes will be in the trace",
            target.path().display()
        ));
    }
}

fn realtime_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Each CPU's exact counters: the module's, and what of them is in the file. Of a flight recorder, what came
/// before that was written over, or is in the file of an earlier trigger.
fn counters<W: std::io::Write>(
    status: &Status,
    writer: &Writer<W>,
    flight: bool,
) -> Vec<CpuCounters> {
    let mut stored: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for entry in writer.index() {
        let (subbufs, events) = stored.entry(entry.cpu).or_default();
        *subbufs += 1;
        *events += u64::from(entry.count);
    }
    status
        .cpus
        .iter()
        .map(|cpu| {
            let (subbufs, events) = stored.get(&cpu.cpu).copied().unwrap_or_default();
            let written_over = match writer.events_before(cpu.cpu) {
                _ if !flight => 0,
                Some(before) => before,
                None => cpu.events,
            };
            CpuCounters {
                cpu: cpu.cpu,
                events: cpu.events,
                lost: cpu.lost,
                written_over,
                unwritten: cpu.events.saturating_sub(written_over + events),
                subbufs,
            }
        })
        .collect()
}

/// What froze a flight recorder, in words: as the file tells it, else as `status` does.
fn frozen(path: &Path, status: &Status) -> String {
    let stops = blkrelay_trace::open(path).map(|source| source.stops());
    let stops = stops.unwrap_or_default();
    let last = stops.iter().max_by_key(|stop| stop.epoch);
    match last {
        Some(Stop {
            cause, trigger_cpu, ..
        }) => {
            let lag = stops.iter().map(|stop| stop.lag_ns).max().unwrap_or(0);
            format!(
                "frozen by {cause} on CPU {trigger_cpu}, every CPU within {}: ",
                time(lag)
            )
        }
        None if status.get("state") == "frozen" => format!("frozen by {}: ", status.get("cause")),
        None => String::new(),
    }
}

/// Says what was recorded, and what froze a flight recorder. Returns whether all of it is in the file.
fn summarise(trailer: &Trailer, bytes: u64, path: &Path, frozen: Option<String>) -> bool {
    let sum = |of: fn(&CpuCounters) -> u64| trailer.cpus.iter().map(of).sum::<u64>();
    let (events, lost) = (sum(|cpu| cpu.events), sum(|cpu| cpu.lost));
    let unwritten = sum(|cpu| cpu.unwritten);
    let elsewhere = unwritten.saturating_add(sum(|cpu| cpu.written_over));
    if let End::Error(error) = &trailer.end {
        say(format_args!(
            "{}: {error}: recording stopped; what was written is good, {} could not be written",
            path.display(),
            count(unwritten, "event")
        ));
    } else if unwritten > 0 {
        say(format_args!(
            "{} could not be written",
            count(unwritten, "event")
        ));
    }
    if trailer.end == End::Stopped {
        say("the trace was stopped by someone else");
    }
    if lost > 0 {
        say(format_args!(
            "{} lost for want of room: use a larger --subbuf-size or more --subbufs, or smaller ones if the \
             kernel's log says that a CPU got no buffer",
            count(lost, "event")
        ));
    }
    say(format_args!(
        "{}{}, {lost} lost, {}, {} in {}",
        frozen.unwrap_or_default(),
        count(events.saturating_sub(elsewhere), "event"),
        count(trailer.cpus.len() as u64, "CPU"),
        size(bytes),
        path.display()
    ));
    lost == 0 && unwritten == 0 && !matches!(trailer.end, End::Error(_))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use blkrelay_format::{Action, Appended, Clock, Record, SubbufBuilder};
    use clap::Parser;

    fn disk(name: &str, major: u32, minor: u32) -> Resolved {
        Resolved {
            dev: Dev { major, minor },
            name: name.to_owned(),
            disk: Dev { major, minor },
        }
    }

    #[test]
    fn names_tell_the_devices_and_the_time() {
        let name = |devices: &[Resolved]| default_name(devices).display().to_string();
        let shape: String = name(&[])
            .chars()
            .map(|c| if c.is_ascii_digit() { '9' } else { c })
            .collect();
        assert_eq!(shape, "all-99999999-999999.blkr");
        assert!(
            name(&[disk("sda", 8, 0), disk("cciss/c0d0", 104, 0)]).starts_with("sda+cciss!c0d0-2")
        );
    }

    #[test]
    fn counters_tell_what_is_not_in_the_file() {
        let status = Status::parse(
            "state=stopped\ncpu=0 events=10 lost=1 produced=2 consumed=2 open=0\n\
             cpu=1 events=5 lost=0 produced=1 consumed=0 open=0\n",
        );
        // CPU 0: 6 and 4 events stored. As a flight recorder's, they come behind others.
        let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
        let mut cpu = SubbufBuilder::new([1; 16], 0, Clock::Mono, 1_000_000);
        for events in [6, 4] {
            for _ in 0..events {
                cpu.event(Record {
                    who: Record::pack_who(Action::Queue, 1),
                    ..Record::default()
                });
            }
            let bytes = cpu.finish();
            writer.subbufs(&bytes, &mut Appended::default()).unwrap();
        }
        let told = |cpus: &[CpuCounters]| -> Vec<(u64, u64, u64)> {
            let told = |cpu: &CpuCounters| (cpu.unwritten, cpu.written_over, cpu.subbufs);
            cpus.iter().map(told).collect()
        };
        let cpus = counters(&status, &writer, false);
        assert_eq!(told(&cpus), [(0, 0, 2), (5, 0, 0)]);
        assert_eq!(cpus[0].lost, 1);
        let cpus = counters(&status, &writer, true);
        assert_eq!(told(&cpus), [(0, 0, 2), (0, 5, 0)]);
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        record: args::Record,
    }

    fn options(words: &[&str]) -> args::Record {
        let words = std::iter::once("record").chain(words.iter().copied());
        Line::try_parse_from(words).unwrap().record
    }

    #[test]
    fn each_trigger_has_a_file() {
        let flight = options(&["--flight", "--rearm"]);
        let name = |path: &str, number| file_name(&flight, path.as_ref(), number);
        assert_eq!(name("a/t.blkr", 1), Path::new("a/t.1.blkr"));
        assert_eq!(name("a.b/t", 12), Path::new("a.b/t.12"));
        let once = file_name(&options(&["--flight"]), "t.blkr".as_ref(), 1);
        assert_eq!(once, Path::new("t.blkr"));
    }

    /// The module's own parser must take it: see the tests of the format crate for what it takes.
    #[test]
    fn the_start_command() {
        let start = |words: &[&str], devices: &[Resolved]| {
            let options = options(words);
            let filter = options.filter.for_module().unwrap();
            start_command(&options, devices, &filter, None)
        };
        assert_eq!(start(&[], &[]), "start devices=all hold=1");
        assert_eq!(
            start(
                &[
                    "-d",
                    "sda",
                    "--op=read,flush",
                    "--sector=8-15",
                    "--size=4K-",
                    "--cgroup=7"
                ],
                &[disk("sda", 8, 0), disk("sdb", 8, 16)]
            ),
            "start devices=8:0,8:16 op=read,flush sector=8-15 size=4096-4294967295 cgroup=7 hold=1"
        );
        assert_eq!(
            start(&["--span", "--op=read"], &[disk("sda", 8, 0)]),
            "start devices=8:0 op=read span=1 hold=1"
        );
        assert_eq!(
            start(&["--flight", "--on-error", "--slower-than", "20ms", "--detail", "--events", "all"], &[]),
            "start devices=all detail=1 on_error=1 slower_us=20000 events=all mode=overwrite hold=1"
        );
    }

    #[test]
    fn spans_leave_no_choice() {
        let told = |words: &[&str]| go_together(&options(words)).map_err(|error| error.to_string());
        let text = "--span records one event of its own an I/O: it does not go with ";
        assert_eq!(
            told(&["--span", "--detail"]),
            Err(format!("{text}--detail"))
        );
        assert_eq!(
            told(&["--span", "--events=D,C"]),
            Err(format!("{text}--events"))
        );
        assert_eq!(told(&["--span", "--size=4K", "-w", "1"]), Ok(()));
        assert_eq!(told(&["--events=D,C", "--detail"]), Ok(()));
    }

    #[test]
    fn words_that_do_not_go_together() {
        for words in [
            &["--on-error"][..],
            &["--slower-than", "20ms"],
            &["--rearm"],
            &["--stack"],
            &["--everything"],
            &["--flight", "--slower-than", "20"],
            &["--flight", "--slower-than", "2h"],
            &["--events", "Q hold=0"],
            &["--op", "reed"],
        ] {
            let line = std::iter::once("record").chain(words.iter().copied());
            assert!(Line::try_parse_from(line).is_err(), "{words:?}");
        }
    }
}
