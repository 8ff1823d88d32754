//! Keys by resource: the provider that seals each resource, and those that open it.

use std::sync::Arc;

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};

use super::{
    cipher::{self, EncryptionProvider, Sealing},
    envelope,
};
use crate::api::damage::Damage;

/// Resources that a rule covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourcePattern {
    /// Every resource of every group.
    All,
    /// Every resource of a group.
    Group(String),
    /// One resource.
    Resource(GroupResource),
}

impl ResourcePattern {
    /// Parses a pattern: `secrets`, `deployments.apps`, `*.apps`, `*.` (core) or `*.*`.
    ///
    /// # Errors
    /// A pattern that kube-apiserver also refuses.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        if text == "*.*" {
            return Ok(Self::All);
        }
        if resource.is_empty() || group.contains('*') || text == "*" || resource.len() > 1 && resource.contains('*') {
            return Err(format!("{text:?} is no resource, such as secrets, deployments.apps, *.apps, \"*.\" or *.*"));
        }
        if text.chars().any(|c| c.is_ascii_uppercase() || c == '/') {
            return Err(format!("{text:?} is no resource: it has lower-case letters and no subresource"));
        }
        Ok(match resource {
            "*" => Self::Group(group.to_owned()),
            resource => Self::Resource(GroupResource::new(group, resource)),
        })
    }

    fn covers(&self, key: &ObjectKey) -> bool {
        // Records of the system are read without keys when a snapshot is restored, so only their own name covers them.
        let is_system = key.cluster == LogicalClusterId::SYSTEM;
        match self {
            Self::All => !is_system,
            Self::Group(group) => !is_system && *key.resource.group == **group,
            Self::Resource(resource) => key.resource == *resource,
        }
    }
}

/// Rule of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionRule {
    /// Resources that it covers.
    pub resources: Vec<ResourcePattern>,
    /// Providers; the first one seals, all open.
    pub providers: Vec<EncryptionProvider>,
}

/// Keys of all resources. The first rule that covers a resource counts.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    rules: Vec<EncryptionRule>,
}

impl Keyring {
    /// Creates a keyring.
    ///
    /// # Errors
    /// Rules without resources or providers, and unusable keys.
    pub fn new(rules: Vec<EncryptionRule>) -> Result<Self, String> {
        for (at, rule) in rules.iter().enumerate() {
            if rule.resources.is_empty() {
                return Err(format!("resources[{at}].resources: Required value"));
            }
            if rule.providers.is_empty() {
                return Err(format!("resources[{at}].providers: Required value"));
            }
            for (index, provider) in rule.providers.iter().enumerate() {
                provider.check().map_err(|why| format!("resources[{at}].providers[{index}].{why}"))?;
            }
        }
        Ok(Self { rules })
    }

    fn rule(&self, key: &ObjectKey) -> Option<&EncryptionRule> {
        self.rules.iter().find(|rule| rule.resources.iter().any(|pattern| pattern.covers(key)))
    }

    /// Returns true if the object is encrypted when it is written.
    pub fn encrypts(&self, key: &ObjectKey) -> bool {
        self.sealer(key).is_some()
    }

    /// Returns the resources that the rules name.
    pub fn resources(&self) -> impl Iterator<Item = &GroupResource> {
        let patterns = self.rules.iter().flat_map(|rule| &rule.resources);
        patterns.filter_map(|pattern| match pattern {
            ResourcePattern::Resource(resource) => Some(resource),
            ResourcePattern::All | ResourcePattern::Group(_) => None,
        })
    }

    /// Returns true if the record of an object is encrypted, with whichever key.
    pub fn is_encrypted(record: &Record) -> bool {
        envelope::is_sealed(record.body())
    }

    /// Returns true if the record is stored as a write would store it now.
    pub fn is_current(&self, key: &ObjectKey, record: &Record) -> bool {
        let sealed = envelope::parse(record.body());
        match self.sealer(key) {
            None => !Self::is_encrypted(record),
            Some((cipher, own)) => {
                sealed.is_some_and(|sealed| sealed.cipher == cipher && sealed.key == own.name())
                    && self.open(key, record).is_ok()
            }
        }
    }

    /// Returns the cipher and key that seal an object; `None` if it is stored plain.
    fn sealer(&self, key: &ObjectKey) -> Option<(cipher::SealingCipher, &cipher::EncryptionKey)> {
        let (cipher, keys) = self.rule(key)?.providers.first()?.cipher()?;
        keys.first().map(|first| (cipher, first))
    }

    /// Seals a plain record if its resource is encrypted.
    pub fn seal(&self, key: &ObjectKey, record: Record, seams: &Seams) -> Record {
        let Some((cipher, own)) = self.sealer(key) else { return record };
        let mut body = envelope::head(cipher, own.name(), record.splice_at());
        let context = envelope::context(&body, key, &record);
        cipher::seal(cipher, own, Sealing { plain: record.body(), context: &context, seams }, &mut body);
        Record::from_parts(record.header, body.into(), 0).expect("an offset of 0 fits any body")
    }

    /// Opens a record; `None` if it is plain.
    ///
    /// # Errors
    /// `KeyMissing` or `Decryption`; `Unencrypted` for a plain record whose resource must not have any.
    pub fn open(&self, key: &ObjectKey, record: &Record) -> Result<Option<Arc<Record>>, Damage> {
        let rule = self.rule(key);
        if !Self::is_encrypted(record) {
            let allows_plain = rule.is_none_or(|rule| rule.providers.contains(&EncryptionProvider::Identity));
            return if allows_plain { Ok(None) } else { Err(Damage::Unencrypted) };
        }
        let sealed = envelope::parse(record.body()).ok_or(Damage::Decryption)?;
        let context = envelope::context(sealed.head, key, record);
        // Includes keys of other rules: a resource may have been removed from the configuration, or moved to another
        // rule.
        let others = self.rules.iter().filter(|other| rule.is_none_or(|own| !std::ptr::eq(own, *other)));
        let mut failure = Damage::KeyMissing;
        for provider in rule.into_iter().chain(others).flat_map(|rule| &rule.providers) {
            let Some((cipher, keys)) = provider.cipher().filter(|(cipher, _)| *cipher == sealed.cipher) else {
                continue;
            };
            for own in keys.iter().filter(|own| own.name() == sealed.key) {
                let opened = cipher::open(cipher, own, sealed.sealed, &context);
                let opened =
                    opened.and_then(|plain| Record::from_parts(record.header.clone(), plain.into(), sealed.splice_at));
                match opened {
                    Some(opened) => return Ok(Some(Arc::new(opened))),
                    None => failure = Damage::Decryption,
                }
            }
        }
        Err(failure)
    }

    /// Describes the key that a record needs.
    pub(super) fn wanted_key(record: &Record) -> String {
        match envelope::parse(record.body()) {
            Some(sealed) => format!("key {:?} of {}", sealed.key, sealed.cipher.name()),
            None => "no known provider".to_owned(),
        }
    }
}
