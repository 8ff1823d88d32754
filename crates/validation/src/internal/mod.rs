//! Values as kube-apiserver prints them: in its internal types, with Go's names and order of fields, and with empty
//! fields. The forms are data (`data/internal.json`, made by `e2e/codegen/kindtable`).

mod difference;

use std::{collections::HashMap, sync::LazyLock};

use serde_json::Value;

/// Name in the internal form (empty: its own fields replace the field), name in the published form, type.
type Field = (String, String, String);

static FORMS: LazyLock<HashMap<String, Vec<Field>>> = LazyLock::new(|| {
    let text = include_str!("../../data/internal.json");
    serde_json::from_str(text).expect("the file is part of the program, and a test reads it")
});

/// JSON value whose fields have an order.
enum Json {
    Leaf(String),
    List(Vec<Json>),
    Fields(Vec<(String, Json)>),
}

/// Returns the value of a type (`PodSpec`, `[]PodIP`) as JSON on one line. Types that are not known are shown as they
/// are.
pub(super) fn printed_value(kind: &str, value: &Value) -> String {
    let mut out = String::new();
    internal(kind, value).write(&mut out, None);
    out
}

/// Returns the change between two values of a type as a unified diff of their JSON.
pub(super) fn diff(kind: &str, old: &Value, new: &Value) -> String {
    let text = |value: &Value| {
        let mut out = String::new();
        internal(kind, value).write(&mut out, Some(0));
        out
    };
    difference::unified(&text(old), &text(new))
}

fn leaf(value: &Value) -> Json {
    Json::Leaf(portolan_gocompat::json::escaped(&value.to_string()))
}

fn internal(kind: &str, value: &Value) -> Json {
    if let Some(inner) = kind.strip_prefix(['?', '*']) {
        return if kind.starts_with('*') && value.is_null() { leaf(value) } else { internal(inner, value) };
    }
    if let Some(inner) = kind.strip_prefix("[]") {
        return match value {
            Value::Array(list) => Json::List(list.iter().map(|element| internal(inner, element)).collect()),
            _ => leaf(value),
        };
    }
    if let Some(inner) = kind.strip_prefix("{}") {
        return match value {
            Value::Object(map) => {
                Json::Fields(map.iter().map(|(key, entry)| (key.clone(), internal(inner, entry))).collect())
            }
            _ => leaf(value),
        };
    }
    match (kind, value) {
        ("string", Value::Null) => leaf(&"".into()),
        ("number", Value::Null) => leaf(&0.into()),
        ("quantity", Value::Null) => leaf(&"0".into()),
        ("bool", Value::Null) => leaf(&false.into()),
        _ => match FORMS.get(kind) {
            Some(fields) => Json::Fields(message(kind, fields, value)),
            None => leaf(value),
        },
    }
}

/// Fields of a pod that are in its spec when published, and in its security context internally.
const MOVED: [&str; 5] = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];

fn message(kind: &str, fields: &[Field], value: &Value) -> Vec<(String, Json)> {
    let mut out = Vec::new();
    for (name, from, kind_of_field) in fields {
        let entry = value.get(from).unwrap_or(&Value::Null);
        if name.is_empty() {
            let inner = kind_of_field.trim_start_matches(['*', '?']);
            if let Some(fields) = FORMS.get(inner) {
                out.extend(message(inner, fields, if from.is_empty() { value } else { entry }));
            }
        } else if kind == "PodSpec" && from == "securityContext" {
            let mut context = entry.as_object().cloned().unwrap_or_default();
            context.extend(MOVED.iter().filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone()))));
            out.push((name.clone(), internal("PodSecurityContext", &context.into())));
        } else if !(kind_of_field.starts_with('?') && is_empty(kind_of_field, entry)) {
            out.push((name.clone(), internal(kind_of_field, entry)));
        }
    }
    out
}

/// Returns true if Go's `omitempty` leaves the value out.
fn is_empty(kind: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty() && kind.contains("{}"),
        Value::String(text) => text.is_empty() && !kind.contains('*'),
        Value::Number(number) => number.as_i64() == Some(0) && !kind.contains('*'),
        Value::Bool(flag) => !flag && !kind.contains('*'),
    }
}

impl Json {
    /// Writes it on one line, or indented by one space per level, as Go does.
    fn write(&self, out: &mut String, indent: Option<usize>) {
        match self {
            Self::Leaf(text) => out.push_str(text),
            Self::List(list) => {
                let parts = list.iter().map(|element| (None, element));
                write_all(out, ('[', ']'), parts, indent);
            }
            Self::Fields(fields) => {
                let parts = fields.iter().map(|(name, value)| (Some(name.as_str()), value));
                write_all(out, ('{', '}'), parts, indent);
            }
        }
    }
}

fn write_all<'j>(
    out: &mut String,
    (open, close): (char, char),
    parts: impl ExactSizeIterator<Item = (Option<&'j str>, &'j Json)>,
    indent: Option<usize>,
) {
    let (count, deeper) = (parts.len(), indent.map(|level| level + 1));
    let line = |out: &mut String, level: Option<usize>| {
        if let Some(level) = level {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', level));
        }
    };
    out.push(open);
    for (at, (name, value)) in parts.enumerate() {
        line(out, deeper);
        if let Some(name) = name {
            out.push_str(&portolan_gocompat::json::escaped(&Value::from(name).to_string()));
            out.push_str(if indent.is_some() { ": " } else { ":" });
        }
        value.write(out, deeper);
        if at + 1 < count {
            out.push(',');
        }
    }
    if count > 0 {
        line(out, indent);
    }
    out.push(close);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form_that_is_named_is_there() {
        for (name, fields) in FORMS.iter() {
            for (_, _, kind) in fields {
                let inner = kind.trim_start_matches(['?', '*', '[', ']', '{', '}']);
                let known =
                    ["string", "number", "bool", "quantity", "any"].contains(&inner) || FORMS.contains_key(inner);
                assert!(known, "{name} has a field of type {kind}");
            }
        }
    }

    #[test]
    fn values_are_shown_with_all_fields_in_the_order_of_go() {
        for (kind, value, expected) in [
            (
                "Taint",
                json!({"key": "a<b", "effect": "NoSchedule"}),
                r#"{"Key":"a\u003cb","Value":"","Effect":"NoSchedule","TimeAdded":null}"#,
            ),
            (
                "LabelSelector",
                json!({"matchExpressions": [], "matchLabels": {"a": "b"}}),
                r#"{"matchLabels":{"a":"b"}}"#,
            ),
            ("[]PodIP", json!([{"ip": "1.2.3.4"}]), r#"[{"IP":"1.2.3.4"}]"#),
            ("", json!({"b": 1}), r#"{"b":1}"#),
        ] {
            assert_eq!(printed_value(kind, &value), expected);
        }
    }

    #[test]
    fn differences_are_unified() {
        let old = json!({"key": "a", "effect": "NoSchedule"});
        let new = json!({"key": "a", "value": "v", "effect": "NoSchedule"});
        let expected = "@@ -1,6 +1,6 @@\n {\n  \"Key\": \"a\",\n- \"Value\": \"\",\n+ \"Value\": \"v\",\n  \"Effect\": \"NoSchedule\",\n  \"TimeAdded\": null\n }\n";
        assert_eq!(diff("Taint", &old, &new), expected);
    }
}
