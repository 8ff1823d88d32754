//! What an expression can name: variables, and object types with their fields.

use crate::syntax::is_reserved;
use crate::types::Type;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Object types by name: the fields of each, by the name expressions use.
pub type ObjectTypes = BTreeMap<Arc<str>, BTreeMap<Arc<str>, Type>>;

/// The declarations an expression is compiled against.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Variables and their types.
    pub variables: BTreeMap<Arc<str>, Type>,
    /// Object types that variables are made of.
    pub objects: ObjectTypes,
    /// Object types that an expression can make values of: mutating policies have them made up field by field.
    pub open_objects: bool,
    /// Whether the functions of mutating policies are there.
    pub mutation: bool,
}

impl Environment {
    pub(super) fn variable(&self, name: &str) -> Option<Type> {
        self.variables.get(name).cloned()
    }

    /// The type of that name.
    pub(super) fn type_named(&self, name: &str) -> Option<Type> {
        let of_schema = |known: &str| match known {
            "duration" if !self.objects.is_empty() => Some(Type::Duration),
            "timestamp" if !self.objects.is_empty() => Some(Type::Timestamp),
            _ => None,
        };
        if self.objects.contains_key(name) || self.is_open(name) {
            return Some(Type::Struct(name.into()));
        }
        of_schema(name).or_else(|| Type::named(name))
    }

    /// Whether a mutating policy makes up the type: `Object` and all below it, and `JSONPatch`.
    fn is_open(&self, name: &str) -> bool {
        self.open_objects && (name == "Object" || name.starts_with("Object."))
    }

    /// The type of a field: `None` where the object type is not known, `Some(None)` where it has no such field.
    pub(super) fn field(&self, object: &str, field: &str) -> Option<Option<Type>> {
        if self.is_open(object) {
            return Some(Some(Type::Dyn));
        }
        let fields = self.objects.get(object)?;
        let reserved = || is_reserved(field).then(|| fields.get(format!("__{field}__").as_str())).flatten();
        Some(fields.get(field).or_else(reserved).cloned())
    }
}
