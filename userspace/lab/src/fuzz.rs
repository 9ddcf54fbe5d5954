// SPDX-License-Identifier: GPL-2.0
//! Writes to the module's control file of any bytes: each must be refused with one of the errors that are
//! said, or obeyed, and `status` must stay readable and true to it.

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use rand_pcg::rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const DIR: &str = "/sys/kernel/debug/blkrelay";
/// One command may be so long.
const LONGEST: usize = 4096;
/// Heads and records are multiples of so many bytes.
const SLOT: usize = 32;
/// `status` is compared after so many writes, and after each that was obeyed.
const OFTEN: u64 = 64;
/// How far it is, is said after so many writes.
const PROGRESS: u64 = 5000;

/// Arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub struct Fuzz {
    /// Writes
    #[arg(long)]
    count: u64,
    /// Decides all of them
    #[arg(long)]
    seed: u64,
    /// Nobody else writes meanwhile: each answer is compared with the state of the trace
    #[arg(long)]
    alone: bool,
}

/// What a refusal may be.
const ERRORS: &[Errno] = &[
    Errno::EINVAL,
    Errno::ERANGE,
    Errno::EBUSY,
    Errno::EALREADY,
    Errno::ENODEV,
    Errno::ENOMEM,
];

const VERBS: &[&str] = &["start", "stop", "flush", "filter", "freeze", "arm"];
const STATES: &[&str] = &["idle", "running", "frozen", "stopped"];
/// Words that a command may hold, and some that it may not.
const WORDS: &[&str] = &[
    "devices=all",
    "devices=253:0",
    "devices=253:0,253:1",
    "devices=0:0",
    "devices=",
    "devices=all,253:0",
    "devices=4294967296:1",
    "devices=1:1048576",
    "events=default",
    "events=all",
    "events=Q,C",
    "events=Q,Q",
    "events=ERROR,IO_START,IO_DONE",
    "events=nothing",
    "op=read",
    "op=write,discard,flush",
    "op=zone",
    "op=reads",
    "sector=0-0",
    "sector=8-7",
    "sector=0-18446744073709551615",
    "sector=1024-2047",
    "size=4096-4096",
    "size=0-4294967295",
    "size=-1",
    "cgroup=1",
    "cgroup=1,2,3",
    "cgroup=18446744073709551616",
    "detail=0",
    "detail=1",
    "mode=discard",
    "mode=overwrite",
    "mode=span",
    "on_error=1",
    "slower_us=1000000",
    "slower_us=0",
    "subbuf_size=4096",
    "subbuf_size=65536",
    "subbuf_size=67108864",
    "subbuf_size=4097",
    "subbufs=2",
    "subbufs=16",
    "subbufs=65536",
    "subbufs=1",
    "span=0",
    "span=1",
    "span=2",
    "hold=0",
    "hold=1",
    "hold=2",
    "=",
    "x=y",
];

/// Draws the texts.
struct Generator(Pcg64Mcg);

impl Generator {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    fn one_of<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn bytes(&mut self) -> Vec<u8> {
        // Mostly short, sometimes around the limit.
        let len = match self.below(20) {
            0 => LONGEST - 2 + self.below(5),
            1 => self.below(LONGEST * 2),
            _ => self.below(64),
        };
        let mut text = vec![0; len];
        self.0.fill_bytes(&mut text);
        text
    }

    /// A command of known words; mostly one that is obeyed in the right state.
    fn command(&mut self) -> String {
        // A start costs a thousand times what a refusal does; most commands find a trace running.
        let verb = match self.below(1000) {
            0..100 => "start",
            100..120 => "stop",
            120..140 => self.one_of(&["freeze", "arm"]),
            140..500 => "flush",
            _ => "filter",
        };
        let mut text = verb.to_owned();
        match verb {
            "start" => text += " devices=all subbuf_size=4096 subbufs=4",
            "filter" => text += " devices=all",
            _ => {}
        }
        for _ in 0..self.below(3) {
            text.push(' ');
            text += self.one_of(WORDS);
        }
        if self.below(4) == 0 {
            text.push('\n');
        }
        text
    }

    fn salad(&mut self) -> String {
        let mut text = self.one_of(VERBS).to_owned();
        for _ in 0..self.below(12) {
            text += self.one_of(&[" ", "  ", "\t", "\n", ",", "=", ""]);
            match self.below(3) {
                0 => text += self.one_of(WORDS),
                1 => text += self.one_of(VERBS),
                _ => {
                    let word = self.one_of(WORDS);
                    let key = word.split_once('=').map_or(word, |(key, _)| key);
                    let number = self.0.next_u64() >> self.below(64);
                    let _ = write!(text, "{key}={number}");
                }
            }
        }
        text
    }

    fn mutated(&mut self) -> Vec<u8> {
        let mut text = self.command().into_bytes();
        for _ in 0..=self.below(4) {
            let at = self.below(text.len());
            let byte = self.0.next_u64() as u8;
            match self.below(6) {
                0 if !text.is_empty() => text[at] = byte,
                1 if !text.is_empty() => {
                    text.remove(at);
                }
                2 => text.insert(at, byte),
                3 => text.insert(at, 0),
                4 => text.truncate(at),
                _ => {
                    let tail = text[at..].to_vec();
                    text.extend_from_slice(&tail);
                }
            }
        }
        text
    }

    fn text(&mut self) -> Vec<u8> {
        // What is obeyed waits for grace periods: of a million writes some ten thousand are enough.
        match self.below(64) {
            0..16 => self.bytes(),
            16 => self.command().into_bytes(),
            17..52 => self.salad().into_bytes(),
            _ => self.mutated(),
        }
    }
}

