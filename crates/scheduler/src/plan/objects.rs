//! Plan of one object with a decision of its own.

use std::{collections::BTreeSet, sync::Arc};

use portolan_placement::{PlacementDecision, Workload, is_refused};
use portolan_store::StoredObject;
use portolan_types::{
    GroupVersionKind, ObjectKey, Uid, object,
    placement::{PlacedCopy, PlacementRecord},
};
use serde_json::Value;

use super::{
    PlanError,
    budgets::DisruptedPods,
    planned_drain::PlannedDrain,
    rows::{PlanRow, PlannedPlace, RefusedRow},
    settle::SettleFacts,
    shadow::ShadowScheduler,
    workloads::PlanRun,
};
use crate::{
    commit::waits_for_room,
    context::SchedulerContext,
    decide::scheduling_gates::refusal_of_pod,
    inputs::{DecisionInputs, placement_key, read_inputs},
    reconcile::object::{namespace_default_write, new_home},
    scheduler::SchedulerError,
};

/// Decisions about one object before the last one counts: a decision may depend on the copies that the one before made.
const MAX_DECISIONS: usize = 4;

/// Reasons in a `Placement` for which the pods of an object are refused.
const REFUSALS: [&str; 3] = ["AdmissionRefused", "QuotaExceeded", "SchedulingGated"];

/// Decision about one object, once it stays the same.
struct SettledObject {
    inputs: DecisionInputs,
    decision: PlacementDecision,
    /// Record after all steps towards the decision.
    after: PlacementRecord,
    refusal: Option<(&'static str, String)>,
}

impl PlanRun<'_> {
    /// Plans one object: its decision, its row, and the objects that depend on it.
    pub(super) async fn plan_object(&mut self, stored: &StoredObject) -> Result<(), PlanError> {
        self.count_object()?;
        let Ok(object) = stored.to_value() else { return Ok(()) };
        if object::is_deleting(&object) {
            return Ok(());
        }
        let kind = self.kind_of(&object);
        let before = PlacementRecord::of(&object).unwrap_or_default();
        let settled = match self.settle(&self.shadow.next, stored, object).await {
            Ok(Some(settled)) => settled,
            Ok(None) => return Ok(()),
            Err(SchedulerError::Unreadable(what)) => {
                let why = Some(("Unreadable", format!("it cannot be decided: {what} cannot be read")));
                return self.note_refusal(&stored.key, kind, &before, why).await;
            }
            Err(error) => return Err(error.into()),
        };
        if self.is_refused_by_admission(&settled, &before).await? {
            return Ok(());
        }
        self.note_change(&stored.key, &kind, &before, &settled);
        self.note_refusal(&stored.key, kind, &settled.after, settled.refusal).await
    }

    /// Decides about an object until the decision stays the same. Returns `None` if it is not placed.
    async fn settle(
        &self,
        shadow: &ShadowScheduler,
        stored: &StoredObject,
        object: Value,
    ) -> Result<Option<SettledObject>, SchedulerError> {
        let Some(mut inputs) = read_inputs(&shadow.ctx, &stored.key, object, stored.revision).await? else {
            return Ok(None);
        };
        shadow.drain.mark(&mut inputs.record);
        let before = inputs.record.clone();
        let mut decisions = 0;
        loop {
            decisions += 1;
            let decision = shadow.decide(&inputs);
            let decision = match refusal_of_pod(&inputs) {
                Some(refusal) => decision.refused(refusal),
                None => decision,
            };
            let stays = shadow.drain.refusal(&inputs.workload, &inputs.record, &decision).filter(|_| decisions == 1);
            if stays.is_some() {
                let after = before.clone();
                return Ok(Some(SettledObject { inputs, decision, after, refusal: stays }));
            }
            let up = up(&shadow.ctx, &inputs, &decision);
            let epoch = self.shadow.at.get() + decisions as u64;
            let settle =
                SettleFacts { workload: &inputs.workload, decision: &decision, up: &up, gone: &inputs.gone, epoch };
            let record = settle.settle(&inputs.record);
            let is_settled = record.clusters == inputs.record.clusters;
            if is_settled || decisions == MAX_DECISIONS {
                let refusal = settle.refusal(&inputs.record);
                inputs.record = before;
                return Ok(Some(SettledObject { inputs, decision, after: record, refusal }));
            }
            shadow.replace_usage(&inputs.workload, &inputs.record, &record);
            inputs.record = record;
        }
    }

    /// Returns true for an object whose pods are refused: it stays unchanged under every decision.
    async fn is_refused_by_admission(
        &self,
        settled: &SettledObject,
        before: &PlacementRecord,
    ) -> Result<bool, SchedulerError> {
        let inputs = &settled.inputs;
        if settled.after.clusters == before.clusters {
            return Ok(false);
        }
        let placement = self.ctx.objects.store().get(&placement_key(&inputs.key)).await?;
        // Most are not parsed.
        let says_so = |stored: &StoredObject| {
            let body = std::str::from_utf8(stored.record.body()).unwrap_or_default();
            REFUSALS.iter().any(|reason| body.contains(reason))
        };
        let placement = placement.filter(says_so).map(|stored| stored.to_value()).transpose()?;
        let refused = is_refused(placement.as_ref(), object::meta_text(&inputs.object, "uid"));
        if refused {
            self.shadow.next.replace_usage(&inputs.workload, &settled.after, before);
        }
        Ok(refused)
    }

