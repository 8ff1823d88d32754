//! Forwards changes of projected objects that were made upstream: labels, annotations, requests of claims, and of
//! running pods images, resources and ephemeral containers.

use portolan_types::{
    GroupResource, ObjectKey, Reason, annotations, object,
    upstream::{Projection, UpstreamError, UpstreamObject},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, reflector_cache::ObjectRef, session::Session, token_buckets::WRITE_RATE};
use crate::{
    client::DownstreamError,
    project::{self, PodChanges},
    transform::check_ephemeral,
};

impl Worker {
    /// Writes upstream changes to the downstream object. A refusal becomes an Event, and the write is retried.
    pub(super) async fn forward_metadata(
        &self,
        session: &Session,
        upstream: &UpstreamObject,
        place: &ObjectRef,
        found: &Value,
    ) -> Result<(), SyncError> {
        let Some(pending) = project::pending_changes(&upstream.object, &self.config.uid) else { return Ok(()) };
        let is_ours = object::label(found, annotations::DOWN_CLUSTER) == Some(&upstream.key.cluster.to_string());
        let Some(served) = session.served(&place.resource).filter(|_| is_ours) else { return Ok(()) };
        let path = served.path(place.namespace(), Some(&place.name));
        match session.api.merge_patch(&path, &project::pending_patch(pending, found)).await {
            Ok(made) => {
                session.cache.put(place, made);
                self.queue.add(Work::Projection(place.clone()));
                Ok(())
            }
            Err(error) if error.is_absent(&place.name) => Ok(()),
            Err(error) => {
                if let DownstreamError::Refused(answer) = &error
                    && answer.refusal().is_some()
                {
                    self.record_refused_change(upstream, &answer.message).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Brings changes of a running pod that were made upstream to the pod, each by its part of the API. A refusal is
    /// reported by an Event, and tried again.
    pub(super) async fn forward_pod_changes(
        &self,
        session: &Session,
        upstream: &UpstreamObject,
        place: &ObjectRef,
    ) -> Result<(), SyncError> {
        let mut changes = PodChanges::pending(&upstream.object, &self.config.uid);
        // Upstream refuses such changes, too. If one exists nevertheless, it is skipped, and does not block others.
        changes.ephemeral.retain(|container| check_ephemeral(container).is_ok());
        // The metadata may have been written just now.
        let Some(found) = session.cache.get(place).filter(|_| !changes.is_empty()) else { return Ok(()) };
        let is_ours =
            object::label(&found.object, annotations::DOWN_CLUSTER) == Some(&upstream.key.cluster.to_string());
        let Some(served) = session.served(&place.resource).filter(|_| is_ours) else { return Ok(()) };
        let Some((part, patch)) = changes.next_patch(&found.object) else { return Ok(()) };
        let path = format!("{}{}", served.path(place.namespace(), Some(&place.name)), part.path());
        match session.api.patch_pod(&path, &found.object, &patch).await {
            Ok(made) => {
                session.cache.put(place, made);
                // The next projection shows which changes have arrived, and which remain.
                self.queue.add(Work::Projection(place.clone()));
                Ok(())
            }
            Err(error) => {
                if let DownstreamError::Refused(answer) = &error
                    && answer.refusal().is_some()
                {
                    self.record_refused_change(upstream, &answer.message).await?;
                }
                Err(error.into())
            }
        }
    }

    async fn record_refused_change(&self, upstream: &UpstreamObject, why: &str) -> Result<(), SyncError> {
        let message = format!("{} refuses what was changed here: {why}", self.config.name);
        self.record_warning(upstream, WarningEvent { name: "change-refused", reason: "ChangeRefused", message }).await
    }

    /// Records an Event about the maker of an object that is not projected, since the workspace would exceed its
    /// limits.
    pub(super) async fn record_not_projected(
        &self,
        maker: &UpstreamObject,
        error: &SyncError,
    ) -> Result<(), SyncError> {
        let SyncError::Upstream(UpstreamError::Failed(status)) = error else { return Ok(()) };
        let at = Work::Event(ObjectRef::of(&maker.key.resource, &maker.object));
        let is_over_limit = status.reason() == Reason::Forbidden;
        if !is_over_limit || self.state().write_rates.take(at, WRITE_RATE, Instant::now()).is_err() {
            return Ok(());
        }
        let message = format!("what {} made of this is not shown: {}", self.config.name, status.message());
        self.record_warning(maker, WarningEvent { name: "limit-exceeded", reason: "LimitExceeded", message }).await
    }

    async fn record_warning(&self, about: &UpstreamObject, warning: WarningEvent) -> Result<(), SyncError> {
        let name = format!("{}.{}", about.key.name, warning.name);
        let (Some(namespace), Ok(name)) = (about.key.namespace(), name.parse()) else { return Ok(()) };
        let key = ObjectKey { resource: GroupResource::new("", "events"), name, ..about.key.clone() };
        let now = self.seams.now_text();
        let event = json!({
            "type": "Warning", "reason": warning.reason, "message": warning.message, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": {"component": "portolan-syncer"},
            "metadata": {"name": key.name.as_str(), "namespace": namespace.as_str()},
        });
        let Some(event) = project::event(&event, namespace, about, &self.config.name) else { return Ok(()) };
        let projection = Projection { events: vec![(key, about.key.clone(), event)], ..Projection::default() };
        Ok(self.upstream.project(&self.config.uid, projection).await?)
    }
}

/// Event of the type Warning.
struct WarningEvent {
    /// End of its name, after that of the object.
    name: &'static str,
    reason: &'static str,
    message: String,
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use portolan_types::placement::CopyPhase;

    use super::*;
    use crate::testing::{
        CannedAnswer, FakeCluster,
        suite::{SyncStage, deployment},
    };

    /// A pod of a Deployment, which is shown.
    async fn stage(cluster: &FakeCluster) -> (SyncStage, ObjectKey) {
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        let copy = cluster.all("deployments").remove(0);
        let owned = |name: &str, kind: &str, owner: &Value| {
            json!({"name": name, "namespace": stage.namespace(), "labels": copy["spec"]["template"]["metadata"]["labels"], "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": kind, "name": object::name(owner), "uid": object::meta_text(owner, "uid"), "controller": true}]})
        };
        let template = &copy["spec"]["template"];
        let set =
            json!({"metadata": owned("web-abc", "Deployment", &copy), "spec": {"replicas": 1, "template": template}});
        let set = cluster.put("replicasets", set);
        cluster.put("pods", json!({"metadata": owned("web-abc-1", "ReplicaSet", &set), "spec": {"nodeName": "n"}}));
        stage.until("the pod is shown", async |s| s.upstream.keys("pods").len() == 1).await.unwrap();
        let key = stage.upstream.keys("pods").remove(0);
        (stage, key)
    }

    fn set_role(stage: &SyncStage, key: &ObjectKey, role: &str) {
        let mut pod = stage.upstream.object(key).unwrap();
        object::set_label(&mut pod, "role", Some(role.to_owned()));
        stage.upstream.write(key, &portolan_types::GroupVersionKind::new("", "v1", "Pod"), pod);
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_that_is_set_upstream_on_a_pod_of_a_deployment_gets_to_it() {
        let cluster = FakeCluster::default();
        let (stage, key) = stage(&cluster).await;
        set_role(&stage, &key, "primary");
        let downstream = || object::label(&cluster.all("pods")[0], "role").map(str::to_owned);
        stage.until("it is downstream", async |_| downstream().as_deref() == Some("primary")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(object::label(&stage.upstream.object(&key).unwrap(), "role"), Some("primary"), "and stays upstream");
        assert_eq!(object::label(&cluster.all("pods")[0], annotations::PROJECTED_FROM), None);
        let writes = cluster.requests("PATCH").len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.requests("PATCH").len(), writes, "it is written once");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_a_running_pod_get_to_it() {
        let cluster = FakeCluster::default();
        let (stage, key) = stage(&cluster).await;
        let kind = portolan_types::GroupVersionKind::new("", "v1", "Pod");
        let mut down = cluster.all("pods").remove(0);
        down["spec"]["containers"] = json!([{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "1"}}}]);
        cluster.put("pods", down);
        let is_shown =
            async |s: &SyncStage| s.upstream.object(&key).unwrap()["spec"]["containers"][0]["image"] == "i:1";
        stage.until("the containers are shown", is_shown).await.unwrap();
        let mut pod = stage.upstream.object(&key).unwrap();
        pod["spec"]["containers"][0]["image"] = "i:2".into();
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
        pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "busybox"}]);
        let wanted = pod["spec"].clone();
        stage.upstream.write(&key, &kind, pod);
        let has = |field: &str| cluster.all("pods")[0]["spec"][field] == wanted[field];
        let is_there = async |_: &SyncStage| has("containers") && has("ephemeralContainers");
        stage.until("all of it is there", is_there).await.unwrap();
        let parts = |end: &str| cluster.requests("PATCH").iter().filter(|line| line.ends_with(end)).count();
        assert_eq!((parts("/resize"), parts("/ephemeralcontainers")), (1, 1), "each by its part of the API");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(
            stage.upstream.object(&key).unwrap()["spec"]["containers"],
            wanted["containers"],
            "and stays upstream"
        );
        let mut pod = stage.upstream.object(&key).unwrap();
        let ephemeral = pod["spec"]["ephemeralContainers"].as_array_mut().unwrap();
        ephemeral.push(json!({"name": "root", "image": "busybox", "securityContext": {"privileged": true}}));
        stage.upstream.write(&key, &kind, pod);
        tokio::time::sleep(Duration::from_secs(30)).await;
        let there = cluster.all("pods")[0]["spec"]["ephemeralContainers"].as_array().unwrap().len();
        assert_eq!(there, 1, "one with privileges stays away");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn resources_and_ephemeral_containers_get_to_a_placed_pod() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let pod = |cpu: &str, ephemeral: Value| {
            json!({"metadata": {}, "spec": {"ephemeralContainers": ephemeral,
                "containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": cpu}}}]}})
        };
        let debug = json!([{"name": "debug", "image": "busybox"}]);
        stage.place("pods", "p", pod("1", debug.clone()), CopyPhase::Active);
        let debugged = async |_: &SyncStage| {
            cluster.all("pods").first().is_some_and(|pod| pod["spec"]["ephemeralContainers"] == debug)
        };
        stage.until("the ephemeral container follows the pod", debugged).await.unwrap();
        stage.place("pods", "p", pod("2", debug.clone()), CopyPhase::Active);
        let cpu = || cluster.all("pods")[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"].clone();
        stage.until("it is resized", async |_| cpu() == "2").await.unwrap();
        assert!(cluster.requests("PATCH").iter().any(|line| line.ends_with("/resize")));
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn resources_that_a_policy_overrides_stay_as_it_wants() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let patch = json!([{"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "2"}]);
        let policy = json!({"kind": "ClusterPlacementPolicy", "workspace": "root", "name": "eu"});
        let record = json!({
            "clusters": [{"name": "member", "uid": "physical-9", "phase": "Active", "epoch": 1}], "generation": 1,
            "overrides": [{"policy": policy, "on": ["physical-9"], "change": {"patch": patch}}],
        });
        let mut pod = json!({"metadata": {}, "spec": {
            "containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "1"}}}]}});
        serde_json::from_value::<portolan_types::placement::PlacementRecord>(record).unwrap().write_to(&mut pod);
        let key = stage.key("pods", "p");
        stage.upstream.write(&key, &portolan_types::GroupVersionKind::new("", "v1", "Pod"), pod);
        stage.until("the copy is there", async |_| cluster.all("pods").len() == 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(cluster.all("pods")[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
        assert_eq!(cluster.requests("PATCH").len(), 0, "nothing is resized to and fro");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_physical_cluster_without_pod_resize_is_reported() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let pod = |cpu: &str| {
            json!({"metadata": {}, "spec": {
                "containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": cpu}}}]}})
        };
        let key = stage.place("pods", "p", pod("1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("pods").len() == 1).await.unwrap();
        let missing = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
            "message": "the server could not find the requested resource", "details": {}});
        cluster.script(move |_, path| path.contains("/resize").then(|| CannedAnswer::Answer(404, missing.clone())));
        stage.place("pods", "p", pod("2"), CopyPhase::Active);
        let is_reported = async |s: &SyncStage| {
            matches!(s.upstream.last_report(&key), Some(portolan_types::upstream::CopyState::Failed { reason, .. })
                if reason == "Incompatible")
        };
        stage.until("it is reported", is_reported).await.unwrap();
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn objects_over_the_quota_are_reported_by_an_event_on_their_owner() {
        let cluster = FakeCluster::default();
        let (stage, _) = stage(&cluster).await;
        stage.upstream.set_full(true);
        let mut pod = cluster.all("pods").remove(0);
        object::metadata_mut(&mut pod).insert("name".into(), "web-abc-2".into());
        cluster.put("pods", pod);
        stage.until("it is reported", async |s| s.upstream.keys("events").len() == 1).await.unwrap();
        let event = stage.upstream.object(&stage.upstream.keys("events")[0]).unwrap();
        assert_eq!(
            (&event["reason"], &event["involvedObject"]["kind"]),
            (&json!("LimitExceeded"), &json!("ReplicaSet"))
        );
        assert_eq!(stage.upstream.keys("pods").len(), 1);
        stage.upstream.set_full(false);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(stage.upstream.keys("pods").len(), 2, "it is shown when there is room");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_refused_downstream_is_reported_by_an_event() {
        let cluster = FakeCluster::default();
        let (stage, key) = stage(&cluster).await;
        let refusal = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no roles here"});
        cluster.script(move |method, path| {
            (*method == http::Method::PATCH && path.contains("/pods/"))
                .then(|| CannedAnswer::Answer(403, refusal.clone()))
        });
        set_role(&stage, &key, "primary");
        stage.until("it is reported", async |s| s.upstream.keys("events").len() == 1).await.unwrap();
        let event = stage.upstream.object(&stage.upstream.keys("events")[0]).unwrap();
        assert!(event["message"].as_str().unwrap().contains("no roles here"), "{event}");
        set_role(&stage, &key, "secondary");
        cluster.heal();
        let downstream = || object::label(&cluster.all("pods")[0], "role").map(str::to_owned);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(downstream().as_deref(), Some("secondary"), "it is tried again");
        let refusal = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no roles here"});
        cluster.script(move |method, _| {
            (*method == http::Method::PATCH).then(|| CannedAnswer::Answer(403, refusal.clone()))
        });
        set_role(&stage, &key, "primary");
        stage.upstream.delete(&key);
        stage.until("a refusal does not keep it", async |_| cluster.all("pods").is_empty()).await.unwrap();
        stage.handle.stop().await;
    }
}
