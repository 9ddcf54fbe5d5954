// SPDX-License-Identifier: GPL-2.0
//! Records: the 32-byte slots of a sub-buffer.

use crate::{abi, Error};
use zerocopy::FromBytes;

/// Bytes of a slot.
pub const SLOT: usize = abi::BLKRELAY_RECORD_SIZE as usize;

/// One block event as the module wrote it. See `struct blkrelay_record` in `module/blkrelay.h`.
pub type Record = abi::blkrelay_record;
/// Who a pid is. See `struct blkrelay_task`.
pub type Task = abi::blkrelay_task;
/// What a queue id means. See `struct blkrelay_device`.
pub type Device = abi::blkrelay_device;
/// Where a remapped bio or request came from. See `struct blkrelay_from`.
pub type RemapFrom = abi::blkrelay_from;
/// What else a Q carries. See `struct blkrelay_detail`.
pub type Detail = abi::blkrelay_detail;
/// The flight recorder has stopped on this CPU. See `struct blkrelay_stop`.
pub type Stop = abi::blkrelay_stop;
/// When a span's I/O was queued and issued, and by whom. See `struct blkrelay_times`.
pub type Times = abi::blkrelay_times;

/// What happened. The names are blkparse's letters; the codes are the contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// A bio was queued (`block_bio_queue`).
    Queue = abi::BLKRELAY_Q as u8,
    /// A bio was merged behind a request (`block_bio_backmerge`).
    BackMerge = abi::BLKRELAY_M as u8,
    /// A bio was merged in front of a request (`block_bio_frontmerge`).
    FrontMerge = abi::BLKRELAY_F as u8,
    /// A request was allocated for a bio (`block_getrq`).
    GetRq = abi::BLKRELAY_G as u8,
    /// A request went into the scheduler (`block_rq_insert`).
    Insert = abi::BLKRELAY_I as u8,
    /// A request came back from the driver to be issued again (`block_rq_requeue`).
    Requeue = abi::BLKRELAY_R as u8,
    /// A request went to the driver (`block_rq_issue`).
    Issue = abi::BLKRELAY_D as u8,
    /// The driver completed a request or a part of it (`block_rq_complete`).
    Complete = abi::BLKRELAY_C as u8,
    /// A task plugged its queue (`block_plug`).
    Plug = abi::BLKRELAY_P as u8,
    /// A task unplugged (`block_unplug`, explicit).
    Unplug = abi::BLKRELAY_U as u8,
    /// Unplugged by the scheduler (`block_unplug`, not explicit).
    UnplugSchedule = abi::BLKRELAY_T as u8,
    /// A bio was split; the event is its front part, but device mapper's is the rest (`block_split`).
    Split = abi::BLKRELAY_X as u8,
    /// A bio was mapped to another device or from a partition to its disk (`block_bio_remap`).
    Remap = abi::BLKRELAY_A as u8,
    /// A request was merged into another (`block_rq_merge`); blktrace calls it M as well.
    RqMerge = abi::BLKRELAY_N as u8,
    /// A bio-based driver completed a bio (`block_bio_complete`); blktrace calls it C as well.
    BioComplete = abi::BLKRELAY_BIO_C as u8,
    /// A request was mapped to another device (`block_rq_remap`); blktrace calls it A as well.
    RqRemap = abi::BLKRELAY_RQ_A as u8,
    /// A completion ended with an error (`block_rq_error`); it follows the C that has the same status.
    Error = abi::BLKRELAY_ERROR as u8,
    /// A task is about to wait for a tag (`block_rq_tag_wait`).
    TagWait = abi::BLKRELAY_W as u8,
    /// Accounting of a request begins (`block_io_start`).
    IoStart = abi::BLKRELAY_IO_START as u8,
    /// Accounting of a request ends (`block_io_done`).
    IoDone = abi::BLKRELAY_IO_DONE as u8,
    /// Zone management was submitted (`blkdev_zone_mgmt`).
    ZoneMgmt = abi::BLKRELAY_ZONE_MGMT as u8,
    /// A write waits for its zone (`disk_zone_wplug_add_bio`).
    ZonePlug = abi::BLKRELAY_ZONE_PLUG as u8,
    /// A write that waited for its zone goes on (`blk_zone_wplug_bio`).
    ZoneUnplug = abi::BLKRELAY_ZONE_UNPLUG as u8,
    /// Where a zone append went (`blk_zone_append_update_request_bio`).
    ZoneAppend = abi::BLKRELAY_ZONE_APPEND as u8,
    /// An I/O's whole life, at its completion (`block_rq_complete`, `block_bio_complete`).
    Span = abi::BLKRELAY_SPAN as u8,
}

