//! Reports of writes that the garbage collector cannot do, because the rules of the object refuse them: an Event about the
//! object, and a line in the log. It is tried again all the same, with backoff.

use portolan_store::{Expect, StoreError, Transaction};
use portolan_types::{Reason, Record, Status, note::Note, object};

use super::GarbageCollector;
use crate::plane::{Found, PlaneError};

const COMPONENT: &str = "garbage-collector-controller";

impl GarbageCollector {
    /// Reports a write to `found` that was refused; `attempt` says what was tried. Returns what came of it.
    pub(super) async fn report_refusal<T>(
        &self,
        found: &Found,
        attempt: &str,
        done: Result<T, PlaneError>,
    ) -> Result<T, PlaneError> {
        if let Err(PlaneError::Refused(status)) = &done
            && is_lasting(status)
            && let Err(error) = self.write_refusal(found, attempt, status).await
        {
            tracing::debug!(key = %found.key, %error, "a refusal cannot be noted");
        }
        done
    }

    async fn write_refusal(&self, found: &Found, attempt: &str, status: &Status) -> Result<(), PlaneError> {
        let message = format!("cannot {attempt}: {}", status.message());
        let note = Note {
            component: COMPONENT,
            name: "garbage-collection-refused",
            is_warning: true,
            reason: "GarbageCollectionFailed",
            message: &message,
        };
        let is_new = self.write_note(found, note).await?;
        if is_new {
            tracing::warn!(key = %found.key, attempt, %status, "the garbage collector cannot write an object");
        }
        Ok(())
    }

    /// Writes an Event about an object, which outlives it. Returns false where the same was noted before, or the namespace is
    /// to go.
    pub(super) async fn write_note(&self, found: &Found, note: Note<'_>) -> Result<bool, PlaneError> {
        let Some((key, mut event)) = note.about(self.plane.seams(), &found.key, &found.object) else {
            return Ok(false);
        };
        object::metadata_mut(&mut event).remove("ownerReferences");
        match self.plane.get(&key).await {
            Ok(Some(known)) if known.object["message"] == event["message"] => return Ok(false),
            Ok(_) | Err(PlaneError::Store(StoreError::Damaged { .. })) => {}
            Err(error) => return Err(error),
        }
        // It goes with its namespace, so it does not come when that is to go.
        let place = key.namespace().map_or("", |namespace| namespace.as_str());
        let Some(check) = self.plane.staying(key.cluster, place).await? else { return Ok(true) };
        let mut txn = Transaction::one(key, Expect::Anything, Some(Record::of(&event)));
        txn.checks.push(check);
        self.plane.store().commit(txn).await?;
        Ok(true)
    }
}

/// Returns true for a refusal that trying again does not change.
fn is_lasting(status: &Status) -> bool {
    matches!(status.reason(), Reason::Invalid | Reason::Forbidden | Reason::BadRequest)
}
