//! What is noted beside sled's files when they were closed: how far the log goes, and which segments sled will replay.
//!
//! After a clean end nothing was being written, so that nothing in the log can be torn: whatever is not whole is damage
//! (`replay`). The note is removed before sled opens its files, since a crash may leave them otherwise from then on.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

const NAME: &str = "ended";
const NEW: &str = "ended.new";
const MAGIC: &str = "portolan-sled-ended 1";

/// How a log was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Where sled's snapshot stands.
    pub(super) snapshot: u64,
    /// Where the log ends.
    pub(super) end: u64,
    /// A checksum of which segments are where, of those that sled will replay.
    pub(super) segments: u32,
}

impl Ended {
    /// # Errors
    /// `InvalidData` when the note is damaged.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(NAME)) {
            Ok(bytes) => decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes it. A crash leaves all of the note or none.
    pub(super) fn write(self, folder: &Path) -> io::Result<()> {
        let new = folder.join(NEW);
        let mut file = File::create(&new)?;
        file.write_all(self.encode().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, folder.join(NAME))?;
        File::open(folder)?.sync_all()
    }

    /// Removes the note for good.
    pub(super) fn remove(folder: &Path) -> io::Result<()> {
        match fs::remove_file(folder.join(NAME)) {
            Ok(()) => File::open(folder)?.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn encode(self) -> String {
        let Self { snapshot, end, segments } = self;
        let text = format!("{MAGIC}\n{snapshot}\n{end}\n{segments:08x}\n");
        let sum = crc32fast::hash(text.as_bytes());
        format!("{text}{sum:08x}\n")
    }
}

fn decode(bytes: &[u8]) -> Option<Ended> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.lines().skip(1);
    let mut number = || lines.next()?.parse().ok();
    let (snapshot, end) = (number()?, number()?);
    let ended = Ended { snapshot, end, segments: u32::from_str_radix(lines.next()?, 16).ok()? };
    (ended.encode() == text).then_some(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_and_any_cut_of_the_note_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Ended::read(dir.path()).unwrap(), None);
        let ended = Ended { snapshot: 7, end: 5_000_000, segments: 0xAB };
        ended.write(dir.path()).unwrap();
        assert_eq!(Ended::read(dir.path()).unwrap(), Some(ended));
        let path = dir.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        let flipped = (0..whole.len() * 8).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        for bytes in flipped.chain((0..whole.len()).map(|len| whole[..len].to_vec())) {
            fs::write(&path, &bytes).unwrap();
            assert!(Ended::read(dir.path()).is_err(), "{:?}", String::from_utf8_lossy(&bytes));
        }
        for _ in 0..2 {
            Ended::remove(dir.path()).unwrap();
            assert_eq!(Ended::read(dir.path()).unwrap(), None);
        }
    }
}
