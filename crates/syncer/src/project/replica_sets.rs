//! One ReplicaSet above per template of a Deployment.

use portolan_types::{annotations, object};
use serde_json::{Value, json};

use super::{MAX_BYTES, Origin, Owner, TEMPLATE_HASH, reference, seal};
use crate::transform::fingerprint;

const REVISION: &str = "deployment.kubernetes.io/revision";
/// Characters of the hash in names and labels.
const SHORT: usize = 10;

/// The name above of a ReplicaSet below, `<deployment>-<hash of the template>`.
pub fn replica_set_name(deployment: &Value, downstream: &Value) -> String {
    format!("{}-{}", object::name(deployment), short_hash(downstream))
}

/// The ReplicaSet above for one below, without uid and without status, which is reported apart and merged over all physical
/// clusters. `None` when it is too large.
pub fn replica_set(
    downstream: &Value,
    namespace: &str,
    deployment: Owner<'_>,
    shares: bool,
    origin: Origin<'_>,
) -> Option<Value> {
    let hash = short_hash(downstream);
    let mut template = template_above(downstream, deployment.object);
    let labels = object::child_mut(object::metadata_mut(&mut template), "labels");
    labels.insert(TEMPLATE_HASH.into(), json!(hash));
    let labels = labels.clone();
    let mut selector = deployment.object["spec"]["selector"].clone();
    selector["matchLabels"][TEMPLATE_HASH] = json!(hash);
    let replicas = downstream["spec"]["replicas"].as_i64().unwrap_or(0);
    let mut shown = json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": replica_set_name(deployment.object, downstream),
            "namespace": namespace,
            "labels": labels,
            "annotations": {},
            "ownerReferences": [reference(deployment)],
        },
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    });
    if let Some(revision) = object::annotation(downstream, REVISION) {
        object::set_annotation(&mut shown, REVISION, Some(revision.to_owned()));
    }
    seal(&mut shown, downstream, origin, shares.then_some(replicas));
    (shown.to_string().len() <= MAX_BYTES).then_some(shown)
}

/// The hash that the Deployment's copy carried when this ReplicaSet was made from it; of the template below where there is none.
fn short_hash(downstream: &Value) -> String {
    let handed_on = object::annotation(downstream, annotations::DOWN_TEMPLATE);
    let is_hash =
        |text: &&str| text.len() >= SHORT && text.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
    let hash = handed_on.filter(is_hash).map_or_else(|| fingerprint(&template_below(downstream)), str::to_owned);
    hash[..SHORT].to_owned()
}

/// The template as it is written upstream, while it is the Deployment's; of an older one what is below, without what was added.
fn template_above(downstream: &Value, deployment: &Value) -> Value {
    let current = &deployment["spec"]["template"];
    match object::annotation(downstream, annotations::DOWN_TEMPLATE) {
        Some(hash) if hash == fingerprint(current) => current.clone(),
        _ => template_below(downstream),
    }
}

fn template_below(downstream: &Value) -> Value {
    let mut template = downstream["spec"]["template"].clone();
    if !template.is_object() {
        return json!({});
    }
    let labels = object::child_mut(object::metadata_mut(&mut template), "labels");
    [TEMPLATE_HASH, annotations::DOWN_CLUSTER].iter().for_each(|key| drop(labels.remove(*key)));
    if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("automountServiceAccountToken");
    }
    template
}
