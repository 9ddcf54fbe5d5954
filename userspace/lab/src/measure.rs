// SPDX-License-Identifier: GPL-2.0
//! What a tracer costs, in guest instructions: boots in count mode, one window each.
//!
//! `read4k` is stateless and its windows are long, so it is compared in pairs: the boots of a pair have one
//! perturbation and are alike to the instruction up to the line of the job that reads the state (see
//! qemu/workloads/measure.sh). `mkfs10` decides by its own data where blocks go, and a pair's boots drift
//! apart at the first difference: there every boot draws its own perturbation, and arms are unpaired.
//!
//! The number of boots is fixed before the run. Everything random is drawn from one seed: states, order
//! and perturbations of a run with the same seed are the same, and so are its counts.

use crate::boot::{self, Mode, Outcome, Spec};
use crate::initramfs::{self, Builder, Image};
use crate::kernel::{self, Flavor, Kernel};
use crate::plan::{plan, Boot};
use crate::state::{State, Workload};
use crate::stats::{self, Estimate};
use crate::summary::{self, MadeFrom, Row, Summary};
use crate::{module_build, progress};
use anyhow::{bail, ensure, Context, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Largest |median added per I/O| at which `off` on read4k counts as free, in instructions.
pub const OFF_MARGIN_PER_IO: f64 = 0.5;
/// Largest cost in per cent that counts as none, declared before the run.
pub const MARGIN_PERCENT: f64 = 0.1;

const JOB: &str = include_str!("../../../qemu/workloads/measure.sh");
const STATES: &str = include_str!("../../../qemu/workloads/states.sh");

/// What the boots are made of.
#[derive(Debug)]
pub struct Setup {
    /// The test kernel.
    pub kernel: Kernel,
    /// blkrelay.ko for it.
    pub module: PathBuf,
    /// The lab's own modules (qemu/tests/floor), for the states that need them.
    pub lab_modules: Vec<PathBuf>,
    /// The static reader.
    pub reader: PathBuf,
    /// Where boots leave their consoles.
    pub dir: PathBuf,
    /// QEMUs at a time; each counts with one thread.
    pub jobs: usize,
}

impl Setup {
    /// The trace kernel, the module for it, and the reader that stands beside this program; what is
    /// missing is built.
    ///
    /// # Errors
    ///
    /// When something cannot be built, or the reader was not.
    pub fn prepare(dir: &Path) -> Result<Self> {
        let kernel = kernel::ensure(Flavor::Trace)?;
        let module = module_build::build(&kernel.kdir, Some(Flavor::Trace), false)?;
        Ok(Self {
            kernel,
            module,
            lab_modules: Vec::new(),
            reader: reader()?,
            dir: dir.to_owned(),
            jobs: jobs(),
        })
    }
}

/// How this program is called from where the user stands.
pub fn program() -> String {
    let exe = std::env::current_exe().unwrap_or_else(|_| "blkrelay-lab".into());
    let here = std::env::current_dir().unwrap_or_default();
    let short = exe.strip_prefix(&here).unwrap_or(&exe);
    short.display().to_string()
}

/// How many QEMUs run at a time: one for each CPU, as far as memory is sure to last.
pub fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(8))
}

/// The reader that was built with this program.
///
/// # Errors
///
/// When it was not.
pub fn reader() -> Result<PathBuf> {
    let lab = std::env::current_exe().context("this program's own path")?;
    let reader = lab.with_file_name("blkrelay");
    if !reader.is_file() {
        bail!(
            "{}: no such file: build it with `make userspace`",
            reader.display()
        );
    }
    Ok(reader)
}

/// What one boot counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Instructions in the window.
    pub ticks: u64,
    /// I/Os in the window.
    pub ios: u64,
    /// Events recorded in the window, or not recorded by the probes that were called for them.
    pub events: f64,
    /// Events recorded from start to stop.
    pub traced: u64,
    /// Events lost, from start to stop.
    pub lost: u64,
    /// Bytes that the reader wrote in the window, at least.
    pub written: u64,
    /// Bytes that it wrote after the window, at most.
    pub left: u64,
    /// Bytes of the finished trace, 0 without a reader.
    pub bytes: u64,
}

