use portolan_gocompat::print::go_general;
use serde_json::{Value, json};

use super::*;
use crate::{
    custom::{Schema, schema::MAX_NODES},
    field::{Errors, Path},
};

fn schema(json: &Value) -> Schema {
    Schema::read(json, &mut MAX_NODES.clone()).unwrap()
}

fn causes(errors: Errors) -> Vec<String> {
    errors.into_causes().into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn wrong(of: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
    let mut errors = Errors::default();
    validate(&Path::default(), value, old, (&schema(of), &Effort::default()), &mut errors);
    causes(errors)
}

/// Returns a schema of objects with one property `a`.
fn a(property: Value) -> Value {
    json!({"properties": {"a": property}})
}

#[test]
fn invalid_values_have_kube_apiservers_messages() {
    for (of, value, expected) in [
        (
            json!({"type": "integer"}),
            json!("x"),
            "a: Invalid value: \"string\": a in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            "a: Invalid value: \"number\": a in body must be of type integer: \"number\", <nil>: Invalid value: \"\": Checked value must be of type integer (default format) in a",
        ),
        (json!({"type": "integer"}), json!(5.0), ""),
        (json!({"type": "number"}), json!(5), ""),
        (
            json!({"type": "string"}),
            json!(null),
            "a: Invalid value: \"null\": a in body must be of type string: \"null\"",
        ),
        (json!({"type": "string", "nullable": true}), json!(null), ""),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            "a: Invalid value: \"boolean\": a in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"type": "string", "enum": ["x", "y"]}),
            json!("z"),
            "a: Unsupported value: \"z\": supported values: \"x\", \"y\"",
        ),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            "a: Invalid value: 0: a in body should be greater than or equal to 1",
        ),
        (
            json!({"type": "number", "maximum": 1000000.0, "exclusiveMaximum": true}),
            json!(1_000_000.0),
            "a: Invalid value: 1e+06: a in body should be less than 1e+06",
        ),
        (
            json!({"type": "integer", "multipleOf": 2}),
            json!(3),
            "a: Invalid value: 3: a in body should be a multiple of 2",
        ),
        (json!({"type": "string", "maxLength": 2}), json!("äöü"), "a: Too long: may not be more than 2 bytes"),
        (
            json!({"type": "string", "minLength": 2}),
            json!("ä"),
            "a: Invalid value: \"ä\": a in body should be at least 2 chars long",
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            "a: Invalid value: \"b\": a in body should match '^a+$'",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("x"),
            "a: Invalid value: \"x\": a in body must be of type date-time: \"x\"",
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in a",
        ),
        (json!({"type": "array", "maxItems": 1}), json!([1, 2]), "a: Too many: 2: must have at most 1 item"),
        (
            json!({"type": "array", "minItems": 1}),
            json!([]),
            "a: Invalid value: 0: a in body should have at least 1 items",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "a: Invalid value: 0: a in body should have at least 1 properties",
        ),
        (json!({"type": "object", "required": ["b"]}), json!({}), "a.b: Required value"),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"x": 1}),
            "a.x: Invalid value: \"integer\": a.x in body must be of type string: \"integer\"",
        ),
        (
            json!({"oneOf": [{"required": ["b"]}, {"required": ["c"]}]}),
            json!({"b": 1, "c": 1}),
            "<nil>: Invalid value: \"\": \"a\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ),
        (
            json!({"anyOf": [{"required": ["b"]}]}),
            json!({}),
            "<nil>: Invalid value: \"\": \"a\" must validate at least one schema (anyOf), a.b: Required value",
        ),
        (
            json!({"allOf": [{"maximum": 1}]}),
            json!(2),
            "a: Invalid value: 2: a in body should be less than or equal to 1, <nil>: Invalid value: \"\": \"a\" must validate all the schemas (allOf). None validated",
        ),
        (
            json!({"not": {"required": ["b"]}}),
            json!({"b": 1}),
            "<nil>: Invalid value: \"\": \"a\" must not validate the schema (not)",
        ),
    ] {
        assert_eq!(wrong(&a(of.clone()), &json!({"a": value}), None).join(", "), expected, "{of}");
    }
}

