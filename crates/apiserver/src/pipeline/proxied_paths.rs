//! Paths that lead to a physical cluster: those of a workspace that mounts it, and KubeSphere's. They are rewritten to
//! the `proxy` subresource of the physical cluster before authorization, so that one route, one policy and one handler
//! serve all of them.

use std::sync::Arc;

use portolan_types::{LogicalClusterId, LogicalClusterPath, ObjectKey, Status};
use serde_json::Value;

use crate::{
    authn::{AccessContext, Identity},
    errors::{damaged, status_for},
    kinds::DefinitionCatalog,
    reach::physical_clusters,
    routing::{
        attributes::Attributes,
        path::RequestedCluster,
        routes::{self, ProxyForm},
    },
};

use super::{authorization::AuthorizationContext, head::RequestHead, missing_workspace};

/// Path of a request to a physical cluster.
struct ProxiedPath {
    /// Path of the logical cluster that has the physical cluster.
    home: LogicalClusterPath,
    /// Name of the `PhysicalCluster`.
    name: String,
    /// Segments of the path on the physical cluster.
    rest: Vec<String>,
    form: ProxyForm,
}

/// Request line as it arrived, of a request that was rewritten.
pub(super) struct MountedRequest {
    asked: Arc<Attributes>,
    named: RequestedCluster,
}

impl MountedRequest {
    /// Returns the refusal: it names the mount only to users who may get the workspace.
    pub(super) async fn refusal(
        &self,
        access: &AccessContext,
        identity: &Identity,
        refused: &Attributes,
    ) -> Result<Status, Status> {
        let known = missing_workspace::may_get(access, &self.named, identity).await?;
        let user = &identity.user;
        Ok(if known { refused.denial(user, "the workspace is a mount") } else { self.asked.denial(user, "") })
    }
}

/// Path that may lead to a physical cluster.
enum CandidatePath {
    /// Path of a workspace without a logical cluster, which may be a mount.
    Mount(LogicalClusterPath),
    /// Alias, and the resource that has precedence over it.
    Alias(ProxiedPath, Option<ClustersResource>),
}

/// Rewriter of a path that may lead to a physical cluster.
pub(super) struct PathRewriter<'a> {
    context: AuthorizationContext<'a>,
    candidate: CandidatePath,
}

impl<'a> PathRewriter<'a> {
    /// Returns a rewriter; `None` for the paths of most requests, which lead to a logical cluster. Reads memory only.
    pub(super) fn of(context: AuthorizationContext<'a>, head: &RequestHead, identity: &Identity) -> Option<Self> {
        let candidate = match &head.named {
            RequestedCluster::Path(path) if context.access.directory.by_path(path).is_none() => {
                CandidatePath::Mount(path.clone())
            }
            RequestedCluster::Unspecified if identity.home.is_none_or(|home| home == LogicalClusterId::ROOT) => {
                let (path, resource) = alias(&head.path)?;
                CandidatePath::Alias(path, resource)
            }
            _ => return None,
        };
        Some(Self { context, candidate })
    }

    /// Rewrites the request line, if the path leads to a physical cluster. Also returns the line of a mount as it
    /// arrived.
    ///
    /// # Errors
    /// Failure of the store.
    pub(super) async fn rewrite(self, head: RequestHead) -> Result<(RequestHead, Option<MountedRequest>), Status> {
        let found = match self.candidate {
            CandidatePath::Mount(path) => mounted(self.context.access, &path, &head.path).await?,
            CandidatePath::Alias(_, Some(resource)) if is_resource(self.context.kinds, &resource).await? => None,
            CandidatePath::Alias(path, _) => Some(path),
        };
        let Some(found) = found else { return Ok((head, None)) };
        let mounted = MountedRequest { asked: head.attributes.clone(), named: head.named.clone() };
        let is_mount = found.form == ProxyForm::Mount;
        Ok((found.rewrite(head), is_mount.then_some(mounted)))
    }
}

impl ProxiedPath {
    /// Returns the request line of the same request to the subresource.
    fn rewrite(self, head: RequestHead) -> RequestHead {
        let resource = physical_clusters();
        let base = ["apis", &*resource.group, "v1alpha1", &*resource.resource, &*self.name, "proxy"];
        let segments: Vec<String> = base.into_iter().map(str::to_owned).chain(self.rest).collect();
        let (route, captures) = routes::find(&segments).unzip();
        let captures = routes::Captures { form: self.form, ..captures.unwrap_or_default() };
        RequestHead { named: RequestedCluster::Path(self.home), route, captures, ..head }.with_attributes()
    }
}

