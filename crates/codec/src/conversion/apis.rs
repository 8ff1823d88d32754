//! apis.kcp.io/v1alpha1: exports name schemas instead of resources, and claims have no verbs and no selectors. What it
//! cannot express travels in annotations, as in kcp.

use portolan_types::object::{self, child_mut};
use serde_json::{Map, Value, json};

use super::Fields;

/// Exported resources that are not custom resources.
const RESOURCE_SCHEMAS: &str = "apis.v1alpha2.kcp.io/resource-schemas";
/// Claims of an export with verbs or a default selector.
const EXPORT_CLAIMS: &str = "apis.v1alpha2.kcp.io/permission-claims";
/// Claims of a binding with verbs or a selector.
const BINDING_CLAIMS: &str = "apis.v1alpha2.kcp.io/acceptable-permission-claims";
/// Claims of v1alpha1 as they were written.
const OLD_CLAIMS: &str = "apis.v1alpha2.kcp.io/v1alpha1-permission-claims";

/// Fields of a claim that v1alpha1 has not.
const NEW_FIELDS: [&str; 3] = ["verbs", "selector", "defaultSelector"];
/// Fields of a claim that only v1alpha1 has.
const OLD_FIELDS: [&str; 2] = ["all", "resourceSelector"];

/// Converts an export to v1alpha2.
pub(super) fn export_to_v2(fields: &mut Fields) {
    let others = take_list(fields, RESOURCE_SCHEMAS);
    let spec = child_mut(fields, "spec");
    let names = take(spec, "latestResourceSchemas");
    let mut resources: Vec<Value> = names.iter().filter_map(Value::as_str).map(resource_of).collect();
    resources.extend(others);
    put(spec, "resources", resources);
    claims_to_v2(fields, EXPORT_CLAIMS, false);
}

/// Converts an export to v1alpha1.
pub(super) fn export_from_v2(fields: &mut Fields) {
    let spec = child_mut(fields, "spec");
    let is_custom = |resource: &Value| resource.pointer("/storage/virtual").is_none_or(Value::is_null);
    let (custom, others): (Vec<_>, Vec<_>) = take(spec, "resources").into_iter().partition(is_custom);
    let names = custom.iter().filter_map(|resource| resource.get("schema").cloned()).collect();
    put(spec, "latestResourceSchemas", names);
    annotate(fields, RESOURCE_SCHEMAS, others);
    claims_from_v2(fields, EXPORT_CLAIMS, false);
}

/// Converts a binding to v1alpha2.
pub(super) fn binding_to_v2(fields: &mut Fields) {
    claims_to_v2(fields, BINDING_CLAIMS, true);
    for (list, scoped) in [("appliedPermissionClaims", true), ("exportPermissionClaims", false)] {
        if let Some(status) = fields.get_mut("status").and_then(Value::as_object_mut) {
            let claims = take(status, list).into_iter().map(|claim| with_defaults(claim, scoped)).collect();
            put(status, list, claims);
        }
    }
}

/// Converts a binding to v1alpha1.
pub(super) fn binding_from_v2(fields: &mut Fields) {
    claims_from_v2(fields, BINDING_CLAIMS, true);
    for list in ["appliedPermissionClaims", "exportPermissionClaims"] {
        if let Some(status) = fields.get_mut("status").and_then(Value::as_object_mut) {
            let claims = take(status, list).into_iter().map(without_new).collect();
            put(status, list, claims);
        }
    }
}

/// Returns the resource that a schema's name, `<prefix>.<plural>.<group>`, stands for.
fn resource_of(schema: &str) -> Value {
    let mut parts = schema.splitn(3, '.').skip(1);
    let (name, group) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    json!({"name": name, "group": group, "schema": schema, "storage": {"crd": {}}})
}

fn claims_to_v2(fields: &mut Fields, annotation: &str, scoped: bool) {
    let newer = take_list(fields, annotation);
    let old = take(child_mut(fields, "spec"), "permissionClaims");
    let selective: Vec<Value> =
        old.iter().filter(|claim| !list_at(claim, "resourceSelector").is_empty()).cloned().collect();
    let claims = old.into_iter().map(|claim| {
        let known = newer.iter().find(|known| is_same_claim(known, &claim));
        let mut claim = with_defaults(claim, scoped);
        for field in NEW_FIELDS {
            if let Some((value, own)) = known.and_then(|known| known.get(field)).zip(claim.as_object_mut()) {
                own.insert(field.into(), value.clone());
            }
        }
        claim
    });
    let claims = claims.collect();
    put(child_mut(fields, "spec"), "permissionClaims", claims);
    annotate(fields, OLD_CLAIMS, selective);
}

