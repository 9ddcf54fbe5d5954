// SPDX-License-Identifier: GPL-2.0
//! Sources, the merge, events, request tracking and statistics.
