// SPDX-License-Identifier: GPL-2.0
//! What the lab is doing, on standard error: one line a step with the time since the program began; on a
//! terminal a long step keeps one line up to date, in a pipe it writes a line now and then.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// In a pipe a long step writes at most one line in this time.
const SPARSE: Duration = Duration::from_secs(20);

/// When the program began: the first call decides.
pub fn began() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now)
}

/// Minutes and seconds, e.g. `2:41`.
pub fn minutes(t: Duration) -> String {
    format!("{}:{:02}", t.as_secs() / 60, t.as_secs() % 60)
}

/// Writes one line with the elapsed time before it.
pub fn say(text: &str) {
    eprintln!("[{:>6}] {text}", minutes(began().elapsed()));
}

/// A step whose end is foreseen.
pub struct Steps {
    what: String,
    start: Instant,
    bar: Option<ProgressBar>,
    written: Instant,
}

impl Steps {
    /// Begins a step named `what`.
    pub fn new(what: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            // The template is a constant that the test below expands.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        began();
        let now = Instant::now();
        Self {
            what: what.to_owned(),
            start: now,
            bar,
            written: now,
        }
    }

    /// Says how far it is. `total` is an estimate: 100 % is never shown.
    pub fn at(&mut self, done: u64, total: u64) {
        let text = line(&self.what, done, total, self.start.elapsed());
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None if self.written.elapsed() >= SPARSE => {
                self.written = Instant::now();
                say(&text);
            }
            None => {}
        }
    }

    /// Ends the step: one last line that stays.
    pub fn done(self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        say(&format!(
            "{}: {text} ({})",
            self.what,
            minutes(self.start.elapsed())
        ));
    }
}

impl Drop for Steps {
    /// An error that ends the step early must not leave half a line on the terminal.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let total = total.max(done).max(1);
    let percent = (done * 100 / total).min(99);
    format!(
        "{what}: {done}/{total} steps {percent} % {}",
        minutes(elapsed)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let t = Duration::from_secs(161);
        assert_eq!(
            line("kernel trace", 512, 1487, t),
            "kernel trace: 512/1487 steps 34 % 2:41"
        );
        assert_eq!(line("k", 20, 10, t), "k: 20/20 steps 99 % 2:41");
        assert_eq!(line("k", 0, 0, t), "k: 0/1 steps 0 % 2:41");
        assert!(ProgressStyle::with_template("{spinner} {msg}").is_ok());
    }
}
