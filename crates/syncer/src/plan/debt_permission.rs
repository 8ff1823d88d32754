//! Deletions that may become debts while their physical cluster is unreachable.

use portolan_types::{
    annotations, object,
    placement::{PlacedCopy, PlacementRecord},
    upstream::UpstreamObject,
};
use serde_json::Value;

/// Kinds, with their groups, of which nothing runs: no other copy waits for the end of one.
const RUN_NOTHING: [(&str, &str); 8] = [
    ("", "ConfigMap"),
    ("", "Secret"),
    ("", "Service"),
    ("", "ServiceAccount"),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
];

/// Permission to turn the deletion of an unreachable copy into a debt, so that upstream can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebtPermission {
    /// Permitted: the object is deleted, runs nothing, or may run twice and runs elsewhere.
    Allowed,
    /// Permitted unless the object writes to a volume that only one node can mount.
    UnlessVolumes,
    /// A user has written the copy off.
    WrittenOff,
    /// Not permitted: the next copy waits for proof of this one's end, and an unreachable cluster gives none.
    Unproven,
}

/// Returns whether the deletion of the copy of `entry` may become a debt. For a workload that must run once, a move
/// alone never permits it.
pub(crate) fn debt_permission(upstream: &UpstreamObject, entry: &PlacedCopy) -> DebtPermission {
    let is_named = |list: &str| list.split(',').any(|name| name.trim() == entry.name);
    let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
    let runs_elsewhere = record.active().any(|copy| copy.uid != entry.uid);
    let (group, kind) = (&*upstream.kind.group, &*upstream.kind.kind);
    match object::annotation(&upstream.object, annotations::WRITE_OFF) {
        _ if object::is_deleting(&upstream.object) => DebtPermission::Allowed,
        Some(names) if is_named(names) => DebtPermission::WrittenOff,
        _ if RUN_NOTHING.contains(&(group, kind)) => DebtPermission::Allowed,
        _ if runs_elsewhere && !runs_once(group, kind, &upstream.object) => DebtPermission::UnlessVolumes,
        _ => DebtPermission::Unproven,
    }
}

/// Two of these must never run at the same time.
fn runs_once(group: &str, kind: &str, object: &Value) -> bool {
    match (group, kind) {
        ("", "Pod" | "PersistentVolumeClaim") | ("apps", "StatefulSet") | ("batch", "Job" | "CronJob") => true,
        ("apps", "Deployment") => object.pointer("/spec/strategy/type").and_then(Value::as_str) == Some("Recreate"),
        _ => false,
    }
}

/// Returns true when a copy is gone only once its pods have ended, also when a user deletes it: an object of the same
/// name may come to another physical cluster and must not meet them. For all others, the deletion is complete when the
/// object is gone, as in Kubernetes.
pub(crate) fn ends_with_its_pods(upstream: &UpstreamObject) -> bool {
    runs_once(&upstream.kind.group, &upstream.kind.kind, &upstream.object)
        || claims_of(&upstream.object).next().is_some()
}

/// Names of the claims that the pods of an object mount.
pub(crate) fn claims_of(object: &Value) -> impl Iterator<Item = &str> {
    let volumes = object.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().filter_map(|v| v.pointer("/persistentVolumeClaim/claimName")?.as_str())
}

/// Returns true when nodes of several physical clusters can mount the volume of a claim at the same time.
pub(crate) fn is_shared_claim(claim: &Value) -> bool {
    let modes = claim.pointer("/spec/accessModes").and_then(Value::as_array);
    modes.into_iter().flatten().any(|mode| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany")))
}
