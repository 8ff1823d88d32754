//! Labels of requests.

use std::sync::Arc;

use portolan_kinds::Kind;

use super::COMPONENT;

/// Labels of a request. They are empty for paths that are not resources, so that clients cannot create label values; a
/// health endpoint's path counts as a subresource.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestLabels {
    pub(crate) verb: &'static str,
    pub(crate) dry_run: &'static str,
    pub(crate) kind: Option<Arc<Kind>>,
    pub(crate) subresource: Option<Arc<str>>,
    pub(crate) scope: &'static str,
}

impl RequestLabels {
    pub(super) fn values(&self) -> [&str; 7] {
        let [group, version, resource] = self.resource();
        let subresource = self.subresource.as_deref().unwrap_or_default();
        let component = if self.kind.is_none() && !subresource.is_empty() { "" } else { COMPONENT };
        [self.verb, group, version, resource, subresource, self.scope, component]
    }

    /// Returns group, version and resource.
    pub(crate) fn resource(&self) -> [&str; 3] {
        self.kind.as_ref().map_or([""; 3], |kind| [&*kind.gvk.group, &*kind.gvk.version, &*kind.resource])
    }
}
