//! Deployment → ReplicaSets, with rolling updates.

use std::time::Duration;

use portolan_controllers::{
    PlaneError, WorkOutcome,
    plane::{PlaneChange, PlaneObject},
};
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    SimulatedWorkload,
    children::{ChildKinds, annotations_to_hand_on},
    progress::RolloutProgress,
    rollout::{RolloutStrategy, ScaledReplicaSet, next},
};
use crate::fields::{controller_ref, list, number, set_condition, short_hash};

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

pub(super) struct Deployments;

async fn create_set(
    family: &ChildKinds,
    deployment: &PlaneObject,
    hash: &str,
    revision: i64,
) -> Result<(), PlaneError> {
    let spec = &deployment.object["spec"];
    let mut template = spec["template"].clone();
    object::child_mut(object::metadata_mut(&mut template), "labels").insert(HASH.into(), hash.into());
    let mut selector = spec["selector"].clone();
    selector["matchLabels"][HASH] = hash.into();
    let mut annotations = annotations_to_hand_on(&deployment.object);
    annotations.insert(REVISION.into(), revision.to_string().into());
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", object::name(&deployment.object)),
            "namespace": object::namespace(&deployment.object),
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [controller_ref(&deployment.object)],
        },
        "spec": {
            "replicas": 0, "selector": selector, "template": template,
            "minReadySeconds": number(&deployment.object, "/spec/minReadySeconds").unwrap_or(0),
        },
    });
    family.create(deployment, set).await
}

async fn scale(
    family: &ChildKinds,
    deployment: &PlaneObject,
    set: &PlaneObject,
    replicas: i64,
) -> Result<(), PlaneError> {
    let mut from = None;
    let write = |current: &mut Value| {
        let known = number(current, "/spec/replicas").unwrap_or(0);
        from = (known != replicas).then_some(known);
        if from.is_none() {
            return PlaneChange::Keep;
        }
        current["spec"]["replicas"] = replicas.into();
        PlaneChange::Write(None)
    };
    family.plane.change(family.child, &set.key, write).await?;
    let Some(from) = from else { return Ok(()) };
    let (name, way) = (object::name(&set.object), if from < replicas { "up" } else { "down" });
    let message = format!("Scaled {way} replica set {name} from {from} to {replicas}");
    family.note(deployment, "deployment-controller", (false, "ScalingReplicaSet", &message)).await
}

async fn tidy(family: &ChildKinds, deployment: &PlaneObject, old: &[&PlaneObject]) -> Result<(), PlaneError> {
    let keep = number(&deployment.object, "/spec/revisionHistoryLimit").unwrap_or(10);
    let idle = |set: &&&PlaneObject| number(&set.object, "/spec/replicas") == Some(0) && count(set, "replicas") == 0;
    let idle: Vec<&&PlaneObject> = old.iter().filter(idle).collect();
    let spare = idle.len().saturating_sub(usize::try_from(keep).unwrap_or(0));
    for set in idle.into_iter().take(spare) {
        family.delete(set).await?;
    }
    Ok(())
}

/// Records the number of the present template, and copies the Deployment's annotations to its ReplicaSet.
async fn annotate_revision(
    family: &ChildKinds,
    deployment: &PlaneObject,
    new: &PlaneObject,
    revision: i64,
) -> Result<(), PlaneError> {
    let text = revision.to_string();
    let mut handed_on = annotations_to_hand_on(&deployment.object);
    handed_on.insert(REVISION.into(), text.as_str().into());
    let has = |set: &Value, key: &str, value: &Value| object::annotation(set, key) == value.as_str();
    let hand_on = |set: &mut Value| {
        if handed_on.iter().all(|(key, value)| has(set, key, value)) {
            PlaneChange::Keep
        } else {
            let annotations = object::child_mut(object::metadata_mut(set), "annotations");
            annotations.extend(handed_on.clone());
            PlaneChange::Write(None)
        }
    };
    family.plane.change(family.child, &new.key, hand_on).await?;
    let note = |current: &mut Value| {
        if object::annotation(current, REVISION) == Some(text.as_str()) {
            PlaneChange::Keep
        } else {
            object::set_annotation(current, REVISION, Some(text.clone()));
            PlaneChange::Write(None)
        }
    };
    family.plane.change(family.parent, &deployment.key, note).await.map(drop)
}

