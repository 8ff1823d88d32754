//! OpenAPI in protobuf (gnostic's `Document` of v2 and v3): which operations there are at which path, and which properties
//! every schema has. What they say in detail is compared in the documents as JSON.

use serde_json::{Map, Value, json};

/// Where in a version of gnostic's messages these stand, by field numbers.
struct Numbers {
    /// From the document to the pairs of path and item.
    paths: [u64; 2],
    /// The methods of an item.
    methods: &'static [(u64, &'static str)],
    /// From the document to the pairs of name and schema.
    schemas: &'static [u64],
    /// From what a name stands for to the schema itself.
    schema: &'static [u64],
    /// From a schema to the pairs of name and property.
    properties: [u64; 2],
}

const V2: Numbers = Numbers {
    paths: [8, 2],
    methods: &[(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")],
    schemas: &[9, 1],
    schema: &[],
    properties: [25, 1],
};

const V3: Numbers = Numbers {
    paths: [4, 1],
    methods: &[(4, "get"), (5, "put"), (6, "post"), (7, "delete"), (8, "options"), (9, "head"), (10, "patch")],
    schemas: &[5, 1, 1],
    schema: &[1],
    properties: [31, 1],
};

/// The outline of a v2 document, under the names that JSON has.
pub(super) fn swagger(body: &[u8]) -> Value {
    let (paths, schemas) = outline(body, &V2);
    json!({"paths": paths, "definitions": schemas})
}

/// The outline of a v3 document.
pub(super) fn document(body: &[u8]) -> Value {
    let (paths, schemas) = outline(body, &V3);
    json!({"paths": paths, "components": {"schemas": schemas}})
}

fn outline(body: &[u8], numbers: &Numbers) -> (Map<String, Value>, Map<String, Value>) {
    let paths = named(body, &numbers.paths, |item| {
        let methods = numbers.methods.iter().filter(|(number, _)| !all(item, &[*number]).is_empty());
        methods.map(|(_, method)| ((*method).to_owned(), Value::Bool(true))).collect()
    });
    let schemas = named(body, numbers.schemas, |value| {
        let schemas = all(value, numbers.schema);
        schemas.into_iter().flat_map(|schema| named(schema, &numbers.properties, |_| Value::Bool(true))).collect()
    });
    (paths, schemas)
}

/// The pairs of name and value at a place.
fn named(message: &[u8], way: &[u64], value: impl Fn(&[u8]) -> Value) -> Map<String, Value> {
    let text = |pair: &[u8]| all(pair, &[1]).first().map(|name| String::from_utf8_lossy(name).into_owned());
    let entry = |pair: &[u8]| Some((text(pair)?, value(all(pair, &[2]).first().copied().unwrap_or_default())));
    all(message, way).into_iter().filter_map(entry).collect()
}

/// All that stands at a place.
fn all<'m>(message: &'m [u8], way: &[u64]) -> Vec<&'m [u8]> {
    let Some((number, way)) = way.split_first() else { return vec![message] };
    let own = fields(message).into_iter().filter(|(own, _)| own == number);
    own.flat_map(|(_, value)| all(value, way)).collect()
}

/// The fields of a message that have a length; up to the first that makes no sense.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while let Some((key, rest)) = super::protobuf::varint(message) {
        let after = match key & 7 {
            0 => super::protobuf::varint(rest).map(|(_, rest)| rest),
            1 => rest.get(8..),
            2 => super::protobuf::varint(rest).and_then(|(length, rest)| {
                let (value, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                found.push((key >> 3, value));
                Some(rest)
            }),
            5 => rest.get(4..),
            _ => None,
        };
        let Some(after) = after else { break };
        message = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        // Keys of two bytes from field 16 on.
        let key = u16::from(number) << 3 | 2;
        let key = if number < 16 { vec![number << 3 | 2] } else { vec![key.to_le_bytes()[0] | 0x80, (key >> 7) as u8] };
        [key, vec![u8::try_from(content.len()).unwrap()], content.to_vec()].concat()
    }

    fn pair(name: &str, value: &[u8]) -> Vec<u8> {
        [field(1, name.as_bytes()), field(2, value)].concat()
    }

    #[test]
    fn an_outline_tells_methods_and_properties() {
        let item = [field(4, b""), field(10, b"")].concat();
        let schema = field(31, &field(1, &pair("spec", b"")));
        let paths = field(4, &field(1, &pair("/a", &item)));
        let schemas = field(5, &field(1, &field(1, &pair("A", &field(1, &schema)))));
        let expected = json!({
            "paths": {"/a": {"get": true, "patch": true}}, "components": {"schemas": {"A": {"spec": true}}},
        });
        assert_eq!(document(&[field(1, b"3.0.0"), paths, schemas].concat()), expected);
        let item = [field(2, b""), field(8, b"")].concat();
        let paths = field(8, &field(2, &pair("/a", &item)));
        let schemas = field(9, &field(1, &pair("A", &field(25, &field(1, &pair("spec", b""))))));
        let expected = json!({"paths": {"/a": {"get": true, "patch": true}}, "definitions": {"A": {"spec": true}}});
        assert_eq!(swagger(&[paths, schemas].concat()), expected);
    }
}
