// SPDX-License-Identifier: GPL-2.0
//! What the agent does inside the guest: counting windows and small, fixed block I/O.
//!
//! In count mode QEMU advances the guest's TSC by one for each instruction, so a window between two
//! readings of it is a count, as long as the guest was never idle in between: idle time moves the clock
//! without instructions. Every window says how often it was idle, and fails if it was.

use crate::marker::{Mark, OPCODE};
use anyhow::{bail, Context, Result};
use blkrelay_format::blktrace;
use blkrelay_trace::Dev;
use io_uring::{opcode, types, IoUring};
use nix::libc;
use rand_pcg::rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The TSC. In count mode: instructions executed since the machine was switched on.
pub fn ticks() -> u64 {
    // SAFETY: RDTSC is there on every x86-64 and reads a counter, nothing else; user space may execute
    // it unless the process asked the kernel otherwise (prctl PR_SET_TSC), which this one does not.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Tells the plugin where the program is, if there is one; one instruction that does nothing, see
/// [`crate::marker`]. `D` is [`Mark::displacement`].
#[inline(always)]
fn mark<const D: u32>() {
    // SAFETY: A NOP with a memory operand, which is not accessed.
    unsafe {
        core::arch::asm!(
            ".byte {0}, {1}, {2}, {3}",
            ".long {4}",
            const OPCODE[0],
            const OPCODE[1],
            const OPCODE[2],
            const OPCODE[3],
            const D,
            options(nomem, nostack, preserves_flags)
        );
    }
}

/// How many times the CPUs went idle since boot, from the `idle_calls` lines of /proc/timer_list.
///
/// # Errors
///
/// When the file is not there or the kernel does not count (no NO_HZ_IDLE, or not switched to it).
pub fn idle_calls() -> Result<u64> {
    const FILE: &str = "/proc/timer_list";
    let text = std::fs::read_to_string(FILE).with_context(|| format!("{FILE}: run as root"))?;
    parse_idle_calls(&text).with_context(|| format!("{FILE}: no idle_calls: boot without nohz=off"))
}

fn parse_idle_calls(timer_list: &str) -> Option<u64> {
    let mut sum = None;
    let mut counting = false;
    for line in timer_list.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key.trim() {
            // Stands before idle_calls of the same CPU. 0: idle periods are not counted.
            ".nohz" => counting = value == "1",
            ".idle_calls" if counting => {
                *sum.get_or_insert(0) += value.parse::<u64>().ok()?;
            }
            ".idle_calls" => return None,
            _ => {}
        }
    }
    sum
}

/// Bytes that files occupy. On tmpfs this tells how far a reader that writes through mmap has come;
/// its file's size does not. A file that is not there yet occupies nothing.
pub fn occupied(files: &[PathBuf]) -> u64 {
    files
        .iter()
        .filter_map(|f| std::fs::metadata(f).ok())
        .map(|m| m.blocks() * 512)
        .sum()
}

/// An open counting window. What opening and closing cost stands outside of it.
pub struct Window<'a> {
    name: &'a str,
    sinks: &'a [PathBuf],
    idle: u64,
    written: u64,
    start: u64,
}

/// A closed window, printed as a `@result` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Name, a word.
    pub name: String,
    /// TSC ticks; in count mode guest instructions.
    pub ticks: u64,
    /// Times that a CPU went idle.
    pub idle: u64,
    /// Bytes by which the sinks grew.
    pub written: u64,
    /// Bytes that the sinks occupied at the end.
    pub occupied: u64,
    /// I/Os that the window says it did; 0 if it does not know.
    pub ios: u64,
}

