// SPDX-License-Identifier: GPL-2.0
//! Sub-buffers: what `read()` on a data file of the module returns.

use crate::record::SLOT;
use crate::{abi, Error, Slot, Slots};
use zerocopy::FromBytes;

/// A sub-buffer's head. See `struct blkrelay_subbuf` in `module/blkrelay.h`.
pub type Header = abi::blkrelay_subbuf;

/// First word of a sub-buffer.
pub const SUBBUF_MAGIC: u32 = abi::BLKRELAY_SUBBUF_MAGIC;

/// The clock of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Raw cycles of the time stamp counter.
    Tsc,
    /// Nanoseconds of CLOCK_MONOTONIC.
    Mono,
}

impl Header {
    /// Reads and checks the header at the start of `bytes`, which may hold more than one sub-buffer.
    ///
    /// # Errors
    ///
    /// The variants of [`Error`] that concern a sub-buffer's header, and [`Error::NewerVersion`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, Error> {
        let (header, _) =
            Header::read_from_prefix(bytes).map_err(|_| Error::ShortSubbuf(bytes.len()))?;
        if header.magic != SUBBUF_MAGIC {
            return Err(if header.magic.swap_bytes() == SUBBUF_MAGIC {
                Error::ForeignEndian
            } else {
                Error::SubbufMagic(header.magic)
            });
        }
        if u32::from(header.version) > abi::BLKRELAY_ABI_VERSION {
            return Err(Error::NewerVersion {
                found: header.version.into(),
                known: abi::BLKRELAY_ABI_VERSION,
            });
        }
        let bad = |field, value| Err(Error::SubbufField { field, value });
        let used = header.used as usize;
        let header_len = usize::from(header.header_len);
        if header.version == 0 {
            return bad("version", 0);
        }
        if header_len < size_of::<Header>() || header_len % 8 != 0 {
            return bad("header_len", header.header_len.into());
        }
        if usize::from(header.record_len) != SLOT {
            return bad("record_len", header.record_len.into());
        }
        if used < header_len || used > bytes.len() || !(used - header_len).is_multiple_of(SLOT) {
            return bad("used", used as u64);
        }
        if header.clock_kind().is_none() {
            return bad("clock", header.clock.into());
        }
        Ok(header)
    }

    /// The clock; `None` for a code that this reader does not know.
    #[inline]
    pub fn clock_kind(&self) -> Option<Clock> {
        match self.clock {
            abi::BLKRELAY_CLOCK_TSC => Some(Clock::Tsc),
            abi::BLKRELAY_CLOCK_MONO => Some(Clock::Mono),
            _ => None,
        }
    }

    /// Events that this CPU wrote up to the end of this sub-buffer.
    pub fn events_after(&self) -> u64 {
        self.events.saturating_add(self.count.into())
    }

    /// Whether this is a flight recorder's, so that older ones may have been written over.
    pub fn overwrites(&self) -> bool {
        u32::from(self.flags) & abi::BLKRELAY_SUBBUF_OVERWRITE != 0
    }

    /// Whether the anchor maps the trace's clock to CLOCK_MONOTONIC.
    pub fn anchor_ok(&self) -> bool {
        u32::from(self.flags) & abi::BLKRELAY_SUBBUF_ANCHOR_BAD == 0
    }
}

/// A sub-buffer whose header has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Subbuf<'a> {
    /// A copy of the header.
    pub header: Header,
    /// The records: a whole number of slots.
    pub records: &'a [u8],
}

impl<'a> Subbuf<'a> {
    /// Takes one sub-buffer off the front of `bytes`. The records are not looked at.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Subbuf<'a>, Error> {
        let header = Header::parse(bytes)?;
        let records = bytes
            .get(usize::from(header.header_len)..header.used as usize)
            .unwrap_or_default();
        Ok(Subbuf { header, records })
    }

    /// The records.
    pub fn slots(&self) -> Slots<'a> {
        Slots::new(self.records)
    }

    /// Time of the first event, in units of the trace's clock; 0 if there is none.
    pub fn first(&self) -> u64 {
        self.slots()
            .find_map(|slot| match slot {
                Ok(Slot::Event(_, record) | Slot::UnknownEvent(record)) => Some(record.time),
                _ => None,
            })
            .unwrap_or(0)
    }
}
