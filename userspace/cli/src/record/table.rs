// SPDX-License-Identifier: GPL-2.0
//! The traced disks as sysfs shows them, and whether they have changed.

use crate::sysfs::Sysfs;
use blkrelay_format::Disk;
use blkrelay_trace::Dev;
use std::collections::BTreeSet;

/// The table of META, kept up.
#[derive(Debug)]
pub struct Table {
    sysfs: Sysfs,
    /// Numbers of the traced disks; none: all.
    only: Vec<Dev>,
    fingerprint: BTreeSet<(String, u64)>,
    disks: Vec<Disk>,
}

impl Table {
    /// Of these disks, or of all there are.
    pub fn new(sysfs: &Sysfs, only: Vec<Dev>) -> Table {
        Table {
            sysfs: sysfs.clone(),
            fingerprint: sysfs.fingerprint(),
            disks: sysfs.disks(&only),
            only,
        }
    }

    /// The disks as they were when last looked at.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Looks again, cheaply while no disk comes or goes. The payload of a DEVICES chunk if a traced one has
    /// changed.
    pub fn changed(&mut self) -> Option<Vec<u8>> {
        let now = self.sysfs.fingerprint();
        if now == self.fingerprint {
            return None;
        }
        self.fingerprint = now;
        self.refresh()
    }

    /// Looks at everything again: sizes, partitions and schedulers change as well. The payload as of
    /// [`Table::changed`].
    pub fn refresh(&mut self) -> Option<Vec<u8>> {
        let disks = self.sysfs.disks(&self.only);
        if disks == self.disks {
            return None;
        }
        self.disks = disks;
        serde_json::to_vec(&self.disks).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use blkrelay_format::parse_devices;
    use std::fs;

    fn put(root: &std::path::Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_disk_that_comes_back_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "block/sda/dev", "8:0\n");
        put(root, "block/sda/diskseq", "5\n");
        let mut table = Table::new(&Sysfs::rooted(root), Vec::new());
        assert_eq!(table.disks()[0].diskseq, 5);
        assert_eq!(table.changed(), None);
        put(root, "block/sda/diskseq", "6\n");
        put(root, "block/sdb/dev", "8:16\n");
        let told = parse_devices(&table.changed().unwrap()).unwrap();
        let told: Vec<_> = told.iter().map(|d| (d.name.as_str(), d.diskseq)).collect();
        assert_eq!(told, [("sda", 6), ("sdb", 0)]);
        assert_eq!(table.changed(), None);
        // A new size alone is seen at the end.
        put(root, "block/sdb/size", "2048\n");
        assert_eq!(table.changed(), None);
        let told = parse_devices(&table.refresh().unwrap()).unwrap();
        assert_eq!(told[1].sectors, 2048);
        fs::remove_dir_all(root.join("block/sda")).unwrap();
        assert_eq!(parse_devices(&table.changed().unwrap()).unwrap().len(), 1);
    }
}
