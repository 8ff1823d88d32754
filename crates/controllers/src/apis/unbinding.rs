//! Deletion of a binding: the objects of its resources go first.

use std::time::Duration;

use portolan_store::{Expect, RangeRequest, RangeScope, Transaction};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{GroupResource, apis, object};
use serde_json::Value;

use crate::{
    concurrency::for_each_concurrently,
    emptying::SHARE,
    plane::{PlaneChange, PlaneError, PlaneObject},
    remaining_content::set_conditions,
};

use super::{bindings::BindingController, fails};

/// Interval at which remaining objects are checked.
const RECHECK: Duration = Duration::from_millis(500);

impl BindingController {
    /// Deletes a share of the objects of a binding's resources, then releases the binding. Returns when to continue.
    pub(super) async fn unbind(&self, binding: &PlaneObject) -> Result<Option<Duration>, PlaneError> {
        if !object::finalizers(&binding.object).any(|finalizer| finalizer == apis::BINDING_FINALIZER) {
            return Ok(None);
        }
        let mut left = Vec::new();
        for (resource, _) in apis::bound_resources(&binding.object) {
            if !self.delete_objects(binding, &resource).await? {
                left.push(resource.to_string());
            }
        }
        if left.is_empty() {
            self.plane.drop_finalizer(self.kind, &binding.key, apis::BINDING_FINALIZER).await?;
            return Ok(None);
        }
        let message = format!("some objects remain of {}", left.join(", "));
        let now = self.plane.seams().now_text();
        let write = |binding: &mut Value| {
            let condition = fails("BindingResourceDeleteSuccess", "SomeResourcesRemain", &message);
            let changed = set_conditions(binding, [condition], &now);
            if changed { PlaneChange::Write(Some("status")) } else { PlaneChange::Keep }
        };
        self.plane.change(self.kind, &binding.key, write).await?;
        Ok(Some(RECHECK))
    }

    /// Deletes a share of the objects of a resource. Returns true if none is left.
    async fn delete_objects(&self, binding: &PlaneObject, resource: &GroupResource) -> Result<bool, PlaneError> {
        let cluster = binding.key.cluster;
        let kind = self.plane.kind_of(cluster, resource).await?;
        let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let mut request = RangeRequest::slices(RangeScope::Cluster(cluster, resource.clone())).skip_damaged();
        request.limit = Some(SHARE);
        let page = self.plane.store().range(request.clone()).await?;
        let staying = page.objects.into_iter().filter(|stored| !stored.record.header.is_deleting);
        let (kind, options) = (kind.as_deref(), &options);
        let delete = |key| async move {
            match kind {
                Some(kind) => self.plane.delete(kind, &key, options).await,
                // The workspace of the export and its schema are gone, so no client can remove finalizers.
                None => {
                    self.plane.store().commit(Transaction::one(key, Expect::Anything, None)).await?;
                    Ok(())
                }
            }
        };
        for_each_concurrently(staying.map(|stored| stored.key), delete).await?;
        // An object that was created before the deletion of the binding began may have appeared since.
        request.limit = Some(1);
        let left = self.plane.store().range(request).await?;
        Ok(left.objects.is_empty() && left.damaged.is_empty())
    }
}
