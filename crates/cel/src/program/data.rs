//! Request data as values, read lazily by the schema of each position.

use super::value::{CelList, CelListElements, CelListKind, CelMap, CelValue, JsonFieldShape};
use crate::schema::{self, RuleSchema, SchemaListType};
use crate::time;
use portolan_gocompat::{base64, print::go_type};
use serde_json::{Map as Fields, Value as Json};

/// Returns data as a value, read by the schema if there is one.
pub(crate) fn read<'a>(json: &'a Json, schema: Option<&'a RuleSchema>) -> Result<CelValue<'a>, String> {
    match schema {
        Some(schema) => by_schema(json, schema),
        None => Ok(free(json)),
    }
}

/// Returns data as a value without a schema.
pub(crate) fn free(json: &Json) -> CelValue<'_> {
    match json {
        Json::Null => CelValue::Null,
        Json::Bool(value) => CelValue::Bool(*value),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| CelValue::Double(number.as_f64().unwrap_or_default()), CelValue::Int)
        }
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => CelValue::List(CelList {
            elements: CelListElements::Json { items, schema: None },
            kind: CelListKind::Plain,
        }),
        Json::Object(fields) => CelValue::Map(CelMap::Json { fields, shape: JsonFieldShape::Free }),
    }
}

fn by_schema<'a>(json: &'a Json, schema: &'a RuleSchema) -> Result<CelValue<'a>, String> {
    if json.is_null() {
        return if schema.nullable {
            Ok(CelValue::Null)
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
            Json::Number(number) => Ok(CelValue::Double(number.as_f64().unwrap_or_default())),
            other => Err(format!("invalid data, expected float, got {}", go_type(other))),
        },
        "integer" => match json.as_i64() {
            Some(number) => Ok(CelValue::Int(number)),
            None => Err(format!("invalid data, expected int, got {}", go_type(json))),
        },
        "boolean" => match json {
            Json::Bool(value) => Ok(CelValue::Bool(*value)),
            other => Err(format!("invalid data, expected bool, got {}", go_type(other))),
        },
        _ if schema.preserve_unknown => Ok(CelValue::Preserved(json)),
        other => Err(format!(
            "invalid type, expected object, array, number, integer, boolean or string, or no type with x-kubernetes-int-or-string or \
             x-kubernetes-preserve-unknown-fields is true, got {other}"
        )),
    }
}

fn int_or_string(json: &Json) -> Result<CelValue<'_>, String> {
    match json {
        Json::String(text) => Ok(text.as_str().into()),
        other => match other.as_i64() {
            Some(number) => Ok(CelValue::Int(number)),
            None => Err("invalid data, expected XIntOrString value to be either a string or integer".to_owned()),
        },
    }
}

fn object<'a>(json: &'a Json, schema: &'a RuleSchema) -> Result<CelValue<'a>, String> {
    let Json::Object(fields) = json else {
        return Err("invalid data, expected a map for the provided schema with type=object".to_owned());
    };
    let shape = if schema.embedded || schema.has_properties {
        JsonFieldShape::Object(schema)
    } else if let Some(values) = &schema.values {
        JsonFieldShape::Values(values)
    } else {
        JsonFieldShape::Closed
    };
    Ok(CelValue::Map(CelMap::Json { fields, shape }))
}

fn array<'a>(json: &'a Json, schema: &'a RuleSchema) -> Result<CelValue<'a>, String> {
    let Json::Array(items) = json else {
        return Err("invalid data, expected an array for the provided schema with type=array".to_owned());
    };
    let Some(item) = &schema.items else {
        return Err("invalid array type, expected Items with a non-empty Schema".to_owned());
    };
    let kind = match &schema.list_type {
        SchemaListType::Atomic => CelListKind::Plain,
        SchemaListType::Set => CelListKind::Set,
        SchemaListType::Map(keys) => CelListKind::Map(keys),
    };
    Ok(CelValue::List(CelList { elements: CelListElements::Json { items, schema: Some(item) }, kind }))
}

fn text_by_format<'a>(text: &'a str, format: &str) -> Result<CelValue<'a>, String> {
    match format {
        "duration" => schema::parse_duration(text)
            .map(CelValue::Duration)
            .ok_or_else(|| format!("Invalid duration {text}: unable to parse {text} as duration")),
        "date" => time::parse_date(text)
            .map(CelValue::Timestamp)
            .ok_or_else(|| format!("Invalid date formatted string {text}: not a date")),
        "date-time" => schema::parse_date_time(text)
            .map(CelValue::Timestamp)
            .ok_or_else(|| format!("Invalid date-time formatted string {text}: not a time")),
        "byte" => base64::decode(text)
            .map(|bytes| CelValue::Bytes(bytes.into()))
            .map_err(|error| format!("Invalid byte formatted string {text}: {error}")),
        _ => Ok(text.into()),
    }
}

/// Returns the value of a field, if it is visible.
pub(super) fn field<'a>(
    fields: &'a Fields<String, Json>,
    shape: JsonFieldShape<'a>,
    key: &CelValue<'_>,
) -> Result<Option<CelValue<'a>>, String> {
    let CelValue::String(key) = key else {
        return if matches!(shape, JsonFieldShape::Free) { Ok(None) } else { Err("no such overload".to_owned()) };
    };
    match shape {
        JsonFieldShape::Free => Ok(fields.get(&**key).map(free)),
        JsonFieldShape::Values(schema) => fields.get(&**key).map(|json| by_schema(json, schema)).transpose(),
        JsonFieldShape::Closed => Ok(None),
        JsonFieldShape::Object(schema) => {
            let Some(name) = schema::unescape(key) else { return Ok(None) };
            // A null of a declared property counts as absent.
            let Some(json) = fields.get(&name).filter(|json| !json.is_null()) else { return Ok(None) };
            schema.property(&name).map(|property| by_schema(json, property)).transpose()
        }
    }
}

/// Returns the visible keys under their names in expressions.
pub(super) fn keys<'a>(fields: &'a Fields<String, Json>, shape: JsonFieldShape<'a>) -> Vec<CelValue<'a>> {
    match shape {
        JsonFieldShape::Free | JsonFieldShape::Values(_) => fields.keys().map(|key| key.as_str().into()).collect(),
        JsonFieldShape::Closed => Vec::new(),
        JsonFieldShape::Object(schema) => fields
            .keys()
            .filter(|key| schema.property(key).is_some())
            .map(|key| schema::escape(key).map_or_else(|| key.as_str().into(), CelValue::from))
            .collect(),
    }
}
