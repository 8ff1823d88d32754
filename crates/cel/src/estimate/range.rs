//! Ranges of sizes and costs, which do not overflow, and paths to values.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A size or a cost: the least and the most it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Range {
    /// Any size.
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub(crate) fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    pub(crate) fn fixed(size: u64) -> Self {
        Self { min: size, max: size }
    }

    /// What a union over elements starts from.
    pub(super) fn accumulator(empty: bool) -> Self {
        Self { min: if empty { 0 } else { u64::MAX }, max: 0 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Times a factor, rounded up.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { min: scaled(self.min, factor), max: scaled(self.max, factor) }
    }
}

fn scaled(size: u64, factor: f64) -> u64 {
    let product = (size as f64 * factor).ceil();
    // A float that is too large becomes the largest number.
    product as u64
}

/// The way to a value from a variable. It grows as a Go slice does: two paths that grew from one may share what follows, and the later
/// one wins. cel-go's estimates depend on that.
#[derive(Clone, Debug, Default)]
pub(super) struct Path {
    names: Rc<RefCell<Vec<Arc<str>>>>,
    room: usize,
    length: usize,
}

impl Path {
    pub(super) fn root(name: Arc<str>) -> Self {
        Self { names: Rc::new(RefCell::new(vec![name])), room: 1, length: 1 }
    }

    pub(super) fn child(&self, name: Arc<str>) -> Self {
        if self.length < self.room {
            let mut names = self.names.borrow_mut();
            match names.get_mut(self.length) {
                Some(shared) => *shared = name,
                None => names.push(name),
            }
            drop(names);
            return Self { names: self.names.clone(), room: self.room, length: self.length + 1 };
        }
        let mut names: Vec<Arc<str>> = self.names();
        names.push(name);
        let room = (self.room * 2).max(1);
        Self { names: Rc::new(RefCell::new(names)), room, length: self.length + 1 }
    }

    /// The same path with one name more, sharing nothing.
    pub(super) fn detached_child(&self, name: &str) -> Self {
        let mut names = self.names();
        names.push(name.into());
        let length = names.len();
        Self { names: Rc::new(RefCell::new(names)), room: length, length }
    }

    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.names.borrow()[..self.length].to_vec()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }
}
