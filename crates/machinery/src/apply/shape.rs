//! How the kind table lets fields be owned: one by one, element by element, or as a whole.

use std::sync::Arc;

use serde_json::Value;

use super::set::{key_element, value_element};
use crate::{
    custom::{Additional, Format, ListKind, META_FIELDS, Schema, ValueKind},
    kinds::{Field, FieldKind, Kind, KindTable, ListType, MapType, Scalar, Special, Type, TypeId},
};

/// How a value is owned.
#[derive(Clone, Copy)]
pub(super) enum Shape<'t> {
    /// As a whole: scalars, and what nothing more is known of.
    Whole,
    /// As a whole: atomic lists and objects, of which is known what stands in them.
    Atomic(Inside<'t>),
    /// What stands in an atomic list, in [`Shape::inside`].
    Listed(Elements<'t>),
    /// An object, field by field.
    Fields(&'t KindTable, &'t Type),
    /// An object, entry by entry.
    Entries(&'t KindTable, &'t FieldKind),
    /// A list of scalars, each for itself; what they are, where it is known.
    Set(Option<Plain>),
    /// A list of objects, told apart by keys.
    Keyed(&'t [Arc<str>], Elements<'t>),
    /// An object as a definition describes it, field by field.
    Custom(Custom<'t>),
    /// Nothing is known: objects entry by entry, everything else as a whole.
    Free,
}

/// What a plain value is, as far as upstream tells scalars apart there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Text,
    Truth,
    Number,
    /// Texts of a format are all of these.
    Any,
}

/// What the elements of a list are.
#[derive(Clone, Copy)]
pub(super) enum Elements<'t> {
    Typed(&'t KindTable, TypeId),
    Plain(&'t KindTable, &'t FieldKind),
    Custom(&'t KindTable, &'t Schema),
}

/// What stands in a value that is owned as a whole.
#[derive(Clone, Copy)]
pub(super) enum Inside<'t> {
    Typed(&'t KindTable, TypeId),
    Plain(&'t KindTable, &'t FieldKind),
    Custom(&'t KindTable, &'t Schema),
}

impl<'t> Elements<'t> {
    fn shape(self) -> Shape<'t> {
        match self {
            Self::Typed(table, id) => Shape::of_type(table, id),
            Self::Plain(table, kind) => Shape::of_kind(table, kind),
            Self::Custom(table, schema) => Shape::of_schema(table, schema),
        }
    }

    /// What a missing key counts as.
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

    fn child(self, name: &str) -> Shape<'t> {
        if self.is_meta(name) {
            let metadata = self.table.type_named(OBJECT_META).filter(|_| name == "metadata");
            return metadata.map_or(Shape::Whole, |id| Shape::of_type(self.table, id));
        }
        self.schema.at_key(name).map_or(Shape::Free, |schema| Shape::of_schema(self.table, schema))
    }

    fn declares(self, name: &str) -> bool {
        self.is_meta(name) || self.schema.property(name).is_some()
    }

    fn allows(self, name: &str) -> bool {
        self.declares(name) || self.schema.preserves_unknown || !matches!(self.schema.additional, Additional::Unsaid)
    }
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// How a certain value is walked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Object,
    List,
}

/// An element that its list cannot be merged by. Texts are upstream's.
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

impl<'t> Shape<'t> {
    /// The shape of an object of a kind.
    pub(super) fn of_object(table: &'t KindTable, kind: &'t Kind) -> Self {
        match &kind.content {
            Some(content) => {
                Self::Custom(Custom { table, schema: content.schema(), root: Some(table.get(kind.schema)) })
            }
            None => Self::of_type(table, kind.schema),
        }
    }

    /// The shape of a value that a definition describes.
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
        match message.preserve_unknown && message.fields.is_empty() {
            true => Self::Free,
            false => Self::Fields(table, message),
        }
    }

    /// The shape of an atomic value as if it were not owned as a whole.
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

    /// The shape of a field or entry of an object of this shape.
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

    /// What a field or entry of an object of this shape is, where it is a plain value.
    pub(super) fn plain(self, name: &str) -> Option<Plain> {
        match self {
            Self::Fields(table, message) => plain_of(table, &message.field(name)?.kind),
            Self::Entries(table, entries) => plain_of(table, entries),
            Self::Custom(custom) => plain_of_schema(custom.schema.at_key(name)?),
            Self::Whole | Self::Atomic(_) | Self::Listed(_) | Self::Set(_) | Self::Keyed(..) | Self::Free => None,
        }
    }

    /// What a field or entry of an object of this shape has to be; `None` where it may hold none of this name.
    pub(super) fn entry(self, name: &str) -> Option<(Option<Plain>, Self)> {
        let Self::Fields(table, message) = self else {
            return self.allows(name).then(|| (self.plain(name), self.child(name)));
        };
        match message.field(name) {
            Some(field) => Some((plain_of(table, &field.kind), Self::of_field(table, field))),
            None => message.preserve_unknown.then_some((None, Self::Free)),
        }
    }

    /// The shape of the elements of a list of this shape.
    pub(super) fn element(self) -> Self {
        match self {
            Self::Keyed(_, elements) | Self::Listed(elements) => elements.shape(),
            _ => Self::Whole,
        }
    }

    /// What the elements of a list of this shape are, where they are plain values.
    pub(super) fn plain_element(self) -> Option<Plain> {
        match self {
            Self::Set(plain) => plain,
            Self::Listed(Elements::Plain(table, kind)) => plain_of(table, kind),
            Self::Listed(Elements::Custom(_, schema)) => plain_of_schema(schema),
            _ => None,
        }
    }

    /// The declared field of this name, where the shape declares fields.
    pub(super) fn field(self, name: &str) -> Option<&'t Field> {
        match self {
            Self::Fields(_, message) => message.field(name),
            Self::Custom(custom) => custom.root?.field(name),
            _ => None,
        }
    }

    /// Whether the shape declares a field of this name.
    pub(super) fn declares(self, name: &str) -> bool {
        match self {
            Self::Custom(custom) => custom.declares(name),
            other => other.field(name).is_some(),
        }
    }

    /// Whether an object of this shape may hold a field of this name.
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

    /// The path element of an element of a list of this shape.
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

    /// Whether something tells an element of a list of this shape apart.
    pub(super) fn check_element(self, element: &Value) -> Result<(), InvalidElement> {
        match (self, element) {
            (Self::Keyed(keys, elements), Value::Object(object)) => {
                let has = |key: &Arc<str>| object.contains_key(&**key) || elements.default_of(key).is_some();
                match keys.iter().any(has) {
                    false => Err(InvalidElement::NoKey(keys.iter().map(ToString::to_string).collect())),
                    true => Ok(()),
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

    /// The elements of a list with their path elements. Elements without one, which validation refuses, are left out.
    pub(super) fn identified(self, list: &[Value]) -> Vec<(Box<str>, &Value)> {
        list.iter().filter_map(|element| Some((self.identify(element).ok()?, element))).collect()
    }
}

/// What a built-in value is, where it is a plain one.
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
        // Upstream's schema says nothing of the first.
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

/// What a value of a schema is, where it is a plain one.
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

/// What a missing key of a map list counts as.
fn default_of(field: &Field) -> Option<Value> {
    field.declared.clone().or_else(|| field.trivial_default())
}

/// The path element of a field.
pub(super) fn field_element(name: &str) -> Box<str> {
    format!("f:{name}").into()
}
