//! Tests of shared APIs: the API server and the controllers on one memory store.

mod bindings;
mod claims;
mod identities;
mod plugins;
mod scale;
mod views;
mod world;
