// SPDX-License-Identifier: GPL-2.0
//! File and record formats: blkrelay's and blktrace's.
