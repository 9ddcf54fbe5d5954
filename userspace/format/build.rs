// SPDX-License-Identifier: GPL-2.0
//! Turns the contract header and `<linux/blktrace_api.h>` into Rust.
//!
//! Both headers are kernel uapi headers: no kernel tree is needed, only libclang.

#![allow(clippy::panic)] // A build script has no other way to fail.

use std::env;
use std::path::PathBuf;

/// Lets the structs be read from and written as bytes, which is sound because the header spells out all
/// padding: the derives refuse a struct with a hole.
#[derive(Debug)]
struct AsBytes;

impl bindgen::callbacks::ParseCallbacks for AsBytes {
    fn add_derives(&self, _: &bindgen::callbacks::DeriveInfo<'_>) -> Vec<String> {
        ["FromBytes", "IntoBytes", "Immutable", "KnownLayout"]
            .map(|name| format!("zerocopy::{name}"))
            .to_vec()
    }
}

fn generate(header: &str, allow: &str, out: &str) {
    let path = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(out);
    bindgen::Builder::default()
        .header(header)
        .allowlist_item(allow)
        .allowlist_recursively(false)
        .layout_tests(true)
        .derive_default(true)
        .derive_partialeq(true)
        .derive_eq(true)
        .prepend_enum_name(false)
        .parse_callbacks(Box::new(AsBytes))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .generate()
        .unwrap_or_else(|error| panic!("bindgen of {header}: {error}"))
        .write_to_file(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let contract = format!("{root}/../../module/blkrelay.h");
    generate(
        &contract,
        "(blkrelay|BLKRELAY)_.*|__u8|__u16|__u32|__u64|__be32|__be64",
        "contract.rs",
    );
    generate(
        &format!("{root}/src/blktrace.h"),
        "blk_io_trace|blk_io_trace_remap|__u8|__u16|__u32|__u64|__be32|__be64",
        "blktrace.rs",
    );

    // The same layouts as a C compiler sees them; the tests compare.
    cc::Build::new()
        .file("src/conformance.c")
        .include(format!("{root}/../../module"))
        .warnings_into_errors(true)
        .compile("blkrelay_conformance");
    println!("cargo:rerun-if-changed=src/conformance.c");
    println!("cargo:rerun-if-changed={contract}");
}
