//! Reading a schema from JSON. Fields of an unexpected form are skipped: the schema's own validation reports them.

use super::{RuleReason, RuleSchema, SchemaListType, ValidationRule};
use serde_json::Value as Json;

impl RuleSchema {
    /// Reads `openAPIV3Schema`, or any node of it.
    #[must_use]
    pub fn from_json(json: &Json) -> Self {
        let flag = |name: &str| json.get(name).and_then(Json::as_bool).unwrap_or_default();
        let count = |name: &str| json.get(name).and_then(Json::as_i64);
        let properties = json.get("properties").and_then(Json::as_object);
        Self {
            kind: text(json, "type"),
            format: text(json, "format"),
            nullable: flag("nullable"),
            has_properties: properties.is_some_and(|properties| !properties.is_empty()),
            properties: properties
                .into_iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), Self::from_json(schema)))
                .collect(),
            values: json
                .get("additionalProperties")
                .filter(|schema| schema.is_object())
                .map(|schema| Box::new(Self::from_json(schema))),
            items: json
                .get("items")
                .filter(|schema| schema.is_object())
                .map(|schema| Box::new(Self::from_json(schema))),
            required: texts(json, "required"),
            has_default: json.get("default").is_some_and(|default| !default.is_null()),
            longest_enum: longest_enum(json),
            max_length: count("maxLength"),
            max_items: count("maxItems"),
            max_properties: count("maxProperties"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            list_type: list_type(json),
            atomic_map: text(json, "x-kubernetes-map-type") == "atomic",
            rules: list(json, "x-kubernetes-validations").iter().map(rule).collect(),
            all_of: list(json, "allOf").iter().map(Self::from_json).collect(),
        }
    }
}

fn list<'a>(json: &'a Json, name: &str) -> &'a [Json] {
    json.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn text(json: &Json, name: &str) -> String {
    json.get(name).and_then(Json::as_str).unwrap_or_default().to_owned()
}

fn texts(json: &Json, name: &str) -> Vec<String> {
    list(json, name).iter().filter_map(Json::as_str).map(str::to_owned).collect()
}

fn longest_enum(json: &Json) -> Option<i64> {
    let values = list(json, "enum");
    let longest = values.iter().filter_map(Json::as_str).map(str::len).max().unwrap_or_default();
    (!values.is_empty()).then(|| i64::try_from(longest).unwrap_or(i64::MAX))
}

fn list_type(json: &Json) -> SchemaListType {
    match text(json, "x-kubernetes-list-type").as_str() {
        "set" => SchemaListType::Set,
        "map" => SchemaListType::Map(texts(json, "x-kubernetes-list-map-keys")),
        _ => SchemaListType::Atomic,
    }
}

fn rule(json: &Json) -> ValidationRule {
    ValidationRule {
        rule: text(json, "rule"),
        message: text(json, "message"),
        message_expression: text(json, "messageExpression"),
        reason: match text(json, "reason").as_str() {
            "FieldValueForbidden" => Some(RuleReason::Forbidden),
            "FieldValueRequired" => Some(RuleReason::Required),
            "FieldValueDuplicate" => Some(RuleReason::Duplicate),
            "FieldValueInvalid" => Some(RuleReason::Invalid),
            _ => None,
        },
        field_path: text(json, "fieldPath"),
        optional_old_self: json.get("optionalOldSelf").and_then(Json::as_bool),
    }
}
