//! Values that Go writes for an empty object.

use serde_json::Value;

use super::{Field, FieldKind, KindTable, Scalar, Special, TypeId};

/// Value of a field in an empty object.
#[derive(Clone, Debug, PartialEq)]
pub enum Zero {
    /// Nothing: it is left out.
    Nothing,
    /// `null`.
    Null,
    /// `""`, `0` or `false`.
    Scalar(Value),
    /// Empty object of a type, with the fields that are always written.
    Struct(TypeId),
}

impl KindTable {
    /// Returns the value of a field in an empty object.
    pub fn zero(&self, field: &Field) -> Zero {
        let omitted = field.omitempty || field.omitzero;
        match &field.kind {
            _ if field.pointer && omitted => Zero::Nothing,
            _ if field.pointer => Zero::Null,
            // Go's `omitempty` leaves no struct out.
            FieldKind::Special(Special::Time | Special::MicroTime | Special::RawExtension) if !field.omitzero => {
                Zero::Null
            }
            FieldKind::Message(id) if self.get(*id).special.is_none() && !field.omitzero => Zero::Struct(*id),
            _ if omitted => Zero::Nothing,
            FieldKind::Scalar(scalar) => scalar_zero(*scalar),
            FieldKind::Message(_) | FieldKind::Special(_) | FieldKind::List(_) | FieldKind::Map(_) => Zero::Null,
        }
    }

    /// Returns the JSON of an empty object of a type.
    pub fn empty(&self, id: TypeId) -> Value {
        let fields = self.get(id).fields.iter().filter_map(|field| {
            let value = match self.zero(field) {
                Zero::Nothing => return None,
                Zero::Null => Value::Null,
                Zero::Scalar(value) => value,
                Zero::Struct(id) => self.empty(id),
            };
            Some((field.name.to_string(), value))
        });
        Value::Object(fields.collect())
    }
}

fn scalar_zero(scalar: Scalar) -> Zero {
    match scalar {
        Scalar::String => Zero::Scalar("".into()),
        Scalar::Bool => Zero::Scalar(false.into()),
        Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 | Scalar::Double => Zero::Scalar(0.into()),
        Scalar::Bytes => Zero::Null,
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupVersionKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_object_has_what_go_always_writes() {
        let table = KindTable::builtin();
        for (group, version, kind, expected) in [
            ("", "v1", "ConfigMap", json!({"metadata": {}})),
            ("", "v1", "ResourceQuota", json!({"metadata": {}, "spec": {}, "status": {}})),
            (
                "flowcontrol.apiserver.k8s.io",
                "v1",
                "PriorityLevelConfiguration",
                json!({"metadata": {}, "spec": {"type": ""}, "status": {}}),
            ),
        ] {
            let known = table.kind(&GroupVersionKind::new(group, version, kind)).unwrap();
            assert_eq!(table.empty(known.schema), expected, "{kind}");
        }
    }
}
