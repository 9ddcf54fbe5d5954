// SPDX-License-Identifier: GPL-2.0
//! blkrelay.ko for a kernel tree, built out of the checkout.

use crate::cache::Cache;
use crate::kernel::{self, Flavor};
use crate::tools::{self, Toolchain};
use crate::{preflight, process, progress};
use anyhow::{bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The checkout that this program was built from.
///
/// # Errors
///
/// When it was moved or removed since.
pub fn checkout() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match root.canonicalize() {
        Ok(path) if path.join("Kbuild").is_file() => Ok(path),
        _ => bail!(
            "{}: the checkout is not there any more: build it again with make userspace",
            root.display()
        ),
    }
}

/// Builds the module for a kernel tree into `out/module/RELEASE` of the checkout, or for one of the lab's
/// own kernels into `out/module/RELEASE-FLAVOR`, and returns the path of blkrelay.ko. `clippy` has the
/// kernel's linter look at it on the way, with warnings as errors.
///
/// # Errors
///
/// When the tree does not take it (see [`preflight::check_tree`]) or the build fails: with make's last
/// lines.
pub fn build(kdir: &Path, flavor: Option<Flavor>, clippy: bool) -> Result<PathBuf> {
    let tree = preflight::check_tree(kdir)?;
    let mut name = tree.release.clone();
    if let Some(flavor) = flavor {
        name = format!("{name}-{}", flavor.name());
    }
    if clippy {
        // Its objects are no module: keep them apart.
        name += "-clippy";
    }
    let more: &[&str] = if clippy {
        &["CLIPPY=1", "KRUSTFLAGS=-Dwarnings", "W=1"]
    } else {
        &[]
    };
    let module = built(kdir, tree, &checkout()?, &name, "blkrelay.ko", more)?;
    if flavor.is_some() && !clippy {
        cannot_panic(&module)?;
    }
    Ok(module)
}

/// Builds the modules of qemu/tests/floor for one of the lab's own kernels, into
/// `out/module/RELEASE-FLAVOR-floor` of the checkout, and returns the paths of floor.ko and otherclock.ko.
///
/// # Errors
///
/// As for [`build`].
pub fn floor(kdir: &Path, flavor: Flavor) -> Result<Vec<PathBuf>> {
    let tree = preflight::check_tree(kdir)?;
    let name = format!("{}-{}-floor", tree.release, flavor.name());
    let source = checkout()?.join("qemu/tests/floor");
    let floor = built(kdir, tree, &source, &name, "floor.ko", &["W=1"])?;
    let otherclock = floor.with_file_name("otherclock.ko");
    Ok(vec![floor, otherclock])
}

/// Builds the module once more as second.ko, whose files are in `second` of debugfs: two of them can trace the same
/// run. Into `out/module/RELEASE-FLAVOR-second` of the checkout.
///
/// # Errors
///
/// As for [`build`].
pub fn second(kdir: &Path, flavor: Flavor) -> Result<PathBuf> {
    let tree = preflight::check_tree(kdir)?;
    let name = format!("{}-{}-second", tree.release, flavor.name());
    let source = checkout()?
        .join("out/module")
        .join(name.clone() + "-source");
    altered(
        &source,
        &[
            ("Kbuild", "obj-m := blkrelay.o", "obj-m := second.o"),
            ("Kbuild", "blkrelay-y :=", "second-y :="),
            (
                "module/blkrelay_main.rs",
                "name: \"blkrelay\"",
                "name: \"second\"",
            ),
            ("module/control.rs", "c\"blkrelay\"", "c\"second\""),
        ],
    )?;
    built(kdir, tree, &source, &name, "second.ko", &[])
}

