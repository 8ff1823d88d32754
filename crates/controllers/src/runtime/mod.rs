//! What all loops share: keys in, one level-based reconcile per key, back-off on failure.

mod census;
mod defined;
mod feed;
mod metrics;
mod run;

pub use metrics::LoopMetrics;
pub use portolan_types::work::Outcome;
pub use run::{Loops, TaskWrapper};

use std::{fmt, time::Duration};

use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ResourceVersion, work::WorkKey};

use crate::PlaneError;

/// One loop over all logical clusters. Level-based: an event only names keys, `reconcile` reads what is there.
pub trait Controller: Send + Sync + 'static {
    /// What is reconciled.
    type Key: WorkKey<Tenant: Send> + fmt::Debug + Send + Sync + 'static;

    /// Name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Resources, in all logical clusters, whose events name keys.
    fn resources(&self) -> Vec<GroupResource>;

    /// Whether resources that logical clusters define by themselves, now and later, are followed as well.
    fn follows_defined(&self) -> bool {
        false
    }

    /// The keys that an event makes worth a look. At the start every stored object comes as a `Created` event.
    fn keys(&self, event: &Event) -> Vec<Self::Key>;

    /// How long a key of an event waits for more events to name it, so that one look serves all of them.
    fn linger(&self, _: &Event, _: &Self::Key) -> Duration {
        Duration::ZERO
    }

    /// All objects of one of its resources come next, each as a `Created` event: at the start, and again when a watch broke.
    fn listing(&self) {}

    /// All objects of one of its resources have come, as of this revision.
    fn listed(&self, _: ResourceVersion) {}

    /// Brings one key from what is to what should be. Each step is safe to repeat. A look at many objects takes a share of them and
    /// comes again at once for the next: others wait for as long as it takes.
    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>>;

    /// How many keys are reconciled at once: of one tenant one less, if there are several.
    fn workers(&self) -> usize {
        4
    }
}
