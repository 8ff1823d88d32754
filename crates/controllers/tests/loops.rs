//! The controllers on the memory store, tested by their visible effects.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use portolan_controllers::{
    Controller, LoopMetrics, Loops, Plane, PlaneError, WorkOutcome, common,
    token_secrets::{SecretToken, TokenSecretController, TokenSigner},
    workspaces::{ClusterDirectory, FINALIZER, WorkspaceController},
};
use portolan_kinds::{
    Kind, KindTable, Kinds, Surface,
    custom::{self, Definition},
};
use portolan_store::{
    Engine, Event, Expect, RangeRequest, RangeScope, StoreConfig, StoreError, Transaction, WatchScope,
};
use portolan_strategy::{
    lifecycle::{DeleteOptions, Propagation},
    rbac,
};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Record, Seams, Status, object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Definitions, read each time.
struct AsStored(portolan_store::DynStore);

impl Kinds for AsStored {
    fn of(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>> {
        Box::pin(async move {
            let tables = self.definitions(cluster).await?.iter().filter_map(|own| own.table.clone()).collect();
            Ok(Arc::new(Surface::over(tables)))
        })
    }

    fn definitions(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>> {
        Box::pin(async move {
            let resource = GroupResource::new(custom::GROUP, custom::RESOURCE);
            let page = self.0.range(RangeRequest::all(RangeScope::Cluster(cluster, resource))).await.unwrap();
            let read = |stored: portolan_store::StoredObject| {
                let crd = stored.to_value().unwrap();
                Arc::new(Definition::read(&crd, || custom::compile(&crd).ok().map(Arc::new)))
            };
            Ok(page.objects.into_iter().map(read).collect())
        })
    }

    fn changing(&self, _: &ObjectKey) -> Box<dyn Send> {
        Box::new(())
    }

    fn uid_unstored(&self, _: &ObjectKey) -> Option<String> {
        None
    }
}

struct FeedFixture {
    plane: Arc<Plane>,
    _tasks: JoinSet<()>,
}

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(20);
const CLUSTER: LogicalClusterId = LogicalClusterId::ROOT;

impl FeedFixture {
    fn start() -> Self {
        Self::start_with(|loops| loops)
    }

    fn start_with(more: impl FnOnce(Loops) -> Loops) -> Self {
        let store = portolan_store::memory();
        let plane = Plane::new(store.clone(), KindTable::builtin(), Seams::system());
        Self::on(plane.with_kinds(Arc::new(AsStored(store))), more)
    }

    fn start_filling_secrets() -> Self {
        let sign = |token: SecretToken| Ok(format!("{}/{}/{}", token.namespace, token.account, token.secret));
        let sign: TokenSigner = Arc::new(sign);
        Self::start_with(move |loops| {
            let filling = TokenSecretController::new(loops.plane().clone(), "a certificate", sign);
            loops.with(filling)
        })
    }

    fn on(plane: Plane, more: impl FnOnce(Loops) -> Loops) -> Self {
        let plane = Arc::new(plane);
        let mut tasks = JoinSet::new();
        tasks.spawn(more(common(&plane, "a certificate")).run(CancellationToken::new()));
        Self { plane, _tasks: tasks }
    }

    fn kind(&self, api_version: &str, kind: &str) -> &'static Kind {
        let gvk = GroupVersionKind::parse(api_version, kind).unwrap();
        self.plane.table().kind(&gvk).unwrap()
    }

    async fn create(&self, object: Value) -> ObjectKey {
        let gvk = GroupVersionKind::parse(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let kind = self.plane.kinds().of(CLUSTER).await.unwrap().kind(&gvk.unwrap()).unwrap().kind;
        self.plane.create(&kind, CLUSTER, object).await.unwrap().expect("it is new").key
    }

    /// Takes all finalizers off.
    async fn release(&self, key: &ObjectKey) {
        let release = |current: &mut Value| {
            object::metadata_mut(current).remove("finalizers");
            portolan_controllers::plane::PlaneChange::Write(None)
        };
        let kind = self.plane.kind_of(key.cluster, &key.resource).await.unwrap().unwrap();
        self.plane.change(&kind, key, release).await.unwrap();
    }

    async fn delete(&self, key: &ObjectKey, propagation: Propagation) {
        let kind = self.plane.kind_of(key.cluster, &key.resource).await.unwrap().unwrap();
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.plane.delete(&kind, key, &options).await.unwrap();
    }

    async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.plane.get(key).await.unwrap().map(|found| found.object)
    }

    /// Waits until the object is as wanted, looking again at every event of its resource.
    async fn until(&self, what: &str, key: &ObjectKey, test: impl Fn(Option<&Value>) -> bool) {
        let scope = WatchScope::Resource(key.resource.clone(), Some(key.cluster));
        let mut events = self.plane.store().watch(scope, None).await.unwrap();
        let waiting = async {
            while !test(self.get(key).await.as_ref()) {
                events.next().await.unwrap();
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("{what}: {:?}", self.get(key).await);
        }
    }
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn config_map(name: &str, owner: Option<&Value>) -> Value {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}});
    if let Some(owner) = owner {
        map["metadata"]["ownerReferences"] = json!([{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": object::name(owner),
            "uid": object::meta_text(owner, "uid"), "blockOwnerDeletion": true,
        }]);
    }
    map
}

fn sibling(key: &ObjectKey, resource: &str, name: &str) -> ObjectKey {
    ObjectKey {
        resource: portolan_types::GroupResource::new("", resource),
        name: name.parse().unwrap(),
        scope: portolan_types::Scope::Namespace(key.name.parse().unwrap()),
        cluster: key.cluster,
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_gets_its_account_and_the_root_certificate_and_takes_its_content_along() {
    let f = FeedFixture::start();
    let shop = f.create(namespace("shop")).await;
    let created = Instant::now();
    let account = sibling(&shop, "serviceaccounts", "default");
    let ca = sibling(&shop, "configmaps", "kube-root-ca.crt");
    f.until("the account", &account, |found| found.is_some()).await;
    f.until("the certificate", &ca, |found| found.is_some_and(|o| o["data"]["ca.crt"] == "a certificate")).await;
    assert!(created.elapsed() < Duration::from_secs(1), "pods may be made in it");
    let map = f.create(config_map("content", None)).await;
    f.delete(&shop, Propagation::Background).await;
    f.until("the namespace is gone", &shop, |found| found.is_none()).await;
    assert_eq!((f.get(&map).await, f.get(&account).await, f.get(&ca).await), (None, None, None));
}

#[tokio::test(start_paused = true)]
async fn content_with_a_finalizer_holds_its_namespace_and_says_so() {
    let f = FeedFixture::start();
    let shop = f.create(namespace("shop")).await;
    let mut held = config_map("held", None);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let held = f.create(held).await;
    f.delete(&shop, Propagation::Background).await;
    f.until("the condition", &shop, |found| {
        let conditions = found.and_then(|o| o.pointer("/status/conditions")).and_then(Value::as_array);
        conditions.into_iter().flatten().any(|c| c["type"] == "NamespaceFinalizersRemaining" && c["status"] == "True")
    })
    .await;
    f.release(&held).await;
    let released = Instant::now();
    f.until("then it goes", &shop, |found| found.is_none()).await;
    assert!(released.elapsed() < Duration::from_secs(1), "its end is seen, not found by looking again and again");
}

/// A Service of `shop` and a slice that says so much of its Pods.
fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
        "metadata": {"name": name, "namespace": "shop", "labels": {"tier": "front"}}})
}

