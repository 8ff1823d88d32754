//! Custom resources: the synced kinds, their definitions, and their status.

use std::{sync::Arc, time::Duration};

use portolan_types::{
    GroupKind, LogicalClusterId, ObjectKey, ScaleFields, annotations, object,
    placement::{CopyIdentity, CopyPhase, CustomKindStatus, PlacedCopy, PlacementRecord},
    upstream::{CopyState, CustomKindRules, SyncedDefinition},
};
use serde_json::{Value, json};

use super::{CannedAnswer, FakeCluster, suite::SyncStage};

async fn stage(cluster: &FakeCluster) -> SyncStage {
    SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap()
}

/// Definition of widgets, as it is upstream or downstream.
fn definition(uid: &str) -> Value {
    json!({"metadata": {"name": "widgets.example.com", "uid": uid}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true}]}})
}

fn allow(stage: &SyncStage, kinds: &[&str], definitions: Vec<Value>) {
    let allowed = kinds.iter().map(|kind| GroupKind { group: "example.com".into(), kind: (*kind).into() }).collect();
    let cluster = LogicalClusterId::ROOT;
    let definitions = definitions.into_iter().map(|object| SyncedDefinition { cluster, object }).collect();
    stage.upstream.allow_kinds(CustomKindRules { allowed, definitions });
    stage.handle.refresh_custom_kinds();
}

fn place(stage: &SyncStage, spec: Value) -> ObjectKey {
    stage.place("widgets", "w", json!({"metadata": {}, "spec": spec}), CopyPhase::Active)
}

fn failure(stage: &SyncStage, key: &ObjectKey) -> String {
    match stage.upstream.last_report(key) {
        Some(CopyState::Failed { reason, .. }) => reason,
        _ => String::new(),
    }
}

