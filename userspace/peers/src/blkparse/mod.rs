// SPDX-License-Identifier: GPL-2.0
//! `blkparse` over per-CPU files: events as text, counts at the end, and the merged records.
//!
//! Function names in comments are those of blktrace 1.3.0's `blkparse.c` and `blkparse_fmt.c`.

mod format;
mod line;
mod pool;
mod stats;
mod task;

use crate::input::{self, Ahead, Fault, Merge, Stream};
use blkrelay_format::blktrace::{act, category, Header};
use format::{Formats, Shown};
use line::Line;
use pool::Pool;
use stats::{Device, Programs};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use task::Tasks;

pub use format::FormatError;

/// What blkparse is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The traces: `X` or `DIR/X` of `X.blktrace.N`; a file's own name will do.
    pub inputs: Vec<PathBuf>,
    /// `-D`: where the files are.
    pub directory: Option<PathBuf>,
    /// `-a`, `-A`: categories of which an event must have one.
    pub mask: u32,
    /// `-b`: records of a file that are read ahead.
    pub batch: usize,
    /// `-f`: how each event is shown, unless `formats` says otherwise.
    pub format: Option<Vec<u8>>,
    /// `-F`: how events of an action are shown.
    pub formats: Vec<(u8, Vec<u8>)>,
    /// `-O` turned round: text is wanted.
    pub text: bool,
    /// `-q` turned round: counts of devices and CPUs.
    pub counts: bool,
    /// `-s`: counts of programs.
    pub programs: bool,
    /// `-h`: programs by their name.
    pub by_name: bool,
    /// `-w`: from here, ns of the trace,
    pub from: u64,
    /// to here.
    pub to: u64,
    /// `-M` turned round: messages go to the binary output.
    pub messages: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            inputs: Vec::new(),
            directory: None,
            mask: u32::MAX,
            batch: 512,
            format: None,
            formats: Vec::new(),
            text: true,
            counts: true,
            programs: false,
            by_name: false,
            from: 0,
            to: u64::MAX,
            messages: true,
        }
    }
}

/// Where what is printed goes.
pub struct Outputs<'a> {
    /// Events and counts: standard output, or `-o`.
    pub text: &'a mut dyn Write,
    /// The merged records, `-d`.
    pub binary: Option<&'a mut dyn Write>,
    /// What is said of the files: standard output.
    pub said: &'a mut dyn Write,
    /// What is wrong.
    pub errors: &'a mut dyn Write,
}

/// What was printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Whether everything in the files was used.
    pub whole: bool,
}

/// What is known while records are read ahead.
struct Known<'a> {
    tasks: Tasks,
    /// Realtime at the start, seconds and ns, and CLOCK_MONOTONIC then.
    start: Option<(i64, i64, u64)>,
    names: Vec<PathBuf>,
    /// Records about the trace, as they were met, for the binary output.
    binary: Option<Vec<u8>>,
    errors: &'a mut dyn Write,
    faults: u64,
    /// Records of other CPUs than their file, by stream.
    foreign: BTreeMap<usize, u64>,
}

impl Ahead for Known<'_> {
    fn notify(&mut self, record: &Header, pdu: &[u8], swapped: bool) {
        match record.kind() {
            input::PROCESS => drop(self.tasks.learn(record.pid, pdu)),
            input::TIMESTAMP if pdu.len() == 8 => {
                let word = |at: usize| {
                    let bytes = pdu.get(at..at + 4).and_then(|b| b.try_into().ok());
                    let word = u32::from_ne_bytes(bytes.unwrap_or_default());
                    i64::from(if swapped { word.swap_bytes() } else { word })
                };
                self.start = Some((word(0), word(4), record.time));
            }
            _ => {}
        }
        if let Some(binary) = &mut self.binary {
            format::encode(binary, record, pdu);
        }
    }

    fn fault(&mut self, stream: usize, fault: Fault) {
        self.faults += 1;
        let what = match fault {
            Fault::Magic(magic) => format!("bad trace magic {magic:x}: the rest of it is left out"),
            Fault::Version(version) => {
                format!("unsupported trace version {version:x}: the rest of it is left out")
            }
            Fault::Cut => "ends within a record".to_owned(),
            // There may be very many: said once, at the end.
            Fault::Cpu(_) => return *self.foreign.entry(stream).or_default() += 1,
        };
        self.say(stream, &what);
    }
}