fn count(set: &PlaneObject, field: &str) -> i64 {
    number(&set.object, &format!("/status/{field}")).unwrap_or(0)
}

fn set_of(found: &PlaneObject) -> ScaledReplicaSet {
    let replicas = number(&found.object, "/spec/replicas").unwrap_or(0);
    ScaledReplicaSet {
        replicas,
        available: count(found, "availableReplicas").min(replicas),
        existing: count(found, "replicas") + count(found, "terminatingReplicas"),
    }
}

/// Scales the ReplicaSets by one step of the rolling update.
async fn roll(
    family: &ChildKinds,
    deployment: &PlaneObject,
    new: &PlaneObject,
    old: &[&PlaneObject],
) -> Result<(), PlaneError> {
    let desired = number(&deployment.object, "/spec/replicas").unwrap_or(1);
    let sets: Vec<ScaledReplicaSet> = old.iter().map(|set| set_of(set)).collect();
    let (next_new, next_old) = next(RolloutStrategy::of(&deployment.object, desired), desired, set_of(new), &sets);
    scale(family, deployment, new, next_new).await?;
    for (set, replicas) in old.iter().zip(next_old) {
        scale(family, deployment, set, replicas).await?;
    }
    tidy(family, deployment, old).await
}

fn revision_of(set: &PlaneObject) -> i64 {
    object::annotation(&set.object, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn is_paused(deployment: &Value) -> bool {
    deployment.pointer("/spec/paused").and_then(Value::as_bool) == Some(true)
}

/// Scales a paused Deployment without rolling out its template.
async fn hold(
    family: &ChildKinds,
    deployment: &PlaneObject,
    sets: &[PlaneObject],
    new: Option<&PlaneObject>,
) -> Result<WorkOutcome, PlaneError> {
    let desired = number(&deployment.object, "/spec/replicas").unwrap_or(1);
    let is_active = |set: &&PlaneObject| number(&set.object, "/spec/replicas").unwrap_or(0) > 0;
    let active: Vec<&PlaneObject> = sets.iter().filter(is_active).collect();
    match active.as_slice() {
        [] => {
            if let Some(latest) = new.or(sets.last()) {
                scale(family, deployment, latest, desired).await?;
            }
        }
        [only] => scale(family, deployment, only, desired).await?,
        several => {
            for (set, replicas) in several.iter().zip(proportions(&deployment.object, desired, several)) {
                scale(family, deployment, set, replicas).await?;
            }
        }
    }
    write_status(family, deployment, new, sets).await
}

/// Divides a Deployment's replicas over the active sets in proportion to their present sizes. The newest, which comes
/// last, gets the rest.
fn proportions(deployment: &Value, desired: i64, sets: &[&PlaneObject]) -> Vec<i64> {
    let sizes: Vec<i64> = sets.iter().map(|set| number(&set.object, "/spec/replicas").unwrap_or(0)).collect();
    let total: i64 = sizes.iter().sum();
    let allowed = match RolloutStrategy::of(deployment, desired) {
        RolloutStrategy::Rolling { surge, .. } if desired > 0 => desired.saturating_add(surge),
        _ => desired,
    };
    // During a rollout, the surge already exists.
    let wanted = if total > desired && total <= allowed { total } else { allowed };
    let mut shares: Vec<i64> = sizes.iter().map(|size| size.saturating_mul(wanted) / total.max(1)).collect();
    let rest = wanted - shares.iter().sum::<i64>();
    if let Some(newest) = shares.last_mut() {
        *newest += rest;
    }
    shares
}

/// Numbers of the status, and whether enough replicas are available.
fn numbers(deployment: &Value, new: Option<&PlaneObject>, all: &[PlaneObject]) -> (Value, bool) {
    let desired = number(deployment, "/spec/replicas").unwrap_or(1);
    let sum = |field: &str| all.iter().map(|set| count(set, field)).sum::<i64>();
    let of_new = |field: &str| new.map_or(0, |new| count(new, field));
    let (total, available) = (sum("replicas"), sum("availableReplicas"));
    let least = match RolloutStrategy::of(deployment, desired) {
        RolloutStrategy::Rolling { unavailable, .. } => desired - unavailable,
        RolloutStrategy::Recreate => desired,
    };
    let status = json!({
        "observedGeneration": object::generation(deployment), "replicas": total, "updatedReplicas": of_new("replicas"),
        "readyReplicas": sum("readyReplicas"), "availableReplicas": available,
        "unavailableReplicas": (desired.max(total) - available).max(0),
        "terminatingReplicas": sum("terminatingReplicas"),
    });
    (status, available >= least)
}

/// Writes the status; looks again when the rollout may be out of time.
async fn write_status(
    family: &ChildKinds,
    deployment: &PlaneObject,
    new: Option<&PlaneObject>,
    all: &[PlaneObject],
) -> Result<WorkOutcome, PlaneError> {
    let object = &deployment.object;
    let (mut status, enough) = numbers(object, new, all);
    let seams = family.plane.seams();
    let (now, now_text) = (seams.clock.now(), seams.now_text());
    let set = new.map(|new| object::name(&new.object));
    let (progressing, left) =
        RolloutProgress { deployment: object, status: &status, set, now, now_text: &now_text }.condition();
    let mut conditions = list(object, "/status/conditions").to_vec();
    let (reason, message) = if enough {
        ("MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set_condition(&mut conditions, "Available", enough, reason, message, &now_text);
    conditions.retain(|own| own["type"] != "Progressing");
    conditions.extend(progressing);
    status["conditions"] = conditions.into();
    family.write_status(&deployment.key, &status).await?;
    Ok(left.map_or(WorkOutcome::Done, |seconds| WorkOutcome::RequeueAfter(Duration::from_secs(seconds))))
}

/// Notes in the status that a ReplicaSet was created, from when on progress is expected.
async fn note_created(family: &ChildKinds, deployment: &PlaneObject, hash: &str) -> Result<(), PlaneError> {
    let name = format!("{}-{hash}", object::name(&deployment.object));
    let seams = family.plane.seams();
    let (now, now_text) = (seams.clock.now(), seams.now_text());
    let status = &deployment.object["status"];
    let created =
        RolloutProgress { deployment: &deployment.object, status, set: Some(&name), now, now_text: &now_text }
            .created();
    let note = |current: &mut Value| {
        let mut conditions = list(current, "/status/conditions").to_vec();
        conditions.retain(|own| own["type"] != "Progressing");
        conditions.push(created.clone());
        current["status"]["conditions"] = conditions.into();
        true
    };
    family.plane.force(&deployment.key, note).await.map(drop)
}

impl SimulatedWorkload for Deployments {
    const NAME: &'static str = "simulated-deployments";
    const PARENT: (&'static str, &'static str) = ("apps", "Deployment");
    const CHILD: (&'static str, &'static str) = ("apps", "ReplicaSet");

    async fn step(family: &ChildKinds, deployment: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let mut sets = family.children(deployment).await?;
        sets.retain(|set| !object::is_deleting(&set.object));
        sets.sort_by_key(revision_of);
        let hash = short_hash(&deployment.object["spec"]["template"]);
        let is_new = |set: &&PlaneObject| object::label(&set.object, HASH) == Some(&hash);
        let last = sets.last().map_or(0, revision_of);
        let paused = is_paused(&deployment.object);
        let Some(new) = sets.iter().find(is_new) else {
            if !paused {
                create_set(family, deployment, &hash, last + 1).await?;
                note_created(family, deployment, &hash).await?;
                return Ok(WorkOutcome::Done);
            }
            return hold(family, deployment, &sets, None).await;
        };
        let revision = if revision_of(new) == last { last } else { last + 1 };
        annotate_revision(family, deployment, new, revision.max(1)).await?;
        let old: Vec<&PlaneObject> = sets.iter().filter(|set| !is_new(set)).collect();
        if paused {
            return hold(family, deployment, &sets, Some(new)).await;
        }
        roll(family, deployment, new, &old).await?;
        write_status(family, deployment, Some(new), &sets).await
    }
}
