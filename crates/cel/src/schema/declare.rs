//! Types that schemas declare, with the sizes that cost estimates use.

use super::{MAX_REQUEST_BYTES, RuleSchema, escape};
use crate::check::ObjectTypes;
use crate::types::CelType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Declared type with the maximum size of its values.
#[derive(Clone, Debug)]
pub struct DeclaredType {
    /// Structure of the type.
    pub(crate) shape: DeclaredShape,
    /// Most elements, characters or bytes.
    pub(crate) max_elements: i64,
    /// Fewest bytes in JSON.
    pub(crate) min_bytes: i64,
}

/// Structure of a declared type.
#[derive(Clone, Debug)]
pub(crate) enum DeclaredShape {
    /// One value.
    Scalar(CelType),
    /// A list of one type.
    List(Arc<DeclaredType>),
    /// A map of texts to one type.
    Map(Arc<DeclaredType>),
    /// An object with fields.
    Object(BTreeMap<Arc<str>, Arc<DeclaredType>>),
}

impl DeclaredType {
    fn scalar(one: CelType, max_elements: i64, min_bytes: i64) -> Self {
        Self { shape: DeclaredShape::Scalar(one), max_elements, min_bytes }
    }

    /// Returns the type of a schema; `None` if expressions cannot see it.
    #[must_use]
    pub fn of(schema: &RuleSchema, is_root: bool) -> Option<Self> {
        if schema.int_or_string {
            let most = schema.max_length.map_or(MAX_REQUEST_BYTES - 2, four_bytes_each);
            return Some(Self::scalar(CelType::Dyn, most, 1));
        }
        match schema.kind.as_str() {
            "array" => Self::list(schema.items.as_deref()?, schema.max_items),
            "object" if is_root => Self::object(&schema.with_meta()),
            "object" => Self::object(schema),
            "string" => Some(Self::text(schema)),
            "boolean" => Some(Self::scalar(CelType::Bool, 0, 4)),
            "number" => Some(Self::scalar(CelType::Double, 0, 1)),
            "integer" => Some(Self::scalar(CelType::Int, 0, 1)),
            _ => None,
        }
    }

    fn list(items: &RuleSchema, max_items: Option<i64>) -> Option<Self> {
        let element = Self::of(items, items.embedded)?;
        let most = max_items.map_or((MAX_REQUEST_BYTES - 2) / (element.min_bytes + 1), |most| most.max(0));
        Some(Self { shape: DeclaredShape::List(Arc::new(element)), max_elements: most, min_bytes: 2 })
    }

    fn object(schema: &RuleSchema) -> Option<Self> {
        if let Some(values) = schema.values.as_deref() {
            let value = Self::of(values, values.embedded)?;
            let most =
                schema.max_properties.map_or((MAX_REQUEST_BYTES - 2) / (value.min_bytes + 6), |most| most.max(0));
            return Some(Self { shape: DeclaredShape::Map(Arc::new(value)), max_elements: most, min_bytes: 2 });
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
        Some(Self { shape: DeclaredShape::Object(fields), max_elements: 0, min_bytes })
    }

    fn text(schema: &RuleSchema) -> Self {
        match schema.format.as_str() {
            "byte" => {
                Self::scalar(CelType::Bytes, schema.max_length.map_or(MAX_REQUEST_BYTES - 2, |most| most.max(0)), 2)
            }
            "duration" => Self::scalar(CelType::Duration, 32, 3),
            "date" => Self::scalar(CelType::Timestamp, 12, 12),
            "date-time" => Self::scalar(CelType::Timestamp, 32, 21),
            _ => {
                let most =
                    schema.max_length.map(four_bytes_each).or(schema.longest_enum).unwrap_or(MAX_REQUEST_BYTES - 2);
                Self::scalar(CelType::String, most, 2)
            }
        }
    }

    /// Returns the CEL type and adds its object types to `objects`. `name` is the name of the object type that this is
    /// or contains.
    pub(crate) fn declare(&self, name: &str, objects: &mut ObjectTypes) -> CelType {
        match &self.shape {
            DeclaredShape::Scalar(one) => one.clone(),
            DeclaredShape::List(element) => CelType::list(element.declare(&format!("{name}.@idx"), objects)),
            DeclaredShape::Map(value) => {
                CelType::map(CelType::String, value.declare(&format!("{name}.@elem"), objects))
            }
            DeclaredShape::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(field, declared)| (field.clone(), declared.declare(&format!("{name}.{field}"), objects)));
                let fields = fields.collect();
                objects.insert(name.into(), fields);
                CelType::Struct(name.into())
            }
        }
    }
}

/// A character takes up to four bytes.
fn four_bytes_each(characters: i64) -> i64 {
    characters.max(0).saturating_mul(4)
}
