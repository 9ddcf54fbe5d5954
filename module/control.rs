// SPDX-License-Identifier: GPL-2.0

//! The debugfs files: `control`, `status`, and the data files' operations.
//!
//! | file | mode | what |
//! |---|---|---|
//! | `control` | 0600 | one write is one whole command, see `config.rs` |
//! | `status` | 0400 | `key=value` lines, a snapshot of the moment when it was opened |
//! | `data<CPU>` | 0400 | that CPU's finished sub-buffers, see `blkrelay.h` |
//!
//! The lines of `status`, in this order. Keys may be added; a change of meaning changes `version`.
//!
//! | key | value |
//! |---|---|
//! | `version` | of this text: 1 |
//! | `abi` | `BLKRELAY_ABI_VERSION` |
//! | `state` | `idle` (there is no trace), `running`, `frozen` (a flight recorder that was triggered) or `stopped` |
//! | `trace_id` | 32 hexadecimal digits; empty when idle |
//! | `clock` | `tsc` or `mono`; when idle, what a trace would use now |
//! | `khz` | its nominal rate, as in the sub-buffers' heads |
//! | `subbuf_size`, `subbufs` | bytes, and sub-buffers of each CPU; when idle, the defaults |
//! | `mode` | `discard` or `overwrite` (a flight recorder); empty when idle |
//! | `devices` | as they were given; empty when idle |
//! | `filter` | the other words of the filter, as they were given |
//! | `events` | events that are recorded, with commas between; empty when idle |
//! | `detail` | 1 if each Q brings its details |
//! | `span` | 1 if there is one event an I/O, made of `events` |
//! | `on_error`, `slower_us` | what triggers the flight recorder; 0 for neither |
//! | `cause` | what has triggered it: `control`, `error` or `slow`; empty if nothing has |
//! | `epoch` | configuration epoch; 0 when idle |
//! | `probes` | events that this kernel has, as `blkrelay.h` names them, with commas between |
//! | `missing` | tracepoints that this kernel lacks |
//! | `owner` | thread that started the trace; 0 when idle |
//! | `hold` | 1 if the trace ends with the file that started it |
//! | `error` | why the last command was refused; empty if it was not |
//!
//! and then, unless idle, one line for each CPU that has a stream or has lost events:
//! `cpu=N events=N lost=N produced=N consumed=N open=0|1 buffer=0|1`. Once the trace is stopped the counts
//! are exact: `events` + `lost` is what there was. `produced` and `consumed` count sub-buffers; of a flight
//! recorder those that were written over count as consumed. A CPU without a buffer, because there was no
//! memory when it came up, loses all its events.
//!
//! Locks, outermost first: the state below, a reader's turn (`reader.rs`), a flight recorder's
//! (`flight.rs`), CPU hotplug, the relay core's own, the readers' (`reader.rs`). A data file's operations
//! take the second, third and last one only, because closing the channel waits for them. What a probe, an interrupt or a work item does
//! takes none of them but CPU hotplug.

use crate::{
    abi,
    channel::{
        Channel,
        OpenError, //
    },
    clock::Clock,
    config::{
        self,
        Command,
        Devices,
        Filter,
        Mode,
        Start, //
    },
    devices::{
        self,
        Queues,
        ResolveError, //
    },
    files::{
        make_directory,
        make_file,
        Directory,
        Operations,
        OPERATIONS, //
    },
    flight::{
        self,
        Flight,
        Watch, //
    },
    probes::{
        self,
        Events,
        Recorded, //
    },
    reader,
    shared::{
        Config,
        FilterSet, //
    },
    span::Spans,
    tracepoint::Probes, //
};
use core::fmt;
use kernel::{
    bindings,
    error::from_result,
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*,
    types::ForeignOwnable,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
};

/// Version of the text of `status`. Keys may be added under one version.
const STATUS_VERSION: u32 = 1;

/// Sizes that `start` uses when it names none: the module's parameters.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    /// Bytes, a power of two.
    pub(crate) subbuf_size: u32,
    /// Sub-buffers of each CPU.
    pub(crate) subbufs: u32,
}

impl Defaults {
    /// Sizes that a command could name as well.
    pub(crate) fn new(subbuf_size: u32, subbufs: u32) -> Option<Self> {
        let valid = config::SUBBUF_SIZE.contains(&subbuf_size)
            && subbuf_size.is_power_of_two()
            && config::SUBBUFS.contains(&subbufs);

        valid.then_some(Self {
            subbuf_size,
            subbufs,
        })
    }
}

