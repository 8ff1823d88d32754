//! How far the opening of a store has come.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Shared between who opens a store, which takes seconds when it was large and not closed cleanly, and who tells of it.
#[derive(Clone, Debug, Default)]
pub struct Opening(Arc<AtomicU32>);

impl Opening {
    /// How much of the store has been checked, in percent; `None` when it need not be checked, or not yet.
    pub fn percent(&self) -> Option<u32> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Called by the engine with a part of 1.
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
    fn progress_is_told_once_there_is_some() {
        let opening = Opening::default();
        assert_eq!(opening.percent(), None);
        for (part, percent) in [(0.0, 0), (0.3, 30), (0.9, 90), (7.0, 100), (f64::NAN, 0)] {
            opening.checked(part);
            assert_eq!(opening.clone().percent(), Some(percent));
        }
    }
}
