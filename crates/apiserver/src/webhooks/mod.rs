//! Webhooks, whatever they are asked about: where they are, and how they are called. No two logical clusters share connections.

mod client;
mod endpoint;
mod names;
mod service;
mod trust;

pub use client::WebhookAddresses;
pub(crate) use client::{Answered, Clients};
pub(crate) use endpoint::Endpoint;
