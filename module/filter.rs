// SPDX-License-Identifier: GPL-2.0

//! Which request queues are traced: one bit for each queue id.
//!
//! The bitmap is also the gate. All zero means that no probe records: so it is before start has
//! registered the last probe, and so stop makes it again before it unregisters the first.
//!
//! Rust's own atomics stand here and not the kernel's: those are two calls into C for each event on
//! a kernel that gcc built, while these are the one load that `READ_ONCE()` is.

use core::sync::atomic::{
    AtomicUsize,
    Ordering, //
};

/// Queue ids that a record can carry.
pub(crate) const QUEUES: usize = 1 << 16;

const WORDS: usize = QUEUES / usize::BITS as usize;

/// A set of queue ids, ready to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection<'a> {
    /// Every queue, and those that appear later.
    All,
    /// These queues.
    Queues(&'a [u16]),
}

/// The published bitmap.
pub(crate) struct Filter([AtomicUsize; WORDS]);

/// The filter that every probe asks. In `.bss`: a closed gate.
pub(crate) static FILTER: Filter = Filter::closed();

impl Filter {
    /// A filter that lets nothing through.
    pub(crate) const fn closed() -> Self {
        Self([const { AtomicUsize::new(0) }; WORDS])
    }

    /// Whether events of this queue are recorded.
    ///
    /// Takes `request_queue.id` as it is. `None` stands for a queue that is not traced; an id that
    /// a record cannot carry is never traced. The load acquires: who sees the open gate sees the
    /// channel behind it.
    #[inline(always)]
    pub(crate) fn admit(&self, id: i32) -> Option<u16> {
        let id = id as u32;
        let word = self.0.get((id / usize::BITS) as usize)?;

        if word.load(Ordering::Acquire) >> (id % usize::BITS) & 1 == 0 {
            return None;
        }
        Some(id as u16)
    }

    /// Lets the selected queues through, in addition to those that pass already.
    pub(crate) fn open(&self, selection: Selection<'_>) {
        match selection {
            Selection::All => {
                for word in &self.0 {
                    word.store(usize::MAX, Ordering::Release);
                }
            }
            Selection::Queues(ids) => {
                for &id in ids {
                    let id = u32::from(id);

                    if let Some(word) = self.0.get((id / usize::BITS) as usize) {
                        word.fetch_or(1 << (id % usize::BITS), Ordering::Release);
                    }
                }
            }
        }
    }

    /// Lets nothing through. A probe that has passed already still records.
    pub(crate) fn close(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}
