//! Kubeconfig files with inline credentials.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{CertifiedKey, ec::P256Key};

/// Content of a kubeconfig.
pub struct Kubeconfig<'a> {
    /// URL of the logical cluster.
    pub server: String,
    /// Name of the context and its cluster: the workspace, with the name of the server.
    pub context: &'a str,
    /// Name of the user entry, with the name of the server.
    pub user: &'a str,
    /// Certificate of the server's authority, PEM.
    pub ca: &'a str,
    /// The client certificate.
    pub client: &'a CertifiedKey,
}

/// Formats the file. An ECDSA key is written as `EC PRIVATE KEY`, which all clients read.
pub fn kubeconfig(of: &Kubeconfig<'_>) -> String {
    let Kubeconfig { server, context, user, .. } = of;
    let key = P256Key::from_pem(&of.client.key).map_or_else(|| of.client.key.clone(), |key| key.sec1_pem());
    let (ca, certificate, key) =
        (STANDARD.encode(of.ca), STANDARD.encode(&of.client.certificate), STANDARD.encode(key));
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
