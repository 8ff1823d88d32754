//! Secrets on disk: written 0600 in one step, refused when others can read them.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::config::ConfigError;

use super::CertifiedKey;

/// A data directory, or nothing, for keys that are only kept in memory.
pub(super) struct Folder(Option<PathBuf>);

impl Folder {
    /// Makes the directories that are missing.
    pub(super) fn open(data_dir: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(dir) = data_dir else { return Ok(Self(None)) };
        for path in [dir.to_owned(), dir.join("pki")] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(at(&path))?;
            check_mode(&path, 0o700)?;
        }
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
        let path = self.path(name).unwrap_or_default();
        let text =
            |bytes| String::from_utf8(bytes).map_err(|_| ConfigError::Content { path, what: "is no text".into() });
        self.bytes(name)?.map(text).transpose()
    }

    /// A certificate and its key; `None` unless both are there.
    pub(super) fn pair(&self, name: &str) -> Result<Option<CertifiedKey>, ConfigError> {
        let pair = self.text(&format!("{name}.crt"))?.zip(self.text(&format!("{name}.key"))?);
        Ok(pair.map(|(certificate, key)| CertifiedKey { certificate, key }))
    }

    /// Refuses half a pair where something is there that was made with both: who made another pair would lock out all who
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
            "is missing; put it back, or remove {other} too: then no kubeconfig and no token of before holds any more"
        );
        Err(ConfigError::Content { path: self.path(&missing).unwrap_or_default(), what })
    }

    pub(super) fn write_pair(&self, name: &str, pair: &CertifiedKey) -> Result<(), ConfigError> {
        self.write(&format!("{name}.key"), pair.key.as_bytes())?;
        self.write(&format!("{name}.crt"), pair.certificate.as_bytes())
    }

    /// Replaces a file as a whole: a crash leaves the old or the new one.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<(), ConfigError> {
        let Some(path) = self.path(name) else { return Ok(()) };
        let fresh = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&fresh).map_err(at(&fresh))?;
        file.write_all(content).and_then(|()| file.sync_all()).map_err(at(&fresh))?;
        fs::rename(&fresh, &path).map_err(at(&path))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|dir| dir.join(name))
    }
}

fn check_mode(path: &Path, wanted: u32) -> Result<(), ConfigError> {
    let mode = fs::metadata(path).map_err(at(path))?.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(ConfigError::TooOpen { path: path.to_owned(), mode, wanted }),
    }
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ConfigError {
    let path = path.to_owned();
    move |source| ConfigError::File { path, source }
}