impl Action {
    /// All of them, in the order of their codes.
    pub const ALL: [Action; 25] = [
        Action::Queue,
        Action::BackMerge,
        Action::FrontMerge,
        Action::GetRq,
        Action::Insert,
        Action::Requeue,
        Action::Issue,
        Action::Complete,
        Action::Plug,
        Action::Unplug,
        Action::UnplugSchedule,
        Action::Split,
        Action::Remap,
        Action::RqMerge,
        Action::BioComplete,
        Action::RqRemap,
        Action::Error,
        Action::TagWait,
        Action::IoStart,
        Action::IoDone,
        Action::ZoneMgmt,
        Action::ZonePlug,
        Action::ZoneUnplug,
        Action::ZoneAppend,
        Action::Span,
    ];

    /// The action of a contract code; `None` for 0, for codes not given out and for side records.
    #[inline]
    pub fn from_code(code: u8) -> Option<Action> {
        Action::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// The contract's code, 1..=25.
    #[inline]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// What blkparse prints in its action column: `UT` for [`Action::UnplugSchedule`], `M` for both kinds
    /// of back merge, `C` for both kinds of completion, `A` for both kinds of remap. What blkparse does not
    /// know has a name of one or two letters that it does not use: `E`, `W`, `IS`, `ID`, `ZM`, `ZP`, `ZU`, `ZA`,
    /// `SP`.
    pub fn name(self) -> &'static str {
        match self {
            Action::Queue => "Q",
            Action::BackMerge | Action::RqMerge => "M",
            Action::FrontMerge => "F",
            Action::GetRq => "G",
            Action::Insert => "I",
            Action::Requeue => "R",
            Action::Issue => "D",
            Action::Complete | Action::BioComplete => "C",
            Action::Plug => "P",
            Action::Unplug => "U",
            Action::UnplugSchedule => "UT",
            Action::Split => "X",
            Action::Remap | Action::RqRemap => "A",
            Action::Error => "E",
            Action::TagWait => "W",
            Action::IoStart => "IS",
            Action::IoDone => "ID",
            Action::ZoneMgmt => "ZM",
            Action::ZonePlug => "ZP",
            Action::ZoneUnplug => "ZU",
            Action::ZoneAppend => "ZA",
            Action::Span => "SP",
        }
    }

    /// Whether the record's `id` is a request's: hardware queue and tag. Of a span its times record tells.
    pub fn is_request(self) -> bool {
        matches!(
            self,
            Action::Insert
                | Action::Requeue
                | Action::Issue
                | Action::Complete
                | Action::RqMerge
                | Action::RqRemap
                | Action::Error
                | Action::IoStart
                | Action::IoDone
                | Action::ZoneAppend
        )
    }

    /// Whether the record's `id` is a bio's. Of a span its times record tells.
    pub fn is_bio(self) -> bool {
        matches!(
            self,
            Action::Queue
                | Action::BackMerge
                | Action::FrontMerge
                | Action::GetRq
                | Action::Split
                | Action::Remap
                | Action::BioComplete
                | Action::ZoneMgmt
        )
    }

    /// Whether this tells of a completion: it carries a status, and names no task itself.
    pub fn is_completion(self) -> bool {
        matches!(
            self,
            Action::Complete | Action::BioComplete | Action::Error | Action::Span
        )
    }

    /// Whether a from record follows.
    pub fn is_remap(self) -> bool {
        matches!(self, Action::Remap | Action::RqRemap)
    }
}

impl Record {
    /// The action code: the slot's top byte.
    #[inline]
    pub fn code(&self) -> u8 {
        (self.who >> abi::BLKRELAY_WHO_SHIFT) as u8
    }

