//! An upstream in memory, a tiny physical cluster in memory, and the suite that every kind of physical cluster passes.

mod cluster;
#[cfg(test)]
mod custom;
pub mod suite;
mod upstream;

#[cfg(test)]
mod left_behind;
#[cfg(test)]
mod loops;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod pod_views;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreachable;

pub use cluster::{CannedAnswer, FakeCluster};
pub use upstream::{MemoryUpstream, SharedUpstream};
