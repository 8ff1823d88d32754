//! Denylist of client certificates: one that has leaked is refused although the authority signed it.
//!
//! A line names a certificate by its serial number (`serial:0f:3a…`, hexadecimal, with or without colons) or by its
//! public key (`sha256:…`, of the SubjectPublicKeyInfo). The file may be missing; `#` begins a comment.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::ConfigError;

/// Largest file, in bytes: some ten thousand certificates.
const MAX_BYTES: u64 = 1024 * 1024;

/// Serial number and public key of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateId {
    /// Without leading zeros.
    serial: Vec<u8>,
    /// SHA-256 of the SubjectPublicKeyInfo.
    key: [u8; 32],
}

impl CertificateId {
    /// Parses a certificate in DER; `None` if the bytes are not a certificate.
    pub(crate) fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let key = Sha256::digest(certificate.public_key().raw).into();
        Some(Self { serial: stripped(certificate.raw_serial()), key })
    }

    /// Returns the serial number and the key in hexadecimal digits.
    pub(crate) fn to_text(&self) -> String {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}/{}", digits(&self.serial), digits(&self.key))
    }

    /// Reads the text of [`Self::to_text`]; `None` for other text.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let (serial, key) = text.split_once('/')?;
        Some(Self { serial: stripped(&hex(serial)?), key: hex(key)?.try_into().ok()? })
    }
}

/// Denied serial numbers and keys.
#[derive(Debug, Default, PartialEq, Eq)]
struct Denylist {
    serials: HashSet<Vec<u8>>,
    keys: HashSet<[u8; 32]>,
}

