//! Correlation of the parts of a new object with those of the old one.

use std::collections::HashMap;

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

    /// Returns the elements of two lists with keys; no elements for other lists.
    pub(super) fn elements(self) -> Elements<'v> {
        let (ListKind::Map(keys), Some(schema)) = (&self.schema.list, self.schema.items.as_deref()) else {
            return Elements::default();
        };
        let mut old = HashMap::new();
        for element in self.old.as_array().into_iter().flatten() {
            if let Some(own) = element.as_object().and_then(|own| keys_of(own, keys)) {
                old.entry(own).or_insert(element);
            }
        }
        Elements(Some(Keyed { keys, schema, old }))
    }

    /// Returns true if nothing changed; lists with keys may change their order.
    pub(super) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) if matches!(self.schema.list, ListKind::Map(_)) => {
                let elements = self.elements();
                new.len() == old.len() && new.iter().all(|new| elements.of(new).is_some_and(Self::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len() && new.keys().all(|name| self.key(name).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// The old elements of a list by the values of their keys; of other lists none.
#[derive(Default)]
pub(super) struct Elements<'v>(Option<Keyed<'v>>);

struct Keyed<'v> {
    keys: &'v [Key],
    /// Correlates elements of lists.
    schema: &'v Schema,
    old: HashMap<Vec<&'v Value>, &'v Value>,
}

type Key = std::sync::Arc<str>;

impl<'v> Elements<'v> {
    /// Returns a new element with the old one of its keys.
    pub(super) fn of(&self, new: &'v Value) -> Option<Pair<'v>> {
        let Keyed { keys, schema, old } = self.0.as_ref()?;
        let old = old.get(&keys_of(new.as_object()?, keys)?)?;
        Some(Pair { new, old, schema })
    }
}

/// Returns the values of the keys, which are scalars; `None` if one is missing.
fn keys_of<'v>(fields: &'v Map<String, Value>, keys: &[Key]) -> Option<Vec<&'v Value>> {
    keys.iter()
        .map(|key| fields.get(&**key).filter(|value| !value.is_object() && !value.is_array() && !value.is_null()))
        .collect()
}
