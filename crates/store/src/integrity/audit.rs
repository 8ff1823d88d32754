//! Audit of a store: reads everything, to find damaged or missing data.

use std::{collections::HashSet, fmt::Display, mem};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, record::RecordHeader};

use crate::{
    api::{
        BackendError, ChangeKind, RangeScope,
        damage::{Damage, DamageReport, DamagedObject, MAX_DESCRIBED, named},
    },
    engine::{KvCursor, KvResult, KvView},
    integrity::damage::MAX_KNOWN_DAMAGE,
    layout::{
        history_entry::{HistoryChange, HistoryEntry},
        keys::{self, IndexKeyParser, KeySuffix},
        record::{CheckedObject, decode},
    },
    read::{
        bookkeeping::{LoadError, load},
        history::object_key,
        resources::ResourceRegistry,
        skipped::damaged_object,
        state::{StoreMarks, marks},
    },
};

/// Counts of a whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreAudit {
    /// Latest objects.
    pub objects: u64,
    /// Superseded objects that history keeps.
    pub superseded: u64,
    /// Writes that history keeps.
    pub writes: u64,
    /// Last revision.
    pub last: u64,
    /// Revision after which history is kept.
    pub oldest: u64,
}

/// Callback for each readable latest object.
pub(crate) type ObjectVisitor<'a> = &'a mut dyn FnMut(&ObjectKey, &Record);

/// Reads everything. Checksums, the gapless history, and the objects that history and indexes name must all agree.
///
/// Not found: an object that is missing together with its index entries and was last written before the oldest
/// revision.
///
/// # Errors
/// Fails if the bookkeeping cannot be read. All other damage is noted in `findings`, also if an engine panics over it.
pub(crate) fn audit(
    view: &dyn KvView,
    findings: &mut DamageReport,
    each: ObjectVisitor<'_>,
) -> Result<StoreAudit, LoadError> {
    let (found, mut seen) = (load(view)?, AuditState::default());
    let (resources, marks) = (&found.resources, found.marks);
    let mut auditor = Auditor { view, resources, marks, seen: &mut seen, slice: AuditSlice::WHOLE, findings, each };
    PASSES.iter().for_each(|pass| auditor.pass(*pass));
    Ok(StoreAudit { last: found.marks.last, oldest: found.marks.floor, ..seen.audit })
}

/// Audit in slices, each at the latest state of its time: no writer waits for it, and no old state is kept for it.
#[derive(Default)]
pub(crate) struct IncrementalAudit {
    pass: usize,
    /// Key at which the pass continues; `None` at its beginning.
    from: Option<Vec<u8>>,
    seen: AuditState,
    pub(crate) findings: DamageReport,
}

impl IncrementalAudit {
    /// Audits about `bytes` bytes, the last entry as a whole. Returns the bytes that were read; `None` after the last
    /// slice.
    ///
    /// # Errors
    /// Fails if the bookkeeping cannot be read.
    pub(crate) fn slice(
        &mut self,
        view: &dyn KvView,
        resources: &ResourceRegistry,
        bytes: usize,
    ) -> KvResult<Option<usize>> {
        let Some(pass) = PASSES.get(self.pass) else { return Ok(None) };
        let marks = marks(view).map_err(LoadError::from)?;
        let slice = AuditSlice { from: self.from.take(), most: bytes, read: 0, next: None };
        let (seen, findings, each) = (&mut self.seen, &mut self.findings, &mut |_: &ObjectKey, _: &Record| {});
        let mut auditor = Auditor { view, resources, marks, seen, slice, findings, each };
        auditor.pass(*pass);
        let AuditSlice { read, next, .. } = auditor.slice;
        match next {
            None => self.pass += 1,
            next => self.from = next,
        }
        Ok(Some(read))
    }

    /// Skips the rest of a pass that the engine failed in.
    pub(crate) fn skip_pass(&mut self, error: BackendError) {
        (self.pass, self.from) = (self.pass + 1, None);
        if !self.findings.other.contains(&error.context) {
            self.findings.other.push(error.context);
        }
    }

    /// Takes the damaged objects found since the last call, each with the index that led to it.
    pub(crate) fn take_damaged(&mut self) -> Vec<(DamagedObject, Option<RangeScope>)> {
        mem::take(&mut self.seen.damaged)
    }

