//! Data of a request as values: read where an expression looks, by the schema of the place.

use super::value::{Elements, List, ListKind, Map, Shape, Value};
use crate::schema::{self, ListType, Schema};
use crate::time;
use base64::Engine;
use serde_json::{Map as Fields, Value as Json};

/// Data as a value; without a schema, as it is.
pub(crate) fn read<'a>(json: &'a Json, schema: Option<&'a Schema>) -> Result<Value<'a>, String> {
    match schema {
        Some(schema) => by_schema(json, schema),
        None => Ok(free(json)),
    }
}

/// Data as it is.
pub(crate) fn free(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| Value::Double(number.as_f64().unwrap_or_default()), Value::Int)
        }
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => {
            Value::List(List { elements: Elements::Json { items, schema: None }, kind: ListKind::Plain })
        }
        Json::Object(fields) => Value::Map(Map::Json { fields, shape: Shape::Free }),
    }
}

fn by_schema<'a>(json: &'a Json, schema: &'a Schema) -> Result<Value<'a>, String> {
    if json.is_null() {
        return if schema.nullable {
            Ok(Value::Null)
        } else {
            Err("invalid data, got null for schema with nullable=false".to_owned())
        };
    }
    if schema.int_or_string {
        return int_or_string(json);
    }
    match schema.kind.as_str() {
        "object" => object(json, schema),
        "array" => array(json, schema),
        "string" => match json {
            Json::String(text) => text_by_format(text, &schema.format),
            other => Err(format!("invalid data, expected string, got {}", go_type(other))),
        },
        "number" => match json {
            Json::Number(number) => Ok(Value::Double(number.as_f64().unwrap_or_default())),
            other => Err(format!("invalid data, expected float, got {}", go_type(other))),
        },
        "integer" => match json.as_i64() {
            Some(number) => Ok(Value::Int(number)),
            None => Err(format!("invalid data, expected int, got {}", go_type(json))),
        },
        "boolean" => match json {
            Json::Bool(value) => Ok(Value::Bool(*value)),
            other => Err(format!("invalid data, expected bool, got {}", go_type(other))),
        },
        _ if schema.preserve_unknown => Ok(Value::Preserved(json)),
        other => Err(format!(
            "invalid type, expected object, array, number, integer, boolean or string, or no type with x-kubernetes-int-or-string or \
             x-kubernetes-preserve-unknown-fields is true, got {other}"
        )),
    }
}

/// What Go calls the type of decoded data.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_i64() => "int64",
        Json::Number(_) => "float64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

fn int_or_string(json: &Json) -> Result<Value<'_>, String> {
    match json {
        Json::String(text) => Ok(text.as_str().into()),
        other => match other.as_i64() {
            Some(number) => Ok(Value::Int(number)),
            None => Err("invalid data, expected XIntOrString value to be either a string or integer".to_owned()),
        },
    }
}

fn object<'a>(json: &'a Json, schema: &'a Schema) -> Result<Value<'a>, String> {
    let Json::Object(fields) = json else {
        return Err("invalid data, expected a map for the provided schema with type=object".to_owned());
    };
    let shape = if schema.embedded || schema.has_properties {
        Shape::Object(schema)
    } else if let Some(values) = &schema.values {
        Shape::Values(values)
    } else {
        Shape::Closed
    };
    Ok(Value::Map(Map::Json { fields, shape }))
}

fn array<'a>(json: &'a Json, schema: &'a Schema) -> Result<Value<'a>, String> {
    let Json::Array(items) = json else {
        return Err("invalid data, expected an array for the provided schema with type=array".to_owned());
    };
    let Some(item) = &schema.items else {
        return Err("invalid array type, expected Items with a non-empty Schema".to_owned());
    };
    let kind = match &schema.list_type {
        ListType::Atomic => ListKind::Plain,
        ListType::Set => ListKind::Set,
        ListType::Map(keys) => ListKind::Map(keys),
    };
    Ok(Value::List(List { elements: Elements::Json { items, schema: Some(item) }, kind }))
}

fn text_by_format<'a>(text: &'a str, format: &str) -> Result<Value<'a>, String> {
    match format {
        "duration" => schema::parse_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| format!("Invalid duration {text}: unable to parse {text} as duration")),
        "date" => time::parse_date(text)
            .map(Value::Timestamp)
            .ok_or_else(|| format!("Invalid date formatted string {text}: not a date")),
        "date-time" => schema::parse_date_time(text)
            .map(Value::Timestamp)
            .ok_or_else(|| format!("Invalid date-time formatted string {text}: not a time")),
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map(|bytes| Value::Bytes(bytes.into()))
            .map_err(|error| format!("Invalid byte formatted string {text}: {error}")),
        _ => Ok(text.into()),
    }
}

/// The value of a field, if it can be seen.
pub(super) fn field<'a>(
    fields: &'a Fields<String, Json>,
    shape: Shape<'a>,
    key: &Value<'_>,
) -> Result<Option<Value<'a>>, String> {
    let Value::String(key) = key else {
        return if matches!(shape, Shape::Free) { Ok(None) } else { Err("no such overload".to_owned()) };
    };
    match shape {
        Shape::Free => Ok(fields.get(&**key).map(free)),
        Shape::Values(schema) => fields.get(&**key).map(|json| by_schema(json, schema)).transpose(),
        Shape::Closed => Ok(None),
        Shape::Object(schema) => {
            let Some(name) = schema::unescape(key) else { return Ok(None) };
            // A null of a declared property is as good as absent.
            let Some(json) = fields.get(&name).filter(|json| !json.is_null()) else { return Ok(None) };
            schema.property(&name).map(|property| by_schema(json, property)).transpose()
        }
    }
}

/// The keys that can be seen, under the names an expression has for them.
pub(super) fn keys<'a>(fields: &'a Fields<String, Json>, shape: Shape<'a>) -> Vec<Value<'a>> {
    match shape {
        Shape::Free | Shape::Values(_) => fields.keys().map(|key| key.as_str().into()).collect(),
        Shape::Closed => Vec::new(),
        Shape::Object(schema) => fields
            .keys()
            .filter(|key| schema.property(key).is_some())
            .map(|key| schema::escape(key).map_or_else(|| key.as_str().into(), Value::from))
            .collect(),
    }
}
