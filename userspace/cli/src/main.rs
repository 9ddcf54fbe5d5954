// SPDX-License-Identifier: GPL-2.0
//! The reader: see `blkrelay --help`. Each subcommand has a file of its own; here is what they share: how
//! an outcome becomes an exit status.

mod args;
mod blkparse;
mod dump;
mod filter;
mod module;
mod output;
mod record;
mod report;
mod status;
mod sysfs;
mod verify;

use args::{Args, Command};
use clap::error::ErrorKind;
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// How a subcommand ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Good,
    /// Usable, with losses or findings.
    Findings,
    /// COMMAND's own exit status, not 0.
    Status(u8),
}

/// Why a subcommand failed: one line.
pub type Failure = Box<dyn std::error::Error>;

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Good => ExitCode::SUCCESS,
            Outcome::Findings => ExitCode::from(1),
            Outcome::Status(status) => ExitCode::from(status),
        }
    }
}

/// Says something on the standard error; that it cannot be heard is no reason to fail.
pub fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "blkrelay: {text}");
}

/// The command line; by the name of a peer, that peer's.
fn words() -> Vec<OsString> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let name = words.first().map(Path::new).and_then(Path::file_name);
    if name == Some(OsStr::new("blkparse")) {
        words.insert(1, "blkparse".into());
    }
    words
}

fn run(args: Args) -> Result<Outcome, Failure> {
    match args.command {
        Command::Record(options) => record::run(options),
        Command::Dump(options) => dump::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Blkparse(options) => blkparse::run(&options),
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse_from(words()) {
        Ok(args) => args,
        Err(error) => {
            // As in `say`: that it cannot be heard changes nothing.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(2),
            };
        }
    };
    match run(args) {
        Ok(outcome) => outcome.into(),
        // Whoever reads our output has seen enough.
        Err(error) if output::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::from(2)
        }
    }
}
