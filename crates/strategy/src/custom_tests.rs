use serde_json::{Value, json};

use portolan_codec::decode::{self, structural};
use portolan_kinds::custom::*;
use portolan_validation::{self as validation, custom::check};

const NOW: &str = "2026-01-01T00:00:00Z";

fn crd(names: Value) -> Value {
    let plural = names["plural"].as_str().unwrap().to_owned();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.dev")},
        "spec": {
            "group": "example.dev", "scope": "Namespaced", "names": names,
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}},
                {"name": "v1beta1", "served": false, "storage": false},
            ],
        },
    })
}

fn widgets() -> Value {
    crd(
        json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"]}),
    )
}

fn accepted(mut crd: Value) -> Value {
    crd["status"] = settled(&crd, &TakenNames::default(), NOW).unwrap();
    crd
}

fn summary(status: &Value) -> Vec<String> {
    let of = |own: &Value| {
        format!("{} {} {}: {}", own["type"], own["status"], own["reason"], own["message"]).replace('"', "")
    };
    status["conditions"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn a_definition_with_free_names_is_established_at_once() {
    let done = accepted(widgets());
    let expected = [
        "NamesAccepted True NoConflicts: no conflicts found",
        "Established True InitialNamesAccepted: the initial names have been accepted",
    ];
    assert_eq!(summary(&done["status"]), expected);
    assert_eq!(done["status"]["acceptedNames"], done["spec"]["names"]);
    assert_eq!(settled(&done, &TakenNames::default(), NOW), None, "it is settled");
}

#[test]
fn names_that_others_have_are_refused_until_they_are_free() {
    let mut taken = TakenNames::default();
    taken.add(&Names::of(&widgets()["spec"]["names"]));
    for (case, names, reason) in [
        (
            "the kind",
            json!({"plural": "gadgets", "singular": "gadget", "kind": "Widget", "listKind": "Gs"}),
            "KindConflict False: \"Widget\"",
        ),
        (
            "a list kind",
            json!({"plural": "gadgets", "singular": "gadget", "kind": "G", "listKind": "WidgetList"}),
            "ListKindConflict False: \"WidgetList\"",
        ),
        (
            "a short name",
            json!({"plural": "gadgets", "singular": "gadget", "kind": "G", "listKind": "Gs", "shortNames": ["wd"]}),
            "ShortNamesConflict False: \"wd\"",
        ),
        (
            "the singular",
            json!({"plural": "gadgets", "singular": "wd", "kind": "G", "listKind": "Gs"}),
            "SingularConflict False: \"wd\"",
        ),
    ] {
        let mut crd = crd(names);
        let status = settled(&crd, &taken, NOW).unwrap();
        let names = &status["conditions"][0];
        let got = format!("{} {}: {}", names["reason"], names["status"], names["message"].as_str().unwrap())
            .replace("\"K", "K");
        let expected = format!("{reason} is already in use");
        assert_eq!(got.replace('"', ""), expected.replace('"', ""), "{case}");
        assert_eq!(status["conditions"][1]["reason"], "NotAccepted", "{case}");
        crd["status"] = status;
        assert_eq!(settled(&crd, &taken, NOW), None, "{case}: nothing changes while the name is taken");
        crd["status"] = settled(&crd, &TakenNames::default(), NOW).unwrap();
        assert_eq!(
            summary(&crd["status"])[1],
            "Established True InitialNamesAccepted: the initial names have been accepted"
        );
    }
}

#[test]
fn groups_of_the_community_ask_for_approval() {
    for (annotation, expected) in [
        (None, "False MissingAnnotation"),
        (Some("unapproved, for a test"), "False UnapprovedAnnotation"),
        (Some("https://github.com/kubernetes/kubernetes/pull/1"), "True ApprovedAnnotation"),
        (Some("yes"), "False InvalidAnnotation"),
    ] {
        let mut crd = widgets();
        crd["spec"]["group"] = "x.k8s.io".into();
        if let Some(text) = annotation {
            crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": text});
        }
        let status = settled(&crd, &TakenNames::default(), NOW).unwrap();
        let own = &status["conditions"][2];
        assert_eq!(format!("{} {}", own["status"].as_str().unwrap(), own["reason"].as_str().unwrap()), expected);
    }
}

#[test]
fn kinds_of_a_definition_are_those_of_its_versions() {
    let table = compile(&accepted(widgets())).unwrap();
    let v1 = table.resource("example.dev", "v1", "widgets").unwrap();
    assert!(v1.served && v1.namespaced && v1.has_verb("create") && v1.subresource("status").is_some());
    assert!(!table.resource("example.dev", "v1beta1", "widgets").unwrap().served);
    assert_eq!(&*table.get(v1.schema).name, "dev.example.v1.Widget");
    assert_eq!(table.stored(&v1.group_resource()).unwrap().gvk, v1.gvk);
    let mut ending = accepted(widgets());
    deletion_begins(&mut ending, NOW);
    let table = compile(&ending).unwrap();
    let v1 = table.resource("example.dev", "v1", "widgets").unwrap();
    assert!(v1.is_ending && v1.has_verb("update"), "finalizers can still be taken off");
    assert_eq!(v1.listed_verbs(), ["delete", "deletecollection", "get", "list", "watch"]);
    assert_ne!(fingerprint(&ending), fingerprint(&accepted(widgets())));
}

#[test]
fn a_definition_goes_when_its_instances_have_gone() {
    let mut crd = accepted(widgets());
    deletion_begins(&mut crd, NOW);
    assert_eq!(crd["metadata"]["finalizers"], json!([CLEANUP_FINALIZER]));
    for (instances, reason, finalizers) in [
        (Instances::Left, "InstanceDeletionInProgress", json!([CLEANUP_FINALIZER])),
        (Instances::Gone, "InstanceDeletionCompleted", json!([])),
    ] {
        with_instances(&mut crd, &instances, NOW);
        assert_eq!(crd["status"]["conditions"][2]["reason"], reason);
        assert_eq!(crd["metadata"]["finalizers"], finalizers);
    }
}

fn with_schema() -> (portolan_kinds::KindTable, std::sync::Arc<portolan_kinds::Kind>) {
    let mut crd = accepted(widgets());
    let rule = json!([{"rule": "self.size != 13", "message": "thirteen is unlucky"}]);
    crd["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-validations": rule,
            "properties": {"size": {"type": "integer", "default": 1}}}}}});
    let table = compile(&crd).unwrap();
    let kind = table.resource("example.dev", "v1", "widgets").unwrap().clone();
    (table, kind)
}

