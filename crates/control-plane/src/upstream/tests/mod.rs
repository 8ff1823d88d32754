//! Tests of the changes that physical clusters may make upstream, on the memory store.

use std::sync::Arc;

use portolan_controllers::Plane;
use portolan_kinds::KindTable;
use portolan_store::{AccountLimit, DynStore, Engine, Expect, StoreConfig, StoredUsage, Transaction};
use portolan_types::{
    GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Record, Seams, Uid, annotations, object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord, ProjectionSource},
    upstream::{
        ClusterReport, CopyReport, CopyState, Debt, Projection, UnplacedObject, Upstream as _, UpstreamObject,
        UpstreamRead,
    },
};
use serde_json::{Map, Value, json};

use super::StoreUpstream;

mod custom_kinds;
mod projected_kinds;

fn uid(text: &str) -> Uid {
    text.parse().unwrap()
}

fn copy(name: &str, phase: CopyPhase, replicas: Option<i64>, epoch: u64) -> PlacedCopy {
    PlacedCopy { name: name.into(), uid: uid(name), phase, replicas, epoch }
}

fn key(resource: &str, name: &str) -> ObjectKey {
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let resource = GroupResource::new(group, resource);
    ObjectKey::namespaced(LogicalClusterId::new(7), resource, "shop".parse().unwrap(), name.parse().unwrap())
}

/// Returns the key of an object's stored copy states.
fn kept_key(uid: &str) -> ObjectKey {
    ObjectKey { resource: GroupResource::new("internal.portolan.dev", "copies"), ..key("x", uid) }
}

fn with_record(mut object: Value, clusters: Vec<PlacedCopy>) -> Value {
    PlacementRecord { clusters, ..PlacementRecord::default() }.write_to(&mut object);
    object
}

fn made_from(resource: &str, name: &str, owner: Option<(&str, &str)>, from: PlacedCopy) -> (ObjectKey, Value) {
    let kind = if resource == "pods" { "Pod" } else { "PersistentVolumeClaim" };
    let mut object =
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": {}});
    if let Some((kind, name)) = owner {
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "owner", "controller": true}]);
    }
    (key(resource, name), with_record(object, vec![from]))
}

struct World(StoreUpstream);

impl World {
    fn new() -> Self {
        Self::on(portolan_store::memory())
    }

    fn on(store: DynStore) -> Self {
        let plane = Plane::new(store, KindTable::builtin(), Seams::system());
        Self(StoreUpstream::new(Arc::new(plane), Some("plane".into())))
    }

    async fn write(&self, key: &ObjectKey, object: &Value) {
        let txn = Transaction::one(key.clone(), Expect::Anything, Some(Record::of(object)));
        self.0.plane.store().commit(txn).await.unwrap();
    }

    async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.0.read(key).await.unwrap().map(|(object, _)| object)
    }

    async fn show(&self, from: &str, put: (ObjectKey, Value)) {
        let projection = Projection { put: vec![put], ..Projection::default() };
        self.0.project(&uid(from), projection).await.unwrap();
    }

    async fn report(&self, key: &ObjectKey, from: &str, epoch: u64, status: Value) {
        self.report_state(
            key,
            from,
            epoch,
            CopyState::Synced { stamp: 1, is_current: true, scaled: None, revision: None, status },
        )
        .await;
    }

    async fn report_state(&self, key: &ObjectKey, from: &str, epoch: u64, state: CopyState) {
        let report = CopyReport { key: key.clone(), uid: uid("owner"), physical: uid(from), epoch, state, node: None };
        self.0.report(report).await.unwrap();
    }
}

fn workload(kind: &str, clusters: Vec<PlacedCopy>) -> Value {
    let object = json!({"apiVersion": "apps/v1", "kind": kind, "spec": {"replicas": 2},
        "metadata": {"name": "web", "namespace": "shop", "uid": "owner", "generation": 1}});
    with_record(object, clusters)
}

