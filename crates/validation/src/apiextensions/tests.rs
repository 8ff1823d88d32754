use serde_json::json;

use super::*;

fn causes(old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut errors = Errors::default();
    match old {
        None => created(&At::root(new), &mut errors),
        Some(old) => changed(Some(&At::root(old)), &At::root(new), &mut errors),
    }
    errors.into_causes().into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn boats() -> Value {
    json!({"metadata": {"name": "boats.example.dev"}, "status": {"storedVersions": ["v1"]},
        "spec": {"group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
            "versions": [{"name": "v1", "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}

fn with(pointer: &str, value: Value) -> Value {
    let mut definition = boats();
    *definition.pointer_mut(pointer).unwrap() = value;
    definition
}

#[test]
fn a_definition_is_named_after_its_resource_for_good() {
    assert_eq!(causes(None, &boats()), Vec::<String>::new());
    for (case, definition, expected) in [
        ("another name", with("/metadata/name", json!("ships.example.dev")), "metadata.name"),
        ("no domain", with("/spec/group", json!("dev")), "should be a domain with at least one dot"),
        ("the server's records", with("/spec/group", json!("internal.portolan.dev")), "belongs to the server"),
        (
            "two versions of a name",
            with("/spec/versions", json!([{"name": "v1", "storage": true}, {"name": "v1"}])),
            "unique",
        ),
        ("none is stored", with("/spec/versions/0/storage", json!(false)), "exactly one version marked"),
        ("another scope", with("/spec/scope", json!("World")), "supported values: \"Cluster\", \"Namespaced\""),
    ] {
        let told = causes(None, &definition);
        assert!(told.iter().any(|cause| cause.contains(expected)), "{case}: {told:?}");
    }
    let mut shadow = with("/spec/group", json!("rbac.authorization.k8s.io"));
    shadow["metadata"] = json!({"name": "clusterroles.rbac.authorization.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}});
    shadow["spec"]["names"]["plural"] = json!("clusterroles");
    assert_eq!(
        causes(None, &shadow),
        ["spec.names.plural: Forbidden: clusterroles.rbac.authorization.k8s.io is built into the server"]
    );
    assert_eq!(causes(Some(&shadow), &shadow), Vec::<String>::new(), "one that is there can be changed");
    for (field, value) in [("/spec/group", "example.org"), ("/spec/names/plural", "ships")] {
        let told = causes(Some(&boats()), &with(field, json!(value)));
        assert!(told.iter().any(|cause| cause.contains("field is immutable")), "{field}: {told:?}");
    }
}

fn of_schema(schema: Value) -> Vec<String> {
    let told = causes(None, &with("/spec/versions/0/schema/openAPIV3Schema", schema));
    let short = |cause: String| cause.replacen("spec.validation.openAPIV3Schema", "$", 1);
    told.into_iter().map(short).collect()
}

/// Returns a schema with one property `a`.
fn a(property: Value) -> Value {
    json!({"type": "object", "properties": {"a": property}})
}

#[test]
fn schemas_are_structural() {
    for (case, schema, expected) in [
        ("all is well", a(json!({"type": "string", "default": "x"})), vec![]),
        ("no type at the root", json!({}), vec!["$.type: Required value: must not be empty at the root"]),
        (
            "a list of nothing",
            a(json!({"type": "array"})),
            vec!["$.properties[a].items: Required value: must be specified"],
        ),
        (
            "a type within a choice",
            a(json!({"type": "string", "anyOf": [{"type": "string"}]})),
            vec!["$.properties[a].anyOf[0].type: Forbidden: must be empty to be structural"],
        ),
        (
            "integers or texts may say it twice",
            a(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})),
            vec![],
        ),
        (
            "more of metadata than names",
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            vec![
                "$.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        ),
        (
            "names of metadata",
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}}}),
            vec![],
        ),
        (
            "an invalid pattern",
            a(json!({"type": "string", "pattern": "["})),
            vec![
                "$.properties[a].pattern: Invalid value: \"[\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ]: `[`",
            ],
        ),
        (
            "a choice of what is not declared",
            json!({"type": "object", "oneOf": [{"properties": {"b": {"minLength": 1}}}]}),
            vec![
                "$.properties[b]: Required value: because it is defined in spec.validation.openAPIV3Schema.oneOf[0].properties[b]",
            ],
        ),
        (
            "an unknown type",
            a(json!({"type": "text"})),
            vec![
                "$.properties[a].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        ),
        (
            "a reference",
            a(json!({"type": "string", "$ref": "#/x"})),
            vec!["$.properties[a].$ref: Forbidden: $ref is not supported"],
        ),
        (
            "a key that may be missing",
            a(json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}}})),
            vec![
                "$.properties[a].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        ),
    ] {
        assert_eq!(of_schema(schema), expected, "{case}");
    }
}

#[test]
fn defaults_are_good_values() {
    for (case, schema, expected) in [
        (
            "of a wrong type",
            a(json!({"type": "integer", "default": "x"})),
            vec!["$.properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\""],
        ),
        (
            "with unknown fields",
            a(json!({"type": "object", "properties": {"b": {"type": "string"}}, "default": {"c": 1}})),
            vec!["$.properties[a].default: Invalid value: {\"c\":1}: must not have unknown fields"],
        ),
        (
            "of a whole object, without its kind",
            json!({"type": "object", "default": {}}),
            vec!["$.default.apiVersion: Required value", "$.default.kind: Required value"],
        ),
        ("of a whole object", json!({"type": "object", "default": {"apiVersion": "a/b", "kind": "C"}}), vec![]),
        (
            "of metadata",
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}}}),
            vec!["$.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata"],
        ),
        (
            "of an embedded object",
            a(json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
                "kind": {"type": "string", "default": "1"}}})),
            vec![
                "$.properties[a].properties[kind].default: Invalid value: \"1\": must result in valid metadata: kind: Invalid value: \"1\": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
            ],
        ),
        (
            "that break a rule",
            a(json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 5"}]})),
            vec!["$.properties[a].default: Invalid value: 1: failed rule: self > 5"],
        ),
        (
            "a part of which breaks a rule",
            a(json!({"type": "object", "default": {"b": 1}, "properties": {
                "b": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5", "message": "too small"}]}}})),
            vec!["$.properties[a].default.b: Invalid value: 1: too small"],
        ),
        (
            "that break a rule as long as they are new",
            a(json!({"type": "integer", "default": 1, "x-kubernetes-validations": [
                {"rule": "oldSelf.hasValue()", "optionalOldSelf": true}]})),
            vec!["$.properties[a].default: Invalid value: 1: failed rule: oldSelf.hasValue()"],
        ),
        (
            "that keep all rules",
            a(json!({"type": "integer", "default": 7, "x-kubernetes-validations": [
                {"rule": "self > 5"}, {"rule": "self >= oldSelf"}]})),
            vec![],
        ),
    ] {
        assert_eq!(of_schema(schema), expected, "{case}");
    }
}

#[test]
fn defaults_of_a_definition_are_checked_within_one_bound() {
    let choices: Vec<u32> = (0..1000).collect();
    let list = json!({"type": "array", "items": {"type": "integer", "enum": choices}, "default": vec![999; 1000]});
    let of = |count: usize| {
        let lists: serde_json::Map<_, _> = (0..count).map(|n| (format!("l{n}"), list.clone())).collect();
        of_schema(json!({"type": "object", "properties": lists}))
    };
    assert_eq!(of(5), Vec::<String>::new());
    let told = of(25);
    assert!(told.iter().any(|told| told.ends_with("takes too long to be validated")), "{told:?}");

    let rules: Vec<Value> = (0..800).map(|n| json!({"rule": format!("self.n != {n}")})).collect();
    let node = json!({"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 1000}},
        "x-kubernetes-validations": rules});
    let deep = (0..20).fold(node, |inner, _| json!({"type": "object", "default": {}, "properties": {"x": inner}}));
    let told = of_schema(a(deep));
    assert!(told.iter().any(|told| told.contains("the rules that are run on defaults may have at most")), "{told:?}");
}

#[test]
fn a_field_path_is_followed_in_the_schema_of_its_rule() {
    let of = |path: &str| {
        of_schema(a(
            json!({"type": "object", "properties": {"b": {"type": "object", "additionalProperties": {"type": "string"}}},
            "x-kubernetes-validations": [{"rule": "true", "fieldPath": path}]}),
        ))
    };
    for good in [".b", ".b['k']", "['b']"] {
        assert_eq!(of(good), Vec::<String>::new(), "{good}");
    }
    for bad in [".c", ".b.k.l", "b"] {
        let told = of(bad);
        assert!(told.len() == 1 && told[0].ends_with("must be a valid path"), "{bad}: {told:?}");
    }
}

#[test]
fn schemas_have_bounds() {
    let many: serde_json::Map<String, Value> =
        (0..70_000).map(|n| (n.to_string(), json!({"type": "string"}))).collect();
    let told = of_schema(json!({"type": "object", "properties": many}));
    assert_eq!(told, ["$: Forbidden: the schemas of a definition may have at most 65536 nodes together"]);
}

#[test]
fn errors_of_a_definition_are_bounded() {
    let keys: Vec<String> = (0..20_000).map(|n| format!("k{n:05}")).collect();
    let item = json!({"type": "object"});
    let list =
        json!({"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys});
    let named = json!({"x".repeat(1 << 20): {"type": "object", "properties": (0..20_000).map(|n| (n.to_string(), json!({}))).collect::<serde_json::Map<_, _>>()}});
    for (case, schema) in [("keys", a(list)), ("a long name", json!({"type": "object", "properties": named}))] {
        let told = of_schema(schema);
        assert!(!told.is_empty(), "{case}");
        assert!(told.iter().map(String::len).sum::<usize>() < 8 << 20, "{case}: {} things", told.len());
    }
}

#[test]
fn common_fields_of_versions_move_to_the_top_level() {
    let wrong = json!({"openAPIV3Schema": {"type": "string"}});
    let mut two = with("/spec/versions/0/schema", wrong.clone());
    two["spec"]["versions"].as_array_mut().unwrap().push(json!({"name": "v2", "schema": wrong}));
    assert!(causes(None, &two)[0].starts_with("spec.validation.openAPIV3Schema.type: "), "{:?}", causes(None, &two));
    two["spec"]["versions"][1]["schema"] = boats()["spec"]["versions"][0]["schema"].clone();
    assert!(causes(None, &two)[0].starts_with("spec.versions[0].schema.openAPIV3Schema.type: "));
    two["spec"]["versions"][1]["schema"] = Value::Null;
    assert_eq!(causes(None, &two)[0], "spec.versions[1].schema.openAPIV3Schema: Required value");
}

#[test]
fn columns_scale_and_fields_have_paths() {
    let version = |name: &str, value: Value| {
        let mut definition = boats();
        definition["spec"]["versions"][0][name] = value;
        causes(None, &definition)
    };
    let told = version("additionalPrinterColumns", json!([{"name": "A", "type": "text", "jsonPath": "a"}]));
    assert_eq!(
        told,
        [
            "spec.additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"a\": must be a simple json path starting with ."
        ]
    );
    let told = version("subresources", json!({"scale": {"specReplicasPath": ".status.a"}}));
    assert_eq!(
        told,
        [
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.a\": should be a json path under .spec",
            "spec.subresources.scale.statusReplicasPath: Required value"
        ]
    );
    let told = version("selectableFields", json!([{"jsonPath": ".spec"}]));
    let expected = "spec.selectableFields[0].jsonPath: Invalid value: \".spec\": is an invalid path: does not refer to a valid field";
    assert_eq!(told, [expected]);
}