/// Makes `dir` a copy of the module's sources in which a text of a file is another.
///
/// # Errors
///
/// Those of the file system, and when a file does not have the text that is to be replaced.
pub fn altered(dir: &Path, changes: &[(&str, &str, &str)]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let copied = ["Kbuild", "module"];
    let root = checkout()?;
    let copied = copied.map(|name| root.join(name));
    process::output(Command::new("cp").args(["-r", "-p"]).args(copied).arg(dir))?;
    for (file, old, new) in changes {
        let path = dir.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if !text.contains(old) {
            bail!("{}: no {old}", path.display());
        }
        fs::write(&path, text.replace(old, new)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Builds the module `file` from `source` into `out/module/NAME` of the checkout.
fn built(
    kdir: &Path,
    tree: preflight::Tree,
    source: &Path,
    name: &str,
    file: &str,
    more: &[&str],
) -> Result<PathBuf> {
    let tools = toolchain(tree)?;
    let out = checkout()?.join("out/module").join(name);
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let lock = File::create(out.join(".lock")).with_context(|| out.display().to_string())?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, e)| e)
        .with_context(|| out.display().to_string())?;
    fresh_for(&out, kdir, &tools)?;
    make(&tools, kdir, source, &out, more)?;
    let module = out.join(file);
    if !module.is_file() {
        bail!("{}: the build left no {file}", out.display());
    }
    Ok(module)
}

fn make(tools: &Toolchain, kdir: &Path, source: &Path, out: &Path, more: &[&str]) -> Result<()> {
    let log = out.join("build.log");
    File::create(&log).with_context(|| log.display().to_string())?;
    let mut make = tools.make();
    make.arg("-C")
        .arg(kdir)
        .arg(tools::jobs())
        .arg(format!("M={}", source.display()))
        .arg(format!("MO={}", out.display()))
        .arg("modules")
        .args(more);
    tools::run_logged(&mut make, &log, &mut |_| {}).context("building the module")
}

/// The tools that a kernel tree's modules have to be built with.
fn toolchain(tree: preflight::Tree) -> Result<Toolchain> {
    let tools = Toolchain::with_rustc(&Cache::open()?, tree.rustc)?;
    match tree.clang {
        Some(clang) => tools.with_clang(clang),
        None => Ok(tools),
    }
}

/// Builds the module from a source tree that need not be the checkout into a directory that is made, with
/// make's output in build.log there.
///
/// # Errors
///
/// As for [`build`].
pub fn compile(kdir: &Path, source: &Path, out: &Path) -> Result<()> {
    let tools = toolchain(preflight::check_tree(kdir)?)?;
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let absolute = |path: &Path| {
        path.canonicalize()
            .with_context(|| path.display().to_string())
    };
    make(&tools, kdir, &absolute(source)?, &absolute(out)?, &[])
}

/// Refuses a module that can reach core's panics: in a probe that is a dead machine. Only for the lab's own
/// kernels: with `CONFIG_RUST_OVERFLOW_CHECKS`, as distributions have it, code of the kernel crate that is
/// inlined into the control path refers to them.
fn cannot_panic(module: &Path) -> Result<()> {
    let symbols = process::output(Command::new("nm").arg("--undefined-only").arg(module))?;
    let panics: Vec<&str> = symbols
        .split_whitespace()
        .filter(|symbol| is_panic(symbol))
        .collect();
    if !panics.is_empty() {
        bail!(
            "{}: refers to {}: take the code that can panic out of the module",
            module.display(),
            panics.join(", ")
        );
    }
    Ok(())
}

/// Whether a mangled symbol is one of core's ways to panic.
fn is_panic(symbol: &str) -> bool {
    [
        "panicking",
        "unwrap_failed",
        "expect_failed",
        "begin_unwind",
    ]
    .iter()
    .any(|name| symbol.contains(name))
}

/// Objects of another tree or compiler with the same release name must not be linked in: make compares
/// times and command lines, not what is behind a path.
fn fresh_for(out: &Path, kdir: &Path, tools: &Toolchain) -> Result<()> {
    let auto = kdir.join("include/config/auto.conf");
    let config = crate::initramfs::sha256_file(&auto)?;
    let kdir = kdir
        .canonicalize()
        .with_context(|| kdir.display().to_string())?;
    let identity = format!("{}\n{config}\n{}", kdir.display(), tools.identity());
    let mark = out.join(".built-for");
    if fs::read_to_string(&mark).is_ok_and(|old| old == identity) {
        return Ok(());
    }
    for entry in fs::read_dir(out)
        .with_context(|| out.display().to_string())?
        .flatten()
    {
        let path = entry.path();
        if path.ends_with(".lock") {
            continue;
        }
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| path.display().to_string())?;
    }
    crate::cache::write_whole(&mark, identity.as_bytes())
}

/// Arguments of `blkrelay-lab module`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The kernel's build tree, not a package of its headers; without it, the kernel of --flavor
    #[arg(long, value_name = "DIR")]
    kdir: Option<PathBuf>,
    #[arg(long, value_enum, default_value = "trace", conflicts_with = "kdir")]
    flavor: Flavor,
    /// Run the kernel's clippy over it, with warnings as errors
    #[arg(long)]
    clippy: bool,
}

/// Builds the module and prints its path.
///
/// # Errors
///
/// As for [`build`] and [`kernel::ensure`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let module = match &args.kdir {
        Some(kdir) => build(kdir, None, args.clippy)?,
        None => build(
            &kernel::ensure(args.flavor)?.kdir,
            Some(args.flavor),
            args.clippy,
        )?,
    };
    progress::say("module built");
    println!("{}", module.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::is_panic;

    #[test]
    fn panics_are_told_from_other_symbols() {
        for panic in [
            "_RNvNtCs2lKf6AS60Zg_4core9panicking18panic_bounds_check",
            "_RNvNtNtCs2lKf6AS60Zg_4core9panicking11panic_const24panic_const_add_overflow",
            "_RNvNtCs2lKf6AS60Zg_4core6result13unwrap_failed",
        ] {
            assert!(is_panic(panic), "{panic}");
        }
        for other in [
            "relay_open",
            "__stack_chk_fail",
            "_RNvXs_NtCs_6kernel5error",
        ] {
            assert!(!is_panic(other), "{other}");
        }
    }
}
