//! Configuration of identities beyond the server's own: certificates of other authorities, front proxies, webhooks for
//! tokens and for authorization.

use std::{path::PathBuf, time::Duration};

/// Identities and authorization from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// Authorities, PEM, that client certificates may have beside the server's own.
    pub client_ca: Option<PathBuf>,
    /// Proxies that authenticate their clients.
    pub request_header: Option<RequestHeaderConfig>,
    /// Webhook that reviews bearer tokens.
    pub token_webhook: Option<TokenWebhookConfig>,
    /// File with an `AuthorizationConfiguration`.
    pub authorization: Option<PathBuf>,
}

/// Proxies that send the identity of their clients in headers, over connections with their own certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaderConfig {
    /// Authorities of the proxies' certificates, PEM.
    pub client_ca: PathBuf,
    /// Common names that these may have; empty for any.
    pub allowed_names: Vec<String>,
    /// Headers with the name of the user; the first one with a value counts.
    pub username_headers: Vec<String>,
    /// Headers with the uid of the user.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with further attributes.
    pub extra_prefixes: Vec<String>,
}

/// Webhook that reviews bearer tokens that the server does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWebhookConfig {
    /// Kubeconfig of the webhook.
    pub kubeconfig: PathBuf,
    /// Time for which an answer is remembered.
    pub cache: Duration,
}
