//! A structural schema: what a definition says of the values of its objects, without texts and examples.
//!
//! It is read once per content ([`Schema::read`]) and then only walked: by pruning, defaults, validation, server-side apply.

mod checks;
mod read;

use serde_json::Value;

pub(crate) use checks::is_known_format;
pub use checks::{Bound, Checks, Format, Pattern};
pub use read::TooLarge;
pub(crate) use read::{MAX_NODES, weight};

/// A node of a structural schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// What values may be.
    pub kind: ValueKind,
    /// `null` is a value, too.
    pub nullable: bool,
    /// What is filled in where there is no value.
    pub default: Option<Box<Default>>,
    /// `properties`, sorted by name.
    pub properties: Properties,
    /// What holds for keys that are no properties.
    pub additional: Additional,
    /// What elements of a list are.
    pub items: Option<Box<Schema>>,
    /// Fields that are not declared stay.
    pub preserves_unknown: bool,
    /// Values are whole objects, with apiVersion, kind and metadata.
    pub is_resource: bool,
    /// How lists are merged, and what of them is unique.
    pub list: ListKind,
    /// Objects are owned as one value.
    pub is_atomic: bool,
    /// What else holds for values.
    pub checks: Option<Box<Checks>>,
}

/// Properties with their names.
pub type Properties = Box<[(Box<str>, Schema)]>;

/// A default with what it weighs.
#[derive(Debug)]
pub struct Default {
    /// The value.
    pub value: Value,
    /// About how many bytes it takes in memory.
    pub weight: usize,
}

/// `type`, with `x-kubernetes-int-or-string`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueKind {
    /// Nothing is said.
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
    /// As errors tell it; empty where nothing is said.
    pub(crate) fn word(self) -> &'static str {
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

    /// Whether values may be of a type by its word.
    pub(crate) fn has(self, word: &str) -> bool {
        match self {
            Self::IntOrString => matches!(word, "integer" | "string"),
            other => other.word() == word,
        }
    }
}

/// `additionalProperties`
#[derive(Debug, Default)]
pub enum Additional {
    /// Nothing is said.
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
    /// Nothing is said, or that it is one value.
    #[default]
    Atomic,
    /// Elements are there once.
    Set,
    /// Elements are told apart by these fields.
    Map(Box<[std::sync::Arc<str>]>),
}

/// Fields that every whole object has, declared or not.
pub(crate) const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Schema {
    /// The property of this name.
    pub fn property(&self, name: &str) -> Option<&Schema> {
        let found = self.properties.binary_search_by(|(own, _)| (**own).cmp(name));
        found.ok().map(|at| &self.properties[at].1)
    }

    /// What values of further keys are like, where that is said.
    pub fn entries(&self) -> Option<&Schema> {
        match &self.additional {
            Additional::Like(schema) => Some(schema),
            Additional::Unsaid | Additional::Allowed(_) => None,
        }
    }

    /// The schema for a key of an object, be it a property or a further key.
    pub fn at_key(&self, name: &str) -> Option<&Schema> {
        self.property(name).or_else(|| self.entries())
    }

    /// A missing value is no value of this.
    pub(crate) fn is_bare_null(&self, value: &Value) -> bool {
        value.is_null() && !self.nullable
    }
}
