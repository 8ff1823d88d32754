use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_gocompat::protowire;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use portolan_kinds::KindTable;

/// Objects in both forms, made by the real Go types (`e2e/codegen/kindtable -samples`).
const SAMPLES: &str = include_str!("../../testdata/protobuf.jsonl");

#[derive(Deserialize)]
struct Sample {
    json: Value,
    protobuf: String,
}

fn samples() -> impl Iterator<Item = (Value, Vec<u8>)> {
    SAMPLES.lines().map(|line| {
        let sample: Sample = serde_json::from_str(line).unwrap();
        (sample.json, STANDARD.decode(sample.protobuf).unwrap())
    })
}

fn table() -> &'static KindTable {
    KindTable::builtin()
}

fn name(object: &Value) -> String {
    format!("{} {}", object["apiVersion"], object["kind"])
}

fn encode_object(object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
    let schema = table().object_type(group, version, object["kind"].as_str().unwrap()).unwrap();
    encode(object, schema, table())
}

/// Returns an envelope around raw bytes.
fn enveloped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::from(b"k8s\0");
    protowire::message::<ProtobufError>(&mut out, 1, |out| {
        protowire::bytes(out, 1, api_version.as_bytes());
        protowire::bytes(out, 2, kind.as_bytes());
        Ok(())
    })
    .unwrap();
    protowire::bytes(&mut out, 2, raw);
    out
}

#[test]
fn golden_bytes_decode_to_gos_json() {
    for (json, bytes) in samples() {
        let decoded = decode(&bytes, table()).unwrap_or_else(|error| panic!("{}: {error}", name(&json)));
        let differences = differences("", &decoded, &json);
        assert!(differences.is_empty(), "{}: {differences:#?}", name(&json));
    }
}

#[test]
fn objects_encode_to_the_bytes_that_go_writes() {
    for (json, bytes) in samples() {
        let encoded = encode_object(&json).unwrap_or_else(|error| panic!("{}: {error}", name(&json)));
        if encoded != bytes {
            // The order of keys in raw JSON is the only freedom: compare by meaning.
            assert_eq!(encoded.len(), bytes.len(), "{}", name(&json));
            assert_eq!(decode(&encoded, table()).unwrap(), decode(&bytes, table()).unwrap(), "{}", name(&json));
        }
    }
}

/// Returns the differences of two trees. Numbers are equal if their values are.
fn differences(path: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let keys: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
            let one = |key: &String| match (ours.get(key), theirs.get(key)) {
                (Some(ours), Some(theirs)) => differences(&format!("{path}.{key}"), ours, theirs),
                (ours, theirs) => vec![format!("{path}.{key}: ours {ours:?}, theirs {theirs:?}")],
            };
            keys.into_iter().flat_map(one).collect()
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let pairs = ours.iter().zip(theirs).enumerate();
            pairs.flat_map(|(at, (ours, theirs))| differences(&format!("{path}[{at}]"), ours, theirs)).collect()
        }
        (Value::Number(ours), Value::Number(theirs)) if ours.as_f64() == theirs.as_f64() => Vec::new(),
        (ours, theirs) if ours == theirs => Vec::new(),
        (ours, theirs) => vec![format!("{path}: ours {ours}, theirs {theirs}")],
    }
}

#[test]
fn absence_and_zero_are_distinguished_as_in_the_go_types() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"replicas": 0, "selector": null, "template": {}},
    });
    let decoded = decode(&encode_object(&deployment).unwrap(), table()).unwrap();
    assert_eq!(decoded["spec"]["replicas"], json!(0), "a pointer keeps its zero");
    assert_eq!(decoded["spec"].get("minReadySeconds"), None, "omitempty drops a zero");
    assert_eq!(decoded["spec"].get("selector"), Some(&Value::Null), "a pointer that is always written is null");
    assert_eq!(decoded["spec"]["template"]["spec"]["containers"], Value::Null, "and so is a list");
    assert_eq!(decoded["status"], json!({}), "a struct is always written");
    assert_eq!(decoded["metadata"], json!({"name": "a"}), "zero times are not");
}

