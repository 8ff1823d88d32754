//! Store layer that seals on commit and opens on read.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Record, ResourceVersion, Seams};

use tokio::time::Instant;

use super::keyring::Keyring;
use crate::api::{
    Committed, Durable, DynStore, Event, EventBatch, EventStream, Expect, OnDamage, RangePage, RangeRequest,
    RangeScope, StoreError, StoreLayer, StoredObject, Transaction, WatchScope,
    damage::{Damage, DamagedObject},
};
use crate::integrity::damage::MAX_KNOWN_DAMAGE;

/// Time after which an object that could not be opened is read again: another server may have replaced it.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Store whose listed resources are encrypted below it.
#[derive(Clone)]
pub struct EncryptedStore {
    inner: DynStore,
    state: Arc<EncryptionState>,
}

/// Keys and the last failure, shared with watches.
struct EncryptionState {
    keyring: RwLock<Arc<Keyring>>,
    seams: Seams,
    /// Reason of the first failure since the keys were set.
    failure: RwLock<Option<String>>,
    /// Objects that could not be opened lately.
    unopened: Mutex<HashMap<ObjectKey, (Damage, Instant)>>,
}

impl EncryptionState {
    /// Opens a record, and notes a failure.
    fn open(&self, key: &ObjectKey, record: &Arc<Record>) -> Result<Arc<Record>, Damage> {
        // Almost all records are plain.
        let keyring = self.keyring.read().clone();
        match keyring.open(key, record) {
            Ok(None) => Ok(record.clone()),
            Ok(Some(opened)) => Ok(opened),
            Err(why) => {
                self.note(key, record, why);
                Err(why)
            }
        }
    }

    fn note(&self, key: &ObjectKey, record: &Record, why: Damage) {
        let mut unopened = self.unopened.lock();
        if unopened.len() < MAX_KNOWN_DAMAGE || unopened.contains_key(key) {
            unopened.insert(key.clone(), (why, Instant::now()));
        }
        drop(unopened);
        if self.failure.read().is_some() {
            return;
        }
        let place = format!("{} of logical cluster {}", key.resource, key.cluster);
        let reason = match why {
            Damage::KeyMissing => format!("{place}: {} is not configured", Keyring::wanted_key(record)),
            Damage::Unencrypted => {
                format!("{place}: an object is not encrypted, and no identity provider is configured")
            }
            _ => format!("{place}: {} does not open an object", Keyring::wanted_key(record)),
        };
        tracing::error!(reason, name = %key.name, "an encrypted object cannot be read");
        *self.failure.write() = Some(reason);
    }
}

impl EncryptedStore {
    /// Creates the layer over a store.
    pub fn new(inner: DynStore, keyring: Keyring, seams: Seams) -> Self {
        let state = EncryptionState {
            keyring: RwLock::new(Arc::new(keyring)),
            seams,
            failure: RwLock::new(None),
            unopened: Mutex::default(),
        };
        Self { inner, state: Arc::new(state) }
    }

    /// Replaces the keys.
    pub fn set_keys(&self, keyring: Keyring) {
        *self.state.keyring.write() = Arc::new(keyring);
        *self.state.failure.write() = None;
        self.state.unopened.lock().clear();
    }

    /// Returns the reason of the first object that could not be opened with the present keys.
    pub fn failure(&self) -> Option<String> {
        self.state.failure.read().clone()
    }

