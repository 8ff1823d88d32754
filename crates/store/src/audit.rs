//! Looking at everything that a store holds, to find what is damaged or missing.

use std::{collections::HashSet, fmt::Display, mem};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, record::RecordHeader};

use crate::{
    BackendError, Change, Damaged, Findings, MOST_KNOWN, RangeScope,
    damage::{NAMED, named},
    history::{Entry, What, object_key},
    keys::{self, PartsOf, Suffix},
    kv::{Cursor, KvResult, View},
    load::{LoadError, load},
    read::{Marks, marks},
    resources::Resources,
    value::{Damage, Stored, decode},
};

/// What a whole store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Latest objects.
    pub objects: u64,
    /// Superseded objects that history keeps.
    pub superseded: u64,
    /// Writes that history keeps.
    pub writes: u64,
    /// The last revision.
    pub last: u64,
    /// The revision after which history is kept.
    pub oldest: u64,
}

/// What is told of each latest object that can be read.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&ObjectKey, &Record);

/// Reads everything. Checksums, the gapless history, and what history and indexes say of objects must all agree.
///
/// Not found: an object that is missing together with its index entries and was last written before the oldest revision.
///
/// # Errors
/// When the bookkeeping cannot be read; all else that is wrong is noted in `findings`, also when an engine panics over it.
pub(crate) fn audit(view: &dyn View, findings: &mut Findings, each: Each<'_>) -> Result<Audit, LoadError> {
    let (found, mut seen) = (load(view)?, Seen::default());
    let (resources, marks) = (&found.resources, found.marks);
    let mut auditor = Auditor { view, resources, marks, seen: &mut seen, slice: Slice::WHOLE, findings, each };
    PASSES.iter().for_each(|pass| auditor.pass(*pass));
    Ok(Audit { last: found.marks.last, oldest: found.marks.floor, ..seen.audit })
}

/// A look as [`audit`]'s, but a slice at a time, each at the state that there is by then: nothing waits for it, and nothing is kept for it.
#[derive(Default)]
pub(crate) struct Rounds {
    pass: usize,
    /// Where the pass goes on; `None` at its beginning.
    from: Option<Vec<u8>>,
    seen: Seen,
    pub(crate) findings: Findings,
}

impl Rounds {
    /// Looks at about so many bytes, the last entry as a whole, and tells at how many; `None` when all has been looked at.
    ///
    /// # Errors
    /// When the bookkeeping cannot be read.
    pub(crate) fn slice(&mut self, view: &dyn View, resources: &Resources, bytes: usize) -> KvResult<Option<usize>> {
        let Some(pass) = PASSES.get(self.pass) else { return Ok(None) };
        let marks = marks(view).map_err(LoadError::from)?;
        let slice = Slice { from: self.from.take(), most: bytes, read: 0, next: None };
        let (seen, findings, each) = (&mut self.seen, &mut self.findings, &mut |_: &ObjectKey, _: &Record| {});
        let mut auditor = Auditor { view, resources, marks, seen, slice, findings, each };
        auditor.pass(*pass);
        let Slice { read, next, .. } = auditor.slice;
        match next {
            None => self.pass += 1,
            next => self.from = next,
        }
        Ok(Some(read))
    }

    /// Goes on behind what the engine ended a slice over.
    pub(crate) fn pass_over(&mut self, error: BackendError) {
        (self.pass, self.from) = (self.pass + 1, None);
        if !self.findings.other.contains(&error.context) {
            self.findings.other.push(error.context);
        }
    }

    /// The damaged objects that were met since it was asked last, and what led to them.
    pub(crate) fn met(&mut self) -> Vec<(Damaged, Option<RangeScope>)> {
        mem::take(&mut self.seen.damaged)
    }

    /// Objects and writes that have been looked at.
    pub(crate) fn entries(&self) -> u64 {
        let Audit { objects, superseded, writes, .. } = self.seen.audit;
        objects + superseded + writes
    }
}

