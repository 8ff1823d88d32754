//! Deletes: preconditions, propagation, single objects and collections.
//!
//! A DELETE with a body takes its options from the body only, so a dry run must be set there.

use serde_json::{Value, json};

use super::{GeneratorInput, forms};
use crate::mutation::ObjectMutation;
use crate::step::{PROTOBUF, Step};

pub(super) fn steps(subject: &GeneratorInput<'_>) -> Vec<Step> {
    // Without a garbage collector, which kube-apiserver lacks here, orphaning and finalizers would keep the object.
    let held = ObjectMutation::set("preconditions.uid", "${/metadata/uid}").and("propagationPolicy", "Background");
    let real = |name: &str, mutation: &ObjectMutation| {
        Step::new(&format!("delete: {name}"), "DELETE", subject.object("")).json(options(mutation, json!({})))
    };
    let mut steps = refused(subject);
    steps.extend(in_all_forms("delete", &subject.object("")));
    let dried = || Step::new("delete: all", "DELETE", subject.object("?dryRun=All"));
    steps.extend(forms::answers("delete", dried));
    steps.extend([
        dry(subject, "a dry run", &ObjectMutation::default()),
        unprotected(subject, "delete: what protects it is taken off"),
        real("with preconditions that hold", &held),
        real("what is not there", &ObjectMutation::default()),
        Step::get("delete: it is gone", subject.object("")),
    ]);
    if subject.resource.can("deletecollection") {
        steps.extend(collections(subject));
    }
    steps
}

fn options(mutation: &ObjectMutation, more: Value) -> Value {
    let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    if let (Some(options), Value::Object(more)) = (options.as_object_mut(), more) {
        options.extend(more);
    }
    mutation.apply(&options).unwrap_or(options)
}

fn dry(subject: &GeneratorInput<'_>, name: &str, mutation: &ObjectMutation) -> Step {
    let body = options(mutation, json!({"dryRun": ["All"]}));
    Step::new(&format!("delete: {name}"), "DELETE", subject.object("")).json(body)
}

fn unprotected(subject: &GeneratorInput<'_>, name: &str) -> Step {
    let media = "application/merge-patch+json";
    Step::patch(name, subject.object(""), media, json!({"metadata": {"finalizers": null}}))
}

fn refused(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let body = |name: &str, mutation: ObjectMutation| dry(subject, name, &mutation);
    let query = |name: &str, query: &str| {
        Step::new(&format!("delete: {name}"), "DELETE", subject.object(&format!("?dryRun=All{query}")))
    };
    let strict = Step::new("delete: unknown options strictly", "DELETE", subject.object("?fieldValidation=Strict"));
    vec![
        body("another uid", ObjectMutation::set("preconditions.uid", "01234567-89ab-cdef-0123-456789abcdef")),
        body("another revision", ObjectMutation::set("preconditions.resourceVersion", "1")),
        body("an unknown propagation", ObjectMutation::set("propagationPolicy", "Sideways")),
        body(
            "two ways to say one thing",
            ObjectMutation::set("propagationPolicy", "Orphan").and("orphanDependents", true),
        ),
        body("an unknown dry run", ObjectMutation::set("dryRun", json!(["Some"]))),
        body("another kind", ObjectMutation::set("kind", "Other")),
        body("options of a wrong type", ObjectMutation::set("gracePeriodSeconds", "x")),
        body("foreground", ObjectMutation::set("propagationPolicy", "Foreground")),
        body("orphans", ObjectMutation::set("propagationPolicy", "Orphan")),
        strict.json(options(&ObjectMutation::set("unknownA", 1), json!({"dryRun": ["All"]}))),
        query("grace of no sense", "&gracePeriodSeconds=x"),
        query("grace below zero", "&gracePeriodSeconds=-5"),
        query("an unknown propagation in the query", "&propagationPolicy=Sideways"),
        query("answered in protobuf", "").accept(PROTOBUF),
        query("a body cut off", "").text("application/json", "{"),
        query("a body of an unknown type", "").text("application/xml", "<a/>"),
    ]
}

fn collections(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let delete = |name: &str, path: String| Step::new(&format!("delete many: {name}"), "DELETE", path);
    let dry = json!({"dryRun": ["All"]});
    let another = ObjectMutation::set("preconditions.uid", "01234567-89ab-cdef-0123-456789abcdef");
    let stale = ObjectMutation::set("preconditions.resourceVersion", "1");
    let twice = ObjectMutation::set("propagationPolicy", "Orphan").and("orphanDependents", true);
    let mut steps = vec![
        Step::post("delete many: it is made again", subject.collection(""), subject.base.clone()),
        delete("none fits", subject.collection("?labelSelector=oracle%3Dnone")),
        delete("a dry run", subject.own("&dryRun=All")),
        delete("a selector of no sense", subject.collection("?labelSelector=a%3D%3D%3Db")),
        delete("an unknown field", subject.collection("?fieldSelector=spec.nothing%3Da")),
        delete("an unknown dry run", subject.own("&dryRun=Some")),
        delete("an unknown propagation", subject.own("&propagationPolicy=Sideways")),
        delete("another uid", subject.own("")).json(options(&another, dry.clone())),
        delete("another revision", subject.own("")).json(options(&stale, dry.clone())),
        delete("two ways to say one thing", subject.own("")).json(options(&twice, dry)),
        delete("a body cut off", subject.own("")).text("application/json", "{"),
    ];
    steps.extend(in_all_forms("delete many", &subject.own("")));
    steps.extend(forms::plain_answers("delete many", || delete("all", subject.own("&dryRun=All"))));
    steps.extend([
        delete("what fits", subject.own("&propagationPolicy=Background")),
        unprotected(subject, "delete many: what protects it is taken off"),
        Step::get("delete many: it is gone", subject.own("")),
    ]);
    steps
}

/// Dry runs of the deletion with its options in every format.
fn in_all_forms(section: &str, path: &str) -> Vec<Step> {
    let delete = |name: &str| Step::new(&format!("{section}: {name}"), "DELETE", path);
    let own = || options(&ObjectMutation::set("propagationPolicy", "Background"), json!({"dryRun": ["All"]}));
    vec![
        delete("options as YAML").yaml(own()),
        forms::in_protobuf(delete("options as protobuf"), forms::delete_options(0, "Background")),
        forms::in_protobuf(delete("wrong options as protobuf"), forms::delete_options(0, "Sideways")),
        delete("options of an unknown type").text("application/xml", "<a/>"),
    ]
}
