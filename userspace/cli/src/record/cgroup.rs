// SPDX-License-Identifier: GPL-2.0
//! A cgroup of COMMAND's own. An I/O is charged to the cgroup of who caused it, wherever it is issued from: so
//! what the page cache writes back later is told apart too, if the memory controller is there.

use crate::say;
use crate::sysfs::{mounted, CGROUP2};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A cgroup that goes when this is dropped, with the controllers that were enabled for it.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    /// A process that writes 0 into it moves here.
    procs: File,
    /// The same, of where we come from.
    home: File,
    id: u64,
    control: PathBuf,
    enabled: Vec<&'static str>,
}

/// Whether `text`, a list of controllers, has this one.
fn has(text: &str, controller: &str) -> bool {
    text.split_whitespace().any(|word| word == controller)
}

impl Cgroup {
    /// Makes a cgroup of our own at the root of the v2 hierarchy, with the io controller, and memory if there
    /// is one.
    ///
    /// # Errors
    ///
    /// Why there can be none, in a few words.
    pub fn new() -> Result<Cgroup, String> {
        let root = mounted("cgroup2", CGROUP2).ok_or("cgroup v2 is not mounted")?;
        Cgroup::below(&root)
    }

    fn below(root: &Path) -> Result<Cgroup, String> {
        let fail = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        let read = |name: &str| {
            let path = root.join(name);
            fs::read_to_string(&path).map_err(|error| fail(&path, error))
        };
        if !has(&read("cgroup.controllers")?, "io") {
            return Err("cgroup v2 has no io controller here".to_owned());
        }
        let control = root.join("cgroup.subtree_control");
        let dir = root.join(format!("blkrelay-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| fail(&dir, error))?;
        let open = || -> io::Result<(File, File, u64)> {
            let own = fs::read_to_string("/proc/self/cgroup")?;
            let own = root.join(home(&own).ok_or(io::ErrorKind::NotFound)?);
            let procs = |dir: &Path| {
                OpenOptions::new()
                    .write(true)
                    .open(dir.join("cgroup.procs"))
            };
            Ok((procs(&dir)?, procs(&own)?, fs::metadata(&dir)?.ino()))
        };
        let (procs, home, id) = open().map_err(|error| {
            // It was made for nothing.
            let _ = fs::remove_dir(&dir);
            fail(&dir, error)
        })?;
        let mut cgroup = Cgroup {
            dir,
            procs,
            home,
            id,
            control,
            enabled: Vec::new(),
        };
        let there = read("cgroup.controllers")?;
        let before = read("cgroup.subtree_control")?;
        for controller in ["io", "memory"] {
            if !has(&there, controller) || has(&before, controller) {
                continue;
            }
            match fs::write(&cgroup.control, format!("+{controller}")) {
                Ok(()) => cgroup.enabled.push(controller),
                // Without memory, writeback is charged to the root.
                Err(_) if controller == "memory" => {}
                Err(error) => return Err(fail(&cgroup.control, error)),
            }
        }
        Ok(cgroup)
    }

    /// Its id, as I/Os are charged to: its directory's inode number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Does this while we are in the cgroup ourselves, so that who is started is in it from the start. Between
    /// fork and exec nothing may be done without the help of a socket, which a kernel need not have.
    ///
    /// # Errors
    ///
    /// If we cannot be moved there.
    pub fn within<T>(&self, what: impl FnOnce() -> T) -> io::Result<T> {
        (&self.procs).write_all(b"0")?;
        let result = what();
        if let Err(error) = (&self.home).write_all(b"0") {
            say(format_args!(
                "cannot go back to our own cgroup ({error}): our own I/O will be in the trace"
            ));
        }
        Ok(result)
    }
}

/// The path below the root of the v2 hierarchy, of a text of /proc/PID/cgroup.
fn home(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(line.trim_start_matches('/'))
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            say(format_args!(
                "{}: {error}: remove it when its processes have ended",
                self.dir.display()
            ));
            return;
        }
        for controller in self.enabled.iter().rev() {
            // Somebody else may have come to need it: then it stays.
            let _ = fs::write(&self.control, format!("-{controller}"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hierarchy_without_io_has_no_use() {
        let root = tempfile::tempdir().unwrap();
        let error = Cgroup::below(root.path()).unwrap_err();
        assert!(
            error.ends_with("No such file or directory (os error 2)"),
            "{error}"
        );
        fs::write(root.path().join("cgroup.controllers"), "cpuset pids\n").unwrap();
        let error = Cgroup::below(root.path()).unwrap_err();
        assert_eq!(error, "cgroup v2 has no io controller here");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn we_know_where_we_come_from() {
        let hybrid = "5:blkio:/a\n1:name=systemd:/b\n0::/user.slice/x\n";
        assert_eq!(home(hybrid), Some("user.slice/x"));
        assert_eq!(home("0::/\n"), Some(""));
        assert_eq!(home("4:memory:/\n"), None);
    }

    #[test]
    fn what_cannot_be_opened_is_not_left_behind() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "io\n").unwrap();
        // A directory of an ordinary file system has no cgroup.procs.
        assert!(Cgroup::below(root.path()).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
