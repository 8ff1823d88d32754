//! Real servers on loopback for end-to-end tests and benchmarks: programs built from published Go modules, physical
//! clusters made of them, a Portolan server, and kubectl for each.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real programs in real time")]

pub mod agent_load;
pub mod cache;
pub mod cargo;
pub mod client;
pub mod clients;
pub mod cluster;
pub mod conformance;
pub mod control_plane;
pub mod envtest;
pub mod etcd;
pub mod fake_kubelet;
pub mod fake_nodes;
pub mod gateway;
pub mod go;
pub mod java;
pub mod kubeconfig;
pub mod kubectl;
pub mod markdown;
pub mod network;
pub mod operators;
pub mod pair;
pub mod pki;
pub mod poll;
pub mod portolan;
pub mod ports;
pub mod process;
pub mod process_kubelet;
pub mod report;
pub mod tools;
pub mod tunnel;
pub mod webhook;
pub mod workdir;
