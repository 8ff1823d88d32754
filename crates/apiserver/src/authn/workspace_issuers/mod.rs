//! Issuers of single workspaces: a type of workspaces names `WorkspaceAuthenticationConfiguration`s, whose issuers
//! authenticate requests to the workspaces of that type. Such a user exists in that one workspace only.
//!
//! Guarantees: no user or group of such an issuer begins with `system:`; nothing of the identity is valid in another
//! logical cluster; the server reaches the issuers at the addresses only that tenants' webhooks may have.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;
use portolan_strategy::rbac::User;
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, ResourceVersion, Seams, Status, object,
};
use serde_json::{Value, json};

use crate::{
    authz::SCOPES,
    config::AuthenticationConfiguration,
    directory::LogicalCluster,
    errors::status_for,
    fair_cache::{CacheOwner, FairCache},
    routing::path::RequestedCluster,
    storage::StorageContext,
    webhooks::WebhookContext,
};

use super::{
    Identity,
    jwt::{AuthenticatorSet, SetContext, issuer_of},
};

const GROUP: &str = "tenancy.kcp.io";
/// Configurations of one type that count.
const MAX_CONFIGURATIONS: usize = 16;
/// Issuers of one configuration.
const MAX_ISSUERS: usize = 16;
/// Limit of compiled configurations, which tenants share.
const MAX_COMPILED: usize = 256;
/// Limit of the remembered tokens of one configuration.
const MAX_REMEMBERED: usize = 64;
/// Parts of extra keys that only the server gives a meaning.
const RESERVED_EXTRA: [&str; 3] = ["kubernetes.io/", "kcp.io/", "portolan.dev/"];

/// Key of a compiled configuration: its logical cluster, and a hash of its name.
type CompiledKey = (LogicalClusterId, CacheOwner);

/// Verifier of the tokens of the issuers of workspaces.
pub(crate) struct WorkspaceIssuers {
    storage: Arc<StorageContext>,
    /// Clients of webhooks, whose addresses the issuers may have.
    webhooks: Arc<WebhookContext>,
    own_issuer: String,
    compiled: Mutex<FairCache<CompiledKey, CompiledConfiguration>>,
}

/// Compiled configuration at a revision; `None` for one with faults.
#[derive(Clone)]
struct CompiledConfiguration {
    revision: ResourceVersion,
    set: Option<Arc<AuthenticatorSet>>,
}

impl WorkspaceIssuers {
    /// Creates a verifier. `own_issuer` is that of service account tokens.
    pub(crate) fn new(storage: Arc<StorageContext>, webhooks: Arc<WebhookContext>, own_issuer: String) -> Self {
        Self { storage, webhooks, own_issuer, compiled: Mutex::new(FairCache::new(MAX_COMPILED)) }
    }

    fn seams(&self) -> &Seams {
        &self.storage.seams
    }

    /// Returns the identity of a token for a request to a logical cluster; `None` if its workspace has no such issuer.
    ///
    /// # Errors
    /// 401 for a token of such an issuer that is refused; failure of the store.
    pub(crate) async fn identity(&self, named: &RequestedCluster, token: &str) -> Result<Option<Identity>, Status> {
        let Some(cluster) = self.storage.directory.resolve(named, None) else { return Ok(None) };
        Ok(self.user_in(cluster.id, token).await?.map(|user| Identity::local(user, cluster.id)))
    }

    /// Returns the user that a token means in a logical cluster; `None` if its workspace has no such issuer.
    ///
    /// # Errors
    /// The errors of [`WorkspaceIssuers::identity`].
    pub(crate) async fn user_in(&self, cluster: LogicalClusterId, token: &str) -> Result<Option<User>, Status> {
        if issuer_of(token).is_none_or(|issuer| issuer == self.own_issuer) {
            return Ok(None);
        }
        let Some(cluster) = self.storage.directory.by_id(cluster) else { return Ok(None) };
        let now = self.seams().clock.now().as_second();
        for key in self.configurations(&cluster).await? {
            let Some(set) = self.compiled(&key).await? else { continue };
            let verified = set.verify(token, now).await.map_err(|why| {
                tracing::debug!(why, cluster = %cluster.id, "token of an issuer of a workspace refused");
                Status::unauthorized()
            })?;
            if let Some(user) = verified {
                return Ok(Some(scoped(user, cluster.id)));
            }
        }
        Ok(None)
    }

