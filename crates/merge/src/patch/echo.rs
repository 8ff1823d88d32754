//! The text of a patched document that does not fit its kind, as kube-apiserver shows it: fields are in the order of
//! the Go types, but sorted by name in the objects that the patch changed.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::{Map, Value};

use portolan_codec::decode::{self, MediaType};
use portolan_kinds::{FieldKind, KindTable, TypeId};

/// Places that a patch touched.
#[derive(Clone, Debug, PartialEq)]
pub enum Touched {
    /// Into this object or list, and further at these keys.
    Within(BTreeMap<String, Touched>),
    /// The value is the patch's.
    Replaced,
    /// The value equals the one at this path, which is given by its keys.
    Taken(Vec<String>),
}

impl Touched {
    /// Returns the changes of a merge patch of `old`.
    pub fn by_merge(old: &Value, patch: &Value) -> Self {
        let (Value::Object(old), Value::Object(patch)) = (old, patch) else { return Self::Replaced };
        let below = patch.iter().map(|(key, patch)| {
            let below = old.get(key).map_or(Self::Replaced, |old| Self::by_merge(old, patch));
            (key.clone(), below)
        });
        Self::Within(below.collect())
    }

    /// Returns the changes of a JSON patch that applies, so that no relevant path is deeper than the document.
    pub fn by_json(patch: &[u8]) -> Self {
        let mut touched = Self::Within(BTreeMap::new());
        let operations = decode::decode_any(MediaType::Json, patch).unwrap_or_default();
        for operation in operations.as_array().into_iter().flatten() {
            let text = |key: &str| operation.get(key).and_then(Value::as_str);
            // A value that is copied into itself has been recorded by then.
            if let (Some("copy"), Some(path)) = (text("op"), text("path")) {
                touched.enter(path, None);
            }
            let put = match text("op") {
                Some("add" | "replace") => Some(Self::Replaced),
                Some("copy" | "move") => text("from").map(|from| touched.take(from)),
                _ => None,
            };
            if let Some(path) = text("path") {
                touched.enter(path, put);
            }
        }
        touched
    }

    /// Returns the origin of a value that is taken from a place: the original object, unless the patch has written
    /// there before.
    fn take(&mut self, from: &str) -> Self {
        let keys: Vec<String> = keys(from).collect();
        self.enter(from, None);
        match keys.iter().try_fold(&*self, |at, key| at.at(key)) {
            None => Self::Taken(keys),
            Some(_) => Self::Replaced,
        }
    }

    fn enter(&mut self, pointer: &str, put: Option<Self>) {
        let mut at = self;
        let mut keys = keys(pointer).peekable();
        while let Some(key) = keys.next() {
            let Self::Within(below) = at else { return };
            if keys.peek().is_none() {
                below.extend(put.map(|put| (key, put)));
                return;
            }
            at = below.entry(key).or_insert_with(|| Self::Within(BTreeMap::new()));
        }
    }

    fn at(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Within(below) => below.get(key),
            Self::Replaced => Some(self),
            Self::Taken(_) => None,
        }
    }
}

/// Returns the keys of a pointer, outermost first.
fn keys(pointer: &str) -> impl Iterator<Item = String> + '_ {
    pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"))
}

/// Returns a patched document of type `schema` as text.
pub fn echo(table: &KindTable, schema: TypeId, patched: &Value, touched: &Touched) -> String {
    let root = FieldKind::Message(schema);
    let mut echo = Echo { table, root: Some(&root), text: String::new() };
    echo.value(patched, Some(&root), Some(touched));
    echo.text
}

/// Returns a value of the type of this name, as Go writes it.
pub fn in_go_order(table: &KindTable, name: &str, value: &Value) -> String {
    let mut echo = Echo { table, root: None, text: String::new() };
    echo.value(value, table.type_named(name).map(FieldKind::Message).as_ref(), None);
    echo.text
}

struct Echo<'t> {
    table: &'t KindTable,
    /// Type of the whole object.
    root: Option<&'t FieldKind>,
    text: String,
}

