// SPDX-License-Identifier: GPL-2.0
//! Failing one allocation of one system call: the kernel's fail-nth (Documentation/fault-injection), set
//! for this thread right before the call and read back right behind it.

use anyhow::{bail, Context, Result};
use nix::errno::Errno;
use nix::libc;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Arguments of `fail-nth`.
#[derive(Debug, clap::Args)]
pub struct FailNth {
    /// Which allocation fails, from 1
    nth: u32,
    #[command(subcommand)]
    call: Call,
}

/// The call whose allocations are counted.
#[derive(Debug, clap::Subcommand)]
enum Call {
    /// finit_module(2)
    Insmod {
        /// The module
        module: PathBuf,
    },
    /// One write(2)
    Write {
        /// Where to
        file: PathBuf,
        /// What
        text: String,
    },
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the call made so many allocations that one was failed.
    pub hit: bool,
    /// What the call returned.
    pub error: Option<Errno>,
}

/// `hit` or `missed`, and `ok` or the name of the error.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.hit { "hit" } else { "missed" })?;
        match self.error {
            Some(errno) => write!(f, " {errno:?}"),
            None => f.write_str(" ok"),
        }
    }
}

/// This thread's fail-nth.
struct Nth(File);

impl Nth {
    fn open() -> Result<Self> {
        const FILE: &str = "/proc/thread-self/fail-nth";
        let file = OpenOptions::new().read(true).write(true).open(FILE);
        Ok(Self(file.with_context(|| {
            format!("{FILE}: the kernel needs CONFIG_FAULT_INJECTION")
        })?))
    }

    fn set(&self, nth: u32) -> std::io::Result<usize> {
        self.0.write_at(nth.to_string().as_bytes(), 0)
    }

    /// Allocations still to go; 0 once one was failed.
    fn left(&self) -> Result<u32> {
        let mut text = [0; 16];
        let n = self.0.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..n]);
        text.trim().parse().with_context(|| format!("{text:?}"))
    }
}

/// Does the call with one allocation failing.
///
/// # Errors
///
/// When the kernel cannot do it, or a file of the call does not open.
pub fn fail_nth(args: &FailNth) -> Result<Outcome> {
    if args.nth == 0 {
        bail!("NTH 0: want 1 or more");
    }
    let nth = Nth::open()?;
    // Everything that this side needs, before the counting begins: a page of this program that came in
    // between would be counted as well.
    // SAFETY: takes flags only.
    Errno::result(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) })
        .context("mlockall")?;
    let error = match &args.call {
        Call::Insmod { module } => {
            let file = open(module, false)?;
            counted(&nth, args.nth, || {
                // SAFETY: the descriptor is open, and the parameters are an empty string.
                unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) }
            })
        }
        Call::Write { file, text } => {
            let file = open(file, true)?;
            counted(&nth, args.nth, || {
                // SAFETY: the descriptor is open, and the text is as long as is said.
                let n = unsafe { libc::write(file.as_raw_fd(), text.as_ptr().cast(), text.len()) };
                n as libc::c_long
            })
        }
    }?;
    let left = nth.left();
    nth.set(0)?;
    Ok(Outcome {
        hit: left? == 0,
        error,
    })
}

fn open(path: &Path, write: bool) -> Result<File> {
    OpenOptions::new()
        .read(!write)
        .write(write)
        .open(path)
        .with_context(|| path.display().to_string())
}

fn counted(nth: &Nth, n: u32, call: impl FnOnce() -> libc::c_long) -> Result<Option<Errno>> {
    nth.set(n)?;
    let returned = call();
    Ok((returned < 0).then(Errno::last))
}
