//! High-water mark of the store's revision, in the file `store.mark` beside the engine's files.
//!
//! An engine that finds its last commits damaged continues before them, and a file restored from a copy is older as a
//! whole. Both look like an undamaged store, but would lose acknowledged writes and assign their revisions again. The
//! mark is written when the store is created, at every start, after a pause in writes, and at the end. A store that
//! ends before its mark is refused. Only writes since the last mark can be lost unnoticed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::directory::LockedDataDir;
use crate::{embedded::committer::DurableMark, read::bookkeeping::StoreBookkeeping};

const NAME: &str = "store.mark";
const NEW: &str = "store.mark.new";
/// Mark of a store that is being moved in place. Under its final name it would announce a store that does not exist
/// yet.
const MADE: &str = "store.mark.made";
const MAGIC: &str = "portolan-mark 1";

/// Locked data directory together with its high-water mark.
pub(crate) struct MarkedDataDir {
    witness: HighWaterMark,
    home: LockedDataDir,
}

impl MarkedDataDir {
    /// Describes to the operator why the mark and the store do not fit together.
    pub(super) fn new(home: LockedDataDir, found: &StoreBookkeeping) -> Result<Self, String> {
        let witness = HighWaterMark::compare(home.dir(), &found.identity, found.marks.last)?;
        let mut held = Self { witness, home };
        held.record(found.marks.last);
        Ok(held)
    }

    /// Compares the mark with the store without writing.
    ///
    /// # Errors
    /// Returns the errors of [`MarkedDataDir::new`].
    pub(super) fn compare(home: &LockedDataDir, identity: &str, last: u64) -> Result<(), String> {
        HighWaterMark::compare(home.dir(), identity, last).map(drop)
    }
}

impl DurableMark for MarkedDataDir {
    fn record(&mut self, last: u64) {
        if self.home.is_read_only() {
            return;
        }
        if let Err(error) = self.witness.record(last) {
            tracing::warn!(%error, "could not write the store's high-water mark");
        }
    }
}

/// High-water mark of one store.
#[derive(Debug)]
pub(super) struct HighWaterMark {
    dir: PathBuf,
    identity: String,
    /// Revision in the file.
    told: u64,
}

