// SPDX-License-Identifier: GPL-2.0
//! The tests that need a guest: each is a boot with a job from qemu/tests, which says itself whether it
//! passed; the host adds that the kernel did not complain (see [`crate::console`]).

use crate::boot::{self, Disk, Mode, Outcome, Spec};
use crate::initramfs::Builder;
use crate::kernel::{self, Flavor, Kernel};
use crate::measure::{self, Setup};
use crate::state::{State, Workload};
use crate::{console, hotpath, insns, module_build, progress};
use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LIB: &str = include_str!("../../../qemu/tests/lib.sh");

/// A test that is one boot.
struct Guest {
    name: &'static str,
    job: &'static str,
    flavor: Flavor,
    mode: Mode,
    /// One in count mode.
    cpus: u32,
    disks: fn() -> Vec<Disk>,
    /// Kernel parameters and the job's environment.
    append: &'static [&'static str],
    seconds: u64,
}

/// The result lines, as they are.
pub(crate) fn results(outcome: &Outcome) -> String {
    let words: Vec<String> = outcome
        .results
        .iter()
        .flat_map(|r| r.pairs().map(|(k, v)| format!("{k}={v}")))
        .collect();
    words.join(" ")
}

fn no_disks() -> Vec<Disk> {
    Vec::new()
}

fn one_disk() -> Vec<Disk> {
    vec![Disk {
        size: 64 << 20,
        ..Disk::default()
    }]
}

fn two_fast_disks() -> Vec<Disk> {
    [one_disk(), one_disk()].concat()
}

/// The second is slow: 2048 I/Os at once take it four seconds, which is longer than a busy host needs to
/// submit enough to fill its ring.
fn two_disks() -> Vec<Disk> {
    vec![
        Disk {
            size: 64 << 20,
            ..Disk::default()
        },
        Disk {
            size: 64 << 20,
            iops: 500,
            ..Disk::default()
        },
    ]
}

/// What most tests are: two CPUs, and the disks that a job makes for itself.
const TRACE: Guest = Guest {
    name: "",
    job: "",
    flavor: Flavor::Trace,
    mode: Mode::Emulated,
    cpus: 2,
    disks: no_disks,
    append: &["null_blk.nr_devices=0"],
    seconds: 120,
};

/// The same on the kernel with the kernel's own checks.
const DEBUG: Guest = Guest {
    flavor: Flavor::Debug,
    seconds: 300,
    ..TRACE
};

const GUESTS: &[Guest] = &[
    Guest {
        name: "count mode counts instructions, and refuses idle windows",
        job: include_str!("../../../qemu/tests/count.sh"),
        mode: Mode::Count,
        cpus: 1,
        append: &[],
        ..TRACE
    },
    Guest {
        name: "beside blktrace and ftrace: null_blk, 1 CPU",
        job: include_str!("../../../qemu/tests/compare.sh"),
        mode: Mode::Count,
        cpus: 1,
        ..TRACE
    },
    Guest {
        name: "beside blktrace and ftrace: virtio-blk, 2 CPUs",
        job: include_str!("../../../qemu/tests/compare.sh"),
        disks: two_disks,
        append: &["virtio_blk.queue_depth=2048"],
        seconds: 180,
        ..TRACE
    },
    Guest {
        name: "tiny buffers and a stopped reader: events + lost is exact",
        job: include_str!("../../../qemu/tests/loss.sh"),
        disks: one_disk,
        ..TRACE
    },
    Guest {
        name: "the floor writes the records that blkrelay writes",
        job: include_str!("../../../qemu/tests/floor.sh"),
        ..TRACE
    },
    Guest {
        name: "four CPUs and the default buffers: nothing lost; and exact without a reader",
        job: include_str!("../../../qemu/tests/four.sh"),
        cpus: 4,
        seconds: 300,
        ..TRACE
    },
    Guest {
        name: SMP,
        job: include_str!("../../../qemu/tests/smp.sh"),
        disks: two_fast_disks,
        ..TRACE
    },
    Guest {
        name: "every FUA record, against ftrace and SETUP2",
        job: include_str!("../../../qemu/tests/fua.sh"),
        ..TRACE
    },
    Guest {
        name: "spans beside blktrace",
        job: include_str!("../../../qemu/tests/span.sh"),
        ..TRACE
    },
    Guest {
        name: "spans beside blktrace, on the debug kernel",
        job: include_str!("../../../qemu/tests/span.sh"),
        ..DEBUG
    },
    Guest {
        name: "spans beside the events of the same run",
        job: include_str!("../../../qemu/tests/both.sh"),
        ..TRACE
    },
    Guest {
        name: "names of tasks",
        job: include_str!("../../../qemu/tests/names.sh"),
        cpus: 1,
        ..TRACE
    },
    Guest {
        name: "bad input",
        job: include_str!("../../../qemu/tests/bad.sh"),
        ..TRACE
    },
    Guest {
        name: "a CPU goes and comes while it is traced, on the debug kernel",
        job: include_str!("../../../qemu/tests/hotplug.sh"),
        ..DEBUG
    },
    Guest {
        name: "bad input on the debug kernel",
        job: include_str!("../../../qemu/tests/bad.sh"),
        ..DEBUG
    },
    Guest {
        name: "errors, tag waits, accounting, request remaps and zones, against ftrace on the debug kernel",
        job: include_str!("../../../qemu/tests/events.sh"),
        ..DEBUG
    },
    Guest {
        name: "filters, and replacing them under load, on the debug kernel",
        job: include_str!("../../../qemu/tests/filter.sh"),
        seconds: 400,
        ..DEBUG
    },
    Guest {
        name: "the flight recorder, on the debug kernel",
        job: include_str!("../../../qemu/tests/flight.sh"),
        ..DEBUG
    },
    Guest {
        name: "what does not trigger the flight recorder, on the debug kernel",
        job: include_str!("../../../qemu/tests/latency.sh"),
        ..DEBUG
    },
    Guest {
        name: "load, start, kill, unload under load on the debug kernel",
        job: include_str!("../../../qemu/tests/loop.sh"),
        disks: one_disk,
        ..DEBUG
    },
];

