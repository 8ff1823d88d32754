//! Definitions of custom resources: gives them their names, says that they are served, and takes their instances along when
//! they go.

use std::{sync::Arc, time::Duration};

use portolan_machinery::{
    custom::{self, Definition, Instances, Taken},
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// How soon instances that are left are looked at again.
const RECHECK: Duration = Duration::from_millis(500);
/// How often the definitions of a group are looked at in one go: each may free a name that another waits for.
const PASSES: usize = 8;

/// The loop of definitions. Those of one group, who compete for names, are looked at one after the other.
pub struct Definitions {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

/// A group in a logical cluster.
type Group = (LogicalClusterId, Arc<str>);

impl Definitions {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new(custom::GROUP, "v1", "CustomResourceDefinition");
        let kind = plane.table().kind(&gvk).expect("the table has apiextensions.k8s.io");
        Self { plane, kind }
    }

    async fn of_group(&self, (cluster, group): &Group) -> Result<Vec<Arc<Definition>>, PlaneError> {
        let mut all = self.plane.kinds().definitions(*cluster).await?;
        all.retain(|definition| definition.resource.group == *group);
        Ok(all)
    }

    /// Looks at every definition that may need it. Whether anything was written, and whether anything is left to be waited for.
    async fn pass(&self, group: &Group) -> Result<(bool, bool), PlaneError> {
        let (mut wrote, mut waits) = (false, false);
        let waiting = self.of_group(group).await?.into_iter().filter(|definition| definition.needs_look());
        for definition in waiting {
            let key = self.key(group.0, &definition)?;
            if definition.is_deleting {
                let gone = self.end(&key, &definition).await?;
                (wrote, waits) = (wrote || gone, waits || !gone);
            } else {
                wrote |= self.settle(group, &key, &definition).await?;
            }
        }
        Ok((wrote, waits))
    }

    fn key(&self, cluster: LogicalClusterId, definition: &Definition) -> Result<ObjectKey, PlaneError> {
        let name = definition.name.parse();
        let name = name.map_err(|error: portolan_types::InvalidName| portolan_types::Status::internal(error))?;
        Ok(ObjectKey::cluster_scoped(cluster, self.kind.group_resource(), name))
    }

    async fn settle(&self, group: &Group, key: &ObjectKey, definition: &Definition) -> Result<bool, PlaneError> {
        let mut taken = Taken::default();
        for other in self.of_group(group).await?.iter().filter(|other| other.name != definition.name) {
            taken.add(&other.accepted);
        }
        let (now, mut wrote) = (self.plane.seams().now_text(), false);
        let settle = |crd: &mut Value| {
            let Some(status) = custom::settled(crd, &taken, &now) else { return Step::Keep };
            crd["status"] = status;
            wrote = true;
            Step::Write(Some("status"))
        };
        self.plane.change(self.kind, key, settle).await?;
        Ok(wrote)
    }

    /// Deletes the instances, then lets the definition go; `false` as long as it stays because of them.
    async fn end(&self, key: &ObjectKey, definition: &Definition) -> Result<bool, PlaneError> {
        let instances = match &definition.table {
            Some(_) => self.delete_instances(key.cluster, &definition.resource).await?,
            None => Instances::NeverServed,
        };
        let now = self.plane.seams().now_text();
        let write_down = |crd: &mut Value| {
            let held = object::finalizers(crd).any(|finalizer| finalizer == custom::CLEANUP_FINALIZER);
            if !object::is_deleting(crd) || !held {
                return Step::Keep;
            }
            custom::with_instances(crd, &instances, &now);
            Step::Write(Some("status"))
        };
        self.plane.change(self.kind, key, write_down).await?;
        Ok(instances != Instances::Left)
    }

    async fn delete_instances(
        &self,
        cluster: LogicalClusterId,
        resource: &GroupResource,
    ) -> Result<Instances, PlaneError> {
        let scope = RangeScope::Cluster(cluster, resource.clone());
        let Some(kind) = self.plane.kind_of(cluster, resource).await? else { return Ok(Instances::Left) };
        let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        for instance in self.plane.list(scope.clone()).await? {
            self.plane.delete(&kind, &instance.key, &options).await?;
        }
        Ok(match self.plane.list(scope).await?.is_empty() {
            true => Instances::Gone,
            false => Instances::Left,
        })
    }
}

impl Controller for Definitions {
    type Key = Group;

    fn name(&self) -> &'static str {
        "definitions"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<Group> {
        // Whoever wrote it, what is known of it is older than the event.
        drop(self.plane.kinds().changing(&event.key));
        let resource = custom::resource_named(event.key.name.as_str());
        resource.map(|resource| (event.key.cluster, resource.group)).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, group: &'a Group) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            for _ in 0..PASSES {
                match self.pass(group).await? {
                    (true, _) => {}
                    (false, true) => return Ok(Outcome::CheckAgainIn(RECHECK)),
                    (false, false) => return Ok(Outcome::Done),
                }
            }
            Ok(Outcome::CheckAgainIn(RECHECK))
        })
    }
}