fn slice_of((service, uid): (&str, &str), name: &str, endpoints: Value) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Service", "name": service, "uid": uid, "controller": true});
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service},
            "ownerReferences": [owner]},
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}]})
}

async fn uid_of(f: &FeedFixture, key: &ObjectKey) -> String {
    object::meta_text(&f.get(key).await.expect("it is there"), "uid").to_owned()
}

fn addresses(endpoints: Option<&Value>) -> Vec<&str> {
    let list = endpoints.and_then(|found| found.pointer("/subsets/0/addresses")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|address| address["ip"].as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_their_service_and_its_slices() {
    let f = FeedFixture::start();
    let shop = f.create(namespace("shop")).await;
    let web = json!({"selector": {"app": "web"}, "clusterIP": "None", "ports": [{"name": "web", "port": 80}]});
    let web = f.create(service("web", web)).await;
    let uid = uid_of(&f, &web).await;
    let endpoints = sibling(&shop, "endpoints", "web");
    f.until("they are there without addresses", &endpoints, |found| {
        let labels = json!({"tier": "front", "service.kubernetes.io/headless": "",
            "endpoints.kubernetes.io/managed-by": "endpoint-controller"});
        found.is_some_and(|o| o["metadata"]["labels"] == labels && addresses(Some(o)).is_empty())
    })
    .await;
    let ready = json!([{"addresses": ["198.18.0.1"]}]);
    let east = f.create(slice_of(("web", &uid), "web-east", ready)).await;
    f.create(slice_of(("web", &uid), "web-west", json!([{"addresses": ["198.18.0.2"]}]))).await;
    f.create(slice_of(("other", &uid), "other", json!([{"addresses": ["198.18.0.3"]}]))).await;
    f.until("both slices", &endpoints, |found| addresses(found) == ["198.18.0.1", "198.18.0.2"]).await;
    f.delete(&endpoints, Propagation::Background).await;
    f.until("they are made again", &endpoints, |found| addresses(found).len() == 2).await;
    f.delete(&east, Propagation::Background).await;
    f.until("one slice", &endpoints, |found| addresses(found) == ["198.18.0.2"]).await;
    f.delete(&web, Propagation::Background).await;
    f.until("they go with their Service", &endpoints, |found| found.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_services_without_selector_are_their_users_own() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let own = f
        .create(json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "own", "namespace": "shop"},
            "subsets": [{"addresses": [{"ip": "198.18.0.9"}], "ports": [{"port": 1}]}]}))
        .await;
    let unselected = f.create(service("own", json!({"ports": [{"port": 80}]}))).await;
    f.create(slice_of(("own", &uid_of(&f, &unselected).await), "own", json!([{"addresses": ["198.18.0.1"]}]))).await;
    // Another Service, whose Endpoints tell that the loop has come past all of this.
    let later = f.create(service("later", json!({"selector": {"app": "later"}, "ports": [{"port": 80}]}))).await;
    let seen = ObjectKey { resource: own.resource.clone(), ..later };
    f.until("the loop has run", &seen, |found| found.is_some()).await;
    assert_eq!(addresses(f.get(&own).await.as_ref()), ["198.18.0.9"]);
}

/// A directory that remembers what it was told.
#[derive(Default)]
struct Told {
    deleting: Mutex<Vec<LogicalClusterId>>,
    removed: Mutex<Vec<LogicalClusterId>>,
    /// Logical clusters that wait for terminators.
    terminating: Mutex<Vec<LogicalClusterId>>,
    /// Logical clusters of other Workspaces.
    foreign: Vec<LogicalClusterId>,
    /// A logical cluster in another.
    below: Option<(LogicalClusterId, LogicalClusterId)>,
}

impl ClusterDirectory for Told {
    fn begin_deletion(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<bool, Status>> {
        let holds = self.terminating.lock().unwrap().contains(&cluster);
        Box::pin(async move { Ok(!holds) })
    }

    fn child<'a>(
        &'a self,
        _: LogicalClusterId,
        workspace: &'a Value,
    ) -> BoxFuture<'a, Result<Option<LogicalClusterId>, StoreError>> {
        let named = workspace.pointer("/spec/cluster").and_then(Value::as_str).and_then(|id| id.parse().ok());
        let own = named.filter(|named| !self.foreign.contains(named));
        Box::pin(async move { Ok(own) })
    }

    fn mark_deleting(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>> {
        self.deleting.lock().unwrap().push(cluster);
        Box::pin(async { Ok(()) })
    }

    fn children(&self, parent: LogicalClusterId) -> Vec<LogicalClusterId> {
        let is_gone = |child: &LogicalClusterId| self.removed.lock().unwrap().contains(child);
        let below = self.below.filter(|(above, _)| *above == parent).map(|(_, child)| child);
        below.into_iter().filter(|child| !is_gone(child)).collect()
    }

    fn remove(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>> {
        self.removed.lock().unwrap().push(cluster);
        Box::pin(async { Ok(()) })
    }
}

/// Content of damaged objects before the damage.
const MARK: &str = "no reader decodes this";

/// Controllers on a store in which objects that `fill` wrote with the mark are damaged.
async fn start_damaged<T>(
    fill: impl AsyncFnOnce(&Plane) -> T,
    more: impl FnOnce(Loops) -> Loops,
) -> (FeedFixture, T, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = StoreConfig::new(Engine::Redb, Some(dir.path().to_owned()));
        portolan_store::open(config, Seams::system()).unwrap()
    };
    let plane = |store: portolan_store::DynStore| {
        let plane = Plane::new(store.clone(), KindTable::builtin(), Seams::system());
        plane.with_kinds(Arc::new(AsStored(store)))
    };
    let whole = plane(open());
    let filled = fill(&whole).await;
    whole.store().close().await;
    drop(whole);
    assert!(portolan_store::testing::damage(dir.path(), MARK).unwrap() > 0);
    (FeedFixture::on(plane(open()), more), filled, dir)
}

async fn create_object(
    plane: &Plane,
    cluster: LogicalClusterId,
    object: Value,
) -> portolan_controllers::plane::PlaneObject {
    let gvk = GroupVersionKind::parse(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    plane.create(plane.table().kind(&gvk.unwrap()).unwrap(), cluster, object).await.unwrap().expect("it is new")
}

fn map_in(namespace: &str, name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"text": text}})
}

fn owned_by(mut object: Value, owner: &str, uid: &str) -> Value {
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid});
    object["metadata"]["ownerReferences"] = json!([reference]);
    object
}

