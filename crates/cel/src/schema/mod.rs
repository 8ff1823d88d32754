//! The part of an OpenAPI schema that CEL sees, and the type that it declares.

mod declare;
mod escape;
mod formats;
mod read;

pub use declare::DeclaredType;
pub(crate) use declare::Shape;
pub use escape::{escape, unescape};
pub(crate) use formats::parse_date_time;
pub use formats::parse_duration;

use std::collections::BTreeMap;

/// Largest request, by which unbounded sizes are estimated.
pub(crate) const MAX_REQUEST_BYTES: i64 = 3 * 1024 * 1024;

/// A node of a structural schema, as far as rules, types and values need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// `type`; empty where there is none.
    pub kind: String,
    /// `format`; empty where there is none.
    pub format: String,
    /// `nullable`
    pub nullable: bool,
    /// Whether there are any `properties`; `kind` and the like of a resource count where they were added.
    pub has_properties: bool,
    /// `properties`
    pub properties: BTreeMap<String, Schema>,
    /// `additionalProperties`, where that is a schema.
    pub values: Option<Box<Schema>>,
    /// `items`
    pub items: Option<Box<Schema>>,
    /// `required`
    pub required: Vec<String>,
    /// Whether there is a default, which is as good as a value for what is required.
    pub has_default: bool,
    /// The longest text of `enum`, in bytes; `None` without `enum`.
    pub longest_enum: Option<i64>,
    /// `maxLength`
    pub max_length: Option<i64>,
    /// `maxItems`
    pub max_items: Option<i64>,
    /// `maxProperties`
    pub max_properties: Option<i64>,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded: bool,
    /// `x-kubernetes-list-type` with its keys
    pub list_type: ListType,
    /// `x-kubernetes-map-type: atomic`
    pub atomic_map: bool,
    /// `x-kubernetes-validations`
    pub rules: Vec<Rule>,
    /// `allOf`, of which only rules matter.
    pub all_of: Vec<Schema>,
}

/// `x-kubernetes-list-type`
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListType {
    /// By index.
    #[default]
    Atomic,
    /// Of scalars that are each there once.
    Set,
    /// Of objects that are told apart by these keys.
    Map(Vec<String>),
}

/// One of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The expression.
    pub rule: String,
    /// What is said where it does not hold; empty for the rule itself.
    pub message: String,
    /// An expression of what is said.
    pub message_expression: String,
    /// The reason of the error.
    pub reason: Option<Reason>,
    /// The field that is told, relative to where the rule is.
    pub field_path: String,
    /// Whether `oldSelf` is an optional, and the rule also runs where there is none.
    pub optional_old_self: Option<bool>,
}

/// Why a value is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueRequired`
    Required,
    /// `FieldValueDuplicate`
    Duplicate,
}

impl Schema {
    /// The schema of a property that values may have; `kind`, `apiVersion` and `metadata` of embedded resources are always there.
    pub(crate) fn property(&self, name: &str) -> Option<&Self> {
        let declared = self.properties.get(name);
        if !self.embedded || self.declares_meta() {
            return declared;
        }
        match name {
            "kind" | "apiVersion" => Some(&META.text),
            "metadata" => Some(&META.metadata),
            _ => declared,
        }
    }

    /// Whether this declares all of what the root of a resource always has.
    pub(crate) fn declares_meta(&self) -> bool {
        let is = |schema: Option<&Self>, kind: &str| schema.is_some_and(|schema| schema.kind == kind);
        let metadata = self.properties.get("metadata");
        is(self.properties.get("kind"), "string")
            && is(self.properties.get("apiVersion"), "string")
            && is(metadata, "object")
            && metadata.is_some_and(|meta| {
                is(meta.properties.get("name"), "string") && is(meta.properties.get("generateName"), "string")
            })
    }

    /// This as the root of a resource: with `kind`, `apiVersion`, and the names in `metadata`.
    #[must_use]
    pub fn with_meta(&self) -> Self {
        let mut schema = self.clone();
        if !schema.declares_meta() {
            schema.has_properties = true;
            schema.properties.insert("kind".to_owned(), META.text.clone());
            schema.properties.insert("apiVersion".to_owned(), META.text.clone());
            schema.properties.insert("metadata".to_owned(), META.metadata.clone());
        }
        schema
    }

    /// Whether any rule is here or below.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
            || self.items.as_deref().is_some_and(Self::has_rules)
            || self.values.as_deref().is_some_and(Self::has_rules)
            || self.properties.values().any(Self::has_rules)
    }
}

struct Meta {
    text: Schema,
    metadata: Schema,
}

static META: std::sync::LazyLock<Meta> = std::sync::LazyLock::new(|| {
    let text = Schema { kind: "string".to_owned(), ..Schema::default() };
    let properties = ["name", "generateName"].map(|name| (name.to_owned(), text.clone())).into();
    let metadata = Schema { kind: "object".to_owned(), has_properties: true, properties, ..Schema::default() };
    Meta { text, metadata }
});

#[cfg(test)]
mod tests;
