//! Tests of copies made before control planes had names, and of a control plane with a name: a store, a syncer and a
//! physical cluster in memory.

use std::{sync::Arc, time::Duration};

use portolan_controllers::Plane;
use portolan_kinds::KindTable;
use portolan_store::{Expect, Transaction};
use portolan_syncer::{NamespaceIdentity, Syncer, SyncerConfig, SyncerHandle, testing::FakeCluster};
use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, Record, Seams, Uid, annotations, object,
    placement::{CopyPhase, PhysicalClusterSpec, PlacedCopy, PlacementRecord},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{plane_name::plane_name, upstream::StoreUpstream};

/// Downstream namespace of `shop` in `root` before control planes had names.
const OLD: &str = "shop-itbr53qwdpjcaa7eruemr4qzl4";

fn east() -> Uid {
    "east-uid".parse().unwrap()
}

fn registered() -> ObjectKey {
    let resource = GroupResource::new("portolan.dev", "physicalclusters");
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, "east".parse().unwrap())
}

fn settings() -> ObjectKey {
    let (resource, shop) = (GroupResource::new("", "configmaps"), "shop".parse().unwrap());
    ObjectKey::namespaced(LogicalClusterId::ROOT, resource, shop, "settings".parse().unwrap())
}

struct World {
    plane: Arc<Plane>,
    below: FakeCluster,
}

impl World {
    fn new() -> Self {
        let plane = Plane::new(portolan_store::memory(), KindTable::builtin(), Seams::system());
        Self { plane: Arc::new(plane), below: FakeCluster::default() }
    }

    async fn write(&self, key: &ObjectKey, object: &Value) {
        let txn = Transaction::one(key.clone(), Expect::Anything, Some(Record::of(object)));
        self.plane.store().commit(txn).await.unwrap();
    }

    async fn register(&self) {
        let object = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
            "metadata": {"name": "east", "uid": "east-uid"}, "spec": {}});
        self.write(&registered(), &object).await;
    }

    async fn place(&self, value: &str, deleted_at: Option<&str>) {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": value},
            "metadata": {"name": "settings", "namespace": "shop", "uid": "up", "generation": 1}});
        if let Some(at) = deleted_at {
            object["metadata"]["deletionTimestamp"] = at.into();
        }
        let copy = PlacedCopy { name: "east".into(), uid: east(), phase: CopyPhase::Active, replicas: None, epoch: 1 };
        PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
        self.write(&settings(), &object).await;
    }

    /// Writes a copy as servers made it before control planes had names. Returns its uid.
    fn put_old_copy(&self) -> String {
        let labels = json!({(annotations::DOWN_CLUSTER): "root", (annotations::DOWN_NAMESPACE): "shop"});
        let metadata = |name: &str, identity: &str| json!({"name": name, "labels": labels, "annotations": {(annotations::DOWN_IDENTITY): identity}});
        let identity = r#"{"cluster":"root","namespace":"shop","physical":"east-uid"}"#;
        self.below.put("namespaces", json!({"metadata": metadata(OLD, identity)}));
        let identity = r#"{"cluster":"root","uid":"up","physical":"east-uid","namespace":"shop","name":"settings","generation":1,"epoch":1,"syncerEpoch":1}"#;
        let mut copy = json!({"metadata": metadata("settings", identity), "data": {"a": "1"}});
        copy["metadata"]["namespace"] = OLD.into();
        object::meta_text(&self.below.put("configmaps", copy), "uid").to_owned()
    }

    /// Starts a syncer over this store as a server does.
    async fn start(&self) -> SyncerHandle {
        let name = plane_name(self.plane.store(), &Seams::system()).await.unwrap();
        let upstream = StoreUpstream::new(self.plane.clone(), name);
        upstream.register(east(), registered());
        let number = upstream.next_syncer(&east()).await.unwrap();
        let config = SyncerConfig::new("east", east(), PhysicalClusterSpec::default(), number);
        let (stop, connector) = (CancellationToken::new(), Arc::new(self.below.clone()));
        Syncer::spawn(config, Arc::new(upstream), connector, Seams::system(), &stop)
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) {
        for _ in 0..600 {
            if holds(self).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("waited in vain until {what}");
    }

    /// Returns values, namespaces and uids of all copies.
    fn copies(&self) -> Vec<(String, String, String)> {
        let told = |copy: &Value| {
            let value = copy["data"]["a"].as_str().unwrap_or_default().to_owned();
            (value, object::namespace(copy).to_owned(), object::meta_text(copy, "uid").to_owned())
        };
        self.below.all("configmaps").iter().map(told).collect()
    }

    fn namespaces(&self) -> Vec<String> {
        self.below.all("namespaces").iter().map(|found| object::name(found).to_owned()).collect()
    }

    async fn delete_and_tidy(&self) {
        self.place("2", Some("2026-01-01T00:00:00Z")).await;
        self.until("the object is gone above", async |w| w.plane.get(&settings()).await.unwrap().is_none()).await;
        assert_eq!(self.copies(), [], "and so is its copy");
        self.until("its namespace is removed", async |w| w.namespaces().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn copies_of_before_there_were_names_are_found_where_they_are() {
    let world = World::new();
    world.register().await;
    world.place("1", None).await;
    let uid = world.put_old_copy();
    for (case, value) in [("the first start with names", "2"), ("the next one", "3")] {
        let syncer = world.start().await;
        world.place(value, None).await;
        let expected = [(value.to_owned(), OLD.to_owned(), uid.clone())];
        world.until(case, async |w| w.copies() == expected).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!((world.copies(), world.namespaces()), (expected.to_vec(), vec![OLD.to_owned()]), "{case}");
        syncer.stop().await;
    }
    let syncer = world.start().await;
    world.delete_and_tidy().await;
    syncer.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unnamed_copies_of_offline_deletions_are_found() {
    let world = World::new();
    world.register().await;
    world.put_old_copy();
    world.place("2", Some("2026-01-01T00:00:00Z")).await;
    let syncer = world.start().await;
    world.delete_and_tidy().await;
    syncer.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_control_plane_marks_its_namespaces_with_its_name() {
    let world = World::new();
    let name = plane_name(world.plane.store(), &Seams::system()).await.unwrap();
    assert!(name.is_some());
    world.register().await;
    world.place("1", None).await;
    let syncer = world.start().await;
    world.until("the copy is there", async |w| w.copies().len() == 1).await;
    let made = world.below.all("namespaces");
    assert_eq!(NamespaceIdentity::of(&made[0]).map(|identity| identity.plane), Some(name));
    assert_ne!(world.namespaces(), [OLD], "it is of no control plane of before");
    world.delete_and_tidy().await;
    syncer.stop().await;
}
