//! Adoption of an object that is downstream in the place of a copy, by `portolan.dev/adopt` on the upstream object. It
//! shows the difference first, and restarts no pod unless that is allowed. Pure.

use portolan_types::{annotations, object, placement::CopyIdentity, upstream::UpstreamObject};
use serde_json::Value;

use super::decision::{CopyDecision, CopyUpdate};
use crate::{
    rules::SyncRefusal,
    transform::{covers, is_our_key},
};

/// Most fields that a message names.
const MAX_NAMED: usize = 8;
/// Fields of the metadata that a copy sets.
const METADATA: [&str; 2] = ["labels", "annotations"];

/// Extent of an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdoptionMode {
    /// Only an object that has all fields of the copy already.
    IfNoDiff,
    /// Fields that differ are overwritten.
    Always,
}

impl AdoptionMode {
    /// Returns the requested mode; `None` without the annotation.
    ///
    /// # Errors
    /// Refusal of another value.
    pub(super) fn of(upstream: &UpstreamObject) -> Result<Option<Self>, SyncRefusal> {
        match object::annotation(&upstream.object, annotations::ADOPT) {
            None => Ok(None),
            Some("IfNoDiff") => Ok(Some(Self::IfNoDiff)),
            Some("Always") => Ok(Some(Self::Always)),
            Some(_) => Err(SyncRefusal::conflict(format!("{} must be IfNoDiff or Always", annotations::ADOPT))),
        }
    }
}

/// Decides about the adoption of `found`, which would become `body`.
pub(super) fn adopt(mode: AdoptionMode, upstream: &UpstreamObject, found: &Value, mut body: Value) -> CopyDecision {
    let what = format!("{} {}", upstream.key.resource, upstream.key.name);
    let refuse = |why: String| CopyDecision::Refuse(SyncRefusal::conflict(format!("{what} is there and {why}")));
    if object::controller_of(found).is_some() || CopyIdentity::of(found).is_some() {
        return refuse("belongs to a controller or to another registration: it is not adopted".into());
    }
    if object::is_deleting(found) {
        return CopyDecision::AwaitEnd;
    }
    let different = differences(found, &body);
    if mode == AdoptionMode::IfNoDiff && !different.is_empty() {
        let how = format!("{}: Always overwrites them", annotations::ADOPT);
        return refuse(format!("is not adopted, since fields differ: {}; {how}", field_list(&different)));
    }
    let may_restart = object::annotation(&upstream.object, annotations::ADOPT_RESTART) == Some("true");
    if restarts_pods(found, &body) && !may_restart {
        let fields =
            if different.is_empty() { String::new() } else { format!("; fields differ: {}", field_list(&different)) };
        let how = format!("allow it with {}: \"true\"", annotations::ADOPT_RESTART);
        return refuse(format!("its adoption would restart its pods, since their template gets labels: {how}{fields}"));
    }
    for key in ["uid", "resourceVersion"] {
        let read = object::meta_text(found, key).to_owned();
        object::metadata_mut(&mut body).insert(key.into(), Value::String(read));
    }
    CopyDecision::Apply(CopyUpdate { body })
}

/// Returns true if the body changes the template of pods.
fn restarts_pods(found: &Value, body: &Value) -> bool {
    let (actual, wanted) = (found.pointer("/spec/template"), body.pointer("/spec/template"));
    wanted.is_some_and(|wanted| actual.is_none_or(|actual| !covers(actual, wanted)))
}

/// Returns the fields of `wanted` that `actual` lacks or has with another value, without Portolan's own labels and
/// annotations.
fn differences(actual: &Value, wanted: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in wanted.as_object().into_iter().flatten() {
        match key.as_str() {
            "apiVersion" | "kind" | "status" => {}
            "metadata" => METADATA
                .iter()
                .for_each(|field| differ(&actual[key][field], &value[field], &format!("metadata.{field}"), &mut found)),
            _ => differ(&actual[key], value, key, &mut found),
        }
    }
    found
}

