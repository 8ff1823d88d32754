use jiff::Timestamp;
use portolan_merge::scale::{scale_of, with_scale};
use portolan_types::Status;
use portolan_validation::qos::class_of as qos_class;
use serde_json::json;

use super::*;
use portolan_codec::decode::{FieldValidation, MediaType, decode};
use portolan_kinds::Kind;

const NOW: &str = "2026-01-02T03:04:05Z";

fn seams() -> Seams {
    Seams::seeded(7, NOW.parse::<Timestamp>().unwrap())
}

fn kind(group: &str, name: &str) -> &'static Kind {
    let version = if group == "autoscaling" { "v2" } else { "v1" };
    KindTable::builtin().kind_named(group, version, name).unwrap()
}

fn create(group: &str, name: &str, object: Value) -> Result<Value, Status> {
    let seams = seams();
    let ctx = WriteContext::new(KindTable::builtin(), &seams);
    let kind = kind(group, name);
    prepare_create(&ctx, kind, object, kind.namespaced.then_some("ns"), None)
}

fn update(group: &str, name: &str, subresource: Option<&str>, old: &Value, new: Value) -> Result<Update, Status> {
    let seams = seams();
    let ctx = WriteContext::new(KindTable::builtin(), &seams);
    prepare_update(&ctx, kind(group, name), subresource, old, new)
}

fn delete(group: &str, name: &str, old: &Value, options: DeleteOptions) -> Result<Deletion, Status> {
    let seams = seams();
    let ctx = WriteContext::new(KindTable::builtin(), &seams);
    prepare_delete(&ctx, kind(group, name), old, &options)
}

fn stored(mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = "5".into();
    object
}

fn changed(update: Result<Update, Status>) -> Value {
    match update {
        Ok(Update::Changed(object)) => object,
        other => panic!("{other:?}"),
    }
}

fn deployment() -> Value {
    json!({"metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}},
    }, "status": {"replicas": 7}})
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}})
}

#[test]
fn a_new_object_gets_the_fields_of_the_server() {
    let object = create("apps", "Deployment", {
        let mut object = deployment();
        object["metadata"]["uid"] = "mine".into();
        object["metadata"]["generation"] = 9.into();
        object["metadata"]["deletionTimestamp"] = NOW.into();
        object["metadata"]["annotations"] =
            json!({"portolan.dev/clusters": "east", "portolan.dev/placement": "{}", "a": "b"});
        object
    })
    .unwrap();
    let metadata = &object["metadata"];
    assert_eq!(metadata["namespace"], "ns");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], NOW);
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert_eq!(metadata["annotations"], json!({"a": "b"}));
    assert!(metadata.get("deletionTimestamp").is_none());
    assert_eq!(object["status"], json!({}));
}

#[test]
fn names_are_generated_within_63_bytes() {
    let prefix = "x".repeat(70);
    let object = create("", "ConfigMap", json!({"metadata": {"generateName": prefix}})).unwrap();
    assert_eq!(object::name(&object).len(), 63);
    let namespace = create("", "Namespace", json!({"metadata": {"generateName": "n-"}})).unwrap();
    assert_eq!(object::label(&namespace, "kubernetes.io/metadata.name"), Some(object::name(&namespace)));
}

#[test]
fn a_new_object_has_no_numeric_revision() {
    for (sent, is_right) in [("", true), ("0", true), ("x", true), ("99999999999999999999", true), ("1", false)] {
        assert_eq!(check_unset_revision(sent).is_ok(), is_right, "{sent:?}");
    }
}

#[test]
fn another_uid_is_another_object_or_a_wrong_value() {
    let old = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    let mut new = old.clone();
    new["metadata"]["uid"] = "u".into();
    new["metadata"]["finalizers"] = json!(["-"]);
    let (table, seams) = (KindTable::builtin(), seams());
    let refused = |asks_uid| {
        let context = WriteContext { asks_uid, ..WriteContext::new(table, &seams) };
        prepare_update(&context, kind("", "ConfigMap"), None, &old, new.clone()).unwrap_err()
    };
    assert_eq!(refused(true).code(), 409);
    let told = refused(false);
    let mut fields: Vec<&str> = told.details().causes.iter().map(|cause| &*cause.field).collect();
    fields.dedup();
    assert_eq!((told.code(), &fields[..2]), (422, &["metadata.finalizers", "metadata.uid"][..]));
}

#[test]
fn a_create_that_contradicts_its_url_is_refused() {
    for (case, object, expected) in [
        (
            "another namespace",
            json!({"metadata": {"name": "a", "namespace": "b"}}),
            (400, "the namespace of the provided object does not match the namespace sent on the request"),
        ),
        (
            "no name",
            json!({"metadata": {}}),
            (422, "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"),
        ),
    ] {
        let error = create("", "ConfigMap", object).unwrap_err();
        assert_eq!((error.code(), error.message()), expected, "{case}");
    }
}

