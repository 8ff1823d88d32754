//! Runtime of controllers: keys in, one level-based reconcile per key, backoff on failure.

mod defined_resources;
mod feed;
mod loops;
mod metrics;
mod object_counts;
pub(crate) mod span;

pub use loops::{Loops, TaskWrapper};
pub use metrics::LoopMetrics;
pub use portolan_types::work::WorkOutcome;

use std::{fmt, time::Duration};

use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ResourceVersion, work::WorkKey};

use crate::PlaneError;

/// Controller for all logical clusters. Level-based: an event only names keys, `reconcile` reads the objects.
pub trait Controller: Send + Sync + 'static {
    /// Key of a reconcile.
    type Key: WorkKey<Tenant: Send> + fmt::Debug + Send + Sync + 'static;

    /// Name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Resources, in all logical clusters, whose events name keys.
    fn resources(&self) -> Vec<GroupResource>;

    /// Returns true if the controller follows custom resources as well, present and future ones.
    fn follows_defined(&self) -> bool {
        false
    }

    /// Returns the keys that an event affects. At the start every stored object comes as a `Created` event.
    fn keys(&self, event: &Event) -> Vec<Self::Key>;

    /// Returns the delay in which a key collects further events, so that one reconcile serves all of them.
    fn linger(&self, _: &Event, _: &Self::Key) -> Duration {
        Duration::ZERO
    }

    /// Begins a list of one of its resources, each object of which comes as a `Created` event: at the start, and again
    /// after a broken watch.
    fn listing(&self, _: &GroupResource) {}

    /// Ends a list, as of this revision. Returns the keys that the list as a whole affects.
    fn listed(&self, _: &GroupResource, _: ResourceVersion) -> Vec<Self::Key> {
        Vec::new()
    }

    /// Reconciles one key. Each step can be repeated. A reconcile of many objects handles a part of them and is then
    /// requeued, so that other keys do not wait long.
    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>>;

    /// Returns the number of keys that are reconciled concurrently; one tenant has one less, if there are several.
    fn workers(&self) -> usize {
        4
    }
}