impl Sample {
    /// What a boot of this arm has printed.
    ///
    /// # Errors
    ///
    /// When the job failed, something is missing, or the window was idle.
    pub fn of(outcome: &Outcome, workload: Workload, state: State) -> Result<Self> {
        ensure!(
            outcome.exit == 0,
            "the job ended with {}: see {}",
            outcome.exit,
            outcome.console.display()
        );
        let find = |key: &str, value: Option<&str>| {
            outcome
                .results
                .iter()
                .find(|r| match value {
                    Some(v) => r.get(key) == Some(v),
                    None => r.get(key).is_some(),
                })
                .with_context(|| {
                    format!(
                        "the guest printed no {key}: see {}",
                        outcome.console.display()
                    )
                })
        };
        let window = find("window", Some(workload.window()))?;
        let traced_ios: u64 = find("traced_ios", None)?.number("traced_ios")?;
        ensure!(
            window.number::<u64>("idle")? == 0,
            "the window was idle: its ticks are no instructions"
        );
        let ios = match window.number("ios")? {
            0 => traced_ios,
            n => n,
        };
        ensure!(ios > 0 && traced_ios >= ios, "{ios} of {traced_ios} I/Os");
        let mut sample = Self {
            ticks: window.number("ticks")?,
            ios,
            events: 0.0,
            traced: 0,
            lost: 0,
            written: window.number("written")?,
            left: 0,
            bytes: 0,
        };
        if state.records() {
            let tracer = find("tracer", None)?;
            // The tracer counts from start to stop; the workload's I/Os are alike, in the window and out.
            let part = ios as f64 / traced_ios as f64;
            let events: u64 = tracer.number("events")?;
            sample.events = events as f64 * part;
            sample.traced = events;
            sample.lost = tracer.number("lost")?;
            sample.bytes = tracer.number("bytes")?;
            if let Some(each) = workload.events_per_io() {
                let each = if state == State::Span { 1 } else { each };
                let all = events + sample.lost;
                ensure!(
                    all == traced_ios * each,
                    "{all} events of {traced_ios} I/Os: want {each} of each"
                );
            }
        } else if state.calls_only() {
            let events = workload.events_per_io().context("events of an I/O")?;
            sample.events = (ios * events) as f64;
        }
        if workload.is_read(state) {
            let tracer = find("tracer", None)?;
            // blktrace maps and locks its files ahead in pieces of a buffer's size: so much of what they
            // occupy may not be written yet, and is not there in the end.
            let ahead = match state {
                State::Blktrace => workload.devices() * workload.buffers().0 * workload.buffers().1,
                _ => 0,
            };
            sample.written = sample.written.saturating_sub(ahead);
            let occupied: u64 = window.number("occupied")?;
            sample.left = (tracer.number::<u64>("bytes")? + ahead).saturating_sub(occupied);
        }
        Ok(sample)
    }
}

/// The guest for a workload, but for the file that says the state.
fn guest(setup: &Setup, workload: Workload) -> Result<Builder> {
    let mut b = Builder::guest()?;
    b.add_program("/usr/sbin/blktrace")?;
    b.add_program("/usr/sbin/mke2fs")?;
    b.copy(&setup.reader, "/lab/blkrelay")?;
    b.copy(&setup.module, "/lab/blkrelay.ko")?;
    b.file("/lab/workload.sh", 0o644, workload.script().as_bytes())?;
    for module in &setup.lab_modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        b.copy(module, &format!("/lab/{name}"))?;
    }
    b.file("/lab/states.sh", 0o644, STATES.as_bytes())?;
    b.job(JOB)?;
    Ok(b)
}

/// Samples of all boots of each arm, in order of their index.
pub type Samples = BTreeMap<(Workload, State), Vec<Sample>>;

/// The initramfs of each arm.
pub type Images = BTreeMap<(Workload, State), Image>;

