// SPDX-License-Identifier: GPL-2.0

//! What all who write and read a trace share: what it was made with, what is recorded, and where it is
//! to be found. Whoever changes it stands elsewhere: `channel.rs`, `flight.rs`.

use crate::{
    clock::Clock,
    config::{
        self,
        Mode, //
    },
    devices::Queues,
    filter::{
        Asked,
        Ops,
        Place,
        Selection, //
    },
    flight::Flight,
    span::Spans, //
};
use core::{
    ffi::c_void,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic, //
    }, //
};

/// What a trace is made with.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    /// Bytes of a sub-buffer; a power of two, at least a page.
    pub(crate) subbuf_size: u32,
    /// Sub-buffers of each CPU, at least 2.
    pub(crate) subbufs: u32,
    /// What happens when a buffer is full.
    pub(crate) mode: Mode,
    /// Random, new for each trace.
    pub(crate) trace_id: [u8; 16],
    /// What the time stamps count.
    pub(crate) clock: Clock,
    /// Whether Q compares the names of tasks, so that no other event has to: it is recorded, or spans are.
    pub(crate) names: bool,
}

/// What writers and readers need to know of the channel.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// The queues that the trace names.
    pub(crate) queues: Queues,
    /// If spans are recorded.
    pub(crate) spans: Option<Spans>,
    /// In mode `overwrite`.
    pub(crate) flight: Option<Pin<KBox<Flight>>>,
    /// The debugfs directory that the data files are in.
    pub(crate) directory: *mut bindings::dentry,
    /// Set when nothing is written any more and every sub-buffer is finished.
    pub(crate) ended: Atomic<bool>,
}

// SAFETY: All of it is plain data or locks for itself: the queues, the stamps and the flight recorder are atomics,
// and the directory is handed to debugfs only.
unsafe impl Send for Shared {}

// SAFETY: As above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The flight recorder, if it is one.
    pub(crate) fn flight(&self) -> Option<&Flight> {
        self.flight.as_deref()
    }
}

/// The open channel, or null.
///
/// Probes reach the channel through this. It is set before the filter lets the first event pass and
/// cleared after the last probe has returned, and changes with the CPU hotplug lock held only. A disk that comes
/// keeps it from being cleared: see `blkrelay_span_disk`.
pub(crate) static CURRENT: Atomic<*mut Shared> = Atomic::new(null_mut());

/// The channel that probes write to, if any.
///
/// # Safety
///
/// Whoever calls this keeps the channel for as long as what is returned is used: a probe that has got
/// past the filter and has not returned does.
pub(crate) unsafe fn current<'a>() -> Option<&'a Shared> {
    // SAFETY: By the contract.
    NonNull::new(CURRENT.load(Acquire)).map(|shared| unsafe { shared.as_ref() })
}

/// What is recorded: never changed once it has been published.
pub(crate) struct FilterSet {
    /// `None` stands for all devices.
    places: Option<KVec<Place>>,
    /// What is asked besides.
    pub(crate) asked: Asked,
    cgroups: config::Cgroups,
}

impl FilterSet {
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        filter: &config::Filter<'_>,
        places: Option<KVec<Place>>,
    ) -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                places,
                asked: Asked {
                    ops: Ops::new(filter.ops),
                    sectors: filter.sectors,
                    sizes: filter.sizes,
                },
                cgroups: filter.cgroups,
            },
            GFP_KERNEL,
        )?)
    }

    /// Which devices.
    #[inline]
    pub(crate) fn selection(&self) -> Selection<'_> {
        match &self.places {
            None => Selection::All,
            Some(places) => Selection::Queues(places),
        }
    }

    /// Ids of the cgroups; none stands for all.
    pub(crate) fn cgroups(&self) -> &[u64] {
        self.cgroups.ids()
    }

    /// Whether there is nothing to ask that the map of queues does not answer.
    pub(crate) fn is_map(&self) -> bool {
        self.selection().is_whole_disks() && self.asked.is_nothing() && self.cgroups().is_empty()
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        core::ptr::from_ref(self).cast()
    }
}