    /// Records an object that would move, and the objects that depend on it.
    fn note_change(
        &mut self,
        key: &ObjectKey,
        kind: &Arc<GroupVersionKind>,
        before: &PlacementRecord,
        settled: &SettledObject,
    ) {
        let SettledObject { inputs, decision, after, .. } = settled;
        let workload = &inputs.workload;
        if waits_for_room(decision) {
            self.waiting.insert(key.clone());
        }
        if after.clusters == before.clusters {
            return;
        }
        if let Some(uids) = new_home(inputs, decision, after) {
            let write = namespace_default_write(inputs, uids);
            self.shadow.snapshot.put_record(&write.key, write.record);
        }
        self.shadow.snapshot.put_placement(key, after.clone());
        let from = match self.rows.get(key) {
            Some(known) => known.from.clone(),
            None => places(before, workload),
        };
        let reason = PlannedDrain::reason(&inputs.record, &decision.by);
        let row =
            PlanRow { key: key.clone(), kind: kind.clone(), from, to: places(after, workload), reason, follows: false };
        self.frees_room |= row.from.iter().any(|from| !row.to.contains(from));
        let depending = self.shadow.next.ctx.with_terms.of(key.cluster, key.namespace());
        self.again.extend(depending.into_iter().filter(|other| other != key));
        if let Some(namespace) = key.namespace() {
            self.moved.entry(key.cluster).or_default().insert(namespace.clone());
        }
        self.disrupted.extend(DisruptedPods::of(inputs, after).map(|pods| (key.clone(), pods)));
        if row.is_nothing() {
            self.rows.remove(key);
        } else {
            self.rows.insert(key.clone(), row);
        }
    }

    /// Notes an object that would not be placed as wanted, unless that is so without the changes.
    async fn note_refusal(
        &mut self,
        key: &ObjectKey,
        kind: Arc<GroupVersionKind>,
        record: &PlacementRecord,
        refusal: Option<(&'static str, String)>,
    ) -> Result<(), PlanError> {
        let Some((reason, message)) = refusal else {
            self.refused.remove(key);
            return Ok(());
        };
        let stays = places_by_record(record);
        if self.refusal_now(key, reason, &message).await?.is_some_and(|now| now == stays) {
            self.refused.remove(key);
            return Ok(());
        }
        self.refused.insert(key.clone(), RefusedRow { key: key.clone(), kind, stays, reason, message });
        Ok(())
    }

    /// Returns the copies of an object that is refused in the same way without the changes; `None` if it is not.
    async fn refusal_now(
        &self,
        key: &ObjectKey,
        reason: &str,
        message: &str,
    ) -> Result<Option<Vec<PlannedPlace>>, PlanError> {
        let base = &self.shadow.base;
        let Some(stored) = base.ctx.objects.store().get(key).await? else { return Ok(None) };
        let Ok(object) = stored.to_value() else { return Ok(None) };
        let record = PlacementRecord::of(&object).unwrap_or_default();
        let (now, record) = match self.settle(base, &stored, object).await {
            Ok(Some(settled)) => {
                // Facts without the changes stay as they are.
                base.replace_usage(&settled.inputs.workload, &settled.after, &record);
                (settled.refusal, settled.after)
            }
            Ok(None) => (None, record),
            Err(SchedulerError::Unreadable(_)) => (Some(("Unreadable", String::new())), record),
            Err(error) => return Err(error.into()),
        };
        // Only these words tell how much is missing.
        let is_same = |(now, words): &(&str, String)| *now == reason && (reason != "PartlyPlaced" || words == message);
        Ok(now.filter(is_same).map(|_| places_by_record(&record)))
    }

    /// Returns the kind of an object. Rows of one kind share it.
    pub(super) fn kind_of(&mut self, object: &Value) -> Arc<GroupVersionKind> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let is_same = |known: &&Arc<GroupVersionKind>| {
            *known.group == *group && *known.version == *version && *known.kind == *kind
        };
        if let Some(known) = self.kinds.iter().find(is_same) {
            return known.clone();
        }
        let new = Arc::new(GroupVersionKind::new(group, version, kind));
        self.kinds.push(new.clone());
        new
    }
}

/// Returns the physical clusters of an object and its decision that answer.
fn up(shadow: &SchedulerContext, inputs: &DecisionInputs, decision: &PlacementDecision) -> BTreeSet<Uid> {
    let facts = shadow.facts();
    let copies = inputs.record.clusters.iter().map(|copy| &copy.uid);
    let named = copies.chain(decision.chosen.iter().map(|chosen| &chosen.uid));
    named.filter(|uid| facts.physical(uid).is_some_and(|physical| physical.info.is_ready())).cloned().collect()
}

/// Returns the active copies with their replicas.
fn places(record: &PlacementRecord, workload: &Workload) -> Vec<PlannedPlace> {
    let place = |copy: &PlacedCopy| PlannedPlace {
        name: copy.name.clone(),
        uid: copy.uid.clone(),
        replicas: workload.replicas.map(|all| record.replicas_of(copy, all)),
    };
    record.active().map(place).collect()
}

/// Returns the active copies with their shares of the replicas.
fn places_by_record(record: &PlacementRecord) -> Vec<PlannedPlace> {
    let place =
        |copy: &PlacedCopy| PlannedPlace { name: copy.name.clone(), uid: copy.uid.clone(), replicas: copy.replicas };
    record.active().map(place).collect()
}
