//! Placing one object that has a decision of its own.

use std::time::Duration;

use portolan_placement::{Outcome, PinOn, Role};
use portolan_store::{Expect, StoreError, Transaction, Write};
use portolan_types::{ObjectKey, Record, ResourceVersion, object, placement::PlacementRecord};
use serde_json::json;

use crate::{
    admission::Passed,
    commit::Change,
    gather::{Gathered, Planned},
    kinds,
    queue::Task,
    scheduler::{Inner, SchedulerError},
};

impl Inner {
    /// Looks at an object and takes the next step, if there is one.
    pub(crate) async fn place_object(&self, key: &ObjectKey) -> Result<(), SchedulerError> {
        let Some((object, revision)) = self.objects.get_value(key).await? else {
            self.refused.remove(key);
            self.without_room.remove(key);
            return self.forget_placement(key).await;
        };
        let record = PlacementRecord::of(&object).unwrap_or_default();
        if record.is_projected() {
            return self.remove_if_orphaned(key, &record, revision).await;
        }
        if object::is_deleting(&object) {
            return self.let_go(key, object, revision, record).await;
        }
        if kinds::is_follower(&key.resource) {
            if let Some(namespace) = key.namespace() {
                self.queue.add_followers(key.cluster, namespace, Some(key.clone()));
            }
            return Ok(());
        }
        let Some(gathered) = self.gather(key, object, revision).await? else { return Ok(()) };
        let planned = self.plan_behind_gates(&gathered)?;
        let passed = self.pass_gate(&gathered, planned).await;
        if passed.is_err() {
            self.facts().usage.release(key);
        }
        let Passed { planned, admitted, charged } = passed?;
        if let Some(seconds) = planned.decision.recheck_in {
            self.queue.tasks.add_after(Task::Object(key.clone()), Duration::from_secs(seconds.unsigned_abs()));
        }
        let nothing = gathered.record.clusters.is_empty() && planned.step.record.clusters.is_empty();
        if nothing && gathered.workload.role == Role::Explicit && planned.decision.policy.is_none() {
            return Ok(());
        }
        let home = new_home(&gathered, &planned);
        let status = self.status_told(&gathered, &planned, &admitted);
        let change = Change {
            key,
            object: &gathered.object,
            revision: gathered.revision,
            previous: &gathered.record,
            step: &planned.step,
            decision: Some(&planned.decision),
            placement: gathered.placement.as_ref(),
            admitted: &admitted,
            status,
        };
        let (charges, turn) = charged.map(|charged| (charged.writes, charged.turn)).unzip();
        let home = home.map(|uids| self.keep_home(&gathered, uids));
        let committed = self.write(&change, charges.into_iter().flatten().chain(home)).await;
        drop(turn);
        if committed.is_err() {
            self.facts().usage.release(key);
        }
        committed
    }

    /// Keeps the default decision of a namespace in the transaction of the object that made it.
    fn keep_home(&self, gathered: &Gathered, uids: Vec<&str>) -> Write {
        let kept = json!({
            "metadata": {"name": "default", "namespace": &*gathered.namespace},
            "namespaceUid": gathered.namespace_uid,
            "physical": uids,
        });
        Write {
            key: self.decision_key(gathered.key.cluster, gathered.namespace.clone()),
            expect: gathered.home.revision.map_or(Expect::Absent, Expect::At),
            record: Some(Record::of(&kept)),
        }
    }

    /// An object that is being deleted goes by the syncer's hand; only a physical cluster that does not exist any more is
    /// taken off here, as nobody else can.
    async fn let_go(
        &self,
        key: &ObjectKey,
        mut object: serde_json::Value,
        revision: ResourceVersion,
        mut record: PlacementRecord,
    ) -> Result<(), SchedulerError> {
        let gone = self.gone(&record, &self.reach(key.cluster)).await?;
        if gone.is_empty() {
            return Ok(());
        }
        record.clusters.retain(|c| !gone.contains(&c.uid));
        let removable = record.clusters.is_empty() && object::finalizers(&object).next().is_none();
        record.write_to(&mut object);
        let after = (!removable).then(|| Record::of(&object));
        self.objects.store().commit(Transaction::one(key.clone(), Expect::At(revision), after)).await?;
        Ok(())
    }

    /// What a physical cluster made goes with it when that does not exist any more: nobody will report its end.
    async fn remove_if_orphaned(
        &self,
        key: &ObjectKey,
        record: &PlacementRecord,
        revision: ResourceVersion,
    ) -> Result<(), SchedulerError> {
        let gone = self.gone(record, &self.reach(key.cluster)).await?;
        if !gone.is_empty() && record.clusters.iter().all(|c| gone.contains(&c.uid)) {
            self.objects.store().commit(Transaction::one(key.clone(), Expect::At(revision), None)).await?;
        }
        Ok(())
    }

    /// Removes a record of the scheduler's own, if it is there.
    pub(crate) async fn forget(&self, key: &ObjectKey) -> Result<(), SchedulerError> {
        let Some(stored) = self.objects.store().get(key).await? else { return Ok(()) };
        self.forget_at(key.clone(), stored.revision, Vec::new()).await
    }

    /// Removes a record, together with other writes, unless it is gone already.
    pub(crate) async fn forget_at(
        &self,
        key: ObjectKey,
        revision: ResourceVersion,
        others: Vec<Write>,
    ) -> Result<(), SchedulerError> {
        let mut txn = Transaction::one(key.clone(), Expect::At(revision), None);
        txn.writes.extend(others);
        match self.objects.store().commit(txn).await {
            Ok(_) => Ok(()),
            Err(StoreError::NotFound { key: gone }) if gone == key => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The default decision that a namespace has from now on, when this decision makes it: the first one, or one that had to go
/// elsewhere because the default takes nothing new.
fn new_home<'a>(gathered: &Gathered, planned: &'a Planned) -> Option<Vec<&'a str>> {
    let decision = &planned.decision;
    let own_pin = gathered.workload.pin.as_ref().is_some_and(|pin| pin.on == PinOn::Object);
    let by_default = gathered.workload.role == Role::Workload && decision.policy.is_none() && !own_pin;
    let arrives = gathered.record.active().next().is_none() && planned.step.record.active().next().is_some();
    let goes_home = decision.chosen.iter().any(|c| gathered.home.uids.contains(&c.uid));
    let placed = matches!(decision.outcome, Outcome::Placed | Outcome::Partly(_));
    let makes = by_default && placed && arrives && !goes_home;
    makes.then(|| decision.chosen.iter().map(|c| c.uid.as_str()).collect())
}
