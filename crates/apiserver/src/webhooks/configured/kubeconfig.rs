//! Kubeconfig file of a webhook that the administrator configures: its server, trust and credentials.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri};
use portolan_codec::decode::{MediaType, decode_any};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::Value;

use super::WebhookConfigError;

/// Largest kubeconfig, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Client certificate with its key.
pub(super) struct ClientCertificate {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

/// Facts of the current context of a kubeconfig.
pub(super) struct WebhookKubeconfig {
    pub(super) server: Uri,
    /// Certificates in PEM that the server's must chain to; empty for the system's.
    pub(super) ca_bundle: Vec<u8>,
    pub(super) certificate: Option<ClientCertificate>,
    pub(super) authorization: Option<HeaderValue>,
}

/// Reads the current context of a kubeconfig.
///
/// # Errors
/// Files that cannot be read, and fields that cannot be used.
pub(super) fn read(path: &Path) -> Result<WebhookKubeconfig, WebhookConfigError> {
    let wrong = |what: String| WebhookConfigError::Content { path: path.to_owned(), what };
    let file = |source| WebhookConfigError::File { path: path.to_owned(), source };
    if fs::metadata(path).map_err(file)?.len() > MAX_FILE {
        return Err(wrong(format!("has more than {MAX_FILE} bytes")));
    }
    let tree = decode_any(MediaType::Yaml, &fs::read(path).map_err(file)?).map_err(wrong)?;
    let context_name = text(&tree, "current-context");
    let context = entry_by_name(&tree, "contexts", "context", context_name)
        .ok_or_else(|| wrong(format!("has no context {context_name:?}, which current-context names")))?;
    let cluster_name = text(context, "cluster");
    let cluster = entry_by_name(&tree, "clusters", "cluster", cluster_name)
        .ok_or_else(|| wrong(format!("has no cluster {cluster_name:?}")))?;
    let none = Value::Null;
    let user = entry_by_name(&tree, "users", "user", text(context, "user")).unwrap_or(&none);
    for (place, field) in
        [(user, "exec"), (user, "auth-provider"), (cluster, "proxy-url"), (cluster, "tls-server-name")]
    {
        if place.get(field).is_some_and(|value| !value.is_null()) {
            return Err(wrong(format!("has {field}, which is not supported here")));
        }
    }
    if cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) {
        return Err(wrong("has insecure-skip-tls-verify; give certificate-authority-data instead".into()));
    }
    let source = KubeconfigFields { path };
    let server: Uri = text(cluster, "server").parse().map_err(|_| wrong("has no valid server".into()))?;
    if server.scheme_str() != Some("https") || server.host().is_none() {
        return Err(wrong(format!("server: {:?} is no URL of https", text(cluster, "server"))));
    }
    let token = match source.bytes(user, "token", "tokenFile")? {
        Some(bytes) if !text(user, "token").is_empty() => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Some(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
        None => None,
    };
    let authorization = match (token, text(user, "username")) {
        (Some(token), _) => Some(format!("Bearer {token}")),
        (None, "") => None,
        (None, name) => Some(format!("Basic {}", STANDARD.encode(format!("{name}:{}", text(user, "password"))))),
    };
    let header = |value: String| {
        let header = HeaderValue::from_str(&value).map_err(|_| wrong("has a token that is no header value".into()))?;
        Ok::<_, WebhookConfigError>(sensitive(header))
    };
    Ok(WebhookKubeconfig {
        server,
        ca_bundle: source.data(cluster, "certificate-authority")?.unwrap_or_default(),
        certificate: source.certificate(user)?,
        authorization: authorization.map(header).transpose()?,
    })
}

/// Marks a header value as one that is never printed.
fn sensitive(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

/// Reader of fields that are given as data or as a file beside the kubeconfig.
struct KubeconfigFields<'a> {
    path: &'a Path,
}

impl KubeconfigFields<'_> {
    fn wrong(&self, what: String) -> WebhookConfigError {
        WebhookConfigError::Content { path: self.path.to_owned(), what }
    }

