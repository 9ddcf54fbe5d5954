// SPDX-License-Identifier: GPL-2.0

//! What bindgen makes of `shim.h`: the contract (`blkrelay.h`), the shim's functions, and the relay
//! interface, which the kernel crate does not have.

#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes, // Pointers to structs with an empty member, which nobody looks into.
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

use kernel::{
    bindings::*,
    ffi, //
};

include!(concat!(env!("MOD_OUT_DIR"), "/abi_generated.rs"));

/// Compares functions that the shim calls with their declarations in `shim.h`: they have one type, or this
/// does not compile.
macro_rules! declared {
    ($($function:ident),+ $(,)?) => {
        $(const _: () = {
            if true {
                $crate::abi::$function
            } else {
                $function
            };
        };)+
    };
}
