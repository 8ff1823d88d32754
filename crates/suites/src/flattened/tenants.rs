//! Tenants: each in a workspace of its own, by requests to it alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use http::Method;
use serde_json::{Value, json};

use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

use super::super::workspaces::WorkspaceChecks;
use super::PROVIDER;
use super::operator::{CLAIMS, EXPORT};

/// Requests at a time.
const AT_ONCE: usize = 8;
/// Time in which a binding is served.
const BOUND: Duration = Duration::from_secs(60);
const CERTIFICATES: &str = "apis/cert-manager.io/v1/namespaces/default/certificates";

/// Workspaces of tenants.
pub(super) struct Tenants {
    runtime: tokio::runtime::Runtime,
    config: UserKubeconfig,
    names: Vec<String>,
}

/// Client of all tenants.
#[derive(Clone)]
struct TenantClient(Arc<HttpClient>);

impl TenantClient {
    async fn post(&self, path: &str, object: &Value) -> Result<()> {
        let answer = self.0.send(Method::POST, path, object.to_string().into()).await?;
        answer.success().map(drop).with_context(|| path.to_owned())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.0.get(path).await?)?)
    }
}

/// Returns the path of a resource in the workspace of a tenant.
fn path_in_tenant(tenant: &str, path: &str) -> String {
    format!("/clusters/root:{tenant}/{path}")
}

/// Returns true for the tenant number of one that has a cluster-scoped issuer.
fn has_cluster_issuer(tenant: &str) -> bool {
    tenant.bytes().last().is_some_and(|digit| digit % 2 == 1)
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|own| own["type"] == condition && own["status"] == "True")
}

impl Tenants {
    /// Tenants `tenant-0` and so on.
    pub(super) fn new(scene: &WorkspaceChecks, count: usize) -> Result<Self> {
        Self::of(scene, (0..count).map(|number| format!("tenant-{number}")).collect())
    }

    /// One tenant.
    pub(super) fn one(scene: &WorkspaceChecks, name: &str) -> Result<Self> {
        Self::of(scene, vec![name.to_owned()])
    }

    fn of(scene: &WorkspaceChecks, names: Vec<String>) -> Result<Self> {
        let host = format!("https://127.0.0.1:{}", scene.server().port());
        Ok(Self { names, ..Self::at(scene.server().kubeconfig().with_server(&host))? })
    }