    /// The action; `None` if the code is not an event's.
    #[inline]
    pub fn action(&self) -> Option<Action> {
        Action::from_code(self.code())
    }

    /// First sector on the whole disk, in units of 512 bytes. `None` for passthrough requests, for
    /// the flush machinery's own, and for P, U, T and W.
    #[inline]
    pub fn sector(&self) -> Option<u64> {
        let sector = self.place & abi::BLKRELAY_SECTOR_MASK;
        (sector != abi::BLKRELAY_SECTOR_NONE).then_some(sector)
    }

    /// The request queue's id, named by a [`Device`] record.
    #[inline]
    pub fn queue(&self) -> u16 {
        (self.place >> abi::BLKRELAY_SECTOR_BITS) as u16
    }

    /// The current task's thread id. Meaningless for completions.
    #[inline]
    pub fn pid(&self) -> u32 {
        self.who & abi::BLKRELAY_PID_MASK
    }

    /// `blk_status_t`, of completions only.
    #[inline]
    pub fn status(&self) -> u8 {
        (self.who >> abi::BLKRELAY_STATUS_SHIFT) as u8
    }

    /// Low 16 bits of the head bio's id, or of the bio's own for [`Action::BioComplete`]; of completions
    /// only. 0 if the request has no bio. Of [`Action::Span`]: number of bios that are complete.
    #[inline]
    pub fn head(&self) -> u16 {
        (self.who & abi::BLKRELAY_HEAD_MASK) as u16
    }

    /// Hardware queue number, of request events.
    #[inline]
    pub fn hctx(&self) -> u16 {
        (self.id >> abi::BLKRELAY_ID_HCTX_SHIFT) as u16
    }

    /// Tag, of request events: the scheduler's where there is one, else the driver's.
    #[inline]
    pub fn tag(&self) -> u16 {
        (self.id & abi::BLKRELAY_ID_TAG_MASK) as u16
    }

    /// Packs `place` from a sector below 2^48 - 1 (or `None`) and a queue id.
    pub fn pack_place(sector: Option<u64>, queue: u16) -> u64 {
        let sector = sector.unwrap_or(abi::BLKRELAY_SECTOR_NONE) & abi::BLKRELAY_SECTOR_MASK;
        u64::from(queue) << abi::BLKRELAY_SECTOR_BITS | sector
    }

    /// Packs `who` of every event but completions. The pid is cut to 24 bits.
    pub fn pack_who(action: Action, pid: u32) -> u32 {
        u32::from(action.code()) << abi::BLKRELAY_WHO_SHIFT | pid & abi::BLKRELAY_PID_MASK
    }

    /// Packs `who` of a completion from a `blk_status_t` and the id of the head bio, or of the bio itself; of
    /// [`Action::Span`], the number of bios.
    pub fn pack_complete(action: Action, status: u8, head: u32) -> u32 {
        u32::from(action.code()) << abi::BLKRELAY_WHO_SHIFT
            | u32::from(status) << abi::BLKRELAY_STATUS_SHIFT
            | head & abi::BLKRELAY_HEAD_MASK
    }
}

/// The bytes of a NUL-padded C array up to its first NUL.
pub fn c_bytes<const N: usize>(field: &[std::ffi::c_char; N]) -> &[u8] {
    let bytes: &[u8] = zerocopy::IntoBytes::as_bytes(field);
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A NUL-padded C array of `text`, cut to leave room for one NUL.
pub fn c_array<const N: usize>(text: &str) -> [std::ffi::c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = from as std::ffi::c_char;
    }
    field
}

impl Task {
    /// A task side record, ready to be written.
    pub fn new(comm: &str, pid: u32, tgid: u32) -> Task {
        Task {
            comm: c_array(comm),
            pid,
            tgid,
            reserved: 0,
            who: side_who(abi::BLKRELAY_TASK, 1),
        }
    }
}

impl Device {
    /// A device side record, ready to be written. Capacity, disk sequence number and sizes are 0.
    pub fn new(queue: u16, major: u32, minor: u32, name: &str) -> Device {
        Device {
            major,
            minor,
            queue: queue.into(),
            who: side_who(abi::BLKRELAY_DEVICE, 3),
            name: c_array(name),
            ..Device::default()
        }
    }
}

