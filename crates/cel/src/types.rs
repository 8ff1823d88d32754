//! CEL's types.

use std::fmt;
use std::sync::Arc;

/// Type of the type checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CelType {
    /// Type of an expression with an error.
    Error,
    /// Type that is known at run time only.
    Dyn,
    /// Like `Dyn`, without access to its contents.
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
    List(Arc<CelType>),
    /// `map(key, value)`
    Map(Arc<CelType>, Arc<CelType>),
    /// Object with declared fields, by name.
    Struct(Arc<str>),
    /// Type with a name and parameters but no fields, such as `optional_type(int)`.
    Opaque(Arc<str>, Arc<[CelType]>),
    /// Type of a type; without a parameter, of any type.
    Type(Option<Arc<CelType>>),
    /// Type parameter in the declaration of a function.
    Param(Arc<str>),
    /// Type variable that the checker has yet to infer.
    Var(usize),
}

impl CelType {
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

    /// Returns the type inside an optional.
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

    /// Returns true if the checker accepts null for it.
    pub(crate) fn is_nullable(&self) -> bool {
        matches!(self, Self::Opaque(..) | Self::Struct(_) | Self::Any | Self::Duration | Self::Timestamp | Self::Null)
    }

    /// Returns true if all its values have size 1.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Double | Self::Duration | Self::Int | Self::Timestamp | Self::Uint => true,
            _ => self.in_optional().is_some_and(Self::is_scalar),
        }
    }

    /// Returns the name that `type(x)` shows.
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

    /// Returns the type as an expression names it, as in `type(x) == string`.
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

    /// Parses the form of the function table: no spaces, parameters marked by an apostrophe.
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

/// Splits at the comma outside parentheses.
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

impl fmt::Display for CelType {
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
