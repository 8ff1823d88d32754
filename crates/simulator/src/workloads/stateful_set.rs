//! StatefulSet → Pods with stable names, one after the other, each with its claims.

use std::collections::BTreeMap;

use portolan_controllers::{Outcome, PlaneError, plane::Found};
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    Workload,
    children::{Family, is_active, is_ready, kind, pod_from},
    revisions,
};
use crate::fields::{list, number, text};

const REVISION: &str = "controller-revision-hash";

pub(super) struct StatefulSets;

/// What should happen next; one thing at a time, unless the set is parallel.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Create(i64),
    Delete(i64),
    Wait,
}

/// A pod as far as the order matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    ready: bool,
    going: bool,
    current: bool,
}

/// Decides the next steps from what is there. Pure.
fn plan(members: &BTreeMap<i64, Member>, replicas: i64, partition: i64, parallel: bool) -> Vec<Next> {
    let mut steps = Vec::new();
    for ordinal in 0..replicas {
        match members.get(&ordinal) {
            None => steps.push(Next::Create(ordinal)),
            Some(member) if !member.ready => steps.push(Next::Wait),
            Some(_) => continue,
        }
        if !parallel {
            return steps;
        }
    }
    let surplus = members.iter().rev().filter(|(ordinal, _)| **ordinal >= replicas);
    for (ordinal, member) in surplus {
        steps.push(if member.going { Next::Wait } else { Next::Delete(*ordinal) });
        if !parallel {
            return steps;
        }
    }
    if steps.is_empty() {
        let outdated = members.iter().rev().find(|(ordinal, member)| **ordinal >= partition && !member.current);
        steps.extend(outdated.map(|(ordinal, _)| Next::Delete(*ordinal)));
    }
    steps
}

async fn create(family: &Family, set: &Found, ordinal: i64, revision: &str) -> Result<(), PlaneError> {
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
    family.create(set, pod).await
}

/// The claim of one pod; it outlives the pod, as upstream keeps it.
async fn ensure_claim(family: &Family, set: &Found, template: &Value, pod: &str) -> Result<String, PlaneError> {
    let claim = claim_from(&set.object, template, pod);
    let name = object::name(&claim).to_owned();
    family.plane.create(kind(&family.plane, ("", "PersistentVolumeClaim")), set.key.cluster, claim).await?;
    Ok(name)
}

/// What the template says, and the labels that select the pods of the set.
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

/// As upstream counts: a pod that is going is a replica until it is gone, so that the set changes once more then.
fn status(set: &Value, pods: &[&Value], revision: &str) -> Value {
    let active: Vec<&&Value> = pods.iter().filter(|pod| is_active(pod)).collect();
    let updated = active.iter().filter(|pod| object::label(pod, REVISION) == Some(revision)).count();
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let was = text(set, "/status/currentRevision");
    let done = updated == active.len() || was.is_empty();
    let current = if done { revision } else { was };
    json!({
        "observedGeneration": object::generation(set), "replicas": pods.len(), "readyReplicas": ready,
        "availableReplicas": ready, "updatedReplicas": updated, "collisionCount": 0,
        "currentReplicas": if done { updated } else { active.len() - updated },
        "currentRevision": current, "updateRevision": revision,
    })
}

fn ordinal(set: &Value, pod: &Found) -> Option<i64> {
    pod.key.name.strip_prefix(object::name(set))?.strip_prefix('-')?.parse().ok()
}

impl Workload for StatefulSets {
    const NAME: &'static str = "simulated-statefulsets";
    const PARENT: (&'static str, &'static str) = ("apps", "StatefulSet");
    const CHILD: (&'static str, &'static str) = ("", "Pod");

    async fn step(family: &Family, set: &Found) -> Result<Outcome, PlaneError> {
        let object = &set.object;
        let pods = family.children(set).await?;
        let revision = format!("{}-{}", object::name(object), revisions::keep(family, set).await?);
        let member = |pod: &Found| Member {
            ready: is_ready(&pod.object),
            going: object::is_deleting(&pod.object),
            current: object::label(&pod.object, REVISION) == Some(revision.as_str()),
        };
        let members = pods.iter().filter_map(|pod| Some((ordinal(object, pod)?, member(pod)))).collect();
        let replicas = number(object, "/spec/replicas").unwrap_or(1);
        let partition = match text(object, "/spec/updateStrategy/type") {
            "OnDelete" => i64::MAX,
            _ => number(object, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0),
        };
        let parallel = text(object, "/spec/podManagementPolicy") == "Parallel";
        for step in plan(&members, replicas, partition, parallel) {
            match step {
                Next::Create(ordinal) => create(family, set, ordinal, &revision).await?,
                Next::Delete(wanted) => {
                    if let Some(pod) = pods.iter().find(|pod| ordinal(object, pod) == Some(wanted)) {
                        family.delete(pod).await?;
                    }
                }
                Next::Wait => {}
            }
        }
        let pods: Vec<&Value> = pods.iter().map(|pod| &pod.object).collect();
        family.write_status(&set.key, &status(object, &pods, &revision)).await?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_going_is_counted_until_it_is_gone() {
        let pod = |going: bool| {
            let at = if going { json!("2026-01-01T00:00:00Z") } else { Value::Null };
            json!({"metadata": {"labels": {REVISION: "db-1"}, "deletionTimestamp": at}, "status": {"phase": "Running"}})
        };
        let counted = |pods: &[&Value]| {
            let status = status(&json!({"metadata": {"generation": 2}}), pods, "db-1");
            ["replicas", "updatedReplicas", "currentReplicas"].map(|field| status[field].as_i64().unwrap())
        };
        let (stays, goes) = (pod(false), pod(true));
        assert_eq!(counted(&[&stays, &goes]), [2, 1, 1]);
        assert_eq!(counted(&[&stays]), [1, 1, 1]);
    }

    #[test]
    fn pods_come_in_order_and_go_in_reverse() {
        let up = Member { ready: true, going: false, current: true };
        let starting = Member { ready: false, ..up };
        let outdated = Member { current: false, ..up };
        for (case, members, replicas, parallel, expected) in [
            ("the first comes first", vec![], 2, false, vec![Next::Create(0)]),
            ("the second waits for the first", vec![(0, starting)], 2, false, vec![Next::Wait]),
            ("then it comes", vec![(0, up)], 2, false, vec![Next::Create(1)]),
            ("parallel ones come together", vec![], 2, true, vec![Next::Create(0), Next::Create(1)]),
            ("the last goes first", vec![(0, up), (1, up), (2, up)], 1, false, vec![Next::Delete(2)]),
            (
                "an outdated one is replaced from the end",
                vec![(0, outdated), (1, outdated)],
                2,
                false,
                vec![Next::Delete(1)],
            ),
            ("all is well", vec![(0, up), (1, up)], 2, false, vec![]),
        ] {
            assert_eq!(plan(&members.into_iter().collect(), replicas, 0, parallel), expected, "{case}");
        }
    }
}
