//! `Placement`s that somebody deleted. They are recreated at once with their reports: a `Placement` without the reports
//! of the syncers would show that nothing is ready.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_store::{Expect, StoreError, Transaction};
use portolan_types::{ObjectKey, Record, object};
use serde_json::Value;

use crate::{context::SchedulerContext, inputs::placement_key, observe::tree, scheduler::SchedulerError};

/// Maximum `Placement`s whose reports are kept until they are recreated. Further ones are recreated without reports.
const MAX_KEPT: usize = 10_000;

/// Last states of deleted `Placement`s, by the keys of their objects.
#[derive(Default)]
pub(crate) struct LostPlacements(Mutex<BTreeMap<ObjectKey, Arc<Record>>>);

impl LostPlacements {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Arc<Record>>> {
        self.0.lock().expect("no code panics under this lock")
    }

    /// Keeps the last state of a deleted `Placement`.
    pub(crate) fn put(&self, object: &ObjectKey, placement: &Arc<Record>) {
        let mut lost = self.lock();
        if lost.len() < MAX_KEPT {
            lost.insert(object.clone(), placement.clone());
        }
    }

    /// Drops the last state of a `Placement`, because its object is gone or it was recreated.
    pub(crate) fn forget(&self, object: &ObjectKey) {
        self.lock().remove(object);
    }

    fn get(&self, object: &ObjectKey) -> Option<Arc<Record>> {
        self.lock().get(object).cloned()
    }
}

/// Makes the deleted `Placement` of an object again.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn make_lost_placement(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    object: &Value,
) -> Result<(), SchedulerError> {
    let Some(mut placement) = ctx.lost_placements.get(key).as_deref().and_then(tree) else { return Ok(()) };
    let is_own =
        placement.pointer("/spec/object/uid").and_then(Value::as_str) == Some(object::meta_text(object, "uid"));
    if is_own {
        let metadata = object::metadata_mut(&mut placement);
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "resourceVersion"] {
            metadata.remove(field);
        }
        metadata.insert("uid".into(), ctx.seams.uid().as_str().into());
        metadata.insert("creationTimestamp".into(), ctx.seams.now_text().into());
        let txn = Transaction::one(placement_key(key), Expect::Absent, Some(Record::of(&placement)));
        match ctx.objects.store().commit(txn).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. } | StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    ctx.lost_placements.forget(key);
    Ok(())
}
