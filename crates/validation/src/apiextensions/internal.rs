//! A definition in kube-apiserver's internal form: fields that are equal in all versions are moved to the top level.

use serde_json::Value;

/// Fields of versions with their names at the top level.
const HOISTED: [(&str, &str); 4] = [
    ("subresources", "subresources"),
    ("schema", "validation"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// Returns the internal form of `spec`.
pub(super) fn of(spec: &Value) -> Value {
    let mut fields = spec.as_object().cloned().unwrap_or_default();
    if let Some(Value::Array(versions)) = fields.get_mut("versions") {
        let hoisted: Vec<(String, Value)> =
            HOISTED.iter().filter_map(|(own, above)| hoist(versions, own, above)).collect();
        fields.extend(hoisted);
    }
    if let Some(conversion) = fields.get_mut("conversion").and_then(Value::as_object_mut) {
        let webhook = conversion.remove("webhook").unwrap_or_default();
        for (own, above) in
            [("clientConfig", "webhookClientConfig"), ("conversionReviewVersions", "conversionReviewVersions")]
        {
            if let Some(value) = webhook.get(own).filter(|value| !value.is_null()) {
                conversion.insert(above.to_owned(), value.clone());
            }
        }
    }
    Value::Object(fields)
}

/// Takes a field that is the same in all versions from them.
fn hoist(versions: &mut [Value], own: &str, above: &str) -> Option<(String, Value)> {
    let first = versions.first()?.get(own).cloned().unwrap_or_default();
    if !versions.iter().all(|version| super::super::view::is_same(version.get(own).unwrap_or(&Value::Null), &first)) {
        return None;
    }
    for version in versions.iter_mut().filter_map(Value::as_object_mut) {
        version.remove(own);
    }
    (!first.is_null()).then(|| (above.to_owned(), first))
}

/// Returns the subresources of a version, from the version or the top level.
pub(super) fn subresources<'v>(spec: &'v Value, version: &'v Value) -> &'v Value {
    static NONE: Value = Value::Null;
    version.get("subresources").or_else(|| spec.get("subresources")).unwrap_or(&NONE)
}

/// Fields of a schema in the order of kube-apiserver's type, with their names there.
pub(super) const FIELDS: [(&str, &str); 43] = [
    ("ID", "id"),
    ("Schema", "$schema"),
    ("Ref", "$ref"),
    ("Description", "description"),
    ("Type", "type"),
    ("Nullable", "nullable"),
    ("Format", "format"),
    ("Title", "title"),
    ("Default", "default"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Enum", "enum"),
    ("MaxProperties", "maxProperties"),
    ("MinProperties", "minProperties"),
    ("Required", "required"),
    ("Items", "items"),
    ("AllOf", "allOf"),
    ("OneOf", "oneOf"),
    ("AnyOf", "anyOf"),
    ("Not", "not"),
    ("Properties", "properties"),
    ("AdditionalProperties", "additionalProperties"),
    ("PatternProperties", "patternProperties"),
    ("Dependencies", "dependencies"),
    ("AdditionalItems", "additionalItems"),
    ("Definitions", "definitions"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XEmbeddedResource", "x-kubernetes-embedded-resource"),
    ("XIntOrString", "x-kubernetes-int-or-string"),
    ("XListMapKeys", "x-kubernetes-list-map-keys"),
    ("XListType", "x-kubernetes-list-type"),
    ("XMapType", "x-kubernetes-map-type"),
];

/// Returns true if a field of a schema has its zero value.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}
