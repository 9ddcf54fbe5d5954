// SPDX-License-Identifier: GPL-2.0
//! The loop that moves finished sub-buffers from the module into the file.
//!
//! What it does for each byte is part of the cost of tracing: one copy into the buffer by `read`, one
//! checksum, one copy into the file by `writev`. Records are not looked at.

use super::command::Running;
use crate::module::{Control, Module};
use crate::Failure;
use blkrelay_format::{Appended, End, Writer};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use signal_hook::consts::{SIGINT, SIGTERM};
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

/// Every so many flushes we look for the data files of CPUs that came online. Nothing tells of them: a
/// kernel need not have inotify.
const LOOK: u32 = 5;

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
    pub fn new(module: &Module, duration: Option<Duration>) -> Result<Capture, Failure> {
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (signals, signals_in) = named("pipe", pipe)?;
        for signal in [SIGINT, SIGTERM] {
            let end = named("dup", signals_in.try_clone())?;
            named(
                "sigaction",
                signal_hook::low_level::pipe::register(signal, end),
            )?;
        }
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
            flushes: 0,
            data: Vec::new(),
            buffer: Vec::new(),
            filled: 0,
            subbuf_size: 0,
        };
        capture.add(&capture.tick, TICK)?;
        capture.add(&capture.signals, SIGNAL)?;
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
    pub fn run(&mut self, writer: &mut Writer<File>) -> End {
        match self.try_run(writer) {
            Ok(end) => end,
            Err(error) => End::Error(error.to_string()),
        }
    }

    fn try_run(&mut self, writer: &mut Writer<File>) -> Result<End, Failure> {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 32];
        loop {
            let ready = match epoll::wait(&self.epoll, &mut events, None) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return named("epoll_wait", Err(error)),
            };
            let mut end = None;
            for event in &events[..ready] {
                match event.data.u64() {
                    TICK => {
                        // It only has to be read: one flush makes up for ticks that were missed.
                        let mut count = [0; 8];
                        let _ = rustix::io::read(&self.tick, &mut count);
                        if !self.control.flush() && !self.control.running() {
                            end = Some(End::Stopped);
                        }
                        self.flushes = self.flushes.wrapping_add(1);
                        if self.flushes.is_multiple_of(LOOK) {
                            self.open_new()?;
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

    /// After stop: reads and writes all that the module still holds.
    ///
    /// # Errors
    ///
    /// The error, in words, of the module or the file.
    pub fn drain(&mut self, writer: &mut Writer<File>) -> Result<(), String> {
        let mut drain = || -> Result<(), Failure> {
            self.open_new()?;
            for index in 0..self.data.len() {
                while !self.data[index].drained {
                    let before = self.filled;
                    self.take(self.data[index].cpu.into(), writer)?;
                    if self.filled == before && !self.data[index].drained {
                        return Err("the module did not hand out all it has".into());
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
