//! Formats in schemas of definitions that nothing is checked by.

use serde_json::Value;

use portolan_kinds::custom::is_known_format;

/// Most formats that are reported.
const MAX_TOLD: usize = 100;

pub(super) fn unrecognized(format: &str) -> String {
    format!("unrecognized format {format:?}")
}

/// Returns the unknown formats in the schemas of a definition. A format in several versions counts once.
pub(super) fn formats(crd: &Value) -> Vec<String> {
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let mut found = Vec::new();
    versions
        .filter_map(|version| version.pointer("/schema/openAPIV3Schema"))
        .for_each(|schema| gather(schema, &mut found));
    found
}

fn gather(schema: &Value, found: &mut Vec<String>) {
    let Some(fields) = schema.as_object() else { return };
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let format = text("format");
    let is_new = || !found.iter().any(|own| own == format);
    if !format.is_empty() && found.len() < MAX_TOLD && !is_known_format(text("type"), format) && is_new() {
        found.push(format.to_owned());
    }
    for name in ["items", "not", "additionalProperties"] {
        fields.get(name).into_iter().for_each(|inner| gather(inner, found));
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        fields.get(name).and_then(Value::as_array).into_iter().flatten().for_each(|inner| gather(inner, found));
    }
    let properties = fields.get("properties").and_then(Value::as_object);
    properties.into_iter().flat_map(|all| all.values()).for_each(|inner| gather(inner, found));
}
