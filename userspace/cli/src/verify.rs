// SPDX-License-Identifier: GPL-2.0
//! `blkrelay verify`

use crate::{args, output, report, Failure, Outcome};
use std::io::Write;

/// A file that is broken all over need not be told of byte by byte.
const SHOWN: usize = 100;

pub fn run(options: &args::File) -> Result<Outcome, Failure> {
    let source = blkrelay_trace::open(&options.file)?;
    let verdict = source.verify();
    let mut out = output::stdout();
    let file = options.file.display();
    for finding in verdict.findings.iter().take(SHOWN) {
        writeln!(out, "{file}: {finding}")?;
    }
    let findings = verdict.findings.len();
    if findings > SHOWN {
        writeln!(out, "{file}: and {} more", findings - SHOWN)?;
    }
    let state = match findings {
        0 => "whole".to_owned(),
        n => output::count(n as u64, "finding"),
    };
    for stop in &verdict.stops {
        writeln!(out, "{file}: CPU {} {}", stop.cpu, report::stop(stop))?;
    }
    write!(
        out,
        "{file}: {state}: {} in {} of {}, {} lost",
        output::count(verdict.events, "event"),
        output::count(verdict.subbufs, "sub-buffer"),
        output::count(verdict.cpus, "CPU"),
        verdict.lost
    )?;
    if verdict.written_over > 0 {
        write!(out, ", {} before them written over", verdict.written_over)?;
    }
    if verdict.unknown > 0 {
        write!(out, ", {} of kinds not known here", verdict.unknown)?;
    }
    writeln!(out)?;
    out.flush()?;
    Ok(if findings == 0 {
        Outcome::Good
    } else {
        Outcome::Findings
    })
}
