// SPDX-License-Identifier: GPL-2.0
//! Test kernels: source from Debian, config from the fragments in qemu/config, build in the cache.

use crate::cache::Cache;
use crate::deb::Apt;
use crate::initramfs::{hex, sha256_file};
use crate::process;
use crate::progress::{self, Steps};
use crate::tools::{self, Clang, Toolchain};
use anyhow::{bail, Context, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a test kernel is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Flavor {
    /// What is traced and measured.
    Trace,
    /// With the kernel's own checks (locking, RCU, atomic sleep, memory), failing allocations, and disks
    /// that can be pulled out.
    Debug,
    /// With the address sanitizer instead of those checks; compiled by clang, or it would not see Rust.
    Kasan,
}

impl Flavor {
    /// The name in paths, on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Kasan => "kasan",
        }
    }

    /// Config fragments, the later one wins.
    fn fragments(self) -> &'static [(&'static str, &'static str)] {
        const TRACE: (&str, &str) = (
            "trace.config",
            include_str!("../../../qemu/config/trace.config"),
        );
        const STRESS: (&str, &str) = (
            "stress.config",
            include_str!("../../../qemu/config/stress.config"),
        );
        const DEBUG: (&str, &str) = (
            "debug.config",
            include_str!("../../../qemu/config/debug.config"),
        );
        const KASAN: (&str, &str) = (
            "kasan.config",
            include_str!("../../../qemu/config/kasan.config"),
        );
        match self {
            Self::Trace => &[TRACE],
            Self::Debug => &[TRACE, STRESS, DEBUG],
            Self::Kasan => &[TRACE, STRESS, KASAN],
        }
    }

    /// Build steps of 7.3, for the progress display of a first build.
    fn steps(self) -> u64 {
        match self {
            Self::Trace => 1500,
            Self::Debug | Self::Kasan => 1700,
        }
    }

    fn toolchain(self, cache: &Cache) -> Result<Toolchain> {
        let tools = Toolchain::find(cache)?;
        match self {
            Self::Trace | Self::Debug => Ok(tools),
            Self::Kasan => {
                let clang = Clang::beside(&tools.libclang)?;
                tools.with_clang(clang)
            }
        }
    }
}

/// A built kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its flavour.
    pub flavor: Flavor,
    /// The build tree, for modules.
    pub kdir: PathBuf,
    /// The bzImage.
    pub image: PathBuf,
    /// `uname -r`.
    pub release: String,
    /// SHA-256 of the .config.
    pub config_sha256: String,
    /// First line of the C compiler's `--version`.
    pub cc: String,
    /// `rustc --version`.
    pub rustc: String,
}

/// The kernel of a flavour, built if the cache does not have it.
///
/// # Errors
///
/// When a compiler is missing, the source cannot be fetched, a line of the config fragment does not
/// hold, or the build fails: then with the last lines of its log.
pub fn ensure(flavor: Flavor) -> Result<Kernel> {
    ensure_in(&Cache::open()?, flavor, false)
}

/// The same in a given cache; `update` asks the mirror for a newer source even if there is one.
///
/// # Errors
///
/// As for [`ensure`].
pub fn ensure_in(cache: &Cache, flavor: Flavor, update: bool) -> Result<Kernel> {
    let tools = flavor.toolchain(cache)?;
    let source = source(cache, update)?;
    let fragment = merge(flavor.fragments());
    let key = key(&source.version, &fragment, &tools.identity());
    let entry = format!("kernel/{}-{}-{key}", flavor.name(), source.version);
    let (dir, made) = cache.get(&entry, |dir| {
        let donor = donor(cache, &entry, &source, &tools);
        build(flavor, &source, &tools, &fragment, donor.as_deref(), dir)
    })?;
    if !made {
        progress::say(&format!("kernel {}: in the cache", flavor.name()));
    }
    let stamp: serde_json::Value = serde_json::from_str(&cache.stamp(&entry)?)
        .with_context(|| format!("{}/stamp: remove that directory", dir.display()))?;
    let text = |name: &str| stamp[name].as_str().unwrap_or_default().to_owned();
    let kdir = dir.join("build");
    Ok(Kernel {
        flavor,
        image: kdir.join("arch/x86/boot/bzImage"),
        release: text("release"),
        config_sha256: text("config_sha256"),
        cc: text("cc"),
        rustc: text("rustc"),
        kdir,
    })
}

