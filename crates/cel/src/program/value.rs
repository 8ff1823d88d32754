//! Values of an evaluation. Request data is borrowed and never copied; computed values are shared.

use super::authorize::AuthorizerCheck;
use crate::library::net::{Cidr, Ip};
use crate::library::semver::Semver;
use crate::library::{CelUrl, NamedFormat};
use crate::schema::RuleSchema;
use crate::types::CelType;
use jiff::Timestamp;
use portolan_types::quantity::Quantity;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// Value of CEL. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum CelValue<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(CelText<'a>),
    Bytes(Arc<[u8]>),
    /// In nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    List(CelList<'a>),
    Map(CelMap<'a>),
    Optional(Option<Arc<CelValue<'a>>>),
    Type(CelType),
    Quantity(CelQuantity),
    Ip(Ip),
    Cidr(Cidr),
    Url(Arc<CelUrl>),
    Semver(Arc<Semver>),
    Format(&'static NamedFormat),
    Check(AuthorizerCheck<'a>),
    /// Data without a type, kept for comparisons only.
    Preserved(&'a Json),
}

/// Quantity, with a flag that is true if it was written without fractions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CelQuantity {
    pub(crate) quantity: Quantity,
    pub(crate) whole: bool,
}

/// String, borrowed or shared.
#[derive(Clone, Debug)]
pub(crate) enum CelText<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Deref for CelText<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl<'a> From<&'a str> for CelValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::String(CelText::Borrowed(text))
    }
}

impl From<String> for CelValue<'_> {
    fn from(text: String) -> Self {
        Self::String(CelText::Shared(text.into()))
    }
}

/// List with its elements and its kind.
#[derive(Clone, Debug)]
pub(crate) struct CelList<'a> {
    pub(crate) elements: CelListElements<'a>,
    pub(crate) kind: CelListKind<'a>,
}

/// Elements of a list.
#[derive(Clone, Debug)]
pub(crate) enum CelListElements<'a> {
    /// Data, read by the schema of its items if there is one.
    Json {
        items: &'a [Json],
        schema: Option<&'a RuleSchema>,
    },
    Owned(Arc<Vec<CelValue<'a>>>),
}

/// Kind of a list, which decides its comparison and concatenation: `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CelListKind<'a> {
    Plain,
    Set,
    /// Keyed by fields of its elements.
    Map(&'a [String]),
}

impl<'a> CelList<'a> {
    pub(crate) fn owned(values: Vec<CelValue<'a>>) -> Self {
        Self { elements: CelListElements::Owned(Arc::new(values)), kind: CelListKind::Plain }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.elements {
            CelListElements::Json { items, .. } => items.len(),
            CelListElements::Owned(values) => values.len(),
        }
    }

