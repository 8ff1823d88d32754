//! Decoding of stored objects with only the needed part of `metadata.managedFields`, which are a third of most objects,
//! nest deeply, and are rarely read.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};

use crate::object::Object;

/// Part of `metadata.managedFields` to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagedFields {
    /// None of it.
    LeftOut,
    /// All of it, but each `fieldsV1` as a string of JSON.
    AsText,
}

/// Reads an object.
///
/// # Errors
/// Fails if the bytes are not a JSON object with an object as its metadata.
pub(crate) fn read(body: &[u8], managed: ManagedFields) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = TreeVisitor { position: TreePosition::Object, managed }.deserialize(&mut json)?;
    json.end().map(|()| value)
}

/// Position of a value in an object.
#[derive(Clone, Copy)]
enum TreePosition {
    Object,
    Metadata,
    Managers,
    Manager,
}

#[derive(Clone, Copy)]
struct TreeVisitor {
    position: TreePosition,
    managed: ManagedFields,
}

impl<'de> DeserializeSeed<'de> for TreeVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.position {
            TreePosition::Object => "an object",
            TreePosition::Metadata => "metadata",
            TreePosition::Managers => "a list of managers",
            TreePosition::Manager => "a manager",
        })
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Object::new();
        let inner = |position| Self { position, ..self };
        while let Some(key) = entries.next_key::<String>()? {
            let value = match (self.position, key.as_str()) {
                (TreePosition::Object, "metadata") => entries.next_value_seed(inner(TreePosition::Metadata))?,
                (TreePosition::Metadata, "managedFields") if self.managed == ManagedFields::LeftOut => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
                (TreePosition::Metadata, "managedFields") => entries.next_value_seed(inner(TreePosition::Managers))?,
                (TreePosition::Manager, "fieldsV1") => match entries.next_value::<&RawValue>()?.get() {
                    "null" => Value::Null,
                    text => text.into(),
                },
                _ => entries.next_value()?,
            };
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        if !matches!(self.position, TreePosition::Managers) {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        }
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(Self { position: TreePosition::Manager, ..self })? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_managed_fields_are_read_otherwise() {
        let managed = |fields: Value| {
            json!({"kind": "X", "metadata": {"name": "a", "labels": {"managedFields": "mine"},
                "managedFields": [{"manager": "m", "fieldsV1": fields}, {"manager": "n"}]},
                "spec": {"managedFields": [{"fieldsV1": {}}], "metadata": null}})
        };
        let body = managed(json!({"f:spec": {"f:a": {}, "k:{\"b\":1}": {".": {}}}})).to_string();
        let text = r#"{"f:spec":{"f:a":{},"k:{\"b\":1}":{".":{}}}}"#;
        assert_eq!(read(body.as_bytes(), ManagedFields::AsText).unwrap(), managed(text.into()));
        let mut without = managed(Value::Null);
        without["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(read(body.as_bytes(), ManagedFields::LeftOut).unwrap(), without);
    }

    #[test]
    fn null_stays_null_and_damage_is_reported() {
        for managed in [ManagedFields::AsText, ManagedFields::LeftOut] {
            assert_eq!(read(br#"{"metadata":null}"#, managed).unwrap(), json!({"metadata": null}));
            for damaged in [&b"{"[..], b"[]", br#"{"metadata":[]}"#, br#"{"metadata":{}} x"#] {
                assert!(read(damaged, managed).is_err(), "{}", String::from_utf8_lossy(damaged));
            }
        }
        let none = br#"{"metadata":{"managedFields":null}}"#;
        assert_eq!(read(none, ManagedFields::AsText).unwrap(), json!({"metadata": {"managedFields": null}}));
    }
}
