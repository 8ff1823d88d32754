//! Named checks, one line each, and a final line `N passed, N failed`.

use std::time::Instant;

use anyhow::Result;

/// Results of named checks.
#[derive(Default)]
pub struct CheckReport {
    passed: usize,
    failed: Vec<String>,
}

impl CheckReport {
    /// Runs one check and prints its result. Later checks run after a failure too; the returned value lets a caller
    /// skip those that depend on it.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) -> bool {
        let start = Instant::now();
        let outcome = check();
        self.record(name, start.elapsed().as_secs_f64(), outcome)
    }

    /// Prints the result of a check that another program ran.
    pub fn record(&mut self, name: &str, seconds: f64, outcome: Result<()>) -> bool {
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

    /// Returns the number of failed checks.
    pub fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Prints the final lines. Returns true if all checks passed.
    pub fn finish(&self) -> bool {
        if !self.failed.is_empty() {
            println!("failed:");
            self.failed.iter().for_each(|name| println!("  {name}"));
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
        self.failed.is_empty()
    }
}
