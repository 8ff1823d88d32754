//! Remainder of a patch after kube-apiserver merged it: obeyed directives are removed, and the rest is shown if the
//! result does not fit its kind.

use std::collections::HashMap;

use portolan_types::object::Object;
use serde_json::Value;

use super::{ELEMENT_ORDER, PATCH, RETAIN_KEYS, drop_nulls, shape::PatchShape};
use portolan_kinds::{KindTable, TypeId};

/// Returns the remainder of a patch that could be merged into `doc`, an object of the type `schema`.
pub fn left_of_patch(table: &KindTable, schema: TypeId, doc: &Value, patch: &Value) -> Value {
    let mut left = patch.clone();
    if let (Some(live), Some(patch)) = (doc.as_object(), left.as_object_mut()) {
        of_object(live, patch, PatchShape::of_type(table, schema));
    }
    left
}

fn of_object(live: &Object, patch: &mut Object, shape: PatchShape<'_>) {
    if let Some(directive) = patch.get(PATCH) {
        if directive == "replace" {
            patch.remove(PATCH);
        }
        return;
    }
    patch.remove(RETAIN_KEYS);
    let ordered: Vec<String> = patch.keys().filter(|key| key.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in ordered {
        patch.remove(&directive);
        let list = directive.split_once('/').map_or("", |(_, list)| list);
        if patch.get(list).is_some_and(Value::is_array) {
            patch.remove(list);
        }
    }
    for (key, value) in patch.iter_mut() {
        of_value(live.get(key), value, (key, shape));
    }
}

fn of_value(live: Option<&Value>, patch: &mut Value, (key, shape): (&str, PatchShape<'_>)) {
    let Ok(field) = shape.field(key) else { return of_new(patch) };
    match (live, patch) {
        (Some(Value::Object(live)), Value::Object(patch)) if !field.replace => of_object(live, patch, field.value),
        (Some(Value::Array(live)), Value::Array(patch)) => {
            if let Some(key) = field.merge_key.filter(|_| field.merge) {
                of_elements(live, patch, (key, field.value));
            }
        }
        (Some(Value::Object(_)), Value::Object(_)) => {}
        (_, patch) => of_new(patch),
    }
}

/// Elements without a counterpart of the same key stay unchanged, and so does a list that replaces another.
fn of_elements(live: &[Value], patch: &mut [Value], (key, shape): (&str, PatchShape<'_>)) {
    if patch.iter().any(|element| element.get(PATCH).is_some_and(|directive| directive == "replace")) {
        return;
    }
    let named = live.iter().rev().filter_map(|element| Some((element.get(key)?, element.as_object()?)));
    let named: HashMap<&Value, &Object> = named.collect();
    for element in patch.iter_mut().filter_map(Value::as_object_mut).filter(|element| !element.contains_key(PATCH)) {
        if let Some(own) = element.get(key).and_then(|name| named.get(name)) {
            of_object(own, element, shape);
        }
    }
}

/// Removes nulls and merge directives from a value that has no live counterpart.
fn of_new(value: &mut Value) {
    drop_nulls(value);
    undirect(value);
}

fn undirect(value: &mut Value) {
    match value {
        Value::Object(object) if object.contains_key(PATCH) => {}
        Value::Object(object) => {
            object.retain(|_, value| !value.as_object().is_some_and(|value| value.contains_key(PATCH)));
            object.values_mut().for_each(undirect);
        }
        Value::Array(items) => items.iter_mut().for_each(undirect),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn obeyed_directives_are_removed() {
        let table = KindTable::builtin();
        let schema = table.type_named("io.k8s.api.core.v1.PodSpec").expect("the type is in the table");
        let doc = json!({"containers": [{"name": "a", "env": [{"name": "A"}]}], "securityContext": {"runAsUser": 1}});
        for (case, patch, expected) in [
            (
                "an order and its list",
                json!({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a"}], "nodeName": 1}),
                json!({"nodeName": 1}),
            ),
            (
                "an order within an element that is there, not in a new one",
                json!({"containers": [
                    {"name": "a", "$setElementOrder/env": [{"name": "A"}], "env": [{"name": "A"}], "image": 1},
                    {"name": "b", "$setElementOrder/env": [{"name": "A"}]}]}),
                json!({"containers": [{"name": "a", "image": 1}, {"name": "b", "$setElementOrder/env": [{"name": "A"}]}]}),
            ),
            (
                "keys that are retained, and that an object replaces another",
                json!({"$retainKeys": ["securityContext"], "securityContext": {"$patch": "replace", "runAsUser": "x"}}),
                json!({"securityContext": {"runAsUser": "x"}}),
            ),
            (
                "nulls and directives of what meets nothing",
                json!({"affinity": {"nodeAffinity": {"$patch": "delete"}, "podAffinity": null}, "nodeName": null}),
                json!({"affinity": {}, "nodeName": null}),
            ),
        ] {
            assert_eq!(left_of_patch(table, schema, &doc, &patch), expected, "{case}");
        }
    }
}