/// What a build is named by: 12 hex digits of everything that decides it.
fn key(version: &str, fragment: &str, tools: &str) -> String {
    let mut hash = Sha256::new();
    for part in [version, fragment, tools] {
        // Lengths keep parts apart: "ab" + "c" is not "a" + "bc".
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())[..12].to_owned()
}

/// An unpacked kernel source in which nothing is ever built.
struct Source {
    version: String,
    tree: PathBuf,
}

fn source(cache: &Cache, update: bool) -> Result<Source> {
    let _lock = cache.lock("source")?;
    let known = || {
        let newest = cache.entries("source").into_iter().max_by_key(|e| {
            let stamp = cache.path(e).join("stamp");
            fs::metadata(stamp).and_then(|m| m.modified()).ok()
        })?;
        Some(Source {
            version: newest.strip_prefix("source/")?.to_owned(),
            tree: cache.path(&newest).join("linux"),
        })
    };
    if !update {
        if let Some(source) = known() {
            return Ok(source);
        }
    }
    progress::say("asking the mirror for the newest kernel source");
    let apt = Apt::update(&cache.path("apt"))?;
    let offer = apt.kernel_source()?;
    // "source/7.3.4-1~bpo13+1": a version is a file name but for the epoch's colon.
    let version = offer.version.replace(':', "_");
    let (dir, _) = cache.get(&format!("source/{version}"), |dir| {
        let deb = apt.download(&offer, dir)?;
        progress::say(&format!("unpacking {}", offer.package));
        unpack(&deb, &offer.package, &dir.join("linux"))?;
        fs::remove_file(&deb).with_context(|| deb.display().to_string())?;
        Ok(format!("{} {}\n", offer.package, offer.version))
    })?;
    Ok(Source {
        version,
        tree: dir.join("linux"),
    })
}

/// `deb` holds one tarball of the source; three programs unpack it without a copy in between.
fn unpack(deb: &Path, package: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let mut outer = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdout(Stdio::piped())
        .spawn()
        .context("dpkg-deb")?;
    let mut pick = Command::new("tar")
        .args(["-xOf", "-"])
        .arg(format!("./usr/src/{package}.tar.xz"))
        .stdin(outer.stdout.take().context("dpkg-deb")?)
        .stdout(Stdio::piped())
        .spawn()
        .context("tar")?;
    let mut inner = Command::new("tar")
        .args(["-xJf", "-", "--strip-components=1", "-C"])
        .arg(to)
        .stdin(pick.stdout.take().context("tar")?)
        .spawn()
        .context("tar")?;
    // The one that writes the files is the one that must have seen everything; a tarball that ends early
    // fails it. The outer two may be cut off by a pipe that closed behind the last member.
    let inner = inner.wait()?;
    let (pick, _) = (pick.wait()?, outer.wait()?);
    if !inner.success() || !pick.success() || !to.join("Makefile").is_file() {
        bail!("{}: the kernel source does not unpack", deb.display());
    }
    Ok(())
}

/// A finished build tree of another flavour or config from the same source and compilers.
fn donor(cache: &Cache, entry: &str, source: &Source, tools: &Toolchain) -> Option<PathBuf> {
    cache.entries("kernel").into_iter().find_map(|other| {
        let stamp: serde_json::Value = serde_json::from_str(&cache.stamp(&other).ok()?).ok()?;
        let same = stamp["source"] == source.version.as_str()
            && stamp["tools"] == tools.identity().as_str();
        (same && other != entry).then(|| cache.path(&other).join("build"))
    })
}

