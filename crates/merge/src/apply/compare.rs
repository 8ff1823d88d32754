//! The difference between two states of an object, by fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    set::FieldSet,
    shape::{Form, OwnershipShape, field_element},
};

/// Difference of two objects. No field is in more than one of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Difference {
    /// Returns the difference from `old` to `new`.
    pub(super) fn between(shape: OwnershipShape<'_>, old: &Value, new: &Value) -> Self {
        let mut walk = Walk::default();
        walk.value(shape, Some(old), Some(new));
        walk.difference
    }

    /// Returns the difference without the fields in `excluded` and those below them.
    pub(super) fn outside(&self, excluded: &FieldSet) -> Self {
        Self {
            added: self.added.outside(excluded),
            modified: self.modified.outside(excluded),
            removed: self.removed.outside(excluded),
        }
    }

    /// Returns the difference without the members of `excluded`.
    pub(super) fn without(&self, excluded: &FieldSet) -> Self {
        Self {
            added: self.added.difference(excluded),
            modified: self.modified.difference(excluded),
            removed: self.removed.difference(excluded),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Returns the fields that have a new value.
    pub(super) fn written(&self) -> FieldSet {
        self.added.clone().union(self.modified.clone())
    }
}

#[derive(Default)]
struct Walk {
    path: Vec<Box<str>>,
    difference: Difference,
}

impl Walk {
    fn value(&mut self, shape: OwnershipShape<'_>, old: Option<&Value>, new: Option<&Value>) {
        match (form_of(shape, old, new), form_of(shape, new, old)) {
            (Form::Object, Form::Object) => self.object(shape, old, new),
            (Form::List, _) | (_, Form::List) => self.list(shape, old, new),
            (Form::Whole, Form::Whole) => self.leaf(old, new),
            // Free-form values that change between object and not: one value replaces the other.
            (Form::Object, Form::Whole) => {
                self.entries(shape, old, None);
                self.leaf(old, new);
            }
            (Form::Whole, Form::Object) => {
                self.leaf(old, new);
                self.entries(shape, None, new);
            }
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.difference.added.insert(&self.path),
            (_, None) => self.difference.removed.insert(&self.path),
            (Some(old), Some(new)) if old != new => self.difference.modified.insert(&self.path),
            _ => {}
        }
    }

    /// Records a container that appeared or disappeared as a member, beside its content.
    fn container(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.difference.added.insert(&self.path),
            (_, None) => self.difference.removed.insert(&self.path),
            _ => {}
        }
    }

    fn object(&mut self, shape: OwnershipShape<'_>, old: Option<&Value>, new: Option<&Value>) {
        let is_empty = |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
        if is_empty(old) && is_empty(new) {
            return self.leaf(old, new);
        }
        self.entries(shape, old, new);
        self.container(old, new);
    }

    fn entries(&mut self, shape: OwnershipShape<'_>, old: Option<&Value>, new: Option<&Value>) {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        let removed = old.into_iter().flatten().filter(|(name, _)| new.is_none_or(|new| !new.contains_key(*name)));
        for (name, value) in removed {
            self.at(field_element(name), shape.child(name), Some(value), None);
        }
        for (name, value) in new.into_iter().flatten() {
            let before = old.and_then(|old| old.get(name));
            if before != Some(value) {
                self.at(field_element(name), shape.child(name), before, Some(value));
            }
        }
    }

    fn list(&mut self, shape: OwnershipShape<'_>, old: Option<&Value>, new: Option<&Value>) {
        let (before, after) = (items(old), items(new));
        if before.is_empty() && after.is_empty() {
            return self.leaf(old, new);
        }
        let mut pairs: BTreeMap<Box<str>, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (id, element) in shape.identified(before) {
            pairs.entry(id).or_default().0.push(element);
        }
        for (id, element) in shape.identified(after) {
            pairs.entry(id).or_default().1.push(element);
        }
        for (id, (before, after)) in pairs {
            self.elements(shape.element(), id, &before, &after);
        }
        self.container(old, new);
    }

    /// Compares the elements of one key. Several elements with the same key count as one value.
    fn elements(&mut self, shape: OwnershipShape<'_>, id: Box<str>, old: &[&Value], new: &[&Value]) {
        match (old, new) {
            ([] | [_], [] | [_]) => self.at(id, shape, old.first().copied(), new.first().copied()),
            ([_, _, ..], [_, _, ..]) => {
                if old != new {
                    self.mark(id, |difference| &mut difference.modified);
                }
            }
            ([_, _, ..], few) => {
                if let [one] = few {
                    self.at(id.clone(), shape, None, Some(one));
                }
                self.mark(id, |difference| &mut difference.removed);
            }
            (few, _) => {
                if let [one] = few {
                    self.at(id.clone(), shape, Some(one), None);
                }
                self.mark(id, |difference| &mut difference.added);
            }
        }
    }

    fn mark(&mut self, id: Box<str>, set: impl Fn(&mut Difference) -> &mut FieldSet) {
        self.path.push(id);
        set(&mut self.difference).insert(&self.path);
        self.path.pop();
    }

    fn at(&mut self, element: Box<str>, shape: OwnershipShape<'_>, old: Option<&Value>, new: Option<&Value>) {
        self.path.push(element);
        self.value(shape, old, new);
        self.path.pop();
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the form of one side. A side that is missing or null takes the form of the other.
fn form_of(shape: OwnershipShape<'_>, value: Option<&Value>, other: Option<&Value>) -> Form {
    match value {
        None | Some(Value::Null) => shape.form(other),
        value => shape.form(value),
    }
}
