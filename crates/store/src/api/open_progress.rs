//! Progress of opening a store.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Progress of opening a store, shared between the opener and readiness probes. Checking a large store that was not
/// closed cleanly takes seconds.
#[derive(Clone, Debug, Default)]
pub struct OpenProgress(Arc<AtomicU32>);

impl OpenProgress {
    /// Returns the checked part of the store in percent; `None` if no check is needed or none has started.
    pub fn percent(&self) -> Option<u32> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Records the checked part, between 0 and 1. Called by the engine.
    pub(crate) fn checked(&self, part: f64) {
        let percent = (part.clamp(0.0, 1.0) * 100.0) as u32;
        tracing::info!(percent, "the store was not closed cleanly, checking it");
        self.0.store(percent + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reported_once_it_is_known() {
        let opening = OpenProgress::default();
        assert_eq!(opening.percent(), None);
        for (part, percent) in [(0.0, 0), (0.3, 30), (0.9, 90), (7.0, 100), (f64::NAN, 0)] {
            opening.checked(part);
            assert_eq!(opening.clone().percent(), Some(percent));
        }
    }
}
