use portolan_types::{
    GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, ResourceVersion, placement::CopyPhase,
};
use serde_json::json;

use super::*;

fn upstream(kind: &str, object: Value) -> UpstreamObject {
    let (api_version, kind) = kind.rsplit_once('/').unwrap();
    let mut whole = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": "web", "namespace": "default", "uid": "u-1", "generation": 3}});
    json_merge(&mut whole, object);
    let resource = GroupResource::new("", "things");
    UpstreamObject {
        key: ObjectKey::namespaced(
            LogicalClusterId::ROOT,
            resource,
            "default".parse().unwrap(),
            "web".parse().unwrap(),
        ),
        revision: ResourceVersion::FIRST,
        kind: GroupVersionKind::parse(api_version, kind).unwrap(),
        object: whole,
        is_held: false,
        scale: None,
    }
}

fn json_merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(k, v)| json_merge(into.entry(k).or_insert(Value::Null), v));
        }
        (into, from) => *into = from,
    }
}

fn down_with(
    object: &UpstreamObject,
    replicas: Option<i64>,
    syncer_epoch: u64,
    scaled_to: Option<i64>,
) -> Result<Value, SyncRefusal> {
    let physical: Uid = "east-uid".parse().unwrap();
    let entry = PlacedCopy { name: "east".into(), uid: physical.clone(), phase: CopyPhase::Active, replicas, epoch: 1 };
    let namespace = Some("default-x");
    copy_of(
        object,
        &CopyContext {
            physical: &physical,
            namespace,
            entry: &entry,
            syncer_epoch,
            scaled_to,
            lacking: &MissingFields::default(),
            audiences: &AcceptedAudiences::known(
                ["https://issuer.example.com".to_owned()],
                Some("east.example.com:6443"),
            ),
            naming: &NamespaceNaming::default(),
            downstream: None,
            pods: None,
        },
    )
}

fn down(kind: &str, object: Value) -> Result<Value, SyncRefusal> {
    down_with(&upstream(kind, object), None, 1, None)
}

fn pod(spec: Value) -> Value {
    let mut base = json!({"containers": [{"name": "c", "image": "i"}]});
    json_merge(&mut base, spec);
    json!({"spec": base})
}

#[test]
fn metadata_goes_downstream_without_upstream_fields() {
    let copy = down("v1/ConfigMap", json!({
        "metadata": {
            "labels": {"app": "web", "portolan.dev/cluster": "x", "sync.portolan.dev/cluster": "forged"},
            "annotations": {
                "note": "kept", "portolan.dev/placement": "{}", "portolan.dev/pin": "east", "kcp.io/cluster": "root",
                "tenancy.kcp.io/x": "y", "sync.portolan.dev/identity": "forged",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            "ownerReferences": [{"uid": "o"}], "finalizers": ["f"], "managedFields": [{}], "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z", "generateName": "w",
        },
        "data": {"a": "1"}, "status": {"x": 1},
    }))
    .unwrap();
    let metadata = copy["metadata"].as_object().unwrap();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["annotations", "labels", "name", "namespace"]);
    assert_eq!(metadata["namespace"], "default-x");
    assert_eq!(
        metadata["labels"],
        json!({"app": "web", "sync.portolan.dev/cluster": "root", "sync.portolan.dev/namespace": "default"})
    );
    let notes: Vec<_> = metadata["annotations"].as_object().unwrap().keys().collect();
    assert_eq!(notes, ["note", "sync.portolan.dev/applied", "sync.portolan.dev/identity"]);
    assert_eq!((copy.get("status"), &copy["data"]), (None, &json!({"a": "1"})));
    let identity = CopyIdentity::of(&copy).unwrap();
    assert_eq!((identity.uid.as_str(), identity.generation, identity.epoch, &*identity.name), ("u-1", 3, 1, "web"));
}

