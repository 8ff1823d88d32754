//! Log of failing health checks.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Checks that failed at their last call. Each failure is logged once, however often it is probed.
#[derive(Default)]
pub(crate) struct FailedHealthChecks(Mutex<BTreeSet<String>>);

impl FailedHealthChecks {
    /// Records the result of a check.
    pub(crate) fn record(&self, check: &str, outcome: &Result<(), String>) {
        let mut failing = self.0.lock();
        match outcome {
            Err(why) if failing.insert(check.to_owned()) => {
                tracing::warn!(check = %check, reason = %why, "a health check fails");
            }
            Ok(()) if failing.remove(check) => {
                tracing::info!(check = %check, "a health check is well again")
            }
            Err(_) | Ok(()) => {}
        }
    }
}
