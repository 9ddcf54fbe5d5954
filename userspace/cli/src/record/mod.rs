// SPDX-License-Identifier: GPL-2.0
//! `blkrelay record`: what happens in which order. All that can be refused is tried before the trace is
//! started, and nothing is overwritten before it has been.

mod capture;
mod command;
mod target;

use crate::module::{self, Module, ModuleError};
use crate::output::{count, size};
use crate::sysfs::{Resolved, Sysfs};
use crate::{args, say, Failure, Outcome};
use blkrelay_format::{
    CpuCounters, End, IndexEntry, Kernel, Meta, Options, Status, Trailer, FORMAT_VERSION,
};
use blkrelay_trace::Dev;
use capture::Capture;
use command::Running;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use target::{Recording, Target};

/// Bytes to read ahead of writing, unless sub-buffers are larger.
const BUFFER: usize = 2 << 20;

pub fn run(options: args::Record) -> Result<Outcome, Failure> {
    let sysfs = Sysfs::system();
    let devices = resolve(&sysfs, &options.devices)?;
    if let Some(path) = &options.load {
        module::load(path.as_ref())?;
    }
    let module = Module::find()?;
    let status = module.status()?;
    if status.get("state") == "running" {
        let owner = status.get("owner").to_owned();
        return Err(ModuleError::Busy { owner }.into());
    }
    let path = options
        .output
        .clone()
        .unwrap_or_else(|| default_name(&devices));
    let target = Target::open(&path, options.force)?;
    warn_if_traced(&sysfs, &target, &devices);

    let mut capture = Capture::new(&module, options.seconds.map(Duration::from_secs_f64))?;
    capture
        .control()
        .command(&start_command(&options, &devices))?;
    let status = module.status()?;
    capture.open_data(BUFFER.max(status.number("subbuf_size") as usize))?;
    let command = Running::start(&options.command)?;
    let meta = meta(&sysfs, &options, &devices, &status);
    let mut recording = match begin(&capture, command.as_ref(), target, &meta) {
        Ok(recording) => recording,
        Err(error) => {
            // Started for the recording's sake, and nobody would wait for it.
            if let Some(command) = command {
                command.finish(&End::Signal)?;
            }
            return Err(error);
        }
    };

    let mut end = capture.run(&mut recording.writer);
    capture.stop();
    if !matches!(end, End::Error(_)) {
        if let Err(error) = capture.drain(&mut recording.writer) {
            end = End::Error(error);
        }
    }
    let status = module.status()?;
    drop(capture);
    let trailer = Trailer {
        end_realtime_ns: realtime_ns(),
        cpus: counters(&status, recording.writer.index()),
        end,
    };
    let bytes = recording.finish(&trailer)?;
    let whole = summarise(&trailer, bytes, &path);
    let code = command.map_or(Ok(0), |command| command.finish(&trailer.end))?;
    Ok(match (code, whole) {
        (0, true) => Outcome::Good,
        (0, false) => Outcome::Findings,
        (code, _) => Outcome::Status(code),
    })
}

/// The last steps that can be refused, when the command runs already: a file is not emptied for one that
/// cannot be started.
fn begin(
    capture: &Capture,
    command: Option<&Running>,
    target: Target,
    meta: &Meta,
) -> Result<Recording, Failure> {
    if let Some(command) = command {
        capture.watch(command)?;
    }
    target.begin(meta)
}

/// The disks of the command line, each once. None: all disks.
fn resolve(sysfs: &Sysfs, words: &[OsString]) -> Result<Vec<Resolved>, Failure> {
    let mut disks: Vec<Resolved> = Vec::new();
    for word in words {
        let found = sysfs.resolve(word)?;
        if let Some(partition) = &found.partition {
            say(format_args!(
                "{partition} is a partition: tracing its whole disk {}",
                found.name
            ));
        }
        if !disks.iter().any(|known| known.disk == found.disk) {
            disks.push(found);
        }
    }
    Ok(disks)
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
        .map(|device| device.disk.to_string())
        .collect();
    numbers.join(",")
}