impl FeedFixture {
    async fn delete_unread(&self, key: &ObjectKey) {
        let txn = Transaction::one(key.clone(), Expect::Damaged, None);
        self.plane.store().commit(txn).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_stops_no_loop_and_is_not_taken_for_gone() {
    let other = LogicalClusterId::new(7);
    let fill = async |plane: &Plane| {
        let shop = create_object(plane, CLUSTER, namespace("shop")).await.key;
        let broken = create_object(plane, CLUSTER, map_in("shop", "broken", MARK)).await.key;
        let fine = create_object(plane, CLUSTER, map_in("shop", "fine", "")).await.key;
        let owner = create_object(plane, CLUSTER, map_in("lab", "owner", MARK)).await;
        let uid = object::meta_text(&owner.object, "uid");
        let mut kept = owned_by(map_in("lab", "kept", ""), "owner", uid);
        kept["kind"] = json!("Secret");
        kept.as_object_mut().unwrap().remove("data");
        let kept = create_object(plane, CLUSTER, kept).await.key;
        let lonely = create_object(plane, CLUSTER, owned_by(map_in("lab", "lonely", ""), "nobody", "u-1")).await.key;
        (shop, broken, fine, owner.key, kept, lonely)
    };
    let (f, (shop, broken, fine, owner, kept, lonely), _dir) = start_damaged(fill, |loops| loops).await;
    for cluster in [CLUSTER, other] {
        let fresh = create_object(&f.plane, cluster, namespace("fresh")).await.key;
        let accounts = GroupResource::new("", "serviceaccounts");
        let account = ObjectKey::namespaced(cluster, accounts, "fresh".parse().unwrap(), "default".parse().unwrap());
        f.until("the loops go on", &account, |found| found.is_some()).await;
        f.delete(&fresh, Propagation::Background).await;
        f.until("also those that end", &fresh, |found| found.is_none()).await;
    }
    f.until("what has no owner is collected", &lonely, |found| found.is_none()).await;
    f.delete(&shop, Propagation::Background).await;
    f.until("what can be deleted is", &fine, |found| found.is_none()).await;
    f.until("what is left is told", &shop, |found| {
        let conditions = found.and_then(|o| o.pointer("/status/conditions")).and_then(Value::as_array);
        let failure = conditions.into_iter().flatten().find(|c| c["type"] == "NamespaceDeletionContentFailure");
        failure
            .is_some_and(|c| c["status"] == "True" && c["message"].as_str().unwrap().contains("shop/broken is damaged"))
    })
    .await;
    assert!(f.plane.get(&kept).await.unwrap().is_some(), "its owner is there, although it cannot be read");
    f.delete_unread(&broken).await;
    f.until("the namespace goes with the last of it", &shop, |found| found.is_none()).await;
    f.delete_unread(&owner).await;
    f.until("the owner is gone now", &kept, |found| found.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_with_damaged_objects_goes_with_all_below_it() {
    let (outer, inner) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
    let told = Arc::new(Told { below: Some((outer, inner)), ..Told::default() });
    let fill = async |plane: &Plane| {
        let shop = create_object(plane, CLUSTER, workspace("shop", outer)).await.key;
        let mut below = workspace("below", inner);
        below["metadata"]["annotations"] = json!({"text": MARK});
        create_object(plane, outer, below).await;
        for cluster in [outer, inner] {
            create_object(plane, cluster, map_in("lab", "broken", MARK)).await;
        }
        shop
    };
    let directory = told.clone();
    let workspaces = |loops: Loops| {
        let workspaces = WorkspaceController::new(loops.plane().clone(), directory);
        loops.with(workspaces)
    };
    let (f, shop, _dir) = start_damaged(fill, workspaces).await;
    f.delete(&shop, Propagation::Background).await;
    f.until("it goes", &shop, |found| found.is_none()).await;
    assert_eq!(*told.removed.lock().unwrap(), [inner, outer]);
    assert_eq!(f.plane.store().deleted_clusters().await.unwrap(), [outer, inner]);
    assert_eq!(f.plane.store().known_damage(), []);
}

/// A workspace as the API server makes it.
fn workspace(name: &str, cluster: LogicalClusterId) -> Value {
    json!({
        "apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "spec": {"cluster": cluster.to_string()},
        "metadata": {"name": name, "finalizers": [FINALIZER]},
    })
}

/// Returns the message of the only condition of a workspace, if there is one.
fn left_in(workspace: &Value) -> Vec<&str> {
    let condition = |field: &str| workspace.pointer(&format!("/status/conditions/0/{field}")).and_then(Value::as_str);
    ["type", "status", "message"].into_iter().filter_map(condition).collect()
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_deleted_after_its_children_and_its_finalizers() {
    let told = Arc::new(Told::default());
    let f = FeedFixture::start_with(|loops| {
        let workspaces = WorkspaceController::new(loops.plane().clone(), told.clone());
        loops.with(workspaces)
    });
    let (outer, inner) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
    let kind = f.kind("tenancy.kcp.io/v1alpha1", "Workspace");
    let shop = f.create(workspace("shop", outer)).await;
    f.plane.create(kind, outer, workspace("below", inner)).await.unwrap();
    let mut held = config_map("held", None);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let held = f.plane.create(f.kind("v1", "ConfigMap"), inner, held).await.unwrap().unwrap().key;
    f.delete(&shop, Propagation::Background).await;
    f.until("what holds the inner one is asked to go", &held, |found| found.is_some_and(object::is_deleting)).await;
    assert_eq!(told.removed.lock().unwrap().len(), 0);
    let below = ObjectKey { cluster: outer, name: "below".parse().unwrap(), ..shop.clone() };
    let held_above = "Some resources are remaining: workspaces.tenancy.kcp.io has 1 resource instances; Some content in the \
                      workspace has finalizers remaining: core.kcp.io/logicalcluster in 1 resource instances";
    let held_below = "Some resources are remaining: configmaps. has 1 resource instances; Some content in the workspace has \
                      finalizers remaining: example.com/hold in 1 resource instances";
    for (key, message) in [(&shop, held_above), (&below, held_below)] {
        f.until(message, key, |found| left_in(found.unwrap()) == ["WorkspaceContentDeleted", "False", message]).await;
    }
    f.release(&held).await;
    let released = Instant::now();
    f.until("then both go", &shop, |found| found.is_none()).await;
    assert!(released.elapsed() < Duration::from_secs(1), "its end is seen, not found by looking again and again");
    assert_eq!(*told.removed.lock().unwrap(), [inner, outer]);
    assert_eq!(told.deleting.lock().unwrap()[0], outer, "nothing is made in it from the beginning");
}

#[tokio::test(start_paused = true)]
async fn a_workspace_that_only_its_own_finalizer_holds_says_that_nothing_is_left() {
    let told = Arc::new(Told::default());
    let f = FeedFixture::start_with(|loops| {
        let workspaces = WorkspaceController::new(loops.plane().clone(), told.clone());
        loops.with(workspaces)
    });
    let within = LogicalClusterId::new(7);
    let mut shop = workspace("shop", within);
    shop["metadata"]["finalizers"].as_array_mut().unwrap().push(json!("example.com/own"));
    let shop = f.create(shop).await;
    let mut held = config_map("held", None);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let held = f.plane.create(f.kind("v1", "ConfigMap"), within, held).await.unwrap().unwrap().key;
    f.delete(&shop, Propagation::Background).await;
    f.until("it is held", &shop, |found| left_in(found.unwrap()).contains(&"False")).await;
    f.release(&held).await;
    f.until("nothing is left in it", &shop, |found| left_in(found.unwrap()) == ["WorkspaceContentDeleted", "True"])
        .await;
    let left = f.get(&shop).await.unwrap();
    assert_eq!(object::finalizers(&left).collect::<Vec<_>>(), ["example.com/own"]);
}

#[tokio::test(start_paused = true)]
async fn a_workspace_deletes_no_logical_cluster_but_its_own_and_after_its_terminators() {
    let (own, foreign) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
    let told = Arc::new(Told { terminating: Mutex::new(vec![own]), foreign: vec![foreign], ..Told::default() });
    let f = FeedFixture::start_with(|loops| {
        let workspaces = WorkspaceController::new(loops.plane().clone(), told.clone());
        loops.with(workspaces)
    });
    let (waiting, forged) = (f.create(workspace("waiting", own)).await, f.create(workspace("forged", foreign)).await);
    let kept = f.plane.create(f.kind("v1", "ConfigMap"), foreign, config_map("kept", None)).await.unwrap().unwrap().key;
    for key in [&waiting, &forged] {
        f.delete(key, Propagation::Background).await;
    }
    f.until("the forged one goes", &forged, |found| found.is_none()).await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert!(f.get(&waiting).await.is_some(), "its terminator has not ended");
    assert_eq!(f.plane.store().deleted_clusters().await.unwrap(), [] as [LogicalClusterId; 0]);
    assert!(f.get(&kept).await.is_some(), "the foreign logical cluster is untouched");
    told.terminating.lock().unwrap().clear();
    f.until("it goes after its terminator", &waiting, |found| found.is_none()).await;
    assert_eq!(f.plane.store().deleted_clusters().await.unwrap(), [own]);
}

#[tokio::test]
async fn projections_do_not_delay_the_deletion_of_their_owner() {
    let f = FeedFixture::start();
    let shop = f.create(namespace("shop")).await;
    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "made", "namespace": "shop"},
        "spec": {"containers": containers}});
    let pod = f.create(pod).await;
    let east = PlacedCopy {
        name: "east".into(),
        uid: "east".parse().unwrap(),
        phase: CopyPhase::Projected,
        replicas: None,
        epoch: 0,
    };
    let record = PlacementRecord { clusters: vec![east], ..PlacementRecord::default() };
    let project = |pod: &mut Value| {
        record.write_to(pod);
        true
    };
    f.plane.force(&pod, project).await.unwrap();
    let map = f.create(config_map("source", None)).await;
    f.delete(&shop, Propagation::Background).await;
    f.until("what it is made from goes", &map, |found| found.is_none()).await;
    assert!(f.get(&pod).await.is_some_and(|pod| object::is_deleting(&pod)) && f.get(&shop).await.is_some());
    f.plane.store().commit(Transaction::one(pod, Expect::Anything, None)).await.unwrap();
    f.until("then the namespace", &shop, |found| found.is_none()).await;
}

#[tokio::test]
async fn a_custom_resource_called_pods_holds_up_no_other() {
    let f = FeedFixture::start();
    for (plural, kind) in [("pods", "Pod"), ("zebras", "Zebra")] {
        let crd = f.create(definition(plural, kind)).await;
        f.until("it is established", &crd, |crd| condition(crd.unwrap(), "Established")["status"] == "True").await;
    }
    let shop = f.create(namespace("shop")).await;
    let own = |kind: &str| {
        let mut own = widget("a", None);
        own["kind"] = kind.into();
        own
    };
    let mut pod = own("Pod");
    pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let (pod, zebra) = (f.create(pod).await, f.create(own("Zebra")).await);
    f.delete(&shop, Propagation::Background).await;
    f.until("what comes behind it goes", &zebra, |found| found.is_none()).await;
    f.release(&pod).await;
    f.until("then the namespace", &shop, |found| found.is_none()).await;
}

#[tokio::test]
async fn addresses_of_a_service_are_released_with_it() {
    let f = FeedFixture::start();
    let shop = f.create(namespace("shop")).await;
    let put = async |group: &str, resource: &str, name: &str, holder: &str| {
        let parent = json!({"group": "", "resource": "services", "namespace": "shop", "name": holder});
        let key = ObjectKey::cluster_scoped(CLUSTER, GroupResource::new(group, resource), name.parse().unwrap());
        let record = json!({"metadata": {"name": name}, "spec": {"parentRef": parent}});
        let txn = Transaction::one(key.clone(), Expect::Absent, Some(portolan_types::Record::of(&record)));
        f.plane.store().commit(txn).await.unwrap();
        key
    };
    let spec = |ip: &str, port: u16| json!({"type": "NodePort", "clusterIP": ip, "ports": [{"name": "a", "port": 80, "nodePort": port}, {"name": "b", "port": 81, "nodePort": 31_999}]});
    let other = put("portolan.dev", "nodeports", "31999", "another").await;
    for how in ["its namespace", "its owner", "its finalizer"] {
        let owner = f.create(config_map("owner", None)).await;
        let mut web = service("web", spec("10.96.0.9", 30_123));
        match how {
            "its owner" => {
                web["metadata"]["ownerReferences"] =
                    config_map("x", f.get(&owner).await.as_ref())["metadata"]["ownerReferences"].clone();
            }
            "its finalizer" => web["metadata"]["finalizers"] = json!(["example.com/hold"]),
            _ => {}
        }
        let web = f.create(web).await;
        let address = put("networking.k8s.io", "ipaddresses", "10.96.0.9", "web").await;
        let port = put("portolan.dev", "nodeports", "30123", "web").await;
        match how {
            "its owner" => f.delete(&owner, Propagation::Background).await,
            "its finalizer" => {
                f.delete(&web, Propagation::Background).await;
                assert!(f.get(&address).await.is_some(), "while it is there");
                f.release(&web).await;
            }
            _ => f.delete(&shop, Propagation::Background).await,
        }
        f.until(how, &web, |found| found.is_none()).await;
        assert_eq!((f.get(&address).await, f.get(&port).await), (None, None), "{how}");
        assert!(f.get(&other).await.is_some(), "{how}: what is another's stays");
        if how == "its namespace" {
            f.until("it goes", &shop, |found| found.is_none()).await;
            f.create(namespace("shop")).await;
        } else if how == "its finalizer" {
            f.delete(&owner, Propagation::Background).await;
        }
    }
}

/// A loop that panics at the first namespace it sees.
struct Panics;

impl Controller for Panics {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "panics"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "namespaces")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, _: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async { panic!("a defect") })
    }
}

