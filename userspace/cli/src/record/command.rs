// SPDX-License-Identifier: GPL-2.0
//! COMMAND: runs while the trace is recorded.

use super::cgroup::Cgroup;
use crate::{say, Failure};
use blkrelay_format::End;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

/// Long enough for a command that got the same CTRL-C to end by itself.
const GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// A command that was started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Readable when it has ended.
    pidfd: OwnedFd,
}

impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// As a shell has it: the exit code, or 128 + N of signal N.
fn code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 255,
    };
    code as u8
}

impl Running {
    /// Starts the command in this cgroup, with our standard input and outputs; nothing if it has no words.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(words: &[OsString], cgroup: Option<&Cgroup>) -> Result<Option<Running>, Failure> {
        let Some((program, arguments)) = words.split_first() else {
            return Ok(None);
        };
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        let mut spawn = || command.spawn();
        let child = match cgroup {
            Some(cgroup) => cgroup
                .within(spawn)
                .map_err(|error| format!("COMMAND's cgroup: {error}"))?,
            None => spawn(),
        };
        let mut child = child.map_err(|error| format!("{}: {error}", program.to_string_lossy()))?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Some(Running { child, pidfd })),
            Err(error) => {
                // Without it nothing would tell us when the command ends.
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("pidfd_open: {error}").into())
            }
        }
    }

    fn ends_within(&self, time: &Timespec) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(time)).is_ok_and(|ready| ready > 0)
    }

    /// Waits until it has ended, and returns its exit status as a shell would. If we were told to end, so
    /// is the command, when it does not do so by itself.
    ///
    /// # Errors
    ///
    /// If it cannot be waited for.
    pub fn finish(mut self, end: &End) -> Result<u8, Failure> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if *end == End::Signal && !self.ends_within(&GRACE) {
            // It may end in this very instant, which is just as well.
            let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        } else if *end != End::Command && !self.ends_within(&now) {
            say("waiting for the command to end");
        }
        Ok(code(self.child.wait()?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn finish(script: &str, end: End) -> u8 {
        let words = ["sh", "-c", script].map(OsString::from);
        Running::start(&words, None)
            .unwrap()
            .unwrap()
            .finish(&end)
            .unwrap()
    }

    #[test]
    fn status_is_the_shells() {
        assert_eq!(finish("exit 0", End::Command), 0);
        assert_eq!(finish("exit 7", End::Command), 7);
        assert_eq!(finish("kill -9 $$", End::Command), 137);
        assert_eq!(finish("sleep 0.1; exit 3", End::Duration), 3);
        // One that would run for a minute is told to end when we are.
        assert_eq!(finish("exec sleep 60", End::Signal), 143);
    }

    #[test]
    fn none_and_missing_commands() {
        assert!(Running::start(&[], None).unwrap().is_none());
        let error = Running::start(&["/no/such/program".into()], None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/no/such/program: No such file or directory (os error 2)"
        );
    }
}
