// SPDX-License-Identifier: GPL-2.0
//! What must not hurt: scenarios in which the module is loaded, killed, starved, held and fed rubbish on
//! kernels that check themselves, with four CPUs, while a mixed workload runs. Each is a boot with a job from
//! qemu/tests; that the kernel says nothing is checked here (see [`crate::console`]).

use crate::boot::{Disk, Mode};
use crate::guest_tests::{self, Job, Tally};
use crate::kernel::Flavor;
use anyhow::Result;
use clap::ValueEnum;
use std::path::PathBuf;
use std::process::ExitCode;

const LOAD: &str = include_str!("../../../qemu/tests/load.sh");

/// How much a form of a scenario does.
struct Form {
    /// The job's environment besides the seed.
    environment: &'static [&'static str],
    /// Wall time after which the guest hangs, on two CPUs of a host.
    seconds: u64,
}

struct Scenario {
    name: &'static str,
    title: &'static str,
    job: &'static str,
    short: Form,
    long: Form,
    /// Complaints that are no fault where allocations fail on purpose.
    expected: &'static [&'static str],
}

const fn form(environment: &'static [&'static str], seconds: u64) -> Form {
    Form {
        environment,
        seconds,
    }
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "cycle",
        title: "insmod, start, stop, rmmod",
        job: include_str!("../../../qemu/tests/cycle.sh"),
        short: form(&["LAB_COUNT=20"], 900),
        long: form(&["LAB_COUNT=1000"], 14400),
        expected: &[],
    },
    Scenario {
        name: "kill",
        title: "the reader killed at a random moment",
        job: include_str!("../../../qemu/tests/kill.sh"),
        short: form(&["LAB_COUNT=10"], 900),
        long: form(&["LAB_COUNT=200"], 10800),
        expected: &[],
    },
    Scenario {
        name: "cpus",
        title: "CPUs off and on",
        job: include_str!("../../../qemu/tests/cpus.sh"),
        short: form(&["LAB_COUNT=2"], 900),
        long: form(&["LAB_COUNT=40"], 10800),
        expected: &[],
    },
    Scenario {
        name: "remove",
        title: "disks removed and back under load",
        job: include_str!("../../../qemu/tests/remove.sh"),
        short: form(&["LAB_COUNT=4"], 900),
        long: form(&["LAB_COUNT=60"], 10800),
        expected: &[],
    },
    Scenario {
        name: "others",
        title: "blktrace and ftrace coming and going",
        job: include_str!("../../../qemu/tests/others.sh"),
        short: form(&["LAB_COUNT=2"], 900),
        long: form(&["LAB_COUNT=40"], 10800),
        expected: &[],
    },
    Scenario {
        name: "alloc",
        title: "each allocation failing",
        job: include_str!("../../../qemu/tests/alloc.sh"),
        short: form(&["LAB_STEP=20"], 1200),
        long: form(&["LAB_STEP=1"], 14400),
        expected: &["Call Trace:"],
    },
    Scenario {
        name: "held",
        title: "files held open, and opened as the module goes",
        job: include_str!("../../../qemu/tests/held.sh"),
        short: form(&["LAB_COUNT=1"], 900),
        long: form(&["LAB_COUNT=20"], 10800),
        expected: &[],
    },
    Scenario {
        name: "lockdown",
        title: "kernel lockdown under a running record",
        job: include_str!("../../../qemu/tests/lockdown.sh"),
        short: form(&[], 900),
        long: form(&[], 900),
        expected: &[],
    },
    Scenario {
        name: "lockdown-by-hand",
        title: "kernel lockdown under a trace started by hand",
        job: include_str!("../../../qemu/tests/lockdown.sh"),
        short: form(&["LAB_HAND=1"], 900),
        long: form(&["LAB_HAND=1"], 900),
        expected: &[],
    },
    Scenario {
        name: "fuzz",
        title: "control written with anything",
        job: include_str!("../../../qemu/tests/fuzz.sh"),
        short: form(&["LAB_COUNT=20000"], 900),
        long: form(&["LAB_COUNT=1000000"], 14400),
        expected: &[],
    },
];

/// A kernel that checks itself.
fn checked(name: &str) -> Result<Flavor, &'static str> {
    match Flavor::from_str(name, false) {
        Ok(flavor @ (Flavor::Debug | Flavor::Kasan)) => Ok(flavor),
        _ => Err("want debug or kasan"),
    }
}

/// Arguments of `blkrelay-lab stress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Minutes instead of hours
    #[arg(long)]
    short: bool,
    /// The kernel; both if not given
    #[arg(long, value_name = "debug|kasan", value_parser = checked)]
    flavor: Option<Flavor>,
    /// Only scenarios of this name; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Decides what is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the boots leave their consoles
    #[arg(long, default_value = "out/stress")]
    dir: PathBuf,
}

/// Runs the scenarios, a line each, and the sum alone on the last line.
///
/// # Errors
///
/// When a name is none; a scenario that cannot be run has failed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let known = |name: &str| SCENARIOS.iter().any(|s| s.name == name);
    if let Some(name) = args.only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
        anyhow::bail!("--only {name}: want one of {}", names.join(", "));
    }
    let mut tally = Tally::default();
    let flavors = match args.flavor {
        Some(flavor) => vec![flavor],
        None => vec![Flavor::Debug, Flavor::Kasan],
    };
    for flavor in flavors {
        for scenario in SCENARIOS {
            if !args.only.is_empty() && !args.only.iter().any(|name| name == scenario.name) {
                continue;
            }
            let form = if args.short {
                &scenario.short
            } else {
                &scenario.long
            };
            let mut append = vec![
                format!("LAB_SEED={}", args.seed),
                "null_blk.nr_devices=0".to_owned(),
                // Disks come when a job asks for them.
                "scsi_debug.add_host=0".to_owned(),
                "brd.rd_nr=1".to_owned(),
            ];
            if flavor == Flavor::Kasan {
                // While the boot CPU's features are found out it has none, five-level paging neither: a
                // timer interrupt at that moment makes KASAN call good addresses wild.
                append.push("no5lvl".to_owned());
            }
            append.extend(form.environment.iter().map(|w| (*w).to_owned()));
            let job = Job {
                script: scenario.job,
                files: &[("/lab/load.sh", LOAD)],
                flavor,
                mode: Mode::Emulated,
                cpus: 4,
                memory_mib: 2048,
                disks: vec![Disk {
                    size: 64 << 20,
                    ..Disk::default()
                }],
                append,
                expected: scenario.expected,
                seconds: form.seconds,
            };
            let name = format!(
                "{}: {}, {} kernel",
                scenario.name,
                scenario.title,
                flavor.name()
            );
            let dir = args
                .dir
                .join(format!("{}-{}", scenario.name, flavor.name()));
            tally.run(&name, || {
                guest_tests::boot_job(&job, &dir).map(|outcome| guest_tests::results(&outcome))
            });
        }
    }
    Ok(tally.end())
}
