//! Tells in the status of ValidatingAdmissionPolicies which of their expressions do not fit the kinds that they are for. As with
//! kube-controller-manager, each generation is checked once, by the kinds that there are then.

use std::sync::Arc;

use portolan_machinery::{kinds::Kind, type_check};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Status};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// The loop of the type check; its key is a policy.
pub struct TypeChecks {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

impl TypeChecks {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy");
        let kind = plane.table().kind(&gvk).expect("the table has admissionregistration.k8s.io/v1");
        Self { plane, kind }
    }
}

impl Controller for TypeChecks {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "policy-type-checks"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else { return Ok(Outcome::Done) };
            let surface = self.plane.kinds().of(key.cluster).await?;
            let generation = generation(&found.object);
            // Many expressions and kinds take their time.
            let checking = tokio::task::spawn_blocking(move || type_check::checked(&found.object, &surface));
            let Some(checked) = checking.await.map_err(Status::internal)? else { return Ok(Outcome::Done) };
            let write = |policy: &mut Value| {
                if self::generation(policy) != generation {
                    // Its event brings the key back.
                    return Step::Keep;
                }
                for part in ["observedGeneration", "typeChecking"] {
                    policy["status"][part] = checked[part].clone();
                }
                Step::Write(Some("status"))
            };
            self.plane.change(self.kind, key, write).await?;
            Ok(Outcome::Done)
        })
    }
}

fn generation(policy: &Value) -> Option<i64> {
    policy.pointer("/metadata/generation").and_then(Value::as_i64)
}