/// The test that has a long form.
const SMP: &str = "two CPUs, polling and not: every record once and whole";

/// Arguments of `blkrelay-lab test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Seconds that the two-CPU test runs instead of its short form
    #[arg(long, value_name = "SECONDS")]
    soak: Option<u64>,
    /// Where the boots leave their consoles
    #[arg(long, default_value = "out/test")]
    dir: PathBuf,
}

/// Kernel and module of a flavour.
#[derive(Clone)]
struct Built {
    kernel: Kernel,
    module: PathBuf,
    /// See [`Setup::lab_modules`]; of the trace kernel only.
    lab_modules: Vec<PathBuf>,
    /// See [`module_build::second`]; of the trace kernel only.
    second: Option<PathBuf>,
}

/// Builds a flavour when the first test needs it.
fn built(flavor: Flavor) -> Result<Built> {
    static ALL: Mutex<Vec<(Flavor, Built)>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, b)) = all.iter().find(|(f, _)| *f == flavor) {
        return Ok(b.clone());
    }
    let kernel = kernel::ensure(flavor)?;
    let module = module_build::build(&kernel.kdir, Some(flavor), false)?;
    let (lab_modules, second) = match flavor {
        Flavor::Trace => (
            module_build::floor(&kernel.kdir, flavor)?,
            Some(module_build::second(&kernel.kdir, flavor)?),
        ),
        _ => (Vec::new(), None),
    };
    let b = Built {
        kernel,
        module,
        lab_modules,
        second,
    };
    all.push((flavor, b.clone()));
    Ok(b)
}

/// One boot with a job.
pub(crate) struct Job<'a> {
    /// What the guest runs; `lib.sh` stands beside it in /lab, with the reader and the module.
    pub(crate) script: &'a str,
    /// Further files: path in the guest, text.
    pub(crate) files: &'a [(&'a str, &'a str)],
    pub(crate) flavor: Flavor,
    pub(crate) mode: Mode,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    pub(crate) disks: Vec<Disk>,
    /// Kernel parameters and the job's environment.
    pub(crate) append: Vec<String>,
    /// See [`Spec::expected`].
    pub(crate) expected: &'a [&'a str],
    /// The guest is killed after so many.
    pub(crate) seconds: u64,
}

