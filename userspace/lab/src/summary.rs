// SPDX-License-Identifier: GPL-2.0
//! The result of a run of the lab as data (`summary.json`) and as a table.
//!
//! Schema 1: `{"schema":1,"rows":[…]}`, a row for each state of each workload. States and workloads may be
//! added under one schema number, and so may fields; a field never changes its meaning or unit.

use crate::stats::Estimate;
use anyhow::{Context, Result};
use comfy_table::{presets, CellAlignment, Table};
use serde::Serialize;
use std::path::Path;

/// The file's `schema`.
pub const SCHEMA: u32 = 1;

/// All rows of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA`]
    pub schema: u32,
    /// One for each state and workload.
    pub rows: Vec<Row>,
}

/// What a state costs on a workload, against a baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `off`, `on`, `blktrace`, …
    pub state: String,
    /// The state that it is compared with: `none`.
    pub baseline: String,
    /// `read4k`, `mkfs10`, …
    pub workload: String,
    /// `count`, `emulated` or `time`.
    pub mode: String,
    /// Of `value`, `baseline_value`, `per_io` and `per_event`: `guest instructions`.
    pub unit: String,
    /// The window in this state.
    pub value: Estimate,
    /// The window in the baseline.
    pub baseline_value: Estimate,
    /// Added to the baseline, in per cent of it: t interval on the logarithms of the ratios.
    pub delta_percent: Estimate,
    /// Added for each I/O of the window.
    pub per_io: Option<Estimate>,
    /// Median over the pairs of what was added for each I/O; null where boots are not paired.
    pub per_io_median: Option<f64>,
    /// Added for each event recorded; null for a state that records nothing.
    pub per_event: Option<Estimate>,
    /// I/Os in the baseline's window, mean over its boots.
    pub ios: u64,
    /// Events recorded in the window, mean over the boots.
    pub events: u64,
    /// Events lost, all boots together.
    pub lost: u64,
    /// Size of a sub-buffer in bytes, for a state that records.
    pub subbuf_size: Option<u64>,
    /// Sub-buffers that the reader wrote to its file in the window: no fewer, in any boot. A flush makes
    /// short ones: what is counted is bytes in units of a sub-buffer.
    pub subbufs_consumed: Option<u64>,
    /// Sub-buffers' worth of bytes written after the window: no more, in any boot.
    pub subbufs_drained: Option<f64>,
    /// Boots of both arms together.
    pub boots: usize,
    /// Different outcomes among them.
    pub distinct: usize,
    /// True where pairs of boots share a perturbation.
    pub paired: bool,
    /// `slower`, `no more than …`, `undecided …`; or `exact, one sample`, where no interval can be had.
    pub verdict: String,
    /// The command that does the same again.
    pub reproduce: String,
    /// What it was made from.
    #[serde(flatten)]
    pub made_from: MadeFrom,
}

/// Hashes and versions of everything that decides a count. Rows with different ones do not compare.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MadeFrom {
    /// SHA-256 of the workload's scripts.
    pub workload_sha256: String,
    /// SHA-256 of the initramfs as it is in the baseline's boots.
    pub initramfs_sha256: String,
    /// SHA-256 of the kernel's .config.
    pub kernel_config_sha256: String,
    /// SHA-256 of the kernel image.
    pub kernel_sha256: String,
    /// SHA-256 of blkrelay.ko.
    pub module_sha256: String,
    /// SHA-256 of the compilers' versions.
    pub compiler_sha256: String,
    /// The compilers' versions.
    pub compiler: String,
    /// SHA-256 of the QEMU binary.
    pub qemu_sha256: String,
    /// QEMU's version.
    pub qemu: String,
}

impl Summary {
    /// Of these rows.
    pub fn new(rows: Vec<Row>) -> Self {
        Self {
            schema: SCHEMA,
            rows,
        }
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        crate::cache::write_whole(path, &text).with_context(|| path.display().to_string())
    }

    /// The row of a state and workload.
    pub fn row(&self, workload: &str, state: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|r| r.workload == workload && r.state == state)
    }

    /// What `state` adds to an I/O as a fraction of what `other` adds, on a workload.
    pub fn fraction(&self, workload: &str, state: &str, other: &str) -> Option<f64> {
        let per_io = |s| Some(self.row(workload, s)?.per_io?.estimate);
        Some(per_io(state)? / per_io(other)?)
    }
}

/// `+12.3 [12.1, 12.5]`, or without the brackets where there is no interval. An interval narrower than
/// the digits gets more of them.
pub fn with_interval(e: Estimate, digits: usize) -> String {
    let narrow = !e.exact() && e.high - e.low < 0.2 && digits < 2;
    let digits = if narrow { 2 } else { digits };
    let exact = e.exact();
    // No "-0.0".
    let half = 0.5 / 10f64.powi(digits as i32);
    let e = e.map(|x| if x.abs() < half { 0.0 } else { x });
    if exact {
        return format!("{:+.*}", digits, e.estimate);
    }
    format!(
        "{:+.*} [{:.*}, {:.*}]",
        digits, e.estimate, digits, e.low, digits, e.high
    )
}

