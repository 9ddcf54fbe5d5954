// SPDX-License-Identifier: GPL-2.0
//! The names of tasks: the first that a trace gives a pid, as blkparse has it (`add_ppm_hash()`).

use super::line::Short;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

static UNKNOWN: Short<16> = Short::of(*b"(null)\0\0\0\0\0\0\0\0\0\0", 6);

/// Names by thread id.
#[derive(Debug, Default)]
pub(super) struct Tasks(FxHashMap<u32, Short<16>>);

impl Tasks {
    /// Learns a name, up to its first NUL and 15 bytes. Returns whether there was none.
    pub(super) fn learn(&mut self, pid: u32, comm: &[u8]) -> bool {
        let entry = self.0.entry(pid);
        let is_new = matches!(entry, Entry::Vacant(_));
        entry.or_insert_with(|| {
            let end = comm.iter().take(15).position(|byte| *byte == 0);
            Short::new(&comm[..end.unwrap_or(comm.len().min(15))])
        });
        is_new
    }

    /// The name; as C prints one that is not known.
    #[inline]
    pub(super) fn name(&self, pid: u32) -> &Short<16> {
        self.0.get(&pid).unwrap_or(&UNKNOWN)
    }
}
