//! Synchronization primitives: mutexes by key, and followers of the store's events.

mod commit_listener;
mod follow;
mod keyed_mutex;
mod stream_context;

pub(crate) use commit_listener::CommitListener;
pub use follow::{Follower, follow};
pub(crate) use keyed_mutex::{KeyedGuard, KeyedMutex};
pub(crate) use stream_context::StreamContext;
