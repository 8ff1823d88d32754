//! The one transaction of a step: the object with its record, the `Placement` that explains it, and an Event where a person
//! should hear of it.

use portolan_placement::{About, Admitted, Decision, Outcome, Reason, Report, Step, placement_object};
use portolan_store::{Expect, Transaction, Write, commit_noting};
use portolan_types::{
    ObjectKey, Record, ResourceVersion, object,
    placement::{ObjectReference, PlacementRecord},
};
use serde_json::Value;

use crate::{
    events,
    gather::{api_version, placement_key},
    scheduler::{Inner, SchedulerError},
};

/// A step of one object.
pub(crate) struct Change<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) object: &'a Value,
    pub(crate) revision: ResourceVersion,
    pub(crate) previous: &'a PlacementRecord,
    pub(crate) step: &'a Step,
    /// `None` for an object that follows others.
    pub(crate) decision: Option<&'a Decision>,
    pub(crate) placement: Option<&'a (Value, ResourceVersion)>,
    /// What of it has been let in.
    pub(crate) admitted: &'a Admitted,
    /// Its status, where that has to tell something else than it does.
    pub(crate) status: Option<Value>,
}

impl Inner {
    /// Commits a step, or nothing when nothing differs.
    pub(crate) async fn write(
        &self,
        change: &Change<'_>,
        more: impl IntoIterator<Item = Write>,
    ) -> Result<(), SchedulerError> {
        self.note_wait_for_room(change);
        let mut txn = Transaction::default();
        if change.step.cause.is_some() || change.status.is_some() {
            let mut object = change.object.clone();
            change.step.record.write_to(&mut object);
            if let (Some(status), Some(fields)) = (&change.status, object.as_object_mut()) {
                fields.insert("status".into(), status.clone());
            }
            txn.writes.push(Write {
                key: change.key.clone(),
                expect: Expect::At(change.revision),
                record: Some(Record::of(&object)),
            });
        } else {
            txn.checks.push((change.key.clone(), Expect::At(change.revision)));
        }
        let now = self.seams.now_text();
        let placement = self.placement(change, &now);
        let mut notes = Vec::new();
        let (before, revision) = change.placement.map(|(value, revision)| (value, *revision)).unzip();
        if !before.is_some_and(|before| is_same(before, &placement)) {
            let expect = revision.map_or(Expect::Absent, Expect::At);
            let record = Some(Record::of(&placement));
            txn.writes.push(Write { key: placement_key(change.key), expect, record });
            notes.extend(events::event(&self.seams, change, before, &placement));
        }
        txn.writes.extend(more);
        if !txn.writes.is_empty() {
            portolan_types::failpoint!("scheduler/step-planned");
            commit_noting(self.objects.store(), txn, notes).await?;
            portolan_types::failpoint!("scheduler/step-committed");
        }
        Ok(())
    }

    /// Notes whether the object would have more, or a place at all, if less were placed on bounded physical clusters.
    fn note_wait_for_room(&self, change: &Change) {
        let waits = change.decision.is_some_and(|decision| {
            let is_out = decision.rejected.iter().any(|rejected| rejected.reason == Reason::OutOfBounds);
            let lacks = matches!(decision.outcome, Outcome::Partly(_) | Outcome::Unplaced);
            !decision.limits.is_empty() || (is_out && lacks)
        });
        if waits {
            self.without_room.add(change.key);
        } else {
            self.without_room.remove(change.key);
        }
    }

    fn placement(&self, change: &Change, now: &str) -> Value {
        let key = placement_key(change.key);
        let (api_version, kind) = api_version(change.object);
        let (name, uid) = (object::name(change.object).to_owned(), object::meta_text(change.object, "uid").to_owned());
        let about = About {
            name: &key.name,
            namespace: object::namespace(change.object),
            object: ObjectReference { api_version, kind, name, uid },
            new_uid: self.seams.uid(),
            now,
        };
        let Change { previous, step, decision, admitted, .. } = *change;
        let report = Report { previous, step, decision, admitted };
        placement_object(change.placement.map(|(value, _)| value), &about, &report)
    }
}

/// Whether two trees differ in nothing but the resourceVersion.
fn is_same(before: &Value, after: &Value) -> bool {
    let plain = |object: &Value| {
        let mut metadata = object::metadata(object).clone();
        metadata.remove("resourceVersion");
        metadata
    };
    before.get("status") == after.get("status")
        && before.get("spec") == after.get("spec")
        && plain(before) == plain(after)
}
