//! Numbered steps with times: a spinner on a terminal, plain lines elsewhere.

use std::{io::IsTerminal as _, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use portolan_types::MonotonicInstant;

use super::output;

/// Progress of a command in steps.
pub(crate) struct ProgressSteps {
    total: usize,
    done: usize,
    started: MonotonicInstant,
    bar: Option<ProgressBar>,
}

impl ProgressSteps {
    /// Starts the clock for `total` steps.
    pub(crate) fn new(total: usize) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(80));
            bar
        });
        Self { total, done: 0, started: MonotonicInstant::now(), bar }
    }

    /// Shows the current step.
    pub(crate) fn waiting(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("[{}/{}] {what}", self.done + 1, self.total));
        }
    }

    /// Prints the line of a finished step, with the time since the start.
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

    /// Ends the display.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Bar of a command that reports its steps one by one: drawn on a terminal, plain lines elsewhere.
pub(crate) struct StepBar {
    bar: Option<ProgressBar>,
}

impl StepBar {
    /// Starts a bar of `total` steps. Without bars, or steps, only lines are printed.
    pub(crate) fn start(total: u64, has_bars: bool) -> Self {
        let bar = (has_bars && total > 0).then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:24}] {pos}/{len} {elapsed}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar }
    }

    /// Prints the line of a step, by `print` if there is no bar. A step that is done begins with a check mark.
    pub(crate) fn step(&self, text: &str, print: impl FnOnce(&str)) {
        let Some(bar) = &self.bar else { return print(text) };
        bar.println(output::visible(text));
        if text.starts_with('✓') {
            bar.inc(1);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats a time: `12 ms`, `1.4 s`.
pub(crate) fn human(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        millis => format!("{:.1} s", millis as f64 / 1000.0),
    }
}
