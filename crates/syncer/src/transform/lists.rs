//! Lists with keys that other writers have changed such that server-side apply alone cannot repair them. Pure.

use portolan_types::{annotations, object};
use serde_json::{Map, Value};

use super::fields::covers;

/// Keys by which the items of Kubernetes' lists are distinguished, in the order in which they are tried.
const ITEM_KEYS: [&str; 5] = ["name", "port", "containerPort", "mountPath", "ip"];

/// Returns a merge patch that sets `live` to `wanted`, with each differing list of objects as a whole; `None` if none
/// differs. Additional fields of items, such as an allocated port, stay on the items of the same key. The hash of the
/// applied state is omitted: the following apply writes it.
pub(crate) fn list_replacement(live: &Value, wanted: &Value) -> Option<Value> {
    let fields = |object: &Value| -> Map<String, Value> {
        let is_content = |field: &str| !matches!(field, "apiVersion" | "kind" | "metadata" | "status");
        let fields = object.as_object().into_iter().flatten();
        fields.filter(|(field, _)| is_content(field)).map(|(field, value)| (field.clone(), value.clone())).collect()
    };
    let content = Value::Object(fields(wanted));
    if !has_other_lists(live, &content) {
        return None;
    }
    let mut patch = completed_lists(Some(live), &content);
    patch["metadata"] = wanted["metadata"].clone();
    object::set_annotation(&mut patch, annotations::DOWN_APPLIED, None);
    Some(patch)
}

fn are_objects(live: &[Value], wanted: &[Value]) -> bool {
    wanted.iter().chain(live).all(Value::is_object)
}

/// Returns true when a list of objects differs.
fn has_other_lists(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(fields)) => {
            fields.iter().any(|(field, wanted)| live.get(field).is_some_and(|live| has_other_lists(live, wanted)))
        }
        (Value::Array(live), Value::Array(wanted)) if are_objects(live, wanted) => {
            live.len() != wanted.len() || live.iter().zip(wanted).any(|(live, wanted)| !covers(live, wanted))
        }
        _ => false,
    }
}

/// Returns `wanted`, with the additional fields of items in its lists of objects.
fn completed_lists(live: Option<&Value>, wanted: &Value) -> Value {
    match (live, wanted) {
        (Some(Value::Array(live)), Value::Array(wanted)) if are_objects(live, wanted) => {
            wanted.iter().map(|item| completed(live, item)).collect()
        }
        (live, Value::Object(fields)) => {
            let live = |field: &str| live.and_then(|live| live.get(field));
            let fields = fields.iter().map(|(field, wanted)| (field.clone(), completed_lists(live(field), wanted)));
            Value::Object(fields.collect())
        }
        (_, wanted) => wanted.clone(),
    }
}

/// Returns the item with the other fields of the live item of the same key.
fn completed(live: &[Value], item: &Value) -> Value {
    let same = |key: &str| {
        let wanted = item.get(key)?;
        live.iter().find(|live| live.get(key) == Some(wanted))
    };
    let Some(known) = ITEM_KEYS.iter().find_map(|key| same(key)) else { return item.clone() };
    let mut whole = known.clone();
    overlay(&mut whole, item);
    whole
}

fn overlay(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                overlay(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_that_differ_are_replaced_as_a_whole() {
        let ports =
            |ports: Value| json!({"metadata": {"labels": {}}, "spec": {"selector": {"app": "db"}, "ports": ports}});
        let wanted = ports(json!([{"port": 5432, "protocol": "TCP"}]));
        for (case, live, expected) in [
            ("the same", ports(json!([{"port": 5432, "protocol": "TCP", "nodePort": 30000}])), None),
            (
                "another port",
                ports(json!([{"port": 9, "name": "x"}])),
                Some(json!([{"port": 5432, "protocol": "TCP"}])),
            ),
            (
                "one more, and one that was changed",
                ports(json!([{"port": 5432, "protocol": "UDP", "nodePort": 30000}, {"port": 9, "name": "x"}])),
                Some(json!([{"port": 5432, "protocol": "TCP", "nodePort": 30000}])),
            ),
            ("none at all", json!({"spec": {}}), None),
        ] {
            let patch = list_replacement(&live, &wanted);
            let whole = expected
                .map(|ports| json!({"metadata": {"labels": {}}, "spec": {"selector": {"app": "db"}, "ports": ports}}));
            assert_eq!(patch, whole, "{case}");
        }
        let texts = json!({"spec": {"args": ["a"], "accessModes": ["b"]}});
        assert_eq!(
            list_replacement(&json!({"spec": {"args": ["x"], "accessModes": []}}), &texts),
            None,
            "lists of texts have no keys"
        );
    }
}