#[test]
fn a_job_without_labels_gets_its_templates_labels() {
    let job = |labels: Value| {
        json!({"metadata": {"name": "j", "labels": labels}, "spec": {"template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}})
    };
    let made = create("batch", "Job", job(json!({}))).unwrap();
    assert_eq!(made["metadata"]["labels"]["job-name"], "j");
    assert_eq!(made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]);
    let seams = seams();
    for sent in [json!({"a": "b"}), json!({"c": "d"})] {
        let sent = job(sent);
        let again = || Some(sent.clone());
        let ctx = WriteContext { sent: Some(&again), ..WriteContext::new(KindTable::builtin(), &seams) };
        let made = prepare_create(&ctx, kind("batch", "Job"), sent.clone(), Some("ns"), None).unwrap();
        assert_eq!(made["metadata"]["labels"], sent["metadata"]["labels"]);
    }
}

#[test]
fn kinds_start_their_lives() {
    let pod = create("", "Pod", pod()).unwrap();
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let namespace = create("", "Namespace", json!({"metadata": {"name": "n"}})).unwrap();
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(namespace["status"]["phase"], "Active");
    let claim = create("", "PersistentVolumeClaim", json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"}})).unwrap();
    assert_eq!(claim["status"], json!({"phase": "Pending"}));
    let job = create(
        "batch",
        "Job",
        json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}}),
    )
    .unwrap();
    let uid = object::meta_text(&job, "uid");
    assert_eq!(job["spec"]["selector"]["matchLabels"], json!({"batch.kubernetes.io/controller-uid": uid}));
    assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
    let service = create("", "Service", json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})).unwrap();
    assert_eq!(service["status"], json!({"loadBalancer": {}}));
    assert_eq!(allocation::needs_cluster_ip(&service, None), allocation::ClusterIp::Any);
}

#[test]
fn an_equal_object_is_not_written() {
    let old = stored(create("apps", "Deployment", deployment()).unwrap());
    assert_eq!(update("apps", "Deployment", None, &old, old.clone()), Ok(Update::Unchanged));
    let mut bare = deployment();
    bare["metadata"]["namespace"] = "ns".into();
    assert_eq!(
        update("apps", "Deployment", None, &old, bare),
        Ok(Update::Unchanged),
        "a client may leave defaults out"
    );
}

#[test]
fn the_generation_counts_changes_of_the_spec() {
    let old = stored(create("apps", "Deployment", deployment()).unwrap());
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(object::generation(&changed(update("apps", "Deployment", None, &old, new.clone()))), 1);
    new["spec"]["replicas"] = 3.into();
    new["metadata"]["generation"] = 77.into();
    new["status"]["replicas"] = 3.into();
    let new = changed(update("apps", "Deployment", None, &old, new));
    assert_eq!(object::generation(&new), 2);
    assert_eq!(new["status"], old["status"], "the main resource cannot change the status");
}

#[test]
fn a_status_write_changes_only_the_status() {
    let old = stored(create("apps", "Deployment", deployment()).unwrap());
    let mut new = old.clone();
    new["spec"]["replicas"] = 3.into();
    new["status"] = json!({"replicas": 1, "readyReplicas": 1});
    let new = changed(update("apps", "Deployment", Some("status"), &old, new));
    assert_eq!((&new["spec"], object::generation(&new)), (&old["spec"], 1));
    assert_eq!(new["status"], json!({"replicas": 1, "readyReplicas": 1}));
}

#[test]
fn a_status_write_keeps_the_generation_of_a_daemon_sets_template() {
    const GENERATION: &str = "deprecated.daemonset.template.generation";
    let old = stored(create("apps", "DaemonSet", deployment()).unwrap());
    let mut new = old.clone();
    new["metadata"]["annotations"] = json!({GENERATION: "7", "note": "n"});
    new["status"]["numberReady"] = 1.into();
    let new = changed(update("apps", "DaemonSet", Some("status"), &old, new));
    assert_eq!(new["metadata"]["annotations"], json!({GENERATION: "1", "note": "n"}));
}

#[test]
fn certificate_requests_show_requester_and_condition() {
    let at = |day: u8| format!("2026-01-{day:02}T00:00:00Z");
    let condition = |kind: &str, since: Option<String>| {
        let mut condition = json!({"type": kind, "status": "True"});
        if let Some(since) = since {
            condition["lastUpdateTime"] = since.clone().into();
            condition["lastTransitionTime"] = since.into();
        }
        condition
    };
    let mut request = json!({"spec": {"username": "me", "groups": ["system:masters"], "signerName": "a.b/c"}});
    set_requester(&mut request, &json!({"username": "you", "uid": "1"}));
    assert_eq!(request["spec"], json!({"username": "you", "uid": "1", "signerName": "a.b/c"}));

    let seams = seams();
    let ctx = WriteContext::new(KindTable::builtin(), &seams);
    let kind = kind("certificates.k8s.io", "CertificateSigningRequest");
    let old = json!({"metadata": {"name": "x"}, "spec": request["spec"],
        "status": {"conditions": [condition("Approved", Some(at(1))), condition("Failed", Some(at(2)))]}});
    for (case, through, sent, expected) in [
        (
            "what signs may not change an approval, and need not say when",
            "status",
            json!({"certificate": "eA==", "conditions": [condition("Approved", Some(at(9))), condition("Failed", None)]}),
            json!({"certificate": "eA==", "conditions": [condition("Approved", Some(at(1))), {"type": "Failed",
                "status": "True", "lastUpdateTime": NOW, "lastTransitionTime": at(2)}]}),
        ),
        (
            "an approval changes only conditions",
            "approval",
            json!({"certificate": "eA==", "conditions": [condition("Denied", None)]}),
            json!({"conditions": [{"type": "Denied", "status": "True", "lastUpdateTime": NOW, "lastTransitionTime": NOW}]}),
        ),
    ] {
        let mut new = old.clone();
        new["spec"]["signerName"] = "other.org/x".into();
        new["status"] = sent;
        strategy::before_update(&ctx, kind, Some(through), &old, &mut new);
        assert_eq!(new["status"], expected, "{case}");
        assert_eq!(new["spec"], old["spec"], "{case}");
    }
}

