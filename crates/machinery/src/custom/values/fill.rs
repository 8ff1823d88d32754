//! Filling in defaults.

use serde_json::Value;

use crate::custom::schema::{Default, Schema};

/// How much defaults may still add, in bytes of memory. Each element of a list can get all defaults of a schema, so that a small
/// object could become one of any size.
pub(in crate::custom) struct Room(usize);

/// What defaults may add to a new object: more than an object may have that is sent.
const MAX_ADDED: usize = 8 << 20;
/// What they may add to one that is read, beside a multiple of what it has.
const MIN_ADDED_TO_READ: usize = 64 << 10;

impl Room {
    /// For an object that is written.
    pub(in crate::custom) fn to_write() -> Self {
        Self(MAX_ADDED)
    }

    /// For an object that takes about `weight` bytes in memory and is read together with others.
    pub(in crate::custom) fn to_read(weight: usize) -> Self {
        Self(MIN_ADDED_TO_READ + weight)
    }

    /// Whether all defaults had room.
    pub(in crate::custom) fn sufficed(&self) -> bool {
        self.0 > 0
    }

    fn take(&mut self, default: &Default) -> Option<Value> {
        self.0 = self.0.saturating_sub(default.weight);
        self.sufficed().then(|| default.value.clone())
    }
}

/// Fills in what `schema` gives where there is no value, as long as there is room.
pub(in crate::custom) fn fill(value: &mut Value, schema: &Schema, room: &mut Room) {
    match value {
        Value::Object(fields) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                if fields.get(&**name).is_none_or(|value| property.is_bare_null(value)) {
                    match room.take(default) {
                        Some(value) => drop(fields.insert(name.to_string(), value)),
                        None => return,
                    }
                }
            }
            for (name, value) in fields.iter_mut() {
                match (schema.property(name), schema.entries()) {
                    (Some(property), _) => fill(value, property, room),
                    (None, Some(entry)) => fill_or_replace(value, entry, room),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| fill_or_replace(item, schema, room));
            }
        }
        _ => {}
    }
}

/// The same for an element or an entry: a null that is no value is replaced.
fn fill_or_replace(value: &mut Value, schema: &Schema, room: &mut Room) {
    if let Some(default) = schema.default.as_ref().filter(|_| schema.is_bare_null(value)) {
        *value = room.take(default).unwrap_or_default();
    }
    fill(value, schema, room);
}