#[tokio::test]
async fn a_worker_reads_only_what_is_placed_on_its_physical_cluster() {
    let world = World::new();
    let active = |name| vec![copy(name, CopyPhase::Active, None, 1)];
    let namespace = ObjectKey::cluster_scoped(
        LogicalClusterId::new(7),
        GroupResource::new("", "namespaces"),
        "shop".parse().unwrap(),
    );
    world.write(&namespace, &json!({"metadata": {"name": "shop", "uid": "ns", "labels": {"team": "blue"}}})).await;
    let secret = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "shop", "uid": uid}});
    world.write(&key("deployments.apps", "web"), &workload("Deployment", active("east"))).await;
    // A Secret that a workload names follows it: it has a record of its own.
    world.write(&key("secrets", "follows"), &with_record(secret("follows", "s-1"), active("east"))).await;
    world.write(&key("secrets", "elsewhere"), &with_record(secret("elsewhere", "s-2"), active("west"))).await;
    world.write(&key("secrets", "unplaced"), &secret("unplaced", "s-3")).await;
    let is_team = |labels: Option<Map<String, Value>>| labels.map(|labels| labels["team"] == "blue");
    for (case, at, expected) in [
        ("what is placed there", key("deployments.apps", "web"), "placed"),
        ("what follows it there", key("secrets", "follows"), "placed"),
        ("what is placed elsewhere", key("secrets", "elsewhere"), "s-2 true"),
        ("what is placed nowhere", key("secrets", "unplaced"), "s-3 false"),
        ("what was removed", key("secrets", "none"), "absent"),
        ("a namespace", namespace, "ns false"),
    ] {
        let read = match world.0.get(&uid("east"), &at).await.unwrap() {
            UpstreamRead::Placed(found) => {
                assert_eq!(found.key, at, "{case}");
                "placed".to_owned()
            }
            UpstreamRead::NotPlaced(UnplacedObject { uid, has_record }) => {
                format!("{} {has_record}", uid.unwrap().as_str())
            }
            UpstreamRead::Absent => "absent".to_owned(),
        };
        assert_eq!(read, expected, "{case}");
        let labels = world.0.namespace_labels(&uid("east"), &at).await.unwrap();
        assert_eq!(
            is_team(labels),
            (expected == "placed").then_some(true),
            "{case}: labels of the namespace around it"
        );
    }
}

#[tokio::test]
async fn only_dependents_of_synced_copies_are_projected() {
    let world = World::new();
    let active = |name| copy(name, CopyPhase::Active, None, 1);
    world.write(&key("deployments.apps", "web"), &workload("Deployment", vec![active("east")])).await;
    let from = |name| copy(name, CopyPhase::Projected, None, 0);
    let owner = Some(("Deployment", "web"));
    for (case, put, by, shown) in [
        ("a pod of its copy", made_from("pods", "a", owner, from("east")), "east", true),
        ("a pod of a copy that is elsewhere", made_from("pods", "b", owner, from("west")), "west", false),
        ("a pod of nothing above", made_from("pods", "c", Some(("Job", "x")), from("east")), "east", false),
        ("a pod without an owner", made_from("pods", "d", None, from("east")), "east", false),
        (
            "a claim of the pod",
            made_from("persistentvolumeclaims", "f", Some(("Pod", "a")), from("east")),
            "east",
            true,
        ),
        (
            "a claim where no StatefulSet is",
            made_from("persistentvolumeclaims", "e", None, from("east")),
            "east",
            false,
        ),
    ] {
        let (at, mut put) = (put.0.clone(), put);
        if let (Some(pod), "f") = (world.get(&key("pods", "a")).await, at.name.as_str()) {
            put.1["metadata"]["ownerReferences"][0]["uid"] = object::meta_text(&pod, "uid").into();
        }
        world.show(by, put).await;
        assert_eq!(world.get(&at).await.is_some(), shown, "{case}");
    }
    world.write(&key("statefulsets.apps", "web"), &workload("StatefulSet", vec![active("east")])).await;
    let claim = made_from("persistentvolumeclaims", "e", None, from("east"));
    let at = claim.0.clone();
    world.show("east", claim).await;
    assert!(world.get(&at).await.is_some(), "a claim of its StatefulSet");
}

