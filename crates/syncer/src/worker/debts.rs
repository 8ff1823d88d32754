//! Copies that could not be deleted while the physical cluster was out of reach are deleted on its return.

use std::{sync::atomic::Ordering, time::Duration};

use portolan_types::{object, upstream::Debt};
use serde_json::Value;

use super::{SyncError, Work, Worker, queue::Outcome, write::propagation};
use crate::plan::{self, Proof};

const TOMBSTONE_CHECK: Duration = Duration::from_secs(2);

impl Worker {
    pub(super) async fn read_debts(&self) -> Result<Outcome, SyncError> {
        let debts = self.upstream.debts(&self.config.uid).await?;
        debts.into_iter().for_each(|debt| self.queue.add(Work::Debt(Box::new(debt))));
        Ok(Outcome::Done)
    }

    pub(super) async fn look_at_debt(&self, debt: &Debt) -> Result<Outcome, SyncError> {
        let session = self.session()?;
        let served = self.served_for(&session, &debt.key.resource).await?;
        let (Ok(place), Some(served)) = (self.place(&debt.key), served) else {
            // Nothing of a kind that is not served can be there.
            return self.settled(debt).await;
        };
        if self.has_returned(debt).await? {
            return self.settled(debt).await;
        }
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
            session.api.delete(&path, &Proof::debt(&live), propagation(&served)).await?;
            self.counters.deletes.fetch_add(1, Ordering::Relaxed);
            tracing::info!(cluster = %self.config.name, key = %debt.key, "debt paid");
        }
        Ok(Outcome::CheckAgainIn(TOMBSTONE_CHECK))
    }

    /// The same object is placed here again: the copy is taken on, not deleted.
    async fn has_returned(&self, debt: &Debt) -> Result<bool, SyncError> {
        let Some(upstream) = self.upstream.get(&debt.key).await? else { return Ok(false) };
        Ok(object::uid(&upstream.object).as_ref() == Some(&debt.uid) && self.entry(&upstream).is_some())
    }

    /// Exactly the copy that the debt is about: of that object, and not of a later stay.
    fn is_owed(&self, debt: &Debt, live: &Value) -> bool {
        plan::copy_identity(live, &self.config.uid)
            .is_some_and(|identity| identity.uid == debt.uid && identity.epoch <= debt.epoch)
    }

    async fn settled(&self, debt: &Debt) -> Result<Outcome, SyncError> {
        self.upstream.settle(&self.config.uid, debt).await?;
        if let Ok(place) = self.place(&debt.key) {
            self.queue.add_after(Work::Namespace(place.namespace), self.config.namespace_linger);
        }
        self.queue.add(Work::Copy(debt.key.clone()));
        Ok(Outcome::Done)
    }
}
