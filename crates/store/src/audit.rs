//! Looking at everything that a store holds, to find what is damaged or missing.

use std::collections::{HashMap, HashSet};

use portolan_types::{ObjectKey, Record};

use crate::{
    Change, DamageList, Damaged, Findings, StoreError,
    history::{Entry, What, object_key},
    keys::{self, PartsOf, Suffix},
    kv::{Cursor, View},
    load::{Found, LoadError, load},
    read::damaged,
    value::{Damage, Stored, Version, decode},
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
    let found = load(view)?;
    let mut auditor = Auditor {
        view,
        found: &found,
        audit: Audit { last: found.marks.last, oldest: found.marks.floor, ..Audit::default() },
        indexed: HashMap::new(),
        damaged: HashSet::new(),
        findings,
        each,
    };
    auditor.look();
    Ok(auditor.audit)
}

struct Auditor<'a> {
    view: &'a dyn View,
    found: &'a Found,
    audit: Audit,
    /// How many entries each index should have.
    indexed: HashMap<u8, u64>,
    /// The latest objects that cannot be read: what indexes say of them is believed.
    damaged: HashSet<Suffix>,
    findings: &'a mut Findings,
    each: Each<'a>,
}

impl Auditor<'_> {
    fn look(&mut self) {
        // One that does not come to its end says so, and keeps no other from looking.
        let looked = [self.objects(), self.superseded(), self.history(), self.indexes()];
        self.findings.other.extend(looked.into_iter().filter_map(Result::err).map(|error| error.to_string()));
    }

    fn each(
        &mut self,
        letter: u8,
        mut look: impl FnMut(&mut Self, &dyn Cursor, &[u8]) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let view = self.view;
        let mut cursor = view.scan(&[letter], &[letter + 1])?;
        while let Some(key) = cursor.key() {
            look(self, &*cursor, key)?;
            cursor.advance()?;
        }
        Ok(())
    }

    fn objects(&mut self) -> Result<(), LoadError> {
        self.each(b'o', |auditor, cursor, key| {
            let Some(version) = auditor.version(&key[1..], cursor, |findings| &mut findings.objects)? else {
                auditor.damaged.insert(Suffix::from_bytes(&key[1..]));
                return Ok(());
            };
            if version.revision.get() > auditor.found.marks.last {
                return Err(wrong("an object is younger than the store"));
            }
            let (header, suffix) = (&version.record.header, Suffix::from_bytes(&key[1..]));
            for (letter, keys) in [
                (b'x', header.owners.iter().filter_map(|uid| suffix.owner(uid)).collect::<Vec<_>>()),
                (b'p', header.placed_on.iter().filter_map(|uid| suffix.placed(uid)).collect()),
            ] {
                for key in unique(keys) {
                    auditor.view.get(&key)?.ok_or_else(|| wrong("an index lacks an object"))?;
                    *auditor.indexed.entry(letter).or_default() += 1;
                }
            }
            if let Some(Ok(key)) = keys::parts(&key[1..]).map(|parts| object_key(&auditor.found.resources, parts)) {
                (auditor.each)(&key, &version.record);
            }
            auditor.audit.objects += 1;
            Ok(())
        })
    }

    fn superseded(&mut self) -> Result<(), LoadError> {
        self.each(b'v', |auditor, cursor, key| {
            let (suffix, until) = keys::version_parts(key).ok_or_else(malformed)?;
            let begun = auditor
                .version(suffix, cursor, |findings| &mut findings.earlier)?
                .map_or(0, |version| version.revision.get());
            if begun >= until || until <= auditor.found.marks.floor {
                return Err(wrong("a superseded object has an impossible span"));
            }
            auditor.audit.superseded += 1;
            Ok(())
        })
    }

    /// `None` when it is damaged, which is noted.
    fn version(
        &mut self,
        suffix: &[u8],
        cursor: &dyn Cursor,
        list: fn(&mut Findings) -> &mut DamageList,
    ) -> Result<Option<Version>, LoadError> {
        let parts = keys::parts(suffix).ok_or_else(malformed)?;
        self.found.resources.name(parts.resource).ok_or_else(|| wrong("an object's resource is unknown"))?;
        let version = decode(suffix, &cursor.value_bytes());
        if let Err(why) = &version {
            list(self.findings).add(Damaged::at(&self.found.resources, suffix, *why));
        }
        Ok(version.ok())
    }

    /// Every revision after the floor has its entry, and every entry its object as the write left or found it.
    fn history(&mut self) -> Result<(), LoadError> {
        let mut expected = self.found.marks.floor + 1;
        self.each(b'h', |auditor, cursor, key| {
            let revision = keys::history_revision(key).ok_or_else(malformed)?;
            if revision != expected {
                return Err(wrong(&format!("the history lacks revision {expected}")));
            }
            expected += 1;
            auditor.audit.writes += 1;
            match Entry::decode(cursor.value()).map_err(damaged)?.what {
                What::Object(change, suffix) => auditor.write(revision, change, &Suffix::from_bytes(suffix)),
                What::ClusterGone(_) => Ok(()),
            }
        })?;
        match expected == self.found.marks.last + 1 {
            true => Ok(()),
            false => Err(wrong(&format!("the history lacks revision {expected}"))),
        }
    }

    fn write(&self, revision: u64, change: Change, suffix: &Suffix) -> Result<(), LoadError> {
        let ended_here = self.view.get(&suffix.version(revision))?.is_some();
        let complete = match change {
            Change::Created => self.begun_at(revision, suffix)?,
            Change::Updated => ended_here && self.begun_at(revision, suffix)?,
            Change::Deleted => ended_here,
        };
        if complete { Ok(()) } else { Err(wrong(&format!("the object of revision {revision} is missing"))) }
    }

    fn begun_at(&self, at: u64, suffix: &Suffix) -> Result<bool, LoadError> {
        // What is damaged may be it, and has been noted.
        let may_be_begun = |value: &[u8]| {
            let stored = Stored::check(suffix.as_bytes(), value).and_then(Stored::revision);
            stored.map_or(true, |revision| revision.get() == at)
        };
        if self.view.get(&suffix.object())?.is_some_and(|value| may_be_begun(&value)) {
            return Ok(true);
        }
        let cursor = self.view.scan(&suffix.version(at + 1), &suffix.version(u64::MAX))?;
        Ok(cursor.key().is_some() && may_be_begun(cursor.value()))
    }

    fn indexes(&mut self) -> Result<(), LoadError> {
        let parts: [(u8, PartsOf); 2] = [(b'x', keys::owner_parts), (b'p', keys::placed_parts)];
        for (letter, parts) in parts {
            let mut count = 0;
            self.each(letter, |auditor, _, key| {
                let (_, suffix) = parts(key).ok_or_else(malformed)?;
                if auditor.damaged.contains(&suffix) {
                    return Ok(());
                }
                if auditor.view.get(&suffix.object())?.is_none() {
                    let missing = Damaged::at(&auditor.found.resources, suffix.as_bytes(), Damage::Missing);
                    auditor.findings.objects.add(missing);
                    auditor.damaged.insert(suffix);
                    return Ok(());
                }
                count += 1;
                Ok(())
            })?;
            if count != self.indexed.get(&letter).copied().unwrap_or_default() {
                return Err(wrong("an index names an object that is not in it"));
            }
        }
        Ok(())
    }
}

fn unique(mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn wrong(what: &str) -> LoadError {
    LoadError::Damaged(what.to_owned())
}

fn malformed() -> LoadError {
    let error: StoreError = damaged(Damage::Key);
    error.into()
}