#[tokio::test]
async fn projected_objects_are_charged_to_the_workspace() {
    let mut world = World::new();
    let parent = LogicalClusterId::ROOT;
    world.0 = world.0.charging(Box::new(move |cluster| {
        vec![AccountLimit { cluster, parent: Some(parent), most: StoredUsage { objects: 2, bytes: 1 << 20 } }]
    }));
    let east = copy("east", CopyPhase::Active, None, 1);
    world.write(&key("deployments.apps", "web"), &workload("Deployment", vec![east])).await;
    let pod = |name| made_from("pods", name, Some(("Deployment", "web")), copy("east", CopyPhase::Projected, None, 0));
    world.show("east", pod("a")).await;
    let projection = Projection { put: vec![pod("b")], ..Projection::default() };
    let refused = world.0.project(&uid("east"), projection).await.unwrap_err();
    assert!(refused.to_string().contains("would exceed its storage limits"), "{refused}");
    assert!(world.get(&key("pods", "b")).await.is_none());
    world.show("east", pod("a")).await;
}

#[tokio::test]
async fn kinds_without_a_status_get_none() {
    let world = World::new();
    let refused = || CopyState::Failed {
        generation: 1,
        reason: "Conflict".to_owned(),
        message: "it is there already".to_owned(),
    };
    let synced = || CopyState::Synced { stamp: 1, is_current: true, scaled: None, revision: None, status: Value::Null };
    for (resource, has_status) in
        [("configmaps", false), ("secrets", false), ("serviceaccounts", false), ("services", true)]
    {
        let at = key(resource, "web");
        let object = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "owner", "generation": 1}});
        world.write(&at, &with_record(object, vec![copy("east", CopyPhase::Active, None, 1)])).await;
        for state in [synced(), refused()] {
            world.report_state(&at, "east", 1, state).await;
        }
        assert_eq!(world.get(&at).await.unwrap().get("status").is_some(), has_status, "{resource}");
        let states = world.get(&kept_key("owner")).await.unwrap();
        assert_eq!(states["copies"][0]["failed"][0], "Conflict", "{resource}: what is reported is kept all the same");
        world.0.plane.store().commit(Transaction::one(kept_key("owner"), Expect::Anything, None)).await.unwrap();
    }
}

#[tokio::test]
async fn reports_of_an_earlier_epoch_do_not_count() {
    let world = World::new();
    let at = key("deployments.apps", "web");
    let (active, leaving) = (CopyPhase::Active, CopyPhase::Leaving);
    world
        .write(&at, &workload("Deployment", vec![copy("east", leaving, None, 1), copy("west", active, None, 2)]))
        .await;
    world.report(&at, "east", 1, json!({"readyReplicas": 2, "availableReplicas": 2})).await;
    world.report(&at, "west", 2, json!({"readyReplicas": 2, "availableReplicas": 2})).await;
    let mut object = world.get(&at).await.unwrap();
    let back = vec![copy("east", active, None, 3), copy("west", active, None, 2)];
    PlacementRecord { clusters: back, ..PlacementRecord::default() }.write_to(&mut object);
    world.write(&at, &object).await;
    world.report(&at, "west", 2, json!({"readyReplicas": 1, "availableReplicas": 1})).await;
    let states = world.get(&kept_key("owner")).await.unwrap();
    let east = states["copies"].as_array().unwrap().iter().find(|copy| copy["name"] == "east").unwrap().clone();
    assert_eq!((&east["epoch"], &east["status"]), (&json!(3), &Value::Null), "it has yet to report");
}

#[tokio::test]
async fn a_deployment_shows_the_highest_downstream_revision() {
    let world = World::new();
    let at = key("deployments.apps", "web");
    let copies = ["east", "west"].map(|name| copy(name, CopyPhase::Active, None, 1)).to_vec();
    world.write(&at, &workload("Deployment", copies)).await;
    for (from, revision, shown) in
        [("east", None, None), ("east", Some(2), Some("2")), ("west", Some(5), Some("5")), ("east", Some(3), Some("5"))]
    {
        let state = CopyState::Synced { stamp: 1, is_current: true, scaled: None, revision, status: json!({}) };
        world.report_state(&at, from, 1, state).await;
        let web = world.get(&at).await.unwrap();
        assert_eq!(object::annotation(&web, annotations::REVISION), shown, "{from} is at {revision:?}");
        assert_eq!(object::generation(&web), 1);
    }
}

