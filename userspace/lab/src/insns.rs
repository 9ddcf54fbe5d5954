// SPDX-License-Identifier: GPL-2.0
//! Which instructions a tracer adds to an I/O: a boot in count mode of each state, watched by a plugin of QEMU
//! (the crate `plugin`, which this program carries with it).
//!
//! Ticks tell how many instructions a window has, not whether they are dear. Here are their loads and stores,
//! the cache lines that an I/O touches, and how many of them lock the bus, read the clock or change the
//! interrupt flag. All figures are of one I/O: of the window's sum the share of each read. A state's less the
//! baseline's is what tracing adds.
//!
//! A **line** is 64 bytes of virtual addresses. It counts once for each I/O in which an instruction of the
//! mode in question (kernel or user space) loads from it or stores to it, or, as a line of code, is fetched
//! from it; an I/O reaches from one turn of the guest's loop to the next, with everything that runs meanwhile.
//! A **fresh** line is one that no instruction of that mode touched in the 1024 I/Os before: where the
//! memory of a tracer's buffer streams by, while everything else is used again.

use crate::boot::{self, Plugin};
use crate::measure::{self, Sample, Setup};
use crate::state::{State, Workload};
use crate::symbols::Symbols;
use crate::{cache, hotpath};
use anyhow::{ensure, Context, Result};
use comfy_table::{presets, CellAlignment, Table};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, Mnemonic,
    OpKind,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blkrelay_plugin.so"));

/// Most ticks of a window that the plugin may not have seen, or the other way round: between the readings of
/// the TSC and the marks that stand inside of them.
pub const SLACK: u64 = 16;

/// The kernel's half of the addresses.
const KERNEL: u64 = 0xffff_8000_0000_0000;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What one mode of the CPU executed, in the window or for one I/O.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: f64,)+
        }

        impl Counts {
            /// The figures with their names.
            pub fn figures(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($name), self.$name)),+]
            }

            fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
                Self { $($name: f(self.$name, other.$name)),+ }
            }
        }
    };
}

counts! {
    /// Instructions. Of a repeated one, each step.
    instructions,
    /// Accesses that load. An instruction may make none, or several.
    loads,
    /// Accesses that store.
    stores,
    /// Distinct lines of data touched in an I/O.
    data_lines,
    /// Those of them that were stored to.
    written_lines,
    /// Those of them that were fresh.
    fresh_lines,
    /// Distinct lines of code.
    code_lines,
    /// RDTSC and RDTSCP.
    rdtsc,
    /// With a LOCK prefix, and XCHG with memory, which has it implied.
    locked,
    /// CLI.
    cli,
    /// STI.
    sti,
    /// PUSHF.
    pushf,
    /// POPF.
    popf,
    /// LFENCE, MFENCE, SFENCE.
    fences,
    /// Those that serialise (Intel SDM volume 3, 10.3): CPUID, IRET, WRMSR, moves to control and debug
    /// registers, and the like.
    serialising,
    /// DIV and IDIV.
    div,
    /// Conditional branches.
    branches,
    /// Calls of all kinds.
    calls,
    /// Calls and jumps to where a register or memory says.
    indirect,
}

impl Counts {
    /// One of so many parts.
    pub fn per(&self, parts: f64) -> Self {
        self.zip(self, |a, _| a / parts)
    }

