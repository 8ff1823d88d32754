//! Subjects with several organizations. rcgen supports one value per attribute: the subject of the certificate that
//! rcgen built is replaced, and the certificate is signed again.

use rcgen::{KeyPair, SigningKey as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::ConfigError;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BIT_STRING: u8 = 0x03;
const UTF8_STRING: u8 = 0x0c;
/// OBJECT IDENTIFIER 2.5.4.3, commonName.
const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
/// OBJECT IDENTIFIER 2.5.4.10, organizationName.
const ORGANIZATION: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0a];

/// Replaces the subject of a certificate (DER) by a user and groups, and signs it with the key of its issuer.
///
/// # Errors
/// A certificate that cannot be read, or a failure to sign.
pub(super) fn with_organizations(
    certificate: &[u8],
    (name, groups): (&str, &[String]),
    key: &KeyPair,
) -> Result<Vec<u8>, ConfigError> {
    let unreadable = || ConfigError::Crypto("an issued certificate cannot be read".into());
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| unreadable())?;
    let (signed, subject) = (parsed.tbs_certificate.as_ref(), parsed.subject().as_raw());
    // The issuer may have the same bytes; the subject comes after it.
    let at = signed.windows(subject.len()).rposition(|part| part == subject).ok_or_else(unreadable)?;
    let header = signed.len() - content_of(signed).ok_or_else(unreadable)?.len();
    let replaced = [&signed[header..at], &subject_of(name, groups), &signed[at + subject.len()..]].concat();
    let replaced = element(SEQUENCE, &replaced);
    let outer = content_of(certificate).ok_or_else(unreadable)?;
    let after = outer.get(signed.len()..).ok_or_else(unreadable)?;
    let algorithm = after.len() - parsed_rest(after).ok_or_else(unreadable)?.len();
    let signature = key.sign(&replaced).map_err(|error| ConfigError::Crypto(error.to_string()))?;
    // A bit string begins with the number of its unused bits.
    let signature = element(BIT_STRING, &[&[0], &*signature].concat());
    Ok(element(SEQUENCE, &[&replaced, &after[..algorithm], &signature].concat()))
}

fn subject_of(name: &str, groups: &[String]) -> Vec<u8> {
    let attribute = |kind: [u8; 5], text: &str| {
        let value = [&kind, &*element(UTF8_STRING, text.as_bytes())].concat();
        element(SET, &element(SEQUENCE, &value))
    };
    let organizations = groups.iter().map(|group| attribute(ORGANIZATION, group));
    let attributes: Vec<u8> = std::iter::once(attribute(COMMON_NAME, name)).chain(organizations).flatten().collect();
    element(SEQUENCE, &attributes)
}

/// Encodes an element: tag, length, content.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut encoded = vec![tag];
    match u8::try_from(content.len()) {
        Ok(length @ ..0x80) => encoded.push(length),
        _ => {
            let length: Vec<u8> = content.len().to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            encoded.push(0x80 | length.len() as u8);
            encoded.extend(length);
        }
    }
    encoded.extend(content);
    encoded
}

/// Returns the content of the first element.
fn content_of(der: &[u8]) -> Option<&[u8]> {
    let (start, length) = match *der.get(1)? {
        short @ ..0x80 => (2, usize::from(short)),
        long => {
            let count = usize::from(long & 0x7f);
            let bytes = der.get(2..2 + count)?;
            (2 + count, bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte)))
        }
    };
    der.get(start..start.checked_add(length)?)
}

/// Returns the bytes after the first element.
fn parsed_rest(der: &[u8]) -> Option<&[u8]> {
    let content = content_of(der)?;
    let end = content.as_ptr() as usize - der.as_ptr() as usize + content.len();
    der.get(end..)
}