impl HighWaterMark {
    /// Returns true if there is a mark in `dir`.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(NAME).exists()
    }

    /// # Errors
    /// Fails with a message for the operator if there is a mark but its store is missing.
    pub(super) fn refuse_if_present(dir: &Path, missing: &Path) -> Result<(), String> {
        let path = dir.join(NAME);
        if path.exists() {
            Err(refusal(&path, &format!("it tells of a store, but {} is missing", missing.display())))
        } else {
            Ok(())
        }
    }

    /// Writes the mark of a complete store that will be moved in place.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn prepare(dir: &Path, found: &StoreBookkeeping) -> io::Result<()> {
        write(&dir.join(MADE), &found.identity, found.marks.last)
    }

    /// Renames the mark that was written for a store once the store was moved in place.
    ///
    /// # Errors
    /// Fails if the file cannot be renamed.
    pub(super) fn finish_move(dir: &Path) -> io::Result<()> {
        let made = dir.join(MADE);
        if Self::is_in(dir) || !made.exists() {
            return Ok(());
        }
        fs::rename(made, dir.join(NAME))?;
        portolan_types::failpoint!("store/new-store-marked");
        Ok(())
    }

    /// Removes a mark whose store was never moved in place.
    ///
    /// # Errors
    /// Fails if the file cannot be removed.
    pub(super) fn remove_pending(dir: &Path) -> io::Result<()> {
        match fs::remove_file(dir.join(MADE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Compares the mark in `dir`, if there is one, with an opened store.
    ///
    /// # Errors
    /// Describes to the operator that the store has lost writes, or that the mark is damaged or belongs to another
    /// store.
    fn compare(dir: &Path, identity: &str, last: u64) -> Result<Self, String> {
        let path = dir.join(NAME);
        let told = match fs::read(&path) {
            Ok(bytes) => {
                let (of, told) = decode(&bytes).ok_or_else(|| refusal(&path, "it is damaged"))?;
                if of != identity {
                    return Err(refusal(&path, "it belongs to another store"));
                }
                told
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(refusal(&path, &error.to_string())),
        };
        if told > last {
            let what = format!("the store had reached revision {told} and now ends at {last}: it has lost writes");
            return Err(refusal(&path, &what));
        }
        Ok(Self { dir: dir.to_owned(), identity: identity.to_owned(), told })
    }

    /// Reads the revision of the mark in `dir`, if there is one.
    ///
    /// # Errors
    /// Describes to the operator that the mark cannot be read or is damaged.
    pub(super) fn read_revision(dir: &Path) -> Result<Option<u64>, String> {
        let path = dir.join(NAME);
        match fs::read(&path) {
            Ok(bytes) => decode(&bytes).map(|(_, told)| Some(told)).ok_or_else(|| refusal(&path, "it is damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Writes that the store is durable up to `last`.
    ///
    /// # Errors
    /// Fails if the file cannot be written; the earlier mark stays.
    fn record(&mut self, last: u64) -> io::Result<()> {
        if last == self.told {
            return Ok(());
        }
        let new = self.dir.join(NEW);
        // The name is not synced, because after a power loss the earlier mark is valid, too.
        write(&new, &self.identity, last)?;
        fs::rename(&new, self.dir.join(NAME))?;
        portolan_types::failpoint!("store/mark-renamed");
        self.told = last;
        Ok(())
    }
}

fn write(path: &Path, identity: &str, last: u64) -> io::Result<()> {
    let mut file = private_file(path)?;
    file.write_all(encode(identity, last).as_bytes())?;
    portolan_types::failpoint!("store/mark-written");
    file.sync_all()?;
    portolan_types::failpoint!("store/mark-synced");
    Ok(())
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn refusal(path: &Path, what: &str) -> String {
    format!(
        "{}: {what}. Restore a snapshot into a new data directory, or put back the file that is meant. An operator who deletes {NAME} instead goes on \
         with what is there: what was acknowledged and is not in it is lost without a word, and resourceVersions are given a second time, so \
         that clients must be started anew",
        path.display()
    )
}

fn encode(identity: &str, last: u64) -> String {
    let text = format!("{MAGIC}\n{identity}\n{last}\n");
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text}{sum:08x}\n")
}

fn decode(bytes: &[u8]) -> Option<(String, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.lines().skip(1);
    let (identity, last) = (lines.next()?, lines.next()?.parse().ok()?);
    (encode(identity, last) == text).then(|| (identity.to_owned(), last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked_dir(last: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        HighWaterMark::compare(dir.path(), "one", last).unwrap().record(last).unwrap();
        dir
    }

    #[test]
    fn a_store_that_ends_before_its_mark_is_refused() {
        let dir = marked_dir(7);
        for (case, identity, last, words) in [
            ("as far as told", "one", 7, None),
            ("further than told", "one", 8, None),
            ("not as far", "one", 6, Some("had reached revision 7 and now ends at 6")),
            ("another store", "two", 7, Some("belongs to another store")),
        ] {
            match (HighWaterMark::compare(dir.path(), identity, last), words) {
                (Ok(_), None) => {}
                (Err(told), Some(words)) => assert!(told.contains(words), "{case}: {told}"),
                (found, _) => panic!("{case}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_later_mark_takes_the_place_of_the_one_before() {
        let dir = marked_dir(7);
        let mut witness = HighWaterMark::compare(dir.path(), "one", 9).unwrap();
        witness.record(9).unwrap();
        assert!(HighWaterMark::compare(dir.path(), "one", 8).is_err());
        assert!(HighWaterMark::compare(dir.path(), "one", 9).is_ok());
    }

    #[test]
    fn any_flipped_bit_and_any_cut_of_the_mark_is_found() {
        let dir = marked_dir(7);
        let path = dir.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        let flipped = (0..whole.len() * 8).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
        for bytes in flipped.chain(cut) {
            fs::write(&path, &bytes).unwrap();
            assert!(HighWaterMark::compare(dir.path(), "one", 9).is_err(), "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
