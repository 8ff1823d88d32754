//! OpenAPI in protobuf (gnostic's `Document` of v2 and v3), converted to the equivalent JSON document.
//!
//! Nothing is dropped: an unknown field appears under its number, and invalid bytes give no document.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};

use super::super::wire::{self, WireContent};

/// The messages of one version of gnostic, by name.
pub(super) struct Messages(BTreeMap<&'static str, GnosticMessage>);

struct GnosticMessage {
    /// Wrapper of its single field.
    is_choice: bool,
    fields: BTreeMap<u64, GnosticField>,
}

struct GnosticField {
    /// Same name as in JSON.
    name: String,
    kind: &'static str,
    is_list: bool,
}

pub(super) static V2: LazyLock<Messages> = LazyLock::new(|| Messages::parse(include_str!("v2.txt")));
pub(super) static V3: LazyLock<Messages> = LazyLock::new(|| Messages::parse(include_str!("v3.txt")));

/// Decodes the document in these bytes.
pub(super) fn read(messages: &Messages, body: &[u8]) -> Value {
    messages.message("Document", body).unwrap_or_else(|| json!({"no document": BASE64.encode(body)}))
}

impl Messages {
    /// One message per line: `Name: field=1 string, other=2 *Schema`.
    fn parse(text: &'static str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| !name.starts_with('#'));
        let messages = lines.map(|(name, fields)| {
            let fields = fields.split(", ").filter_map(GnosticField::parse).collect();
            (name.trim_end_matches('|'), GnosticMessage { is_choice: name.ends_with('|'), fields })
        });
        Self(messages.collect())
    }

    fn message(&self, kind: &str, bytes: &[u8]) -> Option<Value> {
        let message = self.0.get(kind)?;
        let mut read = MessageReading::default();
        for field in wire::fields(bytes)? {
            match message.fields.get(&field.number) {
                Some(slot) => read.take(slot, self.content(slot.kind, &field.content)?),
                None => read.unknown(field.number, &field.content),
            }
        }
        Some(match kind {
            "Any" => beside(yaml(read.object.remove("yaml").unwrap_or_default()), read.object),
            "NonBodyParameter" => parameter_at_its_location(read),
            // A list of strings stays a list; a list of schemas or types becomes its single item.
            "StringArray" => Value::Array(read.all()),
            "ItemsItem" | "TypeItem" => single(read.all()),
            _ if message.is_choice => single(read.all()),
            _ => Value::Object(read.object),
        })
    }

    fn content(&self, kind: &str, content: &WireContent<'_>) -> Option<Value> {
        match (kind, content) {
            ("string", WireContent::Long(text)) => std::str::from_utf8(text).ok().map(Value::from),
            ("bool", WireContent::Number(value @ (0 | 1))) => Some((*value == 1).into()),
            ("int64", WireContent::Number(value)) => Some((*value).into()),
            ("double", WireContent::Fixed(value)) => Some(f64::from_le_bytes((*value).try_into().ok()?).into()),
            ("string" | "bool" | "int64" | "double", _) => None,
            (kind, WireContent::Long(message)) => self.message(kind, message),
            (_, WireContent::Number(_) | WireContent::Fixed(_)) => None,
        }
    }
}

impl GnosticField {
    fn parse(text: &'static str) -> Option<(u64, Self)> {
        let (name, rest) = text.split_once('=')?;
        let (number, kind) = rest.split_once(' ')?;
        let slot = Self { name: camel(name), kind: kind.trim_start_matches('*'), is_list: kind.starts_with('*') };
        Some((number.parse().ok()?, slot))
    }
}

/// `operation_id` as `operationId`, `_ref` as `$ref`.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().filter(|first| !first.is_empty()).map_or_else(|| "$".to_owned(), str::to_owned);
    for word in words {
        let is_first = camel == "$";
        let (start, rest) = word.split_at(usize::from(!is_first && !word.is_empty()));
        camel.push_str(&start.to_uppercase());
        camel.push_str(rest);
    }
    camel
}

/// Decoded part of a message.
#[derive(Default)]
struct MessageReading {
    object: Map<String, Value>,
}

impl MessageReading {
    fn take(&mut self, slot: &GnosticField, value: Value) {
        if slot.kind.starts_with("Named") {
            // Pair of a JSON map.
            let Value::Object(mut pair) = value else { return };
            let name = pair.remove("name").unwrap_or_default().as_str().unwrap_or_default().to_owned();
            let value = pair.remove("value").unwrap_or_default();
            self.put(name, beside(value, pair), false);
        } else {
            self.put(slot.name.clone(), value, slot.is_list);
        }
    }

    fn unknown(&mut self, number: u64, content: &WireContent<'_>) {
        let shown = match content {
            WireContent::Number(value) => json!(value),
            WireContent::Fixed(value) | WireContent::Long(value) => json!(BASE64.encode(value)),
        };
        self.put(format!("field {number}"), shown, true);
    }

    /// Adds a value. A second value of a unique name makes a list.
    fn put(&mut self, name: String, value: Value, is_list: bool) {
        match self.object.get_mut(&name) {
            Some(Value::Array(items)) if is_list => items.push(value),
            Some(other) => *other = json!([other.take(), value]),
            None => drop(self.object.insert(name, if is_list { json!([value]) } else { value })),
        }
    }

