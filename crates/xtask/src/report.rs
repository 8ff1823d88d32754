//! Named checks, one line each, and the closing line `N passed, N failed`.

use std::time::Instant;

use anyhow::Result;

/// Collects the outcome of named checks.
#[derive(Default)]
pub(crate) struct Report {
    passed: usize,
    failed: Vec<String>,
}

impl Report {
    /// Runs one check and prints its outcome. Later checks run whatever it says; the answer lets a caller skip
    /// those that would make no sense.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) -> bool {
        let start = Instant::now();
        let outcome = check();
        self.record(name, start.elapsed().as_secs_f64(), outcome)
    }

    /// Prints the outcome of a check that another program ran.
    pub(crate) fn record(&mut self, name: &str, seconds: f64, outcome: Result<()>) -> bool {
        match outcome {
            Ok(()) => {
                println!("ok    {name} ({seconds:.1} s)");
                self.passed += 1;
                true
            }
            Err(error) => {
                println!("FAIL  {name} ({seconds:.1} s)");
                for line in format!("{error:#}").lines() {
                    println!("      {line}");
                }
                self.failed.push(name.to_owned());
                false
            }
        }
    }

    /// How many checks have failed so far.
    pub(crate) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Prints the closing lines. Returns whether all checks passed.
    pub(crate) fn finish(&self) -> bool {
        if !self.failed.is_empty() {
            println!("failed:");
            self.failed.iter().for_each(|name| println!("  {name}"));
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
        self.failed.is_empty()
    }
}
