//! An upstream in memory, a tiny physical cluster in memory, and the suite that every kind of physical cluster passes.

mod cluster;
pub mod suite;
mod upstream;

#[cfg(test)]
mod left_behind;
#[cfg(test)]
mod loops;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod out_of_reach;
#[cfg(test)]
mod tests;

pub use cluster::{Canned, FakeCluster};
pub use upstream::{MemoryUpstream, SharedUpstream};
