//! The loop on the memory store, with a clock that stands still: the tests play client, syncer and physical clusters.

mod bounds;
mod custom;
mod drains;
mod fact_order;
mod failover;
mod followers;
mod jobs;
mod moves;
mod ordinals;
mod plan;
mod policy_language;
mod policy_status;
mod rollouts;
mod shares;
mod volumes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portolan_store::{
    DynStore, Expect, ModifyOutcome, ObjectClient, RangeScope, Step, StoreError, Transaction, WatchScope, memory,
};
use portolan_types::{
    GroupResource, GroupVersionKind, LogicalClusterId, LogicalClusterPath, ObjectKey, ResourceVersion, Scope, Seams,
    object,
    placement::{CopyPhase, PlacementRecord, placement_name},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{BuiltinKinds, ClusterTree, FailoverTiming, KindCatalog, Scheduler, SchedulerParts, UseRights};

const SHOP: LogicalClusterId = LogicalClusterId::new(7);
const OTHER: LogicalClusterId = LogicalClusterId::new(8);

/// Every client that reaches a physical cluster may use it.
struct UseByAll;

impl UseRights for UseByAll {
    fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
        true
    }
}

/// `root`, and below it `root:shop` and `root:other`.
struct Tree;

impl ClusterTree for Tree {
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)> {
        let root = (LogicalClusterId::ROOT, LogicalClusterPath::root());
        match cluster {
            LogicalClusterId::ROOT => vec![root],
            SHOP => vec![(SHOP, "root:shop".parse().unwrap()), root],
            OTHER => vec![(OTHER, "root:other".parse().unwrap()), root],
            _ => Vec::new(),
        }
    }

    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
        if cluster == LogicalClusterId::ROOT { vec![LogicalClusterId::ROOT, SHOP, OTHER] } else { vec![cluster] }
    }
}

struct Kinds;

impl KindCatalog for Kinds {
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        let custom = || (group == "db.io" && kind == "Cluster").then(|| GroupResource::new("db.io", "clusters"));
        BuiltinKinds.resource_of(group, kind).or_else(custom)
    }

    fn has_resource(&self, resource: &GroupResource) -> bool {
        BuiltinKinds.has_resource(resource)
    }
}

/// A right that the test grants and revokes.
#[derive(Clone)]
struct Right(Arc<std::sync::atomic::AtomicBool>);

impl crate::UseRights for Right {
    fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

struct World {
    store: DynStore,
    objects: ObjectClient,
    scheduler: Scheduler,
    seams: Seams,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn resource(text: &str) -> GroupResource {
    let (resource, group) = text.split_once('.').unwrap_or((text, ""));
    GroupResource::new(group, resource)
}

/// `deployments.apps/shop/web`, or `namespaces/shop` for cluster scope.
fn key(cluster: LogicalClusterId, text: &str) -> ObjectKey {
    let parts: Vec<&str> = text.split('/').collect();
    let scope = if parts.len() == 3 { Scope::Namespace(parts[1].parse().unwrap()) } else { Scope::Cluster };
    ObjectKey { cluster, resource: resource(parts[0]), scope, name: parts.last().unwrap().parse().unwrap() }
}

fn shop(text: &str) -> ObjectKey {
    key(SHOP, text)
}

impl World {
    /// A namespace `shop` in `root:shop`, physical clusters in root, and a scheduler that runs.
    async fn new(physical: &[&str]) -> Self {
        Self::with_rights(physical, Arc::new(UseByAll)).await
    }

    async fn with_rights(physical: &[&str], rights: Arc<dyn crate::UseRights>) -> Self {
        let world = Self::on(memory(), rights);
        world.create(shop("namespaces/shop"), "v1", "Namespace", json!({})).await;
        for name in physical {
            world.physical(name, json!({}), true).await;
        }
        world.run();
        world
    }

    /// Creates a world on an existing store, with a scheduler that does not run yet.
    fn on(store: DynStore, rights: Arc<dyn crate::UseRights>) -> Self {
        let seams = Seams::seeded(1, jiff::Timestamp::from_second(1_800_000_000).unwrap());
        Self::within(store, rights, seams, FailoverTiming::default())
    }

    /// With these seams and times of failover.
    fn within(store: DynStore, rights: Arc<dyn crate::UseRights>, seams: Seams, failover: FailoverTiming) -> Self {
        let parts = SchedulerParts {
            store: store.clone(),
            seams: seams.clone(),
            tree: Arc::new(Tree),
            rights,
            kinds: Arc::new(Kinds),
            gate: None,
            failover,
        };
        Self {
            objects: ObjectClient::new(store.clone()),
            store,
            scheduler: Scheduler::new(parts),
            seams,
            stop: CancellationToken::new(),
        }
    }

    fn run(&self) {
        let (scheduler, stop) = (self.scheduler.clone(), self.stop.clone());
        tokio::spawn(async move { scheduler.run(stop).await });
    }

