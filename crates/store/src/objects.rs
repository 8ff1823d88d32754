//! What loops over objects need: trees instead of bytes, and changes that are tried again when somebody was faster.

use parking_lot::Mutex;
use portolan_types::{LabelSelector, ObjectKey, Record, ResourceVersion};
use serde_json::Value;

use crate::{
    Committed, Damage, Durable, DynStore, Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction,
    Write,
};

/// How often a step is tried before its error is handed to the caller, whose own loop comes again.
const MAX_TRIES: usize = 16;

/// Runs a step that reads and then commits what follows from that, again while somebody was faster: at most 16 times.
///
/// # Errors
/// Those of the step; of the last one when somebody was faster each time.
pub async fn retried<T, E, F: Future<Output = Result<T, E>>>(
    was_beaten: impl Fn(&E) -> bool,
    mut step: impl FnMut() -> F,
) -> Result<T, E> {
    for _ in 1..MAX_TRIES {
        match step().await {
            Err(error) if was_beaten(&error) => {}
            done => return done,
        }
    }
    step().await
}

/// Commits a transaction, and with it notes that only tell of it, such as Events. A note whose place is taken by something
/// damaged is left out, and that becomes known: nobody waits for what only tells.
///
/// # Errors
/// Those of [`crate::Store::commit`].
pub async fn commit_noting(
    store: &DynStore,
    txn: Transaction,
    mut notes: Vec<Write>,
) -> Result<Durable<Committed>, StoreError> {
    loop {
        let mut all = txn.clone();
        all.writes.extend(notes.iter().cloned());
        match store.commit(all).await {
            Err(StoreError::Damaged { key, .. }) if notes.iter().any(|note| note.key == key) => {
                notes.retain(|note| note.key != key);
                // It is known to who reads it.
                let _ = store.get(&key).await;
            }
            done => return done,
        }
    }
}

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
    /// It was removed: the object as it was last, and the revision of its removal.
    Deleted(Value, ResourceVersion),
}

impl Modified {
    /// The object, as it is now or was last.
    pub fn into_object(self) -> Value {
        match self {
            Self::Kept(object, _) | Self::Written(object, _) | Self::Deleted(object, _) => object,
        }
    }
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
        stored.map(|stored| Ok((stored.to_value()?, stored.revision))).transpose()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// `AlreadyExists`, and those of [`crate::Store::commit`].
    pub async fn create(&self, key: &ObjectKey, object: &Value) -> Result<ResourceVersion, StoreError> {
        let txn = Transaction::one(key.clone(), Expect::Absent, Some(Record::of(object)));
        Ok(self.store.commit(txn).await?.into_inner().last)
    }

    /// Looks at an object and changes it, again when somebody was faster; `None` when it is not there. `change` may run
    /// several times.
    ///
    /// # Errors
    /// Those of `change`; `Conflict` when others were faster 16 times; those of [`crate::Store::commit`].
    pub async fn modify<E: From<StoreError>>(
        &self,
        key: &ObjectKey,
        change: impl FnMut(&mut Value) -> Result<Step, E> + Send,
    ) -> Result<Option<Modified>, E> {
        // Gone between reading and writing is as good as changed: the next look tells.
        let was_beaten =
            |error: &StoreError| matches!(error, StoreError::Conflict { .. } | StoreError::NotFound { .. });
        // Tries come one after the other; the lock only shows that to the compiler.
        let change = Mutex::new(change);
        retried(was_beaten, || self.try_modify(key, &change)).await?
    }

    /// The error of `change` inside, so that it is not taken for one of the store.
    async fn try_modify<E: From<StoreError>>(
        &self,
        key: &ObjectKey,
        change: &Mutex<impl FnMut(&mut Value) -> Result<Step, E> + Send>,
    ) -> Result<Result<Option<Modified>, E>, StoreError> {
        let Some((mut object, revision)) = self.get_value(key).await? else { return Ok(Ok(None)) };
        let step = (*change.lock())(&mut object);
        let record = match step {
            Err(error) => return Ok(Err(error)),
            Ok(Step::Keep) => return Ok(Ok(Some(Modified::Kept(object, revision)))),
            Ok(Step::Write) => Some(Record::of(&object)),
            Ok(Step::Delete) => None,
        };
        let written = record.is_some();
        let committed = self.store.commit(Transaction::one(key.clone(), Expect::At(revision), record)).await?;
        let revision = committed.into_inner().last;
        portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
        let modified = if written { Modified::Written } else { Modified::Deleted };
        Ok(Ok(Some(modified(object, revision))))
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
        let objects = page.objects.into_iter().map(|stored| Ok((stored.key.clone(), stored.to_value()?)));
        Ok((objects.collect::<Result<_, StoreError>>()?, page.revision))
    }
}

impl StoredObject {
    /// The object as a tree, with its resourceVersion.
    ///
    /// # Errors
    /// `Damaged` when its body is no JSON.
    pub fn to_value(&self) -> Result<Value, StoreError> {
        let body = self.record.to_value(self.revision);
        body.map_err(|_| StoreError::Damaged { key: self.key.clone(), why: Damage::Body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_step_that_always_comes_second_is_given_up() {
        let mut tries = 0;
        let step = || {
            tries += 1;
            async { Err("conflict") }
        };
        let beaten: Result<(), &str> = retried(|error| *error == "conflict", step).await;
        assert_eq!((beaten, tries), (Err("conflict"), MAX_TRIES));
    }
}
