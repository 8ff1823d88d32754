//! `status` of PodDisruptionBudgets, as kube-controller-manager's disruption controller keeps it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, LabelSelector, ObjectKey, object};
use serde_json::{Value, json};

use crate::{
    fields::{int_or_percent, list, number, set_condition, text},
    index::{PodController, PodIndex, label_selector},
};

/// Delay of a budget's reconcile, to batch the events of its pods.
const LINGER: Duration = Duration::from_millis(50);
/// Time in which a pod that the API server evicted is to be deleted; after it the pod counts again.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);
/// Kinds with a scale, and their resources.
const SCALED: [(&str, &str, &str); 4] = [
    ("apps", "Deployment", "deployments"),
    ("apps", "ReplicaSet", "replicasets"),
    ("apps", "StatefulSet", "statefulsets"),
    ("", "ReplicationController", "replicationcontrollers"),
];

/// Loop of PodDisruptionBudgets.
pub(crate) struct DisruptionController {
    plane: Arc<Plane>,
    pods: Arc<PodIndex>,
    budgets: GroupResource,
}

/// Pods that a budget selects, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SelectedCounts {
    selected: i64,
    ready: i64,
    /// Sum of the scales of their controllers.
    expected: i64,
}

/// Resource of a controller with a scale, by its API version and kind.
pub(crate) fn scaled_resource(api_version: &str, kind: &str) -> Option<GroupResource> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let found = SCALED.iter().find(|(own, name, _)| *own == group && *name == kind)?;
    Some(GroupResource::new(found.0, found.2))
}

impl DisruptionController {
    pub(crate) fn new(plane: Arc<Plane>, pods: Arc<PodIndex>) -> Self {
        Self { plane, pods, budgets: GroupResource::new("policy", "poddisruptionbudgets") }
    }

    /// Returns the number of replicas that the controllers of pods are to have; those without a scale count their pods.
    async fn expected(&self, key: &ObjectKey, owners: Vec<(Option<PodController>, usize)>) -> Result<i64, PlaneError> {
        let (mut seen, mut sum) = (HashSet::new(), 0_i64);
        for owner in owners.into_iter().filter_map(|(owner, _)| owner) {
            let Some((uid, replicas)) = self.scale(key, &owner).await? else { continue };
            if seen.insert(uid) {
                sum = sum.saturating_add(replicas);
            }
        }
        Ok(sum)
    }

    /// Returns the uid and the scale of a controller; of a ReplicaSet those of its Deployment.
    async fn scale(&self, budget: &ObjectKey, owner: &PodController) -> Result<Option<(String, i64)>, PlaneError> {
        let mut owner = owner.clone();
        loop {
            let (Some(resource), Ok(name)) = (scaled_resource(&owner.api_version, &owner.kind), owner.name.parse())
            else {
                return Ok(None);
            };
            let key = ObjectKey { resource, name, ..budget.clone() };
            let found = self.plane.get(&key).await?;
            let Some(found) = found.filter(|found| object::meta_text(&found.object, "uid") == owner.uid) else {
                return Ok(None);
            };
            match object::controller_of(&found.object) {
                Some(controller) => owner = PodController::of(controller),
                None => return Ok(Some((owner.uid, number(&found.object, "/spec/replicas").unwrap_or(1)))),
            }
        }
    }

    async fn update(&self, key: &ObjectKey, budget: &Value) -> Result<WorkOutcome, PlaneError> {
        let selector = match budget.pointer("/spec/selector") {
            // `policy/v1`: none selects nothing, an empty one all pods.
            None | Some(Value::Null) => None,
            Some(selector) => label_selector(selector),
        };
        let Some(selector) = selector else {
            self.pods.unselect(key);
            return self.write(key, budget, SelectedCounts::default(), BTreeMap::new()).await;
        };
        let now = self.plane.seams().clock.now();
        let (mut pods, owners, evicted) = self.look(key, budget, &selector, now);
        if needs_scale(budget) {
            pods.expected = self.expected(key, owners).await?;
        }
        let recheck = if evicted.is_empty() { None } else { Some(DELETION_TIMEOUT) };
        self.write(key, budget, pods, evicted).await?;
        Ok(recheck.map_or(WorkOutcome::Done, WorkOutcome::RequeueAfter))
    }

    /// Counts the pods; those that were evicted and are still there are not healthy.
    #[allow(clippy::type_complexity, reason = "counts, owners and evicted pods, for one caller")]
    fn look(
        &self,
        key: &ObjectKey,
        budget: &Value,
        selector: &LabelSelector,
        now: Timestamp,
    ) -> (SelectedCounts, Vec<(Option<PodController>, usize)>, BTreeMap<String, Value>) {
        let known = budget.pointer("/status/disruptedPods").and_then(Value::as_object).cloned().unwrap_or_default();
        let is_recent = |at: &Value| {
            let at: Option<Timestamp> = at.as_str().and_then(|at| at.parse().ok());
            at.is_some_and(|at| now.duration_since(at).as_secs() < DELETION_TIMEOUT.as_secs().cast_signed())
        };
        let looked = self.pods.select(key, selector, |selected| {
            selected.take_changes();
            let evicted: BTreeMap<String, Value> = known
                .into_iter()
                .filter(|(name, at)| is_recent(at) && selected.get(name).is_some_and(|pod| !pod.is_deleting))
                .collect();
            let unhealthy = evicted.keys().filter(|name| selected.get(name).is_some_and(|pod| pod.serves())).count();
            let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            let pods = SelectedCounts {
                selected: count(selected.len()),
                ready: count(selected.ready - unhealthy),
                expected: 0,
            };
            (pods, selected.owners().map(|(owner, count)| (owner.cloned(), count)).collect(), evicted)
        });
        looked.unwrap_or_default()
    }

