//! Endpoint slices: the address of the view of an export, once there is a binding to it.

use std::{sync::Arc, time::Duration};

use portolan_kinds::Kind;
use portolan_store::{Event, RangeRequest, RangeScope};
use portolan_types::{
    BoxFuture, GroupResource, LabelSelector, ObjectKey, Status,
    apis::{self, ExportAddress, ExportReference},
    object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    remaining_content::set_conditions,
    runtime::{Controller, WorkOutcome},
};

use super::{ExportDirectory, fails, holds, kind_of};

/// Interval at which a slice in another workspace than its export, or without its export, is checked again.
const RECHECK: Duration = Duration::from_secs(5);

/// Controller of endpoint slices.
pub struct SliceController {
    plane: Arc<Plane>,
    directory: Arc<dyn ExportDirectory>,
    slices: &'static Kind,
}

impl SliceController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn ExportDirectory>) -> Self {
        let slices = kind_of(&plane, "v1alpha1", "APIExportEndpointSlice");
        Self { plane, directory, slices }
    }

    async fn has_binding(&self, export: &ExportAddress) -> Result<bool, PlaneError> {
        let selector = format!("{}={}", apis::EXPORT_LABEL, export.label());
        let labels = LabelSelector::parse(&selector).map_err(Status::internal)?;
        let scope = RangeScope::AllClusters(apis::resource(apis::BINDINGS));
        let mut next = Some(RangeRequest { labels, ..RangeRequest::slices(scope).skip_damaged() });
        while let Some(request) = next {
            let page = self.plane.store().range(request.clone()).await?;
            next = request.next(&page);
            let is_bound = |binding: Value| ExportAddress::of_bound(&binding).as_ref() == Some(export);
            if page.objects.iter().filter_map(|stored| stored.to_value().ok()).any(is_bound) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Controller for SliceController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "api-export-endpoint-slices"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.slices.group_resource(), apis::resource(apis::EXPORTS), apis::resource(apis::BINDINGS)]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let resource = self.slices.group_resource();
        if event.key.resource == resource {
            return vec![event.key.clone()];
        }
        if event.key.resource == apis::resource(apis::EXPORTS) {
            return vec![ObjectKey::cluster_scoped(event.key.cluster, resource, event.key.name.clone())];
        }
        // The slice of an export has its name.
        let binding = event.record.to_value(event.revision).ok();
        let export = binding.as_ref().and_then(ExportAddress::of_bound);
        export.map(|export| ObjectKey::cluster_scoped(export.cluster, resource, export.name)).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(slice) = self.plane.get_reconciled(key).await? else { return Ok(WorkOutcome::Done) };
            let has_url = slice.object.pointer("/status/endpoints/0").is_some();
            if object::is_deleting(&slice.object) || has_url {
                return Ok(WorkOutcome::Done);
            }
            let reference = slice.object.pointer("/spec/export").and_then(ExportReference::of);
            let export = reference.and_then(|reference| super::resolve(&*self.directory, key.cluster, &reference));
            let found = match &export {
                Some(export) => self.plane.get(&export.key()).await?,
                None => None,
            };
            let bound = match (&export, &found) {
                (Some(export), Some(_)) => self.has_binding(export).await?,
                _ => false,
            };
            let (url, now) = (self.directory.url(), self.plane.seams().now_text());
            let write = |slice: &mut Value| {
                let before = slice.clone();
                let condition = match &found {
                    Some(_) => holds("APIExportValid"),
                    None => fails("APIExportValid", "APIExportNotFound", "the APIExport does not exist"),
                };
                set_conditions(slice, [condition, holds("EndpointURLsReady")], &now);
                if let Some(export) = export.as_ref().filter(|_| bound) {
                    let url = format!("{url}/services/apiexport/{}/{}", export.cluster, export.name);
                    slice["status"]["endpoints"] = json!([{"url": url}]);
                }
                if *slice == before { PlaneChange::Keep } else { PlaneChange::Write(Some("status")) }
            };
            self.plane.change(self.slices, key, write).await?;
            let is_own = export.is_some_and(|export| export.cluster == key.cluster && export.name == key.name);
            Ok(if bound || is_own { WorkOutcome::Done } else { WorkOutcome::RequeueAfter(RECHECK) })
        })
    }
}
