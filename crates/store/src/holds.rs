//! States that somebody still reads, slice by slice: history after them is not forgotten meanwhile.

use std::{any::Any, collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// The revisions that are held, and how often.
#[derive(Clone, Default)]
pub(crate) struct Holds(Arc<Mutex<BTreeMap<u64, usize>>>);

/// Holds a state until it is dropped.
pub struct Hold {
    revision: u64,
    of: Holds,
    /// What others know of it, as long as it is there.
    told: Option<Box<dyn Any + Send + Sync>>,
}

impl Hold {
    /// The revision that is held.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Keeps what tells others of it.
    pub(crate) fn told(self, by: impl Any + Send + Sync) -> Self {
        let mut hold = self;
        hold.told = Some(Box::new(by));
        hold
    }
}

impl Holds {
    /// Holds what `revision` tells, which is asked for under the lock: no compaction passes it in between.
    pub(crate) fn hold(&self, revision: impl FnOnce() -> u64) -> Hold {
        let mut held = self.0.lock();
        let revision = revision();
        *held.entry(revision).or_default() += 1;
        Hold { revision, of: self.clone(), told: None }
    }

    /// How far history may be forgotten of what is asked to be.
    pub(crate) fn bound(&self, upto: u64) -> u64 {
        self.0.lock().keys().next().map_or(upto, |held| upto.min(*held))
    }
}

impl Drop for Hold {
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
    fn the_lowest_hold_bounds_what_is_forgotten() {
        let holds = Holds::default();
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