/// A trace that runs or has run.
///
/// Fields are dropped in this order: no probe runs any more when the channel goes.
struct Trace {
    /// Registered while the trace runs.
    probes: Option<Probes>,
    channel: Channel,
    /// As they were given.
    devices: KVec<u8>,
    /// The filter's other words, as they were given.
    filter: KVec<u8>,
    /// Bits of the events that are recorded.
    events: u32,
    detail: bool,
    span: bool,
    on_error: bool,
    slower_us: u32,
    /// Thread that started it.
    owner: u32,
    /// The open file whose end is the trace's.
    holder: Option<usize>,
}

impl Trace {
    /// Whether it has not been stopped: it runs or is frozen.
    fn is_running(&self) -> bool {
        self.probes.is_some()
    }

    /// The flight recorder, if it is one and has been triggered.
    fn triggered(&self) -> Option<&Flight> {
        let flight = self.channel.shared().flight()?;

        flight.trigger().map(|_| flight)
    }

    fn state(&self) -> &'static str {
        match self.triggered() {
            _ if !self.is_running() => "stopped",
            Some(flight) if flight.is_frozen() => "frozen",
            _ => "running",
        }
    }

    /// Ends the trace. When this returns the counters are exact and every sub-buffer is finished.
    fn stop(&mut self) {
        if let Some(flight) = self.channel.shared().flight() {
            flight.disarm();
        }
        self.channel.shut();
        // Waits for those that were in a probe already.
        self.probes = None;
        self.holder = None;
        // SAFETY: There are no probes any more.
        unsafe { self.channel.end() };
    }
}

/// All that the files share.
struct State {
    defaults: Defaults,
    events: Events,
    directory: Option<Directory>,
    trace: Option<Trace>,
    /// Why the last command was refused; empty if it was not.
    error: Reason,
}

/// A reason that needs no memory: that may be what it is about. What does not fit is cut off.
struct Reason {
    text: [u8; 512],
    length: usize,
}

impl Reason {
    const fn none() -> Self {
        Self {
            text: [0; 512],
            length: 0,
        }
    }

    fn as_str(&self) -> &str {
        text(self.text.get(..self.length).unwrap_or(&[]))
    }
}

impl fmt::Write for Reason {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // What is written is ASCII, so a byte is a character.
        for (slot, byte) in self.text.iter_mut().skip(self.length).zip(s.bytes()) {
            *slot = byte;
            self.length = self.length.wrapping_add(1);
        }
        Ok(())
    }
}

kernel::sync::global_lock! {
    // SAFETY: Initialised by `Files::new`, before any file exists.
    unsafe(uninit) static STATE: Mutex<State> = State {
        defaults: Defaults { subbuf_size: 0, subbufs: 0 },
        events: Events::none(),
        directory: None,
        trace: None,
        error: Reason::none(),
    };
}

/// The files, for as long as this lives.
pub(crate) struct Files(());

impl Files {
    /// Makes the directory `blkrelay` with `control` and `status` in it.
    ///
    /// # Errors
    ///
    /// What debugfs says: `EEXIST`, `ENOMEM`, `ENODEV` or `EPERM` if the kernel has or wants none.
    ///
    /// # Safety
    ///
    /// Called once, when the module is loaded, after [`channel::init`].
    pub(crate) unsafe fn new(defaults: Defaults) -> Result<Self> {
        // SAFETY: By the contract, once.
        unsafe { STATE.init() };
        // From here on, dropping this undoes all that has been done.
        let files = Self(());

        let directory = make_directory(c"blkrelay")?;
        let dentry = directory.0;
        {
            let mut state = STATE.lock();

            state.defaults = defaults;
            state.events = Events::lookup();
            state.directory = Some(directory);
        }
        // SAFETY: The directory lives until the files are dropped.
        unsafe {
            make_file(c"control", 0o600, dentry, 0, &CONTROL)?;
            make_file(c"status", 0o400, dentry, 0, &STATUS)?;
        }
        // SAFETY: Any time.
        if unsafe { abi::blkrelay_locked_down() } {
            pr_warn!("kernel lockdown: control cannot be opened, so no trace can be started\n");
        }
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let (trace, directory) = {
            let mut state = STATE.lock();

            (state.trace.take(), state.directory.take())
        };

        if let Some(mut trace) = trace {
            if trace.is_running() {
                trace.stop();
            }
        }
        // Without the lock: a file that is just being opened may be waiting for it.
        drop(directory);
    }
}