#[tokio::test]
async fn a_loop_with_a_part_that_panicked_ends() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let whole = tokio::spawn(Loops::new(f.plane.clone()).with(Panics).run(CancellationToken::new()));
    let ended = tokio::time::timeout(PATIENCE, whole).await.expect("it ends");
    assert!(ended.unwrap_err().is_panic());
}

#[tokio::test]
async fn dependents_go_with_their_last_owner_in_the_background() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let owner = f.create(config_map("owner", None)).await;
    let dependent = f.create(config_map("dependent", f.get(&owner).await.as_ref())).await;
    let grandchild = f.create(config_map("grandchild", f.get(&dependent).await.as_ref())).await;
    f.delete(&owner, Propagation::Background).await;
    f.until("the dependent goes", &dependent, |found| found.is_none()).await;
    f.until("and its own", &grandchild, |found| found.is_none()).await;
}

#[tokio::test]
async fn an_owner_deleted_in_the_foreground_goes_last() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let owner = f.create(config_map("owner", None)).await;
    let mut held = config_map("dependent", f.get(&owner).await.as_ref());
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let dependent = f.create(held).await;
    f.delete(&owner, Propagation::Foreground).await;
    f.until("the dependent is asked to go", &dependent, |found| found.is_some_and(object::is_deleting)).await;
    assert!(f.get(&owner).await.is_some(), "the owner waits");
    f.release(&dependent).await;
    f.until("then the owner goes", &owner, |found| found.is_none()).await;
}

