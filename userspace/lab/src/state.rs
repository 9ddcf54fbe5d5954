// SPDX-License-Identifier: GPL-2.0
//! What is compared: the states of the tracers, and the workloads that are run in them.

/// A state of the tracers; see qemu/workloads/states.sh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum State {
    /// The module is not loaded: the baseline.
    None,
    /// Loaded, not started.
    Off,
    /// Loaded, started, stopped and unloaded before the window.
    After,
    /// Recording; where the workload has a reader, that writes to tmpfs.
    On,
    /// Recording another disk, which is idle: every event is refused.
    Filtered,
    /// Recording one span for each I/O.
    Span,
    /// A flight recorder that nothing triggers: no reader.
    Overwrite,
    /// The same with a filter that everything passes.
    Filter,
    /// The same with its triggers armed, an error and a second's latency.
    Slower,
    /// The kernel's blktrace instead; where the workload has a reader, that writes to tmpfs.
    Blktrace,
    /// The kernel's ftrace instead: its events Q, G, D and C, which nobody reads.
    Ftrace,
    /// qemu/tests/floor instead: the least that the four probes can be in C.
    Floor,
    /// Its probes that do nothing: what it costs to call them.
    Dispatch,
    /// As none, with a clock source that is not the TSC.
    #[value(name = "none_notsc")]
    NoneNotsc,
    /// As on, with that clock source: time stamps come from the kernel's timekeeping.
    Notsc,
}

impl State {
    /// The name in summaries and for the guest.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Off => "off",
            Self::After => "after",
            Self::On => "on",
            Self::Filtered => "filtered",
            Self::Span => "span",
            Self::Overwrite => "overwrite",
            Self::Filter => "filter",
            Self::Slower => "slower",
            Self::Blktrace => "blktrace",
            Self::Ftrace => "ftrace",
            Self::Floor => "floor",
            Self::Dispatch => "dispatch",
            Self::NoneNotsc => "none_notsc",
            Self::Notsc => "notsc",
        }
    }

    /// Whether events are recorded.
    pub fn records(self) -> bool {
        !matches!(
            self,
            Self::None
                | Self::NoneNotsc
                | Self::Off
                | Self::After
                | Self::Filtered
                | Self::Dispatch
        )
    }

    /// Whether others are compared with it.
    pub fn is_baseline(self) -> bool {
        self.baseline() == self
    }

    /// What it is compared with; a baseline with itself.
    pub fn baseline(self) -> Self {
        match self {
            Self::Notsc | Self::NoneNotsc => Self::NoneNotsc,
            _ => Self::None,
        }
    }

    /// Whether probes are called that record nothing.
    pub fn calls_only(self) -> bool {
        matches!(self, Self::Filtered | Self::Dispatch)
    }

    /// Whether it must cost nothing at all, within [`crate::measure::OFF_MARGIN_PER_IO`].
    pub fn is_free(self) -> bool {
        matches!(self, Self::Off | Self::After)
    }
}

/// A workload for count mode; see qemu/workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Workload {
    /// 4 KiB O_DIRECT reads.
    Read4k,
    /// The same, into buffers that hold all events: nobody reads, and what is counted is the events alone.
    Hotpath,
    /// A million events of such reads, to see how large the files become.
    Bytes,
    /// Ten volumes in parallel: mkfs.ext3, mount, unmount.
    Mkfs10,
}

impl Workload {
    /// The name in summaries.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read4k => "read4k",
            Self::Hotpath => "hotpath",
            Self::Bytes => "bytes",
            Self::Mkfs10 => "mkfs10",
        }
    }

    /// What its script calls the window.
    pub fn window(self) -> &'static str {
        match self {
            Self::Read4k | Self::Hotpath | Self::Bytes => "read4k",
            Self::Mkfs10 => "mkfs10",
        }
    }

    /// The guest's part.
    pub fn script(self) -> &'static str {
        match self {
            Self::Read4k | Self::Hotpath | Self::Bytes => {
                include_str!("../../../qemu/workloads/read4k.sh")
            }
            Self::Mkfs10 => include_str!("../../../qemu/workloads/mkfs10.sh"),
        }
    }

    /// Whether boots of two states are compared in pairs.
    pub fn paired(self) -> bool {
        self != Self::Mkfs10
    }

    /// Whether tracers have a reader.
    fn has_reader(self) -> bool {
        self != Self::Hotpath
    }

    /// Whether somebody reads what is recorded in this state.
    pub fn is_read(self, state: State) -> bool {
        self.has_reader() && matches!(state, State::On | State::Blktrace)
    }

    /// Whether the state can be measured on it.
    pub fn takes(self, state: State) -> bool {
        self == Self::Hotpath
            || matches!(
                state,
                State::None
                    | State::Off
                    | State::On
                    | State::Overwrite
                    | State::Filter
                    | State::Slower
                    | State::Blktrace
            )
    }

    /// Size in bytes and number of sub-buffers that all tracers get. With a reader so that the window fills
    /// many, without one so that they hold the window.
    pub fn buffers(self) -> (u64, u64) {
        match self {
            Self::Read4k => (256 << 10, 8),
            Self::Hotpath => (1 << 20, 32),
            // blktrace's own, doubled.
            Self::Bytes => (512 << 10, 8),
            // Some ten thousand events in all: small sub-buffers let the readers work meanwhile.
            Self::Mkfs10 => (16 << 10, 16),
        }
    }

    /// Disks that are traced.
    pub fn devices(self) -> u64 {
        match self {
            Self::Read4k | Self::Hotpath | Self::Bytes => 1,
            Self::Mkfs10 => 10,
        }
    }

    /// Events of an I/O, where each has the same.
    pub fn events_per_io(self) -> Option<u64> {
        match self {
            Self::Read4k | Self::Hotpath | Self::Bytes => Some(4),
            Self::Mkfs10 => None,
        }
    }

    /// Sub-buffers that the reader must consume in a window for it to stand for a running trace.
    pub fn consumed_at_least(self) -> u64 {
        match self {
            Self::Read4k => 16,
            Self::Hotpath | Self::Bytes | Self::Mkfs10 => 0,
        }
    }

    /// Boots of a state: declared here, before any run. The states that are measured against a bar of
    /// half an instruction get more.
    pub fn boots(self, state: State) -> usize {
        match (self, state) {
            (Self::Read4k | Self::Hotpath, State::None | State::Off | State::After) => 16,
            (Self::Read4k | Self::Hotpath, _) => 8,
            (Self::Bytes, _) => 1,
            (Self::Mkfs10, _) => 10,
        }
    }

    /// The text of /lab/arm: as long for one state as for another. It comes after the workload's script.
    pub fn arm(self, state: State) -> String {
        let (size, count) = self.buffers();
        let mut text = format!(
            "STATE={:<10}\nSUBBUF_SIZE={size}\nSUBBUFS={count}\nREADER={}\n",
            state.name(),
            if self.has_reader() { "yes" } else { "no" }
        );
        if self == Self::Bytes {
            text += "READS=262144\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn arms_have_one_length() {
        for workload in Workload::value_variants() {
            let n = workload.arm(State::None).len();
            for state in State::value_variants() {
                assert_eq!(workload.arm(*state).len(), n);
            }
        }
    }

    #[test]
    fn states_are_called_what_the_command_line_calls_them() {
        for state in State::value_variants() {
            let value = state.to_possible_value().unwrap();
            assert_eq!(value.get_name(), state.name());
        }
    }
}
