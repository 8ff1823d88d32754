//! Kubeconfig files with everything inline.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::CertifiedKey;

/// What a kubeconfig says.
pub struct Kubeconfig<'a> {
    /// URL of the logical cluster.
    pub server: String,
    /// Name of the context and of its cluster.
    pub context: &'a str,
    /// Name of the user entry.
    pub user: &'a str,
    /// The server's authority, PEM.
    pub ca: &'a str,
    /// The client certificate.
    pub client: &'a CertifiedKey,
}

/// The file's text.
pub fn kubeconfig(of: &Kubeconfig<'_>) -> String {
    let Kubeconfig { server, context, user, .. } = of;
    let (ca, certificate, key) =
        (STANDARD.encode(of.ca), STANDARD.encode(&of.client.certificate), STANDARD.encode(&of.client.key));
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {context}
  cluster:
    server: {server}
    certificate-authority-data: {ca}
contexts:
- name: {context}
  context:
    cluster: {context}
    user: {user}
current-context: {context}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
"
    )
}
