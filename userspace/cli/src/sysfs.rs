// SPDX-License-Identifier: GPL-2.0
//! Block devices as sysfs shows them, and where the kernel's file systems are mounted.

use crate::Failure;
use blkrelay_format::{Disk, Partition};
use blkrelay_trace::Dev;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where cgroup v2 usually is.
pub const CGROUP2: &str = "/sys/fs/cgroup";

/// Where a file system is mounted: in its usual place if it is there, else in the first of the others.
pub fn mounted(kind: &str, usual: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut points = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let point = words.next()?;
        (words.next()? == kind).then_some(point)
    });
    let first = points.next()?;
    let found = if points.any(|point| point == usual) {
        usual
    } else {
        first
    };
    Some(PathBuf::from(found))
}

/// sysfs, which tests replace by a directory of their own.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

/// A disk or a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Its number.
    pub dev: Dev,
    /// Its name.
    pub name: String,
    /// The whole disk's number.
    pub disk: Dev,
}

/// The directory of a partition's disk, or of the disk itself.
fn disk_dir(dir: &Path) -> &Path {
    if dir.join("partition").exists() {
        dir.parent().unwrap_or(dir)
    } else {
        dir
    }
}

/// The device number in a directory of sysfs.
fn number(dir: &Path) -> Option<Dev> {
    let text = fs::read_to_string(dir.join("dev")).ok()?;
    text.trim().parse().ok()
}

fn read_number<T: std::str::FromStr + Default>(path: &Path) -> T {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_default()
}

/// The scheduler in use, which stands in brackets among those there are.
fn scheduler(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join("queue/scheduler")).unwrap_or_default();
    let used = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    used.map_or(text.trim(), |(used, _)| used).to_owned()
}

fn name_of(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    // sysfs has ! for the / in names like cciss/c0d0.
    name.replace('!', "/")
}

impl Sysfs {
    /// The system's.
    pub fn system() -> Sysfs {
        Sysfs {
            root: PathBuf::from("/sys"),
        }
    }

    /// A test's.
    #[cfg(test)]
    pub fn rooted(root: &Path) -> Sysfs {
        Sysfs {
            root: root.to_owned(),
        }
    }

    /// The directory of a device number, in the tree of devices.
    fn dir(&self, dev: Dev) -> Option<PathBuf> {
        self.root
            .join(format!("dev/block/{dev}"))
            .canonicalize()
            .ok()
    }

    /// What `word` on the command line stands for: a device node, a name, or `major:minor`.
    ///
    /// # Errors
    ///
    /// If there is no such block device.
    pub fn resolve(&self, word: &OsStr) -> Result<Resolved, Failure> {
        let shown = word.to_string_lossy();
        let dev = if word.as_bytes().contains(&b'/') {
            let data = fs::metadata(word).map_err(|error| format!("{shown}: {error}"))?;
            if !data.file_type().is_block_device() {
                return Err(format!("{shown}: not a block device").into());
            }
            Dev {
                major: rustix::fs::major(data.rdev()),
                minor: rustix::fs::minor(data.rdev()),
            }
        } else if let Ok(dev) = shown.parse() {
            dev
        } else {
            let dir = self.root.join("class/block").join(word);
            number(&dir).ok_or_else(|| format!("{shown}: no such block device"))?
        };
        let dir = self
            .dir(dev)
            .ok_or_else(|| format!("{shown}: no such block device ({dev})"))?;
        Sysfs::at(&dir).ok_or_else(|| format!("{shown}: not in sysfs as expected").into())
    }

    /// The device in a directory of sysfs.
    fn at(dir: &Path) -> Option<Resolved> {
        Some(Resolved {
            dev: number(dir)?,
            name: name_of(dir),
            disk: number(disk_dir(dir))?,
        })
    }