#[test]
fn options_are_taken_under_any_api_version() {
    let mut raw = Vec::new();
    protowire::number(&mut raw, 1, 5);
    protowire::bytes(&mut raw, 99, b"a field of the future");
    let decoded = decode(&enveloped("apps/v1", "DeleteOptions", &raw), table()).unwrap();
    assert_eq!(decoded, json!({"apiVersion": "apps/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 5}));
}

#[test]
fn broken_bodies_are_errors() {
    let long_number = [&[0x08][..], &[0xff; 11]].concat();
    for (case, body, expected) in [
        ("no magic", Vec::from(b"{}"), ProtobufError::NotEnveloped),
        ("nothing", Vec::new(), ProtobufError::Empty("data")),
        ("nothing but magic", Vec::from(b"k8s\0"), ProtobufError::Empty("body")),
        ("cut in the envelope", Vec::from(b"k8s\0\x0a\x7f"), ProtobufError::Truncated),
        (
            "no kind",
            Vec::from(b"k8s\0\x0a\0"),
            ProtobufError::UnknownKind { api_version: String::new(), kind: String::new() },
        ),
        (
            "a kind without protobuf form",
            enveloped("example.dev/v1", "Widget", b""),
            ProtobufError::UnknownKind { api_version: "example.dev/v1".into(), kind: "Widget".into() },
        ),
        ("an overlong number", enveloped("v1", "DeleteOptions", &long_number), ProtobufError::Overflow),
        (
            "text where a number belongs",
            enveloped("v1", "DeleteOptions", b"\x0a\x01a"),
            ProtobufError::WireType { field: "GracePeriodSeconds".into(), wire: 2 },
        ),
        (
            "field number 0",
            enveloped("v1", "DeleteOptions", b"\x00\x01"),
            ProtobufError::IllegalTag { message: "DeleteOptions".into(), number: 0, tag: 0 },
        ),
        (
            "a group which ends unopened",
            enveloped("v1", "DeleteOptions", b"\xfc\x01"),
            ProtobufError::EndGroup("DeleteOptions".into()),
        ),
        (
            "an envelope of a number",
            Vec::from(b"k8s\0\x10\x01"),
            ProtobufError::WireType { field: "Raw".into(), wire: 0 },
        ),
        (
            "an illegal tag in what is embedded",
            enveloped("v1", "ConfigMap", b"\x0a\x02\x00\x01"),
            ProtobufError::IllegalTag { message: "ObjectMeta".into(), number: 0, tag: 0 },
        ),
        (
            "a time of text",
            enveloped("v1", "ConfigMap", b"\x0a\x05\x42\x03\x0a\x01a"),
            ProtobufError::WireType { field: "Seconds".into(), wire: 2 },
        ),
        (
            "metadata of a number",
            enveloped("v1", "ConfigMap", b"\x08\x01"),
            ProtobufError::WireType { field: "ObjectMeta".into(), wire: 0 },
        ),
        ("no wire type", enveloped("v1", "ConfigMap", b"\xff\x01"), ProtobufError::IllegalWireType(7)),
        (
            "a length beyond all",
            enveloped("v1", "ConfigMap", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            ProtobufError::NegativeLength,
        ),
        ("ten bytes that go on", enveloped("v1", "ConfigMap", &[0xff; 10]), ProtobufError::Overflow),
        ("a group in an entry", enveloped("v1", "ConfigMap", b"\x12\x01\x1c"), ProtobufError::EndOfNoGroup),
        ("a group without an end", enveloped("v1", "ConfigMap", b"\xfb\x01\x08\x01"), ProtobufError::Truncated),
    ] {
        assert_eq!(decode(&body, table()), Err(expected), "{case}");
    }
    let compressed = b"k8s\0\x1a\x04gzip";
    assert_eq!(decode(compressed, table()), Err(ProtobufError::Encoded("gzip".into())));
}

/// Go checks only the field numbers in an entry of a map, and reads the value with the expected type, up to the end of
/// the message.
#[test]
fn entries_of_maps_are_read_with_the_expected_type() {
    for (case, message, expected) in [
        ("a key of another form", &b"\x12\x06\x08\x01a\x12\x01b"[..], json!({"a": "b"})),
        ("a value of a group's end", b"\x12\x06\x0a\x01a\x14\x01b", json!({"a": "b"})),
        ("something else", b"\x12\x08\x0a\x01a\x18\x05\x12\x01b", json!({"a": "b"})),
        ("number 0", b"\x12\x08\x0a\x01a\x00\x05\x12\x01b", json!({"a": "b"})),
        ("no value", b"\x12\x03\x0a\x01a", json!({"a": ""})),
        // The remaining bytes are read again, here as an empty group.
        ("a value that ends behind it", b"\x12\x06\x0a\x01a\x12\x02bcd", json!({"a": "bc"})),
    ] {
        let read = decode(&enveloped("v1", "ConfigMap", message), table());
        assert_eq!(read.map(|object| object["data"].clone()), Ok(expected), "{case}");
    }
}

/// Entries of a few bytes whose values reach to the end: each would be as large as the body.
#[test]
fn repeated_reads_are_bounded() {
    let mut message = Vec::new();
    let entries = 10_000;
    for n in 0..entries {
        // Bytes after this entry; each entry has 15.
        let rest = 15 * (entries - n - 1);
        let mut entry = Vec::new();
        protowire::bytes(&mut entry, 1, format!("{n:05}").as_bytes());
        entry.push(0x12);
        entry.extend([(rest & 0x7f) as u8 | 0x80, (rest >> 7 & 0x7f) as u8 | 0x80, (rest >> 14) as u8]);
        protowire::bytes(&mut message, 2, &entry);
        message.extend([0x28, 0]);
    }
    let read = decode(&enveloped("v1", "ConfigMap", &message), table());
    assert_eq!(read, Err(ProtobufError::TooMany));
}

/// `not: {not: {not: …}}` in a JSON schema is the only way to nest without end.
#[test]
fn depth_is_bounded() {
    let props = table().get(table().type_named(special::SCHEMA).unwrap());
    let not = props.field("not").unwrap().number;
    let mut schema = Vec::new();
    for _ in 0..5_000 {
        let inner = std::mem::take(&mut schema);
        protowire::bytes(&mut schema, not, &inner);
    }
    let wrap = |number, inner: &[u8]| {
        let mut out = Vec::new();
        protowire::bytes(&mut out, number, inner);
        out
    };
    let versions = wrap(2, &wrap(7, &wrap(4, &wrap(1, &schema))));
    let body = enveloped("apiextensions.k8s.io/v1", "CustomResourceDefinition", &versions);
    assert_eq!(decode(&body, table()), Err(ProtobufError::TooDeep));
}

/// Two bytes per empty container would otherwise become a kilobyte each.
#[test]
fn growth_is_bounded() {
    let mut containers = Vec::new();
    for _ in 0..200_000 {
        protowire::bytes(&mut containers, 2, b"");
    }
    let mut pod = Vec::new();
    protowire::bytes(&mut pod, 2, &containers);
    assert_eq!(decode(&enveloped("v1", "Pod", &pod), table()), Err(ProtobufError::TooMany));
}

#[test]
fn trees_that_do_not_fit_are_errors() {
    for (case, object) in [
        ("text for a number", json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "1"}})),
        ("a list for a map", json!({"apiVersion": "v1", "kind": "ConfigMap", "data": ["a"]})),
        ("no base64", json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "%"}})),
        ("no time", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": "now"}})),
    ] {
        assert!(matches!(encode_object(&object), Err(ProtobufError::InvalidValue { .. })), "{case}");
    }
}

