//! Strict decoding of the operations of a JSON patch.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};

use super::{
    tree::Tree,
    walk::{Step, Walk},
};

/// Position of a value in a patch.
#[derive(Clone, Copy)]
enum Place {
    Patch,
    Operation,
}

/// The fields of an operation (`jsonPatchOp` in `k8s.io/apiserver/pkg/endpoints/handlers`).
const FIELDS: [&str; 4] = ["op", "path", "from", "value"];

/// Reader of a list of operations that notes unknown and duplicate fields. Invalid operations are left to the code that
/// applies them.
#[derive(Clone, Copy)]
pub(super) struct Operations<'w, 't> {
    walk: &'w Walk<'t>,
    place: Place,
}

impl<'w, 't> Operations<'w, 't> {
    /// Reads a whole patch.
    pub(super) fn of(walk: &'w Walk<'t>) -> Self {
        Self { walk, place: Place::Patch }
    }
}

impl<'de> DeserializeSeed<'de> for Operations<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Operations<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.place {
            Place::Patch => "operations",
            Place::Operation => "an operation",
        })
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if matches!(self.place, Place::Operation) {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        for at in 0.. {
            let mark = self.walk.mark();
            if items.next_element_seed(Self { place: Place::Operation, ..self })?.is_none() {
                break;
            }
            self.walk.prefix(mark, || Step::Index(at));
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        if matches!(self.place, Place::Patch) {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        let start = self.walk.mark();
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let Some(field) = FIELDS.iter().find(|field| **field == key) else {
                entries.next_value::<IgnoredAny>()?;
                self.walk.unknown(start, &key);
                continue;
            };
            let mark = self.walk.mark();
            entries.next_value_seed(Tree::of(self.walk))?;
            self.walk.prefix(mark, || Step::Name(key.clone()));
            if !seen.insert(field) {
                self.walk.duplicate(start, &key);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::unclear_operations;

    #[test]
    fn unknown_and_duplicate_fields_of_operations_are_noted() {
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
            (r#"[[{"a": 1}]]"#, vec![]),
            (r#"{"op": "add", "op": "add", "a": 1}"#, vec![]),
            ("null", vec![]),
            ("5", vec![]),
        ] {
            assert_eq!(unclear_operations(patch.as_bytes()), expected, "{patch}");
        }
    }
}
