//! Tests of conversion.

use serde_json::json;

use super::*;

#[test]
fn versions_are_read_from_bytes() {
    for (case, object, expected) in [
        ("the version", json!({"apiVersion": "example.dev/v1", "kind": "Widget"}), true),
        ("one that begins like it", json!({"apiVersion": "example.dev/v1beta1"}), false),
        ("another field is first", json!({"aa": 1, "apiVersion": "example.dev/v1"}), true),
        ("there is none", json!({"kind": "Widget"}), false),
    ] {
        assert_eq!(is_in(&Record::of(&object), "example.dev/v1"), expected, "{case}");
    }
}
