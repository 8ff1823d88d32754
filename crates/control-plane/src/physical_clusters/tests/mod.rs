//! Tests of simulated physical clusters with the syncer's suite, which also runs on real clusters; and of physical
//! clusters that are unreachable or deleted.

use std::{sync::Arc, time::Duration};

use portolan_controllers::{Loops, Plane};
use portolan_kinds::KindTable;
use portolan_store::{Expect, LeaderElection, RangeScope, Transaction};
use portolan_syncer::testing::suite;
use portolan_types::{
    GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Record, Seams, Uid, annotations, object,
    placement::{Connection, CopyPhase, GROUP, PlacedCopy, PlacementRecord, SimulatedConnection, TunnelConnection},
    upstream::{CopyReport, CopyState, Debt, Upstream as _},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

mod manifest;
mod names;

use super::{
    ClusterAddresses, PhysicalClusterController, RetirementController, SimulationRules, WorkerLeases,
    connectors::ConnectorFactory,
};
use crate::upstream::StoreUpstream;

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_cluster_passes_the_syncer_suite() {
    let connections = ConnectorFactory::new(ClusterAddresses::default(), Seams::system(), CancellationToken::new());
    let connection = Connection { simulated: Some(SimulatedConnection { nodes: 2 }), ..Connection::default() };
    let connector = connections
        .connector(&"u".parse().unwrap(), &registered_in(LogicalClusterId::ROOT), &connection, None)
        .await
        .expect("it starts");
    suite::run(connector.clone()).await.expect("the suite passes");
    suite::run_workloads(connector).await.expect("the suite passes with workloads");
}

#[tokio::test]
async fn a_connection_that_is_not_served_is_named() {
    let connections = ConnectorFactory::new(ClusterAddresses::default(), Seams::system(), CancellationToken::new());
    let connection = Connection { tunnel: Some(TunnelConnection {}), ..Connection::default() };
    let refused = connections
        .connector(&"u".parse().unwrap(), &registered_in(LogicalClusterId::ROOT), &connection, None)
        .await
        .err()
        .unwrap();
    assert!(refused.contains("takes no connections of agents"), "{refused}");
}

#[tokio::test]
async fn a_tenants_kubeconfig_leads_nowhere_near_the_server() {
    let connections = ConnectorFactory::new(ClusterAddresses::default(), Seams::system(), CancellationToken::new());
    let connection =
        Connection { direct: Some(portolan_types::placement::DirectConnection::default()), ..Connection::default() };
    for (server, in_root, elsewhere) in [
        ("203.0.113.7:6443", true, true),
        ("10.0.0.1:6443", true, false),
        ("127.0.0.1:6443", false, false),
        ("169.254.169.254", false, false),
    ] {
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{server}', certificate-authority-data: QUJD}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n"
        );
        for (home, is_allowed) in [(LogicalClusterId::ROOT, in_root), (LogicalClusterId::new(7), elsewhere)] {
            let key = registered_in(home);
            let connector = connections.connector(&"u".parse().unwrap(), &key, &connection, Some(&kubeconfig)).await;
            assert_eq!(connector.is_ok(), is_allowed, "{server} from {home}");
        }
    }
}

#[tokio::test]
async fn simulation_outside_root_needs_permission() {
    let connection = Connection { simulated: Some(SimulatedConnection { nodes: 1 }), ..Connection::default() };
    let tenant = LogicalClusterId::new(7);
    for (home, for_tenants, is_allowed) in
        [(LogicalClusterId::ROOT, false, true), (tenant, false, false), (tenant, true, true)]
    {
        let connections = ConnectorFactory::new(ClusterAddresses::default(), Seams::system(), CancellationToken::new());
        let connections = connections.simulating(SimulationRules { for_tenants, api: None });
        let connector = connections.connector(&"u".parse().unwrap(), &registered_in(home), &connection, None).await;
        assert_eq!(connector.is_ok(), is_allowed, "{home} {for_tenants}");
        let Err(why) = connector else { continue };
        assert!(why.contains("--allow-simulated-tenant-clusters"), "{why}");
        assert!(!connections.simulates(&"u".parse().unwrap()).await, "nothing runs for it");
    }
}