    fn at(config: UserKubeconfig) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { runtime, config, names: Vec::new() })
    }

    /// Does the same for all tenants, a few at a time.
    fn each<F: Future<Output = Result<()>>>(&self, act: impl Fn(TenantClient, String) -> F + Sync) -> Result<()> {
        let client = self.runtime.block_on(HttpClient::connect(&self.config, 2))?;
        let (client, next) = (TenantClient(Arc::new(client)), AtomicUsize::new(0));
        let work = || {
            while let Some(name) = self.names.get(next.fetch_add(1, Ordering::Relaxed)) {
                let acting = act(client.clone(), name.clone());
                self.runtime.block_on(acting).with_context(|| name.clone())?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE.min(self.names.len())).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a tenant panicked"))?)
        })
    }

    /// Makes the workspaces and binds the export in each, with its claims.
    pub(super) fn bind(&self) -> Result<()> {
        self.each(|client, name| async move {
            let workspace =
                json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": name}});
            client.post("/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", &workspace).await?;
            let accepted = CLAIMS.map(|resource| {
                let selector = json!({"matchAll": true});
                json!({"group": "", "resource": resource, "verbs": ["*"], "selector": selector, "state": "Accepted"})
            });
            let binding = json!({
                "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": {"name": EXPORT},
                "spec": {
                    "reference": {"export": {"path": format!("root:{PROVIDER}"), "name": EXPORT}},
                    "permissionClaims": accepted,
                },
            });
            let path = path_in_tenant(&name, "apis/apis.kcp.io/v1alpha2/apibindings");
            until(BOUND, || client.post(&path, &binding)).await?;
            until(BOUND, || async {
                let found = client.get(&format!("{path}/{EXPORT}")).await?;
                ensure!(is_true(&found, "Ready"), "{}", found["status"]);
                Ok(())
            })
            .await
        })
    }

    /// Makes an issuer and a certificate for each.
    pub(super) fn order(&self) -> Result<()> {
        self.each(|client, name| async move {
            let issuers = "apis/cert-manager.io/v1";
            let (kind, path) = if has_cluster_issuer(&name) {
                ("ClusterIssuer", format!("{issuers}/clusterissuers"))
            } else {
                ("Issuer", format!("{issuers}/namespaces/default/issuers"))
            };
            let issuer = json!({
                "apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": {"name": "itself"},
                "spec": {"selfSigned": {}},
            });
            client.post(&path_in_tenant(&name, &path), &issuer).await?;
            let certificate = json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "quay"},
                "spec": {
                    "secretName": "quay", "dnsNames": [format!("{name}.harbour.test")],
                    "privateKey": {"algorithm": "ECDSA", "size": 256},
                    "issuerRef": {"name": "itself", "kind": kind, "group": "cert-manager.io"},
                },
            });
            client.post(&path_in_tenant(&name, CERTIFICATES), &certificate).await
        })
    }

    /// Waits until each has its certificate.
    pub(super) fn until_served(&self, alive: &(dyn Fn() -> Result<()> + Sync), limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        self.each(|client, name| async move {
            until(end.saturating_duration_since(Instant::now()), || async {
                alive()?;
                let found = client.get(&path_in_tenant(&name, &format!("{CERTIFICATES}/quay"))).await?;
                ensure!(is_true(&found, "Ready"), "{}", found["status"]);
                client.get(&path_in_tenant(&name, "api/v1/namespaces/default/secrets/quay")).await.map(drop)
            })
            .await
        })
    }

    /// Checks that no workspace has what belongs to another: each has one Secret of a certificate, no two are equal.
    pub(super) fn are_apart(&self) -> Result<()> {
        let seen = std::sync::Mutex::new(BTreeSet::new());
        self.each(|client, name| {
            let seen = &seen;
            async move {
                let found = client.get(&path_in_tenant(&name, "api/v1/secrets")).await?;
                let items = found["items"].as_array().cloned().unwrap_or_default();
                let own: Vec<_> = items.iter().filter(|item| item["type"] == "kubernetes.io/tls").collect();
                ensure!(own.len() == 1 && own[0]["metadata"]["name"] == "quay", "{own:?}");
                let text = own[0].to_string();
                ensure!(!text.contains("--default"), "names of the view are not stored: {text}");
                let certificate = own[0]["data"]["tls.crt"].as_str().unwrap_or_default().to_owned();
                ensure!(seen.lock().expect("no check panics").insert(certificate), "it is that of another");
                let all = client.get(&path_in_tenant(&name, "apis/cert-manager.io/v1/certificaterequests")).await?;
                ensure!(all["items"].as_array().is_some_and(|items| items.len() == 1), "{all}");
                let spaces = client.get(&path_in_tenant(&name, "api/v1/namespaces")).await?;
                ensure!(!spaces.to_string().contains("--default"), "{spaces}");
                Ok(())
            }
        })
    }

    /// Deletes the Secret of the first one, and waits until it is there again.
    pub(super) fn renews(&self, alive: &(dyn Fn() -> Result<()> + Sync), limit: Duration) -> Result<()> {
        let first = Self { names: self.names[..1].to_vec(), ..Self::at(self.config.clone())? };
        first.each(|client, name| async move {
            let path = path_in_tenant(&name, "api/v1/namespaces/default/secrets/quay");
            client.0.send(Method::DELETE, &path, "{}".into()).await?.success().map(drop)
        })?;
        first.until_served(alive, limit)
    }
}

/// Tries again until it succeeds.
async fn until<F: Future<Output = Result<()>>>(limit: Duration, attempt: impl Fn() -> F) -> Result<()> {
    let begun = Instant::now();
    loop {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > limit => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
