// SPDX-License-Identifier: GPL-2.0
//! One bounded boot of a guest in QEMU, from a kernel and an initramfs to the status of its job.
//!
//! Nothing but the guest's `@exit` line counts as an end: QEMU exits with 0 after a panic as well.

use crate::clock::{self, Clock};
use crate::console::{self, ResultLine};
use crate::{initramfs, process};
use anyhow::{bail, Context, Result};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How the guest runs, and so what may be concluded from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// TCG with icount, one CPU: the guest's TSC counts its instructions, and a run with the same
    /// inputs repeats bit for bit. No disks: waiting for the host would move the clock.
    Count,
    /// TCG, several CPUs, virtio disks: for correctness. Its times are nobody's cost.
    Emulated,
}

impl Mode {
    /// The name in results and on the guest's kernel command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Emulated => "emulated",
        }
    }
}

/// A virtio-blk disk with a write-back cache, empty at each boot. The guest finds disk number N as
/// /dev/diskN.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    /// Bytes, a multiple of 512.
    pub size: u64,
    /// Hardware queues; 0 means one for each CPU.
    pub queues: u32,
    /// Most I/Os a second that QEMU does for it; 0 means no limit. With it a ring of virtio-mmio, which
    /// always has 1024 entries, can be filled.
    pub iops: u32,
}

/// A plugin of QEMU's TCG.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The shared object.
    pub file: PathBuf,
    /// What it writes, its argument `out`. What an earlier boot left is removed.
    pub out: PathBuf,
}

/// Everything that decides what a boot does.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The bzImage.
    pub kernel: PathBuf,
    /// The uncompressed cpio archive.
    pub initramfs: PathBuf,
    /// Count or emulated.
    pub mode: Mode,
    /// CPUs; count mode allows one only.
    pub cpus: u32,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// Disks; emulated mode only.
    pub disks: Vec<Disk>,
    /// Room for the tar of the guest's /out in MiB, 0 for none; emulated mode only.
    pub out_mib: u32,
    /// Further kernel parameters. `NAME=VALUE` words that the kernel does not know reach the job as
    /// environment variables.
    pub append: Vec<String>,
    /// Texts in kernel complaints that are no fault in this run.
    pub expected: Vec<String>,
    /// A plugin that watches the guest; count mode only.
    pub plugin: Option<Plugin>,
    /// QEMU's seed: random numbers that the guest draws.
    pub seed: u64,
    /// The guest is killed after this much wall time.
    pub timeout: Duration,
    /// Where console.log, qemu.log and out/ are put. Created; what an earlier boot left is replaced.
    pub dir: PathBuf,
}

impl Spec {
    /// A boot with the mode's usual resources: one CPU and 1 GiB to count, two CPUs and 1 GiB with room
    /// for 64 MiB of output to emulate.
    pub fn new(kernel: &Path, initramfs: &Path, mode: Mode, dir: &Path) -> Self {
        let emulated = mode == Mode::Emulated;
        Self {
            kernel: kernel.to_owned(),
            initramfs: initramfs.to_owned(),
            mode,
            cpus: if emulated { 2 } else { 1 },
            memory_mib: 1024,
            disks: Vec::new(),
            out_mib: if emulated { 64 } else { 0 },
            append: Vec::new(),
            expected: Vec::new(),
            plugin: None,
            seed: 1,
            timeout: Duration::from_secs(300),
            dir: dir.to_owned(),
        }
    }
}

/// What came of a boot that ended properly. A job that failed is such an end: see `exit`.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the guest's job; 125 when the guest refused its clock.
    pub exit: i32,
    /// The `@result` lines in the order in which they were printed.
    pub results: Vec<ResultLine>,
    /// The guest's clock at the end of the run.
    pub clock: Clock,
    /// The whole console.
    pub console: PathBuf,
    /// The guest's /out, unpacked; `None` without `out_mib`.
    pub out: Option<PathBuf>,
    /// Wall time from the start of QEMU to its end.
    pub wall: Duration,
}

