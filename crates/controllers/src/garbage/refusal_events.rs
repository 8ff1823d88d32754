//! Reports of writes that the rules of an object refuse to the garbage collector: an Event about the object, and a log
//! line. The write is retried with backoff.

use portolan_store::{Expect, StoreError, Transaction};
use portolan_types::{Reason, Record, Status, event_draft::EventDraft, object};

use super::GarbageCollector;
use crate::plane::{PlaneError, PlaneObject};

const COMPONENT: &str = "garbage-collector-controller";

impl GarbageCollector {
    /// Reports a refused write to `found`; `attempt` describes it. Returns its result.
    pub(super) async fn report_refusal<T>(
        &self,
        found: &PlaneObject,
        attempt: &str,
        done: Result<T, PlaneError>,
    ) -> Result<T, PlaneError> {
        if let Err(PlaneError::Refused(status)) = &done
            && is_lasting(status)
            && let Err(error) = self.write_refusal(found, attempt, status).await
        {
            tracing::debug!(key = %found.key, %error, "refusal Event was not written");
        }
        done
    }

    async fn write_refusal(&self, found: &PlaneObject, attempt: &str, status: &Status) -> Result<(), PlaneError> {
        let message = format!("cannot {attempt}: {}", status.message());
        let note = EventDraft {
            component: COMPONENT,
            name: "garbage-collection-refused",
            is_warning: true,
            reason: "GarbageCollectionFailed",
            message: &message,
        };
        let is_new = self.write_note(found, note).await?;
        if is_new {
            tracing::warn!(key = %found.key, attempt, %status, "write of the garbage collector was refused, will retry");
        }
        Ok(())
    }

    /// Writes an Event about an object, which outlives it. Returns false if it was written before, or the namespace is
    /// being deleted.
    pub(super) async fn write_note(&self, found: &PlaneObject, note: EventDraft<'_>) -> Result<bool, PlaneError> {
        let Some((key, mut event)) = note.about(self.plane.seams(), &found.key, &found.object) else {
            return Ok(false);
        };
        object::metadata_mut(&mut event).remove("ownerReferences");
        match self.plane.get(&key).await {
            Ok(Some(known)) if known.object["message"] == event["message"] => return Ok(false),
            Ok(_) | Err(PlaneError::Store(StoreError::Damaged { .. })) => {}
            Err(error) => return Err(error),
        }
        // The Event is deleted with its namespace, so none is written in one that is being deleted.
        let place = key.namespace().map_or("", |namespace| namespace.as_str());
        let Some(check) = self.plane.staying(key.cluster, place).await? else { return Ok(true) };
        let mut txn = Transaction::one(key, Expect::Anything, Some(Record::of(&event)));
        txn.checks.push(check);
        self.plane.store().commit(txn).await?;
        Ok(true)
    }
}

/// Returns true for a refusal that a retry does not change.
fn is_lasting(status: &Status) -> bool {
    matches!(status.reason(), Reason::Invalid | Reason::Forbidden | Reason::BadRequest)
}
