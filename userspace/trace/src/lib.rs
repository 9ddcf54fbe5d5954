// SPDX-License-Identifier: GPL-2.0
//! What a trace says: sources, the merge by time, events, request tracking, statistics, verification.
//!
//! ```no_run
//! let source = blkrelay_trace::open("trace.blkr".as_ref())?;
//! for item in source.events() {
//!     match item {
//!         blkrelay_trace::Item::Event(event) => println!("{} {}", event.ns, event.action.name()),
//!         blkrelay_trace::Item::Gap(gap) => println!("{} events are not there", gap.events),
//!     }
//! }
//! # Ok::<(), blkrelay_trace::OpenError>(())
//! ```

mod clock;
mod event;
mod events;
mod filter;
mod merge;
mod op;
mod requests;
mod source;
mod stats;
mod verify;

pub use blkrelay_format::Action;
pub use clock::ClockMap;
pub use event::{
    time, Cause, Comm, Detail, Dev, Event, Extra, Gap, GapKind, Item, ParseDevError, Rwbs, Stop,
    Times,
};
pub use events::{DeviceInfo, Events};
pub use filter::{Filter, Place, Selected};
pub use op::{Kind, Op, Opf};
pub use requests::{Counts, IoSpan, RequestSpan, Span, Stretch, Submitter, Tracker};
pub use source::{open, OpenError, Problem, Source};
pub use stats::{DeviceStats, Latency, Losses, ProcessStats, Quantiles, Stats, Totals};
pub use verify::{Finding, Verdict};