impl Denylist {
    fn parse(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        for (number, line) in text.lines().enumerate() {
            let entry = line.split('#').next().unwrap_or_default().trim();
            let wrong = || {
                format!(
                    "line {} is neither serial:<hexadecimal> nor sha256:<64 hexadecimal digits>, the hash of a public key",
                    number + 1
                )
            };
            match entry.split_once(':') {
                None if entry.is_empty() => {}
                Some(("serial", digits)) => {
                    list.serials.insert(stripped(&hex(digits).ok_or_else(wrong)?));
                }
                Some(("sha256", digits)) => {
                    let key = hex(digits).and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)?;
                    list.keys.insert(key);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(list)
    }

    fn denies(&self, id: &CertificateId) -> bool {
        self.serials.contains(&id.serial) || self.keys.contains(&id.key)
    }
}

fn stripped(serial: &[u8]) -> Vec<u8> {
    serial.iter().copied().skip_while(|byte| *byte == 0).collect()
}

/// Parses hexadecimal digits, which may be separated by colons. An odd number of digits gets a leading zero.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.trim().chars().filter(|c| *c != ':').map(nibble).collect();
    let mut digits = digits.filter(|digits| !digits.is_empty())?;
    if digits.len() % 2 == 1 {
        digits.insert(0, 0);
    }
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn nibble(digit: char) -> Option<u8> {
    digit.to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Modification time and size of the file; `None` if it is missing.
#[allow(clippy::disallowed_types, reason = "the file has this time, and no clock is read")]
pub(crate) type FileStamp = Option<(std::time::SystemTime, u64)>;

/// Denylist file, reread while the server runs.
pub(crate) struct RevokedCertificates {
    path: Option<PathBuf>,
    read: Mutex<LastRead>,
    list: watch::Sender<Arc<Denylist>>,
}

/// State of the file when it was last read, or was found to be wrong.
#[derive(Default)]
struct LastRead {
    file_stamp: FileStamp,
    /// Failure to read the file since then that has been reported.
    failure: Option<std::io::ErrorKind>,
}

impl RevokedCertificates {
    /// Reads the file, which may be missing.
    ///
    /// # Errors
    /// A file that cannot be read, or an invalid line: a certificate to be denied would be accepted otherwise.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self, ConfigError> {
        let (file_stamp, list) = path.as_deref().map_or(Ok(Default::default()), read)?;
        let read = Mutex::new(LastRead { file_stamp, failure: None });
        Ok(Self { path, read, list: watch::Sender::new(Arc::new(list)) })
    }

    /// Rereads the file if it changed. Returns true if the list changed. A file that cannot be read is tried again
    /// the next time.
    ///
    /// # Errors
    /// The errors of [`Self::open`], once per state of the file and per kind of failure in a row; the list stays as
    /// it is.
    pub(crate) fn reread(&self) -> Result<bool, ConfigError> {
        self.reread_with(read)
    }

    fn reread_with(
        &self,
        read: impl FnOnce(&Path) -> Result<(FileStamp, Denylist), ConfigError>,
    ) -> Result<bool, ConfigError> {
        let Some(path) = self.path.as_deref() else { return Ok(false) };
        let mut last = self.read.lock();
        let reread = file_stamp(path).and_then(|now| {
            if now == last.file_stamp {
                Ok((now, None))
            } else {
                match read(path) {
                    Ok((read, list)) => Ok((read, Some(Ok(list)))),
                    Err(wrong @ ConfigError::Content { .. }) => Ok((now, Some(Err(wrong)))),
                    Err(failure) => Err(failure),
                }
            }
        });
        let (file_stamp, list) = match reread {
            Ok(read) => read,
            Err(ConfigError::File { source, .. }) if last.failure == Some(source.kind()) => return Ok(false),
            Err(failure) => {
                if let ConfigError::File { source, .. } = &failure {
                    last.failure = Some(source.kind());
                }
                return Err(failure);
            }
        };
        *last = LastRead { file_stamp, failure: None };
        let Some(list) = list.transpose()?.map(Arc::new) else { return Ok(false) };
        Ok(self.list.send_if_modified(|known| {
            *known != list && {
                *known = list;
                true
            }
        }))
    }

    /// Returns true if a certificate is denied.
    pub(crate) fn contains(&self, id: &CertificateId) -> bool {
        self.list.borrow().denies(id)
    }

    /// Waits until a certificate is denied.
    pub(crate) async fn until_revoked(&self, id: &CertificateId) {
        let mut list = self.list.subscribe();
        // The sender lives as long as `self`.
        let _ = list.wait_for(|list| list.denies(id)).await;
    }
}

/// Returns the state of a file; `None` if it is missing.
///
/// # Errors
/// A file whose metadata cannot be read.
pub(crate) fn file_stamp(path: &Path) -> Result<FileStamp, ConfigError> {
    match fs::metadata(path).and_then(|meta| Ok((meta.modified()?, meta.len()))) {
        Ok(file_stamp) => Ok(Some(file_stamp)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::File { path: path.to_owned(), source }),
    }
}

fn read(path: &Path) -> Result<(FileStamp, Denylist), ConfigError> {
    let file_stamp = file_stamp(path)?;
    let wrong = |what: String| ConfigError::Content { path: path.to_owned(), what };
    match file_stamp {
        None => Ok((None, Denylist::default())),
        Some((_, bytes)) if bytes > MAX_BYTES => Err(wrong(format!("has more than {MAX_BYTES} bytes"))),
        Some(_) => {
            let bytes = fs::read(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
            let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
            Ok((file_stamp, Denylist::parse(&text).map_err(wrong)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(serial: &[u8]) -> CertificateId {
        CertificateId { serial: stripped(serial), key: [7; 32] }
    }

    #[test]
    fn certificates_are_denied_by_serial_or_public_key() {
        let key = "07".repeat(32);
        for (text, is_denied) in [
            ("", false),
            ("# serial:0a0b\n", false),
            ("serial:0A0B", true),
            ("serial:a:0b # of ann", true),
            ("serial: 00:0a:0b", true),
            ("serial:0a0c", false),
            (&*format!("sha256:{key}"), true),
            ("sha256:0000000000000000000000000000000000000000000000000000000000000000", false),
        ] {
            assert_eq!(Denylist::parse(text).unwrap().denies(&id(&[0, 10, 11])), is_denied, "{text}");
        }
        for wrong in ["0a0b", "serial:", "serial:xy", "sha256:07", "md5:00"] {
            let why = Denylist::parse(&format!("\n{wrong}")).unwrap_err();
            assert!(why.starts_with("line 2 is neither"), "{wrong}: {why}");
        }
    }

    #[tokio::test]
    async fn changed_files_are_reread_and_invalid_ones_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revoked-certificates");
        let revoked = RevokedCertificates::open(Some(path.clone())).unwrap();
        assert!(!revoked.reread().unwrap() && !revoked.contains(&id(&[1])));
        fs::write(&path, "serial:01\n").unwrap();
        assert!(revoked.reread().unwrap() && revoked.contains(&id(&[1])));
        revoked.until_revoked(&id(&[1])).await;
        assert!(!revoked.reread().unwrap(), "it has not changed");
        fs::write(&path, "serial:01\nnonsense\n").unwrap();
        assert!(revoked.reread().unwrap_err().to_string().contains("line 2"));
        assert!(revoked.contains(&id(&[1])) && !revoked.reread().unwrap(), "it is reported once");
        assert!(RevokedCertificates::open(Some(path.clone())).is_err(), "a start is refused");
        fs::remove_file(&path).unwrap();
        assert!(revoked.reread().unwrap() && !revoked.contains(&id(&[1])));
    }

    #[test]
    fn unreadable_files_are_reported_once_and_read_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revoked-certificates");
        let revoked = RevokedCertificates::open(Some(path.clone())).unwrap();
        fs::write(&path, "serial:01\n").unwrap();
        let fails = |kind: std::io::ErrorKind| {
            revoked.reread_with(|path| Err(ConfigError::File { path: path.to_owned(), source: kind.into() }))
        };
        assert!(fails(std::io::ErrorKind::Other).is_err());
        assert!(!fails(std::io::ErrorKind::Other).unwrap() && !revoked.contains(&id(&[1])));
        assert!(fails(std::io::ErrorKind::PermissionDenied).is_err(), "it is another reason");
        assert!(revoked.reread().unwrap() && revoked.contains(&id(&[1])));
        assert!(!revoked.reread().unwrap(), "it has not changed");
    }
}
