// SPDX-License-Identifier: GPL-2.0
//! The compilers that kernels and the module are built with: which ones, and their versions, which are
//! part of what a build is keyed by.

use crate::cache::Cache;
use crate::initramfs::find_program;
use crate::process;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Oldest bindgen that the kernel takes (scripts/min-tool-version.sh).
pub const MIN_BINDGEN: (u32, u32, u32) = (0, 71, 1);
/// Oldest libclang that the kernel's bindings are right with.
pub const MIN_LIBCLANG: u32 = 17;

/// A set of compilers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// First line of the C compiler's `--version`.
    pub cc: String,
    /// The C compiler if it is not gcc.
    pub clang: Option<Clang>,
    /// First line of `ld --version`.
    pub ld: String,
    /// The Rust compiler.
    pub rustc: PathBuf,
    /// Its `--version`.
    pub rustc_version: String,
    /// bindgen.
    pub bindgen: PathBuf,
    /// Its `--version`.
    pub bindgen_version: String,
    /// Directory of the libclang that bindgen is made to use.
    pub libclang: PathBuf,
}

/// A C compiler of LLVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clang {
    /// The program.
    pub path: PathBuf,
    /// First line of its `--version`.
    pub version: String,
    /// LLVM's linker and tools instead of binutils.
    pub llvm: bool,
}

impl Clang {
    /// All that are in PATH and where Debian puts them: `clang`, and `clang-N` from the newest down.
    pub fn all() -> Vec<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        dirs.push("/usr/bin".into());
        let mut names = vec!["clang".to_owned()];
        names.extend((MIN_LIBCLANG..60).rev().map(|n| format!("clang-{n}")));
        let files = names
            .iter()
            .filter_map(|name| dirs.iter().map(|d| d.join(name)).find(|p| p.is_file()));
        files
            .filter_map(|path| {
                Some(Self {
                    version: version_of(&path).ok()?,
                    path,
                    llvm: false,
                })
            })
            .collect()
    }

    /// The one of the same release as a libclang: flags that one of the two does not know would fail the
    /// bindings. The linker and the other tools stay those of binutils.
    ///
    /// # Errors
    ///
    /// When it is not installed.
    pub fn beside(libclang: &Path) -> Result<Self> {
        let path = libclang.with_file_name("bin").join("clang");
        if !path.is_file() {
            bail!("{}: no such file: run qemu/install clang", path.display());
        }
        Ok(Self {
            version: version_of(&path)?,
            path,
            llvm: false,
        })
    }

    /// Directory of the libclang of the same release, if it is installed.
    fn libclang(&self) -> Option<PathBuf> {
        let dir = self
            .path
            .canonicalize()
            .ok()?
            .parent()?
            .with_file_name("lib");
        let mut names = std::fs::read_dir(&dir).ok()?.flatten();
        names
            .any(|e| {
                // libclang.so or libclang-19.so.1; libclang-cpp is another library.
                let name = e.file_name();
                let name = name.to_string_lossy();
                name.contains(".so")
                    && !name.starts_with("libclang-cpp")
                    && name.starts_with("libclang")
            })
            .then_some(dir)
    }

    /// What make has to be told.
    fn variable(&self) -> String {
        // LLVM=-22 stands for clang-22, ld.lld-22 and so on, LLVM=1 for the bare names.
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_prefix("clang") {
            Some("") if self.llvm => "LLVM=1".to_owned(),
            Some(suffix) if self.llvm => format!("LLVM={suffix}"),
            _ => format!("CC={}", self.path.display()),
        }
    }
}

/// First line of `program --version`.
///
/// # Errors
///
/// When the program cannot be run.
pub fn version_of(program: &Path) -> Result<String> {
    let text = process::output(Command::new(program).arg("--version").env("LC_ALL", "C"))?;
    Ok(text.lines().next().unwrap_or("").trim().to_owned())
}

