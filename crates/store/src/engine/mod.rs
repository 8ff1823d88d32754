//! Interface of the embedded engines: ordered bytes, atomic durable batches, consistent reads.

pub(crate) mod files;
pub(crate) mod guard;
mod memory;
mod redb;
mod sled;

use std::collections::BTreeMap;

use bytes::Bytes;

pub(crate) use self::{
    memory::MemoryKv,
    redb::{NewerLayout, OlderLayout, RedbKv},
    sled::SledKv,
};
use crate::api::BackendError;

pub(crate) type KvResult<T> = Result<T, BackendError>;

/// Batch of puts (`Some`) and removals (`None`), in key order: engines are fastest that way.
pub(crate) type Batch = BTreeMap<Vec<u8>, Option<Bytes>>;

/// Ordered map on disk. One thread writes, any number read.
pub(crate) trait OrderedKv: Send + Sync {
    /// Calls `read` once with the state of the last published batch, which does not change meanwhile. Views of one
    /// thread must not be nested.
    ///
    /// # Errors
    /// Fails if the engine is closed or failed; `read` was not called then.
    fn view(&self, read: &mut dyn FnMut(&dyn KvView)) -> KvResult<()>;

    /// Makes all of `batch` durable, or nothing. No view shows it before [`OrderedKv::publish`].
    ///
    /// # Errors
    /// Fails if the batch may not be durable. The engine then takes no further batch, but views continue to work.
    fn commit(&self, batch: Batch) -> KvResult<()>;

    /// Shows the last committed batch to views.
    fn publish(&self);

    /// Prepares for a quick start. Called after a pause in writes.
    ///
    /// # Errors
    /// Returns the errors of [`OrderedKv::commit`].
    fn tidy(&self) -> KvResult<()>;

    /// Makes an engine that ran out of disk space take batches again. Views may then see the state before the failed
    /// batch or after it; `before` sees it before they do. Does nothing unless the engine failed.
    ///
    /// # Errors
    /// Fails if there is still no space (see [`BackendError::is_full`]) or the failure was another one; the errors of
    /// `before`.
    fn recover(&self, before: &mut RecoveryCallback<'_>) -> KvResult<()>;

    /// Verifies everything below the shared layout by reading all of it. Called while there are no views.
    ///
    /// # Errors
    /// Fails if anything is damaged.
    fn verify(&self) -> KvResult<()> {
        Ok(())
    }

    /// Releases files and locks. Views fail afterwards.
    fn close(&self);

    /// Returns true if the engine soon reuses the file space that it does not need.
    fn uses_files_again(&self) -> bool {
        false
    }

    /// Returns the bytes of cached pages; `None` if they cannot be measured now.
    fn pages(&self) -> Option<usize> {
        None
    }

    /// Returns true if all data is in memory, so that no read waits.
    fn is_in_memory(&self) -> bool {
        false
    }
}

/// Callback that sees a state before other views do.
pub(crate) type RecoveryCallback<'a> = dyn FnMut(&dyn KvView) -> KvResult<()> + 'a;

/// View of one consistent state.
pub(crate) trait KvView {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>>;

    /// Returns the bytes of a key's value.
    fn len_of(&self, key: &[u8]) -> KvResult<Option<u64>> {
        Ok(self.get(key)?.map(|value| value.len() as u64))
    }

    /// Scans the pairs from `from` (included) to `to` (excluded).
    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn KvCursor + 'v>>;
}

/// Cursor of a scan.
pub(crate) trait KvCursor {
    /// Returns the current key; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// Returns the current value; empty at the end.
    fn value(&self) -> &[u8];
    /// Returns the current value if the engine can share it.
    fn shared(&self) -> Option<Bytes> {
        None
    }
    /// Returns the current value as owned bytes.
    fn value_bytes(&self) -> Bytes {
        self.shared().unwrap_or_else(|| Bytes::copy_from_slice(self.value()))
    }
    /// Moves to the next pair.
    fn advance(&mut self) -> KvResult<()>;
}

/// Calls `reader` with a view of the latest published state.
pub(crate) fn read<T>(kv: &dyn OrderedKv, reader: impl FnOnce(&dyn KvView) -> T) -> KvResult<T> {
    let (mut reader, mut answer) = (Some(reader), None);
    kv.view(&mut |view| answer = reader.take().map(|reader| reader(view)))?;
    answer.ok_or_else(|| BackendError { context: "the engine showed no state".into(), source: None })
}

/// Builds a failure from an engine's error. Costs nothing while there is none.
pub(crate) fn failure<E>(context: &'static str) -> impl FnOnce(E) -> BackendError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |source| BackendError { context: format!("{context}: {source}"), source: Some(Box::new(source)) }
}

/// Error of an engine that is closed or not reopened yet. It does not indicate damage.
#[derive(Debug, thiserror::Error)]
#[error("the store is closed")]
pub(crate) struct NotOpen;

impl From<NotOpen> for BackendError {
    fn from(why: NotOpen) -> Self {
        Self { context: why.to_string(), source: Some(Box::new(why)) }
    }
}

impl NotOpen {
    /// Returns true if this is the cause of an error.
    pub(crate) fn is_cause_of(error: &BackendError) -> bool {
        error.source.as_ref().is_some_and(|source| source.is::<Self>())
    }
}

/// Builds a failure from a message.
pub(crate) fn failed(context: impl Into<String>) -> BackendError {
    BackendError { context: context.into(), source: None }
}
