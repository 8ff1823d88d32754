//! Status and scale in every verb and format, and requests to all other subresources.

use serde_json::{Value, json};

use super::change::{APPLY, JSON_PATCH, MERGE, STRATEGIC};
use super::{GeneratorInput, forms};
use crate::mutation::ObjectMutation;
use crate::step::{RequestBody, Step, TABLE};

/// Subresources that open a stream or proxy the request.
const CONNECTIONS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

pub(super) fn steps(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    if subject.resource.has("status") {
        steps.extend(statuses(subject));
        steps.extend(statuses_in_all_forms(subject));
    }
    if subject.resource.has("scale") {
        steps.extend(scales(subject));
        steps.extend(scales_in_all_forms(subject));
        steps.extend(refused_scales(subject));
    }
    let others = subject.resource.subresources.iter().map(String::as_str);
    let others = others.filter(|name| !["status", "scale"].contains(name) && !CONNECTIONS.contains(name));
    steps.extend(others.flat_map(|name| verbs(subject, name)));
    steps
}

fn statuses(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let path = |query: &str| subject.object(&format!("/status{query}"));
    let mixed = json!({"metadata": {"labels": {"by-status": "yes"}}, "status": {}});
    vec![
        Step::put("status: nothing changes", path(""), ObjectMutation::default()),
        Step::put("status: a label", path("?dryRun=All"), ObjectMutation::set("metadata.labels.by-status", "yes")),
        Step::put("status: a stale revision", path(""), ObjectMutation::set("metadata.resourceVersion", "1")),
        Step::put("status: removed", path("?dryRun=All"), ObjectMutation::default().without("status")),
        Step::patch("status: merge", path("?dryRun=All"), MERGE, mixed.clone()),
        Step::patch("status: strategic", path("?dryRun=All"), STRATEGIC, mixed),
        Step::new("status: is not created", "POST", path("")).json(subject.base.clone()),
        Step::new("status: is not deleted", "DELETE", path("")),
    ]
}

fn statuses_in_all_forms(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let dry = subject.object("/status?dryRun=All");
    let put = |name: &str, mutation| Step::put(&format!("status: {name}"), dry.clone(), mutation);
    let new = |name: &str| Step::new(&format!("status: {name}"), "PUT", dry.clone());
    let apply = |name: &str, query: &str, body| {
        Step::patch(&format!("status: {name}"), subject.object(&format!("/status?{query}")), APPLY, body)
    };
    let own = |extra: Value| {
        let mut body = json!({"apiVersion": subject.base["apiVersion"], "kind": subject.base["kind"], "metadata": {"name": subject.name}});
        body["status"] = extra;
        body
    };
    let labels = json!([{"op": "add", "path": "/metadata/labels/by-status", "value": "yes"}]);
    let unknown = json!({"status": {"unknownA": 1}});
    let strict = subject.object("/status?dryRun=All&fieldValidation=Strict");
    let mut steps = vec![
        new("the base as protobuf").protobuf(subject.base.clone()),
        new("a body of an unknown type").text("application/xml", "<a/>"),
        put("another name", ObjectMutation::set("metadata.name", "other")),
        put("another uid", ObjectMutation::set("metadata.uid", "01234567-89ab-cdef-0123-456789abcdef")),
        put("another kind", ObjectMutation::set("kind", "Other")),
        put("of a wrong type", ObjectMutation::set("status", "text")),
        put("a finalizer", ObjectMutation::set("metadata.finalizers", json!(["example.com/by-status"]))),
        put(
            "an owner",
            ObjectMutation::set(
                "metadata.ownerReferences",
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1"}]),
            ),
        ),
        Step::patch("status: JSON", dry.clone(), JSON_PATCH, labels),
        Step::patch("status: unknown fields strictly", strict, MERGE, unknown),
        apply("applied", "fieldManager=st&dryRun=All", own(json!({}))),
        apply("applied without a manager", "dryRun=All", own(json!({}))),
        apply("applied with what is unknown", "fieldManager=st&dryRun=All", own(json!({"unknownA": 1}))),
        Step::patch("status: patched of what is not there", subject.object("-missing/status"), MERGE, json!({})),
    ];
    steps.extend(forms::answers("status", || put("a label", ObjectMutation::set("metadata.labels.by-status", "yes"))));
    steps
}