impl<'a> Window<'a> {
    /// Opens a window; `sinks` are files whose growth in the window is reported.
    ///
    /// # Errors
    ///
    /// See [`idle_calls`].
    pub fn open(name: &'a str, sinks: &'a [PathBuf]) -> Result<Self> {
        let written = occupied(sinks);
        let idle = idle_calls()?;
        Ok(Self {
            name,
            sinks,
            idle,
            written,
            start: ticks(),
        })
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// See [`idle_calls`].
    pub fn close(self, ios: u64) -> Result<Count> {
        let end = ticks();
        let idle = idle_calls()?;
        let occupied = occupied(self.sinks);
        Ok(Count {
            name: self.name.to_owned(),
            ticks: end - self.start,
            idle: idle - self.idle,
            written: occupied.saturating_sub(self.written),
            occupied,
            ios,
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "@result window={} ticks={} idle={} written={} occupied={} ios={}",
            self.name, self.ticks, self.idle, self.written, self.occupied, self.ios
        )
    }
}

impl Count {
    /// Fails if the window was idle, since then its ticks are no instructions.
    ///
    /// # Errors
    ///
    /// Names the window and says how often.
    pub fn check(&self) -> Result<()> {
        if self.idle != 0 {
            bail!(
                "window {}: the CPU was idle {} times, and idle time counts as instructions",
                self.name,
                self.idle
            );
        }
        Ok(())
    }
}

/// Runs a command within a window.
///
/// # Errors
///
/// When it cannot be started, and see [`idle_calls`].
pub fn run(name: &str, sinks: &[PathBuf], command: &[String]) -> Result<(Count, ExitStatus)> {
    let (program, args) = command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(args);
    let window = Window::open(name, sinks)?;
    let status = command.status();
    let count = window.close(0)?;
    Ok((count, status.with_context(|| program.clone())?))
}

/// A window around a loop of two instructions: what its ticks must be is known.
///
/// # Errors
///
/// See [`idle_calls`].
pub fn known_loop(rounds: u64) -> Result<Count> {
    let window = Window::open("loop", &[])?;
    // SAFETY: counts a register down to zero and touches nothing else; `max` keeps it from wrapping.
    unsafe {
        core::arch::asm!(
            "2: dec {n}",
            "jnz 2b",
            n = inout(reg) rounds.max(1) => _,
            options(nomem, nostack)
        );
    }
    window.close(0)
}

/// The unit in which direct I/O is done.
pub const BLOCK: usize = 4096;

/// A buffer that O_DIRECT takes on any device.
#[repr(align(4096))]
struct Page([u8; BLOCK]);

/// 4 KiB O_DIRECT reads one after the other from the start of a device: `warm` outside, then `count`
/// within a window. Marks show the plugin the window and each read.
///
/// # Errors
///
/// When the device does not open, is smaller, or fails a read.
pub fn read4k(dev: &Path, warm: u64, count: u64, sinks: &[PathBuf]) -> Result<Count> {
    // O_NOATIME: whether an access time is due depends on the wall clock, and costs 160 instructions.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_NOATIME)
        .open(dev)
        .with_context(|| dev.display().to_string())?;
    let mut page = Box::new(Page([0; BLOCK]));
    let mut read = |i: u64| file.read_exact_at(&mut page.0, i * BLOCK as u64);
    mark::<{ Mark::Arm.displacement() }>();
    for i in 0..warm {
        mark::<{ Mark::Iteration.displacement() }>();
        read(i).with_context(|| dev.display().to_string())?;
    }
    let window = Window::open("read4k", sinks)?;
    mark::<{ Mark::Begin.displacement() }>();
    let mut done = Ok(());
    for i in 0..count {
        mark::<{ Mark::Iteration.displacement() }>();
        done = read(i);
        if done.is_err() {
            break;
        }
    }
    mark::<{ Mark::End.displacement() }>();
    let counted = window.close(count)?;
    done.with_context(|| dev.display().to_string())?;
    Ok(counted)
}

/// The number of a block device.
///
/// # Errors
///
/// When there is no such file.
pub fn device(path: &Path) -> Result<Dev> {
    let number = std::fs::metadata(path)
        .with_context(|| path.display().to_string())?
        .rdev();
    Ok(Dev {
        major: libc::major(number),
        minor: libc::minor(number),
    })
}

/// Number of block events in files of blktrace.
///
/// # Errors
///
/// When a file cannot be read or is not blktrace's.
pub fn count_blktrace(files: &[PathBuf]) -> Result<u64> {
    let mut events = 0;
    for path in files {
        let data = std::fs::read(path).with_context(|| path.display().to_string())?;
        for event in blktrace::Reader::new(&data) {
            let event = event.with_context(|| path.display().to_string())?;
            events += u64::from(event.notify().is_none());
        }
    }
    Ok(events)
}

/// Which direction [`io`] goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Op {
    /// pread
    Read,
    /// pwrite
    Write,
}

/// A fixed sequence of I/Os on one file or device.
#[derive(Debug, Clone, clap::Args)]
pub struct Io {
    /// The file or device
    #[arg(long)]
    pub dev: PathBuf,
    /// Read or write
    #[arg(long, value_enum, default_value = "read")]
    pub op: Op,
    /// Number of I/Os
    #[arg(long)]
    pub count: u64,
    /// Bytes of each, a multiple of 512
    #[arg(long, default_value_t = BLOCK)]
    pub size: usize,
    /// Bytes before the first
    #[arg(long, default_value_t = 0)]
    pub offset: u64,
    /// Bytes from one to the next; its size if not given. Negative goes down from OFFSET
    #[arg(long, allow_hyphen_values = true)]
    pub stride: Option<i64>,
    /// Places drawn by this seed within COUNT sizes after OFFSET instead of one after the other
    #[arg(long)]
    pub random: Option<u64>,
    /// O_DIRECT
    #[arg(long)]
    pub direct: bool,
    /// O_DSYNC
    #[arg(long)]
    pub dsync: bool,
    /// So many at once, submitted together through io_uring in the order given, and waited for
    #[arg(long, default_value_t = 1)]
    pub batch: u32,
    /// RWF_NOWAIT, with --batch: an I/O that would have to wait is left out; prints how many were
    #[arg(long)]
    pub nowait: bool,
    /// fsync after every so many, 0 never
    #[arg(long, default_value_t = 0)]
    pub fsync: u64,
}

/// Does the I/Os of `io`. Data written is the number of the block, so that it can be told.
///
/// # Errors
///
/// When the file does not open or an I/O fails or is cut short.
pub fn io(io: &Io) -> Result<()> {
    let name = || io.dev.display().to_string();
    let mut flags = 0;
    if io.direct {
        flags |= libc::O_DIRECT;
    }
    if io.dsync {
        flags |= libc::O_DSYNC;
    }
    let file: File = OpenOptions::new()
        .read(true)
        .write(io.op == Op::Write)
        .custom_flags(flags)
        .open(&io.dev)
        .with_context(name)?;
    if io.size == 0 || !io.size.is_multiple_of(512) {
        bail!("--size {}: want a multiple of 512", io.size);
    }
    if io.batch == 0 {
        bail!("--batch 0: want at least 1");
    }
    // Pages, not bytes: the allocation is aligned as O_DIRECT needs it.
    let pages = io.size.div_ceil(BLOCK);
    let mut buffers: Vec<Vec<Page>> = (0..io.batch)
        .map(|_| (0..pages).map(|_| Page([0; BLOCK])).collect())
        .collect();
    let mut ring = if io.batch > 1 {
        Some(IoUring::new(io.batch).context("io_uring")?)
    } else {
        None
    };
    // A generator whose sequence is part of its definition: the same places with every release.
    let mut places = Pcg64Mcg::seed_from_u64(io.random.unwrap_or(0));
    let mut done = 0;
    let mut again = 0;
    while done < io.count {
        let now = (io.count - done).min(io.batch.into());
        let mut at = Vec::new();
        for (i, buffer) in (done..done + now).zip(&mut buffers) {
            let place = match io.random {
                None => {
                    let stride = io.stride.unwrap_or(io.size as i64);
                    io.offset
                        .checked_add_signed(stride * i as i64)
                        .context("--stride goes below the start of the device")?
                }
                Some(_) => io.offset + places.next_u64() % io.count * io.size as u64,
            };
            for (n, page) in buffer.iter_mut().enumerate() {
                page.0[..8].copy_from_slice(&(place + (n * BLOCK) as u64).to_le_bytes());
            }
            at.push(place);
        }
        match &mut ring {
            None => transfer(&file, &mut buffers[0], io, at[0]).with_context(name)?,
            Some(ring) => {
                again += submit(ring, &file, &mut buffers, io, &at).with_context(name)?;
            }
        }
        done += now;
        if io.fsync != 0 && done % io.fsync == 0 {
            file.sync_all().with_context(name)?;
        }
    }
    if io.nowait {
        println!("{again}");
    }
    Ok(())
}

fn transfer(file: &File, buffer: &mut [Page], io: &Io, at: u64) -> Result<()> {
    // SAFETY: Page is 4096 initialised bytes without padding, so the slice's memory is
    // buffer.len() * 4096 initialised bytes; the borrow of `buffer` is held while `bytes` lives.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), buffer.len() * BLOCK)
    };
    match io.op {
        Op::Read => file.read_exact_at(&mut bytes[..io.size], at)?,
        Op::Write => file.write_all_at(&bytes[..io.size], at)?,
    }
    Ok(())
}

