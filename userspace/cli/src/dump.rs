// SPDX-License-Identifier: GPL-2.0
//! `blkrelay dump`

use crate::{args, output, say, Failure, Outcome};
use blkrelay_export::Text;
use blkrelay_trace::Item;

pub fn run(options: &args::Dump) -> Result<Outcome, Failure> {
    let source = blkrelay_trace::open(&options.file)?;
    let mut text = Text::new(output::stdout());
    let mut left = options.events.unwrap_or(u64::MAX);
    let mut gaps = false;
    for item in source.events() {
        match item {
            Item::Event(_) if left == 0 => break,
            Item::Event(_) => left -= 1,
            Item::Gap(_) => gaps = true,
        }
        text.item(&item)?;
    }
    text.flush()?;
    for problem in source.problems() {
        say(format_args!("{}: {problem}", options.file.display()));
    }
    Ok(if gaps || !source.problems().is_empty() {
        Outcome::Findings
    } else {
        Outcome::Good
    })
}
