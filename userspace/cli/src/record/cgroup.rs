// SPDX-License-Identifier: GPL-2.0
//! A cgroup of COMMAND's own. An I/O is charged to the cgroup of who caused it, wherever it is issued from: so
//! what the page cache writes back later is told apart too, if the memory controller is there.

use crate::module::{mounted, CGROUP2};
use crate::say;
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
        let open = || -> io::Result<(File, u64)> {
            let procs = OpenOptions::new()
                .write(true)
                .open(dir.join("cgroup.procs"))?;
            Ok((procs, fs::metadata(&dir)?.ino()))
        };
        let (procs, id) = open().map_err(|error| {
            // It was made for nothing.
            let _ = fs::remove_dir(&dir);
            fail(&dir, error)
        })?;
        let mut cgroup = Cgroup {
            dir,
            procs,
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

    /// A handle that moves a process into it.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn entrance(&self) -> io::Result<Entrance> {
        self.procs.try_clone().map(Entrance)
    }
}

/// Moves the process that [enters](Entrance::enter) into the cgroup.
#[derive(Debug)]
pub struct Entrance(File);

impl Entrance {
    /// Moves this process. One system call and nothing else, so it may be done between fork and exec.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn enter(&self) -> io::Result<()> {
        (&self.0).write_all(b"0")
    }
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
    fn what_cannot_be_opened_is_not_left_behind() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "io\n").unwrap();
        // A directory of an ordinary file system has no cgroup.procs.
        assert!(Cgroup::below(root.path()).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
