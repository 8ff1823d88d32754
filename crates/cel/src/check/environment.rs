//! Environment of an expression: variables, and object types with their fields.

use crate::syntax::is_reserved;
use crate::types::CelType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Object types by name: the fields of each, by the name expressions use.
pub type ObjectTypes = BTreeMap<Arc<str>, BTreeMap<Arc<str>, CelType>>;

/// Declarations that an expression is compiled against.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Variables and their types.
    pub variables: BTreeMap<Arc<str>, CelType>,
    /// Object types of the variables.
    pub objects: ObjectTypes,
    /// True if expressions may construct objects: mutating policies build them field by field.
    pub open_objects: bool,
    /// True with the functions of mutating policies.
    pub mutation: bool,
}

impl Environment {
    pub(super) fn variable(&self, name: &str) -> Option<CelType> {
        self.variables.get(name).cloned()
    }

    /// Returns the type of a name.
    pub(super) fn type_named(&self, name: &str) -> Option<CelType> {
        let of_schema = |known: &str| match known {
            "duration" if !self.objects.is_empty() => Some(CelType::Duration),
            "timestamp" if !self.objects.is_empty() => Some(CelType::Timestamp),
            _ => None,
        };
        if self.objects.contains_key(name) || self.is_open(name) {
            return Some(CelType::Struct(name.into()));
        }
        of_schema(name).or_else(|| CelType::named(name))
    }

    /// Returns true for a type that only mutating policies have: `Object` with all types below it, and `JSONPatch`.
    fn is_open(&self, name: &str) -> bool {
        self.open_objects && (name == "Object" || name.starts_with("Object."))
    }

    /// Returns the type of a field: `None` for an unknown object type, `Some(None)` for an unknown field.
    pub(super) fn field(&self, object: &str, field: &str) -> Option<Option<CelType>> {
        if self.is_open(object) {
            return Some(Some(CelType::Dyn));
        }
        let fields = self.objects.get(object)?;
        let reserved = || is_reserved(field).then(|| fields.get(format!("__{field}__").as_str())).flatten();
        Some(fields.get(field).or_else(reserved).cloned())
    }
}
