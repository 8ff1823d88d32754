//! One ReplicaSet upstream per template of a Deployment.

use portolan_types::object;
use serde_json::{Value, json};

use super::{
    MAX_BYTES, ProjectionOrigin, ProjectionOwner, TEMPLATE_HASH, foreign_entries, reference, seal,
    templates::StoredTemplate,
};

/// Numbers of one physical cluster's share.
const OF_ONE_CLUSTER: [&str; 2] =
    ["deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas"];

/// The name upstream of a ReplicaSet downstream, `<deployment>-<hash of the template>`.
pub fn replica_set_name(deployment: &Value, downstream: &Value) -> String {
    format!("{}-{}", object::name(deployment), template_of(downstream).short_hash())
}

fn template_of(downstream: &Value) -> StoredTemplate<'_> {
    StoredTemplate::new(downstream, &downstream["spec"]["template"])
}

/// The ReplicaSet upstream for one downstream, without uid and without status, which is reported apart and merged over
/// all physical clusters. `None` when it is too large.
pub fn replica_set(
    downstream: &Value,
    namespace: &str,
    deployment: ProjectionOwner<'_>,
    shares: bool,
    origin: ProjectionOrigin<'_>,
) -> Option<Value> {
    let kept_downstream = template_of(downstream);
    let (hash, mut template) = (kept_downstream.short_hash(), kept_downstream.upstream(deployment.object));
    let labels = object::child_mut(object::metadata_mut(&mut template), "labels");
    labels.insert(TEMPLATE_HASH.into(), json!(hash));
    let labels = labels.clone();
    let mut selector = deployment.object["spec"]["selector"].clone();
    selector["matchLabels"][TEMPLATE_HASH] = json!(hash);
    let replicas = downstream["spec"]["replicas"].as_i64().unwrap_or(0);
    let mut annotations = foreign_entries(downstream, "annotations");
    annotations.retain(|key, _| !OF_ONE_CLUSTER.contains(&key.as_str()));
    let mut shown = json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": replica_set_name(deployment.object, downstream),
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [reference(deployment)],
        },
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    });
    seal(&mut shown, downstream, origin, shares.then_some(replicas));
    (shown.to_string().len() <= MAX_BYTES).then_some(shown)
}
