//! The parameters of a binding, as they are stored now.

use portolan_machinery::conversion;
use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Status};
use serde_json::Value;

use crate::{
    ApiServer,
    call::Target,
    errors::{damaged, status_for},
};

use super::config::{Binding, ParamRef, Params, Policy};

/// Objects that one binding may take its parameters from at once; upstream knows no bound.
const MAX_PARAMS: usize = 1000;

/// Why there are no parameters.
pub(super) enum Trouble {
    /// The policy or its binding is wrong, in upstream's words.
    Configured(String),
    /// They could not be read.
    Failed(Status),
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Configured(why.into()))
}

/// The kind of a policy's parameters, where it has any.
pub(super) async fn kind(
    api: &ApiServer,
    cluster: LogicalClusterId,
    policy: &Policy,
) -> Result<Option<Target>, Trouble> {
    let Some(gvk) = &policy.params else { return Ok(None) };
    let served = api.kinds.served(cluster).await?.surface.kind(gvk);
    match served.filter(|served| served.kind.served) {
        Some(served) => Ok(Some(Target { table: served.table, kind: served.kind, namespace: None })),
        None => {
            let (group, version, kind) = (&gvk.group, &gvk.version, &gvk.kind);
            wrong(format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'"))
        }
    }
}

/// The parameters to evaluate a policy with, once for each; `None` for once without any.
pub(super) async fn collect(
    api: &ApiServer,
    cluster: LogicalClusterId,
    target: Option<&Target>,
    binding: &Binding,
    namespace: &str,
) -> Result<Vec<Option<Value>>, Trouble> {
    let (Some(target), Some(reference)) = (target, &binding.params) else { return Ok(vec![None]) };
    let namespace = match (target.kind.namespaced, reference.namespace.as_str(), namespace) {
        (false, "", _) => None,
        (false, ..) => return wrong("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"),
        (true, "", "") => {
            return wrong("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources");
        }
        (true, "", own) => Some(own),
        (true, named, _) => Some(named),
    };
    let found = read(api, cluster, target, reference, namespace).await?;
    if found.is_empty() && reference.denies_without {
        return wrong("no params found for policy binding with `Deny` parameterNotFoundAction");
    }
    Ok(found.into_iter().map(Some).collect())
}

async fn read(
    api: &ApiServer,
    cluster: LogicalClusterId,
    target: &Target,
    reference: &ParamRef,
    namespace: Option<&str>,
) -> Result<Vec<Value>, Trouble> {
    let resource = target.stored_as();
    let namespace: Option<NamespaceName> = match namespace.map(str::parse).transpose() {
        Ok(namespace) => namespace,
        // What is no name is nothing's name.
        Err(_) => return Ok(Vec::new()),
    };
    let stored = match &reference.which {
        Params::Named(name) => {
            let Ok(name) = name.parse() else { return Ok(Vec::new()) };
            let key = ObjectKey { cluster, resource, scope: namespace.into(), name };
            api.store.get(&key).await.map_err(|e| status_for(&e))?.into_iter().collect()
        }
        Params::Selected(selector) => {
            let selector = selector.as_ref().or_else(|why| wrong(why.clone()))?;
            let scope = match namespace {
                Some(namespace) => RangeScope::Namespace(cluster, resource, namespace),
                None => RangeScope::Cluster(cluster, resource),
            };
            selected(api, scope, selector).await?
        }
    };
    let shown = |stored: portolan_store::StoredObject| {
        let tree = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
        Ok(if target.is_read_as_served() { tree } else { conversion::from_storage(&target.kind, tree) })
    };
    let stored = api.in_version(target, stored).await?;
    stored.into_iter().map(shown).collect::<Result<_, Status>>().map_err(Trouble::Failed)
}

async fn selected(
    api: &ApiServer,
    scope: RangeScope,
    selector: &LabelSelector,
) -> Result<Vec<portolan_store::StoredObject>, Trouble> {
    let request = RangeRequest { labels: selector.clone(), limit: Some(MAX_PARAMS + 1), ..RangeRequest::all(scope) };
    let found = api.store.range(request).await.map_err(|e| status_for(&e))?.objects;
    match found.len() > MAX_PARAMS {
        true => wrong(format!("paramRef.selector selects more than {MAX_PARAMS} params")),
        false => Ok(found),
    }
}