/// The initramfs of an arm.
fn image(setup: &Setup, b: &Boot) -> Result<Image> {
    let mut builder = guest(setup, b.workload)?;
    builder.file("/lab/arm", 0o644, b.workload.arm(b.state).as_bytes())?;
    let name = format!("{}-{}.cpio", b.workload.name(), b.state.name());
    builder.write(&setup.dir.join(name))
}

fn spec(setup: &Setup, image: &Image, b: &Boot) -> Spec {
    let name = format!("{}-{}-{}", b.workload.name(), b.state.name(), b.index);
    let dir = setup.dir.join("boots").join(name);
    let mut spec = Spec::new(&setup.kernel.image, &image.path, Mode::Count, &dir);
    spec.memory_mib = b.perturbation.memory_mib;
    spec.seed = b.perturbation.seed;
    spec.timeout = Duration::from_secs(300);
    spec.append = vec![
        // The built-in driver makes a disk of its own otherwise.
        "null_blk.nr_devices=0".into(),
        format!("LAB_FORKS={}", b.perturbation.forks),
        format!("LAB_PAD={}", "x".repeat(b.perturbation.pad)),
    ];
    spec
}

/// The first boot of a state that [`collect`] would make with this seed, for somebody else to make.
///
/// # Errors
///
/// When its initramfs cannot be written.
pub fn first(setup: &Setup, workload: Workload, state: State, seed: u64) -> Result<Spec> {
    fs::create_dir_all(&setup.dir).with_context(|| setup.dir.display().to_string())?;
    let boots = plan(&[workload], &[state], seed, 1);
    let b = boots.iter().find(|b| b.state == state).context("no boot")?;
    Ok(spec(setup, &image(setup, b)?, b))
}

fn one(setup: &Setup, images: &Images, b: &Boot) -> Result<Sample> {
    let image = images
        .get(&(b.workload, b.state))
        .context("no initramfs for this arm")?;
    let outcome = boot::run(&spec(setup, image, b))?;
    Sample::of(&outcome, b.workload, b.state)
        .with_context(|| format!("boot {}", outcome.console.display()))
}

/// Makes all boots, no more than `most` of an arm; `seed` decides their perturbations and order. The boots
/// of what the states are compared with are made as well.
///
/// # Errors
///
/// When a boot fails. The others that run are waited for; no result is left out.
pub fn collect(
    setup: &Setup,
    workloads: &[Workload],
    states: &[State],
    seed: u64,
    most: usize,
) -> Result<(Samples, Images)> {
    count(setup, &plan(workloads, states, seed, most))
}

/// Makes these boots.
///
/// # Errors
///
/// As for [`collect`].
pub fn count(setup: &Setup, boots: &[Boot]) -> Result<(Samples, Images)> {
    fs::create_dir_all(&setup.dir).with_context(|| setup.dir.display().to_string())?;
    let mut images = BTreeMap::new();
    for b in boots {
        let key = (b.workload, b.state);
        if let std::collections::btree_map::Entry::Vacant(entry) = images.entry(key) {
            entry.insert(image(setup, b)?);
        }
    }

    struct Shared {
        next: usize,
        done: u64,
        steps: progress::Steps,
        samples: BTreeMap<(Workload, State, usize), Sample>,
        error: Option<anyhow::Error>,
    }
    let shared = Mutex::new(Shared {
        next: 0,
        done: 0,
        steps: progress::Steps::new("counting instructions"),
        samples: BTreeMap::new(),
        error: None,
    });
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..setup.jobs.max(1) {
            scope.spawn(|| loop {
                let b = {
                    let mut s = lock();
                    if s.error.is_some() {
                        return;
                    }
                    let Some(b) = boots.get(s.next) else { return };
                    s.next += 1;
                    b
                };
                let sample = one(setup, &images, b);
                let mut s = lock();
                match sample {
                    Ok(sample) => {
                        s.samples.insert((b.workload, b.state, b.index), sample);
                        s.done += 1;
                        let done = s.done;
                        s.steps.at(done, boots.len() as u64);
                    }
                    Err(e) => {
                        s.error.get_or_insert(e);
                    }
                }
            });
        }
    });
    let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(e) = shared.error {
        return Err(e);
    }
    shared.steps.done(&format!("{} boots", boots.len()));
    let mut samples = Samples::new();
    for ((workload, state, _), sample) in shared.samples {
        samples.entry((workload, state)).or_default().push(sample);
    }
    Ok((samples, images))
}

