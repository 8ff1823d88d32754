//! Cache of the programs that end-to-end runs build from published sources: a folder outside the clone, with an entry
//! per fingerprint of the inputs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

/// FNV-1a hash over the inputs of a build. It is a cache key and proves nothing.
pub struct CacheFingerprint(u64);

impl Default for CacheFingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl CacheFingerprint {
    /// Adds one part with its boundary.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().chain(&[0]) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds the content of a file.
    pub fn feed_file(&mut self, path: &Path) -> Result<()> {
        self.feed(&fs::read(path).with_context(|| format!("cannot read {}", path.display()))?);
        Ok(())
    }

    /// Adds the names and contents of all files below a folder.
    pub fn feed_folder(&mut self, folder: &Path) -> Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
        paths.sort();
        for path in paths {
            self.feed(path.file_name().unwrap_or_default().as_encoded_bytes());
            if path.is_dir() {
                self.feed_folder(&path)?;
            } else {
                self.feed_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Time for which an unused entry stays; other clones may need other versions.
const KEPT: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Finds `<name>-<fingerprint>` in the cache, or has `build` create it there.
///
/// The cache is `$PORTOLAN_E2E_CACHE`, else `portolan-e2e` under `$XDG_CACHE_HOME` or `~/.cache`. A lock file makes a
/// second caller wait for the first. Entries appear atomically. Creating one removes those that were not used for
/// [`KEPT`].
pub fn entry(name: &str, fingerprint: &CacheFingerprint, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = folder()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let lock = File::create(cache.join("lock")).context("cannot make the lock file of the cache")?;
    lock.lock().context("cannot lock the cache")?;

    let dir = cache.join(format!("{name}-{:016x}", fingerprint.0));
    if !dir.exists() {
        eprintln!("building {name} into {}", dir.display());
        let unfinished = cache.join("unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).context("cannot remove an unfinished build")?;
        }
        fs::create_dir_all(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
        build(&unfinished)?;
        fs::rename(&unfinished, &dir).context("cannot move the finished build in place")?;
        prune(&cache, SystemTime::now())?;
    }
    File::open(&dir).and_then(|used| used.set_modified(SystemTime::now())).context("cannot mark what is used")?;
    Ok(dir)
}

/// Removes folders that were not used for that time. Other files, such as the lock, stay.
fn prune(cache: &Path, now: SystemTime) -> Result<()> {
    for entry in fs::read_dir(cache).context("cannot read the cache")? {
        let (entry, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        let unused = now.duration_since(about.modified()?).unwrap_or_default();
        if about.is_dir() && unused > KEPT {
            fs::remove_dir_all(&entry).with_context(|| format!("cannot remove {}", entry.display()))?;
        }
    }
    Ok(())
}

fn folder() -> Result<PathBuf> {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("PORTOLAN_E2E_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|dir| dir.join("portolan-e2e")))
        .or_else(|| from("HOME").map(|dir| dir.join(".cache/portolan-e2e")))
        .context("none of PORTOLAN_E2E_CACHE, XDG_CACHE_HOME and HOME is set")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(files: &[(&str, &str)]) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut fingerprint = CacheFingerprint::default();
        fingerprint.feed_folder(folder.path()).unwrap();
        fingerprint.0
    }

    #[test]
    fn unused_entries_expire() {
        let cache = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, unused) in
            [("tools-1", KEPT + Duration::from_secs(60)), ("tools-2", KEPT), ("clients-3", Duration::ZERO)]
        {
            fs::create_dir(cache.path().join(name)).unwrap();
            File::open(cache.path().join(name)).unwrap().set_modified(now - unused).unwrap();
        }
        prune(cache.path(), now).unwrap();
        let left = ["tools-1", "tools-2", "clients-3"].map(|name| cache.path().join(name).exists());
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn the_fingerprint_of_a_folder_is_that_of_its_names_and_contents() {
        let one = fingerprint(&[("a/b", "text"), ("c", "")]);
        for (case, other, same) in [
            ("the same files in another folder", fingerprint(&[("c", ""), ("a/b", "text")]), true),
            ("another text", fingerprint(&[("a/b", "Text"), ("c", "")]), false),
            ("another name", fingerprint(&[("a/d", "text"), ("c", "")]), false),
            ("a text that goes over an end", fingerprint(&[("a/b", "tex"), ("tc", "")]), false),
        ] {
            assert_eq!(one == other, same, "{case}");
        }
    }
}