impl RemapFrom {
    /// A from side record, ready to be written.
    pub fn new(major: u32, minor: u32, sector: u64) -> RemapFrom {
        RemapFrom {
            sector,
            dev: major << 20 | minor & 0xf_ffff,
            reserved: [0; 4],
            who: side_who(abi::BLKRELAY_FROM, 1),
        }
    }

    /// The device's major number.
    pub fn major(&self) -> u32 {
        self.dev >> 20
    }

    /// The device's minor number.
    pub fn minor(&self) -> u32 {
        self.dev & 0xf_ffff
    }
}

impl Detail {
    /// A detail side record of an I/O of this cgroup, ready to be written. All else is 0.
    pub fn new(cgroup: u64) -> Detail {
        Detail {
            cgroup,
            who: side_who(abi::BLKRELAY_DETAIL, 1),
            ..Detail::default()
        }
    }
}

impl Stop {
    /// A stop side record, ready to be written: this CPU stopped at `time`, for what happened on `cpu` at
    /// `trigger`.
    pub fn new(time: u64, trigger: u64, cpu: u16, cause: u16, value: u64) -> Stop {
        Stop {
            time,
            trigger,
            value,
            cpu: u32::from(cause) << 16 | u32::from(cpu),
            who: side_who(abi::BLKRELAY_STOP, 1),
        }
    }

    /// The CPU of the trigger.
    pub fn trigger_cpu(&self) -> u16 {
        self.cpu as u16
    }

    /// `BLKRELAY_CAUSE_*`.
    pub fn cause(&self) -> u16 {
        (self.cpu >> 16) as u16
    }
}

impl Times {
    /// A times side record, ready to be written. `flags` are `BLKRELAY_TIMES_*`.
    pub fn new(queue: u64, issue: u64, alloc: u64, pid: u32, flags: u16) -> Times {
        Times {
            queue,
            issue,
            alloc,
            pid,
            who: side_who(abi::BLKRELAY_TIMES, 1) | u32::from(flags) << abi::BLKRELAY_TIMES_SHIFT,
        }
    }

    /// `BLKRELAY_TIMES_*`.
    #[inline]
    pub fn flags(&self) -> u16 {
        (self.who >> abi::BLKRELAY_TIMES_SHIFT) as u16
    }

    /// Whether one of these `BLKRELAY_TIMES_*` is set.
    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        u32::from(self.flags()) & flags != 0
    }

    /// Who queued the I/O; `None` if that is not known. A front part may do without.
    #[inline]
    pub fn submitter(&self) -> Option<u32> {
        let known = match self.pid {
            0 => !self.has(
                abi::BLKRELAY_TIMES_MISSED | abi::BLKRELAY_TIMES_FRONT | abi::BLKRELAY_TIMES_CLONE,
            ),
            _ => !self.has(abi::BLKRELAY_TIMES_MISSED | abi::BLKRELAY_TIMES_CLONE),
        };
        known.then_some(self.pid)
    }
}

fn side_who(code: u32, slots: u32) -> u32 {
    code << abi::BLKRELAY_WHO_SHIFT | slots
}

/// What one or several slots hold.
#[derive(Clone, Copy, Debug)]
pub enum Slot {
    /// A block event.
    Event(Action, Record),
    /// Names a pid for the events that follow in this sub-buffer.
    Task(Task),
    /// Names a queue for the events that follow in this sub-buffer.
    Device(Device),
    /// Belongs to the [`Action::Remap`] or [`Action::RqRemap`] event just before it.
    From(RemapFrom),
    /// Belongs to the [`Action::Queue`] event just before it.
    Detail(Detail),
    /// The last record of a flight recorder's stream.
    Stop(Stop),
    /// Belongs to the [`Action::Span`] event just before it.
    Times(Times),
    /// An event of a code that this reader does not know, to be counted and skipped.
    UnknownEvent(Record),
    /// A side record that this reader does not know, to be skipped.
    Unknown {
        /// Its code, from `0x80`.
        code: u8,
        /// Its length.
        slots: usize,
    },
}

/// Walks the slots of a sub-buffer's records. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Slots<'a> {
    bytes: &'a [u8],
    slot: usize,
}

