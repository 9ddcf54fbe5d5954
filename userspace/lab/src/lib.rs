// SPDX-License-Identifier: GPL-2.0
//! Builds and boots test kernels and measures what tracing costs.
