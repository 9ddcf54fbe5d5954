// SPDX-License-Identifier: GPL-2.0
//! What it takes to pack a record and to store it, in real time, on this machine: `make bench`.
//!
//! Packing and storing in place are the module's own (`module/record.rs` and `module/slot.rs`, the very code that
//! the kernel runs). What stores the words, and the checks (room, queue and task named), are modelled after the
//! module: what needs the kernel (interrupts off, the per-CPU area, the tracepoint's dispatch) is not here.
//!
//! - `pack`: the words alone.
//! - `record/call`: the words are packed, and handed in registers to a function that stores them.
//! - `record/inline`: the same, without the call.
//! - `record/in place`: each field is stored where it belongs, at its own width. The queue goes over the top of
//!   the sector.
//! - `clock`: what a time stamp costs; none of the `record`s reads a clock.
//! - `loop`: the benchmark's own loop, which is in every figure.
//!
//! A buffer of 16 KiB stays in the first cache; one of 64 MiB in few machines' last. Cycles are printed at the
//! end, where the kernel and the machine let them be counted.

use blkrelay_format::abi;
use criterion::{BenchmarkId, Criterion};
use perf_event::events::Hardware;
use perf_event::{Builder, Group};
use std::hint::black_box;
use std::io;
use std::time::Duration;

#[path = "../tests/common/module.rs"]
mod module;
use module::{record, slot};

const QUEUE: u16 = 5;
const PID: u32 = 4711;

/// What a probe reads of a request.
#[derive(Debug, Clone)]
struct Request {
    cmd_flags: u32,
    data_len: u32,
    sector: u64,
    tag: i32,
    internal_tag: i32,
    hctx: u32,
    queue: u16,
    bio: usize,
}

const REQUEST: Request = Request {
    cmd_flags: 0x0800,
    data_len: 4096,
    sector: 0x1234_5678,
    tag: -1,
    internal_tag: 17,
    hctx: 1,
    queue: QUEUE,
    bio: 0xffff_8881_0234_5680,
};

/// A slot. The kernel's sub-buffers begin at a page.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(32))]
struct Slot([u64; 4]);

/// As `struct blkrelay_cpu` of the module: where the next record goes, and what has been named.
struct Cpu {
    pos: *mut Slot,
    end: *mut Slot,
    queues: [u32; 8],
    tasks: [u32; 16],
    time: u64,
    slots: Vec<Slot>,
}

impl Cpu {
    fn new(bytes: usize) -> Self {
        let mut cpu = Self {
            pos: std::ptr::null_mut(),
            end: std::ptr::null_mut(),
            queues: [0; 8],
            tasks: [0; 16],
            time: 0,
            slots: vec![Slot::default(); bytes / record::SLOT],
        };
        cpu.queues[usize::from(QUEUE) % 8] = QUEUE.into();
        cpu.tasks[PID as usize % 16] = PID;
        // Touched once, so that no page fault is measured.
        cpu.slots.fill(Slot([1; 4]));
        cpu.again();
        cpu
    }

    /// From the beginning: what the module does at the end of its last sub-buffer.
    #[cold]
    #[inline(never)]
    fn again(&mut self) {
        let range = self.slots.as_mut_ptr_range();
        self.pos = range.start;
        self.end = range.end;
    }

    /// Where an event goes, if all names have been given; takes the slot. An event for which there is no room
    /// is left out: one of five hundred, or of two million.
    #[inline(always)]
    fn slot(&mut self, queue: u16, pid: u32) -> Option<*mut Slot> {
        let named = self.tasks[pid as usize % 16] == pid
            && self.queues[usize::from(queue) % 8] == u32::from(queue);
        if !named || self.pos == self.end {
            self.again();
            return None;
        }
        let slot = self.pos;
        // SAFETY: `pos` is below `end`, both in `slots`.
        self.pos = unsafe { slot.add(1) };
        self.time += 1;
        Some(slot)
    }

    #[inline(always)]
    fn store(&mut self, words: record::Words) {
        let id_who = words.id_who | record::pair(0, PID);
        let queue = (words.place >> abi::BLKRELAY_SECTOR_BITS) as u16;
        if let Some(slot) = self.slot(queue, PID) {
            let words = [self.time, words.place, words.size_op, id_who];
            // SAFETY: `slot` is one of `slots`, which nobody else refers to.
            unsafe { slot.write(Slot(words)) }
        }
    }

    /// As a probe in Rust calls the shim in C.
    #[inline(never)]
    extern "C" fn emit(&mut self, place: u64, size_op: u64, id_who: u64) {
        self.store(record::Words {
            place,
            size_op,
            id_who,
        });
    }
}

/// An issue: the words, as `probes.rs` packs them.
#[inline(always)]
fn issue(rq: &Request) -> record::Words {
    let id = record::request_id(rq.hctx, rq.internal_tag, rq.tag);
    record::Words {
        place: record::place(rq.sector, rq.queue),
        size_op: record::pair(rq.data_len, rq.cmd_flags),
        id_who: record::pair(id, record::who(abi::BLKRELAY_D)),
    }
}

/// A completion.
#[inline(always)]
fn complete(rq: &Request, status: u8) -> record::Words {
    let who = record::complete_who(abi::BLKRELAY_C, status, record::bio_id(rq.bio));
    record::Words {
        id_who: record::pair(record::request_id(rq.hctx, rq.internal_tag, rq.tag), who),
        ..issue(rq)
    }
}

