//! A second record, beside the engine's files, of how far the store has come: `store.mark`.
//!
//! An engine that finds its last commits damaged goes on before them, and a file that was put back from a copy is older as a
//! whole: both look like a whole store, and would lose acknowledged writes and give their revisions again. The mark is written
//! when the store is made, at every start, when nothing has been written for a while, and at the end; a store that ends before its mark is refused.
//! What was written since the last mark is all that can be lost unseen.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::directory::Home;
use crate::load::Found;

const NAME: &str = "store.mark";
const NEW: &str = "store.mark.new";
/// The mark of a store that is being moved in place. Under its own name it would tell of one that is not there yet.
const MADE: &str = "store.mark.made";
const MAGIC: &str = "portolan-mark 1";

/// The data directory, and the mark in it.
pub(crate) struct Held {
    witness: Witness,
    home: Home,
}

impl Held {
    /// # Errors
    /// In words for the operator, when the mark and the store do not fit together.
    pub(super) fn new(home: Home, found: &Found) -> Result<Self, String> {
        let witness = Witness::compare(home.dir(), &found.identity, found.marks.last)?;
        let mut held = Self { witness, home };
        held.tell(found.marks.last);
        Ok(held)
    }

    /// Only looks.
    ///
    /// # Errors
    /// As for [`Held::new`].
    pub(super) fn compare(home: &Home, identity: &str, last: u64) -> Result<(), String> {
        Witness::compare(home.dir(), identity, last).map(drop)
    }

    /// Marks that the store has durably reached `last`. A mark that cannot be written leaves the one before, which is as true.
    pub(crate) fn tell(&mut self, last: u64) {
        if self.home.is_read_only() {
            return;
        }
        if let Err(error) = self.witness.tell(last) {
            tracing::warn!(%error, "the store's mark could not be written");
        }
    }
}

/// The mark of one store.
#[derive(Debug)]
pub(super) struct Witness {
    dir: PathBuf,
    identity: String,
    /// What the file says.
    told: u64,
}

impl Witness {
    /// Whether there is a mark in `dir`.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(NAME).exists()
    }

    /// # Errors
    /// In words for the operator, when a mark says that there was a store, which is about to be made anew.
    pub(super) fn refuse_if_told(dir: &Path, missing: &Path) -> Result<(), String> {
        let path = dir.join(NAME);
        match path.exists() {
            true => Err(refusal(&path, &format!("it tells of a store, but {} is missing", missing.display()))),
            false => Ok(()),
        }
    }

    /// Writes the mark of a store that is whole, and will be moved in place.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn prepare(dir: &Path, found: &Found) -> io::Result<()> {
        write(&dir.join(MADE), &found.identity, found.marks.last)
    }

    /// Gives a store that was moved in place the mark that was made with it, unless that is done.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub(super) fn settle(dir: &Path) -> io::Result<()> {
        let made = dir.join(MADE);
        if Self::is_in(dir) || !made.exists() {
            return Ok(());
        }
        fs::rename(made, dir.join(NAME))?;
        portolan_types::failpoint!("store/new-store-marked");
        Ok(())
    }

    /// Forgets a mark whose store never came in place.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(super) fn forget_made(dir: &Path) -> io::Result<()> {
        match fs::remove_file(dir.join(MADE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Compares the mark in `dir`, if there is one, with a store that was opened there.
    ///
    /// # Errors
    /// In words for the operator: the store has lost writes, or the mark is another store's, or damaged.
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

    /// The revision that the mark in `dir` tells, if there is one.
    ///
    /// # Errors
    /// In words for the operator, when it cannot be read, or is damaged.
    pub(super) fn told_in(dir: &Path) -> Result<Option<u64>, String> {
        let path = dir.join(NAME);
        match fs::read(&path) {
            Ok(bytes) => decode(&bytes).map(|(_, told)| Some(told)).ok_or_else(|| refusal(&path, "it is damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Says that the store has durably reached `last`.
    ///
    /// # Errors
    /// When the file cannot be written; the one before stays.
    fn tell(&mut self, last: u64) -> io::Result<()> {
        if last == self.told {
            return Ok(());
        }
        let new = self.dir.join(NEW);
        // Without the name being synced, a power loss leaves the mark before, which is as true.
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
        "{}: {what}. Restore a snapshot into a new data directory, or put back the file that is meant. Whoever deletes {NAME} instead goes on \
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

    fn told(last: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        Witness::compare(dir.path(), "one", last).unwrap().tell(last).unwrap();
        dir
    }

    #[test]
    fn a_store_that_ends_before_its_mark_is_refused() {
        let dir = told(7);
        for (case, identity, last, words) in [
            ("as far as told", "one", 7, None),
            ("further than told", "one", 8, None),
            ("not as far", "one", 6, Some("had reached revision 7 and now ends at 6")),
            ("another store", "two", 7, Some("belongs to another store")),
        ] {
            match (Witness::compare(dir.path(), identity, last), words) {
                (Ok(_), None) => {}
                (Err(told), Some(words)) => assert!(told.contains(words), "{case}: {told}"),
                (found, _) => panic!("{case}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_later_mark_takes_the_place_of_the_one_before() {
        let dir = told(7);
        let mut witness = Witness::compare(dir.path(), "one", 9).unwrap();
        witness.tell(9).unwrap();
        assert!(Witness::compare(dir.path(), "one", 8).is_err());
        assert!(Witness::compare(dir.path(), "one", 9).is_ok());
    }

    #[test]
    fn any_flipped_bit_and_any_cut_of_the_mark_is_found() {
        let dir = told(7);
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
            assert!(Witness::compare(dir.path(), "one", 9).is_err(), "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
