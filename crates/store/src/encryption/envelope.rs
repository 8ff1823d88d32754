//! Sealed bodies as bytes.

use portolan_types::{ObjectKey, Record};

use super::cipher::SealingCipher;

/// Begin of every sealed body. A plain one begins with a brace.
const PREFIX: &[u8] = b"portolan:enc:";
const VERSION: &str = "v1";
/// Longest name of a key.
const MAX_NAME: usize = 128;

/// Parts of a sealed body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SealedBody<'a> {
    pub(super) cipher: SealingCipher,
    pub(super) key: &'a str,
    pub(super) splice_at: u32,
    /// Everything before the random bytes.
    pub(super) head: &'a [u8],
    /// Random bytes and ciphertext.
    pub(super) sealed: &'a [u8],
}

/// Returns true for the body of an object that is sealed, well or not.
pub(super) fn is_sealed(body: &[u8]) -> bool {
    body.starts_with(PREFIX)
}

/// Splits a sealed body; `None` if it is malformed or of an unknown version.
pub(super) fn parse(body: &[u8]) -> Option<SealedBody<'_>> {
    let rest = body.strip_prefix(PREFIX)?;
    let mut parts = rest.splitn(4, |byte| *byte == b':');
    let cipher = SealingCipher::of(std::str::from_utf8(parts.next()?).ok()?)?;
    if parts.next()? != VERSION.as_bytes() {
        return None;
    }
    let key = std::str::from_utf8(parts.next()?).ok().filter(|name| name.len() <= MAX_NAME)?;
    let (splice_at, sealed) = parts.next()?.split_at_checked(4)?;
    let splice_at = u32::from_le_bytes(splice_at.try_into().ok()?);
    Some(SealedBody { cipher, key, splice_at, head: &body[..body.len() - sealed.len()], sealed })
}

/// Returns the head of a sealed body.
pub(super) fn head(cipher: SealingCipher, key: &str, splice_at: u32) -> Vec<u8> {
    let mut head = [PREFIX, format!("{}:{VERSION}:{key}:", cipher.name()).as_bytes()].concat();
    head.extend_from_slice(&splice_at.to_le_bytes());
    head
}

/// Returns the bytes that a sealed body is bound to: its head, and the logical cluster, address and uid of its object.
pub(super) fn context(head: &[u8], key: &ObjectKey, record: &Record) -> Vec<u8> {
    let namespace = key.namespace().map_or("", |namespace| namespace.as_str());
    let parts = [&*key.resource.group, &*key.resource.resource, namespace, key.name.as_str(), &record.header.uid];
    let mut context = key.cluster.get().to_be_bytes().to_vec();
    for part in [head].into_iter().chain(parts.into_iter().map(str::as_bytes)) {
        context.extend_from_slice(&(part.len() as u64).to_be_bytes());
        context.extend_from_slice(part);
    }
    context
}
