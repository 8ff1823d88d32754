use serde_json::json;

use super::*;

fn kind(group: &str, name: &str) -> &'static Kind {
    KindTable::builtin().kind_named(group, "v1", name).unwrap()
}

fn read(group: &str, name: &str, body: &str, validation: FieldValidation) -> Result<Decoded, Status> {
    decode(KindTable::builtin(), kind(group, name), MediaType::Json, body.as_bytes(), validation)
}

fn pod(body: Value) -> Value {
    read("", "Pod", &body.to_string(), FieldValidation::Strict).unwrap().object
}

#[test]
fn values_become_canonical() {
    let object = pod(json!({
        "metadata": {"name": "a", "creationTimestamp": null, "labels": {}, "annotations": {"k": ""}},
        "spec": {
            "hostNetwork": false, "nodeName": "", "terminationGracePeriodSeconds": 0, "nodeSelector": {},
            "activeDeadlineSeconds": null,
            "containers": [{
                "name": "c", "command": [], "securityContext": {"runAsUser": 0},
                "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {"cpu": "1000m"}},
                "env": [{"name": "x", "value": ""}, {"name": "y", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
                "livenessProbe": {"httpGet": {"port": "web"}, "periodSeconds": 0},
            }],
        },
    }));
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "annotations": {"k": ""}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "securityContext": {"runAsUser": 0},
                "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "1"}},
                "env": [
                    {"name": "x"},
                    {"name": "y", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}},
                ],
                "livenessProbe": {"httpGet": {"port": "web"}},
            }],
        },
        "status": {},
    });
    assert_eq!(object, expected);
}

#[test]
fn times_are_written_in_utc() {
    let lease = |time: &str| {
        let body =
            json!({"metadata": {"creationTimestamp": time}, "spec": {"renewTime": "2024-01-02T03:04:05.100000Z"}});
        decode(
            KindTable::builtin(),
            KindTable::builtin().kind_named("coordination.k8s.io", "v1", "Lease").unwrap(),
            MediaType::Json,
            body.to_string().as_bytes(),
            FieldValidation::Strict,
        )
    };
    let object = lease("2024-01-02T03:04:05.678+02:00").unwrap().object;
    assert_eq!(object["metadata"]["creationTimestamp"], "2024-01-02T01:04:05Z");
    assert_eq!(object["spec"]["renewTime"], "2024-01-02T03:04:05.100000Z");
    for wrong in ["x", "2024-01-02 03:04:05Z", "2024-13-02T03:04:05Z", "2024-01-02T03:04:05", "Mon, 2 Jan 2006 (((((("]
    {
        let message = lease(wrong).unwrap_err().message().to_owned();
        assert!(message.contains("parsing time"), "{message}");
    }
}

#[test]
fn unknown_and_duplicate_fields_are_reported_by_path() {
    let body = r#"{"metadata":{"name":"a","labels":{"x":"1","x":"2"}},"spec":{"replica":1,"template":{"spec":{"containers":[
        {"name":"a"},{"name":"b","imag":"x","image":"a","image":"a","image":"b"}]}}},"extra":{"deep":[1]}}"#;
    let texts = [
        r#"duplicate field "metadata.labels.x""#,
        r#"unknown field "spec.replica""#,
        r#"unknown field "spec.template.spec.containers[1].imag""#,
        r#"duplicate field "spec.template.spec.containers[1].image""#,
        r#"unknown field "extra""#,
    ];
    let decoded = read("apps", "Deployment", body, FieldValidation::Warn).unwrap();
    assert_eq!(decoded.warnings, texts);
    assert_eq!(decoded.object["spec"]["template"]["spec"]["containers"][1]["image"], "b");
    assert_eq!(decoded.object["metadata"]["labels"]["x"], "2");
    assert!(decoded.object.get("extra").is_none());
    assert!(read("apps", "Deployment", body, FieldValidation::Ignore).unwrap().warnings.is_empty());
    let error = read("apps", "Deployment", body, FieldValidation::Strict).unwrap_err();
    let start = "Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: ";
    assert_eq!(error.message(), format!("{start}{}", texts.join(", ")));
    assert_eq!(error.code(), 400);
}