    /// Returns the number of objects and writes that were audited.
    pub(crate) fn entries(&self) -> u64 {
        let StoreAudit { objects, superseded, writes, .. } = self.seen.audit;
        objects + superseded + writes
    }
}

/// State of an audit between slices.
#[derive(Default)]
struct AuditState {
    audit: StoreAudit,
    /// Latest objects that cannot be read and have been noted. Index entries that name them are accepted.
    unread: HashSet<KeySuffix>,
    /// First of these objects, each with the index that led to it.
    damaged: Vec<(DamagedObject, Option<RangeScope>)>,
    /// Revision up to which the history was audited, exclusive.
    upto: u64,
    /// Number of notes of this pass that are not about objects.
    noted: usize,
}

/// Part of a pass.
struct AuditSlice {
    /// First key; `None` for the beginning.
    from: Option<Vec<u8>>,
    /// Bytes to read before the slice ends.
    most: usize,
    /// Bytes that were read, for any purpose.
    read: usize,
    /// Key at which the slice ended.
    next: Option<Vec<u8>>,
}

impl AuditSlice {
    const WHOLE: Self = Self { from: None, most: usize::MAX, read: 0, next: None };
    /// Cost of an entry beside its bytes, in bytes.
    const ENTRY: usize = 64;

    /// Returns true if an entry belongs to the slice. The entry at which a slice ends is charged too, and read again.
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
    view: &'a dyn KvView,
    resources: &'a ResourceRegistry,
    marks: StoreMarks,
    seen: &'a mut AuditState,
    slice: AuditSlice,
    findings: &'a mut DamageReport,
    each: ObjectVisitor<'a>,
}

/// Layout of an index: its letter, parser of its keys, its list in a header, and its scope.
type IndexLayout = (u8, IndexKeyParser, fn(&RecordHeader) -> &Vec<String>, fn(LogicalClusterId, &str) -> RangeScope);

const OWNERS: IndexLayout =
    (b'x', keys::owner_parts, |header| &header.owners, |cluster, uid| RangeScope::OwnedBy(cluster, uid.to_owned()));
const PLACED: IndexLayout =
    (b'p', keys::placed_parts, |header| &header.placed_on, |_, uid| RangeScope::PlacedOn(uid.to_owned()));

