//! From trees to messages.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_gocompat::protowire::{bytes, double, message, number};
use serde_json::Value;

use super::{
    ProtobufError,
    special::{self, invalid},
};
use portolan_kinds::{Field, FieldKind, KindTable, Scalar, Special, TypeId, WireTarget};

/// Encoder of one object, field by field in the order of their numbers, like Go's generated code: a field that is no
/// pointer is written even if it is zero.
pub(super) struct Encoder<'t> {
    pub(super) table: &'t KindTable,
}

impl<'t> Encoder<'t> {
    pub(super) fn new(table: &'t KindTable) -> Self {
        Self { table }
    }

    /// Writes a message without tag and length. `Null` counts as an empty one.
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