    /// Returns all values, whatever their names.
    fn all(self) -> Vec<Value> {
        let flat = self.object.into_values().flat_map(|value| match value {
            Value::Array(items) => items,
            other => vec![other],
        });
        flat.collect()
    }
}

/// Returns the single value; all values if there are more.
fn single(mut values: Vec<Value>) -> Value {
    if values.len() > 1 { Value::Array(values) } else { values.pop().unwrap_or_default() }
}

/// Returns a value, and the fields that should not accompany it.
fn beside(value: Value, others: Map<String, Value>) -> Value {
    if others.is_empty() { value } else { json!([value, others]) }
}

/// Parameters have one form per location, and some forms are equal. Returns the parameter if its location matches the
/// form.
fn parameter_at_its_location(read: MessageReading) -> Value {
    let says = |(form, parameter): (&String, &Value)| parameter["in"].as_str().is_some_and(|at| form.starts_with(at));
    if read.object.iter().all(says) { single(read.all()) } else { Value::Object(read.object) }
}

/// Values of arbitrary type are encoded as YAML.
fn yaml(text: Value) -> Value {
    text.as_str().and_then(|text| serde_saphyr::from_str(text).ok()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::{counted, nested};
    use super::*;

    fn pair(name: &str, value: &[u8]) -> Vec<u8> {
        [nested(1, name.as_bytes()), nested(2, value)].concat()
    }

    fn any(yaml: &str) -> Vec<u8> {
        nested(2, yaml.as_bytes())
    }

    /// A document of v3 with a path and a schema.
    fn third() -> Vec<u8> {
        let answer = pair("200", &nested(1, &nested(1, b"OK")));
        let media = pair("application/json", &nested(1, &nested(2, &nested(1, b"#/a"))));
        let body = nested(1, &nested(2, &nested(1, &media)));
        let extension = nested(13, &pair("x-kubernetes-action", &any("post\n")));
        let operation =
            [nested(1, b"core"), nested(5, b"make"), nested(7, &body), nested(8, &nested(2, &answer)), extension];
        let default = nested(33, &[vec![9], 1.5_f64.to_le_bytes().to_vec()].concat());
        let size = [nested(25, b"number"), default, counted(15, 300)].concat();
        let properties = nested(31, &nested(1, &pair("size", &nested(1, &size))));
        let schema =
            [counted(1, 1), nested(23, b"size"), nested(24, &any("- 1\n")), properties, counted(20, 1)].concat();
        let paths = nested(4, &nested(1, &pair("/a", &nested(6, &operation.concat()))));
        let schemas = nested(5, &nested(1, &nested(1, &pair("A", &nested(1, &schema)))));
        [nested(1, b"3.0.0"), paths, schemas].concat()
    }

    #[test]
    fn a_yaml_document_equals_its_json() {
        let answers = json!({"200": {"description": "OK"}});
        let body = json!({"content": {"application/json": {"schema": {"$ref": "#/a"}}}});
        let operation = json!({
            "tags": ["core"], "operationId": "make", "requestBody": body, "responses": answers, "x-kubernetes-action": "post",
        });
        let size = json!({"type": "number", "default": 1.5, "maxLength": 300});
        let schema = json!({
            "nullable": true, "required": ["size"], "enum": [[1]], "properties": {"size": size}, "uniqueItems": true,
        });
        let expected = json!({
            "openapi": "3.0.0", "paths": {"/a": {"post": operation}}, "components": {"schemas": {"A": schema}},
        });
        assert_eq!(read(&V3, &third()), expected);
    }

    /// A document of v2 with a parameter and a definition.
    fn second() -> Vec<u8> {
        let path =
            [counted(1, 1), nested(2, b"path"), nested(4, b"name"), nested(5, b"string"), counted(19, 1)].concat();
        let parameter = nested(9, &nested(1, &nested(2, &nested(4, &path))));
        let schema = [nested(22, &nested(1, b"array")), nested(23, &nested(1, &nested(1, b"#/b")))].concat();
        let document = [
            nested(1, b"2.0"),
            nested(8, &nested(2, &pair("/a", &parameter))),
            nested(9, &nested(1, &pair("A", &schema))),
        ];
        document.concat()
    }

    #[test]
    fn version_2_is_read_by_its_own_numbers() {
        let parameter = json!({"required": true, "in": "path", "name": "name", "type": "string", "uniqueItems": true});
        let expected = json!({
            "swagger": "2.0", "paths": {"/a": {"parameters": [parameter]}},
            "definitions": {"A": {"type": "array", "items": {"$ref": "#/b"}}},
        });
        assert_eq!(read(&V2, &second()), expected);
    }

    #[test]
    fn a_wrong_byte_anywhere_is_another_document() {
        for (messages, right) in [(&*V2, second()), (&*V3, third())] {
            let document = read(messages, &right);
            for at in 0..right.len() {
                for bit in 0..8 {
                    let mut wrong = right.clone();
                    wrong[at] ^= 1 << bit;
                    assert_ne!(read(messages, &wrong), document, "bit {bit} of byte {at}");
                }
            }
            assert_ne!(read(messages, &right[..right.len() - 1]), document, "the last byte is missing");
            assert_ne!(read(messages, &[right, counted(99, 1)].concat()), document, "gnostic has no such field");
        }
    }
}
