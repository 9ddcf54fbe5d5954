// SPDX-License-Identifier: GPL-2.0
//! The lab: see `blkrelay-lab --help`.

fn main() {}
