//! A simulated cluster, and what tests ask of its API.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod counting;

use std::{sync::Arc, time::Duration};

use http::{Method, Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::User;
use portolan_simulator::{SimulatedCluster, SimulationConfig};
use portolan_types::Seams;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use counting::{Counted, CountingStore};

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const APPS: &str = "/apis/apps/v1/namespaces/default";
pub(crate) const BATCH: &str = "/apis/batch/v1/namespaces/default";
pub(crate) const CORE: &str = "/api/v1/namespaces/default";

pub(crate) struct Fixture(pub(crate) SimulatedCluster);

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::start_at(Seams::system()).await
    }

    pub(crate) async fn start_at(seams: Seams) -> Self {
        let quick = Duration::from_millis(100);
        let config =
            SimulationConfig { pod_start: quick, pod_stop: quick, job_run: quick, ..SimulationConfig::named("east") };
        Self(SimulatedCluster::start(config, seams, &CancellationToken::new()).await.unwrap())
    }

    /// A cluster whose work is counted.
    pub(crate) async fn counting(nodes: u32) -> (Self, Counted) {
        let quick = Duration::from_millis(20);
        let config = SimulationConfig { pod_start: quick, pod_stop: quick, nodes, ..SimulationConfig::named("east") };
        let counted = Counted::default();
        let store = Arc::new(CountingStore { inner: portolan_store::memory(), counted: counted.clone() });
        let started = SimulatedCluster::start_on(store, config, Seams::system(), &CancellationToken::new()).await;
        (Self(started.unwrap()), counted)
    }

    pub(crate) async fn send(&self, method: Method, path: &str, content: &str, body: Value) -> Value {
        let user = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content);
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body).unwrap() };
        let answer =
            self.0.api().service_as(user).oneshot(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    pub(crate) async fn text(&self, path: &str) -> String {
        let user = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        let request = Request::builder().uri(path).body(Full::<bytes::Bytes>::default()).unwrap();
        let answer = self.0.api().service_as(user).oneshot(request).await.unwrap();
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send(Method::GET, path, "application/json", Value::Null).await
    }

    pub(crate) async fn create(&self, path: &str, object: Value) -> Value {
        let answer = self.send(Method::POST, path, "application/json", object).await;
        assert_ne!(answer["status"], "Failure", "{answer}");
        answer
    }

    pub(crate) async fn patch(&self, path: &str, patch: Value) {
        self.patch_as(path, "application/merge-patch+json", patch).await;
    }

    pub(crate) async fn patch_as(&self, path: &str, content: &str, patch: Value) {
        let answer = self.send(Method::PATCH, path, content, patch).await;
        assert_ne!(answer["status"], "Failure", "{answer}");
    }

    pub(crate) async fn relabel(&self, path: &str, value: &str) {
        self.patch(path, json!({"metadata": {"labels": {"touched": value}}})).await;
    }

    pub(crate) async fn delete(&self, path: &str, propagation: &str) {
        self.send(Method::DELETE, path, "application/json", json!({"propagationPolicy": propagation})).await;
    }

    /// Reads `path` every 100 ms until it is as wanted.
    pub(crate) async fn until_calmly(&self, path: &str, test: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let found = self.get(path).await;
                if test(&found) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(PATIENCE * 6, looking).await {
            Ok(found) => found,
            Err(_) => panic!("{path}: {:#}", self.get(path).await),
        }
    }

    /// Reads `path` again and again until it is as wanted.
    pub(crate) async fn until(&self, path: &str, test: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let found = self.get(path).await;
                if test(&found) {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(found) => found,
            Err(_) => panic!("{path}: {:#}", self.get(path).await),
        }
    }
}

pub(crate) fn template(image: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "web", "image": image}]},
    })
}

pub(crate) fn workload(kind: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("web:1", "Always")},
    })
}