// ---- Commands -----------------------------------------------------------------------------------

/// Why a command was refused: what, where, and what to do.
enum Refusal<'a> {
    Unread(Error),
    Syntax(config::Error<'a>),
    Running(u32),
    NotRunning(&'static str),
    Stopped,
    NoFlight(&'static str),
    Flight(&'static str),
    Frozen(&'static str),
    AlreadyFrozen,
    NotFrozen,
    Deaf {
        trigger: &'static str,
        needs: &'static str,
    },
    StillRead(usize),
    NoDevice(config::Device),
    QueueId(config::Device, i32),
    ChannelSize(u64),
    TooLarge {
        needed: u64,
        ram: u64,
    },
    NoMemory,
    NoEvents,
    Probe(&'static CStr, Error),
}

impl From<OpenError> for Refusal<'_> {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::TooLarge { needed, ram } => Self::TooLarge { needed, ram },
            OpenError::NoMemory => Self::NoMemory,
        }
    }
}

impl From<ResolveError> for Refusal<'_> {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::NoDevice(device) => Self::NoDevice(device),
            ResolveError::QueueId(device, id) => Self::QueueId(device, id),
            ResolveError::NoMemory => Self::NoMemory,
        }
    }
}

impl From<Error> for Refusal<'_> {
    /// Of an allocation of the control path's own.
    fn from(_: Error) -> Self {
        Self::NoMemory
    }
}

impl Refusal<'_> {
    fn errno(&self) -> Error {
        match self {
            Self::Unread(e) => *e,
            Self::Syntax(e) if e.is_range() => ERANGE,
            Self::Syntax(_) => EINVAL,
            Self::Running(_) | Self::StillRead(_) => EBUSY,
            Self::Stopped | Self::AlreadyFrozen => EALREADY,
            Self::NotRunning(_)
            | Self::NoFlight(_)
            | Self::Flight(_)
            | Self::Frozen(_)
            | Self::NotFrozen
            | Self::Deaf { .. } => EINVAL,
            Self::NoDevice(_) => ENODEV,
            Self::Probe(_, e) => *e,
            Self::QueueId(..) | Self::ChannelSize(_) => ERANGE,
            Self::TooLarge { .. } | Self::NoMemory => ENOMEM,
            Self::NoEvents => ENODEV,
        }
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(error) => write!(
                f,
                "the command could not be read: error {}; try again",
                error.to_errno()
            ),
            Self::Syntax(error) => write!(f, "{error}"),
            Self::Running(pid) => {
                write!(f, "a trace is running, started by pid {pid}; stop it first")
            }
            Self::NotRunning(command) => write!(f, "{command}: no trace is running; start one"),
            Self::Stopped => f.write_str("stop: no trace is running; start one"),
            Self::AlreadyFrozen => {
                f.write_str("freeze: the flight recorder is frozen; arm or stop it")
            }
            Self::Deaf { trigger, needs } => {
                write!(f, "{trigger} needs the events {needs}; add them to events=")
            }
            Self::NoFlight(command) => {
                write!(
                    f,
                    "{command}: the trace is no flight recorder; start one with mode=overwrite"
                )
            }
            Self::Flight(command) => {
                write!(f, "{command}: not of a flight recorder; freeze or stop it")
            }
            Self::Frozen(command) => {
                write!(
                    f,
                    "{command}: the flight recorder is frozen; arm or stop it"
                )
            }
            Self::NotFrozen => {
                f.write_str("arm: the flight recorder is not frozen; freeze it first")
            }
            Self::StillRead(count) => write!(
                f,
                "{count} data files of the last trace are open; close them first"
            ),
            Self::NoDevice(device) => write!(
                f,
                "device {}:{} does not exist; see /proc/partitions for what does",
                device.major, device.minor
            ),
            Self::QueueId(device, id) => write!(
                f,
                "device {}:{}: queue id {id} does not fit into a record; it cannot be traced",
                device.major, device.minor
            ),
            Self::ChannelSize(bytes) => write!(
                f,
                "{bytes} bytes of buffer for each CPU are too many; at most 4294967295"
            ),
            Self::TooLarge { needed, ram } => write!(
                f,
                "{needed} bytes of buffers are over half of {ram} bytes of memory; ask for less"
            ),
            Self::NoMemory => f.write_str("no memory; ask for smaller buffers, or free some"),
            Self::NoEvents => {
                f.write_str("this kernel has none of these events; see probes= for what it has")
            }
            Self::Probe(name, error) => write!(
                f,
                "tracepoint {}: error {}; is the kernel out of memory?",
                Printable(name),
                error.to_errno()
            ),
        }
    }
}