    async fn write(
        &self,
        key: &ObjectKey,
        budget: &Value,
        pods: SelectedCounts,
        evicted: BTreeMap<String, Value>,
    ) -> Result<WorkOutcome, PlaneError> {
        let now = self.plane.seams().now_text();
        let mut status = status(budget, pods, &now);
        if !evicted.is_empty() {
            status["disruptedPods"] = evicted.into_iter().collect::<serde_json::Map<_, _>>().into();
        }
        self.plane
            .force(key, |current| {
                // The API server evicts by the budget's status: newer changes there are not overwritten.
                let fresh = current["status"]["disruptedPods"] == budget["status"]["disruptedPods"];
                let differs = current["status"] != status;
                if fresh && differs {
                    current["status"] = status.clone();
                }
                fresh && differs
            })
            .await?;
        Ok(WorkOutcome::Done)
    }
}

fn needs_scale(budget: &Value) -> bool {
    budget.pointer("/spec/maxUnavailable").is_some_and(|value| !value.is_null())
        || budget.pointer("/spec/minAvailable").is_some_and(Value::is_string)
}

/// Returns the status of a budget. Pure.
fn status(budget: &Value, pods: SelectedCounts, now: &str) -> Value {
    let present = |field: &str| budget.pointer(&format!("/spec/{field}")).filter(|value| !value.is_null());
    let (expected, desired) = match (present("maxUnavailable"), present("minAvailable")) {
        (Some(most), _) => {
            let most = int_or_percent(Some(most), pods.expected, 0, true);
            (pods.expected, (pods.expected - most).max(0))
        }
        (None, Some(least @ Value::String(_))) => (pods.expected, int_or_percent(Some(least), pods.expected, 0, true)),
        (None, Some(least)) => (pods.selected, least.as_i64().unwrap_or(0)),
        (None, None) => (0, 0),
    };
    let allowed = if expected <= 0 { 0 } else { (pods.ready - desired).max(0) };
    let generation = object::generation(budget);
    let mut conditions = list(budget, "/status/conditions").to_vec();
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    set_condition(&mut conditions, "DisruptionAllowed", allowed > 0, reason, "", now);
    for condition in conditions.iter_mut().filter(|own| text(own, "/type") == "DisruptionAllowed") {
        condition["observedGeneration"] = generation.into();
        condition["message"] = "".into();
    }
    json!({
        "currentHealthy": pods.ready, "desiredHealthy": desired, "expectedPods": expected, "disruptionsAllowed": allowed,
        "observedGeneration": generation, "conditions": conditions,
    })
}

impl Controller for DisruptionController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-disruption"
    }

    fn resources(&self) -> Vec<GroupResource> {
        let scaled = SCALED.iter().map(|(group, _, resource)| GroupResource::new(*group, *resource));
        [self.budgets.clone(), GroupResource::new("", "pods")].into_iter().chain(scaled).collect()
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        match &*event.key.resource.resource {
            "poddisruptionbudgets" => vec![event.key.clone()],
            "pods" => self.pods.changed_selections(&event.key, &self.budgets),
            _ => self.pods.selections(&event.key, &self.budgets),
        }
    }

    fn linger(&self, event: &Event, key: &ObjectKey) -> Duration {
        if event.key == *key { Duration::ZERO } else { LINGER }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            match self.plane.get(key).await? {
                Some(found) => self.update(key, &found.object).await,
                None => {
                    self.pods.unselect(key);
                    Ok(WorkOutcome::Done)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_allows_what_kubernetes_allows() {
        let pods = |selected, ready, expected| SelectedCounts { selected, ready, expected };
        for (case, spec, pods, expected) in [
            ("a number", json!({"minAvailable": 2}), pods(3, 3, 0), [3, 2, 3, 1]),
            ("a number that is never reached", json!({"minAvailable": 4}), pods(3, 3, 0), [3, 4, 3, 0]),
            ("a share", json!({"minAvailable": "50%"}), pods(3, 3, 3), [3, 2, 3, 1]),
            ("a number that may go", json!({"maxUnavailable": 1}), pods(3, 2, 3), [2, 2, 3, 0]),
            ("a share that may go", json!({"maxUnavailable": "34%"}), pods(3, 3, 3), [3, 1, 3, 2]),
            ("no pods", json!({"minAvailable": 0}), pods(0, 0, 0), [0, 0, 0, 0]),
        ] {
            let status = status(&json!({"metadata": {"generation": 1}, "spec": spec}), pods, "t");
            let found = ["currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"]
                .map(|field| status[field].as_i64().unwrap());
            assert_eq!(found, expected, "{case}");
            let reason = if expected[3] > 0 { "SufficientPods" } else { "InsufficientPods" };
            assert_eq!(status["conditions"][0]["reason"], reason, "{case}");
        }
    }
}
