//! Correlation of the parts of a new object with those of the old one.

use crate::schema::{RuleSchema, SchemaListType};
use serde_json::{Map, Value as Json};

/// New value with the corresponding old one, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorrelatedPair<'a> {
    pub(super) new: &'a Json,
    pub(super) old: &'a Json,
    pub(super) schema: &'a RuleSchema,
}

impl<'a> CorrelatedPair<'a> {
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

    /// Returns true if nothing changed; the order of keyed lists does not count.
    pub(super) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Json::Null, Json::Null) => true,
            (Json::Array(new), Json::Array(old)) if matches!(self.schema.list_type, SchemaListType::Map(_)) => {
                new.len() == old.len() && (0..new.len()).all(|index| self.index(index).is_some_and(Self::is_unchanged))
            }
            (Json::Object(new), Json::Object(old)) => {
                new.len() == old.len() && new.keys().all(|key| self.key(key).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// Returns the element that has the same keys.
pub(super) fn same_element<'a>(schema: &RuleSchema, list: &'a [Json], element: &Json) -> Option<&'a Json> {
    let SchemaListType::Map(keys) = &schema.list_type else { return None };
    let wanted = keys_of(element.as_object()?, keys)?;
    list.iter().find(|candidate| {
        candidate.as_object().and_then(|fields| keys_of(fields, keys)).is_some_and(|found| found == wanted)
    })
}

/// Returns the values of the keys, which are scalars; `None` if one is missing.
fn keys_of<'a>(fields: &'a Map<String, Json>, keys: &[String]) -> Option<Vec<&'a Json>> {
    let value = |key: &String| {
        fields.get(key).filter(|value| matches!(value, Json::Bool(_) | Json::Number(_) | Json::String(_)))
    };
    if keys.is_empty() { None } else { keys.iter().map(value).collect() }
}
