// SPDX-License-Identifier: GPL-2.0
//! Outputs: one file each. An output takes a trace's items by time and writes bytes.

mod text;

pub use text::Text;
