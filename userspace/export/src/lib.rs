// SPDX-License-Identifier: GPL-2.0
//! Outputs: one file each.
