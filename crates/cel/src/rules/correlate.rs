//! Which part of an old object a part of the new one is compared with.

use crate::schema::{ListType, Schema};
use serde_json::{Map, Value as Json};

/// A new value with its old one, as far as they belong together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) new: &'a Json,
    pub(super) old: &'a Json,
    pub(super) schema: &'a Schema,
}

impl<'a> Pair<'a> {
    pub(super) fn key(self, field: &str) -> Option<Self> {
        let (new, old) = (self.new.as_object()?.get(field)?, self.old.as_object()?.get(field)?);
        let schema = self.schema.properties.get(field).or(self.schema.values.as_deref())?;
        Some(Self { new, old, schema })
    }

    pub(super) fn index(self, index: usize) -> Option<Self> {
        let (new, old) = (self.new.as_array()?.get(index)?, self.old.as_array()?);
        let old = same_element(self.schema, old, new)?;
        Some(Self { new, old, schema: self.schema.items.as_deref()? })
    }

    /// Whether nothing changed: in lists with keys, whatever their order.
    pub(super) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Json::Null, Json::Null) => true,
            (Json::Array(new), Json::Array(old)) if matches!(self.schema.list_type, ListType::Map(_)) => {
                new.len() == old.len() && (0..new.len()).all(|index| self.index(index).is_some_and(Self::is_unchanged))
            }
            (Json::Object(new), Json::Object(old)) => {
                new.len() == old.len() && new.keys().all(|key| self.key(key).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// The element of a list with keys that has the keys of another.
pub(super) fn same_element<'a>(schema: &Schema, list: &'a [Json], element: &Json) -> Option<&'a Json> {
    let ListType::Map(keys) = &schema.list_type else { return None };
    let wanted = keys_of(element.as_object()?, keys)?;
    list.iter().find(|candidate| {
        candidate.as_object().and_then(|fields| keys_of(fields, keys)).is_some_and(|found| found == wanted)
    })
}

/// The values of the keys, which are scalars; none where one is not there.
fn keys_of<'a>(fields: &'a Map<String, Json>, keys: &[String]) -> Option<Vec<&'a Json>> {
    let value = |key: &String| {
        fields.get(key).filter(|value| matches!(value, Json::Bool(_) | Json::Number(_) | Json::String(_)))
    };
    if keys.is_empty() { None } else { keys.iter().map(value).collect() }
}
