//! Tests of shared APIs: the API server and the controllers on one memory store.

mod bindings;
mod claims;
mod default_bindings;
mod flattened;
mod identities;
mod initialization;
mod plugins;
mod scale;
mod views;
mod wildcards;
mod world;