#[tokio::test]
async fn replicas_follow_downstream_autoscalers_once_an_upstream_change_has_arrived() {
    let world = World::new();
    let at = key("deployments.apps", "web");
    let shares = ["east", "west"].map(|name| copy(name, CopyPhase::Active, Some(1), 1)).to_vec();
    world.write(&at, &workload("Deployment", shares)).await;
    let scaled = async |from: &str, stamp, scaled: Option<i64>| {
        let state = CopyState::Synced { stamp, is_current: true, scaled, revision: None, status: json!({}) };
        world.report_state(&at, from, 1, state).await;
        let web = world.get(&at).await.unwrap();
        let followed = PlacementRecord::of(&web).unwrap().autoscaled;
        (web["spec"]["replicas"].as_i64().unwrap(), object::generation(&web), followed)
    };
    assert_eq!(scaled("east", 1, Some(4)).await, (2, 1, None), "west has not reported");
    assert_eq!(scaled("west", 1, Some(2)).await, (6, 2, Some(6)), "the sum");
    assert_eq!(scaled("east", 2, Some(5)).await, (6, 2, Some(6)), "west's copy is of what it said before");
    let write = async |replicas: i64, generation: i64, shares: [i64; 2]| {
        let mut web = world.get(&at).await.unwrap();
        (web["spec"]["replicas"], web["metadata"]["generation"]) = (json!(replicas), json!(generation));
        let mut record = PlacementRecord::of(&web).unwrap();
        record.clusters.iter_mut().zip(shares).for_each(|(copy, share)| copy.replicas = Some(share));
        record.write_to(&mut web);
        world.write(&at, &web).await;
    };
    write(9, 3, [5, 4]).await;
    assert_eq!(scaled("east", 3, Some(5)).await, (9, 3, Some(6)), "somebody's wish is on its way");
    assert_eq!(scaled("west", 3, Some(2)).await, (9, 3, Some(6)), "west's copy is of its share of before");
    assert_eq!(scaled("west", 3, Some(4)).await, (9, 3, Some(9)), "it has arrived");
    write(9, 3, [9, 4]).await;
    assert_eq!(scaled("east", 3, Some(9)).await, (9, 3, Some(9)), "in a move both run");
    write(9, 3, [5, 4]).await;
    assert_eq!(scaled("east", 3, None).await, (9, 3, Some(9)), "one autoscaler is left");
    assert_eq!(scaled("west", 3, None).await, (9, 3, None), "none is");
}

#[tokio::test]
async fn a_replica_set_that_ends_on_one_physical_cluster_counts_no_more_there() {
    let world = World::new();
    let at = key("replicasets.apps", "web");
    let shares = ["east", "west"].map(|name| copy(name, CopyPhase::Projected, Some(2), 0)).to_vec();
    world.write(&at, &workload("ReplicaSet", shares)).await;
    let full = json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 2});
    world.report(&at, "east", 0, full.clone()).await;
    world.report(&at, "west", 0, full).await;
    let gone = || Projection { gone: vec![at.clone()], ..Projection::default() };
    world.0.project(&uid("east"), gone()).await.unwrap();
    let left = world.get(&at).await.unwrap();
    assert_eq!((&left["spec"]["replicas"], &left["status"]["readyReplicas"]), (&json!(2), &json!(2)));
    world.0.project(&uid("west"), gone()).await.unwrap();
    assert!(world.get(&at).await.is_none());
    assert!(world.get(&kept_key("owner")).await.is_none(), "nothing is kept about it");
    assert!(object::uid(&left).is_some());
}

#[tokio::test]
async fn a_report_belongs_to_the_physical_clusters_uid_not_its_name() {
    let world = World::new();
    let at = key("deployments.apps", "web");
    let named = |of: &str, phase, epoch| PlacedCopy { name: "east".into(), ..copy(of, phase, None, epoch) };
    let copies = vec![named("old", CopyPhase::Leaving, 1), named("new", CopyPhase::Active, 2)];
    world.write(&at, &workload("Deployment", copies)).await;
    let placement = key("placements.portolan.dev", "deployments.apps-web");
    let shown = |of: &str, phase: &str| json!({"name": "east", "uid": of, "phase": phase, "ready": 0});
    let status = json!({"clusters": [shown("old", "Leaving"), shown("new", "Active")]});
    world.write(&placement, &json!({"metadata": {"name": "deployments.apps-web"}, "status": status})).await;
    world.report(&at, "old", 1, json!({"readyReplicas": 2, "availableReplicas": 2})).await;
    let ready = world.get(&placement).await.unwrap()["status"]["clusters"].clone();
    let of = |uid: &str| ready.as_array().unwrap().iter().find(|c| c["uid"] == *uid).unwrap()["ready"].clone();
    assert_eq!((of("old"), of("new")), (json!(2), json!(0)));
}

