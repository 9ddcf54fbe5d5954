// SPDX-License-Identifier: GPL-2.0
//! The reader: see `blkrelay --help`.

fn main() {}