/// A queueing; the bio has what the request has.
#[inline(always)]
fn queue(rq: &Request) -> record::Words {
    record::Words {
        place: record::place(rq.sector, rq.queue),
        size_op: record::pair(rq.data_len, rq.cmd_flags),
        id_who: record::pair(record::bio_id(rq.bio), record::who(abi::BLKRELAY_Q)),
    }
}

#[inline(never)]
fn by_call(cpu: &mut Cpu, rq: &Request) {
    let words = issue(rq);
    cpu.emit(words.place, words.size_op, words.id_who);
}

#[inline(never)]
fn inline(cpu: &mut Cpu, rq: &Request) {
    cpu.store(issue(rq));
}

#[inline(never)]
fn in_place(cpu: &mut Cpu, rq: &Request) {
    let Some(slot) = cpu.slot(rq.queue, PID) else {
        return;
    };
    let time = cpu.time;
    // SAFETY: `slot` is one of `slots`, which nobody else refers to, and has the size and alignment.
    let slot = unsafe { slot::Slot::new(slot.cast()) };
    slot.place(rq.sector, rq.queue);
    slot.size_op(rq.data_len, rq.cmd_flags);
    slot.request_id(rq.hctx, rq.internal_tag, rq.tag);
    slot.who(PID | record::who(abi::BLKRELAY_D));
    slot.time((time as u32, (time >> 32) as u32));
}

type Way = fn(&mut Cpu, &Request);

const WAYS: &[(&str, Way)] = &[
    ("call", by_call),
    ("inline", inline),
    ("in place", in_place),
];

const BUFFERS: &[(&str, usize)] = &[("16 KiB", 16 << 10), ("64 MiB", 64 << 20)];

/// All ways write the same bytes.
fn check() {
    let write = |way: Way| {
        let mut cpu = Cpu::new(1 << 10);
        for tag in [17, -1, 0x1_0003] {
            let rq = Request {
                internal_tag: tag,
                tag: 40,
                ..REQUEST
            };
            way(&mut cpu, &rq);
        }
        let slots: Vec<[u64; 4]> = cpu.slots.iter().map(|s| s.0).collect();
        slots
    };
    for (name, way) in WAYS {
        assert_eq!(write(*way), write(by_call), "{name}");
    }
}

fn time(c: &mut Criterion) {
    let rq = &REQUEST;
    c.bench_function("loop", |b| b.iter(|| black_box(rq)));
    let mut group = c.benchmark_group("pack");
    group.bench_function("queue", |b| b.iter(|| queue(black_box(rq))));
    group.bench_function("issue", |b| b.iter(|| issue(black_box(rq))));
    group.bench_function("complete", |b| {
        b.iter(|| complete(black_box(rq), black_box(0)))
    });
    group.finish();
    let mut group = c.benchmark_group("record");
    for (size, bytes) in BUFFERS {
        for (name, way) in WAYS {
            let mut cpu = Cpu::new(*bytes);
            group.bench_function(BenchmarkId::new(*name, size), |b| {
                b.iter(|| way(&mut cpu, black_box(rq)))
            });
        }
    }
    group.finish();
    #[cfg(target_arch = "x86_64")]
    clock(c);
}

#[cfg(target_arch = "x86_64")]
fn clock(c: &mut Criterion) {
    use std::arch::x86_64::{__rdtscp, _mm_lfence, _rdtsc};
    let mut group = c.benchmark_group("clock");
    // SAFETY: SSE2 is there on every x86-64, and so is RDTSC.
    group.bench_function("rdtsc", |b| b.iter(|| unsafe { _rdtsc() }));
    group.bench_function("lfence rdtsc", |b| {
        b.iter(|| {
            // SAFETY: As above.
            unsafe {
                _mm_lfence();
                _rdtsc()
            }
        })
    });
    // What the kernel takes where there is one.
    group.bench_function("rdtscp", |b| {
        b.iter(|| {
            let mut processor = 0;
            // SAFETY: It writes the one integer. A CPU from before 2008, which lacks it, ends the benchmark.
            unsafe { __rdtscp(&mut processor) }
        })
    });
    group.finish();
}

/// Cycles and instructions of a record, in this process's user mode.
fn cycles() -> io::Result<()> {
    const RECORDS: u32 = 10_000_000;
    let mut group = Group::new()?;
    let cycles = group.add(&Builder::new(Hardware::CPU_CYCLES))?;
    let instructions = group.add(&Builder::new(Hardware::INSTRUCTIONS))?;
    for (size, bytes) in BUFFERS {
        for (name, way) in WAYS {
            let mut cpu = Cpu::new(*bytes);
            group.reset()?;
            group.enable()?;
            for _ in 0..RECORDS {
                way(&mut cpu, black_box(&REQUEST));
            }
            group.disable()?;
            let counts = group.read()?;
            let per = |n| n as f64 / f64::from(RECORDS);
            println!(
                "record/{name}/{size}: {:.2} cycles, {:.2} instructions",
                per(counts[&cycles]),
                per(counts[&instructions])
            );
        }
    }
    Ok(())
}

fn main() {
    check();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    time(&mut criterion);
    criterion.final_summary();
    if let Err(e) = cycles() {
        println!("cycles: no counters here: {e}");
    }
}
