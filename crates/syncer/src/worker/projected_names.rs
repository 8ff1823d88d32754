//! Names of shown objects that have the same name on several physical clusters, and the claims that pods use.

use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, object,
    placement::ProjectionSource,
    upstream::{Projection, UpstreamObject, UpstreamRead},
};
use serde_json::Value;

use super::{SyncError, Work, Worker, reflector_cache::ObjectRef, session::Session, state::ProjectedEntry};
use crate::project;

/// Names of the claims that a pod mounts.
fn claims_of_pod(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().filter_map(|volume| volume.pointer("/persistentVolumeClaim/claimName")?.as_str())
}

impl Worker {
    /// Sets the name of `shown`: the one of its projection, or a free one. Where another physical cluster, or a user,
    /// has an object of its name, the name of this physical cluster is added.
    pub(super) async fn assign_name(
        &self,
        place: &ObjectRef,
        (cluster, namespace): (LogicalClusterId, &NamespaceName),
        found: &Value,
        shown: &mut Value,
    ) -> Result<(), SyncError> {
        let uid = object::meta_text(found, "uid");
        let known = self.state().shown.get(place).filter(|known| known.uid == uid).map(|known| known.key.name.clone());
        let name = match known {
            Some(name) => name.to_string(),
            None => match self.stored_name(place, (cluster, namespace), found, object::name(shown)).await? {
                Some(name) => name,
                None => self.free_name(place, (cluster, namespace), object::name(shown)).await?,
            },
        };
        object::metadata_mut(shown).insert("name".into(), name.into());
        Ok(())
    }

    /// Returns the name under which an object is already stored: an earlier release may have chosen another one.
    async fn stored_name(
        &self,
        place: &ObjectRef,
        (cluster, namespace): (LogicalClusterId, &NamespaceName),
        found: &Value,
        name: &str,
    ) -> Result<Option<String>, SyncError> {
        let with_cluster = project::name_with_cluster(&place.name, &self.config.name);
        for candidate in [name, &place.name, &with_cluster] {
            let Ok(parsed) = candidate.parse() else { continue };
            let key = ObjectKey::namespaced(cluster, place.resource.clone(), namespace.clone(), parsed);
            let stored = self.read_placed(&key).await?;
            let source = stored.and_then(|stored| ProjectionSource::on(&stored.object, &self.config.uid));
            if source.is_some_and(|source| source.uid == object::meta_text(found, "uid")) {
                return Ok(Some(candidate.to_owned()));
            }
        }
        Ok(None)
    }

    /// Removes an upstream object that is a second projection of the same downstream object: it would never change
    /// again. Returns true when it did.
    pub(super) async fn end_duplicate(
        &self,
        upstream: &UpstreamObject,
        place: &ObjectRef,
        source: &ProjectionSource,
    ) -> Result<bool, SyncError> {
        let is_other = |shown: &&ProjectedEntry| shown.key != upstream.key && shown.uid == source.uid;
        let other = self.state().shown.get(place).filter(is_other).map(|shown| shown.key.clone());
        let Some(other) = other else { return Ok(false) };
        let stored = self.read_placed(&other).await?;
        let shown = stored.and_then(|stored| ProjectionSource::on(&stored.object, &self.config.uid));
        if shown.is_none_or(|shown| shown.uid != source.uid) {
            self.state().shown.remove(place);
            return Ok(false);
        }
        let projection = Projection { gone: vec![upstream.key.clone()], ..Projection::default() };
        self.upstream.project(&self.config.uid, projection).await?;
        self.forget(&upstream.key);
        Ok(true)
    }

    async fn free_name(
        &self,
        place: &ObjectRef,
        (cluster, namespace): (LogicalClusterId, &NamespaceName),
        name: &str,
    ) -> Result<String, SyncError> {
        let Ok(parsed) = name.parse() else { return Ok(name.to_owned()) };
        let key = ObjectKey::namespaced(cluster, place.resource.clone(), namespace.clone(), parsed);
        let is_of_others = match self.upstream.get(&self.config.uid, &key).await? {
            UpstreamRead::Placed(stored) => ProjectionSource::on(&stored.object, &self.config.uid).is_none(),
            UpstreamRead::NotPlaced(_) => true,
            UpstreamRead::Absent => false,
        };
        let has_cluster = name.ends_with(&format!("-{}", self.config.name));
        Ok(if is_of_others && !has_cluster {
            project::name_with_cluster(name, &self.config.name)
        } else {
            name.to_owned()
        })
    }

    /// Returns true if a pod beside it mounts a claim.
    pub(super) fn is_used_by_pod(&self, session: &Session, claim: &ObjectRef) -> bool {
        let pods = session.cache.all(&GroupResource::new("", "pods"), claim.namespace());
        pods.iter().any(|pod| claims_of_pod(&pod.object).any(|name| name == claim.name))
    }

