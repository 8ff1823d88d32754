//! The rules of a kind, as a list of steps in kube-apiserver's order.

use serde_json::Value;

use super::{Errors, metadata, portolan, view::At};
use portolan_kinds::{Kind, KindTable};

/// Rules of a kind: for creates, updates, and updates through subresources.
pub(super) struct Rules {
    pub(super) create: &'static [Step],
    pub(super) update: &'static [Step],
    pub(super) subresources: &'static [(&'static str, &'static [Step])],
}

/// One part of the rules.
pub(super) enum Step {
    /// Names, labels, annotations, owners and finalizers are good.
    Metadata,
    /// Metadata changed only where it may.
    MetadataChange,
    /// The new state is good.
    Is(fn(&At<'_>, &mut Errors)),
    /// Validates the new state, against the old state if there is one.
    Given(fn(Option<&At<'_>>, &At<'_>, &mut Errors)),
    /// The old state may become the new one.
    Became(fn(&At<'_>, &At<'_>, &mut Errors)),
    /// Texts are among those that the kind table lists for their fields.
    Enumerations,
}

impl Rules {
    /// A kind of which nothing but the metadata is checked.
    pub(super) const PLAIN: Self =
        Self { create: &[Step::Metadata], update: &[Step::MetadataChange, Step::Metadata], subresources: &[] };

    /// Rules of custom kinds, beside those of their definitions.
    pub(super) const CUSTOM: Self =
        Self { create: &[Step::Metadata], update: &[Step::MetadataChange], subresources: &[] };

    /// Returns the steps for a change through `subresource`.
    pub(super) fn of_update(&self, subresource: Option<&str>) -> &'static [Step] {
        let Some(name) = subresource else { return self.update };
        let own = self.subresources.iter().find(|(known, _)| *known == name);
        own.map_or(&[Step::MetadataChange], |(_, steps)| *steps)
    }
}

/// An object in one state, or on its way from one to another.
pub(super) struct Subject<'v> {
    pub(super) table: &'v KindTable,
    pub(super) kind: &'v Kind,
    pub(super) old: Option<&'v Value>,
    pub(super) new: &'v Value,
}

impl Subject<'_> {
    /// Takes `steps` one after the other.
    pub(super) fn check(&self, steps: &[Step], errors: &mut Errors) {
        let new = At::root(self.new);
        for step in steps {
            match (step, self.old) {
                (Step::Metadata, _) => metadata::validate(self.kind, self.new, errors),
                (Step::Is(rule), None) => rule(&new, errors),
                (Step::Is(rule), Some(old)) => {
                    let from = errors.len();
                    rule(&new, errors);
                    errors.tolerate(from, || {
                        let mut before = Errors::default();
                        rule(&At::root(old), &mut before);
                        before
                    });
                }
                (Step::Given(rule), old) => rule(old.map(At::root).as_ref(), &new, errors),
                (Step::Enumerations, _) => portolan::enumerations(self.table, self.kind, &new, errors),
                (Step::MetadataChange, Some(old)) => metadata::validate_update(self.kind, old, self.new, errors),
                (Step::Became(rule), Some(old)) => rule(&At::root(old), &new, errors),
                (Step::MetadataChange | Step::Became(_), None) => {}
            }
        }
    }
}