impl<'a> Slots<'a> {
    /// Over the records of one sub-buffer; a rest shorter than a slot is not looked at.
    pub fn new(bytes: &'a [u8]) -> Slots<'a> {
        Slots { bytes, slot: 0 }
    }

    /// Number of the next slot in its sub-buffer.
    pub fn position(&self) -> usize {
        self.slot
    }

    /// The next slot if it is a [`RemapFrom`] record, which is then consumed.
    #[inline]
    pub fn take_from(&mut self) -> Option<RemapFrom> {
        let from = RemapFrom::read_from_prefix(self.bytes).ok()?.0;
        if from.who != side_who(abi::BLKRELAY_FROM, 1) {
            return None;
        }
        self.advance(1);
        Some(from)
    }

    /// The next slot if it is a [`Detail`] record, which is then consumed.
    #[inline]
    pub fn take_detail(&mut self) -> Option<Detail> {
        let detail = Detail::read_from_prefix(self.bytes).ok()?.0;
        if detail.who != side_who(abi::BLKRELAY_DETAIL, 1) {
            return None;
        }
        self.advance(1);
        Some(detail)
    }

    /// The next slot if it is a [`Times`] record, which is then consumed.
    #[inline]
    pub fn take_times(&mut self) -> Option<Times> {
        let times = Times::read_from_prefix(self.bytes).ok()?.0;
        let flags = u32::from(times.flags()) << abi::BLKRELAY_TIMES_SHIFT;
        if times.who ^ flags != side_who(abi::BLKRELAY_TIMES, 1) {
            return None;
        }
        self.advance(1);
        Some(times)
    }

    #[inline]
    fn advance(&mut self, slots: usize) {
        self.bytes = self.bytes.get(slots * SLOT..).unwrap_or_default();
        self.slot += slots;
    }

    fn fail(&mut self, error: Error) -> Option<Result<Slot, Error>> {
        self.bytes = &[];
        Some(Err(error))
    }

    /// What is not an event known here.
    #[cold]
    #[inline(never)]
    fn other(&mut self, record: &Record) -> Option<Result<Slot, Error>> {
        let code = record.code();
        if code == 0 {
            return self.fail(Error::UnknownAction {
                slot: self.slot,
                action: code,
            });
        }
        if u32::from(code) < abi::BLKRELAY_SIDE {
            self.advance(1);
            return Some(Ok(Slot::UnknownEvent(*record)));
        }
        let left = self.bytes.len() / SLOT;
        let slots = (record.who & abi::BLKRELAY_SLOTS_MASK) as usize;
        if slots == 0 || slots > left {
            return self.fail(Error::SideLength {
                slot: self.slot,
                code,
                slots,
                left,
            });
        }
        fn read<T: FromBytes>(bytes: &[u8], slot: fn(T) -> Slot) -> Option<Slot> {
            Some(slot(T::read_from_prefix(bytes).ok()?.0))
        }
        let bytes = self.bytes;
        let slot = match (u32::from(code), slots) {
            (abi::BLKRELAY_TASK, 1) => read(bytes, Slot::Task),
            (abi::BLKRELAY_DEVICE, 3) => read(bytes, Slot::Device),
            (abi::BLKRELAY_FROM, 1) => read(bytes, Slot::From),
            (abi::BLKRELAY_DETAIL, 1) => read(bytes, Slot::Detail),
            (abi::BLKRELAY_STOP, 1) => read(bytes, Slot::Stop),
            (abi::BLKRELAY_TIMES, 1) => read(bytes, Slot::Times),
            (abi::BLKRELAY_TASK..=abi::BLKRELAY_TIMES, _) => {
                return self.fail(Error::SideLength {
                    slot: self.slot,
                    code,
                    slots,
                    left,
                });
            }
            _ => None,
        };
        self.advance(slots);
        Some(Ok(slot.unwrap_or(Slot::Unknown { code, slots })))
    }
}

impl Iterator for Slots<'_> {
    type Item = Result<Slot, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (record, rest) = Record::read_from_prefix(self.bytes).ok()?;
        let code = record.code();
        if let Some(action) = Action::from_code(code) {
            self.bytes = rest;
            self.slot += 1;
            return Some(Ok(Slot::Event(action, record)));
        }
        self.other(&record)
    }
}
