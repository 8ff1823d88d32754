//! Real servers on loopback for end-to-end tests and benchmarks: tools built from published Go modules, physical
//! clusters made of them, a Portolan server, and kubectl in front of each.

pub(crate) mod cache;
pub(crate) mod cargo;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod conformance;
pub(crate) mod control_plane;
pub(crate) mod envtest;
pub(crate) mod etcd;
pub(crate) mod fake_kubelet;
pub(crate) mod fake_nodes;
pub(crate) mod gateway;
pub(crate) mod go;
pub(crate) mod java;
pub(crate) mod kubeconfig;
pub(crate) mod kubectl;
pub(crate) mod network;
pub(crate) mod operators;
pub(crate) mod pair;
pub(crate) mod pki;
pub(crate) mod poll;
pub(crate) mod portolan;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod tools;
pub(crate) mod tunnel;
pub(crate) mod webhook;
pub(crate) mod workdir;