    async fn create(&self, key: ObjectKey, api_version: &str, kind: &str, mut object: Value) -> ResourceVersion {
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let metadata = object::metadata_mut(&mut object);
        metadata.insert("name".into(), (&*key.name).into());
        metadata.insert("uid".into(), format!("{}-{}", key.resource.resource, key.name).into());
        metadata.insert("generation".into(), 1.into());
        metadata.insert("creationTimestamp".into(), "2026-01-01T00:00:00Z".into());
        if let Some(namespace) = key.namespace() {
            metadata.insert("namespace".into(), (&**namespace).into());
        }
        self.objects.create(&key, &object).await.unwrap()
    }

    async fn physical(&self, name: &str, spec: Value, ready: bool) {
        let status = json!({
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "message": "no answer"}],
            "customKinds": [{"group": "db.io", "kind": "Cluster", "resource": "clusters", "versions": ["v1"]}],
        });
        let key = key(LogicalClusterId::ROOT, &format!("physicalclusters.portolan.dev/{name}"));
        self.create(key, "portolan.dev/v1alpha1", "PhysicalCluster", json!({"spec": spec, "status": status})).await;
    }

    async fn deployment(&self, name: &str, pod: Value) {
        let template = json!({"spec": {"replicas": 2, "template": {"spec": pod}}});
        self.create(shop(&format!("deployments.apps/shop/{name}")), "apps/v1", "Deployment", template).await;
    }

    async fn policy(&self, cluster: LogicalClusterId, name: &str, spec: Value) {
        let key = key(cluster, &format!("clusterplacementpolicies.portolan.dev/{name}"));
        self.create(key, "portolan.dev/v1alpha1", "ClusterPlacementPolicy", json!({"spec": spec})).await;
    }

    async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.objects.get_value(key).await.unwrap().map(|(object, _)| object)
    }

    async fn change(&self, key: &ObjectKey, mut change: impl FnMut(&mut Value) + Send) {
        let write = |object: &mut Value| {
            change(object);
            Ok::<_, StoreError>(Step::Write)
        };
        assert!(matches!(self.objects.modify(key, write).await.unwrap(), Some(ModifyOutcome::Written(..))));
    }

    async fn pin(&self, key: &ObjectKey, to: &str) {
        self.change(key, |object| object::set_annotation(object, "portolan.dev/pin", Some(to.into()))).await;
    }

    /// Waits until `holds` of the object. The clock jumps ahead when nothing makes progress, so that a futile wait
    /// fails at once.
    async fn until(&self, what: &str, key: &ObjectKey, holds: impl Fn(Option<&Value>) -> bool) {
        let scope = WatchScope::Resource(key.resource.clone(), None);
        let mut stream = self.store.watch(scope, None).await.unwrap();
        loop {
            let now = self.get(key).await;
            if holds(now.as_ref()) {
                return;
            }
            let next = tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
            assert!(next.is_ok(), "{what}: it never comes; {key} is {now:#?}");
        }
    }

    /// Waits until the record reads so: `east west-` is active on east and leaving west.
    async fn placed(&self, key: &ObjectKey, expected: &str) {
        self.until(expected, key, |object| words(object) == expected).await;
    }

    async fn placement(&self, key: &ObjectKey) -> Option<Value> {
        self.get(&placement_of(key)).await
    }

    /// Reports ready pods of a copy, as the syncer does.
    async fn ready(&self, key: &ObjectKey, physical: &str, pods: i64) {
        self.change(&placement_of(key), |placement| {
            let copies = placement["status"]["clusters"].as_array_mut().unwrap();
            copies.iter_mut().filter(|c| c["name"] == physical).for_each(|c| c["ready"] = pods.into());
        })
        .await;
    }

    /// The syncer has proof that the leaving copies are gone.
    async fn confirm_gone(&self, key: &ObjectKey) {
        self.change(key, |object| {
            let mut record = PlacementRecord::of(object).unwrap();
            record.clusters.retain(|c| c.phase != CopyPhase::Leaving);
            record.write_to(object);
        })
        .await;
    }

    /// Until nothing is left to be done, the writers of status included.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.scheduler.settled().await;
    }
}

fn placement_of(key: &ObjectKey) -> ObjectKey {
    let name = placement_name(&key.resource, &key.name).parse().unwrap();
    ObjectKey { resource: resource("placements.portolan.dev"), name, ..key.clone() }
}

