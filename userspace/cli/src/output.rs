// SPDX-License-Identifier: GPL-2.0
//! The standard output, and how numbers stand in it.

use std::error::Error;
use std::io::{self, BufWriter, StdoutLock};

/// The standard output behind a buffer that makes it cheap to write a trace to.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(128 * 1024, io::stdout().lock())
}

/// Whether this is the end of a pipe that nobody reads any more: no error, as with `head`.
pub fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(this) = error {
        if let Some(io) = this.downcast_ref::<io::Error>() {
            if io.kind() == io::ErrorKind::BrokenPipe {
                return true;
            }
        }
        error = this.source();
    }
    false
}

/// A number with its noun, in the plural where that is due.
pub fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Bytes in a unit that keeps the number at five digits or fewer, rounded down.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(4096), "4096 B");
        assert_eq!(size(10_240), "10 KiB");
        assert_eq!(size(1 << 20), "1024 KiB");
        assert_eq!(size(123 << 20), "123 MiB");
        assert_eq!(size(20 << 30), "20 GiB");
    }
}
