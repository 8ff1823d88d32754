//! Parameters of policy bindings, read from the store.

use portolan_codec::conversion;
use portolan_store::{RangeRequest, RangeScope, StoredObject};
use portolan_types::{LogicalClusterId, NamespaceName, ObjectKey, Status};
use serde_json::Value;

use crate::{
    conversion::ConversionContext,
    errors::{damaged, status_for},
    kinds::DefinitionCatalog,
    request::ResourceTarget,
};

use super::{
    super::review::ShowError,
    config::{AdmissionPolicy, ParamsSelector, PolicyBinding, PolicyParamRef},
};

/// Limit of parameter objects per binding; kube-apiserver has none.
const MAX_PARAMS: usize = 1000;
/// Limit of stored bytes of parameters that all bindings may read for one request. As trees they take several times
/// as much.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Limit of evaluations of all bindings for one request.
const MAX_EVALUATIONS: usize = 5000;

/// Remaining budget of all bindings. Reads without a result count too, since they cost work.
pub(super) struct ParamsBudget {
    bytes: usize,
    evaluations: usize,
}

impl ParamsBudget {
    pub(super) fn new() -> Self {
        Self { bytes: MAX_BYTES, evaluations: MAX_EVALUATIONS }
    }

    fn take(&mut self, bytes: usize) -> Result<(), ParamsError> {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or_default();
        left.map(drop).map_or_else(|| wrong(format!("policies take more than {MAX_BYTES} bytes of params")), Ok)
    }

    fn evaluate(&mut self, times: usize) -> Result<(), ParamsError> {
        let left = self.evaluations.checked_sub(times);
        self.evaluations = left.unwrap_or_default();
        left.map(drop).map_or_else(|| wrong(format!("policies ask for more than {MAX_EVALUATIONS} evaluations")), Ok)
    }
}

/// Error of reading parameters.
pub(super) enum ParamsError {
    /// The policy or binding is wrong; in kube-apiserver's words.
    AdmissionConfigCache(String),
    /// The store failed.
    Failed(Status),
}

impl From<ShowError> for ParamsError {
    fn from(show_error: ShowError) -> Self {
        match show_error {
            ShowError::Busy(status) => Self::Failed(status),
            ShowError::Failed(why) => Self::AdmissionConfigCache(why),
        }
    }
}

impl From<Status> for ParamsError {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, ParamsError> {
    Err(ParamsError::AdmissionConfigCache(why.into()))
}

/// Returns the kind of a policy's parameters, if it has any.
pub(super) async fn kind(
    kinds: &DefinitionCatalog,
    cluster: LogicalClusterId,
    policy: &AdmissionPolicy,
) -> Result<Option<ResourceTarget>, ParamsError> {
    let Some(gvk) = &policy.params else { return Ok(None) };
    let served = kinds.served(cluster).await?.surface.kind(gvk);
    match served.filter(|served| served.kind.served) {
        Some(served) => {
            Ok(Some(ResourceTarget { table: served.table, kind: served.kind, namespace: None, definition: None }))
        }
        None => {
            let (group, version, kind) = (&gvk.group, &gvk.version, &gvk.kind);
            wrong(format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'"))
        }
    }
}

/// Reader of the parameters of one policy.
pub(super) struct ParamsReader<'a> {
    pub(super) conversion: &'a ConversionContext,
    pub(super) cluster: LogicalClusterId,
    /// Namespace of the request.
    pub(super) namespace: &'a str,
    /// Kind of the parameters, if the policy has any.
    pub(super) target: Option<&'a ResourceTarget>,
}

impl ParamsReader<'_> {
    /// Reads the parameters that a binding evaluates the policy with; one `None` for a single evaluation without any.
    pub(super) async fn collect(
        &self,
        binding: &PolicyBinding,
        budget: &mut ParamsBudget,
    ) -> Result<Vec<Option<Value>>, ParamsError> {
        let (Some(target), Some(reference)) = (self.target, &binding.params) else {
            budget.evaluate(1)?;
            return Ok(vec![None]);
        };
        let namespace = match (target.kind.namespaced, reference.namespace.as_str(), self.namespace) {
            (false, "", _) => None,
            (false, ..) => return wrong("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"),
            (true, "", "") => {
                return wrong("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources");
            }
            (true, "", own) => Some(own),
            (true, named, _) => Some(named),
        };
        let found = match namespace.map(str::parse).transpose() {
            Ok(namespace) => self.read(target, reference, namespace, budget).await?,
            // An invalid name refers to nothing.
            Err(_) => Vec::new(),
        };
        if found.is_empty() && reference.denies_without {
            return wrong("no params found for policy binding with `Deny` parameterNotFoundAction");
        }
        budget.evaluate(found.len())?;
        Ok(found.into_iter().map(Some).collect())
    }

