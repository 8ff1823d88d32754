//! Values with special parsing rules in Go, and which error of a body is reported.

use serde_json::json;

use super::*;

fn read(media: MediaType, group: &str, name: &str, body: &str) -> Result<Value, String> {
    let table = KindTable::builtin();
    let kind = table.kind_named(group, "v1", name).unwrap();
    let decoded = decode(table, kind, media, body.as_bytes(), FieldValidation::Ignore);
    decoded.map(|decoded| decoded.object).map_err(|status| status.message().to_owned())
}

fn why(group: &str, name: &str, body: &str) -> String {
    let message = read(MediaType::Json, group, name, body).unwrap_err();
    message.split_once(&format!("handled as a {name}: ")).map_or(message.clone(), |(_, why)| why.to_owned())
}

#[test]
fn quantities_are_taken_as_they_are_spelled() {
    for (json, yaml, expected) in [
        (r#""+1""#, "'+1'", "+1"),
        (r#"" 1.5 ""#, "' 1.5 '", "1500m"),
        ("1E3", "'1E3'", "1E3"),
        ("1.500", "'1.500'", "1.500"),
        ("1e400", "'1e400'", "10e399"),
        ("99999999999999999999", "'99999999999999999999'", "99999999999999999999"),
        ("null", "null", "0"),
        (r#""99999999Ei""#, "99999999Ei", "9223372036854775807"),
    ] {
        let body = |value: &str| format!("{{\"spec\": {{\"capacity\": {{\"storage\": {value}}}}}}}");
        for (media, value) in [(MediaType::Json, json), (MediaType::Yaml, yaml)] {
            let object = read(media, "", "PersistentVolume", &body(value)).unwrap();
            assert_eq!(object["spec"]["capacity"]["storage"], expected, "{media:?} {value}");
        }
    }
}

#[test]
fn invalid_quantities_have_kube_apiservers_messages() {
    let shape = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    for (value, expected) in [
        ("{}", shape),
        ("[1]", shape),
        ("true", shape),
        (r#""""#, shape),
        (r#""\u0031""#, shape),
        (r#""1mm""#, "unable to parse quantity's suffix"),
        (r#""e-20""#, "unable to parse numeric part of quantity"),
    ] {
        let body = format!("{{\"spec\": {{\"capacity\": {{\"storage\": {value}}}}}}}");
        assert_eq!(why("", "PersistentVolume", &body), expected, "{value}");
    }
    let yaml = read(MediaType::Yaml, "", "PersistentVolume", "spec: {capacity: {storage: []}}").unwrap_err();
    assert!(yaml.ends_with(shape), "{yaml}");
}

#[test]
fn a_custom_decoder_stops_at_its_error_and_other_errors_are_reported_once() {
    let name = "json: cannot unmarshal array into Go struct field Container.spec.containers.name of type string";
    let image = "json: cannot unmarshal object into Go struct field Container.spec.containers.image of type string";
    let time = r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#;
    let cpu = "unable to parse quantity's suffix";
    // The JSON that Go makes of YAML has sorted keys.
    for (body, json, yaml) in [
        (r#"{"spec": {"containers": [{"name": [1], "image": {}, "tty": "x"}], "nodeName": 1}}"#, name, image),
        (r#"{"spec": {"containers": [{"name": [[]], "resources": {"limits": {"cpu": "1mm"}}}]}}"#, cpu, cpu),
        (r#"{"spec": {"containers": {"a": [1]}}, "metadata": {"creationTimestamp": "x"}}"#, time, time),
        (r#"{"metadata": {"creationTimestamp": "x"}, "spec": {"containers": {}}}"#, time, time),
    ] {
        assert_eq!(why("", "Pod", body), json, "{body}");
        let told = read(MediaType::Yaml, "", "Pod", body).unwrap_err();
        assert!(told.ends_with(yaml), "{told}");
    }
    let number = r#"{"spec": {"replicas": 1.50, "paused": "x"}}"#;
    let expected = "json: cannot unmarshal number 1.50 into Go struct field DeploymentSpec.spec.replicas of type int32";
    assert_eq!(why("apps", "Deployment", number), expected);
}

#[test]
fn bytes_are_base64_or_numbers() {
    let body = r#"{"data": {"a": [], "b": [97, null, 255], "c": "YR==", "d": "Y\nQ=="}}"#;
    let object = read(MediaType::Json, "", "Secret", body).unwrap();
    assert_eq!(object["data"], json!({"a": "", "b": "YQD/", "c": "YQ==", "d": "YQ=="}));
    let field = "into Go struct field Secret.data of type uint8";
    for (value, expected) in [
        ("[256]", format!("json: cannot unmarshal number 256 {field}")),
        (r#"["a"]"#, format!("json: cannot unmarshal string {field}")),
        (r#""!!""#, "illegal base64 data at input byte 0".into()),
        (r#""YWJjYQ""#, "illegal base64 data at input byte 4".into()),
    ] {
        assert_eq!(why("", "Secret", &format!("{{\"data\": {{\"x\": {value}}}}}")), expected, "{value}");
    }
}

#[test]
fn the_zero_time_behind_a_pointer_is_null() {
    let zero = "0001-01-01T00:00:00Z";
    let body = json!({
        "metadata": {"creationTimestamp": zero},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule", "timeAdded": zero}, {"key": "b", "effect": "", "timeAdded": null}]},
    });
    let object = read(MediaType::Json, "", "Node", &body.to_string()).unwrap();
    let taints = json!([{"key": "a", "effect": "NoSchedule", "timeAdded": null}, {"key": "b", "effect": ""}]);
    assert_eq!((&object["spec"]["taints"], &object["metadata"]), (&taints, &json!({})));
}

#[test]
fn types_are_called_as_go_calls_them() {
    for (group, kind, body, expected) in [
        (
            "",
            "Service",
            r#"{"spec": {"sessionAffinity": 1}}"#,
            "ServiceSpec.spec.sessionAffinity of type v1.ServiceAffinity",
        ),
        ("", "Service", r#"{"spec": {"ipFamilies": "x"}}"#, "ServiceSpec.spec.ipFamilies of type []v1.IPFamily"),
        ("", "Service", r#"{"spec": {"ipFamilies": [{}]}}"#, "ServiceSpec.spec.ipFamilies of type v1.IPFamily"),
        (
            "",
            "PersistentVolume",
            r#"{"spec": {"capacity": "x"}}"#,
            "PersistentVolumeSpec.spec.capacity of type v1.ResourceList",
        ),
        ("", "Node", r#"{"metadata": {"uid": {}}}"#, "ObjectMeta.metadata.uid of type types.UID"),
        ("", "ConfigMap", r#"{"data": []}"#, "ConfigMap.data of type map[string]string"),
    ] {
        let told = why(group, kind, body);
        assert!(told.ends_with(&format!("into Go struct field {expected}")), "{told}");
    }
    let table = KindTable::builtin();
    let mut object = json!({"spec": {"dnsPolicy": 1}});
    let unfit =
        prune_canonical(table, table.kind_named("", "v1", "Pod").unwrap(), &mut object, FieldValidation::Ignore);
    assert_eq!(unfit.unwrap_err().converted(), "cannot convert int64 to v1.DNSPolicy");
}