/// What a look has come across.
#[derive(Default)]
struct Seen {
    audit: Audit,
    /// The latest objects that cannot be read, and have been noted: what indexes say of them is believed.
    unread: HashSet<Suffix>,
    /// The first of them, and the index that led there.
    damaged: Vec<(Damaged, Option<RangeScope>)>,
    /// The revision up to which a slice of the history has been looked at, this one not included.
    upto: u64,
    /// What this pass has noted that is no object.
    noted: usize,
}

/// A part of a pass.
struct Slice {
    /// The key to begin with; `None` for the first one.
    from: Option<Vec<u8>>,
    /// Bytes to look at before it ends.
    most: usize,
    /// Bytes that were read, whatever for.
    read: usize,
    /// The key at which it ended.
    next: Option<Vec<u8>>,
}

impl Slice {
    const WHOLE: Self = Self { from: None, most: usize::MAX, read: 0, next: None };
    /// What looking at an entry costs beside reading its bytes, in bytes.
    const ENTRY: usize = 64;

    /// Whether an entry is part of it. The one with which it ends was read as well, and will be again.
    fn has(&mut self, key: &[u8], value: &[u8]) -> bool {
        let is_over = self.read >= self.most;
        self.charge(key.len() + value.len() + Self::ENTRY);
        if is_over {
            self.next = Some(key.to_vec());
        }
        !is_over
    }

    fn charge(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
    }
}

struct Auditor<'a> {
    view: &'a dyn View,
    resources: &'a Resources,
    marks: Marks,
    seen: &'a mut Seen,
    slice: Slice,
    findings: &'a mut Findings,
    each: Each<'a>,
}

/// An index: its letter, how its keys are taken apart, what it is made of, and how it is read.
type Index = (u8, PartsOf, fn(&RecordHeader) -> &Vec<String>, fn(LogicalClusterId, &str) -> RangeScope);

const OWNERS: Index =
    (b'x', keys::owner_parts, |header| &header.owners, |cluster, uid| RangeScope::OwnedBy(cluster, uid.to_owned()));
const PLACED: Index =
    (b'p', keys::placed_parts, |header| &header.placed_on, |_, uid| RangeScope::PlacedOn(uid.to_owned()));

