//! One ControllerRevision above per template of a StatefulSet or a DaemonSet, for `rollout history` and `rollout undo`.

use portolan_types::object;
use serde_json::{Value, json};

use super::{MAX_BYTES, Origin, Owner, kept, reference, seal, templates::Kept};

/// Label by which kubectl and controllers know what a revision holds.
const HASH: &str = "controller.kubernetes.io/hash";

/// The ControllerRevision above for one below, without uid. Its data are a patch that brings the template back as it was
/// written upstream. `None` when it is too large.
pub fn revision(downstream: &Value, namespace: &str, owner: Owner<'_>, origin: Origin<'_>) -> Option<Value> {
    let template = Kept::new(downstream, &downstream["data"]["spec"]["template"]);
    let (hash, mut above) = (template.short_hash(), template.above(owner.object));
    let mut labels = above.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    labels[HASH] = json!(hash);
    above["$patch"] = json!("replace");
    let mut shown = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": format!("{}-{hash}", object::name(owner.object)),
            "namespace": namespace,
            "labels": labels,
            "annotations": kept(downstream, "annotations"),
            "ownerReferences": [reference(owner)],
        },
        "data": {"spec": {"template": above}},
        "revision": downstream["revision"].as_i64().unwrap_or(0),
    });
    seal(&mut shown, downstream, origin, None);
    (shown.to_string().len() <= MAX_BYTES).then_some(shown)
}
