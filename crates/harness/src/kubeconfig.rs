//! Kubeconfigs with inline credentials, written as JSON (which is YAML).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use super::pki::PemPair;

/// Name of the cluster, the user and the context, unless another is set.
const NAME: &str = "e2e";

/// Kubeconfig with one cluster, one user, one context.
#[derive(Clone, Debug)]
pub struct UserKubeconfig {
    name: String,
    server: String,
    ca: Vec<u8>,
    credential: UserCredential,
}

/// Credential of a user.
#[derive(Clone, Debug)]
pub enum UserCredential {
    /// Client certificate and its key.
    Certificate {
        /// Certificate in PEM.
        certificate: Vec<u8>,
        /// Private key in PEM.
        key: Vec<u8>,
    },
    /// Bearer token.
    Token(String),
}

impl UserKubeconfig {
    /// Creates a kubeconfig with a client certificate.
    pub fn new(server: &str, ca: &str, client: &PemPair) -> Self {
        let credential = UserCredential::Certificate {
            certificate: client.certificate.clone().into_bytes(),
            key: client.key.clone().into_bytes(),
        };
        Self { name: NAME.to_owned(), server: server.to_owned(), ca: ca.as_bytes().to_vec(), credential }
    }

    /// Parses the current context of a file, in any form that kubectl understands.
    pub fn read(kubectl: &Path, file: &Path) -> Result<Self> {
        let output = Command::new(kubectl)
            .arg("--kubeconfig")
            .arg(file)
            .args(["config", "view", "--raw", "--flatten", "--minify", "--output=json"])
            .output()
            .context("cannot run kubectl")?;
        ensure!(output.status.success(), "kubectl config view: {}", String::from_utf8_lossy(&output.stderr));
        let config: Value = serde_json::from_slice(&output.stdout).context("kubectl printed no JSON")?;
        let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str);
        let bytes = |pointer: &str| -> Result<Vec<u8>> {
            let encoded = text(pointer).with_context(|| format!("{} has no {pointer}", file.display()))?;
            BASE64.decode(encoded).with_context(|| format!("{pointer} is not base64"))
        };
        let credential = match text("/users/0/user/token") {
            Some(token) => UserCredential::Token(token.to_owned()),
            None => UserCredential::Certificate {
                certificate: bytes("/users/0/user/client-certificate-data")?,
                key: bytes("/users/0/user/client-key-data")?,
            },
        };
        Ok(Self {
            name: NAME.to_owned(),
            server: text("/clusters/0/cluster/server").context("the kubeconfig names no server")?.to_owned(),
            ca: bytes("/clusters/0/cluster/certificate-authority-data")?,
            credential,
        })
    }

    /// URL of the server, possibly with a path.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Certificate authority in PEM.
    pub fn ca(&self) -> &[u8] {
        &self.ca
    }

    /// Returns the credential of the user.
    pub fn credential(&self) -> &UserCredential {
        &self.credential
    }

    /// Returns a kubeconfig with the same user and another URL of the same server.
    pub fn with_server(&self, server: &str) -> Self {
        Self { server: server.to_owned(), ..self.clone() }
    }

    /// Returns a kubeconfig with another user of the same server.
    pub fn with_token(&self, token: &str) -> Self {
        Self { credential: UserCredential::Token(token.to_owned()), ..self.clone() }
    }

    /// Returns the same kubeconfig with this name of its cluster, user and context. Clients show it.
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// Returns the kubeconfig as JSON.
    pub fn to_json(&self) -> String {
        let user = match &self.credential {
            UserCredential::Certificate { certificate, key } => json!({
                "client-certificate-data": BASE64.encode(certificate),
                "client-key-data": BASE64.encode(key),
            }),
            UserCredential::Token(token) => json!({"token": token}),
        };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": self.name,
                "cluster": {"server": self.server, "certificate-authority-data": BASE64.encode(&self.ca)},
            }],
            "users": [{"name": self.name, "user": user}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": self.name}}],
            "current-context": self.name,
        });
        format!("{config:#}")
    }

    /// Writes the file and returns its path.
    pub fn write(&self, file: &Path) -> Result<PathBuf> {
        fs::write(file, self.to_json()).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file.to_owned())
    }
}
