//! ReplicaSet → Pods.

use portolan_controllers::{Outcome, PlaneError, plane::Found};
use portolan_types::object;
use serde_json::json;

use super::{
    Workload,
    children::{Family, generate_name, is_active, is_ready, pod_from},
};
use crate::fields::number;

/// Pods made or deleted per look, so that a large set does not starve others.
const STEP: usize = 100;

pub(super) struct ReplicaSets;

async fn scale(family: &Family, set: &Found, active: &[&Found]) -> Result<(), PlaneError> {
    let wanted = usize::try_from(number(&set.object, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
    for _ in 0..wanted.saturating_sub(active.len()).min(STEP) {
        let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &[]);
        generate_name(&mut pod, &set.object, &family.plane);
        family.create(set, pod).await?;
    }
    let mut spare: Vec<&&Found> = active.iter().collect();
    // Those that do not serve go first, then the youngest.
    spare.sort_by_key(|pod| (is_ready(&pod.object), std::cmp::Reverse(pod.revision)));
    for pod in spare.into_iter().take(active.len().saturating_sub(wanted).min(STEP)) {
        family.delete(pod).await?;
    }
    Ok(())
}

impl Workload for ReplicaSets {
    const NAME: &'static str = "simulated-replicasets";
    const PARENT: (&'static str, &'static str) = ("apps", "ReplicaSet");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &Family, set: &Found) -> Result<Outcome, PlaneError> {
        let pods = family.children(set).await?;
        let active: Vec<&Found> = pods.iter().filter(|pod| is_active(&pod.object)).collect();
        scale(family, set, &active).await?;
        let ready = active.iter().filter(|pod| is_ready(&pod.object)).count();
        let going = pods.iter().filter(|pod| object::is_deleting(&pod.object)).count();
        let status = json!({
            "replicas": active.len(), "terminatingReplicas": going, "fullyLabeledReplicas": active.len(), "readyReplicas": ready,
            "availableReplicas": ready, "observedGeneration": object::generation(&set.object),
        });
        family.write_status(&set.key, &status).await?;
        Ok(Outcome::Done)
    }
}
