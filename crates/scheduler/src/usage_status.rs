//! Usage and bounds in the status of physical clusters.

use std::{collections::BTreeMap, time::Duration};

use portolan_store::{Step, StoreError};
use portolan_types::{
    ObjectKey, Uid,
    placement::{PhysicalClusterStatus, Resources},
    quantity::Quantity,
};
use serde_json::json;
use tracing::warn;

use crate::{queue::Task, scheduler::Inner};

/// Resources that are always shown; others only where they are bounded.
const ALWAYS_SHOWN: [&str; 3] = ["cpu", "memory", "pods"];

/// Usage of one physical cluster, and what it is held to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ShownUsage {
    used: Resources,
    bounds: Resources,
}

impl ShownUsage {
    /// Returns true when less of a bounded resource is used than `before`.
    fn frees_room_of(&self, before: &Self) -> bool {
        let of = |usage: &Self, name: &String| usage.used.get(name).copied().unwrap_or(Quantity::ZERO);
        self.bounds.keys().any(|name| of(self, name) < of(before, name))
    }
}

impl Inner {
    /// Writes usage and bounds that have changed, after waiting for more to come.
    pub(crate) async fn keep_usage_status(&self, delay: Duration) {
        let mut written: BTreeMap<Uid, ShownUsage> = BTreeMap::new();
        loop {
            self.usage_changed.notified().await;
            tokio::time::sleep(delay).await;
            if !self.leads() {
                written.clear();
                continue;
            }
            let usages = self.usages();
            written.retain(|uid, _| usages.iter().any(|(_, known, _)| known == uid));
            for (key, uid, usage) in usages {
                if written.get(&uid) == Some(&usage) {
                    continue;
                }
                if written.get(&uid).is_some_and(|before| usage.frees_room_of(before)) {
                    self.without_room.all().into_iter().for_each(|key| self.queue.tasks.add(Task::Object(key)));
                }
                match self.write_usage(&key, &usage).await {
                    Ok(()) | Err(StoreError::ClusterGone { .. }) => drop(written.insert(uid, usage)),
                    Err(error) => {
                        warn!(cluster = %key, %error, "could not write the usage of a physical cluster");
                        self.usage_changed.notify_one();
                    }
                }
            }
        }
    }

    fn usages(&self) -> Vec<(ObjectKey, Uid, ShownUsage)> {
        let facts = self.facts();
        let of = |(uid, key, bounds): (&Uid, &ObjectKey, &Resources)| {
            let mut used: Resources = ALWAYS_SHOWN.iter().map(|name| ((*name).to_owned(), Quantity::ZERO)).collect();
            let is_shown = |name: &String| ALWAYS_SHOWN.contains(&name.as_str()) || bounds.contains_key(name);
            used.extend(facts.usage.placed_on(uid).into_iter().filter(|(name, _)| is_shown(name)));
            (key.clone(), uid.clone(), ShownUsage { used, bounds: bounds.clone() })
        };
        facts.all_physical().map(of).collect()
    }

    async fn write_usage(&self, key: &ObjectKey, usage: &ShownUsage) -> Result<(), StoreError> {
        let change = |physical: &mut serde_json::Value| {
            let before = physical.get("status").cloned().unwrap_or_else(|| json!({}));
            let Ok(before) = serde_json::from_value::<PhysicalClusterStatus>(before) else { return Ok(Step::Keep) };
            if before.usage == usage.used && before.bounds == usage.bounds {
                return Ok(Step::Keep);
            }
            physical["status"]["usage"] = json!(usage.used);
            physical["status"]["bounds"] = json!(usage.bounds);
            Ok(Step::Write)
        };
        self.objects.modify(key, change).await.map(drop)
    }
}
