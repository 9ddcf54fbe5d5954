// SPDX-License-Identifier: GPL-2.0

//! Block devices by number, and the queues whose ids a trace may use.
//!
//! A record names its queue by `request_queue.id`. The kernel gives an id to the next queue as soon as
//! the last one that had it is freed, so a trace keeps a reference to each queue that it names: within
//! one trace an id means one queue. That holds back some kilobytes of a disk that has gone, not the
//! disk.

use crate::{
    abi,
    config::{
        self,
        Devices, //
    },
    filter::{
        Place,
        QUEUES, //
    }, //
};
use core::{
    ptr::null_mut,
    sync::atomic::{
        AtomicPtr,
        Ordering, //
    }, //
};
use kernel::{
    alloc::KVVec,
    bindings,
    prelude::*, //
};

/// References to queues, by their ids.
pub(crate) struct Queues(KVVec<AtomicPtr<bindings::request_queue>>);

impl Queues {
    /// No queues.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let mut table = KVVec::with_capacity(QUEUES, GFP_KERNEL)?;

        for _ in 0..QUEUES {
            table.push(AtomicPtr::new(null_mut()), GFP_KERNEL)?;
        }
        Ok(Self(table))
    }

    /// The queue that is kept under this id; null if there is none.
    pub(crate) fn get(&self, id: u16) -> *mut bindings::request_queue {
        self.0
            .get(usize::from(id))
            .map_or(null_mut(), |entry| entry.load(Ordering::Relaxed))
    }

    /// Keeps the queue, and with it its id. Returns whether it is kept: not if it is about to go.
    ///
    /// # Safety
    ///
    /// `q` is a live queue and `id` its id.
    pub(crate) unsafe fn keep(&self, id: u16, q: *mut bindings::request_queue) -> bool {
        let Some(entry) = self.0.get(usize::from(id)) else {
            return false;
        };

        if !entry.load(Ordering::Relaxed).is_null() {
            // While one is kept no other has its id.
            return true;
        }
        // SAFETY: By the contract.
        if !unsafe { bindings::blk_get_queue(q) } {
            return false;
        }
        if entry
            .compare_exchange(null_mut(), q, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            // Another CPU was faster.
            // SAFETY: Taken just now; the other's reference is still there, so this is not the last
            // one and does not sleep.
            unsafe { bindings::blk_put_queue(q) };
        }
        true
    }
}

impl Drop for Queues {
    /// May sleep.
    fn drop(&mut self) {
        for entry in &self.0 {
            let q = entry.load(Ordering::Relaxed);

            if !q.is_null() {
                // SAFETY: `keep` has taken this reference, and nobody names the queue any more: the trace
                // is over. Dropped by commands and on unload, which may sleep.
                unsafe { bindings::blk_put_queue(q) };
            }
        }
    }
}

/// Why a device cannot be traced.
pub(crate) enum ResolveError {
    /// There is none with that number.
    NoDevice(config::Device),
    /// Its queue's id does not fit into a record.
    QueueId(config::Device, i32),
    /// `ENOMEM`.
    NoMemory,
}

/// The places that these devices are; none stands for all devices. Their queues are kept.
///
/// # Errors
///
/// [`ResolveError`]; what is kept already stays so until `queues` is dropped.
pub(crate) fn resolve(
    devices: Devices<'_>,
    queues: &Queues,
) -> Result<Option<KVec<Place>>, ResolveError> {
    let Devices::List(list) = devices else {
        return Ok(None);
    };
    let mut places = KVec::new();

    for device in list.iter() {
        let mut found = abi::blkrelay_resolved::default();

        // SAFETY: Called by commands, which may sleep. Fills in the struct if it returns 0.
        let error = unsafe { abi::blkrelay_device(device.major, device.minor, &mut found) };
        if error < 0 {
            return Err(ResolveError::NoDevice(device));
        }
        // SAFETY: A live queue: the reference is ours until the end of this round.
        let id = unsafe { (*found.q).id };
        let queue = match u16::try_from(id) {
            Err(_) => Err(ResolveError::QueueId(device, id)),
            // SAFETY: As above.
            Ok(id) if unsafe { queues.keep(id, found.q) } => Ok(id),
            // Going away this very moment.
            Ok(_) => Err(ResolveError::NoDevice(device)),
        };
        // SAFETY: As above; not used any more.
        unsafe { bindings::blk_put_queue(found.q) };

        let part = match found.sectors {
            0 => None,
            n => Some((found.start, found.start.wrapping_add(n).wrapping_sub(1))),
        };
        let place = Place {
            queue: queue?,
            part,
        };
        places
            .push(place, GFP_KERNEL)
            .map_err(|_| ResolveError::NoMemory)?;
    }
    Ok(Some(places))
}