/// The first `a.b.c` in a text.
pub fn triple(text: &str) -> Option<(u32, u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .find_map(|word| {
            let mut parts = word.split('.').map(str::parse::<u32>);
            match (parts.next(), parts.next(), parts.next()) {
                (Some(Ok(a)), Some(Ok(b)), Some(Ok(c))) => Some((a, b, c)),
                _ => None,
            }
        })
}

/// `$RUSTC`, else the one that Debian's packages install; not what happens to be first in PATH.
///
/// # Errors
///
/// When there is none.
pub fn rustc() -> Result<PathBuf> {
    match std::env::var_os("RUSTC").filter(|v| !v.is_empty()) {
        Some(own) if Path::new(&own).is_absolute() => Ok(own.into()),
        Some(own) => find_program(&own.to_string_lossy(), "rustc-web"),
        None if Path::new("/usr/bin/rustc").is_file() => Ok("/usr/bin/rustc".into()),
        None => find_program("rustc", "rustc-web"),
    }
}

/// A bindgen that is new enough: `$BINDGEN`, the one in PATH, or the one in the cache.
///
/// # Errors
///
/// When there is none.
pub fn bindgen(cache: &Cache) -> Result<(PathBuf, String)> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    if let Some(own) = std::env::var_os("BINDGEN").filter(|v| !v.is_empty()) {
        candidates.push(own.into());
    } else {
        candidates.extend(find_program("bindgen", "bindgen"));
        let own = cache.entries("bindgen");
        candidates.extend(own.iter().map(|e| cache.path(e).join("bin/bindgen")));
    }
    let mut seen = Vec::new();
    for path in candidates {
        let Ok(version) = version_of(&path) else {
            continue;
        };
        if triple(&version).is_some_and(|v| v >= MIN_BINDGEN) {
            return Ok((path, version));
        }
        seen.push(version);
    }
    let (a, b, c) = MIN_BINDGEN;
    let found = if seen.is_empty() {
        "none is installed".to_owned()
    } else {
        format!("found {}", seen.join(", "))
    };
    bail!("no bindgen >= {a}.{b}.{c} ({found}): run qemu/install")
}

/// Directory of the newest libclang.
///
/// # Errors
///
/// When there is none of [`MIN_LIBCLANG`] or later.
pub fn libclang() -> Result<PathBuf> {
    if let Some(own) = std::env::var_os("LIBCLANG_PATH").filter(|v| !v.is_empty()) {
        return Ok(own.into());
    }
    let mut best: Option<(u32, PathBuf)> = None;
    for entry in std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("llvm-"));
        let Some(version) = number.and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        // The development package's link: the run-time library alone has another name.
        let dir = entry.path().join("lib");
        if dir.join("libclang.so").exists() && best.as_ref().is_none_or(|b| version > b.0) {
            best = Some((version, dir));
        }
    }
    match best {
        Some((version, dir)) if version >= MIN_LIBCLANG => Ok(dir),
        Some((version, _)) => {
            bail!("libclang {version} is too old: install libclang-19-dev or later")
        }
        None => bail!("no libclang: install libclang-19-dev or later"),
    }
}

impl Toolchain {
    /// What this machine has.
    ///
    /// # Errors
    ///
    /// When something is missing or too old: names it.
    pub fn find(cache: &Cache) -> Result<Self> {
        Self::with_rustc(cache, rustc()?)
    }

    /// The same with a given Rust compiler.
    ///
    /// # Errors
    ///
    /// As for [`Toolchain::find`].
    pub fn with_rustc(cache: &Cache, rustc: PathBuf) -> Result<Self> {
        let (bindgen, bindgen_version) = bindgen(cache)?;
        Ok(Self {
            cc: version_of(&find_program("gcc", "gcc")?)?,
            clang: None,
            ld: version_of(&find_program("ld", "binutils")?)?,
            rustc_version: version_of(&rustc)?,
            rustc,
            bindgen,
            bindgen_version,
            libclang: libclang()?,
        })
    }

