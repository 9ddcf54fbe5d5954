// SPDX-License-Identifier: GPL-2.0
//! Is a clock fit to time block I/O? Asked in the guest about its own, and on the host about the TSC.

use anyhow::{bail, Result};
use nix::time::{clock_gettime, ClockId};
use std::fs;
use std::time::{Duration, Instant};

/// The coarsest step of `CLOCK_MONOTONIC` that is still good for time stamps of block events, in ns.
pub const MAX_STEP_NS: u64 = 10_000;

const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// What the guest says about its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// The kernel's clock source, e.g. `tsc`.
    pub source: String,
    /// The smallest step seen between two readings of `CLOCK_MONOTONIC` that differ, in ns.
    pub step_ns: u64,
    /// `CLOCK_MONOTONIC` at the end of the check, in ns since boot.
    pub now_ns: u64,
}

fn now_ns(id: ClockId) -> Result<u64> {
    let t = clock_gettime(id)?;
    Ok(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

impl Clock {
    /// Waits for the kernel to decide on its clock source: about a second after boot `tsc-early`, the
    /// same counter, gives way to `tsc`. Gives up after five seconds; [`Clock::check`] tells then.
    ///
    /// # Errors
    ///
    /// As for [`Clock::measure`].
    pub fn settle() -> Result<Self> {
        for _ in 0..100 {
            if Self::source()? != "tsc-early" {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Self::measure()
    }

    fn source() -> Result<String> {
        match fs::read_to_string(CURRENT) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(e) => bail!("{CURRENT}: {e}: mount sysfs"),
        }
    }

    /// Asks this machine's kernel. Reads the clock until it stepped ten times or for one second.
    ///
    /// # Errors
    ///
    /// When sysfs does not name the clock source or the clock does not move at all.
    pub fn measure() -> Result<Self> {
        let source = Self::source()?;
        let start = now_ns(ClockId::CLOCK_MONOTONIC)?;
        let mut last = start;
        let mut step_ns = u64::MAX;
        let mut steps = 0;
        // A clock that stands still must not hang the check: bound the number of readings as well.
        for _ in 0..50_000_000u64 {
            let now = now_ns(ClockId::CLOCK_MONOTONIC)?;
            if now != last {
                step_ns = step_ns.min(now.saturating_sub(last));
                steps += 1;
                last = now;
            }
            if steps >= 10 || now.saturating_sub(start) > 1_000_000_000 {
                break;
            }
        }
        if steps == 0 {
            bail!("the clock ({source}) does not move");
        }
        Ok(Self {
            source,
            step_ns,
            now_ns: last,
        })
    }

    /// Refuses a clock that block events cannot be timed with.
    ///
    /// # Errors
    ///
    /// When the clock source is not the TSC or its steps are coarser than [`MAX_STEP_NS`].
    pub fn check(&self) -> Result<()> {
        if self.source != "tsc" {
            bail!(
                "clock source is {}, not tsc (steps of {} ns): time stamps would be nonsense",
                self.source,
                self.step_ns
            );
        }
        if self.step_ns > MAX_STEP_NS {
            bail!(
                "the clock steps by {} ns, more than {MAX_STEP_NS}: time stamps would be nonsense",
                self.step_ns
            );
        }
        Ok(())
    }

    /// The console line of the guest, see [`Clock::parse`].
    pub fn line(&self) -> String {
        format!(
            "@clock source={} step_ns={} now_ns={}",
            self.source, self.step_ns, self.now_ns
        )
    }

    /// Reads what [`Clock::line`] wrote; `None` if it is something else.
    pub fn parse(line: &str) -> Option<Self> {
        let mut clock = Self {
            source: String::new(),
            step_ns: 0,
            now_ns: 0,
        };
        for word in line.strip_prefix("@clock ")?.split_whitespace() {
            match word.split_once('=')? {
                ("source", v) => clock.source = v.to_owned(),
                ("step_ns", v) => clock.step_ns = v.parse().ok()?,
                ("now_ns", v) => clock.now_ns = v.parse().ok()?,
                _ => {}
            }
        }
        (!clock.source.is_empty()).then_some(clock)
    }
}

/// The host's TSC rate in kHz, measured against `CLOCK_MONOTONIC_RAW` for about 100 ms. TCG hands the
/// host's counter to the guest as it is, so this is the rate that a guest must be told.
///
/// # Errors
///
/// When three measurements do not agree within 100 ppm: the host is too busy, or its TSC is not steady.
#[cfg(target_arch = "x86_64")]
pub fn host_tsc_khz() -> Result<u32> {
    fn pair() -> Result<(u64, u64)> {
        // The tightest of several bracketed readings: a preemption in between would skew the pair.
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..20 {
            // SAFETY: every x86-64 has rdtsc, and Linux leaves it enabled for user space.
            let (a, ns, b) = unsafe {
                let a = core::arch::x86_64::_rdtsc();
                let ns = now_ns(ClockId::CLOCK_MONOTONIC_RAW)?;
                (a, ns, core::arch::x86_64::_rdtsc())
            };
            if b.wrapping_sub(a) < best.0 {
                best = (b.wrapping_sub(a), a.wrapping_add(b.wrapping_sub(a) / 2), ns);
            }
        }
        Ok((best.1, best.2))
    }
    let mut rates = Vec::new();
    for _ in 0..3 {
        let (tsc0, ns0) = pair()?;
        let until = Instant::now() + Duration::from_millis(35);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (tsc1, ns1) = pair()?;
        rates.push((tsc1.wrapping_sub(tsc0)) as f64 * 1e6 / (ns1 - ns0) as f64);
    }
    rates.sort_by(f64::total_cmp);
    if (rates[2] - rates[0]) / rates[1] > 100e-6 {
        bail!(
            "the host's TSC rate is not steady ({:.0} to {:.0} kHz): try again on an idle machine",
            rates[0],
            rates[2]
        );
    }
    Ok(rates[1].round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_round_trip_and_verdicts() {
        let good = Clock::parse("@clock source=tsc step_ns=41 now_ns=1500000000").unwrap();
        assert_eq!(
            good,
            Clock {
                source: "tsc".into(),
                step_ns: 41,
                now_ns: 1_500_000_000
            }
        );
        assert!(good.check().is_ok());
        assert_eq!(Clock::parse(&good.line()), Some(good));
        let coarse = Clock::parse("@clock source=tsc step_ns=4000000 now_ns=1").unwrap();
        assert!(coarse.check().unwrap_err().to_string().contains("4000000"));
        let jiffies = Clock::parse("@clock source=refined-jiffies step_ns=1 now_ns=1").unwrap();
        assert!(jiffies.check().is_err());
        assert_eq!(Clock::parse("@clock step_ns=x"), None);
        assert_eq!(Clock::parse("clock"), None);
    }
}
