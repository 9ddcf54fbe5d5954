// SPDX-License-Identifier: GPL-2.0
//! The subcommands that are thin fronts of a module: arguments in, one call, a status out.

pub mod boot;