/// QEMU's own version, e.g. `7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
///
/// # Errors
///
/// When QEMU is not installed.
pub fn qemu_version() -> Result<String> {
    let text = process::output(Command::new(qemu()?).arg("--version"))?;
    let line = text.lines().next().unwrap_or("").trim();
    Ok(line
        .strip_prefix("QEMU emulator version ")
        .unwrap_or(line)
        .to_owned())
}

fn qemu() -> Result<PathBuf> {
    initramfs::find_program("qemu-system-x86_64", "qemu-system-x86")
}

/// Boots and waits for the end.
///
/// # Errors
///
/// See [`run_with`].
pub fn run(spec: &Spec) -> Result<Outcome> {
    run_with(spec, &mut |_| {})
}

/// Boots and waits for the end; `on_line` sees each console line as it is completed.
///
/// # Errors
///
/// When the spec is not possible, QEMU is missing, or the guest panics, hangs until the timeout, prints a
/// kernel complaint (see [`console::complaint`]), ends without an `@exit` line, refuses its clock, or
/// its /out does not fit. The message ends with the last lines of the console where they tell more.
pub fn run_with(spec: &Spec, on_line: &mut dyn FnMut(&str)) -> Result<Outcome> {
    check(spec)?;
    fs::create_dir_all(&spec.dir).with_context(|| spec.dir.display().to_string())?;
    let console = spec.dir.join("console.log");
    let out = spec.dir.join("guest-out");
    remove(&console)?;
    if let Some(plugin) = &spec.plugin {
        remove(&plugin.out)?;
    }
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    let images = Images::create(spec)?;
    // QEMU truncates it only once it runs: the follower below must not see an old one.
    File::create(&console).with_context(|| console.display().to_string())?;
    let start = Instant::now();
    let guest = Guest::start(spec, &console, &images)?;
    let end = guest.follow(spec, &console, on_line);
    let wall = start.elapsed();
    let transcript = end.map_err(|e| with_tail(e, &console))?;
    let verdict = transcript.verdict(spec);
    let (exit, clock) = verdict.map_err(|e| with_tail(e, &console))?;
    let out = match &images.out {
        None => None,
        Some(image) => {
            if let Some(why) = transcript.out.strip_prefix("failed: ") {
                bail!(
                    "the guest's /out does not come out: {why}: it is bounded to {} MiB",
                    spec.out_mib
                );
            }
            unpack(image, &out)?;
            Some(out)
        }
    };
    Ok(Outcome {
        exit,
        results: transcript.results,
        clock,
        console,
        out,
        wall,
    })
}

/// Whether an emulated CPU may run code that another one has patched while it was being translated. The
/// kernel patches its code wherever a tracepoint or a static key goes on or off, behind a breakpoint that
/// stands there for a moment; with such a QEMU it dies of running into one that it has taken away ("qemu-x86_64
/// booting with 8.0.0 still see int3", linux-kernel, July 2023). Mended in 8.1.
fn runs_patched_code(qemu: &str) -> bool {
    older(qemu, 8, 1)
}

