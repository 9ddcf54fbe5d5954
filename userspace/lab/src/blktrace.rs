// SPDX-License-Identifier: GPL-2.0
//! The kernel's blktrace without its program: nobody reads while the trace runs. Through the classic setup
//! ioctl, as Debian's blktrace has it, or through `BLKTRACESETUP2` with its 64-byte records, which that one does
//! not use. Definitions: include/uapi/linux/blktrace_api.h and fs.h of Linux 7.3.

use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// `struct blk_user_trace_setup`
#[repr(C)]
#[derive(Default)]
struct Classic {
    name: [u8; 32],
    act_mask: u16,
    buf_size: u32,
    buf_nr: u32,
    start_lba: u64,
    end_lba: u64,
    pid: u32,
}

/// `struct blk_user_trace_setup2`
#[repr(C)]
#[derive(Default)]
struct Newer {
    name: [[u8; 32]; 2],
    act_mask: u64,
    buf_size: u32,
    buf_nr: u32,
    start_lba: u64,
    end_lba: u64,
    pid: u32,
    flags: u32,
    reserved: [u64; 11],
}

nix::ioctl_readwrite!(
    /// `BLKTRACESETUP`
    setup, 0x12, 115, Classic
);
nix::ioctl_readwrite!(
    /// `BLKTRACESETUP2`
    setup2, 0x12, 142, Newer
);
nix::ioctl_none!(
    /// `BLKTRACESTART`
    start, 0x12, 116
);
nix::ioctl_none!(
    /// `BLKTRACESTOP`
    stop, 0x12, 117
);
nix::ioctl_none!(
    /// `BLKTRACETEARDOWN`
    teardown, 0x12, 118
);

/// Arguments of `blktrace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The disk
    #[arg(long)]
    dev: PathBuf,
    /// Directory for the records, in files named as blktrace's are
    #[arg(short)]
    output: PathBuf,
    /// Bytes of a sub-buffer
    #[arg(long, default_value_t = 524_288)]
    buf_size: u32,
    /// Sub-buffers of each CPU: nobody reads before the end
    #[arg(long, default_value_t = 16)]
    buf_nr: u32,
    /// Set up by the newer ioctl
    #[arg(long)]
    setup2: bool,
    /// Traced while it runs; its exit status is ours
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// A trace that is set up; torn down when dropped.
struct Trace(File);

impl Drop for Trace {
    fn drop(&mut self) {
        let fd = self.0.as_raw_fd();
        // SAFETY: an ioctl without an argument on an open disk.
        let _ = unsafe { teardown(fd) };
    }
}

/// Sets up a trace of everything; returns the name that the kernel gives it.
fn set_up(fd: i32, args: &Args) -> nix::Result<Vec<u8>> {
    if args.setup2 {
        let mut what = Newer {
            act_mask: u64::MAX,
            buf_size: args.buf_size,
            buf_nr: args.buf_nr,
            ..Newer::default()
        };
        // SAFETY: the struct is the kernel's, and lives for as long as the call.
        unsafe { setup2(fd, &mut what) }?;
        return Ok(what.name.concat());
    }
    let mut what = Classic {
        act_mask: u16::MAX,
        buf_size: args.buf_size,
        buf_nr: args.buf_nr,
        ..Classic::default()
    };
    // SAFETY: as above.
    unsafe { setup(fd, &mut what) }?;
    Ok(what.name.to_vec())
}

/// Traces a command's I/O on one disk.
///
/// # Errors
///
/// When the kernel refuses, drops an event, or a file cannot be read or written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let shown = args.dev.display().to_string();
    let trace = Trace(File::open(&args.dev).with_context(|| shown.clone())?);
    let fd = trace.0.as_raw_fd();
    let name = set_up(fd, args).with_context(|| format!("{shown}: setting up blktrace"))?;
    // SAFETY: an ioctl without an argument on an open disk.
    unsafe { start(fd) }.with_context(|| format!("{shown}: BLKTRACESTART"))?;
    let status = Command::new(&args.command[0])
        .args(&args.command[1..])
        .status()
        .with_context(|| args.command[0].clone())?;
    // SAFETY: as above.
    unsafe { stop(fd) }.with_context(|| format!("{shown}: BLKTRACESTOP"))?;
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    copy(
        &Path::new("/sys/kernel/debug/block").join(&*name),
        &name,
        &args.output,
    )?;
    Ok(ExitCode::from(
        u8::try_from(status.code().unwrap_or(1)).unwrap_or(1),
    ))
}

/// Copies what each CPU has.
fn copy(from: &Path, name: &str, to: &Path) -> Result<()> {
    let dropped = from.join("dropped");
    let lost = fs::read_to_string(&dropped).with_context(|| dropped.display().to_string())?;
    ensure!(lost.trim() == "0", "{name}: the kernel dropped {lost}");
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let mut cpus = 0;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(cpu) = file
            .strip_prefix("trace")
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        // Not fs::copy: the kernel says that the file is empty.
        let data = fs::read(&path).with_context(|| path.display().to_string())?;
        let out = to.join(format!("{name}.blktrace.{cpu}"));
        fs::write(&out, data).with_context(|| out.display().to_string())?;
        cpus += 1;
    }
    if cpus == 0 {
        bail!("{}: no CPU's file", from.display());
    }
    Ok(())
}
