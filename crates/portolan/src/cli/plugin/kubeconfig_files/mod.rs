//! Kubeconfig files: loaded, merged and changed by the rules of kubectl.
//!
//! A change keeps every entry and field that it is not about, also unknown ones, and goes to the file that has the
//! entry. Files are replaced atomically while a lock file keeps other writers away, as kubectl does.

mod edit;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use kube::config::Kubeconfig;
use serde_json::Value;

pub(crate) use self::edit::KubeconfigEdit;

use super::flags::KubectlFlags;

/// Directories and variables of the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserEnvironment {
    /// `KUBECONFIG`.
    pub(crate) kubeconfig: Option<OsString>,
    /// Home directory.
    pub(crate) home: Option<PathBuf>,
}

impl UserEnvironment {
    /// Reads the environment of this process.
    pub(crate) fn system() -> Self {
        Self { kubeconfig: std::env::var_os("KUBECONFIG"), home: std::env::home_dir() }
    }
}

/// Section of a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KubeconfigSection {
    Clusters,
    Contexts,
    Users,
}

impl KubeconfigSection {
    /// Returns the key of the section.
    pub(super) fn list(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Contexts => "contexts",
            Self::Users => "users",
        }
    }

    /// Returns the key of an entry's content, beside `name`.
    pub(super) fn item(self) -> &'static str {
        match self {
            Self::Clusters => "cluster",
            Self::Contexts => "context",
            Self::Users => "user",
        }
    }
}

/// Kubeconfig files in the order in which they count.
#[derive(Debug)]
pub(crate) struct KubeconfigFiles {
    /// Files that are there, with their contents.
    loaded: Vec<(PathBuf, Value)>,
    /// File for new entries.
    default: PathBuf,
}

impl KubeconfigFiles {
    /// Loads the file of `--kubeconfig`, else those of `KUBECONFIG`, else `~/.kube/config`.
    ///
    /// # Errors
    /// Fails if the file of the flag is missing, or one is unreadable or damaged. Other missing files are ignored.
    pub(crate) fn load(explicit: Option<&Path>, environment: &UserEnvironment) -> anyhow::Result<Self> {
        let named = environment.kubeconfig.as_ref().map(|list| std::env::split_paths(list).collect::<Vec<_>>());
        let named: Vec<PathBuf> = named.into_iter().flatten().filter(|path| !path.as_os_str().is_empty()).collect();
        let home = || environment.home.as_ref().map(|home| home.join(".kube/config"));
        let paths: Vec<PathBuf> = match explicit {
            Some(path) => vec![path.to_owned()],
            None if named.is_empty() => home().into_iter().collect(),
            None => named,
        };
        let is_there = |path: &&PathBuf| explicit.is_some() || path.exists();
        let loaded = paths.iter().filter(is_there).map(|path| Ok((path.clone(), edit::read(path)?)));
        let loaded = loaded.collect::<anyhow::Result<Vec<_>>>()?;
        let default = loaded.first().map(|(path, _)| path).or(paths.last());
        let default = default.cloned().context("there is no home directory; name a file with --kubeconfig")?;
        Ok(Self { loaded, default })
    }

    /// Returns all files as one kubeconfig, with absolute paths.
    ///
    /// # Errors
    /// Fails if there is none, or a file has no valid content.
    pub(crate) fn merged(&self) -> anyhow::Result<Kubeconfig> {
        if self.loaded.is_empty() {
            bail!("there is no kubeconfig {}; name one with --kubeconfig or KUBECONFIG", self.default.display());
        }
        self.loaded.iter().try_fold(Kubeconfig::default(), |merged, (path, _)| {
            let read = Kubeconfig::read_from(path).and_then(|read| merged.merge(read));
            read.map_err(|error| anyhow!(error)).with_context(|| format!("{} cannot be used", path.display()))
        })
    }

    /// Returns the name of the context that the flags select.
    ///
    /// # Errors
    /// Fails if neither the flags nor the files name one, or the files lack it.
    pub(crate) fn context_name(&self, flags: &KubectlFlags) -> anyhow::Result<String> {
        let name = flags.context.clone().or_else(|| self.current_context());
        let name = name.context("no context is selected: name one with --context, or kubectl config use-context")?;
        match self.entry(KubeconfigSection::Contexts, &name) {
            Some(_) => Ok(name),
            None => bail!("context \"{name}\" does not exist"),
        }
    }

    /// Returns the current context.
    pub(crate) fn current_context(&self) -> Option<String> {
        let mut named = self.loaded.iter().filter_map(|(_, content)| content["current-context"].as_str());
        named.find(|name| !name.is_empty()).map(str::to_owned)
    }

    /// Returns the content of the first entry of a name, with absolute paths.
    pub(crate) fn entry(&self, section: KubeconfigSection, name: &str) -> Option<Value> {
        let (path, content) = self.origin(section, name)?;
        let mut found = edit::entry(content, section, name)?.clone();
        if let Some(file) = found["certificate-authority"].as_str().filter(|file| Path::new(file).is_relative()) {
            let absolute = std::path::absolute(path).ok()?.parent()?.join(file);
            found["certificate-authority"] = absolute.to_string_lossy().into();
        }
        Some(found)
    }

    /// Returns the names of a section.
    pub(crate) fn names(&self, section: KubeconfigSection) -> Vec<String> {
        let entries = self.loaded.iter().filter_map(|(_, content)| content[section.list()].as_array()).flatten();
        entries.filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
    }

    /// Makes changes: each to the file that has the entry, new entries and the current context to the first file.
    ///
    /// # Errors
    /// Fails if a file is locked by another program, or cannot be written. Files before it are changed.
    pub(crate) fn modify(&self, edits: &[KubeconfigEdit]) -> anyhow::Result<()> {
        let target = |edit: &KubeconfigEdit| match edit {
            KubeconfigEdit::Set { section, name, .. } => {
                self.origin(*section, name).map_or(&self.default, |(path, _)| path)
            }
            KubeconfigEdit::CurrentContext(_) => &self.default,
        };
        let mut paths: Vec<&PathBuf> = edits.iter().map(target).collect();
        paths.sort();
        paths.dedup();
        for path in paths {
            let of_file: Vec<_> = edits.iter().filter(|edit| target(edit) == path).collect();
            edit::rewrite(path, &of_file)?;
        }
        Ok(())
    }

    fn origin(&self, section: KubeconfigSection, name: &str) -> Option<&(PathBuf, Value)> {
        self.loaded.iter().find(|(_, content)| edit::entry(content, section, name).is_some())
    }
}

#[cfg(test)]
mod tests;
