// SPDX-License-Identifier: GPL-2.0
//! `blkrelay status`

use crate::module::Module;
use crate::{args, output, Failure, Outcome};
use serde_json::{json, Map, Value};
use std::io::Write;

pub fn run(options: &args::Status) -> Result<Outcome, Failure> {
    let module = Module::find()?;
    let mut out = output::stdout();
    if options.json {
        let status = module.status()?;
        let mut object: Map<String, Value> = status
            .values
            .iter()
            .map(|(key, value)| {
                let value = match value.parse::<u64>() {
                    // Only these are numbers; an id of digits alone is still a text.
                    Ok(number) if key != "trace_id" => json!(number),
                    _ => json!(value),
                };
                (key.clone(), value)
            })
            .collect();
        object.insert("cpus".to_owned(), json!(status.cpus));
        serde_json::to_writer_pretty(&mut out, &object)?;
        writeln!(out)?;
    } else {
        out.write_all(module.status_text()?.as_bytes())?;
    }
    out.flush()?;
    Ok(Outcome::Good)
}
