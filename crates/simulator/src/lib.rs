//! Physical cluster in process: Portolan's own API server and controllers on the memory store, with the workload loops
//! that Kubernetes has and Portolan does not. Every node and pod is marked as "simulated".
//!
//! Other crates cannot distinguish a simulated physical cluster: all are reached through the same kube client.

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
