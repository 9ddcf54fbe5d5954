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
//! | `state` | `idle` (there is no trace), `running` or `stopped` |
//! | `trace_id` | 32 hexadecimal digits; empty when idle |
//! | `clock` | `tsc` or `mono`; when idle, what a trace would use now |
//! | `khz` | its nominal rate, as in the sub-buffers' heads |
//! | `subbuf_size`, `subbufs` | bytes, and sub-buffers of each CPU; when idle, the defaults |
//! | `devices` | as they were given to `start`; empty when idle |
//! | `epoch` | configuration epoch; 0 when idle |
//! | `probes` | events that this kernel has, as `blkrelay.h` names them, with commas between |
//! | `missing` | tracepoints that this kernel lacks |
//! | `owner` | thread that started the trace; 0 when idle |
//! | `hold` | 1 if the trace ends with the file that started it |
//! | `error` | why the last command was refused; empty if it was not |
//!
//! and then, unless idle, one line for each CPU that has a stream or has lost events:
//! `cpu=N events=N lost=N produced=N consumed=N open=0|1`. Once the trace is stopped the counts are
//! exact: `events` + `lost` is what there was. `produced` and `consumed` count sub-buffers.
//!
//! The files have operations of their own with the module as their owner, so an open one keeps the
//! module. The kernel crate's debugfs files do not: their owner is NULL, and closing one after the
//! module has gone is fatal.
//!
//! Locks, outermost first: the state below, CPU hotplug, the relay core's own, the readers'
//! (`channel.rs`). A data file's operations take the last one only, because closing the channel
//! waits for them.

use crate::{
    abi,
    channel::{
        self,
        Channel,
        OpenError,
        Reader, //
    },
    clock::Clock,
    config::{
        self,
        Command,
        Devices,
        Start, //
    },
    filter::{
        Selection,
        FILTER, //
    },
    probes::Events,
    tracepoint::Probes,
    BlkRelay, //
};
use core::fmt;
use kernel::{
    bindings,
    error::from_result,
    ffi::{
        c_char,
        c_int, //
    },
    module::this_module,
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
    /// Thread that started it.
    owner: u32,
    /// The open file whose end is the trace's.
    holder: Option<usize>,
}

impl Trace {
    fn is_running(&self) -> bool {
        self.probes.is_some()
    }

    /// Ends the trace. When this returns the counters are exact and every sub-buffer is finished.
    fn stop(&mut self) {
        FILTER.close();
        // Waits for those that were in a probe already.
        self.probes = None;
        self.holder = None;
        // SAFETY: There are no probes any more.
        unsafe { self.channel.end() };
    }
}

/// The debugfs directory, with all files in it.
///
/// # Invariants
///
/// Points to a directory that this module has made.
struct Directory(*mut bindings::dentry);

// SAFETY: debugfs locks for itself.
unsafe impl Send for Directory {}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Removes what is in it as well, and waits for calls that
        // are under way.
        unsafe { bindings::debugfs_remove(self.0) };
    }
}

