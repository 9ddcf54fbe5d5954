// SPDX-License-Identifier: GPL-2.0
//! From the trace's clock to CLOCK_MONOTONIC.
//!
//! Each sub-buffer's header brings an anchor: one instant read from both clocks. CLOCK_MONOTONIC is slewed
//! by NTP, so only between two anchors is its rate known exactly, and each anchor starts a line of its own.
//! The anchors of all CPUs together make one map, so that the order of events is the order of their times.

use blkrelay_format::{Clock, Header};

/// A line shorter than this says more about the rounding of its two ends than about the clock's rate.
const RATE_NS: u64 = 10_000_000;
/// NTP slews by at most 500 ppm. A line that is steeper or flatter crosses a suspend or a step.
const SLEW: f64 = 0.001;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Clock where it begins.
    raw: u64,
    /// CLOCK_MONOTONIC there.
    ns: u64,
    /// Nanoseconds a tick.
    rate: f64,
    /// CLOCK_MONOTONIC that it must not pass: where the next line begins.
    limit: u64,
}

impl Line {
    fn at(&self, raw: u64) -> u64 {
        if raw >= self.raw {
            let ns = (raw - self.raw) as f64 * self.rate;
            self.ns.saturating_add(ns as u64).min(self.limit)
        } else {
            let ns = ((self.raw - raw) as f64 * self.rate).ceil();
            self.ns.saturating_sub(ns as u64)
        }
    }
}

/// A monotone map from the trace's clock to nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug)]
pub struct ClockMap {
    lines: Vec<Line>,
    /// The line of the last conversion: the next one is almost always on it too.
    last: usize,
}

