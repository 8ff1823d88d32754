//! Reading a schema from a definition. Parts that have an unexpected form are left out; the validation of definitions
//! reports them.

use serde_json::Value;

use super::{
    Additional, Checks, Default, Format, ListKind, Pattern, Properties, Schema, ValueKind,
    checks::{NumberBound, float, is_known_format},
};

/// Nodes that the schemas of one definition may have together.
pub const MAX_NODES: usize = 65_536;

/// A schema has too many nodes to be kept.
#[derive(Debug, thiserror::Error)]
#[error("its schemas have more than {MAX_NODES} nodes")]
pub struct TooLarge;

impl Schema {
    /// Reads `openAPIV3Schema`. `left` counts down the nodes that may still come.
    ///
    /// # Errors
    /// Fails if there are more.
    pub fn read(json: &Value, left: &mut usize) -> Result<Self, TooLarge> {
        Reader { left }.schema(json)
    }
}

struct Reader<'l> {
    left: &'l mut usize,
}

impl Reader<'_> {
    fn schema(&mut self, json: &Value) -> Result<Schema, TooLarge> {
        *self.left = self.left.checked_sub(1).ok_or(TooLarge)?;
        let flag = |name: &str| json.get(name) == Some(&Value::Bool(true));
        let kind = kind(json);
        Ok(Schema {
            kind,
            nullable: flag("nullable"),
            default: json.get("default").filter(|default| !default.is_null()).map(default),
            properties: self.properties(json)?,
            additional: self.additional(json)?,
            items: self.one(json.get("items"))?,
            preserves_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            is_resource: flag("x-kubernetes-embedded-resource"),
            list: list_kind(json),
            is_atomic: text(json, "x-kubernetes-map-type") == "atomic",
            checks: self.checks(json, kind)?,
        })
    }

    fn one(&mut self, json: Option<&Value>) -> Result<Option<Box<Schema>>, TooLarge> {
        json.filter(|json| json.is_object()).map(|json| self.schema(json).map(Box::new)).transpose()
    }

    fn all(&mut self, json: &Value, name: &str) -> Result<Box<[Schema]>, TooLarge> {
        list(json, name).iter().map(|part| self.schema(part)).collect()
    }

    fn properties(&mut self, json: &Value) -> Result<Properties, TooLarge> {
        let properties = json.get("properties").and_then(Value::as_object);
        let mut read = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| Ok((Box::<str>::from(name.as_str()), self.schema(schema)?)))
            .collect::<Result<Vec<_>, TooLarge>>()?;
        read.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(read.into())
    }

    fn additional(&mut self, json: &Value) -> Result<Additional, TooLarge> {
        Ok(match json.get("additionalProperties") {
            Some(schema @ Value::Object(_)) => Additional::Like(Box::new(self.schema(schema)?)),
            Some(Value::Bool(allowed)) => Additional::Allowed(*allowed),
            _ => Additional::Unsaid,
        })
    }

    fn checks(&mut self, json: &Value, kind: ValueKind) -> Result<Option<Box<Checks>>, TooLarge> {
        let count = |name: &str| json.get(name).and_then(Value::as_i64);
        let flag = |name: &str| json.get(name) == Some(&Value::Bool(true));
        let bound = |name: &str, exclusive: &str| {
            json.get(name).and_then(float).map(|at| NumberBound { at, is_exclusive: flag(exclusive) })
        };
        let word = if kind == ValueKind::IntOrString { "" } else { kind.word() };
        let format = Some(text(json, "format")).filter(|format| is_known_format(word, format));
        let checks = Checks {
            format: format.map(|format| Format(format.into())),
            maximum: bound("maximum", "exclusiveMaximum"),
            minimum: bound("minimum", "exclusiveMinimum"),
            multiple_of: json.get("multipleOf").and_then(float),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            pattern: Some(text(json, "pattern")).filter(|text| !text.is_empty()).map(|text| Pattern(text.into())),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            required: list(json, "required").iter().filter_map(Value::as_str).map(Box::from).collect(),
            values: list(json, "enum").into(),
            all_of: self.all(json, "allOf")?,
            any_of: self.all(json, "anyOf")?,
            one_of: self.all(json, "oneOf")?,
            not: self.one(json.get("not"))?,
        };
        Ok((!checks.is_empty()).then(|| Box::new(checks)))
    }
}

impl Checks {
    fn is_empty(&self) -> bool {
        let counts = [self.max_length, self.min_length, self.max_items, self.min_items];
        let more = [self.max_properties, self.min_properties];
        let parts = [&self.all_of, &self.any_of, &self.one_of];
        self.format.is_none()
            && self.maximum.is_none()
            && self.minimum.is_none()
            && self.multiple_of.is_none()
            && self.pattern.is_none()
            && self.not.is_none()
            && self.required.is_empty()
            && self.values.is_empty()
            && counts.iter().chain(&more).all(Option::is_none)
            && parts.iter().all(|part| part.is_empty())
    }
}

fn text<'v>(json: &'v Value, name: &str) -> &'v str {
    json.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn list<'v>(json: &'v Value, name: &str) -> &'v [Value] {
    json.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn kind(json: &Value) -> ValueKind {
    if json.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        return ValueKind::IntOrString;
    }
    match text(json, "type") {
        "object" => ValueKind::Object,
        "array" => ValueKind::Array,
        "string" => ValueKind::String,
        "integer" => ValueKind::Integer,
        "number" => ValueKind::Number,
        "boolean" => ValueKind::Boolean,
        _ => ValueKind::Any,
    }
}

fn list_kind(json: &Value) -> ListKind {
    match text(json, "x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => {
            let keys = list(json, "x-kubernetes-list-map-keys");
            ListKind::Map(keys.iter().filter_map(Value::as_str).map(std::sync::Arc::from).collect())
        }
        _ => ListKind::Atomic,
    }
}

fn default(value: &Value) -> Box<Default> {
    Box::new(Default { value: value.clone(), weight: weight(value) })
}

/// Bytes that a value with nothing in it takes in a tree.
const NODE_BYTES: usize = 64;

/// Estimates the bytes that a value takes in memory.
pub(in crate::custom) fn weight(value: &Value) -> usize {
    NODE_BYTES
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + NODE_BYTES + weight(value)).sum(),
        }
}
