//! Loops over one plane: their queues are fed, and worked off.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portolan_store::{Change, Event, Worklist};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Record, ResourceVersion, work::Backoff};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{Controller, census::Census, defined::Feeds, feed::Fed};
use crate::Plane;

/// Wraps each task of [`Loops`], such as to poll it in the time slices of a tenant.
pub type TaskWrapper = Arc<dyn Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Loops over the objects of one plane. They share its watches: each resource is listed and watched once for all of them, so
/// that a write wakes one task however many loops there are.
pub struct Loops {
    plane: Arc<Plane>,
    loops: Vec<Arc<dyn Runs>>,
    wrapper: TaskWrapper,
}

impl Loops {
    /// None yet.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, loops: Vec::new(), wrapper: Arc::new(|task| task) }
    }

    /// Runs each task, of workers and of feeds, as `wrapper` returns it.
    #[must_use]
    pub fn wrapped(mut self, wrapper: TaskWrapper) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// The plane that they are about.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// One more loop.
    #[must_use]
    pub fn with(mut self, controller: impl Controller) -> Self {
        // One worker is left to others whatever a logical cluster has to do.
        let most = controller.workers().saturating_sub(1).max(1);
        let mut queue = Worklist::new(Backoff::default(), self.plane.seams()).at_most(most);
        if let Some(metrics) = self.plane.metrics() {
            queue = queue.measured(metrics.work().of(controller.name()));
        }
        self.loops.push(Arc::new(Loop { controller, queue }));
        self
    }

    /// With a count of the objects that they follow, where somebody wants to know.
    #[must_use]
    pub fn counting(mut self) -> Self {
        if let Some(metrics) = self.plane.metrics() {
            let counting = |resource| Arc::new(Counting { census: metrics.census.clone(), resource }) as Arc<dyn Runs>;
            self.loops.extend(self.plane.stored_resources().into_iter().map(counting));
        }
        self
    }

    /// Runs them until `shutdown`. One that panicked ends all: half a loop would look like a whole one.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut workers = JoinSet::new();
        let interested = self.loops.iter().filter(|own| own.follows_defined()).map(|own| own.clone() as _).collect();
        let mut feeds = Feeds::new(self.plane.store().clone(), self.by_resource(), interested, self.wrapper.clone());
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

    fn by_resource(&self) -> BTreeMap<GroupResource, Vec<Arc<dyn Fed>>> {
        let mut all: BTreeMap<_, Vec<Arc<dyn Fed>>> = BTreeMap::new();
        for own in &self.loops {
            for resource in own.resources() {
                all.entry(resource).or_default().push(own.clone());
            }
        }
        all
    }
}

/// A loop, whatever its keys are.
trait Runs: Fed {
    fn resources(&self) -> Vec<GroupResource>;
    fn follows_defined(&self) -> bool;
    fn workers(&self) -> usize;
    fn work(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Counts what is fed of one resource.
struct Counting {
    census: Arc<Census>,
    resource: GroupResource,
}

impl Fed for Counting {
    fn name(&self) -> &'static str {
        "census"
    }

    fn listing(&self) {
        self.census.begin(&self.resource);
    }

    fn listed(&self, _: ResourceVersion) {
        self.census.whole(&self.resource);
    }

    fn take_in(&self, event: &Event) {
        self.census.take(event);
    }

    fn unreadable(&self, _: &ObjectKey) {
        self.census.one_more(&self.resource);
    }
}

impl Runs for Counting {
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

impl Drop for Counting {
    fn drop(&mut self) {
        self.census.forget(&self.resource);
    }
}

struct Loop<C: Controller> {
    controller: C,
    queue: Worklist<C::Key>,
}

impl<C: Controller> Fed for Loop<C> {
    fn name(&self) -> &'static str {
        self.controller.name()
    }

    fn take_in(&self, event: &Event) {
        for key in self.controller.keys(event) {
            match self.controller.linger(event, &key) {
                Duration::ZERO => self.queue.add(key),
                linger => self.queue.add_after(key, linger),
            }
        }
    }

    fn listing(&self) {
        self.controller.listing();
    }

    fn listed(&self, revision: ResourceVersion) {
        self.controller.listed(revision);
    }

    fn lost(&self, key: &ObjectKey) {
        self.take_in(&Event {
            revision: ResourceVersion::FIRST,
            change: Change::Deleted,
            key: key.clone(),
            record: Arc::new(Record::of(&serde_json::json!({}))),
            previous: None,
        });
    }
}

impl<C: Controller> Runs for Loop<C> {
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
                match self.controller.reconcile(&key).await {
                    Ok(outcome) => {
                        portolan_types::failpoint!("controllers/reconciled");
                        self.queue.finish(key, outcome);
                    }
                    Err(error) => {
                        debug!(controller = self.name(), ?key, %error, "reconcile failed, will try again");
                        self.queue.fail(key);
                    }
                }
            }
        })
    }
}
