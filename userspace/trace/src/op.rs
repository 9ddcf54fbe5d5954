// SPDX-License-Identifier: GPL-2.0
//! Operations and flags: `bi_opf` and `cmd_flags`, as `include/linux/blk_types.h` of Linux 7.3 has them.

use blkrelay_format::blktrace::category;

const OP_MASK: u32 = 0xff;
const OP_READ: u32 = 0;
const OP_WRITE: u32 = 1;
const OP_FLUSH: u32 = 2;
const OP_DISCARD: u32 = 3;
const OP_SECURE_ERASE: u32 = 5;
const OP_ZONE_APPEND: u32 = 7;
const OP_WRITE_ZEROES: u32 = 9;
const OP_ZONE_OPEN: u32 = 11;
const OP_ZONE_CLOSE: u32 = 13;
const OP_ZONE_FINISH: u32 = 15;
const OP_ZONE_RESET: u32 = 17;
const OP_ZONE_RESET_ALL: u32 = 19;
const OP_DRV_IN: u32 = 34;
const OP_DRV_OUT: u32 = 35;

const SYNC: u32 = 1 << 11;
const META: u32 = 1 << 12;
const FUA: u32 = 1 << 17;
const PREFLUSH: u32 = 1 << 18;
const RAHEAD: u32 = 1 << 19;

/// An operation with its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opf(pub u32);

/// Operations as filters name them. An I/O may be several: a write that asks for a flush first is both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `REQ_OP_READ`
    Read,
    /// `REQ_OP_WRITE`
    Write,
    /// `REQ_OP_FLUSH`, and whatever asks for a flush first.
    Flush,
    /// `REQ_OP_DISCARD`
    Discard,
    /// `REQ_OP_SECURE_ERASE`
    SecureErase,
    /// `REQ_OP_WRITE_ZEROES`
    WriteZeroes,
    /// `REQ_OP_ZONE_APPEND`
    ZoneAppend,
    /// Zone management: reset, reset all, open, close, finish.
    Zone,
    /// `REQ_OP_DRV_IN`, `REQ_OP_DRV_OUT`
    Passthrough,
}

impl Op {
    /// All of them with their names in filters.
    pub const ALL: [(&'static str, Op); 9] = [
        ("read", Op::Read),
        ("write", Op::Write),
        ("flush", Op::Flush),
        ("discard", Op::Discard),
        ("secure_erase", Op::SecureErase),
        ("write_zeroes", Op::WriteZeroes),
        ("zone_append", Op::ZoneAppend),
        ("zone", Op::Zone),
        ("passthrough", Op::Passthrough),
    ];
}

/// What an I/O does, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Moves data from the device.
    Read,
    /// Moves data to the device, zeroes included.
    Write,
    /// Makes written data durable and moves none itself.
    Flush,
    /// Discards or erases.
    Discard,
    /// Zone management and passthrough.
    Other,
}

impl Opf {
    fn op(self) -> u32 {
        self.0 & OP_MASK
    }

    fn flag(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Data goes to the device: `op_is_write()`.
    pub fn is_write(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it is this operation.
    pub fn is(self, op: Op) -> bool {
        match op {
            Op::Read => self.op() == OP_READ,
            Op::Write => self.op() == OP_WRITE,
            Op::Flush => self.op() == OP_FLUSH || self.flag(PREFLUSH),
            Op::Discard => self.op() == OP_DISCARD,
            Op::SecureErase => self.op() == OP_SECURE_ERASE,
            Op::WriteZeroes => self.op() == OP_WRITE_ZEROES,
            Op::ZoneAppend => self.op() == OP_ZONE_APPEND,
            Op::Zone => matches!(
                self.op(),
                OP_ZONE_OPEN | OP_ZONE_CLOSE | OP_ZONE_FINISH | OP_ZONE_RESET | OP_ZONE_RESET_ALL
            ),
            Op::Passthrough => self.is_passthrough(),
        }
    }

    /// A command of the driver's own: no sector, nothing that a file system asked for.
    pub fn is_passthrough(self) -> bool {
        matches!(self.op(), OP_DRV_IN | OP_DRV_OUT)
    }

    /// May go through the flush machinery: completes last with a `C` of no bytes.
    pub fn is_durable(self) -> bool {
        self.flag(PREFLUSH | FUA)
    }

    /// What an I/O of so many bytes does.
    pub fn kind(self, bytes: u32) -> Kind {
        match self.op() {
            OP_DISCARD | OP_SECURE_ERASE => Kind::Discard,
            OP_FLUSH => Kind::Flush,
            OP_READ => Kind::Read,
            OP_WRITE if bytes == 0 && self.flag(PREFLUSH) => Kind::Flush,
            OP_WRITE | OP_ZONE_APPEND | OP_WRITE_ZEROES => Kind::Write,
            _ => Kind::Other,
        }
    }

    /// blktrace's categories of an event with this operation, as `__blk_add_trace` makes them; the
    /// action's own category is not among them.
    pub fn categories(self) -> u64 {
        let mut bits = if self.is_write() {
            category::WRITE
        } else {
            category::READ
        };
        for (flag, bit) in [
            (SYNC, category::SYNC),
            (RAHEAD, category::AHEAD),
            (META, category::META),
            (PREFLUSH, category::FLUSH),
            (FUA, category::FUA),
        ] {
            if self.flag(flag) {
                bits |= bit;
            }
        }
        bits | match self.op() {
            OP_DISCARD | OP_SECURE_ERASE => category::DISCARD,
            OP_FLUSH => category::FLUSH,
            OP_ZONE_APPEND => category::ZONE_APPEND,
            OP_ZONE_RESET => category::ZONE_RESET,
            OP_ZONE_RESET_ALL => category::ZONE_RESET_ALL,
            OP_ZONE_FINISH => category::ZONE_FINISH,
            OP_ZONE_OPEN => category::ZONE_OPEN,
            OP_ZONE_CLOSE => category::ZONE_CLOSE,
            OP_WRITE_ZEROES => category::WRITE_ZEROES,
            _ => 0,
        }
    }
}

/// `blk_status_to_errno()` of a `blk_status_t`: 0 or a negative errno. A status that Linux 7.3 does not
/// have is an I/O error, as in the kernel.
pub fn errno(status: u8) -> i32 {
    match status {
        0 => 0,
        1 => -95,   // NOTSUPP: EOPNOTSUPP
        2 => -110,  // TIMEOUT: ETIMEDOUT
        3 => -28,   // NOSPC: ENOSPC
        4 => -67,   // TRANSPORT: ENOLINK
        5 => -121,  // TARGET: EREMOTEIO
        6 => -52,   // RESV_CONFLICT: EBADE
        7 => -61,   // MEDIUM: ENODATA
        8 => -84,   // PROTECTION: EILSEQ
        9 => -12,   // RESOURCE: ENOMEM
        11 => -78,  // DM_REQUEUE: EREMCHG
        12 => -11,  // AGAIN: EAGAIN
        13 => -16,  // DEV_RESOURCE: EBUSY
        14 => -109, // ZONE_OPEN_RESOURCE: ETOOMANYREFS
        15 => -75,  // ZONE_ACTIVE_RESOURCE: EOVERFLOW
        16 => -19,  // OFFLINE: ENODEV
        17 => -62,  // DURATION_LIMIT: ETIME
        19 => -22,  // INVAL: EINVAL
        _ => -5,    // IOERR and all others: EIO
    }
}