#[test]
fn watch_frames_carry_their_length() {
    let object = enveloped("v1", "Pod", b"");
    let frame = watch_frame("ADDED", &object);
    assert_eq!(frame[..4], u32::try_from(frame.len() - 4).unwrap().to_be_bytes());
    assert_eq!(&frame[4..11], b"\x0a\x05ADDED");
    assert!(frame.ends_with(&object));
}

#[test]
fn lists_are_put_together_from_their_items() {
    let items: Vec<Value> =
        (0..200).map(|n| json!({"metadata": {"name": format!("c{n}")}, "data": {"k": "v"}})).collect();
    let mut list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}});
    let schema = |kind: &str| table().object_type("", "v1", kind).unwrap();
    let mut body = Vec::new();
    items.iter().for_each(|item| push_item(&mut body, ListNumbers::Usual, item, schema("ConfigMap"), table()).unwrap());
    let (head, tail) = around_items(&list, ListNumbers::Usual, schema("ConfigMapList"), table(), body.len()).unwrap();
    list["items"] = items.into();
    assert_eq!([head, body, tail].concat(), encode(&list, schema("ConfigMapList"), table()).unwrap());
}

/// `PartialObjectMetadataList` of meta.k8s.io/v1beta1: items are its field 1, metadata is field 2.
#[test]
fn old_lists_of_metadata_have_their_items_first() {
    let schema = |kind: &str| table().object_type("meta.k8s.io", "v1", kind).unwrap();
    let list = json!({"apiVersion": "meta.k8s.io/v1beta1", "kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "7"}});
    let mut item = Vec::new();
    let object = json!({"metadata": {"name": "a"}});
    push_item(&mut item, ListNumbers::ItemsFirst, &object, schema("PartialObjectMetadata"), table()).unwrap();
    assert_eq!(item[0], 1 << 3 | 2);
    let of_list = schema("PartialObjectMetadataList");
    let (head, tail) = around_items(&list, ListNumbers::ItemsFirst, of_list, table(), item.len()).unwrap();
    assert_eq!(head.last(), u8::try_from(item.len() + tail.len() - 4).ok().as_ref(), "the length of both");
    assert_eq!(tail[0], 2 << 3 | 2);
    assert!(tail.windows(3).any(|bytes| bytes == b"\x12\x017"), "the revision stands in what comes last");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..400)) {
        drop(decode(&raw, table()));
        for kind in ["Pod", "Node", "Event", "List"] {
            drop(decode(&enveloped("v1", kind, &raw), table()));
        }
        drop(decode(&enveloped("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw), table()));
    }

    #[test]
    fn damaged_objects_never_panic(which in any::<prop::sample::Index>(), hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>()) {
        let all: Vec<_> = SAMPLES.lines().collect();
        let sample: Sample = serde_json::from_str(all[which.index(all.len())]).unwrap();
        let mut bytes = STANDARD.decode(sample.protobuf).unwrap();
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(decoded) = decode(&bytes, table()) {
            drop(encode_object_if_known(&decoded));
        }
        bytes.truncate(cut.index(bytes.len()));
        drop(decode(&bytes, table()));
    }
}

fn encode_object_if_known(object: &Value) -> Option<Vec<u8>> {
    let (group, version) = object["apiVersion"].as_str()?.split_once('/').unwrap_or(("", "v1"));
    let schema = table().object_type(group, version, object["kind"].as_str()?)?;
    encode(object, schema, table()).ok()
}
