//! StatefulSet → Pods with stable names, one after the other, each with its claims.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use portolan_controllers::{PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_types::{ObjectKey, object};
use serde_json::{Value, json};

use super::{
    SimulatedWorkload,
    children::{ChildKinds, STEP, kind, pod_from},
    revisions,
};
use crate::{
    fields::{list, number, text},
    index::{OwnedPods, PodFacts},
};

const REVISION: &str = "controller-revision-hash";

pub(super) struct StatefulSets;

/// Next step of a StatefulSet: one at a time, unless the set is parallel.
#[derive(Debug, PartialEq, Eq)]
enum OrdinalStep {
    Create(i64),
    Delete(i64),
    Wait,
}

/// Pod, reduced to what the order depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OrdinalPod {
    ready: bool,
    going: bool,
    current: bool,
    /// The pod has ended, and is replaced by a new one.
    ended: bool,
}

/// Fields of `spec` on which the order of the pods depends.
#[derive(Clone, Copy, Debug)]
struct OrdinalRange {
    /// First ordinal, of `spec.ordinals.start`.
    start: i64,
    replicas: i64,
    /// Pods before this ordinal keep their template.
    partition: i64,
    parallel: bool,
}

impl OrdinalRange {
    fn of(set: &Value) -> Self {
        let partition = match text(set, "/spec/updateStrategy/type") {
            "OnDelete" => i64::MAX,
            _ => number(set, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0),
        };
        Self {
            start: number(set, "/spec/ordinals/start").unwrap_or(0).max(0),
            replicas: number(set, "/spec/replicas").unwrap_or(1).max(0),
            partition,
            parallel: text(set, "/spec/podManagementPolicy") == "Parallel",
        }
    }
}

/// Decides the next steps from the present state, at most [`STEP`]. Pure.
fn plan(members: &BTreeMap<i64, OrdinalPod>, order: OrdinalRange) -> Vec<OrdinalStep> {
    let OrdinalRange { start, replicas, partition, parallel } = order;
    let end = start.saturating_add(replicas);
    let mut steps = Vec::new();
    for ordinal in start..end {
        match members.get(&ordinal) {
            None => steps.push(OrdinalStep::Create(ordinal)),
            Some(member) if member.ended && !member.going => steps.push(OrdinalStep::Delete(ordinal)),
            Some(member) if !member.ready => steps.push(OrdinalStep::Wait),
            Some(_) => continue,
        }
        if !parallel || steps.len() >= STEP {
            return steps;
        }
    }
    let surplus = members.iter().rev().filter(|(ordinal, _)| !(start..end).contains(*ordinal));
    for (ordinal, member) in surplus {
        steps.push(if member.going { OrdinalStep::Wait } else { OrdinalStep::Delete(*ordinal) });
        if !parallel || steps.len() >= STEP {
            return steps;
        }
    }
    if steps.is_empty() {
        let outdated = members.iter().rev().find(|(ordinal, member)| **ordinal >= partition && !member.current);
        steps.extend(outdated.map(|(ordinal, _)| OrdinalStep::Delete(*ordinal)));
    }
    steps
}

async fn create(family: &ChildKinds, set: &PlaneObject, ordinal: i64, revision: &str) -> Result<(), PlaneError> {
    let name = format!("{}-{ordinal}", object::name(&set.object));
    let labels = [
        (REVISION, revision.to_owned()),
        ("statefulset.kubernetes.io/pod-name", name.clone()),
        ("apps.kubernetes.io/pod-index", ordinal.to_string()),
    ];
    let mut pod = pod_from(&set.object, &set.object["spec"]["template"], &labels);
    let mut volumes = list(&pod, "/spec/volumes").to_vec();
    for template in list(&set.object, "/spec/volumeClaimTemplates") {
        let claim = ensure_claim(family, set, template, &name).await?;
        let volume = object::name(template);
        volumes.retain(|v| text(v, "/name") != volume);
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
    }
    pod["metadata"]["name"] = name.as_str().into();
    pod["spec"]["hostname"] = name.into();
    pod["spec"]["subdomain"] = text(&set.object, "/spec/serviceName").into();
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = volumes.into();
    }
    family.create_pod(set, pod).await
}

/// The claim of one pod; it outlives the pod, as in Kubernetes.
async fn ensure_claim(
    family: &ChildKinds,
    set: &PlaneObject,
    template: &Value,
    pod: &str,
) -> Result<String, PlaneError> {
    let claim = claim_from(&set.object, template, pod);
    let name = object::name(&claim).to_owned();
    family.plane.create(kind(&family.plane, ("", "PersistentVolumeClaim")), set.key.cluster, claim).await?;
    Ok(name)
}

/// Returns the claim of a pod, with the labels that select the pods of the set.
fn claim_from(set: &Value, template: &Value, pod: &str) -> Value {
    let mut claim = template.clone();
    claim["apiVersion"] = "v1".into();
    claim["kind"] = "PersistentVolumeClaim".into();
    let metadata = object::metadata_mut(&mut claim);
    metadata.insert("name".into(), format!("{}-{pod}", object::name(template)).into());
    metadata.insert("namespace".into(), object::namespace(set).into());
    let selected = set.pointer("/spec/selector/matchLabels").and_then(Value::as_object).cloned();
    object::child_mut(metadata, "labels").extend(selected.unwrap_or_default());
    claim
}

