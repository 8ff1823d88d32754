//! What all loops share: keys in, one level-based reconcile per key, back-off on failure.

mod queue;
mod run;

pub use queue::WorkQueue;
pub use run::run;

use std::{fmt, hash::Hash, time::Duration};

use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource};

use crate::PlaneError;

/// What a reconcile came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Done,
    /// Look again after this time.
    CheckAgainIn(Duration),
}

/// One loop over all logical clusters. Level-based: an event only names keys, `reconcile` reads what is there.
pub trait Controller: Send + Sync + 'static {
    /// What is reconciled.
    type Key: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static;

    /// Name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Resources, in all logical clusters, whose events name keys.
    fn resources(&self) -> Vec<GroupResource>;

    /// The keys that an event makes worth a look. At the start every stored object comes as a `Created` event.
    fn keys(&self, event: &Event) -> Vec<Self::Key>;

    /// Brings one key from what is to what should be. Each step is safe to repeat.
    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>>;

    /// How many keys are reconciled at once.
    fn workers(&self) -> usize {
        4
    }
}
