//! A provider and two consumers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, Body, User};
use portolan_controllers::{Plane, workspaces::WorkspaceController};
use portolan_kinds::KindTable;
use portolan_store::DynStore;
use portolan_types::Seams;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::{elected::ApiDirectory, sharing::SharedApis};

pub(super) const V2: &str = "apis/apis.kcp.io/v1alpha2";
pub(super) const V1: &str = "apis/apis.kcp.io/v1alpha1";
pub(super) const WIDGETS: &str = "apis/example.dev/v1/namespaces/default/widgets";

/// Server with the workspaces `provider`, `one` and `two`.
pub(super) struct World {
    api: Arc<ApiServer>,
    stop: CancellationToken,
    _tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(super) fn user(name: &str) -> User {
    User { name: name.into(), groups: vec!["system:authenticated".into()], ..User::default() }
}

pub(super) fn admin() -> User {
    User { groups: vec!["system:masters".into()], ..user("admin") }
}

impl World {
    pub(super) async fn new() -> Self {
        Self::on(portolan_store::memory()).await
    }

    /// World on a store.
    pub(super) async fn on(store: DynStore) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let seams = Seams::system();
        let config = ApiServerConfig::in_directory(folder.path().join("server"), seams.clone());
        let api = ApiServer::new(store.clone(), config).await.unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let plane = Arc::new(Plane::new(store, KindTable::builtin(), seams).with_kinds(api.kinds()));
        let workspaces = WorkspaceController::new(plane.clone(), Arc::new(ApiDirectory(api.clone())));
        let loops = portolan_controllers::common(&plane, &api.pki().ca).with(workspaces);
        let loops = SharedApis::add_to(loops, &api, &plane);
        tasks.spawn(loops.run(stop.clone()));
        let world = Self { api, stop, _tasks: tasks, _folder: folder };
        for name in ["provider", "one", "two"] {
            let workspace = json!({"metadata": {"name": name}});
            world.post("root", "apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await;
        }
        world
    }

    pub(super) fn api(&self) -> &Arc<ApiServer> {
        &self.api
    }

    /// World in which `provider` exports widgets.
    pub(super) async fn exporting() -> Self {
        let world = Self::new().await;
        world.export_widgets("v1").await;
        world
    }

    pub(super) async fn export_widgets(&self, prefix: &str) {
        self.post("root:provider", &format!("{V1}/apiresourceschemas"), schema(prefix, "widgets", "Widget")).await;
        let export = json!({"metadata": {"name": "widgets"}, "spec": {"resources": [exported(prefix, "widgets")]}});
        self.post("root:provider", &format!("{V2}/apiexports"), export).await;
        self.until_exported().await;
    }

    pub(super) async fn until_exported(&self) {
        self.until("the export has an identity", || async {
            let export = self.get("root:provider", &format!("{V2}/apiexports/widgets")).await.unwrap();
            condition(&export, "IdentityValid") == "True"
        })
        .await;
    }

    pub(super) async fn bind(&self, workspace: &str, claims: Value) {
        let binding = binding("widgets", claims);
        self.post(&format!("root:{workspace}"), &format!("{V2}/apibindings"), binding).await;
        self.until_bound(workspace, "widgets").await;
    }

    pub(super) async fn until_bound(&self, workspace: &str, name: &str) {
        self.until("the binding is bound", || async {
            let binding = self.binding(workspace, name).await;
            binding["status"]["phase"] == "Bound" && condition(&binding, "Ready") == "True"
        })
        .await;
    }

    pub(super) async fn binding(&self, workspace: &str, name: &str) -> Value {
        let path = format!("{V2}/apibindings/{name}");
        self.get(&format!("root:{workspace}"), &path).await.unwrap_or_default()
    }

    /// Sends a request below `/clusters/<cluster>/`.
    pub(super) async fn send(&self, method: &str, cluster: &str, path: &str, object: Value) -> (u16, Value) {
        self.send_as(&admin(), method, &format!("/clusters/{cluster}/{path}"), object).await
    }

