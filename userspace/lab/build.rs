// SPDX-License-Identifier: GPL-2.0
//! Compiles the plugin, which the lab carries with it.
//!
//! By calling the compiler and not as a dependency: the workspace's programs are static, and a shared object
//! with those settings would bring a second libc into QEMU. There is no way to tell cargo that.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../plugin/src");
    let out = PathBuf::from(env::var("OUT_DIR")?).join("blkrelay_plugin.so");
    println!("cargo:rerun-if-changed={}", source.display());
    let status = Command::new(env::var("RUSTC")?)
        .args(["--crate-name", "blkrelay_plugin", "--crate-type", "cdylib"])
        .args(["--edition", "2021", "-C", "opt-level=3"])
        .args(["-C", "panic=abort", "-C", "strip=symbols"])
        .args(["--target", &env::var("TARGET")?])
        .arg("-o")
        .arg(&out)
        .arg(source.join("lib.rs"))
        .status()?;
    if !status.success() {
        return Err(format!("compiling the plugin: {status}").into());
    }
    Ok(())
}
