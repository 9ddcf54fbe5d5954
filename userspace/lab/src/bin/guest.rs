// SPDX-License-Identifier: GPL-2.0
//! The agent inside the guest: what a shell script cannot do there.

use anyhow::Result;
use blkrelay_lab::clock::Clock;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
struct Guest {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says what the clock is; fails if block events cannot be timed with it.
    Clock,
}

fn main() -> ExitCode {
    let result: Result<()> = match Guest::parse().command {
        Command::Clock => Clock::settle().and_then(|clock| {
            println!("{}", clock.line());
            clock.check()
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blkrelay-guest: {error:#}");
            ExitCode::from(2)
        }
    }
}