/// Boots with a job, which must end with 0.
///
/// # Errors
///
/// When kernel or module do not build, the job fails (with the last lines of its console), and see
/// [`boot::run_with`].
pub(crate) fn boot_job(job: &Job, dir: &Path) -> Result<Outcome> {
    let built = built(job.flavor)?;
    let mut b = Builder::guest()?;
    for program in [
        "/usr/sbin/blktrace",
        "/usr/sbin/mke2fs",
        "/usr/sbin/dmsetup",
        "/usr/sbin/blkzone",
    ] {
        b.add_program(program)?;
    }
    b.copy(&measure::reader()?, "/lab/blkrelay")?;
    b.copy(&built.module, "/lab/blkrelay.ko")?;
    for module in built.lab_modules.iter().chain(&built.second) {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        b.copy(module, &format!("/lab/{name}"))?;
    }
    b.file("/lab/lib.sh", 0o644, LIB.as_bytes())?;
    for (path, text) in job.files {
        b.file(path, 0o644, text.as_bytes())?;
    }
    b.job(job.script)?;
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let image = b.write(&dir.join("initramfs.cpio"))?;
    let mut spec = Spec::new(&built.kernel.image, &image.path, job.mode, dir);
    spec.cpus = job.cpus;
    spec.memory_mib = job.memory_mib;
    spec.disks.clone_from(&job.disks);
    spec.append.clone_from(&job.append);
    spec.expected = job.expected.iter().map(|t| (*t).to_owned()).collect();
    spec.timeout = Duration::from_secs(job.seconds);
    let mut steps: Option<progress::Steps> = None;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let outcome = boot::run_with(&spec, &mut |line| {
        if let Some((done, total)) = console::progress(line) {
            let steps = steps.get_or_insert_with(|| progress::Steps::new(&name));
            steps.at(done, total);
        }
    })?;
    drop(steps);
    if outcome.exit != 0 {
        let text = std::fs::read(&outcome.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let tail = lines[lines.len().saturating_sub(25)..].join("\n  | ");
        bail!(
            "the job ended with {}\n  the last lines of {}:\n  | {tail}",
            outcome.exit,
            outcome.console.display()
        );
    }
    Ok(outcome)
}

fn boot_one(test: &Guest, soak: Option<u64>, dir: &Path) -> Result<String> {
    let mut append: Vec<String> = test.append.iter().map(|w| (*w).to_owned()).collect();
    append.extend(soak.map(|s| format!("LAB_SECONDS={s}")));
    let job = Job {
        script: test.job,
        files: &[],
        flavor: test.flavor,
        mode: test.mode,
        cpus: test.cpus,
        memory_mib: 1024,
        disks: (test.disks)(),
        append,
        expected: &[],
        seconds: test.seconds + soak.unwrap_or(0),
    };
    boot_job(&job, dir).map(|outcome| results(&outcome))
}

/// Counts what passed, and prints a line for each.
#[derive(Default)]
pub(crate) struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    /// Runs one test; its text is printed behind its name.
    pub(crate) fn run(&mut self, name: &str, test: impl FnOnce() -> Result<String>) {
        progress::say(name);
        let began = Instant::now();
        let result = test();
        let time = progress::minutes(began.elapsed());
        match result {
            Ok(text) => {
                self.passed += 1;
                println!("ok   {name} ({time}): {text}");
            }
            Err(e) => {
                self.failed += 1;
                println!("FAIL {name} ({time}): {e:#}");
            }
        }
    }

    /// The sum alone on a line. Nothing run is no success.
    pub(crate) fn end(self) -> ExitCode {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn setup(b: Built, dir: &Path) -> Result<Setup> {
    Ok(Setup {
        kernel: b.kernel,
        module: b.module,
        lab_modules: b.lab_modules,
        reader: measure::reader()?,
        dir: dir.to_owned(),
        jobs: measure::jobs(),
    })
}

/// Counts twice with one seed and compares all that was counted.
fn determinism(setup: &Setup) -> Result<String> {
    let workloads = [Workload::Read4k, Workload::Mkfs10];
    let states = [State::None, State::On, State::Blktrace];
    let (first, _) = measure::collect(setup, &workloads, &states, 7, 1)?;
    let (second, _) = measure::collect(setup, &workloads, &states, 7, 1)?;
    ensure!(
        first == second,
        "the same seed gave {first:?} and then {second:?}"
    );
    let ticks: Vec<String> = first
        .iter()
        .flat_map(|((w, s), samples)| {
            samples
                .iter()
                .map(move |x| format!("{}/{}={}", w.name(), s.name(), x.ticks))
        })
        .collect();
    Ok(ticks.join(" "))
}

/// Watches two windows instruction by instruction. Their ticks must be those of boots that nobody watches, and
/// an event must have what is known of it: one reading of the clock, one time with interrupts off, and half a
/// line of a buffer, in which two records fit.
fn instructions(setup: &Setup) -> Result<String> {
    let states = [State::None, State::Overwrite];
    let (samples, _) = measure::collect(setup, &[Workload::Read4k], &states, 7, 1)?;
    let mut windows = Vec::new();
    for state in states {
        let watched = insns::count(setup, Workload::Read4k, state, 7)?;
        let alone = samples.get(&(Workload::Read4k, state));
        let alone = alone.and_then(|s| s.first()).context("no boot")?;
        ensure!(
            watched.ticks == alone.ticks,
            "{}: {} ticks, without the plugin {}",
            state.name(),
            watched.ticks,
            alone.ticks
        );
        windows.push(watched);
    }
    let event = windows[1].per_event(&windows[0]);
    let known = [
        ("rdtsc", event.rdtsc, 1.0),
        ("cli", event.cli, 1.0),
        ("sti", event.sti, 1.0),
        ("fresh_lines", event.fresh_lines, 0.5),
    ];
    for (name, value, want) in known {
        // What the timer's interrupts do is in it as well.
        ensure!(
            (value - want).abs() < 0.02,
            "{name} an event: {value}, want {want}"
        );
    }
    Ok(format!(
        "{} and {} instructions, counted one by one",
        windows[0].instructions, windows[1].instructions
    ))
}

/// Builds a copy of the module in which C and Rust differ about the place of one field, and demands that the
/// build fails because of that.
fn wrong_offset(dir: &Path) -> Result<String> {
    let built = built(Flavor::Trace)?;
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let right = "BLKRELAY_AT_request___sector = FIELD_AT(request, __sector)";
    let wrong = format!("{right} + 8");
    // Each in a directory of its own: a copy keeps its times, so nothing would be made anew of it.
    let compile = |name: &str, changes: &[(&str, &str, &str)]| {
        let dir = dir.join(name);
        module_build::altered(&dir, changes)?;
        anyhow::Ok(module_build::compile(
            &built.kernel.kdir,
            &dir,
            &dir.join("build"),
        ))
    };
    let failed = compile("wrong", &[("module/shim.h", right, &wrong)])?;
    let Err(error) = failed else {
        bail!("the module builds with a wrong offset of request.__sector");
    };
    // The log, not the message: that has the last lines only.
    let log = dir.join("wrong/build/build.log");
    let log = std::fs::read_to_string(&log).with_context(|| format!("{error:#}"))?;
    let want = "bindgen gets the layout of struct request wrong, see field __sector";
    ensure!(log.contains(want), "it fails for another reason: {error:#}");
    // Unchanged it does build, or nothing is proved.
    compile("right", &[])??;
    Ok(want.to_owned())
}

/// Boots of a state: counts repeat, and what a perturbation does to them is far less than a bar's margin.
const BOOTS: usize = 2;

/// The bars that a change must not cross unseen: see [`hotpath::BARS`].
fn costs(setup: &Setup) -> Result<String> {
    let hotpath = hotpath::measure(setup, hotpath::STATES, 1, BOOTS)?;
    hotpath.write(&setup.dir.join("summary.json"))?;
    let missed = hotpath.missed();
    ensure!(missed.is_empty(), "{}", missed.join("; "));
    ensure!(
        hotpath.bars.len() == hotpath::BARS.len(),
        "{} of {} bars were measured",
        hotpath.bars.len(),
        hotpath::BARS.len()
    );
    let figures: Vec<String> = hotpath
        .bars
        .iter()
        .map(|b| {
            format!(
                "{}: {:.3} (at most {})",
                b.name, b.value.estimate, b.at_most
            )
        })
        .collect();
    Ok(figures.join("; "))
}

/// Runs the tests, a line each, and the sum alone on the last line.
///
/// # Errors
///
/// None of its own: a test that cannot be run has failed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut tally = Tally::default();
    for (n, test) in GUESTS.iter().enumerate() {
        if test.name.contains(&args.only) {
            let dir = args.dir.join(format!("{}", n + 1));
            let soak = args.soak.filter(|_| test.name == SMP);
            tally.run(test.name, || boot_one(test, soak, &dir));
        }
    }
    type Count = fn(&Setup) -> Result<String>;
    let counts: [(&str, &str, Count); 3] = [
        (
            "count mode: one seed, the same counts",
            "count",
            determinism,
        ),
        (
            "count mode: the plugin counts the same instructions",
            "insns",
            instructions,
        ),
        ("costs: the bars of hotpath", "costs", costs),
    ];
    for (name, dir, test) in counts {
        if name.contains(&args.only) {
            tally.run(name, || {
                test(&setup(built(Flavor::Trace)?, &args.dir.join(dir))?)
            });
        }
    }
    const OFFSET: &str = "a wrong offset fails the module's build";
    if OFFSET.contains(&args.only) {
        tally.run(OFFSET, || wrong_offset(&args.dir.join("offset")));
    }
    Ok(tally.end())
}
