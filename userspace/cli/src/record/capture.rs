// SPDX-License-Identifier: GPL-2.0
//! The loop that moves finished sub-buffers from the module into the file.
//!
//! What it does for each byte is part of the cost of tracing: one copy into the buffer by `read`, one
//! checksum, one copy into the file by `writev`. Records are not looked at.
//!
//! A flight recorder's sub-buffers stay in the module until it is frozen: till then there is nothing to move.

use super::command::Running;
use super::table::Table;
use crate::module::{Control, Module};
use crate::Failure;
use blkrelay_format::{Appended, ChunkType, End, Writer};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How long an event may wait in a sub-buffer that is not full.
const FLUSH: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

// What an epoll event is about; lower values are CPUs.
const TICK: u64 = 1 << 32;
const DEADLINE: u64 = TICK + 1;
const SIGNAL: u64 = TICK + 2;
const COMMAND: u64 = TICK + 3;
const FREEZE: u64 = TICK + 4;

/// Every so many flushes we look for the data files of CPUs that came online. Nothing tells of them: a
/// kernel need not have inotify.
const LOOK: u32 = 5;

/// And whether disks have come or gone. Seldom: a file of sysfs is read for each disk, which shows in what
/// recording costs. A disk's name, number and size are in the module's own records from its first event on.
const LOOK_FOR_DISKS: u32 = 4 * LOOK;

/// A frozen flight recorder has stopped every CPU within microseconds. What is not there after so many
/// milliseconds will not come.
const FROZEN: u32 = 1000;

/// Room for what has happened.
const NOTHING: [epoll::Event; 32] = [epoll::Event {
    flags: EventFlags::empty(),
    data: EventData::new_u64(0),
}; 32];

/// A CPU's data file.
#[derive(Debug)]
struct Data {
    cpu: u32,
    file: File,
    /// The trace is stopped and all was read.
    drained: bool,
}

/// A trace being recorded. Dropping it stops the trace.
#[derive(Debug)]
pub struct Capture {
    module: Module,
    control: Control,
    epoll: OwnedFd,
    tick: OwnedFd,
    deadline: Option<OwnedFd>,
    /// A signal puts a byte in. A pipe: a kernel need not have sockets.
    signals: OwnedFd,
    /// The same, of the signal that freezes a flight recorder.
    freezes: Option<OwnedFd>,
    flushes: u32,
    data: Vec<Data>,
    buffer: Vec<u8>,
    filled: usize,
    subbuf_size: usize,
}

/// Says which system call failed: a kernel may be built without it.
fn named<T>(call: &str, result: Result<T, impl Into<io::Error>>) -> Result<T, Failure> {
    result.map_err(|error| format!("{call}: {}", error.into()).into())
}

/// A pipe that can be read once one of these signals has come.
fn signal_pipe(signals: &[i32]) -> Result<OwnedFd, Failure> {
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (out, into) = named("pipe", pipe)?;
    for signal in signals {
        let end = named("dup", into.try_clone())?;
        let registered = signal_hook::low_level::pipe::register(*signal, end);
        named("sigaction", registered)?;
    }
    Ok(out)
}

fn timer() -> Result<OwnedFd, Failure> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
    named("timerfd_create", timer)
}

fn arm(timer: &OwnedFd, first: Timespec, every: Timespec) -> Result<(), Failure> {
    let when = Itimerspec {
        it_interval: every,
        it_value: first,
    };
    let armed = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &when);
    named("timerfd_settime", armed)?;
    Ok(())
}

