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
        let body = json!({"metadata": {"creationTimestamp": time}, "spec": {"renewTime": "2024-01-02T03:04:05.1Z"}});
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
fn unknown_and_duplicate_fields_are_told_by_their_path() {
    let body = r#"{"metadata":{"name":"a","labels":{"x":"1","x":"2"}},"spec":{"replica":1,"template":{"spec":{"containers":[
        {"name":"a"},{"name":"b","imag":"x","image":"a","image":"b"}]}}},"extra":{"deep":[1]}}"#;
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
fn what_cannot_be_decoded_is_explained_as_upstream_does() {
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
            "an object for a list",
            "",
            "Pod",
            r#"{"spec":{"containers":{}}}"#,
            r#"Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"#,
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
            "a kind that nobody knows",
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
    let body = "kind: ConfigMap\nmetadata:\n  name: a\ndata: &x\n  k: v\n  n: \"1\"\nextra: 1\n";
    let table = KindTable::builtin();
    let decoded =
        decode(table, kind("", "ConfigMap"), MediaType::Yaml, body.as_bytes(), FieldValidation::Warn).unwrap();
    assert_eq!(decoded.object["data"], json!({"k": "v", "n": "1"}));
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
    assert_eq!(decode_any(MediaType::Yaml, bomb.as_bytes()).unwrap_err().code(), 400);
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
    assert_eq!(error.code(), 422);
}

proptest::proptest! {
    /// Whatever the bytes: an answer, never a panic; and what was accepted is canonical.
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
