// SPDX-License-Identifier: GPL-2.0
//! The text of the module's `status` file.

use serde::Serialize;
use std::collections::BTreeMap;

/// What `status` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The lines but those of CPUs.
    pub values: BTreeMap<String, String>,
    /// The lines of CPUs.
    pub cpus: Vec<CpuStatus>,
}

/// A CPU's line in `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CpuStatus {
    /// The CPU.
    pub cpu: u32,
    /// Events that it wrote.
    pub events: u64,
    /// Events that it lost.
    pub lost: u64,
    /// Sub-buffers that it finished.
    pub produced: u64,
    /// Sub-buffers that were read.
    pub consumed: u64,
    /// Whether its data file is open.
    pub open: u64,
    /// 0: its buffer could not be made, so that it loses all its events. 1 where the module does not say.
    pub buffer: u64,
}

impl Default for CpuStatus {
    fn default() -> CpuStatus {
        CpuStatus {
            cpu: 0,
            events: 0,
            lost: 0,
            produced: 0,
            consumed: 0,
            open: 0,
            buffer: 1,
        }
    }
}

impl Status {
    /// Parses the text. Lines and keys that are not known are kept or skipped, never an error.
    pub fn parse(text: &str) -> Status {
        let mut status = Status::default();
        for line in text.lines() {
            if line.starts_with("cpu=") {
                status.cpus.push(CpuStatus::parse(line));
            } else if let Some((key, value)) = line.split_once('=') {
                status.values.insert(key.to_owned(), value.to_owned());
            }
        }
        status
    }

    /// The value of a key; empty if it is not there.
    pub fn get(&self, key: &str) -> &str {
        self.values.get(key).map_or("", String::as_str)
    }

    /// The value of a key as a number; 0 if it is not there.
    pub fn number(&self, key: &str) -> u64 {
        self.get(key).parse().unwrap_or(0)
    }
}

impl CpuStatus {
    fn parse(line: &str) -> CpuStatus {
        let mut cpu = CpuStatus::default();
        for word in line.split(' ') {
            let Some((key, value)) = word.split_once('=') else {
                continue;
            };
            let value = value.parse().unwrap_or(0);
            match key {
                "cpu" => cpu.cpu = value as u32,
                "events" => cpu.events = value,
                "lost" => cpu.lost = value,
                "produced" => cpu.produced = value,
                "consumed" => cpu.consumed = value,
                "open" => cpu.open = value,
                "buffer" => cpu.buffer = value,
                _ => {}
            }
        }
        cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_parsed() {
        let text = "version=1\nabi=1\nstate=running\nowner=12\nnew key that is none\n\
                    error=unknown word \"a=b\"\n\
                    filter=devices=8:0 op=read\n\
                    cpu=0 events=123 lost=4 produced=3 consumed=2 open=1\n\
                    cpu=11 events=18446744073709551615 lost=0 produced=0 consumed=0 open=0 more=7\n\
                    cpu=12 events=0 lost=9 produced=0 consumed=0 open=0 buffer=0\n";
        let status = Status::parse(text);
        assert_eq!(status.get("state"), "running");
        assert_eq!(status.get("error"), "unknown word \"a=b\"");
        assert_eq!(status.get("filter"), "devices=8:0 op=read");
        assert_eq!(status.number("owner"), 12);
        assert_eq!((status.get("none"), status.number("none")), ("", 0));
        assert_eq!(status.cpus.len(), 3);
        let first = CpuStatus {
            cpu: 0,
            events: 123,
            lost: 4,
            produced: 3,
            consumed: 2,
            open: 1,
            buffer: 1,
        };
        assert_eq!(status.cpus[0], first);
        assert_eq!((status.cpus[1].cpu, status.cpus[1].events), (11, u64::MAX));
        assert_eq!((status.cpus[2].buffer, status.cpus[2].lost), (0, 9));
    }
}