/// Measures and states the costs.
///
/// # Errors
///
/// See [`collect`]; and when a reader did not keep up or the window was too short for it.
pub fn measure(
    setup: &Setup,
    workloads: &[Workload],
    states: &[State],
    seed: u64,
) -> Result<Summary> {
    let (samples, images) = collect(setup, workloads, states, seed, usize::MAX)?;
    let mut rows = Vec::new();
    for &workload in workloads {
        let again = |state: State| {
            format!(
                "measure --workload {} --state {} --seed {seed}",
                workload.name(),
                state.name()
            )
        };
        rows.append(&mut self::rows(setup, &samples, &images, workload, &again)?);
    }
    Ok(Summary::new(rows))
}

/// The rows of a workload: of each state that is not another one's baseline. `again` gives the arguments that
/// measure a state again.
///
/// # Errors
///
/// When a reader did not keep up or the window was too short for it.
pub fn rows(
    setup: &Setup,
    samples: &Samples,
    images: &Images,
    workload: Workload,
    again: &dyn Fn(State) -> String,
) -> Result<Vec<Row>> {
    let qemu = initramfs::find_program("qemu-system-x86_64", "qemu-system-x86")?;
    let compiler = format!("{}; {}", setup.kernel.cc, setup.kernel.rustc);
    let none = images
        .get(&(workload, State::None))
        .context("no initramfs of the baseline")?;
    let scripts = [JOB, STATES, workload.script()].concat();
    let made_from = MadeFrom {
        workload_sha256: initramfs::hex(&Sha256::digest(scripts)),
        initramfs_sha256: none.sha256.clone(),
        kernel_config_sha256: setup.kernel.config_sha256.clone(),
        kernel_sha256: initramfs::sha256_file(&setup.kernel.image)?,
        module_sha256: initramfs::sha256_file(&setup.module)?,
        compiler_sha256: initramfs::hex(&Sha256::digest(&compiler)),
        compiler,
        qemu_sha256: initramfs::sha256_file(&qemu)?,
        qemu: boot::qemu_version()?,
    };
    samples
        .keys()
        .filter(|(w, state)| *w == workload && !state.is_baseline())
        .map(|(_, state)| row(samples, workload, *state, &again(*state), &made_from))
        .collect()
}

