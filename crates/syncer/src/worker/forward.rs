//! Hands changes down that were made upstream to what the physical cluster made.

use portolan_types::{
    GroupResource, ObjectKey, Reason, annotations, object,
    upstream::{Projection, UpstreamError, UpstreamObject},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, mirror::Place, session::Session};
use crate::{client::DownstreamError, project};

impl Worker {
    /// Writes what was changed upstream onto the object downstream. A refusal there is told by an Event, and tried again.
    pub(super) async fn hand_down_metadata(
        &self,
        session: &Session,
        upstream: &UpstreamObject,
        place: &Place,
        found: &Value,
    ) -> Result<(), SyncError> {
        let Some(pending) = project::pending_changes(&upstream.object, &self.config.uid) else { return Ok(()) };
        let is_ours = object::label(found, annotations::DOWN_CLUSTER) == Some(&upstream.key.cluster.to_string());
        let Some(served) = session.served(&place.resource).filter(|_| is_ours) else { return Ok(()) };
        let path = served.path(place.namespace(), Some(&place.name));
        match session.api.merge_patch(&path, &project::pending_patch(pending, found)).await {
            Ok(made) => {
                session.mirror.put(place, made);
                self.queue.add(Work::Below(place.clone()));
                Ok(())
            }
            Err(error) if error.is_absent(&place.name) => Ok(()),
            Err(error) => {
                if let DownstreamError::Refused(answer) = &error
                    && answer.refusal().is_some()
                {
                    self.note_refused_change(upstream, &answer.message).await?;
                }
                Err(error.into())
            }
        }
    }

    async fn note_refused_change(&self, upstream: &UpstreamObject, why: &str) -> Result<(), SyncError> {
        let message = format!("{} refuses what was changed here: {why}", self.config.name);
        self.note_warning(upstream, Warning { name: "change-refused", reason: "ChangeRefused", message }).await
    }

    /// Tells by an Event about its maker that an object is not shown, when the workspace would store more than it may.
    pub(super) async fn note_not_shown(&self, maker: &UpstreamObject, error: &SyncError) -> Result<(), SyncError> {
        let SyncError::Upstream(UpstreamError::Failed(status)) = error else { return Ok(()) };
        let at = Work::Event(Place::of(&maker.key.resource, &maker.object));
        let is_over_limit = status.reason() == Reason::Forbidden;
        if !is_over_limit || self.state().write_rates.spend(&at, Instant::now()).is_err() {
            return Ok(());
        }
        let message = format!("what {} made of this is not shown: {}", self.config.name, status.message());
        self.note_warning(maker, Warning { name: "limit-exceeded", reason: "LimitExceeded", message }).await
    }

    async fn note_warning(&self, about: &UpstreamObject, warning: Warning) -> Result<(), SyncError> {
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
struct Warning {
    /// End of its name, after that of the object.
    name: &'static str,
    reason: &'static str,
    message: String,
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use portolan_types::placement::Phase;

    use super::*;
    use crate::testing::{
        Canned, FakeCluster,
        suite::{Stage, deployment},
    };

    /// A pod of a Deployment, which is shown.
    async fn stage(cluster: &FakeCluster) -> (Stage, ObjectKey) {
        let stage = Stage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("deployments", "web", deployment(1, "i:1"), Phase::Active);
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

    fn set_role(stage: &Stage, key: &ObjectKey, role: &str) {
        let mut pod = stage.upstream.object(key).unwrap();
        object::set_label(&mut pod, "role", Some(role.to_owned()));
        stage.upstream.write(key, &portolan_types::GroupVersionKind::new("", "v1", "Pod"), pod);
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_that_is_set_upstream_on_a_pod_of_a_deployment_gets_to_it() {
        let cluster = FakeCluster::default();
        let (stage, key) = stage(&cluster).await;
        set_role(&stage, &key, "primary");
        let below = || object::label(&cluster.all("pods")[0], "role").map(str::to_owned);
        stage.until("it is downstream", async |_| below().as_deref() == Some("primary")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(object::label(&stage.upstream.object(&key).unwrap(), "role"), Some("primary"), "and stays upstream");
        assert_eq!(object::label(&cluster.all("pods")[0], annotations::PROJECTED_FROM), None);
        let writes = cluster.requests("PATCH").len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.requests("PATCH").len(), writes, "it is written once");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_shown_since_the_workspace_is_full_is_told_by_an_event_about_its_maker() {
        let cluster = FakeCluster::default();
        let (stage, _) = stage(&cluster).await;
        stage.upstream.set_full(true);
        let mut pod = cluster.all("pods").remove(0);
        object::metadata_mut(&mut pod).insert("name".into(), "web-abc-2".into());
        cluster.put("pods", pod);
        stage.until("it is told", async |s| s.upstream.keys("events").len() == 1).await.unwrap();
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
    async fn a_label_that_is_refused_downstream_is_told_by_an_event() {
        let cluster = FakeCluster::default();
        let (stage, key) = stage(&cluster).await;
        let refusal = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no roles here"});
        cluster.script(move |method, path| {
            (*method == http::Method::PATCH && path.contains("/pods/")).then(|| Canned::Answer(403, refusal.clone()))
        });
        set_role(&stage, &key, "primary");
        stage.until("it is told", async |s| s.upstream.keys("events").len() == 1).await.unwrap();
        let event = stage.upstream.object(&stage.upstream.keys("events")[0]).unwrap();
        assert!(event["message"].as_str().unwrap().contains("no roles here"), "{event}");
        set_role(&stage, &key, "secondary");
        cluster.heal();
        let below = || object::label(&cluster.all("pods")[0], "role").map(str::to_owned);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(below().as_deref(), Some("secondary"), "it is tried again");
        let refusal = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no roles here"});
        cluster.script(move |method, _| (*method == http::Method::PATCH).then(|| Canned::Answer(403, refusal.clone())));
        set_role(&stage, &key, "primary");
        stage.upstream.delete(&key);
        stage.until("a refusal does not keep it", async |_| cluster.all("pods").is_empty()).await.unwrap();
        stage.handle.stop().await;
    }
}
