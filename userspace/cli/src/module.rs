// SPDX-License-Identifier: GPL-2.0
//! The kernel module's files in debugfs: `control`, `status`, `data<CPU>`.

use crate::sysfs::mounted;
use blkrelay_format::Status;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The version of the text of `status` that this reader knows.
const STATUS_VERSION: &str = "1";

/// Why the module cannot be used.
#[derive(Debug, Error)]
pub enum ModuleError {
    #[error("must be run as root: the module's files are root's alone")]
    NotRoot,
    #[error("debugfs is not mounted: mount -t debugfs debugfs /sys/kernel/debug")]
    NoDebugfs,
    #[error("kernel lockdown{level} forbids to write to the module's files, even to root: boot with lockdown=none, or without Secure Boot")]
    Lockdown { level: String },
    #[error("the kernel module is not loaded: insmod blkrelay.ko, or record with --load")]
    NotLoaded,
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the loaded module speaks version {found}, this reader version {known}: use those that were built together")]
    Version { found: String, known: String },
    #[error("the module refused {command:?}: {reason}")]
    Refused { command: String, reason: String },
    #[error("a trace is running already (started by pid {owner}): stop that one first")]
    Busy { owner: String },
    #[error("{}: cannot be loaded: {reason}", path.display())]
    Load { path: PathBuf, reason: String },
    #[error(
        "no blkrelay.ko in /lib/modules/{release}: install it there, or give its path to --load"
    )]
    NoKo { release: String },
}

/// The directory of the loaded module.
#[derive(Clone, Debug)]
pub struct Module {
    dir: PathBuf,
}

impl Module {
    /// Finds the loaded module.
    ///
    /// # Errors
    ///
    /// One of the ways in which it is not there for us.
    pub fn find() -> Result<Module, ModuleError> {
        if !rustix::process::geteuid().is_root() {
            return Err(ModuleError::NotRoot);
        }
        let debugfs = mounted("debugfs", "/sys/kernel/debug");
        let dir = debugfs.ok_or(ModuleError::NoDebugfs)?.join("blkrelay");
        if !dir.is_dir() {
            return Err(ModuleError::NotLoaded);
        }
        let module = Module { dir };
        let status = module.status()?;
        let known = blkrelay_format::FORMAT_VERSION.to_string();
        for (found, known) in [
            (status.get("version"), STATUS_VERSION),
            (status.get("abi"), known.as_str()),
        ] {
            if found != known {
                return Err(ModuleError::Version {
                    found: found.to_owned(),
                    known: known.to_owned(),
                });
            }
        }
        Ok(module)
    }

    fn io(&self, name: &str, source: io::Error) -> ModuleError {
        ModuleError::Io {
            path: self.dir.join(name),
            source,
        }
    }

    /// The text of `status`.
    pub fn status_text(&self) -> Result<String, ModuleError> {
        fs::read_to_string(self.dir.join("status")).map_err(|error| self.io("status", error))
    }

    /// What `status` says.
    pub fn status(&self) -> Result<Status, ModuleError> {
        Ok(Status::parse(&self.status_text()?))
    }

    /// Opens `control`.
    pub fn control(&self) -> Result<Control, ModuleError> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.dir.join("control"))
            .map_err(|error| match Errno::from_io_error(&error) {
                // We are root, so this is not about permissions.
                Some(Errno::PERM) => ModuleError::Lockdown {
                    level: lockdown(
                        &fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default(),
                    ),
                },
                _ => self.io("control", error),
            })?;
        Ok(Control {
            module: self.clone(),
            file,
        })
    }

    /// Opens a CPU's data file. Reads of it never sleep.
    pub fn data(&self, cpu: u32) -> Result<File, ModuleError> {
        let name = format!("data{cpu}");
        OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(self.dir.join(&name))
            .map_err(|error| self.io(&name, error))
    }

    /// The CPUs that have a data file.
    pub fn cpus(&self) -> Result<Vec<u32>, ModuleError> {
        let entries = fs::read_dir(&self.dir).map_err(|error| self.io("", error))?;
        let mut cpus: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| data_cpu(&entry.file_name()))
            .collect();
        cpus.sort_unstable();
        Ok(cpus)
    }
}

