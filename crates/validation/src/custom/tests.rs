use serde_json::{Value, json};

use super::*;
use portolan_codec::decode::structural;
use portolan_kinds::custom::{MAX_NODES, Schema};

#[test]
fn embedded_objects_are_objects() {
    let json = json!({"properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": true}}});
    let of = Schema::read(&json, &mut MAX_NODES.clone()).unwrap();
    let coerce = |object: &mut Value| {
        let mut unknown = Vec::new();
        structural::coerce_at(&Path::default(), object, &of, &mut unknown).map(|()| unknown)
    };
    let mut object = json!({"a": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "nothing": 1}}});
    assert_eq!(coerce(&mut object).unwrap(), ["a.metadata.nothing"]);
    assert_eq!(object["a"]["metadata"], json!({"name": "n"}));
    assert_eq!(coerce(&mut json!({"a": {"kind": 1}})).unwrap_err(), "a.kind: Invalid value: 1: must be a string");
    let mut errors = Errors::default();
    let bad = json!({"a": {"kind": "", "metadata": {"labels": {"a b": "c"}}}});
    embedded::check(&Path::default(), &bad, &of, &mut errors);
    let causes = errors.into_causes().into_iter();
    let told: Vec<String> = causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    assert_eq!(told[..2], ["a.apiVersion: Required value", "a.kind: Invalid value: \"\": must not be empty"]);
    assert!(told[2].starts_with("a.metadata.labels: Invalid value: \"a b\""), "{told:?}");
}