    /// Reads one object of each resource that the keys name, and one Secret, so that a wrong configuration is known at
    /// the start.
    ///
    /// # Errors
    /// The errors of the store; not the failure to open an object.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let keyring = self.state.keyring.read().clone();
        let secrets = GroupResource::new("", "secrets");
        for resource in keyring.resources().chain([&secrets]) {
            let scope = RangeScope::AllClusters(resource.clone());
            let one = RangeRequest { limit: Some(1), ..RangeRequest::all(scope).skip_damaged() };
            self.open_page(one).await?;
        }
        Ok(())
    }

    async fn open_object(&self, stored: StoredObject) -> Result<StoredObject, StoreError> {
        match self.state.open(&stored.key, &stored.record) {
            Ok(record) => Ok(StoredObject { record, ..stored }),
            Err(why) => Err(DamagedObject { key: stored.key, why }.into()),
        }
    }

    async fn open_page(&self, request: RangeRequest) -> Result<RangePage, StoreError> {
        let on_damage = request.on_damage;
        let mut page = self.inner.range(request).await?;
        let mut objects = Vec::with_capacity(page.objects.len());
        for stored in std::mem::take(&mut page.objects) {
            match (self.state.open(&stored.key, &stored.record), on_damage) {
                (Ok(record), _) => objects.push(StoredObject { record, ..stored }),
                (Err(why), OnDamage::Skip) => page.damaged.push(DamagedObject { key: stored.key, why }),
                (Err(why), OnDamage::Fail) => return Err(DamagedObject { key: stored.key, why }.into()),
            }
        }
        page.objects = objects;
        Ok(page)
    }

    /// Turns the expectation of a damaged object into one of its revision, if it is one that cannot be opened.
    async fn expect_unopened(self, mut txn: Transaction) -> Result<Transaction, StoreError> {
        for write in txn.writes.iter_mut().filter(|write| write.expect == Expect::Damaged) {
            if let Ok(Some(stored)) = self.inner.get(&write.key).await
                && self.state.open(&write.key, &stored.record).is_err()
            {
                write.expect = Expect::At(stored.revision);
            }
        }
        Ok(txn)
    }
}

impl StoreLayer for EncryptedStore {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn commit(&self, mut txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        let keyring = self.state.keyring.read().clone();
        let mut is_plain = true;
        for write in &mut txn.writes {
            is_plain &= write.expect != Expect::Damaged;
            write.record = write.record.take().map(|record| keyring.seal(&write.key, record, &self.state.seams));
        }
        if is_plain {
            return self.inner.commit(txn);
        }
        let layer = self.clone();
        Box::pin(async move {
            let inner = layer.inner.clone();
            let state = layer.state.clone();
            let txn = layer.expect_unopened(txn).await?;
            let keys: Vec<_> = txn.writes.iter().map(|write| write.key.clone()).collect();
            let committed = inner.commit(txn).await?;
            state.unopened.lock().retain(|key, _| !keys.contains(key));
            Ok(committed)
        })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        Box::pin(async move {
            match self.inner.get(key).await? {
                None => Ok(None),
                Some(stored) => self.open_object(stored).await.map(Some),
            }
        })
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(self.open_page(request))
    }

    fn known_damage(&self) -> Vec<DamagedObject> {
        let mut known = self.inner.known_damage();
        let mut unopened = self.state.unopened.lock();
        unopened.retain(|_, (_, at)| at.elapsed() < REMEMBERED);
        known.extend(unopened.iter().map(|(key, (why, _))| DamagedObject { key: key.clone(), why: *why }));
        known
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        Box::pin(async move {
            let inner = self.inner.watch(scope, after).await?;
            Ok(Box::new(OpenedEvents { inner, state: self.state.clone() }) as Box<dyn EventStream>)
        })
    }
}

/// Watch whose events are opened.
struct OpenedEvents {
    inner: Box<dyn EventStream>,
    state: Arc<EncryptionState>,
}

impl OpenedEvents {
    async fn next_batch(&mut self) -> Result<EventBatch, StoreError> {
        let mut batch = self.inner.next().await?;
        for event in &mut batch.events {
            if let Some(opened) = self.opened(event)? {
                *event = Arc::new(opened);
            }
        }
        Ok(batch)
    }

    /// Returns the event with its records opened; `None` if they are plain.
    fn opened(&self, event: &Event) -> Result<Option<Event>, StoreError> {
        let open = |record: &Arc<Record>| {
            let damaged = |why| StoreError::from(DamagedObject { key: event.key.clone(), why });
            self.state.open(&event.key, record).map_err(damaged)
        };
        let record = open(&event.record)?;
        // A state that only its predecessors' keys open is still followed by one that is readable.
        let previous = event.previous.as_ref().map(open).transpose()?;
        let is_same = Arc::ptr_eq(&record, &event.record)
            && previous.as_ref().zip(event.previous.as_ref()).is_none_or(|(new, old)| Arc::ptr_eq(new, old));
        Ok((!is_same).then(|| Event { record, previous, ..event.clone() }))
    }
}

impl EventStream for OpenedEvents {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(self.next_batch())
    }

    fn progress(&self) -> ResourceVersion {
        self.inner.progress()
    }
}