fn scale(subject: &GeneratorInput<'_>, replicas: i64) -> Value {
    json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": subject.name, "namespace": "${ns}"},
        "spec": {"replicas": replicas},
    })
}

fn scales(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let path = |query: &str| subject.object(&format!("/scale{query}"));
    let scale = |replicas: i64| scale(subject, replicas);
    let stale = ObjectMutation::set("metadata.resourceVersion", "1").apply(&scale(1)).unwrap_or_default();
    vec![
        Step::new("scale: put", "PUT", path("")).json(scale(3)),
        Step::new("scale: nothing changes", "PUT", path("")).json(scale(3)),
        Step::new("scale: below zero", "PUT", path("")).json(scale(-1)),
        Step::new("scale: a stale revision", "PUT", path("")).json(stale),
        Step::new("scale: in protobuf", "PUT", path("?dryRun=All")).accept(TABLE).json(scale(4)),
        Step::patch("scale: merge", path(""), MERGE, json!({"spec": {"replicas": 2}})),
        Step::patch("scale: strategic", path("?dryRun=All"), STRATEGIC, json!({"spec": {"replicas": 5}})),
        Step::patch(
            "scale: JSON",
            path(""),
            JSON_PATCH,
            json!([{"op": "replace", "path": "/spec/replicas", "value": 0}]),
        ),
        Step::patch("scale: apply", path("?fieldManager=scaler&force=true"), APPLY, scale(1)),
        Step::get("scale: the object afterwards", subject.object("")),
    ]
}

fn scales_in_all_forms(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let dry = subject.object("/scale?dryRun=All");
    let put = |name: &str| Step::new(&format!("scale: {name}"), "PUT", dry.clone());
    let patch = |name: &str, media: &str, body| Step::patch(&format!("scale: {name}"), dry.clone(), media, body);
    let apply = |name: &str, query: &str, replicas| {
        let path = subject.object(&format!("/scale?dryRun=All&fieldManager={query}"));
        Step::patch(&format!("scale: {name}"), path, APPLY, scale(subject, replicas))
    };
    let test = json!([{"op": "test", "path": "/spec/replicas", "value": 77}]);
    let mut steps = vec![
        put("sent as YAML").yaml(scale(subject, 4)),
        forms::in_protobuf(put("sent as protobuf"), forms::scale(subject.name, 4)),
        patch("merge that changes nothing", MERGE, json!({})),
        patch("merge that takes the count out", MERGE, json!({"spec": {"replicas": null}})),
        patch("merge below zero", MERGE, json!({"spec": {"replicas": -1}})),
        patch("merge of a label", MERGE, json!({"metadata": {"labels": {"by-scale": "yes"}}})),
        patch("merge of the status", MERGE, json!({"status": {"replicas": 77, "selector": "x=y"}})),
        patch("merge of a stale revision", MERGE, json!({"metadata": {"resourceVersion": "1"}})),
        patch("JSON with a test that fails", JSON_PATCH, test),
        apply("a conflict", "other", 9),
        apply("the same by another", "other", 1),
        apply("by force", "other&force=true", 9),
        Step { body: RequestBody::Yaml(scale(subject, 1)), ..apply("applied as YAML", "scaler", 1) },
        Step::get("scale: pretty", subject.object("/scale?pretty=true")),
    ];
    steps.extend(forms::answers("scale", || put("four").json(scale(subject, 4))));
    steps
}