/// One submission of all of `at`, so that the kernel sees them in one plug; then waits for all. Returns how
/// many were left out because they would have had to wait.
fn submit(
    ring: &mut IoUring,
    file: &File,
    buffers: &mut [Vec<Page>],
    io: &Io,
    at: &[u64],
) -> Result<u64> {
    let mut again = 0;
    let fd = types::Fd(file.as_raw_fd());
    let len = u32::try_from(io.size).context("--size")?;
    for (buffer, at) in buffers.iter_mut().zip(at) {
        let data = buffer.as_mut_ptr().cast::<u8>();
        let flags = if io.nowait { libc::RWF_NOWAIT } else { 0 };
        let entry = match io.op {
            Op::Read => opcode::Read::new(fd, data, len)
                .offset(*at)
                .rw_flags(flags)
                .build(),
            Op::Write => opcode::Write::new(fd, data, len)
                .offset(*at)
                .rw_flags(flags)
                .build(),
        };
        // SAFETY: the buffer holds at least `len` bytes and the file is open until the completion has
        // been waited for below; nothing touches the buffers meanwhile, and where waiting fails they are
        // not given back.
        unsafe { ring.submission().push(&entry) }.context("io_uring is full")?;
    }
    if let Err(e) = ring.submit_and_wait(at.len()) {
        // The kernel may still use the buffers, so they must outlive this: only the end of the process does.
        eprintln!("io_uring: waiting for {} I/Os: {e}", at.len());
        std::process::exit(1);
    }
    for _ in at {
        let done = ring
            .completion()
            .next()
            .context("a completion is missing")?;
        if io.nowait && done.result() == -libc::EAGAIN {
            again += 1;
            continue;
        }
        if done.result() < 0 {
            return Err(std::io::Error::from_raw_os_error(-done.result()).into());
        }
        if done.result() as usize != io.size {
            bail!("short: {} of {} bytes", done.result(), io.size);
        }
    }
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_summed_over_cpus_and_only_where_it_is_counted() {
        let cpu = |nohz, calls| {
            format!("cpu: 0\n  .nohz           : {nohz}\n  .idle_calls     : {calls}\n")
        };
        assert_eq!(parse_idle_calls(&(cpu(1, 5) + &cpu(1, 7))), Some(12));
        assert_eq!(parse_idle_calls(&cpu(1, 0)), Some(0));
        assert_eq!(parse_idle_calls(&(cpu(1, 5) + &cpu(0, 7))), None);
        assert_eq!(parse_idle_calls("nothing"), None);
    }

    #[test]
    fn an_idle_window_fails() {
        let mut count = Count {
            name: "w".into(),
            ticks: 10,
            idle: 0,
            written: 0,
            occupied: 9,
            ios: 3,
        };
        assert!(count.check().is_ok());
        assert_eq!(
            count.to_string(),
            "@result window=w ticks=10 idle=0 written=0 occupied=9 ios=3"
        );
        count.idle = 1;
        assert!(count.check().unwrap_err().to_string().contains("idle"));
    }

    #[test]
    fn writes_land_where_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![0xff; 64 << 10]).unwrap();
        io(&Io {
            dev: path.clone(),
            op: Op::Write,
            count: 3,
            size: 8192,
            offset: 32768,
            stride: Some(-8192),
            random: None,
            direct: false,
            dsync: false,
            batch: 1,
            nowait: false,
            fsync: 2,
        })
        .unwrap();
        let data = std::fs::read(&path).unwrap();
        let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        assert_eq!(data.len(), 64 << 10);
        assert_eq!(word(12288), u64::MAX);
        for at in [16384, 20480, 24576, 28672, 32768, 36864] {
            assert_eq!(word(at), at as u64);
        }
        assert_eq!(word(40960), u64::MAX);
    }
}