fn row(
    samples: &Samples,
    workload: Workload,
    state: State,
    again: &str,
    made_from: &MadeFrom,
) -> Result<Row> {
    let arm = |s| {
        samples
            .get(&(workload, s))
            .with_context(|| format!("no boot of {} in state {}", workload.name(), State::name(s)))
    };
    let with = arm(state)?;
    let mut without = &arm(state.baseline())?[..];
    if workload.paired() {
        // A state with fewer boots uses the first pairs.
        without = &without[..with.len().min(without.len())];
    }
    let ticks = |s: &[Sample]| s.iter().map(|s| s.ticks as f64).collect::<Vec<_>>();
    let average = |f: &dyn Fn(&Sample) -> f64| with.iter().map(f).sum::<f64>() / with.len() as f64;
    let (a, b) = (ticks(with), ticks(without));
    let value = stats::mean(&a)?;
    let baseline_value = stats::mean(&b)?;
    // The baseline's: a tracer that moves the work of the page cache also moves the number of I/Os.
    let ios = without.iter().map(|s| s.ios as f64).sum::<f64>() / without.len() as f64;
    let events = average(&|s| s.events);
    let (delta_percent, added, per_io_median) = if workload.paired() {
        let added = stats::paired_difference(&a, &b)?;
        let median = stats::median(&stats::differences(&a, &b)?) / ios;
        (stats::paired_percent(&a, &b)?, added, Some(median))
    } else {
        let percent = stats::unpaired_percent(&a, &b)?;
        let base = baseline_value.estimate;
        (percent, percent.map(|p| p / 100.0 * base), None)
    };
    let all: Vec<f64> = a.iter().chain(&b).copied().collect();
    let lost = with.iter().map(|s| s.lost).sum();
    let (subbuf_size, _) = workload.buffers();
    let consumed = with.iter().map(|s| s.written / subbuf_size).min();
    let drained = with.iter().map(|s| s.left).max();
    let records = state.records();
    if workload.is_read(state) {
        let least = workload.consumed_at_least();
        let got = consumed.unwrap_or(0);
        ensure!(
            got >= least,
            "{} in state {}: the reader consumed {got} sub-buffers in the window: {least} are needed",
            workload.name(),
            state.name()
        );
    }
    let per_io = added.per(ios);
    Ok(Row {
        state: state.name().into(),
        baseline: state.baseline().name().into(),
        workload: workload.name().into(),
        mode: Mode::Count.name().into(),
        unit: "guest instructions".into(),
        value,
        baseline_value,
        delta_percent,
        per_io: Some(per_io),
        per_io_median,
        per_event: (events > 0.0).then(|| added.per(events)),
        ios: ios.round() as u64,
        events: events.round() as u64,
        lost,
        subbuf_size: records.then_some(subbuf_size),
        subbufs_consumed: consumed.filter(|_| workload.is_read(state)),
        subbufs_drained: drained
            .filter(|_| workload.is_read(state))
            .map(|d| d as f64 / subbuf_size as f64),
        boots: all.len(),
        distinct: stats::distinct(&all),
        paired: workload.paired(),
        verdict: verdict(
            delta_percent,
            per_io_median.filter(|_| state.is_free()),
            lost,
        ),
        reproduce: format!("{} {again}", program()),
        made_from: made_from.clone(),
    })
}

/// What may be said: `free_per_io` is the median per I/O of a state for which a margin per I/O is
/// declared. A trace that lost records is not compared, since what was lost was not paid for.
fn verdict(delta: Estimate, free_per_io: Option<f64>, lost: u64) -> String {
    if lost > 0 {
        return format!("none: {lost} events lost");
    }
    if let Some(median) = free_per_io {
        return if median.abs() <= OFF_MARGIN_PER_IO {
            format!("no more than {OFF_MARGIN_PER_IO} an I/O")
        } else if median > 0.0 {
            "slower".into()
        } else {
            "undecided: less than none".into()
        };
    }
    if delta.exact() {
        return "exact, one sample".into();
    }
    if delta.high < MARGIN_PERCENT {
        format!("no more than {MARGIN_PERCENT} %")
    } else if delta.low > 0.0 {
        "slower".into()
    } else {
        "undecided".into()
    }
}

/// Arguments of `blkrelay-lab measure`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// All of them if not given
    #[arg(long, value_enum)]
    workload: Vec<Workload>,
    /// Compared with none [default: off, on, blktrace]
    #[arg(long, value_enum)]
    state: Vec<State>,
    /// Decides order and perturbations of the boots
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where summary.json and the consoles are put
    #[arg(long, default_value = "out/measure")]
    dir: PathBuf,
}