/// Counts as kube-controller-manager does: a pod that is being deleted is a replica until it is gone, so that the set
/// changes once more then.
fn status(set: &Value, pods: &OwnedPods, revision: &str, available: usize) -> Value {
    let active = || pods.pods().values().filter(|pod| pod.is_active());
    let is_current = |pod: &&Arc<PodFacts>| pod.label(REVISION) == Some(revision);
    let updated = active().filter(is_current).count();
    let was = text(set, "/status/currentRevision");
    let done = updated == pods.active() || was.is_empty();
    let current = if done { revision } else { was };
    json!({
        "observedGeneration": object::generation(set), "replicas": pods.pods().len(), "readyReplicas": pods.ready,
        "availableReplicas": available, "updatedReplicas": updated, "collisionCount": 0,
        "currentReplicas": if done { updated } else { pods.active() - updated },
        "currentRevision": current, "updateRevision": revision,
    })
}

fn ordinal(set: &Value, pod: &ObjectKey) -> Option<i64> {
    pod.name.strip_prefix(object::name(set))?.strip_prefix('-')?.parse().ok()
}

fn members(set: &Value, pods: &OwnedPods, revision: &str) -> BTreeMap<i64, OrdinalPod> {
    let member = |pod: &PodFacts| OrdinalPod {
        ready: pod.serves(),
        going: pod.is_deleting,
        current: pod.label(REVISION) == Some(revision),
        ended: pod.has_ended(),
    };
    pods.pods().iter().filter_map(|(key, pod)| Some((ordinal(set, key)?, member(pod)))).collect()
}

impl SimulatedWorkload for StatefulSets {
    const NAME: &'static str = "simulated-statefulsets";
    const PARENT: (&'static str, &'static str) = ("apps", "StatefulSet");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &ChildKinds, set: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let object = &set.object;
        let revision = format!("{}-{}", object::name(object), revisions::keep(family, set).await?);
        let members = family.pods(set, |pods| members(object, pods, &revision));
        let mut deleted = HashSet::new();
        for step in plan(&members, OrdinalRange::of(object)) {
            match step {
                OrdinalStep::Create(ordinal) => create(family, set, ordinal, &revision).await?,
                OrdinalStep::Delete(wanted) => drop(deleted.insert(wanted)),
                OrdinalStep::Wait => {}
            }
        }
        let deleted = family.pods(set, |pods| {
            let goes = |key: &ObjectKey| ordinal(object, key).is_some_and(|own| deleted.contains(&own));
            let goes = pods.pods().iter().filter(|(key, _)| goes(key));
            goes.map(|(key, pod)| (key.clone(), pod.uid.clone())).collect()
        });
        family.delete_pods(deleted).await?;
        let least = number(object, "/spec/minReadySeconds").unwrap_or(0);
        let now = family.plane.seams().clock.now();
        let (status, next) = family.pods(set, |pods| {
            let (available, next) = pods.available(least, now);
            (status(object, pods, &revision, available), next)
        });
        family.write_status(&set.key, &status).await?;
        Ok(next.map_or(WorkOutcome::Done, |seconds| WorkOutcome::RequeueAfter(Duration::from_secs(seconds))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::testing::owned;

    #[test]
    fn a_pod_that_is_being_deleted_is_counted_until_it_is_gone() {
        let pod = |name: &str, is_deleting: bool| {
            let at = is_deleting.then_some("2026-01-01T00:00:00Z");
            let owner =
                json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "set", "controller": true});
            json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1", "deletionTimestamp": at,
                "labels": {REVISION: "db-1"}, "ownerReferences": [owner]}, "status": {"phase": "Running"}})
        };
        let counted = |pods: &[Value]| {
            let set = json!({"metadata": {"generation": 2}});
            let status = owned(pods, "set", |pods| status(&set, pods, "db-1", 0));
            ["replicas", "updatedReplicas", "currentReplicas"].map(|field| status[field].as_i64().unwrap())
        };
        assert_eq!(counted(&[pod("db-0", false), pod("db-1", true)]), [2, 1, 1]);
        assert_eq!(counted(&[pod("db-0", false)]), [1, 1, 1]);
    }

    #[test]
    fn pods_come_in_order_and_go_in_reverse() {
        let up = OrdinalPod { ready: true, going: false, current: true, ended: false };
        let starting = OrdinalPod { ready: false, ..up };
        let outdated = OrdinalPod { current: false, ..up };
        let order = OrdinalRange { start: 0, replicas: 2, partition: 0, parallel: false };
        for (case, members, order, expected) in [
            ("the first comes first", vec![], order, vec![OrdinalStep::Create(0)]),
            ("the second waits for the first", vec![(0, starting)], order, vec![OrdinalStep::Wait]),
            ("then it comes", vec![(0, up)], order, vec![OrdinalStep::Create(1)]),
            (
                "parallel ones come together",
                vec![],
                OrdinalRange { parallel: true, ..order },
                vec![OrdinalStep::Create(0), OrdinalStep::Create(1)],
            ),
            (
                "the last goes first",
                vec![(0, up), (1, up), (2, up)],
                OrdinalRange { replicas: 1, ..order },
                vec![OrdinalStep::Delete(2)],
            ),
            (
                "an outdated one is replaced from the end",
                vec![(0, outdated), (1, outdated)],
                order,
                vec![OrdinalStep::Delete(1)],
            ),
            (
                "one that ended is replaced",
                vec![(0, OrdinalPod { ended: true, ..starting })],
                order,
                vec![OrdinalStep::Delete(0)],
            ),
            (
                "ordinals start where the set says",
                vec![],
                OrdinalRange { start: 5, ..order },
                vec![OrdinalStep::Create(5)],
            ),
            (
                "ordinals before the start go",
                vec![(0, up), (5, up), (6, up)],
                OrdinalRange { start: 5, ..order },
                vec![OrdinalStep::Delete(0)],
            ),
            ("all is well", vec![(0, up), (1, up)], order, vec![]),
        ] {
            assert_eq!(plan(&members.into_iter().collect(), order), expected, "{case}");
        }
    }
}