/// Returns the physical cluster that the workspace at `path` mounts; `None` if it mounts none. There is no logical
/// cluster of that path.
async fn mounted(
    access: &AccessContext,
    path: &LogicalClusterPath,
    below: &str,
) -> Result<Option<ProxiedPath>, Status> {
    let Some((parent, name)) = path.rsplit_once(':') else { return Ok(None) };
    let (Ok(home), Ok(name)) = (parent.parse::<LogicalClusterPath>(), name.parse()) else { return Ok(None) };
    let Some(holder) = access.directory.by_path(&home) else { return Ok(None) };
    let key = ObjectKey::cluster_scoped(holder.id, missing_workspace::workspaces(), name);
    let Some(stored) = access.store.get(&key).await.map_err(|error| status_for(&error))? else { return Ok(None) };
    let workspace = stored.record.to_value(stored.revision).map_err(|error| damaged(&key, &error))?;
    let rest = segments(below);
    Ok(mounted_name(&workspace).map(|name| ProxiedPath { home, name, rest, form: ProxyForm::Mount }))
}

/// Returns the name of the `PhysicalCluster` that a Workspace mounts.
fn mounted_name(workspace: &Value) -> Option<String> {
    let mount = workspace.pointer("/spec/mount/ref")?;
    crate::admission::is_mountable(mount).then(|| mount["name"].as_str().map(str::to_owned))?
}

fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// Group and version of a path under which a resource may be named `clusters`.
type ClustersResource = (String, String);

/// Parses KubeSphere's forms of a path to a physical cluster of root. A resource of the returned group and version has
/// precedence.
fn alias(path: &str) -> Option<(ProxiedPath, Option<ClustersResource>)> {
    let all = segments(path);
    let words: Vec<&str> = all.iter().map(String::as_str).collect();
    let (kept, name, resource): (&[&str], &str, _) = match &*words {
        [api @ ("api" | "apis" | "kapis"), "clusters", name, ..] => (&[*api], *name, None),
        ["api", "v1", "clusters", name, ..] => (&["api", "v1"], *name, None),
        ["kapis", group, version, "clusters", name, ..] => (&["kapis", *group, *version], *name, None),
        ["apis", group, version, "clusters", name, ..] => {
            (&["apis", *group, *version], *name, Some(((*group).to_owned(), (*version).to_owned())))
        }
        _ => return None,
    };
    // The kept segments are followed by `clusters` and the name.
    let rest = kept.iter().chain(&words[kept.len() + 2..]).map(|text| (*text).to_owned()).collect();
    let (home, name) = (LogicalClusterPath::root(), name.to_owned());
    Some((ProxiedPath { home, name, rest, form: ProxyForm::Alias }, resource))
}

/// Returns true if root serves a resource named `clusters` in a group and version.
async fn is_resource(kinds: &DefinitionCatalog, (group, version): &ClustersResource) -> Result<bool, Status> {
    let served = kinds.served(LogicalClusterId::ROOT).await?;
    Ok(served.surface.resource(group, version, "clusters").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_kubesphere() {
        for (path, expected) in [
            ("/api/v1/clusters/east/namespaces", Some(("east", "api/v1/namespaces", false))),
            ("/api/v1/clusters/east", Some(("east", "api/v1", false))),
            ("/apis/apps/v1/clusters/east/deployments", Some(("east", "apis/apps/v1/deployments", true))),
            ("/kapis/monitoring.io/v1/clusters/east/x", Some(("east", "kapis/monitoring.io/v1/x", false))),
            ("/api/clusters/east/v1/pods", Some(("east", "api/v1/pods", false))),
            ("/apis/clusters/east/apps/v1", Some(("east", "apis/apps/v1", false))),
            ("/kapis/clusters/east/version", Some(("east", "kapis/version", false))),
            // Only the first is cut off.
            ("/api/clusters/east/clusters/west", Some(("east", "api/clusters/west", false))),
            ("/api/v1/clusters", None),
            ("/clusters/east/api", None),
            ("/api/v1/namespaces/clusters/pods", None),
            ("/oapis/clusters/east", None),
        ] {
            let found = alias(path).map(|(found, resource)| (found.name, found.rest.join("/"), resource.is_some()));
            let expected = expected.map(|(name, rest, real)| (name.to_owned(), rest.to_owned(), real));
            assert_eq!(found, expected, "{path}");
        }
    }
}
