// SPDX-License-Identifier: GPL-2.0
//! The standard output.

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
