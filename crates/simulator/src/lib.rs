//! Physical cluster in process: Portolan's own API server and controllers on the memory store, with the workload loops
//! that Kubernetes has and Portolan does not. Every node and pod says "simulated".
//!
//! No other crate knows whether a physical cluster is simulated: all are reached through the same kube client.

mod autoscaling;
mod cluster;
mod custom_resources;
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
mod usage;
mod workloads;
mod yielding;

pub use cluster::{SimulatedCluster, SimulationConfig, StartError};
