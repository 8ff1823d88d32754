use super::*;
use crate::check::ObjectTypes;
use crate::types::CelType;
use serde_json::json;

#[test]
fn names_are_escaped_and_found_again() {
    for (name, expected) in [
        ("simple", Some("simple")),
        ("a.b", Some("a__dot__b")),
        ("a-b/c", Some("a__dash__b__slash__c")),
        ("__x", Some("__underscores__x")),
        ("namespace", Some("__namespace__")),
        ("a_b", Some("a_b")),
        ("1a", None),
        ("ä", None),
        ("", None),
    ] {
        let escaped = escape(name);
        assert_eq!(escaped.as_deref(), expected, "{name}");
        if let Some(escaped) = escaped {
            assert_eq!(unescape(&escaped).as_deref(), Some(name), "{name}");
        }
    }
    assert_eq!(unescape("__nonsense__"), None);
}

#[test]
fn a_schema_declares_what_expressions_can_see() {
    let schema = RuleSchema::from_json(&json!({"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "port": {"x-kubernetes-int-or-string": true},
        "free": {"x-kubernetes-preserve-unknown-fields": true},
        "any-list": {"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}},
        "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}},
        "when": {"type": "string", "format": "date-time"},
    }}));
    let declared = DeclaredType::of(&schema, true).expect("a type");
    let mut objects = ObjectTypes::new();
    assert_eq!(declared.declare("root", &mut objects), CelType::Struct("root".into()));
    let seen: Vec<String> = objects["root"].iter().map(|(name, one)| format!("{name}: {one}")).collect();
    assert_eq!(
        seen,
        [
            "apiVersion: string",
            "kind: string",
            "labels: map(string, string)",
            "metadata: root.metadata",
            "port: dyn",
            "replicas: int",
            "when: timestamp"
        ]
    );
}

#[test]
fn sizes_without_schema_bounds_are_bounded_by_the_request() {
    for (case, schema, expected) in [
        ("a text", json!({"type": "string"}), 3_145_726),
        ("a text with a maximum", json!({"type": "string", "maxLength": 10}), 40),
        ("a choice", json!({"type": "string", "enum": ["a", "long"]}), 4),
        ("a list of numbers", json!({"type": "array", "items": {"type": "integer"}}), 1_572_863),
        ("a list with a maximum", json!({"type": "array", "maxItems": 7, "items": {"type": "integer"}}), 7),
        ("a map", json!({"type": "object", "additionalProperties": {"type": "boolean"}}), 314_572),
        ("bytes", json!({"type": "string", "format": "byte", "maxLength": 9}), 9),
        ("a duration", json!({"type": "string", "format": "duration"}), 32),
    ] {
        let declared = DeclaredType::of(&RuleSchema::from_json(&schema), false).expect("a type");
        assert_eq!(declared.max_elements, expected, "{case}");
    }
}

#[test]
fn durations_of_data_may_be_in_days() {
    assert_eq!(parse_duration("1d"), Some(86_400_000_000_000));
    assert_eq!(parse_duration("2 weeks"), Some(1_209_600_000_000_000));
    assert_eq!(parse_duration("soon"), None);
}
