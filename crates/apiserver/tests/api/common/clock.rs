use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use jiff::Timestamp;
use portolan_types::{Clock, Seams};

/// A clock whose hands are moved.
pub struct Hands(AtomicI64);

impl Hands {
    /// Stands still at this second.
    pub fn now() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(Timestamp::now().as_second())))
    }

    /// Moves them.
    pub fn forward(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Whoever has these goes by it.
    pub fn seams(self: &Arc<Self>) -> Seams {
        Seams { clock: self.clone(), ..Seams::system() }
    }
}

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
    }
}
