//! Which part of an old object a part of a new one is compared with.

use serde_json::{Map, Value};

use crate::custom::schema::{ListKind, Schema};

/// A new value with its old one, as far as they belong together.
#[derive(Clone, Copy)]
pub(super) struct Pair<'v> {
    pub(super) new: &'v Value,
    pub(super) old: &'v Value,
    pub(super) schema: &'v Schema,
}

impl<'v> Pair<'v> {
    pub(super) fn key(self, name: &str) -> Option<Self> {
        let (new, old) = (self.new.as_object()?.get(name)?, self.old.as_object()?.get(name)?);
        Some(Self { new, old, schema: self.schema.at_key(name)? })
    }

    pub(super) fn index(self, at: usize) -> Option<Self> {
        let (new, old) = (self.new.as_array()?.get(at)?, self.old.as_array()?);
        let ListKind::Map(keys) = &self.schema.list else { return None };
        let wanted = keys_of(new.as_object()?, keys)?;
        let is_same = |other: &&Value| other.as_object().and_then(|own| keys_of(own, keys)).as_ref() == Some(&wanted);
        Some(Self { new, old: old.iter().find(is_same)?, schema: self.schema.items.as_deref()? })
    }

    /// Whether nothing changed; in lists with keys, whatever their order.
    pub(super) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) if matches!(self.schema.list, ListKind::Map(_)) => {
                new.len() == old.len() && (0..new.len()).all(|at| self.index(at).is_some_and(Self::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len() && new.keys().all(|name| self.key(name).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// The values of the keys, which are scalars; none where one is missing.
fn keys_of<'v>(fields: &'v Map<String, Value>, keys: &[std::sync::Arc<str>]) -> Option<Vec<&'v Value>> {
    keys.iter()
        .map(|key| fields.get(&**key).filter(|value| !value.is_object() && !value.is_array() && !value.is_null()))
        .collect()
}
