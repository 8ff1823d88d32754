//! Number of objects per built-in resource, counted from the feeds of the controllers.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use portolan_store::{ChangeKind, Event};
use portolan_types::GroupResource;
use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Object counts over all logical clusters, without custom resources: clients choose their names, and a series for
/// each has no bound.
pub(crate) struct ObjectCounts {
    counts: Mutex<BTreeMap<GroupResource, ResourceCount>>,
}

#[derive(Default)]
struct ResourceCount {
    objects: i64,
    /// True once the whole resource has been listed; until then it is not reported.
    is_whole: bool,
}

impl ObjectCounts {
    pub(super) fn new() -> Self {
        Self { counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<GroupResource, ResourceCount>> {
        self.counts.lock().expect("no code panics under this lock")
    }

    /// Starts the count of a resource again.
    pub(super) fn restart(&self, resource: &GroupResource) {
        self.counts().insert(resource.clone(), ResourceCount::default());
    }

    /// Marks the count of a resource as complete.
    pub(super) fn mark_complete(&self, resource: &GroupResource) {
        self.counts().entry(resource.clone()).or_default().is_whole = true;
    }

    pub(super) fn count_event(&self, event: &Event) {
        let change = match event.change {
            ChangeKind::Created => 1,
            ChangeKind::Updated => return,
            ChangeKind::Deleted => -1,
        };
        self.counts().entry(event.key.resource.clone()).or_default().objects += change;
    }

    /// Counts an object that cannot be read.
    pub(super) fn add_unreadable(&self, resource: &GroupResource) {
        self.counts().entry(resource.clone()).or_default().objects += 1;
    }

    /// Drops a resource.
    pub(super) fn forget(&self, resource: &GroupResource) {
        self.counts().remove(resource);
    }

    /// Returns the complete counts.
    fn complete_counts(&self) -> Vec<(GroupResource, i64)> {
        let counts = self.counts();
        let whole = counts.iter().filter(|(_, count)| count.is_whole);
        whole.map(|(resource, count)| (resource.clone(), count.objects)).collect()
    }
}

/// Collector of the counts under kube-apiserver's two metric names.
pub(super) struct ObjectCountCollector {
    counts: std::sync::Arc<ObjectCounts>,
    by_resource: IntGaugeVec,
    by_group: IntGaugeVec,
}

impl ObjectCountCollector {
    pub(super) fn new(counts: std::sync::Arc<ObjectCounts>) -> prometheus::Result<Self> {
        let help = "Stored objects, of all logical clusters.";
        Ok(Self {
            counts,
            by_resource: IntGaugeVec::new(Opts::new("apiserver_storage_objects", help), &["resource"])?,
            by_group: IntGaugeVec::new(Opts::new("apiserver_resource_objects", help), &["group", "resource"])?,
        })
    }
}

impl Collector for ObjectCountCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.by_resource.desc(), self.by_group.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.by_resource.reset();
        self.by_group.reset();
        for (resource, count) in self.counts.complete_counts() {
            self.by_resource.with_label_values(&[&resource.to_string()]).set(count);
            self.by_group.with_label_values(&[&*resource.group, &*resource.resource]).set(count);
        }
        [self.by_resource.collect(), self.by_group.collect()].concat()
    }
}
