// SPDX-License-Identifier: GPL-2.0
//! What a guest says on its serial console: marker lines of its init and job, and the kernel's
//! complaints, each of which fails a run.

use std::collections::BTreeMap;

/// What the kernel prints when something is wrong. Matched only behind a kernel time stamp, so that
/// a program which prints "WARNING:" is not taken for the kernel.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "Kernel panic",
    "KASAN",
    "KFENCE",
    "KCSAN",
    "UBSAN",
    "ODEBUG",
    "INFO: task ",
    "INFO: possible",
    "possible circular locking",
    "possible recursive locking",
    "suspicious RCU usage",
    "inconsistent lock state",
    "rcu_preempt detected",
    "rcu_preempt self-detected",
    "rcu_sched detected",
    "rcu_sched self-detected",
    "detected stalls",
    "blocked for more than",
    "soft lockup",
    "hard LOCKUP",
    "general protection fault",
    "unable to handle",
    "Unable to handle",
    "invalid opcode",
    "divide error",
    "stack guard page",
    "corrupted stack",
    "refcount_t:",
    "list_add corruption",
    "list_del corruption",
    "new suspected memory leaks",
    "invoked oom-killer",
    "Out of memory",
    "Call Trace:",
];

/// Bits of /proc/sys/kernel/tainted that mean that something went wrong: bad page (5), died (7), warned
/// (9), soft lockup (14). Out-of-tree and unsigned modules are no fault.
const TAINT_FAULTS: u64 = 1 << 5 | 1 << 7 | 1 << 9 | 1 << 14;

/// The byte after a kernel time stamp such as `[   12.345678] `, wherever it stands in the line: a
/// program's unfinished line may stand before it.
fn after_time_stamp(line: &str) -> Option<&str> {
    let mut rest = line;
    while let Some(open) = rest.find('[') {
        let inner = &rest[open + 1..];
        if let Some(close) = inner.find(']') {
            let stamp = inner[..close].trim_start();
            let (s, us) = stamp.split_once('.').unwrap_or(("", ""));
            let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
            if digits(s) && us.len() == 6 && digits(us) {
                return Some(&inner[close + 1..]);
            }
        }
        rest = inner;
    }
    None
}

/// Why this console line fails a run, if it does.
pub fn complaint(line: &str) -> Option<&str> {
    if let Some(text) = line.strip_prefix("@complaint ") {
        return Some(text.trim());
    }
    if let Some(text) = line.strip_prefix("@taint ") {
        let bits: u64 = text.trim().parse().unwrap_or(0);
        return (bits & TAINT_FAULTS != 0).then_some("the kernel is tainted by a fault");
    }
    let text = after_time_stamp(line)?.trim();
    COMPLAINTS.iter().any(|c| text.contains(c)).then_some(text)
}

/// One `@result key=value …` line. Values are words without blanks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResultLine(BTreeMap<String, String>);

impl ResultLine {
    /// Reads a line; `None` if it is no result line.
    pub fn parse(line: &str) -> Option<Self> {
        let words = line.strip_prefix("@result ")?;
        let pairs = words.split_whitespace().filter_map(|w| w.split_once('='));
        Some(Self(
            pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        ))
    }

    /// The value of a key as it was printed.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The value of a key as a number.
    ///
    /// # Errors
    ///
    /// When the key is missing or its value does not parse as `T`.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> anyhow::Result<T> {
        let text = self
            .get(key)
            .ok_or_else(|| anyhow::anyhow!("the guest's result {:?} lacks {key}", self.0))?;
        text.parse()
            .map_err(|_| anyhow::anyhow!("the guest's result {key}={text} is no number"))
    }

    /// All keys and values, sorted by key.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
}

/// The status in an `@exit N` line.
pub fn exit_status(line: &str) -> Option<i32> {
    line.strip_prefix("@exit ")?.trim().parse().ok()
}

/// How far a job is, of how much: an `@progress 17 1000` line.
pub fn progress(line: &str) -> Option<(u64, u64)> {
    let (done, total) = line.strip_prefix("@progress ")?.trim().split_once(' ')?;
    Some((done.parse().ok()?, total.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_complaints_are_found() {
        for line in [
            "[    1.234567] WARNING: CPU: 0 PID: 1 at kernel/foo.c:12 bar+0x1/0x2",
            "[   12.000001] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[    0.900000][    T1] WARNING: possible circular locking dependency detected",
            "[  121.000000] INFO: task cat:77 blocked for more than 120 seconds.",
            "[   21.000000] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "half a line of a program[    3.000000] Kernel panic - not syncing: Attempted to kill init!",
            "[    2.000000] BUG: KFENCE: out-of-bounds read in f+0x1/0x2",
            "@taint 512",
            "@taint 4736",
            "@complaint kmemleak: unreferenced objects, see above",
        ] {
            assert!(complaint(line).is_some(), "{line}");
        }
    }

    #[test]
    fn programs_and_harmless_lines_are_not() {
        for line in [
            "mke2fs: WARNING: the disk is small",
            "[    0.000000] Linux version 7.3.4",
            "[    5.000000] blkrelay: loading out-of-tree module taints kernel.",
            "BUG: not from the kernel",
            "[warning] WARNING: from a program",
            "@taint 4096",
            "@taint 0",
            "@exit 0",
        ] {
            assert_eq!(complaint(line), None, "{line}");
        }
    }

    #[test]
    fn markers() {
        assert_eq!(exit_status("@exit 3"), Some(3));
        assert_eq!(exit_status("@exit 3\r"), Some(3));
        assert_eq!(exit_status(" @exit 3"), None);
        assert_eq!(exit_status("@exit"), None);
        let r = ResultLine::parse("@result state=on insns=1234 per=3.5").unwrap();
        assert_eq!(r.get("state"), Some("on"));
        assert_eq!(r.number::<u64>("insns").unwrap(), 1234);
        assert!(r.number::<u64>("state").is_err());
        assert!(r.number::<u64>("none").is_err());
        assert_eq!(ResultLine::parse("@results a=b"), None);
        assert_eq!(progress("@progress 17 1000\r"), Some((17, 1000)));
        assert_eq!(progress("@progress 17"), None);
        assert_eq!(progress("@progress 17 of"), None);
    }
}
