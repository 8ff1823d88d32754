//! Endpoint slices: the address of the view of an export, once there is a binding to it.

use std::{sync::Arc, time::Duration};

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_types::{
    BoxFuture, GroupResource, ObjectKey,
    apis::{self, ExportAddress, ExportReference},
    object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    remaining_content::set_conditions,
    runtime::{Controller, WorkOutcome},
};

use super::{ExportDirectory, binding_index::BindingIndex, fails, holds, kind_of};

/// Interval at which a slice in another workspace than its export, or without its export, is checked again.
const RECHECK: Duration = Duration::from_secs(5);

/// Controller of endpoint slices.
pub struct SliceController {
    plane: Arc<Plane>,
    directory: Arc<dyn ExportDirectory>,
    slices: &'static Kind,
    /// Bindings by the export that they are bound to.
    bindings: BindingIndex<ExportAddress>,
}

impl SliceController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn ExportDirectory>) -> Self {
        let slices = kind_of(&plane, "v1alpha1", "APIExportEndpointSlice");
        Self { plane, directory, slices, bindings: BindingIndex::default() }
    }

    /// Returns true if a binding is bound to an export. Usually reads one binding; more if the index names deleted
    /// ones.
    async fn has_binding(&self, export: &ExportAddress) -> Result<bool, PlaneError> {
        let mut next = self.bindings.next(export, None);
        while let Some(key) = next {
            let binding = self.plane.get(&key).await?;
            if binding.and_then(|binding| ExportAddress::of_bound(&binding.object)).as_ref() == Some(export) {
                return Ok(true);
            }
            next = self.bindings.next(export, Some(&key));
        }
        Ok(false)
    }

    /// Records the export of a binding and returns it.
    fn take_binding(&self, event: &Event) -> Option<ExportAddress> {
        let binding = event.record.to_value(event.revision).ok();
        let export = binding.as_ref().and_then(ExportAddress::of_bound);
        self.bindings.set(&event.key, export.clone().filter(|_| event.change != ChangeKind::Deleted));
        export
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
        let export = self.take_binding(event);
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