/// The level in brackets of what the kernel says of its lockdown, ready to stand in a sentence.
fn lockdown(text: &str) -> String {
    let level = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    level.map_or(String::new(), |(level, _)| format!(" ({level})"))
}

/// Whether a trace is running, or frozen to run on.
pub fn is_running(status: &Status) -> bool {
    matches!(status.get("state"), "running" | "frozen")
}

/// The CPU of a data file's name.
pub fn data_cpu(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_prefix("data")?.parse().ok()
}

/// The open `control` file. A trace started with `hold=1` is stopped when this is dropped.
#[derive(Debug)]
pub struct Control {
    module: Module,
    file: File,
}

impl Control {
    /// Gives one command.
    ///
    /// # Errors
    ///
    /// [`ModuleError::Busy`] if a trace is running, else [`ModuleError::Refused`] with the module's reason.
    pub fn command(&mut self, command: &str) -> Result<(), ModuleError> {
        let line = format!("{command}\n");
        let Err(error) = self.file.write_all(line.as_bytes()) else {
            return Ok(());
        };
        let status = self.module.status().unwrap_or_default();
        if Errno::from_io_error(&error) == Some(Errno::BUSY) && is_running(&status) {
            return Err(ModuleError::Busy {
                owner: status.get("owner").to_owned(),
            });
        }
        let reason = match status.get("error") {
            "" => error.to_string(),
            reason => reason.to_owned(),
        };
        Err(ModuleError::Refused {
            command: command.to_owned(),
            reason,
        })
    }

    /// Whether a trace is running, as `status` says.
    pub fn running(&self) -> bool {
        self.module.status().is_ok_and(|status| is_running(&status))
    }

    /// Asks each CPU to hand out what it has so far. False if no trace is running any more.
    pub fn flush(&mut self) -> bool {
        self.file.write_all(b"flush\n").is_ok()
    }
}

/// Loads the module from `path`, or from /lib/modules if that is empty. A module that is loaded already
/// stays as it is.
pub fn load(path: &Path) -> Result<(), ModuleError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ModuleError::NotRoot);
    }
    let path = if path.as_os_str().is_empty() {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let root = Path::new("/lib/modules").join(&release);
        find_ko(&root).ok_or(ModuleError::NoKo { release })?
    } else {
        path.to_owned()
    };
    let fail = |reason: String| ModuleError::Load {
        path: path.clone(),
        reason,
    };
    let file = File::open(&path).map_err(|error| fail(error.to_string()))?;
    match rustix::system::finit_module(&file, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOEXEC) => Err(fail(
            "it was built for another kernel (see the end of dmesg)".to_owned(),
        )),
        Err(Errno::PERM) | Err(Errno::KEYREJECTED) => {
            Err(fail("this kernel accepts signed modules only".to_owned()))
        }
        Err(error) => Err(fail(format!("{error} (see the end of dmesg)"))),
    }
}

/// `blkrelay.ko` somewhere under `dir`.
fn find_ko(dir: &Path) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(dir).ok()?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    let direct = dir.join("blkrelay.ko");
    if direct.is_file() {
        return Some(direct);
    }
    entries
        .iter()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .find_map(|entry| find_ko(&entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockdown_has_a_level() {
        assert_eq!(
            lockdown("none [integrity] confidentiality\n"),
            " (integrity)"
        );
        assert_eq!(lockdown(""), "");
    }

    #[test]
    fn data_files_are_told_by_their_name() {
        assert_eq!(data_cpu("data0".as_ref()), Some(0));
        assert_eq!(data_cpu("data127".as_ref()), Some(127));
        for other in ["data", "datax", "status", "control", "data-1", "xdata1"] {
            assert_eq!(data_cpu(other.as_ref()), None, "{other}");
        }
    }
}
