//! Shapes of ownership from the kind table: field by field, element by element, or as a whole.

use std::sync::Arc;

use serde_json::Value;

use super::set::{key_element, value_element};
use portolan_kinds::{
    Field, FieldKind, Kind, KindTable, ListType, MapType, Scalar, Special, Type, TypeId,
    custom::{Additional, Format, ListKind, META_FIELDS, Schema, ValueKind},
};

/// Shape in which a value is owned.
#[derive(Clone, Copy)]
pub(super) enum OwnershipShape<'t> {
    /// Owned as a whole: scalars, and values of unknown structure.
    Whole,
    /// Owned as a whole: atomic lists and objects whose content has a schema.
    Atomic(Inside<'t>),
    /// Elements of an atomic list, in [`OwnershipShape::inside`].
    Listed(Elements<'t>),
    /// An object, field by field.
    Fields(&'t KindTable, &'t Type),
    /// An object, entry by entry.
    Entries(&'t KindTable, &'t FieldKind),
    /// A list of scalars, each owned by itself; with their type, if it is known.
    Set(Option<Plain>),
    /// A list of objects, distinguished by keys.
    Keyed(&'t [Arc<str>], Elements<'t>),
    /// An object as a definition describes it, field by field.
    Custom(Custom<'t>),
    /// No schema: objects are owned per entry, other values as a whole.
    Free,
}

/// Type of a plain value, as far as kube-apiserver distinguishes scalars there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Text,
    Truth,
    Number,
    /// Texts of a format are all of these.
    Any,
}

/// Identity of the elements of a list.
#[derive(Clone, Copy)]
pub(super) enum Elements<'t> {
    Typed(&'t KindTable, TypeId),
    Plain(&'t KindTable, &'t FieldKind),
    Custom(&'t KindTable, &'t Schema),
}

/// Content of a value that is owned as a whole.
#[derive(Clone, Copy)]
pub(super) enum Inside<'t> {
    Typed(&'t KindTable, TypeId),
    Plain(&'t KindTable, &'t FieldKind),
    Custom(&'t KindTable, &'t Schema),
}

impl<'t> Elements<'t> {
    fn shape(self) -> OwnershipShape<'t> {
        match self {
            Self::Typed(table, id) => OwnershipShape::of_type(table, id),
            Self::Plain(table, kind) => OwnershipShape::of_kind(table, kind),
            Self::Custom(table, schema) => OwnershipShape::of_schema(table, schema),
        }
    }

    /// Returns the default of a missing key.
    fn default_of(self, key: &str) -> Option<Value> {
        match self {
            Self::Typed(table, id) => default_of(table.get(id).field(key)?),
            Self::Plain(..) => None,
            Self::Custom(_, schema) => Some(schema.property(key)?.default.as_ref()?.value.clone()),
        }
    }
}

/// An object as a definition describes it.
#[derive(Clone, Copy)]
pub(super) struct Custom<'t> {
    table: &'t KindTable,
    schema: &'t Schema,
    /// The fields of any object, at the root of one.
    root: Option<&'t Type>,
}

impl<'t> Custom<'t> {
    fn is_meta(self, name: &str) -> bool {
        (self.root.is_some() || self.schema.is_resource) && META_FIELDS.contains(&name)
    }

    fn child(self, name: &str) -> OwnershipShape<'t> {
        if self.is_meta(name) {
            let metadata = self.table.type_named(OBJECT_META).filter(|_| name == "metadata");
            return metadata.map_or(OwnershipShape::Whole, |id| OwnershipShape::of_type(self.table, id));
        }
        self.schema.at_key(name).map_or(OwnershipShape::Free, |schema| OwnershipShape::of_schema(self.table, schema))
    }

    fn declares(self, name: &str) -> bool {
        self.is_meta(name) || self.schema.property(name).is_some()
    }

    fn allows(self, name: &str) -> bool {
        self.declares(name) || self.schema.preserves_unknown || !matches!(self.schema.additional, Additional::Unsaid)
    }
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Way to walk through a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Object,
    List,
}

