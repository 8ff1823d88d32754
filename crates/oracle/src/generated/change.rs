//! Updates and patches of the created object.

use serde_json::{Value, json};

use super::{GeneratorInput, forms};
use crate::mutation::ObjectMutation;
use crate::step::{RequestBody, Step, TABLE};

pub(super) const JSON_PATCH: &str = "application/json-patch+json";
pub(super) const MERGE: &str = "application/merge-patch+json";
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(super) const APPLY: &str = "application/apply-patch+yaml";

pub(super) fn steps(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let mut steps = updates(subject);
    steps.extend(refused_updates(subject));
    steps.extend(patches(subject));
    steps.extend(refused_patches(subject));
    steps.extend(applies(subject));
    steps
}

fn label(value: &str) -> Value {
    json!({"metadata": {"labels": {"changed": value}}})
}

fn updates(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let put =
        |name: &str, query: &str, mutation| Step::put(&format!("update: {name}"), subject.object(query), mutation);
    let yaml = put("nothing changes, in strict mode", "?fieldValidation=Strict", ObjectMutation::default());
    let unconditional = ObjectMutation::default().without("metadata.resourceVersion");
    let mut steps = vec![
        put("nothing changes", "", ObjectMutation::default()),
        yaml,
        put("a label", "", ObjectMutation::set("metadata.labels.changed", "put")),
        put("a dry run", "?dryRun=All", ObjectMutation::set("metadata.labels.changed", "dry")),
        put("without a revision", "?dryRun=All", unconditional.clone().and("metadata.labels.changed", "dry")),
        put("answered as a table", "?dryRun=All", ObjectMutation::set("metadata.labels.changed", "dry")).accept(TABLE),
        put("without managed fields", "?dryRun=All", ObjectMutation::set("metadata.managedFields", json!([]))),
        put(
            "under another manager",
            "?dryRun=All&fieldManager=other",
            ObjectMutation::set("metadata.labels.changed", "o"),
        ),
        Step::new("update: the base as YAML", "PUT", subject.object("?dryRun=All")).yaml(subject.base.clone()),
        Step::new("update: the base as protobuf", "PUT", subject.object("?dryRun=All")).protobuf(subject.base.clone()),
        Step::new("update: a body of an unknown type", "PUT", subject.object("")).text("application/xml", "<a/>"),
    ];
    let dry = || put("a dry run", "?dryRun=All", ObjectMutation::set("metadata.labels.changed", "dry"));
    steps.extend(forms::answers("update", dry));
    steps
}

fn refused_updates(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let put = |name: &str, path: &str, value: Value| {
        Step::put(&format!("update: {name}"), subject.object("?dryRun=All"), ObjectMutation::set(path, value))
    };
    let missing = subject.with("metadata.name", format!("{}-missing", subject.name));
    vec![
        put("a stale revision", "metadata.resourceVersion", json!("1")),
        put("a revision that is none", "metadata.resourceVersion", json!("x")),
        put("another name", "metadata.name", json!("other")),
        put("another uid", "metadata.uid", json!("01234567-89ab-cdef-0123-456789abcdef")),
        put("another namespace", "metadata.namespace", json!("elsewhere")),
        put("another time", "metadata.creationTimestamp", json!("2001-02-03T04:05:06Z")),
        put("a deletion", "metadata.deletionTimestamp", json!("2001-02-03T04:05:06Z")),
        put("a generation", "metadata.generation", json!(77)),
        put("a wrong label", "metadata.labels.a", json!("-x-")),
        put("a manager that is too long", "metadata.managedFields", json!([{"manager": "m".repeat(129)}])),
        Step::new("update: an empty body", "PUT", subject.object("")).text("application/json", ""),
        Step::new("update: what is not there", "PUT", subject.object("-missing?dryRun=All")).json(missing),
        Step::new("update: the collection", "PUT", subject.collection("")).json(subject.base.clone()),
    ]
}

fn patches(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let patch = |name: &str, media: &str, body| Step::patch(&format!("patch: {name}"), subject.object(""), media, body);
    let add = json!([{"op": "add", "path": "/metadata/labels/changed", "value": "json"}]);
    let test = json!([{"op": "test", "path": "/metadata/name", "value": "other"}]);
    let dry = || Step::patch("patch: merge", subject.object("?dryRun=All"), MERGE, label("dry"));
    let mut steps = vec![
        patch("JSON", JSON_PATCH, add.clone()),
        patch("JSON that changes nothing", JSON_PATCH, add),
        patch("JSON with a test that fails", JSON_PATCH, test),
        patch("JSON at a path that is not there", JSON_PATCH, json!([{"op": "remove", "path": "/nothing/here"}])),
        patch("JSON with an unknown operation", JSON_PATCH, json!([{"op": "burn", "path": "/metadata"}])),
        patch("JSON that is no list", JSON_PATCH, json!({})),
        patch("merge", MERGE, label("merge")),
        patch("merge that changes nothing", MERGE, json!({})),
        patch("merge that removes", MERGE, json!({"metadata": {"labels": {"changed": null}}})),
        patch("strategic", STRATEGIC, label("strategic")),
        patch("strategic that changes nothing", STRATEGIC, label("strategic")),
        patch("strategic on finalizers", STRATEGIC, json!({"metadata": {"finalizers": ["example.com/a"]}})),
        patch(
            "strategic that takes a finalizer out",
            STRATEGIC,
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}),
        ),
        patch("strategic with a directive of no sense", STRATEGIC, json!({"metadata": {"$patch": "burn"}})),
    ];
    steps.extend(forms::answers("patch", dry));
    steps
}

