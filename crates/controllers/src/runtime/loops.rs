//! Controllers on one plane: their queues are fed and worked off.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portolan_store::{AsyncWorkQueue, ChangeKind, Event};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Record, ResourceVersion, work::Backoff};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug};

use super::{Controller, defined_resources::ResourceFeeds, feed::EventSink, object_counts::ObjectCounts, span};
use crate::Plane;

/// Wraps each task of [`Loops`], such as to poll it in the time slices of a tenant.
pub type TaskWrapper = Arc<dyn Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Controllers on the objects of one plane. They share its watches: each resource is listed and watched once for all
/// of them, so that a write wakes one task however many controllers there are.
pub struct Loops {
    plane: Arc<Plane>,
    loops: Vec<Arc<dyn ControllerLoop>>,
    wrapper: TaskWrapper,
}

impl Loops {
    /// Makes a set without controllers.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, loops: Vec::new(), wrapper: Arc::new(|task| task) }
    }

    /// Runs each task, of workers and of feeds, as `wrapper` returns it.
    #[must_use]
    pub fn wrapped(mut self, wrapper: TaskWrapper) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// Returns the plane.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// Adds a controller.
    #[must_use]
    pub fn with(mut self, controller: impl Controller) -> Self {
        // One worker is left to other logical clusters.
        let most = controller.workers().saturating_sub(1).max(1);
        let mut queue = AsyncWorkQueue::new(Backoff::default(), self.plane.seams()).at_most(most);
        if let Some(metrics) = self.plane.metrics() {
            queue = queue.measured(metrics.work().of(controller.name()));
        }
        self.loops.push(Arc::new(ControllerQueue { controller, queue }));
        self
    }

    /// Adds object counts, if there are metrics.
    #[must_use]
    pub fn counting(mut self) -> Self {
        if let Some(metrics) = self.plane.metrics() {
            let counting = |resource| {
                Arc::new(CountingLoop { counts: metrics.counts.clone(), resource }) as Arc<dyn ControllerLoop>
            };
            self.loops.extend(self.plane.stored_resources().into_iter().map(counting));
        }
        self
    }

    /// Runs the controllers until `shutdown`. A panic of one ends all: half a controller would look like a whole one.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut workers = JoinSet::new();
        let interested = self.loops.iter().filter(|own| own.follows_defined()).map(|own| own.clone() as _).collect();
        let mut feeds =
            ResourceFeeds::new(self.plane.store().clone(), self.by_resource(), interested, self.wrapper.clone());
        for own in &self.loops {
            (0..own.workers()).for_each(|_| drop(workers.spawn((self.wrapper)(own.clone().work()))));
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = feeds.keep() => {}
            Some(Err(ended)) = workers.join_next() => if let Ok(panic) = ended.try_into_panic() {
                std::panic::resume_unwind(panic);
            }
        }
        workers.shutdown().await;
    }

    fn by_resource(&self) -> BTreeMap<GroupResource, Vec<Arc<dyn EventSink>>> {
        let mut all: BTreeMap<_, Vec<Arc<dyn EventSink>>> = BTreeMap::new();
        for own in &self.loops {
            for resource in own.resources() {
                all.entry(resource).or_default().push(own.clone());
            }
        }
        all
    }
}

/// Controller with its queue, whatever its keys are.
trait ControllerLoop: EventSink {
    fn resources(&self) -> Vec<GroupResource>;
    fn follows_defined(&self) -> bool;
    fn workers(&self) -> usize;
    fn work(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Object counter of one resource.
struct CountingLoop {
    counts: Arc<ObjectCounts>,
    resource: GroupResource,
}

impl EventSink for CountingLoop {
    fn name(&self) -> &'static str {
        "counts"
    }

    fn listing(&self, _: &GroupResource) {
        self.counts.restart(&self.resource);
    }

    fn listed(&self, _: &GroupResource, _: ResourceVersion) {
        self.counts.mark_complete(&self.resource);
    }

    fn handle_event(&self, event: &Event) {
        self.counts.count_event(event);
    }

    fn unreadable(&self, _: &ObjectKey) {
        self.counts.add_unreadable(&self.resource);
    }
}

impl ControllerLoop for CountingLoop {
    fn resources(&self) -> Vec<GroupResource> {
        vec![self.resource.clone()]
    }

    fn follows_defined(&self) -> bool {
        false
    }

    fn workers(&self) -> usize {
        0
    }

    fn work(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Drop for CountingLoop {
    fn drop(&mut self) {
        self.counts.forget(&self.resource);
    }
}

struct ControllerQueue<C: Controller> {
    controller: C,
    queue: AsyncWorkQueue<C::Key>,
}

impl<C: Controller> EventSink for ControllerQueue<C> {
    fn name(&self) -> &'static str {
        self.controller.name()
    }

    fn handle_event(&self, event: &Event) {
        for key in self.controller.keys(event) {
            match self.controller.linger(event, &key) {
                Duration::ZERO => self.queue.add(key),
                linger => self.queue.add_after(key, linger),
            }
        }
    }

    fn listing(&self, resource: &GroupResource) {
        self.controller.listing(resource);
    }

    fn listed(&self, resource: &GroupResource, revision: ResourceVersion) {
        self.controller.listed(resource, revision).into_iter().for_each(|key| self.queue.add(key));
    }

    fn lost(&self, key: &ObjectKey) {
        self.handle_event(&Event {
            revision: ResourceVersion::FIRST,
            change: ChangeKind::Deleted,
            key: key.clone(),
            record: Arc::new(Record::of(&serde_json::json!({}))),
            previous: None,
        });
    }
}

impl<C: Controller> ControllerLoop for ControllerQueue<C> {
    fn resources(&self) -> Vec<GroupResource> {
        self.controller.resources()
    }

    fn follows_defined(&self) -> bool {
        self.controller.follows_defined()
    }

    fn workers(&self) -> usize {
        self.controller.workers()
    }

    fn work(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            loop {
                let key = self.queue.next().await;
                portolan_types::failpoint!("controllers/key-taken");
                let span = span::of(self.name(), &key);
                match self.controller.reconcile(&key).instrument(span.clone()).await {
                    Ok(outcome) => {
                        portolan_types::failpoint!("controllers/reconciled");
                        self.queue.finish(key, outcome);
                    }
                    Err(error) => {
                        span.in_scope(|| debug!(?key, %error, "reconcile failed, will retry"));
                        self.queue.fail(key);
                    }
                }
            }
        })
    }
}