    /// The same with clang as the C compiler.
    ///
    /// # Errors
    ///
    /// When LLVM's linker is asked for and is not there.
    pub fn with_clang(mut self, clang: Clang) -> Result<Self> {
        self.cc.clone_from(&clang.version);
        if clang.llvm {
            let name = clang.path.file_name().unwrap_or_default().to_string_lossy();
            let linker = name.replacen("clang", "ld.lld", 1);
            self.ld = version_of(&find_program(&linker, "lld")?)?;
        }
        if let Some(dir) = clang.libclang() {
            self.libclang = dir;
        }
        self.clang = Some(clang);
        Ok(self)
    }

    /// What decides the compiled code, one item a line.
    pub fn identity(&self) -> String {
        format!(
            "{}\n{}\n{}\n{}\n{}\n",
            self.cc,
            self.ld,
            self.rustc_version,
            self.bindgen_version,
            self.libclang.display()
        )
    }

    /// A `make` that uses these compilers, with nothing of a calling make or of the user's kernel habits
    /// in its environment.
    pub fn make(&self) -> Command {
        let mut make = Command::new("make");
        for name in [
            "MAKEFLAGS",
            "MAKELEVEL",
            "MFLAGS",
            "MAKEOVERRIDES",
            "ARCH",
            "CROSS_COMPILE",
            "KBUILD_OUTPUT",
            "KCFLAGS",
            "KRUSTFLAGS",
            "RUSTFLAGS",
            "CC",
            "LLVM",
            "O",
            "V",
        ] {
            make.env_remove(name);
        }
        make.env("LC_ALL", "C")
            .env("LIBCLANG_PATH", &self.libclang)
            .arg(format!("RUSTC={}", self.rustc.display()))
            .arg(format!("HOSTRUSTC={}", self.rustc.display()))
            .arg(format!("BINDGEN={}", self.bindgen.display()));
        if let Some(clang) = &self.clang {
            make.arg(clang.variable());
        }
        make
    }
}

/// Jobs for make: as many as there are CPUs.
pub fn jobs() -> String {
    let n = std::thread::available_parallelism().map_or(1, |n| n.get());
    format!("-j{n}")
}

/// Runs `make` with all its output in `log`; `on_line` sees each line. On failure the error ends with
/// the log's last lines and its path.
///
/// # Errors
///
/// When make cannot be started or fails.
pub fn run_logged(make: &mut Command, log: &Path, on_line: &mut dyn FnMut(&str)) -> Result<()> {
    use std::io::{BufRead, BufReader, Write};
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| log.display().to_string())?;
    let (reader, writer) = std::io::pipe()?;
    make.stdin(std::process::Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    process::tie(make, nix::sys::signal::Signal::SIGTERM);
    let mut child = make.spawn().context("make")?;
    // The command holds the pipe's write ends: with them open the reader would never see the end.
    make.stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut tail: std::collections::VecDeque<String> = std::collections::VecDeque::new();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        file.write_all(&line)?;
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        on_line(&text);
        if tail.len() == 20 {
            tail.pop_front();
        }
        tail.push_back(text);
    }
    let status = child.wait()?;
    if !status.success() {
        let tail: Vec<String> = tail.into();
        bail!(
            "make: {status}; the last lines of {}:\n  | {}",
            log.display(),
            tail.join("\n  | ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triples() {
        assert_eq!(triple("bindgen 0.73.2"), Some((0, 73, 2)));
        assert_eq!(
            triple("rustc 1.96.0 (ac68faa20 2026-05-25)"),
            Some((1, 96, 0))
        );
        assert_eq!(
            triple("gcc (Debian 12.2.0-14+deb12u1) 12.2.0"),
            Some((12, 2, 0))
        );
        assert_eq!(triple("none"), None);
        assert!((0, 60, 1) < MIN_BINDGEN && (0, 71, 1) >= MIN_BINDGEN);
    }

    #[test]
    fn a_failed_command_shows_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut seen = 0;
        let mut sh = Command::new("sh");
        sh.args(["-c", "echo one; echo two >&2; exit 3"]);
        let error = run_logged(&mut sh, &log, &mut |_| seen += 1).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("| one") && text.contains("| two"), "{text}");
        assert_eq!(seen, 2);
        assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2);
    }
}
