//! Computes the rules of ClusterRoles with an `aggregationRule` that a logical cluster stores itself.
//! Those of the shared table are computed where they are read.

use std::sync::Arc;

use portolan_kinds::Kind;
use portolan_store::{Event, RangeScope};
use portolan_strategy::rbac::{PolicyRule, cluster_rules, is_aggregated};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, object};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// The loop of aggregated roles; its key is a logical cluster with own ClusterRoles.
pub struct RoleAggregationController {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

impl RoleAggregationController {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("rbac.authorization.k8s.io", "v1", "ClusterRole");
        let kind = plane.table().kind(&gvk).expect("the table has rbac/v1");
        Self { plane, kind }
    }
}

impl Controller for RoleAggregationController {
    type Key = LogicalClusterId;

    fn name(&self) -> &'static str {
        "aggregated-roles"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<LogicalClusterId> {
        vec![event.key.cluster]
    }

    fn reconcile<'a>(&'a self, cluster: &'a LogicalClusterId) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let own = self.plane.list(RangeScope::Cluster(*cluster, self.kind.group_resource())).await?;
            let all = cluster_rules(own.iter().map(|found| &found.object));
            for found in own.iter().filter(|found| is_aggregated(&found.object)) {
                let Some(rules) = all.get(object::name(&found.object)) else { continue };
                let write = |role: &mut Value| {
                    if PolicyRule::of(role) == *rules {
                        PlaneChange::Keep
                    } else {
                        role["rules"] = serde_json::to_value(rules).expect("strings serialize");
                        PlaneChange::Write(None)
                    }
                };
                self.plane.change(self.kind, &found.key, write).await?;
            }
            Ok(WorkOutcome::Done)
        })
    }
}
