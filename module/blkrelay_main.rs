// SPDX-License-Identifier: GPL-2.0

//! blkrelay: a block layer tracer that costs a fraction of blktrace and loses nothing silently.
//!
//! Probes on the block tracepoints write fixed-size records into per-CPU relay buffers:
//!
//! ```text
//! tracepoint -> probes -> filter -> record -> shim (fast path) | stream (the rest) -> reader
//! ```
//!
//! This file holds the module's parameters and the order of start-up and tear-down. A module that
//! is loaded and not started has no probe registered.

#[macro_use]
mod abi;
mod channel;
mod clock;
mod config;
mod control;
mod cpus;
mod devices;
mod fast;
mod files;
mod filter;
mod flight;
mod layout;
#[cfg(all(CONFIG_X86_64, CONFIG_SMP))]
mod percpu;
mod probes;
mod reader;
mod record;
mod shared;
mod slot;
mod span;
mod stamps;
mod stream;
mod tracepoint;

use kernel::prelude::*;

module! {
    type: BlkRelay,
    name: "blkrelay",
    authors: ["The blkrelay authors"],
    description: "Block layer tracer: fixed-size records in per-CPU relay buffers",
    license: "GPL",
    params: {
        subbuf_size: u32 {
            default: 524288,
            description: "Default bytes of a sub-buffer: a power of two, 4096 to 67108864",
        },
        subbufs: u32 {
            default: 8,
            description: "Default sub-buffers of each CPU: 2 to 65536",
        },
    },
}

struct BlkRelay {
    /// Dropped by hand, before the last wake-ups are waited for.
    files: Option<control::Files>,
}

impl kernel::Module for BlkRelay {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let subbuf_size = module_parameters::subbuf_size.value();
        let subbufs = module_parameters::subbufs.value();
        let Some(defaults) = control::Defaults::new(subbuf_size, subbufs) else {
            pr_err!(
                "subbuf_size={}: a power of two, 4096 to 67108864; subbufs={}: 2 to 65536\n",
                subbuf_size,
                subbufs
            );
            return Err(EINVAL);
        };

        // SAFETY: The kernel calls this once for each time that it loads the module.
        unsafe { channel::init() }.inspect_err(|e| {
            pr_err!(
                "CPU hotplug or block class: error {}; out of memory?\n",
                e.to_errno()
            );
        })?;
        // From here on, dropping this undoes all that has been done.
        let mut module = Self { files: None };

        // SAFETY: As above.
        let files = unsafe { control::Files::new(defaults) }.inspect_err(|e| {
            pr_err!(
                "debugfs: error {}; is it built in and allowed?\n",
                e.to_errno()
            )
        })?;
        module.files = Some(files);
        Ok(module)
    }
}

impl Drop for BlkRelay {
    fn drop(&mut self) {
        // Ends the trace: unregisters the probes, waits for those that run, closes the channel;
        // then removes the files.
        self.files = None;
        channel::exit();
    }
}