    /// Enqueues the claims that a changed pod mounts.
    pub(super) fn observe_pod(&self, pod: &Value) {
        let Ok(session) = self.session() else { return };
        let resource = GroupResource::new("", "persistentvolumeclaims");
        for name in claims_of_pod(pod) {
            let namespace = object::namespace(pod).to_owned();
            let at = ObjectRef { resource: resource.clone(), namespace, name: name.to_owned() };
            let is_shown = |found: &Value| project::is_made_downstream(found, &self.config.uid);
            if session.cache.get(&at).is_some_and(|found| is_shown(&found.object)) {
                self.queue.add(Work::Projection(at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use portolan_types::{
        GroupVersionKind, annotations,
        placement::{CopyPhase, PlacedCopy, PlacementRecord},
    };
    use serde_json::json;

    use super::*;
    use crate::testing::{
        FakeCluster,
        suite::{SyncStage, deployment},
    };

    const OTHER: &str = "west";

    /// An object that another physical cluster has made and shows.
    fn shown_by_other(stage: &SyncStage, kind: &GroupVersionKind, key: &ObjectKey, mut object: Value) {
        let uid = OTHER.parse().unwrap();
        let copy = PlacedCopy { name: OTHER.into(), uid, phase: CopyPhase::Projected, replicas: None, epoch: 0 };
        let source = ProjectionSource {
            namespace: "shop-x".into(),
            name: "a".into(),
            uid: "down-west".into(),
            is_used: false,
            shown: Default::default(),
        };
        object::set_label(&mut object, annotations::PROJECTED_FROM, Some(OTHER.into()));
        PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
        ProjectionSource::write_all(&[(OTHER.parse().unwrap(), source)].into(), &mut object);
        stage.upstream.write(key, kind, object);
    }

    /// With a Deployment, its namespace downstream, and the ReplicaSet there.
    async fn stage(cluster: &FakeCluster) -> (SyncStage, Value) {
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        let set = json!({"metadata": metadata(&stage, "web-abc", Some(("Deployment", &cluster.all("deployments")[0]))),
            "spec": {"replicas": 1, "template": deployment(1, "i:1")["spec"]["template"]}});
        let set = cluster.put("replicasets", set);
        (stage, set)
    }

    fn metadata(stage: &SyncStage, name: &str, owner: Option<(&str, &Value)>) -> Value {
        let owners = owner.map(|(kind, owner)| {
            let version = if kind == "Service" { "v1" } else { "apps/v1" };
            json!({"apiVersion": version, "kind": kind, "name": object::name(owner), "uid": object::meta_text(owner, "uid"), "controller": true})
        });
        let owners: Vec<Value> = owners.into_iter().collect();
        json!({"name": name, "namespace": stage.namespace(), "labels": {(annotations::DOWN_CLUSTER): stage.key("pods", "a").cluster.to_string()}, "ownerReferences": owners})
    }

    fn names(stage: &SyncStage, resource: &str) -> Vec<String> {
        stage.upstream.keys(resource).iter().map(|key| key.name.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_one_name_from_several_physical_clusters_are_all_shown() {
        let cluster = FakeCluster::default();
        let (stage, set) = stage(&cluster).await;
        let pod = GroupVersionKind::new("", "v1", "Pod");
        shown_by_other(&stage, &pod, &stage.key("pods", "web-abc-1"), json!({"metadata": {}, "spec": {}}));
        let pod = |name: &str| json!({"metadata": metadata(&stage, name, Some(("ReplicaSet", &set))), "spec": {"nodeName": "n"}});
        cluster.put("pods", pod("web-abc-1"));
        cluster.put("pods", pod("web-abc-2"));
        stage.until("all are shown", async |s| s.upstream.keys("pods").len() == 3).await.unwrap();
        assert_eq!(names(&stage, "pods"), ["web-abc-1", "web-abc-1-member", "web-abc-2"]);
        stage.place(
            "services",
            "web",
            json!({"metadata": {}, "spec": {"selector": {"app": "web"}}}),
            CopyPhase::Active,
        );
        stage.until("the copy is there", async |_| cluster.all("services").len() == 1).await.unwrap();
        let service = cluster.all("services").remove(0);
        let slice = json!({"metadata": metadata(&stage, "web-sim", Some(("Service", &service))), "addressType": "IPv4", "endpoints": []});
        cluster.put("endpointslices", slice);
        stage.until("its slice is shown", async |s| s.upstream.keys("endpointslices").len() == 1).await.unwrap();
        assert_eq!(names(&stage, "endpointslices"), ["web-sim-member"]);
        let stage = stage.restarted().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(names(&stage, "pods"), ["web-abc-1", "web-abc-1-member", "web-abc-2"], "and stay as they are");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_stored_by_an_older_name_is_shown_once() {
        for is_shown_twice in [false, true] {
            let cluster = FakeCluster::default();
            let (stage, _) = stage(&cluster).await;
            stage.place(
                "services",
                "web",
                json!({"metadata": {}, "spec": {"selector": {"app": "web"}}}),
                CopyPhase::Active,
            );
            stage.until("the copy is there", async |_| cluster.all("services").len() == 1).await.unwrap();
            let service = cluster.all("services").remove(0);
            let slice = |address: &str| {
                json!({"metadata": metadata(&stage, "web-sim", Some(("Service", &service))),
                "addressType": "IPv4", "endpoints": [{"addresses": [address]}]})
            };
            cluster.put("endpointslices", slice("10.0.0.1"));
            stage.until("its slice is shown", async |s| s.upstream.keys("endpointslices").len() == 1).await.unwrap();
            stage.upstream.hold_projections(true);
            let key = stage.upstream.keys("endpointslices").remove(0);
            let old = ObjectKey { name: "web-sim".parse().unwrap(), ..key.clone() };
            let stored = stage.upstream.object(&key).unwrap();
            if !is_shown_twice {
                stage.upstream.remove(&key);
            }
            stage.upstream.write(&old, &GroupVersionKind::new("discovery.k8s.io", "v1", "EndpointSlice"), stored);
            cluster.put("endpointslices", slice("10.0.0.2"));
            let stage = stage.restarted().await;
            stage.upstream.hold_projections(false);
            let is_shown_once = async |s: &SyncStage| {
                let keys = s.upstream.keys("endpointslices");
                let shown = keys.first().and_then(|key| s.upstream.object(key)).unwrap_or_default();
                keys.len() == 1 && shown["endpoints"][0]["addresses"][0] == "10.0.0.2"
            };
            stage.until("it is shown once, as it is now", is_shown_once).await.unwrap();
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert!(is_shown_once(&stage).await, "and stays so");
            if !is_shown_twice {
                assert_eq!(names(&stage, "endpointslices"), ["web-sim"], "by the name that it had");
            }
            stage.handle.stop().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_a_pod_owns_is_shown_as_owned_by_it() {
        let cluster = FakeCluster::default();
        let (stage, set) = stage(&cluster).await;
        let pod =
            json!({"metadata": metadata(&stage, "web-abc-1", Some(("ReplicaSet", &set))), "spec": {"nodeName": "n"}});
        let pod = cluster.put("pods", pod);
        let mut claim = json!({"metadata": metadata(&stage, "web-abc-1-data", None), "spec": {"volumeName": "v"}});
        claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-abc-1",
            "uid": object::meta_text(&pod, "uid"), "controller": true}]);
        cluster.put("persistentvolumeclaims", claim);
        let (pod, claim) = (stage.key("pods", "web-abc-1"), stage.key("persistentvolumeclaims", "web-abc-1-data"));
        stage.until("it is shown", async |s| s.upstream.object(&claim).is_some()).await.unwrap();
        let (pod, claim) = (stage.upstream.object(&pod).unwrap(), stage.upstream.object(&claim).unwrap());
        assert_eq!(object::controller_of(&claim).unwrap()["uid"], object::meta_text(&pod, "uid"));
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_a_pod_uses_takes_the_place_of_one_of_its_name_elsewhere_and_ends_with_its_object() {
        let cluster = FakeCluster::default();
        let (stage, set) = stage(&cluster).await;
        let (kind, key) =
            (GroupVersionKind::new("", "v1", "PersistentVolumeClaim"), stage.key("persistentvolumeclaims", "data"));
        shown_by_other(&stage, &kind, &key, json!({"metadata": {}, "spec": {"volumeName": "old"}}));
        stage.place("statefulsets", "db", deployment(0, "i:1"), CopyPhase::Active);
        cluster.put(
            "persistentvolumeclaims",
            json!({"metadata": metadata(&stage, "data", None), "spec": {"volumeName": "new"}}),
        );
        let shown = |s: &SyncStage| s.upstream.object(&key).unwrap_or_default();
        let clusters = |s: &SyncStage| PlacementRecord::of(&shown(s)).map_or(0, |record| record.clusters.len());
        stage.until("both are accounted for", async |s| clusters(s) == 2).await.unwrap();
        assert_eq!(shown(&stage)["spec"]["volumeName"], "old");
        let mut pod =
            json!({"metadata": metadata(&stage, "web-abc-1", Some(("ReplicaSet", &set))), "spec": {"nodeName": "n"}});
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        let pod = cluster.put("pods", pod);
        stage.until("that of the pod is shown", async |s| shown(s)["spec"]["volumeName"] == "new").await.unwrap();
        assert_eq!(object::label(&shown(&stage), annotations::PROJECTED_FROM), Some("member"));
        cluster.remove("pods", &pod);
        stage.upstream.delete(&key);
        stage.until("it is deleted", async |_| cluster.all("persistentvolumeclaims").is_empty()).await.unwrap();
        stage.until("and the other is still accounted for", async |s| clusters(s) == 1).await.unwrap();
        stage.handle.stop().await;
    }
}
