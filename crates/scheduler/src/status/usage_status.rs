//! Usage and bounds in the status of physical clusters.

use std::{collections::BTreeMap, time::Duration};

use portolan_store::{Step, StoreError};
use portolan_types::{
    ObjectKey, Uid,
    placement::{PhysicalClusterStatus, ResourceAmounts},
    quantity::Quantity,
};
use serde_json::json;
use tracing::warn;

use crate::{context::SchedulerContext, drain::events::recheck_blocked, queue::Task};

/// Resources that are always shown; others only if they are bounded.
const ALWAYS_SHOWN: [&str; 3] = ["cpu", "memory", "pods"];

/// Usage and bounds of one physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReportedUsage {
    used: ResourceAmounts,
    bounds: ResourceAmounts,
    workloads: i64,
}

impl ReportedUsage {
    /// Returns true when less of a bounded resource is used than `before`.
    fn frees_room_of(&self, before: &Self) -> bool {
        let of = |usage: &Self, name: &String| usage.used.get(name).copied().unwrap_or(Quantity::ZERO);
        self.bounds.keys().any(|name| of(self, name) < of(before, name))
    }
}

/// Writes changed usage and bounds forever. The delay collects changes.
pub(crate) async fn run_usage_status(ctx: &SchedulerContext, delay: Duration) {
    let mut written: BTreeMap<Uid, ReportedUsage> = BTreeMap::new();
    loop {
        ctx.signals.usage_status.notified().await;
        tokio::time::sleep(delay).await;
        if !ctx.leads() {
            written.clear();
            continue;
        }
        let usages = reported_usages(ctx);
        written.retain(|uid, _| usages.iter().any(|(_, known, _)| known == uid));
        for (key, uid, usage) in usages {
            if written.get(&uid) == Some(&usage) {
                continue;
            }
            if written.get(&uid).is_some_and(|before| usage.frees_room_of(before)) {
                ctx.without_room.all().into_iter().for_each(|key| ctx.queue.tasks.add(Task::Object(key)));
                // A drain frees room itself, where nothing is to go.
                if ctx.facts().physical(&uid).is_some_and(|physical| !physical.info.draining) {
                    recheck_blocked(ctx);
                }
            }
            match write_usage(ctx, &key, &usage).await {
                Ok(()) | Err(StoreError::ClusterGone { .. }) => drop(written.insert(uid, usage)),
                Err(error) => {
                    warn!(cluster = %key, %error, "usage of a physical cluster was not written, will retry");
                    ctx.signals.usage_status.notify_one();
                }
            }
        }
    }
}

fn reported_usages(ctx: &SchedulerContext) -> Vec<(ObjectKey, Uid, ReportedUsage)> {
    let facts = ctx.facts();
    let of = |(uid, key, bounds): (&Uid, &ObjectKey, &ResourceAmounts)| {
        let mut used: ResourceAmounts = ALWAYS_SHOWN.iter().map(|name| ((*name).to_owned(), Quantity::ZERO)).collect();
        let is_shown = |name: &String| ALWAYS_SHOWN.contains(&name.as_str()) || bounds.contains_key(name);
        used.extend(facts.usage.placed_on(uid).into_iter().filter(|(name, _)| is_shown(name)));
        let workloads = facts.usage.workloads_on(uid);
        (key.clone(), uid.clone(), ReportedUsage { used, bounds: bounds.clone(), workloads })
    };
    facts.all_physical().map(of).collect()
}

async fn write_usage(ctx: &SchedulerContext, key: &ObjectKey, usage: &ReportedUsage) -> Result<(), StoreError> {
    let change = |physical: &mut serde_json::Value| {
        let before = physical.get("status").cloned().unwrap_or_else(|| json!({}));
        let Ok(before) = serde_json::from_value::<PhysicalClusterStatus>(before) else { return Ok(Step::Keep) };
        let is_known = before.workloads == Some(usage.workloads);
        if is_known && before.usage == usage.used && before.bounds == usage.bounds {
            return Ok(Step::Keep);
        }
        physical["status"]["usage"] = json!(usage.used);
        physical["status"]["bounds"] = json!(usage.bounds);
        physical["status"]["workloads"] = json!(usage.workloads);
        Ok(Step::Write)
    };
    ctx.objects.modify(key, change).await.map(drop)
}