#[test]
fn fields_that_the_physical_cluster_gives_stay_out() {
    for (case, kind, object, pointer, expected) in [
        ("an allocated cluster IP", "v1/Service", json!({"spec": {"clusterIP": "10.0.0.1"}}), "/spec/clusterIP", None),
        (
            "a headless Service",
            "v1/Service",
            json!({"spec": {"clusterIP": "None"}}),
            "/spec/clusterIP",
            Some(json!("None")),
        ),
        (
            "a node port",
            "v1/Service",
            json!({"spec": {"ports": [{"port": 80, "nodePort": 30000}]}}),
            "/spec/ports/0",
            Some(json!({"port": 80})),
        ),
        (
            "a health check port",
            "v1/Service",
            json!({"spec": {"healthCheckNodePort": 1}}),
            "/spec/healthCheckNodePort",
            None,
        ),
        ("a bound volume", "v1/PersistentVolumeClaim", json!({"spec": {"volumeName": "pv"}}), "/spec/volumeName", None),
        (
            "a generated Job selector",
            "batch/v1/Job",
            json!({"spec": {"selector": {"matchLabels": {}}}}),
            "/spec/selector",
            None,
        ),
        (
            "a manual Job selector",
            "batch/v1/Job",
            json!({"spec": {"manualSelector": true, "selector": {"a": 1}}}),
            "/spec/selector",
            Some(json!({"a": 1})),
        ),
        (
            "the time after which an ended Job goes",
            "batch/v1/Job",
            json!({"spec": {"ttlSecondsAfterFinished": 0}}),
            "/spec/ttlSecondsAfterFinished",
            None,
        ),
        (
            "that of the Jobs which a CronJob makes downstream",
            "batch/v1/CronJob",
            json!({"spec": {"jobTemplate": {"spec": {"ttlSecondsAfterFinished": 0}}}}),
            "/spec/jobTemplate/spec/ttlSecondsAfterFinished",
            Some(json!(0)),
        ),
        ("a node", "v1/Pod", pod(json!({"nodeName": "n"})), "/spec/nodeName", None),
        (
            "an API token volume",
            "v1/Pod",
            pod(json!({"volumes": [{"name": "kube-api-access-x", "projected": {}}]})),
            "/spec/volumes",
            None,
        ),
        ("the API token itself", "v1/Pod", pod(json!({})), "/spec/automountServiceAccountToken", Some(json!(false))),
        (
            "that of the pods of a custom kind",
            "example.com/v1/App",
            json!({"spec": {"pod": {"containers": [], "automountServiceAccountToken": true}}}),
            "/spec/pod/automountServiceAccountToken",
            Some(json!(false)),
        ),
    ] {
        assert_eq!(down(kind, object).unwrap().pointer(pointer).cloned(), expected, "{case}");
    }
    let job = json!({"spec": {"template": {"metadata": {"labels": {"a": "b", "controller-uid": "x"}}}}});
    let labels = down("batch/v1/Job", job).unwrap()["spec"]["template"]["metadata"]["labels"].clone();
    assert_eq!(labels, json!({"a": "b", "sync.portolan.dev/cluster": "root"}));
}

#[test]
fn host_access_is_refused_in_every_pod_spec() {
    let refused = |case: &str, answer: Result<Value, SyncRefusal>, allowed: bool| match answer {
        Ok(_) => assert!(allowed, "{case} went down"),
        Err(refusal) => assert!(!allowed && refusal.reason == "NotSyncable", "{case}: {}", refusal.message),
    };
    let container = |context: Value| json!({"containers": [{"name": "c", "securityContext": context}]});
    for (case, spec, allowed) in [
        ("nothing special", json!({}), true),
        ("hostNetwork", json!({"hostNetwork": true}), false),
        ("hostPID", json!({"hostPID": true}), false),
        ("hostPath", json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), false),
        (
            "a token for the API downstream",
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
            false,
        ),
        (
            "a token for somebody else",
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}]}),
            true,
        ),
        (
            "the token that admission adds, which is taken out",
            json!({"volumes": [{"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
            true,
        ),
        ("emptyDir", json!({"volumes": [{"name": "v", "emptyDir": {}}]}), true),
        ("hostPort", json!({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}), false),
        ("privileged", container(json!({"privileged": true})), false),
        ("an unprivileged context", container(json!({"privileged": false, "runAsNonRoot": true})), true),
        ("SYS_ADMIN", container(json!({"capabilities": {"add": ["SYS_ADMIN"]}})), false),
        ("CAP_SYS_ADMIN", container(json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}})), false),
        ("NET_BIND_SERVICE", container(json!({"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}})), true),
        (
            "an init container",
            json!({"initContainers": [{"name": "i", "securityContext": {"privileged": true}}]}),
            false,
        ),
        ("a sysctl", json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}), false),
        ("a safe sysctl", json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_wmem", "value": "1"}]}}), true),
        ("control-plane nodes", json!({"tolerations": [{"key": "node-role.kubernetes.io/control-plane"}]}), false),
        ("all taints", json!({"tolerations": [{"operator": "Exists"}]}), false),
        ("one taint", json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}), true),
        ("a system priority", json!({"priorityClassName": "system-node-critical"}), false),
    ] {
        let spec = pod(spec)["spec"].clone();
        refused(case, down("v1/Pod", json!({"spec": spec})), allowed);
        refused(case, down("apps/v1/Deployment", json!({"spec": {"template": {"spec": spec}}})), allowed);
        let cron = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}});
        refused(case, down("batch/v1/CronJob", cron), allowed);
        refused(case, down("example.com/v1/App", json!({"spec": {"parts": [{"pod": spec}]}})), allowed);
    }
    for (case, spec, allowed) in [
        ("external IPs", json!({"externalIPs": ["1.2.3.4"]}), false),
        ("a name inside", json!({"type": "ExternalName", "externalName": "a.b.svc.cluster.local."}), false),
        ("a name outside", json!({"type": "ExternalName", "externalName": "db.example.com"}), true),
    ] {
        refused(case, down("v1/Service", json!({"spec": spec})), allowed);
    }
    refused(
        "data that looks like a pod",
        down("v1/ConfigMap", json!({"data": {"containers": [], "hostNetwork": true}})),
        true,
    );
}