impl Known<'_> {
    /// Says what is wrong with a file. It cannot be said any better if the errors' own output fails.
    fn say(&mut self, stream: usize, what: &str) {
        let name = self.names.get(stream).map(|name| name.display());
        let _ = match name {
            Some(name) => writeln!(self.errors, "{name}: {what}"),
            None => writeln!(self.errors, "{what}"),
        };
    }

    /// Says how many records were left out because they are of another CPU than their file.
    fn say_foreign(&mut self) {
        for (stream, records) in std::mem::take(&mut self.foreign) {
            self.say(
                stream,
                &format!("left out, because they are of other CPUs: {records} records"),
            );
        }
    }
}

/// How a message is shown.
const MESSAGE: &str = "m";

/// Text that is collected and written in large pieces.
const PIECE: usize = 1 << 20;

/// Prints.
///
/// # Errors
///
/// If a file cannot be read, or an output not be written.
pub fn run(options: &Options, outputs: Outputs<'_>) -> io::Result<Summary> {
    let Outputs {
        text,
        mut binary,
        said,
        errors,
    } = outputs;
    let mut formats = Formats::new(options)?;
    let mut known = Known {
        tasks: Tasks::default(),
        start: None,
        names: Vec::new(),
        binary: binary.is_some().then(Vec::new),
        errors,
        faults: 0,
        foreign: BTreeMap::new(),
    };
    let mut merge = Merge::new(options.batch);
    let mut devices: Vec<Device> = Vec::new();
    for path in &options.inputs {
        let base = base(path, options.directory.as_deref());
        let name = base
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let files = input::files(&base)?;
        if files.is_empty() {
            let none = format!("No input files found for {name}");
            return Err(io::Error::new(io::ErrorKind::NotFound, none));
        }
        for (cpu, path) in files {
            let file = File::open(&path).map_err(|error| input::named(&path, &error))?;
            if file.metadata()?.len() == 0 {
                continue;
            }
            writeln!(said, "Input file {} added", path.display())?;
            known.names.push(path);
            merge.add(Stream::new(file, devices.len(), cpu), &mut known)?;
        }
        devices.push(Device::new(name));
    }
    let genesis = merge.peek().map_or(0, |(record, ..)| record.time);
    formats.set_wall(known.start.map(|(sec, nsec, at)| {
        let since = i128::from(genesis) - i128::from(at);
        i128::from(sec) * 1_000_000_000 + i128::from(nsec) + since
    }));
    let mut parse = Parse {
        options,
        genesis,
        formats: &formats,
        devices,
        programs: options.programs.then(|| Programs::new(options.by_name)),
        strange: Vec::new(),
        driver: false,
    };
    pool::with(&formats, text, |pool| {
        while let Some((record, stream, payload)) = merge.peek() {
            let (record, device, cpu) = (*record, stream.trace, stream.cpu);
            if !parse.event(record, (device, cpu), payload, &mut known, pool)? {
                break;
            }
            merge.take(&mut known)?;
            if let (Some(out), Some(bytes)) = (&mut binary, &mut known.binary) {
                if bytes.len() >= PIECE {
                    out.write_all(bytes)?;
                    bytes.clear();
                }
            }
        }
        Ok(())
    })?;
    if let (Some(out), Some(bytes)) = (binary, &known.binary) {
        out.write_all(bytes)?;
        out.flush()?;
    }
    if options.text {
        text.write_all(parse.summary().as_bytes())?;
    }
    text.flush()?;
    if parse.driver && known.binary.is_none() {
        let text = "discarded traces containing low-level device driver specific data (only available in binary output)";
        writeln!(said, "\n{text}")?;
    }
    known.say_foreign();
    for what in &parse.strange {
        writeln!(known.errors, "{what}")?;
    }
    Ok(Summary {
        whole: known.faults == 0,
    })
}