/// Looks at all keys of a letter.
type Pass = fn(&mut Auditor<'_>) -> KvResult<()>;

const PASSES: [Pass; 5] = [
    |auditor| auditor.objects(),
    |auditor| auditor.superseded(),
    |auditor| auditor.history(),
    |auditor| auditor.index(&OWNERS),
    |auditor| auditor.index(&PLACED),
];

impl Auditor<'_> {
    /// One that the engine ends early says so, and keeps no other from looking.
    fn pass(&mut self, look: Pass) {
        if self.slice.from.is_none() {
            self.seen.noted = 0;
        }
        if let Err(error) = look(self) {
            self.engine_failed(error);
        }
        if let Some(more @ 1..) = self.seen.noted.checked_sub(NAMED)
            && self.slice.next.is_none()
        {
            self.findings.other.push(format!("and {more} more of these"));
        }
    }

    /// Notes what is wrong, of each pass so many.
    fn note(&mut self, what: impl Display) {
        self.seen.noted += 1;
        if self.seen.noted <= NAMED {
            self.findings.other.push(what.to_string());
        }
    }

    /// The same part of a file fails whoever comes to it: that is told once.
    fn engine_failed(&mut self, error: BackendError) {
        if !self.findings.other.contains(&error.context) {
            self.note(error.context);
        }
    }

    /// Looks at each key of a letter. What is wrong with one keeps nobody from looking at the next.
    fn each(
        &mut self,
        letter: u8,
        mut look: impl FnMut(&mut Self, &dyn Cursor, &[u8]) -> KvResult<()>,
    ) -> KvResult<()> {
        let (view, from) = (self.view, self.slice.from.take().unwrap_or_else(|| vec![letter]));
        let mut cursor = view.scan(&from, &[letter + 1])?;
        while let Some(key) = cursor.key().filter(|key| self.slice.has(key, cursor.value())) {
            if let Err(error) = look(self, &*cursor, key) {
                self.engine_failed(error);
            }
            cursor.advance()?;
        }
        Ok(())
    }

    fn objects(&mut self) -> KvResult<()> {
        self.each(b'o', |auditor, cursor, key| {
            let Some(address) = auditor.address(&key[1..]) else { return Ok(()) };
            let suffix = Suffix::from_bytes(&key[1..]);
            match decode(suffix.as_bytes(), &cursor.value_bytes()) {
                Err(why) => auditor.is_unread(suffix, Damaged { key: address, why }, None),
                Ok(version) => {
                    auditor.seen.audit.objects += 1;
                    (auditor.each)(&address, &version.record);
                    if version.revision.get() > auditor.marks.last {
                        auditor.note(format_args!("{} is younger than the store", named(&address)));
                    }
                    auditor.indexed(&address, &suffix, &version.record.header)?;
                }
            }
            Ok(())
        })
    }

    /// An object is in all indexes that it should be in.
    fn indexed(&mut self, address: &ObjectKey, suffix: &Suffix, header: &RecordHeader) -> KvResult<()> {
        let owned = header.owners.iter().filter_map(|uid| suffix.owner(uid));
        let placed = header.placed_on.iter().filter_map(|uid| suffix.placed(uid));
        for key in unique(owned.chain(placed).collect()) {
            if self.get(&key)?.is_none() {
                self.note(format_args!("an index lacks {}", named(address)));
            }
        }
        Ok(())
    }

    /// Notes a latest object that cannot be read, to which an index may have led.
    fn is_unread(&mut self, suffix: Suffix, found: Damaged, index: Option<RangeScope>) {
        if self.seen.unread.insert(suffix) {
            self.findings.objects.add(&found);
            if self.seen.damaged.len() < MOST_KNOWN {
                self.seen.damaged.push((found, index));
            }
        }
    }

    /// What an entry leads to, which counts as much as the entry itself.
    fn get(&mut self, key: &[u8]) -> KvResult<Option<Bytes>> {
        let value = self.view.get(key)?;
        self.slice.charge(value.as_ref().map_or(0, Bytes::len));
        Ok(value)
    }

    /// The address in a key; one that is none is noted.
    fn address(&mut self, suffix: &[u8]) -> Option<ObjectKey> {
        let address = keys::parts(suffix).and_then(|parts| object_key(self.resources, parts).ok());
        if address.is_none() {
            self.note(Damaged::at(self.resources, suffix, Damage::Key));
        }
        address
    }

    fn superseded(&mut self) -> KvResult<()> {
        self.each(b'v', |auditor, cursor, key| {
            let Some((suffix, until)) = keys::version_parts(key) else {
                auditor.note(format_args!("an earlier state of an object: {}", Damage::Key));
                return Ok(());
            };
            let Some(address) = auditor.address(suffix) else { return Ok(()) };
            let begun = match decode(suffix, &cursor.value_bytes()) {
                Ok(version) => version.revision.get(),
                Err(why) => {
                    auditor.findings.earlier.add(Damaged { key: address.clone(), why });
                    0
                }
            };
            if begun >= until || until <= auditor.marks.floor {
                auditor.note(format_args!("an earlier state of {} has an impossible span", named(&address)));
            }
            auditor.seen.audit.superseded += 1;
            Ok(())
        })
    }

    /// Every revision after the floor has its entry, and every entry its object as the write left or found it.
    fn history(&mut self) -> KvResult<()> {
        let Marks { floor, last } = self.marks;
        let begun = if self.slice.from.is_some() { self.seen.upto } else { 0 };
        let mut expected = begun.max(floor + 1);
        self.each(b'h', |auditor, cursor, key| {
            let Some(revision) = keys::history_revision(key) else {
                auditor.note("a key of the history is malformed");
                return Ok(());
            };
            if !(floor + 1..=last).contains(&revision) {
                auditor.note(format_args!("the history has revision {revision}, beyond {} to {last}", floor + 1));
                return Ok(());
            }
            auditor.lacks(expected, revision);
            expected = revision + 1;
            auditor.seen.audit.writes += 1;
            match Entry::decode(revision, cursor.value()).map(|entry| entry.what) {
                Ok(What::Object(change, suffix)) => auditor.write(revision, change, &Suffix::from_bytes(suffix)),
                Ok(What::ClusterGone(_)) => Ok(()),
                Err(_) => {
                    auditor.note(format_args!("revision {revision} of the history is malformed"));
                    Ok(())
                }
            }
        })?;
        self.seen.upto = expected;
        if self.slice.next.is_none() {
            self.lacks(expected, last + 1);
        }
        Ok(())
    }

    /// Notes the revisions from `expected` to before `found`, if any.
    fn lacks(&mut self, expected: u64, found: u64) {
        match found.saturating_sub(expected) {
            0 => {}
            1 => self.note(format_args!("the history lacks revision {expected}")),
            _ => self.note(format_args!("the history lacks revisions {expected} to {}", found - 1)),
        }
    }

    fn write(&mut self, revision: u64, change: Change, suffix: &Suffix) -> KvResult<()> {
        let Some(address) = self.address(suffix.as_bytes()) else { return Ok(()) };
        let ended_here = self.get(&suffix.version(revision))?.is_some();
        let complete = match change {
            Change::Created => self.begun_at(revision, suffix)?,
            Change::Updated => ended_here && self.begun_at(revision, suffix)?,
            Change::Deleted => ended_here,
        };
        if !complete {
            self.note(format_args!("the object of revision {revision} is missing: {}", named(&address)));
        }
        Ok(())
    }

    fn begun_at(&mut self, at: u64, suffix: &Suffix) -> KvResult<bool> {
        // What is damaged may be it, and has been noted.
        let may_be_begun = |value: &[u8]| {
            let stored = Stored::check(suffix.as_bytes(), value).and_then(Stored::revision);
            stored.map_or(true, |revision| revision.get() == at)
        };
        if self.get(&suffix.object())?.is_some_and(|value| may_be_begun(&value)) {
            return Ok(true);
        }
        let cursor = self.view.scan(&suffix.version(at + 1), &suffix.version(u64::MAX))?;
        self.slice.charge(cursor.value().len());
        Ok(cursor.key().is_some() && may_be_begun(cursor.value()))
    }

    /// Every entry of an index is one of an object that is there, and says so itself.
    fn index(&mut self, (letter, parts, of, scope): &Index) -> KvResult<()> {
        self.each(*letter, |auditor, _, key| {
            let Some((uid, suffix)) = parts(key) else {
                auditor.note("an entry of an index is malformed");
                return Ok(());
            };
            let Some(address) = auditor.address(suffix.as_bytes()) else { return Ok(()) };
            if auditor.seen.unread.contains(&suffix) {
                return Ok(());
            }
            let version = match auditor.get(&suffix.object())? {
                Some(value) => decode(suffix.as_bytes(), &value),
                None => Err(Damage::Missing),
            };
            match version {
                Ok(version) if of(&version.record.header).contains(&uid) => {}
                Ok(_) => auditor.note(format_args!("an index names what is not in it: {}", named(&address))),
                Err(why) => {
                    let index = scope(address.cluster, &uid);
                    auditor.is_unread(suffix, Damaged { key: address, why }, Some(index));
                }
            }
            Ok(())
        })
    }
}

fn unique(mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    keys.sort_unstable();
    keys.dedup();
    keys
}
