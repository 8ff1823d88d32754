//! What loops over objects need: trees instead of bytes, and changes that are tried again when somebody was faster.

use std::time::Duration;

use portolan_types::{LabelSelector, ObjectKey, Record, ResourceVersion};
use serde_json::Value;

use crate::{
    DynStore, Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, read::damaged, value::Damage,
};

/// How often a change is tried before the conflict is handed to the caller, whose own loop comes again.
const MAX_TRIES: usize = 16;

/// What to do with an object that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Leave it as it is.
    Keep,
    /// Write it as it was changed.
    Write,
    /// Remove it.
    Delete,
}

/// What was done with an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Modified {
    /// Nothing: it stays as it is, at this revision.
    Kept(Value, ResourceVersion),
    /// It was written: the object now, at its new revision.
    Written(Value, ResourceVersion),
    /// It was removed, by the write of this revision.
    Deleted(ResourceVersion),
}

/// A store whose objects are read and changed as trees.
#[derive(Clone)]
pub struct Objects {
    store: DynStore,
}

impl Objects {
    /// On a store.
    pub fn new(store: DynStore) -> Self {
        Self { store }
    }

    /// The store below.
    pub fn store(&self) -> &DynStore {
        &self.store
    }

    /// An object as a tree with its resourceVersion, and that resourceVersion; `None` when it is not there.
    ///
    /// # Errors
    /// Those of [`crate::Store::get`].
    pub async fn get_value(&self, key: &ObjectKey) -> Result<Option<(Value, ResourceVersion)>, StoreError> {
        let stored = self.store.get(key).await?;
        stored.map(|stored| Ok((to_value(&stored)?, stored.revision))).transpose()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// `AlreadyExists`, and those of [`crate::Store::commit`].
    pub async fn create(&self, key: &ObjectKey, object: &Value) -> Result<ResourceVersion, StoreError> {
        let txn = Transaction::one(key.clone(), Expect::Absent, Some(Record::of(object)));
        Ok(self.store.commit(txn).await?.into_inner().last)
    }

    /// Looks at an object and changes it, again when somebody was faster. `change` may run several times.
    ///
    /// # Errors
    /// `NotFound` when it is not there; `Conflict` when others were faster 16 times; those of [`crate::Store::commit`].
    pub async fn modify(
        &self,
        key: &ObjectKey,
        mut change: impl FnMut(&mut Value) -> Step + Send,
    ) -> Result<Modified, StoreError> {
        let mut tries = 1;
        loop {
            match self.try_modify(key, &mut change).await {
                Err(StoreError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                done => return done,
            }
        }
    }

    async fn try_modify(
        &self,
        key: &ObjectKey,
        change: &mut (impl FnMut(&mut Value) -> Step + Send),
    ) -> Result<Modified, StoreError> {
        let found = self.get_value(key).await?;
        let (mut object, revision) = found.ok_or_else(|| StoreError::NotFound { key: key.clone() })?;
        let record = match change(&mut object) {
            Step::Keep => return Ok(Modified::Kept(object, revision)),
            Step::Write => Some(Record::of(&object)),
            Step::Delete => None,
        };
        let written = record.is_some();
        let committed = self.store.commit(Transaction::one(key.clone(), Expect::At(revision), record)).await?;
        let revision = committed.into_inner().last;
        if !written {
            return Ok(Modified::Deleted(revision));
        }
        portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
        Ok(Modified::Written(object, revision))
    }

    /// All objects of a scope as trees, in key order, and the revision from which a watch goes on without gap.
    ///
    /// # Errors
    /// Those of [`crate::Store::range`].
    pub async fn list(&self, scope: RangeScope) -> Result<(Vec<(ObjectKey, Value)>, ResourceVersion), StoreError> {
        self.list_matching(scope, LabelSelector::everything()).await
    }

    /// As [`Objects::list`], of the objects whose labels match.
    ///
    /// # Errors
    /// Those of [`crate::Store::range`].
    pub async fn list_matching(
        &self,
        scope: RangeScope,
        labels: LabelSelector,
    ) -> Result<(Vec<(ObjectKey, Value)>, ResourceVersion), StoreError> {
        let page = self.store.range(RangeRequest { labels, ..RangeRequest::all(scope) }).await?;
        let objects = page.objects.into_iter().map(|stored| Ok((stored.key.clone(), to_value(&stored)?)));
        Ok((objects.collect::<Result<_, StoreError>>()?, page.revision))
    }
}

fn to_value(stored: &StoredObject) -> Result<Value, StoreError> {
    stored.record.to_value(stored.revision).map_err(|_| damaged(Damage::Body))
}

/// Compacts a store for ever, so that between `keep` and twice as much of history stays: what watches resume from and pages
/// go on at, also after a restart. Ends when the store takes no writes any more.
pub async fn keep_history(store: DynStore, keep: Duration) -> StoreError {
    loop {
        let seen = store.current();
        tokio::time::sleep(keep).await;
        match store.compact(seen).await {
            Ok(()) | Err(StoreError::Overloaded) => {}
            Err(error) => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn history_is_kept_for_the_time_asked() {
        let store = crate::memory();
        let objects = Objects::new(store.clone());
        let task = tokio::spawn(keep_history(store.clone(), Duration::from_secs(300)));
        let resource = GroupResource::new("", "pods");
        for minute in 1..=20u64 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let name = format!("p{minute}").parse().unwrap();
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource.clone(), name);
            objects.create(&key, &json!({})).await.unwrap();
            let age = store.current().get() - store.oldest().get();
            assert!((5..=11).contains(&age) || minute < 12, "{age} minutes are kept after {minute}");
        }
        store.close().await;
        assert!(matches!(task.await.unwrap(), StoreError::Backend(_)));
    }
}
