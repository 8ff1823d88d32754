//! Copies that could not be deleted while the physical cluster was out of reach are deleted on its return.

use std::{sync::atomic::Ordering, time::Duration};

use portolan_types::{annotations, object, upstream::Debt, work::Outcome};
use serde_json::Value;

use super::{SyncError, Work, Worker, mirror::Place, write::propagation};
use crate::{
    plan::{self, Proof},
    rules::{self, Refusal},
};

const TOMBSTONE_CHECK: Duration = Duration::from_secs(2);

impl Worker {
    pub(super) async fn read_debts(&self) -> Result<Outcome, SyncError> {
        let debts = self.upstream.debts(&self.config.uid).await?;
        debts.into_iter().for_each(|debt| self.queue.add(Work::Debt(Box::new(debt))));
        Ok(Outcome::Done)
    }

    pub(super) async fn reconcile_debt(&self, debt: &Debt) -> Result<Outcome, SyncError> {
        let limited = self.state().limited_session.clone();
        let session = limited.map_or_else(|| self.session(), Ok)?;
        let Ok(place) = self.place_of_debt(debt) else {
            // Nothing can have been made where nothing has a place.
            return self.settled(debt).await;
        };
        if rules::is_forbidden(&debt.key.resource) && debt.below.is_none() || self.has_returned(debt).await? {
            return self.settled(debt).await;
        }
        let served = self.served_for(&session, &debt.key.resource).await?;
        let served = served.ok_or_else(|| self.not_served(&debt.key.resource))?;
        let path = served.path(place.namespace(), Some(&place.name));
        let live = match session.api.get(&path).await {
            Ok(live) => live,
            Err(error) if error.is_absent(&place.name) => return self.settled(debt).await,
            Err(error) => return Err(error.into()),
        };
        if !self.is_owed(debt, &live) {
            return self.settled(debt).await;
        }
        if !object::is_deleting(&live) {
            let propagation = if debt.is_orphan { "Orphan" } else { propagation(&served) };
            session.api.delete(&path, &Proof::debt(&live), propagation).await?;
            self.counters.deletes.fetch_add(1, Ordering::Relaxed);
            tracing::info!(cluster = %self.config.name, key = %debt.key, "debt paid");
        }
        Ok(Outcome::CheckAgainIn(TOMBSTONE_CHECK))
    }

    pub(super) fn place_of_debt(&self, debt: &Debt) -> Result<Place, Refusal> {
        match &debt.below {
            Some(source) => Ok(Place::at(&debt.key.resource, source)),
            None => self.place(&debt.key),
        }
    }

    /// The same object is placed here again: the copy is taken on, not deleted.
    async fn has_returned(&self, debt: &Debt) -> Result<bool, SyncError> {
        let Some(upstream) = self.upstream.get(&debt.key).await? else { return Ok(false) };
        Ok(object::uid(&upstream.object).as_ref() == Some(&debt.uid) && self.entry(&upstream).is_some())
    }

    /// Exactly what the debt is about: the copy of that object and not of a later stay, or what was shown of it.
    fn is_owed(&self, debt: &Debt, live: &Value) -> bool {
        match &debt.below {
            Some(source) => {
                let is_ours = object::label(live, annotations::DOWN_CLUSTER) == Some(&*debt.key.cluster.to_string());
                is_ours && object::meta_text(live, "uid") == source.uid
            }
            None => plan::copy_identity(live, &self.config.uid)
                .is_some_and(|identity| identity.uid == debt.uid && identity.epoch <= debt.epoch),
        }
    }

    async fn settled(&self, debt: &Debt) -> Result<Outcome, SyncError> {
        self.upstream.settle(&self.config.uid, debt).await?;
        if let Ok(place) = self.place_of_debt(debt) {
            self.tidy_namespace(&place.namespace);
        }
        self.queue.add(Work::Copy(debt.key.clone()));
        Ok(Outcome::Done)
    }
}
