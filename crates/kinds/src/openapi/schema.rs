//! Schemas of types and fields.

use serde_json::{Map, Value, json};

use super::Texts;
use crate::{Field, FieldKind, KindTable, ListType, MapType, PatchStrategy, Scalar, Special, Type, TypeId};

/// Returns the schema of a type, without `x-kubernetes-group-version-kind`.
pub(super) fn of_type(table: &KindTable, own: &Type, texts: &dyn Texts) -> Value {
    if let Some(published) = &own.published {
        return serde_json::from_str(published).unwrap_or_else(|_| json!({"type": "object"}));
    }
    let mut schema = match own.special {
        Some(special) => definition(special),
        None => of_message(table, own, texts),
    };
    if own.atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    if let Some(unions) = &own.unions {
        schema["x-kubernetes-unions"] = unions.clone();
    }
    if own.preserve_unknown {
        schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    }
    if own.embedded_resource {
        schema["x-kubernetes-embedded-resource"] = true.into();
    }
    if let Some(text) = texts.text(&own.name, None) {
        schema["description"] = text.into();
    }
    schema
}

/// Returns the types that the schema of a type refers to.
pub(super) fn references<'a>(table: &'a KindTable, own: &'a Type) -> impl Iterator<Item = TypeId> + 'a {
    own.fields.iter().filter_map(|field| match field.kind.element() {
        FieldKind::Message(id) => Some(*id),
        FieldKind::Special(special) => table.type_named(special_name(*special)?),
        _ => None,
    })
}

fn of_message(table: &KindTable, own: &Type, texts: &dyn Texts) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in &own.fields {
        let mut property = of_field(table, field);
        if let Some(text) = texts.text(&own.name, Some(&field.name)) {
            property["description"] = text.into();
        }
        properties.insert(field.name.to_string(), property);
        if field.required {
            required.push((field.place, &*field.name));
        }
    }
    let mut schema = json!({"type": "object"});
    if !properties.is_empty() {
        schema["properties"] = Value::Object(properties);
    }
    if !required.is_empty() {
        required.sort_unstable();
        schema["required"] = required.into_iter().map(|(_, name)| name).collect();
    }
    schema
}

fn of_field(table: &KindTable, field: &Field) -> Value {
    let mut schema = match &field.kind {
        FieldKind::List(element) => json!({"type": "array", "items": of_element(table, element, field)}),
        FieldKind::Map(element) => json!({"type": "object", "additionalProperties": of_element(table, element, field)}),
        kind => of_value(table, kind, field),
    };
    if field.bare {
        return schema;
    }
    if let Some(reference) = schema.as_object_mut().and_then(|schema| schema.remove("$ref")) {
        // Siblings of a bare reference would be ignored.
        schema["allOf"] = json!([{"$ref": reference}]);
    }
    let default = field.declared.clone().or_else(|| field.trivial_default());
    for (name, value) in [
        ("default", default),
        ("nullable", field.nullable.then_some(Value::Bool(true))),
        ("x-kubernetes-list-type", field.tells_list.then(|| list_type(&field.list))),
        ("x-kubernetes-list-map-keys", list_keys(&field.list)),
        ("x-kubernetes-map-type", field.map.map(map_type)),
        ("x-kubernetes-patch-strategy", patch_strategy(field.patch)),
        ("x-kubernetes-patch-merge-key", field.merge_key.as_deref().map(Value::from)),
    ] {
        if let Some(value) = value {
            schema[name] = value;
        }
    }
    schema
}

