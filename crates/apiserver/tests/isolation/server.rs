//! Server in process, with the workspaces of the tenant, and those of others if they are added.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use portolan_apiserver::{ApiServer, ApiServerConfig, User, http::answer_connection};
use portolan_types::Seams;
use serde_json::{Value, json};

use crate::{
    answer::Answer,
    catalog,
    generator::{NEXT_PAGE, TenantRequest, WATCH_ON},
};

/// Most time to read a body: a watch that was opened by mistake has no end.
const READ: Duration = Duration::from_secs(30);

pub struct Server {
    api: Arc<ApiServer>,
    /// Requests that continue the last list of the tenant.
    followups: Mutex<Followups>,
}

/// Requests that continue a list. Each server has its own tokens and revisions.
#[derive(Default)]
struct Followups {
    next_page: Option<TenantRequest>,
    watch: Option<TenantRequest>,
}

pub fn user(name: &str, groups: &[&str]) -> Arc<User> {
    let groups = groups.iter().chain(&["system:authenticated"]).map(|group| (*group).to_owned()).collect();
    Arc::new(User { name: name.into(), groups, ..User::default() })
}

impl Server {
    /// Starts a server with the tenant's workspaces `root:t` and `root:t:team`.
    pub async fn new(seed: u64) -> Self {
        let seams = Seams::seeded(seed, Timestamp::UNIX_EPOCH);
        let config = ApiServerConfig::in_memory(seams);
        let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
        let server = Self { api, followups: Mutex::default() };
        server.add_workspace("root", "t", "ann").await;
        server.add_workspace("root:t", "team", "ann").await;
        let reader = json!({
            "metadata": {"name": "reader", "namespace": "default"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        });
        let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
        server.make(&format!("/clusters/root:t{bindings}"), reader).await;
        server
    }

    /// Adds the workspaces of other tenants.
    pub async fn add_neighbors(&self) {
        self.add_workspace("root", "v", "carl").await;
        self.add_workspace("root:v", "team", "carl").await;
        self.add_workspace("root", "w", "dora").await;
    }

    /// Removes the workspaces of other tenants, as the workspace controller does once their content is gone.
    pub async fn remove_neighbors(&self) {
        for (parent, name) in [("root:v", "team"), ("root", "v"), ("root", "w")] {
            let object = format!("/clusters/{parent}/apis/tenancy.kcp.io/v1alpha1/workspaces/{name}");
            let cluster = self.api.directory().by_path(&format!("{parent}:{name}").parse().unwrap()).unwrap();
            self.change("DELETE", &object, "").await;
            self.api.directory().remove(cluster.id).await.unwrap();
            self.change("PATCH", &object, r#"{"metadata":{"finalizers":null}}"#).await;
        }
    }

    async fn change(&self, method: &'static str, path: &str, body: &str) {
        let request = TenantRequest {
            user: Some(("admin".into(), vec!["system:masters".into()])),
            method,
            path: path.to_owned(),
            headers: vec![("content-type".into(), "application/merge-patch+json".into())],
            body: body.to_owned(),
        };
        let answer = self.send(&request).await;
        assert_eq!(answer.code, 200, "{method} {path}: {}", answer.text);
    }

    /// Returns the id of a workspace.
    pub fn id_of(&self, path: &str) -> String {
        self.api.directory().by_path(&path.parse().unwrap()).unwrap().id.to_string()
    }

    async fn add_workspace(&self, parent: &str, name: &str, owner: &str) {
        let workspaces = format!("/clusters/{parent}/apis/tenancy.kcp.io/v1alpha1/workspaces");
        self.make(&workspaces, json!({"metadata": {"name": name}})).await;
        let binding = json!({
            "metadata": {"name": "owner"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": owner}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        });
        let inside = format!("/clusters/{parent}:{name}");
        self.make(&format!("{inside}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"), binding).await;
        let account = json!({"metadata": {"name": "default"}});
        self.make(&format!("{inside}/api/v1/namespaces/default/serviceaccounts"), account).await;
        self.define_widgets(&inside, owner).await;
    }

    /// Defines a custom kind, and establishes it as its controller does. Each owner has another schema.
    async fn define_widgets(&self, inside: &str, owner: &str) {
        let definitions = format!("{inside}/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
        let size = if owner == "ann" { "integer" } else { "number" };
        self.make(&definitions, catalog::widget_definition(size)).await;
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True", "reason": "Accepted", "message": "",
                "lastTransitionTime": "1970-01-01T00:00:00Z"})
        };
        let names = catalog::widget_definition(size)["spec"]["names"].take();
        let conditions = [condition("NamesAccepted"), condition("Established")];
        let status = json!({"status": {"acceptedNames": names, "conditions": conditions}});
        self.change("PATCH", &format!("{definitions}/widgets.example.com/status"), &status.to_string()).await;
    }

    async fn make(&self, path: &str, object: Value) {
        let request = TenantRequest {
            user: Some(("admin".into(), vec!["system:masters".into()])),
            method: "POST",
            path: path.to_owned(),
            headers: vec![("content-type".into(), "application/json".into())],
            body: object.to_string(),
        };
        let answer = self.send(&request).await;
        assert_eq!(answer.code, 201, "{path}: {}", answer.text);
    }

    /// Sends a request of the tenant, or the one that continues her last list.
    pub async fn send_of_tenant(&self, request: &TenantRequest) -> Answer {
        let followed = {
            let followups = self.followups.lock().unwrap();
            match request.path.rsplit('/').next() {
                Some(NEXT_PAGE) => followups.next_page.clone(),
                Some(WATCH_ON) => followups.watch.clone(),
                _ => None,
            }
        };
        let answer = self.send(followed.as_ref().unwrap_or(request)).await;
        if request.is_list() && answer.code == 200 {
            *self.followups.lock().unwrap() = Followups::of(request, &answer);
        }
        answer
    }

    /// Sends a request and reads the whole answer. A replacement names the revision of the present object, if its
    /// sender may read that.
    pub async fn send(&self, request: &TenantRequest) -> Answer {
        if request.method != "PUT" {
            return self.send_as_is(request).await;
        }
        let headers = Vec::new();
        let read = TenantRequest { method: "GET", body: String::new(), headers, ..request.clone() };
        let present = self.send_as_is(&read).await.json()["metadata"]["resourceVersion"].take();
        let mut object: Value = serde_json::from_str(&request.body).unwrap();
        object["metadata"]["resourceVersion"] = present;
        self.send_as_is(&TenantRequest { body: object.to_string(), ..request.clone() }).await
    }

    async fn send_as_is(&self, request: &TenantRequest) -> Answer {
        let mut sent = Request::builder().method(request.method).uri(&request.path);
        for (name, value) in &request.headers {
            sent = sent.header(name, value);
        }
        let body = Full::new(Bytes::from(request.body.clone()));
        let user = request
            .user
            .as_ref()
            .map(|(name, groups)| user(name, &groups.iter().map(String::as_str).collect::<Vec<_>>()));
        let response = answer_connection(self.api.clone(), user, sent.body(body).unwrap()).await;
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(READ, body.collect()).await.expect("every answer ends").unwrap().to_bytes();
        Answer::new(parts.status.as_u16(), &parts.headers, String::from_utf8_lossy(&body).into_owned())
    }
}

impl Followups {
    fn of(list: &TenantRequest, answer: &Answer) -> Self {
        let metadata = &answer.json()["metadata"];
        let with = |query: String| TenantRequest { path: query, ..list.clone() };
        let collection = list.path.split('?').next().unwrap();
        let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
        Self {
            next_page: text("continue").map(|token| with(format!("{}&continue={token}", list.path))),
            watch: text("resourceVersion")
                .map(|revision| with(format!("{collection}?watch=true&resourceVersion={revision}&timeoutSeconds=1"))),
        }
    }
}