/// `3234.1 ±0.2`; the interval of a mean is symmetric.
fn plus_minus(e: Estimate, digits: usize) -> String {
    if e.exact() {
        return format!("{:.*}", digits, e.estimate);
    }
    format!(
        "{:.*} ±{:.*}",
        digits,
        e.estimate,
        digits,
        e.high - e.estimate
    )
}

/// The table that a person reads: two numbers a row (guest instructions per I/O without and with), the
/// difference in per cent and in instructions per I/O and per event, and what may be said about it.
pub fn table(rows: &[Row]) -> String {
    let mut t = Table::new();
    t.load_preset(presets::NOTHING);
    t.set_header([
        "workload",
        "state",
        "none",
        "with it",
        "Δ %",
        "added/I/O",
        "added/event",
        "distinct/boots",
        "verdict",
    ]);
    for r in rows {
        let ios = r.ios.max(1) as f64;
        t.add_row([
            r.workload.clone(),
            r.state.clone(),
            plus_minus(r.baseline_value.per(ios), 1),
            plus_minus(r.value.per(ios), 1),
            with_interval(r.delta_percent, 3),
            r.per_io.map_or("-".into(), |e| with_interval(e, 1)),
            r.per_event.map_or("-".into(), |e| with_interval(e, 1)),
            format!("{}/{}", r.distinct, r.boots),
            r.verdict.clone(),
        ]);
    }
    for column in 2..8 {
        if let Some(c) = t.column_mut(column) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text: Vec<String> = t.lines().map(|l| l.trim_end().to_owned()).collect();
    text.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let e = |estimate, low, high| Estimate {
            estimate,
            low,
            high,
        };
        Row {
            state: "on".into(),
            baseline: "none".into(),
            workload: "read4k".into(),
            mode: "count".into(),
            unit: "guest instructions".into(),
            value: e(35_000.0, 34_990.0, 35_010.0),
            baseline_value: e(32_000.0, 32_000.0, 32_000.0),
            delta_percent: e(9.375, 9.3, 9.45),
            per_io: Some(e(300.0, 299.0, 301.0)),
            per_io_median: Some(300.0),
            per_event: None,
            ios: 10,
            events: 40,
            lost: 0,
            subbuf_size: Some(4096),
            subbufs_consumed: Some(16),
            subbufs_drained: Some(0.5),
            boots: 16,
            distinct: 15,
            paired: true,
            verdict: "slower".into(),
            reproduce: "blkrelay-lab measure".into(),
            made_from: MadeFrom {
                workload_sha256: "1".into(),
                initramfs_sha256: "2".into(),
                kernel_config_sha256: "3".into(),
                kernel_sha256: "4".into(),
                module_sha256: "5".into(),
                compiler_sha256: "6".into(),
                compiler: "gcc".into(),
                qemu_sha256: "7".into(),
                qemu: "7.2".into(),
            },
        }
    }

    #[test]
    fn an_interval_that_rounds_to_zero_is_one_still() {
        let e = |estimate, low, high| Estimate {
            estimate,
            low,
            high,
        };
        let small = e(0.00002, -0.00017, 0.00037);
        assert_eq!(with_interval(small, 3), "+0.000 [0.000, 0.000]");
        assert_eq!(with_interval(e(1.5, 1.5, 1.5), 1), "+1.5");
    }

    /// The names that readers of the file rely on.
    #[test]
    fn schema_1_has_its_fields() {
        let text = serde_json::to_string(&Summary::new(vec![row()])).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["schema"], 1);
        let r = json["rows"][0].as_object().unwrap();
        for key in [
            "state",
            "baseline",
            "workload",
            "mode",
            "unit",
            "delta_percent",
            "per_io",
            "per_event",
            "ios",
            "events",
            "lost",
            "boots",
            "distinct",
            "verdict",
            "reproduce",
            "workload_sha256",
            "initramfs_sha256",
            "kernel_config_sha256",
            "compiler_sha256",
            "qemu_sha256",
        ] {
            assert!(r.contains_key(key), "{key} is missing");
        }
        assert_eq!(r["delta_percent"]["low"], 9.3);
        assert_eq!(r["per_io"]["high"], 301.0);
        assert!(r["per_event"].is_null());
    }

    #[test]
    fn the_table_has_two_numbers_and_their_interval() {
        let text = table(&[row()]);
        // The last heading stands over the last column.
        let at = |word: &str| {
            let lines = text
                .lines()
                .filter_map(|l| l.rfind(word).map(|i| l[..i].chars().count()));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(at("verdict"), at("slower"));
        let line = text.lines().find(|l| l.contains("read4k")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "read4k", "on", "3200.0", "3500.0", "±1.0", "+9.375", "[9.300,", "9.450]",
                "+300.0", "[299.0,", "301.0]", "-", "15/16", "slower"
            ]
        );
    }

    #[test]
    fn fractions_are_of_what_is_added() {
        let mut blktrace = row();
        blktrace.state = "blktrace".into();
        blktrace.per_io = blktrace.per_io.map(|e| e.map(|x| x * 4.0));
        let s = Summary::new(vec![row(), blktrace]);
        assert_eq!(s.fraction("read4k", "on", "blktrace"), Some(0.25));
        assert_eq!(s.fraction("mkfs10", "on", "blktrace"), None);
    }
}