fn refused_scales(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let put = |name: &str, rest: &str, mutation: ObjectMutation| {
        let body = mutation.apply(&scale(subject, 4)).unwrap_or_default();
        Step::new(&format!("scale: {name}"), "PUT", subject.object(&format!("{rest}dryRun=All"))).json(body)
    };
    let own = |name: &str, mutation| put(name, "/scale?", mutation);
    let other_uid = "01234567-89ab-cdef-0123-456789abcdef";
    vec![
        own("no kind", ObjectMutation::default().without("kind").without("apiVersion")),
        own("of another kind", ObjectMutation::set("kind", "Other")),
        own(
            "the object itself",
            ObjectMutation::set("apiVersion", subject.base["apiVersion"].clone())
                .and("kind", subject.base["kind"].clone()),
        ),
        own("another name", ObjectMutation::set("metadata.name", "other")),
        own("no name", ObjectMutation::default().without("metadata.name")),
        own("another namespace", ObjectMutation::set("metadata.namespace", "elsewhere")),
        own("another uid", ObjectMutation::set("metadata.uid", other_uid)),
        own("a status", ObjectMutation::set("status", json!({"replicas": 77, "selector": "x=y"}))),
        own("no spec", ObjectMutation::default().without("spec")),
        own("too many", ObjectMutation::set("spec.replicas", 4_294_967_296_i64)),
        own("a fraction", ObjectMutation::set("spec.replicas", 1.5)),
        put("unknown fields strictly", "/scale?fieldValidation=Strict&", ObjectMutation::set("spec.unknownA", 1)),
        put("unknown fields with warnings", "/scale?fieldValidation=Warn&", ObjectMutation::set("spec.unknownA", 1)),
        put(
            "of what is not there",
            "-missing/scale?",
            ObjectMutation::set("metadata.name", format!("{}-missing", subject.name)),
        ),
        Step::patch("scale: patched of what is not there", subject.object("-missing/scale"), MERGE, json!({})),
        Step::patch(
            "scale: applied of what is not there",
            subject.object("-missing/scale?fieldManager=a"),
            APPLY,
            scale(subject, 1),
        ),
        Step::get("scale: got of what is not there", subject.object("-missing/scale")),
        Step::new("scale: an empty body", "PUT", subject.object("/scale")).text("application/json", ""),
        Step::new("scale: a body of an unknown type", "PUT", subject.object("/scale")).text("application/xml", "<a/>"),
        Step::new("scale: is not created", "POST", subject.object("/scale")).json(scale(subject, 1)),
        Step::new("scale: is not deleted", "DELETE", subject.object("/scale")),
    ]
}

/// Every verb of a subresource with the object itself as body, which is right for some.
fn verbs(subject: &GeneratorInput<'_>, subresource: &str) -> Vec<Step> {
    let path = |rest: &str, query: &str| subject.object(&format!("{rest}/{subresource}?dryRun=All{query}"));
    let name = |name: &str| format!("{subresource}: {name}");
    let base = || subject.base.clone();
    let patch = |of: &str, media: &str, body| Step::patch(&name(of), path("", "&fieldManager=a"), media, body);
    vec![
        Step::get(&name("get"), path("", "")),
        Step::get(&name("a table"), path("", "")).accept(TABLE),
        Step::get(&name("of what is not there"), path("-missing", "")),
        Step::new(&name("put"), "PUT", path("", "")).json(base()),
        Step::put(&name("put as stored"), path("", ""), ObjectMutation::default()),
        Step::put(&name("put with a label"), path("", ""), ObjectMutation::set("metadata.labels.by-other", "yes")),
        Step::new(&name("put of what is not there"), "PUT", path("-missing", "")).json(base()),
        Step::post(&name("post of nothing"), path("", ""), json!({})),
        Step::new(&name("post of nothing as YAML"), "POST", path("", "")).yaml(json!({})),
        Step::new(&name("post of an unknown type"), "POST", path("", "")).text("application/xml", "<a/>"),
        Step::post(&name("post to what is not there"), path("-missing", ""), json!({})),
        patch("JSON", JSON_PATCH, json!([])),
        patch("merge", MERGE, json!({})),
        patch("strategic", STRATEGIC, json!({})),
        patch("apply", APPLY, base()),
        Step::new(&name("delete"), "DELETE", path("", "")),
    ]
}
