//! Debts: copies that could not be deleted while the physical cluster was unreachable, and are deleted on its return.

use std::{sync::atomic::Ordering, time::Duration};

use portolan_types::{
    annotations, object,
    upstream::{Debt, UpstreamRead},
    work::WorkOutcome,
};
use serde_json::Value;

use super::{SyncError, Work, Worker, keep, reflector_cache::ObjectRef, write::propagation};
use crate::{
    plan::{self, Proof},
    rules::{self, SyncRefusal},
};

const TOMBSTONE_CHECK: Duration = Duration::from_secs(2);

impl Worker {
    pub(super) async fn read_debts(&self) -> Result<WorkOutcome, SyncError> {
        let debts = self.upstream.debts(&self.config.uid).await?;
        debts.into_iter().for_each(|debt| self.queue.add(Work::Debt(Box::new(debt))));
        Ok(WorkOutcome::Done)
    }

    pub(super) async fn reconcile_debt(&self, debt: &Debt) -> Result<WorkOutcome, SyncError> {
        let limited = self.state().limited_session.clone();
        let session = limited.map_or_else(|| self.session(), Ok)?;
        let Ok(place) = self.debt_ref(debt) else {
            // The object has no name downstream, so it cannot have a copy.
            return self.settle_debt(debt).await;
        };
        if rules::is_forbidden(&debt.key.resource) && debt.source.is_none() || self.has_returned(debt).await? {
            return self.settle_debt(debt).await;
        }
        let served = self.served_for(&session, &debt.key.resource).await?;
        let served = served.ok_or_else(|| self.not_served(&debt.key.resource))?;
        let path = served.path(place.namespace(), Some(&place.name));
        let live = match session.api.get(&path).await {
            Ok(live) => live,
            Err(error) if error.is_absent(&place.name) => return self.settle_debt(debt).await,
            Err(error) => return Err(error.into()),
        };
        if !self.is_owed(debt, &live) {
            return self.settle_debt(debt).await;
        }
        if keep::is_marked_kept(&live) && self.was_deleted(debt).await? {
            keep::release(&session.api, &path, &live).await?;
            tracing::info!(cluster = %self.config.name, key = %debt.key, "an owed copy stays that is not synced any more");
            return self.settle_debt(debt).await;
        }
        if !object::is_deleting(&live) {
            let propagation = if debt.is_orphan { "Orphan" } else { propagation(&served) };
            session.api.delete(&path, &Proof::debt(&live), propagation).await?;
            self.counters.deletes.fetch_add(1, Ordering::Relaxed);
            tracing::info!(cluster = %self.config.name, key = %debt.key, "debt paid");
        }
        Ok(WorkOutcome::RequeueAfter(TOMBSTONE_CHECK))
    }

    pub(super) fn debt_ref(&self, debt: &Debt) -> Result<ObjectRef, SyncRefusal> {
        match &debt.source {
            Some(source) => Ok(ObjectRef::at(&debt.key.resource, source)),
            None => self.downstream_ref(&debt.key),
        }
    }

    /// Returns true when the same object is placed here again: then the copy is kept.
    async fn has_returned(&self, debt: &Debt) -> Result<bool, SyncError> {
        let Some(upstream) = self.read_placed(&debt.key).await? else { return Ok(false) };
        Ok(object::uid(&upstream.object).as_ref() == Some(&debt.uid) && self.entry(&upstream).is_some())
    }

    /// Returns true if the object of the debt was deleted upstream, not only placed elsewhere.
    async fn was_deleted(&self, debt: &Debt) -> Result<bool, SyncError> {
        let uid = match self.upstream.get(&self.config.uid, &debt.key).await? {
            UpstreamRead::Placed(upstream) => object::uid(&upstream.object),
            UpstreamRead::NotPlaced(unplaced) => unplaced.uid,
            UpstreamRead::Absent => None,
        };
        Ok(debt.source.is_none() && uid.as_ref() != Some(&debt.uid))
    }

    /// Returns true if `live` is the copy that the debt records, and not one of a later epoch. For the debt of a
    /// projected object, `live` has to be the source of the projection.
    fn is_owed(&self, debt: &Debt, live: &Value) -> bool {
        match &debt.source {
            Some(source) => {
                let is_ours = object::label(live, annotations::DOWN_CLUSTER) == Some(&*debt.key.cluster.to_string());
                is_ours && object::meta_text(live, "uid") == source.uid
            }
            None => plan::copy_identity(live, &self.config.uid)
                .is_some_and(|identity| identity.uid == debt.uid && identity.epoch <= debt.epoch),
        }
    }

    async fn settle_debt(&self, debt: &Debt) -> Result<WorkOutcome, SyncError> {
        self.upstream.settle(&self.config.uid, debt).await?;
        if let Ok(place) = self.debt_ref(debt) {
            self.enqueue_namespace_cleanup(&place.namespace);
        }
        self.queue.add(Work::Copy(debt.key.clone()));
        Ok(WorkOutcome::Done)
    }
}
