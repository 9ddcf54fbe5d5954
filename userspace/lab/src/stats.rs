// SPDX-License-Identifier: GPL-2.0
//! Effects with an interval. The boot is the unit: one number from each boot goes in.
//!
//! All intervals are two-sided Student t intervals of 95 %. A percentile bootstrap would cover 86 to
//! 90 % at the five to twenty boots that are affordable here, a t interval 93 to 96 %.

use anyhow::{ensure, Context, Result};
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics, Statistics};

/// Two-sided coverage of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// An estimate and its interval; `low` ≤ `estimate` ≤ `high`. Equal ends are no interval: the boots
/// were all the same, which makes them one sample (see [`Estimate::exact`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The point estimate.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// True if all boots agreed, so that there is one sample and no interval.
    pub fn exact(&self) -> bool {
        self.low == self.high
    }

    /// The same estimate in another unit.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.low), f(self.high));
        Self {
            estimate: f(self.estimate),
            low: a.min(b),
            high: a.max(b),
        }
    }

    /// Divided by a positive number, e.g. by I/Os.
    pub fn per(self, n: f64) -> Self {
        self.map(|x| x / n)
    }
}

fn interval(mean: f64, standard_error: f64, degrees: f64) -> Result<Estimate> {
    // Also where the degrees of freedom of two constant samples would be 0/0.
    if standard_error == 0.0 {
        return Ok(Estimate {
            estimate: mean,
            low: mean,
            high: mean,
        });
    }
    let t = StudentsT::new(0.0, 1.0, degrees)
        .with_context(|| format!("no t distribution with {degrees} degrees of freedom"))?
        .inverse_cdf(0.5 + CONFIDENCE / 2.0);
    Ok(Estimate {
        estimate: mean,
        low: mean - t * standard_error,
        high: mean + t * standard_error,
    })
}

/// Mean of a sample and its t interval.
///
/// # Errors
///
/// With fewer than two values.
pub fn mean(sample: &[f64]) -> Result<Estimate> {
    ensure!(
        sample.len() >= 2,
        "an interval needs two boots, not {}",
        sample.len()
    );
    let n = sample.len() as f64;
    // Identical values leave a rounding error in the variance that would pass for an interval.
    let spread = if distinct(sample) == 1 {
        0.0
    } else {
        sample.variance()
    };
    interval(sample.mean(), (spread / n).sqrt(), n - 1.0)
}

/// Median: the middle value, or the mean of the two in the middle. NaN if empty.
pub fn median(sample: &[f64]) -> f64 {
    Data::new(sample.to_vec()).median()
}

/// Number of different values. One alone tells nothing of how far others would lie from it.
pub fn distinct(sample: &[f64]) -> usize {
    let mut bits: Vec<u64> = sample.iter().map(|x| x.to_bits()).collect();
    bits.sort_unstable();
    bits.dedup();
    bits.len()
}

/// `a[i] - b[i]` of boots that are alike in all but the state.
///
/// # Errors
///
/// When the arms differ in length or have fewer than two boots.
pub fn paired_difference(a: &[f64], b: &[f64]) -> Result<Estimate> {
    mean(&differences(a, b)?)
}

/// The differences themselves.
///
/// # Errors
///
/// When the arms differ in length.
pub fn differences(a: &[f64], b: &[f64]) -> Result<Vec<f64>> {
    ensure!(
        a.len() == b.len(),
        "pairs are incomplete: {} and {} boots",
        a.len(),
        b.len()
    );
    Ok(a.iter().zip(b).map(|(a, b)| a - b).collect())
}

/// Ratio of two arms' means, as a − b over b in per cent, from pairs: a t interval on the logarithms of
/// the pairs' ratios.
///
/// # Errors
///
/// As for [`paired_difference`], and when a value is not positive.
pub fn paired_percent(a: &[f64], b: &[f64]) -> Result<Estimate> {
    Ok(paired_difference(&logs(a)?, &logs(b)?)?.map(percent))
}

/// The same from arms that were not paired: Welch's t interval on the logarithms.
///
/// # Errors
///
/// When an arm has fewer than two boots or a value is not positive.
pub fn unpaired_percent(a: &[f64], b: &[f64]) -> Result<Estimate> {
    Ok(welch(&logs(a)?, &logs(b)?)?.map(percent))
}

fn percent(log_ratio: f64) -> f64 {
    log_ratio.exp_m1() * 100.0
}

fn logs(sample: &[f64]) -> Result<Vec<f64>> {
    ensure!(
        sample.iter().all(|x| *x > 0.0),
        "a count that is not positive"
    );
    Ok(sample.iter().map(|x| x.ln()).collect())
}

