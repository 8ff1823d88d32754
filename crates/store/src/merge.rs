//! The objects of a state, in key order: the latest ones not younger than the state, and the superseded ones whose span
//! covers it.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{
    StoreError, keys,
    kv::{Cursor, View},
    read::{backend, damaged},
    value::{Damage, Stored},
};

/// An object of a state, still as bytes.
pub(crate) struct Found<'a> {
    suffix: &'a [u8],
    place: Place<'a>,
}

enum Place<'a> {
    Cursor(&'a dyn Cursor),
    Here(Bytes),
}

impl<'a> Found<'a> {
    pub(crate) fn latest(suffix: &'a [u8], value: Bytes) -> Self {
        Self { suffix, place: Place::Here(value) }
    }

    pub(crate) fn suffix(&self) -> &[u8] {
        self.suffix
    }

    pub(crate) fn value(&self) -> &[u8] {
        match &self.place {
            Place::Cursor(cursor) => cursor.value(),
            Place::Here(value) => value,
        }
    }

    /// The value where it can be shared.
    pub(crate) fn shared(&self) -> Option<Bytes> {
        match &self.place {
            Place::Cursor(cursor) => cursor.shared(),
            Place::Here(value) => Some(value.clone()),
        }
    }
}

/// Goes through the objects of a state.
pub(crate) struct Merge<'v> {
    latest: Box<dyn Cursor + 'v>,
    /// `None` when the state is the latest one, which needs no superseded objects.
    superseded: Option<Box<dyn Cursor + 'v>>,
    at: u64,
    /// Which cursor stands on the object that was returned last.
    returned: Returned,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Returned {
    Nothing,
    Latest,
    Superseded,
}

impl<'v> Merge<'v> {
    /// Over the keys from `from` (included) to `to` (excluded), both without their letter.
    pub(crate) fn new(
        view: &'v dyn View,
        from: &[u8],
        to: &[u8],
        at: u64,
        is_latest: bool,
    ) -> Result<Self, StoreError> {
        let scan = |letter| view.scan(&keys::joined(letter, &[from]), &keys::joined(letter, &[to])).map_err(backend);
        let superseded = if is_latest { None } else { Some(scan(b'v')?) };
        Ok(Self { latest: scan(b'o')?, superseded, at, returned: Returned::Nothing })
    }

    /// The next object.
    pub(crate) fn next(&mut self) -> Result<Option<Found<'_>>, StoreError> {
        self.go_on()?;
        let cursor = match self.returned {
            Returned::Nothing => return Ok(None),
            Returned::Latest => &self.latest,
            Returned::Superseded => self.superseded.as_ref().ok_or(Damage::Key).map_err(damaged)?,
        };
        let key = cursor.key().ok_or(Damage::Key).map_err(damaged)?;
        let suffix = if self.returned == Returned::Latest { &key[1..] } else { &key[1..key.len() - 8] };
        Ok(Some(Found { suffix, place: Place::Cursor(&**cursor) }))
    }

    /// Goes on without returning the object; `false` at the end.
    pub(crate) fn skip_one(&mut self) -> Result<bool, StoreError> {
        self.go_on()?;
        Ok(self.returned != Returned::Nothing)
    }

    /// Moves to the next visible object.
    fn go_on(&mut self) -> Result<(), StoreError> {
        match std::mem::replace(&mut self.returned, Returned::Nothing) {
            Returned::Nothing => {}
            Returned::Latest => self.latest.advance().map_err(backend)?,
            Returned::Superseded => self.advance_superseded()?,
        }
        loop {
            let order = self.compare()?;
            match order {
                None => return Ok(()),
                Some(Ordering::Less | Ordering::Equal) if self.latest_is_visible()? => {
                    self.returned = Returned::Latest;
                    return Ok(());
                }
                Some(Ordering::Less | Ordering::Equal) => self.latest.advance().map_err(backend)?,
                Some(Ordering::Greater) if self.superseded_is_visible()? => {
                    self.returned = Returned::Superseded;
                    return Ok(());
                }
                Some(Ordering::Greater) => self.advance_superseded()?,
            }
        }
    }

    /// Which cursor is at the lower object: `Less` is the latest one. `None`: both are at their end.
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

    /// Whether an object was written by then. Of one that is damaged nobody knows: whoever reads on is told of it.
    fn may_begin(&self, suffix: &[u8], value: &[u8]) -> bool {
        let revision = Stored::check(suffix, value).and_then(Stored::revision);
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
