//! Check whether a stored object is served unchanged: the walks of a read over bytes, without a tree.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::custom::schema::{Additional, META_FIELDS, Schema};

/// Returns true if a read would neither remove a field of a stored object nor add one. Also returns false if the check
/// would be costly.
pub fn is_settled(body: &[u8], schema: &Schema) -> bool {
    let mut json = serde_json::Deserializer::from_slice(body);
    Node { schema, keeps: schema.preserves_unknown, is_root: true }.deserialize(&mut json).is_ok()
}

/// A value that a schema describes.
#[derive(Clone, Copy)]
struct Node<'s> {
    schema: &'s Schema,
    /// Fields that are not declared stay.
    keeps: bool,
    is_root: bool,
}

/// Schema of an object's field.
enum Field<'s> {
    /// A value that a schema describes.
    Known(&'s Schema),
    /// Value that is skipped.
    Free,
    /// Field that a read would remove, or whose content it would inspect.
    Unsettled,
}

impl<'s> Node<'s> {
    fn below(schema: &'s Schema) -> Self {
        Self { schema, keeps: schema.preserves_unknown, is_root: false }
    }

    fn field(self, name: &str) -> Field<'s> {
        if self.is_root && META_FIELDS.contains(&name) {
            return Field::Free;
        }
        match (self.schema.at_key(name), &self.schema.additional) {
            (Some(schema), _) => Field::Known(schema),
            (None, Additional::Unsaid) if self.keeps => Field::Free,
            (None, _) => Field::Unsettled,
        }
    }
}

fn unsettled<E: Error>() -> E {
    E::custom("it would be changed")
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.schema.nullable { Ok(()) } else { Err(unsettled()) }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        match &self.schema.items {
            Some(schema) => {
                // The same holds for the elements of a value that keeps its fields.
                let node = Node { keeps: self.keeps || schema.preserves_unknown, ..Node::below(schema) };
                while items.next_element_seed(node)?.is_some() {}
            }
            None if self.keeps => while items.next_element::<IgnoredAny>()?.is_some() {},
            None if items.next_element::<IgnoredAny>()?.is_some() => return Err(unsettled()),
            None => {}
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        if self.schema.is_resource && !self.is_root {
            return Err(unsettled());
        }
        let mut filled = 0;
        while let Some(field) = entries.next_key_seed(Name(self))? {
            match field {
                Field::Known(schema) => {
                    filled += usize::from(schema.default.is_some());
                    entries.next_value_seed(Node::below(schema))?;
                }
                Field::Free => drop(entries.next_value::<IgnoredAny>()?),
                Field::Unsettled => return Err(unsettled()),
            }
        }
        let wanted = self.schema.properties.iter().filter(|(_, property)| property.default.is_some()).count();
        // Entries of a map that has a default for its entries do not replace a property that has a default.
        let counts = self.schema.entries().is_none_or(|entry| entry.default.is_none());
        if filled >= wanted && counts { Ok(()) } else { Err(unsettled()) }
    }
}

/// Reads the name of a field.
struct Name<'s>(Node<'s>);

impl<'de, 's> DeserializeSeed<'de> for Name<'s> {
    type Value = Field<'s>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field<'s>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'s> Visitor<'_> for Name<'s> {
    type Value = Field<'s>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Field<'s>, E> {
        Ok(self.0.field(name))
    }
}
