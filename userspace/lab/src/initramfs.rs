// SPDX-License-Identifier: GPL-2.0
//! The guest's root: an uncompressed cpio archive that depends on nothing but its contents, so that
//! one content hash names what a guest ran. (The test kernel has no decompressor.)

use crate::process;
use anyhow::{bail, Context, Result};
use cpio::newc::{trailer, Builder as Entry, ModeFileType};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const INIT: &str = include_str!("../../../qemu/init");

#[derive(Debug)]
enum Node {
    Directory,
    File { mode: u32, data: Vec<u8> },
    Link(String),
}

/// A finished archive.
#[derive(Debug, Clone)]
pub struct Image {
    /// Where it was written.
    pub path: PathBuf,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

/// Collects the files of an initramfs. Guest paths are absolute; missing directories are added.
#[derive(Debug, Default)]
pub struct Builder(BTreeMap<String, Node>);

impl Builder {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// The usual guest: busybox with a link per applet, the guest agent that stands beside this
    /// program, and the repository's init.
    ///
    /// # Errors
    ///
    /// When busybox (package busybox-static) or the agent is missing.
    pub fn guest() -> Result<Self> {
        let mut b = Self::new();
        for dir in ["proc", "sys", "dev", "tmp", "out", "mnt", "root", "etc"] {
            b.directory(&format!("/{dir}"))?;
        }
        let busybox = find_program("busybox", "busybox-static")?;
        b.copy(&busybox, "/bin/busybox")?;
        let applets = process::output(Command::new(&busybox).arg("--list"))?;
        for applet in applets.lines().filter(|a| *a != "busybox") {
            b.link("/bin/busybox", &format!("/bin/{applet}"))?;
        }
        let lab = std::env::current_exe().context("this program's own path")?;
        let agent = lab.with_file_name("blkrelay-guest");
        if !agent.is_file() {
            bail!(
                "{}: no such file: build it with `make userspace`",
                agent.display()
            );
        }
        b.copy(&agent, "/usr/bin/blkrelay-guest")?;
        b.file("/init", 0o755, INIT.as_bytes())?;
        Ok(b)
    }

    /// Adds a directory and those above it.
    ///
    /// # Errors
    ///
    /// When a part of the path exists as something else.
    pub fn directory(&mut self, path: &str) -> Result<&mut Self> {
        let name = name(path)?;
        let mut at = 0;
        while at <= name.len() {
            let end = name[at..].find('/').map_or(name.len(), |i| at + i);
            match self.0.get(&name[..end]) {
                None => {
                    self.0.insert(name[..end].to_owned(), Node::Directory);
                }
                Some(Node::Directory) => {}
                Some(_) => bail!("initramfs: /{} is no directory", &name[..end]),
            }
            at = end + 1;
        }
        Ok(self)
    }

    fn insert(&mut self, path: &str, node: Node) -> Result<&mut Self> {
        let name = name(path)?;
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(&format!("/{parent}"))?;
        }
        if matches!(self.0.get(name), Some(Node::Directory)) {
            bail!("initramfs: {path} is a directory");
        }
        self.0.insert(name.to_owned(), node);
        Ok(self)
    }

    /// Adds a file with the given permission bits; one that was there is replaced.
    ///
    /// # Errors
    ///
    /// When the path is not absolute or names a directory.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<&mut Self> {
        let data = data.to_vec();
        self.insert(path, Node::File { mode, data })
    }

    /// Adds a symbolic link at `path`.
    ///
    /// # Errors
    ///
    /// As for [`Builder::file`].
    pub fn link(&mut self, target: &str, path: &str) -> Result<&mut Self> {
        self.insert(path, Node::Link(target.to_owned()))
    }

    /// Adds a copy of a file of the host, executable if it is so there.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as for [`Builder::file`].
    pub fn copy(&mut self, host: &Path, path: &str) -> Result<&mut Self> {
        let data = fs::read(host).with_context(|| host.display().to_string())?;
        let bits = fs::metadata(host)?.permissions().mode();
        let mode = if bits & 0o111 != 0 { 0o755 } else { 0o644 };
        self.insert(path, Node::File { mode, data })
    }

    /// Adds a program of the host under its own path, with the loader and the libraries that `ldd`
    /// names for it. A bare name is looked up in the usual directories.
    ///
    /// # Errors
    ///
    /// When the program or one of its libraries is missing.
    pub fn add_program(&mut self, program: &str) -> Result<&mut Self> {
        let host = if program.contains('/') {
            PathBuf::from(program)
        } else {
            find_program(program, program)?
        };
        self.copy(&host, &host.to_string_lossy())?;
        for library in libraries(&host)? {
            self.copy(&library, &library.to_string_lossy())?;
        }
        Ok(self)
    }

    /// Adds the script or program that init runs.
    ///
    /// # Errors
    ///
    /// As for [`Builder::file`].
    pub fn job(&mut self, script: &str) -> Result<&mut Self> {
        self.file("/job", 0o755, script.as_bytes())
    }

    /// The archive's bytes: sorted by path, all owned by root, all times 0.
    ///
    /// # Errors
    ///
    /// When a file is larger than cpio's 4 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (ino, (name, node)) in (1u32..).zip(&self.0) {
            let (kind, mode, data) = match node {
                Node::Directory => (ModeFileType::Directory, 0o755, &[][..]),
                Node::Link(target) => (ModeFileType::Symlink, 0o777, target.as_bytes()),
                Node::File { mode, data } => (ModeFileType::Regular, *mode, &data[..]),
            };
            let size = u32::try_from(data.len())
                .with_context(|| format!("initramfs: /{name} is larger than 4 GiB"))?;
            let mut entry = Entry::new(name)
                .ino(ino)
                .mode(mode)
                .set_mode_file_type(kind)
                .write(&mut out, size);
            entry.write_all(data)?;
            entry.finish()?;
        }
        trailer(&mut out)?;
        Ok(out)
    }

    /// Writes the archive to `path`.
    ///
    /// # Errors
    ///
    /// When it cannot be written, and as for [`Builder::to_bytes`].
    pub fn write(&self, path: &Path) -> Result<Image> {
        let bytes = self.to_bytes()?;
        fs::write(path, &bytes).with_context(|| path.display().to_string())?;
        Ok(Image {
            path: path.to_owned(),
            sha256: hex(&Sha256::digest(&bytes)),
        })
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// SHA-256 of a file, in hex.
///
/// # Errors
///
/// When it cannot be read.
pub fn sha256_file(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).with_context(|| path.display().to_string())?;
    Ok(hex(&hash.finalize()))
}