fn differ(actual: &Value, wanted: &Value, path: &str, found: &mut Vec<String>) {
    match (actual, wanted) {
        (_, Value::Object(fields)) => {
            for (key, value) in fields.iter().filter(|(key, _)| !is_our_key(key)) {
                differ(&actual[key], value, &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(items), Value::Array(wanted_items)) if items.len() == wanted_items.len() => {
            for (at, (item, wanted)) in items.iter().zip(wanted_items).enumerate() {
                differ(item, wanted, &format!("{path}[{at}]"), found);
            }
        }
        _ if covers(actual, wanted) => {}
        _ => found.push(path.to_owned()),
    }
}

fn field_list(fields: &[String]) -> String {
    let more = fields.len().saturating_sub(MAX_NAMED);
    let named: Vec<&str> = fields.iter().take(MAX_NAMED).map(String::as_str).collect();
    if more == 0 { named.join(", ") } else { format!("{}, and {more} more", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, ResourceVersion};
    use serde_json::json;

    use super::*;

    fn upstream(annotations: &Value) -> UpstreamObject {
        let resource = GroupResource::new("apps", "deployments");
        let (namespace, name) = ("shop".parse().unwrap(), "web".parse().unwrap());
        let key = ObjectKey::namespaced(LogicalClusterId::ROOT, resource, namespace, name);
        let object = json!({"metadata": {"name": "web", "namespace": "shop", "annotations": annotations}});
        let (revision, kind) = (ResourceVersion::FIRST, GroupVersionKind::new("apps", "v1", "Deployment"));
        UpstreamObject { key, revision, kind, object, is_held: false, scale: None }
    }

    fn body(image: &str, replicas: u32) -> Value {
        let label = json!({"sync.portolan.dev/cluster": "7", "app": "web"});
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": label},
            "spec": {"replicas": replicas, "template": {"metadata": {"labels": label}, "spec": {"containers": [
                {"name": "c", "image": image}]}}}})
    }

    fn found(metadata: &Value) -> Value {
        let mut found = body("web:1", 2);
        found["metadata"] = json!({"name": "web", "uid": "down-1", "resourceVersion": "7", "labels": {"app": "web"}});
        for (key, value) in metadata.as_object().into_iter().flatten() {
            found["metadata"][key] = value.clone();
        }
        found["spec"]["template"]["metadata"]["labels"] = json!({"app": "web"});
        found["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always".into();
        found
    }

    #[test]
    fn adoptions() {
        let restart = json!({"portolan.dev/adopt-restart": "true"});
        let owned = json!({"ownerReferences": [{"controller": true, "uid": "x", "kind": "K", "name": "n"}]});
        let none = Value::Null;
        let (if_no_diff, always) = (AdoptionMode::IfNoDiff, AdoptionMode::Always);
        for (case, mode, notes, metadata, wanted, expected) in [
            ("equal, but its pods would restart", if_no_diff, &none, &none, body("web:1", 2), "would restart its pods"),
            ("equal, and they may", if_no_diff, &restart, &none, body("web:1", 2), ""),
            (
                "a difference is shown",
                if_no_diff,
                &restart,
                &none,
                body("web:2", 3),
                "fields differ: spec.replicas, spec.template.spec.containers[0].image; portolan.dev/adopt: Always",
            ),
            ("a difference is overwritten", always, &restart, &none, body("web:1", 3), ""),
            (
                "but no pod restarts unasked",
                always,
                &none,
                &none,
                body("web:2", 2),
                "would restart its pods, since their template gets labels: allow it with portolan.dev/adopt-restart: \"true\"; \
                 fields differ: spec.template.spec.containers[0].image",
            ),
            ("the object of a controller", always, &restart, &owned, body("web:1", 2), "belongs to a controller"),
        ] {
            match adopt(mode, &upstream(notes), &found(metadata), wanted) {
                CopyDecision::Apply(update) if expected.is_empty() => {
                    assert_eq!(update.body["metadata"]["uid"], "down-1", "{case}");
                    assert_eq!(update.body["metadata"]["resourceVersion"], "7", "{case}");
                }
                CopyDecision::Refuse(refusal) => {
                    let text = format!("{refusal:?}").replace("\\\"", "\"");
                    assert!(!expected.is_empty() && text.contains(expected), "{case}: {text}");
                }
                other => panic!("{case}: {other:?}"),
            }
        }
        for (value, is_valid) in [("IfNoDiff", true), ("Always", true), ("always", false), ("", false)] {
            let mode = AdoptionMode::of(&upstream(&json!({"portolan.dev/adopt": value})));
            assert_eq!(mode.is_ok_and(|mode| mode.is_some()), is_valid, "{value}");
        }
    }
}