fn words(object: Option<&Value>) -> String {
    let record = object.and_then(PlacementRecord::of).unwrap_or_default();
    let word = |c: &portolan_types::placement::PlacedCopy| match (c.phase, c.replicas) {
        (CopyPhase::Leaving, _) => format!("{}-", c.name),
        (_, Some(n)) => format!("{}*{n}", c.name),
        _ => c.name.clone(),
    };
    record.clusters.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn condition(placement: &Value) -> (String, String) {
    let placed = &placement["status"]["conditions"][0];
    (placed["reason"].as_str().unwrap().into(), placed["message"].as_str().unwrap().into())
}

#[tokio::test(start_paused = true)]
async fn a_workload_and_what_it_names_go_to_one_physical_cluster_and_say_so() {
    let world = World::new(&["east", "west"]).await;
    for name in ["settings", "unused", "kube-root-ca.crt"] {
        world.create(shop(&format!("configmaps/shop/{name}")), "v1", "ConfigMap", json!({})).await;
    }
    world.create(shop("secrets/shop/pull"), "v1", "Secret", json!({"type": "Opaque"})).await;
    world
        .create(
            shop("serviceaccounts/shop/robot"),
            "v1",
            "ServiceAccount",
            json!({"imagePullSecrets": [{"name": "pull"}]}),
        )
        .await;
    world.create(shop("services/shop/web"), "v1", "Service", json!({"spec": {}})).await;
    world.deployment("web", json!({"serviceAccountName": "robot", "containers": [{"envFrom": [{"configMapRef": {"name": "settings"}}]}]})).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "east").await;
    for follower in ["configmaps/shop/settings", "serviceaccounts/shop/robot", "secrets/shop/pull", "services/shop/web"]
    {
        world.placed(&shop(follower), "east").await;
    }
    world.settle().await;
    for stays in ["configmaps/shop/unused", "configmaps/shop/kube-root-ca.crt"] {
        assert_eq!(words(world.get(&shop(stays)).await.as_ref()), "", "{stays}");
    }
    let (object, placement) = (world.get(&web).await.unwrap(), world.placement(&web).await.unwrap());
    assert_eq!(object::annotation(&object, "portolan.dev/clusters"), Some("east"));
    assert_eq!(condition(&placement), ("Placed".into(), "placed on east by its namespace's default".into()));
    let revision = |object: &Value| object::meta_text(object, "resourceVersion").parse::<u64>().unwrap();
    assert_eq!(revision(&placement), revision(&object) + 1, "both were written in one transaction");
    assert_eq!(placement["status"]["transitions"][0]["to"], "east");
}

#[tokio::test(start_paused = true)]
async fn an_unplaced_follower_is_placed_once_a_cluster_exists() {
    let world = World::new(&[]).await;
    let settings = shop("configmaps/shop/settings");
    world.create(settings.clone(), "v1", "ConfigMap", json!({})).await;
    let container = json!({"envFrom": [{"configMapRef": {"name": "settings"}}]});
    world.deployment("web", json!({"containers": [container]})).await;
    world.settle().await;
    assert_eq!(words(world.get(&settings).await.as_ref()), "");
    world.physical("east", json!({}), true).await;
    world.placed(&settings, "east").await;
}

