//! Note that is written beside sled's files when they are closed: the end of the log, and the segments that sled will
//! replay.
//!
//! After a clean close no write was in progress, so no message of the log can be torn: anything incomplete is damage
//! (`replay`). The note is removed before sled opens its files, since a crash may change them from then on.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

const NAME: &str = "ended";
const NEW: &str = "ended.new";
const MAGIC: &str = "portolan-sled-ended 1";

/// Note of a clean close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CloseNote {
    /// Position of sled's snapshot.
    pub(super) snapshot: u64,
    /// End of the log.
    pub(super) end: u64,
    /// Checksum of the segments that sled will replay, and their places.
    pub(super) segments: u32,
}

impl CloseNote {
    /// `InvalidData` if the note is damaged.
    /// `InvalidData` when the note is damaged.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(NAME)) {
            Ok(bytes) => decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the note atomically.
    pub(super) fn write(self, folder: &Path) -> io::Result<()> {
        let new = folder.join(NEW);
        let mut file = File::create(&new)?;
        file.write_all(self.encode().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, folder.join(NAME))?;
        File::open(folder)?.sync_all()
    }

    /// Removes the note durably.
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

fn decode(bytes: &[u8]) -> Option<CloseNote> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.lines().skip(1);
    let mut number = || lines.next()?.parse().ok();
    let (snapshot, end) = (number()?, number()?);
    let ended = CloseNote { snapshot, end, segments: u32::from_str_radix(lines.next()?, 16).ok()? };
    (ended.encode() == text).then_some(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_and_any_cut_of_the_note_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(CloseNote::read(dir.path()).unwrap(), None);
        let ended = CloseNote { snapshot: 7, end: 5_000_000, segments: 0xAB };
        ended.write(dir.path()).unwrap();
        assert_eq!(CloseNote::read(dir.path()).unwrap(), Some(ended));
        let path = dir.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        let flipped = (0..whole.len() * 8).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        for bytes in flipped.chain((0..whole.len()).map(|len| whole[..len].to_vec())) {
            fs::write(&path, &bytes).unwrap();
            assert!(CloseNote::read(dir.path()).is_err(), "{:?}", String::from_utf8_lossy(&bytes));
        }
        for _ in 0..2 {
            CloseNote::remove(dir.path()).unwrap();
            assert_eq!(CloseNote::read(dir.path()).unwrap(), None);
        }
    }
}
