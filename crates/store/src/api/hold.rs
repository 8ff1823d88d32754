//! Holds on revisions that a reader still needs. Compaction does not pass them.

use std::{any::Any, collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// Revisions that are held, and how often.
#[derive(Clone, Default)]
pub(crate) struct RevisionHolds(Arc<Mutex<BTreeMap<u64, usize>>>);

/// Hold on a revision until it is dropped.
pub struct RevisionHold {
    revision: u64,
    of: RevisionHolds,
    /// Registration of the hold with other servers, as long as the hold exists.
    told: Option<Box<dyn Any + Send + Sync>>,
}

impl RevisionHold {
    /// Returns the held revision.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Keeps a registration that tells other servers of the hold.
    pub(crate) fn with_registration(self, by: impl Any + Send + Sync) -> Self {
        let mut hold = self;
        hold.told = Some(Box::new(by));
        hold
    }
}

impl RevisionHolds {
    /// Holds the revision that `revision` returns. It is called under the lock, so that no compaction passes it in
    /// between.
    pub(crate) fn hold(&self, revision: impl FnOnce() -> u64) -> RevisionHold {
        let mut held = self.0.lock();
        let revision = revision();
        *held.entry(revision).or_default() += 1;
        RevisionHold { revision, of: self.clone(), told: None }
    }

    /// Returns the revision up to which history may be compacted, at most `upto`.
    pub(crate) fn bound(&self, upto: u64) -> u64 {
        self.0.lock().keys().next().map_or(upto, |held| upto.min(*held))
    }
}

impl Drop for RevisionHold {
    fn drop(&mut self) {
        let mut held = self.of.0.lock();
        if let Some(count) = held.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.revision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_hold_bounds_compaction() {
        let holds = RevisionHolds::default();
        assert_eq!(holds.bound(9), 9);
        let (five, also_five, seven) = (holds.hold(|| 5), holds.hold(|| 5), holds.hold(|| 7));
        assert_eq!((holds.bound(9), holds.bound(3)), (5, 3));
        drop(five);
        assert_eq!(holds.bound(9), 5);
        drop(also_five);
        assert_eq!(holds.bound(9), 7);
        drop(seven);
        assert_eq!(holds.bound(9), 9);
    }
}
