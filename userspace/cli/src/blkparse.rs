// SPDX-License-Identifier: GPL-2.0
//! `blkrelay blkparse`

use crate::{args, Failure, Outcome};
use blkrelay_peers::blkparse::{self, Options, Outputs};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

/// What the C library's standard output holds back where it is no terminal.
const HELD: usize = 4096;

pub fn run(options: &args::Blkparse) -> Result<Outcome, Failure> {
    let mut inputs = options.input.clone();
    inputs.extend_from_slice(&options.files);
    if inputs.is_empty() {
        return Err("blkparse: no trace is named: see --help".into());
    }
    let mut formats = Vec::new();
    for word in &options.format_spec {
        match word.as_bytes() {
            [letter, b',', format @ ..] => formats.push((*letter, format.to_vec())),
            _ => return Err(format!("-F {}: want X,FORMAT", word.to_string_lossy()).into()),
        }
    }
    let categories = options.act_mask.iter().fold(0, |mask, one| mask | one);
    let (from, to) = options.stopwatch.unwrap_or((0, u64::MAX));
    let asked = Options {
        inputs,
        directory: options.input_directory.clone(),
        mask: match options
            .set_mask
            .map_or(categories, |mask| mask | categories)
        {
            0 => u32::MAX,
            mask => mask,
        },
        batch: options.batch.clamp(1, 1 << 20),
        format: options
            .format
            .as_ref()
            .map(|format| format.as_bytes().to_vec()),
        formats,
        text: !options.no_text_output,
        counts: !options.quiet,
        programs: options.per_program_stats,
        by_name: options.hash_by_name,
        from,
        to,
        messages: !options.no_msgs,
    };
    let mut stdout = io::stdout().lock();
    let mut said = Said::default();
    let create = |path: &std::path::Path| {
        File::create(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut binary_file = None;
    let to_stdout = options.dump_binary.as_deref() == Some("-".as_ref());
    if let Some(path) = options.dump_binary.as_ref().filter(|_| !to_stdout) {
        binary_file = Some(create(path)?);
    }
    let mut merged = Vec::new();
    let mut text: Box<dyn Write> = match (&options.output, options.no_text_output) {
        (_, true) => Box::new(io::sink()),
        (Some(path), _) => Box::new(create(path)?),
        (None, _) => Box::new(&mut stdout),
    };
    let binary: Option<&mut dyn Write> = match &mut binary_file {
        Some(file) => Some(file),
        None if to_stdout => Some(&mut merged),
        None => None,
    };
    let outputs = Outputs {
        text: &mut text,
        binary,
        said: &mut said,
        errors: &mut io::stderr(),
    };
    let summary = blkparse::run(&asked, outputs)?;
    drop(text);
    stdout.write_all(&merged)?;
    stdout.write_all(&said.0)?;
    stdout.flush()?;
    Ok(if summary.whole {
        Outcome::Good
    } else {
        Outcome::Findings
    })
}

/// What blkparse says of its files: at once on a terminal, else where the C library lets it out, at the end.
#[derive(Default)]
struct Said(Vec<u8>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        let out = if io::stdout().is_terminal() {
            self.0.len()
        } else {
            self.0.len() / HELD * HELD
        };
        let rest = self.0.split_off(out);
        let now = std::mem::replace(&mut self.0, rest);
        io::stdout().write_all(&now)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
