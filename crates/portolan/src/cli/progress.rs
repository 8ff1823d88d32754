//! Numbered steps with times: a spinner on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::output;

/// The steps of one command.
pub(crate) struct Steps {
    total: usize,
    done: usize,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Steps {
    /// `total` steps, the clock starting now.
    pub(crate) fn new(total: usize) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(80));
            bar
        });
        Self { total, done: 0, started: Instant::now(), bar }
    }

    /// What is being waited for.
    pub(crate) fn waiting(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("[{}/{}] {what}", self.done + 1, self.total));
        }
    }

    /// The step is done; prints its line with the time since the start.
    pub(crate) fn done(&mut self, what: &str) -> anyhow::Result<()> {
        self.done += 1;
        let since = human(self.started.elapsed());
        self.line(&format!("  [{}/{}] {what:<66} {since:>8}", self.done, self.total))
    }

    /// Prints a line.
    fn line(&self, text: &str) -> anyhow::Result<()> {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => output::line(text)?,
        }
        Ok(())
    }

    /// No more steps.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A time for people: `12 ms`, `1.4 s`.
pub(crate) fn human(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        millis => format!("{:.1} s", millis as f64 / 1000.0),
    }
}
