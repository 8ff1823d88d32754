//! Damage: verification of a whole store, and the damage that reads have found.

pub(crate) mod audit;
pub(crate) mod damage;
pub(crate) mod faults;
