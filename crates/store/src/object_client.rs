//! Helpers for controllers: objects as JSON trees, and changes that are retried after a conflict.

use parking_lot::Mutex;
use portolan_types::{LabelSelector, ObjectKey, Record, ResourceVersion};
use serde_json::Value;

use crate::api::{
    Committed, Durable, DynStore, Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, Write,
    damage::Damage,
};

/// Attempts at a step before its error is returned to the caller, which retries later.
const MAX_TRIES: usize = 16;

/// Runs a step that reads and then commits, and repeats it after a conflict, at most 16 times.
///
/// # Errors
/// Returns the errors of the step; the last one if every attempt conflicted.
pub async fn retry_on_conflict<T, E, F: Future<Output = Result<T, E>>>(
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

/// Commits a transaction together with notes about it, such as Events. If the object at a note's key is damaged, the
/// note is left out and the damage recorded: a note must not block the transaction.
///
/// # Errors
/// Returns the errors of [`crate::api::Store::commit`].
pub async fn commit_with_notes(
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
                // A read records the damage.
                let _ = store.get(&key).await;
            }
            done => return done,
        }
    }
}

/// Decision about an object that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Leave it unchanged.
    Keep,
    /// Write the changed object.
    Write,
    /// Delete it.
    Delete,
}

/// Result of modifying an object.
#[derive(Clone, Debug, PartialEq)]
pub enum ModifyOutcome {
    /// Object that stayed unchanged, at this revision.
    Kept(Value, ResourceVersion),
    /// Object that was written, at its new revision.
    Written(Value, ResourceVersion),
    /// Last state of the deleted object, and the revision of the deletion.
    Deleted(Value, ResourceVersion),
}

impl ModifyOutcome {
    /// Returns the current object, or its last state.
    pub fn into_object(self) -> Value {
        match self {
            Self::Kept(object, _) | Self::Written(object, _) | Self::Deleted(object, _) => object,
        }
    }
}

/// Store client that reads and changes objects as JSON trees.
#[derive(Clone)]
pub struct ObjectClient {
    store: DynStore,
}

impl ObjectClient {
    /// Creates a client of a store.
    pub fn new(store: DynStore) -> Self {
        Self { store }
    }

    /// Returns the underlying store.
    pub fn store(&self) -> &DynStore {
        &self.store
    }

    /// Reads an object as a tree that includes its resourceVersion; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`crate::api::Store::get`].
    pub async fn get_value(&self, key: &ObjectKey) -> Result<Option<(Value, ResourceVersion)>, StoreError> {
        let stored = self.store.get(key).await?;
        stored.map(|stored| Ok((stored.to_value()?, stored.revision))).transpose()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// `AlreadyExists`, and the errors of [`crate::api::Store::commit`].
    pub async fn create(&self, key: &ObjectKey, object: &Value) -> Result<ResourceVersion, StoreError> {
        let txn = Transaction::one(key.clone(), Expect::Absent, Some(Record::of(object)));
        Ok(self.store.commit(txn).await?.into_inner().last)
    }

    /// Reads an object and changes it, again after a conflict; `None` if it does not exist. `change` may run several
    /// times.
    ///
    /// # Errors
    /// Returns the errors of `change`; `Conflict` after 16 conflicts; the errors of [`crate::api::Store::commit`].
    pub async fn modify<E: From<StoreError>>(
        &self,
        key: &ObjectKey,
        change: impl FnMut(&mut Value) -> Result<Step, E> + Send,
    ) -> Result<Option<ModifyOutcome>, E> {
        // A deletion between read and write is a conflict too: the next read finds it.
        let was_beaten =
            |error: &StoreError| matches!(error, StoreError::Conflict { .. } | StoreError::NotFound { .. });
        // Attempts run one after the other; the lock only satisfies the compiler.
        let change = Mutex::new(change);
        retry_on_conflict(was_beaten, || self.try_modify(key, &change)).await?
    }

    /// Makes one attempt. The error of `change` is nested, so that it is not taken for one of the store.
    async fn try_modify<E: From<StoreError>>(
        &self,
        key: &ObjectKey,
        change: &Mutex<impl FnMut(&mut Value) -> Result<Step, E> + Send>,
    ) -> Result<Result<Option<ModifyOutcome>, E>, StoreError> {
        let Some((mut object, revision)) = self.get_value(key).await? else { return Ok(Ok(None)) };
        let step = (*change.lock())(&mut object);
        let record = match step {
            Err(error) => return Ok(Err(error)),
            Ok(Step::Keep) => return Ok(Ok(Some(ModifyOutcome::Kept(object, revision)))),
            Ok(Step::Write) => Some(Record::of(&object)),
            Ok(Step::Delete) => None,
        };
        let written = record.is_some();
        let committed = self.store.commit(Transaction::one(key.clone(), Expect::At(revision), record)).await?;
        let revision = committed.into_inner().last;
        portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
        let modified = if written { ModifyOutcome::Written } else { ModifyOutcome::Deleted };
        Ok(Ok(Some(modified(object, revision))))
    }

    /// Lists all objects of a scope as trees, in key order, and the revision from which a watch continues without a
    /// gap.
    ///
    /// # Errors
    /// Returns the errors of [`crate::api::Store::range`].
    pub async fn list(&self, scope: RangeScope) -> Result<(Vec<(ObjectKey, Value)>, ResourceVersion), StoreError> {
        self.list_matching(scope, LabelSelector::everything()).await
    }

    /// Lists the objects of a scope whose labels match, like [`ObjectClient::list`].
    ///
    /// # Errors
    /// Returns the errors of [`crate::api::Store::range`].
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
    /// Returns the object as a tree that includes its resourceVersion.
    ///
    /// # Errors
    /// `Damaged` if its body is not JSON.
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
        let beaten: Result<(), &str> = retry_on_conflict(|error| *error == "conflict", step).await;
        assert_eq!((beaten, tries), (Err("conflict"), MAX_TRIES));
    }
}