/// Returns the schema of an element. Its default is the zero value of its Go type, unless that type is a pointer.
fn of_element(table: &KindTable, element: &FieldKind, field: &Field) -> Value {
    match element {
        FieldKind::List(inner) => json!({"type": "array", "items": of_element(table, inner, field)}),
        FieldKind::Map(inner) => json!({"type": "object", "additionalProperties": of_element(table, inner, field)}),
        FieldKind::Message(_) => json!({"allOf": [of_value(table, element, field)], "default": {}}),
        FieldKind::Scalar(scalar) => {
            let mut schema = of_value(table, element, field);
            let default = match scalar {
                Scalar::String => Value::from(""),
                Scalar::Bool => Value::from(false),
                Scalar::Bytes => return schema,
                Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 | Scalar::Double => Value::from(0),
            };
            schema["default"] = default;
            schema
        }
        FieldKind::Special(_) => of_value(table, element, field),
    }
}

fn of_value(table: &KindTable, kind: &FieldKind, field: &Field) -> Value {
    let mut schema = match kind {
        FieldKind::Scalar(scalar) => of_scalar(*scalar),
        FieldKind::Message(id) => return reference(&table.get(*id).name),
        FieldKind::Special(Special::Strings) => json!({"type": "array", "items": {"type": "string", "default": ""}}),
        FieldKind::Special(Special::Any) => json!({"x-kubernetes-preserve-unknown-fields": true}),
        FieldKind::Special(special) => return special_name(*special).map_or_else(|| json!({}), reference),
        FieldKind::List(_) | FieldKind::Map(_) => of_element(table, kind, field),
    };
    if let Some(format) = &field.format {
        schema["format"] = (**format).into();
    }
    if !field.values.is_empty() {
        schema["enum"] = json!(&field.values);
    }
    schema
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn of_scalar(scalar: Scalar) -> Value {
    match scalar {
        Scalar::String => json!({"type": "string"}),
        Scalar::Bool => json!({"type": "boolean"}),
        Scalar::Int32 => json!({"type": "integer", "format": "int32"}),
        Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 => json!({"type": "integer", "format": "int64"}),
        Scalar::Double => json!({"type": "number", "format": "double"}),
        Scalar::Bytes => json!({"type": "string", "format": "byte"}),
    }
}

/// Returns the definition name of a special type that has one.
fn special_name(special: Special) -> Option<&'static str> {
    Some(match special {
        Special::Time => "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
        Special::MicroTime => "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
        Special::Duration => "io.k8s.apimachinery.pkg.apis.meta.v1.Duration",
        Special::Quantity => "io.k8s.apimachinery.pkg.api.resource.Quantity",
        Special::IntOrString => "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        Special::RawExtension => "io.k8s.apimachinery.pkg.runtime.RawExtension",
        Special::FieldsV1 => "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
        Special::Json => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
        Special::SchemaOrBool => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
        Special::SchemaOrArray => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
        Special::SchemaOrStrings => {
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray"
        }
        Special::Strings | Special::Any => return None,
    })
}

fn definition(special: Special) -> Value {
    match special {
        Special::Time | Special::MicroTime => json!({"type": "string", "format": "date-time"}),
        Special::Duration => json!({"type": "string"}),
        Special::Quantity => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        Special::IntOrString => json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        Special::RawExtension | Special::FieldsV1 => json!({"type": "object"}),
        Special::Json | Special::SchemaOrBool | Special::SchemaOrArray | Special::SchemaOrStrings => json!({}),
        Special::Strings | Special::Any => json!({}),
    }
}

fn list_type(list: &ListType) -> Value {
    Value::from(match list {
        ListType::Atomic => "atomic",
        ListType::Set => "set",
        ListType::Map(_) => "map",
    })
}

fn list_keys(list: &ListType) -> Option<Value> {
    match list {
        ListType::Map(keys) => Some(json!(keys)),
        ListType::Atomic | ListType::Set => None,
    }
}

fn map_type(map: MapType) -> Value {
    Value::from(match map {
        MapType::Atomic => "atomic",
        MapType::Granular => "granular",
    })
}

fn patch_strategy(patch: PatchStrategy) -> Option<Value> {
    let words = [(patch.merge, "merge"), (patch.retain_keys, "retainKeys"), (patch.replace, "replace")];
    let words: Vec<&str> = words.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
    (!words.is_empty()).then(|| words.join(",").into())
}