#[test]
fn custom_resources_state_their_type() {
    let (table, kind) = with_schema();
    let read = |object: Value| {
        let body = object.to_string().into_bytes();
        decode::decode(&table, &kind, decode::MediaType::Json, &body, decode::FieldValidation::Warn)
    };
    let body = r#"{"apiVersion":"example.dev/v1","spec":{"size":1}}"#;
    let missing = read(serde_json::from_str(body).unwrap()).unwrap_err();
    let expected = format!(
        "the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in '{body}' ({} ...)",
        &body[..30]
    );
    assert_eq!((missing.code(), missing.message()), (400, &*expected));
    let other = read(json!({"apiVersion": "example.dev/v2", "kind": "Widget"})).unwrap_err();
    let expected =
        "the API version in the data (example.dev/v2) does not match the expected API version (example.dev/v1)";
    assert_eq!(other.message(), expected);
    let read = read(json!({"apiVersion": "example.dev/v1", "kind": "Widget", "spec": {"color": 1}})).unwrap();
    assert_eq!((&read.object["spec"], &*read.warnings), (&json!({}), &["unknown field \"spec.color\"".to_owned()][..]));
}

#[test]
fn rules_run_only_on_otherwise_valid_values() {
    let (table, kind) = with_schema();
    let told = |size: Value| {
        let metadata = json!({"name": "a", "namespace": "n"});
        let object =
            json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": size}});
        let causes = validation::validate_create(&table, &kind, &object);
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect::<Vec<_>>()
    };
    assert_eq!(told(json!(1)), Vec::<String>::new());
    assert_eq!(told(json!(13)), ["spec: Invalid value: thirteen is unlucky"]);
    assert_eq!(
        told(json!("x")),
        [
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ]
    );
}

