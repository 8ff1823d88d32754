//! What a client sent as an empty list or map. Decoding takes it off, as storing it would; where the text of a refusal shows a whole
//! value, it shows what was sent.

use serde_json::{Map, Value};

use crate::kinds::{Field, FieldKind, Kind, KindTable, Special};

/// Puts the empty lists and maps of `sent` back into `object`, where it has nothing in their place. Of an object this is all but its
/// status, of a part of one that part: its status for those that write it, else its spec.
pub(crate) fn restore_empty(
    table: &KindTable,
    kind: &Kind,
    subresource: Option<&str>,
    sent: &Value,
    object: &mut Value,
) {
    let (Some(sent), Some(object)) = (sent.as_object(), object.as_object_mut()) else { return };
    let is_meant = |name: &str| match subresource {
        None => name != "status",
        Some("status" | "approval") => name == "status",
        Some(_) => name == "spec",
    };
    let meant = sent.iter().filter(|(name, _)| is_meant(name));
    meant.for_each(|(name, value)| field(table, &FieldKind::Message(kind.decoded_as), (name, value), object));
}

fn field(table: &KindTable, owner: &FieldKind, (name, sent): (&String, &Value), map: &mut Map<String, Value>) {
    let inner = match owner {
        FieldKind::Message(id) => {
            table.get(*id).field(name).filter(|field| !keeps_empty(field)).map(|field| &field.kind)
        }
        FieldKind::Map(element) => Some(&**element),
        FieldKind::List(_) | FieldKind::Scalar(_) | FieldKind::Special(_) => None,
    };
    let Some(inner) = inner else { return };
    match map.get_mut(name) {
        Some(value) if !value.is_null() => restore(table, inner, sent, value),
        _ if is_empty(inner, sent) => drop(map.insert(name.clone(), sent.clone())),
        _ => {}
    }
}

fn restore(table: &KindTable, kind: &FieldKind, sent: &Value, value: &mut Value) {
    match (kind, sent, value) {
        (FieldKind::List(element), Value::Array(sent), Value::Array(list)) if sent.len() == list.len() => {
            sent.iter().zip(list).for_each(|(sent, value)| restore(table, element, sent, value));
        }
        (_, Value::Object(sent), Value::Object(map)) => {
            sent.iter().for_each(|entry| field(table, kind, entry, map));
        }
        _ => {}
    }
}

/// Pointers are kept as they were sent.
fn keeps_empty(field: &Field) -> bool {
    field.pointer && !matches!(field.kind, FieldKind::Message(_))
}

fn is_empty(kind: &FieldKind, sent: &Value) -> bool {
    match (kind, sent) {
        (FieldKind::List(_) | FieldKind::Special(Special::Strings), Value::Array(list)) => list.is_empty(),
        (FieldKind::Map(_), Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupVersionKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_sent_empty_is_empty_again() {
        let table = KindTable::builtin();
        let kind = table.kind(&GroupVersionKind::parse("v1", "Pod").unwrap()).unwrap();
        let sent = json!({
            "metadata": {"labels": {}, "annotations": {"a": "b"}},
            "spec": {
                "nodeSelector": {}, "volumes": [], "unknown": [], "hostAliases": null,
                "containers": [{"args": [], "command": ["c"], "resources": {"limits": {}}}],
            },
            "status": {"podIPs": []},
        });
        let decoded = json!({
            "metadata": {"annotations": {"a": "b"}},
            "spec": {"volumes": [{"name": "defaulted"}], "containers": [{"command": ["c"], "resources": {}}]},
            "status": {},
        });
        for (case, subresource, expected) in [
            (
                "an object",
                None,
                json!({
                    "metadata": {"labels": {}, "annotations": {"a": "b"}},
                    "spec": {
                        "nodeSelector": {}, "volumes": [{"name": "defaulted"}],
                        "containers": [{"args": [], "command": ["c"], "resources": {"limits": {}}}],
                    },
                    "status": {},
                }),
            ),
            (
                "its status",
                Some("status"),
                json!({"metadata": decoded["metadata"], "spec": decoded["spec"], "status": {"podIPs": []}}),
            ),
            (
                "a part of its spec",
                Some("resize"),
                json!({
                    "metadata": decoded["metadata"],
                    "spec": {
                        "nodeSelector": {}, "volumes": [{"name": "defaulted"}],
                        "containers": [{"args": [], "command": ["c"], "resources": {"limits": {}}}],
                    },
                    "status": {},
                }),
            ),
        ] {
            let mut object = decoded.clone();
            restore_empty(table, kind, subresource, &sent, &mut object);
            assert_eq!(object, expected, "{case}");
        }
    }
}
