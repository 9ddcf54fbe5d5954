// SPDX-License-Identifier: GPL-2.0
//! Making sub-buffers without the module: what the tests of this and the other crates are fed with.

use crate::record::SLOT;
use crate::{
    abi, Clock, Detail, Device, Header, Record, RemapFrom, Stop, Task, Times, SUBBUF_MAGIC,
};
use zerocopy::IntoBytes;

/// Puts together one sub-buffer after another of a CPU's stream, with numbers and counters that add up.
#[derive(Clone, Debug)]
pub struct SubbufBuilder {
    header: Header,
    records: Vec<u8>,
    /// Lost since the last sub-buffer.
    lost: u64,
}

impl SubbufBuilder {
    /// A stream of this CPU, in a trace of this id, with this clock running at `khz`.
    pub fn new(trace_id: [u8; 16], cpu: u32, clock: Clock, khz: u32) -> SubbufBuilder {
        SubbufBuilder {
            header: Header {
                magic: SUBBUF_MAGIC,
                version: abi::BLKRELAY_ABI_VERSION as u16,
                header_len: size_of::<Header>() as u16,
                record_len: SLOT as u16,
                trace_id,
                cpu,
                epoch: 1,
                clock: match clock {
                    Clock::Tsc => abi::BLKRELAY_CLOCK_TSC,
                    Clock::Mono => abi::BLKRELAY_CLOCK_MONO,
                },
                khz,
                ..Header::default()
            },
            records: Vec::new(),
            lost: 0,
        }
    }

    /// The clock at one instant before the next event: the trace's, and CLOCK_MONOTONIC in ns.
    pub fn anchor(&mut self, raw: u64, mono: u64) -> &mut SubbufBuilder {
        self.header.anchor = raw;
        self.header.mono = mono;
        self
    }

    /// So many events were lost between two times, before the sub-buffer being made.
    pub fn lose(&mut self, events: u64, first: u64, last: u64) -> &mut SubbufBuilder {
        self.lost += events;
        self.header.lost_first = first;
        self.header.lost_last = last;
        self
    }

    /// Adds a task record.
    pub fn task(&mut self, task: Task) -> &mut SubbufBuilder {
        self.records.extend_from_slice(task.as_bytes());
        self
    }

    /// Adds a device record.
    pub fn device(&mut self, device: Device) -> &mut SubbufBuilder {
        self.records.extend_from_slice(device.as_bytes());
        self
    }

    /// Adds a from record, which belongs to the event just added.
    pub fn from(&mut self, from: RemapFrom) -> &mut SubbufBuilder {
        self.records.extend_from_slice(from.as_bytes());
        self
    }

    /// Adds a detail record, which belongs to the event just added.
    pub fn detail(&mut self, detail: Detail) -> &mut SubbufBuilder {
        self.records.extend_from_slice(detail.as_bytes());
        self
    }

    /// Adds a times record, which belongs to the span just added.
    pub fn times(&mut self, times: Times) -> &mut SubbufBuilder {
        self.records.extend_from_slice(times.as_bytes());
        self
    }

    /// Adds a stop record.
    pub fn stop(&mut self, stop: Stop) -> &mut SubbufBuilder {
        self.records.extend_from_slice(stop.as_bytes());
        self
    }

    /// The stream is a flight recorder's: its sub-buffers say that older ones may be written over.
    pub fn overwrite(&mut self) -> &mut SubbufBuilder {
        self.header.flags |= abi::BLKRELAY_SUBBUF_OVERWRITE as u16;
        self
    }

    /// The sub-buffer being made and those after it are of this configuration epoch.
    pub fn epoch(&mut self, epoch: u32) -> &mut SubbufBuilder {
        self.header.epoch = epoch;
        self
    }

    /// Adds an event.
    pub fn event(&mut self, record: Record) -> &mut SubbufBuilder {
        self.records.extend_from_slice(record.as_bytes());
        self.header.count += 1;
        self
    }

    /// The sub-buffer. The builder goes on with the next one of the stream; its anchor stays.
    pub fn finish(&mut self) -> Vec<u8> {
        self.header.lost += std::mem::take(&mut self.lost);
        self.header.used = (size_of::<Header>() + self.records.len()) as u32;
        let mut bytes = self.header.as_bytes().to_vec();
        bytes.append(&mut self.records);
        self.header.seq += 1;
        self.header.events += u64::from(self.header.count);
        self.header.count = 0;
        self.header.lost_first = 0;
        self.header.lost_last = 0;
        bytes
    }

    /// Like [`SubbufBuilder::finish`], but the sub-buffer is thrown away: the stream has a hole.
    pub fn skip(&mut self) {
        self.finish();
    }

    /// Events made and lost so far, as the trailer is to count them.
    pub fn totals(&self) -> (u64, u64) {
        (self.header.events, self.header.lost + self.lost)
    }
}