#[test]
fn local_services_of_the_api_are_available_at_once() {
    let spec = json!({"version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1});
    let local = create("apiregistration.k8s.io", "APIService", json!({"metadata": {"name": "v1."}, "spec": spec}));
    let condition = json!({"type": "Available", "status": "True", "reason": "Local",
        "message": "Local APIServices are always available", "lastTransitionTime": NOW});
    assert_eq!(local.unwrap()["status"], json!({"conditions": [condition]}));
    let mut remote = json!({"metadata": {"name": "v1.a.b"}, "spec": spec});
    remote["spec"]["group"] = "a.b".into();
    remote["spec"]["service"] = json!({"namespace": "ns", "name": "s"});
    assert_eq!(create("apiregistration.k8s.io", "APIService", remote).unwrap()["status"], json!({}));
}

#[test]
fn devices_are_as_the_gates_let_them_be() {
    let device = json!({"name": "d", "attributes": {"a": {"ints": [1], "int": 1}},
        "nodeAllocatableResourceMappings": {"cpu": {}}, "taints": [{"key": "k", "effect": "NoSchedule"}]});
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.b", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [device]}});
    let made = create("resource.k8s.io", "ResourceSlice", slice).unwrap();
    let expected = json!({"name": "d", "attributes": {"a": {"int": 1}},
        "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": NOW}]});
    assert_eq!(made["spec"]["devices"][0], expected);

    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r",
        "exactly": {"deviceClassName": "x"}}]}}});
    let made = create("resource.k8s.io", "ResourceClaim", claim).unwrap();
    let exactly = json!({"deviceClassName": "x", "allocationMode": "ExactCount", "count": 1});
    assert_eq!(made["spec"]["devices"]["requests"][0]["exactly"], exactly);

    let device = json!({"driver": "d.b", "pool": "p", "device": "d"});
    let mut old = made;
    old["status"] = json!({"allocation": {"devices": {"results": [device]}}, "devices": [device]});
    for (case, given, left) in [("it is still given", json!([device]), true), ("it is given back", json!([]), false)] {
        let mut new = old.clone();
        new["status"]["allocation"]["devices"]["results"] = given;
        devices::drop_given_back(&old, &mut new);
        assert_eq!(new["status"].get("devices").is_some(), left, "{case}");
    }
}

