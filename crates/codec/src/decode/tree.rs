//! Reading a tree without schema.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::walk::{Step, Walk};

/// Reads any value. The last of duplicate keys wins; a walk notes that they occur twice.
#[derive(Clone, Copy)]
pub(super) struct Tree<'w, 't> {
    walk: Option<&'w Walk<'t>>,
    left: Option<&'w Left>,
}

/// Nodes that may still be read, including keys; `None` once the limit is exceeded.
pub(super) type Left = Cell<Option<usize>>;

/// Reads any value without recording notes.
pub(super) const PLAIN: Tree<'static, 'static> = Tree { walk: None, left: None };

impl<'w, 't> Tree<'w, 't> {
    /// Returns a reader for values of unknown type inside a walk.
    pub(super) fn of(walk: &'w Walk<'t>) -> Self {
        Self { walk: Some(walk), left: None }
    }

    /// Fails if there are more nodes than the remaining budget allows; the outermost node is not counted.
    pub(super) fn within(self, left: &'w Left) -> Self {
        Self { left: Some(left), ..self }
    }

    fn count<E: Error>(self) -> Result<(), E> {
        let Some(left) = self.left else { return Ok(()) };
        left.set(left.get().and_then(|nodes| nodes.checked_sub(1)));
        left.get().map(drop).ok_or_else(|| E::custom("too many nodes"))
    }

    fn mark(self) -> usize {
        self.walk.map_or(0, Walk::mark)
    }

    fn prefix(self, mark: usize, step: impl FnOnce() -> Step) {
        if let Some(walk) = self.walk {
            walk.prefix(mark, step);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let mark = self.mark();
            let Some(item) = items.next_element_seed(self)? else { return Ok(Value::Array(list)) };
            self.count()?;
            self.prefix(mark, || Step::Index(list.len()));
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let start = self.mark();
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.count()?;
            let mark = self.mark();
            let value = entries.next_value_seed(self)?;
            self.count()?;
            self.prefix(mark, || Step::Name(key.clone()));
            if let Some(walk) = self.walk.filter(|_| map.contains_key(&key)) {
                walk.duplicate(start, &key);
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
