//! Deletions: preconditions, propagation, one object and collections.
//!
//! A DELETE with a body takes its options from there alone, so a dry run with a body says so in the body.

use serde_json::{Value, json};

use super::{Subject, forms};
use crate::suites::oracle::mutation::Mutation;
use crate::suites::oracle::step::{PROTOBUF, Step};

pub(super) fn steps(subject: &Subject<'_>) -> Vec<Step> {
    // Without a collector of garbage, which kube-apiserver lacks here, orphans and finalizers would keep the object.
    let held = Mutation::set("preconditions.uid", "${/metadata/uid}").and("propagationPolicy", "Background");
    let real = |name: &str, mutation: &Mutation| {
        Step::new(&format!("delete: {name}"), "DELETE", subject.object("")).json(options(mutation, json!({})))
    };
    let mut steps = refused(subject);
    steps.extend(in_all_forms("delete", &subject.object("")));
    let dried = || Step::new("delete: all", "DELETE", subject.object("?dryRun=All"));
    steps.extend(forms::answers("delete", dried));
    steps.extend([
        dry(subject, "a dry run", &Mutation::default()),
        unprotected(subject, "delete: what protects it is taken off"),
        real("with preconditions that hold", &held),
        real("what is not there", &Mutation::default()),
        Step::get("delete: it is gone", subject.object("")),
    ]);
    if subject.resource.can("deletecollection") {
        steps.extend(collections(subject));
    }
    steps
}

fn options(mutation: &Mutation, more: Value) -> Value {
    let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    if let (Some(options), Value::Object(more)) = (options.as_object_mut(), more) {
        options.extend(more);
    }
    mutation.apply(&options).unwrap_or(options)
}

fn dry(subject: &Subject<'_>, name: &str, mutation: &Mutation) -> Step {
    let body = options(mutation, json!({"dryRun": ["All"]}));
    Step::new(&format!("delete: {name}"), "DELETE", subject.object("")).json(body)
}

fn unprotected(subject: &Subject<'_>, name: &str) -> Step {
    let media = "application/merge-patch+json";
    Step::patch(name, subject.object(""), media, json!({"metadata": {"finalizers": null}}))
}

fn refused(subject: &Subject<'_>) -> Vec<Step> {
    let body = |name: &str, mutation: Mutation| dry(subject, name, &mutation);
    let query = |name: &str, query: &str| {
        Step::new(&format!("delete: {name}"), "DELETE", subject.object(&format!("?dryRun=All{query}")))
    };
    let strict = Step::new("delete: unknown options strictly", "DELETE", subject.object("?fieldValidation=Strict"));
    vec![
        body("another uid", Mutation::set("preconditions.uid", "01234567-89ab-cdef-0123-456789abcdef")),
        body("another revision", Mutation::set("preconditions.resourceVersion", "1")),
        body("an unknown propagation", Mutation::set("propagationPolicy", "Sideways")),
        body("two ways to say one thing", Mutation::set("propagationPolicy", "Orphan").and("orphanDependents", true)),
        body("an unknown dry run", Mutation::set("dryRun", json!(["Some"]))),
        body("another kind", Mutation::set("kind", "Other")),
        body("options of a wrong type", Mutation::set("gracePeriodSeconds", "x")),
        body("foreground", Mutation::set("propagationPolicy", "Foreground")),
        body("orphans", Mutation::set("propagationPolicy", "Orphan")),
        strict.json(options(&Mutation::set("unknownA", 1), json!({"dryRun": ["All"]}))),
        query("grace of no sense", "&gracePeriodSeconds=x"),
        query("grace below zero", "&gracePeriodSeconds=-5"),
        query("an unknown propagation in the query", "&propagationPolicy=Sideways"),
        query("answered in protobuf", "").accept(PROTOBUF),
        query("a body cut off", "").text("application/json", "{"),
        query("a body of an unknown type", "").text("application/xml", "<a/>"),
    ]
}

fn collections(subject: &Subject<'_>) -> Vec<Step> {
    let delete = |name: &str, path: String| Step::new(&format!("delete many: {name}"), "DELETE", path);
    let dry = json!({"dryRun": ["All"]});
    let another = Mutation::set("preconditions.uid", "01234567-89ab-cdef-0123-456789abcdef");
    let stale = Mutation::set("preconditions.resourceVersion", "1");
    let twice = Mutation::set("propagationPolicy", "Orphan").and("orphanDependents", true);
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

/// A dry run of the deletion with its options in every form.
fn in_all_forms(section: &str, path: &str) -> Vec<Step> {
    let delete = |name: &str| Step::new(&format!("{section}: {name}"), "DELETE", path);
    let own = || options(&Mutation::set("propagationPolicy", "Background"), json!({"dryRun": ["All"]}));
    vec![
        delete("options as YAML").yaml(own()),
        forms::in_protobuf(delete("options as protobuf"), forms::delete_options(0, "Background")),
        forms::in_protobuf(delete("wrong options as protobuf"), forms::delete_options(0, "Sideways")),
        delete("options of an unknown type").text("application/xml", "<a/>"),
    ]
}
