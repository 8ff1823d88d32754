//! Creates: content types, dry runs, and bodies that no kind accepts.

use serde_json::json;

use super::GeneratorInput;
use crate::mutation::ObjectMutation;
use crate::step::{METADATA, PROTOBUF, Step, TABLE};

const DRY: &str = "?dryRun=All";

pub(super) fn steps(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let mut steps = content_types(subject);
    steps.extend(bodies(subject));
    steps.extend(strictness(subject));
    // A create-only resource stores nothing and ignores metadata.
    if subject.resource.can("get") {
        steps.extend(metadata(subject));
        steps.extend([
            Step::post("create: it is made", subject.collection(""), subject.base.clone()),
            Step::post("create: it is there already", subject.collection(""), subject.base.clone()),
        ]);
    }
    steps
}

fn content_types(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let (dry, base) = (subject.collection(DRY), subject.base);
    let post = |name: &str| Step::new(name, "POST", dry.clone());
    vec![
        post("create: JSON").json(base.clone()),
        post("create: YAML both ways").yaml(base.clone()).accept("application/yaml"),
        post("create: protobuf in").protobuf(base.clone()),
        post("create: protobuf both ways").protobuf(base.clone()).accept(PROTOBUF),
        post("create: answered as a table").json(base.clone()).accept(TABLE),
        post("create: answered as metadata").json(base.clone()).accept(METADATA),
        post("create: answered prettily").json(base.clone()).accept("application/json;pretty=1"),
        post("create: an unknown answer type").json(base.clone()).accept("application/xml"),
        post("create: an unknown body type").text("application/xml", "<a/>"),
        post("create: a body type of no sense").text("no type", "{}"),
    ]
}

fn bodies(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let dry = subject.collection(DRY);
    let text = |name: &str, body: &str| Step::new(name, "POST", dry.clone()).text("application/json", body);
    let post = |name: &str, body| Step::post(name, dry.clone(), body);
    vec![
        text("create: an empty body", ""),
        text("create: a body cut off", r#"{"apiVersion":"#),
        text("create: a list for a body", "[]"),
        text("create: an empty object", "{}"),
        post("create: another kind", subject.with("kind", "Other")),
        post("create: another version", subject.with("apiVersion", "example.com/v9")),
        post("create: no kind", subject.changed(&ObjectMutation::default().without("kind"))),
        post("create: metadata of a wrong type", subject.with("metadata", "text")),
        post("create: labels of a wrong type", subject.with("metadata.labels", json!({"a": 1}))),
        Step::new("create: YAML cut off", "POST", dry.clone()).text("application/yaml", "a: [b"),
        Step::new("create: protobuf cut off", "POST", dry.clone()).text(PROTOBUF, "k8s\0\u{a}\u{7f}"),
        Step::new("create: protobuf without its magic", "POST", dry.clone()).text(PROTOBUF, "abcdefgh"),
    ]
}

fn strictness(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let unknown = ObjectMutation::set("metadata.unknownA", 1).and("unknownB", json!({"c": 1}));
    let body = subject.changed(&unknown);
    let post = |name: &str, level: &str| {
        let path = subject.collection(&format!("{DRY}&fieldValidation={level}"));
        Step::post(name, path, body.clone())
    };
    let twice = r#""kind":"Twice","kind":"#;
    let doubled = subject.base.to_string().replacen(r#""kind":"#, twice, 1);
    let strict = subject.collection(&format!("{DRY}&fieldValidation=Strict"));
    vec![
        Step::post("create: unknown fields by default", subject.collection(DRY), body.clone()),
        post("create: unknown fields strictly", "Strict"),
        post("create: unknown fields with warnings", "Warn"),
        post("create: unknown fields ignored", "Ignore"),
        post("create: an unknown level of strictness", "Severe"),
        Step::new("create: a field twice strictly", "POST", strict.clone()).text("application/json", &doubled),
        Step::new("create: a field twice in strict YAML", "POST", strict).text("application/yaml", &doubled),
        Step::post("create: an unknown dry run", subject.collection("?dryRun=Some"), subject.base.clone()),
    ]
}

/// Metadata that no kind accepts, or that the server sets.
fn metadata(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "", "uid": ""}]);
    let two = json!([
        {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": true},
        {"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "2", "controller": true},
    ]);
    let long = "x".repeat(64);
    let generated = ObjectMutation::set("metadata.generateName", "made-").without("metadata.name");
    let cases = [
        ("no name", subject.changed(&ObjectMutation::default().without("metadata.name"))),
        ("a generated name", subject.changed(&generated)),
        ("a name in capitals", subject.with("metadata.name", "Not_Valid!")),
        ("a name that is too long", subject.with("metadata.name", "n".repeat(254))),
        ("a name with a slash", subject.with("metadata.name", "a/b")),
        ("a wrong generateName", subject.with("metadata.generateName", "Not_Valid!")),
        ("a wrong label key", subject.with("metadata.labels.a b", "x")),
        ("a wrong label value", subject.with("metadata.labels.a", "-x-")),
        ("a label value that is too long", subject.with("metadata.labels.a", long)),
        ("a wrong annotation key", subject.with("metadata.annotations.a b", "x")),
        ("annotations that are too large", subject.with("metadata.annotations.a", "x".repeat(262_145))),
        ("a wrong finalizer", subject.with("metadata.finalizers", json!(["nogroup"]))),
        ("a finalizer", subject.with("metadata.finalizers", json!(["example.com/a"]))),
        (
            "finalizers that exclude each other",
            subject.with("metadata.finalizers", json!(["orphan", "foregroundDeletion"])),
        ),
        ("an owner without name and uid", subject.with("metadata.ownerReferences", owner)),
        ("two controllers", subject.with("metadata.ownerReferences", two)),
        ("a resourceVersion", subject.with("metadata.resourceVersion", "1")),
        ("metadata that the server owns", subject.with("metadata.uid", "mine")),
        ("a time of its own", subject.with("metadata.creationTimestamp", "2001-02-03T04:05:06Z")),
        ("a deletion of its own", subject.with("metadata.deletionTimestamp", "2001-02-03T04:05:06Z")),
        ("a time that is none", subject.with("metadata.creationTimestamp", "yesterday")),
        ("another namespace", subject.with("metadata.namespace", "elsewhere")),
    ];
    let dry = subject.collection(DRY);
    let mut steps: Vec<Step> =
        cases.into_iter().map(|(name, body)| Step::post(&format!("create: {name}"), dry.clone(), body)).collect();
    if subject.resource.namespaced {
        let missing = dry.replace("${ns}", "missing");
        steps.push(Step::post("create: in a namespace that is not there", missing, subject.base.clone()));
        let everywhere = format!("{}{DRY}", subject.resource.everywhere());
        steps.push(Step::post("create: in no namespace", everywhere, subject.base.clone()));
    }
    steps
}
