//! What goes when its time is over, as with kube-controller-manager and kube-apiserver: one loop, and a rule for each kind.

mod certificate_requests;
mod events;
mod jobs;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Change, Event};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey};
use serde_json::Value;

pub use self::{certificate_requests::CERTIFICATE_REQUESTS, events::EVENTS, jobs::ENDED_JOBS};
use crate::{
    plane::{Found, Plane, PlaneError},
    runtime::{Controller, Outcome},
};

/// When the objects of a kind go, and how.
pub struct Rule {
    /// Of the loop.
    name: &'static str,
    /// The group, the version and the kind.
    of: (&'static str, &'static str, &'static str),
    /// When an object is to go, as of now; `None` for one that stays until it is written again.
    ends: fn(&Value, Timestamp) -> Option<Timestamp>,
    /// What becomes of what it owns, where that is not for its kind to say.
    propagation: Option<Propagation>,
    /// Whether one that is written again is looked at when its time as it was is over, and not before: a write never shortens it.
    only_lengthens: bool,
    /// The shortest wait for an end: one pass may serve many that end at about the same time.
    round: Duration,
}

/// The loop over the objects of one kind.
pub struct Expiry {
    plane: Arc<Plane>,
    kind: &'static Kind,
    rule: Rule,
}

impl Expiry {
    /// On the objects of `plane`.
    ///
    /// # Panics
    ///
    /// When the table of `plane` lacks the kind, which is a built-in one.
    pub fn new(plane: Arc<Plane>, rule: Rule) -> Self {
        let (group, version, kind) = rule.of;
        let kind =
            plane.table().kind(&GroupVersionKind::new(group, version, kind)).expect("the table has all built-in kinds");
        Self { plane, kind, rule }
    }

    /// One that is written meanwhile has its new time.
    async fn end(&self, found: &Found) -> Result<(), PlaneError> {
        let as_it_is = found.as_it_is();
        let propagation = self.rule.propagation.or(as_it_is.propagation);
        self.plane.delete(self.kind, &found.key, &DeleteOptions { propagation, ..as_it_is }).await
    }
}

impl Controller for Expiry {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        self.rule.name
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.storage.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let is_due = !self.rule.only_lengthens || event.change == Change::Created;
        is_due.then(|| event.key.clone()).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else { return Ok(Outcome::Done) };
            let now = self.plane.seams().clock.now();
            let Some(ends) = (self.rule.ends)(&found.object, now) else { return Ok(Outcome::Done) };
            let rest = Duration::try_from(ends.duration_since(now)).unwrap_or_default();
            if !rest.is_zero() {
                return Ok(Outcome::CheckAgainIn(rest.max(self.rule.round)));
            }
            self.end(&found).await?;
            Ok(Outcome::Done)
        })
    }
}
