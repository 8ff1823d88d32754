//! Writes: the plan of a batch, its limits, and the one step that makes it durable and then visible.

pub(crate) mod accounts;
pub(crate) mod core;
pub(crate) mod discard;
pub(crate) mod disk_space;
pub(crate) mod gate;
pub(crate) mod plan;
pub(crate) mod precondition;
pub(crate) mod transaction;
mod watching;
