//! Known faults of a store other than damaged objects.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use prometheus::IntGauge;

use crate::{
    api::{StoreError, damage::MAX_DESCRIBED},
    engine::NotOpen,
};

/// Faults that reads, or the last scrub, have found. Each is logged once, up to a limit.
pub(crate) struct FaultLog {
    known: Mutex<BTreeSet<String>>,
    count: IntGauge,
}

impl FaultLog {
    /// Creates an empty log that reports its size in `count`.
    pub(crate) fn new(count: IntGauge) -> Self {
        Self { known: Mutex::default(), count }
    }

    /// Notes the engine failure that ended a read, unless the engine is closed.
    pub(crate) fn note_failed<T>(&self, read: &Result<T, StoreError>) {
        if let Err(StoreError::Backend(why)) = read
            && !NotOpen::is_cause_of(why)
        {
            let mut known = self.known.lock();
            if known.len() < MAX_DESCRIBED && !known.contains(&why.context) {
                tell(&why.context);
                known.insert(why.context.clone());
                self.count.set(known.len() as i64);
            }
        }
    }

    /// Replaces the faults by those of a complete scrub.
    pub(crate) fn replace(&self, found: impl IntoIterator<Item = String>) {
        let found: BTreeSet<String> = found.into_iter().take(MAX_DESCRIBED).collect();
        let mut known = self.known.lock();
        found.difference(&known).for_each(|what| tell(what));
        self.count.set(found.len() as i64);
        *known = found;
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.known.lock().iter().cloned().collect()
    }
}

fn tell(what: &str) {
    tracing::error!(error = what, "a part of the store is damaged or cannot be read");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{api::BackendError, engine::failed};

    #[test]
    fn a_closed_engine_is_not_a_store_failure() {
        let faults = FaultLog::new(IntGauge::new("faults", "told").unwrap());
        let note = |why: BackendError| faults.note_failed(&Err::<(), _>(StoreError::Backend(Arc::new(why))));
        note(NotOpen.into());
        assert_eq!((faults.all(), faults.count.get()), (vec![], 0));
        note(failed("a page is damaged"));
        note(failed(NotOpen.to_string()));
        assert_eq!(faults.all(), ["a page is damaged", "the store is closed"], "it is not told by its words");
    }
}