#[tokio::test]
async fn a_debt_takes_the_copy_off_the_record_and_the_write_off_with_it() {
    let world = World::new();
    let at = key("statefulsets.apps", "web");
    let copies = vec![copy("east", CopyPhase::Leaving, None, 1), copy("west", CopyPhase::Active, None, 2)];
    let mut set = workload("StatefulSet", copies);
    object::set_annotation(&mut set, annotations::WRITE_OFF, Some("north, east".into()));
    world.write(&at, &set).await;
    let below = Some(ProjectionSource {
        namespace: "shop-x".into(),
        name: "web".into(),
        uid: "down".into(),
        is_used: false,
        shown: Default::default(),
    });
    let kind = GroupVersionKind::new("apps", "v1", "StatefulSet");
    let debt = Debt { key: at.clone(), source: below, kind, uid: uid("owner"), epoch: 1, is_orphan: true };
    world.0.record_debt(&uid("east"), debt.clone()).await.unwrap();
    assert_eq!(world.0.debts(&uid("east")).await.unwrap(), std::slice::from_ref(&debt));
    let left = world.get(&at).await.unwrap();
    assert_eq!(object::annotation(&left, annotations::CLUSTERS), Some("west"));
    assert_eq!(object::annotation(&left, annotations::WRITE_OFF), Some("north"), "it is used once");
    world.0.settle(&uid("east"), &debt).await.unwrap();
    assert!(world.0.debts(&uid("east")).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_physical_cluster_reports_events_of_its_own_objects_only() {
    let world = World::new();
    let web = key("deployments.apps", "web");
    world.write(&web, &workload("Deployment", vec![copy("east", CopyPhase::Active, None, 1)])).await;
    let shop = ObjectKey::cluster_scoped(web.cluster, GroupResource::new("", "namespaces"), "shop".parse().unwrap());
    let event = |about: &str, from: &str, message: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shop",
            "labels": {(annotations::PROJECTED_FROM): from}}, "involvedObject": {"uid": about}, "message": message})
    };
    let at = key("events", "e");
    let message = async || world.get(&at).await.map(|event| event["message"].as_str().unwrap().to_owned());
    for (case, namespace, by, event, expected) in [
        ("no namespace", None, "east", event("owner", "east", "0"), None),
        ("a namespace that ends", Some(json!({"deletionTimestamp": "t"})), "east", event("owner", "east", "1"), None),
        ("about another object of the name", Some(json!({})), "east", event("other", "east", "2"), None),
        ("by a cluster that was not given it", None, "west", event("owner", "west", "3"), None),
        ("about its copy", None, "east", event("owner", "east", "4"), Some("4")),
        ("it goes on", None, "east", event("owner", "east", "5"), Some("5")),
        ("an Event of somebody else stays", None, "east", event("owner", "elsewhere", "6"), Some("5")),
    ] {
        if let Some(metadata) = namespace {
            world.write(&shop, &json!({"metadata": metadata})).await;
        }
        let projection = Projection { events: vec![(at.clone(), web.clone(), event)], ..Projection::default() };
        world.0.project(&uid(by), projection).await.unwrap();
        assert_eq!(message().await.as_deref(), expected, "{case}");
    }
    assert!(object::uid(&world.get(&at).await.unwrap()).is_some());
}

#[tokio::test]
async fn a_generation_that_has_not_been_let_in_is_held() {
    let world = World::new();
    let web = key("deployments.apps", "web");
    let object = |generation: i64| {
        let web = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "shop", "uid": "web", "generation": generation}, "spec": {}});
        with_record(web, vec![copy("east", CopyPhase::Active, None, 1)])
    };
    let placement = |uid: &str, status: Value| {
        json!({"metadata": {"name": "deployments.apps-web"},
        "spec": {"object": {"uid": uid}}, "status": status})
    };
    world.write(&web, &object(2)).await;
    let held = || async { world.0.get(&uid("east"), &web).await.unwrap().placed().unwrap().is_held };
    assert!(!held().await, "no request is there");
    let at = key("placements.portolan.dev", "deployments.apps-web");
    for (case, uid, status, expected) in [
        ("no request", "web", json!({}), false),
        ("an earlier one has been let in", "web", json!({"admittedGeneration": 1}), true),
        ("that was another object", "old", json!({"admittedGeneration": 1}), false),
        ("this one has been let in", "web", json!({"admittedGeneration": 2}), false),
    ] {
        world.write(&at, &placement(uid, status)).await;
        assert_eq!(held().await, expected, "{case}");
    }
}

