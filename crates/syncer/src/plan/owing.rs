//! What may be left as a debt while its physical cluster is out of reach.

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

/// Whether a copy that is out of reach and should go may be left as a debt, so that what waits for its end goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owing {
    /// It may: the object ends, or nothing of it runs, or it bears two copies and runs elsewhere.
    Allowed,
    /// It may, as far as the object itself tells: unless it writes to a volume that only one node can have.
    UnlessVolumes,
    /// Somebody has said that this copy is to be taken for gone.
    WrittenOff,
    /// Its end is what the next copy waits for, and being out of reach proves no end.
    Unproven,
}

/// Whether the copy of `entry` may be left as a debt. What must run once, it never may for a move by itself.
pub(crate) fn owing(upstream: &UpstreamObject, entry: &PlacedCopy) -> Owing {
    let is_named = |list: &str| list.split(',').any(|name| name.trim() == entry.name);
    let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
    let runs_elsewhere = record.active().any(|copy| copy.uid != entry.uid);
    let (group, kind) = (&*upstream.kind.group, &*upstream.kind.kind);
    match object::annotation(&upstream.object, annotations::WRITE_OFF) {
        _ if object::is_deleting(&upstream.object) => Owing::Allowed,
        Some(names) if is_named(names) => Owing::WrittenOff,
        _ if RUN_NOTHING.contains(&(group, kind)) => Owing::Allowed,
        _ if runs_elsewhere && !runs_once(group, kind, &upstream.object) => Owing::UnlessVolumes,
        _ => Owing::Unproven,
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

/// Whether a copy counts as gone only when its pods have ended too, also when a user deletes it: one that is made again, and
/// may come to another physical cluster, must not meet them. For all else a delete is done when the object is gone, as on
/// Kubernetes.
pub(crate) fn ends_with_its_pods(upstream: &UpstreamObject) -> bool {
    runs_once(&upstream.kind.group, &upstream.kind.kind, &upstream.object)
        || claims_of(&upstream.object).next().is_some()
}

/// Names of the claims that the pods of an object mount.
pub(crate) fn claims_of(object: &Value) -> impl Iterator<Item = &str> {
    let volumes = object.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().filter_map(|v| v.pointer("/persistentVolumeClaim/claimName")?.as_str())
}

/// Whether nodes of several physical clusters may have a claim's volume at the same time.
pub(crate) fn is_shared_claim(claim: &Value) -> bool {
    let modes = claim.pointer("/spec/accessModes").and_then(Value::as_array);
    modes.into_iter().flatten().any(|mode| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany")))
}
