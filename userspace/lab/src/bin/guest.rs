// SPDX-License-Identifier: GPL-2.0
//! The agent inside the guest.

fn main() {}