/// Widgets with this schema in both versions.
fn of_schema(schema: &Value) -> Value {
    let mut crd = accepted(widgets());
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"] = schema.clone();
        version["served"] = true.into();
    }
    crd
}

fn error_texts(crd: &Value, object: &Value) -> Vec<String> {
    let table = compile(crd).unwrap();
    let kind = table.kinds().find(|kind| &*kind.gvk.version == "v1").unwrap();
    let mut errors = portolan_kinds::field::Errors::default();
    check(kind, (None, object), None, &mut errors);
    errors.into_causes().into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[test]
fn rules_on_metadata_are_run() {
    let name = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('team-')"}]});
    let schema =
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": name}}}});
    let widget = |name: &str| json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}});
    assert_eq!(error_texts(&of_schema(&schema), &widget("team-a")), Vec::<String>::new());
    let wrong = error_texts(&of_schema(&schema), &widget("a"));
    assert_eq!(wrong, ["metadata.name: Invalid value: \"a\": failed rule: self.startsWith('team-')"]);
}

#[test]
fn accepted_definitions_are_served_at_any_size() {
    let many: serde_json::Map<String, Value> =
        (0..40_000).map(|n| (n.to_string(), json!({"type": "string"}))).collect();
    let crd = of_schema(&json!({"type": "object", "properties": many}));
    assert_eq!(compile(&crd).unwrap().kinds().filter(|kind| kind.content.is_some()).count(), 2);
}

#[test]
fn without_a_schema_nothing_is_pruned() {
    let table = compile(&accepted(widgets())).unwrap();
    let kind = table.kinds().find(|kind| kind.content.is_some()).unwrap();
    let mut object =
        json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"a": [1]}});
    let before = object.clone();
    assert_eq!(structural::clean(kind.content.as_ref().unwrap(), &mut object), Ok(Vec::new()));
    assert_eq!(object, before);
}

#[test]
fn applied_nulls_are_validated_and_sent_nulls_are_dropped() {
    let text = json!({"type": "string"});
    let spec = json!({"type": "object", "properties": {
        "a": text, "d": {"type": "string", "default": "x"}, "n": {"type": "string", "nullable": true}}});
    let crd = of_schema(&json!({"type": "object", "properties": {"spec": spec}}));
    let table = compile(&crd).unwrap();
    let kind = table.kinds().find(|kind| &*kind.gvk.version == "v1").unwrap();
    let sent = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "a"},
        "spec": {"a": null, "d": null, "n": null}});
    let mut decoded = sent.clone();
    decode::prune_canonical(&table, kind, &mut decoded, decode::FieldValidation::Warn).unwrap();
    crate::defaults::apply(&table, kind, &mut decoded).unwrap();
    assert_eq!(decoded["spec"], json!({"d": "x", "n": null}));
    let mut applied = sent.clone();
    decode::make_applied_canonical(&table, kind, &sent, &mut applied).unwrap();
    crate::defaults::apply(&table, kind, &mut applied).unwrap();
    assert_eq!(applied["spec"], json!({"a": null, "d": "x", "n": null}));
    assert_eq!(
        error_texts(&crd, &applied),
        ["spec.a: Invalid value: \"null\": spec.a in body must be of type string: \"null\""]
    );
}

#[test]
fn a_status_of_null_is_as_none() {
    let schema = json!({"type": "object", "properties": {"status": {"type": "object"}}});
    let table = compile(&of_schema(&schema)).unwrap();
    let kind = table.kinds().find(|kind| &*kind.gvk.version == "v1").unwrap();
    let told = |old: &Value, new: &Value| {
        let mut errors = portolan_kinds::field::Errors::default();
        check(kind, (Some(old), new), Some("status"), &mut errors);
        errors.into_causes().len()
    };
    let object = |status: Option<Value>| {
        let mut object = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "a"}});
        object.as_object_mut().unwrap().extend(status.map(|status| ("status".to_owned(), status)));
        object
    };
    assert_eq!(told(&object(None), &object(Some(Value::Null))), 0);
    assert_eq!(told(&object(Some(json!({}))), &object(Some(Value::Null))), 1);
}