fn custom_kind_statuses(stage: &SyncStage) -> Vec<CustomKindStatus> {
    stage.upstream.cluster().and_then(|report| report.custom_kinds).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_lives_as_a_copy_and_its_status_comes_back() {
    let cluster = FakeCluster::default();
    cluster.put("customresourcedefinitions", definition("foreign"));
    let stage = stage(&cluster).await;
    allow(&stage, &["Widget"], Vec::new());
    stage
        .until("the kind is reported", async |s| custom_kind_statuses(s).iter().any(|kind| kind.versions == ["v1"]))
        .await
        .unwrap();
    let key = place(&stage, json!({"color": "red", "pods": {"containers": [{"name": "c"}]}}));
    stage.until("the copy is there", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    let mut copy = cluster.all("widgets").remove(0);
    assert_eq!(copy["spec"], json!({"color": "red", "pods": {"containers": [{"name": "c"}]}}), "nothing is added");
    assert_eq!(copy["metadata"]["namespace"], json!(stage.namespace()));
    assert!(object::label(&copy, annotations::DOWN_CLUSTER).is_some());
    let generation = object::generation(&copy);
    copy["status"] = json!({"phase": "Ready", "observedGeneration": generation,
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": generation}]});
    cluster.put("widgets", copy);
    let shown = json!({"phase": "Ready", "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]});
    stage.until("its status", async |s| s.upstream.object(&key).unwrap()["status"] == shown).await.unwrap();
    place(&stage, json!({"color": "blue"}));
    let is_changed = |copy: &Value| copy["spec"]["color"] == "blue" && copy.pointer("/spec/pods/containers").is_none();
    stage.until("the change", async |_| is_changed(&cluster.all("widgets")[0])).await.unwrap();
    stage.tamper("widgets", "w", &json!({"spec": {"color": "green"}})).await.unwrap();
    stage.until("the repair", async |_| cluster.all("widgets")[0]["spec"]["color"] == "blue").await.unwrap();
    let stage = stage.restarted().await;
    stage.upstream.delete(&key);
    stage.until("its end", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    assert!(cluster.all("widgets").is_empty());
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_share_goes_where_the_scale_counts_it() {
    let cluster = FakeCluster::default();
    cluster.put("customresourcedefinitions", definition("foreign"));
    let stage = stage(&cluster).await;
    allow(&stage, &["Widget"], Vec::new());
    let key = stage.key("widgets", "w");
    let kind = portolan_types::GroupVersionKind::new("example.com", "v1", "Widget");
    stage.upstream.scale_by(&key.resource, ScaleFields::new(".spec.size", ".status.size").unwrap());
    let copy = PlacedCopy {
        name: "member".into(),
        uid: "physical-9".parse().unwrap(),
        phase: CopyPhase::Active,
        replicas: Some(2),
        epoch: 1,
    };
    let mut object = json!({"metadata": {}, "spec": {"size": 5, "replicas": 9}});
    PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
    stage.upstream.write(&key, &kind, object);
    let spec = json!({"size": 2, "replicas": 9});
    let has_share = async |_: &SyncStage| cluster.all("widgets").first().is_some_and(|copy| copy["spec"] == spec);
    stage.until("the share is there", has_share).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unsyncable_kinds_are_refused_with_the_reason() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = place(&stage, json!({"unknown": 1}));
    stage.until("it is not allowed", async |s| failure(s, &key) == "NotSyncable").await.unwrap();
    allow(&stage, &["Widget", "Bolt"], Vec::new());
    stage.until("it is not served", async |s| failure(s, &key) == "KindNotServed").await.unwrap();
    let mut bolts = definition("foreign-bolts");
    bolts["metadata"]["name"] = "bolts.example.com".into();
    cluster.put("customresourcedefinitions", bolts);
    cluster.put("customresourcedefinitions", definition("foreign"));
    stage.until("a field is not known", async |s| failure(s, &key) == "Invalid").await.unwrap();
    assert!(cluster.all("widgets").is_empty(), "nothing of it gets lost unseen");
    let bolt = custom_kind_statuses(&stage).into_iter().find(|kind| kind.kind == "Bolt").unwrap();
    assert_eq!((bolt.versions.len(), bolt.message.as_str()), (0, "it is cluster-scoped there"));
    place(&stage, json!({"color": "red"}));
    stage.until("the copy is there", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    // Objects of a kind that is no longer allowed stay unchanged, and can still leave.
    allow(&stage, &[], Vec::new());
    stage.until("it is not allowed again", async |s| failure(s, &key) == "NotSyncable").await.unwrap();
    assert_eq!(cluster.all("widgets").len(), 1);
    stage.upstream.delete(&key);
    stage.until("its end", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    assert!(cluster.all("widgets").is_empty());
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_goes_down_and_stays_as_long_as_it_has_objects() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    allow(&stage, &["Widget"], vec![definition("crd-1")]);
    let key = place(&stage, json!({"color": "red"}));
    stage.until("the copy is there", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    let stage = stage.restarted().await;
    let mut newer = definition("crd-1");
    newer["spec"]["versions"][0]["schema"] = json!({"x": 1});
    allow(&stage, &["Widget"], vec![newer]);
    let is_newer =
        async |_: &SyncStage| cluster.all("customresourcedefinitions")[0]["spec"]["versions"][0]["schema"]["x"] == 1;
    stage.until("the change", is_newer).await.unwrap();
    allow(&stage, &["Widget"], Vec::new());
    let is_kept = async |s: &SyncStage| {
        s.upstream.cluster().is_some_and(|report| {
            report.definition_conflicts.iter().any(|why| why.contains("stays while objects of it are there"))
        })
    };
    stage.until("it is reported that it stays", is_kept).await.unwrap();
    assert_eq!(cluster.all("customresourcedefinitions").len(), 1);
    stage.upstream.delete(&key);
    stage.until("the end of the object", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    stage
        .until("the end of the definition", async |_| cluster.all("customresourcedefinitions").is_empty())
        .await
        .unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_definition_is_neither_changed_nor_removed() {
    let cluster = FakeCluster::default();
    let foreign = cluster.put("customresourcedefinitions", definition("foreign"));
    let stage = stage(&cluster).await;
    allow(&stage, &["Widget"], vec![definition("crd-1")]);
    let is_reported = async |s: &SyncStage| {
        s.upstream.cluster().is_some_and(|report| {
            report.definition_conflicts.iter().any(|why| why.contains("that Portolan did not put there"))
        })
    };
    stage.until("it is reported", is_reported).await.unwrap();
    place(&stage, json!({"color": "red"}));
    stage.until("it serves the kind all the same", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    allow(&stage, &["Widget"], Vec::new());
    let is_over =
        async |s: &SyncStage| s.upstream.cluster().is_some_and(|report| report.definition_conflicts.is_empty());
    stage.until("nothing is in the way", is_over).await.unwrap();
    assert_eq!(cluster.all("customresourcedefinitions"), [foreign]);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_without_its_definition_is_reported_and_can_be_deleted_later() {
    let cluster = FakeCluster::default();
    let foreign = cluster.put("customresourcedefinitions", definition("foreign"));
    let stage = stage(&cluster).await;
    allow(&stage, &["Widget"], Vec::new());
    let key = place(&stage, json!({"color": "red"}));
    stage.until("the copy is there", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    let copy = cluster.all("widgets").remove(0);
    cluster.remove("widgets", &copy);
    cluster.remove("customresourcedefinitions", &foreign);
    stage.until("it is not served", async |s| failure(s, &key) == "KindNotServed").await.unwrap();
    let again = cluster.put("customresourcedefinitions", definition("foreign"));
    stage.until("the copy is back", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    let copy = cluster.all("widgets").remove(0);
    cluster.remove("widgets", &copy);
    cluster.remove("customresourcedefinitions", &again);
    stage.until("it is not served again", async |s| failure(s, &key) == "KindNotServed").await.unwrap();
    stage.upstream.delete(&key);
    stage.until("its end", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    stage.handle.stop().await;
}

/// Definition there that the syncer of this number has put.
fn put_by(cluster: &FakeCluster, syncer_epoch: u64) -> Value {
    let identity = CopyIdentity {
        cluster: LogicalClusterId::ROOT.to_string(),
        uid: "crd-1".parse().unwrap(),
        physical: "physical-9".parse().unwrap(),
        namespace: String::new(),
        name: "widgets.example.com".into(),
        generation: 1,
        epoch: 0,
        syncer_epoch,
    };
    let mut definition = definition("down");
    definition["metadata"]["labels"] = json!({(annotations::DOWN_CLUSTER): identity.cluster});
    let identity = serde_json::to_string(&identity).unwrap();
    object::set_annotation(&mut definition, annotations::DOWN_IDENTITY, Some(identity));
    cluster.put("customresourcedefinitions", definition)
}

#[tokio::test(start_paused = true)]
async fn a_definition_of_a_later_syncer_is_not_removed() {
    let cluster = FakeCluster::default();
    let later = put_by(&cluster, 2);
    let stage = stage(&cluster).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(cluster.all("customresourcedefinitions"), [later]);
    put_by(&cluster, 1);
    let stage = stage.restarted().await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(cluster.all("customresourcedefinitions").is_empty(), "its own goes, and that of an earlier one");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_lacks_a_default_there_is_not_written_all_the_time() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let mut wanted = definition("crd-1");
    allow(&stage, &["Widget"], vec![wanted.clone()]);
    let is_there = async |_: &SyncStage| !cluster.all("customresourcedefinitions").is_empty();
    stage.until("it is there", is_there).await.unwrap();
    let found = cluster.all("customresourcedefinitions").remove(0);
    let answer = found.clone();
    cluster.script(move |method, path| {
        let is_it = path.contains("customresourcedefinitions/") && matches!(method.as_str(), "GET" | "PATCH");
        is_it.then(|| CannedAnswer::Answer(200, answer.clone()))
    });
    wanted["spec"]["preserveUnknownFields"] = false.into();
    allow(&stage, &["Widget"], vec![wanted]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let writes = cluster.requests("PATCH /apis/apiextensions.k8s.io").len();
    assert!((1..=15).contains(&writes), "{writes} writes in two minutes");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_server_hangs_does_not_silence_the_physical_cluster() {
    let cluster = FakeCluster::default();
    cluster.put("customresourcedefinitions", definition("foreign"));
    let stage = stage(&cluster).await;
    stage.until("it is heard", async |s| !s.upstream.heartbeats().is_empty()).await.unwrap();
    cluster.script(|_, path| path.starts_with("/apis/example.com/v1?").then_some(CannedAnswer::Hang));
    allow(&stage, &["Widget"], Vec::new());
    let hangs = async |_: &SyncStage| !cluster.requests("GET /apis/example.com/v1").is_empty();
    stage.until("it hangs", hangs).await.unwrap();
    let before = stage.upstream.heartbeats().len();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let heard = stage.upstream.heartbeats().len() - before;
    assert!(heard > 20, "{heard} heartbeats");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_discovery_answer_hides_no_other_group() {
    let cluster = FakeCluster::default();
    cluster.put("customresourcedefinitions", definition("foreign"));
    let stage = stage(&cluster).await;
    allow(&stage, &["Widget"], Vec::new());
    let key = place(&stage, json!({"color": "red"}));
    stage.until("the copy is there", async |_| cluster.all("widgets").len() == 1).await.unwrap();
    let copy = cluster.all("widgets").remove(0);
    let nonsense = |code: u16, body: Value| {
        cluster.script(move |_, path| {
            path.starts_with("/apis/example.com/v1?").then(|| CannedAnswer::Answer(code, body.clone()))
        });
    };
    for (code, body) in [(404, json!({})), (200, json!({})), (503, json!({}))] {
        nonsense(code, body);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(failure(&stage, &key), "", "{code} does not say that the kind is gone");
    }
    nonsense(200, json!(["not", "a", "list"]));
    let stage = stage.restarted().await;
    stage.place("configmaps", "c", json!({"metadata": {}, "data": {"a": "b"}}), CopyPhase::Active);
    stage.until("others are synced", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    stage.upstream.delete(&key);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(cluster.all("widgets"), [copy]);
    assert_eq!(stage.upstream.recorded_debts().len(), 1, "nothing proves that the copy is gone");
    cluster.heal();
    stage.until("its end", async |_| cluster.all("widgets").is_empty()).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn names_that_are_too_long_are_not_reported() {
    let cluster = FakeCluster::default();
    cluster.put("customresourcedefinitions", definition("foreign"));
    let long = "x".repeat(1 << 16);
    let resources = json!([{"name": long, "kind": "Long", "namespaced": true}, {"name": "longs", "kind": long, "namespaced": true},
        {"name": "widgets", "kind": "Widget", "namespaced": true}]);
    cluster.script(move |_, path| {
        let is_it = path.starts_with("/apis/example.com/v1?");
        is_it.then(|| CannedAnswer::Answer(200, json!({"kind": "APIResourceList", "resources": resources})))
    });
    let stage = stage(&cluster).await;
    allow(&stage, &["*"], Vec::new());
    stage
        .until("the kind is reported", async |s| custom_kind_statuses(s).iter().any(|kind| kind.kind == "Widget"))
        .await
        .unwrap();
    assert!(custom_kind_statuses(&stage).iter().all(|kind| kind.kind.len() + kind.resource.len() < 100));
    stage.handle.stop().await;
}