#[tokio::test]
async fn an_owner_does_not_wait_for_dependents_with_another_owner() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let (going, staying) = (f.create(config_map("going", None)).await, f.create(config_map("staying", None)).await);
    let mut both = config_map("dependent", f.get(&going).await.as_ref());
    let other = config_map("x", f.get(&staying).await.as_ref())["metadata"]["ownerReferences"][0].clone();
    both["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other.clone());
    let dependent = f.create(both).await;
    f.delete(&going, Propagation::Foreground).await;
    f.until("the owner goes", &going, |found| found.is_none()).await;
    let left = f.get(&dependent).await.expect("the dependent stays");
    assert_eq!(object::owner_references(&left), [other], "with the owner that keeps it");
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_very_many_goes_and_they_do_or_own_themselves() {
    const DEPENDENTS: usize = 3_000;
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    for how in [Propagation::Foreground, Propagation::Background, Propagation::Orphan] {
        let owner = f.create(config_map("owner", None)).await;
        let body = f.get(&owner).await.unwrap();
        for n in 0..DEPENDENTS {
            f.create(config_map(&format!("dependent-{n}"), Some(&body))).await;
        }
        f.delete(&owner, how).await;
        f.until("the owner goes", &owner, |found| found.is_none()).await;
        let owned = RangeScope::OwnedBy(CLUSTER, object::meta_text(&body, "uid").to_owned());
        let start = Instant::now();
        while !f.plane.list(owned.clone()).await.unwrap().is_empty() {
            assert!(start.elapsed() < PATIENCE, "{how:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let all = f.plane.list(RangeScope::Cluster(CLUSTER, GroupResource::new("", "configmaps"))).await.unwrap();
        let left = all.iter().filter(|found| found.key.name.to_string().starts_with("dependent-")).count();
        assert_eq!(left, if how == Propagation::Orphan { DEPENDENTS } else { 0 }, "{how:?}");
    }
}

#[tokio::test]
async fn orphans_stay_without_their_owner() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let owner = f.create(config_map("owner", None)).await;
    let dependent = f.create(config_map("dependent", f.get(&owner).await.as_ref())).await;
    f.delete(&owner, Propagation::Orphan).await;
    f.until("the owner goes", &owner, |found| found.is_none()).await;
    let left = f.get(&dependent).await.expect("the dependent stays");
    assert!(object::owner_references(&left).is_empty(), "{left}");
}

#[tokio::test]
async fn an_owner_with_copies_keeps_its_finalizer_until_they_are_gone() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let owner = f.create(config_map("owner", None)).await;
    let copy = PlacedCopy {
        name: "east".into(),
        uid: "east".parse().unwrap(),
        phase: CopyPhase::Active,
        replicas: None,
        epoch: 1,
    };
    let placed = PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() };
    let place = |object: &mut Value| {
        placed.write_to(object);
        true
    };
    f.plane.force(&owner, place).await.unwrap();
    let dependent = f.create(config_map("dependent", f.get(&owner).await.as_ref())).await;
    f.delete(&owner, Propagation::Orphan).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let held = f.get(&owner).await.expect("it is held");
    assert!(object::finalizers(&held).any(|finalizer| finalizer == "orphan"), "{held}");
    let gone = |object: &mut Value| {
        PlacementRecord::default().write_to(object);
        true
    };
    f.plane.force(&owner, gone).await.unwrap();
    f.until("the owner goes with its last copy", &owner, |found| found.is_none()).await;
    let left = f.get(&dependent).await.expect("the dependent stays");
    assert!(object::owner_references(&left).is_empty(), "{left}");
}

#[tokio::test]
async fn cascading_deletion_follows_finalizers() {
    for (asked, stays) in [("orphan", true), ("foregroundDeletion", false)] {
        let f = FeedFixture::start();
        f.create(namespace("shop")).await;
        let owner = f.create(config_map("owner", None)).await;
        let mut middle = config_map("middle", f.get(&owner).await.as_ref());
        middle["metadata"]["finalizers"] = json!([asked]);
        let middle = f.create(middle).await;
        let mut last = config_map("last", f.get(&middle).await.as_ref());
        last["metadata"]["finalizers"] = json!(["example.com/hold"]);
        let last = f.create(last).await;
        f.delete(&owner, Propagation::Background).await;
        if stays {
            f.until("it goes with its owner", &middle, |found| found.is_none()).await;
            let left = f.get(&last).await.unwrap();
            assert!(!object::is_deleting(&left) && object::owner_references(&left).is_empty(), "{asked}: {left}");
        } else {
            f.until("its dependent is asked to go", &last, |found| found.is_some_and(object::is_deleting)).await;
            assert!(f.get(&middle).await.is_some(), "{asked}: it waits");
            f.release(&last).await;
            f.until("it goes with its owner", &middle, |found| found.is_none()).await;
        }
    }
}

#[tokio::test]
async fn an_object_whose_owner_never_was_goes() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let ghost = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ghost", "uid": "none"}});
    let dependent = f.create(config_map("dependent", Some(&ghost))).await;
    f.until("it goes", &dependent, |found| found.is_none()).await;
}