/// All that the files share.
struct State {
    defaults: Defaults,
    events: Events,
    directory: Option<Directory>,
    trace: Option<Trace>,
    /// Why the last command was refused; empty if it was not.
    error: Text,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised by `Files::new`, before any file exists.
    unsafe(uninit) static STATE: Mutex<State> = State {
        defaults: Defaults { subbuf_size: 0, subbufs: 0 },
        events: Events::none(),
        directory: None,
        trace: None,
        error: Text(KVec::new()),
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
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let (trace, directory) = {
            let mut state = STATE.lock();

            state.error = Text(KVec::new());
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
    Syntax(config::Error<'a>),
    Running(u32),
    NotRunning(&'static str),
    StillRead(usize),
    NoDevice(config::Device, Error),
    QueueId(config::Device, i32),
    ChannelSize(u64),
    TooLarge { needed: u64, ram: u64 },
    NoMemory,
    NoEvents,
    Probe(&'static CStr, Error),
    Flush(Error),
}

impl From<OpenError> for Refusal<'_> {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::TooLarge { needed, ram } => Self::TooLarge { needed, ram },
            OpenError::NoMemory => Self::NoMemory,
        }
    }
}

impl Refusal<'_> {
    fn errno(&self) -> Error {
        match self {
            Self::Syntax(e) if e.is_range() => ERANGE,
            Self::Syntax(_) => EINVAL,
            Self::Running(_) | Self::StillRead(_) => EBUSY,
            Self::NotRunning("stop") => EALREADY,
            Self::NotRunning(_) => EINVAL,
            Self::NoDevice(_, e) | Self::Probe(_, e) | Self::Flush(e) => *e,
            Self::QueueId(..) | Self::ChannelSize(_) => ERANGE,
            Self::TooLarge { .. } | Self::NoMemory => ENOMEM,
            Self::NoEvents => ENODEV,
        }
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => write!(f, "{error}"),
            Self::Running(pid) => {
                write!(f, "a trace is running, started by pid {pid}; stop it first")
            }
            Self::NotRunning(command) => write!(f, "{command}: no trace is running; start one"),
            Self::StillRead(count) => write!(
                f,
                "{count} data files of the last trace are open; close them first"
            ),
            Self::NoDevice(device, error) if *error == ENODEV => write!(
                f,
                "device {}:{} does not exist; see /proc/partitions for what does",
                device.major, device.minor
            ),
            Self::NoDevice(device, error) => write!(
                f,
                "device {}:{} cannot be opened: error {}; see the kernel's log",
                device.major,
                device.minor,
                error.to_errno()
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
            Self::NoMemory => f.write_str("no memory for the buffers; ask for less"),
            Self::NoEvents => {
                f.write_str("this kernel has no block tracepoints; it needs CONFIG_TRACEPOINTS")
            }
            Self::Probe(name, error) => write!(
                f,
                "tracepoint {}: error {}; is the kernel out of memory?",
                Printable(name),
                error.to_errno()
            ),
            Self::Flush(error) => write!(f, "flush: error {}; try again", error.to_errno()),
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
        match config::parse(text).map_err(Refusal::Syntax)? {
            Command::Start(start) => self.start(start, file),
            Command::Stop => self.stop(),
            Command::Flush => self.flush(),
        }
    }

    fn start<'a>(&mut self, start: Start<'a>, file: usize) -> Result<(), Refusal<'a>> {
        if let Some(trace) = self.trace.as_ref() {
            if trace.is_running() {
                return Err(Refusal::Running(trace.owner));
            }
        }
        if self.events.present().next().is_none() {
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
        Channel::fits(subbuf_size, subbufs)?;
        let queues = resolve(start.devices)?;
        let devices = match start.devices {
            Devices::All => "all",
            Devices::List(list) => list.as_str(),
        };
        let mut text = KVec::new();
        text.extend_from_slice(devices.as_bytes(), GFP_KERNEL)
            .map_err(|_| Refusal::NoMemory)?;

        // Its memory is needed for the next.
        if let Some(last) = self.trace.as_ref() {
            last.channel.retire().map_err(Refusal::StillRead)?;
            self.trace = None;
        }

        let config = channel::Config {
            subbuf_size,
            subbufs,
            trace_id: random_id(),
            clock: Clock::choose(),
        };
        // SAFETY: No trace is running, so no probe is registered.
        unsafe { abi::blkrelay_clock_use_tsc(config.clock.code() == abi::BLKRELAY_CLOCK_TSC) };
        // SAFETY: As above; the last trace's channel is closed, and the directory goes last.
        let channel = unsafe { Channel::open(directory.0, config) }?;
        let probes = self
            .events
            .register()
            .map_err(|(name, e)| Refusal::Probe(name, e))?;

        // Now that nothing can fail: readers in, and events.
        channel.admit();
        FILTER.open(match start.devices {
            Devices::All => Selection::All,
            Devices::List(_) => Selection::Queues(&queues),
        });
        self.trace = Some(Trace {
            probes: Some(probes),
            channel,
            devices: text,
            owner: current_pid(),
            holder: start.hold.then_some(file),
        });
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Refusal<'static>> {
        match self.trace.as_mut() {
            Some(trace) if trace.is_running() => {
                trace.stop();
                Ok(())
            }
            _ => Err(Refusal::NotRunning("stop")),
        }
    }

    fn flush(&mut self) -> Result<(), Refusal<'static>> {
        match self.trace.as_ref() {
            Some(trace) if trace.is_running() => trace.channel.flush().map_err(Refusal::Flush),
            _ => Err(Refusal::NotRunning("flush")),
        }
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

/// The ids of the devices' request queues.
fn resolve<'a>(devices: Devices<'a>) -> Result<KVec<u16>, Refusal<'a>> {
    let mut queues = KVec::new();
    let Devices::List(list) = devices else {
        return Ok(queues);
    };

