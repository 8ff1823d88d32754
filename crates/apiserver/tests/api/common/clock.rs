use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use jiff::Timestamp;
use portolan_types::{Clock, Seams};

/// Clock that tests set.
pub struct Hands(AtomicI64);

impl Hands {
    /// Stands still at the current second.
    pub fn now() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(Seams::system().clock.now().as_second())))
    }

    /// Advances the clock.
    pub fn forward(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Returns seams that read this clock.
    pub fn seams(self: &Arc<Self>) -> Seams {
        Seams { clock: self.clone(), ..Seams::system() }
    }
}

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
    }
}
