//! Interface of the store: the [`Store`] trait with its requests, answers and errors. Knows no engine.

pub(crate) mod damage;
mod error;
pub(crate) mod hold;
mod layer;
pub(crate) mod open_progress;
mod range;
pub(crate) mod shortage;
mod store;
mod transaction;
mod watch;

pub use self::{
    error::{BackendError, StoreError},
    layer::StoreLayer,
    range::{OnDamage, RangePage, RangeRequest, RangeScope, SLICE_BYTES, StoredObject},
    store::{DynStore, Store},
    transaction::{
        AccountLimit, Committed, Durable, Expect, LimitExcess, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS,
        MAX_TRANSACTION_OBJECTS, StoredUsage, Transaction, Write,
    },
    watch::{ChangeKind, Event, EventBatch, EventStream, WatchScope},
};