/// A constant string of the kernel's, as text.
struct Printable(&'static CStr);

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or(""))
    }
}

impl State {
    /// Carries out one command. `file` tells the open file through which it came from all others.
    fn execute<'a>(&mut self, text: &'a [u8], file: usize) -> Result<(), Refusal<'a>> {
        match config::parse(text, &probes::NAMES).map_err(Refusal::Syntax)? {
            Command::Start(start) => self.start(start, text, file),
            Command::Filter(filter) => self.filter(filter, text),
            Command::Freeze => self.freeze(),
            Command::Arm => self.arm(),
            Command::Stop => self.stop(),
            Command::Flush => self.flush(),
        }
    }

    fn start<'a>(
        &mut self,
        start: Start<'a>,
        words: &'a [u8],
        file: usize,
    ) -> Result<(), Refusal<'a>> {
        if let Some(trace) = self.trace.as_ref() {
            if trace.is_running() {
                return Err(Refusal::Running(trace.owner));
            }
        }
        let events = match start.span {
            true => probes::spans(),
            false => probes::wanted(start.events),
        };
        if self.events.chosen(events).next().is_none() {
            return Err(Refusal::NoEvents);
        }
        let Some(directory) = self.directory.as_ref() else {
            return Err(Refusal::NoMemory);
        };

        // Whatever can fail without touching the last trace comes first.
        let subbuf_size = start.subbuf_size.unwrap_or(self.defaults.subbuf_size);
        let subbufs = start.subbufs.unwrap_or(self.defaults.subbufs);
        let bytes = u64::from(subbuf_size).saturating_mul(u64::from(subbufs));
        if bytes > u64::from(u32::MAX) {
            return Err(Refusal::ChannelSize(bytes));
        }
        let needed = Channel::fits(subbuf_size, subbufs)?;
        let last = self.trace.as_ref().map_or(0, |last| last.channel.bytes());
        // SAFETY: Reads counters.
        if needed > unsafe { abi::blkrelay_available_bytes() }.saturating_add(last) {
            return Err(Refusal::NoMemory);
        }
        deaf(&start, events)?;
        let queues = Queues::new()?;
        let places = devices::resolve(start.filter.devices, &queues)?;
        let spans = match start.span {
            true => Some(Spans::new()?),
            false => None,
        };
        if let Some(spans) = spans.as_ref().filter(|_| places.is_some()) {
            spans.prepare(&queues, false)?;
        }
        let set = FilterSet::new(&start.filter, places)?;
        let clock = Clock::choose();
        let flight = match start.mode {
            Mode::Discard => None,
            Mode::Overwrite => {
                let watch = Watch {
                    on_error: start.on_error,
                    slower: start.slower_us.map(|us| clock.ticks(us)),
                };

                Some(KBox::pin_init(Flight::new(watch, start.span), GFP_KERNEL)?)
            }
        };
        let texts = (devices_text(start.filter.devices)?, filter_text(words)?);

        // Its memory is needed for the next.
        if self.trace.is_some() {
            reader::retire().map_err(Refusal::StillRead)?;
            self.trace = None;
        }

        let config = Config {
            subbuf_size,
            subbufs,
            mode: start.mode,
            trace_id: random_id(),
            clock,
            names: start.span || events & probes::named(&["Q"]) != 0,
        };
        // SAFETY: No trace is running, so no probe is registered.
        unsafe { abi::blkrelay_clock_use_tsc(config.clock.code() == abi::BLKRELAY_CLOCK_TSC) };
        // SAFETY: As above; the last trace's channel is closed, and the directory goes last.
        let channel = unsafe { Channel::open(directory.0, config, queues, spans, flight, set) }?;
        let shared = channel.shared();

        if let Some(spans) = &shared.spans {
            if start.filter.devices == Devices::All {
                // Disks that come find the channel from here on, so none comes in between.
                spans.prepare(&shared.queues, true)?;
            }
        }
        let probes = self
            .events
            .register(events, recorded(&start))
            .map_err(|(name, e)| Refusal::Probe(name, e))?;

        // Now that nothing can fail.
        channel.run();
        self.trace = Some(Trace {
            probes: Some(probes),
            channel,
            devices: texts.0,
            filter: texts.1,
            events,
            detail: start.detail,
            span: start.span,
            on_error: start.on_error,
            slower_us: start.slower_us.unwrap_or(0),
            owner: current_pid(),
            holder: start.hold.then_some(file),
        });
        Ok(())
    }

    /// The trace that a command is for.
    fn running(&mut self, command: &'static str) -> Result<&mut Trace, Refusal<'static>> {
        match self.trace.as_mut() {
            Some(trace) if trace.is_running() => Ok(trace),
            _ => Err(Refusal::NotRunning(command)),
        }
    }

    fn filter<'a>(&mut self, filter: Filter<'a>, words: &'a [u8]) -> Result<(), Refusal<'a>> {
        let trace = self.running("filter")?;

        if trace.triggered().is_some() {
            return Err(Refusal::Frozen("filter"));
        }
        let shared = trace.channel.shared();
        let places = devices::resolve(filter.devices, &shared.queues)?;
        if let Some(spans) = &shared.spans {
            spans.prepare(&shared.queues, places.is_none())?;
        }
        let set = FilterSet::new(&filter, places)?;
        let texts = (devices_text(filter.devices)?, filter_text(words)?);

        trace.channel.set_filter(set);
        (trace.devices, trace.filter) = texts;
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), Refusal<'static>> {
        let trace = self.running("freeze")?;

        if trace.channel.config().mode != Mode::Overwrite {
            return Err(Refusal::NoFlight("freeze"));
        }
        let frozen = trace.triggered().is_some();

        flight::freeze_now(trace.channel.shared());
        if frozen {
            return Err(Refusal::AlreadyFrozen);
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<(), Refusal<'static>> {
        let trace = self.running("arm")?;

        if trace.channel.config().mode != Mode::Overwrite {
            return Err(Refusal::NoFlight("arm"));
        }
        if !trace.triggered().is_some_and(|flight| flight.is_frozen()) {
            return Err(Refusal::NotFrozen);
        }
        trace.channel.arm();
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Refusal<'static>> {
        self.running("stop").map_err(|_| Refusal::Stopped)?.stop();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Refusal<'static>> {
        let trace = self.running("flush")?;

        if trace.channel.config().mode != Mode::Discard {
            return Err(Refusal::Flight("flush"));
        }
        trace.channel.flush();
        Ok(())
    }

    /// The open file is closed.
    fn released(&mut self, file: usize) {
        if let Some(trace) = self.trace.as_mut() {
            if trace.is_running() && trace.holder == Some(file) {
                trace.stop();
            }
        }
    }
}

