// SPDX-License-Identifier: GPL-2.0
//! Text that is put together from short pieces of fixed size, which a compiler makes one or two moves of; what of a
//! piece is too much is written over by the next.

/// Most bytes that [`Line::room`] promises.
const ROOM: usize = 1024;
/// Digits of the largest number, and blanks in front of it.
const WIDTH: usize = 32;

/// What is to be written, in a buffer that is larger.
#[derive(Debug)]
pub(super) struct Line {
    buffer: Vec<u8>,
    len: usize,
}

/// A short text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Short<N> {
    /// Of the first bytes of these.
    pub(super) const fn of(bytes: [u8; N], len: usize) -> Short<N> {
        Short { bytes, len }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Of a text that fits.
    pub(super) fn new(text: &[u8]) -> Short<N> {
        let mut bytes = [0; N];
        let len = text.len().min(N);
        bytes[..len].copy_from_slice(&text[..len]);
        Short { bytes, len }
    }
}

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

impl Line {
    pub(super) fn new(size: usize) -> Line {
        Line {
            buffer: vec![0; size + ROOM],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Sees to it that there is room for [`ROOM`] bytes.
    #[inline(always)]
    pub(super) fn room(&mut self) {
        if self.buffer.len() - self.len < ROOM {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
    }

    /// Appends any text.
    pub(super) fn text(&mut self, text: &[u8]) {
        while self.buffer.len() - self.len < text.len() + ROOM {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        self.buffer[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
    }

    #[inline(always)]
    fn fixed<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        self.buffer[self.len..self.len + N].copy_from_slice(bytes);
        self.len += len;
    }

    /// Appends a short text. There is room.
    #[inline(always)]
    pub(super) fn short<const N: usize>(&mut self, text: &Short<N>) {
        self.fixed(&text.bytes, text.len);
    }

    /// Appends so many bytes as they are. There is room.
    #[inline(always)]
    pub(super) fn bytes<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.fixed(bytes, N);
    }

    /// Appends `len` bytes of a text from `start` on, which are at most 16. There is room.
    #[inline(always)]
    pub(super) fn part(&mut self, text: &[u8; 32], start: usize, len: usize) {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&text[start..start + 16]);
        self.fixed(&bytes, len);
    }

    /// Appends a number, padded with blanks on the left up to `width`, which is at most 12. There is room.
    #[inline(always)]
    pub(super) fn number(&mut self, mut number: u64, width: usize) {
        let digits = number.checked_ilog10().map_or(1, |last| last as usize + 1);
        let len = digits.max(width);
        // Blanks first, as many as there may be; the digits are written over them from the end.
        let text = &mut self.buffer[self.len..self.len + WIDTH];
        text[..12].fill(b' ');
        let mut at = len;
        while number >= 100 {
            at -= 2;
            text[at..at + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
            number /= 100;
        }
        if number >= 10 {
            text[at - 2..at].copy_from_slice(&PAIRS[number as usize]);
        } else {
            text[at - 1] = b'0' + number as u8;
        }
        self.len += len;
    }

    /// Appends nine digits of a number below 10^9. There is room.
    #[inline(always)]
    pub(super) fn nine(&mut self, number: u32) {
        let (first, rest) = (number / 100_000_000, number % 100_000_000);
        let mut digits = [0; 16];
        digits[0] = b'0' + first as u8;
        let (high, low) = (rest / 10_000, rest % 10_000);
        for (at, part) in [
            (1, high / 100),
            (3, high % 100),
            (5, low / 100),
            (7, low % 100),
        ] {
            digits[at..at + 2].copy_from_slice(&PAIRS[part as usize % 100]);
        }
        self.fixed(&digits, 9);
    }
}

impl std::io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against what the standard library prints.
    #[test]
    fn numbers_are_as_wide_as_they_are_asked_for() {
        let mut number = 1u64;
        for _ in 0..20 {
            for n in [number - 1, number, number + 1, u64::MAX / number] {
                for width in [0, 2, 5, 8, 12] {
                    let mut line = Line::new(0);
                    line.number(n, width);
                    assert_eq!(line.as_bytes(), format!("{n:width$}").as_bytes());
                }
                let nine = (n % 1_000_000_000) as u32;
                let mut line = Line::new(0);
                line.nine(nine);
                assert_eq!(line.as_bytes(), format!("{nine:09}").as_bytes());
            }
            number = number.saturating_mul(10);
        }
    }
}