    /// Sends a request as a user.
    pub(super) async fn send_as(&self, user: &User, method: &str, uri: &str, object: Value) -> (u16, Value) {
        let (code, body) = self.open(user, method, uri, object).await;
        let bytes = body.collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Sends a request and returns its body as it comes.
    pub(super) async fn open(&self, user: &User, method: &str, uri: &str, object: Value) -> (u16, Body) {
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(uri).header("content-type", media);
        let request = request.body(Full::new(Bytes::from(object.to_string()))).unwrap();
        let answer = self.api.service_as(user.clone()).oneshot(request).await.unwrap();
        (answer.status().as_u16(), answer.into_body())
    }

    /// Applies an object as a user, server-side.
    pub(super) async fn apply_as(&self, user: &User, uri: &str, object: Value) -> (u16, Value) {
        let request =
            Request::builder().method("PATCH").uri(uri).header("content-type", "application/apply-patch+yaml");
        let request = request.body(Full::new(Bytes::from(object.to_string()))).unwrap();
        let answer = self.api.service_as(user.clone()).oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    pub(super) async fn post(&self, cluster: &str, path: &str, object: Value) -> Value {
        let (code, answer) = self.send("POST", cluster, path, object).await;
        assert_eq!(code, 201, "{cluster}/{path}: {answer}");
        answer
    }

    pub(super) async fn merge(&self, cluster: &str, path: &str, patch: Value) -> Value {
        let (code, answer) = self.send("PATCH", cluster, path, patch).await;
        assert_eq!(code, 200, "{cluster}/{path}: {answer}");
        answer
    }

    pub(super) async fn delete(&self, cluster: &str, path: &str) {
        let (code, answer) = self.send("DELETE", cluster, path, json!({})).await;
        assert!(code < 300, "{cluster}/{path}: {answer}");
    }

    pub(super) async fn get(&self, cluster: &str, path: &str) -> Option<Value> {
        let (code, answer) = self.send("GET", cluster, path, Value::Null).await;
        (code == 200).then_some(answer)
    }

    /// Returns the id of a workspace.
    pub(super) async fn id(&self, workspace: &str) -> String {
        let path = format!("apis/tenancy.kcp.io/v1alpha1/workspaces/{workspace}");
        let found = self.get("root", &path).await.unwrap();
        found["spec"]["cluster"].as_str().unwrap().to_owned()
    }

    /// Binds a user to a new role in a workspace.
    pub(super) async fn allow(&self, workspace: &str, user: &str, rule: Value) {
        let cluster = format!("root:{workspace}");
        let name = format!("r{}", portolan_types::apis::identity_of(format!("{user} {rule}").as_bytes()));
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        let rbac = "apis/rbac.authorization.k8s.io/v1";
        self.post(&cluster, &format!("{rbac}/clusterroles"), role).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": name}, "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
            "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": name},
        });
        self.post(&cluster, &format!("{rbac}/clusterrolebindings"), binding).await;
    }

    /// Waits for a condition. Paused time makes a futile wait short.
    pub(super) async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        for _ in 0..2_000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}");
    }
}

pub(super) fn schema(prefix: &str, plural: &str, kind: &str) -> Value {
    let fields = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }});
    json!({
        "metadata": {"name": format!("{prefix}.{plural}.example.dev")},
        "spec": {
            "group": "example.dev", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": fields, "subresources": {"status": {}},
            }],
        },
    })
}

pub(super) fn exported(prefix: &str, plural: &str) -> Value {
    json!({
        "name": plural, "group": "example.dev", "schema": format!("{prefix}.{plural}.example.dev"),
        "storage": {"crd": {}},
    })
}

pub(super) fn binding(name: &str, claims: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"reference": {"export": {"path": "root:provider", "name": "widgets"}}, "permissionClaims": claims},
    })
}

pub(super) fn widget(name: &str, size: i64) -> Value {
    json!({
        "apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "default"},
        "spec": {"size": size},
    })
}

/// Returns the status of a condition; empty if there is none.
pub(super) fn condition(object: &Value, name: &str) -> String {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions.into_iter().flatten().find(|own| own["type"] == name);
    found.and_then(|own| own["status"].as_str()).unwrap_or_default().to_owned()
}
