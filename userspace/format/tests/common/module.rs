// SPDX-License-Identifier: GPL-2.0
//! The module's pure logic, as the kernel compiles it. Tests of several crates include this.

/// As the module sees the contract.
pub mod abi {
    pub use blkrelay_format::abi::*;
}

// They keep the kernel's format, which is not ours.
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::precedence, clippy::manual_is_multiple_of)]
#[path = "../../../../module/config.rs"]
pub mod config;
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
#[path = "../../../../module/filter.rs"]
pub mod filter;
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::precedence)]
#[path = "../../../../module/record.rs"]
pub mod record;
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::precedence)]
#[path = "../../../../module/stamps.rs"]
pub mod stamps;
#[rustfmt::skip]
#[allow(dead_code, clippy::all, clippy::precedence, clippy::undocumented_unsafe_blocks)]
#[path = "../../../../module/slot.rs"]
pub mod slot;
