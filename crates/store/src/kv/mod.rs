//! What the shared layout needs of an embedded engine: ordered bytes, atomic durable batches, consistent reads.

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
use crate::BackendError;

pub(crate) type KvResult<T> = Result<T, BackendError>;

/// Puts (`Some`) and removals (`None`), in key order: engines are fastest that way.
pub(crate) type Batch = BTreeMap<Vec<u8>, Option<Bytes>>;

/// An ordered map on disk. One thread writes, any number read.
pub(crate) trait OrderedKv: Send + Sync {
    /// Calls `read` once, with the state of the last published batch, which does not change meanwhile.
    /// Views of one thread must not be nested.
    ///
    /// # Errors
    /// When the engine is closed or failed; `read` was not called then.
    fn view(&self, read: &mut dyn FnMut(&dyn View)) -> KvResult<()>;

    /// Makes all of `batch` durable or nothing of it. No view shows it before [`OrderedKv::publish`].
    ///
    /// # Errors
    /// When it may not be durable. The engine takes no further batch then, but views go on.
    fn commit(&self, batch: Batch) -> KvResult<()>;

    /// Shows the last committed batch to views.
    fn publish(&self);

    /// Called when nothing has been written for a while: prepares for a quick start.
    ///
    /// # Errors
    /// As for [`OrderedKv::commit`].
    fn tidy(&self) -> KvResult<()>;

    /// Makes an engine that ran out of room take batches again. The state that views see then may be the one before the
    /// batch that failed, or the one after it; `before` sees it before they do. Does nothing to an engine that did not fail.
    ///
    /// # Errors
    /// When there is still no room (see [`BackendError::is_full`]), or the failure was another one; that of `before`.
    fn recover(&self, before: &mut Before<'_>) -> KvResult<()>;

    /// Checks everything below the layout, reading all of it. Called with no view under way.
    ///
    /// # Errors
    /// When something is not as it was written.
    fn verify(&self) -> KvResult<()> {
        Ok(())
    }

    /// Releases files and locks. Views fail afterwards.
    fn close(&self);

    /// Whether what it no longer needs of its files is soon written again, at little more than what is written.
    fn uses_files_again(&self) -> bool {
        false
    }

    /// Bytes of pages that are kept in memory; `None` when that cannot be told, or not now.
    fn pages(&self) -> Option<usize> {
        None
    }

    /// Whether all data is in memory, so that no read ever waits.
    fn is_in_memory(&self) -> bool {
        false
    }
}

/// What looks at a state before all others do.
pub(crate) type Before<'a> = dyn FnMut(&dyn View) -> KvResult<()> + 'a;

/// One consistent state.
pub(crate) trait View {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>>;

    /// The pairs from `from` (included) to `to` (excluded).
    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn Cursor + 'v>>;
}

/// A place in a scan.
pub(crate) trait Cursor {
    /// The key here; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// The value here; empty at the end.
    fn value(&self) -> &[u8];
    /// The value here, where the engine can share it.
    fn shared(&self) -> Option<Bytes> {
        None
    }
    /// The value here, to keep.
    fn value_bytes(&self) -> Bytes {
        self.shared().unwrap_or_else(|| Bytes::copy_from_slice(self.value()))
    }
    /// Goes to the next pair.
    fn advance(&mut self) -> KvResult<()>;
}

/// Reads one state.
pub(crate) fn read<T>(kv: &dyn OrderedKv, reader: impl FnOnce(&dyn View) -> T) -> KvResult<T> {
    let (mut reader, mut answer) = (Some(reader), None);
    kv.view(&mut |view| answer = reader.take().map(|reader| reader(view)))?;
    answer.ok_or_else(|| BackendError { context: "the engine showed no state".into(), source: None })
}

/// A failure with the engine's own words. Costs nothing while there is none.
pub(crate) fn failure<E>(context: &'static str) -> impl FnOnce(E) -> BackendError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |source| BackendError { context: format!("{context}: {source}"), source: Some(Box::new(source)) }
}

/// What was to be read is not open: it was closed, or could not be opened again yet. Nothing is known to be wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("the store is closed")]
pub(crate) struct NotOpen;

impl From<NotOpen> for BackendError {
    fn from(why: NotOpen) -> Self {
        Self { context: why.to_string(), source: Some(Box::new(why)) }
    }
}

impl NotOpen {
    /// Whether that is all that kept somebody from reading.
    pub(crate) fn is_cause_of(error: &BackendError) -> bool {
        error.source.as_ref().is_some_and(|source| source.is::<Self>())
    }
}

/// A failure in our own words.
pub(crate) fn failed(context: impl Into<String>) -> BackendError {
    BackendError { context: context.into(), source: None }
}
