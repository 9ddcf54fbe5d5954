// SPDX-License-Identifier: GPL-2.0
//! What an event costs, and nothing besides.

use crate::kernel::Flavor;
use crate::measure::{self, Setup};
use crate::module_build;
use crate::state::{State, Workload};
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `blkrelay-lab hotpath`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these states, and none
    #[arg(long, value_enum, value_name = "STATE", num_args = 1..)]
    only: Vec<State>,
    /// Decides order and perturbations of the boots
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where summary.json and the consoles are put
    #[arg(long, default_value = "out/hotpath")]
    dir: PathBuf,
    #[arg(long, default_value_t = 99)]
    most: usize,
}

/// Measures.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut setup = Setup::prepare(&args.dir)?;
    setup.floor = Some(module_build::floor(&setup.kernel.kdir, Flavor::Trace)?);
    let summary = measure::measure_most(
        &setup,
        &[Workload::Hotpath],
        &args.only,
        args.seed,
        args.most,
    )?;
    println!("{}", measure::report(&summary));
    Ok(ExitCode::SUCCESS)
}