#[tokio::test]
async fn a_reported_refusal_stays_despite_reports_of_copies() {
    let world = World::new();
    let web = key("deployments.apps", "web");
    let mut object = workload("Deployment", vec![copy("east", CopyPhase::Active, None, 1)]);
    object["metadata"]["generation"] = json!(2);
    object["spec"]["replicas"] = json!(3);
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason});
    let failure = condition("ReplicaFailure", "True", "FailedCreate");
    object["status"] = json!({"observedGeneration": 2, "conditions": [
        failure, condition("Progressing", "False", "ProgressDeadlineExceeded")]});
    world.write(&web, &object).await;
    let at = key("placements.portolan.dev", "deployments.apps-web");
    let placement = |reason: &str| {
        json!({"metadata": {"name": "deployments.apps-web"}, "spec": {"object": {"uid": "owner"}},
        "status": {"conditions": [{"type": "Placed", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": ""}]}})
    };
    let report = async |ready: i64| {
        let running = json!({"replicas": 2, "updatedReplicas": 2, "readyReplicas": ready, "availableReplicas": ready,
            "conditions": [condition("Progressing", "True", "NewReplicaSetAvailable"), condition("Available", "True", "x")]});
        world.report(&web, "east", 1, running).await;
        let status = world.get(&web).await.unwrap()["status"].clone();
        let conditions = status["conditions"].as_array().unwrap();
        let reasons: Vec<String> = conditions.iter().map(|c| c["reason"].as_str().unwrap().to_owned()).collect();
        let counts = ["observedGeneration", "updatedReplicas", "readyReplicas", "unavailableReplicas"]
            .map(|field| status[field].as_i64().unwrap_or(0));
        (reasons.join(","), counts)
    };
    world.write(&at, &placement("AdmissionRefused")).await;
    assert_eq!(report(2).await, ("ProgressDeadlineExceeded,x,FailedCreate".into(), [2, 0, 2, 1]));
    assert_eq!(report(1).await, ("ProgressDeadlineExceeded,x,FailedCreate".into(), [2, 0, 1, 2]));
    world.write(&at, &placement("Placed")).await;
    assert_eq!(report(2).await, ("NewReplicaSetAvailable,x".into(), [2, 0, 2, 0]), "it has not come down yet");
}

#[tokio::test]
async fn trivial_expressions_are_distinguished() {
    let world = World::new();
    let spec = json!({"replicas": 1, "minReadySeconds": 5, "progressDeadlineSeconds": 600, "paused": true,
        "template": {"spec": {"containers": [{"name": "a", "image": "i:1", "terminationMessagePath": "/dev/termination-log"}],
            "dnsPolicy": "Default", "hostAliases": []}}});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec});
    let kind = GroupVersionKind::new("apps", "v1", "Deployment");
    let (key, revision) = (key("deployments.apps", "web"), portolan_types::ResourceVersion::FIRST);
    let object = UpstreamObject { key, revision, kind, object, is_held: false, scale: None };
    for (pointer, expected) in [
        ("/spec/replicas", true),
        ("/spec/progressDeadlineSeconds", true),
        ("/spec/minReadySeconds", false),
        ("/spec/paused", false),
        ("/spec/template/spec/containers/0/terminationMessagePath", true),
        ("/spec/template/spec/containers/0/image", false),
        ("/spec/template/spec/dnsPolicy", false),
        ("/spec/template/spec/hostAliases", true),
    ] {
        assert_eq!(world.0.is_default(&object, pointer), expected, "{pointer}");
    }
}

#[tokio::test]
async fn a_conflicting_object_is_named_only_in_the_registering_workspace() {
    let world = World::new();
    let of = |resource: GroupResource, name: &str| {
        ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap())
    };
    let registered = of(GroupResource::new("portolan.dev", "physicalclusters"), "east");
    let object = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": "east", "uid": "east"}, "spec": {}});
    world.write(&registered, &object).await;
    world.0.register(uid("east"), registered.clone());
    let event = of(GroupResource::new("", "events"), "east.syncer-namespaceintheway");
    let event = ObjectKey { scope: "default".parse().ok().into(), ..event };
    for (case, conflicts) in [
        ("one is in the way", vec!["plans of a tenant"]),
        ("another one is", vec!["drafts of a tenant"]),
        ("both are", vec!["drafts of a tenant", "plans of a tenant"]),
        ("four are", vec!["a of a tenant", "b of a tenant", "c of a tenant", "d of a tenant"]),
    ] {
        let namespace_conflicts: Vec<String> = conflicts.iter().map(|text| (*text).to_owned()).collect();
        let report = ClusterReport {
            ready: Ok(()),
            version: None,
            capacity: None,
            allocatable: None,
            deletions_held: 0,
            forged: 0,
            namespace_conflicts,
            left_behind: 0,
            custom_kinds: None,
            definition_conflicts: Vec::new(),
            pods: None,
        };
        world.0.report_cluster(&uid("east"), report.clone()).await.unwrap();
        let (told, status) =
            (world.get(&event).await.unwrap(), world.get(&registered).await.unwrap()["status"].clone());
        let message = told["message"].as_str().unwrap();
        assert!(conflicts.iter().take(3).all(|name| message.contains(name)), "{case}: {message}");
        assert_eq!(message.ends_with("; and 1 more"), conflicts.len() == 4, "{case}: {message}");
        assert!(!status.to_string().contains("of a tenant"), "{case}: {status}");
        assert!(status.to_string().contains(&format!("used: {}", conflicts.len())), "{case}: {status}");
        world.0.report_cluster(&uid("east"), report).await.unwrap();
        assert_eq!(world.get(&event).await.unwrap(), told, "{case}: it is told once");
    }
}

#[tokio::test]
async fn a_damaged_event_stops_no_report() {
    const MARK: &str = "no reader decodes this";
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = StoreConfig::new(Engine::Redb, Some(dir.path().to_owned()));
        World::on(portolan_store::open(config, Seams::system()).unwrap())
    };
    let (world, web) = (open(), key("deployments.apps", "web"));
    world.write(&web, &workload("Deployment", vec![copy("east", CopyPhase::Active, None, 1)])).await;
    world.write(&key("events", "web.sync-east"), &json!({"message": MARK})).await;
    world.0.plane.store().close().await;
    drop(world);
    assert!(portolan_store::testing::damage(dir.path(), MARK).unwrap() > 0);
    let world = open();
    let state = CopyState::Failed { generation: 1, reason: "Invalid".into(), message: "no".into() };
    world.report_state(&web, "east", 1, state).await;
    assert!(world.get(&web).await.unwrap()["status"].to_string().contains("no"), "it is told on the object");
    assert_eq!(world.0.plane.store().known_damage().len(), 1);
}

