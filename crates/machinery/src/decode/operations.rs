//! What a strict reader finds in the operations of a JSON patch.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    tree::Tree,
    walk::{Step, Walk},
};

/// The fields of an operation (`jsonPatchOp` in `k8s.io/apiserver/pkg/endpoints/handlers`).
const FIELDS: [&str; 4] = ["op", "path", "from", "value"];

/// Reads a list of operations and notes fields that are unknown or stand twice. What is none is left to who applies them.
#[derive(Clone, Copy)]
pub(super) struct Operations<'w, 't>(pub(super) &'w Walk<'t>);

impl<'de> DeserializeSeed<'de> for Operations<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Operations<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("operations")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for at in 0.. {
            let mark = self.0.mark();
            if items.next_element_seed(Operation(self.0))?.is_none() {
                break;
            }
            self.0.prefix(mark, || Step::Index(at));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Operation<'w, 't>(&'w Walk<'t>);

impl<'de> DeserializeSeed<'de> for Operation<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Operation<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an operation")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let Some(field) = FIELDS.iter().find(|field| **field == key) else {
                entries.next_value::<IgnoredAny>()?;
                self.0.unknown(&key);
                continue;
            };
            let mark = self.0.mark();
            entries.next_value_seed(Tree::of(self.0))?;
            self.0.prefix(mark, || Step::Name(key.clone()));
            if !seen.insert(field) {
                self.0.duplicate(&key);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::unclear_operations;

    #[test]
    fn fields_of_operations_are_known_and_stand_once() {
        for (patch, expected) in [
            (r#"[{"op": "remove", "path": "/a"}]"#, vec![]),
            (
                r#"[null, {"op": "add", "path": "/a", "value": {"x": 1, "x": 2}, "extra": {"y": 1, "y": 2}, "Op": 1, "extra": 2}]"#,
                vec![r#"duplicate field "[1].value.x""#, r#"unknown field "[1].extra""#, r#"unknown field "[1].Op""#],
            ),
            (
                r#"[{"op": "test", "op": "add"}, {"a": 1}]"#,
                vec![r#"duplicate field "[0].op""#, r#"unknown field "[1].a""#],
            ),
            (r#"[{"a": 1}, 5]"#, vec![r#"unknown field "[0].a""#]),
            ("null", vec![]),
            ("5", vec![]),
        ] {
            assert_eq!(unclear_operations(patch.as_bytes()), expected, "{patch}");
        }
    }
}
