// SPDX-License-Identifier: GPL-2.0
//! The functions of a guest's kernel and of the modules in it, by address. The kernel must not be randomised
//! (`nokaslr`).

use anyhow::{Context, Result};
use rustc_demangle::demangle;
use std::fs;
use std::path::Path;

/// What is farther from a symbol than any function is long belongs to no symbol.
const LONGEST: u64 = 64 << 10;

/// Functions in order of their addresses.
#[derive(Debug, Clone, Default)]
pub struct Symbols(Vec<(u64, String)>);

impl Symbols {
    /// Those of a kernel's build tree, from its System.map.
    ///
    /// # Errors
    ///
    /// When that cannot be read.
    pub fn of_kernel(kdir: &Path) -> Result<Self> {
        let path = kdir.join("System.map");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut symbols = Self::default();
        symbols.add(text.lines());
        Ok(symbols)
    }

    /// Adds lines of a System.map or of /proc/kallsyms; a module's functions get its name behind theirs. What
    /// is no function is left out.
    pub fn add<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        for line in lines {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            if !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            let mut name = format!("{:#}", demangle(name));
            if let Some(module) = words.next() {
                name = format!("{name} {module}");
            }
            self.0.push((address, name));
        }
        // Stable: of several names for one address the first that was listed stays.
        self.0.sort_by_key(|(address, _)| *address);
        self.0.dedup_by_key(|(address, _)| *address);
    }

    /// The function that an address is in.
    pub fn name(&self, address: u64) -> Option<&str> {
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        let (start, name) = self.0.get(behind.checked_sub(1)?)?;
        (address - start < LONGEST).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_names() {
        let mut symbols = Symbols::default();
        symbols.add([
            "ffffffff81000100 t second",
            "ffffffff81000000 T first",
            "ffffffff81000000 T alias",
            "ffffffff81000080 d data",
            "nonsense",
        ]);
        symbols.add([
            "ffffffffa0000010 t _RNvNtCs1234_8blkrelay6probes8complete\t[blkrelay]",
            "ffffffffa0000100 t plain\t[blkrelay]",
        ]);
        assert_eq!(symbols.name(0xffff_ffff_80ff_ffff), None);
        assert_eq!(symbols.name(0xffff_ffff_8100_0000), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_00ff), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0105), Some("second"));
        assert_eq!(
            symbols.name(0xffff_ffff_a000_0010),
            Some("blkrelay::probes::complete [blkrelay]")
        );
        assert_eq!(
            symbols.name(0xffff_ffff_a000_0100),
            Some("plain [blkrelay]")
        );
        assert_eq!(symbols.name(0xffff_ffff_9000_0000), None);
    }
}