/// The state and the reason of the last refusal.
fn status() -> Result<(String, String)> {
    let path = format!("{DIR}/status");
    let text = std::fs::read(&path).context(path)?;
    let text = String::from_utf8(text).context("status is no text")?;
    ensure!(
        text.bytes()
            .all(|b| b == b'\n' || (b' '..=b'~').contains(&b)),
        "status has a byte that does not belong there: {text:?}"
    );
    let value = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key));
        let line = line.with_context(|| format!("status lacks {key}: {text:?}"))?;
        anyhow::Ok(line.to_owned())
    };
    let (state, error) = (value("state=")?, value("error=")?);
    ensure!(STATES.contains(&&*state), "status: state={state}");
    Ok((state, error))
}

/// What is known of an answer when nobody else writes.
fn check_alone(text: &[u8], answer: Result<(), Errno>, before: &str) -> Result<String> {
    let (state, error) = status()?;
    let shown = || format!("{:?}", String::from_utf8_lossy(text));
    // A flight recorder's trigger freezes it at any moment.
    let same = |a: &str, b: &str| a == b || (a == "running" && b == "frozen");
    if let Err(errno) = answer {
        ensure!(
            same(before, &state),
            "{}: {errno:?}, and now {state}",
            shown()
        );
        ensure!(!error.is_empty(), "{}: {errno:?} without a reason", shown());
        return Ok(state);
    }
    ensure!(error.is_empty(), "{}: obeyed, but error={error}", shown());
    let words = String::from_utf8_lossy(text);
    let verb = words.split_whitespace().next().unwrap_or_default();
    // From which states to which.
    let want: &[(&str, &str)] = match verb {
        "start" => &[("idle", "running"), ("stopped", "running")],
        "stop" => &[("running", "stopped"), ("frozen", "stopped")],
        "flush" => &[("running", "running")],
        "filter" => &[("running", "running")],
        "freeze" => &[("running", "frozen")],
        "arm" => &[("frozen", "running")],
        _ => bail!("{}: obeyed", shown()),
    };
    ensure!(
        want.iter()
            .any(|(from, to)| same(before, from) && same(to, &state)),
        "{}: obeyed, from {before} to {state}",
        shown()
    );
    Ok(state)
}

/// Writes and checks; prints a result line.
///
/// # Errors
///
/// Names the first write whose answer is wrong, or after which `status` is.
pub fn fuzz(args: &Fuzz) -> Result<()> {
    let mut generator = Generator(Pcg64Mcg::seed_from_u64(args.seed));
    let open = || -> Result<File> {
        let path = format!("{DIR}/control");
        OpenOptions::new().write(true).open(&path).context(path)
    };
    let mut control = open()?;
    let mut state = status()?.0;
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    for n in 0..args.count {
        if n % PROGRESS == 0 {
            println!("@progress {n} {}", args.count);
        }
        // hold=1 ends a trace with its file, and an open data file keeps the next from starting.
        match generator.below(2048) {
            0 => {
                drop(control);
                control = open()?;
                state = status()?.0;
            }
            1 => read_some(&mut generator)?,
            _ => {}
        }
        let text = generator.text();
        let began = Instant::now();
        let written = control.write(&text);
        slowest = slowest.max(began.elapsed());
        let shown = || format!("write {n}: {:?}", String::from_utf8_lossy(&text));
        let answer = match written {
            Ok(len) => {
                ensure!(len == text.len(), "{}: took {len} bytes", shown());
                Ok(())
            }
            Err(e) => {
                let errno = Errno::from_raw(e.raw_os_error().unwrap_or(0));
                ensure!(ERRORS.contains(&errno), "{}: {errno:?}", shown());
                Err(errno)
            }
        };
        let name = answer.map_or_else(|e| format!("{e:?}"), |()| "ok".to_owned());
        *answers.entry(name).or_default() += 1;
        if args.alone && (answer.is_ok() || n % OFTEN == 0) && !text.is_empty() {
            state = check_alone(&text, answer, &state).with_context(|| format!("write {n}"))?;
        } else if n % OFTEN == 0 {
            status()?;
        }
    }
    let mut line = format!(
        "@result seed={} writes={} slowest_ms={}",
        args.seed,
        args.count,
        slowest.as_millis()
    );
    for (answer, count) in &answers {
        let _ = write!(line, " {answer}={count}");
    }
    println!("{line}");
    Ok(())
}

/// Opens some CPU's data file if there is one and reads once.
fn read_some(generator: &mut Generator) -> Result<()> {
    let path = format!("{DIR}/data{}", generator.below(4));
    let Ok(mut file) = File::open(&path) else {
        return Ok(());
    };
    match file.read(&mut vec![0; 65536]) {
        Ok(len) => {
            ensure!(len % SLOT == 0, "{path}: {len} bytes are no whole records");
            Ok(())
        }
        Err(e) => match Errno::from_raw(e.raw_os_error().unwrap_or(0)) {
            // Nothing there, or a sub-buffer does not fit.
            Errno::EAGAIN | Errno::EINVAL => Ok(()),
            errno => bail!("{path}: {errno:?}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_every_kind_is_drawn() {
        let draw = |seed| {
            let mut g = Generator(Pcg64Mcg::seed_from_u64(seed));
            (0..4000).map(|_| g.text()).collect::<Vec<_>>()
        };
        let texts = draw(1);
        assert_eq!(texts, draw(1));
        assert_ne!(texts, draw(2));
        assert!(texts.iter().any(|t| t.len() > LONGEST));
        assert!(texts.iter().any(Vec::is_empty));
        assert!(texts.iter().any(|t| t.contains(&0)));
        for verb in VERBS {
            assert!(
                texts.iter().any(|t| t.starts_with(verb.as_bytes())),
                "{verb}"
            );
        }
    }
}
