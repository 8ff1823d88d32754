//! Types whose JSON or protobuf form follows no general rule.

use std::ops::RangeInclusive;

use jiff::SignedDuration;
use portolan_gocompat::{
    protowire,
    time::{self, Layout, Moment},
};
use serde_json::Value;

use super::{
    ProtobufError,
    message::Decoder,
    read::{WireReader, WireType},
    write::Encoder,
};
use portolan_kinds::{Field, Special, TypeId};

/// The type behind the unions of JSON schemas.
pub(super) const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Returns the tree for the message of a special type.
pub(super) fn decode(
    decoder: &mut Decoder<'_>,
    field: &Field,
    special: Special,
    data: &[u8],
) -> Result<Value, ProtobufError> {
    let parts = Parts::read(message_of(special), data)?;
    let text = |at: u32| String::from_utf8_lossy(parts.bytes(at).unwrap_or_default()).into_owned();
    Ok(match special {
        Special::Time | Special::MicroTime if data.is_empty() => Value::Null,
        Special::Time => time_text(field, &parts, Layout::Seconds)?,
        Special::MicroTime => time_text(field, &parts, Layout::Micros)?,
        Special::Duration => Value::String(time::duration_text(parts.number(1))),
        Special::Quantity => parts.bytes(1).map_or_else(|| "0".into(), |_| text(1).into()),
        Special::IntOrString => match parts.number(1) {
            0 => Value::from(parts.number(2) as i32),
            1 => Value::String(text(3)),
            _ => return Err(invalid(field)),
        },
        Special::RawExtension | Special::FieldsV1 | Special::Json => match parts.bytes(1) {
            None | Some([]) => Value::Null,
            Some(raw) => {
                serde_json::from_slice(raw).map_err(|_| ProtobufError::InvalidJson { field: field.name.to_string() })?
            }
        },
        Special::Strings => strings(&parts, 1),
        Special::SchemaOrBool => match parts.bytes(2) {
            Some(schema) => decode_schema(decoder, field, schema)?,
            None => Value::Bool(parts.number(1) != 0),
        },
        Special::SchemaOrArray => match parts.all(2).next() {
            None => optional_schema(decoder, field, &parts)?,
            Some(_) => {
                let all: Result<_, _> = parts.all(2).map(|schema| decode_schema(decoder, field, schema)).collect();
                Value::Array(all?)
            }
        },
        Special::SchemaOrStrings => match parts.all(2).next() {
            None => optional_schema(decoder, field, &parts)?,
            Some(_) => strings(&parts, 2),
        },
        Special::Any => return Err(invalid(field)),
    })
}

fn optional_schema(decoder: &mut Decoder<'_>, field: &Field, parts: &Parts<'_>) -> Result<Value, ProtobufError> {
    parts.bytes(1).map_or(Ok(Value::Null), |schema| decode_schema(decoder, field, schema))
}

fn decode_schema(decoder: &mut Decoder<'_>, field: &Field, data: &[u8]) -> Result<Value, ProtobufError> {
    let schema = decoder.table.type_named(SCHEMA).ok_or_else(|| invalid(field))?;
    Ok(Value::Object(decoder.object(schema, data)?))
}

fn strings(parts: &Parts<'_>, number: u32) -> Value {
    parts.all(number).map(|text| Value::from(String::from_utf8_lossy(text))).collect()
}

/// Writes the message of a special type, without its tag.
pub(super) fn encode(
    encoder: &Encoder<'_>,
    field: &Field,
    special: Special,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), ProtobufError> {
    let schema = || encoder.table.type_named(SCHEMA).ok_or_else(|| invalid(field));
    let nested = |out: &mut Vec<u8>, number: u32, schema: TypeId, value: &Value| {
        protowire::message(out, number, |out| encoder.object(schema, value, out))
    };
    match (special, value) {
        (Special::Quantity, Value::String(text)) => protowire::bytes(out, 1, text.as_bytes()),
        (Special::Quantity, Value::Number(number)) => protowire::bytes(out, 1, number.to_string().as_bytes()),
        (Special::Quantity, Value::Null) => protowire::bytes(out, 1, b"0"),
        (Special::IntOrString, Value::String(text)) => int_or_string(out, 1, 0, text),
        (Special::IntOrString, Value::Null) => int_or_string(out, 0, 0, ""),
        (Special::IntOrString, Value::Number(number)) => {
            int_or_string(out, 0, number.as_i64().ok_or_else(|| invalid(field))?, "");
        }
        (Special::SchemaOrBool, Value::Object(_)) => {
            protowire::number(out, 1, 1);
            nested(out, 2, schema()?, value)?;
        }
        (Special::SchemaOrBool, Value::Bool(allowed)) => protowire::number(out, 1, u64::from(*allowed)),
        (Special::SchemaOrBool, Value::Null) => protowire::number(out, 1, 0),
        (_, Value::Null) => {}
        (Special::Time | Special::MicroTime, Value::String(text)) => {
            // Applies to whole seconds too: a fraction may follow them in this layout.
            let time = time::parse(text, Layout::Seconds).map_err(|_| invalid(field))?;
            protowire::number(out, 1, time.seconds as u64);
            protowire::number(out, 2, u64::from(time.nanos));
        }
        (Special::Duration, Value::String(text)) => {
            let span: SignedDuration = text.parse().map_err(|_| invalid(field))?;
            protowire::number(out, 1, i64::try_from(span.as_nanos()).map_err(|_| invalid(field))? as u64);
        }
        // Already encoded as the text of an object.
        (Special::FieldsV1, Value::String(text)) if text.starts_with('{') => protowire::bytes(out, 1, text.as_bytes()),
        (Special::RawExtension | Special::FieldsV1 | Special::Json, value) => {
            protowire::bytes(out, 1, value.to_string().as_bytes());
        }
        (Special::Strings, Value::Array(list)) => write_strings(field, out, 1, list)?,
        (Special::SchemaOrArray, Value::Array(list)) => {
            list.iter().try_for_each(|element| nested(out, 2, schema()?, element))?;
        }
        (Special::SchemaOrStrings, Value::Array(list)) => write_strings(field, out, 2, list)?,
        (Special::SchemaOrArray | Special::SchemaOrStrings, Value::Object(_)) => nested(out, 1, schema()?, value)?,
        _ => return Err(invalid(field)),
    }
    Ok(())
}

