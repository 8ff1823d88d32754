//! Report of a run: the printed text, and the page under `docs/benchmarks`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use harness::tools::repository;
use jiff::Timestamp;

/// Text of a run, printed as it grows.
pub(super) struct RunReport {
    day: String,
    text: String,
}

impl RunReport {
    /// Starts the report of a run that begins now.
    pub(super) fn new() -> Self {
        let day = Timestamp::now().strftime("%Y-%m-%d").to_string();
        let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--report").collect();
        let client = if cfg!(debug_assertions) { "client without optimization" } else { "release build" };
        let text = format!("# Benchmarks of {day}\n\n`cargo xtask {}`, {client}.\n\n", arguments.join(" "));
        Self { day, text }
    }

    /// Prints `text` on stdout and keeps it.
    pub(super) fn print(&mut self, text: &str) {
        print!("{text}");
        self.text.push_str(text);
    }

    /// Writes the page of the day under `docs/benchmarks`; a second run of a day is added to its page.
    ///
    /// # Errors
    /// Fails if the page cannot be read or written.
    pub(super) fn save(&self) -> Result<PathBuf> {
        let file = repository().join("docs/benchmarks").join(format!("{}.md", self.day));
        let earlier = if file.exists() { std::fs::read_to_string(&file)? + "\n" } else { String::new() };
        std::fs::write(&file, earlier + &self.text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}