#[test]
fn preconditions_of_updates() {
    let old = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    for (case, key, value, code) in [
        ("a stale resourceVersion", "resourceVersion", "4", 409),
        ("another uid", "uid", "x", 409),
        ("another name", "name", "b", 400),
        ("another namespace", "namespace", "b", 400),
    ] {
        let mut new = old.clone();
        new["metadata"][key] = value.into();
        assert_eq!(update("", "ConfigMap", None, &old, new).unwrap_err().code(), code, "{case}");
    }
    let old = stored(create("coordination.k8s.io", "Lease", json!({"metadata": {"name": "a"}})).unwrap());
    let mut new = old.clone();
    new["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let error = update("coordination.k8s.io", "Lease", None, &old, new).unwrap_err();
    let expected = "leases.coordination.k8s.io \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert_eq!((error.code(), error.message()), (422, expected));
}

#[test]
fn the_servers_annotations_and_labels_are_its_own() {
    let mut old = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    object::set_annotation(&mut old, annotations::CLUSTERS, Some("east".into()));
    let mut new = old.clone();
    object::set_annotation(&mut new, annotations::CLUSTERS, Some("west".into()));
    assert!(sends_server_keys(&new, Some(&old)) && sends_server_keys(&old, None));
    assert!(!sends_server_keys(&old, Some(&old)), "what was read may be sent back");
    assert_eq!(update("", "ConfigMap", None, &old, new), Ok(Update::Unchanged));
    let mut new = old.clone();
    new["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(update("", "ConfigMap", None, &old, new), Ok(Update::Unchanged));

    // A client that could set the source of a projected object could have it left alone, or have others' pods ended.
    let forged = json!({"name": "a", "labels": {annotations::PROJECTED_FROM: "east"},
        "annotations": {annotations::SOURCE: "{}"}});
    let made = create("", "ConfigMap", json!({"metadata": forged})).unwrap();
    assert!(sends_server_keys(&json!({"metadata": forged}), None));
    assert_eq!((object::label(&made, annotations::PROJECTED_FROM), made["metadata"].get("annotations")), (None, None));
    let source = r#"{"p-1":{"namespace":"n","name":"web-5d","uid":"u"}}"#;
    let record = |phase: &str| {
        format!(r#"{{"clusters":[{{"name":"east","uid":"p-1","phase":"{phase}","epoch":0}}],"generation":0}}"#)
    };
    for (case, source, placement, clusters, warns) in [
        ("all that the server wrote of a ReplicaSet", source, record("Projected"), None, false),
        ("a ReplicaSet is not placed", source, record("Projected"), Some("east"), true),
        ("the server does not write it so", source, format!("{} ", record("Projected")), None, true),
        ("nothing runs nowhere", "{}", record("Projected"), None, true),
        ("of what is placed", source, record("Active"), Some("east"), true),
    ] {
        let mut copied = old.clone();
        object::set_annotation(&mut copied, annotations::SOURCE, Some(source.into()));
        object::set_annotation(&mut copied, annotations::PLACEMENT, Some(placement));
        object::set_annotation(&mut copied, annotations::CLUSTERS, clusters.map(str::to_owned));
        assert_eq!(sends_server_keys(&copied, Some(&old)), warns, "{case}");
    }
    let mut shown = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    object::set_label(&mut shown, annotations::PROJECTED_FROM, Some("east".into()));
    let mut new = shown.clone();
    object::set_label(&mut new, annotations::PROJECTED_FROM, None);
    assert_eq!(update("", "ConfigMap", None, &shown, new), Ok(Update::Unchanged));
}

#[test]
fn deletion_waits_for_everything_that_holds_an_object() {
    let plain = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    assert_eq!(delete("", "ConfigMap", &plain, DeleteOptions::default()), Ok(Deletion::Remove(plain.clone())));
    let held = stored(create("", "ConfigMap", json!({"metadata": {"name": "a", "finalizers": ["x/y"]}})).unwrap());
    let Ok(Deletion::Mark(marked)) = delete("", "ConfigMap", &held, DeleteOptions::default()) else { panic!() };
    assert_eq!(object::meta_text(&marked, "deletionTimestamp"), NOW);
    assert_eq!(delete("", "ConfigMap", &marked, DeleteOptions::default()), Ok(Deletion::Already(marked.clone())));
    let mut new = marked.clone();
    new["metadata"]["finalizers"] = json!(["x/y", "x/z"]);
    assert_eq!(update("", "ConfigMap", None, &marked, new).unwrap_err().code(), 422);
    let mut new = marked.clone();
    new["metadata"].as_object_mut().unwrap().remove("finalizers");
    assert!(matches!(update("", "ConfigMap", None, &marked, new), Ok(Update::Removed(_))));
}

#[test]
fn placed_objects_are_held_until_their_copies_are_gone() {
    let mut old = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    let record = r#"{"clusters":[{"name":"east","uid":"p","phase":"Active","epoch":1}]}"#;
    object::set_annotation(&mut old, annotations::PLACEMENT, Some(record.into()));
    let Ok(Deletion::Mark(marked)) = delete("", "ConfigMap", &old, DeleteOptions::default()) else { panic!() };
    assert!(!is_removable(&marked));
    let mut gone = marked.clone();
    object::set_annotation(&mut gone, annotations::PLACEMENT, None);
    assert!(is_removable(&gone));
}

#[test]
fn propagation_leaves_a_finalizer() {
    let object = |finalizers: Value| {
        stored(
            create("apps", "Deployment", {
                let mut object = deployment();
                object["metadata"]["finalizers"] = finalizers;
                object
            })
            .unwrap(),
        )
    };
    let options = |propagation| DeleteOptions { propagation, ..DeleteOptions::default() };
    for (case, before, propagation, expected) in [
        ("foreground", json!([]), Some(Propagation::Foreground), Some(json!(["foregroundDeletion"]))),
        ("orphan", json!(["a/b"]), Some(Propagation::Orphan), Some(json!(["a/b", "orphan"]))),
        ("background", json!([]), Some(Propagation::Background), None),
        ("background takes an older wish off", json!(["orphan"]), Some(Propagation::Background), None),
        ("an older wish stays", json!(["orphan"]), None, Some(json!(["orphan"]))),
        ("and so does the order", json!(["orphan", "a/b"]), None, Some(json!(["orphan", "a/b"]))),
        (
            "also when it is said again",
            json!(["orphan", "a/b"]),
            Some(Propagation::Orphan),
            Some(json!(["orphan", "a/b"])),
        ),
    ] {
        let got = match delete("apps", "Deployment", &object(before), options(propagation)).unwrap() {
            Deletion::Mark(object) => Some(object["metadata"]["finalizers"].clone()),
            Deletion::Remove(_) => None,
            Deletion::MarkAndRemove(_) | Deletion::Already(_) | Deletion::Pending(_) => panic!("{case}"),
        };
        assert_eq!(got, expected, "{case}");
    }
    let job = stored(
        create(
            "batch",
            "Job",
            json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}}),
        )
        .unwrap(),
    );
    let Ok(Deletion::Mark(marked)) = delete("batch", "Job", &job, DeleteOptions::default()) else { panic!() };
    assert_eq!(marked["metadata"]["finalizers"], json!(["orphan"]));
}

#[test]
fn orphan_dependents_is_the_older_form_of_the_propagation_policy() {
    let held = stored(create("", "ConfigMap", json!({"metadata": {"name": "a", "finalizers": ["x/y"]}})).unwrap());
    let older = |orphan| DeleteOptions { orphan_dependents: Some(orphan), ..DeleteOptions::default() };
    let mut namespace = stored(create("", "Namespace", json!({"metadata": {"name": "n"}})).unwrap());
    namespace["spec"]["finalizers"] = json!(["kubernetes"]);
    for (case, kind, object, orphan, expected) in [
        ("they stay", "ConfigMap", &held, true, json!(["x/y", "orphan"])),
        ("they go", "ConfigMap", &held, false, json!(["x/y"])),
        ("a namespace waits for them", "Namespace", &namespace, false, json!(["foregroundDeletion"])),
    ] {
        let Ok(Deletion::Mark(marked)) = delete("", kind, object, older(orphan)) else { panic!("{case}") };
        assert_eq!(marked["metadata"]["finalizers"], expected, "{case}");
    }
    let Ok(Deletion::Mark(ending)) = delete("", "Namespace", &namespace, DeleteOptions::default()) else { panic!() };
    let again = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
    assert_eq!(delete("", "Namespace", &ending, again), Ok(Deletion::Pending(ending)), "it says nothing to its end");
}

#[test]
fn all_errors_of_delete_options_are_reported() {
    let wrong = [("propagationPolicy", "Sideways"), ("orphanDependents", "true"), ("dryRun", "All"), ("dryRun", "x")];
    let refused = DeleteOptions::from_query(wrong).unwrap_err();
    let fields: Vec<&str> = refused.details().causes.iter().map(|cause| &*cause.field).collect();
    assert_eq!((refused.code(), fields), (422, vec!["propagationPolicy", "propagationPolicy", "dryRun"]));
    let large = DeleteOptions::from_query([("gracePeriodSeconds", "9223372036854775808")]).unwrap_err();
    assert!(large.message().ends_with("value out of range"), "{}", large.message());
}