/// Error for an element by which its list cannot be merged. Texts are kube-apiserver's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidElement {
    #[error("associative list with keys may not have a null element")]
    Null,
    #[error("associative list with keys may not have non-map elements")]
    NoObject,
    #[error(
        "associative list with keys has an element that omits all key fields {0:?} (and doesn't have default values for any key fields)"
    )]
    NoKey(Vec<String>),
    #[error("associative list without keys has an element that's a map type")]
    Object,
    #[error("not supported: associative list with lists as elements")]
    List,
    #[error("associative list without keys has an element that's an explicit null")]
    NullValue,
}

impl<'t> OwnershipShape<'t> {
    /// Returns the shape of an object of a kind.
    pub(super) fn of_object(table: &'t KindTable, kind: &'t Kind) -> Self {
        match &kind.content {
            Some(content) => {
                Self::Custom(Custom { table, schema: content.schema(), root: Some(table.get(kind.schema)) })
            }
            None => Self::of_type(table, kind.schema),
        }
    }

    /// Returns the shape of a value that a definition describes.
    fn of_schema(table: &'t KindTable, schema: &'t Schema) -> Self {
        match (schema.kind, &schema.list) {
            (ValueKind::Object, _) if schema.is_atomic => Self::Atomic(Inside::Custom(table, schema)),
            (ValueKind::Object, _) => Self::Custom(Custom { table, schema, root: None }),
            (ValueKind::Array, ListKind::Set) => Self::Set(schema.items.as_deref().and_then(plain_of_schema)),
            (ValueKind::Array, ListKind::Map(keys)) => {
                let items = schema.items.as_deref();
                items.map_or(Self::Whole, |items| Self::Keyed(keys, Elements::Custom(table, items)))
            }
            (ValueKind::Any, _) if schema.preserves_unknown => Self::Free,
            (ValueKind::Array, _) => Self::Atomic(Inside::Custom(table, schema)),
            (ValueKind::Any, _) => Self::Whole,
            (ValueKind::String | ValueKind::Integer | ValueKind::Number, _) => Self::Whole,
            (ValueKind::Boolean | ValueKind::IntOrString, _) => Self::Whole,
        }
    }

    pub(super) fn of_type(table: &'t KindTable, id: TypeId) -> Self {
        let message = table.get(id);
        match message.special {
            Some(special) => Self::of_special(table, special),
            None if message.atomic => Self::Atomic(Inside::Typed(table, id)),
            None => Self::of_fields(table, message),
        }
    }

    fn of_fields(table: &'t KindTable, message: &'t Type) -> Self {
        if message.preserve_unknown && message.fields.is_empty() { Self::Free } else { Self::Fields(table, message) }
    }

    /// Returns the shape of an atomic value as if it were not owned as a whole.
    pub(super) fn inside(self) -> Self {
        let Self::Atomic(inside) = self else { return self };
        match inside {
            Inside::Typed(table, id) | Inside::Plain(table, &FieldKind::Message(id)) => match table.get(id) {
                Type { special: Some(special), .. } => Self::of_special(table, *special),
                message => Self::of_fields(table, message),
            },
            Inside::Plain(table, FieldKind::List(element)) => Self::Listed(Elements::Plain(table, element)),
            Inside::Plain(table, kind) => Self::of_kind(table, kind),
            Inside::Custom(table, schema) if schema.kind == ValueKind::Array => {
                let items = schema.items.as_deref();
                items.map_or(Self::Whole, |items| Self::Listed(Elements::Custom(table, items)))
            }
            Inside::Custom(table, schema) => Self::Custom(Custom { table, schema, root: None }),
        }
    }

    fn of_special(table: &'t KindTable, special: Special) -> Self {
        match special {
            Special::FieldsV1 => Self::Entries(table, &FieldKind::Special(Special::Any)),
            Special::Json
            | Special::SchemaOrBool
            | Special::SchemaOrArray
            | Special::SchemaOrStrings
            | Special::Any => Self::Free,
            Special::RawExtension
            | Special::Time
            | Special::MicroTime
            | Special::Duration
            | Special::Quantity
            | Special::IntOrString
            | Special::Strings => Self::Whole,
        }
    }