/// Pass over all keys of one letter.
type AuditPass = fn(&mut Auditor<'_>) -> KvResult<()>;

const PASSES: [AuditPass; 5] = [
    |auditor| auditor.objects(),
    |auditor| auditor.superseded(),
    |auditor| auditor.history(),
    |auditor| auditor.index(&OWNERS),
    |auditor| auditor.index(&PLACED),
];

impl Auditor<'_> {
    /// Runs a pass. An engine failure ends this pass only.
    fn pass(&mut self, look: AuditPass) {
        if self.slice.from.is_none() {
            self.seen.noted = 0;
        }
        if let Err(error) = look(self) {
            self.engine_failed(error);
        }
        if let Some(more @ 1..) = self.seen.noted.checked_sub(MAX_DESCRIBED)
            && self.slice.next.is_none()
        {
            self.findings.other.push(format!("and {more} more of these"));
        }
    }

    /// Notes damage, at most [`MAX_DESCRIBED`] times per pass.
    fn note(&mut self, what: impl Display) {
        self.seen.noted += 1;
        if self.seen.noted <= MAX_DESCRIBED {
            self.findings.other.push(what.to_string());
        }
    }

    /// Notes an engine failure once, although several passes may reach the damaged part.
    fn engine_failed(&mut self, error: BackendError) {
        if !self.findings.other.contains(&error.context) {
            self.note(error.context);
        }
    }

    /// Calls `look` with each key of a letter. An error of one key does not stop the others.
    fn each(
        &mut self,
        letter: u8,
        mut look: impl FnMut(&mut Self, &dyn KvCursor, &[u8]) -> KvResult<()>,
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
            let suffix = KeySuffix::from_bytes(&key[1..]);
            match decode(suffix.as_bytes(), &cursor.value_bytes()) {
                Err(why) => auditor.note_unread(suffix, DamagedObject { key: address, why }, None),
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

    /// Checks that an object is in all indexes that it should be in.
    fn indexed(&mut self, address: &ObjectKey, suffix: &KeySuffix, header: &RecordHeader) -> KvResult<()> {
        let owned = header.owners.iter().filter_map(|uid| suffix.owner(uid));
        let placed = header.placed_on.iter().filter_map(|uid| suffix.placed(uid));
        for key in unique(owned.chain(placed).collect()) {
            if self.get(&key)?.is_none() {
                self.note(format_args!("an index lacks {}", named(address)));
            }
        }
        Ok(())
    }

    /// Notes a latest object that cannot be read. `index` led to it, if any.
    fn note_unread(&mut self, suffix: KeySuffix, found: DamagedObject, index: Option<RangeScope>) {
        if self.seen.unread.insert(suffix) {
            self.findings.objects.add(&found);
            if self.seen.damaged.len() < MAX_KNOWN_DAMAGE {
                self.seen.damaged.push((found, index));
            }
        }
    }

    /// Reads the value that an entry refers to, and charges it to the slice.
    fn get(&mut self, key: &[u8]) -> KvResult<Option<Bytes>> {
        let value = self.view.get(key)?;
        self.slice.charge(value.as_ref().map_or(0, Bytes::len));
        Ok(value)
    }

    /// Decodes the address in a key; a malformed one is noted.
    fn address(&mut self, suffix: &[u8]) -> Option<ObjectKey> {
        let address = keys::parts(suffix).and_then(|parts| object_key(self.resources, parts).ok());
        if address.is_none() {
            self.note(damaged_object(self.resources, suffix, Damage::Key));
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
                    auditor.findings.earlier.add(DamagedObject { key: address.clone(), why });
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

    /// Checks that every revision after the floor has its entry, and every entry the object that the write left or
    /// replaced.
    fn history(&mut self) -> KvResult<()> {
        let StoreMarks { floor, last } = self.marks;
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
            auditor.note_missing(expected, revision);
            expected = revision + 1;
            auditor.seen.audit.writes += 1;
            match HistoryEntry::decode(revision, cursor.value()).map(|entry| entry.what) {
                Ok(HistoryChange::Object(change, suffix)) => {
                    auditor.write(revision, change, &KeySuffix::from_bytes(suffix))
                }
                Ok(HistoryChange::ClusterGone(_)) => Ok(()),
                Err(_) => {
                    auditor.note(format_args!("revision {revision} of the history is malformed"));
                    Ok(())
                }
            }
        })?;
        self.seen.upto = expected;
        if self.slice.next.is_none() {
            self.note_missing(expected, last + 1);
        }
        Ok(())
    }

    /// Notes the revisions from `expected` to before `found` as missing, if any.
    fn note_missing(&mut self, expected: u64, found: u64) {
        match found.saturating_sub(expected) {
            0 => {}
            1 => self.note(format_args!("the history lacks revision {expected}")),
            _ => self.note(format_args!("the history lacks revisions {expected} to {}", found - 1)),
        }
    }

    fn write(&mut self, revision: u64, change: ChangeKind, suffix: &KeySuffix) -> KvResult<()> {
        let Some(address) = self.address(suffix.as_bytes()) else { return Ok(()) };
        let ended_here = self.get(&suffix.version(revision))?.is_some();
        let complete = match change {
            ChangeKind::Created => self.begun_at(revision, suffix)?,
            ChangeKind::Updated => ended_here && self.begun_at(revision, suffix)?,
            ChangeKind::Deleted => ended_here,
        };
        if !complete {
            self.note(format_args!("the object of revision {revision} is missing: {}", named(&address)));
        }
        Ok(())
    }

    fn begun_at(&mut self, at: u64, suffix: &KeySuffix) -> KvResult<bool> {
        // A damaged object may be the one, and has been noted.
        let may_be_begun = |value: &[u8]| {
            let stored = CheckedObject::check(suffix.as_bytes(), value).and_then(CheckedObject::revision);
            stored.map_or(true, |revision| revision.get() == at)
        };
        if self.get(&suffix.object())?.is_some_and(|value| may_be_begun(&value)) {
            return Ok(true);
        }
        let cursor = self.view.scan(&suffix.version(at + 1), &suffix.version(u64::MAX))?;
        self.slice.charge(cursor.value().len());
        Ok(cursor.key().is_some() && may_be_begun(cursor.value()))
    }

    /// Checks that every entry of an index belongs to an existing object that lists it.
    fn index(&mut self, (letter, parts, of, scope): &IndexLayout) -> KvResult<()> {
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
                    auditor.note_unread(suffix, DamagedObject { key: address, why }, Some(index));
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
