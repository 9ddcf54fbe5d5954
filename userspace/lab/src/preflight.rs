// SPDX-License-Identifier: GPL-2.0
//! What is missing on this machine, and the Debian package that brings it; and whether a module can be
//! built for a given kernel tree, and with which Rust compiler.

use crate::cache::Cache;
use crate::initramfs::find_program;
use crate::tools::{self, Clang};
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Programs that building kernels and booting guests needs, with their packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("cargo", "cargo-web"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mkfs.ext3", "e2fsprogs"),
    ("dmsetup", "dmsetup"),
    ("blktrace", "blktrace"),
    ("blkparse", "blktrace"),
];

/// Headers, with their packages.
const HEADERS: &[(&str, &str)] = &[
    ("libelf.h", "libelf-dev"),
    ("gelf.h", "libelf-dev"),
    ("openssl/opensslv.h", "libssl-dev"),
];

/// Everything that is missing, one line each; empty if all is there.
pub fn missing(cache: &Cache) -> Vec<String> {
    let mut lines = Vec::new();
    for (program, package) in PROGRAMS {
        if let Err(e) = find_program(program, package) {
            lines.push(e.to_string());
        }
    }
    for (header, package) in HEADERS {
        let found = ["/usr/include", "/usr/include/x86_64-linux-gnu"]
            .iter()
            .any(|dir| Path::new(dir).join(header).is_file());
        if !found {
            lines.push(format!(
                "<{header}> is not there: it is in the package {package}"
            ));
        }
    }
    match tools::rustc() {
        Err(e) => lines.push(e.to_string()),
        Ok(rustc) => lines.extend(rust_source(&rustc).err().map(|e| e.to_string())),
    }
    lines.extend(tools::bindgen(cache).err().map(|e| e.to_string()));
    lines.extend(tools::libclang().err().map(|e| e.to_string()));
    lines
}

/// The kernel compiles the core library itself and so needs its source, beside the compiler or where
/// RUST_LIB_SRC says.
fn rust_source(rustc: &Path) -> Result<()> {
    let own = std::env::var_os("RUST_LIB_SRC").map(PathBuf::from);
    let dir = match own {
        Some(dir) => dir,
        None => {
            let mut command = std::process::Command::new(rustc);
            let sysroot = crate::process::output(command.args(["--print", "sysroot"]))?;
            Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library")
        }
    };
    if !dir.join("core/src/lib.rs").is_file() {
        bail!(
            "{}: no source of the Rust library: it is in the package rust-web-src",
            dir.display()
        );
    }
    Ok(())
}

/// Options that a kernel must have for blkrelay.ko, and why.
const WANTED: &[(&str, &str)] = &[
    ("CONFIG_RUST", "the module is written in Rust"),
    ("CONFIG_MODULES", "it is a module"),
    ("CONFIG_RELAY", "it writes into relay buffers"),
    ("CONFIG_TRACEPOINTS", "it attaches to the block tracepoints"),
    ("CONFIG_DEBUG_FS", "its files are in debugfs"),
    ("CONFIG_BLOCK", "it traces block devices"),
];

/// A kernel tree for which the module can be built.
#[derive(Debug)]
pub struct Tree {
    /// `uname -r` of the kernel.
    pub release: String,
    /// A Rust compiler of the very version that built it.
    pub rustc: PathBuf,
    /// The C compiler if it is clang: the very one that built it, else another.
    pub clang: Option<Clang>,
}

/// Checks a kernel build tree or a distribution's headers directory.
///
/// # Errors
///
/// When it is no such tree, an option or a built file is missing, or no Rust compiler here is the one
/// that built it: says which version is wanted and which are there.
pub fn check_tree(kdir: &Path) -> Result<Tree> {
    let shown = kdir.display();
    if !kdir.is_dir() {
        bail!("{shown}: no such directory");
    }
    if !kdir.join("Makefile").is_file() {
        bail!("{shown}: no kernel build tree: it has no Makefile");
    }
    let auto = kdir.join("include/config/auto.conf");
    let config = fs::read_to_string(&auto)
        .with_context(|| format!("{shown}: not configured and built: {}", auto.display()))?;
    let value = |name: &str| {
        config
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix('='))
            .map(|v| v.trim_matches('"').to_owned())
    };
    for (name, why) in WANTED {
        if value(name).as_deref() != Some("y") {
            bail!("{shown}: the kernel lacks {name}=y: {why}");
        }
    }
    // Distributions' headers packages leave out what is built from Rust: it fits one compiler only.
    if !kdir.join("rust/libkernel.rmeta").is_file() {
        bail!(
            "{shown}: rust/libkernel.rmeta is missing: a headers package does not do, build this \
             kernel's source with this config first (make modules_prepare)"
        );
    }
    if !kdir.join("Module.symvers").is_file() {
        bail!(
            "{shown}: Module.symvers is missing: build the kernel (make all), or copy that file \
             from its headers package"
        );
    }
    let release = fs::read_to_string(kdir.join("include/config/kernel.release"))
        .with_context(|| format!("{shown}: not built"))?;
    let wanted = value("CONFIG_RUSTC_VERSION_TEXT")
        .with_context(|| format!("{shown}: it does not say which rustc built it"))?;
    let is = |name: &str| value(name).as_deref() == Some("y");
    let clang = if is("CONFIG_CC_IS_CLANG") {
        let built_by = value("CONFIG_CC_VERSION_TEXT").unwrap_or_default();
        let mut all = Clang::all();
        all.sort_by_key(|c| c.version != built_by);
        let first = all.into_iter().next();
        let mut clang = first.with_context(|| {
            format!("{shown}: built by {built_by}, and there is no clang: install that package")
        })?;
        clang.llvm = is("CONFIG_LD_IS_LLD");
        Some(clang)
    } else {
        None
    };
    Ok(Tree {
        release: release.trim().to_owned(),
        clang,
        rustc: matching(&wanted, &compilers()).context(shown.to_string())?,
    })
}

