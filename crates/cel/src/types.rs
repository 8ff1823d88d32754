//! CEL's types.

use std::fmt;
use std::sync::Arc;

/// A type of the checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// What an expression that does not check is of.
    Error,
    /// Known at run time only.
    Dyn,
    /// Like `Dyn`, and never seen through.
    Any,
    /// `null_type`
    Null,
    /// `bool`
    Bool,
    /// `int`, 64 bits
    Int,
    /// `uint`, 64 bits
    Uint,
    /// `double`
    Double,
    /// `string`
    String,
    /// `bytes`
    Bytes,
    /// `google.protobuf.Duration`
    Duration,
    /// `google.protobuf.Timestamp`
    Timestamp,
    /// `list(element)`
    List(Arc<Type>),
    /// `map(key, value)`
    Map(Arc<Type>, Arc<Type>),
    /// An object with declared fields, by name.
    Struct(Arc<str>),
    /// A type with a name and parameters and no fields, like `optional_type(int)`.
    Opaque(Arc<str>, Arc<[Type]>),
    /// The type of a type; without a parameter, of any.
    Type(Option<Arc<Type>>),
    /// A type parameter in the declaration of a function.
    Param(Arc<str>),
    /// A type the checker has yet to find.
    Var(usize),
}

impl Type {
    /// `list(element)`
    #[must_use]
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    /// `map(key, value)`
    #[must_use]
    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new(key), Arc::new(value))
    }

    /// `optional_type(value)`
    #[must_use]
    pub fn optional(value: Self) -> Self {
        Self::Opaque("optional_type".into(), Arc::from([value]))
    }

    /// What an optional holds.
    pub(crate) fn in_optional(&self) -> Option<&Self> {
        match self {
            Self::Opaque(name, parameters) if &**name == "optional_type" => parameters.first(),
            _ => None,
        }
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any)
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any | Self::Error)
    }

    /// Whether null may stand for it, as the checker has always allowed.
    pub(crate) fn is_nullable(&self) -> bool {
        matches!(self, Self::Opaque(..) | Self::Struct(_) | Self::Any | Self::Duration | Self::Timestamp | Self::Null)
    }

    /// Whether every value of it has the size of one.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Double | Self::Duration | Self::Int | Self::Timestamp | Self::Uint => true,
            _ => self.in_optional().is_some_and(Self::is_scalar),
        }
    }

    /// The name by which values of it tell their type.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Error => "error",
            Self::Dyn | Self::Param(_) | Self::Var(_) => "dyn",
            Self::Any => "google.protobuf.Any",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(_) => "list",
            Self::Map(..) => "map",
            Self::Struct(name) | Self::Opaque(name, _) => name,
            Self::Type(_) => "type",
        }
    }

    /// The type that an expression can name, such as the one of `type(x) == string`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "bytes" => Self::Bytes,
            "double" => Self::Double,
            "int" => Self::Int,
            "uint" => Self::Uint,
            "string" => Self::String,
            "null_type" => Self::Null,
            "type" => Self::Type(None),
            "list" => Self::list(Self::Dyn),
            "map" => Self::map(Self::Dyn, Self::Dyn),
            "google.protobuf.Duration" => Self::Duration,
            "google.protobuf.Timestamp" => Self::Timestamp,
            "optional_type" => Self::optional(Self::Dyn),
            "net.IP" | "net.CIDR" => Self::Opaque(name.into(), Arc::from([])),
            _ => return None,
        })
    }

    /// Reads the form of the function table: no spaces, parameters marked by an apostrophe.
    pub(crate) fn parse(text: &str) -> Self {
        if let Some(parameter) = text.strip_prefix('\'') {
            return Self::Param(parameter.into());
        }
        let Some((name, inner)) = text.split_once('(') else {
            return match text {
                "dyn" => Self::Dyn,
                text if text.starts_with("kubernetes.") => Self::Struct(text.into()),
                text => Self::named(text).unwrap_or(Self::Error),
            };
        };
        let inner = inner.strip_suffix(')').unwrap_or(inner);
        match (name, split_top(inner)) {
            ("list", _) => Self::list(Self::parse(inner)),
            ("map", Some((key, value))) => Self::map(Self::parse(key), Self::parse(value)),
            ("optional_type", _) => Self::optional(Self::parse(inner)),
            ("type", _) => Self::Type(Some(Arc::new(Self::parse(inner)))),
            _ => Self::Error,
        }
    }
}

/// Splits at the comma that is in no parentheses.
fn split_top(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => return Some((&text[..index], &text[index + 1..])),
            _ => {}
        }
    }
    None
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => formatter.write_str("!error!"),
            Self::Any => formatter.write_str("any"),
            Self::Null => formatter.write_str("null"),
            Self::Duration => formatter.write_str("duration"),
            Self::Timestamp => formatter.write_str("timestamp"),
            Self::List(element) => write!(formatter, "list({element})"),
            Self::Map(key, value) => write!(formatter, "map({key}, {value})"),
            Self::Type(Some(inner)) => write!(formatter, "type({inner})"),
            Self::Param(name) => formatter.write_str(name),
            Self::Var(number) => write!(formatter, "_var{number}"),
            Self::Opaque(name, parameters) if !parameters.is_empty() => {
                let parameters: Vec<String> = parameters.iter().map(ToString::to_string).collect();
                write!(formatter, "{name}({})", parameters.join(", "))
            }
            Self::Dyn
            | Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::String
            | Self::Bytes
            | Self::Struct(_)
            | Self::Opaque(..)
            | Self::Type(None) => formatter.write_str(self.name()),
        }
    }
}