/// Whether a version of QEMU is older than this one.
fn older(qemu: &str, major: u32, minor: u32) -> bool {
    let mut numbers = qemu.split(['.', ' ']).map(|n| n.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    version < (Some(major), Some(minor))
}

fn check(spec: &Spec) -> Result<()> {
    if spec.cpus > 1 {
        let version = qemu_version()?;
        if runs_patched_code(&version) {
            bail!("QEMU {version} crashes guests with several CPUs as they patch their code; 8.1 does not: run qemu/install");
        }
    }
    for path in [&spec.kernel, &spec.initramfs] {
        if !path.is_file() {
            bail!("{}: no such file", path.display());
        }
    }
    if spec.mode == Mode::Count && spec.cpus != 1 {
        bail!(
            "count mode has one CPU: QEMU's icount is not steady with {}",
            spec.cpus
        );
    }
    if spec.mode == Mode::Count && (!spec.disks.is_empty() || spec.out_mib != 0) {
        bail!("count mode has no disks: waiting for the host moves the guest's clock");
    }
    if spec.mode != Mode::Count && spec.plugin.is_some() {
        bail!("a plugin watches guests in count mode");
    }
    if spec.plugin.is_some() {
        let version = qemu_version()?;
        if older(&version, 9, 1) {
            bail!(
                "QEMU {version} does not know the plugin's interface; 9.1 does: run qemu/install"
            );
        }
    }
    if !(1..=16).contains(&spec.cpus) {
        bail!("{} CPUs: the test kernel takes 1 to 16", spec.cpus);
    }
    // microvm has eight virtio-mmio slots.
    let disks = spec.disks.len() + usize::from(spec.out_mib != 0);
    if disks > 8 {
        bail!("{disks} disks: the machine has room for 8, the one for /out included");
    }
    if let Some(d) = spec.disks.iter().find(|d| d.size == 0 || d.size % 512 != 0) {
        bail!("a disk of {} bytes: it must be a multiple of 512", d.size);
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// The disks' sparse files, gone when the boot is over.
struct Images {
    disks: Vec<PathBuf>,
    out: Option<PathBuf>,
}

impl Images {
    fn create(spec: &Spec) -> Result<Self> {
        let create = |name: String, size: u64| -> Result<PathBuf> {
            let path = spec.dir.join(name);
            File::create(&path)
                .and_then(|f| f.set_len(size))
                .with_context(|| path.display().to_string())?;
            Ok(path)
        };
        let mut images = Self {
            disks: Vec::new(),
            out: None,
        };
        for (i, disk) in spec.disks.iter().enumerate() {
            images
                .disks
                .push(create(format!("disk{i}.img"), disk.size)?);
        }
        if spec.out_mib != 0 {
            images.out = Some(create("out.img".into(), u64::from(spec.out_mib) << 20)?);
        }
        Ok(images)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for path in self.disks.iter().chain(&self.out) {
            let _ = fs::remove_file(path);
        }
    }
}

/// QEMU's arguments: everything that is not named here is switched off.
fn arguments(spec: &Spec, console: &Path, images: &Images) -> Result<Vec<String>> {
    let path = |p: &Path| p.to_string_lossy().replace(',', ",,");
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|w| (*w).to_owned()));
    add(&[
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
    ]);
    // pit, pic: a guest under TCG wedges without them. acpi: with it the virtio-mmio devices are not
    // put on the command line of a kernel that has no ACPI.
    add(&["-machine", "microvm,pit=on,pic=on,rtc=on,acpi=off"]);
    // -cpu max: the counted instructions are the same on every host, and RDRAND follows -seed. Without
    // fast string operations: each step of a REP counts as an instruction, and a kernel that believes
    // them fast copies a byte a step, at the price of eight.
    let cpu = match spec.mode {
        Mode::Count => "max,-erms,-fsrm",
        Mode::Emulated => "max",
    };
    add(&["-cpu", cpu, "-seed", &spec.seed.to_string()]);
    add(&["-m", &format!("{}M", spec.memory_mib)]);
    add(&["-smp", &spec.cpus.to_string()]);
    add(&["-kernel", &spec.kernel.to_string_lossy()]);
    add(&["-initrd", &spec.initramfs.to_string_lossy()]);
    add(&[
        "-chardev",
        &format!("file,id=console,path={}", path(console)),
    ]);
    add(&["-serial", "chardev:console"]);

    if let Some(plugin) = &spec.plugin {
        let (file, out) = (path(&plugin.file), path(&plugin.out));
        add(&["-plugin", &format!("file={file},out={out}")]);
    }

    // printk.time: the complaints are told from a program's output by the time stamp. no_timer_check:
    // the check fails at random on an emulator that the host preempts.
    let mut cmdline = String::from(
        "console=ttyS0 panic=-1 reboot=t nokaslr printk.time=1 no_timer_check random.trust_cpu=on",
    );
    match spec.mode {
        Mode::Count => {
            add(&["-accel", "tcg"]);
            add(&["-icount", "shift=0,sleep=off,align=off"]);
            add(&["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
            // Calibrating the local APIC's timer would take 20 s of instructions. Messages below
            // warning would be counted too. tsc=reliable: there is no second clock to check it by, and a
            // TSC that awaits its check keeps the kernel on a periodic tick, which does not count idle.
            cmdline += " nolapic_timer loglevel=5 tsc=reliable";
        }
        Mode::Emulated => {
            add(&["-accel", "tcg,thread=multi"]);
            // The guest cannot calibrate its TSC here and would fall back to jiffies. TCG hands out
            // the host's counter, so its rate is the host's.
            let khz = clock::host_tsc_khz()?;
            cmdline += &format!(" tsc=reliable tsc_early_khz={khz} loglevel=7");
        }
    }
    cmdline += &format!(" LAB_MODE={}", spec.mode.name());
    for word in &spec.append {
        cmdline.push(' ');
        cmdline += word;
    }
    add(&["-append", &cmdline]);

    let mut disk = |image: &Path, serial: &str, queues: u32, d: &Disk| {
        let mut drive = format!(
            "if=none,id={serial},format=raw,cache=unsafe,discard=unmap,file={}",
            path(image)
        );
        if d.iops != 0 {
            drive += &format!(",throttling.iops-total={}", d.iops);
        }
        let device =
            format!("virtio-blk-device,drive={serial},serial={serial},num-queues={queues}");
        add(&["-drive", &drive, "-device", &device]);
    };
    for (i, (image, d)) in images.disks.iter().zip(&spec.disks).enumerate() {
        let queues = if d.queues == 0 { spec.cpus } else { d.queues };
        disk(image, &format!("disk{i}"), queues, d);
    }
    if let Some(image) = &images.out {
        disk(image, "blkrelay-out", 1, &Disk::default());
    }
    Ok(args)
}

/// A running QEMU; killed when dropped.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the console said, as far as it is understood.
#[derive(Default)]
struct Transcript {
    exit: Option<i32>,
    results: Vec<ResultLine>,
    complaint: Option<String>,
    out: String,
    /// The guest's clock readings and when they reached us.
    clocks: Vec<(Clock, Instant)>,
    /// See [`Spec::expected`].
    expected: Vec<String>,
}

impl Transcript {
    fn line(&mut self, line: &str) {
        if let Some(status) = console::exit_status(line) {
            self.exit = Some(status);
        } else if let Some(result) = ResultLine::parse(line) {
            self.results.push(result);
        } else if let Some(text) = line.strip_prefix("@out ") {
            self.out = text.to_owned();
        } else if let Some(clock) = Clock::parse(line) {
            self.clocks.push((clock, Instant::now()));
        } else if self.complaint.is_none() {
            let expected = |text: &&str| !self.expected.iter().any(|e| text.contains(e.as_str()));
            self.complaint = console::complaint(line).filter(expected).map(str::to_owned);
        }
    }

    fn verdict(&self, spec: &Spec) -> Result<(i32, Clock)> {
        if let Some(text) = &self.complaint {
            bail!("the guest's kernel complains: {text}");
        }
        let Some(exit) = self.exit else {
            bail!("the guest ended without saying how its job went");
        };
        let Some((last, at)) = self.clocks.last() else {
            bail!("the guest did not say what its clock is");
        };
        last.check().context("the guest refuses its clock")?;
        if spec.mode == Mode::Emulated {
            // A wrong rate shows only against another clock. The lines reach us within the polling
            // interval and however long the host was busy: a fifth is no measurement, but tells.
            let (first, then) = &self.clocks[0];
            let wall = at.duration_since(*then).as_secs_f64();
            let guest = last.now_ns.saturating_sub(first.now_ns) as f64 / 1e9;
            if wall > 3.0 && !(0.8..1.25).contains(&(guest / wall)) {
                bail!("the guest's clock counted {guest:.2} s in {wall:.2} s of the host's");
            }
        }
        Ok((exit, last.clone()))
    }
}

impl Guest {
    fn start(spec: &Spec, console: &Path, images: &Images) -> Result<Self> {
        let log = spec.dir.join("qemu.log");
        let log = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(qemu()?);
        command
            .args(arguments(spec, console, images)?)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Out of the terminal's foreground group: CTRL-C ends the lab, and its end ends QEMU.
            .process_group(0);
        process::tie(&mut command, Signal::SIGKILL);
        let child = command.spawn().context("qemu-system-x86_64")?;
        Ok(Self(child))
    }

    fn follow(
        mut self,
        spec: &Spec,
        console: &Path,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<Transcript> {
        let deadline = Instant::now() + spec.timeout;
        let mut grace: Option<Instant> = None;
        let mut follower = Follower::open(console)?;
        let mut transcript = Transcript {
            expected: spec.expected.clone(),
            ..Transcript::default()
        };
        loop {
            let ended = self.0.try_wait()?;
            follower.read(ended.is_some(), &mut |line| {
                transcript.line(line);
                on_line(line);
            })?;
            if let Some(status) = ended {
                if !status.success() && transcript.exit.is_none() {
                    let log = fs::read_to_string(spec.dir.join("qemu.log")).unwrap_or_default();
                    let last = log.lines().last().unwrap_or("");
                    bail!("QEMU ended: {status}: {last}");
                }
                return Ok(transcript);
            }
            let now = Instant::now();
            // Once the job's status is known the guest has ten seconds to power off; after a complaint
            // five to finish what it has to say.
            if grace.is_none() {
                if transcript.exit.is_some() {
                    grace = Some(now + Duration::from_secs(10));
                } else if transcript.complaint.is_some() {
                    grace = Some(now + Duration::from_secs(5));
                }
            }
            if grace.is_some_and(|g| now >= g) {
                return Ok(transcript);
            }
            if now >= deadline {
                bail!("the guest hangs: killed after {} s", spec.timeout.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads a growing file line by line.
struct Follower {
    file: File,
    pending: Vec<u8>,
}

impl Follower {
    fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self {
            file,
            pending: Vec::new(),
        })
    }

    /// Hands out what was added; the unfinished last line only when `last`.
    fn read(&mut self, last: bool, each: &mut dyn FnMut(&str)) -> Result<()> {
        self.file.read_to_end(&mut self.pending)?;
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            each(String::from_utf8_lossy(&line).trim_end());
        }
        if last && !self.pending.is_empty() {
            let line = std::mem::take(&mut self.pending);
            each(String::from_utf8_lossy(&line).trim_end());
        }
        Ok(())
    }
}

/// Adds the end of the console to an error, where the cause usually stands.
fn with_tail(error: anyhow::Error, console: &Path) -> anyhow::Error {
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let tail = lines[lines.len().saturating_sub(20)..].join("\n  | ");
    anyhow::anyhow!(
        "{error:#}\n  the last lines of {}:\n  | {tail}",
        console.display()
    )
}

fn unpack(image: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let file = File::open(image).with_context(|| image.display().to_string())?;
    let mut archive = tar::Archive::new(std::io::BufReader::new(file));
    archive.set_preserve_permissions(false);
    archive
        .unpack(out)
        .with_context(|| format!("unpacking the guest's /out into {}", out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_qemu() {
        for old in ["7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", "8.0.4"] {
            assert!(runs_patched_code(old), "{old}");
        }
        for new in ["8.1.0", "10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)"] {
            assert!(!runs_patched_code(new), "{new}");
        }
    }
}