#[test]
fn every_template_is_labelled_for_its_dependents() {
    let copy =
        down("batch/v1/CronJob", json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {}}}}}})).unwrap();
    let label = json!("root");
    for pointer in ["/spec/jobTemplate/metadata/labels", "/spec/jobTemplate/spec/template/metadata/labels"] {
        assert_eq!(copy.pointer(pointer).map(|labels| &labels[annotations::DOWN_CLUSTER]), Some(&label), "{pointer}");
    }
    let set = json!({"spec": {"template": {"spec": {}}, "volumeClaimTemplates": [{"metadata": {"name": "d"}}]}});
    let copy = down("apps/v1/StatefulSet", set).unwrap();
    assert_eq!(copy["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"][annotations::DOWN_CLUSTER], label);
}

#[test]
fn the_hash_decides_about_another_apply() {
    let object = upstream("apps/v1/Deployment", json!({"spec": {"replicas": 4, "template": {"spec": {}}}}));
    let applied = |object: &UpstreamObject, replicas, epoch, scaled| {
        let copy = down_with(object, replicas, epoch, scaled).unwrap();
        (object::annotation(&copy, annotations::DOWN_APPLIED).unwrap().to_owned(), copy["spec"]["replicas"].clone())
    };
    let (plain, replicas) = applied(&object, None, 1, None);
    assert_eq!(replicas, 4);
    assert_eq!(applied(&object, None, 2, None).0, plain, "not for another syncer");
    let mut limited = object.clone();
    let record = PlacementRecord {
        limits: [("east-uid".parse().unwrap(), 3)].into(),
        clusters: vec![PlacedCopy {
            name: "east".into(),
            uid: "east-uid".parse().unwrap(),
            phase: CopyPhase::Active,
            replicas: None,
            epoch: 1,
        }],
        ..PlacementRecord::default()
    };
    record.write_to(&mut limited.object);
    assert_eq!(applied(&limited, None, 1, None).1, 3, "as many as the bounds admit");
    limited.object["spec"]["replicas"] = 2.into();
    assert_eq!(applied(&limited, None, 1, None).1, 2, "never more than the object asks for");
    assert_eq!(applied(&object, Some(2), 1, None).1, 2, "divided replicas");
    assert_ne!(applied(&object, Some(2), 1, None).0, plain, "for another share");
    assert_eq!(applied(&object, None, 1, Some(7)).1, 7, "an autoscaler downstream owns the number");
    assert_eq!(applied(&object, None, 1, Some(7)).0, applied(&object, None, 1, Some(9)).0, "and may change it");
    let mut newer = object.clone();
    newer.object["metadata"]["generation"] = json!(4);
    assert_ne!(applied(&newer, None, 1, None).0, plain, "for a new generation, so that the stamp follows");
}