#[test]
fn pods_have_time_to_stop() {
    let mut running = stored(create("", "Pod", pod()).unwrap());
    let gone = delete("", "Pod", &running, DeleteOptions::default());
    assert!(matches!(gone, Ok(Deletion::MarkAndRemove(last)) if object::is_deleting(&last)), "no node has it yet");
    running["spec"]["nodeName"] = "n".into();
    let Ok(Deletion::Mark(going)) = delete("", "Pod", &running, DeleteOptions::default()) else { panic!() };
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-02T03:04:35Z");
    assert_eq!((&going["metadata"]["deletionGracePeriodSeconds"], object::generation(&going)), (&json!(30), 2));
    let options = |grace| DeleteOptions { grace_period_seconds: Some(grace), ..DeleteOptions::default() };
    assert_eq!(delete("", "Pod", &going, options(60)), Ok(Deletion::Pending(going.clone())), "never longer");
    let Ok(Deletion::Mark(sooner)) = delete("", "Pod", &going, options(10)) else { panic!() };
    assert_eq!(sooner["metadata"]["deletionTimestamp"], "2026-01-02T03:04:15Z");
    let Ok(Deletion::MarkAndRemove(last)) = delete("", "Pod", &sooner, options(0)) else { panic!() };
    assert_eq!(last["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(delete("", "Pod", &last, options(0)), Ok(Deletion::Remove(last)), "it is marked already");
}

#[test]
fn namespaces_end_in_two_steps() {
    let old = stored(create("", "Namespace", json!({"metadata": {"name": "n"}})).unwrap());
    let Ok(Deletion::Mark(going)) = delete("", "Namespace", &old, DeleteOptions::default()) else { panic!() };
    assert_eq!(going["status"]["phase"], "Terminating");
    let foreground = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
    assert_eq!(
        delete("", "Namespace", &going, foreground),
        Ok(Deletion::Pending(going.clone())),
        "asking again changes nothing"
    );
    let mut new = going.clone();
    new["spec"]["finalizers"] = json!([]);
    assert_eq!(
        update("", "Namespace", None, &going, new.clone()),
        Ok(Update::Unchanged),
        "only /finalize changes them"
    );
    assert!(matches!(update("", "Namespace", Some("finalize"), &going, new), Ok(Update::Removed(_))));
    let default = stored(create("", "Namespace", json!({"metadata": {"name": "default"}})).unwrap());
    let error = delete("", "Namespace", &default, DeleteOptions::default()).unwrap_err();
    assert_eq!(error.message(), "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

#[test]
fn preconditions_of_deletes() {
    let old = stored(create("", "ConfigMap", json!({"metadata": {"name": "a"}})).unwrap());
    for options in [
        DeleteOptions { uid: Some("x".into()), ..DeleteOptions::default() },
        DeleteOptions { resource_version: Some("4".into()), ..DeleteOptions::default() },
    ] {
        assert_eq!(delete("", "ConfigMap", &old, options).unwrap_err().code(), 409);
    }
    for options in [
        json!({"propagationPolicy": "Sideways"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        json!({"dryRun": ["Some"]}),
    ] {
        assert_eq!(DeleteOptions::from_value(&options).unwrap_err().code(), 422, "{options}");
    }
    let options = DeleteOptions::from_query([
        ("propagationPolicy", "Foreground"),
        ("gracePeriodSeconds", "3"),
        ("dryRun", "All"),
    ]);
    let expected = DeleteOptions {
        grace_period_seconds: Some(3),
        propagation: Some(Propagation::Foreground),
        dry_run: true,
        ..DeleteOptions::default()
    };
    assert_eq!(options, Ok(expected));
}

/// Kubernetes' `TestValidateDeleteOptionsWithIgnoreStoreReadError`.
#[test]
fn unreadable_objects_are_deleted_without_other_options() {
    for (case, is_set, other, refused) in [
        ("not asked for", false, json!({"propagationPolicy": "Background"}), vec![]),
        ("alone", true, json!({}), vec![]),
        (
            "with a policy",
            true,
            json!({"propagationPolicy": "Background"}),
            vec!["dryRun", "propagationPolicy", "gracePeriodSeconds", "preconditions"],
        ),
        (
            "with the policy of old",
            true,
            json!({"orphanDependents": true}),
            vec!["dryRun", "orphanDependents", "gracePeriodSeconds", "preconditions"],
        ),
    ] {
        let mut options = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": is_set});
        let others = json!({"dryRun": ["All"], "gracePeriodSeconds": 0, "preconditions": {}});
        let all = options.as_object_mut().unwrap();
        if other != json!({}) {
            all.extend(others.as_object().unwrap().clone());
        }
        all.extend(other.as_object().unwrap().clone());
        let read = DeleteOptions::from_value(&options);
        let causes: Vec<String> = match &read {
            Ok(read) => {
                assert_eq!(read.ignores_read_errors, is_set, "{case}");
                Vec::new()
            }
            Err(refusal) => refusal.details().causes.iter().map(|cause| cause.message.clone()).collect(),
        };
        let expected: Vec<String> =
            refused.iter().map(|field| format!("Invalid value: true: cannot be set together with .{field}")).collect();
        assert_eq!(causes, expected, "{case}");
    }
    let mut wrong = json!({"propagationPolicy": "Sideways", "dryRun": ["Some"]});
    wrong["ignoreStoreReadErrorWithClusterBreakingPotential"] = true.into();
    let refused = DeleteOptions::from_value(&wrong).unwrap_err();
    let fields: Vec<&str> = refused.details().causes.iter().map(|cause| &*cause.field).collect();
    let unsafe_delete = "ignoreStoreReadErrorWithClusterBreakingPotential";
    assert_eq!(fields, ["propagationPolicy", "dryRun", unsafe_delete, unsafe_delete], "all errors are reported");
}

#[test]
fn scales_are_views_of_replicas() {
    let old = stored(create("apps", "Deployment", deployment()).unwrap());
    let kind = kind("apps", "Deployment");
    let mut scale = scale_of(kind, &old).unwrap();
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("app=web")));
    scale["spec"]["replicas"] = 5.into();
    let new = with_scale(kind, &old, scale.clone()).unwrap();
    let new = changed(update("apps", "Deployment", Some("scale"), &old, new));
    assert_eq!((&new["spec"]["replicas"], object::generation(&new)), (&json!(5), 2));
    scale["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(with_scale(kind, &old, scale.clone()).unwrap_err().code(), 409);
    scale["spec"]["replicas"] = (-1).into();
    scale["metadata"]["resourceVersion"] = "5".into();
    assert_eq!(with_scale(kind, &old, scale).unwrap_err().code(), 422);
}

#[test]
fn services_keep_allocated_values() {
    use allocation::*;
    use node_ports::*;
    let mut service = create(
        "",
        "Service",
        json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "name": "a"}]}}),
    )
    .unwrap();
    assert_eq!(needs_node_ports(&service, true), [[0]]);
    let address = AddressRange::DEFAULT.candidates(object::meta_text(&service, "uid")).next().unwrap();
    set_cluster_ip(&mut service, address.into());
    set_node_port(&mut service, 0, 30_080);
    let old = stored(service);
    let new = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 8080, "name": "a"}, {"port": 80, "name": "b"}]}});
    let seams = seams();
    let ctx = WriteContext::new(KindTable::builtin(), &seams);
    let mut new = new;
    new["metadata"]["namespace"] = "ns".into();
    let new = changed(prepare_update(&ctx, kind("", "Service"), None, &old, new));
    assert_eq!(new["spec"]["clusterIPs"], json!([address.to_string()]));
    assert_eq!((&new["spec"]["ports"][0]["nodePort"], needs_node_ports(&new, false)), (&json!(30_080), vec![vec![1]]));
    assert_eq!(needs_cluster_ip(&new, Some(&old)), ClusterIp::Nothing);
    let all: std::collections::HashSet<_> =
        AddressRange::new([10, 0, 0, 0].into(), 28).unwrap().candidates("x").collect();
    assert_eq!(all.len(), 13);
    assert!(all.iter().all(|ip| AddressRange::new([10, 0, 0, 0].into(), 28).unwrap().contains((*ip).into())));
}

