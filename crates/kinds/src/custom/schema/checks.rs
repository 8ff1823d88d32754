//! Checks of values other than their types.

use serde_json::{Number, Value};

use super::Schema;

/// Conditions on values. A nested schema is read like any other, but sets no types.
#[derive(Debug, Default)]
pub struct Checks {
    /// `format`, where it is one that is checked.
    pub format: Option<Format>,
    /// `maximum`
    pub maximum: Option<NumberBound>,
    /// `minimum`
    pub minimum: Option<NumberBound>,
    /// `multipleOf`
    pub multiple_of: Option<f64>,
    /// `maxLength`, in characters.
    pub max_length: Option<i64>,
    /// `minLength`, in characters.
    pub min_length: Option<i64>,
    /// `pattern`
    pub pattern: Option<Pattern>,
    /// `maxItems`
    pub max_items: Option<i64>,
    /// `minItems`
    pub min_items: Option<i64>,
    /// `maxProperties`
    pub max_properties: Option<i64>,
    /// `minProperties`
    pub min_properties: Option<i64>,
    /// `required`
    pub required: Box<[Box<str>]>,
    /// `enum`; empty where all values are good.
    pub values: Box<[Value]>,
    /// `allOf`
    pub all_of: Box<[Schema]>,
    /// `anyOf`
    pub any_of: Box<[Schema]>,
    /// `oneOf`
    pub one_of: Box<[Schema]>,
    /// `not`
    pub not: Option<Box<Schema>>,
}

/// `maximum` or `minimum`.
#[derive(Clone, Copy, Debug)]
pub struct NumberBound {
    /// The bound.
    pub at: f64,
    /// It is not a value itself.
    pub is_exclusive: bool,
}

/// The text of a pattern. It is compiled when it is first needed, and forgotten when others are needed more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub Box<str>);

/// A format by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(pub Box<str>);

/// Formats of texts that are checked, without their dashes.
const OF_TEXT: [&str; 26] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// Returns true if a format checks values of a type; the type is empty if there is none, or more than one.
pub fn is_known_format(kind: &str, format: &str) -> bool {
    match kind {
        "" | "string" => {
            let plain = format.replace('-', "");
            !plain.is_empty() && OF_TEXT.contains(&&*plain)
        }
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Returns a number of a schema, as Go reads it.
pub(super) fn float(value: &Value) -> Option<f64> {
    value.as_number().and_then(Number::as_f64)
}
