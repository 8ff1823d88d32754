//! Computes the rules of ClusterRoles with an `aggregationRule` that a logical cluster stores itself.
//! Those of the shared table are computed where they are read.

use std::sync::Arc;

use portolan_machinery::{
    kinds::Kind,
    rbac::{aggregated_rules, bootstrap},
};
use portolan_store::{Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, object};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// The loop of aggregated roles; its key is a logical cluster with own ClusterRoles.
pub struct AggregatedRoles {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

impl AggregatedRoles {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("rbac.authorization.k8s.io", "v1", "ClusterRole");
        let kind = plane.table().kind(&gvk).expect("the table has rbac/v1");
        Self { plane, kind }
    }
}

impl Controller for AggregatedRoles {
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

    fn reconcile<'a>(&'a self, cluster: &'a LogicalClusterId) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let own = self.plane.list(RangeScope::Cluster(*cluster, self.kind.group_resource())).await?;
            let shared = bootstrap().cluster_roles.iter();
            let shared = shared.filter(|role| !own.iter().any(|o| *o.key.name == *object::name(role)));
            let all: Vec<&Value> = own.iter().map(|found| &found.object).chain(shared).collect();
            for found in &own {
                let Some(rules) = aggregated_rules(&found.object, all.iter().copied()) else { continue };
                let rules = serde_json::to_value(rules).expect("strings serialize");
                let write = |role: &mut Value| match role.get("rules") == Some(&rules) {
                    true => Step::Keep,
                    false => {
                        role["rules"] = rules.clone();
                        Step::Write(None)
                    }
                };
                self.plane.change(self.kind, &found.key, write).await?;
            }
            Ok(Outcome::Done)
        })
    }
}
