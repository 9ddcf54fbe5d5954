// SPDX-License-Identifier: GPL-2.0
//! Child processes that never outlive us, and errors that name the command.

use anyhow::{bail, Context, Result};
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel send `signal` to the child when the thread that spawns it ends, however it ends:
/// an emulator or a build that survives a killed lab would hold CPUs, locks and disks for ever.
pub fn tie(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = getpid();
    // SAFETY: the closure runs in the forked child and makes two system calls and no allocation
    // (the error is built from a plain code), so it is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(signal).map_err(io::Error::from)?;
            // The parent may have died before the line above: then nobody would send the signal.
            if getppid() != parent {
                return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
            }
            Ok(())
        })
    }
}

/// Runs a command to its end and returns its standard output as text.
///
/// # Errors
///
/// When it cannot be started, or ends with a status other than 0: then with the last line it wrote
/// to standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command
        .output()
        .with_context(|| format!("{name}: cannot be run"))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("");
        bail!("{name}: {}: {last}", out.status);
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