fn claims_from_v2(fields: &mut Fields, annotation: &str, scoped: bool) {
    let older = take_list(fields, OLD_CLAIMS);
    let claims = take(child_mut(fields, "spec"), "permissionClaims");
    let is_plain = |claim: &&Value| {
        let all = claim.pointer("/selector/matchAll") == Some(&Value::Bool(true));
        claim.get("verbs") == Some(&json!(["*"])) && claim.get("defaultSelector").is_none() && (all || !scoped)
    };
    let further = claims.iter().filter(|claim| !is_plain(claim)).cloned().collect();
    let old = claims.into_iter().map(|claim| {
        let known = older.iter().find(|known| is_same_claim(known, &claim));
        let mut claim = without_new(claim);
        for (field, own) in OLD_FIELDS.iter().filter_map(|field| Some((field, known?.get(*field)?))) {
            claim["all"] = Value::Bool(false);
            claim[*field] = own.clone();
        }
        claim
    });
    let old = old.collect();
    put(child_mut(fields, "spec"), "permissionClaims", old);
    annotate(fields, annotation, further);
}

/// Returns a claim of v1alpha1 with the verbs, and the selector, that it means.
fn with_defaults(mut claim: Value, scoped: bool) -> Value {
    if let Some(own) = claim.as_object_mut() {
        OLD_FIELDS.iter().for_each(|field| drop(own.remove(*field)));
        own.entry("verbs").or_insert_with(|| json!(["*"]));
        if scoped {
            own.entry("selector").or_insert_with(|| json!({"matchAll": true}));
        }
    }
    claim
}

/// Returns a claim in the form of v1alpha1.
fn without_new(mut claim: Value) -> Value {
    if let Some(own) = claim.as_object_mut() {
        NEW_FIELDS.iter().for_each(|field| drop(own.remove(*field)));
        own.insert("all".into(), Value::Bool(true));
    }
    claim
}

fn is_same_claim(one: &Value, other: &Value) -> bool {
    let text = |claim: &Value, key: &str| claim.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    ["group", "resource", "identityHash"].iter().all(|key| text(one, key) == text(other, key))
}

fn list_at<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn take(fields: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match fields.remove(key) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn put(fields: &mut Map<String, Value>, key: &str, items: Vec<Value>) {
    if !items.is_empty() {
        fields.insert(key.into(), Value::Array(items));
    }
}

/// Removes an annotation and returns its list; empty for malformed text, which a client may have written.
fn take_list(fields: &mut Fields, annotation: &str) -> Vec<Value> {
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else { return Vec::new() };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return Vec::new() };
    let text = annotations.remove(annotation);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    let text = text.as_ref().and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

fn annotate(fields: &mut Fields, annotation: &str, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    let mut whole = Value::Object(std::mem::take(fields));
    let metadata = object::metadata_mut(&mut whole);
    child_mut(metadata, "annotations").insert(annotation.into(), Value::Array(items).to_string().into());
    if let Value::Object(own) = whole {
        *fields = own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(object: Value, convert: fn(&mut Fields)) -> Value {
        let Value::Object(mut fields) = object else { panic!("an object") };
        convert(&mut fields);
        Value::Object(fields)
    }

    #[test]
    fn exports_survive_both_ways() {
        let old = json!({"metadata": {"name": "e"}, "spec": {
            "latestResourceSchemas": ["v1.widgets.example.dev"],
            "permissionClaims": [{"group": "", "resource": "configmaps", "all": true}],
        }});
        let new = json!({"metadata": {"name": "e"}, "spec": {
            "resources": [{
                "name": "widgets", "group": "example.dev", "schema": "v1.widgets.example.dev", "storage": {"crd": {}},
            }],
            "permissionClaims": [{"group": "", "resource": "configmaps", "verbs": ["*"]}],
        }});
        assert_eq!(converted(old.clone(), export_to_v2), new);
        assert_eq!(converted(new, export_from_v2), old);
    }

    #[test]
    fn verbs_and_selectors_survive_the_old_version() {
        let new = json!({"metadata": {"name": "b"}, "spec": {"permissionClaims": [{
            "group": "", "resource": "secrets", "verbs": ["get"], "selector": {"matchLabels": {"a": "b"}},
            "state": "Accepted",
        }]}});
        let old = converted(new.clone(), binding_from_v2);
        assert_eq!(old.pointer("/spec/permissionClaims/0/all"), Some(&Value::Bool(true)));
        assert_eq!(converted(old, binding_to_v2), new);
    }

    #[test]
    fn selected_objects_survive_the_new_version() {
        let old = json!({"metadata": {"name": "e"}, "spec": {"permissionClaims": [{
            "group": "", "resource": "secrets", "all": false, "resourceSelector": [{"name": "a"}],
        }]}});
        let new = converted(old.clone(), export_to_v2);
        assert_eq!(converted(new, export_from_v2), old);
    }

    #[test]
    fn malformed_annotations_are_dropped() {
        let old = json!({"metadata": {"name": "e", "annotations": {RESOURCE_SCHEMAS: "[{"}}, "spec": {}});
        assert_eq!(converted(old, export_to_v2), json!({"metadata": {"name": "e"}, "spec": {}}));
    }
}
