//! Whether what sled is about to replay is as sled wrote it.
//!
//! When sled opens, it reads of its log what was written since its last snapshot (`snap.*`, made at each opening), to learn where each
//! page is. What it finds damaged there it takes for torn by a crash, whatever it is: it passes over the rest of a segment, over a whole one
//! whose header is damaged, or over all that follows, and clears what it passed over (`pagecache/iterator.rs`, `snapshot.rs`). A page
//! is then as it was before, or not there at all, and nobody hears of it. All else in sled's files is checked when it is read: messages
//! and the snapshot have checksums.
//!
//! So the same is read here first, and what no crash can have left is not opened:
//! - after a clean end ([`Ended`]) anything that is not whole, another end of the log, and other segments than there were;
//! - after any other
//!   - what is not whole though it was synced, as a later segment's header says. A segment in an older place may be torn all the same,
//!     by another that was to take its place; but then nothing needs what was in it: so it is damaged if a page is still made of it;
//!   - what is not whole though two later batches are there: each is begun when the one before it, and all before that, was synced.
//!
//! After a crash this leaves two kinds of damage that are passed over: in the last two batches, which the store's mark tells of if it
//! was idle after them, and in the one page of a segment that nothing else has replaced, if that is the message which is damaged.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use super::{
    ended::Ended,
    segment::{HEADER, Head, Message, SEGMENT, is_empty, survey, varint, walk},
};
use crate::{
    BackendError,
    kv::{KvResult, failed, failure},
};

const STEP: u64 = SEGMENT as u64;
/// A batch has by far fewer segments.
const AHEAD: u64 = 1 << 10;
/// Bytes that follow a snapshot: its length, which sled reads only of compressed ones, and its checksum.
const SNAPSHOT_END: usize = 12;

/// Looks at all that sled would replay.
///
/// # Errors
/// When something of it is damaged, and when it cannot be read.
pub(super) fn check(folder: &Path) -> KvResult<()> {
    look(folder).map_err(|error| match error.source {
        Some(_) => error,
        None => {
            failed(format!("{}; to go on with what sled makes of it all the same, delete store.mark", error.context))
        }
    })
}

fn look(folder: &Path) -> KvResult<()> {
    let Some(log) = Log::open(folder)? else { return Ok(()) };
    let noted = Ended::read(folder).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => failed(format!("{} is damaged", folder.join("ended").display())),
        _ => failure("reading the store's log")(error),
    })?;
    let end = log.end()?;
    // A version that knows nothing of the note may have written since.
    match noted.filter(|noted| noted.snapshot == log.snapshot && noted.end >= end) {
        Some(noted) => log.check_ended(noted, end),
        None => log.check_broken_off(end),
    }
}

/// Notes that the log of files that nobody has open was closed.
///
/// # Errors
/// When the log cannot be read, or the note not be written; there is none then.
pub(super) fn note_end(folder: &Path) -> KvResult<()> {
    let Some(log) = Log::open(folder)? else { return Ok(()) };
    let ended = Ended { snapshot: log.snapshot, end: log.end()?, segments: log.checksum() };
    ended.write(folder).map_err(failure("noting the end of the store's log"))
}

/// Where a snapshot of sled's stands.
#[derive(Clone, Copy, Default)]
struct Snapshot {
    /// All before it is in the snapshot.
    lsn: u64,
    /// Whether the log goes on in the segment in which it stands.
    is_within: bool,
}

/// The part of a log that sled replays.
struct Log {
    path: PathBuf,
    file: File,
    /// Where the snapshot stands.
    snapshot: u64,
    /// Where the first segment that is replayed begins, or would.
    from: u64,
    /// Where in the file the segments are that are replayed.
    places: BTreeMap<u64, u64>,
    /// What else there is in the file: places without a header, and with one that is damaged.
    strays: Vec<u64>,
    /// Up to here the log was synced, as headers say, or sled when it made the snapshot; this byte not included.
    synced: u64,
}