#[tokio::test]
async fn when_the_last_copy_has_gone_nothing_is_ready() {
    let world = World::new();
    let full = json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "numberReady": 2,
        "conditions": [{"type": "Available", "status": "True"}]});
    for (resource, kind, ready) in [
        ("deployments.apps", "Deployment", "readyReplicas"),
        ("statefulsets.apps", "StatefulSet", "readyReplicas"),
        ("replicasets.apps", "ReplicaSet", "readyReplicas"),
        ("daemonsets.apps", "DaemonSet", "numberReady"),
    ] {
        let at = key(resource, "web");
        world.write(&at, &workload(kind, vec![copy("east", CopyPhase::Active, None, 1)])).await;
        world.report(&at, "east", 1, full.clone()).await;
        assert_eq!(world.get(&at).await.unwrap()["status"][ready], 2, "{kind}");
        let mut leaving = world.get(&at).await.unwrap();
        let clusters = vec![copy("east", CopyPhase::Leaving, None, 1)];
        PlacementRecord { clusters, ..PlacementRecord::default() }.write_to(&mut leaving);
        world.write(&at, &leaving).await;
        world.0.confirm_gone(&at, &uid("owner"), &uid("east"), 1).await.unwrap();
        let status = world.get(&at).await.unwrap()["status"].clone();
        assert_eq!(status[ready].as_i64().unwrap_or(0), 0, "{kind}");
        let available = status.pointer("/conditions/0/status").and_then(Value::as_str);
        assert_eq!(available, (kind == "Deployment").then_some("False"), "{kind}");
        assert!(world.get(&kept_key("owner")).await.is_none(), "{kind}: nothing is kept of it");
    }
}