    for device in list.iter() {
        // SAFETY: May sleep here.
        let id = unsafe { abi::blkrelay_queue_id(device.major, device.minor) };

        if id < 0 {
            let error = match Error::from_errno(id) {
                e if e == ENXIO => ENODEV,
                e => e,
            };
            return Err(Refusal::NoDevice(device, error));
        }
        let id = u16::try_from(id).map_err(|_| Refusal::QueueId(device, id))?;

        queues.push(id, GFP_KERNEL).map_err(|_| Refusal::NoMemory)?;
    }
    Ok(queues)
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

impl State {
    /// The text of `status`.
    fn describe(&self, out: &mut Text) -> fmt::Result {
        use fmt::Write;

        let (state, config) = match self.trace.as_ref() {
            None => ("idle", None),
            Some(trace) if trace.is_running() => ("running", Some(trace.channel.config())),
            Some(trace) => ("stopped", Some(trace.channel.config())),
        };
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
        write!(out, "devices=")?;
        if let Some(trace) = self.trace.as_ref() {
            out.write_str(core::str::from_utf8(&trace.devices).unwrap_or(""))?;
        }
        let epoch = if config.is_some() { channel::EPOCH } else { 0 };
        writeln!(out, "\nepoch={epoch}")?;
        out.list("probes=", self.events.present())?;
        out.list("missing=", self.events.missing().map(Printable))?;
        let owner = self.trace.as_ref().map_or(0, |t| t.owner);
        let hold = self.trace.as_ref().is_some_and(|t| t.holder.is_some());
        writeln!(out, "owner={owner}")?;
        writeln!(out, "hold={}", u8::from(hold))?;
        write!(out, "error=")?;
        out.write_str(core::str::from_utf8(&self.error.0).unwrap_or(""))?;
        writeln!(out)?;
        if let Some(trace) = self.trace.as_ref() {
            for c in trace.channel.counters() {
                writeln!(
                    out,
                    "cpu={} events={} lost={} produced={} consumed={} open={}",
                    c.cpu,
                    c.events,
                    c.lost,
                    c.produced,
                    c.consumed,
                    u8::from(c.open)
                )?;
            }
        }
        Ok(())
    }
}

// ---- The files' operations ----------------------------------------------------------------------

/// File operations in static memory.
struct Operations(bindings::file_operations);

// SAFETY: Never changed.
unsafe impl Sync for Operations {}

const OPERATIONS: bindings::file_operations = bindings::file_operations {
    owner: this_module::<BlkRelay>().as_ptr(),
    llseek: Some(bindings::noop_llseek),
    ..pin_init::zeroed()
};

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

static DATA: Operations = Operations(bindings::file_operations {
    open: Some(data_open),
    read: Some(data_read),
    poll: Some(data_poll),
    release: Some(data_release),
    ..OPERATIONS
});

fn make_directory(name: &CStr) -> Result<Directory> {
    // SAFETY: A string, and debugfs's own root.
    let dentry = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), core::ptr::null_mut()) };

    // INVARIANT: Made just now.
    Ok(Directory(kernel::error::from_err_ptr(dentry)?))
}

