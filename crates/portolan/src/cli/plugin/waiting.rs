//! Waiting for the server: a progress bar on a terminal, a line per change elsewhere.

use std::{collections::BTreeMap, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use portolan_types::MonotonicInstant;

use super::{context::POLL, terminal::Terminal};
use crate::cli::{output::visible, progress::human};

/// Exit code of a wait that timed out.
pub(crate) const TIMED_OUT: u8 = 3;
/// Exit code of a wait that Ctrl-C ended, as of a shell.
pub(crate) const INTERRUPTED: u8 = 130;

/// End of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd<T> {
    /// The condition is met.
    Reached(T),
    /// The time ran out.
    TimedOut,
    /// The user pressed Ctrl-C. The operation continues in the server.
    Interrupted,
}

/// Repeats a look until it returns a value.
///
/// # Errors
/// The errors of the look.
pub(crate) async fn wait_until<T>(
    limit: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<WaitEnd<T>> {
    let looking = async {
        loop {
            if let Some(found) = look().await? {
                return anyhow::Ok(found);
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        found = tokio::time::timeout(limit, looking) => match found {
            Ok(found) => Ok(WaitEnd::Reached(found?)),
            Err(_) => Ok(WaitEnd::TimedOut),
        },
        Ok(()) = tokio::signal::ctrl_c() => Ok(WaitEnd::Interrupted),
    }
}

/// Progress of a wait. Rows are printed when they change.
pub(crate) struct WaitProgress {
    bar: Option<ProgressBar>,
    started: MonotonicInstant,
    rows: BTreeMap<String, String>,
}

impl WaitProgress {
    /// Starts the clock, and draws a bar if the terminal can.
    pub(crate) fn start(terminal: &Terminal) -> Self {
        let bar = terminal.has_bars().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:24}] {pos}/{len} {elapsed}  {wide_msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, started: MonotonicInstant::now(), rows: BTreeMap::new() }
    }

    /// Moves the bar, with a message beside it.
    pub(crate) fn update(&self, done: u64, total: u64, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(visible(&message).replace('\n', " "));
        }
    }

    /// Prints the state of a row if it has changed.
    pub(crate) fn row(&mut self, terminal: &mut Terminal, name: &str, state: &str) {
        if self.rows.get(name).is_some_and(|known| known == state) {
            return;
        }
        self.rows.insert(name.to_owned(), state.to_owned());
        let line = format!("  {name:<40} {state}   {}", human(self.started.elapsed()));
        match &self.bar {
            Some(bar) => bar.println(visible(&line)),
            None => terminal.note(&line),
        }
    }

    /// Removes the bar, and returns the time since the start.
    pub(crate) fn finish(&self) -> String {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        human(self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_a_value_an_error_or_its_time() {
        let mut looks = 0;
        let reached = wait_until(Duration::from_secs(60), async || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(reached.await.unwrap(), WaitEnd::Reached(3));
        let late = wait_until(Duration::from_secs(1), async || Ok(None::<()>)).await.unwrap();
        assert_eq!(late, WaitEnd::TimedOut);
        assert!(
            wait_until(Duration::from_secs(1), async || anyhow::bail!("no") as anyhow::Result<Option<()>>)
                .await
                .is_err()
        );
    }

    #[test]
    fn a_row_is_printed_when_it_changes() {
        let err = crate::cli::plugin::terminal::CapturedOutput::default();
        let mut terminal = Terminal::to(std::io::sink(), err.clone());
        let mut progress = WaitProgress::start(&terminal);
        for state in ["moving", "moving", "moved"] {
            progress.row(&mut terminal, "web", state);
        }
        let text = err.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().nth(1).unwrap().contains("web") && text.contains("moved"), "{text}");
    }
}