impl<'t> Echo<'t> {
    /// Returns the type of the value at a place.
    fn kind_at(&self, keys: &[String]) -> Option<&'t FieldKind> {
        keys.iter().try_fold(self.root?, |kind, key| match kind {
            FieldKind::Message(id) => self.table.get(*id).field(key).map(|field| &field.kind),
            FieldKind::List(element) | FieldKind::Map(element) => Some(&**element),
            FieldKind::Scalar(_) | FieldKind::Special(_) => None,
        })
    }

    fn value(&mut self, value: &Value, kind: Option<&FieldKind>, touched: Option<&Touched>) {
        let (kind, touched) = match touched {
            Some(Touched::Taken(keys)) => (self.kind_at(keys), None),
            Some(Touched::Replaced) => (None, touched),
            Some(Touched::Within(_)) | None => (kind, touched),
        };
        match value {
            Value::Object(fields) => self.object(fields, kind, touched),
            Value::Array(items) => {
                let element = kind.map(FieldKind::element);
                self.text.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.comma(index);
                    self.value(item, element, touched.and_then(|touched| touched.at(&index.to_string())));
                }
                self.text.push(']');
            }
            Value::String(text) => self.string(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                let _ = write!(self.text, "{value}");
            }
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, kind: Option<&FieldKind>, touched: Option<&Touched>) {
        let message = match kind {
            Some(FieldKind::Message(id)) => Some(self.table.get(*id)),
            Some(FieldKind::Scalar(_) | FieldKind::Special(_) | FieldKind::List(_) | FieldKind::Map(_)) | None => None,
        };
        let field = |key: &str| message.and_then(|message| message.field(key));
        let mut keys: Vec<&String> = fields.keys().collect();
        keys.sort();
        if touched.is_none() {
            keys.sort_by_key(|key| field(key).map_or(u16::MAX, |field| field.place));
        }
        self.text.push('{');
        for (index, key) in keys.into_iter().enumerate() {
            self.comma(index);
            self.string(key);
            self.text.push(':');
            let kind = match kind {
                Some(FieldKind::Map(element)) => Some(&**element),
                _ => field(key).map(|field| &field.kind),
            };
            self.value(&fields[key], kind, touched.and_then(|touched| touched.at(key)));
        }
        self.text.push('}');
    }

    fn comma(&mut self, index: usize) {
        if index > 0 {
            self.text.push(',');
        }
    }

    /// Escapes a string like Go, whose JSON is safe in HTML.
    fn string(&mut self, text: &str) {
        for part in Value::from(text).to_string().chars() {
            match part {
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(part));
                }
                _ => self.text.push(part),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupVersionKind;
    use serde_json::json;

    use super::*;

    fn check(patched: &Value, touched: &Touched, expected: &str) {
        let table = KindTable::builtin();
        let kind = table.kind(&GroupVersionKind::new("", "v1", "Pod")).unwrap();
        assert_eq!(echo(table, kind.schema, patched, touched), expected);
    }

    #[test]
    fn a_path_that_an_operation_has_no_use_for_is_not_followed() {
        let from = "/a".repeat(100_000);
        let patch = format!(r#"[{{"op": "replace", "path": "/kind", "value": "X", "from": "{from}"}}]"#);
        let kind = [("kind".to_owned(), Touched::Replaced)];
        assert_eq!(Touched::by_json(patch.as_bytes()), Touched::Within(kind.into()));
    }

    #[test]
    fn moved_fields_keep_their_order() {
        let moved = json!({"kind": {"volumes": [], "containers": [{"image": "i", "name": "c"}]}, "metadata": {"uid": "u", "name": "x"}});
        let touched = Touched::by_json(br#"[{"op": "move", "from": "/spec", "path": "/kind"}]"#);
        let meta = r#""metadata":{"name":"x","uid":"u"}"#;
        let as_it_was = r#""kind":{"volumes":[],"containers":[{"name":"c","image":"i"}]}"#;
        check(&moved, &touched, &format!("{{{as_it_was},{meta}}}"));
    }

    #[test]
    fn unpatched_fields_are_in_gos_order() {
        let patched = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"creationTimestamp": "t", "labels": {"b": "<", "a": "1"}, "name": "web", "uid": "u"},
            "spec": {"containers": [{"image": "i", "args": ["x"], "name": "c"}], "volumes": []},
        });
        let spec = r#""spec":{"volumes":[],"containers":[{"name":"c","image":"i","args":["x"]}]}"#;
        let rest = r#""labels":{"a":"1","b":"\u003c"}"#;
        let plain = format!(r#""metadata":{{"name":"web","uid":"u","creationTimestamp":"t",{rest}}}"#);
        check(
            &patched,
            &Touched::by_merge(&patched, &json!({"kind": "Pod"})),
            &format!(r#"{{"apiVersion":"v1","kind":"Pod",{plain},{spec}}}"#),
        );
        let sorted = format!(r#""metadata":{{"creationTimestamp":"t",{rest},"name":"web","uid":"u"}}"#);
        let by_json = Touched::by_json(br#"[{"op": "remove", "path": "/metadata/generateName"}]"#);
        for touched in [Touched::by_merge(&patched, &json!({"metadata": {"labels": {"a": "1"}}})), by_json] {
            check(&patched, &touched, &format!(r#"{{"apiVersion":"v1","kind":"Pod",{sorted},{spec}}}"#));
        }
    }
}