/// What is recorded of the events.
fn recorded(start: &Start<'_>) -> Recorded {
    match (start.span, start.detail) {
        (true, _) => Recorded::Spans,
        (false, true) => Recorded::Details,
        (false, false) => Recorded::Events,
    }
}

/// Whether a trigger waits for events that nobody records.
fn deaf(start: &Start<'_>, events: u32) -> Result<(), Refusal<'static>> {
    let has = |names: &[&str]| {
        let mask = probes::named(names);

        events & mask == mask
    };

    if start.on_error && !has(&["C"]) && !has(&["BIO_C"]) {
        return Err(Refusal::Deaf {
            trigger: "on_error",
            needs: "C or BIO_C",
        });
    }
    if start.slower_us.is_some() && !has(&["D", "C"]) && !has(&["Q", "BIO_C"]) {
        return Err(Refusal::Deaf {
            trigger: "slower_us",
            needs: "D and C, or Q and BIO_C",
        });
    }
    Ok(())
}

/// The devices as they were given.
fn devices_text(devices: Devices<'_>) -> Result<KVec<u8>> {
    let mut text = KVec::new();
    let words = match devices {
        Devices::All => "all",
        Devices::List(list) => list.as_str(),
    };

    text.extend_from_slice(words.as_bytes(), GFP_KERNEL)?;
    Ok(text)
}

/// The words of the filter but for the devices, as they were given.
fn filter_text(command: &[u8]) -> Result<KVec<u8>> {
    let mut text = KVec::new();

    for word in config::filter_words(command) {
        if !text.is_empty() {
            text.push(b' ', GFP_KERNEL)?;
        }
        text.extend_from_slice(word.as_bytes(), GFP_KERNEL)?;
    }
    Ok(text)
}

fn random_id() -> [u8; 16] {
    let mut id = [0u8; 16];

    // SAFETY: Fills in as many bytes as there are.
    unsafe { bindings::get_random_bytes((&raw mut id).cast(), id.len()) };
    id
}

fn current_pid() -> u32 {
    // SAFETY: Process context.
    unsafe { abi::blkrelay_current_pid() }
}

// ---- Text ---------------------------------------------------------------------------------------

/// Text that grows. What no memory is left for is an error.
struct Text(KVec<u8>);

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0
            .extend_from_slice(s.as_bytes(), GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

impl Text {
    fn list<T: fmt::Display>(&mut self, key: &str, items: impl Iterator<Item = T>) -> fmt::Result {
        let mut comma = "";

        fmt::Write::write_str(self, key)?;
        for item in items {
            fmt::Write::write_fmt(self, format_args!("{comma}{item}"))?;
            comma = ",";
        }
        fmt::Write::write_str(self, "\n")
    }
}

/// What is only ever text.
fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or("")
}

impl State {
    /// The text of `status`.
    fn describe(&self, out: &mut Text) -> fmt::Result {
        use fmt::Write;

        let trace = self.trace.as_ref();
        let state = trace.map_or("idle", Trace::state);
        let config = trace.map(|t| t.channel.config());
        // Without a trace: what one would be made with now.
        let clock = config.map_or_else(Clock::choose, |c| c.clock);
        let subbuf_size = config.map_or(self.defaults.subbuf_size, |c| c.subbuf_size);
        let subbufs = config.map_or(self.defaults.subbufs, |c| c.subbufs);

        writeln!(out, "version={STATUS_VERSION}")?;
        writeln!(out, "abi={}", abi::BLKRELAY_ABI_VERSION)?;
        writeln!(out, "state={state}")?;
        write!(out, "trace_id=")?;
        for byte in config.iter().flat_map(|c| c.trace_id) {
            write!(out, "{byte:02x}")?;
        }
        writeln!(out, "\nclock={}", clock.name())?;
        writeln!(out, "khz={}", clock.khz())?;
        writeln!(out, "subbuf_size={subbuf_size}")?;
        writeln!(out, "subbufs={subbufs}")?;
        writeln!(out, "mode={}", config.map_or("", |c| c.mode.name()))?;
        writeln!(out, "devices={}", trace.map_or("", |t| text(&t.devices)))?;
        writeln!(out, "filter={}", trace.map_or("", |t| text(&t.filter)))?;
        let events = trace.map_or(0, |t| t.events);
        out.list("events=", self.events.chosen(events))?;
        writeln!(out, "detail={}", u8::from(trace.is_some_and(|t| t.detail)))?;
        writeln!(out, "span={}", u8::from(trace.is_some_and(|t| t.span)))?;
        let on_error = trace.is_some_and(|t| t.on_error);
        writeln!(out, "on_error={}", u8::from(on_error))?;
        writeln!(out, "slower_us={}", trace.map_or(0, |t| t.slower_us))?;
        let trigger = trace.and_then(|t| t.channel.shared().flight()?.trigger());
        let cause = match trigger.map(|t| t.cause) {
            None => "",
            Some(abi::BLKRELAY_CAUSE_ERROR) => "error",
            Some(abi::BLKRELAY_CAUSE_SLOW) => "slow",
            Some(_) => "control",
        };
        writeln!(out, "cause={cause}")?;
        writeln!(out, "epoch={}", trace.map_or(0, |t| t.channel.epoch()))?;
        out.list("probes=", self.events.present())?;
        out.list("missing=", self.events.missing().map(Printable))?;
        let owner = trace.map_or(0, |t| t.owner);
        let hold = trace.is_some_and(|t| t.holder.is_some());
        writeln!(out, "owner={owner}")?;
        writeln!(out, "hold={}", u8::from(hold))?;
        writeln!(out, "error={}", self.error.as_str())?;
        if let Some(trace) = trace {
            for c in trace.channel.counters() {
                writeln!(
                    out,
                    "cpu={} events={} lost={} produced={} consumed={} open={} buffer={}",
                    c.cpu,
                    c.events,
                    c.lost,
                    c.produced,
                    c.consumed,
                    u8::from(c.open),
                    u8::from(c.buffer)
                )?;
            }
        }
        Ok(())
    }
}

// ---- The files' operations ----------------------------------------------------------------------

static CONTROL: Operations = Operations(bindings::file_operations {
    open: Some(control_open),
    write: Some(control_write),
    release: Some(control_release),
    ..OPERATIONS
});

static STATUS: Operations = Operations(bindings::file_operations {
    open: Some(status_open),
    read: Some(status_read),
    llseek: Some(bindings::default_llseek),
    release: Some(status_release),
    ..OPERATIONS
});

/// A command of so many bytes needs no memory to be read. Those that end a trace or hold it are shorter:
/// memory may be what there is too little of.
const SHORT: usize = 64;

/// `control` is opened.
///
/// # Safety
///
/// `open` of a file with these operations.
unsafe extern "C" fn control_open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: What `open` is called with.
    unsafe { bindings::nonseekable_open(inode, file) }
}