fn refused_patches(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let patch = |name: &str, rest: &str, media: &str, body| {
        Step::patch(&format!("patch: {name}"), subject.object(rest), media, body)
    };
    let unknown = json!({"metadata": {"unknownA": 1}, "unknownB": 1});
    vec![
        patch("an unknown type", "", "application/xml", json!({})),
        patch("JSON is no patch type", "", "application/json", json!({})),
        patch("what is not there", "-missing", MERGE, json!({})),
        patch("a stale revision", "", MERGE, json!({"metadata": {"resourceVersion": "1"}})),
        patch("another name", "", MERGE, json!({"metadata": {"name": "other"}})),
        patch("another uid", "", MERGE, json!({"metadata": {"uid": "other"}})),
        patch("another kind", "", MERGE, json!({"kind": "Other"})),
        patch("a wrong type", "", MERGE, json!({"metadata": {"labels": "text"}})),
        patch("unknown fields strictly", "?dryRun=All&fieldValidation=Strict", MERGE, unknown.clone()),
        patch("unknown fields with warnings", "?dryRun=All&fieldValidation=Warn", STRATEGIC, unknown),
        patch("force without apply", "?force=true", MERGE, json!({})),
        Step::patch("patch: the collection", subject.collection(""), MERGE, json!({})),
        Step { body: RequestBody::Text("{".to_owned()), ..patch("a body cut off", "", MERGE, json!({})) },
    ]
}

fn applies(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let named = |extra: &ObjectMutation| {
        let own = ObjectMutation::set("apiVersion", subject.base["apiVersion"].clone())
            .and("kind", subject.base["kind"].clone());
        let bare = own.apply(&json!({"metadata": {"name": subject.name}})).unwrap_or_default();
        extra.apply(&bare).unwrap_or_default()
    };
    let apply = |name: &str, query: &str, body| {
        Step::patch(&format!("apply: {name}"), subject.object(&format!("?{query}")), APPLY, body)
    };
    let labelled = named(&ObjectMutation::set("metadata.labels.changed", "applied"));
    let shared = named(&ObjectMutation::set("metadata.labels.changed", "strategic"));
    let other = subject.with("metadata.name", format!("{}-new", subject.name));
    let new = subject.object("-new?fieldManager=a&dryRun=All");
    let dry = || apply("the base", "fieldManager=a&dryRun=All", subject.base.clone());
    let mut steps = vec![
        apply("the base", "fieldManager=a&dryRun=All", subject.base.clone()),
        Step::patch("apply: what is not there yet", new, APPLY, other),
        apply("no manager", "dryRun=All", labelled.clone()),
        apply("a conflict", "fieldManager=a", labelled.clone()),
        apply("a value that another owns too", "fieldManager=a", shared.clone()),
        apply("nothing changes", "fieldManager=a", shared),
        apply("by force", "fieldManager=a&force=true", labelled),
        apply(
            "a conflict with an applier",
            "fieldManager=b",
            named(&ObjectMutation::set("metadata.labels.changed", "b")),
        ),
        apply("what was applied is given up", "fieldManager=a", named(&ObjectMutation::default())),
        apply(
            "managed fields of its own",
            "fieldManager=a",
            named(&ObjectMutation::set("metadata.managedFields", json!([{}]))),
        ),
        apply(
            "unknown fields strictly",
            "fieldManager=a&fieldValidation=Strict",
            named(&ObjectMutation::set("unknownA", 1)),
        ),
        apply("another version", "fieldManager=a", named(&ObjectMutation::set("apiVersion", "example.com/v9"))),
        apply("no kind", "fieldManager=a", json!({"metadata": {"name": subject.name}})),
        Step {
            body: RequestBody::Yaml(subject.base.clone()),
            ..apply("the base as YAML", "fieldManager=a&dryRun=All", json!({}))
        },
        Step::new("apply: as CBOR", "PATCH", subject.object("?fieldManager=a"))
            .text("application/apply-patch+cbor", "x"),
    ];
    steps.extend(forms::answers("apply", dry));
    steps
}
