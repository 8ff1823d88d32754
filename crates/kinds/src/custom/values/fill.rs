//! Filling in defaults.

use serde_json::Value;

use crate::custom::schema::{Default, Schema};

/// Budget of defaults in bytes of memory. Each element of a list can get all defaults of a schema, so that a small
/// object could become one of any size.
pub(crate) struct Room(usize);

/// Most bytes that defaults add to a new object: more than a client can send.
const MAX_ADDED: usize = 8 << 20;
/// Most bytes that they add to an object that is read, besides a multiple of its size.
const MIN_ADDED_TO_READ: usize = 64 << 10;

impl Room {
    /// Returns the room for an object that is written.
    pub(crate) fn to_write() -> Self {
        Self(MAX_ADDED)
    }

    /// Returns the room for an object of about `weight` bytes in memory that is read together with others.
    pub(crate) fn to_read(weight: usize) -> Self {
        Self(MIN_ADDED_TO_READ + weight)
    }

    /// Returns true if all defaults fitted.
    pub(crate) fn sufficed(&self) -> bool {
        self.0 > 0
    }

    fn take(&mut self, default: &Default) -> Option<Value> {
        self.0 = self.0.saturating_sub(default.weight);
        self.sufficed().then(|| default.value.clone())
    }
}

/// Fills in the defaults of `schema` where a value is missing, while there is room.
pub(crate) fn fill(value: &mut Value, schema: &Schema, room: &mut Room) {
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

/// Fills in an element or an entry, and replaces a null that the schema does not allow.
fn fill_or_replace(value: &mut Value, schema: &Schema, room: &mut Room) {
    if let Some(default) = schema.default.as_ref().filter(|_| schema.is_bare_null(value)) {
        *value = room.take(default).unwrap_or_default();
    }
    fill(value, schema, room);
}