/// # Safety
///
/// `parent` is a debugfs directory. It goes, and takes the file with it, before the module does.
unsafe fn make_file(
    name: &CStr,
    mode: bindings::umode_t,
    parent: *mut bindings::dentry,
    data: usize,
    operations: &'static Operations,
) -> Result<*mut bindings::dentry> {
    // SAFETY: By the contract; the operations are static.
    kernel::error::from_err_ptr(unsafe {
        bindings::debugfs_create_file_full(
            name.as_char_ptr(),
            mode,
            parent,
            core::ptr::without_provenance_mut(data),
            core::ptr::null(),
            &operations.0,
        )
    })
}

/// Makes a CPU's data file. Returns null if it cannot be made.
///
/// # Safety
///
/// As [`make_file`]; `cpu` is a possible CPU.
pub(crate) unsafe fn create_data_file(
    name: &CStr,
    parent: *mut bindings::dentry,
    mode: bindings::umode_t,
    cpu: u32,
) -> *mut bindings::dentry {
    // SAFETY: By the contract.
    unsafe { make_file(name, mode, parent, cpu as usize, &DATA) }.unwrap_or(core::ptr::null_mut())
}

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
        let mut text = KVec::new();

        UserSlice::new(UserPtr::from_ptr(buffer.cast_mut().cast()), wanted)
            .read_all(&mut text, GFP_KERNEL)?;

        let mut state = STATE.lock();
        let mut reason = Text(KVec::new());
        let result = state.execute(&text, file as usize).map_err(|refusal| {
            // Out of memory: the errno must do.
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

/// A data file is opened, which makes its opener the reader of that stream.
///
/// # Safety
///
/// `open` of a file that [`create_data_file`] has made.
unsafe extern "C" fn data_open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    from_result(|| {
        // SAFETY: What `create_data_file` has put there.
        let cpu = unsafe { (*inode).i_private } as usize as u32;
        let reader = Reader::new(cpu)?;

        // SAFETY: What `open` is called with; nobody else has it yet.
        unsafe { (*file).private_data = reader.into_foreign() };
        // SAFETY: As above. It cannot fail.
        Ok(unsafe { bindings::nonseekable_open(inode, file) })
    })
}

/// A data file is read.
///
/// # Safety
///
/// `read` of a file that [`data_open`] has opened.
unsafe extern "C" fn data_read(
    file: *mut bindings::file,
    buffer: *mut c_char,
    length: usize,
    _position: *mut bindings::loff_t,
) -> isize {
    from_result(|| {
        // SAFETY: Set by `data_open`, and given back only when the file is closed.
        let reader = unsafe { <Pin<KBox<Reader>> as ForeignOwnable>::borrow((*file).private_data) };
        let mut out = UserSlice::new(UserPtr::from_ptr(buffer.cast()), length).writer();

        reader.read(&mut out).map(|copied| copied as isize)
    })
}

/// A data file is polled.
///
/// # Safety
///
/// `poll` of a file that [`data_open`] has opened.
unsafe extern "C" fn data_poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table_struct,
) -> bindings::__poll_t {
    // SAFETY: Set by `data_open`, and given back only when the file is closed.
    let reader = unsafe { <Pin<KBox<Reader>> as ForeignOwnable>::borrow((*file).private_data) };

    // SAFETY: What `poll` is called with.
    if unsafe { reader.poll(file, table) } {
        bindings::POLLIN | bindings::POLLRDNORM
    } else {
        0
    }
}

/// A data file is closed.
///
/// # Safety
///
/// `release` of a file that [`data_open`] has opened.
unsafe extern "C" fn data_release(
    _inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: Set by `data_open`; the file is not used any more.
    drop(unsafe { <Pin<KBox<Reader>> as ForeignOwnable>::from_foreign((*file).private_data) });
    0
}
