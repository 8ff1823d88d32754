//! The loops that keep the index up to date. They run before all others, so that those find the event's state in the
//! index.

use std::sync::Arc;

use portolan_controllers::{Controller, PlaneError, WorkOutcome};
use portolan_store::{ChangeKind, Event};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, ResourceVersion};

use super::{NodeFacts, PodIndex};

/// Feed of the pods.
pub(crate) struct PodFeed(pub(crate) Arc<PodIndex>);

/// Feed of the nodes.
pub(crate) struct NodeFeed(pub(crate) Arc<PodIndex>);

impl Controller for PodFeed {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-pod-index"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "pods")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        self.0.take_in(event);
        Vec::new()
    }

    fn listing(&self, _: &GroupResource) {
        self.0.begin_listing();
    }

    fn listed(&self, _: &GroupResource, revision: ResourceVersion) -> Vec<ObjectKey> {
        self.0.end_listing(revision.get());
        Vec::new()
    }

    fn reconcile<'a>(&'a self, _: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(std::future::ready(Ok(WorkOutcome::Done)))
    }

    fn workers(&self) -> usize {
        0
    }
}

impl Controller for NodeFeed {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-node-index"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "nodes")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let node = match event.change {
            ChangeKind::Deleted => None,
            ChangeKind::Created | ChangeKind::Updated => event.record.to_value(event.revision).ok(),
        };
        self.0.put_node(event.key.name.as_str(), node.as_ref().map(NodeFacts::of));
        Vec::new()
    }

    fn reconcile<'a>(&'a self, _: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(std::future::ready(Ok(WorkOutcome::Done)))
    }

    fn workers(&self) -> usize {
        0
    }
}
