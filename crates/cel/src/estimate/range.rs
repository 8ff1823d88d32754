//! Ranges of sizes and costs with saturating arithmetic, and paths to values.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Minimum and maximum of a size or a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CostRange {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl CostRange {
    /// Any size.
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub(crate) fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    pub(crate) fn fixed(size: u64) -> Self {
        Self { min: size, max: size }
    }

    /// Returns the initial value of a union over elements.
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

    /// Multiplies by a factor and rounds up.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { min: scaled(self.min, factor), max: scaled(self.max, factor) }
    }
}

fn scaled(size: u64, factor: f64) -> u64 {
    let product = (size as f64 * factor).ceil();
    // A float out of range becomes the largest number.
    product as u64
}

/// Path from a variable to a value. It grows like a Go slice: two paths that extend the same path may share their last
/// element, and the later extension wins. cel-go's estimates depend on that.
#[derive(Clone, Debug, Default)]
pub(super) struct EstimatePath {
    names: Rc<RefCell<Vec<Arc<str>>>>,
    room: usize,
    length: usize,
}

impl EstimatePath {
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

    /// Returns a copy with one more name that shares no element.
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