#[test]
fn unchanged_errors_are_forgiven() {
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "integer", "maximum": 1}}}});
    let of = json!({"properties": {"a": {"type": "integer", "maximum": 1}, "l": list, "b": {"type": "string"}}});
    let old = json!({"a": 5, "b": "x", "l": [{"k": "one", "n": 7}, {"k": "two", "n": 1}]});
    for (case, new, expected) in [
        ("another field changed", json!({"a": 5, "b": "y"}), 0),
        ("it changed", json!({"a": 6, "b": "x"}), 1),
        ("elements are distinguished by their keys", json!({"l": [{"k": "two", "n": 1}, {"k": "one", "n": 7}]}), 0),
        ("a new element", json!({"l": [{"k": "three", "n": 7}]}), 1),
    ] {
        assert_eq!(wrong(&of, &new, Some(&old)).len(), expected, "{case}");
    }
}

#[test]
fn undeclared_fields_are_pruned() {
    let of = json!({"properties": {
        "s": {"type": "object", "properties": {"x": {}}},
        "free": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"s": {"type": "object", "properties": {"x": {}}}}},
        "map": {"additionalProperties": {"type": "object", "properties": {"x": {}}}},
        "any": {"additionalProperties": true},
        "list": {"items": {"type": "object", "properties": {"x": {}}}},
        "inner": {"x-kubernetes-embedded-resource": true, "properties": {"x": {}}},
    }});
    let given = json!({
        "apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "z": 1,
        "s": {"x": 1, "y": 1}, "free": {"y": {"z": 1}, "s": {"y": 1}}, "map": {"k": {"x": 1, "y": 1}},
        "any": {"k": {"y": 1}, "n": 1}, "list": [{"y": 1}, [{"y": 1}]],
        "inner": {"kind": "K", "metadata": {"m": 1}, "y": 1},
    });
    let mut object = given;
    let taken = prune(&mut object, &schema(&of));
    assert_eq!(taken, ["any.k.y", "free.s.y", "inner.y", "list[0].y", "list[1][0].y", "map.k.y", "s.y", "z"]);
    assert_eq!(
        object,
        json!({
            "apiVersion": "v1", "kind": "K", "metadata": {"name": "n"},
            "s": {"x": 1}, "free": {"y": {"z": 1}, "s": {}}, "map": {"k": {"x": 1}}, "any": {"k": {}, "n": 1},
            "list": [{}, [{}]], "inner": {"kind": "K", "metadata": {"m": 1}},
        })
    );
}

#[test]
fn defaults_replace_missing_fields_and_forbidden_nulls() {
    let of = json!({"properties": {
        "a": {"type": "object", "default": {}, "properties": {"b": {"type": "string", "default": "x"}}},
        "n": {"type": "string", "nullable": true, "default": "x"},
        "m": {"type": "string", "default": "x"},
        "d": {"type": "string"},
        "list": {"items": {"type": "object", "properties": {"b": {"type": "string", "default": "x"}}}},
        "map": {"additionalProperties": {"type": "string", "default": "x"}},
    }});
    let mut object = json!({"n": null, "m": null, "d": null, "list": [{}, {"b": "y"}], "map": {"k": null}});
    let (of, mut room) = (schema(&of), Room::to_write());
    drop_bare_nulls(&mut object, &of);
    fill(&mut object, &of, &mut room);
    let expected = json!({"a": {"b": "x"}, "n": null, "m": "x", "list": [{"b": "x"}, {"b": "y"}], "map": {"k": "x"}});
    assert_eq!(object, expected);
    assert!(room.sufficed());
}

#[test]
fn defaults_do_not_multiply_without_bound() {
    let of =
        schema(&json!({"properties": {"list": {"items": {"properties": {"b": {"default": "x".repeat(1 << 20)}}}}}}));
    let mut object = json!({"list": vec![json!({}); 1000]});
    let mut room = Room::to_write();
    fill(&mut object, &of, &mut room);
    assert!(!room.sufficed() && object.to_string().len() < 16 << 20);
}