    /// Returns the element at an index; an error if data does not match its schema.
    pub(crate) fn get(&self, index: usize) -> Option<Result<CelValue<'a>, String>> {
        match &self.elements {
            CelListElements::Json { items, schema } => items.get(index).map(|item| super::data::read(item, *schema)),
            CelListElements::Owned(values) => values.get(index).cloned().map(Ok),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<CelValue<'a>, String>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// Map, or object: a map with declared fields.
#[derive(Clone, Debug)]
pub(crate) enum CelMap<'a> {
    Json {
        fields: &'a serde_json::Map<String, Json>,
        shape: JsonFieldShape<'a>,
    },
    Owned(Arc<BTreeMap<Key, CelValue<'a>>>),
    /// Object that a mutating policy constructed: its type and fields.
    Object(Arc<str>, Arc<BTreeMap<Key, CelValue<'a>>>),
}

/// Schema by which the fields of data are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JsonFieldShape<'a> {
    /// Without a schema.
    Free,
    /// By declared properties, under escaped names.
    Object(&'a RuleSchema),
    /// All fields by one schema.
    Values(&'a RuleSchema),
    /// No field is visible.
    Closed,
}

/// Key of a constructed map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Bool(bool),
    /// Integers of both types compare by value.
    Number(i128),
    String(Arc<str>),
}

impl Key {
    /// Returns the value as a key, if it can be one. A double can if it is whole.
    pub(crate) fn of(value: &CelValue<'_>) -> Option<Self> {
        match value {
            CelValue::Bool(value) => Some(Self::Bool(*value)),
            CelValue::Int(value) => Some(Self::Number(i128::from(*value))),
            CelValue::Uint(value) => Some(Self::Number(i128::from(*value))),
            CelValue::Double(value) if value.fract() == 0.0 && value.abs() < 2e19 => Some(Self::Number(*value as i128)),
            CelValue::String(text) => Some(Self::String((**text).into())),
            _ => None,
        }
    }

    pub(crate) fn value<'a>(&self) -> CelValue<'a> {
        match self {
            Self::Bool(value) => CelValue::Bool(*value),
            Self::Number(number) => match i64::try_from(*number) {
                Ok(number) => CelValue::Int(number),
                Err(_) => CelValue::Uint(u64::try_from(*number).unwrap_or_default()),
            },
            Self::String(text) => CelValue::String(CelText::Shared(text.clone())),
        }
    }
}

impl<'a> CelMap<'a> {
    pub(crate) fn owned(entries: BTreeMap<Key, CelValue<'a>>) -> Self {
        Self::Owned(Arc::new(entries))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json { fields, .. } => fields.len(),
            Self::Owned(entries) | Self::Object(_, entries) => entries.len(),
        }
    }

    /// Returns the value of a key, if there is one; an error if the key or the data has the wrong type.
    pub(crate) fn find(&self, key: &CelValue<'_>) -> Result<Option<CelValue<'a>>, String> {
        match self {
            Self::Json { fields, shape } => super::data::field(fields, *shape, key),
            Self::Owned(entries) | Self::Object(_, entries) => match Key::of(key) {
                Some(key) => Ok(entries.get(&key).cloned()),
                None => Ok(None),
            },
        }
    }

    /// Returns the visible keys.
    pub(crate) fn keys(&self) -> Vec<CelValue<'a>> {
        match self {
            Self::Json { fields, shape } => super::data::keys(fields, *shape),
            Self::Owned(entries) | Self::Object(_, entries) => entries.keys().map(Key::value).collect(),
        }
    }
}

impl CelValue<'_> {
    /// Returns an empty optional.
    pub(crate) const NONE: Self = CelValue::Optional(None);

    /// Returns the type as `type(x)` does; type parameters do not exist at run time.
    pub(crate) fn type_of(&self) -> CelType {
        match self {
            Self::Null => CelType::Null,
            Self::Bool(_) => CelType::Bool,
            Self::Int(_) => CelType::Int,
            Self::Uint(_) => CelType::Uint,
            Self::Double(_) => CelType::Double,
            Self::String(_) => CelType::String,
            Self::Bytes(_) => CelType::Bytes,
            Self::Duration(_) => CelType::Duration,
            Self::Timestamp(_) => CelType::Timestamp,
            Self::List(_) => CelType::list(CelType::Dyn),
            Self::Map(CelMap::Object(name, _)) => CelType::Struct(name.clone()),
            Self::Map(_) => CelType::map(CelType::Dyn, CelType::Dyn),
            Self::Optional(_) => CelType::optional(CelType::Dyn),
            Self::Type(_) => CelType::Type(None),
            Self::Quantity(_) => CelType::Struct("kubernetes.Quantity".into()),
            Self::Ip(_) => CelType::Opaque("net.IP".into(), Arc::from([])),
            Self::Cidr(_) => CelType::Opaque("net.CIDR".into(), Arc::from([])),
            Self::Url(_) => CelType::Struct("kubernetes.URL".into()),
            Self::Semver(_) => CelType::Struct("kubernetes.Semver".into()),
            Self::Format(_) => CelType::Struct("kubernetes.NamedFormat".into()),
            Self::Check(check) => CelType::Struct(check.type_name().into()),
            Self::Preserved(_) => CelType::Struct("unknown".into()),
        }
    }

    /// Returns the size that costs depend on: characters of a string, bytes, elements; one for all other values.
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

    /// Formats the value for errors.
    pub(crate) fn plain(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Uint(value) => value.to_string(),
            Self::Double(value) => portolan_gocompat::print::go_decimal(*value),
            Self::String(text) => text.to_string(),
            other => other.type_of().name().to_owned(),
        }
    }
}
