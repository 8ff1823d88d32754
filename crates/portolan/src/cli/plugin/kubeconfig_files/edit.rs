//! Changes of one kubeconfig file.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};

use super::KubeconfigSection;

/// Mode of a new kubeconfig: it holds credentials.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;

/// Change of a kubeconfig.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KubeconfigEdit {
    /// Sets the content of an entry.
    Set {
        /// Section of the entry.
        section: KubeconfigSection,
        /// Its name.
        name: String,
        /// Its content.
        content: Value,
    },
    /// Selects a context.
    CurrentContext(String),
}

impl KubeconfigEdit {
    fn apply(&self, config: &mut Value) {
        match self {
            Self::CurrentContext(name) => config["current-context"] = name.as_str().into(),
            Self::Set { section, name, content } => {
                if !config[section.list()].is_array() {
                    config[section.list()] = json!([]);
                }
                let entries = config[section.list()].as_array_mut().expect("it was made an array above");
                match entries.iter_mut().find(|entry| entry["name"] == name.as_str()) {
                    Some(entry) => entry[section.item()] = content.clone(),
                    None => entries.push(json!({"name": name, section.item(): content})),
                }
            }
        }
    }
}

/// Returns the content of an entry of a file.
pub(super) fn entry<'c>(config: &'c Value, section: KubeconfigSection, name: &str) -> Option<&'c Value> {
    let entries = config[section.list()].as_array()?;
    entries.iter().find(|entry| entry["name"] == name)?.get(section.item())
}

/// Reads a file; an empty one is an empty object.
pub(super) fn read(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let damaged = || format!("{} is no kubeconfig", path.display());
    let content = if text.trim().is_empty() { Ok(Value::Null) } else { serde_saphyr::from_str::<Value>(&text) };
    match content.map_err(|error| anyhow!("{error}")).with_context(damaged)? {
        Value::Null => Ok(json!({"apiVersion": "v1", "kind": "Config"})),
        content @ Value::Object(_) => Ok(content),
        _ => Err(anyhow!("it is no mapping").context(damaged())),
    }
}

/// Applies changes to a file, which is created if it is missing.
pub(super) fn rewrite(path: &Path, edits: &[&KubeconfigEdit]) -> anyhow::Result<()> {
    // A link, as into a folder of dotfiles, stays one.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder);
        made.with_context(|| format!("{} cannot be made", folder.display()))?;
    }
    let _lock = KubeconfigLock::take(path)?;
    let mut config = if path.exists() { read(path)? } else { json!({"apiVersion": "v1", "kind": "Config"}) };
    let before = config.clone();
    edits.iter().for_each(|edit| edit.apply(&mut config));
    if config == before {
        return Ok(());
    }
    let text = serde_saphyr::to_string(&config)?;
    replace(path, text.as_bytes()).with_context(|| format!("{} cannot be written", path.display()))
}

/// Replaces a file atomically, and keeps its mode.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mode = fs::metadata(path).map_or(PRIVATE_FILE, |found| found.permissions().mode() & 0o777);
    let fresh = beside(path, "new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&fresh)?;
    let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Returns the path of a file beside another one.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// Lock file beside a kubeconfig, as kubectl makes it.
struct KubeconfigLock(PathBuf);

impl KubeconfigLock {
    fn take(path: &Path) -> anyhow::Result<Self> {
        let lock = beside(path, "lock");
        match File::options().write(true).create_new(true).mode(PRIVATE_FILE).open(&lock) {
            Ok(_) => Ok(Self(lock)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} is being changed by another program; if none runs, delete {}", path.display(), lock.display())
            }
            Err(error) => Err(error).with_context(|| format!("{} cannot be written", path.display())),
        }
    }
}

impl Drop for KubeconfigLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
