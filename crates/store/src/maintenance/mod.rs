//! Maintenance: compaction of history and its retention, sweeps of deleted logical clusters, verification in the
//! background.

mod compaction;
pub(crate) mod queue;
pub(crate) mod resource_ids;
pub(crate) mod retention;
pub(crate) mod scrubber;
mod sweep;

/// Progress of sliced work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceProgress {
    Done,
    More,
}
