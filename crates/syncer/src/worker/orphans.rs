//! Continued projection of objects whose copy was deleted without its dependents.

use portolan_types::{object, work::WorkOutcome};
use serde_json::Value;

use super::{SyncError, Worker, reflector_cache::ObjectRef, session::Session};
use crate::project::{self, ProjectionOrigin};

impl Worker {
    pub(super) fn is_shown(&self, place: &ObjectRef, found: &Value) -> bool {
        self.state().shown.get(place).is_some_and(|shown| shown.uid == object::meta_text(found, "uid"))
    }

    /// Continues to project an object whose owner was deleted without it. The projected object is found by its address,
    /// and keeps the name and the labels that it has upstream.
    pub(super) async fn project_orphan(
        &self,
        session: &Session,
        place: &ObjectRef,
        found: &Value,
    ) -> Result<WorkOutcome, SyncError> {
        let shown = self.state().shown.get(place).map(|shown| (shown.key.clone(), shown.uid.clone()));
        let Some((key, _)) = shown.filter(|(_, uid)| uid == object::meta_text(found, "uid")) else {
            return Ok(WorkOutcome::Done);
        };
        let Some(upstream) = self.read_placed(&key).await? else { return Ok(WorkOutcome::Done) };
        let origin = ProjectionOrigin { name: &self.config.name, uid: &self.config.uid };
        if let Some(orphan) = project::orphan(found, &upstream.object, origin) {
            self.put(session, place, key.clone(), found, orphan).await?;
        }
        if &*place.resource.resource == "replicasets" {
            self.report_replica_set(&key, found).await?;
        }
        Ok(WorkOutcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use portolan_types::placement::CopyPhase;
    use serde_json::json;

    use super::*;
    use crate::testing::{
        FakeCluster,
        suite::{SyncStage, deployment},
    };

    fn owned_by(kind: &str, owner: &Value) -> Value {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": object::name(owner), "uid": object::meta_text(owner, "uid"), "controller": true}])
    }

    /// Makes the objects that a Deployment controller makes of the copy.
    fn run(cluster: &FakeCluster) -> (Value, Value) {
        let copy = cluster.all("deployments").remove(0);
        let mut labels = copy["spec"]["template"]["metadata"]["labels"].clone();
        labels["pod-template-hash"] = json!("abc");
        let metadata = |name: &str, owner: Value| {
            json!({"name": name, "namespace": object::namespace(&copy), "labels": labels, "ownerReferences": owner,
                "annotations": copy["metadata"]["annotations"]})
        };
        let spec = json!({"replicas": 1, "template": copy["spec"]["template"]});
        let set = json!({"metadata": metadata("web-abc", owned_by("Deployment", &copy)), "spec": spec, "status": {"readyReplicas": 1}});
        let set = cluster.put("replicasets", set);
        let mut pod =
            json!({"metadata": metadata("web-abc-x1", owned_by("ReplicaSet", &set)), "spec": {"nodeName": "n"}});
        pod["status"] = json!({"phase": "Running"});
        pod["metadata"]["annotations"] = json!({});
        (set, cluster.put("pods", pod))
    }

    #[tokio::test(start_paused = true)]
    async fn orphans_keep_running_until_they_are_adopted() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        let (mut set, pod) = run(&cluster);
        stage.until("its pod is shown", async |s| s.upstream.keys("pods").len() == 1).await.unwrap();
        let (set_key, pod_key) = (stage.upstream.keys("replicasets").remove(0), stage.upstream.keys("pods").remove(0));
        let uids = |s: &SyncStage| {
            [&set_key, &pod_key].map(|key| s.upstream.object(key).map(|o| object::meta_text(&o, "uid").to_owned()))
        };
        let before = uids(&stage);

        stage.upstream.delete_without_dependents(&key);
        stage.until("it is gone", async |s| s.upstream.object(&key).is_none()).await.unwrap();
        assert_eq!(
            cluster.delete_options().iter().map(|o| o["propagationPolicy"].clone()).collect::<Vec<_>>(),
            ["Orphan"]
        );
        set["metadata"]["ownerReferences"] = json!([]);
        set["status"] = json!({"readyReplicas": 0});
        let set = cluster.put("replicasets", set);
        let ready = |s: &SyncStage| s.upstream.object(&set_key).unwrap_or_default()["status"]["readyReplicas"].clone();
        stage
            .until("its ReplicaSet is still followed", async |s| ready(s) == Value::Null || ready(s) == 0)
            .await
            .unwrap();
        let stage = stage.restarted().await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(uids(&stage), before, "nothing of it is gone, also for the next worker");
        assert_eq!((cluster.all("replicasets").len(), cluster.all("pods").len()), (1, 1));
        let set_now = stage.upstream.object(&set_key).unwrap();
        assert!(object::owner_references(&set_now).is_empty(), "{set_now}");
        let mut stopped = pod.clone();
        stopped["status"] = json!({"phase": "Failed"});
        cluster.put("pods", stopped);
        let phase = |s: &SyncStage| s.upstream.object(&pod_key).unwrap_or_default()["status"]["phase"].clone();
        stage.until("its pod is still followed", async |s| phase(s) == "Failed").await.unwrap();
        assert_eq!(
            stage.upstream.object(&pod_key).unwrap()["metadata"]["ownerReferences"][0]["name"],
            json!(&*set_key.name)
        );

        stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        stage.until("a later copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        let mut adopted = set;
        adopted["metadata"]["ownerReferences"] = owned_by("Deployment", &cluster.all("deployments")[0]);
        cluster.put("replicasets", adopted);
        let owner = |s: &SyncStage| {
            object::controller_of(&s.upstream.object(&set_key).unwrap_or_default()).map(|o| o["uid"].clone())
        };
        let new_uid = json!(object::meta_text(&stage.upstream.object(&key).unwrap(), "uid"));
        stage.until("it adopts them", async |s| owner(s) == Some(new_uid.clone())).await.unwrap();
        assert_eq!(uids(&stage), before);
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn orphans_on_an_unreachable_cluster_survive_the_debt() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        stage.set_cut(true);
        tokio::time::sleep(Duration::from_secs(5)).await;
        stage.upstream.delete_without_dependents(&key);
        stage.until("it is a debt", async |s| s.upstream.recorded_debts().len() == 1).await.unwrap();
        stage.set_cut(false);
        stage.until("it is paid", async |s| s.upstream.recorded_debts().is_empty()).await.unwrap();
        assert_eq!(cluster.delete_options()[0]["propagationPolicy"], "Orphan");
        stage.handle.stop().await;
    }
}
