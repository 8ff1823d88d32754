//! Empty lists and maps that a client sent. Decoding removes them, as storing would; a message that shows a whole
//! value shows them as sent.

use serde_json::{Map, Value};

use portolan_gocompat::time::{self, Layout, Moment};
use portolan_kinds::{Field, FieldKind, Kind, KindTable, Special};

/// Empty lists and maps to put back.
#[derive(Clone, Copy)]
pub struct Emptiness<'a> {
    /// The types.
    pub table: &'a KindTable,
    /// Those of fields of these names only, and zero times in them, which are null otherwise.
    pub only: Option<&'a [&'a str]>,
}

/// Puts the empty lists and maps of `sent` back into `object`, where it has nothing in their place. Of an object this
/// is all but its status, of a part of one that part: its status for those that write it, else its spec.
pub fn restore_empty(which: Emptiness<'_>, kind: &Kind, subresource: Option<&str>, sent: &Value, object: &mut Value) {
    let (Some(sent), Some(object)) = (sent.as_object(), object.as_object_mut()) else { return };
    let is_meant = |name: &str| match subresource {
        None => name != "status",
        Some("status" | "approval") => name == "status",
        Some(_) => name == "spec",
    };
    let meant = sent.iter().filter(|(name, _)| is_meant(name));
    meant.for_each(|(name, value)| field(which, &FieldKind::Message(kind.decoded_as), (name, value), object));
}

fn field(which: Emptiness<'_>, owner: &FieldKind, (name, sent): (&String, &Value), map: &mut Map<String, Value>) {
    let inner = match owner {
        FieldKind::Message(id) => {
            which.table.get(*id).field(name).filter(|field| !keeps_empty(which, field)).map(|field| &field.kind)
        }
        FieldKind::Map(element) => Some(&**element),
        FieldKind::List(_) | FieldKind::Scalar(_) | FieldKind::Special(_) => None,
    };
    let Some(inner) = inner else { return };
    match map.get_mut(name) {
        Some(value) if !value.is_null() => restore(which, inner, sent, value),
        _ if is_empty(which, inner, sent) && which.only.is_none_or(|only| only.contains(&name.as_str())) => {
            drop(map.insert(name.clone(), sent.clone()))
        }
        _ => {}
    }
}

fn restore(which: Emptiness<'_>, kind: &FieldKind, sent: &Value, value: &mut Value) {
    match (kind, sent, value) {
        (FieldKind::List(element), Value::Array(sent), Value::Array(list)) if sent.len() == list.len() => {
            sent.iter().zip(list).for_each(|(sent, value)| restore(which, element, sent, value));
        }
        (_, Value::Object(sent), Value::Object(map)) => {
            sent.iter().for_each(|entry| field(which, kind, entry, map));
        }
        _ => {}
    }
}

/// Keeps the wire form of pointers, except times.
fn keeps_empty(which: Emptiness<'_>, field: &Field) -> bool {
    let is_time = layout(&field.kind).is_some() && which.only.is_some();
    field.pointer && !matches!(field.kind, FieldKind::Message(_)) && !is_time
}

fn layout(kind: &FieldKind) -> Option<Layout> {
    match kind {
        FieldKind::Special(Special::Time) => Some(Layout::Seconds),
        FieldKind::Special(Special::MicroTime) => Some(Layout::Micros),
        _ => None,
    }
}

fn is_empty(which: Emptiness<'_>, kind: &FieldKind, sent: &Value) -> bool {
    match (kind, sent) {
        (FieldKind::List(_) | FieldKind::Special(Special::Strings), Value::Array(list)) => list.is_empty(),
        (FieldKind::Map(_), Value::Object(map)) => map.is_empty(),
        (kind, Value::String(text)) if which.only.is_some() => {
            layout(kind).is_some_and(|layout| time::parse(text, layout).is_ok_and(Moment::is_zero))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupVersionKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_values_of_clients_are_restored() {
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
            restore_empty(Emptiness { table, only: None }, kind, subresource, &sent, &mut object);
            assert_eq!(object, expected, "{case}");
        }
        let mut object = decoded.clone();
        restore_empty(Emptiness { table, only: Some(&["args"]) }, kind, None, &sent, &mut object);
        assert_eq!(object["spec"]["containers"][0], json!({"args": [], "command": ["c"], "resources": {}}));
        assert_eq!(object["spec"].get("nodeSelector"), None);
    }
}
