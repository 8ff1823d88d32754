//! Labels by which a Job finds its Pods: the uid of the Job, which is another one upstream.

use portolan_types::object;
use serde_json::{Map, Value};

/// Labels of a Job's Pods that carry the uid of the Job.
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Replaces the downstream uid of a projected Job by its upstream uid: in its labels, its generated selector and its
/// template, which validation compares with the uid on every write. Other kinds, and a Job with a selector from its
/// user, stay unchanged.
pub fn translate_own_uid(shown: &mut Value) {
    if shown["kind"] != "Job" || has_manual_selector(shown) {
        return;
    }
    let uid = object::meta_text(shown, "uid").to_owned();
    for pointer in ["/metadata/labels", "/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
        if let Some(labels) = shown.pointer_mut(pointer).and_then(Value::as_object_mut) {
            replace_uid(labels, &uid);
        }
    }
}

/// Puts the upstream uid of `owner` into the labels of a Pod, if that is a Job.
pub(super) fn translate_owner_uid(labels: &mut Map<String, Value>, owner: &Value) {
    if owner["kind"] == "Job" && !has_manual_selector(owner) {
        replace_uid(labels, object::meta_text(owner, "uid"));
    }
}

fn has_manual_selector(job: &Value) -> bool {
    job.pointer("/spec/manualSelector") == Some(&Value::Bool(true))
}

fn replace_uid(labels: &mut Map<String, Value>, uid: &str) {
    for key in UID_LABELS {
        if let Some(value) = labels.get_mut(key) {
            *value = uid.into();
        }
    }
}
