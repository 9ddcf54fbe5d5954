// SPDX-License-Identifier: GPL-2.0
//! `module/blkrelay.h`, as bindgen sees it. The rest of the crate gives these layouts names and checks.
#![allow(missing_docs, non_camel_case_types, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/contract.rs"));
