// SPDX-License-Identifier: GPL-2.0
//! `blkrelay dump`

use crate::{args, output, say, Failure, Outcome};
use blkrelay_export::Text;
use blkrelay_trace::{Filter, Item, Stop};

pub fn run(options: &args::Dump) -> Result<Outcome, Failure> {
    let source = blkrelay_trace::open(&options.file)?;
    let filter = options.filter.for_trace(&source)?;
    let mut text = Text::new(output::stdout());
    // Times are the same, whatever is selected.
    let first = source.events().find_map(|item| match item {
        Item::Event(event) => Some(event.ns),
        Item::Gap(_) => None,
    });
    if let Some(first) = first.filter(|_| filter != Filter::default()) {
        text.count_from(first);
    }
    let mut left = options.events.unwrap_or(u64::MAX);
    let mut gaps = false;
    let mut stops = source.stops();
    stops.sort_by_key(Stop::ends_ns);
    let mut stops = stops.into_iter().peekable();
    for item in source.select(&filter) {
        let now = match &item {
            Item::Event(event) => event.ns,
            Item::Gap(gap) => gap.from_ns,
        };
        while let Some(stop) = stops.next_if(|stop| stop.ends_ns() < now) {
            text.stop(&stop)?;
        }
        match item {
            Item::Event(_) if left == 0 => break,
            Item::Event(_) => left -= 1,
            Item::Gap(_) => gaps = true,
        }
        text.item(&item)?;
    }
    if left > 0 {
        for stop in stops {
            text.stop(&stop)?;
        }
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
