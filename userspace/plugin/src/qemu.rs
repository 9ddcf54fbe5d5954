// SPDX-License-Identifier: GPL-2.0
//! What QEMU calls, and what is called in QEMU.
//!
//! Declarations: `include/qemu/qemu-plugin.h` of QEMU 10.0, of which a tenth is needed here; all of it is in
//! version 3 of the interface as well.

use crate::lines::Lines;
use crate::marker::Mark;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::fmt::Write;
use std::path::PathBuf;
use std::ptr;

type Id = u64;

/// `qemu_info_t`
#[repr(C)]
pub struct Info {
    target_name: *const c_char,
    version_min: c_int,
    version_cur: c_int,
    system_emulation: bool,
    smp_vcpus: c_int,
    max_vcpus: c_int,
}

/// `struct qemu_plugin_tb`, `struct qemu_plugin_insn` and `struct qemu_plugin_scoreboard` are opaque.
enum Block {}
enum Insn {}
enum Scoreboard {}

/// `qemu_plugin_u64`
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    score: *mut Scoreboard,
    offset: usize,
}

/// `QEMU_PLUGIN_CB_NO_REGS`
const NO_REGS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`
const READ_AND_WRITE: c_int = 3;
/// `QEMU_PLUGIN_INLINE_ADD_U64`
const ADD: c_int = 0;

type Translate = unsafe extern "C" fn(Id, *mut Block);
type Executed = unsafe extern "C" fn(c_uint, *mut c_void);
type Accessed = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);

extern "C" {
    fn qemu_plugin_reset(id: Id, done: Option<unsafe extern "C" fn(Id)>);
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, cb: Option<Translate>);
    fn qemu_plugin_tb_n_insns(tb: *const Block) -> usize;
    fn qemu_plugin_tb_get_insn(tb: *const Block, index: usize) -> *mut Insn;
    fn qemu_plugin_insn_data(insn: *const Insn, to: *mut c_void, len: usize) -> usize;
    fn qemu_plugin_insn_size(insn: *const Insn) -> usize;
    fn qemu_plugin_insn_vaddr(insn: *const Insn) -> u64;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Insn,
        cb: Option<Executed>,
        flags: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        insn: *mut Insn,
        op: c_int,
        entry: Entry,
        imm: u64,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Insn,
        cb: Option<Accessed>,
        flags: c_int,
        rw: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn qemu_plugin_mem_is_store(info: u32) -> bool;
    fn qemu_plugin_scoreboard_new(size: usize) -> *mut Scoreboard;
    fn qemu_plugin_scoreboard_find(score: *mut Scoreboard, vcpu: c_uint) -> *mut c_void;
}

/// The first version in which an instruction's bytes are copied out: QEMU 9.1's.
#[no_mangle]
pub static qemu_plugin_version: c_int = 3;

/// The kernel's half of the addresses.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Most instructions that are told apart. A counter each, 16 times over: QEMU allots for 16 CPUs.
const MOST: usize = 1 << 18;

/// An instruction at a place. Code is patched, and processes have different programs at one address: what
/// has other bytes is another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Slot {
    address: u64,
    size: u8,
    bytes: [u8; 15],
}

impl Slot {
    /// # Safety
    ///
    /// `insn` is an instruction of the block that is being translated.
    unsafe fn of(insn: *const Insn) -> Self {
        let mut bytes = [0; 15];
        // SAFETY: By the contract; no more is written than there is room for.
        let (address, size) = unsafe {
            let size = qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), bytes.len());
            (qemu_plugin_insn_vaddr(insn), size)
        };
        Self {
            address,
            size: size as u8,
            bytes,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.size)]
    }
}

/// Distinct lines of one of the two modes.
#[derive(Default)]
struct Mode {
    data: Lines,
    code: Lines,
}

struct Counter {
    out: PathBuf,
    counters: *mut Scoreboard,
    /// Index in `slots` and, times eight, the offset of the counter.
    index: HashMap<Slot, usize>,
    slots: Vec<Slot>,
    /// Loads and stores of each slot.
    accesses: Vec<[u64; 2]>,
    /// User space, kernel.
    modes: [Mode; 2],
    iterations: u64,
    open: bool,
    too_many: bool,
}

/// QEMU calls from one thread at a time: at first the one that installs the plugin, then the only CPU's. See
/// `qemu_plugin_install`.
struct Only(UnsafeCell<Option<Counter>>);

// SAFETY: See the type.
unsafe impl Sync for Only {}

static COUNTER: Only = Only(UnsafeCell::new(None));

/// # Safety
///
/// Called from a callback of QEMU, which calls one at a time, and no other borrow is alive in it.
#[inline(always)]
unsafe fn counter() -> &'static mut Counter {
    // SAFETY: By the contract and the type's, nobody else has a reference. It is set before the first
    // callback is registered.
    unsafe { (*COUNTER.0.get()).as_mut().unwrap_unchecked() }
}

impl Counter {
    fn slot(&mut self, slot: Slot) -> Option<usize> {
        if let Some(n) = self.index.get(&slot) {
            return Some(*n);
        }
        let n = self.slots.len();
        if n == MOST {
            self.too_many = true;
            return None;
        }
        self.index.insert(slot, n);
        self.slots.push(slot);
        self.accesses.push([0; 2]);
        Some(n)
    }

    fn counts(&mut self) -> &mut [u64] {
        // SAFETY: The board has one element of MOST integers for each CPU, and this is the CPU's thread.
        unsafe {
            let counts = qemu_plugin_scoreboard_find(self.counters, 0);
            std::slice::from_raw_parts_mut(counts.cast(), MOST)
        }
    }

    fn begin(&mut self) {
        self.counts().fill(0);
        self.accesses.fill([0; 2]);
        for mode in &mut self.modes {
            mode.data.clear();
            mode.code.clear();
        }
        self.iterations = 0;
        self.open = true;
    }

    fn iteration(&mut self) {
        for mode in &mut self.modes {
            mode.data.next();
            mode.code.next();
        }
        self.iterations += 1;
    }

    fn end(&mut self) {
        if !self.open {
            return;
        }
        self.open = false;
        let text = match self.too_many {
            true => format!("more than {MOST} different instructions\n"),
            false => self.report(),
        };
        if let Err(e) = std::fs::write(&self.out, text) {
            eprintln!("blkrelay's plugin: {}: {e}", self.out.display());
        }
    }

    /// One line for each figure; the lab's `insns` reads it.
    fn report(&mut self) -> String {
        let mut text = format!("blkrelay-insns 1\niterations {}\n", self.iterations);
        for (mode, name) in self.modes.iter().zip(["user", "kernel"]) {
            for (lines, what) in [(&mode.data, "data"), (&mode.code, "code")] {
                let sums = lines.sums();
                let _ = writeln!(
                    text,
                    "lines {name} {what} {} {} {}",
                    sums.touched, sums.written, sums.fresh
                );
            }
        }
        let counts = self.counts().to_vec();
        for ((slot, accesses), count) in self.slots.iter().zip(&self.accesses).zip(counts) {
            let [loads, stores] = accesses;
            if count == 0 && *loads == 0 && *stores == 0 {
                continue;
            }
            let _ = write!(text, "insn {:x} ", slot.address);
            for byte in slot.bytes() {
                let _ = write!(text, "{byte:02x}");
            }
            let _ = writeln!(text, " {count} {loads} {stores}");
        }
        text
    }
}

/// What callbacks get: a slot, and whether it is the kernel's.
fn userdata(slot: usize, kernel: bool) -> *mut c_void {
    ptr::without_provenance_mut(slot << 1 | usize::from(kernel))
}

fn slot_of(userdata: *mut c_void) -> (usize, usize) {
    (userdata.addr() >> 1, userdata.addr() & 1)
}

/// Before the window is near: looks for the mark that says so.
unsafe extern "C" fn look_out(_: Id, tb: *mut Block) {
    // SAFETY: QEMU passes a block that is valid until this returns, and so are its instructions.
    unsafe {
        for i in 0..qemu_plugin_tb_n_insns(tb) {
            let insn = qemu_plugin_tb_get_insn(tb, i);
            // Cheap, and true of few.
            if qemu_plugin_insn_size(insn) == 8
                && Mark::of(Slot::of(insn).bytes()) == Some(Mark::Arm)
            {
                qemu_plugin_register_vcpu_insn_exec_cb(insn, Some(arm), NO_REGS, ptr::null_mut());
            }
        }
    }
}

/// Lets all code be translated again, with the counters.
unsafe extern "C" fn arm(_: c_uint, _: *mut c_void) {
    // SAFETY: The id is that of this plugin. QEMU does it when the block is left.
    unsafe { qemu_plugin_reset(*ID.0.get(), Some(armed)) }
}

unsafe extern "C" fn armed(id: Id) {
    // SAFETY: As in `qemu_plugin_install`.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, Some(instrument)) }
}

unsafe extern "C" fn done(_: Id) {}

struct OnlyId(UnsafeCell<Id>);

// SAFETY: As for `Only`.
unsafe impl Sync for OnlyId {}

static ID: OnlyId = OnlyId(UnsafeCell::new(0));

unsafe extern "C" fn instrument(_: Id, tb: *mut Block) {
    // SAFETY: As in `look_out`; and called by QEMU, see `counter`.
    unsafe {
        let counter = counter();
        let mut line = None;
        for i in 0..qemu_plugin_tb_n_insns(tb) {
            let insn = qemu_plugin_tb_get_insn(tb, i);
            let slot = Slot::of(insn);
            let Some(n) = counter.slot(slot) else { return };
            let userdata = userdata(n, slot.address >= KERNEL);
            let entry = Entry {
                score: counter.counters,
                offset: n * 8,
            };
            qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, ADD, entry, 1);
            let last = (slot.address + u64::from(slot.size.max(1)) - 1) >> 6;
            if line != Some(slot.address >> 6) || line != Some(last) {
                qemu_plugin_register_vcpu_insn_exec_cb(insn, Some(fetched), NO_REGS, userdata);
                line = Some(last);
            }
            qemu_plugin_register_vcpu_mem_cb(
                insn,
                Some(accessed),
                NO_REGS,
                READ_AND_WRITE,
                userdata,
            );
            // Behind the counter: the first mark is outside of the window, the last inside.
            let at: Option<Executed> = match Mark::of(slot.bytes()) {
                Some(Mark::Begin) => Some(begin),
                Some(Mark::Iteration) => Some(iteration),
                Some(Mark::End) => Some(end),
                Some(Mark::Arm) | None => None,
            };
            if at.is_some() {
                qemu_plugin_register_vcpu_insn_exec_cb(insn, at, NO_REGS, ptr::null_mut());
            }
        }
    }
}

unsafe extern "C" fn fetched(_: c_uint, userdata: *mut c_void) {
    let (slot, mode) = slot_of(userdata);
    // SAFETY: Called by QEMU, see `counter`.
    let counter = unsafe { counter() };
    let Slot { address, size, .. } = counter.slots[slot];
    let code = &mut counter.modes[mode].code;
    code.touch(address, u64::from(size.max(1)), false);
}

unsafe extern "C" fn accessed(_: c_uint, info: u32, address: u64, userdata: *mut c_void) {
    let (slot, mode) = slot_of(userdata);
    // SAFETY: Called by QEMU, see `counter`, with the description of an access.
    let (counter, store, size) = unsafe {
        (
            counter(),
            qemu_plugin_mem_is_store(info),
            1 << qemu_plugin_mem_size_shift(info),
        )
    };
    counter.accesses[slot][usize::from(store)] += 1;
    counter.modes[mode].data.touch(address, size, store);
}

unsafe extern "C" fn begin(_: c_uint, _: *mut c_void) {
    // SAFETY: Called by QEMU, see `counter`.
    unsafe { counter() }.begin();
}

unsafe extern "C" fn iteration(_: c_uint, _: *mut c_void) {
    // SAFETY: Called by QEMU, see `counter`.
    unsafe { counter() }.iteration();
}

unsafe extern "C" fn end(_: c_uint, _: *mut c_void) {
    // SAFETY: Called by QEMU, see `counter`; and as in `arm`. The rest of the run is not instrumented.
    unsafe {
        counter().end();
        qemu_plugin_reset(*ID.0.get(), Some(done));
    }
}

/// QEMU's call. The one argument is `out=FILE`.
///
/// # Safety
///
/// As QEMU calls it: `info` is valid meanwhile, and `argv` has `argc` strings.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    let mut out = None;
    for i in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: By the contract.
        let arg = unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy();
        match arg.strip_prefix("out=") {
            Some(path) => out = Some(PathBuf::from(path)),
            None => {
                eprintln!("blkrelay's plugin: {arg}: it takes out=FILE");
                return 1;
            }
        }
    }
    let Some(out) = out else {
        eprintln!("blkrelay's plugin: it takes out=FILE");
        return 1;
    };
    // SAFETY: By the contract.
    let info = unsafe { &*info };
    if !info.system_emulation || info.max_vcpus != 1 {
        eprintln!("blkrelay's plugin: it counts a machine with one CPU");
        return 1;
    }
    // SAFETY: No callback is registered yet: this is the only thread.
    unsafe {
        *ID.0.get() = id;
        *COUNTER.0.get() = Some(Counter {
            out,
            counters: qemu_plugin_scoreboard_new(MOST * 8),
            index: HashMap::new(),
            slots: Vec::new(),
            accesses: Vec::new(),
            modes: Default::default(),
            iterations: 0,
            open: false,
            too_many: false,
        });
        qemu_plugin_register_vcpu_tb_trans_cb(id, Some(look_out));
    }
    0
}