    /// Returns a field, or the content of the file that another one names.
    fn bytes(&self, of: &Value, field: &str, file_field: &str) -> Result<Option<Vec<u8>>, WebhookConfigError> {
        match (text(of, field), text(of, file_field)) {
            ("", "") => Ok(None),
            ("", file) => self.file(file).map(Some),
            (value, _) => Ok(Some(value.as_bytes().to_vec())),
        }
    }

    /// Returns the bytes of `<field>-data`, or else of the file that `<field>` names.
    fn data(&self, of: &Value, field: &str) -> Result<Option<Vec<u8>>, WebhookConfigError> {
        let data = format!("{field}-data");
        match (text(of, &data), text(of, field)) {
            ("", "") => Ok(None),
            ("", file) => self.file(file).map(Some),
            (value, _) => {
                let decoded = STANDARD.decode(value.trim());
                decoded.map(Some).map_err(|error| self.wrong(format!("{data}: {error}")))
            }
        }
    }

    fn file(&self, name: &str) -> Result<Vec<u8>, WebhookConfigError> {
        let path: PathBuf = self.path.parent().unwrap_or(Path::new(".")).join(name);
        fs::read(&path).map_err(|source| WebhookConfigError::File { path, source })
    }

    fn certificate(&self, user: &Value) -> Result<Option<ClientCertificate>, WebhookConfigError> {
        let pair = (self.data(user, "client-certificate")?, self.data(user, "client-key")?);
        let (chain, key) = match pair {
            (None, None) => return Ok(None),
            (Some(chain), Some(key)) => (chain, key),
            (Some(_), None) => return Err(self.wrong("has a client certificate without its key".into())),
            (None, Some(_)) => return Err(self.wrong("has a client key without its certificate".into())),
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain).flatten().collect();
        if chain.is_empty() {
            return Err(self.wrong("client-certificate: no certificate in PEM".into()));
        }
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| self.wrong(format!("client-key: {error}")))?;
        Ok(Some(ClientCertificate { chain, key }))
    }
}

/// Returns an entry of a list of named ones.
fn entry_by_name<'a>(tree: &'a Value, list: &str, field: &str, name: &str) -> Option<&'a Value> {
    let entries = tree.get(list)?.as_array()?;
    entries.iter().find(|entry| text(entry, "name") == name)?.get(field)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<WebhookKubeconfig, WebhookConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("webhook.kubeconfig");
        fs::write(&path, text).unwrap();
        fs::write(folder.path().join("token"), "from-file\n").unwrap();
        read(&path)
    }

    fn config(cluster: &str, user: &str) -> String {
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[test]
    fn a_context_gives_server_trust_and_credentials() {
        let server = "server: 'https://hook.example.com:8443/audit'";
        for (user, expected) in [
            ("", None),
            ("token: t0k", Some("Bearer t0k")),
            ("tokenFile: token", Some("Bearer from-file")),
            ("username: ann, password: pw", Some("Basic YW5uOnB3")),
        ] {
            let found = read_text(&config(&format!("{server}, certificate-authority-data: Q0E="), user)).unwrap();
            assert_eq!(found.authorization.as_ref().map(|value| value.to_str().unwrap()), expected, "{user}");
            assert_eq!(found.ca_bundle, b"CA");
            assert_eq!(found.server.path(), "/audit");
        }
    }

    #[test]
    fn unusable_fields_are_named() {
        let server = "server: 'https://hook.example.com'";
        for (text, words) in [
            (config("server: 'http://hook.example.com'", ""), "is no URL of https"),
            (config("", ""), "no valid server"),
            (config(&format!("{server}, insecure-skip-tls-verify: true"), ""), "insecure-skip-tls-verify"),
            (config(&format!("{server}, proxy-url: 'http://p'"), ""), "proxy-url"),
            (config(server, "exec: {command: sh}"), "exec"),
            (config(server, "client-key-data: eA=="), "without its certificate"),
            (config(server, "client-certificate-data: eA==, client-key-data: eA=="), "no certificate in PEM"),
            (config(&format!("{server}, certificate-authority-data: '%'"), ""), "certificate-authority-data"),
            (config(server, "tokenFile: missing"), "missing"),
            ("current-context: x".into(), "has no context \"x\""),
            ("{".into(), "webhook.kubeconfig"),
        ] {
            let why = format!("{:?}", read_text(&text).err().unwrap()).replace("\\\"", "\"");
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
