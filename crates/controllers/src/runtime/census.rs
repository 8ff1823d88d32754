//! How many objects there are of each resource that all logical clusters have, counted from the feeds that loops follow anyway.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use portolan_store::{Change, Event};
use portolan_types::GroupResource;
use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Counts of objects over all logical clusters. Resources that logical clusters define are left out: their names are made by
/// clients, and a series for each of them has no bound.
pub(crate) struct Census {
    counts: Mutex<BTreeMap<GroupResource, Count>>,
}

#[derive(Default)]
struct Count {
    objects: i64,
    /// Whether all that was stored has been seen; until then nothing is told.
    is_whole: bool,
}

impl Census {
    pub(super) fn new() -> Self {
        Self { counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<GroupResource, Count>> {
        self.counts.lock().expect("no code panics under this lock")
    }

    /// A resource is listed anew.
    pub(super) fn begin(&self, resource: &GroupResource) {
        self.counts().insert(resource.clone(), Count::default());
    }

    /// All that is stored of a resource has been seen.
    pub(super) fn whole(&self, resource: &GroupResource) {
        self.counts().entry(resource.clone()).or_default().is_whole = true;
    }

    pub(super) fn take(&self, event: &Event) {
        let change = match event.change {
            Change::Created => 1,
            Change::Updated => return,
            Change::Deleted => -1,
        };
        self.counts().entry(event.key.resource.clone()).or_default().objects += change;
    }

    /// There is one that cannot be read.
    pub(super) fn one_more(&self, resource: &GroupResource) {
        self.counts().entry(resource.clone()).or_default().objects += 1;
    }

    /// A resource is not followed any more.
    pub(super) fn forget(&self, resource: &GroupResource) {
        self.counts().remove(resource);
    }

    /// What is known.
    fn told(&self) -> Vec<(GroupResource, i64)> {
        let counts = self.counts();
        let whole = counts.iter().filter(|(_, count)| count.is_whole);
        whole.map(|(resource, count)| (resource.clone(), count.objects)).collect()
    }
}

/// The census under upstream's two names.
pub(super) struct Objects {
    census: std::sync::Arc<Census>,
    by_resource: IntGaugeVec,
    by_group: IntGaugeVec,
}

impl Objects {
    pub(super) fn new(census: std::sync::Arc<Census>) -> prometheus::Result<Self> {
        let help = "Stored objects, of all logical clusters.";
        Ok(Self {
            census,
            by_resource: IntGaugeVec::new(Opts::new("apiserver_storage_objects", help), &["resource"])?,
            by_group: IntGaugeVec::new(Opts::new("apiserver_resource_objects", help), &["group", "resource"])?,
        })
    }
}

impl Collector for Objects {
    fn desc(&self) -> Vec<&Desc> {
        [self.by_resource.desc(), self.by_group.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.by_resource.reset();
        self.by_group.reset();
        for (resource, count) in self.census.told() {
            self.by_resource.with_label_values(&[&resource.to_string()]).set(count);
            self.by_group.with_label_values(&[&*resource.group, &*resource.resource]).set(count);
        }
        [self.by_resource.collect(), self.by_group.collect()].concat()
    }
}
