//! The part of an OpenAPI schema that CEL sees, and the type that it declares.

mod declare;
mod escape;
mod formats;
mod read;

pub(crate) use declare::DeclaredShape;
pub use declare::DeclaredType;
pub use escape::{escape, unescape};
pub(crate) use formats::parse_date_time;
pub use formats::parse_duration;

use std::collections::BTreeMap;

/// Largest request, by which unbounded sizes are estimated.
pub(crate) const MAX_REQUEST_BYTES: i64 = 3 * 1024 * 1024;

/// Node of a structural schema, with the fields that rules, types and values need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSchema {
    /// `type`; empty if the schema has none.
    pub kind: String,
    /// `format`; empty if the schema has none.
    pub format: String,
    /// `nullable`
    pub nullable: bool,
    /// True with any `properties`. Fields that were added to a resource, such as `kind`, count.
    pub has_properties: bool,
    /// `properties`
    pub properties: BTreeMap<String, RuleSchema>,
    /// `additionalProperties`, if it is a schema.
    pub values: Option<Box<RuleSchema>>,
    /// `items`
    pub items: Option<Box<RuleSchema>>,
    /// `required`
    pub required: Vec<String>,
    /// True with a default, which satisfies `required`.
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
    pub list_type: SchemaListType,
    /// `x-kubernetes-map-type: atomic`
    pub atomic_map: bool,
    /// `x-kubernetes-validations`
    pub rules: Vec<ValidationRule>,
    /// `allOf`. Only its rules matter.
    pub all_of: Vec<RuleSchema>,
}

/// `x-kubernetes-list-type`
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SchemaListType {
    /// By index.
    #[default]
    Atomic,
    /// Set of scalars.
    Set,
    /// List of objects that these keys identify.
    Map(Vec<String>),
}

/// One of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationRule {
    /// The expression.
    pub rule: String,
    /// Message for a violation; empty for the rule itself.
    pub message: String,
    /// Expression of the message.
    pub message_expression: String,
    /// The reason of the error.
    pub reason: Option<RuleReason>,
    /// Field in the error, relative to the rule's schema.
    pub field_path: String,
    /// True if `oldSelf` is an optional, and the rule also runs without an old value.
    pub optional_old_self: Option<bool>,
}

/// Reason of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleReason {
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueRequired`
    Required,
    /// `FieldValueDuplicate`
    Duplicate,
}

impl RuleSchema {
    /// Returns the schema of a property. `kind`, `apiVersion` and `metadata` of embedded resources always exist.
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

    /// Returns true if this declares all fields that the root of a resource always has.
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

    /// Returns this schema as the root of a resource: with `kind`, `apiVersion`, and the names in `metadata`.
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

    /// Returns true if this schema or a nested one has a rule.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
            || self.items.as_deref().is_some_and(Self::has_rules)
            || self.values.as_deref().is_some_and(Self::has_rules)
            || self.properties.values().any(Self::has_rules)
    }
}

struct SchemaMetadata {
    text: RuleSchema,
    metadata: RuleSchema,
}

static META: std::sync::LazyLock<SchemaMetadata> = std::sync::LazyLock::new(|| {
    let text = RuleSchema { kind: "string".to_owned(), ..RuleSchema::default() };
    let properties = ["name", "generateName"].map(|name| (name.to_owned(), text.clone())).into();
    let metadata = RuleSchema { kind: "object".to_owned(), has_properties: true, properties, ..RuleSchema::default() };
    SchemaMetadata { text, metadata }
});

#[cfg(test)]
mod tests;
