//! Objects between handlers and the store: finding, listing, committing.

mod accounts;
mod commit;
mod defined;
mod find;
mod list;
mod own;
mod put;
mod races;
mod slices;
mod write;

pub(crate) use commit::{Commit, CommitError, Entry};
pub(crate) use find::Found;
pub(crate) use list::{reached, read_failed, read_list, snapshot, wait_until};
pub(crate) use own::{computed_uid, is_computed};
pub(crate) use put::Put;
pub(crate) use races::Races;
pub(crate) use slices::Slices;
pub(crate) use write::{Changed, WRITE_ATTEMPTS, Writer};
