//! Endpoints of pods that are gone. The endpoint controller of a physical cluster can be behind: after a restart of its
//! API server an EndpointSlice has named removed pods as ready for more than 30 seconds.

use std::collections::{HashSet, VecDeque};

use portolan_types::GroupResource;
use serde_json::Value;

use super::{Work, Worker, reflector_cache::ObjectRef, session::Session};

/// Greatest number of pods that are remembered per physical cluster. An EndpointSlice is rarely behind by more.
const REMEMBERED: usize = 4_096;

/// Uids of the last pods that were proven gone, the oldest first.
#[derive(Default)]
pub(super) struct GonePods {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

impl GonePods {
    fn insert(&mut self, uid: &str) {
        if !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    /// Returns true if the pod with this uid is gone. False if that is unknown.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }
}

impl Worker {
    /// Remembers that a pod is gone, and enqueues the EndpointSlices that name it.
    pub(super) fn record_gone_pod(&self, session: &Session, pod: &ObjectRef, uid: &str) {
        self.state().gone_pods.insert(uid);
        let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
        for slice in session.cache.all(&slices, pod.namespace()) {
            if names_pod(&slice.object, uid) {
                self.queue.add(Work::Projection(ObjectRef::of(&slices, &slice.object)));
            }
        }
    }
}

fn names_pod(slice: &Value, uid: &str) -> bool {
    let endpoints = slice["endpoints"].as_array();
    endpoints.into_iter().flatten().any(|endpoint| endpoint["targetRef"]["uid"] == uid)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::{annotations, object, placement::CopyPhase};
    use serde_json::json;

    use super::*;
    use crate::testing::{
        FakeCluster,
        suite::{SyncStage, deployment},
    };

    #[test]
    fn the_oldest_pods_are_forgotten() {
        let mut gone = GonePods::default();
        (0..=REMEMBERED).for_each(|number| gone.insert(&number.to_string()));
        gone.insert("1");
        assert!(!gone.contains("0") && gone.contains("1") && gone.contains(&REMEMBERED.to_string()));
    }

    /// Returns a reference to a controller.
    fn controller(version: &str, kind: &str, owner: &Value) -> Value {
        json!([{"apiVersion": version, "kind": kind, "name": object::name(owner),
            "uid": object::meta_text(owner, "uid"), "controller": true}])
    }

    fn endpoint_of(pod: &Value) -> Value {
        json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": object::name(pod), "uid": object::meta_text(pod, "uid")}})
    }

    /// Returns the condition `ready` of each endpoint that is shown upstream.
    fn shown_readiness(stage: &SyncStage) -> Vec<Value> {
        let keys = stage.upstream.keys("endpointslices");
        let slice = keys.first().and_then(|key| stage.upstream.object(key)).unwrap_or_default();
        let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints.iter().map(|endpoint| endpoint["conditions"]["ready"].clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_whose_pod_is_gone_is_not_ready() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
        let service = json!({"metadata": {}, "spec": {"selector": {"app": "web"}}});
        stage.place("services", "web", service, CopyPhase::Active);
        let are_there = async |_: &SyncStage| cluster.all("services").len() + cluster.all("deployments").len() == 2;
        stage.until("the copies are there", are_there).await.unwrap();
        let metadata = |name: &str, owners: Value| {
            json!({"name": name, "namespace": stage.namespace(), "ownerReferences": owners,
                "labels": {(annotations::DOWN_CLUSTER): stage.key("pods", "a").cluster.to_string()}})
        };
        let owners = controller("apps/v1", "Deployment", &cluster.all("deployments")[0]);
        let template = deployment(1, "i:1")["spec"]["template"].clone();
        let set = json!({"metadata": metadata("web-abc", owners), "spec": {"replicas": 1, "template": template}});
        let set = cluster.put("replicasets", set);
        let pods = ["web-abc-1", "web-abc-2"].map(|name| {
            let metadata = metadata(name, controller("apps/v1", "ReplicaSet", &set));
            cluster.put("pods", json!({"metadata": metadata, "spec": {"nodeName": "n"}}))
        });
        stage.until("the pods are shown", async |s| s.upstream.keys("pods").len() == 2).await.unwrap();
        let owners = controller("v1", "Service", &cluster.all("services")[0]);
        let endpoints = [endpoint_of(&pods[0]), endpoint_of(&pods[1]), json!({"addresses": ["10.0.0.9"]})];
        let slice = json!({"metadata": metadata("web-x", owners), "addressType": "IPv4", "endpoints": endpoints});
        cluster.put("endpointslices", slice);
        let all_ready = [json!(true), json!(true), Value::Null];
        stage.until("the slice is shown", async |s| shown_readiness(s) == all_ready).await.unwrap();
        cluster.remove("pods", &pods[0]);
        let without_first = [json!(false), json!(true), Value::Null];
        stage.until("its endpoint is not ready", async |s| shown_readiness(s) == without_first).await.unwrap();
        stage.handle.stop().await;
    }
}
