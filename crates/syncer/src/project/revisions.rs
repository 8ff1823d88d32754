//! One ControllerRevision upstream per template of a StatefulSet or a DaemonSet, for `rollout history` and `rollout
//! undo`.

use portolan_types::object;
use serde_json::{Value, json};

use super::{
    MAX_BYTES, ProjectionOrigin, ProjectionOwner, foreign_entries, reference, seal, templates::StoredTemplate,
};

/// Label with the hash of a revision's content, which kubectl and controllers read.
const HASH: &str = "controller.kubernetes.io/hash";

/// Returns the upstream ControllerRevision for a downstream one, without uid. Its data are a patch that restores the
/// upstream template. `None` if it is too large.
pub fn revision(
    downstream: &Value,
    namespace: &str,
    owner: ProjectionOwner<'_>,
    origin: ProjectionOrigin<'_>,
) -> Option<Value> {
    let template = StoredTemplate::new(downstream, &downstream["data"]["spec"]["template"]);
    let (hash, mut upstream) = (template.short_hash(), template.upstream(owner.object));
    let mut labels = upstream.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    labels[HASH] = json!(hash);
    upstream["$patch"] = json!("replace");
    let mut shown = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": format!("{}-{hash}", object::name(owner.object)),
            "namespace": namespace,
            "labels": labels,
            "annotations": foreign_entries(downstream, "annotations"),
            "ownerReferences": [reference(owner)],
        },
        "data": {"spec": {"template": upstream}},
        "revision": downstream["revision"].as_i64().unwrap_or(0),
    });
    seal(&mut shown, downstream, origin, None);
    (shown.to_string().len() <= MAX_BYTES).then_some(shown)
}