#[tokio::test]
async fn a_chain_deleted_in_the_foreground_goes_from_its_end() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let owner = f.create(config_map("owner", None)).await;
    let middle = f.create(config_map("middle", f.get(&owner).await.as_ref())).await;
    let last = f.create(config_map("last", f.get(&middle).await.as_ref())).await;
    f.delete(&owner, Propagation::Foreground).await;
    f.until("the owner goes", &owner, |found| found.is_none()).await;
    assert_eq!((f.get(&middle).await, f.get(&last).await), (None, None));
}

#[tokio::test]
async fn an_owner_orphans_more_dependents_than_a_slice_holds() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let owner = f.create(config_map("owner", None)).await;
    let owned = f.get(&owner).await;
    let mut dependents = Vec::new();
    for n in 0..40 {
        let mut dependent = config_map(&format!("d-{n}"), owned.as_ref());
        dependent["data"] = json!({"fill": "x".repeat(10_000)});
        dependents.push(f.create(dependent).await);
    }
    f.delete(&owner, Propagation::Orphan).await;
    f.until("the owner goes", &owner, |found| found.is_none()).await;
    for dependent in dependents {
        let stays = f.get(&dependent).await.unwrap();
        assert!(object::owner_references(&stays).is_empty(), "{dependent}");
    }
}

#[tokio::test]
async fn a_circle_of_owners_does_not_block() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let first = f.create(config_map("first", None)).await;
    let second = f.create(config_map("second", f.get(&first).await.as_ref())).await;
    let references = config_map("x", f.get(&second).await.as_ref())["metadata"]["ownerReferences"].clone();
    let close = |current: &mut Value| {
        object::metadata_mut(current).insert("ownerReferences".into(), references.clone());
        portolan_controllers::plane::PlaneChange::Write(None)
    };
    f.plane.change(f.kind("v1", "ConfigMap"), &first, close).await.unwrap();
    f.delete(&first, Propagation::Foreground).await;
    f.until("the first goes", &first, |found| found.is_none()).await;
    f.until("and the second", &second, |found| found.is_none()).await;
}

#[tokio::test]
async fn quotas_follow_updates_and_deletes() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let hard = json!({"configmaps": "9", "pods": "5", "requests.cpu": "4", "count/widgets.example.com": "3"});
    let quota = f
        .create(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "shop"}, "spec": {"hard": hard}}))
        .await;
    let used = |quota: Option<&Value>, wanted: Value| {
        let status = quota.map(|quota| quota["status"].clone()).unwrap_or_default();
        status["hard"] == hard && status["used"] == wanted
    };
    let amounts = |maps: &str, pods: &str, cpu: &str| json!({"configmaps": maps, "pods": pods, "requests.cpu": cpu, "count/widgets.example.com": "0"});
    // The namespace has the map of the root certificate.
    f.until("usage is known", &quota, |quota| used(quota, amounts("1", "0", "0"))).await;
    let map = f.create(config_map("m", None)).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"containers": [{"name": "a", "image": "a", "resources": {"requests": {"cpu": "500m"}}}]},
    });
    let pod = f.create(pod).await;
    f.until("what is made counts", &quota, |quota| used(quota, amounts("2", "1", "500m"))).await;
    let end = |pod: &mut Value| {
        pod["status"]["phase"] = "Succeeded".into();
        true
    };
    f.plane.force(&pod, end).await.unwrap();
    f.until("what has ended does not", &quota, |quota| used(quota, amounts("2", "0", "0"))).await;
    f.delete(&map, Propagation::Background).await;
    f.until("what is gone does not", &quota, |quota| used(quota, amounts("1", "0", "0"))).await;
}

#[tokio::test]
async fn quotas_follow_updates_and_deletes_of_custom_objects() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let crd = f.create(definition("widgets", "Widget")).await;
    f.until("it is established", &crd, |crd| condition(crd.unwrap(), "Established")["status"] == "True").await;
    let first = f.create(widget("first", None)).await;
    let quota = |hard: Value| {
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "shop"},
            "spec": {"hard": hard}})
    };
    let used = |amount: &str| {
        let wanted = json!({"count/widgets.example.dev": amount});
        move |quota: Option<&Value>| quota.is_some_and(|quota| quota["status"]["used"] == wanted)
    };
    let quota = f.create(quota(json!({"count/widgets.example.dev": "9"}))).await;
    f.until("what is there counts", &quota, used("1")).await;
    let second = f.create(widget("second", None)).await;
    f.until("what is made counts", &quota, used("2")).await;
    f.delete(&first, Propagation::Background).await;
    f.until("what is gone does not", &quota, used("1")).await;
    f.delete(&crd, Propagation::Background).await;
    f.until("nor what goes with its definition", &quota, used("0")).await;
    assert_eq!(f.get(&second).await, None);
}

#[tokio::test]
async fn placed_objects_are_charged_by_template() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let quota = f
        .create(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "shop"},
            "spec": {"hard": {"pods": "9", "requests.cpu": "4"}}}))
        .await;
    let used = |pods: &str, cpu: &str| {
        let wanted = json!({"pods": pods, "requests.cpu": cpu});
        move |quota: Option<&Value>| quota.is_some_and(|quota| quota["status"]["used"] == wanted)
    };
    f.until("usage is known", &quota, used("0", "0")).await;
    let placement = f
        .create(json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Placement",
            "metadata": {"name": "deployments.apps-web", "namespace": "shop"},
            "spec": {"object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u"}},
            "status": {"pods": {"count": 3, "each": {"pods": "1", "requests.cpu": "200m"}}}}))
        .await;
    f.until("the template counts", &quota, used("3", "600m")).await;
    let pod = |name: &str, owner: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop",
            "ownerReferences": [{"apiVersion": "x/v1", "kind": owner, "name": "o", "uid": "o", "controller": true}]},
            "spec": {"containers": [{"name": "a", "image": "a"}]}})
    };
    for shown in [pod("of-the-template", "ReplicaSet"), pod("of-an-operator", "Database")] {
        let shown = f.create(shown).await;
        // As the syncer shows it: no request may write this label.
        let mark = |pod: &mut Value| {
            object::set_label(pod, portolan_types::annotations::PROJECTED_FROM, Some("east".into()));
            true
        };
        f.plane.force(&shown, mark).await.unwrap();
    }
    f.until("what an operator below made counts by itself", &quota, used("4", "600m")).await;
    f.delete(&placement, Propagation::Background).await;
    f.until("what is placed no more does not", &quota, used("1", "0")).await;
}

#[tokio::test]
async fn claims_stay_until_no_pod_uses_them() {
    let f = FeedFixture::start();
    f.create(namespace("shop")).await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop", "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim = f.create(claim).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "a", "image": "a"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    let pod = f.create(pod).await;
    f.delete(&claim, Propagation::Background).await;
    f.until("it is marked", &claim, |claim| claim.is_some_and(object::is_deleting)).await;
    let let_go = |pod: &mut Value| {
        pod["spec"]["volumes"] = json!([]);
        true
    };
    f.plane.force(&pod, let_go).await.unwrap();
    f.until("it goes", &claim, |claim| claim.is_none()).await;
}