impl ClockMap {
    /// The map of a trace, from the headers of all its sub-buffers in any order.
    ///
    /// Before the first anchor and after the last the nearest measured rate holds on; with a single anchor
    /// it is the nominal one. Without any good anchor times are relative to the first one seen.
    pub fn new<'a>(headers: impl Iterator<Item = &'a Header>) -> ClockMap {
        let mut anchors = Vec::new();
        let mut nominal = 1.0;
        for header in headers {
            if header.clock_kind() == Some(Clock::Tsc) && header.khz != 0 {
                nominal = 1e6 / f64::from(header.khz);
            }
            if header.anchor_ok() {
                anchors.push((header.anchor, header.mono));
            }
        }
        ClockMap::from_anchors(anchors, nominal)
    }

    /// The map through pairs of (clock, CLOCK_MONOTONIC ns), with `nominal` nanoseconds a tick where
    /// nothing better is known.
    pub fn from_anchors(mut anchors: Vec<(u64, u64)>, nominal: f64) -> ClockMap {
        anchors.sort_unstable();
        // A pair that would make time go back is wrong; which of the two cannot be known, the later goes.
        let mut good: Vec<(u64, u64)> = Vec::with_capacity(anchors.len());
        for anchor in anchors {
            if good
                .last()
                .is_none_or(|last| anchor.0 > last.0 && anchor.1 >= last.1)
            {
                good.push(anchor);
            }
        }
        let mut lines: Vec<Line> = good
            .windows(2)
            .map(|pair| {
                let (raw, ns) = pair[0];
                let measured = (pair[1].1 - ns) as f64 / (pair[1].0 - raw) as f64;
                let off = (measured / nominal - 1.0).abs();
                let broken = off > SLEW && pair[1].1 - ns >= RATE_NS;
                Line {
                    raw,
                    ns,
                    rate: if broken { nominal } else { measured },
                    limit: pair[1].1,
                }
            })
            .collect();
        if let Some(&(raw, ns)) = good.last() {
            // Behind the last anchor: the rate measured over the latest stretch that is long enough.
            let long = good
                .iter()
                .rev()
                .find(|&&(_, from)| ns - from >= RATE_NS)
                .map(|&(from_raw, from)| (ns - from) as f64 / (raw - from_raw) as f64)
                .filter(|rate| (rate / nominal - 1.0).abs() <= SLEW);
            lines.push(Line {
                raw,
                ns,
                rate: long.unwrap_or(nominal),
                limit: u64::MAX,
            });
        }
        if let [first, ..] = lines.as_mut_slice() {
            // It also reaches back to before the first anchor, where a short line's rate would be noise.
            if first.limit - first.ns < RATE_NS {
                first.rate = nominal;
            }
        } else {
            lines.push(Line {
                raw: 0,
                ns: 0,
                rate: nominal,
                limit: u64::MAX,
            });
        }
        ClockMap { lines, last: 0 }
    }

    /// Nanoseconds of CLOCK_MONOTONIC at `raw`. Never smaller for a larger `raw`.
    #[inline]
    pub fn ns(&mut self, raw: u64) -> u64 {
        let on = |index: usize| {
            let line = self.lines.get(index)?;
            let next = self.lines.get(index + 1);
            let starts = index == 0 || line.raw <= raw;
            (starts && next.is_none_or(|next| raw < next.raw)).then_some(line)
        };
        if let Some(line) = on(self.last) {
            return line.at(raw);
        }
        let next = self.lines.partition_point(|line| line.raw <= raw);
        self.last = next.saturating_sub(1);
        self.lines[self.last].at(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn between_anchors_time_is_interpolated() {
        // 2 ticks a nanosecond, then slewed to 1.0004 of that.
        let mut map = ClockMap::from_anchors(
            vec![
                (2_000_000, 51_000_000),
                (0, 50_000_000),
                (4_000_800, 52_000_000),
            ],
            0.5,
        );
        assert_eq!(map.ns(0), 50_000_000);
        assert_eq!(map.ns(1_000_000), 50_500_000);
        assert_eq!(map.ns(2_000_000), 51_000_000);
        assert_eq!(map.ns(3_000_400), 51_500_000);
        // And back, outside on both sides at the nominal rate: no stretch is 10 ms long.
        assert_eq!(map.ns(6_000_800), 53_000_000);
    }

    #[test]
    fn behind_the_last_anchor_the_measured_rate_holds_on() {
        // 400 ppm slower than nominal over 100 ms: after 50 ms more the nominal rate would be 20 us off.
        let mut map = ClockMap::from_anchors(vec![(0, 0), (100_040_000, 100_000_000)], 1.0);
        assert!(map.ns(150_060_000).abs_diff(150_000_000) <= 1);
    }

    #[test]
    fn nothing_is_interpolated_across_a_suspend() {
        // The counter ran on for ten seconds, CLOCK_MONOTONIC for one.
        let mut map = ClockMap::from_anchors(
            vec![
                (0, 0),
                (10_000_000_000, 1_000_000_000),
                (10_100_000_000, 1_100_000_000),
            ],
            1.0,
        );
        assert_eq!(map.ns(5_000), 5_000);
        assert_eq!(map.ns(9_000_000_000), 1_000_000_000);
        assert_eq!(map.ns(10_050_000_000), 1_050_000_000);
    }

    #[test]
    fn one_anchor_uses_the_nominal_rate() {
        let mut map = ClockMap::from_anchors(vec![(1000, 5_000_000)], 0.25);
        assert_eq!(map.ns(1000 + 400), 5_000_100);
        assert_eq!(map.ns(1000 - 400), 4_999_900);
    }

    #[test]
    fn bad_anchors_are_not_used() {
        let header = |anchor, mono, flags| Header {
            clock: 1,
            khz: 1_000_000,
            anchor,
            mono,
            flags,
            ..Header::default()
        };
        let headers = [
            header(100, 1100, 0),
            header(200, 999_999, 1),
            header(300, 1300, 0),
        ];
        assert_eq!(ClockMap::new(headers.iter()).ns(250), 1250);
    }

    proptest! {
        #[test]
        fn never_goes_back(
            anchors in proptest::collection::vec((0u64..1 << 40, 0u64..1 << 40), 0..20),
            mut times in proptest::collection::vec(0u64..1 << 41, 2..50),
            nominal in 0.1f64..10.0,
        ) {
            let mut map = ClockMap::from_anchors(anchors, nominal);
            times.sort_unstable();
            let ns: Vec<u64> = times.iter().map(|time| map.ns(*time)).collect();
            prop_assert!(ns.is_sorted());
        }
    }
}
