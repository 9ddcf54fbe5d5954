// SPDX-License-Identifier: GPL-2.0
//! Debian packages that the machine's own suites lack, fetched with apt's help but none of its state: the
//! system's source lists, package lists and caches stay as they are.

use crate::{process, progress};
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suite that has current kernel sources, for Debian 12 as for 13.
const SUITE: &str = "trixie-backports";

const KEYRINGS: &[&str] = &[
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// A package version that a mirror offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Package name.
    pub package: String,
    /// Debian version, e.g. `7.3.4-1~bpo13+1`.
    pub version: String,
}

/// Private apt state in a directory.
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Updated private lists of [`SUITE`] in `dir`, from the first of the machine's own mirrors that
    /// has it. Apt verifies the suite with Debian's archive keys.
    ///
    /// # Errors
    ///
    /// When no mirror is configured, the keyring is missing, or no mirror serves the suite.
    pub fn update(dir: &Path) -> Result<Self> {
        let Some(keyring) = KEYRINGS.iter().find(|k| Path::new(k).is_file()) else {
            bail!("no Debian archive keys: install the package debian-archive-keyring");
        };
        for sub in ["lists/partial", "cache/archives/partial", "etc"] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        let apt = Self {
            dir: dir.to_owned(),
        };
        let uris = process::output(Command::new("apt-get").args(["update", "--print-uris"]))?;
        let mirrors = mirrors(&uris);
        let mut last = None;
        for mirror in &mirrors {
            let list = format!("deb [signed-by={keyring}] {mirror} {SUITE} main\n");
            let path = dir.join("sources.list");
            fs::write(&path, list).with_context(|| path.display().to_string())?;
            match process::output(apt.get().args(["update", "-q", "--error-on=any"])) {
                Ok(_) => return Ok(apt),
                Err(e) => last = Some(e),
            }
        }
        match last {
            None => bail!("apt knows no Debian mirror: check the machine's apt sources"),
            Some(e) => Err(e.context(format!("no configured mirror serves {SUITE}"))),
        }
    }

    fn options(&self, command: &mut Command) {
        let dir = self.dir.display();
        for option in [
            format!("Dir::Etc::sourcelist={dir}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            // Pinning is about what gets installed; it must not hide what is asked for here.
            "Dir::Etc::preferences=/dev/null".into(),
            "Dir::Etc::preferencesparts=/dev/null".into(),
            format!("Dir::State::lists={dir}/lists"),
            format!("Dir::Cache={dir}/cache"),
            "APT::Architecture=amd64".into(),
            "APT::Sandbox::User=root".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
        ] {
            command.arg("-o").arg(option);
        }
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        self.options(&mut command);
        command
    }

    /// The newest package whose name is `linux-source-7.N`: 7.3 if there is one, for which blkrelay is
    /// made, else the highest N.
    ///
    /// # Errors
    ///
    /// When the suite has none.
    pub fn kernel_source(&self) -> Result<Offer> {
        let mut command = Command::new("apt-cache");
        self.options(&mut command);
        let text = process::output(command.args(["search", "--names-only", r"^linux-source-7\."]))?;
        let names = text.lines().filter_map(|l| l.split_whitespace().next());
        let Some(package) = newest(names) else {
            bail!("{SUITE} has no linux-source-7.* package");
        };
        let mut command = Command::new("apt-cache");
        self.options(&mut command);
        let text = process::output(command.args(["show", "--no-all-versions", &package]))?;
        let version = text.lines().find_map(|l| l.strip_prefix("Version: "));
        Ok(Offer {
            version: version
                .with_context(|| format!("apt-cache show {package}: no version"))?
                .to_owned(),
            package,
        })
    }

    /// Downloads a package into `to` and returns its path. Apt checks its hash and writes under another
    /// name until all of it is there.
    ///
    /// # Errors
    ///
    /// When the download fails: says apt's reason.
    pub fn download(&self, offer: &Offer, to: &Path) -> Result<PathBuf> {
        progress::say(&format!("downloading {} {}", offer.package, offer.version));
        let mut command = self.get();
        command
            .args(["download", "-q"])
            .arg(format!("{}={}", offer.package, offer.version))
            .current_dir(to);
        process::output(&mut command)?;
        let entry = fs::read_dir(to)
            .with_context(|| to.display().to_string())?
            .flatten()
            .map(|e| e.path())
            .find(|p| p.extension().is_some_and(|x| x == "deb"));
        entry.with_context(|| format!("apt-get download {}: left no file", offer.package))
    }
}

/// The mirrors in `apt-get update --print-uris`, which works before any list was fetched. Security
/// archives come last: they are trees of their own without backports.
fn mirrors(uris: &str) -> Vec<String> {
    let mut found: Vec<(bool, String)> = Vec::new();
    for line in uris.lines() {
        let Some(uri) = line.strip_prefix('\'').and_then(|l| l.split('\'').next()) else {
            continue;
        };
        let Some((base, rest)) = uri.split_once("/dists/") else {
            continue;
        };
        let entry = (rest.contains("-security"), base.to_owned());
        if rest.ends_with("/InRelease") && !found.iter().any(|f| f.1 == entry.1) {
            found.push(entry);
        }
    }
    found.sort_by_key(|f| f.0);
    found.into_iter().map(|f| f.1).collect()
}

fn newest<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let minor = |n: &str| n.strip_prefix("linux-source-7.")?.parse::<u32>().ok();
    let known: Vec<u32> = names.filter_map(minor).collect();
    let best = known.iter().find(|n| **n == 3).or(known.iter().max())?;
    Some(format!("linux-source-7.{best}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_of_print_uris() {
        let text = "\
'http://s.example/debian-security/dists/bookworm-security/InRelease' a 0 
'http://m.example/debian/dists/bookworm/InRelease' b 0 
'http://m.example/debian/dists/bookworm-updates/InRelease' c 0 
'http://m.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' d 0 
'https://third.example/dists/stable/InRelease' e 0 
Reading package lists...";
        assert_eq!(
            mirrors(text),
            [
                "http://m.example/debian",
                "https://third.example",
                "http://s.example/debian-security"
            ]
        );
        assert!(mirrors("").is_empty());
    }

    #[test]
    fn the_wanted_source() {
        let pick = |names: &[&str]| newest(names.iter().copied());
        assert_eq!(
            pick(&["linux-source-7.2", "linux-source-7.3", "linux-source-7.10"]).unwrap(),
            "linux-source-7.3"
        );
        assert_eq!(
            pick(&["linux-source-7.9", "linux-source-7.10", "linux-source-7.x"]).unwrap(),
            "linux-source-7.10"
        );
        assert_eq!(pick(&["linux-source-6.12"]), None);
    }
}