impl Log {
    /// `None` where there is no log.
    fn open(folder: &Path) -> KvResult<Option<Self>> {
        let path = folder.join("db");
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failure("reading the store's log"))?,
        };
        let Snapshot { lsn, is_within } = Snapshot::read(folder)?;
        let (from, synced) = if is_within { (lsn / STEP * STEP, lsn) } else { (lsn.next_multiple_of(STEP), 0) };
        let mut log = Self { path, file, snapshot: lsn, from, places: BTreeMap::new(), strays: Vec::new(), synced };
        log.find_segments()?;
        Ok(Some(log))
    }

    fn find_segments(&mut self) -> KvResult<()> {
        let len = self.file.metadata().map_err(failure("reading the store's log"))?.len();
        for place in (0..len).step_by(SEGMENT) {
            match Head::of(&self.read(place, HEADER)?) {
                Head::Empty | Head::Damaged => self.strays.push(place),
                Head::Whole { lsn, .. } if lsn < self.from => {}
                Head::Whole { lsn, synced } => {
                    self.synced = self.synced.max(synced);
                    if self.places.insert(lsn, place).is_some() {
                        return Err(self.damaged(place, "there are two of a segment"));
                    }
                }
            }
        }
        Ok(())
    }

    /// What there is at a place, and zeros beyond the end of the file.
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

    /// The first segment that may be torn because it was being written. No place is used again of this one and those after it.
    fn tail(&self) -> u64 {
        (self.synced.saturating_sub(1) / STEP * STEP).max(self.from)
    }

    /// Where the log ends: at what is no whole message after all that is known to have been synced.
    fn end(&self) -> KvResult<u64> {
        let mut lsn = self.tail();
        let (end, place) = loop {
            let Some(place) = self.places.get(&lsn) else { break (lsn, None) };
            match walk(&self.segment(*place)?, lsn / STEP, |_| {}) {
                SEGMENT => lsn += STEP,
                at => break (lsn + at as u64, Some(place + at as u64)),
            }
        };
        match (end < self.synced, place) {
            (false, _) => Ok(end),
            (true, Some(place)) => Err(self.damaged(place, "what was synced is not whole")),
            (true, None) => Err(failed(format!("{} lacks the segment of {end}", self.path.display()))),
        }
    }

    /// A checksum of which segments are where.
    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for (lsn, place) in &self.places {
            hasher.update(&lsn.to_le_bytes());
            hasher.update(&place.to_le_bytes());
        }
        hasher.finalize()
    }

    /// Of a log that was closed.
    fn check_ended(&self, noted: Ended, end: u64) -> KvResult<()> {
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

    /// Of a log that was not closed.
    fn check_broken_off(&self, end: u64) -> KvResult<()> {
        let (torn, strays) = (self.torn()?, self.strays()?);
        if !torn.is_empty() || !strays.is_empty() {
            self.refuse_needed(torn.iter().chain(&strays), end)?;
        }
        self.refuse_followed(&strays, end)
    }

    /// The segments of which only a part can be read, but for those that may be torn because they were being written.
    fn torn(&self) -> KvResult<Vec<Part>> {
        let mut torn = Vec::new();
        for (lsn, place) in self.places.range(..self.tail()) {
            let number = lsn / STEP;
            match walk(&self.segment(*place)?, number, |_| {}) {
                SEGMENT => {}
                at => torn.push(Part { place: *place, at }),
            }
        }
        Ok(torn)
    }

    /// The places that have something, and no header.
    fn strays(&self) -> KvResult<Vec<Part>> {
        let mut strays = Vec::new();
        for place in &self.strays {
            if !is_empty(&self.segment(*place)?) {
                strays.push(Part { place: *place, at: 0 });
            }
        }
        Ok(strays)
    }

    /// # Errors
    /// When a page is still made of what can be read of a part: sled would not have written over it.
    fn refuse_needed<'a>(&self, parts: impl Iterator<Item = &'a Part>, end: u64) -> KvResult<()> {
        let Some(last) = (self.tail() / STEP).checked_sub(1) else { return Ok(()) };
        let (numbers, replaced) = (self.from / STEP..=last, self.replaced(end)?);
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

    /// By what each page was replaced last, before the end.
    fn replaced(&self, end: u64) -> KvResult<HashMap<u64, u64>> {
        let mut replaced = HashMap::new();
        for (lsn, place) in self.places.range(..end) {
            let note = |message: Message| {
                if message.replaces() && message.lsn() < end {
                    let by = replaced.entry(message.page).or_insert(0);
                    *by = message.lsn().max(*by);
                }
            };
            walk(&self.segment(*place)?, lsn / STEP, note);
        }
        Ok(replaced)
    }

    /// # Errors
    /// When more batches than one were begun after what is taken for the end.
    fn refuse_followed(&self, strays: &[Part], end: u64) -> KvResult<()> {
        let (numbers, mut batches) = (end / STEP..=end / STEP + AHEAD, 0);
        let after = self.places.range(end / STEP * STEP..).map(|(_, place)| *place);
        for place in after.chain(strays.iter().map(|stray| stray.place)) {
            let count = |message: Message| batches += usize::from(message.begins_batch() && message.lsn() >= end);
            survey(&self.segment(place)?, HEADER, &numbers, count);
        }
        match batches {
            0 | 1 => Ok(()),
            _ => Err(failed(format!("{} is damaged: it ends at {end}, and goes on after it", self.path.display()))),
        }
    }
}

/// What is not whole.
struct Part {
    /// In the file.
    place: u64,
    /// Up to here, from that place on, it is whole.
    at: usize,
}

impl Snapshot {
    /// The one that sled begins with: the last by its name.
    fn read(folder: &Path) -> KvResult<Self> {
        let (read, damaged) = (failure("reading the store's snapshot"), || failed("the store's snapshot is damaged"));
        let Some(path) = latest_snapshot(folder).map_err(read)? else { return Ok(Self::default()) };
        let bytes = fs::read(path).map_err(failure("reading the store's snapshot"))?;
        let (content, end) = bytes.split_at_checked(bytes.len().saturating_sub(SNAPSHOT_END)).ok_or_else(damaged)?;
        if end.last_chunk().is_none_or(|sum| u32::from_le_bytes(*sum) != crc32fast::hash(content)) {
            return Err(damaged());
        }
        let (lsn, mut rest) = content.split_first_chunk().ok_or_else(damaged)?;
        // Of both numbers there may be none, which is 0: others are one higher.
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
