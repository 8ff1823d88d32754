//! Definitions of custom resources: accepts their names, serves them, and deletes their instances with them.

use std::{sync::Arc, time::Duration};

use portolan_kinds::{
    Kind,
    custom::{self, Definition, Instances, TakenNames},
};
use portolan_merge::apply::{self, Conversions, UpdateRequest};
use portolan_store::{Event, RangeRequest, RangeScope};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::Value;

use crate::{
    concurrency::for_each_concurrently,
    emptying::SHARE,
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// Interval at which remaining instances are checked.
const RECHECK: Duration = Duration::from_millis(500);
/// Most passes over the definitions of a group in one reconcile: each may free a name that another waits for.
const PASSES: usize = 8;
/// Manager of names and conditions: kube-apiserver itself.
const MANAGER: &str = "kube-apiserver";

/// Controller of definitions. Those of one group, which compete for names, are reconciled one after the other.
pub struct DefinitionController {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

/// Group in a logical cluster.
type ClusterGroup = (LogicalClusterId, Arc<str>);

impl DefinitionController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new(custom::GROUP, "v1", "CustomResourceDefinition");
        let kind = plane.table().kind(&gvk).expect("the table has apiextensions.k8s.io");
        Self { plane, kind }
    }

    async fn of_group(&self, (cluster, group): &ClusterGroup) -> Result<Vec<Arc<Definition>>, PlaneError> {
        let mut all = self.plane.kinds().definitions(*cluster).await?;
        all.retain(|definition| definition.resource.group == *group);
        Ok(all)
    }

    /// Reconciles every definition that may need it. Returns true if anything was written, and when to check what is
    /// left.
    async fn pass(&self, group: &ClusterGroup) -> Result<(bool, Option<Duration>), PlaneError> {
        let (mut wrote, mut again) = (false, None::<Duration>);
        let waiting = self.of_group(group).await?.into_iter().filter(|definition| definition.needs_look());
        for definition in waiting {
            let key = self.key(group.0, &definition)?;
            if definition.is_deleting {
                match self.end(&key, &definition).await? {
                    None => wrote = true,
                    Some(soon) => again = Some(again.map_or(soon, |before| before.min(soon))),
                }
            } else {
                wrote |= self.settle(group, &key, &definition).await?;
            }
        }
        Ok((wrote, again))
    }

    fn key(&self, cluster: LogicalClusterId, definition: &Definition) -> Result<ObjectKey, PlaneError> {
        let name = definition.name.parse();
        let name = name.map_err(|error: portolan_types::InvalidName| portolan_types::Status::internal(error))?;
        Ok(ObjectKey::cluster_scoped(cluster, self.kind.group_resource(), name))
    }

    async fn settle(&self, group: &ClusterGroup, key: &ObjectKey, definition: &Definition) -> Result<bool, PlaneError> {
        let mut taken = TakenNames::default();
        for other in self.of_group(group).await?.iter().filter(|other| other.name != definition.name) {
            taken.add(&other.accepted);
        }
        let (now, mut wrote) = (self.plane.seams().now_text(), false);
        let settle = |crd: &mut Value| {
            let Some(status) = custom::settled(crd, &taken, &now) else { return PlaneChange::Keep };
            wrote = true;
            self.write_status(crd, &now, |crd| crd["status"] = status)
        };
        self.plane.change(self.kind, key, settle).await?;
        Ok(wrote)
    }

    /// Changes the status, and the managers of its fields.
    fn write_status(&self, crd: &mut Value, now: &str, change: impl FnOnce(&mut Value)) -> PlaneChange {
        let old = crd.clone();
        change(crd);
        let (old, conversions) = (Some(&old), &Conversions::default());
        let request = UpdateRequest { old, manager: MANAGER, subresource: Some("status"), now, conversions };
        match apply::track_update(self.plane.table(), self.kind, &request, crd) {
            Ok(()) => PlaneChange::Write(Some("status")),
            // Definitions have one version.
            Err(_) => PlaneChange::Keep,
        }
    }

    /// Deletes the instances, then releases the definition. Returns when to check the instances that are left.
    async fn end(&self, key: &ObjectKey, definition: &Definition) -> Result<Option<Duration>, PlaneError> {
        let (instances, again) = if definition.is_established && !definition.is_builtin {
            self.delete_instances(key, definition).await?
        } else {
            (Instances::NeverServed, None)
        };
        let now = self.plane.seams().now_text();
        let write_down = |crd: &mut Value| {
            let held = object::finalizers(crd).any(|finalizer| finalizer == custom::CLEANUP_FINALIZER);
            if !object::is_deleting(crd) || !held {
                return PlaneChange::Keep;
            }
            self.write_status(crd, &now, |crd| custom::with_instances(crd, &instances, &now))
        };
        self.plane.change(self.kind, key, write_down).await?;
        Ok(again)
    }

    /// Returns the kind that instances are deleted as. If the definition does not compile, as one of an older Portolan
    /// may not, its names suffice.
    async fn kind_of_instances(
        &self,
        key: &ObjectKey,
        definition: &Definition,
    ) -> Result<Option<Arc<Kind>>, PlaneError> {
        if definition.table.is_some() {
            return self.plane.kind_of(key.cluster, &definition.resource).await;
        }
        let Some(found) = self.plane.get(key).await? else { return Ok(None) };
        let table = custom::compile_names(&found.object).map_err(portolan_types::Status::internal)?;
        Ok(table.stored(&definition.resource).cloned())
    }

    /// Deletes a share of the instances, a slice of them in memory at a time. Returns when to continue.
    async fn delete_instances(
        &self,
        key: &ObjectKey,
        definition: &Definition,
    ) -> Result<(Instances, Option<Duration>), PlaneError> {
        let Some(kind) = self.kind_of_instances(key, definition).await? else {
            return Ok((Instances::Left, Some(RECHECK)));
        };
        let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let mut request =
            RangeRequest::slices(RangeScope::Cluster(key.cluster, definition.resource.clone())).skip_damaged();
        let (mut deleted, mut held) = (0, false);
        loop {
            let page = self.plane.store().range(request.clone()).await?;
            request.after = page.last.clone();
            held |= !page.damaged.is_empty();
            held |= page.objects.iter().any(|stored| stored.record.header.has_finalizers);
            let staying: Vec<_> = page.objects.into_iter().filter(|stored| !stored.record.header.is_deleting).collect();
            deleted += staying.len();
            let (kind, options) = (&*kind, &options);
            for_each_concurrently(staying, |stored| async move { self.plane.delete(kind, &stored.key, options).await })
                .await?;
            if page.more && deleted >= SHARE {
                return Ok((Instances::Left, Some(Duration::ZERO)));
            }
            if !page.more {
                break;
            }
        }
        // An instance that was created before the definition began to end may follow the page that it belongs to.
        request.after = None;
        request.limit = Some(1);
        let left = self.plane.store().range(request).await?;
        let is_empty = !held && left.objects.is_empty() && left.damaged.is_empty();
        Ok(if is_empty { (Instances::Gone, None) } else { (Instances::Left, Some(RECHECK)) })
    }
}

impl Controller for DefinitionController {
    type Key = ClusterGroup;

    fn name(&self) -> &'static str {
        "definitions"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ClusterGroup> {
        // The cached definition is older than the event.
        drop(self.plane.kinds().changing(&event.key));
        let resource = custom::resource_named(event.key.name.as_str());
        resource.map(|resource| (event.key.cluster, resource.group)).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, group: &'a ClusterGroup) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            for _ in 0..PASSES {
                match self.pass(group).await? {
                    (true, _) => {}
                    (false, Some(soon)) => return Ok(WorkOutcome::RequeueAfter(soon)),
                    (false, None) => return Ok(WorkOutcome::Done),
                }
            }
            Ok(WorkOutcome::RequeueAfter(RECHECK))
        })
    }
}
