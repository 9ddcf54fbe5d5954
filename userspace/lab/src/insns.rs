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
use crate::cache;
use crate::measure::{self, Sample, Setup, State, Workload};
use anyhow::{ensure, Context, Result};
use comfy_table::{presets, CellAlignment, Table};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use serde::Serialize;
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

/// Counts a state's window: one boot, the first that [`measure::collect`] would make of it.
///
/// # Errors
///
/// When the boot fails, events are lost, the plugin wrote nothing, or what it counted are not the window's
/// ticks.
pub fn count(setup: &Setup, workload: Workload, state: State, seed: u64) -> Result<Insns> {
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
    let outcome = boot::run(&spec)?;
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
    eprintln!(
        "{} ticks {} instructions {} wall {:?}",
        state.name(),
        sample.ticks,
        instructions,
        outcome.wall
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

/// Arguments of `blkrelay-lab insns`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compared with none [default: overwrite, blktrace]
    #[arg(long, value_enum)]
    state: Vec<State>,
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
/// See [`Setup::prepare`] and [`count`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let setup = Setup::prepare(&args.dir)?;
    let mut states = args.state.clone();
    if states.is_empty() {
        states = vec![State::Overwrite, State::Blktrace];
    }
    states.retain(|s| *s != State::None);
    states.insert(0, State::None);
    let mut all = Vec::new();
    for state in states {
        all.push(count(&setup, Workload::Read4k, state, args.seed)?);
    }
    let path = args.dir.join("insns.json");
    cache::write_whole(&path, &serde_json::to_vec_pretty(&all)?)?;
    println!("{}", table(&all));
    Ok(ExitCode::SUCCESS)
}

/// What each state adds to the first, by figure.
pub fn table(all: &[Insns]) -> String {
    let Some((none, states)) = all.split_first() else {
        return String::new();
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut header = vec![String::new(), none.state.clone()];
    header.extend(states.iter().map(|s| format!("{} adds", s.state)));
    table.set_header(header);
    for (mode, of) in [
        ("kernel", (|i| &i.kernel) as fn(&Insns) -> &Counts),
        ("user", |i| &i.user),
    ] {
        let base = of(none);
        let added: Vec<_> = states.iter().map(|s| of(s).less(base).figures()).collect();
        for (n, (name, value)) in base.figures().into_iter().enumerate() {
            let mut row = vec![format!("{mode} {name}"), format!("{value:.2}")];
            row.extend(added.iter().map(|f| format!("{:+.2}", f[n].1)));
            table.add_row(row);
        }
    }
    for n in 1..all.len() + 1 {
        if let Some(column) = table.column_mut(n) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
