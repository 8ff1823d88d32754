//! JSON that Go prints for zero values.

use serde_json::Value;

use portolan_kinds::{Field, FieldKind, Scalar, Special};

/// Returns the JSON of a scalar field with its zero value; `None` if nothing is printed.
pub(crate) fn absent(field: &Field) -> Option<Value> {
    if field.pointer {
        return (!field.omitempty).then_some(Value::Null);
    }
    match &field.kind {
        FieldKind::Special(special) => match special {
            Special::Strings | Special::Any => (!field.omitempty).then_some(Value::Null),
            _ if field.omitzero => None,
            Special::Quantity => Some(Value::from("0")),
            Special::IntOrString => Some(Value::from(0)),
            Special::Duration => Some(Value::from("0s")),
            Special::SchemaOrBool => Some(Value::from(false)),
            Special::Time | Special::MicroTime | Special::RawExtension | Special::FieldsV1 => Some(Value::Null),
            Special::Json | Special::SchemaOrArray | Special::SchemaOrStrings => Some(Value::Null),
        },
        _ if field.omitempty => None,
        FieldKind::Scalar(scalar) => Some(match scalar {
            Scalar::String => Value::from(""),
            Scalar::Bool => Value::from(false),
            Scalar::Bytes => Value::Null,
            Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 | Scalar::Double => Value::from(0),
        }),
        FieldKind::List(_) | FieldKind::Map(_) | FieldKind::Message(_) => Some(Value::Null),
    }
}

/// Returns true if `omitempty` drops the value of a scalar.
pub(super) fn is_zero(kind: &FieldKind, value: &Value) -> bool {
    matches!(kind, FieldKind::Scalar(_))
        && match value {
            Value::Bool(value) => !value,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            _ => false,
        }
}