    async fn read(
        &self,
        target: &ResourceTarget,
        reference: &PolicyParamRef,
        namespace: Option<NamespaceName>,
        budget: &mut ParamsBudget,
    ) -> Result<Vec<Value>, ParamsError> {
        let (cluster, resource) = (self.cluster, target.stored_as());
        match &reference.which {
            ParamsSelector::Named(name) => {
                let Ok(name) = name.parse() else { return Ok(Vec::new()) };
                let key = ObjectKey { cluster, resource, scope: namespace.into(), name };
                let stored = self.conversion.storage.store.get(&key).await.map_err(|e| status_for(&e))?;
                self.converted(target, stored.into_iter().collect(), budget).await
            }
            ParamsSelector::Selected(selector) => {
                let labels = selector.as_ref().or_else(|why| wrong(why.clone()))?.clone();
                let scope = match namespace {
                    Some(namespace) => RangeScope::Namespace(cluster, resource, namespace),
                    None => RangeScope::Cluster(cluster, resource),
                };
                self.selected(target, RangeRequest { labels, ..RangeRequest::slices(scope) }, budget).await
            }
        }
    }

    /// Reads selected parameters slice by slice, so that excess is noticed before it is held.
    async fn selected(
        &self,
        target: &ResourceTarget,
        mut request: RangeRequest,
        budget: &mut ParamsBudget,
    ) -> Result<Vec<Value>, ParamsError> {
        let mut found = Vec::new();
        loop {
            let page = self.conversion.storage.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            if found.len() + page.objects.len() > MAX_PARAMS {
                return wrong(format!("paramRef.selector selects more than {MAX_PARAMS} params"));
            }
            let next = request.next(&page);
            found.extend(self.converted(target, page.objects, budget).await?);
            match next {
                Some(next) => request = next,
                None => return Ok(found),
            }
        }
    }

    /// Converts stored objects for expressions.
    async fn converted(
        &self,
        target: &ResourceTarget,
        stored: Vec<StoredObject>,
        budget: &mut ParamsBudget,
    ) -> Result<Vec<Value>, ParamsError> {
        let size = |stored: &[StoredObject]| stored.iter().map(|one| one.record.body().len()).sum::<usize>();
        let read = size(&stored);
        budget.take(read)?;
        let stored = self.conversion.in_version(target, stored).await?;
        // A conversion webhook may have enlarged them.
        budget.take(size(&stored).saturating_sub(read))?;
        let tree = |stored: StoredObject| {
            let tree = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
            Ok(if target.is_read_as_served() { tree } else { conversion::from_storage(&target.kind, tree) })
        };
        stored.into_iter().map(tree).collect::<Result<_, Status>>().map_err(ParamsError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_bounded_over_all_bindings() {
        let mut budget = ParamsBudget::new();
        for _ in 0..MAX_EVALUATIONS / MAX_PARAMS {
            assert!(budget.evaluate(MAX_PARAMS).is_ok());
        }
        let refused = budget.evaluate(1);
        assert!(
            matches!(refused, Err(ParamsError::AdmissionConfigCache(why)) if why == "policies ask for more than 5000 evaluations")
        );
    }
}