#[test]
fn a_pod_is_bound_once() {
    let seams = seams();
    let ctx = WriteContext::new(KindTable::builtin(), &seams);
    let pod = stored(create("", "Pod", pod()).unwrap());
    let binding = json!({"target": {"kind": "Node", "name": "n"}});
    for (case, own, says) in [
        ("another uid", json!({"uid": "other"}), "UID in precondition: other"),
        ("another state", json!({"resourceVersion": "999"}), "ResourceVersion in precondition: 999"),
    ] {
        let refused = bind(&ctx, &pod, &json!({"metadata": own, "target": binding["target"]})).unwrap_err();
        assert_eq!((refused.code(), refused.message().contains(says)), (409, true), "{case}: {refused}");
    }
    let own = json!({"uid": pod["metadata"]["uid"], "labels": {"zone": "a"}, "annotations": {"by": "us"}});
    let bound = bind(&ctx, &pod, &json!({"metadata": own, "target": binding["target"]})).unwrap();
    assert_eq!((object::label(&bound, "zone"), object::annotation(&bound, "by")), (Some("a"), Some("us")));
    let bound = changed(prepare_update(&ctx, kind("", "Pod"), Some("binding"), &pod, bound));
    assert_eq!((&bound["spec"]["nodeName"], object::generation(&bound)), (&json!("n"), 1));
    assert_eq!(bound["status"]["conditions"][0]["status"], "True");
    assert_eq!(bind(&ctx, &bound, &binding).unwrap_err().code(), 409);
}

