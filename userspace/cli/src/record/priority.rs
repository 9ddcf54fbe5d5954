// SPDX-License-Identifier: GPL-2.0
//! The reader's priority. Where every CPU is busy with I/O that never sleeps, a reader of the same priority as the
//! rest gets too little of one to keep up.

use rustix::io::Result;
use rustix::process::{getpriority_process, setpriority_process};

/// The highest priority of a task that is not a real-time one (`setpriority(2)`).
const FIRST: i32 = -20;

/// Gives this thread that priority, from now on. One whose niceness is above 0 was made nice by somebody, and stays so.
///
/// # Errors
///
/// `ACCESS` without `CAP_SYS_NICE`.
pub fn come_first() -> Result<()> {
    if getpriority_process(None)? > 0 {
        return Ok(());
    }
    setpriority_process(None, FIRST)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        getpriority_process(None).unwrap()
    }

    /// Each in a thread of its own: niceness is a thread's.
    fn after(nice: i32) -> (Result<()>, i32) {
        let there = move || {
            setpriority_process(None, nice).unwrap();
            (come_first(), niceness())
        };
        std::thread::spawn(there).join().unwrap()
    }

    #[test]
    fn the_reader_comes_first_unless_it_is_nice() {
        assert_eq!(after(5), (Ok(()), 5));
        let before = niceness();
        match after(before.max(0)) {
            (Ok(()), niceness) => assert_eq!(niceness, if before > 0 { before } else { FIRST }),
            // Not root.
            (Err(error), niceness) => {
                assert_eq!(
                    (error, niceness),
                    (rustix::io::Errno::ACCESS, before.max(0))
                );
            }
        }
    }
}