#[tokio::test]
async fn when_a_physical_cluster_is_gone_for_good_its_copies_count_no_more() {
    let world = World::new();
    let at = key("deployments.apps", "web");
    let copies = ["east", "west"].map(|name| copy(name, CopyPhase::Active, Some(1), 1)).to_vec();
    world.write(&at, &workload("Deployment", copies)).await;
    for from in ["east", "west"] {
        world.report(&at, from, 1, json!({"replicas": 1, "readyReplicas": 1, "availableReplicas": 1})).await;
    }
    assert_eq!(world.get(&at).await.unwrap()["status"]["readyReplicas"], 2);
    for (gone, left, ready) in [("east", vec![copy("west", CopyPhase::Active, Some(2), 1)], 1), ("west", Vec::new(), 0)]
    {
        // The scheduler changes the record.
        let mut web = world.get(&at).await.unwrap();
        PlacementRecord { clusters: left, ..PlacementRecord::default() }.write_to(&mut web);
        world.write(&at, &web).await;
        world.0.retire(&uid(gone)).await.unwrap();
        let status = world.get(&at).await.unwrap()["status"].clone();
        assert_eq!(status["readyReplicas"].as_i64().unwrap_or(0), ready, "{gone} is gone");
    }
    assert!(world.get(&kept_key("owner")).await.is_none(), "nothing is kept of it");
}

#[tokio::test]
async fn addresses_that_are_withdrawn_are_published_by_no_report() {
    let world = World::new();
    let (at, placement) = (key("services", "web"), key("placements.portolan.dev", "services-web"));
    let active = |name| copy(name, CopyPhase::Active, None, 1);
    let service = |withdrawn: &[&str]| {
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "owner", "generation": 1});
        let spec = json!({"type": "LoadBalancer"});
        let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        let withdrawn = withdrawn.iter().map(|name| uid(name)).collect();
        let clusters = vec![active("east"), active("west")];
        PlacementRecord { clusters, withdrawn, ..PlacementRecord::default() }.write_to(&mut object);
        object
    };
    let copies = json!([{"name": "east", "uid": "east"}, {"name": "west", "uid": "west"}]);
    let metadata = json!({"name": "services-web", "namespace": "shop", "uid": "p"});
    world.write(&placement, &json!({"metadata": metadata, "status": {"clusters": copies}})).await;
    let address = |ip: &str| json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
    for (case, withdrawn, expected, counts) in [
        ("all are published", vec![], vec!["10.0.0.1", "10.0.0.2"], (1, 1)),
        ("one copy is about to leave", vec!["east"], vec!["10.0.0.2"], (0, 1)),
        ("one copy was never available", vec!["west"], vec!["10.0.0.1"], (1, 0)),
    ] {
        world.write(&at, &service(&withdrawn)).await;
        world.report(&at, "east", 1, address("10.0.0.1")).await;
        world.report(&at, "west", 1, address("10.0.0.2")).await;
        let found = world.get(&at).await.unwrap();
        let shown = found["status"]["loadBalancer"]["ingress"].as_array().unwrap().iter();
        let shown: Vec<_> = shown.map(|address| address["ip"].as_str().unwrap()).collect();
        assert_eq!(shown, expected, "{case}");
        let told = world.get(&placement).await.unwrap()["status"]["clusters"].clone();
        let count = |at: usize| told[at]["addresses"].as_i64().unwrap_or(0);
        assert_eq!((count(0), count(1)), counts, "{case}");
    }
}

#[tokio::test]
async fn a_heartbeat_lives_as_long_as_its_registration() {
    let world = World::new();
    let east = uid("east");
    let at = super::heartbeats::key(&east);
    world.0.heartbeat(&east, 1).await.unwrap();
    assert_eq!(world.get(&at).await, None, "it is not registered");
    world.0.register(east.clone(), key("physicalclusters.portolan.dev", "east"));
    for unbroken in [1, 2] {
        world.0.heartbeat(&east, unbroken).await.unwrap();
        assert_eq!(world.get(&at).await.unwrap()["unbroken"], unbroken);
    }
    world.0.unregister(&east);
    world.0.retire(&east).await.unwrap();
    assert_eq!(world.get(&at).await, None);
}
