//! Type checks of ValidatingAdmissionPolicies, reported in their status. As in kube-controller-manager, each
//! generation is checked once, with the kinds of that moment.

use std::sync::Arc;

use portolan_kinds::Kind;
use portolan_store::Event;
use portolan_strategy::type_check;
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Status};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// Controller of type checks; its key is a policy.
pub struct TypeCheckController {
    plane: Arc<Plane>,
    kind: &'static Kind,
}

impl TypeCheckController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy");
        let kind = plane.table().kind(&gvk).expect("the table has admissionregistration.k8s.io/v1");
        Self { plane, kind }
    }
}

impl Controller for TypeCheckController {
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

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get_reconciled(key).await? else { return Ok(WorkOutcome::Done) };
            let surface = self.plane.kinds().of(key.cluster).await?;
            let generation = generation(&found.object);
            // A check of many expressions and kinds is slow.
            let checking = tokio::task::spawn_blocking(move || type_check::checked(&found.object, &surface));
            let Some(checked) = checking.await.map_err(Status::internal)? else { return Ok(WorkOutcome::Done) };
            let write = |policy: &mut Value| {
                if self::generation(policy) != generation {
                    // Its event queues the key again.
                    return PlaneChange::Keep;
                }
                for part in ["observedGeneration", "typeChecking"] {
                    policy["status"][part] = checked[part].clone();
                }
                PlaneChange::Write(Some("status"))
            };
            self.plane.change(self.kind, key, write).await?;
            Ok(WorkOutcome::Done)
        })
    }
}

fn generation(policy: &Value) -> Option<i64> {
    policy.pointer("/metadata/generation").and_then(Value::as_i64)
}
