//! A physical cluster in process: Portolan's own API server and loops on the memory store, plus the loops that Kubernetes
//! has and Portolan does not. Every node and pod says "simulated".
//!
//! Nothing outside this crate knows whether a physical cluster is simulated: it is reached through the same kube client.

mod autoscaling;
mod cluster;
mod disruption;
mod endpoints;
mod events;
mod fields;
mod index;
mod kubelet;
mod logs;
mod network;
mod nodes;
mod schedule;
mod storage;
mod workloads;
mod yielding;

pub use cluster::{SimulatedCluster, SimulationConfig, StartError};