    /// What this has more than `other`.
    pub fn less(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    fn add(&mut self, at: &At) {
        let n = at.count as f64;
        self.instructions += n;
        self.loads += at.loads as f64;
        self.stores += at.stores as f64;
        let instruction = at.decode();
        let mut class = |is: bool, field: fn(&mut Self) -> &mut f64| {
            if is {
                *field(self) += n;
            }
        };
        let mnemonic = instruction.mnemonic();
        class(
            matches!(mnemonic, Mnemonic::Rdtsc | Mnemonic::Rdtscp),
            |c| &mut c.rdtsc,
        );
        class(is_locked(&instruction), |c| &mut c.locked);
        class(mnemonic == Mnemonic::Cli, |c| &mut c.cli);
        class(mnemonic == Mnemonic::Sti, |c| &mut c.sti);
        class(
            matches!(
                mnemonic,
                Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq
            ),
            |c| &mut c.pushf,
        );
        class(
            matches!(mnemonic, Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq),
            |c| &mut c.popf,
        );
        class(
            matches!(
                mnemonic,
                Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Sfence
            ),
            |c| &mut c.fences,
        );
        class(is_serialising(&instruction), |c| &mut c.serialising);
        class(matches!(mnemonic, Mnemonic::Div | Mnemonic::Idiv), |c| {
            &mut c.div
        });
        let flow = instruction.flow_control();
        class(flow == FlowControl::ConditionalBranch, |c| &mut c.branches);
        class(
            matches!(flow, FlowControl::Call | FlowControl::IndirectCall)
                && mnemonic == Mnemonic::Call,
            |c| &mut c.calls,
        );
        class(
            matches!(
                flow,
                FlowControl::IndirectCall | FlowControl::IndirectBranch
            ),
            |c| &mut c.indirect,
        );
    }
}

fn is_locked(instruction: &Instruction) -> bool {
    let memory = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
    instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg && memory
}

fn is_serialising(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Cpuid, Invd, Invlpg, Invpcid, Iret, Iretd, Iretq, Lgdt, Lidt, Lldt, Ltr, Rsm, Serialize,
        Wbinvd, Wrmsr,
    };
    matches!(
        instruction.mnemonic(),
        Cpuid
            | Invd
            | Invlpg
            | Invpcid
            | Iret
            | Iretd
            | Iretq
            | Lgdt
            | Lidt
            | Lldt
            | Ltr
            | Rsm
            | Serialize
            | Wbinvd
            | Wrmsr
    ) || matches!(
        instruction.code(),
        Code::Mov_cr_r64 | Code::Mov_cr_r32 | Code::Mov_dr_r64 | Code::Mov_dr_r32
    )
}

/// An instruction at an address, in the window.
#[derive(Debug, Clone, PartialEq)]
pub struct At {
    /// Where it stands.
    pub address: u64,
    /// What it is.
    pub bytes: Vec<u8>,
    /// How often it was executed.
    pub count: u64,
    /// Loads that it made.
    pub loads: u64,
    /// Stores that it made.
    pub stores: u64,
}

impl At {
    fn decode(&self) -> Instruction {
        Decoder::with_ip(64, &self.bytes, self.address, DecoderOptions::NONE).decode()
    }

    /// Whether it is the kernel's.
    pub fn is_kernel(&self) -> bool {
        self.address >= KERNEL
    }
}

/// A state's window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Insns {
    /// The state.
    pub state: String,
    /// I/Os in the window.
    pub ios: u64,
    /// Events recorded in it.
    pub events: f64,
    /// Its ticks.
    pub ticks: u64,
    /// Instructions that the plugin counted in it: within [`SLACK`] of the ticks.
    pub instructions: u64,
    /// The kernel's, for one I/O.
    pub kernel: Counts,
    /// User space's, for one I/O.
    pub user: Counts,
    /// Each instruction.
    #[serde(skip)]
    pub profile: Vec<At>,
}

/// What the plugin wrote.
#[derive(Debug, Default)]
struct Report {
    iterations: u64,
    /// User space, kernel.
    modes: [Counts; 2],
    profile: Vec<At>,
}

