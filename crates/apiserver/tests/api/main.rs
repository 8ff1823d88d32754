//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "one crate of tests has no outside")]

mod access;
mod admission;
mod aggregation;
mod audit;
mod bad_input;
mod common;
mod conversion;
mod credentials;
mod custom;
mod damage;
mod discovery;
mod encryption;
mod endpoints;
mod entry;
mod extension_servers;
mod fairness;
mod forms;
mod hooks;
mod identities;
mod limits;
mod mutating;
mod nowhere;
mod one_pane;
mod outcomes;
mod plans;
mod policies;
mod quotas;
mod races;
mod reach;
mod reads;
mod redefinition;
mod resource_metrics;
mod schemas;
mod serving;
mod slices;
mod watch_semantics;
mod webhooks;
mod wire;
mod workspaces;
mod writes;
