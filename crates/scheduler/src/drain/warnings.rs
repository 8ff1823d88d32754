//! Warnings about a drain that is about to be written.

use portolan_types::{
    LogicalClusterId,
    placement::{DrainSpec, WhenBlocked},
};
use serde_json::Value;

use super::part;
use crate::context::SchedulerContext;

/// Most warnings about one drain.
const MAX_WARNINGS: usize = 3;

/// Returns warnings about names of physical clusters that are not registered, and about objects that move by force.
pub(crate) fn warnings(ctx: &SchedulerContext, home: LogicalClusterId, object: &Value) -> Vec<String> {
    let spec: DrainSpec = part(object, "spec");
    let mut warnings = Vec::new();
    if spec.when_blocked == WhenBlocked::Force {
        warnings.push(
            "spec.whenBlocked: Force starts workloads with volumes on new, empty ones, starts started Jobs again, and stops \
             workloads that must not run twice before they run elsewhere, whatever the budget"
                .to_owned(),
        );
    }
    let facts = ctx.facts();
    let unknown = spec.physical_clusters.iter().filter(|name| facts.registered_in(home, name).is_none());
    warnings.extend(unknown.map(|name| {
        format!("spec.physicalClusters: no physical cluster {name:?} is registered in this workspace: the drain waits for it")
    }));
    warnings.truncate(MAX_WARNINGS);
    warnings
}