#[tokio::test]
async fn an_own_copy_of_an_aggregated_role_keeps_the_rules_that_it_had_and_others_collect_them() {
    let f = FeedFixture::start();
    let shared = rbac::cluster_rules([]);
    let rules = |role: &Value| rbac::PolicyRule::of(role);
    for name in ["admin", "edit"] {
        // As the API server stores it when somebody labels it.
        let mut role = rbac::bootstrap().cluster_roles.iter().find(|role| object::name(role) == name).unwrap().clone();
        object::metadata_mut(&mut role).remove("uid");
        object::set_label(&mut role, "x", Some("y".into()));
        role["rules"] = serde_json::to_value(&shared[name]).unwrap();
        f.create(role).await;
    }
    let collects = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "zz-collects"}, "rules": [], "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}}]}});
    let collects = f.create(collects).await;
    let has_all = |found: Option<&Value>| found.is_some_and(|role| rules(role) == shared["admin"]);
    f.until("it has what admin has, over all levels", &collects, has_all).await;
    for name in ["admin", "edit"] {
        let key = ObjectKey { name: name.parse().unwrap(), ..collects.clone() };
        assert_eq!(rules(&f.get(&key).await.unwrap()), shared[name], "{name}");
    }
}

fn definition(plural: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.dev")},
        "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural, "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    })
}

fn condition<'a>(crd: &'a Value, kind: &str) -> &'a Value {
    let all = crd.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().find(|own| own["type"] == kind).unwrap_or(&Value::Null)
}

fn widget(name: &str, owner: Option<&Value>) -> Value {
    let mut widget = config_map(name, owner);
    widget["apiVersion"] = "example.dev/v1".into();
    widget["kind"] = "Widget".into();
    widget
}