impl Capture {
    /// Prepares all that does not need a running trace: so nothing of this fails once it runs, and signals
    /// are caught before.
    ///
    /// # Errors
    ///
    /// If `control` cannot be opened, or the system is short of something.
    pub fn new(
        module: &Module,
        duration: Option<Duration>,
        flight: bool,
    ) -> Result<Capture, Failure> {
        let signals = signal_pipe(&[SIGINT, SIGTERM])?;
        let freezes = flight.then(|| signal_pipe(&[SIGUSR1])).transpose()?;
        let epoll = named("epoll_create", epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let tick = timer()?;
        let deadline = duration
            .map(|duration| {
                let timer = timer()?;
                let when = Timespec {
                    tv_sec: duration.as_secs() as i64,
                    // A timer of 0 would never fire.
                    tv_nsec: i64::from(duration.subsec_nanos().max(1)),
                };
                let never = Timespec::default();
                arm(&timer, when, never)?;
                Ok::<_, Failure>(timer)
            })
            .transpose()?;
        let capture = Capture {
            module: module.clone(),
            control: module.control()?,
            epoll,
            tick,
            deadline,
            signals,
            freezes,
            flushes: 0,
            data: Vec::new(),
            buffer: Vec::new(),
            filled: 0,
            subbuf_size: 0,
        };
        capture.add(&capture.tick, TICK)?;
        capture.add(&capture.signals, SIGNAL)?;
        if let Some(freezes) = &capture.freezes {
            capture.add(freezes, FREEZE)?;
        }
        if let Some(deadline) = &capture.deadline {
            capture.add(deadline, DEADLINE)?;
        }
        Ok(capture)
    }

    fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Failure> {
        let data = EventData::new_u64(token);
        named(
            "epoll_ctl",
            epoll::add(&self.epoll, fd, data, EventFlags::IN),
        )
    }

    /// The module's control file.
    pub fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Opens the data files, once the trace is started, and begins to ask for flushes. Reads go through a
    /// buffer of at least `bytes`, which must hold a sub-buffer.
    ///
    /// # Errors
    ///
    /// If a data file cannot be opened.
    pub fn open_data(&mut self, bytes: usize) -> Result<(), Failure> {
        self.subbuf_size = self.module.status()?.number("subbuf_size") as usize;
        // Written once, so that no page of it has to be found while the trace runs.
        self.buffer = vec![0xff; bytes];
        self.open_new()?;
        arm(&self.tick, FLUSH, FLUSH)?;
        Ok(())
    }

    /// Opens the data files that are not open yet: those of CPUs that came online.
    fn open_new(&mut self) -> Result<(), Failure> {
        for cpu in self.module.cpus()? {
            if self.data.iter().any(|data| data.cpu == cpu) {
                continue;
            }
            let file = self.module.data(cpu)?;
            self.add(&file, cpu.into())?;
            self.data.push(Data {
                cpu,
                file,
                drained: false,
            });
        }
        Ok(())
    }

    /// Ends the recording when this command ends.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn watch(&self, command: &Running) -> Result<(), Failure> {
        self.add(command, COMMAND)
    }

    /// Records until something says that it is enough.
    pub fn run(&mut self, writer: &mut Writer<File>, table: &mut Table) -> End {
        match self.try_run(writer, table) {
            Ok(end) => end,
            Err(error) => End::Error(error.to_string()),
        }
    }

    /// Waits until something happens. Returns what, as `epoll` tells it.
    fn wait(&self, events: &mut [epoll::Event; 32]) -> Result<usize, Failure> {
        loop {
            match epoll::wait(&self.epoll, &mut *events, None) {
                Err(Errno::INTR) => {}
                other => return named("epoll_wait", other),
            }
        }
    }

