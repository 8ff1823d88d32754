//! Rewriting of a store with the present keys, and the search for objects that are not encrypted.

use std::sync::Arc;

use portolan_types::{BoxFuture, ObjectKey, Record, Seams};

use super::keyring::Keyring;
use crate::api::{
    DynStore, Expect, RangePage, RangeRequest, RangeScope, Store, StoreError, StoreLayer, StoredObject, Transaction,
    WatchScope,
    damage::{Damage, DamageList, DamagedObject, named},
};

/// Store whose objects are read as a write with the present keys would store them: the source of a snapshot that
/// replaces the store.
pub struct ResealedStore {
    inner: DynStore,
    keyring: Keyring,
    seams: Seams,
}

impl ResealedStore {
    /// Creates the layer over a store.
    pub fn new(inner: DynStore, keyring: Keyring, seams: Seams) -> Self {
        Self { inner, keyring, seams }
    }

    /// Returns the record as it has to be stored; `None` if it is stored so.
    fn resealed(&self, key: &ObjectKey, record: &Arc<Record>) -> Result<Option<Record>, StoreError> {
        if self.keyring.is_current(key, record) {
            return Ok(None);
        }
        let plain = match self.keyring.open(key, record) {
            Ok(Some(opened)) => opened,
            // Plain objects are the reason to rewrite, whether the configuration allows them or not.
            Ok(None) | Err(Damage::Unencrypted) => record.clone(),
            Err(why) => return Err(DamagedObject { key: key.clone(), why }.into()),
        };
        Ok(Some(self.keyring.seal(key, Record::clone(&plain), &self.seams)))
    }

    async fn resealed_page(&self, request: RangeRequest) -> Result<RangePage, StoreError> {
        let mut page = self.inner.range(request).await?;
        for stored in &mut page.objects {
            if let Some(record) = self.resealed(&stored.key, &stored.record)? {
                stored.record = Arc::new(record);
            }
        }
        Ok(page)
    }

    /// Writes every object again that is not stored as the present keys store it, and removes the history, which has
    /// the earlier bytes. Objects that change meanwhile are skipped: their writers use the present keys. Returns the
    /// number of written objects.
    ///
    /// # Errors
    /// `Damaged` for an object that cannot be opened; the errors of the store.
    pub async fn rewrite_in_place(&self) -> Result<u64, StoreError> {
        let (mut written, mut next) = (0, Some(RangeRequest::slices(RangeScope::All)));
        while let Some(request) = next {
            let page = self.inner.range(request.clone()).await?;
            for StoredObject { key, revision, record, .. } in &page.objects {
                let Some(record) = self.resealed(key, record)? else { continue };
                let write = Transaction::one(key.clone(), Expect::At(*revision), Some(record));
                match self.inner.commit(write).await {
                    Ok(_) => written += 1,
                    Err(StoreError::Conflict { .. } | StoreError::NotFound { .. } | StoreError::ClusterGone { .. }) => {
                    }
                    Err(error) => return Err(error),
                }
            }
            next = request.next(&page);
        }
        self.inner.compact(self.inner.current()).await?;
        Ok(written)
    }
}

impl StoreLayer for ResealedStore {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(self.resealed_page(request))
    }
}

/// Findings about the objects that a configuration encrypts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptionReport {
    /// Objects that are stored with the first key of their rule.
    pub current: u64,
    /// Objects that are encrypted with an older key.
    pub older: u64,
    /// Objects and earlier states that are not encrypted.
    pub plain: DamageList,
    /// Objects and earlier states that the configuration cannot open.
    pub unreadable: DamageList,
}

impl EncryptionReport {
    /// Returns true if nothing is plain or unreadable.
    pub fn is_good(&self) -> bool {
        self.plain.is_empty() && self.unreadable.is_empty()
    }

    /// Examines a record as stored.
    pub fn examine(&mut self, keyring: &Keyring, key: &ObjectKey, record: &Record) {
        let is_encrypted = Keyring::is_encrypted(record);
        if !is_encrypted && !keyring.encrypts(key) {
            return;
        }
        if !is_encrypted {
            self.plain.add(named(key));
        } else if keyring.is_current(key, record) {
            self.current += 1;
        } else if keyring.open(key, record).is_ok() {
            self.older += 1;
        } else {
            self.unreadable.add(named(key));
        }
    }

    /// Examines a state of an object in the history, which may be the latest one. The counts of keys are those of
    /// latest states.
    fn examine_earlier(&mut self, keyring: &Keyring, key: &ObjectKey, record: &Record) {
        let is_encrypted = Keyring::is_encrypted(record);
        let faults = if is_encrypted && keyring.open(key, record).is_err() {
            &mut self.unreadable
        } else if !is_encrypted && keyring.encrypts(key) {
            &mut self.plain
        } else {
            return;
        };
        faults.add(format_args!("{}, in the history", named(key)));
    }
}

/// Examines every object of a store and its whole history. `store` is the one below the encryption.
///
/// # Errors
/// The errors of the store.
pub async fn examine_encryption(store: &dyn Store, keyring: &Keyring) -> Result<EncryptionReport, StoreError> {
    let mut report = EncryptionReport::default();
    let mut next = Some(RangeRequest::slices(RangeScope::All).skip_damaged());
    while let Some(request) = next {
        let page = store.range(request.clone()).await?;
        for stored in &page.objects {
            report.examine(keyring, &stored.key, &stored.record);
        }
        next = request.next(&page);
    }
    examine_history(store, keyring, &mut report).await?;
    Ok(report)
}

/// Examines the history of every resource, also of those without an object that is left.
async fn examine_history(
    store: &dyn Store,
    keyring: &Keyring,
    report: &mut EncryptionReport,
) -> Result<(), StoreError> {
    let (last, oldest) = (store.current(), store.oldest());
    if oldest >= last {
        return Ok(());
    }
    let mut events = store.watch(WatchScope::All, Some(oldest)).await?;
    let mut at = oldest;
    while at < last {
        let batch = events.next().await?;
        for event in &batch.events {
            for record in [Some(&event.record), event.previous.as_ref()].into_iter().flatten() {
                report.examine_earlier(keyring, &event.key, record);
            }
        }
        at = batch.revision;
    }
    Ok(())
}
