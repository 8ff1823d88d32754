//! Lists with keys that somebody else has changed so that server-side apply alone cannot repair them. Pure.

use serde_json::{Map, Value};

use super::fields::covers;

/// Keys by which the items of Kubernetes' lists are told apart, in the order in which they are tried.
const ITEM_KEYS: [&str; 5] = ["name", "port", "containerPort", "mountPath", "ip"];

/// Returns a merge patch that replaces the lists of objects of `live` that are not what `wanted` says, each as a whole; `None` when
/// there are none. Fields that items have besides, such as a port that was allocated, stay on the items of the same key.
pub(crate) fn list_replacement(live: &Value, wanted: &Value) -> Option<Map<String, Value>> {
    let mut patch = Map::new();
    for (field, wanted) in wanted.as_object()?.iter().filter(|(field, _)| *field != "metadata" && *field != "status") {
        if let Some(change) = replaced(live.get(field), wanted) {
            patch.insert(field.clone(), change);
        }
    }
    (!patch.is_empty()).then_some(patch)
}

fn replaced(live: Option<&Value>, wanted: &Value) -> Option<Value> {
    match (live, wanted) {
        (Some(live @ Value::Object(_)), Value::Object(fields)) => {
            let changes =
                fields.iter().filter_map(|(field, wanted)| Some((field.clone(), replaced(live.get(field), wanted)?)));
            let changes: Map<String, Value> = changes.collect();
            (!changes.is_empty()).then_some(Value::Object(changes))
        }
        (Some(Value::Array(live)), Value::Array(wanted)) if wanted.iter().chain(live).all(Value::is_object) => {
            let is_same =
                live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted));
            (!is_same).then(|| wanted.iter().map(|item| completed(live, item)).collect())
        }
        _ => None,
    }
}

/// The item with what the live one of the same key has besides.
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
            let patch = list_replacement(&live, &wanted).map(Value::Object);
            assert_eq!(patch, expected.map(|ports| json!({"spec": {"ports": ports}})), "{case}");
        }
        let texts = json!({"spec": {"args": ["a"], "accessModes": ["b"]}});
        assert_eq!(
            list_replacement(&json!({"spec": {"args": ["x"], "accessModes": []}}), &texts),
            None,
            "lists of texts have no keys"
        );
    }
}