    /// Whether it is time to look for what has changed. The timer only has to be read: ticks that were missed
    /// need not be made up for.
    fn ticked(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.tick, &mut count);
        self.flushes = self.flushes.wrapping_add(1);
        self.flushes.is_multiple_of(LOOK)
    }

    fn try_run(&mut self, writer: &mut Writer<File>, table: &mut Table) -> Result<End, Failure> {
        let mut events = NOTHING;
        loop {
            let ready = self.wait(&mut events)?;
            let mut end = None;
            for event in &events[..ready] {
                match event.data.u64() {
                    TICK => {
                        if !self.control.flush() && !self.control.running() {
                            end = Some(End::Stopped);
                        }
                        if self.ticked() {
                            self.open_new()?;
                        }
                        if self.flushes.is_multiple_of(LOOK_FOR_DISKS) {
                            if let Some(disks) = table.changed() {
                                writer.chunk(ChunkType::Devices, 0, &disks)?;
                            }
                        }
                    }
                    DEADLINE => end = Some(End::Duration),
                    SIGNAL => end = Some(End::Signal),
                    COMMAND => end = Some(End::Command),
                    cpu => self.take(cpu, writer)?,
                }
            }
            self.put(writer)?;
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// Waits until the flight recorder is frozen, or freezes it because it is enough: then says why.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn wait_frozen(&mut self) -> Result<End, Failure> {
        let mut events = NOTHING;
        loop {
            let ready = self.wait(&mut events)?;
            let mut end = None;
            for event in &events[..ready] {
                end = end.or(match event.data.u64() {
                    TICK => {
                        if self.ticked() {
                            self.open_new()?;
                        }
                        None
                    }
                    DEADLINE => Some(End::Duration),
                    SIGNAL => Some(End::Signal),
                    COMMAND => Some(End::Command),
                    FREEZE => {
                        let mut signals = [0; 64];
                        if let Some(freezes) = &self.freezes {
                            let _ = rustix::io::read(freezes, &mut signals);
                        }
                        Some(End::Trigger)
                    }
                    // A CPU's data can be read.
                    _ if self.control.running() => Some(End::Trigger),
                    _ => Some(End::Stopped),
                });
            }
            if let Some(end) = end {
                // Refused if it is frozen already, which is just as well.
                let _ = self.control.command("freeze");
                return Ok(end);
            }
        }
    }

    /// Lets the flight recorder run on, once all that it kept was read.
    ///
    /// # Errors
    ///
    /// If the module refuses.
    pub fn arm(&mut self) -> Result<(), Failure> {
        self.control.command("arm")?;
        for data in &mut self.data {
            if std::mem::take(&mut data.drained) {
                let token = EventData::new_u64(data.cpu.into());
                let added = epoll::add(&self.epoll, &data.file, token, EventFlags::IN);
                named("epoll_ctl", added)?;
            }
        }
        Ok(())
    }

    /// Reads what a CPU has finished, as much as fits.
    fn take(&mut self, cpu: u64, writer: &mut Writer<File>) -> Result<(), Failure> {
        if self.buffer.len() - self.filled < self.subbuf_size {
            self.put(writer)?;
        }
        let Some(data) = self.data.iter_mut().find(|data| u64::from(data.cpu) == cpu) else {
            return Ok(());
        };
        match rustix::io::read(&data.file, &mut self.buffer[self.filled..]) {
            Ok(0) => {
                data.drained = true;
                named("epoll_ctl", epoll::delete(&self.epoll, &data.file))?;
            }
            Ok(bytes) => self.filled += bytes,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(format!("reading data{cpu}: {error}").into()),
        }
        Ok(())
    }

    /// Writes what was read.
    fn put(&mut self, writer: &mut Writer<File>) -> Result<(), Failure> {
        let bytes = &self.buffer[..self.filled];
        self.filled = 0;
        if !bytes.is_empty() {
            writer.subbufs(bytes, &mut Appended::default())?;
        }
        Ok(())
    }

    /// Stops the trace.
    pub fn stop(&mut self) {
        // It may be stopped already; what its counters say tells the rest.
        let _ = self.control.command("stop");
    }

    /// After stop, or frozen: reads and writes all that the module still holds.
    ///
    /// # Errors
    ///
    /// The error, in words, of the module or the file.
    pub fn drain(&mut self, writer: &mut Writer<File>) -> Result<(), String> {
        let mut drain = || -> Result<(), Failure> {
            self.open_new()?;
            let mut patience = self.freezes.as_ref().map_or(0, |_| FROZEN);
            for index in 0..self.data.len() {
                while !self.data[index].drained {
                    let before = self.filled;
                    self.take(self.data[index].cpu.into(), writer)?;
                    if self.filled == before && !self.data[index].drained {
                        patience = patience
                            .checked_sub(1)
                            .ok_or("the module did not hand out all it has")?;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    if self.buffer.len() - self.filled < self.subbuf_size {
                        self.put(writer)?;
                    }
                }
            }
            self.put(writer)
        };
        drain().map_err(|error| error.to_string())
    }
}