/// A command is written.
///
/// # Safety
///
/// `write` of a file with these operations.
unsafe extern "C" fn control_write(
    file: *mut bindings::file,
    buffer: *const c_char,
    length: usize,
    _position: *mut bindings::loff_t,
) -> isize {
    from_result(|| {
        // One byte more than allowed is enough to see that it is too long.
        let wanted = length.min(config::MAX_COMMAND.wrapping_add(1));
        let mut reader =
            UserSlice::new(UserPtr::from_ptr(buffer.cast_mut().cast()), wanted).reader();
        let mut short = [0; SHORT];
        let mut long = KVec::new();
        let read: Result<&[u8]> = match short.get_mut(..wanted) {
            Some(text) => reader.read_slice(text).map(|()| &*text),
            None => reader.read_all(&mut long, GFP_KERNEL).map(|()| &*long),
        };

        let mut state = STATE.lock();
        let mut reason = Reason::none();
        let result = match read {
            Ok(text) => state.execute(text, file as usize),
            Err(error) => Err(Refusal::Unread(error)),
        };
        let result = result.map_err(|refusal| {
            // It takes whatever is written.
            let _ = fmt::Write::write_fmt(&mut reason, format_args!("{refusal}"));
            refusal.errno()
        });

        state.error = reason;
        result.map(|()| length as isize)
    })
}

