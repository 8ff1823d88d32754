//! Secret files: written atomically with mode 0600, refused if others can read them.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::config::ConfigError;

use super::{CertifiedKey, UnusablePair, certified};

/// Data directory, or none for keys that are only held in memory.
pub(super) struct KeyFolder(Option<PathBuf>);

impl KeyFolder {
    /// Creates missing directories.
    pub(super) fn open(data_dir: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(dir) = data_dir else { return Ok(Self(None)) };
        for path in [dir.to_owned(), dir.join("pki")] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(at(&path))?;
            check_private(&path)?;
        }
        sync(dir)?;
        Ok(Self(Some(dir.to_owned())))
    }

    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ConfigError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        if !path.exists() {
            return Ok(None);
        }
        check_mode(&path, 0o600)?;
        fs::read(&path).map(Some).map_err(at(&path))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        let expected = |_| self.wrong(name, "holds no text: PEM is expected".into());
        self.bytes(name)?.map(|bytes| String::from_utf8(bytes).map_err(expected)).transpose()
    }

    /// Reads a certificate and its key; `None` unless both exist.
    ///
    /// # Errors
    /// Invalid files, or a pair that does not belong together: the administrator who put them there should know.
    pub(super) fn pair(&self, name: &str) -> Result<Option<CertifiedKey>, ConfigError> {
        self.checked(name)?.transpose().map_err(|what| self.wrong(&format!("{name}.key"), what))
    }

    /// Reads a pair that can be recreated; `None` also for a mismatched pair, which a crash between the two writes
    /// leaves.
    pub(super) fn leaf(&self, name: &str) -> Result<Option<CertifiedKey>, ConfigError> {
        self.checked(name).map(|pair| pair.and_then(Result::ok))
    }

    /// Reads a pair. Returns the reason if the two valid files do not belong together.
    fn checked(&self, name: &str) -> Result<Option<Result<CertifiedKey, String>>, ConfigError> {
        let pair = self.text(&format!("{name}.crt"))?.zip(self.text(&format!("{name}.key"))?);
        let Some((certificate, key)) = pair else { return Ok(None) };
        match certified(&certificate, &key) {
            Ok(_) => Ok(Some(Ok(CertifiedKey { certificate, key }))),
            Err(UnusablePair::Certificate(what)) => Err(self.wrong(&format!("{name}.crt"), what)),
            Err(UnusablePair::Key(what)) => Err(self.wrong(&format!("{name}.key"), what)),
            Err(UnusablePair::Together(what)) => Ok(Some(Err(what))),
        }
    }

    /// Builds the error of a file with invalid content.
    pub(super) fn wrong(&self, name: &str, what: String) -> ConfigError {
        ConfigError::Content { path: self.path(name).unwrap_or_default(), what }
    }

    /// Refuses half a pair if other files were made with both halves: a new pair would lock out all clients that
    /// trust this one.
    pub(super) fn refuse_half(&self, name: &str, made_with_it: &[&str]) -> Result<(), ConfigError> {
        let is_there = |file: &str| self.path(file).is_some_and(|path| path.exists());
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        let (missing, other) = match (is_there(&certificate), is_there(&key)) {
            (true, false) => (key, certificate),
            (false, true) => (certificate, key),
            (true, true) | (false, false) => return Ok(()),
        };
        if !made_with_it.iter().any(|file| is_there(file)) {
            return Ok(());
        }
        let what = format!(
            "is missing; restore it, or remove {other} too, which invalidates all existing kubeconfigs and tokens"
        );
        Err(self.wrong(&missing, what))
    }

    pub(super) fn write_pair(&self, name: &str, pair: &CertifiedKey) -> Result<(), ConfigError> {
        self.write(&format!("{name}.key"), pair.key.as_bytes())?;
        self.write(&format!("{name}.crt"), pair.certificate.as_bytes())
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<(), ConfigError> {
        self.path(name).map_or(Ok(()), |path| write_secret(&path, content))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|dir| dir.join(name))
    }
}

/// Replaces a file atomically, with mode 0600: a crash leaves the old or the new one, and the new one once this
/// returned.
///
/// # Errors
/// A failed write.
pub fn write_secret(path: &Path, content: &[u8]) -> Result<(), ConfigError> {
    let fresh = path.with_extension("new");
    // A leftover, or a link that another user put there, is never written to.
    let _ = fs::remove_file(&fresh);
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh);
    let mut file = opened.map_err(at(&fresh))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(at(&fresh))?;
    fs::rename(&fresh, path).map_err(at(path))?;
    path.parent().map_or(Ok(()), sync)
}

/// Syncs a directory, so that its entries survive a power loss.
fn sync(dir: &Path) -> Result<(), ConfigError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
}

/// Refuses a data directory that others may enter. A missing one is created private, and an empty one of this user is
/// made private, as nothing in it was exposed.
///
/// # Errors
/// A directory that is open to others, or whose mode cannot be read.
pub fn check_private(data_dir: &Path) -> Result<(), ConfigError> {
    if !data_dir.exists() {
        return Ok(());
    }
    let refused = check_mode(data_dir, PRIVATE);
    if !matches!(refused, Err(ConfigError::TooOpen { .. })) || !is_own_and_empty(data_dir) {
        return refused;
    }
    fs::set_permissions(data_dir, fs::Permissions::from_mode(PRIVATE)).map_err(at(data_dir))?;
    tracing::info!(path = %data_dir.display(), "made the empty data directory private (mode 700)");
    Ok(())
}

/// Mode of a directory that only its owner may enter.
const PRIVATE: u32 = 0o700;

/// Returns true for an empty directory whose owner is the user of this process, found by creating a file.
fn is_own_and_empty(dir: &Path) -> bool {
    if !fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none()) {
        return false;
    }
    let probe = dir.join(".owner");
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe);
    let owner = made.and_then(|file| file.metadata()).map(|meta| meta.uid());
    // A file that cannot be removed makes the directory non-empty.
    let is_removed = fs::remove_file(&probe).is_ok();
    is_removed && owner.is_ok_and(|owner| fs::metadata(dir).is_ok_and(|meta| meta.uid() == owner))
}

fn check_mode(path: &Path, wanted: u32) -> Result<(), ConfigError> {
    let mode = fs::metadata(path).map_err(at(path))?.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(ConfigError::TooOpen { path: path.to_owned(), mode, wanted }),
    }
}

/// Refuses a file that others can read.
pub(super) fn check_private_file(path: &Path) -> Result<(), ConfigError> {
    check_mode(path, 0o600)
}

/// Reads a file that the administrator named.
pub(super) fn read_text(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ConfigError {
    let path = path.to_owned();
    move |source| ConfigError::File { path, source }
}
