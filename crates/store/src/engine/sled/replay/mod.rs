//! Check of the log that sled is about to replay.
//!
//! On opening, sled reads the part of its log after its last snapshot (`snap.*`, written at each opening) to locate
//! each page. It takes any damage there for a torn write: it skips the rest of a segment, a whole segment with a
//! damaged header, or everything that follows, and clears what it skipped (`pagecache/iterator.rs`, `snapshot.rs`). A
//! page then silently has its older state, or is missing. All other parts of sled's files are verified when they are
//! read: messages and the snapshot have checksums.
//!
//! So the same part is read here first, and damage that no crash can cause is refused:
//! - after a clean close ([`CloseNote`]): anything incomplete, another end of the log, or other segments than noted;
//! - after a crash:
//!   - incomplete data that was synced, as a later segment's header says. An older segment may be torn when another was
//!     about to take its place, but then nothing needs its content: so it is damage only if a page still uses it;
//!   - incomplete data that two later batches follow: each batch begins after everything before its predecessor was
//!     synced.
//!
//! Two kinds of damage remain undetected after a crash: in the last two batches, which the store's high-water mark
//! reveals if the store was idle after them; and in the single page of a segment that nothing has replaced, if its
//! message is the damaged one.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use super::{
    close_note::CloseNote,
    segment::{HEADER, LogMessage, SEGMENT, SegmentHeader, is_empty, survey, varint, walk},
};
use crate::{
    api::BackendError,
    engine::{KvResult, failed, failure},
};

const SEGMENT_LEN: u64 = SEGMENT as u64;
/// Most segments to look ahead: a batch has far fewer.
const MAX_SEGMENTS_AHEAD: u64 = 1 << 10;
/// Bytes after a snapshot: its length, which sled reads only of compressed ones, and its checksum.
const SNAPSHOT_END: usize = 12;

/// Checks everything that sled would replay.
///
/// # Errors
/// Fails if any of it is damaged or cannot be read.
pub(super) fn check(folder: &Path) -> KvResult<()> {
    look(folder).map_err(|error| match error.source {
        Some(_) => error,
        None => {
            failed(format!("{}; to go on with what sled makes of it all the same, delete store.mark", error.context))
        }
    })
}

fn look(folder: &Path) -> KvResult<()> {
    let Some(log) = ReplayedLog::open(folder)? else { return Ok(()) };
    let noted = CloseNote::read(folder).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => failed(format!("{} is damaged", folder.join("ended").display())),
        _ => failure("reading the store's log")(error),
    })?;
    let end = log.end()?;
    // A version that does not know the note may have written since.
    match noted.filter(|noted| noted.snapshot == log.snapshot && noted.end >= end) {
        Some(noted) => log.check_clean_close(noted, end),
        None => log.check_crashed(end),
    }
}

/// Writes the note of a clean close, for files that are not open.
///
/// # Errors
/// Fails if the log cannot be read or the note cannot be written; there is no note then.
pub(super) fn write_close_note(folder: &Path) -> KvResult<()> {
    let Some(log) = ReplayedLog::open(folder)? else { return Ok(()) };
    let ended = CloseNote { snapshot: log.snapshot, end: log.end()?, segments: log.checksum() };
    ended.write(folder).map_err(failure("noting the end of the store's log"))
}

/// Position of a snapshot of sled.
#[derive(Clone, Copy, Default)]
struct SnapshotPosition {
    /// Log position: everything before it is in the snapshot.
    lsn: u64,
    /// True if the log continues in the segment of that position.
    is_within: bool,
}

/// Part of a log that sled replays.
struct ReplayedLog {
    path: PathBuf,
    file: File,
    /// Position of the snapshot.
    snapshot: u64,
    /// Log position of the first replayed segment.
    from: u64,
    /// File offsets of the replayed segments, by log position.
    places: BTreeMap<u64, u64>,
    /// Other file offsets: places without a header, or with a damaged one.
    strays: Vec<u64>,
    /// Log position up to which the log was synced, exclusive, according to headers and the snapshot.
    synced: u64,
}