    fn of_field(table: &'t KindTable, field: &'t Field) -> Self {
        match (&field.kind, field.map, &field.list) {
            (kind @ (FieldKind::Message(_) | FieldKind::Map(_)), Some(MapType::Atomic), _) => {
                Self::Atomic(Inside::Plain(table, kind))
            }
            (FieldKind::Message(id), Some(MapType::Granular), _) => match table.get(*id) {
                Type { special: Some(special), .. } => Self::of_special(table, *special),
                message => Self::Fields(table, message),
            },
            (kind @ FieldKind::List(_), _, ListType::Atomic) => Self::Atomic(Inside::Plain(table, kind)),
            (FieldKind::List(element), _, ListType::Set) => Self::Set(plain_of(table, element)),
            (FieldKind::List(element), _, ListType::Map(keys)) => match **element {
                FieldKind::Message(id) => Self::Keyed(keys, Elements::Typed(table, id)),
                _ => Self::Whole,
            },
            (kind, ..) => Self::of_kind(table, kind),
        }
    }

    fn of_kind(table: &'t KindTable, kind: &'t FieldKind) -> Self {
        match kind {
            FieldKind::Message(id) => Self::of_type(table, *id),
            FieldKind::Map(entries) => Self::Entries(table, entries),
            FieldKind::Special(special) => Self::of_special(table, *special),
            FieldKind::List(_) => Self::Atomic(Inside::Plain(table, kind)),
            FieldKind::Scalar(_) => Self::Whole,
        }
    }

    /// Returns the shape of a field or entry of an object of this shape.
    pub(super) fn child(self, name: &str) -> Self {
        match self {
            Self::Fields(table, message) => {
                message.field(name).map_or(Self::Free, |field| Self::of_field(table, field))
            }
            Self::Entries(table, entries) => Self::of_kind(table, entries),
            Self::Custom(custom) => custom.child(name),
            Self::Whole | Self::Atomic(_) | Self::Listed(_) | Self::Set(_) | Self::Keyed(..) | Self::Free => Self::Free,
        }
    }

    /// Returns the type of a field or entry of an object of this shape, if it is plain.
    pub(super) fn plain(self, name: &str) -> Option<Plain> {
        match self {
            Self::Fields(table, message) => plain_of(table, &message.field(name)?.kind),
            Self::Entries(table, entries) => plain_of(table, entries),
            Self::Custom(custom) => plain_of_schema(custom.schema.at_key(name)?),
            Self::Whole | Self::Atomic(_) | Self::Listed(_) | Self::Set(_) | Self::Keyed(..) | Self::Free => None,
        }
    }

    /// Returns the type and shape of a field or entry of an object of this shape; `None` if no such name is allowed.
    pub(super) fn entry(self, name: &str) -> Option<(Option<Plain>, Self)> {
        let Self::Fields(table, message) = self else {
            return self.allows(name).then(|| (self.plain(name), self.child(name)));
        };
        match message.field(name) {
            Some(field) => Some((plain_of(table, &field.kind), Self::of_field(table, field))),
            None => message.preserve_unknown.then_some((None, Self::Free)),
        }
    }

    /// Returns the shape of the elements of a list of this shape.
    pub(super) fn element(self) -> Self {
        match self {
            Self::Keyed(_, elements) | Self::Listed(elements) => elements.shape(),
            _ => Self::Whole,
        }
    }

    /// Returns the type of the elements of a list of this shape, if they are plain.
    pub(super) fn plain_element(self) -> Option<Plain> {
        match self {
            Self::Set(plain) => plain,
            Self::Listed(Elements::Plain(table, kind)) => plain_of(table, kind),
            Self::Listed(Elements::Custom(_, schema)) => plain_of_schema(schema),
            _ => None,
        }
    }

