//! Expiry of objects, as in kube-controller-manager and kube-apiserver: one controller, with a rule per kind.

mod certificate_requests;
mod events;
mod jobs;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey};
use serde_json::Value;

pub use self::{certificate_requests::CERTIFICATE_REQUESTS, events::EVENTS, jobs::ENDED_JOBS};
use crate::{
    plane::{Plane, PlaneError, PlaneObject},
    runtime::{Controller, WorkOutcome},
};

/// Expiry rule of a kind.
pub struct ExpiryRule {
    /// Name of the controller.
    name: &'static str,
    /// Group, version and kind.
    of: (&'static str, &'static str, &'static str),
    /// Returns when an object expires, as of now; `None` if it stays until it is written again.
    ends: fn(&Value, Timestamp) -> Option<Timestamp>,
    /// Propagation of the deletion, if it is not the kind's default.
    propagation: Option<Propagation>,
    /// True if a write never shortens the time: an object is checked when its first time is over, not at each write.
    only_lengthens: bool,
    /// Shortest wait: one pass may serve many objects that expire at about the same time.
    round: Duration,
}

/// Controller of the expiry of one kind.
pub struct ExpiryController {
    plane: Arc<Plane>,
    kind: &'static Kind,
    rule: ExpiryRule,
}

impl ExpiryController {
    /// Makes the controller.
    ///
    /// # Panics
    ///
    /// If the table of `plane` lacks the kind, which is a built-in one.
    pub fn new(plane: Arc<Plane>, rule: ExpiryRule) -> Self {
        let (group, version, kind) = rule.of;
        let kind =
            plane.table().kind(&GroupVersionKind::new(group, version, kind)).expect("the table has all built-in kinds");
        Self { plane, kind, rule }
    }

    /// Deletes an expired object, unless it has been written meanwhile.
    async fn end(&self, found: &PlaneObject) -> Result<(), PlaneError> {
        let preconditions = found.preconditions();
        let propagation = self.rule.propagation.or(preconditions.propagation);
        self.plane.delete(self.kind, &found.key, &DeleteOptions { propagation, ..preconditions }).await
    }
}

impl Controller for ExpiryController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        self.rule.name
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.storage.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let is_due = !self.rule.only_lengthens || event.change == ChangeKind::Created;
        is_due.then(|| event.key.clone()).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get_reconciled(key).await? else { return Ok(WorkOutcome::Done) };
            let now = self.plane.seams().clock.now();
            let Some(ends) = (self.rule.ends)(&found.object, now) else { return Ok(WorkOutcome::Done) };
            let rest = Duration::try_from(ends.duration_since(now)).unwrap_or_default();
            if !rest.is_zero() {
                return Ok(WorkOutcome::RequeueAfter(rest.max(self.rule.round)));
            }
            self.end(&found).await?;
            Ok(WorkOutcome::Done)
        })
    }
}