/// Returns the key of the physical cluster `east`, registered in `home`.
fn registered_in(home: LogicalClusterId) -> ObjectKey {
    ObjectKey::cluster_scoped(home, GroupResource::new(GROUP, "physicalclusters"), "east".parse().unwrap())
}

/// Registered physical clusters over the memory store, with their controllers.
struct World {
    plane: Arc<Plane>,
    upstream: Arc<StoreUpstream>,
}

fn east() -> Uid {
    "east-uid".parse().unwrap()
}

fn key(cluster: LogicalClusterId, resource: &str, name: &str) -> ObjectKey {
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let (resource, name) = (GroupResource::new(group, resource), name.parse().unwrap());
    match cluster {
        LogicalClusterId::ROOT => ObjectKey::cluster_scoped(cluster, resource, name),
        _ => ObjectKey::namespaced(cluster, resource, "shop".parse().unwrap(), name),
    }
}

fn shop(resource: &str, name: &str) -> ObjectKey {
    key(LogicalClusterId::new(7), resource, name)
}

fn registered() -> ObjectKey {
    key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev", "east")
}

impl World {
    fn start() -> Self {
        let plane = Arc::new(Plane::new(portolan_store::memory(), KindTable::builtin(), Seams::system()));
        let upstream = Arc::new(StoreUpstream::new(plane.clone(), Some("plane".into())));
        let stop = CancellationToken::new();
        let connections = ConnectorFactory::new(ClusterAddresses::default(), Seams::system(), stop.clone());
        let members = PhysicalClusterController::new(
            plane.clone(),
            upstream.clone(),
            Arc::new(connections),
            WorkerLeases::new(Arc::new(LeaderElection::standalone())),
            stop.clone(),
        );
        let loops = Loops::new(plane.clone()).with(members).with(RetirementController::new(&plane, upstream.clone()));
        tokio::spawn(loops.run(stop));
        Self { plane, upstream }
    }

    async fn write(&self, key: &ObjectKey, object: Option<&Value>) {
        let txn = Transaction::one(key.clone(), Expect::Anything, object.map(Record::of));
        self.plane.store().commit(txn).await.unwrap();
    }

    /// Registers a physical cluster without its kubeconfig.
    async fn register_east(&self, notes: Value) {
        let connection = json!({"direct": {"kubeconfigSecretRef": {"namespace": "infra", "name": "east"}}});
        let metadata = json!({"name": "east", "uid": "east-uid", "annotations": notes});
        let object = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": metadata,
            "spec": {"connection": connection}});
        self.write(&registered(), Some(&object)).await;
    }

    async fn place(&self, resource: &str, name: &str, phase: CopyPhase, mut object: Value) {
        let metadata = object::metadata_mut(&mut object);
        metadata.insert("name".into(), name.into());
        metadata.insert("namespace".into(), "shop".into());
        metadata.insert("uid".into(), format!("{name}-uid").into());
        let copy = PlacedCopy { name: "east".into(), uid: east(), phase, replicas: None, epoch: 1 };
        PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
        self.write(&shop(resource, name), Some(&object)).await;
    }

    async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.plane.get(key).await.unwrap().map(|found| found.object)
    }

    /// Lists Portolan's own records.
    async fn books(&self) -> Vec<String> {
        let system = self.plane.list(RangeScope::Everything(LogicalClusterId::SYSTEM)).await.unwrap();
        let copies = GroupResource::new("internal.portolan.dev", "copies");
        let states = self.plane.list(RangeScope::AllClusters(copies)).await.unwrap();
        let rows = system.iter().chain(&states);
        let mut rows: Vec<String> = rows.map(|row| format!("{} {}", row.key.resource.resource, row.key.name)).collect();
        rows.sort();
        rows
    }
}

fn deployment(metadata: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}})
}

