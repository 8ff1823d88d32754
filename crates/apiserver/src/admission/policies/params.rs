//! The parameters of a binding, as they are stored now.

use portolan_machinery::conversion;
use portolan_store::{RangeRequest, RangeScope, StoredObject};
use portolan_types::{LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Status};
use serde_json::Value;

use crate::{
    ApiServer,
    call::Target,
    errors::{damaged, status_for},
};

use super::{
    super::review::Unfit,
    config::{Binding, ParamRef, Params, Policy},
};

/// Objects that one binding may take its parameters from at once; upstream knows no bound.
const MAX_PARAMS: usize = 1000;
/// Bytes of parameters, as they are stored, that all bindings may take together each time that policies look at a request; held
/// as trees they are many times that.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Evaluations that all bindings may ask for together.
const MAX_EVALUATIONS: usize = 5000;

/// What the bindings may still take. What one takes in vain is gone for the others, too: reading it was work.
pub(super) struct Allowance {
    bytes: usize,
    evaluations: usize,
}

impl Allowance {
    pub(super) fn new() -> Self {
        Self { bytes: MAX_BYTES, evaluations: MAX_EVALUATIONS }
    }

    fn take(&mut self, bytes: usize) -> Result<(), Trouble> {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or_default();
        left.map(drop).map_or_else(|| wrong(format!("policies take more than {MAX_BYTES} bytes of params")), Ok)
    }

    fn evaluate(&mut self, times: usize) -> Result<(), Trouble> {
        let left = self.evaluations.checked_sub(times);
        self.evaluations = left.unwrap_or_default();
        left.map(drop).map_or_else(|| wrong(format!("policies ask for more than {MAX_EVALUATIONS} evaluations")), Ok)
    }
}

/// Why there are no parameters.
pub(super) enum Trouble {
    /// The policy or its binding is wrong, in upstream's words.
    Configured(String),
    /// They could not be read.
    Failed(Status),
}

impl From<Unfit> for Trouble {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Busy(status) => Self::Failed(status),
            Unfit::Failed(why) => Self::Configured(why),
        }
    }
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
        Some(served) => Ok(Some(Target { table: served.table, kind: served.kind, namespace: None, definition: None })),
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
    allowance: &mut Allowance,
) -> Result<Vec<Option<Value>>, Trouble> {
    let (Some(target), Some(reference)) = (target, &binding.params) else {
        allowance.evaluate(1)?;
        return Ok(vec![None]);
    };
    let namespace = match (target.kind.namespaced, reference.namespace.as_str(), namespace) {
        (false, "", _) => None,
        (false, ..) => return wrong("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"),
        (true, "", "") => {
            return wrong("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources");
        }
        (true, "", own) => Some(own),
        (true, named, _) => Some(named),
    };
    let found = read(api, cluster, target, reference, namespace, allowance).await?;
    if found.is_empty() && reference.denies_without {
        return wrong("no params found for policy binding with `Deny` parameterNotFoundAction");
    }
    allowance.evaluate(found.len())?;
    Ok(found.into_iter().map(Some).collect())
}

async fn read(
    api: &ApiServer,
    cluster: LogicalClusterId,
    target: &Target,
    reference: &ParamRef,
    namespace: Option<&str>,
    allowance: &mut Allowance,
) -> Result<Vec<Value>, Trouble> {
    let resource = target.stored_as();
    let namespace: Option<NamespaceName> = match namespace.map(str::parse).transpose() {
        Ok(namespace) => namespace,
        // What is no name is nothing's name.
        Err(_) => return Ok(Vec::new()),
    };
    match &reference.which {
        Params::Named(name) => {
            let Ok(name) = name.parse() else { return Ok(Vec::new()) };
            let key = ObjectKey { cluster, resource, scope: namespace.into(), name };
            let stored = api.store.get(&key).await.map_err(|e| status_for(&e))?;
            shown(api, target, stored.into_iter().collect(), allowance).await
        }
        Params::Selected(selector) => {
            let selector = selector.as_ref().or_else(|why| wrong(why.clone()))?;
            let scope = match namespace {
                Some(namespace) => RangeScope::Namespace(cluster, resource, namespace),
                None => RangeScope::Cluster(cluster, resource),
            };
            selected(api, target, scope, selector, allowance).await
        }
    }
}

/// Slice by slice, so that what is too much is noticed before it is held.
async fn selected(
    api: &ApiServer,
    target: &Target,
    scope: RangeScope,
    selector: &LabelSelector,
    allowance: &mut Allowance,
) -> Result<Vec<Value>, Trouble> {
    let mut request = RangeRequest { labels: selector.clone(), ..RangeRequest::slices(scope) };
    let mut found = Vec::new();
    loop {
        let page = api.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        if found.len() + page.objects.len() > MAX_PARAMS {
            return wrong(format!("paramRef.selector selects more than {MAX_PARAMS} params"));
        }
        let next = request.next(&page);
        found.extend(shown(api, target, page.objects, allowance).await?);
        match next {
            Some(next) => request = next,
            None => return Ok(found),
        }
    }
}

/// Stored objects as expressions see them.
async fn shown(
    api: &ApiServer,
    target: &Target,
    stored: Vec<StoredObject>,
    allowance: &mut Allowance,
) -> Result<Vec<Value>, Trouble> {
    let size = |stored: &[StoredObject]| stored.iter().map(|one| one.record.body().len()).sum::<usize>();
    let read = size(&stored);
    allowance.take(read)?;
    let stored = api.in_version(target, stored).await?;
    // A webhook may have made more of them.
    allowance.take(size(&stored).saturating_sub(read))?;
    let tree = |stored: StoredObject| {
        let tree = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
        Ok(if target.is_read_as_served() { tree } else { conversion::from_storage(&target.kind, tree) })
    };
    stored.into_iter().map(tree).collect::<Result<_, Status>>().map_err(Trouble::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_bounded_over_all_bindings() {
        let mut allowance = Allowance::new();
        for _ in 0..MAX_EVALUATIONS / MAX_PARAMS {
            assert!(allowance.evaluate(MAX_PARAMS).is_ok());
        }
        let refused = allowance.evaluate(1);
        assert!(
            matches!(refused, Err(Trouble::Configured(why)) if why == "policies ask for more than 5000 evaluations")
        );
    }
}
