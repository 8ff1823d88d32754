//! The values of an evaluation. Data of a request is borrowed, never copied; what is made is shared.

use super::authorize::Check;
use crate::library::net::{Cidr, Ip};
use crate::library::semver::Semver;
use crate::library::{Format, Url};
use crate::schema::Schema;
use crate::types::Type;
use jiff::Timestamp;
use portolan_types::quantity::Quantity;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// A value. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    /// In nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Type(Type),
    Quantity(Amount),
    Ip(Ip),
    Cidr(Cidr),
    Url(Arc<Url>),
    Semver(Arc<Semver>),
    Format(&'static Format),
    Check(Check<'a>),
    /// Data that no type describes, kept for comparison only.
    Preserved(&'a Json),
}

/// A quantity, and whether it was written without parts of a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) quantity: Quantity,
    pub(crate) whole: bool,
}

/// A text, borrowed or shared.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::String(Text::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::String(Text::Shared(text.into()))
    }
}

/// A list: what it holds, and how it compares and grows.
#[derive(Clone, Debug)]
pub(crate) struct List<'a> {
    pub(crate) elements: Elements<'a>,
    pub(crate) kind: ListKind<'a>,
}

/// What a list holds.
#[derive(Clone, Debug)]
pub(crate) enum Elements<'a> {
    /// Data, read by the schema of its items; without one, as it is.
    Json {
        items: &'a [Json],
        schema: Option<&'a Schema>,
    },
    Owned(Arc<Vec<Value<'a>>>),
}

/// How a list compares and grows: `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListKind<'a> {
    Plain,
    Set,
    /// By the keys of its elements.
    Map(&'a [String]),
}

impl<'a> List<'a> {
    pub(crate) fn owned(values: Vec<Value<'a>>) -> Self {
        Self { elements: Elements::Owned(Arc::new(values)), kind: ListKind::Plain }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.elements {
            Elements::Json { items, .. } => items.len(),
            Elements::Owned(values) => values.len(),
        }
    }

    /// The element of an index; an error where data is not what the schema says.
    pub(crate) fn get(&self, index: usize) -> Option<Result<Value<'a>, String>> {
        match &self.elements {
            Elements::Json { items, schema } => items.get(index).map(|item| super::data::read(item, *schema)),
            Elements::Owned(values) => values.get(index).cloned().map(Ok),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, String>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// A map, or an object, which is a map with declared fields.
#[derive(Clone, Debug)]
pub(crate) enum Map<'a> {
    Json {
        fields: &'a serde_json::Map<String, Json>,
        shape: Shape<'a>,
    },
    Owned(Arc<BTreeMap<Key, Value<'a>>>),
    /// An object a mutating policy made: its type and fields.
    Object(Arc<str>, Arc<BTreeMap<Key, Value<'a>>>),
}

/// How the fields of data are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'a> {
    /// As they are.
    Free,
    /// By declared properties, under escaped names.
    Object(&'a Schema),
    /// All by one schema.
    Values(&'a Schema),
    /// None can be seen.
    Closed,
}

/// A key of a map that was made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Bool(bool),
    /// All whole numbers compare alike.
    Number(i128),
    String(Arc<str>),
}

impl Key {
    /// The key that a value is, if it can be one; doubles are where they are whole.
    pub(crate) fn of(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(Self::Bool(*value)),
            Value::Int(value) => Some(Self::Number(i128::from(*value))),
            Value::Uint(value) => Some(Self::Number(i128::from(*value))),
            Value::Double(value) if value.fract() == 0.0 && value.abs() < 2e19 => Some(Self::Number(*value as i128)),
            Value::String(text) => Some(Self::String((**text).into())),
            _ => None,
        }
    }

    pub(crate) fn value<'a>(&self) -> Value<'a> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(number) => match i64::try_from(*number) {
                Ok(number) => Value::Int(number),
                Err(_) => Value::Uint(u64::try_from(*number).unwrap_or_default()),
            },
            Self::String(text) => Value::String(Text::Shared(text.clone())),
        }
    }
}

impl<'a> Map<'a> {
    pub(crate) fn owned(entries: BTreeMap<Key, Value<'a>>) -> Self {
        Self::Owned(Arc::new(entries))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json { fields, .. } => fields.len(),
            Self::Owned(entries) | Self::Object(_, entries) => entries.len(),
        }
    }

    /// The value of a key, if there is one; an error where the key or the data is of the wrong type.
    pub(crate) fn find(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, String> {
        match self {
            Self::Json { fields, shape } => super::data::field(fields, *shape, key),
            Self::Owned(entries) | Self::Object(_, entries) => match Key::of(key) {
                Some(key) => Ok(entries.get(&key).cloned()),
                None => Ok(None),
            },
        }
    }

    /// The keys that can be seen.
    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Json { fields, shape } => super::data::keys(fields, *shape),
            Self::Owned(entries) | Self::Object(_, entries) => entries.keys().map(Key::value).collect(),
        }
    }
}

impl Value<'_> {
    /// An optional that holds nothing.
    pub(crate) const NONE: Self = Value::Optional(None);

    /// The type, as `type(x)` tells it; parameters are not kept at run time.
    pub(crate) fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Duration(_) => Type::Duration,
            Self::Timestamp(_) => Type::Timestamp,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(Map::Object(name, _)) => Type::Struct(name.clone()),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Type(_) => Type::Type(None),
            Self::Quantity(_) => Type::Struct("kubernetes.Quantity".into()),
            Self::Ip(_) => Type::Opaque("net.IP".into(), Arc::from([])),
            Self::Cidr(_) => Type::Opaque("net.CIDR".into(), Arc::from([])),
            Self::Url(_) => Type::Struct("kubernetes.URL".into()),
            Self::Semver(_) => Type::Struct("kubernetes.Semver".into()),
            Self::Format(_) => Type::Struct("kubernetes.NamedFormat".into()),
            Self::Check(check) => Type::Struct(check.type_name().into()),
            Self::Preserved(_) => Type::Struct("unknown".into()),
        }
    }

    /// What costs are told by: characters of a text, bytes, elements; one for all else.
    pub(crate) fn size(&self) -> u64 {
        let count = match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(value)) => return value.size(),
            Self::Ip(ip) => ip.width(),
            Self::Cidr(cidr) => cidr.address.width(),
            _ => 1,
        };
        count as u64
    }

    /// How errors write it.
    pub(crate) fn plain(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Uint(value) => value.to_string(),
            Self::Double(value) => crate::time::double_text(*value),
            Self::String(text) => text.to_string(),
            other => other.type_of().name().to_owned(),
        }
    }
}
