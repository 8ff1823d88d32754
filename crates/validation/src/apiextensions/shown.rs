//! Versions and schemas as kube-apiserver prints them: in its internal types, with Go's names and order of fields, and
//! with empty fields.

use serde_json::{Value, json};

use portolan_gocompat::json::escaped;

use super::internal::FIELDS;

/// Returns all versions of a definition.
pub(super) fn versions(versions: &Value) -> String {
    escaped(&list(versions, &version))
}

/// Returns a schema.
pub(super) fn schema(schema: &Value) -> String {
    escaped(&of_schema(schema))
}

fn list(value: &Value, one: &dyn Fn(&Value) -> String) -> String {
    match value.as_array() {
        Some(all) => format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(",")),
        None => "null".to_owned(),
    }
}

fn fields(parts: &[(&str, String)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
    format!("{{{}}}", parts.join(","))
}

/// Returns a value, or the zero value of its type if it is absent.
fn or(value: &Value, name: &str, zero: Value) -> String {
    value.get(name).filter(|value| !value.is_null()).unwrap_or(&zero).to_string()
}

fn version(value: &Value) -> String {
    let text = |name: &str| or(value, name, "".into());
    let flag = |name: &str| or(value, name, false.into());
    let part = |name: &str| value.get(name).unwrap_or(&Value::Null);
    let own = part("schema").get("openAPIV3Schema");
    let validation = own.map_or("null".to_owned(), |own| fields(&[("OpenAPIV3Schema", of_schema(own))]));
    fields(&[
        ("Name", text("name")),
        ("Served", flag("served")),
        ("Storage", flag("storage")),
        ("Deprecated", flag("deprecated")),
        ("DeprecationWarning", part("deprecationWarning").to_string()),
        ("Schema", validation),
        ("Subresources", subresources(part("subresources"))),
        ("AdditionalPrinterColumns", list(part("additionalPrinterColumns"), &column)),
        (
            "SelectableFields",
            list(part("selectableFields"), &|own| fields(&[("JSONPath", or(own, "jsonPath", "".into()))])),
        ),
    ])
}

fn subresources(value: &Value) -> String {
    if value.is_null() {
        return "null".to_owned();
    }
    let scale = value.get("scale").map_or("null".to_owned(), |scale| {
        fields(&[
            ("SpecReplicasPath", or(scale, "specReplicasPath", "".into())),
            ("StatusReplicasPath", or(scale, "statusReplicasPath", "".into())),
            ("LabelSelectorPath", or(scale, "labelSelectorPath", Value::Null)),
        ])
    });
    fields(&[("Status", or(value, "status", Value::Null)), ("Scale", scale)])
}

fn column(value: &Value) -> String {
    let text = |name: &str| or(value, name, "".into());
    fields(&[
        ("Name", text("name")),
        ("Type", text("type")),
        ("Format", text("format")),
        ("Description", text("description")),
        ("Priority", or(value, "priority", 0.into())),
        ("JSONPath", text("jsonPath")),
    ])
}

fn of_schema(value: &Value) -> String {
    let mut parts: Vec<(&str, String)> = FIELDS.iter().map(|(name, own)| (*name, of_field(value, name, own))).collect();
    let rule = |rule: &Value| {
        let text = |name: &str| or(rule, name, "".into());
        fields(&[
            ("Rule", text("rule")),
            ("Message", text("message")),
            ("MessageExpression", text("messageExpression")),
            ("Reason", or(rule, "reason", Value::Null)),
            ("FieldPath", text("fieldPath")),
            ("OptionalOldSelf", or(rule, "optionalOldSelf", Value::Null)),
        ])
    };
    parts.push(("XValidations", list(value.get("x-kubernetes-validations").unwrap_or(&Value::Null), &rule)));
    fields(&parts)
}

fn of_field(schema: &Value, name: &str, own: &str) -> String {
    let value = schema.get(own).unwrap_or(&Value::Null);
    let schemas = |value: &Value| {
        value.as_object().map_or("null".to_owned(), |all| {
            let parts: Vec<(&str, String)> = all.iter().map(|(key, inner)| (key.as_str(), of_schema(inner))).collect();
            fields(&parts)
        })
    };
    let one = |value: &Value| if value.is_object() { of_schema(value) } else { "null".to_owned() };
    match name {
        "ID" | "Schema" | "Description" | "Type" | "Format" | "Title" | "Pattern" => or(schema, own, "".into()),
        "Nullable" | "ExclusiveMaximum" | "ExclusiveMinimum" | "UniqueItems" | "XEmbeddedResource" | "XIntOrString" => {
            or(schema, own, false.into())
        }
        "AllOf" | "OneOf" | "AnyOf" => list(value, &of_schema),
        "Not" => one(value),
        "Properties" | "PatternProperties" | "Definitions" => schemas(value),
        "Items" if !value.is_null() => fields(&[("Schema", one(value)), ("JSONSchemas", list(value, &of_schema))]),
        "AdditionalProperties" | "AdditionalItems" if !value.is_null() => {
            let allows = json!(value.is_object() || *value == Value::Bool(true));
            fields(&[("Allows", allows.to_string()), ("Schema", one(value))])
        }
        _ => value.to_string(),
    }
}