/// Answers of a kube-apiserver 1.36.3 to the same bodies (dry run, strict). Causes are compared as a set: maps have no
/// order there.
#[test]
fn bodies_are_answered_as_kube_apiserver_does() {
    let table = KindTable::builtin();
    let seams = seams();
    let ctx = WriteContext::new(table, &seams);
    for line in include_str!("../../testdata/kube-answers.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let parts: Vec<&str> = case["path"].as_str().unwrap().split('/').skip(1).collect();
        let (group, rest) = if parts[0] == "api" { ("", &parts[2..]) } else { (parts[1], &parts[3..]) };
        let (namespace, plural) = if rest.len() > 2 { (Some(rest[1]), rest[2]) } else { (None, rest[0]) };
        let version = if group == "autoscaling" { "v2" } else { "v1" };
        let kind = table.resource(group, version, plural).unwrap();
        let body = serde_json::to_vec(&case["object"]).unwrap();
        let answer = decode(table, kind, MediaType::Json, &body, FieldValidation::Strict)
            .and_then(|decoded| prepare_create(&ctx, kind, decoded.object, namespace, None));
        let code = answer.as_ref().map_or_else(Status::code, |_| 201);
        assert_eq!(case["code"], code, "{line}");
        match answer {
            Ok(mut object) if case.get("result").is_some() => {
                object.as_object_mut().unwrap().remove("metadata");
                assert_eq!(case["result"], object, "{line}");
            }
            Ok(_) => {}
            Err(status) if case.get("causes").is_some() => {
                let mut causes: Vec<String> =
                    status.details().causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
                causes.sort();
                causes.dedup();
                let mut expected: Vec<String> = serde_json::from_value(case["causes"].clone()).unwrap();
                expected.sort();
                assert_eq!(expected, causes, "{line}");
            }
            Err(status) => assert_eq!(case["message"], status.message(), "{line}"),
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Any object gets an answer and no panic, and an accepted one is stable.
    #[test]
    fn any_tree_is_answered(spec in tree(), metadata in tree(), at in 0_usize..8) {
        let kinds = [("", "Pod"), ("apps", "Deployment"), ("", "Service"), ("batch", "CronJob"), ("networking.k8s.io", "Ingress"),
            ("autoscaling", "HorizontalPodAutoscaler"), ("", "ConfigMap"), ("", "PersistentVolumeClaim")];
        let (group, name) = kinds[at];
        let object = json!({"metadata": metadata, "spec": spec});
        if let Ok(object) = create(group, name, object) {
            let old = stored(object);
            let again = update(group, name, None, &old, old.clone());
            proptest::prop_assert_eq!(again, Ok(Update::Unchanged));
            proptest::prop_assert!(delete(group, name, &old, DeleteOptions::default()).is_ok());
        }
    }
}

fn tree() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let words = proptest::sample::select(vec![
        "name",
        "spec",
        "containers",
        "image",
        "ports",
        "port",
        "template",
        "metadata",
        "labels",
        "selector",
        "matchLabels",
        "replicas",
        "rules",
        "http",
        "paths",
        "type",
        "env",
        "valueFrom",
        "resources",
        "limits",
        "cpu",
        "volumes",
        "a",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        Just(json!("")),
        Just(json!("10%")),
    ];
    leaf.prop_recursive(6, 48, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((words.clone(), inner), 0..6)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()),
        ]
    })
}

/// Returns an autoscaler of autoscaling/v1 with these annotations.
fn old_scaler(annotations: &[(&str, &str)]) -> Value {
    let named = annotations.iter().map(|(name, text)| (format!("autoscaling.alpha.kubernetes.io/{name}"), json!(text)));
    json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h", "namespace": "ns", "annotations": named.collect::<Value>()},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            "targetCPUUtilizationPercentage": 50}})
}