    /// This device, and all that it is made of, down to the last disk or partition.
    pub fn stack(&self, device: &Resolved) -> Vec<Resolved> {
        let mut found = vec![device.clone()];
        let mut next = 0;
        while let Some(device) = found.get(next) {
            next += 1;
            let Some(dir) = self.dir(device.dev) else {
                continue;
            };
            let slaves = fs::read_dir(disk_dir(&dir).join("slaves"));
            for slave in slaves.into_iter().flatten().flatten() {
                let slave = slave.path().canonicalize().ok();
                let Some(slave) = slave.and_then(|dir| Sysfs::at(&dir)) else {
                    continue;
                };
                if !found.contains(&slave) {
                    found.push(slave);
                }
            }
        }
        found
    }

    /// Name and disk sequence number of every disk: when these change, so have the disks.
    pub fn fingerprint(&self) -> BTreeSet<(String, u64)> {
        let entries = fs::read_dir(self.root.join("block")).into_iter().flatten();
        let disks = entries.flatten().map(|entry| {
            let seq = read_number(&entry.path().join("diskseq"));
            (name_of(&entry.path()), seq)
        });
        disks.collect()
    }

    /// The disk in a directory of sysfs, with its partitions.
    fn disk(&self, dir: &Path) -> Option<Disk> {
        let dev = number(dir)?;
        let mut partitions: Vec<Partition> = fs::read_dir(dir)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.join("partition").exists())
            .filter_map(|path| {
                let dev = number(&path)?;
                Some(Partition {
                    name: name_of(&path),
                    major: dev.major,
                    minor: dev.minor,
                    start: read_number(&path.join("start")),
                    sectors: read_number(&path.join("size")),
                })
            })
            .collect();
        partitions.sort_by_key(|partition| partition.start);
        Some(Disk {
            name: name_of(dir),
            major: dev.major,
            minor: dev.minor,
            sectors: read_number(&dir.join("size")),
            diskseq: read_number(&dir.join("diskseq")),
            scheduler: scheduler(dir),
            partitions,
        })
    }

    /// These disks, or all there are, by number.
    pub fn disks(&self, only: &[Dev]) -> Vec<Disk> {
        let dirs: Vec<PathBuf> = if only.is_empty() {
            fs::read_dir(self.root.join("block"))
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| entry.path().canonicalize().ok())
                .collect()
        } else {
            only.iter().filter_map(|dev| self.dir(*dev)).collect()
        };
        let mut disks: Vec<Disk> = dirs.iter().filter_map(|dir| self.disk(dir)).collect();
        disks.sort_by_key(|disk| (disk.major, disk.minor));
        disks
    }

    /// The disks that a file system on `dev` writes to: its own, and those below a stacked device. Empty if
    /// it is on no disk.
    pub fn disks_below(&self, dev: Dev) -> BTreeSet<Dev> {
        let device = self.dir(dev).and_then(|dir| Sysfs::at(&dir));
        let stack = device.map(|device| self.stack(&device));
        let stack = stack.into_iter().flatten();
        stack.map(|device| device.disk).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A disk sda with two partitions, and a volume dm-0 on sda2.
    fn fake() -> (tempfile::TempDir, Sysfs) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let sda = "devices/pci/sda";
        put(&format!("{sda}/dev"), "8:0\n");
        put(&format!("{sda}/size"), "1000000\n");
        put(&format!("{sda}/diskseq"), "7\n");
        put(
            &format!("{sda}/queue/scheduler"),
            "none [mq-deadline] kyber\n",
        );
        for (part, start, size) in [(2, 3000, 500), (1, 2048, 900)] {
            let dir = format!("{sda}/sda{part}");
            put(&format!("{dir}/dev"), &format!("8:{part}\n"));
            put(&format!("{dir}/partition"), &format!("{part}\n"));
            put(&format!("{dir}/start"), &format!("{start}\n"));
            put(&format!("{dir}/size"), &format!("{size}\n"));
        }
        put("devices/virtual/dm-0/dev", "253:0\n");
        put("devices/virtual/dm-0/size", "400\n");
        let link = |from: &str, to: &str| {
            let from = root.join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(root.join(to), from).unwrap();
        };
        link("block/sda", sda);
        link("block/dm-0", "devices/virtual/dm-0");
        link("class/block/sda", sda);
        link("class/block/sda2", "devices/pci/sda/sda2");
        link("dev/block/8:0", sda);
        link("dev/block/8:2", "devices/pci/sda/sda2");
        link("dev/block/253:0", "devices/virtual/dm-0");
        link("devices/virtual/dm-0/slaves/sda2", "devices/pci/sda/sda2");
        (dir, Sysfs { root })
    }

    const SDA: Dev = Dev { major: 8, minor: 0 };
    const DM: Dev = Dev {
        major: 253,
        minor: 0,
    };

    #[test]
    fn words_become_disks() {
        let (_dir, sysfs) = fake();
        let whole = Resolved {
            dev: SDA,
            name: "sda".to_owned(),
            disk: SDA,
        };
        assert_eq!(sysfs.resolve("sda".as_ref()).unwrap(), whole);
        assert_eq!(sysfs.resolve("8:0".as_ref()).unwrap(), whole);
        let part = Resolved {
            dev: Dev { major: 8, minor: 2 },
            name: "sda2".to_owned(),
            disk: SDA,
        };
        assert_eq!(sysfs.resolve("sda2".as_ref()).unwrap(), part);
        assert_eq!(sysfs.resolve("8:2".as_ref()).unwrap(), part);
        for (word, error) in [
            ("sdz", "sdz: no such block device"),
            ("9:9", "9:9: no such block device (9:9)"),
            ("/dev/null", "/dev/null: not a block device"),
            ("/none", "/none: No such file or directory (os error 2)"),
        ] {
            assert_eq!(sysfs.resolve(word.as_ref()).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn disks_have_their_partitions_in_order() {
        let (_dir, sysfs) = fake();
        let disks = sysfs.disks(&[]);
        assert_eq!(disks.len(), 2);
        assert_eq!(
            (disks[0].name.as_str(), disks[0].sectors),
            ("sda", 1_000_000)
        );
        let starts: Vec<_> = disks[0]
            .partitions
            .iter()
            .map(|p| (p.minor, p.start))
            .collect();
        assert_eq!(starts, [(1, 2048), (2, 3000)]);
        assert_eq!(
            (disks[0].diskseq, disks[0].scheduler.as_str()),
            (7, "mq-deadline")
        );
        assert_eq!((disks[1].diskseq, disks[1].scheduler.as_str()), (0, ""));
        assert_eq!(sysfs.disks(&[DM])[0].name, "dm-0");
    }

    /// A volume on a partition: it is the partition that belongs to it, not the disk.
    #[test]
    fn a_stack_is_all_that_is_under_a_device() {
        let (_dir, sysfs) = fake();
        let names = |word: &str| {
            let device = sysfs.resolve(word.as_ref()).unwrap();
            let stack = sysfs.stack(&device);
            let names: Vec<String> = stack.into_iter().map(|device| device.name).collect();
            names.join(" ")
        };
        assert_eq!(names("253:0"), "dm-0 sda2");
        assert_eq!(names("sda2"), "sda2");
        assert_eq!(names("sda"), "sda");
    }

    #[test]
    fn a_disk_that_came_back_has_another_fingerprint() {
        let (dir, sysfs) = fake();
        let before = sysfs.fingerprint();
        let expected = [("dm-0".to_owned(), 0), ("sda".to_owned(), 7)];
        assert_eq!(before, BTreeSet::from(expected));
        fs::write(dir.path().join("devices/pci/sda/diskseq"), "8\n").unwrap();
        assert_ne!(sysfs.fingerprint(), before);
    }

    #[test]
    fn stacked_devices_lead_to_their_disks() {
        let (_dir, sysfs) = fake();
        assert_eq!(sysfs.disks_below(DM), BTreeSet::from([SDA, DM]));
        let partition = Dev { major: 8, minor: 2 };
        assert_eq!(sysfs.disks_below(partition), BTreeSet::from([SDA]));
        let tmpfs = Dev { major: 0, minor: 5 };
        assert!(sysfs.disks_below(tmpfs).is_empty());
    }
}
