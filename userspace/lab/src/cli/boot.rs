// SPDX-License-Identifier: GPL-2.0
//! `blkrelay-lab boot`

use crate::boot::{self, Disk, Mode, Spec};
use crate::initramfs::Builder;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `boot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The bzImage
    #[arg(long)]
    kernel: PathBuf,
    /// The script that the guest runs (busybox sh)
    #[arg(long)]
    job: PathBuf,
    #[arg(long, value_enum, default_value = "emulated")]
    mode: Mode,
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// MiB
    #[arg(long, default_value_t = 1024)]
    memory: u32,
    /// A virtio disk of that many MiB, /dev/disk0 and so on in the guest
    #[arg(long, value_name = "MIB")]
    disk: Vec<u64>,
    /// Another kernel parameter, or NAME=VALUE for the job's environment
    #[arg(long, value_name = "WORD")]
    append: Vec<String>,
    /// A program of the host to take along, with its libraries
    #[arg(long, value_name = "NAME|PATH")]
    program: Vec<String>,
    /// A file to take along
    #[arg(long, value_name = "HOST:GUEST")]
    file: Vec<String>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds of wall time after which the guest is killed
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Where console.log and the guest's /out are put
    #[arg(long, default_value = "out/boot")]
    dir: PathBuf,
}

/// Builds the initramfs, boots, shows the console on standard output.
///
/// # Errors
///
/// See [`boot::run_with`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut builder = Builder::guest()?;
    let job = fs::read_to_string(&args.job).with_context(|| args.job.display().to_string())?;
    builder.job(&job)?;
    for program in &args.program {
        builder.add_program(program)?;
    }
    for pair in &args.file {
        let (host, guest) = pair
            .split_once(':')
            .with_context(|| format!("--file {pair}: want HOST:GUEST"))?;
        builder.copy(host.as_ref(), guest)?;
    }
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let image = builder.write(&args.dir.join("initramfs.cpio"))?;
    let mut spec = Spec::new(&args.kernel, &image.path, args.mode, &args.dir);
    if args.mode == Mode::Emulated {
        spec.cpus = args.cpus;
    }
    spec.memory_mib = args.memory;
    spec.seed = args.seed;
    spec.timeout = Duration::from_secs(args.timeout);
    spec.append = args.append.clone();
    spec.disks = args
        .disk
        .iter()
        .map(|mib| Disk {
            size: mib << 20,
            ..Disk::default()
        })
        .collect();
    let outcome = boot::run_with(&spec, &mut |line| println!("{line}"))?;
    eprintln!(
        "guest ended with {} after {:.1} s; console in {}",
        outcome.exit,
        outcome.wall.as_secs_f64(),
        outcome.console.display()
    );
    Ok(ExitCode::from(u8::try_from(outcome.exit).unwrap_or(1)))
}