/// A StatefulSet whose copies share ordinals: west has up to 5, and east, the copy, those after it.
fn set_of_ordinals(spec: Value) -> UpstreamObject {
    let mut set = upstream("apps/v1/StatefulSet", json!({"spec": spec}));
    let range = |first, end| json!({"first": first, "end": end});
    let record = json!({"clusters": [], "generation": 1, "yields": ["spec.replicas", "spec.paused"],
        "ordinals": {"west-uid": range(0, 5), "east-uid": range(5, 8)}});
    object::set_annotation(&mut set.object, annotations::PLACEMENT, Some(record.to_string()));
    set
}

#[test]
fn a_copy_of_a_divided_set_has_only_ordinals_of_its_own() {
    let spec = |replicas: i64, start: i64| {
        json!({"replicas": replicas, "ordinals": {"start": start}, "template": {"spec": {}},
            "updateStrategy": {"rollingUpdate": {"partition": 6}}})
    };
    for (case, replicas, start, share, expected) in [
        ("all of its range", 8, 0, Some(3), (5, 3, 1)),
        ("fewer, as the bounds admit", 8, 0, Some(2), (5, 2, 1)),
        ("a user shrinks the set, and its share is not known yet", 6, 0, Some(3), (5, 1, 1)),
        ("all of its ordinals are gone", 4, 0, Some(3), (5, 0, 1)),
        ("the set grows: ordinals without a copy wait for the decision", 20, 0, Some(9), (5, 3, 1)),
        ("a user moves the start into its range", 8, 6, Some(3), (6, 2, 6)),
        ("the copy has no share", 8, 0, None, (5, 0, 1)),
    ] {
        let copy = down_with(&set_of_ordinals(spec(replicas, start)), share, 1, Some(7)).unwrap();
        let partition = &copy["spec"]["updateStrategy"]["rollingUpdate"]["partition"];
        let found = [&copy["spec"]["ordinals"]["start"], &copy["spec"]["replicas"], partition];
        assert_eq!(found.map(|number| number.as_i64().unwrap()), [expected.0, expected.1, expected.2], "{case}");
    }
    let mut other = set_of_ordinals(spec(8, 0));
    other.object["metadata"]["annotations"][annotations::PLACEMENT] =
        json!({"clusters": [], "ordinals": {"west-uid": {"first": 0, "end": 5}}}).to_string().into();
    assert_eq!(down_with(&other, Some(3), 1, None).unwrap()["spec"]["replicas"], 0, "a copy without a range runs none");
}

#[test]
fn drift_is_a_field_of_ours_that_differs() {
    let wanted = json!({"spec": {"a": 1, "list": [{"name": "x", "v": 1}], "empty": {}}});
    for (case, actual, covered) in [
        ("equal", wanted.clone(), true),
        ("defaults added", json!({"spec": {"a": 1, "b": 2, "list": [{"name": "x", "v": 1, "d": 0}]}}), true),
        ("a sidecar injected", json!({"spec": {"a": 1, "list": [{"name": "s"}, {"name": "x", "v": 1}]}}), true),
        ("a field changed", json!({"spec": {"a": 2, "list": [{"name": "x", "v": 1}]}}), false),
        ("a field gone", json!({"spec": {"list": [{"name": "x", "v": 1}]}}), false),
        ("an item changed", json!({"spec": {"a": 1, "list": [{"name": "x", "v": 2}]}}), false),
    ] {
        assert_eq!(covers(&actual, &wanted), covered, "{case}");
    }
}

/// A Deployment whose record contains the overrides of policies, and the fields that are left to physical clusters.
fn governed(change: Value, yields: Value) -> UpstreamObject {
    let policy = json!({"kind": "ClusterPlacementPolicy", "workspace": "root", "name": "eu"});
    let record = json!({
        "clusters": [{"name": "east", "uid": "east-uid", "phase": "Active", "epoch": 1}], "generation": 3,
        "overrides": [{"policy": policy, "on": ["east-uid"], "change": change}], "yields": yields,
    });
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    upstream(
        "apps/v1/Deployment",
        json!({
            "metadata": {"annotations": {"portolan.dev/placement": record.to_string()}},
            "spec": {"replicas": 2, "paused": false, "template": template},
        }),
    )
}