#[tokio::test]
async fn a_secret_holds_the_token_of_its_account_until_one_of_them_goes() {
    let f = FeedFixture::start_filling_secrets();
    f.create(namespace("shop")).await;
    let account = |secrets: Value| {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot", "namespace": "shop"},
            "secrets": secrets})
    };
    let secret = |name: &str, uid: Option<&str>| {
        let mut annotations = json!({"kubernetes.io/service-account.name": "bot"});
        uid.iter().for_each(|uid| annotations["kubernetes.io/service-account.uid"] = json!(uid));
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations}})
    };
    let early = f.create(secret("early", None)).await;
    f.until("a token without an account goes", &early, |found| found.is_none()).await;
    let bot = f.create(account(json!([{"name": "token"}, {"name": "other"}]))).await;
    let uid = object::meta_text(&f.get(&bot).await.unwrap(), "uid").to_owned();
    let other = f.create(secret("of-another", Some("another"))).await;
    f.until("one for a namesake goes", &other, |found| found.is_none()).await;
    let mut given = secret("token", None);
    given["data"] = json!({"extra": "eA=="});
    let token = f.create(given).await;
    let is_filled = |found: Option<&Value>| found.is_some_and(|found| found.pointer("/data/token").is_some());
    f.until("the others are filled", &token, is_filled).await;
    let filled = f.get(&token).await.unwrap();
    // "shop/bot/token", "shop" and "a certificate".
    let data = json!({"token": "c2hvcC9ib3QvdG9rZW4=", "namespace": "c2hvcA==", "ca.crt": "YSBjZXJ0aWZpY2F0ZQ==",
        "extra": "eA=="});
    assert_eq!(filled["data"], data);
    assert_eq!(object::annotation(&filled, "kubernetes.io/service-account.uid"), Some(&*uid));
    let empty = |secret: &mut Value| {
        secret["data"].as_object_mut().unwrap().remove("token");
        portolan_controllers::plane::PlaneChange::Write(None)
    };
    f.plane.change(f.kind("v1", "Secret"), &token, empty).await.unwrap();
    f.until("what was taken out comes back", &token, is_filled).await;
    f.delete(&token, Propagation::Background).await;
    let named = |found: Option<&Value>| found.is_some_and(|found| found["secrets"] == json!([{"name": "other"}]));
    f.until("an account names no Secret that is gone", &bot, named).await;
    let last = f.create(secret("last", None)).await;
    f.until("it is filled", &last, is_filled).await;
    f.delete(&bot, Propagation::Background).await;
    f.until("tokens go with their account", &last, |found| found.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_waits_until_it_is_free() {
    let f = FeedFixture::start();
    let is_established =
        |found: Option<&Value>| found.is_some_and(|crd| condition(crd, "Established")["status"] == "True");
    let first = f.create(definition("widgets", "Widget")).await;
    f.until("the first is established", &first, is_established).await;
    let second = f.create(definition("gadgets", "Widget")).await;
    let is_refused = |found: Option<&Value>| {
        found.is_some_and(|crd| condition(crd, "NamesAccepted")["reason"] == "ListKindConflict")
    };
    f.until("its kind is taken", &second, is_refused).await;
    f.delete(&first, Propagation::Background).await;
    f.until("the first is gone", &first, |found| found.is_none()).await;
    f.until("then the second has its name", &second, is_established).await;
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_collected_with_their_owners_namespaces_and_definitions() {
    let f = FeedFixture::start();
    let crd = f.create(definition("widgets", "Widget")).await;
    f.until("it is established", &crd, |found| {
        found.is_some_and(|crd| condition(crd, "Established")["status"] == "True")
    })
    .await;
    let shop = f.create(namespace("shop")).await;

    let owner = f.create(config_map("owner", None)).await;
    let owned = f.create(widget("owned", f.get(&owner).await.as_ref())).await;
    f.delete(&owner, Propagation::Background).await;
    f.until("a custom resource follows its owner", &owned, |found| found.is_none()).await;

    let owner = f.create(widget("owner", None)).await;
    let owned = f.create(config_map("owned", f.get(&owner).await.as_ref())).await;
    f.delete(&owner, Propagation::Foreground).await;
    f.until("and others follow it", &owned, |found| found.is_none()).await;
    f.until("when they have gone it goes", &owner, |found| found.is_none()).await;

    let inside = f.create(widget("inside", None)).await;
    f.delete(&shop, Propagation::Background).await;
    f.until("the namespace takes it along", &shop, |found| found.is_none()).await;
    assert!(f.get(&inside).await.is_none());

    f.create(namespace("shop")).await;
    let mut held = widget("held", None);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let held = f.create(held).await;
    f.delete(&crd, Propagation::Background).await;
    f.until("the definition waits for it", &crd, |found| {
        found.is_some_and(|crd| condition(crd, "Terminating")["reason"] == "InstanceDeletionInProgress")
    })
    .await;
    f.release(&held).await;
    f.until("then it goes", &crd, |found| found.is_none()).await;
    assert!(f.get(&held).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_does_not_compile_any_more_harms_no_other_and_takes_its_instances_along() {
    let f = FeedFixture::start();
    let is_established =
        |found: Option<&Value>| found.is_some_and(|crd| condition(crd, "Established")["status"] == "True");
    let widgets = f.create(definition("widgets", "Widget")).await;
    f.until("it is established", &widgets, is_established).await;
    f.create(namespace("shop")).await;
    let instance = f.create(widget("a", None)).await;
    // As an older server may have stored it.
    let break_it = |crd: &mut Value| {
        let versions = crd["spec"]["versions"].as_array_mut().unwrap();
        versions.push(versions[0].clone());
        versions[1]["storage"] = json!(false);
        true
    };
    f.plane.force(&widgets, break_it).await.unwrap();
    assert!(f.plane.kind_of(CLUSTER, &instance.resource).await.unwrap().is_none(), "it is not served");
    let mut gadgets = definition("gadgets", "Gadget");
    gadgets["spec"]["names"]["shortNames"] = json!(["g"]);
    let gadgets = f.create(gadgets).await;
    f.until("another of its group is established", &gadgets, is_established).await;
    let mut gadget = widget("b", None);
    gadget["kind"] = "Gadget".into();
    let gadget = f.create(gadget).await;
    f.delete(&widgets, Propagation::Background).await;
    f.until("it goes", &widgets, |found| found.is_none()).await;
    assert_eq!(f.get(&instance).await, None, "after its instances");
    assert!(f.get(&gadget).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_definition_named_as_a_built_in_resource_goes_without_its_objects() {
    let f = FeedFixture::start();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "kept"}, "rules": []});
    let role = f.create(role).await;
    let (group, plural) = ("rbac.authorization.k8s.io", "clusterroles");
    let mut shadow = definition(plural, "ClusterRole");
    shadow["metadata"] = json!({"name": format!("{plural}.{group}"), "uid": "u-1",
        "creationTimestamp": "2026-01-01T00:00:00Z", "annotations":
        {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}});
    shadow["spec"]["group"] = group.into();
    shadow["spec"]["scope"] = "Cluster".into();
    shadow["spec"]["versions"][0]["name"] = "v9".into();
    // As an older server may have stored it.
    let definitions = GroupResource::new(custom::GROUP, custom::RESOURCE);
    let name = format!("{plural}.{group}").parse().unwrap();
    let (key, record) = (ObjectKey::cluster_scoped(CLUSTER, definitions, name), Record::of(&shadow));
    f.plane.store().commit(Transaction::one(key.clone(), Expect::Absent, Some(record))).await.unwrap();
    let shadow = key;
    f.until("its names are accepted", &shadow, |found| {
        found.is_some_and(|crd| condition(crd, "NamesAccepted")["status"] == "True")
    })
    .await;
    let surface = f.plane.kinds().of(CLUSTER).await.unwrap();
    assert!(surface.resource(group, "v9", plural).is_none(), "it serves nothing");
    f.delete(&shadow, Propagation::Background).await;
    f.until("it goes", &shadow, |found| found.is_none()).await;
    assert!(f.get(&role).await.is_some(), "the built-in objects stay");
}

#[tokio::test(start_paused = true)]
async fn a_definition_takes_along_more_instances_than_one_look_deletes() {
    const INSTANCES: usize = 2_500;
    let f = FeedFixture::start();
    let crd = f.create(definition("widgets", "Widget")).await;
    f.until("it is established", &crd, |found| {
        found.is_some_and(|crd| condition(crd, "Established")["status"] == "True")
    })
    .await;
    f.create(namespace("shop")).await;
    let widgets = GroupResource::new("example.dev", "widgets");
    let kind = f.plane.kind_of(CLUSTER, &widgets).await.unwrap().unwrap();
    for n in 0..INSTANCES {
        f.plane.create(&kind, CLUSTER, widget(&format!("w{n}"), None)).await.unwrap();
    }
    f.delete(&crd, Propagation::Background).await;
    f.until("the definition goes", &crd, |found| found.is_none()).await;
    let left = f.plane.store().range(RangeRequest::all(RangeScope::Cluster(CLUSTER, widgets))).await.unwrap();
    assert_eq!(left.objects.len(), 0, "after its instances");
}

#[tokio::test]
async fn controller_metrics_count_objects_and_work() {
    let registry = prometheus::Registry::new();
    let plane = Plane::new(portolan_store::memory(), KindTable::builtin(), Seams::system());
    let fixture = FeedFixture::on(plane.with_metrics(LoopMetrics::register(&registry).unwrap()), |loops| loops);
    let told = || prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let wait_for = async |line: &str| {
        let start = Instant::now();
        while !told().lines().any(|own| own == line) {
            assert!(start.elapsed() < PATIENCE, "{line} in {}", told());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    wait_for("apiserver_storage_objects{resource=\"secrets\"} 0").await;
    let secret =
        |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "ns"}});
    let first = fixture.create(secret("a")).await;
    fixture.create(secret("b")).await;
    wait_for("apiserver_storage_objects{resource=\"secrets\"} 2").await;
    fixture.delete(&first, Propagation::Background).await;
    wait_for("apiserver_resource_objects{group=\"\",resource=\"secrets\"} 1").await;
    fixture.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})).await;
    let begins = "workqueue_adds_total{name=\"service-accounts\"} ";
    let start = Instant::now();
    while !told().lines().any(|line| line.strip_prefix(begins).is_some_and(|count| count != "0")) {
        assert!(start.elapsed() < PATIENCE, "{}", told());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn policies_report_expressions_that_do_not_fit_their_kinds() {
    let f = FeedFixture::start();
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]});
    let crd = f.create(definition("widgets", "Widget")).await;
    f.until("the definition is established", &crd, |crd| condition(crd.unwrap(), "Established")["status"] == "True")
        .await;
    let rules = [rule("apps", "deployments"), rule("example.dev", "widgets")];
    let policy = f
        .create(json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": {
            "matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "object.spec.replicas > 1"}]}}))
        .await;
    let at = |policy: Option<&Value>, pointer: &str| policy.and_then(|policy| policy.pointer(pointer)).cloned();
    f.until("the first generation is checked", &policy, |policy| {
        at(policy, "/status/observedGeneration") == Some(1.into())
    })
    .await;
    let found = f.get(&policy).await.unwrap();
    let warning = "example.dev/v1, Kind=Widget: ERROR: <input>:1:7: undefined field 'spec'\n | object.spec.replicas > 1\n | ......^\n";
    assert_eq!(
        found["status"]["typeChecking"],
        json!({"expressionWarnings": [{"fieldRef": "spec.validations[0].expression", "warning": warning}]})
    );
    let mend = |policy: &mut Value| {
        policy["spec"]["validations"][0]["expression"] = "has(object.metadata)".into();
        portolan_controllers::plane::PlaneChange::Write(None)
    };
    f.plane
        .change(f.kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"), &policy, mend)
        .await
        .unwrap();
    f.until("so is the second", &policy, |policy| at(policy, "/status/observedGeneration") == Some(2.into())).await;
    let found = f.get(&policy).await.unwrap();
    assert_eq!((&found["status"]["typeChecking"], &found["metadata"]["generation"]), (&json!({}), &json!(2)));
}