const CONDITION: (&str, &str) =
    ("conditions", r#"[{"type":"ScalingActive","status":"True","lastTransitionTime":null,"reason":"Mine"}]"#);
const MEASURED: (&str, &str) =
    ("current-metrics", r#"[{"type":"Pods","pods":{"metricName":"m","currentAverageValue":"7"}}]"#);

/// Returns the stored form of an autoscaler that is written as autoscaling/v1.
fn written(subresource: Option<&str>, old: Option<&Value>, new: Value) -> Value {
    let (seams, table) = (seams(), KindTable::builtin());
    let ctx = WriteContext::new(table, &seams);
    let kind = table.kind_named("autoscaling", "v1", "HorizontalPodAutoscaler").unwrap();
    let served = match old {
        None => prepare_create(&ctx, kind, new, Some("ns"), None).unwrap(),
        Some(old) => changed(prepare_update(&ctx, kind, subresource, old, new)),
    };
    portolan_codec::conversion::to_storage(kind, served)
}

#[test]
fn annotations_of_autoscalers_do_not_bypass_ownership() {
    let made = written(None, None, old_scaler(&[CONDITION, MEASURED]));
    assert_eq!(made["status"], json!({"currentMetrics": null, "desiredReplicas": 0}), "a new one has no status");

    let kind = KindTable::builtin().kind_named("autoscaling", "v1", "HorizontalPodAutoscaler").unwrap();
    let mut before = stored(made);
    before["status"] = json!({"currentReplicas": 2, "desiredReplicas": 2, "currentMetrics": [{"type": "Pods",
        "pods": {"metric": {"name": "n"}, "current": {"averageValue": "1"}}}],
        "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": null}]});
    let old = portolan_codec::conversion::from_storage(kind, before.clone());
    for (case, annotations) in [("none", &[][..]), ("old ones", &[CONDITION, MEASURED])] {
        let mut new = old_scaler(annotations);
        new["spec"]["maxReplicas"] = 4.into();
        let after = written(None, Some(&old), new);
        assert_eq!((&after["status"], &after["spec"]["maxReplicas"]), (&before["status"], &json!(4)), "{case}");
    }

    let behavior = ("behavior", r#"{"ScaleUp":{"SelectPolicy":"Disabled"}}"#);
    let metrics = ("metrics", r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1"}}]"#);
    let mut new = old_scaler(&[behavior, metrics, CONDITION]);
    new["status"] = json!({"currentReplicas": 5, "desiredReplicas": 5});
    let after = written(Some("status"), Some(&old), new);
    assert_eq!(after["spec"], before["spec"], "the status is another right than the rest");
    assert_eq!(after["status"]["currentReplicas"], 5);
    assert_eq!(after["status"]["conditions"][0]["reason"], "Mine");
}

#[test]
fn a_range_of_addresses_is_shown_as_network_and_prefix() {
    assert_eq!(super::allocation::AddressRange::DEFAULT.to_string(), "10.96.0.0/12");
}

#[test]
fn the_class_of_a_pod_is_of_all_its_containers_or_of_the_pod_as_a_whole() {
    let container = |request: &str, limit: &str| json!({"name": "c", "resources": {"requests": {"cpu": request, "memory": "1"}, "limits": {"cpu": limit, "memory": "1"}}});
    let of = |spec: Value| qos_class(&json!({"spec": spec}));
    for (spec, expected) in [
        (json!({"containers": [container("1", "1")]}), "Guaranteed"),
        (json!({"containers": [container("1", "2"), container("2", "1")]}), "Guaranteed"),
        (json!({"containers": [container("1", "2")]}), "Burstable"),
        (json!({"containers": [container("1", "1"), {"name": "d"}]}), "Burstable"),
        (json!({"containers": [container("1", "1")], "resources": {}}), "BestEffort"),
        (json!({"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "1"}}}), "Burstable"),
    ] {
        assert_eq!(of(spec.clone()), expected, "{spec}");
    }
    let mut sent = pod();
    sent["status"] = json!({"qosClass": "Burstable", "phase": "Running"});
    let made = create("", "Pod", sent).unwrap();
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "Burstable"}));
}

/// Returns the object as the server reads it, and the error if it is written over `old`.
fn sent(kind: &Kind, old: Option<&Value>, sent: &Value) -> Result<Value, Status> {
    let seams = seams();
    let text = sent.to_string();
    let (again, names) = (|| Some(sent.clone()), |word: &str| text.contains(word));
    let table = KindTable::builtin();
    let ctx = WriteContext { sent: Some(&again), names: Some(&names), ..WriteContext::new(table, &seams) };
    let mut body = sent.clone();
    body["apiVersion"] = kind.group_version().to_string().into();
    body["kind"] = (*kind.gvk.kind).into();
    let body = decode(table, kind, MediaType::Json, body.to_string().as_bytes(), FieldValidation::Strict)?.object;
    match old {
        None => prepare_create(&ctx, kind, body, kind.namespaced.then_some("ns"), None),
        Some(old) => Ok(match prepare_update(&ctx, kind, None, old, body)? {
            Update::Changed(object) => object,
            Update::Unchanged | Update::Removed(_) => old.clone(),
        }),
    }
}

#[test]
fn empty_values_count_where_go_distinguishes_them() {
    let pod = |spec: Value| {
        let mut pod = pod();
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod
    };
    let event = |times: Value| {
        let mut event = json!({"metadata": {"name": "e", "namespace": "ns"}, "action": "a", "reason": "r", "type": "Normal",
            "reportingController": "a/b", "reportingInstance": "i", "regarding": {"namespace": "ns"}});
        event.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        event
    };
    let zero = "0001-01-01T00:00:00Z";
    for (group, name, object, expected) in [
        ("", "Pod", pod(json!({"resources": {"claims": []}})), Err("spec.resources.claims")),
        ("", "Pod", pod(json!({"nodeSelector": {}, "volumes": []})), Ok(())),
        ("events.k8s.io", "Event", event(json!({"eventTime": "0001-01-01T00:00:00.000000Z"})), Ok(())),
        (
            "events.k8s.io",
            "Event",
            event(json!({"eventTime": "2026-01-02T03:04:05.000000Z", "deprecatedLastTimestamp": zero})),
            Err("lastTimestamp"),
        ),
    ] {
        let told = sent(kind(group, name), None, &object);
        let told = told.map(drop).map_err(|status| status.details().causes[0].field.clone());
        assert_eq!(told, expected.map_err(str::to_owned), "{object}");
    }
    let map = kind("", "ConfigMap");
    let mut object = json!({"metadata": {"name": "m"}, "data": {"a": "b"}, "immutable": true});
    let old = stored(sent(map, None, &object).unwrap());
    assert_eq!(sent(map, Some(&old), &object), Ok(old.clone()));
    object["binaryData"] = json!({});
    let told = sent(map, Some(&old), &object).unwrap_err();
    assert_eq!(told.details().causes[0].field, "binaryData");
}

#[test]
fn generations_count_empty_and_dropped_values() {
    let policy = kind("networking.k8s.io", "NetworkPolicy");
    let mut object =
        json!({"metadata": {"name": "n"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}});
    let old = stored(sent(policy, None, &object).unwrap());
    assert_eq!(object::generation(&sent(policy, Some(&old), &object).unwrap()), 1);
    object["spec"]["ingress"] = json!([{"from": []}]);
    let new = sent(policy, Some(&old), &object).unwrap();
    assert_eq!((object::generation(&new), &new["spec"]), (2, &old["spec"]));
    let slice = kind("discovery.k8s.io", "EndpointSlice");
    let mut object = json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["1.2.3.4"]}], "ports": []});
    let old = stored(sent(slice, None, &object).unwrap());
    assert_eq!(object::generation(&sent(slice, Some(&old), &object).unwrap()), 1);
    object["endpoints"][0]["deprecatedTopology"] = json!({"a": "b"});
    let new = sent(slice, Some(&old), &object).unwrap();
    assert_eq!((object::generation(&new), &new["endpoints"]), (2, &old["endpoints"]));
}

#[test]
fn admin_access_to_devices_is_for_namespaces_that_allow_it() {
    let seams = seams();
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": true}});
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}});
    let template = json!({"metadata": {"name": "c"}, "spec": {"spec": claim["spec"]}});
    for (name, object, grants, expected) in [
        ("ResourceClaim", claim.clone(), false, Err("spec.devices.requests[0].adminAccess")),
        ("ResourceClaim", claim, true, Ok(())),
        ("ResourceClaimTemplate", template, false, Err("spec.devices.requests[0].adminAccess")),
    ] {
        let kind = kind("resource.k8s.io", name);
        let ctx = WriteContext { grants_admin_access: grants, ..WriteContext::new(KindTable::builtin(), &seams) };
        let told = prepare_create(&ctx, kind, object, Some("ns"), None);
        let told = told.map(drop).map_err(|status| status.details().causes[0].field.clone());
        assert_eq!(told, expected.map_err(str::to_owned), "{name}");
    }
}