fn write_strings(field: &Field, out: &mut Vec<u8>, number: u32, list: &[Value]) -> Result<(), ProtobufError> {
    for text in list {
        protowire::bytes(out, number, text.as_str().ok_or_else(|| invalid(field))?.as_bytes());
    }
    Ok(())
}

fn int_or_string(out: &mut Vec<u8>, kind: u64, number: i64, text: &str) {
    protowire::number(out, 1, kind);
    protowire::number(out, 2, number as u64);
    protowire::bytes(out, 3, text.as_bytes());
}

/// The first and the last second that JSON has a form for.
const WRITTEN: RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

/// Returns a time from its seconds since 1970, and the nanoseconds after them.
fn time_text(field: &Field, parts: &Parts<'_>, layout: Layout) -> Result<Value, ProtobufError> {
    let (seconds, nanos) = (parts.number(1), parts.number(2).clamp(0, 999_999_999) as u32);
    if WRITTEN.contains(&seconds) { Ok(Moment { seconds, nanos }.text(layout).into()) } else { Err(invalid(field)) }
}

/// Small message: Go's name, and its fields, numbered from 1, each with its type.
struct Small {
    name: &'static str,
    fields: &'static [(&'static str, WireType)],
}

fn message_of(special: Special) -> &'static Small {
    const RAW: &[(&str, WireType)] = &[("Raw", WireType::Bytes)];
    match special {
        Special::Time | Special::MicroTime => {
            &Small { name: "Timestamp", fields: &[("Seconds", WireType::Varint), ("Nanos", WireType::Varint)] }
        }
        Special::Duration => &Small { name: "Duration", fields: &[("Duration", WireType::Varint)] },
        Special::Quantity => &Small { name: "Quantity", fields: &[("String_", WireType::Bytes)] },
        Special::IntOrString => &Small {
            name: "IntOrString",
            fields: &[("Type", WireType::Varint), ("IntVal", WireType::Varint), ("StrVal", WireType::Bytes)],
        },
        Special::FieldsV1 => &Small { name: "FieldsV1", fields: RAW },
        Special::Json => &Small { name: "JSON", fields: RAW },
        Special::RawExtension | Special::Any => &Small { name: "RawExtension", fields: RAW },
        Special::Strings => &Small { name: "ExtraValue", fields: &[("Items", WireType::Bytes)] },
        Special::SchemaOrBool => &Small {
            name: "JSONSchemaPropsOrBool",
            fields: &[("Allows", WireType::Varint), ("Schema", WireType::Bytes)],
        },
        Special::SchemaOrArray => &Small {
            name: "JSONSchemaPropsOrArray",
            fields: &[("Schema", WireType::Bytes), ("JSONSchemas", WireType::Bytes)],
        },
        Special::SchemaOrStrings => &Small {
            name: "JSONSchemaPropsOrStringArray",
            fields: &[("Schema", WireType::Bytes), ("Property", WireType::Bytes)],
        },
    }
}

/// The fields of a small message, in order.
struct Parts<'a>(Vec<(u32, Part<'a>)>);

enum Part<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Parts<'a> {
    fn read(of: &Small, data: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut parts = Vec::new();
        let mut reader = WireReader::new(data);
        while let Some((number, wire)) = reader.tag(|| of.name.to_owned())? {
            let known = (number as usize).checked_sub(1).and_then(|at| of.fields.get(at));
            match known {
                None => reader.skip(wire)?,
                Some((field, own)) if *own != wire => {
                    return Err(ProtobufError::WireType { field: (*field).to_owned(), wire: wire.number() });
                }
                Some((_, WireType::Varint)) => parts.push((number, Part::Number(reader.varint()?))),
                Some(_) => parts.push((number, Part::Bytes(reader.bytes()?))),
            }
        }
        Ok(Self(parts))
    }

    /// Returns the last number of this field; 0 if it is absent.
    fn number(&self, wanted: u32) -> i64 {
        let last = self.0.iter().rev().find_map(|(number, part)| match part {
            Part::Number(value) if *number == wanted => Some(*value as i64),
            _ => None,
        });
        last.unwrap_or_default()
    }

    /// Returns the last bytes under this field.
    fn bytes(&self, wanted: u32) -> Option<&'a [u8]> {
        self.all(wanted).last()
    }

    fn all(&self, wanted: u32) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |(number, part)| match part {
            Part::Bytes(bytes) if *number == wanted => Some(*bytes),
            _ => None,
        })
    }
}

pub(super) fn invalid(field: &Field) -> ProtobufError {
    ProtobufError::InvalidValue { field: field.name.to_string() }
}
