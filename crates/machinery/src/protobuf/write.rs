//! From trees to messages.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{
    ProtobufError,
    special::{self, invalid},
};
use crate::kinds::{Field, FieldKind, KindTable, Scalar, Special, TypeId, WireTarget};

/// Encodes one object, field by field in the order of their numbers, as Go's generated code does: what is no pointer is
/// written also when it is zero.
pub(super) struct Encoder<'t> {
    pub(super) table: &'t KindTable,
}

impl<'t> Encoder<'t> {
    pub(super) fn new(table: &'t KindTable) -> Self {
        Self { table }
    }

    /// Writes a message, without tag and length. `Null` stands for an empty one.
    pub(super) fn object(&self, schema: TypeId, object: &Value, out: &mut Vec<u8>) -> Result<(), ProtobufError> {
        let own = self.table.get(schema);
        for wire in &own.wire {
            match wire.target {
                WireTarget::Inline(inner) => message(out, wire.number, |out| self.object(inner, object, out))?,
                WireTarget::Field(at) => {
                    let field = &own.fields[at as usize];
                    self.field(field, wire.number, object.get(&*field.name).unwrap_or(&Value::Null), out)?;
                }
            }
        }
        Ok(())
    }

    fn field(&self, field: &Field, number: u32, value: &Value, out: &mut Vec<u8>) -> Result<(), ProtobufError> {
        match (&field.kind, value) {
            (_, Value::Null) if field.pointer => Ok(()),
            (FieldKind::List(_) | FieldKind::Map(_), Value::Null) => Ok(()),
            (FieldKind::Special(Special::Strings), Value::Null) => Ok(()),
            (FieldKind::Scalar(Scalar::Bytes), Value::Null) => Ok(()),
            (FieldKind::List(element), Value::Array(list)) => {
                list.iter().try_for_each(|value| self.value(field, element, number, value, out))
            }
            (FieldKind::Map(element), Value::Object(entries)) => entries.iter().try_for_each(|(key, value)| {
                message(out, number, |out| {
                    bytes(out, 1, key.as_bytes());
                    self.value(field, element, 2, value, out)
                })
            }),
            (kind, value) => self.value(field, kind, number, value, out),
        }
    }

    fn value(
        &self,
        field: &Field,
        kind: &FieldKind,
        at: u32,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtobufError> {
        match kind {
            FieldKind::Scalar(scalar) => self.scalar(field, *scalar, at, value, out),
            FieldKind::Special(special) => message(out, at, |out| special::encode(self, field, *special, value, out)),
            FieldKind::Message(inner) if value.is_object() || value.is_null() => {
                message(out, at, |out| self.object(*inner, value, out))
            }
            _ => Err(invalid(field)),
        }
    }

    fn scalar(
        &self,
        field: &Field,
        scalar: Scalar,
        at: u32,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtobufError> {
        match (scalar, value) {
            (Scalar::String, Value::String(text)) => bytes(out, at, text.as_bytes()),
            (Scalar::String | Scalar::Bytes, Value::Null) => bytes(out, at, b""),
            (Scalar::Bytes, Value::String(text)) => {
                bytes(out, at, &STANDARD.decode(text).map_err(|_| invalid(field))?);
            }
            (Scalar::Bool, Value::Bool(value)) => number(out, at, u64::from(*value)),
            (Scalar::Double, Value::Number(value)) => double(out, at, value.as_f64().unwrap_or_default()),
            (Scalar::Double, Value::Null) => double(out, at, 0.0),
            (_, Value::Null) => number(out, at, 0),
            (Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64, Value::Number(value)) => {
                let signed = value.as_i64().map(|value| value as u64);
                number(out, at, signed.or(value.as_u64()).ok_or_else(|| invalid(field))?);
            }
            _ => return Err(invalid(field)),
        }
        Ok(())
    }
}

/// Writes a tag and a number.
pub(crate) fn number(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

/// Writes a tag, a length and bytes.
pub(crate) fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    head(out, number, value.len());
    out.extend_from_slice(value);
}

/// Writes the tag and the length of what follows.
pub(super) fn head(out: &mut Vec<u8>, number: u32, length: usize) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, length as u64);
}

/// Writes a tag, a length and the message that `write` makes.
pub(crate) fn message<E>(
    out: &mut Vec<u8>,
    number: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    varint(out, u64::from(number) << 3 | 2);
    // One byte is kept for the length; the message moves in the rarer case that it needs more.
    let start = out.len();
    out.push(0);
    write(out)?;
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
    } else {
        let mut prefix = Vec::with_capacity(10);
        varint(&mut prefix, length as u64);
        out.splice(start..=start, prefix);
    }
    Ok(())
}

pub(crate) fn double(out: &mut Vec<u8>, number: u32, value: f64) {
    varint(out, u64::from(number) << 3 | 1);
    out.extend_from_slice(&value.to_bits().to_le_bytes());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