impl Report {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some("blkrelay-insns 1") {
            return None;
        }
        let mut report = Self::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["iterations", n] => report.iterations = n.parse().ok()?,
                ["lines", mode, what, touched, written, fresh] => {
                    let counts = &mut report.modes[usize::from(mode == "kernel")];
                    match what {
                        "data" => {
                            counts.data_lines = touched.parse().ok()?;
                            counts.written_lines = written.parse().ok()?;
                            counts.fresh_lines = fresh.parse().ok()?;
                        }
                        "code" => counts.code_lines = touched.parse().ok()?,
                        _ => return None,
                    }
                }
                ["insn", address, bytes, count, loads, stores] => report.profile.push(At {
                    address: u64::from_str_radix(address, 16).ok()?,
                    bytes: from_hex(bytes)?,
                    count: count.parse().ok()?,
                    loads: loads.parse().ok()?,
                    stores: stores.parse().ok()?,
                }),
                _ => return None,
            }
        }
        for at in &report.profile {
            report.modes[usize::from(at.is_kernel())].add(at);
        }
        Some(report)
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let byte = |i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Counts a state's window: one boot, the first that [`measure::collect`] would make of it, whose ticks are
/// the same.
///
/// # Errors
///
/// When the boot fails, the plugin wrote nothing, or what it counted are not the window's ticks.
pub fn count(setup: &Setup, workload: Workload, state: State, seed: u64) -> Result<Insns> {
    boot(setup, workload, state, seed, &[], &mut |_| {})
}

/// The same, with the names of the functions in which the instructions are. For them the guest says at the
/// window's beginning where modules are: its boot, the baseline's as well, is not quite that of [`count`].
///
/// # Errors
///
/// As for [`count`], and when the kernel's System.map cannot be read.
pub fn profile(
    setup: &Setup,
    workload: Workload,
    state: State,
    seed: u64,
) -> Result<(Insns, Symbols)> {
    let mut lines = Vec::new();
    let append = ["LAB_SYMBOLS=1".to_owned()];
    let insns = boot(setup, workload, state, seed, &append, &mut |line| {
        lines.extend(line.strip_prefix("@symbol ").map(str::to_owned));
    })?;
    let mut symbols = Symbols::of_kernel(&setup.kernel.kdir)?;
    symbols.add(lines.iter().map(String::as_str));
    Ok((insns, symbols))
}

fn boot(
    setup: &Setup,
    workload: Workload,
    state: State,
    seed: u64,
    append: &[String],
    on_line: &mut dyn FnMut(&str),
) -> Result<Insns> {
    let mut spec = measure::first(setup, workload, state, seed)?;
    let name = format!("insns-{}-{}", workload.name(), state.name());
    spec.dir = setup.dir.join("boots").join(name);
    fs::create_dir_all(&spec.dir).with_context(|| spec.dir.display().to_string())?;
    let plugin = Plugin {
        file: spec.dir.join("plugin.so"),
        out: spec.dir.join("insns"),
    };
    fs::write(&plugin.file, PLUGIN).with_context(|| plugin.file.display().to_string())?;
    spec.plugin = Some(plugin.clone());
    spec.append.extend_from_slice(append);
    let outcome = boot::run_with(&spec, on_line)?;
    let sample = Sample::of(&outcome, workload, state)
        .with_context(|| outcome.console.display().to_string())?;
    let text = fs::read_to_string(&plugin.out).with_context(|| {
        format!(
            "{}: the plugin saw no window: see qemu.log there",
            plugin.out.display()
        )
    })?;
    let report = Report::parse(&text)
        .with_context(|| format!("{}: not what the plugin writes", plugin.out.display()))?;
    let instructions: u64 = report.profile.iter().map(|at| at.count).sum();
    ensure!(
        sample.ticks.abs_diff(instructions) <= SLACK,
        "{}: {instructions} instructions in a window of {} ticks",
        state.name(),
        sample.ticks
    );
    ensure!(
        report.iterations == sample.ios,
        "{} iterations of {} I/Os",
        report.iterations,
        sample.ios
    );
    let ios = sample.ios as f64;
    let [user, kernel] = report.modes.map(|m| m.per(ios));
    Ok(Insns {
        state: state.name().into(),
        ios: sample.ios,
        events: sample.events,
        ticks: sample.ticks,
        instructions,
        kernel,
        user,
        profile: report.profile,
    })
}

impl Insns {
    /// What the kernel executed more than in the baseline, for one event: of lines too the event's share of
    /// those that its I/O touches more.
    pub fn per_event(&self, none: &Self) -> Counts {
        let events = self.events / self.ios as f64;
        self.kernel.less(&none.kernel).per(events)
    }