#[test]
fn overrides_change_the_copy_and_its_source_stays_known() {
    let plain = down_with(&governed(json!({}), json!([])), None, 1, None).unwrap();
    let changed = down_with(&governed(json!({"imageRegistry": "mirror.example"}), json!([])), None, 1, None).unwrap();
    assert_eq!(changed["spec"]["template"]["spec"]["containers"][0]["image"], "mirror.example/i:1");
    let note = |copy: &Value, key: &str| object::annotation(copy, key).map(str::to_owned);
    assert_ne!(note(&changed, annotations::DOWN_APPLIED), note(&plain, annotations::DOWN_APPLIED));
    assert_eq!(note(&changed, annotations::DOWN_TEMPLATE), note(&plain, annotations::DOWN_TEMPLATE));
}

#[test]
fn an_override_cannot_bypass_the_rules_of_syncing() {
    for (path, value) in [
        ("/spec/template/spec/hostNetwork", json!(true)),
        ("/spec/template/spec/containers/0/securityContext", json!({"privileged": true})),
        (
            "/spec/template/spec/volumes",
            json!([{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t", "audience": "https://issuer.example.com"}}]}}]),
        ),
    ] {
        let patch = json!({"patch": [{"op": "add", "path": path, "value": value}]});
        assert_eq!(down_with(&governed(patch, json!([])), None, 1, None).unwrap_err().reason, "NotSyncable", "{path}");
    }
    let patch = json!({"patch": [{"op": "add", "path": "/spec/template/spec/nodeName", "value": "n"}]});
    let copy = down_with(&governed(patch, json!([])), None, 1, None).unwrap();
    assert_eq!(copy["spec"]["template"]["spec"].get("nodeName"), None);
}

#[test]
fn a_yielded_field_starts_as_upstream_and_stays_as_it_is_downstream() {
    let object = governed(json!({}), json!(["spec.paused", "spec.minReadySeconds"]));
    let physical: Uid = "east-uid".parse().unwrap();
    let name = "east".into();
    let entry = PlacedCopy { name, uid: physical.clone(), phase: CopyPhase::Active, replicas: None, epoch: 1 };
    let with = |downstream: Option<&Value>| {
        let (namespace, syncer_epoch, scaled_to) = (Some("default-x"), 1, None);
        let (lacking, audiences) = (&MissingFields::default(), &AcceptedAudiences::known([], None));
        let context = CopyContext {
            physical: &physical,
            namespace,
            entry: &entry,
            syncer_epoch,
            scaled_to,
            lacking,
            audiences,
            naming: &NamespaceNaming::default(),
            downstream,
            pods: None,
        };
        copy_of(&object, &context).unwrap()
    };
    let first = with(None);
    assert_eq!((&first["spec"]["paused"], first["spec"].get("minReadySeconds")), (&json!(false), None));
    let downstream = json!({"spec": {"paused": true, "minReadySeconds": 5, "replicas": 9}});
    let later = with(Some(&downstream));
    let spec = |field: &str| later["spec"][field].clone();
    assert_eq!((spec("paused"), spec("minReadySeconds"), spec("replicas")), (json!(true), json!(5), json!(2)));
    let applied = |copy: &Value| object::annotation(copy, annotations::DOWN_APPLIED).map(str::to_owned);
    assert_eq!(applied(&first), applied(&later), "what is written to it there is no reason for a write");
}

#[test]
fn a_copy_of_a_divided_job_has_its_part_alone() {
    let job = |status: Value| {
        let record =
            json!({"clusters": [], "completions": {"east-uid": 4, "west-uid": 3}, "yields": ["spec.parallelism"]});
        let annotations = json!({"portolan.dev/placement": record.to_string()});
        let spec = json!({"completions": 7, "parallelism": 5, "backoffLimit": 6, "template": {"spec": {}}});
        upstream("batch/v1/Job", json!({"metadata": {"annotations": annotations}, "spec": spec, "status": status}))
    };
    let of = |object: &UpstreamObject, part| {
        let copy = down_with(object, part, 1, None).unwrap();
        ["completions", "parallelism", "backoffLimit", "suspend", "replicas"].map(|field| copy["spec"][field].clone())
    };
    let none = Value::Null;
    assert_eq!(of(&job(json!({})), Some(3)), [json!(4), json!(3), json!(6), none.clone(), none.clone()]);
    let failing = json!({"conditions": [{"type": "FailureTarget", "status": "True"}]});
    assert_eq!(of(&job(failing.clone()), Some(3)), [json!(4), json!(3), json!(6), json!(true), none.clone()]);
    assert_eq!(of(&job(failing), None), [json!(7), json!(5), json!(6), none.clone(), none], "a whole copy");
}