    /// Returns the configurations that the type of a workspace names.
    async fn configurations(&self, cluster: &LogicalCluster) -> Result<Vec<ObjectKey>, Status> {
        let Some(of_type) = self.type_of(cluster).await? else { return Ok(Vec::new()) };
        let Some(stored) = self.read(&of_type).await? else { return Ok(Vec::new()) };
        let named = stored.pointer("/spec/authenticationConfigurations").and_then(Value::as_array);
        let names = named.into_iter().flatten().filter_map(|reference| reference.get("name")?.as_str());
        let key = |name: &str| key(of_type.cluster, "workspaceauthenticationconfigurations", name);
        Ok(names.take(MAX_CONFIGURATIONS).filter_map(key).collect())
    }

    /// Returns the key of the type of a workspace; `None` for root and for home workspaces.
    async fn type_of(&self, cluster: &LogicalCluster) -> Result<Option<ObjectKey>, Status> {
        let Some((parent, _)) = cluster.parent.zip(cluster.workspace.as_ref()) else { return Ok(None) };
        let name = cluster.path.rsplit(':').next().unwrap_or_default();
        let Some(workspace) = key(parent, "workspaces", name) else { return Ok(None) };
        let Some(workspace) = self.read(&workspace).await? else { return Ok(None) };
        let text = |field: &str| workspace.pointer(&format!("/spec/type/{field}")).and_then(Value::as_str);
        let path = text("path").and_then(|path| path.parse::<LogicalClusterPath>().ok());
        let home = path.and_then(|path| self.storage.directory.by_path(&path));
        Ok(home.zip(text("name")).and_then(|(home, name)| key(home.id, "workspacetypes", name)))
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<Value>, Status> {
        let stored = self.storage.store.get(key).await.map_err(|e| status_for(&e))?;
        stored.map(|stored| stored.to_value().map_err(|e| status_for(&e))).transpose()
    }

    /// Returns the compiled form of a configuration; `None` if it is missing or has faults, which the log has.
    async fn compiled(&self, key: &ObjectKey) -> Result<Option<Arc<AuthenticatorSet>>, Status> {
        let Some(stored) = self.storage.store.get(key).await.map_err(|e| status_for(&e))? else { return Ok(None) };
        let known_as = (key.cluster, CacheOwner::of(key.name.as_str()));
        let known = self.compiled.lock().get(&known_as).filter(|known| known.revision == stored.revision).cloned();
        if let Some(known) = known {
            return Ok(known.set);
        }
        let value = stored.to_value().map_err(|e| status_for(&e))?;
        let set = self.compile(key, &value).map(Arc::new).inspect_err(|why| {
            tracing::warn!(cluster = %key.cluster, name = %key.name, why, "a configuration of issuers has faults");
        });
        let compiled = CompiledConfiguration { revision: stored.revision, set: set.ok() };
        self.compiled.lock().insert(CacheOwner::of(&self.tenant(key.cluster)), known_as, compiled.clone());
        Ok(compiled.set)
    }

    fn compile(&self, key: &ObjectKey, configuration: &Value) -> Result<AuthenticatorSet, String> {
        let parsed = parse(configuration)?;
        let allowed = self.webhooks.clients.addresses_of(key.cluster);
        let own_issuer = &*self.own_issuer;
        AuthenticatorSet::compile(
            &parsed,
            &SetContext { own_issuer, allowed: Some(allowed), remembered: MAX_REMEMBERED },
        )
    }

    fn tenant(&self, cluster: LogicalClusterId) -> LogicalClusterId {
        let directory = &self.storage.directory;
        directory.by_id(cluster).map_or(cluster, |cluster| directory.tenant(&cluster))
    }
}

/// Parses the issuers of a `WorkspaceAuthenticationConfiguration`.
fn parse(configuration: &Value) -> Result<AuthenticationConfiguration, String> {
    let issuers = configuration.pointer("/spec/jwt").cloned().unwrap_or_else(|| json!([]));
    if issuers.as_array().is_some_and(|issuers| issuers.len() > MAX_ISSUERS) {
        return Err(format!("{} has more than {MAX_ISSUERS} issuers", object::name(configuration)));
    }
    let form = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": issuers,
    });
    AuthenticationConfiguration::parse(form.to_string().as_bytes())
}

fn key(cluster: LogicalClusterId, resource: &str, name: &str) -> Option<ObjectKey> {
    Some(ObjectKey::cluster_scoped(cluster, GroupResource::new(GROUP, resource), name.parse().ok()?))
}

/// Returns the user as a logical cluster knows it: it counts there only, and has no attributes that the server reads.
fn scoped(mut user: User, cluster: LogicalClusterId) -> User {
    user.extra.retain(|key, _| !RESERVED_EXTRA.iter().any(|reserved| key.contains(reserved)));
    user.extra.insert(SCOPES.to_owned(), vec![format!("cluster:{cluster}")]);
    user
}