fn start_command(options: &args::Record, devices: &[Resolved]) -> String {
    let mut command = format!("start devices={}", devices_word(devices));
    if let Some(bytes) = options.subbuf_size {
        command += &format!(" subbuf_size={bytes}");
    }
    if let Some(count) = options.subbufs {
        command += &format!(" subbufs={count}");
    }
    command + " hold=1"
}

/// Each write of the file is then an event of the trace, which makes the file grow.
fn warn_if_traced(sysfs: &Sysfs, target: &Target, devices: &[Resolved]) {
    let below = sysfs.disks_below(target.device());
    let traced = |dev: &Dev| devices.is_empty() || devices.iter().any(|known| known.disk == *dev);
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

fn meta(sysfs: &Sysfs, options: &args::Record, devices: &[Resolved], status: &Status) -> Meta {
    let uname = rustix::system::uname();
    let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
    let numbers: Vec<Dev> = devices.iter().map(|device| device.disk).collect();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
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
        trace_id: status.get("trace_id").to_owned(),
        start_realtime_ns: realtime_ns(),
        clock: status.get("clock").to_owned(),
        khz: status.number("khz"),
        devices: sysfs.disks(&numbers),
        options: Options {
            devices: devices_word(devices),
            start: String::new(),
            subbuf_size: status.number("subbuf_size"),
            subbufs: status.number("subbufs"),
            seconds: options.seconds,
        },
        command: options
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    }
}

/// Each CPU's exact counters: the module's, and what of them is in the file.
fn counters(status: &Status, index: &[IndexEntry]) -> Vec<CpuCounters> {
    let mut stored: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for entry in index {
        let (subbufs, events) = stored.entry(entry.cpu).or_default();
        *subbufs += 1;
        *events += u64::from(entry.count);
    }
    status
        .cpus
        .iter()
        .map(|cpu| {
            let (subbufs, events) = stored.get(&cpu.cpu).copied().unwrap_or_default();
            CpuCounters {
                cpu: cpu.cpu,
                events: cpu.events,
                lost: cpu.lost,
                written_over: 0,
                unwritten: cpu.events.saturating_sub(events),
                subbufs,
            }
        })
        .collect()
}

/// Says what was recorded. Returns whether all of it is in the file.
fn summarise(trailer: &Trailer, bytes: u64, path: &Path) -> bool {
    let sum = |of: fn(&CpuCounters) -> u64| trailer.cpus.iter().map(of).sum::<u64>();
    let (events, lost) = (sum(|cpu| cpu.events), sum(|cpu| cpu.lost));
    let unwritten = sum(|cpu| cpu.unwritten);
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
            "{} lost for want of room: use a larger --subbuf-size or more --subbufs",
            count(lost, "event")
        ));
    }
    say(format_args!(
        "{}, {lost} lost, {}, {} in {}",
        count(events - unwritten.min(events), "event"),
        count(trailer.cpus.len() as u64, "CPU"),
        size(bytes),
        path.display()
    ));
    lost == 0 && unwritten == 0 && !matches!(trailer.end, End::Error(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, major: u32, minor: u32) -> Resolved {
        Resolved {
            disk: Dev { major, minor },
            name: name.to_owned(),
            partition: None,
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
        let entry = |cpu, count| IndexEntry {
            cpu,
            count,
            ..IndexEntry::default()
        };
        let cpus = counters(&status, &[entry(0, 6), entry(0, 4)]);
        assert_eq!(
            (cpus[0].unwritten, cpus[0].lost, cpus[0].subbufs),
            (0, 1, 2)
        );
        assert_eq!(
            (cpus[1].unwritten, cpus[1].lost, cpus[1].subbufs),
            (5, 0, 0)
        );
    }
}