/// Measures, writes summary.json and prints the table.
///
/// # Errors
///
/// See [`Setup::prepare`] and [`measure`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let setup = Setup::prepare(&args.dir)?;
    let mut workloads = args.workload.clone();
    if workloads.is_empty() {
        workloads = vec![Workload::Read4k, Workload::Mkfs10];
    }
    let mut states = args.state.clone();
    if states.is_empty() {
        states = vec![State::Off, State::On, State::Blktrace];
    }
    for workload in &workloads {
        if let Some(state) = states.iter().find(|s| !workload.takes(**s)) {
            bail!(
                "--state {} is not for --workload {}: see hotpath",
                state.name(),
                workload.name()
            );
        }
    }
    let summary = measure(&setup, &workloads, &states, args.seed)?;
    let path = args.dir.join("summary.json");
    summary.write(&path)?;
    println!("{}", report(&summary));
    println!("\n{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// The table with what has to be said beside it.
pub fn report(summary: &Summary) -> String {
    let mut text = summary::table(&summary.rows);
    text += "\n\n'none', 'with it' and 'added' are guest instructions for each I/O (each event), not time; \
             95 % intervals\nover boots, each perturbed.";
    for r in &summary.rows {
        if let Some(median) = r.per_io_median.filter(|_| r.state == State::Off.name()) {
            text += &format!(
                "\n{}: off adds {median:+.3} an I/O, the median of {} pairs of boots.",
                r.workload,
                r.boots / 2
            );
        }
        if r.subbuf_size.is_some() && r.subbufs_consumed.is_none() {
            text += &format!(
                "\n{}: {} recorded {} events, which nobody read.",
                r.workload, r.state, r.events
            );
        }
        if let (Some(size), Some(consumed), Some(drained)) =
            (r.subbuf_size, r.subbufs_consumed, r.subbufs_drained)
        {
            text += &format!(
                "\n{}: {} recorded {} events, lost {}",
                r.workload, r.state, r.events, r.lost
            );
            // Where it is 0 it is known only that the reader had so much to take.
            if consumed > 0 {
                text += &format!(
                    "; its reader took at least {consumed} sub-buffers of {} KiB in the window, at most \
                     {drained:.1} after it",
                    size >> 10
                );
            }
            text.push('.');
        }
    }
    for workload in [Workload::Read4k, Workload::Mkfs10] {
        let of = summary.fraction(workload.name(), "on", "blktrace");
        if let Some(fraction) = of {
            text += &format!(
                "\n{}: on adds {fraction:.3} × what blktrace adds to an I/O.",
                workload.name()
            );
        }
    }
    let events = |state: State| -> u64 {
        let rows = summary.rows.iter().filter(|r| r.state == state.name());
        rows.map(|r| r.events).sum()
    };
    if events(State::Blktrace) < events(State::On) && events(State::Blktrace) > 0 {
        text += "\nblktrace records no FUA writes and no zeroing through the setup ioctl that its program uses, and \
                 does not count\nthem as lost: where there are such, it does less for its cost.";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(estimate: f64, low: f64, high: f64) -> Estimate {
        Estimate {
            estimate,
            low,
            high,
        }
    }

    #[test]
    fn verdicts() {
        let slower = estimate(2.0, 1.0, 3.0);
        assert_eq!(verdict(slower, None, 0), "slower");
        assert_eq!(verdict(slower, None, 7), "none: 7 events lost");
        assert_eq!(
            verdict(estimate(0.01, -0.05, 0.09), None, 0),
            "no more than 0.1 %"
        );
        assert_eq!(verdict(estimate(0.01, -0.2, 0.2), None, 0), "undecided");
        assert_eq!(
            verdict(estimate(1.0, 1.0, 1.0), None, 0),
            "exact, one sample"
        );
        let off = estimate(0.001, -0.02, 0.02);
        assert_eq!(verdict(off, Some(-0.4), 0), "no more than 0.5 an I/O");
        assert_eq!(verdict(off, Some(0.6), 0), "slower");
        assert_eq!(verdict(off, Some(-0.6), 0), "undecided: less than none");
    }

    fn outcome(lines: &[&str]) -> Outcome {
        Outcome {
            exit: 0,
            results: lines
                .iter()
                .filter_map(|l| crate::console::ResultLine::parse(l))
                .collect(),
            clock: crate::clock::Clock {
                source: "tsc".into(),
                step_ns: 1,
                now_ns: 1,
            },
            console: "console.log".into(),
            out: None,
            wall: Duration::ZERO,
        }
    }

    const TRACER: &str = "@result tracer=blktrace events=495 lost=5 bytes=3000000";

    #[test]
    fn a_sample_is_what_the_guest_printed() {
        let window =
            "@result window=read4k ticks=1000 idle=0 written=2500000 occupied=2900000 ios=100";
        let lines = [window, "@result traced_ios=125", TRACER];
        let on = Sample::of(&outcome(&lines), Workload::Read4k, State::On).unwrap();
        // Of 125 I/Os that were traced 100 are the window's.
        assert_eq!(
            (on.ticks, on.ios, on.events, on.lost),
            (1000, 100, 396.0, 5)
        );
        assert_eq!((on.written, on.left), (2_500_000, 100_000));
        // blktrace may be 8 buffers of 256 KiB ahead of itself: 2097152 bytes.
        let blktrace = Sample::of(&outcome(&lines), Workload::Read4k, State::Blktrace).unwrap();
        assert_eq!((blktrace.written, blktrace.left), (402_848, 2_197_152));
        let none = Sample::of(&outcome(&lines[..2]), Workload::Read4k, State::None).unwrap();
        assert_eq!((none.ios, none.events), (100, 0.0));
    }

    #[test]
    fn a_sample_is_refused() {
        let of = |lines: &[&str]| Sample::of(&outcome(lines), Workload::Read4k, State::On);
        let window = "@result window=read4k ticks=9 idle=0 written=0 occupied=0 ios=100";
        let idle = window.replace("idle=0", "idle=1");
        let ios = "@result traced_ios=125";
        assert!(of(&[window, ios, TRACER]).is_ok());
        // 500 events are of 125 I/Os.
        assert!(of(&[window, "@result traced_ios=126", TRACER]).is_err());
        assert!(of(&[&idle, ios, TRACER]).is_err());
        assert!(of(&[window, TRACER]).is_err());
        assert!(of(&[window, ios]).is_err());
        assert!(of(&[ios, TRACER]).is_err());
        // Fewer traced than the window says it did.
        assert!(of(&[window, "@result traced_ios=99", TRACER]).is_err());
        let mut failed = outcome(&[window, ios, TRACER]);
        failed.exit = 1;
        assert!(Sample::of(&failed, Workload::Read4k, State::On).is_err());
    }

    /// A row from counts that can be worked out by hand: on adds 10 % and 100 instructions to each of
    /// 1000 I/Os, four events each.
    #[test]
    fn a_row_by_hand() {
        let sample = |ticks, events| Sample {
            ticks,
            ios: 1000,
            events,
            traced: events as u64,
            lost: 0,
            written: 20 * 262_144,
            left: 131_072,
            bytes: 0,
        };
        let samples = Samples::from([
            (
                (Workload::Read4k, State::None),
                vec![
                    sample(1_000_000, 0.0),
                    sample(1_000_010, 0.0),
                    sample(999_000, 0.0),
                ],
            ),
            (
                (Workload::Read4k, State::On),
                vec![sample(1_100_000, 4000.0), sample(1_100_010, 4000.0)],
            ),
        ]);
        let made_from = MadeFrom {
            workload_sha256: String::new(),
            initramfs_sha256: String::new(),
            kernel_config_sha256: String::new(),
            kernel_sha256: String::new(),
            module_sha256: String::new(),
            compiler_sha256: String::new(),
            compiler: String::new(),
            qemu_sha256: String::new(),
            qemu: String::new(),
        };
        let r = row(&samples, Workload::Read4k, State::On, "measure", &made_from).unwrap();
        assert_eq!(r.boots, 4);
        assert_eq!(r.distinct, 4);
        assert_eq!(r.per_io.map(|e| e.estimate), Some(100.0));
        assert_eq!(r.per_io_median, Some(100.0));
        assert_eq!(r.per_event.map(|e| e.estimate), Some(25.0));
        assert!((r.delta_percent.estimate - 10.0).abs() < 1e-3);
        assert_eq!(r.subbufs_consumed, Some(20));
        assert_eq!(r.subbufs_drained, Some(0.5));
    }
}
