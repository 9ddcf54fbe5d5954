// SPDX-License-Identifier: GPL-2.0
//! Distinct cache lines.
//!
//! A line is 64 bytes of the guest's virtual addresses. It is counted once for each iteration that touches
//! it, however often; what lies between two marks of the guest's loop is an iteration. Two virtual addresses
//! of one physical line are two lines.

/// Iterations after which a line that nobody touched in between counts as fresh. More than a request's
/// turn takes that comes back to the same tag, less than a buffer's takes around its ring: so what is fresh
/// is above all what a tracer writes along.
pub const FRESH_AFTER: u32 = 1024;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// The line's number plus 1; 0 for a place that is free.
    line: u64,
    /// Iteration that last touched it.
    touched: u32,
    /// Iteration that last stored to it, or 0.
    written: u32,
}

/// Sums over iterations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Lines touched.
    pub touched: u64,
    /// Lines stored to.
    pub written: u64,
    /// Lines touched that no iteration of the last [`FRESH_AFTER`] had touched.
    pub fresh: u64,
}

/// The lines that one kind of access has touched.
#[derive(Debug)]
pub struct Lines {
    /// Open addressing; a power of two, never full.
    table: Vec<Entry>,
    used: usize,
    /// Iterations are numbered from 1.
    now: u32,
    sums: Sums,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            table: vec![Entry::default(); 1 << 16],
            used: 0,
            now: 1,
            sums: Sums::default(),
        }
    }
}

impl Lines {
    /// Another iteration begins.
    pub fn next(&mut self) {
        self.now += 1;
    }

    /// Another window begins; what was touched before stays known.
    pub fn clear(&mut self) {
        self.next();
        self.sums = Sums::default();
    }

    /// The sums since [`Lines::clear`].
    pub fn sums(&self) -> Sums {
        self.sums
    }

    /// An access to `size` bytes at `address`.
    #[inline]
    pub fn touch(&mut self, address: u64, size: u64, store: bool) {
        let first = address >> 6;
        let last = address.saturating_add(size - 1) >> 6;
        self.line(first, store);
        if last != first {
            self.line(last, store);
        }
    }

    #[inline]
    fn line(&mut self, line: u64, store: bool) {
        let now = self.now;
        let place = find(&self.table, line);
        let entry = &mut self.table[place];
        let known = entry.line != 0;
        if !known || entry.touched != now {
            self.sums.touched += 1;
            self.sums.fresh += u64::from(!known || now - entry.touched > FRESH_AFTER);
            entry.line = line + 1;
            entry.touched = now;
        }
        if store && entry.written != now {
            self.sums.written += 1;
            entry.written = now;
        }
        if !known {
            self.used += 1;
            if self.used > self.table.len() / 2 {
                self.grow();
            }
        }
    }

    fn grow(&mut self) {
        let mut table = vec![Entry::default(); self.table.len() * 2];
        for entry in self.table.iter().filter(|e| e.line != 0) {
            let place = find(&table, entry.line - 1);
            table[place] = *entry;
        }
        self.table = table;
    }
}

/// Where a line is, or would be.
#[inline]
fn find(table: &[Entry], line: u64) -> usize {
    let mask = table.len() - 1;
    let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let mut place = hash as usize & mask;
    while table[place].line != 0 && table[place].line != line + 1 {
        place = (place + 1) & mask;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(touched: u64, written: u64, fresh: u64) -> Sums {
        Sums {
            touched,
            written,
            fresh,
        }
    }

    #[test]
    fn a_line_counts_once_an_iteration() {
        let mut lines = Lines::default();
        lines.touch(0xffff_8880_0000_0000, 8, false);
        lines.touch(0xffff_8880_0000_0038, 8, true);
        lines.touch(0xffff_8880_0000_0000, 8, true);
        assert_eq!(lines.sums(), sums(1, 1, 1));
        // Eight bytes at the end of a line reach into the next.
        lines.touch(0xffff_8880_0000_003c, 8, false);
        assert_eq!(lines.sums(), sums(2, 1, 2));
        lines.next();
        lines.touch(0xffff_8880_0000_0010, 1, false);
        assert_eq!(lines.sums(), sums(3, 1, 2));
        lines.clear();
        lines.touch(0xffff_8880_0000_0010, 1, false);
        assert_eq!(lines.sums(), sums(1, 0, 0));
        lines.touch(u64::MAX, 8, false);
        assert_eq!(lines.sums(), sums(2, 0, 1));
    }

    #[test]
    fn a_line_becomes_fresh_again() {
        let mut lines = Lines::default();
        lines.touch(64, 8, false);
        for _ in 0..FRESH_AFTER {
            lines.next();
        }
        lines.touch(64, 8, false);
        assert_eq!(lines.sums().fresh, 1);
        for _ in 0..=FRESH_AFTER {
            lines.next();
        }
        lines.touch(64, 8, false);
        assert_eq!(lines.sums(), sums(3, 0, 2));
    }

    #[test]
    fn a_stream_of_lines_is_counted() {
        let mut lines = Lines::default();
        for i in 0..200_000 {
            lines.touch(i * 64, 8, true);
            lines.touch(0xffff_0000_0000_0000, 8, true);
            lines.next();
        }
        assert_eq!(lines.sums(), sums(400_000, 400_000, 200_001));
    }
}