#[tokio::test(start_paused = true)]
async fn all_of_a_namespace_goes_where_the_first_went() {
    let world = World::new(&["east", "west"]).await;
    world.deployment("first", json!({"containers": [{"name": "c"}]})).await;
    world.placed(&shop("deployments.apps/shop/first"), "east").await;
    for name in ["a", "b", "c"] {
        world.deployment(name, json!({"containers": []})).await;
        world.placed(&shop(&format!("deployments.apps/shop/{name}")), "east").await;
    }
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    world.change(&east, |east| east["spec"]["unschedulable"] = true.into()).await;
    world.settle().await;
    world.deployment("later", json!({"containers": []})).await;
    world.placed(&shop("deployments.apps/shop/later"), "west").await;
    world.settle().await;
    assert_eq!(
        words(world.get(&shop("deployments.apps/shop/a")).await.as_ref()),
        "east",
        "a cordon keeps what is there"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pin_moves_make_before_break_and_followers_leave_last() {
    let world = World::new(&["east", "west"]).await;
    let (web, service) = (shop("deployments.apps/shop/web"), shop("services/shop/web"));
    world.create(service.clone(), "v1", "Service", json!({})).await;
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&service, "east").await;
    world.pin(&web, "west").await;
    world.placed(&web, "east west").await;
    world.placed(&service, "east west").await;
    world.settle().await;
    let moving = condition(&world.placement(&web).await.unwrap());
    assert_eq!(moving, ("Moving".into(), "placed on west by its pin; waiting for west to be ready".into()));
    world.ready(&web, "west", 1).await;
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "east west", "one of two is not enough");
    world.ready(&web, "west", 2).await;
    world.placed(&web, "east- west").await;
    world.settle().await;
    assert_eq!(words(world.get(&service).await.as_ref()), "east west", "pods still run there");
    world.confirm_gone(&web).await;
    world.placed(&service, "east- west").await;
    world.settle().await;
    let placement = world.placement(&web).await.unwrap();
    let transitions: Vec<_> = placement["status"]["transitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| format!("{}>{}", t["from"].as_str().unwrap(), t["to"].as_str().unwrap()))
        .collect();
    assert_eq!(transitions, ["east,west>west", "east>east,west", ">east"]);
    assert_eq!(
        placement["status"]["clusters"],
        json!([{"name": "west", "uid": "physicalclusters-west", "phase": "Active", "ready": 2}])
    );
}

#[tokio::test(start_paused = true)]
async fn run_once_objects_start_after_the_proof() {
    let world = World::new(&["east", "west"]).await;
    let db = shop("statefulsets.apps/shop/db");
    world
        .create(
            db.clone(),
            "apps/v1",
            "StatefulSet",
            json!({"spec": {"replicas": 1, "template": {"spec": {"containers": []}}}}),
        )
        .await;
    world.placed(&db, "east").await;
    world.pin(&db, "west").await;
    world.placed(&db, "east-").await;
    world.settle().await;
    assert_eq!(words(world.get(&db).await.as_ref()), "east-");
    let epoch = |object: &Value| PlacementRecord::of(object).unwrap().clusters[0].epoch;
    let before = epoch(&world.get(&db).await.unwrap());
    world.confirm_gone(&db).await;
    world.placed(&db, "west").await;
    assert!(epoch(&world.get(&db).await.unwrap()) > before);
}

#[tokio::test(start_paused = true)]
async fn an_unplaced_object_has_a_reason_until_it_is_placed() {
    let world = World::new(&[]).await;
    world.physical("east", json!({"unschedulable": true}), true).await;
    world.physical("west", json!({}), false).await;
    world.settle().await;
    let web = shop("deployments.apps/shop/web");
    let deployment = GroupVersionKind::new("apps", "v1", "Deployment");
    let object = json!({"metadata": {"name": "web", "namespace": "shop", "annotations": {"portolan.dev/pin": "wast"}}, "spec": {"template": {"spec": {"containers": []}}}});
    assert_eq!(
        world.scheduler.preview(SHOP, &deployment, &object),
        [
            "portolan.dev/pin: physical cluster \"wast\" is not in reach; did you mean \"east\"?",
            "deployment/web has no place to run: 0/2 physical clusters fit: 2 not the pinned one (pinned to wast)",
        ]
    );
    world.deployment("web", json!({"containers": []})).await;
    let said = |placement: Option<&Value>| placement.is_some_and(|p| p["status"]["conditions"][0]["status"] == "False");
    world.until("a Placement that says no", &placement_of(&web), said).await;
    let why = condition(&world.placement(&web).await.unwrap());
    assert_eq!(why, ("NoClusterFits".into(), "0/2 physical clusters fit: 1 not ready, 1 cordoned".into()));
    let event = world.get(&shop("events/shop/web.placement-noclusterfits")).await.unwrap();
    assert_eq!(event["type"], "Warning");
    let explained = world.scheduler.explain_object(&web).await.unwrap().unwrap();
    assert_eq!(explained["clusters"][1]["reason"], "NotReady");
    let west = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/west");
    world.change(&west, |west| west["status"]["conditions"][0]["status"] = "True".into()).await;
    world.placed(&web, "west").await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_names_a_missing_cluster_has_a_condition() {
    let world = World::new(&["east", "west"]).await;
    world.settle().await;
    let kind = GroupVersionKind::new("portolan.dev", "v1alpha1", "PlacementPolicy");
    let about = |group: &str, kind: &str| json!([{"apiGroup": group, "kinds": [kind]}]);
    let unserved = |kind: &str, group: &str| {
        format!("spec.resources: no namespaced kind {kind:?} is served in the group {group:?}")
    };
    for (case, spec, expected) in [
        ("all is there", json!({"resources": about("apps", "Deployment"), "clusters": {"names": ["east"]}}), vec![]),
        ("any kind", json!({"resources": [{"apiGroup": "apps"}, {"apiGroup": "*", "kinds": ["Boat"]}]}), vec![]),
        ("nothing", json!({}), vec!["spec.resources: there is none: the policy is about nothing".to_owned()]),
        (
            "another group",
            json!({"resources": about("", "Deployment")}),
            vec![format!("{}; did you mean Deployment of the group \"apps\"?", unserved("Deployment", ""))],
        ),
        ("a custom resource, whose definition may come later", json!({"resources": about("x.io", "Ferry")}), vec![]),
        (
            "a definition for a namespace",
            json!({"resources": [{"apiGroup": "x.io", "kinds": ["Ferry"], "definition": "Sync"}]}),
            vec![
                "spec.resources: definition: Sync has no effect in a PlacementPolicy, only in a ClusterPlacementPolicy"
                    .to_owned(),
            ],
        ),
        (
            "clusters",
            json!({"resources": about("apps", "Deployment"),
                "clusters": {"names": ["esat"], "exclude": ["mars"], "fallback": [{"names": ["wes"]}]}}),
            vec![
                "spec.clusters.names: physical cluster \"esat\" is not in reach; did you mean \"east\"?".to_owned(),
                "spec.clusters.exclude: physical cluster \"mars\" is not in reach".to_owned(),
                "spec.clusters.fallback.names: physical cluster \"wes\" is not in reach; did you mean \"west\"?"
                    .to_owned(),
            ],
        ),
        (
            "weights",
            json!({"resources": about("apps", "Deployment"), "replicas": {"mode": "Divide", "by": "Weight"}}),
            vec!["spec.replicas.weights: there is none: all physical clusters weigh the same".to_owned()],
        ),
    ] {
        assert_eq!(world.scheduler.preview(SHOP, &kind, &json!({"spec": spec})), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_of_zero_runs_nowhere_and_has_a_condition() {
    let world = World::new(&["east", "west"]).await;
    let [running, later] = ["running", "later"].map(|name| shop(&format!("deployments.apps/shop/{name}")));
    world.deployment("running", json!({"containers": []})).await;
    world.placed(&running, "east").await;
    let spec = json!({"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}], "count": 0});
    world.policy(SHOP, "none", spec).await;
    world.placed(&running, "east-").await;
    world.confirm_gone(&running).await;
    world.deployment("later", json!({"containers": []})).await;
    for workload in [running, later] {
        let is_stopped =
            |placement: Option<&Value>| placement.is_some_and(|placement| condition(placement).0 == "Stopped");
        world.until("it is reported", &placement_of(&workload), is_stopped).await;
        world.settle().await;
        let placement = world.placement(&workload).await.unwrap();
        assert_eq!(condition(&placement).1, "kept from running by policy none");
        assert_eq!(placement["status"]["conditions"][0]["status"], "False");
        assert_eq!(words(world.get(&workload).await.as_ref()), "", "it has no copy, and gets none");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_of_ancestors_hold_below_and_count_whom_they_decide() {
    let world = World::new(&["east", "north", "west"]).await;
    let web = shop("deployments.apps/shop/web");
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    let about = json!([{"apiGroup": "apps", "kinds": ["Deployment"]}]);
    world.policy(SHOP, "two", json!({"resources": about, "count": 2, "replicas": {"mode": "Divide"}})).await;
    world.placed(&web, "east*1 north*1").await;
    world.settle().await;
    let policy = world.get(&shop("clusterplacementpolicies.portolan.dev/two")).await.unwrap();
    assert_eq!(
        (&policy["status"]["matched"], &policy["status"]["conditions"][0]["reason"]),
        (&json!(1), &json!("Accepted"))
    );
    let constraint = json!({"resources": about, "clusters": {"names": ["west"]}, "enforcement": "Constraint"});
    world.policy(LogicalClusterId::ROOT, "only-west", constraint).await;
    world.placed(&web, "east*1 north*1 west*2").await;
    world.ready(&web, "west", 2).await;
    world.placed(&web, "east- north- west*2").await;
    let placement = world.placement(&web).await.unwrap();
    assert_eq!(placement["status"]["rejected"], json!({"PolicyConstraint": 2}));
    assert_eq!(placement["status"]["policy"]["name"], "two");
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_physical_cluster_is_a_drain() {
    let world = World::new(&["east", "west"]).await;
    let (web, east) =
        (shop("deployments.apps/shop/web"), key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east"));
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    world.ready(&web, "east", 2).await;
    let record = r#"{"clusters":[{"name":"east","uid":"physicalclusters-east","phase":"Projected","epoch":0}]}"#;
    let shared = json!({"metadata": {"annotations": {"portolan.dev/placement": record}}, "spec": {"replicas": 2}});
    world.create(shop("replicasets.apps/shop/web-1"), "apps/v1", "ReplicaSet", shared).await;
    let held = |object: Option<&Value>| object.is_some_and(|o| object::finalizers(o).any(|f| f == crate::FINALIZER));
    world.until("the finalizer", &east, held).await;
    world
        .change(&east, |east| {
            object::metadata_mut(east).insert("deletionTimestamp".into(), "2026-01-01T00:00:00Z".into());
        })
        .await;
    world.placed(&web, "east west").await;
    let drained = |object: Option<&Value>| {
        let message = object.unwrap()["status"]["conditions"][1]["message"].as_str().unwrap_or_default();
        message.starts_with("1 objects are still here: root:shop: deployments/web in shop (placed on west ")
            && message.ends_with("waiting for west to be ready)")
    };
    world.until("what is left", &east, drained).await;
    world.ready(&web, "west", 2).await;
    world.placed(&web, "east- west").await;
    assert!(world.get(&east).await.is_some(), "unreachable is not proof");
    let drain = key(LogicalClusterId::ROOT, "drains.portolan.dev/east-deletion-physical");
    let found = world.get(&drain).await.unwrap();
    assert_eq!(found["metadata"]["ownerReferences"][0]["name"], "east", "{found}");
    assert_eq!((&found["status"]["phase"], &found["status"]["counts"]["moving"]), (&json!("Running"), &json!(1)));
    assert_eq!(found["status"]["plan"]["moves"], 1, "{found}");
    let accepted = found["status"]["conditions"][0]["message"].as_str().unwrap();
    assert_eq!(accepted, "the PhysicalCluster is being deleted: this drain can be paused, but not aborted or undone");
    world.change(&drain, |drain| drain["spec"]["abort"] = true.into()).await;
    world.settle().await;
    assert_eq!(world.get(&drain).await.unwrap()["status"]["phase"], "Running", "nothing calls it back");
    world.confirm_gone(&web).await;
    world.until("its end", &east, |object| object.is_none()).await;
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "west");
    let proof = world.get(&drain).await.unwrap();
    assert_eq!((&proof["status"]["phase"], proof["metadata"].get("ownerReferences")), (&json!("Completed"), None));
    let report = &proof["status"]["report"];
    assert_eq!(report["summary"], "1 object moved; nothing that Portolan placed is left");
    assert!(report.get("left").is_none() && report["revision"].as_str().unwrap().parse::<u64>().is_ok(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn the_drain_of_a_deletion_comes_again_if_it_is_deleted() {
    let world = failover::Fleet::start(&["east", "west"]).await;
    let (web, east) =
        (shop("deployments.apps/shop/web"), key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east"));
    let drain = key(LogicalClusterId::ROOT, "drains.portolan.dev/east-deletion-physical");
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    world.ready(&web, "east", 2).await;
    let held = |object: Option<&Value>| object.is_some_and(|o| object::finalizers(o).any(|f| f == crate::FINALIZER));
    world.until("the finalizer", &east, held).await;
    let going = |east: &mut Value| {
        east["spec"]["unschedulable"] = true.into();
        object::metadata_mut(east).insert("deletionTimestamp".into(), "2026-01-01T00:00:00Z".into());
    };
    world.change(&east, going).await;
    world.placed(&web, "east west").await;
    world.store.commit(Transaction::one(drain.clone(), Expect::Present, None)).await.unwrap();
    world.until("another one", &drain, |drain| drain.is_some_and(|drain| drain["status"]["phase"] == "Running")).await;
    world.ready(&web, "west", 2).await;
    world.placed(&web, "east- west").await;
    world.confirm_gone(&web).await;
    world.until("its end", &east, |object| object.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_never_ready_object_does_not_hold_a_physical_cluster() {
    let world = World::new(&["east", "west"]).await;
    let (web, east) =
        (shop("deployments.apps/shop/web"), key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east"));
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    let held = |object: Option<&Value>| object.is_some_and(|o| object::finalizers(o).any(|f| f == crate::FINALIZER));
    world.until("the finalizer", &east, held).await;
    let going = |east: &mut Value| {
        object::metadata_mut(east).insert("deletionTimestamp".into(), "2026-01-01T00:00:00Z".into());
    };
    world.change(&east, going).await;
    world.placed(&web, "east- west").await;
    world.confirm_gone(&web).await;
    world.until("its end", &east, |object| object.is_none()).await;
    let placement = world.placement(&web).await.unwrap();
    assert_eq!(placement["status"]["clusters"][0]["ready"], 0, "{placement}");
}

#[tokio::test(start_paused = true)]
async fn records_let_go_of_a_physical_cluster_that_does_not_exist_any_more() {
    let world = World::new(&["east", "west"]).await;
    let web = shop("deployments.apps/shop/web");
    let pod = shop("pods/shop/web-1");
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    let record = r#"{"clusters":[{"name":"east","uid":"physicalclusters-east","phase":"Projected","epoch":1}]}"#;
    let projected = json!({"metadata": {"labels": {"portolan.dev/cluster": "east"}, "annotations": {"portolan.dev/placement": record}}});
    world.create(pod.clone(), "v1", "Pod", projected).await;
    world.settle().await;
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    world.store.commit(Transaction::one(east, Expect::Present, None)).await.unwrap();
    world.placed(&web, "west").await;
    world.until("its end", &pod, |pod| pod.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn custom_resources_go_down_by_explicit_policy_only() {
    let world = World::new(&["east"]).await;
    let db = shop("clusters.db.io/shop/main");
    world.create(db.clone(), "db.io/v1", "Cluster", json!({"spec": {}})).await;
    let owner = json!({"apiVersion": "db.io/v1", "kind": "Cluster", "name": "main", "uid": "clusters-main", "controller": true});
    let pod = shop("pods/shop/main-0");
    world.settle().await;
    assert_eq!(words(world.get(&db).await.as_ref()), "");
    world
        .create(pod.clone(), "v1", "Pod", json!({"metadata": {"ownerReferences": [owner]}, "spec": {"containers": []}}))
        .await;
    world.placed(&pod, "east").await;
    world.policy(SHOP, "dbs", json!({"resources": [{"apiGroup": "db.io", "kinds": ["Cluster"]}]})).await;
    world.placed(&db, "east").await;
    let policy = shop("clusterplacementpolicies.portolan.dev/dbs");
    world.store.commit(Transaction::one(policy, Expect::Present, None)).await.unwrap();
    world.placed(&db, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn the_explanation_goes_with_the_object_and_a_deleting_object_is_left_to_the_syncer() {
    let world = World::new(&["east"]).await;
    let web = shop("deployments.apps/shop/web");
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    world
        .change(&web, |web| {
            object::metadata_mut(web).insert("deletionTimestamp".into(), "2026-01-01T00:00:00Z".into());
        })
        .await;
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "east");
    world.store.commit(Transaction::one(web.clone(), Expect::Present, None)).await.unwrap();
    world.until("its end", &placement_of(&web), |placement| placement.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn bounds_hold_also_when_many_come_at_once() {
    let world = World::new(&[]).await;
    world.physical("east", json!({"bounds": {"cpu": "10"}}), true).await;
    world.physical("west", json!({}), true).await;
    world.settle().await;
    let pod = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
    let names: Vec<String> = (0..20).map(|n| format!("web-{n}")).collect();
    futures::future::join_all(names.iter().map(|name| world.deployment(name, pod.clone()))).await;
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    for name in &names {
        let web = shop(&format!("deployments.apps/shop/{name}"));
        world.until("a place", &web, |web| !words(web).is_empty()).await;
        *on.entry(words(world.get(&web).await.as_ref())).or_default() += 1;
    }
    assert!(on["east"] <= 5, "{on:?}");
    let page = world.objects.list(RangeScope::AllClusters(resource("placements.portolan.dev"))).await;
    assert_eq!(page.map(|(all, _)| all.len()).map_err(|e: StoreError| e.to_string()), Ok(20));
}

#[tokio::test(start_paused = true)]
async fn a_granted_right_places_waiting_objects_and_a_revoked_one_moves_none() {
    let right = Right(Arc::default());
    let world = World::with_rights(&["east"], Arc::new(right.clone())).await;
    world.deployment("web", json!({})).await;
    let web = shop("deployments.apps/shop/web");
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "");
    let explained = world.scheduler.explain_object(&web).await.unwrap().unwrap().to_string();
    assert!(explained.contains("lacks the RBAC verb"), "{explained}");

    right.0.store(true, std::sync::atomic::Ordering::SeqCst);
    world.scheduler.rights_changed(LogicalClusterId::ROOT);
    world.placed(&web, "east").await;

    right.0.store(false, std::sync::atomic::Ordering::SeqCst);
    world.scheduler.rights_changed(LogicalClusterId::ROOT);
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "east", "what runs there stays");
}

#[tokio::test(start_paused = true)]
async fn overrides_of_policies_stand_on_the_record_while_they_hold() {
    let world = World::new(&["east", "west"]).await;
    let (web, service) = (shop("deployments.apps/shop/web"), shop("services/shop/web"));
    world.create(service.clone(), "v1", "Service", json!({})).await;
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&service, "east").await;
    let about = json!([{"apiGroup": "apps", "kinds": ["Deployment"]}, {"apiGroup": "", "kinds": ["Service"]}]);
    let change = |registry: &str| json!({"clusters": {"names": ["east"]}, "imageRegistry": registry});
    let policy = |registry: &str| json!({"resources": about, "enforcement": "Constraint", "overrides": [change(registry)], "yield": ["spec.replicas"]});
    world.policy(SHOP, "own", policy("own.example")).await;
    world.policy(LogicalClusterId::ROOT, "mirror", policy("mirror.example")).await;
    let registries = |object: Option<&Value>| {
        let record = object.and_then(PlacementRecord::of).unwrap_or_default();
        let on_east =
            |o: &portolan_types::placement::PlacedOverride| o.on.len() == 1 && &*o.on[0] == "physicalclusters-east";
        assert!(record.overrides.iter().all(on_east), "{record:?}");
        record.overrides.iter().filter_map(|o| o.change.image_registry.clone()).collect::<Vec<_>>().join(" ")
    };
    for key in [&web, &service] {
        world.until("both, root's last", key, |found| registries(found) == "own.example mirror.example").await;
    }
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "east", "nothing moves for it");
    let mirror = key(LogicalClusterId::ROOT, "clusterplacementpolicies.portolan.dev/mirror");
    world.store.commit(Transaction::one(mirror, Expect::Present, None)).await.unwrap();
    let own = shop("clusterplacementpolicies.portolan.dev/own");
    world.store.commit(Transaction::one(own, Expect::Present, None)).await.unwrap();
    for key in [&web, &service] {
        let plain = |found: Option<&Value>| {
            let record = found.and_then(PlacementRecord::of).unwrap_or_default();
            record.overrides.is_empty() && record.yields.is_empty()
        };
        world.until("none", key, plain).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_in_one_logical_cluster_keeps_no_other_waiting() {
    let world = World::new(&[]).await;
    let flood: Vec<_> = (0..300).map(|number| format!("web-{number}")).collect();
    for name in &flood {
        world.deployment(name, json!({"containers": []})).await;
    }
    let web = key(OTHER, "deployments.apps/shop/web");
    let template = json!({"spec": {"replicas": 1, "template": {"spec": {"containers": []}}}});
    world.create(web.clone(), "apps/v1", "Deployment", template).await;
    world.settle().await;
    // Now all of them are evaluated again, in the order of keys, which puts those of the flood first.
    world.physical("east", json!({}), true).await;
    world.placed(&web, "east").await;
    world.settle().await;
    let revision = |object: &Value| object::meta_text(object, "resourceVersion").parse::<u64>().unwrap();
    let own = revision(&world.get(&web).await.unwrap());
    let mut before = 0;
    for name in &flood {
        let object = world.get(&shop(&format!("deployments.apps/shop/{name}"))).await.unwrap();
        assert_eq!(words(Some(&object)), "east");
        before += usize::from(revision(&object) < own);
    }
    // Work in progress when it arrives is done first: as many items as workers, and one more round.
    assert!(before <= 40, "{before} were placed before");
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_does_not_lead_decides_nothing_until_it_does() {
    let world = World::new(&["east"]).await;
    world.scheduler.lead(false);
    world.deployment("web", json!({"containers": []})).await;
    let key = shop("deployments.apps/shop/web");
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.scheduler.settled().await;
    assert_eq!(words(world.get(&key).await.as_ref()), "", "another one decides");
    world.scheduler.lead(true);
    world.placed(&key, "east").await;
}

/// Content of damaged objects before the damage.
const MARK: &str = "no reader decodes this";

fn other(text: &str) -> ObjectKey {
    key(OTHER, text)
}

fn naming(secret: &str) -> Value {
    let pod = json!({"containers": [], "volumes": [{"name": "v", "secret": {"secretName": secret}}]});
    json!({"spec": {"replicas": 2, "template": {"spec": pod}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_because_something_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = portolan_store::StoreConfig::new(portolan_store::Engine::Redb, Some(dir.path().to_owned()));
        World::on(portolan_store::open(config, Seams::system()).unwrap(), Arc::new(UseByAll))
    };
    let world = open();
    for namespace in [shop("namespaces/shop"), other("namespaces/shop")] {
        world.create(namespace, "v1", "Namespace", json!({})).await;
    }
    for name in ["east", "west"] {
        world.physical(name, json!({}), true).await;
    }
    let west = json!({"metadata": {"annotations": {"text": MARK}}, "spec": {
        "resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}], "clusters": {"names": ["west"]}}});
    let policy = shop("clusterplacementpolicies.portolan.dev/west");
    world.create(policy.clone(), "portolan.dev/v1alpha1", "ClusterPlacementPolicy", west).await;
    world.run();
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "west").await;
    let (lame, whole) = (other("deployments.apps/shop/lame"), other("deployments.apps/shop/whole"));
    for secret in ["of-lame", "of-whole", "new"] {
        world.create(other(&format!("secrets/shop/{secret}")), "v1", "Secret", json!({})).await;
    }
    let mut object = naming("of-lame");
    object["metadata"] = json!({"annotations": {"text": MARK}});
    world.create(lame.clone(), "apps/v1", "Deployment", object).await;
    world.create(whole.clone(), "apps/v1", "Deployment", naming("of-whole")).await;
    let event = json!({"metadata": {"annotations": {"text": MARK}}});
    world.create(other("events/shop/told.placement-placed"), "v1", "Event", event).await;
    for placed in [&lame, &whole, &other("secrets/shop/of-lame"), &other("secrets/shop/of-whole")] {
        world.placed(placed, "east").await;
    }
    world.stop.cancel();
    world.store.close().await;
    drop(world);
    assert!(portolan_store::testing::damage(dir.path(), MARK).unwrap() >= 3);

    let world = open();
    world.run();
    world
        .change(&whole, |whole| {
            whole["spec"] = naming("new")["spec"].clone();
            object::metadata_mut(whole).insert("generation".into(), 2.into());
        })
        .await;
    world.placed(&other("secrets/shop/new"), "east").await;
    world.change(&web, |web| object::set_annotation(web, "portolan.dev/pin", Some("east".into()))).await;
    world.deployment("late", json!({"containers": []})).await;
    world.create(other("deployments.apps/shop/late"), "apps/v1", "Deployment", naming("of-whole")).await;
    world.placed(&other("deployments.apps/shop/late"), "east").await;
    let left = world.get(&other("secrets/shop/of-lame")).await;
    assert_eq!(words(left.as_ref()), "east", "what a damaged workload may need stays");
    assert_eq!(words(world.get(&web).await.as_ref()), "west", "the policy cannot be read");
    let late = shop("deployments.apps/shop/late");
    assert_eq!(words(world.get(&late).await.as_ref()), "");
    world.store.commit(Transaction::one(policy, Expect::Damaged, None)).await.unwrap();
    world.until("it is decided now", &late, |late| !words(late).is_empty()).await;
    let told = other("events/shop/told.placement-placed");
    assert!(world.store.get(&told).await.is_err());
    world.create(other("deployments.apps/shop/told"), "apps/v1", "Deployment", naming("of-whole")).await;
    world.placed(&other("deployments.apps/shop/told"), "east").await;
}