/// `DIR/X` without what tells the file of a CPU.
fn base(path: &Path, directory: Option<&Path>) -> PathBuf {
    let name = path.as_os_str().as_encoded_bytes();
    let end = name
        .windows(10)
        .position(|w| w == b".blktrace.")
        .unwrap_or(name.len());
    let text = String::from_utf8_lossy(&name[..end]).into_owned();
    match directory {
        Some(directory) if path.parent().is_none_or(|p| p.as_os_str().is_empty()) => {
            directory.join(text)
        }
        _ => PathBuf::from(text),
    }
}

struct Parse<'a> {
    options: &'a Options,
    /// Time of the first record.
    genesis: u64,
    formats: &'a Formats,
    devices: Vec<Device>,
    programs: Option<Programs>,
    strange: Vec<String>,
    /// There is driver data, which only the binary output has.
    driver: bool,
}

impl Parse<'_> {
    /// Takes an event. False if it is behind the interval that is asked for.
    #[inline]
    fn event(
        &mut self,
        mut record: Header,
        (device, cpu): (usize, u32),
        payload: &[u8],
        known: &mut Known<'_>,
        pool: &mut Pool<'_>,
    ) -> io::Result<bool> {
        record.time = record.time.wrapping_sub(self.genesis);
        let dev = &mut self.devices[device];
        dev.cpu(cpu).elements += 1;
        if record.time > self.options.to {
            return Ok(false);
        }
        dev.last = record.time;
        // The categories of zoned devices are beyond what can be asked for: they pass with all.
        let asked = match self.options.mask {
            u32::MAX => u64::MAX,
            mask => mask.into(),
        };
        if record.action & asked << 16 == 0 || record.time < self.options.from {
            return Ok(true);
        }
        if self.options.text {
            let act = if record.kind() == input::MESSAGE {
                Some(MESSAGE)
            } else {
                stats::account(dev, cpu, &record)
            };
            if let Some(act) = act {
                // Which is counted first decides whether a task without a name is shown as `unknown` already.
                let mut name = *known.tasks.name(record.pid);
                if let Some(programs) = self.programs.as_mut().filter(|_| act != MESSAGE) {
                    programs.account(&record, &mut known.tasks);
                    if !(record.has(category::PC) && (act == "Q" || act == "C")) {
                        name = *known.tasks.name(record.pid);
                    }
                }
                let shown = Shown {
                    act,
                    record,
                    cpu,
                    name,
                    payload: 0..0,
                };
                pool.push(shown, payload)?;
                record.device = self.formats.device(&record, payload);
            } else if record.act() == act::DRV_DATA && !record.has(category::PC) {
                self.driver = true;
            } else if self.strange.len() < 10 {
                self.strange.push(format!("Bad action {:x}", record.action));
            }
        }
        if dev.events == 0 {
            dev.first = record.time;
        }
        dev.events += 1;
        if let Some(binary) = &mut known.binary {
            if self.options.messages || record.kind() != input::MESSAGE {
                format::encode(binary, &record, payload);
            }
        }
        Ok(true)
    }

    /// What stands behind the events.
    fn summary(&mut self) -> Line {
        let mut line = Line::new(0);
        if let Some(programs) = &mut self.programs {
            programs.print(&mut line);
        }
        if self.options.counts {
            for (n, device) in self.devices.iter().enumerate() {
                if n > 0 {
                    line.text(b"\n");
                }
                device.print(&mut line);
            }
        }
        line
    }
}
