//! Bytes that requests hold in memory, each tenant its share of them.

use std::sync::Arc;

use parking_lot::Mutex;
use portolan_types::Status;

use super::{places::Place, too_many};

/// What is held by the way: the number of requests under way bounds it well enough.
pub(crate) const SMALL: usize = 64 * 1024;

/// Bytes that one request holds: of its body, and of an answer until the last of it is sent. Given back with the last clone.
#[derive(Clone)]
pub(crate) struct Charge(Arc<Mutex<Place>>);

impl Charge {
    pub(super) fn new(place: Place) -> Self {
        Self(Arc::new(Mutex::new(place)))
    }

    /// Counts these bytes in all where it counted fewer, unless they are few.
    ///
    /// # Errors
    /// 429 when there is no room for them.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), Status> {
        let mut place = self.0.lock();
        let more = if bytes > SMALL { bytes.saturating_sub(place.size()) } else { 0 };
        if more == 0 || place.grow(more) { Ok(()) } else { Err(too_many()) }
    }

    /// Counts no more than these.
    pub(crate) fn shrink_to(&self, bytes: usize) {
        self.0.lock().shrink(if bytes > SMALL { bytes } else { 0 });
    }
}