/// `control` is closed, by whatever end its last holder came to.
///
/// # Safety
///
/// `release` of a file with these operations.
unsafe extern "C" fn control_release(
    _inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    STATE.lock().released(file as usize);
    0
}

/// `status` is opened: this is the moment that its text is of.
///
/// # Safety
///
/// `open` of a file with these operations.
unsafe extern "C" fn status_open(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    from_result(|| {
        let mut text = Text(KVec::new());

        STATE.lock().describe(&mut text).map_err(|_| ENOMEM)?;
        let text = KBox::new(text, GFP_KERNEL)?;

        // SAFETY: What `open` is called with; nobody else has it yet.
        unsafe { (*file).private_data = text.into_foreign() };
        Ok(0)
    })
}

/// `status` is read.
///
/// # Safety
///
/// `read` of a file that [`status_open`] has opened.
unsafe extern "C" fn status_read(
    file: *mut bindings::file,
    buffer: *mut c_char,
    length: usize,
    position: *mut bindings::loff_t,
) -> isize {
    // SAFETY: Set by `status_open`, and given back only when the file is closed.
    let text = unsafe { <KBox<Text> as ForeignOwnable>::borrow((*file).private_data) };

    // SAFETY: As much as there is, to where `read` wants it.
    unsafe {
        bindings::simple_read_from_buffer(
            buffer.cast(),
            length,
            position,
            text.0.as_ptr().cast(),
            text.0.len(),
        )
    }
}

/// `status` is closed.
///
/// # Safety
///
/// `release` of a file that [`status_open`] has opened.
unsafe extern "C" fn status_release(
    _inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: Set by `status_open`; the file is not used any more.
    drop(unsafe { <KBox<Text> as ForeignOwnable>::from_foreign((*file).private_data) });
    0
}
