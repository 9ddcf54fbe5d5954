// SPDX-License-Identifier: GPL-2.0
//! The demonstration: one real workload traced in a test kernel, and what the tracing costs.

use crate::boot::{self, Disk, Mode, Spec};
use crate::initramfs::Builder;
use crate::measure::{self, Setup};
use crate::state::{State, Workload};
use crate::{process, progress};
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const SEED_JOB: &str = include_str!("../../../qemu/workloads/seed.sh");
/// Lines of the trace that are shown.
const HEAD: u32 = 25;

/// Arguments of `blkrelay-lab demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Decides order and perturbations of the counted boots
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the artefacts are put
    #[arg(long, default_value = "out/demo")]
    dir: PathBuf,
}

/// Traces, measures, prints.
///
/// # Errors
///
/// When the kernel or the module cannot be built, a guest fails, or the trace lost records.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = &args.dir;
    progress::say("the test kernel and the module for it");
    let setup = Setup::prepare(dir)?;
    progress::say("tracing mkfs, mount, files and unmount on four virtio disks, two CPUs");
    let trace = trace_seed(&setup, dir)?;
    let workloads = [Workload::Read4k, Workload::Mkfs10];
    let states = [State::Off, State::On, State::Blktrace];
    let summary = measure::measure(&setup, &workloads, &states, args.seed)?;
    let path = dir.join("summary.json");
    summary.write(&path)?;

    let reader = |words: &[&str]| process::output(Command::new(&setup.reader).args(words));
    let file = trace.to_string_lossy();
    println!("\n== the head of the trace\n");
    print!("{}", reader(&["dump", "-n", &HEAD.to_string(), &file])?);
    println!("\n== what it holds (the latencies are those of an emulated guest on this machine)\n");
    print!("{}", reader(&["report", &file])?);
    println!("\n== what tracing costs\n");
    println!("{}", measure::report(&summary));
    println!("\n== the same again\n");
    println!("{} demo --seed {}", measure::program(), args.seed);
    println!();
    for path in [&trace, &path, &dir.join("console.log")] {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Boots the seed workload under `blkrelay record` and leaves trace.blkr and console.log in `dir`.
///
/// # Errors
///
/// When the boot or the job fails, or the recorder reports losses.
pub fn trace_seed(setup: &Setup, dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut builder = Builder::guest()?;
    builder.add_program("/usr/sbin/mke2fs")?;
    builder.copy(&setup.reader, "/lab/blkrelay")?;
    builder.copy(&setup.module, "/lab/blkrelay.ko")?;
    builder.job(SEED_JOB)?;
    let image = builder.write(&dir.join("seed.cpio"))?;
    let mut spec = Spec::new(&setup.kernel.image, &image.path, Mode::Emulated, dir);
    spec.disks = vec![
        Disk {
            size: 64 << 20,
            ..Disk::default()
        };
        4
    ];
    spec.timeout = Duration::from_secs(180);
    let outcome = boot::run(&spec)?;
    ensure!(
        outcome.exit == 0,
        "the traced job ended with {}: see {}",
        outcome.exit,
        outcome.console.display()
    );
    let out = outcome.out.context("the guest's files did not come out")?;
    let trace = dir.join("trace.blkr");
    fs::rename(out.join("trace.blkr"), &trace).with_context(|| trace.display().to_string())?;
    Ok(trace)
}
