//! Keeps the labels of downstream namespaces equal to those of their upstream namespaces, and the Services that they
//! import known there.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, NamespaceName, ObjectKey, annotations, fingerprint,
    imported_services::imports,
    object,
    upstream::{ChangeStream, UpstreamError},
    work::WorkOutcome,
};
use serde_json::{Map, Value, json};

use super::{SyncError, Work, Worker, queue::jitter, reflector_cache::ObjectRef};
use crate::{client::ServedResource, namespace_naming::label_changes, naming::NamespaceIdentity};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(10);

fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

/// Follows the namespaces upstream.
pub(super) async fn follow(worker: Arc<Worker>) {
    let namespace = |key: &ObjectKey| key.name.parse().ok().filter(|_| key.resource == namespaces());
    follow_stream(&worker, || worker.upstream.namespace_changes(), namespace).await;
}

/// Follows the imports of Services upstream.
pub(super) async fn follow_imports(worker: Arc<Worker>) {
    let namespace = |key: &ObjectKey| key.namespace().cloned().filter(|_| key.resource == imports());
    follow_stream(&worker, || worker.upstream.import_changes(), namespace).await;
}

/// Follows changes, each of which is about the namespace that `namespace` tells. What changed while nothing followed
/// them is looked at first.
async fn follow_stream<'a>(
    worker: &Worker,
    open: impl Fn() -> BoxFuture<'a, Result<Box<dyn ChangeStream>, UpstreamError>>,
    namespace: impl Fn(&ObjectKey) -> Option<NamespaceName>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(mut stream) = open().await {
            worker.enqueue_namespace_labels();
            while let Ok(changes) = stream.next().await {
                pause = FIRST_PAUSE;
                for (key, name) in changes.keys.iter().filter_map(|key| Some((key, namespace(key)?))) {
                    worker.observe_upstream_namespace(key.cluster, &name);
                }
            }
        }
        tokio::time::sleep(jitter(&worker.seams, pause)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Metadata of a downstream namespace that follows upstream.
struct NamespaceMetadata {
    labels: Map<String, Value>,
    /// Value of [`annotations::DOWN_IMPORTED`].
    imported: Option<String>,
}

impl NamespaceMetadata {
    /// Returns the necessary changes of the metadata as a merge patch; `None` if there are none.
    fn changes(&self, downstream: &Value) -> Option<Map<String, Value>> {
        let mut changes = Map::new();
        if let Some(labels) = label_changes(downstream, &self.labels) {
            changes.insert("labels".into(), labels.into());
        }
        if object::annotation(downstream, annotations::DOWN_IMPORTED) != self.imported.as_deref() {
            changes.insert("annotations".into(), json!({annotations::DOWN_IMPORTED: self.imported}));
        }
        (!changes.is_empty()).then_some(changes)
    }
}

impl Worker {
    fn enqueue_namespace_labels(&self) {
        let Ok(session) = self.session() else { return };
        for known in session.cache.all(&namespaces(), None) {
            self.queue.add(Work::NamespaceLabels(object::name(&known.object).to_owned()));
        }
    }

    fn observe_upstream_namespace(&self, cluster: LogicalClusterId, name: &NamespaceName) {
        let Ok(downstream) = self.rules().naming().downstream(cluster, name) else { return };
        let Ok(session) = self.session() else { return };
        let at = ObjectRef { resource: namespaces(), namespace: String::new(), name: downstream.to_string() };
        if session.cache.get(&at).is_some() {
            self.queue.add(Work::NamespaceLabels(at.name));
        }
    }

    /// Returns the labels that the downstream namespace of `key` has for selectors; `None` when `key` is not placed on
    /// the physical cluster.
    pub(super) async fn namespace_labels(&self, key: &ObjectKey) -> Result<Option<Map<String, Value>>, SyncError> {
        let upstream = self.upstream.namespace_labels(&self.config.uid, key).await?;
        Ok(upstream.map(|labels| self.rules().naming().labels(key.cluster, &labels)))
    }

    /// Returns the labels and the imports of a namespace of which objects are placed on the physical cluster; `None`
    /// for any other.
    async fn metadata_by_placed_object(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
    ) -> Result<Option<NamespaceMetadata>, SyncError> {
        let is_in = |key: &&ObjectKey| key.cluster == cluster && key.namespace() == Some(namespace);
        let keys: Vec<ObjectKey> = self.state().known.keys().filter(is_in).cloned().collect();
        for key in keys {
            if let Some(labels) = self.namespace_labels(&key).await? {
                let imported = self.upstream.imported_services(&self.config.uid, &key).await?.to_text();
                return Ok(Some(NamespaceMetadata { labels, imported }));
            }
        }
        Ok(None)
    }

    pub(super) async fn reconcile_namespace_labels(&self, name: &str) -> Result<WorkOutcome, SyncError> {
        let session = self.session()?;
        let at = ObjectRef { resource: namespaces(), namespace: String::new(), name: name.to_owned() };
        let Some(known) = session.cache.get(&at).filter(|known| !object::is_deleting(&known.object)) else {
            return Ok(WorkOutcome::Done);
        };
        let identity = NamespaceIdentity::of(&known.object).filter(|identity| {
            identity.physical == self.config.uid && identity.plane.as_deref() == self.upstream.plane()
        });
        let Some(identity) = identity else { return Ok(WorkOutcome::Done) };
        let (Ok(cluster), Ok(namespace)) = (identity.cluster.parse(), identity.namespace.parse()) else {
            return Ok(WorkOutcome::Done);
        };
        // Users of the physical cluster can write the annotation that names the upstream namespace. Only the name that
        // is computed from the annotation proves that the namespace belongs to it.
        if !self.rules().naming().downstream(cluster, &namespace).is_ok_and(|downstream| *downstream == *name) {
            return Ok(WorkOutcome::Done);
        }
        // The physical cluster must not get the labels of a namespace from which it has no copy.
        if !self.is_view_synced.load(Ordering::Acquire) {
            return Err(SyncError::NotSynced("upstream's objects".into()));
        }
        let Some(wanted) = self.metadata_by_placed_object(cluster, &namespace).await? else {
            return Ok(WorkOutcome::Done);
        };
        let Some(mut changes) = wanted.changes(&known.object) else { return Ok(WorkOutcome::Done) };
        changes.insert("uid".into(), known.uid().into());
        changes.insert("resourceVersion".into(), object::meta_text(&known.object, "resourceVersion").into());
        let patch = json!({"metadata": changes});
        let path = ServedResource::namespaces().path(None, Some(name));
        let (work, wanted) =
            (Work::NamespaceLabels(name.to_owned()), fingerprint(&json!([wanted.labels, wanted.imported])));
        if let Some(wait) = self.repair_wait(&work, &wanted) {
            return Ok(WorkOutcome::RequeueAfter(wait));
        }
        self.record_repair(work, wanted);
        match session.api.merge_patch(&path, &patch).await {
            Ok(made) => {
                session.cache.put(&at, made);
                Ok(WorkOutcome::Done)
            }
            Err(error) if error.is_absent(name) => Ok(WorkOutcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupVersionKind, annotations, placement::CopyPhase};

    use super::*;
    use crate::testing::{FakeCluster, suite::SyncStage};

    fn label(cluster: &FakeCluster, key: &str) -> Option<String> {
        let namespaces = cluster.all("namespaces");
        namespaces.first().and_then(|namespace| object::label(namespace, key)).map(str::to_owned)
    }

    #[tokio::test(start_paused = true)]
    async fn a_downstream_namespace_has_the_labels_of_its_upstream_one() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let shop = ObjectKey { scope: None.into(), ..stage.key("namespaces", "shop") };
        let upstream = |team: Value| {
            let labels = json!({"kubernetes.io/metadata.name": "shop", "team": team});
            let kind = GroupVersionKind::new("", "v1", "Namespace");
            stage.upstream.write(&shop, &kind, json!({"metadata": {"labels": labels}}));
        };
        upstream("blue".into());
        stage.place("configmaps", "a", json!({"metadata": {}, "data": {"a": "1"}}), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        let name = "kubernetes.io.namespace.portolan.dev/metadata.name";
        assert_eq!(label(&cluster, name).as_deref(), Some("shop"), "from the first moment");
        let tenant = label(&cluster, annotations::DOWN_TENANT).unwrap();
        let has_team =
            async |_: &SyncStage, team: &str| label(&cluster, "namespace.portolan.dev/team").as_deref() == Some(team);
        stage.until("the team is there", async |s| has_team(s, "blue").await).await.unwrap();
        upstream("red".into());
        stage.until("it follows", async |s| has_team(s, "red").await).await.unwrap();
        let mut namespace = cluster.all("namespaces").remove(0);
        namespace["metadata"]["labels"]["namespace.portolan.dev/team"] = "forged".into();
        namespace["metadata"]["labels"]["namespace.portolan.dev/forged"] = "x".into();
        namespace["metadata"]["labels"][annotations::DOWN_TENANT] = "other".into();
        cluster.put("namespaces", namespace);
        let is_repaired = async |s: &SyncStage| {
            has_team(s, "red").await
                && label(&cluster, annotations::DOWN_TENANT).as_deref() == Some(&*tenant)
                && label(&cluster, "namespace.portolan.dev/forged").is_none()
        };
        stage.until("what others write is taken off", is_repaired).await.unwrap();
        let stage = stage.restarted().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(has_team(&stage, "red").await);
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_downstream_namespace_names_what_its_upstream_one_imports() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("configmaps", "a", json!({"metadata": {}, "data": {"a": "1"}}), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        let import = ObjectKey { resource: imports(), ..stage.key("configmaps", "web") };
        let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
        let slice = ObjectKey { resource: slices, ..stage.key("configmaps", "mc-web") };
        let write = |address: &str| {
            let kind = GroupVersionKind::new("discovery.k8s.io", "v1", "EndpointSlice");
            let labels = json!({"multicluster.kubernetes.io/service-name": "web",
                "multicluster.kubernetes.io/source-cluster": "west"});
            let endpoints = json!([{"addresses": [address]}]);
            stage.upstream.write(&slice, &kind, json!({"metadata": {"labels": labels}, "endpoints": endpoints}));
            let kind = GroupVersionKind::new("multicluster.x-k8s.io", "v1beta1", "ServiceImport");
            stage.upstream.write(&import, &kind, json!({"metadata": {"annotations": {"at": address}}}));
        };
        let imported = || {
            let namespaces = cluster.all("namespaces");
            object::annotation(&namespaces[0], annotations::DOWN_IMPORTED).map(str::to_owned)
        };
        assert_eq!(imported(), None);
        for address in ["10.2.0.1", "10.2.0.2"] {
            write(address);
            let expected = json!({"web": {"west": [{"addresses": [address]}]}}).to_string();
            stage.until(address, async |_| imported().as_deref() == Some(&*expected)).await.unwrap();
        }
        stage.upstream.remove(&import);
        stage.until("nothing is imported", async |_| imported().is_none()).await.unwrap();
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_of_which_nothing_is_placed_there_gets_no_labels() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let kind = GroupVersionKind::new("", "v1", "Namespace");
        let foreign =
            ObjectKey { cluster: LogicalClusterId::new(77), scope: None.into(), ..stage.key("namespaces", "vault") };
        stage.upstream.write(&foreign, &kind, json!({"metadata": {"labels": {"team": "secret"}}}));
        let identity = NamespaceIdentity {
            cluster: foreign.cluster.to_string(),
            namespace: "vault".into(),
            physical: "physical-9".parse().unwrap(),
            plane: Some(crate::testing::MemoryUpstream::PLANE.into()),
        };
        let mapping = portolan_types::placement::NamespaceMapping::Hashed;
        let name =
            crate::downstream_namespace(mapping, identity.plane.as_deref(), foreign.cluster, &"vault".parse().unwrap());
        let forged = identity.to_namespace(&name.unwrap());
        // The object names the foreign namespace too: its upstream content does not count as placed.
        let copy = |cluster: &str| {
            let identity =
                json!({"cluster": cluster, "uid": "u", "physical": "physical-9", "namespace": "vault", "name": "s",
                "generation": 1, "epoch": 1, "syncerEpoch": 1})
                .to_string();
            json!({"metadata": {"name": "s", "namespace": object::name(&forged), "labels": {(annotations::DOWN_CLUSTER): cluster},
                "annotations": {(annotations::DOWN_IDENTITY): identity}}})
        };
        let settings = ObjectKey { cluster: foreign.cluster, ..stage.key("configmaps", "s") };
        let settings = ObjectKey { scope: Some("vault".parse().unwrap()).into(), ..settings };
        stage.upstream.write(&settings, &GroupVersionKind::new("", "v1", "ConfigMap"), json!({"metadata": {}}));
        cluster.put("configmaps", copy(&foreign.cluster.to_string()));
        cluster.put("namespaces", forged.clone());
        for n in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut forged = forged.clone();
            object::set_annotation(&mut forged, "n", Some(n.to_string()));
            cluster.put("namespaces", forged);
        }
        assert_eq!(label(&cluster, "namespace.portolan.dev/team"), None);
        assert_eq!(cluster.requests("PATCH"), Vec::<String>::new());
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn labels_and_fields_that_are_changed_again_and_again_are_repaired_less_and_less_often() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let copy = json!({"metadata": {}, "data": {"a": "1"}});
        stage.place("configmaps", "a", copy, CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = cluster.requests("PATCH").len();
        for _ in 0..300 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let mut namespace = cluster.all("namespaces").remove(0);
            namespace["metadata"]["labels"]["namespace.portolan.dev/forged"] = "x".into();
            cluster.put("namespaces", namespace);
            stage.tamper("configmaps", "a", &json!({"data": {"a": "drift"}})).await.unwrap();
        }
        // The test itself sends 300 requests. In a minute, each object may be repaired three times at once, then after
        // 1, 2, 4, 8, 16 and 32 s.
        let repairs = cluster.requests("PATCH").len() - before - 300;
        assert!((8..=20).contains(&repairs), "{repairs}");
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert_eq!(cluster.all("configmaps")[0]["data"]["a"], "1", "in the end both are repaired");
        assert_eq!(label(&cluster, "namespace.portolan.dev/forged"), None);
        stage.handle.stop().await;
    }
}
