//! Merge of the objects of one state in key order: latest ones that are not younger than the state, and superseded ones
//! whose span covers it.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{
    api::{StoreError, damage::Damage},
    engine::{KvCursor, KvView},
    layout::{keys, record::CheckedObject},
    read::state::{backend, damaged},
};

/// Encoded object of a state.
pub(crate) struct MergedObject<'a> {
    suffix: &'a [u8],
    place: ValueSource<'a>,
}

enum ValueSource<'a> {
    Cursor(&'a dyn KvCursor),
    Here(Bytes),
}

impl<'a> MergedObject<'a> {
    pub(crate) fn latest(suffix: &'a [u8], value: Bytes) -> Self {
        Self { suffix, place: ValueSource::Here(value) }
    }

    pub(crate) fn suffix(&self) -> &[u8] {
        self.suffix
    }

    pub(crate) fn value(&self) -> &[u8] {
        match &self.place {
            ValueSource::Cursor(cursor) => cursor.value(),
            ValueSource::Here(value) => value,
        }
    }

    /// Returns the value if it can be shared.
    pub(crate) fn shared(&self) -> Option<Bytes> {
        match &self.place {
            ValueSource::Cursor(cursor) => cursor.shared(),
            ValueSource::Here(value) => Some(value.clone()),
        }
    }
}

/// Iterator over the objects of a state.
pub(crate) struct ObjectMerge<'v> {
    latest: Box<dyn KvCursor + 'v>,
    /// Cursor of superseded objects; `None` for the latest state, which needs none.
    superseded: Option<Box<dyn KvCursor + 'v>>,
    at: u64,
    /// Cursor at the object that was returned last.
    returned: MergeSide,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MergeSide {
    Nothing,
    Latest,
    Superseded,
}

impl<'v> ObjectMerge<'v> {
    /// Merges the keys from `from` (included) to `to` (excluded), both without their letter.
    pub(crate) fn new(
        view: &'v dyn KvView,
        from: &[u8],
        to: &[u8],
        at: u64,
        is_latest: bool,
    ) -> Result<Self, StoreError> {
        let scan = |letter| view.scan(&keys::joined(letter, &[from]), &keys::joined(letter, &[to])).map_err(backend);
        let superseded = if is_latest { None } else { Some(scan(b'v')?) };
        Ok(Self { latest: scan(b'o')?, superseded, at, returned: MergeSide::Nothing })
    }

    /// Returns the next object.
    pub(crate) fn next(&mut self) -> Result<Option<MergedObject<'_>>, StoreError> {
        self.advance_to_visible()?;
        let cursor = match self.returned {
            MergeSide::Nothing => return Ok(None),
            MergeSide::Latest => &self.latest,
            MergeSide::Superseded => self.superseded.as_ref().ok_or(Damage::Key).map_err(damaged)?,
        };
        let key = cursor.key().ok_or(Damage::Key).map_err(damaged)?;
        let suffix = if self.returned == MergeSide::Latest { &key[1..] } else { &key[1..key.len() - 8] };
        Ok(Some(MergedObject { suffix, place: ValueSource::Cursor(&**cursor) }))
    }

    /// Skips an object; returns false at the end.
    pub(crate) fn skip_one(&mut self) -> Result<bool, StoreError> {
        self.advance_to_visible()?;
        Ok(self.returned != MergeSide::Nothing)
    }

    /// Moves to the next visible object.
    fn advance_to_visible(&mut self) -> Result<(), StoreError> {
        match std::mem::replace(&mut self.returned, MergeSide::Nothing) {
            MergeSide::Nothing => {}
            MergeSide::Latest => self.latest.advance().map_err(backend)?,
            MergeSide::Superseded => self.advance_superseded()?,
        }
        loop {
            let order = self.compare()?;
            match order {
                None => return Ok(()),
                Some(Ordering::Less | Ordering::Equal) if self.latest_is_visible()? => {
                    self.returned = MergeSide::Latest;
                    return Ok(());
                }
                Some(Ordering::Less | Ordering::Equal) => self.latest.advance().map_err(backend)?,
                Some(Ordering::Greater) if self.superseded_is_visible()? => {
                    self.returned = MergeSide::Superseded;
                    return Ok(());
                }
                Some(Ordering::Greater) => self.advance_superseded()?,
            }
        }
    }

    /// Compares the cursors: `Less` if the latest object comes first; `None` if both are at the end.
    fn compare(&self) -> Result<Option<Ordering>, StoreError> {
        let superseded = self.superseded.as_ref().and_then(|cursor| cursor.key());
        Ok(match (self.latest.key(), superseded) {
            (None, None) => None,
            (Some(_), None) => Some(Ordering::Less),
            (None, Some(_)) => Some(Ordering::Greater),
            (Some(latest), Some(superseded)) => {
                let (suffix, _) = keys::version_parts(superseded).ok_or(Damage::Key).map_err(damaged)?;
                Some(latest[1..].cmp(suffix))
            }
        })
    }

    fn latest_is_visible(&self) -> Result<bool, StoreError> {
        let Some(key) = self.latest.key().filter(|_| self.superseded.is_some()) else { return Ok(true) };
        Ok(self.may_begin(&key[1..], self.latest.value()))
    }

    /// Returns true if an object was written by then. A damaged one may have been: its reader gets the error.
    fn may_begin(&self, suffix: &[u8], value: &[u8]) -> bool {
        let revision = CheckedObject::check(suffix, value).and_then(CheckedObject::revision);
        !revision.is_ok_and(|revision| revision.get() > self.at)
    }

    fn superseded_is_visible(&self) -> Result<bool, StoreError> {
        let Some(cursor) = &self.superseded else { return Ok(false) };
        let Some((suffix, until)) = cursor.key().and_then(keys::version_parts) else { return Ok(false) };
        if until <= self.at {
            return Ok(false);
        }
        Ok(self.may_begin(suffix, cursor.value()))
    }

    fn advance_superseded(&mut self) -> Result<(), StoreError> {
        match &mut self.superseded {
            Some(cursor) => cursor.advance().map_err(backend),
            None => Ok(()),
        }
    }
}