    /// Returns the declared field of this name, where the shape declares fields.
    pub(super) fn field(self, name: &str) -> Option<&'t Field> {
        match self {
            Self::Fields(_, message) => message.field(name),
            Self::Custom(custom) => custom.root?.field(name),
            _ => None,
        }
    }

    /// Returns true if the shape declares a field of this name.
    pub(super) fn declares(self, name: &str) -> bool {
        match self {
            Self::Custom(custom) => custom.declares(name),
            other => other.field(name).is_some(),
        }
    }

    /// Returns true if an object of this shape may have a field of this name.
    pub(super) fn allows(self, name: &str) -> bool {
        match self {
            Self::Fields(_, message) => message.preserve_unknown || message.field(name).is_some(),
            Self::Custom(custom) => custom.allows(name),
            _ => true,
        }
    }

    pub(super) fn form(self, value: Option<&Value>) -> Form {
        match self {
            Self::Whole | Self::Atomic(_) => Form::Whole,
            Self::Fields(..) | Self::Entries(..) | Self::Custom(_) => Form::Object,
            Self::Set(_) | Self::Keyed(..) | Self::Listed(_) => Form::List,
            Self::Free if value.is_some_and(Value::is_object) => Form::Object,
            Self::Free => Form::Whole,
        }
    }

    /// Returns the path element of an element of a list of this shape.
    pub(super) fn identify(self, element: &Value) -> Result<Box<str>, InvalidElement> {
        self.check_element(element)?;
        Ok(match (self, element) {
            (Self::Keyed(keys, elements), Value::Object(object)) => {
                let value = |key: &str| object.get(key).cloned().or_else(|| elements.default_of(key));
                key_element(keys.iter().filter_map(|key| Some((key.to_string(), value(key)?))).collect())
            }
            (_, scalar) => value_element(scalar),
        })
    }

    /// Checks that an element of a list of this shape has an identity.
    pub(super) fn check_element(self, element: &Value) -> Result<(), InvalidElement> {
        match (self, element) {
            (Self::Keyed(keys, elements), Value::Object(object)) => {
                let has = |key: &Arc<str>| object.contains_key(&**key) || elements.default_of(key).is_some();
                if keys.iter().any(has) {
                    Ok(())
                } else {
                    Err(InvalidElement::NoKey(keys.iter().map(ToString::to_string).collect()))
                }
            }
            (Self::Keyed(..), Value::Null) => Err(InvalidElement::Null),
            (Self::Keyed(..), _) => Err(InvalidElement::NoObject),
            (_, Value::Object(_)) => Err(InvalidElement::Object),
            (_, Value::Array(_)) => Err(InvalidElement::List),
            (_, Value::Null) => Err(InvalidElement::NullValue),
            (_, Value::Bool(_) | Value::Number(_) | Value::String(_)) => Ok(()),
        }
    }

    /// Returns the elements of a list with their path elements. Elements without one, which validation refuses, are
    /// left out.
    pub(super) fn identified(self, list: &[Value]) -> Vec<(Box<str>, &Value)> {
        list.iter().filter_map(|element| Some((self.identify(element).ok()?, element))).collect()
    }
}

/// Returns the type of a built-in value, if it is plain.
fn plain_of(table: &KindTable, kind: &FieldKind) -> Option<Plain> {
    let special = match kind {
        FieldKind::Scalar(Scalar::String | Scalar::Bytes) => return Some(Plain::Text),
        FieldKind::Scalar(Scalar::Bool) => return Some(Plain::Truth),
        FieldKind::Scalar(_) => return Some(Plain::Number),
        FieldKind::Special(special) => Some(*special),
        FieldKind::Message(id) => table.get(*id).special,
        FieldKind::List(_) | FieldKind::Map(_) => None,
    };
    match special? {
        Special::Quantity | Special::Time | Special::MicroTime => Some(Plain::Any),
        Special::Duration => Some(Plain::Text),
        // kube-apiserver's schema has no type for the first.
        Special::IntOrString
        | Special::FieldsV1
        | Special::RawExtension
        | Special::Json
        | Special::Any
        | Special::SchemaOrBool
        | Special::SchemaOrArray
        | Special::SchemaOrStrings
        | Special::Strings => None,
    }
}

/// Returns the type of a value of a schema, if it is plain.
fn plain_of_schema(schema: &Schema) -> Option<Plain> {
    let format = schema.checks.as_ref().and_then(|checks| checks.format.as_ref());
    match schema.kind {
        ValueKind::String if format.is_some_and(|Format(name)| **name != *"byte") => Some(Plain::Any),
        ValueKind::String => Some(Plain::Text),
        ValueKind::Integer | ValueKind::Number => Some(Plain::Number),
        ValueKind::Boolean => Some(Plain::Truth),
        ValueKind::Any | ValueKind::Object | ValueKind::Array | ValueKind::IntOrString => None,
    }
}

/// Returns the default of a missing key of a map list.
fn default_of(field: &Field) -> Option<Value> {
    field.declared.clone().or_else(|| field.trivial_default())
}

/// Returns the path element of a field.
pub(super) fn field_element(name: &str) -> Box<str> {
    format!("f:{name}").into()
}
