// SPDX-License-Identifier: GPL-2.0
//! Slow results outside the checkout, each under a name made from what it was made of.
//!
//! An entry is a directory that counts only once its `stamp` file stands in it: the stamp is written last
//! and renamed into place, so what an interrupted run left behind is thrown away by the next. Two runs
//! at once meet at a lock for each entry, which the kernel drops when its holder dies.

use anyhow::{Context, Result};
use nix::fcntl::{fcntl, FcntlArg, FdFlag, Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::progress;

const STAMP: &str = "stamp";

/// The cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// A held lock; dropped with the value or with the process.
pub type Lock = Flock<File>;

impl Cache {
    /// `$BLKRELAY_CACHE`, else `$XDG_CACHE_HOME/blkrelay`, else `~/.cache/blkrelay`; created.
    ///
    /// # Errors
    ///
    /// When there is no home directory either, or the directory cannot be created.
    pub fn open() -> Result<Self> {
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty());
        let root = match (var("BLKRELAY_CACHE"), var("XDG_CACHE_HOME"), var("HOME")) {
            (Some(own), _, _) => PathBuf::from(own),
            (_, Some(xdg), _) => PathBuf::from(xdg).join("blkrelay"),
            (_, _, Some(home)) => PathBuf::from(home).join(".cache/blkrelay"),
            _ => anyhow::bail!("no place for the cache: set BLKRELAY_CACHE"),
        };
        Self::at(&root)
    }

    /// A cache in the given directory; created.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    pub fn at(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("cache {}", root.display()))?;
        let root = root
            .canonicalize()
            .with_context(|| format!("cache {}", root.display()))?;
        Ok(Self { root })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of an entry, e.g. `kernel/trace-7.3.4-0123456789ab`, whether it is there or not.
    pub fn path(&self, entry: &str) -> PathBuf {
        self.root.join(entry)
    }

    /// Whether an entry is finished.
    pub fn has(&self, entry: &str) -> bool {
        self.path(entry).join(STAMP).is_file()
    }

    /// The finished entries below a directory of the cache, as entry names, sorted.
    pub fn entries(&self, below: &str) -> Vec<String> {
        let Ok(dir) = fs::read_dir(self.path(below)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = dir
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .map(|n| format!("{below}/{n}"))
            .filter(|n| self.has(n))
            .collect();
        names.sort();
        names
    }

    /// Takes the lock of an entry; waits for another run that makes it, and says so. Child processes
    /// inherit it: when a run is killed the lock holds until its compilers are gone too, so that they
    /// cannot write into what the next run makes.
    ///
    /// # Errors
    ///
    /// When the lock file cannot be created.
    pub fn lock(&self, entry: &str) -> Result<Lock> {
        let dir = self.root.join("lock");
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let path = dir.join(entry.replace('/', "-"));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(lock),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
                progress::say(&format!("waiting for another run that makes {entry}"));
                Flock::lock(file, FlockArg::LockExclusive)
                    .map_err(|(_, e)| e)
                    .with_context(|| path.display().to_string())
            }
            Err((_, e)) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    /// The finished entry, made first if need be: `make` gets the empty directory at its final place
    /// (kernel build trees know their own path) and returns the stamp's text.
    ///
    /// # Errors
    ///
    /// Those of `make`, and of the file system.
    pub fn get(
        &self,
        entry: &str,
        make: impl FnOnce(&Path) -> Result<String>,
    ) -> Result<(PathBuf, bool)> {
        let path = self.path(entry);
        if self.has(entry) {
            return Ok((path, false));
        }
        let _lock = self.lock(entry)?;
        if self.has(entry) {
            return Ok((path, false));
        }
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let text = make(&path)?;
        write_whole(&path.join(STAMP), text.as_bytes())?;
        Ok((path, true))
    }

    /// The text of an entry's stamp.
    ///
    /// # Errors
    ///
    /// When the entry is not finished.
    pub fn stamp(&self, entry: &str) -> Result<String> {
        let path = self.path(entry).join(STAMP);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }
}

/// Writes a file so that a reader sees all of it or none, whatever happens in between.
///
/// # Errors
///
/// Those of the file system.
pub fn write_whole(path: &Path, data: &[u8]) -> Result<()> {
    let part = path.with_extension(format!("part{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(data)?;
        // The entry's files need not be on the disk before the stamp is: syncing gigabytes costs
        // minutes. A power cut may lose both; a killed run, which is common, loses neither.
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_entry_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let failed = cache.get("kernel/a", |path| {
            fs::write(path.join("half"), "x")?;
            anyhow::bail!("killed here")
        });
        assert!(failed.is_err());
        assert!(!cache.has("kernel/a"));
        assert!(cache.path("kernel/a/half").exists());
        let (path, made) = cache
            .get("kernel/a", |path| {
                assert!(!path.join("half").exists());
                fs::write(path.join("whole"), "y")?;
                Ok("made of y\n".into())
            })
            .unwrap();
        assert!(made && path.join("whole").exists());
        assert_eq!(cache.stamp("kernel/a").unwrap(), "made of y\n");
        assert_eq!(cache.entries("kernel"), ["kernel/a"]);
        let (_, made) = cache.get("kernel/a", |_| unreachable!()).unwrap();
        assert!(!made);
    }

    #[test]
    fn two_at_once_make_it_once() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let made = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    cache
                        .get("x/y", |_| {
                            std::thread::sleep(std::time::Duration::from_millis(50));
                            made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            Ok(String::new())
                        })
                        .unwrap()
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