/// Difference of the means of two independent samples: Welch's interval, with the degrees of freedom
/// of Welch and Satterthwaite.
fn welch(a: &[f64], b: &[f64]) -> Result<Estimate> {
    ensure!(
        a.len() >= 2 && b.len() >= 2,
        "an interval needs two boots in each arm, not {} and {}",
        a.len(),
        b.len()
    );
    let part = |s: &[f64]| {
        let n = s.len() as f64;
        let v = if distinct(s) == 1 { 0.0 } else { s.variance() };
        (v / n, n - 1.0)
    };
    let ((va, da), (vb, db)) = (part(a), part(b));
    let variance = va + vb;
    let degrees = variance * variance / (va * va / da + vb * vb / db);
    interval(a.mean() - b.mean(), variance.sqrt(), degrees)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-4 * b.abs().max(1e-3), "{a} is not {b}");
    }

    // By hand: 2 4 4 4 5 5 7 9 has mean 5 and sum of squares 32, so s² = 32/7, s/√8 = 0.755929, and
    // t(0.975, 7) = 2.364624 from any table: 5 ± 1.787487.
    #[test]
    fn mean_of_eight() {
        let e = mean(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        near(e.estimate, 5.0);
        near(e.low, 5.0 - 1.787_487);
        near(e.high, 5.0 + 1.787_487);
    }

    // By hand: differences 1 2 3, mean 2, s² = 1, s/√3 = 0.577350, t(0.975, 2) = 4.302653.
    #[test]
    fn pairs_of_three() {
        let e = paired_difference(&[11.0, 22.0, 33.0], &[10.0, 20.0, 30.0]).unwrap();
        near(e.estimate, 2.0);
        near(e.high, 2.0 + 4.302_653 * 0.577_350);
        near(e.low, 2.0 - 4.302_653 * 0.577_350);
        assert!(paired_difference(&[1.0, 2.0], &[1.0]).is_err());
    }

    // By hand: each arm has variance 1 and n = 3, so the variance of the difference is 2/3 and the
    // degrees of freedom (2/3)² / (2 · (1/3)²/2) = 4; t(0.975, 4) = 2.776445.
    #[test]
    fn welch_of_equal_arms() {
        let e = welch(&[5.0, 6.0, 7.0], &[1.0, 2.0, 3.0]).unwrap();
        near(e.estimate, 4.0);
        near(e.high - e.estimate, 2.776_445 * (2.0f64 / 3.0).sqrt());
    }

    // By hand: variances 1 (n = 3) and 16 (n = 2: 0 and √32 apart); a = 1/3, b = 8, degrees
    // (25/3)² / ((1/9)/2 + 64/1) = 69.4444 / 64.0556 = 1.084128.
    #[test]
    fn welch_of_unequal_arms_uses_fractional_degrees() {
        let d = 32.0f64.sqrt();
        let e = welch(&[1.0, 2.0, 3.0], &[0.0, d]).unwrap();
        let t = StudentsT::new(0.0, 1.0, 1.084_128)
            .unwrap()
            .inverse_cdf(0.975);
        near(e.high - e.estimate, t * (25.0f64 / 3.0).sqrt());
        // Between t(0.975, 1) = 12.7062 and t(0.975, 2) = 4.3027.
        assert!((9.0..12.7).contains(&t));
    }

    // By hand: pairs' ratios 1.1, 1.1 and 1.1: the interval is a point at 10 %.
    #[test]
    fn constant_ratio_is_exact() {
        let e = paired_percent(&[110.0, 110.0, 110.0], &[100.0, 100.0, 100.0]).unwrap();
        near(e.estimate, 10.0);
        assert!(e.exact());
        let e = unpaired_percent(&[99.0, 99.0], &[100.0, 100.0, 100.0]).unwrap();
        near(e.estimate, -1.0);
        assert!(e.exact());
        assert!(paired_percent(&[1.0, 0.0], &[1.0, 1.0]).is_err());
        assert!(mean(&[1.0]).is_err());
    }

    #[test]
    fn medians_and_distinct() {
        near(median(&[3.0, 1.0, 2.0]), 2.0);
        near(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(distinct(&[1.0, 2.0, 1.0]), 2);
    }

    /// Coverage of the interval that the rows print, over normal samples and over skewed ones, at the
    /// numbers of boots in use. A wrong quantile, variance or degree of freedom shows here.
    #[test]
    fn intervals_cover() {
        use rand_pcg::rand_core::{RngCore, SeedableRng};
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(7);
        let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        // Twelve uniforms make a normal; a tenth of its exponential a mildly skewed count.
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        for n in [6, 10, 16] {
            let (mut plain, mut skewed) = (0, 0);
            const RUNS: i32 = 2000;
            for _ in 0..RUNS {
                let a: Vec<f64> = (0..n).map(|_| 1e6 + 300.0 * normal()).collect();
                let b: Vec<f64> = (0..n).map(|_| 1e6 + 300.0 * normal()).collect();
                let e = unpaired_percent(&a, &b).unwrap();
                plain += i32::from(e.low <= 0.0 && 0.0 <= e.high);
                let a: Vec<f64> = (0..n).map(|_| 1e6 * (0.1 * normal()).exp()).collect();
                let e = mean(&a).unwrap();
                let truth = 1e6 * (0.01f64 / 2.0).exp();
                skewed += i32::from(e.low <= truth && truth <= e.high);
            }
            for hits in [plain, skewed] {
                let coverage = f64::from(hits) / f64::from(RUNS);
                assert!((0.93..0.975).contains(&coverage), "n = {n}: {coverage}");
            }
        }
    }
}
