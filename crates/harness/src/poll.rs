//! Polling of a condition, with a time limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Repeats `attempt` until it succeeds or `limit` has passed, and then returns the last error.
pub fn until<T>(what: &str, limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() >= limit => {
                return Err(error).with_context(|| format!("{what}: not within {} s", limit.as_secs()));
            }
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}
