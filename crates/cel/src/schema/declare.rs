//! The type that a schema declares, with the sizes that costs are estimated by.

use super::{MAX_REQUEST_BYTES, Schema, escape};
use crate::check::ObjectTypes;
use crate::types::Type;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A declared type. Values of it can be no larger than this says.
#[derive(Clone, Debug)]
pub struct DeclaredType {
    /// What it is made of.
    pub(crate) shape: Shape,
    /// Most elements, characters or bytes.
    pub(crate) max_elements: i64,
    /// Fewest bytes in JSON.
    pub(crate) min_bytes: i64,
}

/// What a declared type is made of.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// One value.
    Scalar(Type),
    /// A list of one type.
    List(Arc<DeclaredType>),
    /// A map of texts to one type.
    Map(Arc<DeclaredType>),
    /// An object with fields.
    Object(BTreeMap<Arc<str>, Arc<DeclaredType>>),
}

impl DeclaredType {
    fn scalar(one: Type, max_elements: i64, min_bytes: i64) -> Self {
        Self { shape: Shape::Scalar(one), max_elements, min_bytes }
    }

    /// The type of a schema; `None` where no expression can see it.
    #[must_use]
    pub fn of(schema: &Schema, is_root: bool) -> Option<Self> {
        if schema.int_or_string {
            let most = schema.max_length.map_or(MAX_REQUEST_BYTES - 2, four_bytes_each);
            return Some(Self::scalar(Type::Dyn, most, 1));
        }
        match schema.kind.as_str() {
            "array" => Self::list(schema.items.as_deref()?, schema.max_items),
            "object" if is_root => Self::object(&schema.with_meta()),
            "object" => Self::object(schema),
            "string" => Some(Self::text(schema)),
            "boolean" => Some(Self::scalar(Type::Bool, 0, 4)),
            "number" => Some(Self::scalar(Type::Double, 0, 1)),
            "integer" => Some(Self::scalar(Type::Int, 0, 1)),
            _ => None,
        }
    }

    fn list(items: &Schema, max_items: Option<i64>) -> Option<Self> {
        let element = Self::of(items, items.embedded)?;
        let most = max_items.map_or((MAX_REQUEST_BYTES - 2) / (element.min_bytes + 1), |most| most.max(0));
        Some(Self { shape: Shape::List(Arc::new(element)), max_elements: most, min_bytes: 2 })
    }

    fn object(schema: &Schema) -> Option<Self> {
        if let Some(values) = schema.values.as_deref() {
            let value = Self::of(values, values.embedded)?;
            let most =
                schema.max_properties.map_or((MAX_REQUEST_BYTES - 2) / (value.min_bytes + 6), |most| most.max(0));
            return Some(Self { shape: Shape::Map(Arc::new(value)), max_elements: most, min_bytes: 2 });
        }
        let mut fields = BTreeMap::new();
        let mut min_bytes = 2;
        for (name, property) in &schema.properties {
            let Some(declared) = Self::of(property, property.embedded) else { continue };
            if schema.required.contains(name) && !property.has_default {
                min_bytes += i64::try_from(name.len()).unwrap_or(i64::MAX) + declared.min_bytes + 4;
            }
            if let Some(escaped) = escape(name) {
                fields.insert(escaped.into(), Arc::new(declared));
            }
        }
        Some(Self { shape: Shape::Object(fields), max_elements: 0, min_bytes })
    }

    fn text(schema: &Schema) -> Self {
        match schema.format.as_str() {
            "byte" => Self::scalar(Type::Bytes, schema.max_length.map_or(MAX_REQUEST_BYTES - 2, |most| most.max(0)), 2),
            "duration" => Self::scalar(Type::Duration, 32, 3),
            "date" => Self::scalar(Type::Timestamp, 12, 12),
            "date-time" => Self::scalar(Type::Timestamp, 32, 21),
            _ => {
                let most =
                    schema.max_length.map(four_bytes_each).or(schema.longest_enum).unwrap_or(MAX_REQUEST_BYTES - 2);
                Self::scalar(Type::String, most, 2)
            }
        }
    }

    /// The CEL type, where `name` is the name of the object type that this is or holds; the objects are put into `objects`.
    pub(crate) fn declare(&self, name: &str, objects: &mut ObjectTypes) -> Type {
        match &self.shape {
            Shape::Scalar(one) => one.clone(),
            Shape::List(element) => Type::list(element.declare(&format!("{name}.@idx"), objects)),
            Shape::Map(value) => Type::map(Type::String, value.declare(&format!("{name}.@elem"), objects)),
            Shape::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(field, declared)| (field.clone(), declared.declare(&format!("{name}.{field}"), objects)));
                let fields = fields.collect();
                objects.insert(name.into(), fields);
                Type::Struct(name.into())
            }
        }
    }
}

/// A character takes up to four bytes.
fn four_bytes_each(characters: i64) -> i64 {
    characters.max(0).saturating_mul(4)
}