/// Rust's library metadata is readable by the very compiler that wrote it only.
fn matching(wanted: &str, have: &[(PathBuf, String)]) -> Result<PathBuf> {
    if let Some((path, _)) = have.iter().find(|(_, version)| version == wanted) {
        return Ok(path.clone());
    }
    let list: Vec<String> = have
        .iter()
        .map(|(path, version)| format!("{} is {version}", path.display()))
        .collect();
    let list = if list.is_empty() {
        "there is none here".to_owned()
    } else {
        list.join(", ")
    };
    bail!("the kernel was built by {wanted}, and the module needs the same; {list}: set RUSTC")
}

/// The Rust compilers of this machine: `$RUSTC` alone if it is set, else all that are in PATH, Debian's
/// and rustup's.
fn compilers() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = Vec::new();
    if std::env::var_os("RUSTC").is_some_and(|v| !v.is_empty()) {
        paths.extend(tools::rustc());
    } else {
        paths.push("/usr/bin/rustc".into());
        let path = std::env::var_os("PATH").unwrap_or_default();
        paths.extend(std::env::split_paths(&path).map(|d| d.join("rustc")));
        if let Some(home) = std::env::var_os("HOME") {
            let dir = Path::new(&home).join(".rustup/toolchains");
            for toolchain in fs::read_dir(dir).into_iter().flatten().flatten() {
                paths.push(toolchain.path().join("bin/rustc"));
            }
        }
    }
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for path in paths {
        if found.iter().any(|f| f.0 == path) || !path.is_file() {
            continue;
        }
        if let Ok(version) = tools::version_of(&path) {
            found.push((path, version));
        }
    }
    found
}

/// Arguments of `blkrelay-lab preflight`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also check that the module can be built for this kernel tree
    #[arg(long, value_name = "DIR")]
    kdir: Option<PathBuf>,
}

/// Prints what is missing; exits with 1 if anything is.
///
/// # Errors
///
/// As for [`check_tree`].
pub fn run(args: &Args) -> Result<ExitCode> {
    let missing = missing(&Cache::open()?);
    for line in &missing {
        println!("missing: {line}");
    }
    if let Some(kdir) = &args.kdir {
        let tree = check_tree(kdir)?;
        println!(
            "{}: {} takes the module, built with {}",
            kdir.display(),
            tree.release,
            tree.rustc.display()
        );
    }
    // Only some stress tests need it.
    if let Err(e) = tools::libclang().and_then(|dir| Clang::beside(&dir)) {
        println!("missing for the kasan kernel: clang: {e}");
    }
    if missing.is_empty() {
        println!("nothing is missing");
        return Ok(ExitCode::SUCCESS);
    }
    println!("qemu/install installs all of it");
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(config: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("Makefile", "");
        write("Module.symvers", "");
        write("rust/libkernel.rmeta", "");
        write("include/config/kernel.release", "7.3.4\n");
        write("include/config/auto.conf", config);
        dir
    }

    const GOOD: &str = "CONFIG_RUST=y\nCONFIG_MODULES=y\nCONFIG_RELAY=y\nCONFIG_TRACEPOINTS=y\n\
                        CONFIG_DEBUG_FS=y\nCONFIG_BLOCK=y\n";

    #[test]
    fn a_tree_without_rust_is_named() {
        let dir = tree(&GOOD.replace("CONFIG_RUST=y\n", ""));
        let text = check_tree(dir.path()).unwrap_err().to_string();
        assert!(text.contains("CONFIG_RUST=y"), "{text}");
        for (path, why) in [
            ("/nonexistent", "no such directory"),
            ("/proc/self", "no kernel build tree"),
        ] {
            let text = check_tree(Path::new(path)).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn a_tree_of_another_rustc_is_named() {
        let dir = tree(&format!(
            "{GOOD}CONFIG_RUSTC_VERSION_TEXT=\"rustc 0.0.1 (x)\"\n"
        ));
        let text = format!("{:#}", check_tree(dir.path()).unwrap_err());
        assert!(text.contains("built by rustc 0.0.1 (x)"), "{text}");
        fs::remove_file(dir.path().join("rust/libkernel.rmeta")).unwrap();
        let text = format!("{:#}", check_tree(dir.path()).unwrap_err());
        assert!(text.contains("libkernel.rmeta"), "{text}");
    }

    #[test]
    fn the_compiler_must_be_the_same() {
        let have = [
            (PathBuf::from("/a"), "rustc 1.95.0 (x)".to_owned()),
            (PathBuf::from("/b"), "rustc 1.96.0 (y)".to_owned()),
        ];
        assert_eq!(
            matching("rustc 1.96.0 (y)", &have).unwrap(),
            Path::new("/b")
        );
        let text = matching("rustc 1.85.1", &have).unwrap_err().to_string();
        assert!(text.contains("/a is rustc 1.95.0 (x)"), "{text}");
        let text = matching("rustc 1.85.1", &[]).unwrap_err().to_string();
        assert!(text.contains("none here"), "{text}");
    }
}