/// The settings of all fragments in the order of the text, the last one of a name.
fn merge(fragments: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let all: BTreeMap<String, String> = fragments.iter().flat_map(|(_, t)| settings(t)).collect();
    for (name, value) in all {
        if value == "n" {
            text += &format!("# {name} is not set\n");
        } else {
            text += &format!("{name}={value}\n");
        }
    }
    text
}

/// The settings in a config text; "is not set" counts as `n`.
fn settings(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix("# ")
            .and_then(|l| l.strip_suffix(" is not set"))
        {
            found.push((name.to_owned(), "n".to_owned()));
        } else if let Some((name, value)) = line.split_once('=') {
            if name.starts_with("CONFIG_") {
                found.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    found
}

/// The settings of `fragment` that do not hold in `config`: a dependency is not met, or the option is
/// gone from this kernel.
fn broken(fragment: &str, config: &str) -> Vec<String> {
    let config: BTreeMap<String, String> = settings(config).into_iter().collect();
    settings(fragment)
        .into_iter()
        .filter(|(name, value)| config.get(name).map_or("n", String::as_str) != value)
        .map(|(name, value)| {
            let have = config.get(&name).map_or("not there", String::as_str);
            format!("{name}={value} (is {have})")
        })
        .collect()
}

fn build(
    flavor: Flavor,
    source: &Source,
    tools: &Toolchain,
    fragment: &str,
    donor: Option<&Path>,
    dir: &Path,
) -> Result<String> {
    let what = format!("kernel {}", flavor.name());
    let kdir = dir.join("build");
    let log = dir.join("build.log");
    match donor {
        Some(donor) => {
            progress::say(&format!(
                "{what}: starting from another flavour's build tree"
            ));
            process::output(
                Command::new("cp")
                    .args(["-a", "--reflink=auto"])
                    .args([donor, &kdir]),
            )?;
        }
        None => fs::create_dir_all(&kdir).with_context(|| kdir.display().to_string())?,
    }
    let wanted = dir.join("fragment.config");
    fs::write(&wanted, fragment).with_context(|| wanted.display().to_string())?;
    let make = || {
        let mut make = tools.make();
        // Who built it where and when is part of the kernel's banner, and so of its instruction counts.
        make.env("KBUILD_BUILD_USER", "blkrelay")
            .env("KBUILD_BUILD_HOST", "lab")
            .env("KBUILD_BUILD_VERSION", "1")
            .env("KBUILD_BUILD_TIMESTAMP", "2026-01-01T00:00:00Z")
            .arg("-C")
            .arg(&source.tree)
            .arg(format!("O={}", kdir.display()));
        make
    };
    let mut configure = make();
    configure
        .env("KCONFIG_ALLCONFIG", &wanted)
        .arg("allnoconfig");
    tools::run_logged(&mut configure, &log, &mut |_| {}).context(format!("{what}: configuring"))?;
    let config = fs::read_to_string(kdir.join(".config"))
        .with_context(|| format!("{}/.config", kdir.display()))?;
    let broken = broken(fragment, &config);
    if !broken.is_empty() {
        if broken.iter().any(|b| b.starts_with("CONFIG_RUST=")) {
            tools::run_logged(make().arg("rustavailable"), &log, &mut |_| {})
                .context("the kernel does not take these Rust tools")?;
        }
        bail!(
            "{what}: linux {} does not hold what qemu/config asks for: {}",
            source.version,
            broken.join(", ")
        );
    }
    let mut steps = Steps::new(&what);
    let mut done = 0;
    let mut all = make();
    all.args([&tools::jobs(), "all"]);
    tools::run_logged(&mut all, &log, &mut |line| {
        if is_step(line) {
            done += 1;
            steps.at(done, flavor.steps());
        }
    })
    .context(format!("{what}: building"))?;
    steps.done(&format!("built, {done} steps"));
    let release =
        fs::read_to_string(kdir.join("include/config/kernel.release")).context("kernel.release")?;
    let stamp = serde_json::json!({
        "flavor": flavor.name(),
        "source": source.version,
        "release": release.trim(),
        "config_sha256": sha256_file(&kdir.join(".config"))?,
        "tools": tools.identity(),
        "cc": tools.cc,
        "rustc": tools.rustc_version,
        "steps": done,
    });
    Ok(format!("{stamp:#}\n"))
}

/// Kbuild's short form of a command: `  CC      block/bio.o`.
fn is_step(line: &str) -> bool {
    line.strip_prefix("  ")
        .is_some_and(|l| l.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Arguments of `blkrelay-lab kernel`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long, value_enum, default_value = "trace")]
    flavor: Flavor,
    /// Ask the mirror for a newer kernel source than the one in the cache
    #[arg(long)]
    update: bool,
}

/// Builds the kernel of a flavour and prints its image and build tree.
///
/// # Errors
///
/// As for [`ensure`].
pub fn run(args: &Args) -> Result<std::process::ExitCode> {
    let kernel = ensure_in(&Cache::open()?, args.flavor, args.update)?;
    println!("release {}", kernel.release);
    println!("image   {}", kernel.image.display());
    println!("kdir    {}", kernel.kdir.display());
    Ok(std::process::ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_merge_and_are_checked() {
        let merged = merge(&[
            ("a", "# a comment\nCONFIG_A=y\nCONFIG_B=y\n"),
            ("b", "# CONFIG_A is not set\nCONFIG_N=5\nCONFIG_S=\"x y\"\n"),
        ]);
        assert_eq!(
            merged,
            "# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_N=5\nCONFIG_S=\"x y\"\n"
        );
        let good = "CONFIG_B=y\nCONFIG_N=5\nCONFIG_S=\"x y\"\nCONFIG_Z=m\n";
        assert!(broken(&merged, good).is_empty());
        let bad = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_N=5\nCONFIG_S=\"x y\"\n";
        assert_eq!(
            broken(&merged, bad),
            ["CONFIG_A=n (is y)", "CONFIG_B=y (is n)"]
        );
        assert_eq!(
            broken("CONFIG_GONE=y\n", ""),
            ["CONFIG_GONE=y (is not there)"]
        );
    }

    #[test]
    fn the_key_changes_with_each_part() {
        let base = key("7.3.4", "CONFIG_A=y\n", "gcc 12");
        assert_eq!(base.len(), 12);
        assert_eq!(base, key("7.3.4", "CONFIG_A=y\n", "gcc 12"));
        for other in [
            key("7.3.5", "CONFIG_A=y\n", "gcc 12"),
            key("7.3.4", "CONFIG_A=n\n", "gcc 12"),
            key("7.3.4", "CONFIG_A=y\n", "gcc 13"),
            key("7.3.4C", "ONFIG_A=y\n", "gcc 12"),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn steps_are_counted_in_short_form_only() {
        assert!(is_step("  CC      block/bio.o"));
        assert!(is_step("  RUSTC L rust/core.o"));
        assert!(!is_step("make[1]: Entering directory"));
        assert!(!is_step("        warning: unused"));
        assert!(!is_step("  note: in file included"));
    }

    #[test]
    fn every_fragment_is_a_list_of_settings() {
        for flavor in [Flavor::Trace, Flavor::Debug, Flavor::Kasan] {
            for (name, text) in flavor.fragments() {
                for line in text.lines() {
                    let known = line.is_empty()
                        || line.starts_with("# ")
                        || line.starts_with("CONFIG_") && line.contains('=');
                    assert!(known, "{name}: {line}");
                }
                assert!(!settings(text).is_empty(), "{name}");
            }
        }
    }
}