#[test]
fn elements_are_there_once() {
    let of = schema(&json!({"properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set"},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
    }}));
    let mut errors = Errors::default();
    check_lists(
        &Path::default(),
        &json!({"set": [1, 2, 1, 1], "map": [{"k": "x", "v": 1}, {"k": "x"}, {}, null]}),
        &of,
        &mut errors,
    );
    assert_eq!(
        causes(errors),
        ["map[1]: Duplicate value: {\"k\":\"x\"}", "map[3]: Duplicate value: {}", "set[2]: Duplicate value: 1"]
    );
}

#[test]
fn numbers_are_those_of_go() {
    let mut value = json!([5.0, 1.5, u64::MAX, 1e300, -0.0]);
    whole_numbers(&mut value);
    assert_eq!(value.to_string(), "[5,1.5,1.8446744073709552e+19,1e+300,0]");
    for (number, expected) in [(1.5, "1.5"), (1e6, "1e+06"), (123_456.0, "123456"), (0.00001, "1e-05"), (0.0, "0")] {
        assert_eq!(go_general(number), expected);
    }
}

#[test]
fn settled_objects_are_recognized_from_bytes() {
    let of = json!({"properties": {
        "a": {"type": "string", "default": "x"},
        "s": {"type": "object", "properties": {"b": {"default": 1}, "c": {"nullable": true}}},
        "list": {"items": {"type": "object", "properties": {"b": {}}}},
        "free": {"x-kubernetes-preserve-unknown-fields": true},
        "map": {"additionalProperties": {"type": "string"}},
        "inner": {"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    }});
    let of = schema(&of);
    for (case, object, expected) in [
        ("nothing to do", json!({"apiVersion": "v1", "kind": "K", "metadata": {"x": 1}, "a": "y"}), true),
        (
            "everything is there",
            json!({"a": "y", "s": {"b": 2, "c": null}, "list": [{"b": 1}], "free": {"z": [1]}, "map": {"k": "v"}}),
            true,
        ),
        ("a default is missing", json!({}), false),
        ("one further down", json!({"a": "y", "s": {}}), false),
        ("a field that is not declared", json!({"a": "y", "z": 1}), false),
        ("one in a list", json!({"a": "y", "list": [{"z": 1}]}), false),
        ("a null that is not a value", json!({"a": "y", "map": {"k": null}}), false),
        ("an embedded object", json!({"a": "y", "inner": {"kind": "K"}}), false),
    ] {
        assert_eq!(is_settled(object.to_string().as_bytes(), &of), expected, "{case}");
        let mut served = object.clone();
        let taken = prune(&mut served, &of);
        drop_bare_nulls(&mut served, &of);
        fill(&mut served, &of, &mut Room::to_write());
        assert!(!expected || (taken.is_empty() && served == object), "{case}: it does change");
    }
}

#[test]
fn enumerations_and_long_paths_take_effort() {
    let told = |of: &Value, value: &Value, steps: u64| {
        let mut errors = Errors::default();
        validate(&Path::default(), value, None, (&schema(of), &Effort::of(steps)), &mut errors);
        causes(errors)
    };
    let choices: Vec<u32> = (0..100).collect();
    let of = json!({"type": "array", "items": {"type": "integer", "enum": choices}});
    let list = json!([99, 99, 99, 99]);
    assert_eq!(told(&of, &list, 1000), Vec::<String>::new());
    assert!(told(&of, &list, 300)[0].ends_with("takes too long to be validated"));
    assert_eq!(told(&of, &json!([0, 0, 0, 0]), 300), Vec::<String>::new(), "the first choice is compared, no other");

    let of = json!({"additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}});
    let long = json!({"x".repeat(10_000): "y"});
    assert_eq!(told(&of, &long, 100_000).len(), 2, "what is wrong with it, and that no choice fits");
    let short = told(&of, &long, 25_000);
    assert!(short.last().unwrap().ends_with("takes too long to be validated"), "{}", short.len());
}
