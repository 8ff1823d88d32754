//! Effect of a round trip through the store. kube-apiserver stores built-in kinds in protobuf, which knows no empty
//! lists: those that are always written come back as `null`.

use serde_json::Value;

use portolan_kinds::{FieldKind, Kind, KindTable, custom};

/// Changes a canonical tree to the object that kube-apiserver reads back from its store.
pub fn settle(table: &KindTable, kind: &Kind, object: &mut Value) {
    // Definitions are stored as JSON.
    if kind.is_kubernetes() && &*kind.gvk.group != custom::GROUP && has_empty_list(object) {
        lists(table, &FieldKind::Message(kind.schema), object);
    }
}

fn has_empty_list(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty() || list.iter().any(has_empty_list),
        Value::Object(map) => map.values().any(has_empty_list),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn lists(table: &KindTable, kind: &FieldKind, value: &mut Value) {
    match (kind, value) {
        (FieldKind::Message(id), Value::Object(map)) => {
            let schema = table.get(*id);
            for (name, value) in map {
                let Some(field) = schema.field(name) else { continue };
                let is_list = matches!(field.kind, FieldKind::List(_));
                if is_list && !field.omitempty && value.as_array().is_some_and(Vec::is_empty) {
                    *value = Value::Null;
                } else {
                    lists(table, &field.kind, value);
                }
            }
        }
        (FieldKind::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|value| lists(table, element, value));
        }
        (FieldKind::Map(element), Value::Object(map)) => {
            map.values_mut().for_each(|value| lists(table, element, value));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupVersionKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_lists_that_are_always_written_come_back_as_null() {
        for (version, name, object, expected) in [
            (
                "discovery.k8s.io/v1",
                "EndpointSlice",
                json!({"endpoints": [], "ports": null}),
                json!({"endpoints": null, "ports": null}),
            ),
            ("storage.k8s.io/v1", "CSINode", json!({"spec": {"drivers": []}}), json!({"spec": {"drivers": null}})),
            (
                "rbac.authorization.k8s.io/v1",
                "Role",
                json!({"rules": [{"verbs": ["get"], "apiGroups": [""]}]}),
                json!({"rules": [{"verbs": ["get"], "apiGroups": [""]}]}),
            ),
            (
                "v1",
                "Pod",
                json!({"spec": {"containers": []}, "metadata": {"managedFields": []}}),
                json!({"spec": {"containers": null}, "metadata": {"managedFields": []}}),
            ),
            (
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                json!({"status": {"storedVersions": []}}),
                json!({"status": {"storedVersions": []}}),
            ),
        ] {
            let table = KindTable::builtin();
            let kind = table.kind(&GroupVersionKind::parse(version, name).unwrap()).unwrap();
            let mut settled = object;
            settle(table, kind, &mut settled);
            assert_eq!(settled, expected, "{name}");
        }
    }
}