#[test]
fn a_subresource_takes_its_own_type() {
    let table = KindTable::builtin();
    let kind = table.kind_named("apps", "v1", "Deployment").unwrap();
    let taken = portolan_types::GroupVersionKind::new("autoscaling", "v1", "Scale");
    let body = br#"{"apiVersion":"apps/v1","kind":"Deployment"}"#;
    let failure = decode_as(table, kind, taken, MediaType::Json, body, FieldValidation::Warn).unwrap_err();
    let expected = r#"Deployment in version "v1" cannot be handled as a Scale: converting (v1.Deployment) to (autoscaling.Scale): unknown conversion"#;
    assert_eq!(failure.message(), expected);

    let asked = portolan_types::GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest");
    let tokens = taken_by(table, table.kind_named("", "v1", "ServiceAccount").unwrap(), asked).unwrap();
    for (head, object, expected) in [
        (
            ("v1", "ConfigMap"),
            json!({}),
            "converting (v1.ConfigMap) to (authentication.TokenRequest): unknown conversion",
        ),
        (
            ("v1", "ConfigMap"),
            json!({"metadata": []}),
            "json: cannot unmarshal array into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
        ),
        (
            ("apps/__internal", "A"),
            json!({}),
            r#"no kind "A" is registered for the internal version of group "apps" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            ("apps/v1", "A"),
            json!({}),
            r#"no kind "A" is registered for version "apps/v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
    ] {
        assert_eq!(other_type(table, &tokens, head, &object), expected, "{head:?} {object}");
    }
}

#[test]
fn scales_of_old_versions_differ_from_unknown_kinds() {
    let table = KindTable::builtin();
    let kind = table.kind_named("apps", "v1", "Deployment").unwrap();
    for (version, expected) in [
        ("extensions/v1beta1", "does not match the expected API version (autoscaling/v1)"),
        ("apps/v1beta2", "does not match the expected API version (autoscaling/v1)"),
        ("apps/v1", r#"no kind "Scale" is registered for version "apps/v1""#),
    ] {
        let taken = portolan_types::GroupVersionKind::new("autoscaling", "v1", "Scale");
        let body = json!({"apiVersion": version, "kind": "Scale", "metadata": {"name": "x"}}).to_string();
        let failure = decode_as(table, kind, taken, MediaType::Json, body.as_bytes(), FieldValidation::Warn);
        let failure = failure.unwrap_err();
        assert!(failure.message().contains(expected), "{version}: {}", failure.message());
    }
}

/// `policy/v1beta1` is not served, so that its types have no entries; evictions of it are taken as those of `v1` are.
#[test]
fn an_older_version_is_read_as_that_which_is_served() {
    let table = KindTable::builtin();
    let kind = table.kind_named("", "v1", "Pod").unwrap();
    let sent = json!({
        "apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": {"gracePeriodSeconds": 3},
    });
    let schema = table.object_type("policy", "v1", "Eviction").unwrap();
    let in_protobuf = protobuf::encode(&sent, schema, table).unwrap();
    for (media, body) in [(MediaType::Protobuf, in_protobuf), (MediaType::Json, sent.to_string().into_bytes())] {
        let taken = portolan_types::GroupVersionKind::new("policy", "v1beta1", "Eviction");
        let object = decode_as(table, kind, taken, media, &body, FieldValidation::Strict).unwrap().object;
        assert_eq!(object["metadata"]["name"], "p", "{media:?}");
        assert_eq!(object["deleteOptions"]["gracePeriodSeconds"], 3, "{media:?}");
    }
}

#[test]
fn decoding_errors_have_kube_apiservers_messages() {
    for (case, group, kind, body, expected) in [
        (
            "a number for text",
            "",
            "ConfigMap",
            r#"{"data":{"a":1}}"#,
            r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string"#,
        ),
        (
            "text for a number, deep inside",
            "apps",
            "Deployment",
            r#"{"spec":{"template":{"spec":{"containers":[{"ports":[{"containerPort":"x"}]}]}}}}"#,
            r#"Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field ContainerPort.spec.template.spec.containers.ports.containerPort of type int32"#,
        ),
        (
            "a fraction for an integer",
            "apps",
            "Deployment",
            r#"{"spec":{"replicas":1.5}}"#,
            r#"Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32"#,
        ),
        (
            "a fraction of nothing, as it is spelled, in lines",
            "apps",
            "Deployment",
            "{\"spec\":\n {\"minReadySeconds\":1,\n  \"replicas\": -1.0 }}",
            r#"Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal number -1.0 into Go struct field DeploymentSpec.spec.replicas of type int32"#,
        ),
        (
            "an exponent",
            "apps",
            "Deployment",
            r#"{"spec":{"replicas":1E+0}}"#,
            r#"Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal number 1E+0 into Go struct field DeploymentSpec.spec.replicas of type int32"#,
        ),
        (
            "an object for a list",
            "",
            "Pod",
            r#"{"spec":{"containers":{}}}"#,
            r#"Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"#,
        ),
        (
            "a truth in what Go inlines",
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration",
            r#"{"webhooks":[{"rules":[{"resources":[true]}]}]}"#,
            r#"ValidatingWebhookConfiguration in version "v1" cannot be handled as a ValidatingWebhookConfiguration: json: cannot unmarshal bool into Go struct field RuleWithOperations.webhooks.rules.Rule.resources of type string"#,
        ),
        (
            "no quantity",
            "",
            "Pod",
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1x"}}}]}}"#,
            "Pod in version \"v1\" cannot be handled as a Pod: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "another kind",
            "",
            "ConfigMap",
            r#"{"apiVersion":"v1","kind":"Secret","type":"x"}"#,
            r#"Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"#,
        ),
        (
            "another kind than an event, which is one of the core",
            "events.k8s.io",
            "Event",
            r#"{"apiVersion":"v1","kind":"Status"}"#,
            r#"Status in version "v1" cannot be handled as a Event: converting (v1.Status) to (core.Event): unknown conversion"#,
        ),
        (
            "an unknown kind",
            "",
            "ConfigMap",
            r#"{"apiVersion":"v1","kind":"Foo"}"#,
            r#"Foo in version "v1" cannot be handled as a ConfigMap: no kind "Foo" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            "another version",
            "networking.k8s.io",
            "Ingress",
            r#"{"apiVersion":"networking.k8s.io/v1beta7","kind":"Ingress"}"#,
            r#"Ingress in version "v1beta7" cannot be handled as a Ingress: no kind "Ingress" is registered for version "networking.k8s.io/v1beta7" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
    ] {
        let error = read(group, kind, body, FieldValidation::Strict).unwrap_err();
        assert_eq!((error.code(), error.message()), (400, expected), "{case}");
    }
}

#[test]
fn unknown_bodies_are_shown_by_their_beginning() {
    let head = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let list = format!(
        "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type {head}"
    );
    for (case, media, body, expected, shown) in [
        (
            "nothing",
            MediaType::Json,
            "",
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
            "<empty>",
        ),
        (
            "a body cut off",
            MediaType::Json,
            "{\"apiVersion\":",
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
            "{\"apiVersion\":",
        ),
        (
            "a body cut off behind a wrong value",
            MediaType::Json,
            "{\"data\":1,",
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
            "{\"data\":1,",
        ),
        ("a list", MediaType::Json, "[]", &list, "5b5d"),
        (
            "a number for the kind",
            MediaType::Json,
            "{\"kind\":1}",
            "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string",
            "{\"kind\":1}",
        ),
        (
            "a version of three parts",
            MediaType::Json,
            "{\"apiVersion\":\"a/b/c\"}",
            "unexpected GroupVersion string: a/b/c",
            "{\"apiVersion\":\"a/b/c\"}",
        ),
        ("YAML cut off", MediaType::Yaml, "a: [b", "yaml: line 1: did not find expected ',' or ']'", "613a205b62"),
        (
            "YAML cut off further down",
            MediaType::Yaml,
            "a:\n  b:\n    c: {d",
            "yaml: line 2: did not find expected ',' or '}'",
            "613a0a2020623a0a20202020633a207b64",
        ),
        ("protobuf cut off", MediaType::Protobuf, "k8s\0\u{a}\u{7f}", "unexpected EOF", "6b3873000a7f"),
        ("no protobuf", MediaType::Protobuf, "", "empty data", "<empty>"),
        (
            "protobuf without its magic",
            MediaType::Protobuf,
            "abcdefgh",
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            "6162636465666768",
        ),
    ] {
        let error = decode(KindTable::builtin(), kind("", "Secret"), media, body.as_bytes(), FieldValidation::Warn)
            .unwrap_err();
        let expected = format!("the object provided is unrecognized (must be of type Secret): {expected} ({shown})");
        assert_eq!((error.code(), error.message()), (400, expected.as_str()), "{case}");
    }
}

#[test]
fn duplicate_keys_of_yaml_are_reported_by_line() {
    let read = |body: &str, validation| {
        decode(KindTable::builtin(), kind("", "ConfigMap"), MediaType::Yaml, body.as_bytes(), validation)
    };
    let body = "kind: Twice\nkind: ConfigMap\ndata:\n  a: b\n  a: c\nextra: 1\n";
    assert_eq!(
        read(body, FieldValidation::Warn).unwrap().warnings,
        ["line 2: key \"kind\" already set in map", "line 5: key \"a\" already set in map", "unknown field \"extra\""]
    );
    let error = read("{\"kind\":\"Twice\",\"kind\":\"ConfigMap\"}", FieldValidation::Strict).unwrap_err();
    assert_eq!(
        error.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:\n  line 1: key \"kind\" already set in map"
    );
}

#[test]
fn keys_that_are_one_only_in_json_are_no_errors() {
    let table = KindTable::builtin();
    let body = b"metadata: {name: a}\ndata: {1: a, \"1\": b}\n";
    for validation in [FieldValidation::Strict, FieldValidation::Warn, FieldValidation::Ignore] {
        let decoded = decode(table, kind("", "ConfigMap"), MediaType::Yaml, body, validation).unwrap();
        assert_eq!((&decoded.object["data"], decoded.warnings.len()), (&json!({"1": "b"}), 0), "{validation:?}");
    }
    let twice = b"metadata: {name: a}\ndata: {1: a, 1: b}\n";
    let error = decode(table, kind("", "ConfigMap"), MediaType::Yaml, twice, FieldValidation::Strict).unwrap_err();
    assert!(error.message().ends_with("line 2: key 1 already set in map"), "{}", error.message());
}

#[test]
fn broken_bodies_are_bad_requests() {
    let deep = "[".repeat(3_000_000);
    let nested = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
    for body in ["", "{", "[]", "nul", "{\"a\":1}x", "\u{0}", "{\"metadata\":{\"name\":\"\\ud800\"}}", &deep, &nested] {
        let error = read("", "ConfigMap", body, FieldValidation::Strict).unwrap_err();
        assert_eq!(error.code(), 400, "{}", &body[..body.len().min(20)]);
        assert!(error.message().len() < 1000);
    }
}

#[test]
fn yaml_is_read_like_json() {
    let body = "kind: ConfigMap\nmetadata:\n  name: a\ndata: &x\n  k: v\n  m: \"1\"\nextra: 1\n";
    let table = KindTable::builtin();
    let decoded =
        decode(table, kind("", "ConfigMap"), MediaType::Yaml, body.as_bytes(), FieldValidation::Warn).unwrap();
    assert_eq!(decoded.object["data"], json!({"k": "v", "m": "1"}));
    assert_eq!(decoded.warnings, [r#"unknown field "extra""#]);
    let json = br#"{"kind":"ConfigMap","data":{"a":"b"}}"#;
    let decoded = decode(table, kind("", "ConfigMap"), MediaType::Yaml, json, FieldValidation::Strict).unwrap();
    assert_eq!(decoded.object["data"]["a"], "b");
}

#[test]
fn yaml_bombs_are_refused() {
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, below) in ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
        let list = vec![format!("*{below}"); 9].join(",");
        bomb.push_str(&format!("{name}: &{name} [{list}]\n"));
    }
    assert!(decode_any(MediaType::Yaml, bomb.as_bytes()).is_err());
}

#[test]
fn a_walk_over_a_canonical_tree_changes_nothing() {
    let table = KindTable::builtin();
    let once = pod(json!({
        "metadata": {"name": "a", "finalizers": ["a/b"], "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}]},
        "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "volumes": [{"name": "v", "secret": {}}]},
    }));
    let mut twice = once.clone();
    assert_eq!(prune_canonical(table, kind("", "Pod"), &mut twice, FieldValidation::Strict), Ok(vec![]));
    assert_eq!(twice, once);
    twice["spec"]["x"] = json!({"a": [null]});
    assert_eq!(
        prune_canonical(table, kind("", "Pod"), &mut twice, FieldValidation::Warn),
        Ok(vec![r#"unknown field "spec.x""#.into()])
    );
    assert_eq!(twice, once);
    twice["spec"]["replicas"] = json!(1);
    let error = prune_canonical(table, kind("", "Pod"), &mut twice, FieldValidation::Strict).unwrap_err();
    assert_eq!(error.decoded(), "strict decoding error: unknown field \"spec.replicas\"");
}

#[test]
fn misfits_have_the_messages_of_both_converters_of_go() {
    for (case, field, value, decoded, converted) in [
        (
            "a number for text",
            "data",
            json!({"a": 5}),
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
            "cannot convert int64 to string",
        ),
        (
            "a list for a boolean",
            "immutable",
            json!(["a"]),
            "json: cannot unmarshal array into Go struct field ConfigMap.immutable of type bool",
            "unrecognized type: bool",
        ),
        (
            "text for a map",
            "data",
            json!("a"),
            "json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
            "cannot restore map from string",
        ),
        (
            "a list for an object",
            "metadata",
            json!([]),
            "json: cannot unmarshal array into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
            "cannot restore struct from: slice",
        ),
    ] {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", field: value});
        let unfit = prune_canonical(KindTable::builtin(), kind("", "ConfigMap"), &mut object, FieldValidation::Warn)
            .unwrap_err();
        assert_eq!((unfit.decoded().as_str(), unfit.converted().as_str()), (decoded, converted), "{case}");
    }
}

#[test]
fn an_empty_list_of_managed_fields_asks_for_their_reset() {
    let object = read("", "ConfigMap", r#"{"metadata":{"managedFields":[],"finalizers":[]}}"#, FieldValidation::Strict);
    assert_eq!(object.unwrap().object["metadata"], json!({"managedFields": []}));
}

proptest::proptest! {
    /// Any bytes get an answer and no panic, and an accepted object is canonical.
    #[test]
    fn any_bytes_are_answered(text in "[\\[\\]{}:,\"a-z0-9 .\n&*-]{0,60}", yaml in proptest::bool::ANY) {
        let media = if yaml { MediaType::Yaml } else { MediaType::Json };
        let kind = kind("", "ConfigMap");
        if let Ok(decoded) = decode(KindTable::builtin(), kind, media, text.as_bytes(), FieldValidation::Warn) {
            let mut again = decoded.object.clone();
            let notes = prune_canonical(KindTable::builtin(), kind, &mut again, FieldValidation::Strict);
            proptest::prop_assert_eq!(notes, Ok(vec![]));
            proptest::prop_assert_eq!(again, decoded.object);
        }
    }
}

#[test]
fn a_long_key_is_not_repeated_with_each_note_below_it() {
    let unknown: Value = (0..100).map(|n| (format!("u{n}"), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let schema = json!({"properties": {"k".repeat(1 << 20): unknown}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let body = json!({"spec": {"versions": [version]}}).to_string();
    let decoded = read("apiextensions.k8s.io", "CustomResourceDefinition", &body, FieldValidation::Warn).unwrap();
    assert_eq!(decoded.warnings.len(), 100);
    assert!(decoded.warnings.iter().map(String::len).sum::<usize>() < 300 * 1024);
}

#[test]
fn fields_that_go_always_writes_are_present() {
    for (api, object, path) in [
        ("events.k8s.io/v1 Event", json!({}), "/deprecatedFirstTimestamp"),
        ("v1 Event", json!({}), "/eventTime"),
        ("autoscaling/v2 HorizontalPodAutoscaler", json!({"status": {"desiredReplicas": 1}}), "/status/currentMetrics"),
        ("rbac.authorization.k8s.io/v1 Role", json!({}), "/rules"),
        ("v1 Pod", json!({"status": {"conditions": [{"type": "A"}]}}), "/status/conditions/0/lastProbeTime"),
        ("discovery.k8s.io/v1 EndpointSlice", json!({"ports": null}), "/ports"),
    ] {
        let (version, kind) = api.rsplit_once(' ').unwrap();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = KindTable::builtin().kind_named(group, version, kind).unwrap();
        let mut object = object;
        prune_canonical(KindTable::builtin(), kind, &mut object, FieldValidation::Ignore).unwrap();
        assert_eq!(object.pointer(path), Some(&Value::Null), "{api} {path}");
    }
}

#[test]
fn yaml_has_gos_semantics() {
    let read = |text: &str| decode_any(MediaType::Yaml, text.as_bytes()).unwrap();
    for (text, expected) in [
        ("a: yes", json!({"a": true})),
        ("a: 'yes'", json!({"a": "yes"})),
        ("{a: on, b: Off, c: n}", json!({"a": true, "b": false, "c": false})),
        ("y: 1", json!({"true": 1})),
        ("'y': 1", json!({"y": 1})),
        ("off: 1", json!({"false": 1})),
        ("1: a", json!({"1": "a"})),
        ("010: a", json!({"8": "a"})),
        ("1.5: a", json!({"1.5": "a"})),
        (
            "{1.0: a, 100000.5: b, 1000000.5: c, 1e21: d, 0.1: e, 1e-5: f}",
            json!({"1": "a", "100000.5": "b", "1.0000005e+06": "c", "1e+21": "d", "0.1": "e", "1e-05": "f"}),
        ),
        ("{.inf: a, -.inf: b, .nan: c}", json!({".inf": "a", "-.inf": "b", ".nan": "c"})),
        ("a: 0755", json!({"a": 493})),
        ("a: 0o14", json!({"a": 12})),
        ("a: 0x1f", json!({"a": 31})),
        ("a: 1.0", json!({"a": 1})),
        ("a: 1e3", json!({"a": 1000})),
        ("a: -2.50", json!({"a": -2.5})),
        ("a: 2020-01-02", json!({"a": "2020-01-02"})),
        ("a: ~", json!({"a": null})),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
    for (text, name) in [("a: .inf", "+Inf"), ("b: 1\na: [-.inf]", "-Inf"), ("a: .nan", "NaN")] {
        let refused = decode_any(MediaType::Yaml, text.as_bytes()).unwrap_err();
        assert_eq!(refused, format!("json: unsupported value: {name}"), "{text}");
    }
    let body = "spec: {replicas: 1.0, template: {metadata: {labels: {y: 'y'}}}}";
    let kind = kind("apps", "Deployment");
    let decoded =
        decode(KindTable::builtin(), kind, MediaType::Yaml, body.as_bytes(), FieldValidation::Strict).unwrap();
    assert_eq!(decoded.object["spec"]["replicas"], 1);
    assert_eq!(decoded.object["spec"]["template"]["metadata"]["labels"], json!({"true": "y"}));
    assert_eq!(
        repeated_in_yaml(b"a: 1\ny: 1\na: 2\ny: 2"),
        [r#"line 3: key "a" already set in map"#, "line 4: key true already set in map",]
    );
}

#[test]
fn a_key_that_is_repeated_without_end_hides_nothing_that_follows() {
    let many = r#""x":1,"y":1,"#.repeat(200);
    let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap",{many}"data":{{"a":"1","a":"2"}},"z":1}}"#);
    let decoded =
        decode(KindTable::builtin(), kind("", "ConfigMap"), MediaType::Json, body.as_bytes(), FieldValidation::Warn);
    let expected =
        [r#"unknown field "x""#, r#"unknown field "y""#, r#"duplicate field "data.a""#, r#"unknown field "z""#];
    assert_eq!(decoded.unwrap().warnings, expected);
}

#[test]
fn numbers_of_strategic_patches_are_taken_as_gos_converter_takes_them() {
    let deployment =
        |spec: Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec});
    let merged = |spec: Value| {
        let mut object = deployment(spec);
        prune_merged(KindTable::builtin(), kind("apps", "Deployment"), &mut object, FieldValidation::Warn, Vec::new())
            .map(|_| object["spec"].take())
            .map_err(|unfit| unfit.converted())
    };
    let replicas = |number: Value| merged(json!({"replicas": number})).map(|mut spec| spec["replicas"].take());
    for (number, expected) in [
        (json!(2.0), json!(2)),
        (json!(1e2), json!(100)),
        (json!(99_999_999_999_i64), json!(1_215_752_191)),
        (json!(9_223_372_036_854_775_808_u64), json!(0)),
        (json!(1e19), json!(0)),
    ] {
        assert_eq!(replicas(number.clone()), Ok(expected), "{number}");
    }
    assert_eq!(replicas(json!(2.5)), Err("cannot convert float64 to int32".into()));
    let surge = |number: Value| merged(json!({"strategy": {"rollingUpdate": {"maxSurge": number}}}));
    assert_eq!(surge(json!(1e2)).unwrap()["strategy"]["rollingUpdate"]["maxSurge"], 100);
    let refused = "json: cannot unmarshal number 2.5 into Go value of type int32";
    assert_eq!(surge(json!(2.5)), Err(refused.into()));
    let labels = |number: Value| merged(json!({"selector": {"matchLabels": {"a": number}}}));
    assert_eq!(labels(json!(5)), Err("cannot convert int64 to string".into()));
    assert_eq!(labels(json!(2.0)), Err("unrecognized type: string".into()));
}

#[test]
fn numbers_beyond_floats_are_reported_in_their_spelling() {
    let put = |spec: &str| {
        let body = format!(r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"x"}},"spec":{spec}}}"#);
        let kind = kind("apps", "Deployment");
        decode(KindTable::builtin(), kind, MediaType::Json, body.as_bytes(), FieldValidation::Warn)
    };
    let frame = "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal number";
    assert_eq!(
        put(r#"{"replicas":1e999}"#).unwrap_err().message(),
        format!("{frame} 1e999 into Go struct field DeploymentSpec.spec.replicas of type int32")
    );
    assert_eq!(
        put(r#"{"selector":{"matchLabels":{"a":-1e400}}}"#).unwrap_err().message(),
        format!("{frame} into Go struct field LabelSelector.spec.selector.matchLabels of type string")
    );
    let unknown = put(r#"{"none":1e999,"replicas":-0}"#).unwrap();
    assert_eq!((&unknown.object["spec"]["replicas"], unknown.warnings.len()), (&json!(0), 1));
    let any = decode_any(MediaType::Json, br#"{"a":["1e1",1e999]}"#).unwrap_err();
    assert_eq!(any, "json: cannot unmarshal number 1e999 into Go value of type float64");
}

#[test]
fn errors_that_stop_the_decoder_come_first_in_a_tree_too() {
    let (table, kind) = (KindTable::builtin(), kind("", "Secret"));
    let secret =
        |data: Value, time: &str| json!({"metadata": {"creationTimestamp": time}, "immutable": 1, "data": data});
    let unfit = |object: &Value| prune_canonical(table, kind, &mut object.clone(), FieldValidation::Warn).unwrap_err();
    let time = secret(json!({"a": "YQ"}), "x");
    assert_eq!(unfit(&time).decoded(), "illegal base64 data at input byte 0");
    let told = error_of_tree(table, kind, time).unwrap();
    assert!(told.starts_with("parsing time \"x\""), "{told}");
    assert_eq!(error_of_tree(table, kind, secret(json!({"a": "YQ"}), "2026-11-26T00:00:00Z")), None);
    let converted = prune_merged(table, kind, &mut json!({"data": {"a": "YQ"}}), FieldValidation::Warn, Vec::new());
    assert_eq!(converted.unwrap_err().converted(), "error decoding from json: illegal base64 data at input byte 0");
}
