// SPDX-License-Identifier: GPL-2.0

//! The trace's clock, and the anchors that tie it to the kernel's clocks.
//!
//! The time stamp itself is taken in the shim, in the instruction before the record is stored. It
//! is the TSC where that is the kernel's clocksource, and `ktime_get_mono_fast_ns()` elsewhere, at
//! some 45 instructions an event more.

use crate::abi;
use kernel::bindings;

/// What the time stamps of a trace count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Cycles of the TSC, `khz` thousand a second.
    Tsc {
        /// The kernel's nominal rate.
        khz: u32,
    },
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Mono,
}

/// One instant on four clocks.
#[derive(Clone, Copy)]
pub(crate) struct Anchor {
    /// The trace's clock.
    pub(crate) trace: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub(crate) mono: u64,
    /// `CLOCK_MONOTONIC_RAW`, ns.
    pub(crate) raw: u64,
    /// `CLOCK_REALTIME`, ns since 1970.
    pub(crate) real: u64,
    /// Whether `trace` was read in the very instant of the others, by the kernel's own timekeeping.
    pub(crate) exact: bool,
}

impl Clock {
    /// The clock that a trace begun now uses.
    pub(crate) fn choose() -> Self {
        // SAFETY: Reads a variable that is constant after boot.
        let khz = unsafe { abi::blkrelay_tsc_khz() };

        if khz != 0 && counts_tsc(&snapshot(bindings::CLOCK_MONOTONIC)) {
            Self::Tsc { khz }
        } else {
            Self::Mono
        }
    }

    /// `BLKRELAY_CLOCK_*`.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Tsc { .. } => abi::BLKRELAY_CLOCK_TSC,
            Self::Mono => abi::BLKRELAY_CLOCK_MONO,
        }
    }

    /// The clock's name in `status`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tsc { .. } => "tsc",
            Self::Mono => "mono",
        }
    }

    /// Nominal rate in kHz.
    pub(crate) fn khz(self) -> u32 {
        match self {
            Self::Tsc { khz } => khz,
            Self::Mono => 1_000_000,
        }
    }

    /// Microseconds in ticks of the trace's clock.
    pub(crate) fn ticks(self, us: u32) -> u64 {
        u64::from(us).saturating_mul(u64::from(self.khz())) / 1000
    }

    /// Takes an anchor. `read` reads the trace's clock.
    pub(crate) fn anchor(self, read: impl FnOnce() -> u64) -> Anchor {
        let mono = snapshot(bindings::CLOCK_MONOTONIC);
        // The trace's clock next to the snapshot, for when the snapshot does not bring it along.
        let beside = read();
        let real = snapshot(bindings::CLOCK_REALTIME);
        // The second snapshot is later by this much.
        let later = real.monoraw.wrapping_sub(mono.monoraw);
        let exact = match self {
            Self::Tsc { .. } => counts_tsc(&mono),
            Self::Mono => true,
        };

        Anchor {
            trace: match self {
                Self::Tsc { .. } if exact => mono.cycles,
                _ => beside,
            },
            mono: mono.systime as u64,
            raw: mono.monoraw as u64,
            real: real.systime.wrapping_sub(later) as u64,
            exact,
        }
    }
}

/// Whether the kernel's timekeeping read the TSC for this. In the first second or so after boot it
/// goes by the name of tsc-early: the same counter, at a rate that is not refined yet.
fn counts_tsc(snapshot: &bindings::system_time_snapshot) -> bool {
    matches!(
        snapshot.cs_id,
        bindings::clocksource_ids_CSID_X86_TSC | bindings::clocksource_ids_CSID_X86_TSC_EARLY
    )
}

fn snapshot(clock: u32) -> bindings::system_time_snapshot {
    let mut snapshot = bindings::system_time_snapshot::default();

    // SAFETY: Fills in the struct. It takes no lock and loops only while timekeeping is being
    // updated, which is done with interrupts off and traces no block event, so never on this CPU.
    unsafe { bindings::ktime_get_snapshot_id(clock as bindings::clockid_t, &mut snapshot) };
    snapshot
}
