//! Physical clusters: a finalizer keeps one until nothing is placed on it any more, so that its deletion is a drain.
//!
//! While it is being deleted it takes nothing new, and what is there moves off by the same legal steps as any move. What has
//! nowhere else to go, volume claims with their data, and copies on one that cannot be reached keep it, and its condition
//! `Drained` says so; the syncer turns the latter into debts. Who takes the finalizer away by hand lets go of what is left:
//! its entries are taken off the records, and nothing is deleted downstream.

use portolan_placement::placed_condition;
use portolan_store::{Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction};
use portolan_types::{
    ObjectKey, Record, object,
    placement::{Condition, PhysicalClusterStatus},
};
use serde_json::{Value, json};

use crate::{
    gather::placement_key,
    kinds,
    peek::Peek,
    scheduler::{Inner, SchedulerError},
};

/// Keeps a `PhysicalCluster` until nothing is placed on it any more.
pub const FINALIZER: &str = "portolan.dev/placements";
/// Objects that the condition names.
const MAX_NAMED: usize = 3;

impl Inner {
    pub(crate) async fn tend_physical(&self, key: &ObjectKey) -> Result<(), SchedulerError> {
        let Some(stored) = self.objects.store().get(key).await? else { return Ok(()) };
        let mut physical = stored.to_value()?;
        let held = object::finalizers(&physical).any(|f| f == FINALIZER);
        let record = match (object::is_deleting(&physical), held) {
            (false, true) | (true, false) => return Ok(()),
            (false, false) => {
                set_finalizer(&mut physical, true);
                Some(Record::of(&physical))
            }
            (true, true) => {
                let left = self.left_on(&stored).await?;
                if !left.is_empty() {
                    return self.say_what_is_left(key, stored, physical, left).await;
                }
                set_finalizer(&mut physical, false);
                let removable = object::finalizers(&physical).next().is_none();
                (!removable).then(|| Record::of(&physical))
            }
        };
        self.objects.store().commit(Transaction::one(key.clone(), Expect::At(stored.revision), record)).await?;
        Ok(())
    }

    /// What is placed on a physical cluster, but for what it made itself.
    async fn left_on(&self, physical: &StoredObject) -> Result<Vec<ObjectKey>, SchedulerError> {
        let scope = RangeScope::PlacedOn(physical.record.header.uid.clone());
        let labels = crate::rescan::placed_from_here();
        let page =
            self.objects.store().range(RangeRequest { labels, ..RangeRequest::all(scope).past_damage() }).await?;
        // A ReplicaSet that several physical clusters share has no label of one of them.
        let placed = |stored: &StoredObject| !Peek::of(&stored.record).record.is_projected();
        let damaged = page.damaged.into_iter().map(|found| found.key);
        Ok(page.objects.into_iter().filter(placed).map(|stored| stored.key).chain(damaged).collect())
    }

    async fn say_what_is_left(
        &self,
        key: &ObjectKey,
        stored: StoredObject,
        mut physical: Value,
        mut left: Vec<ObjectKey>,
    ) -> Result<(), SchedulerError> {
        let status: PhysicalClusterStatus =
            serde_json::from_value(physical.get("status").cloned().unwrap_or_default()).unwrap_or_default();
        // What others follow is told, and not what follows it.
        left.sort_by_key(|key| (kinds::is_follower(&key.resource), key.clone()));
        let mut named = Vec::new();
        for key in left.iter().take(MAX_NAMED) {
            named.push(self.why_it_is_left(key).await?);
        }
        let more = if left.len() > MAX_NAMED { "; …" } else { "" };
        let message = format!("{} objects are still here: {}{more}", left.len(), named.join("; "));
        let known = status.conditions.iter().find(|c| c.kind == "Drained");
        if known.is_some_and(|c| c.message == message) {
            return Ok(());
        }
        let since = known.map_or_else(|| self.seams.now_text(), |c| c.last_transition_time.clone());
        let drained = Condition {
            kind: "Drained".into(),
            status: "False".into(),
            reason: "ObjectsLeft".into(),
            message,
            last_transition_time: since,
            observed_generation: object::generation(&physical),
        };
        let others = status.conditions.into_iter().filter(|c| c.kind != "Drained");
        let conditions: Vec<_> = others.chain([drained]).collect();
        if let Some(fields) = physical.as_object_mut() {
            object::child_mut(fields, "status").insert("conditions".into(), json!(conditions));
        }
        let txn = Transaction::one(key.clone(), Expect::At(stored.revision), Some(Record::of(&physical)));
        self.objects.store().commit(txn).await?;
        Ok(())
    }
}

impl Inner {
    /// `root:shop: deployments/web in default (0/2 physical clusters fit: …)`.
    async fn why_it_is_left(&self, key: &ObjectKey) -> Result<String, SchedulerError> {
        let path = self
            .tree
            .lineage(key.cluster)
            .first()
            .map_or_else(|| key.cluster.to_string(), |(_, path)| path.to_string());
        let namespace = key.namespace().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let placement = match self.objects.get_value(&placement_key(key)).await {
            Ok(found) => found.map(|(placement, _)| placement),
            Err(StoreError::Damaged { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let placed = placement.as_ref().and_then(placed_condition).filter(|(_, message)| !message.is_empty());
        let why = placed.map(|(_, why)| format!(" ({why})")).unwrap_or_default();
        Ok(format!("{path}: {}/{}{namespace}{why}", key.resource.resource, key.name))
    }
}

fn set_finalizer(object: &mut Value, present: bool) {
    let kept = object::finalizers(object).filter(|f| *f != FINALIZER).map(Value::from);
    let finalizers: Vec<Value> = kept.chain(present.then(|| FINALIZER.into())).collect();
    let metadata = object::metadata_mut(object);
    match finalizers.is_empty() {
        true => drop(metadata.remove("finalizers")),
        false => drop(metadata.insert("finalizers".into(), finalizers.into())),
    }
}
