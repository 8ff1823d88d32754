//! A structural schema: the rules of a definition for the values of its objects, without descriptions and examples.
//!
//! It is read once per content ([`Schema::read`]). Pruning, defaults, validation and server-side apply walk it.

mod checks;
mod read;

use serde_json::Value;

pub use checks::is_known_format;
pub use checks::{Checks, Format, NumberBound, Pattern};
pub use read::MAX_NODES;
pub use read::TooLarge;
pub(super) use read::weight;

/// A node of a structural schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// Types that values may have.
    pub kind: ValueKind,
    /// `null` is a value, too.
    pub nullable: bool,
    /// Default of a missing value.
    pub default: Option<Box<Default>>,
    /// `properties`, sorted by name.
    pub properties: Properties,
    /// Rule for keys that are not properties.
    pub additional: Additional,
    /// Schema of the elements of a list.
    pub items: Option<Box<Schema>>,
    /// Fields that are not declared stay.
    pub preserves_unknown: bool,
    /// Values are whole objects, with apiVersion, kind and metadata.
    pub is_resource: bool,
    /// Merge and uniqueness of lists.
    pub list: ListKind,
    /// Objects are owned as one value.
    pub is_atomic: bool,
    /// Other checks of values.
    pub checks: Option<Box<Checks>>,
}

/// Properties with their names.
pub type Properties = Box<[(Box<str>, Schema)]>;

/// Default value with its size.
#[derive(Debug)]
pub struct Default {
    /// The value.
    pub value: Value,
    /// Returns the approximate size in memory in bytes.
    pub weight: usize,
}

/// `type`, with `x-kubernetes-int-or-string`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueKind {
    /// Unset.
    #[default]
    Any,
    /// `object`
    Object,
    /// `array`
    Array,
    /// `string`
    String,
    /// `integer`
    Integer,
    /// `number`
    Number,
    /// `boolean`
    Boolean,
    /// A number without fraction, or a string.
    IntOrString,
}

impl ValueKind {
    /// Returns the name of the type as errors show it; empty if it is not set.
    pub fn word(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::IntOrString => "integer,string",
        }
    }

    /// Returns true if values may have the type.
    pub fn has(self, word: &str) -> bool {
        match self {
            Self::IntOrString => matches!(word, "integer" | "string"),
            other => other.word() == word,
        }
    }
}

/// `additionalProperties`
#[derive(Debug, Default)]
pub enum Additional {
    /// Unset.
    #[default]
    Unsaid,
    /// Any values, or no further keys at all.
    Allowed(bool),
    /// Values of further keys are like this.
    Like(Box<Schema>),
}

/// `x-kubernetes-list-type`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// Unset, or set to one value.
    #[default]
    Atomic,
    /// Elements occur once.
    Set,
    /// Elements are distinguished by these fields.
    Map(Box<[std::sync::Arc<str>]>),
}

/// Fields that every whole object has, declared or not.
pub const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Schema {
    /// Returns the property of this name.
    pub fn property(&self, name: &str) -> Option<&Schema> {
        let found = self.properties.binary_search_by(|(own, _)| (**own).cmp(name));
        found.ok().map(|at| &self.properties[at].1)
    }

    /// Returns the schema of additional properties, if there is one.
    pub fn entries(&self) -> Option<&Schema> {
        match &self.additional {
            Additional::Like(schema) => Some(schema),
            Additional::Unsaid | Additional::Allowed(_) => None,
        }
    }

    /// Returns the schema for a key of an object, be it a property or a further key.
    pub fn at_key(&self, name: &str) -> Option<&Schema> {
        self.property(name).or_else(|| self.entries())
    }

    /// Returns true for a null that the schema does not allow, which counts as a missing value.
    pub(crate) fn is_bare_null(&self, value: &Value) -> bool {
        value.is_null() && !self.nullable
    }
}
