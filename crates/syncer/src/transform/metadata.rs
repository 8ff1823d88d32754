//! Names, labels and annotations of a copy.

use portolan_types::{annotations, object, placement::CopyIdentity, upstream::UpstreamObject};
use serde_json::{Map, Value};

/// Labels that the Job controller generates; the physical cluster makes its own.
pub(crate) const GENERATED_JOB_LABELS: [&str; 4] =
    ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];
/// Prefixes of keys that have a meaning to the logical side only.
const OUR_PREFIXES: [&str; 2] = ["portolan.dev/", "sync.portolan.dev/"];
/// Annotations that tell how a volume was bound, which is the physical cluster's to decide, and the revision of a
/// Deployment, which each physical cluster counts for itself.
const NOT_COPIED: [&str; 8] = [
    annotations::LAST_APPLIED,
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-resizer",
    annotations::REVISION,
];

/// Returns true for a key of Portolan or kcp.
pub(crate) fn is_ours(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    OUR_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) || domain == "kcp.io" || domain.ends_with(".kcp.io")
}

/// `metadata` of the copy: name, namespace, labels and annotations, and nothing else of the upstream metadata. The
/// identity is only for the labels here; its annotation is written last.
pub(super) fn copy_of(upstream: &UpstreamObject, namespace: Option<&str>, identity: &CopyIdentity) -> Value {
    let is_job = &*upstream.kind.kind == "Job";
    let mut labels = synced_entries(&upstream.object, "labels", |key| !is_job || !GENERATED_JOB_LABELS.contains(&key));
    labels.insert(annotations::DOWN_CLUSTER.into(), Value::String(identity.cluster.clone()));
    if !identity.namespace.is_empty() {
        labels.insert(annotations::DOWN_NAMESPACE.into(), Value::String(identity.namespace.clone()));
    }
    let notes = synced_entries(&upstream.object, "annotations", |key| !is_left_out(key));
    let mut metadata = Map::new();
    metadata.insert("name".into(), Value::String(identity.name.clone()));
    if let Some(namespace) = namespace {
        metadata.insert("namespace".into(), Value::String(namespace.to_owned()));
    }
    metadata.insert("labels".into(), Value::Object(labels));
    if !notes.is_empty() {
        metadata.insert("annotations".into(), Value::Object(notes));
    }
    Value::Object(metadata)
}

/// Returns true for an annotation that never goes downstream, besides Portolan's own.
pub(crate) fn is_left_out(key: &str) -> bool {
    NOT_COPIED.contains(&key) || is_snippet(key)
}

/// Returns true for raw configuration of an ingress controller that all tenants share.
fn is_snippet(key: &str) -> bool {
    key.contains("ingress.kubernetes.io/") && key.ends_with("-snippet")
}

fn synced_entries(object: &Value, field: &str, keep: impl Fn(&str) -> bool) -> Map<String, Value> {
    let all = object::metadata(object).get(field).and_then(Value::as_object);
    let wanted = all.into_iter().flatten().filter(|(key, _)| !is_ours(key) && keep(key));
    wanted.map(|(key, value)| (key.clone(), value.clone())).collect()
}