impl ReplayedLog {
    /// Opens the log; `None` if there is none.
    fn open(folder: &Path) -> KvResult<Option<Self>> {
        let path = folder.join("db");
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failure("reading the store's log"))?,
        };
        let SnapshotPosition { lsn, is_within } = SnapshotPosition::read(folder)?;
        let (from, synced) =
            if is_within { (lsn / SEGMENT_LEN * SEGMENT_LEN, lsn) } else { (lsn.next_multiple_of(SEGMENT_LEN), 0) };
        let mut log = Self { path, file, snapshot: lsn, from, places: BTreeMap::new(), strays: Vec::new(), synced };
        log.find_segments()?;
        Ok(Some(log))
    }

    fn find_segments(&mut self) -> KvResult<()> {
        let len = self.file.metadata().map_err(failure("reading the store's log"))?.len();
        for place in (0..len).step_by(SEGMENT) {
            match SegmentHeader::of(&self.read(place, HEADER)?) {
                SegmentHeader::Empty | SegmentHeader::Damaged => self.strays.push(place),
                SegmentHeader::Whole { lsn, .. } if lsn < self.from => {}
                SegmentHeader::Whole { lsn, synced } => {
                    self.synced = self.synced.max(synced);
                    if self.places.insert(lsn, place).is_some() {
                        return Err(self.damaged(place, "there are two of a segment"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads bytes of the file, with zeros beyond its end.
    fn read(&self, place: u64, len: usize) -> KvResult<Vec<u8>> {
        let (mut file, mut bytes) = (&self.file, Vec::with_capacity(len));
        let read = file.seek(SeekFrom::Start(place)).and_then(|_| file.take(len as u64).read_to_end(&mut bytes));
        read.map_err(failure("reading the store's log"))?;
        bytes.resize(len, 0);
        Ok(bytes)
    }

    fn segment(&self, place: u64) -> KvResult<Vec<u8>> {
        self.read(place, SEGMENT)
    }

    fn damaged(&self, place: u64, what: &str) -> BackendError {
        failed(format!("{} is damaged at byte {place}: {what}", self.path.display()))
    }

    /// Returns the first segment that may be torn because it was being written. The places of this one and later ones
    /// are not reused.
    fn tail(&self) -> u64 {
        (self.synced.saturating_sub(1) / SEGMENT_LEN * SEGMENT_LEN).max(self.from)
    }

    /// Finds the end of the log: the first incomplete message after everything known to be synced.
    fn end(&self) -> KvResult<u64> {
        let mut lsn = self.tail();
        let (end, place) = loop {
            let Some(place) = self.places.get(&lsn) else { break (lsn, None) };
            match walk(&self.segment(*place)?, lsn / SEGMENT_LEN, |_| {}) {
                SEGMENT => lsn += SEGMENT_LEN,
                at => break (lsn + at as u64, Some(place + at as u64)),
            }
        };
        match (end < self.synced, place) {
            (false, _) => Ok(end),
            (true, Some(place)) => Err(self.damaged(place, "what was synced is not whole")),
            (true, None) => Err(failed(format!("{} lacks the segment of {end}", self.path.display()))),
        }
    }

    /// Computes a checksum of the segments and their places.
    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for (lsn, place) in &self.places {
            hasher.update(&lsn.to_le_bytes());
            hasher.update(&place.to_le_bytes());
        }
        hasher.finalize()
    }

    /// Checks a log that was closed cleanly.
    fn check_clean_close(&self, noted: CloseNote, end: u64) -> KvResult<()> {
        let path = self.path.display();
        if end < noted.end {
            return Err(failed(format!("{path} ended at {} and now does at {end}", noted.end)));
        }
        if self.checksum() != noted.segments {
            return Err(failed(format!("{path} has not the segments that it had")));
        }
        match self.torn()?.first() {
            Some(torn) => Err(self.damaged(torn.place + torn.at as u64, "a message is not whole")),
            None => Ok(()),
        }
    }

    /// Checks a log that was not closed.
    fn check_crashed(&self, end: u64) -> KvResult<()> {
        let (torn, strays) = (self.torn()?, self.strays()?);
        if !torn.is_empty() || !strays.is_empty() {
            self.refuse_torn_pages(torn.iter().chain(&strays), end)?;
        }
        self.refuse_later_batches(&strays, end)
    }

    /// Returns the incomplete segments, except those that may be torn because they were being written.
    fn torn(&self) -> KvResult<Vec<TornSegment>> {
        let mut torn = Vec::new();
        for (lsn, place) in self.places.range(..self.tail()) {
            let number = lsn / SEGMENT_LEN;
            match walk(&self.segment(*place)?, number, |_| {}) {
                SEGMENT => {}
                at => torn.push(TornSegment { place: *place, at }),
            }
        }
        Ok(torn)
    }

    /// Returns the places that have content but no header.
    fn strays(&self) -> KvResult<Vec<TornSegment>> {
        let mut strays = Vec::new();
        for place in &self.strays {
            if !is_empty(&self.segment(*place)?) {
                strays.push(TornSegment { place: *place, at: 0 });
            }
        }
        Ok(strays)
    }

    /// # Errors
    /// Fails if a page still uses content of one of the parts: sled would not have overwritten it.
    fn refuse_torn_pages<'a>(&self, parts: impl Iterator<Item = &'a TornSegment>, end: u64) -> KvResult<()> {
        let Some(last) = (self.tail() / SEGMENT_LEN).checked_sub(1) else { return Ok(()) };
        let (numbers, replaced) = (self.from / SEGMENT_LEN..=last, self.replaced(end)?);
        for part in parts {
            let mut is_needed = false;
            survey(&self.segment(part.place)?, HEADER, &numbers, |message| {
                let is_replaced = || replaced.get(&message.page).is_some_and(|by| *by > message.lsn());
                is_needed |= message.is_of_page() && !is_replaced();
            });
            if is_needed {
                return Err(self.damaged(part.place + part.at as u64, "what is still needed is not whole"));
            }
        }
        Ok(())
    }

    /// Returns the log position at which each page was last replaced before the end.
    fn replaced(&self, end: u64) -> KvResult<HashMap<u64, u64>> {
        let mut replaced = HashMap::new();
        for (lsn, place) in self.places.range(..end) {
            let note = |message: LogMessage| {
                if message.replaces() && message.lsn() < end {
                    let by = replaced.entry(message.page).or_insert(0);
                    *by = message.lsn().max(*by);
                }
            };
            walk(&self.segment(*place)?, lsn / SEGMENT_LEN, note);
        }
        Ok(replaced)
    }

    /// # Errors
    /// Fails if more than one batch was started after the apparent end.
    fn refuse_later_batches(&self, strays: &[TornSegment], end: u64) -> KvResult<()> {
        let (numbers, mut batches) = (end / SEGMENT_LEN..=end / SEGMENT_LEN + MAX_SEGMENTS_AHEAD, 0);
        let after = self.places.range(end / SEGMENT_LEN * SEGMENT_LEN..).map(|(_, place)| *place);
        for place in after.chain(strays.iter().map(|stray| stray.place)) {
            let count = |message: LogMessage| batches += usize::from(message.begins_batch() && message.lsn() >= end);
            survey(&self.segment(place)?, HEADER, &numbers, count);
        }
        match batches {
            0 | 1 => Ok(()),
            _ => Err(failed(format!("{} is damaged: it ends at {end}, and goes on after it", self.path.display()))),
        }
    }
}

/// Incomplete segment.
struct TornSegment {
    /// Offset in the file.
    place: u64,
    /// Bytes from that offset on that are complete.
    at: usize,
}

impl SnapshotPosition {
    /// Reads the snapshot that sled starts from: the last by name.
    fn read(folder: &Path) -> KvResult<Self> {
        let (read, damaged) = (failure("reading the store's snapshot"), || failed("the store's snapshot is damaged"));
        let Some(path) = latest_snapshot(folder).map_err(read)? else { return Ok(Self::default()) };
        let bytes = fs::read(path).map_err(failure("reading the store's snapshot"))?;
        let (content, end) = bytes.split_at_checked(bytes.len().saturating_sub(SNAPSHOT_END)).ok_or_else(damaged)?;
        if end.last_chunk().is_none_or(|sum| u32::from_le_bytes(*sum) != crc32fast::hash(content)) {
            return Err(damaged());
        }
        let (lsn, mut rest) = content.split_first_chunk().ok_or_else(damaged)?;
        // Either number may be absent, stored as 0; others are one higher.
        let lsn = u64::try_from(i64::from_le_bytes(*lsn)).map_err(|_| damaged())?.saturating_sub(1);
        let is_within = varint(&mut rest).ok_or_else(damaged)? > 0;
        Ok(Self { lsn, is_within })
    }
}

fn latest_snapshot(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut latest = None;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_one = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("snap."));
        latest = latest.max(is_one.then_some(path));
    }
    Ok(latest)
}

#[cfg(test)]
mod tests;
