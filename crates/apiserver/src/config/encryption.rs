//! Encryption at rest: `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_codec::decode::{MediaType, decode_any};
use portolan_store::{EncryptionKey, EncryptionProvider, EncryptionRule, Keyring, ResourcePattern};
use serde::Deserialize;
use serde_json::Value;

use super::ConfigError;

const VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";
/// Largest file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EncryptionFile {
    #[serde(default, rename = "apiVersion")]
    _api_version: String,
    #[serde(default, rename = "kind")]
    _kind: String,
    #[serde(default)]
    resources: Vec<EncryptedResources>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EncryptedResources {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<ConfiguredProvider>,
}

/// Provider; exactly one field is set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfiguredProvider {
    #[serde(default)]
    aesgcm: Option<ConfiguredKeys>,
    #[serde(default)]
    secretbox: Option<ConfiguredKeys>,
    #[serde(default)]
    identity: Option<IdentityProvider>,
    #[serde(default)]
    aescbc: Option<Value>,
    #[serde(default)]
    kms: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityProvider {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfiguredKeys {
    #[serde(default)]
    keys: Vec<ConfiguredKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfiguredKey {
    #[serde(default)]
    name: String,
    #[serde(default)]
    secret: String,
}

/// Reads the keys of a file, which only its owner may read.
///
/// # Errors
/// A file that cannot be read or is open to others, or its first fault, which quotes no key.
pub fn read_encryption_config(path: &Path) -> Result<Keyring, ConfigError> {
    let file = |source| ConfigError::File { path: path.to_owned(), source };
    let wrong = |what| ConfigError::Content { path: path.to_owned(), what };
    let meta = std::fs::metadata(path).map_err(file)?;
    if meta.len() > MAX_FILE {
        return Err(wrong(format!("has more than {MAX_FILE} bytes")));
    }
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ConfigError::TooOpen { path: path.to_owned(), mode, wanted: 0o600 });
    }
    parse(&std::fs::read(path).map_err(file)?).map_err(wrong)
}

fn parse(text: &[u8]) -> Result<Keyring, String> {
    // Errors of the parser quote lines, which may be keys.
    let tree = decode_any(MediaType::Yaml, text).map_err(|_| "is not YAML or JSON".to_owned())?;
    let word = |field: &str| tree.get(field).and_then(Value::as_str).unwrap_or_default();
    if word("apiVersion") != VERSION || word("kind") != KIND {
        return Err(format!("expected {KIND} of {VERSION}"));
    }
    let file: EncryptionFile = serde_json::from_value(tree).map_err(|error| field_fault(&error))?;
    if file.resources.is_empty() {
        return Err("resources: Required value".into());
    }
    let rules = file.resources.into_iter().enumerate().map(|(at, one)| one.rule(at));
    Keyring::new(rules.collect::<Result<Vec<_>, _>>()?)
}

/// Returns the message of a field error. Messages about types quote values, so only those about fields are kept.
fn field_fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if text.starts_with("unknown field") { text } else { "a field has a value of the wrong type".into() }
}

impl EncryptedResources {
    fn rule(self, at: usize) -> Result<EncryptionRule, String> {
        let pattern = |(index, text): (usize, &String)| {
            ResourcePattern::parse(text)
                .map_err(|why| format!("resources[{at}].resources[{index}]: Invalid value: {why}"))
        };
        let resources = self.resources.iter().enumerate().map(pattern).collect::<Result<Vec<_>, _>>()?;
        let provider = |(index, one): (usize, ConfiguredProvider)| {
            one.provider().map_err(|why| format!("resources[{at}].providers[{index}]: {why}"))
        };
        let providers = self.providers.into_iter().enumerate().map(provider).collect::<Result<Vec<_>, _>>()?;
        Ok(EncryptionRule { resources, providers })
    }
}

impl ConfiguredProvider {
    fn provider(self) -> Result<EncryptionProvider, String> {
        let Self { aesgcm, secretbox, identity, aescbc, kms } = self;
        if aescbc.is_some() {
            return Err("aescbc is not supported, it does not authenticate; use aesgcm or secretbox".into());
        }
        if kms.is_some() {
            return Err("kms is not supported; use aesgcm or secretbox".into());
        }
        match (aesgcm, secretbox, identity) {
            (Some(keys), None, None) => Ok(EncryptionProvider::AesGcm(keys.decoded()?)),
            (None, Some(keys), None) => Ok(EncryptionProvider::Secretbox(keys.decoded()?)),
            (None, None, Some(IdentityProvider {})) => Ok(EncryptionProvider::Identity),
            (None, None, None) => Err("Required value: provider does not contain any of the expected providers".into()),
            (Some(_) | None, Some(_) | None, Some(_) | None) => {
                Err("Invalid value: more than one provider specified in a single element".into())
            }
        }
    }
}

impl ConfiguredKeys {
    fn decoded(self) -> Result<Vec<EncryptionKey>, String> {
        let decode = |(at, key): (usize, ConfiguredKey)| {
            let secret = STANDARD.decode(key.secret.trim());
            let secret = secret.map_err(|_| format!("keys[{at}].secret: Invalid value: no base64"))?;
            Ok(EncryptionKey::new(key.name, secret))
        };
        self.keys.into_iter().enumerate().map(decode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn config(providers: &str) -> String {
        format!(
            "apiVersion: {VERSION}\nkind: {KIND}\nresources:\n- resources: [secrets, \"*.apps\"]\n  providers: [{providers}]\n"
        )
    }

    #[test]
    fn configurations_are_those_of_kube_apiserver() {
        for fine in [
            format!("{{aesgcm: {{keys: [{{name: a, secret: {KEY}}}]}}}}, {{identity: {{}}}}"),
            format!("{{secretbox: {{keys: [{{name: a, secret: {KEY}}}]}}}}"),
            "{identity: {}}".to_owned(),
        ] {
            parse(config(&fine).as_bytes()).unwrap();
        }
        for (providers, words) in [
            ("", "providers: Required value"),
            ("{}", "does not contain any"),
            ("{identity: {}, aesgcm: {keys: []}}", "more than one provider"),
            ("{aesgcm: {keys: []}}", "keys: Required value"),
            ("{aesgcm: {keys: [{name: a, secret: c2hvcnQ=}]}}", "has 5 bytes"),
            ("{aesgcm: {keys: [{name: a, secret: '%%hunter2%%'}]}}", "no base64"),
            ("{aesgcm: {keys: [{name: a, secret: [hunter2]}]}}", "wrong type"),
            ("{aesgcm: {keyz: []}}", "unknown field `keyz`"),
            ("{aescbc: {keys: []}}", "aescbc is not supported"),
            ("{kms: {}}", "kms is not supported"),
        ] {
            let why = parse(config(providers).as_bytes()).unwrap_err();
            assert!(why.contains(words) && !why.contains("hunter2"), "{providers}: {why}");
        }
        for (text, words) in [
            ("kind: x", "expected EncryptionConfiguration"),
            ("{ hunter2", "is not YAML"),
            ("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration", "resources: Required value"),
        ] {
            let why = parse(text.as_bytes()).unwrap_err();
            assert!(why.contains(words) && !why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("encryption.yaml");
        std::fs::write(&path, config("{identity: {}}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let why = read_encryption_config(&path).unwrap_err().to_string();
        assert!(why.contains("open to other users") && why.contains("chmod 600"), "{why}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        read_encryption_config(&path).unwrap();
    }
}
