//! Calls of webhooks, for admission and conversion alike: endpoints and clients. Logical clusters share no connections.

mod client;
mod configured;
mod endpoint;
mod resolver;
mod service;
mod trust;

pub use client::WebhookAddresses;
pub(crate) use client::{CheckedAddresses, WebhookClients, WebhookRequestBody, WebhookResponse};
pub(crate) use configured::{ConfiguredWebhook, WebhookCallError, WebhookConfigError};
pub(crate) use endpoint::{ForwardedRequest, WebhookEndpoint};
pub(crate) use service::ServiceNetwork;
pub(crate) use trust::config as trust_of_bundle;

/// Context of calls to webhooks.
pub(crate) struct WebhookContext {
    pub(crate) clients: WebhookClients,
    /// Network of the webhooks that a Service names.
    pub(crate) services: ServiceNetwork,
}