fn name(path: &str) -> Result<&str> {
    match path.strip_prefix('/') {
        Some(name) if !name.is_empty() && !name.ends_with('/') && !name.contains("//") => Ok(name),
        _ => bail!("initramfs: {path:?} is no absolute path"),
    }
}

/// A program in PATH or in the system directories, which a user's PATH often lacks.
///
/// # Errors
///
/// When it is nowhere: names the Debian package that brings it.
pub fn find_program(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    for dir in dirs {
        let candidate = dir.join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    bail!("{name} is not installed: it is in the package {package}")
}

/// The shared objects that `ldd` names for a program, the loader included; none if it is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        // For a static program ldd fails and says so, on one stream or the other.
        let all = format!("{text}{}", String::from_utf8_lossy(&out.stderr));
        if all.contains("not a dynamic executable") || all.contains("statically linked") {
            return Ok(Vec::new());
        }
        bail!("ldd {}: {}", program.display(), all.trim());
    }
    parse_ldd(&text).with_context(|| program.display().to_string())
}

fn parse_ldd(text: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let target = line.split_once("=>").map_or(line, |(_, t)| t.trim());
        if target.starts_with("not found") {
            bail!("a library is missing: {line}");
        }
        if target.starts_with('/') {
            let path = target.split_once(" (").map_or(target, |(p, _)| p);
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn sample() -> Builder {
        let mut b = Builder::new();
        b.file("/etc/z", 0o644, b"zz\n").unwrap();
        b.file("/bin/a", 0o755, b"#!/bin/sh\n").unwrap();
        b.link("/bin/a", "/bin/b").unwrap();
        b
    }

    /// GNU cpio is the judge of the format.
    #[test]
    fn cpio_reads_the_archive() {
        let bytes = sample().to_bytes().unwrap();
        let mut child = Command::new("cpio")
            .args(["-itv", "--quiet", "--numeric-uid-gid"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        let text = String::from_utf8(out.stdout).unwrap();
        let rows: Vec<(&str, &str, &str)> = text
            .lines()
            .map(|l| {
                let w: Vec<&str> = l.split_whitespace().collect();
                (w[0], w[4], w[8])
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("drwxr-xr-x", "0", "bin"),
                ("-rwxr-xr-x", "10", "bin/a"),
                ("lrwxrwxrwx", "6", "bin/b"),
                ("drwxr-xr-x", "0", "etc"),
                ("-rw-r--r--", "3", "etc/z"),
            ]
        );
    }

    #[test]
    fn equal_contents_give_equal_archives() {
        let mut other = Builder::new();
        other.link("/bin/a", "/bin/b").unwrap();
        other.file("/bin/a", 0o755, b"#!/bin/sh\n").unwrap();
        other.file("/etc/z", 0o644, b"zz\n").unwrap();
        assert_eq!(sample().to_bytes().unwrap(), other.to_bytes().unwrap());
    }

    #[test]
    fn bad_paths_are_refused() {
        let mut b = sample();
        assert!(b.file("relative", 0o644, b"").is_err());
        assert!(b.file("/etc", 0o644, b"").is_err());
        assert!(b.file("/etc/z/below-a-file", 0o644, b"").is_err());
        assert!(b.directory("/bin/a").is_err());
    }

    #[test]
    fn ldd_lines() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";
        assert_eq!(
            parse_ldd(text).unwrap(),
            [
                Path::new("/lib/x86_64-linux-gnu/libc.so.6"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert!(parse_ldd("\tlibx.so => not found\n").is_err());
        assert!(parse_ldd("\tstatically linked\n").unwrap().is_empty());
    }
}