    /// The figures of each function, for one I/O; lines are of no function. All of user space is one.
    pub fn by_function(&self, symbols: &Symbols) -> BTreeMap<String, Counts> {
        let mut functions: BTreeMap<String, Counts> = BTreeMap::new();
        for at in &self.profile {
            let name = match at.is_kernel() {
                true => symbols.name(at.address).unwrap_or("(no symbol)"),
                false => "(user space)",
            };
            functions.entry(name.to_owned()).or_default().add(at);
        }
        for counts in functions.values_mut() {
            *counts = counts.per(self.ios as f64);
        }
        functions
    }
}

/// Arguments of `blkrelay-lab insns`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compared with none [default: overwrite, blktrace]
    #[arg(long, value_enum)]
    state: Vec<State>,
    /// Which reads are counted: without a reader of the trace, or with one
    #[arg(long, value_enum, default_value = "hotpath")]
    workload: Workload,
    /// Shows what each function adds
    #[arg(long)]
    symbols: bool,
    /// Shows the executed instructions of the functions whose names contain this
    #[arg(long, value_name = "NAME")]
    listing: Option<String>,
    /// Decides the perturbation of the boots, which all have the same
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where insns.json and the consoles are put
    #[arg(long, default_value = "out/insns")]
    dir: PathBuf,
}

/// Counts, writes insns.json and prints tables.
///
/// # Errors
///
/// See [`Setup::prepare`], [`count`] and [`profile`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let setup = hotpath::prepare(&args.dir)?;
    let mut states = args.state.clone();
    if states.is_empty() {
        states = vec![State::Overwrite, State::Blktrace];
    }
    states.retain(|s| *s != State::None);
    states.insert(0, State::None);
    let (mut all, mut symbols) = (Vec::new(), Vec::new());
    for state in states {
        let (workload, seed) = (args.workload, args.seed);
        if args.symbols || args.listing.is_some() {
            let (insns, of) = profile(&setup, workload, state, seed)?;
            all.push(insns);
            symbols.push(of);
        } else {
            all.push(count(&setup, workload, state, seed)?);
        }
    }
    let path = args.dir.join("insns.json");
    cache::write_whole(&path, &serde_json::to_vec_pretty(&all)?)?;
    println!("{}", report(&all));
    for (insns, of) in all.iter().zip(&symbols).skip(1) {
        if args.symbols {
            println!("\n{}", functions(insns, of, &all[0]));
        }
        if let Some(name) = &args.listing {
            println!("\n{}", listing(insns, of, name));
        }
    }
    println!("\n{}", path.display());
    Ok(ExitCode::SUCCESS)
}

fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    table.add_rows(rows);
    for n in 1..header.len() {
        if let Some(column) = table.column_mut(n) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|l| l.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// What each state adds to the first, by figure.
pub fn report(all: &[Insns]) -> String {
    let Some((none, states)) = all.split_first() else {
        return String::new();
    };
    let mut header = vec!["for one I/O".to_owned(), none.state.clone()];
    header.extend(states.iter().map(|s| format!("{} adds", s.state)));
    let mut rows = Vec::new();
    for mode in ["kernel", "user"] {
        let of = |i: &Insns| if mode == "kernel" { i.kernel } else { i.user };
        let base = of(none).figures();
        let added: Vec<_> = states
            .iter()
            .map(|s| of(s).less(&of(none)).figures())
            .collect();
        for (n, (name, value)) in base.into_iter().enumerate() {
            if value == 0.0 && added.iter().all(|f| f[n].1 == 0.0) {
                continue;
            }
            let mut row = vec![
                format!("{mode} {}", name.replace('_', " ")),
                format!("{value:.2}"),
            ];
            row.extend(added.iter().map(|f| format!("{:+.2}", f[n].1)));
            rows.push(row);
        }
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut text = table(&header, rows);
    text += "\n\nA line is 64 bytes, counted once for each I/O that touches it; it is fresh if none of the 1024 \
             I/Os before did.\nFigures that are 0 everywhere are left out.";
    for i in all {
        text += &format!(
            "\n{}: {} instructions counted in a window of {} ticks.",
            i.state, i.instructions, i.ticks
        );
    }
    text
}

/// What states add to the kernel's work for one event, a state a line.
pub fn events(states: &[(&str, Counts)]) -> String {
    let Some((_, first)) = states.first() else {
        return String::new();
    };
    let figures = |c: &Counts| c.figures().into_iter().enumerate();
    // What no state has is left out.
    let shown: Vec<usize> = figures(first)
        .map(|(n, _)| n)
        .filter(|n| states.iter().any(|(_, c)| c.figures()[*n].1.abs() >= 0.005))
        .collect();
    let names: Vec<String> = figures(first)
        .filter(|(n, _)| shown.contains(n))
        .map(|(_, (name, _))| name.replace('_', " "))
        .collect();
    let mut header = vec!["for one event"];
    header.extend(names.iter().map(String::as_str));
    let row = |(state, counts): &(&str, Counts)| {
        let mut row = vec![(*state).to_owned()];
        let figures = counts.figures();
        row.extend(shown.iter().map(|n| format!("{:+.2}", figures[*n].1)));
        row
    };
    table(&header, states.iter().map(row).collect())
}

/// What a function adds in fewer instructions for an I/O than this is not listed.
const LISTED: f64 = 0.25;

/// What a state adds to the baseline, function by function.
pub fn functions(insns: &Insns, symbols: &Symbols, none: &Insns) -> String {
    // The baseline has no functions that its own symbols could not name otherwise: modules that it lacks.
    let base = none.by_function(symbols);
    let mut added = insns.by_function(symbols);
    for (name, counts) in &base {
        let entry = added.entry(name.clone()).or_default();
        *entry = entry.less(counts);
    }
    let mut added: Vec<(String, Counts)> = added.into_iter().collect();
    added.sort_by(|(_, a), (_, b)| b.instructions.abs().total_cmp(&a.instructions.abs()));
    let (listed, rest): (Vec<_>, Vec<_>) = added
        .into_iter()
        .partition(|(_, c)| c.instructions.abs() >= LISTED);
    let rest: f64 = rest.iter().map(|(_, c)| c.instructions).sum();
    let mut rows: Vec<Vec<String>> = listed
        .iter()
        .map(|(name, c)| {
            let before = base.get(name).map_or(0.0, |c| c.instructions);
            let dear: Vec<String> = c
                .figures()
                .into_iter()
                .filter(|(name, n)| DEAR.contains(name) && n.abs() >= LISTED)
                .map(|(name, n)| format!("{name} {n:+.2}"))
                .collect();
            vec![
                name.clone(),
                format!("{before:.2}"),
                format!("{:+.2}", c.instructions),
                format!("{:+.2}", c.loads),
                format!("{:+.2}", c.stores),
                dear.join(", "),
            ]
        })
        .collect();
    let mut others = vec![String::new(); 6];
    others[0] = "(others)".into();
    others[2] = format!("{rest:+.2}");
    rows.push(others);
    let header = format!("{}, for one I/O", insns.state);
    table(
        &[&header, &none.state, "adds", "loads", "stores", "of them"],
        rows,
    )
}

/// Figures that name instructions which cost more than others.
const DEAR: &[&str] = &[
    "rdtsc",
    "locked",
    "cli",
    "sti",
    "pushf",
    "popf",
    "fences",
    "serialising",
    "div",
    "indirect",
];

/// The executed instructions of the functions whose names contain `name`, each with how often it was
/// executed for an I/O, and with its loads and stores.
pub fn listing(insns: &Insns, symbols: &Symbols, name: &str) -> String {
    let mut profile: Vec<(&str, &At)> = insns
        .profile
        .iter()
        .filter(|at| at.is_kernel())
        .filter_map(|at| Some((symbols.name(at.address)?, at)))
        .filter(|(function, _)| function.contains(name))
        .collect();
    profile.sort_by_key(|(_, at)| at.address);
    let ios = insns.ios as f64;
    let mut formatter = GasFormatter::new();
    let mut text = String::new();
    let mut last = "";
    for (function, at) in profile {
        if function != last {
            let _ = writeln!(text, "{}: {function}", insns.state);
            last = function;
        }
        let mut code = String::new();
        let instruction = at.decode();
        formatter.format(&instruction, &mut code);
        let target = match instruction.near_branch_target() {
            0 => None,
            target => symbols.name(target),
        };
        let _ = writeln!(
            text,
            "{:>9.3} {:>7.3} {:>7.3}  {:x}  {code}{}",
            at.count as f64 / ios,
            at.loads as f64 / ios,
            at.stores as f64 / ios,
            at.address,
            target
                .filter(|t| *t != function)
                .map(|t| format!("  {t}"))
                .unwrap_or_default(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64, bytes: &[u8], count: u64) -> At {
        At {
            address,
            bytes: bytes.to_vec(),
            count,
            loads: 0,
            stores: 0,
        }
    }

    /// Which figures an instruction counts for, itself left out.
    fn figures(bytes: &[u8]) -> Vec<&'static str> {
        let mut counts = Counts::default();
        counts.add(&at(KERNEL, bytes, 1));
        let figures = counts.figures();
        let names = figures.into_iter().filter(|(_, n)| *n == 1.0);
        names
            .map(|(n, _)| n)
            .filter(|n| *n != "instructions")
            .collect()
    }

    #[test]
    fn instructions_are_told_by_their_bytes() {
        let table: &[(&[u8], &[&str])] = &[
            (&[0x90], &[]),                                       // nop
            (&[0xf3, 0x90], &[]),                                 // pause
            (&[0x0f, 0x31], &["rdtsc"]),                          // rdtsc
            (&[0x0f, 0x01, 0xf9], &["rdtsc"]),                    // rdtscp
            (&[0x0f, 0x01, 0xf8], &[]),                           // swapgs
            (&[0xf0, 0xff, 0x07], &["locked"]),                   // lock incl (%rdi)
            (&[0xff, 0x07], &[]),                                 // incl (%rdi)
            (&[0xf0, 0x48, 0x0f, 0xb1, 0x17], &["locked"]),       // lock cmpxchg %rdx,(%rdi)
            (&[0x65, 0x48, 0x0f, 0xb1, 0x17], &[]),               // cmpxchg %rdx,%gs:(%rdi)
            (&[0x48, 0x87, 0x07], &["locked"]),                   // xchg %rax,(%rdi)
            (&[0x48, 0x87, 0xc7], &[]),                           // xchg %rax,%rdi
            (&[0x65, 0x87, 0x04, 0x25, 0, 0, 0, 0], &["locked"]), // xchg %eax,%gs:0
            (&[0xfa], &["cli"]),
            (&[0xfb], &["sti"]),
            (&[0x9c], &["pushf"]),
            (&[0x66, 0x9c], &["pushf"]),
            (&[0x9d], &["popf"]),
            (&[0x0f, 0xae, 0xe8], &["fences"]),         // lfence
            (&[0x0f, 0xae, 0xf0], &["fences"]),         // mfence
            (&[0x0f, 0xae, 0xf8], &["fences"]),         // sfence
            (&[0x0f, 0xae, 0x3f], &[]),                 // clflush (%rdi)
            (&[0x0f, 0xa2], &["serialising"]),          // cpuid
            (&[0x48, 0xcf], &["serialising"]),          // iretq
            (&[0x0f, 0x30], &["serialising"]),          // wrmsr
            (&[0x0f, 0x22, 0xd8], &["serialising"]),    // mov %rax,%cr3
            (&[0x0f, 0x20, 0xd8], &[]),                 // mov %cr3,%rax
            (&[0x48, 0xf7, 0xf1], &["div"]),            // div %rcx
            (&[0xf6, 0x3f], &["div"]),                  // idivb (%rdi)
            (&[0x48, 0xf7, 0xe1], &[]),                 // mul %rcx
            (&[0x74, 0], &["branches"]),                // je
            (&[0x0f, 0x85, 0, 0, 0, 0], &["branches"]), // jne
            (&[0xe8, 0, 0, 0, 0], &["calls"]),          // call
            (&[0xff, 0xd0], &["calls", "indirect"]),    // call *%rax
            (&[0x41, 0xff, 0xe3], &["indirect"]),       // jmp *%r11
            (&[0xeb, 0], &[]),                          // jmp
            (&[0xc3], &[]),                             // ret
            (&[0x0f, 0x05], &[]),                       // syscall
            (&[0xc5, 0xf8, 0x77], &[]),                 // vzeroupper
            // Its own opcode bytes are those of others: 0x31 behind VEX, 0xfa in an immediate.
            (&[0xb8, 0xfa, 0x9c, 0x0f, 0x31], &[]), // mov $0x310f9cfa,%eax
        ];
        for (bytes, want) in table {
            assert_eq!(figures(bytes), *want, "{bytes:02x?}");
        }
    }

    const REPORT: &str = "blkrelay-insns 1\n\
        iterations 10\n\
        lines user data 20 10 0\nlines user code 30 0 0\n\
        lines kernel data 400 100 20\nlines kernel code 500 0 0\n\
        insn 401000 0f05 10 0 0\n\
        insn ffffffff81000000 f0ff07 20 20 20\n\
        insn ffffffff81000040 c3 10 10 0\n";

    #[test]
    fn a_report_is_read() {
        let report = Report::parse(REPORT).unwrap();
        assert_eq!(report.iterations, 10);
        let [user, kernel] = report.modes.map(|m| m.per(10.0));
        assert_eq!(
            (user.instructions, user.data_lines, user.code_lines),
            (1.0, 2.0, 3.0)
        );
        assert_eq!(
            (kernel.instructions, kernel.loads, kernel.stores),
            (3.0, 3.0, 2.0)
        );
        assert_eq!((kernel.data_lines, kernel.written_lines), (40.0, 10.0));
        assert_eq!((kernel.fresh_lines, kernel.code_lines), (2.0, 50.0));
        assert_eq!(kernel.locked, 2.0);
        assert!(Report::parse("blkrelay-insns 2\n").is_none());
        assert!(Report::parse(&REPORT.replace("c3", "c")).is_none());
        assert!(Report::parse(&format!("{REPORT}more\n")).is_none());
        assert!(Report::parse("more than 262144 different instructions\n").is_none());
    }

    #[test]
    fn what_is_added_is_told_by_function() {
        let insns = |profile: Vec<At>| Insns {
            state: "on".into(),
            ios: 10,
            events: 40.0,
            ticks: 0,
            instructions: 0,
            kernel: Counts::default(),
            user: Counts::default(),
            profile,
        };
        let mut symbols = Symbols::default();
        symbols.add(["ffffffff81000000 T path", "ffffffffa0000000 t probe\t[m]"]);
        let none = insns(vec![at(0xffff_ffff_8100_0000, &[0x90], 50)]);
        let on = insns(vec![
            at(0xffff_ffff_8100_0000, &[0xcc], 10),
            at(0xffff_ffff_8100_0000, &[0x90], 60),
            at(0xffff_ffff_a000_0004, &[0x0f, 0x31], 40),
            at(0x40_1000, &[0x90], 30),
        ]);
        let by = on.by_function(&symbols);
        let of = |name: &str| by.get(name).map(|c| (c.instructions, c.rdtsc));
        assert_eq!(of("path"), Some((7.0, 0.0)));
        assert_eq!(of("probe [m]"), Some((4.0, 4.0)));
        assert_eq!(of("(user space)"), Some((3.0, 0.0)));
        let text = functions(&on, &symbols, &none);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[1],
            ["probe", "[m]", "0.00", "+4.00", "+0.00", "+0.00", "rdtsc", "+4.00"]
        );
        assert_eq!(rows[2][..3], ["(user", "space)", "0.00"]);
        assert_eq!(rows[3][..3], ["path", "5.00", "+2.00"]);
        let text = listing(&on, &symbols, "probe");
        assert!(
            text.contains("4.000   0.000   0.000  ffffffffa0000004  rdtsc"),
            "{text}"
        );
    }
}