fn condition(object: &Value, kind: &str) -> (String, String, String) {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn a_physical_cluster_without_a_usable_connection_is_out_of_reach() {
    const WHY: &str = "Secret infra/east does not exist";
    let world = World::start();
    world.register_east(json!({})).await;
    world.place("deployments.apps", "web", CopyPhase::Active, deployment(json!({"generation": 1}))).await;
    world.place("deployments.apps", "old", CopyPhase::Active, deployment(json!({"deletionTimestamp": "t"}))).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let (status, reason, message) = condition(&world.get(&registered()).await.unwrap(), "Ready");
    assert_eq!((&*status, &*reason, message.contains(WHY)), ("False", "InvalidConnection", true), "{message}");
    let web = world.get(&shop("deployments.apps", "web")).await.unwrap();
    let (status, reason, message) = condition(&web, "portolan.dev/Synced");
    assert_eq!((&*status, &*reason, message.contains(WHY)), ("Unknown", "Unreachable", true), "{web}");
    assert!(world.get(&shop("deployments.apps", "old")).await.is_some(), "it may still come back");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(world.get(&shop("deployments.apps", "old")).await.is_none());
    assert_eq!(world.upstream.debts(&east()).await.unwrap().len(), 1);
    assert!(world.get(&shop("deployments.apps", "web")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_release_of_deletions_is_used_once() {
    let world = World::start();
    for asked in ["5", "all"] {
        world.register_east(json!({(annotations::RELEASE_DELETIONS): asked, "note": "stays"})).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let object = world.get(&registered()).await.unwrap();
        let left = &object["metadata"]["annotations"];
        assert_eq!((&left["note"], left.get(annotations::RELEASE_DELETIONS)), (&json!("stays"), None), "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_about_a_physical_cluster_that_is_gone() {
    let world = World::start();
    world.register_east(json!({})).await;
    world.place("deployments.apps", "web", CopyPhase::Active, deployment(json!({"generation": 1}))).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}});
    world.place("pods", "web-x", CopyPhase::Projected, pod).await;
    world.place("configmaps", "old", CopyPhase::Active, json!({"apiVersion": "v1", "kind": "ConfigMap"})).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = json!({"readyReplicas": 1});
    let state = CopyState::Synced { stamp: 1, is_current: true, scaled: None, revision: None, status };
    let (at, uid) = (shop("deployments.apps", "web"), "web-uid".parse().unwrap());
    let report = CopyReport { key: at.clone(), uid, physical: east(), epoch: 1, state, node: None };
    world.upstream.report(report).await.unwrap();
    let (owed, kind) = (shop("configmaps", "old"), GroupVersionKind::new("", "v1", "ConfigMap"));
    let debt = Debt { key: owed, source: None, kind, uid: "old-uid".parse().unwrap(), epoch: 1, is_orphan: false };
    world.upstream.record_debt(&east(), debt).await.unwrap();
    let kept = world.books().await;
    assert_eq!(kept, ["copies web-uid", "debts east-uid.old-uid.1", "syncers east-uid"]);

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "uid": "n"}});
    world.write(&key(LogicalClusterId::ROOT, "namespaces", "default"), Some(&namespace)).await;
    let ready = async || world.get(&at).await.unwrap()["status"]["readyReplicas"].as_i64().unwrap_or(0);
    assert_eq!(ready().await, 1);
    world.write(&registered(), None).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let resource = GroupResource::new("", "events");
    let events = world.plane.list(RangeScope::Cluster(LogicalClusterId::ROOT, resource)).await.unwrap();
    let told = events.iter().find(|event| event.object["reason"] == "CopiesWrittenOff").expect("it is reported");
    assert!(told.object.to_string().contains("written off (1)"), "{}", told.object);
    assert!(world.get(&shop("pods", "web-x")).await.is_none(), "what it made is shown no more");
    assert_eq!(world.books().await, ["copies web-uid", "syncers east-uid"], "the scheduler has yet to let go");
    let mut web = world.get(&at).await.unwrap();
    PlacementRecord::default().write_to(&mut web);
    world.write(&at, Some(&web)).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.books().await, Vec::<String>::new());
    assert_eq!(ready().await, 0, "nothing is ready where it ran");
}
