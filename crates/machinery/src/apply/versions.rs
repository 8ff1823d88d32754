//! Owners that wrote in other versions of the kind. What they own are fields of theirs, so what a write changes is told in the
//! fields of each.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    collect::collect,
    compare::Difference,
    frame::Frame,
    managers::{Entry, Managers},
    remove,
    set::FieldSet,
};
use crate::{
    conversion::{from_storage, to_storage},
    kinds::Kind,
};

/// What the version of an owner is to a write.
enum Version<'t> {
    /// That of the write. All versions of a custom resource count as it: converting may take a webhook.
    Same,
    Other(Box<Other<'t>>),
    /// None that is served. Upstream forgets such owners with the next write.
    Gone,
}

/// Another version of the kind.
struct Other<'t> {
    frame: Frame<'t>,
    kind: &'t Kind,
    /// The version of the write.
    written: &'t Kind,
}

impl<'t> Version<'t> {
    fn of(frame: &Frame<'t>, api_version: &str) -> Self {
        let written = frame.kind;
        if api_version == frame.api_version || !written.is_typed() {
            return Self::Same;
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let kind = frame.table.kind_named(group, version, &written.gvk.kind);
        match kind.filter(|kind| kind.served && kind.storage == written.storage) {
            None => Self::Gone,
            Some(kind) => {
                let frame = Frame::new(frame.table, kind, Some(frame.subresource).filter(|part| !part.is_empty()));
                Self::Other(Box::new(Other { frame, kind, written }))
            }
        }
    }
}

impl Other<'_> {
    /// An object of the write in this version.
    fn of(&self, object: &Value) -> Value {
        from_storage(self.kind, to_storage(self.written, object.clone()))
    }

    /// An object of this version in that of the write.
    fn back(&self, object: Value) -> Value {
        from_storage(self.written, to_storage(self.kind, object))
    }
}

/// What a write changes, in the fields of each version that somebody owns fields of.
pub(super) struct Differences {
    written: Difference,
    /// Nothing for versions that are not served.
    others: BTreeMap<String, Option<Difference>>,
}

impl Differences {
    /// Those from `old` to `new`, both in the version of the write, in which it is `written`.
    pub(super) fn new(frame: &Frame<'_>, managers: &Managers, written: Difference, old: &Value, new: &Value) -> Self {
        let mut others = BTreeMap::new();
        for version in managers.versions().filter(|version| **version != *frame.api_version) {
            let difference = match Version::of(frame, version) {
                Version::Same => continue,
                Version::Gone => None,
                Version::Other(other) => Some(other.frame.difference(&other.of(old), &other.of(new))),
            };
            others.insert(version.to_owned(), difference);
        }
        Self { written, others }
    }

    /// That in the version of an owner; nothing where it is not served.
    pub(super) fn of(&self, owner: &Entry) -> Option<&Difference> {
        self.others.get(&owner.api_version).map_or(Some(&self.written), Option::as_ref)
    }
}

/// What is owned, by version.
pub(super) struct Owned(BTreeMap<String, FieldSet>);

impl Owned {
    /// What is configured in the version of the write, and what `others` own.
    pub(super) fn of<'a>(frame: &Frame<'_>, configured: FieldSet, others: impl Iterator<Item = &'a Entry>) -> Self {
        let mut all = BTreeMap::from([(frame.api_version.clone(), configured)]);
        for entry in others {
            let version = match Version::of(frame, &entry.api_version) {
                Version::Same => &frame.api_version,
                Version::Other(_) | Version::Gone => &entry.api_version,
            };
            let fields = all.remove(version).unwrap_or_default().union(entry.fields.clone());
            all.insert(version.clone(), fields);
        }
        Self(all)
    }

    /// What may not be removed in a version.
    fn kept(&self, version: &str) -> FieldSet {
        self.0.get(version).cloned().unwrap_or_default().union(Frame::never_owned().clone())
    }

    fn but(&self, version: &str) -> impl Iterator<Item = (&String, &FieldSet)> {
        self.0.iter().filter(move |(other, _)| *other != version)
    }
}

/// Removes from `merged` what was applied last time and is not now, unless somebody owns it in whatever version.
pub(super) fn prune(frame: &Frame<'_>, merged: Value, last: &Entry, owned: &Owned) -> Value {
    let here = &frame.api_version;
    let (at, mut pruned) = match Version::of(frame, &last.api_version) {
        // Nobody knows what those fields are.
        Version::Gone => return merged,
        Version::Same if owned.but(here).next().is_none() => {
            return remove::prune(frame.shape, merged, &last.fields, &owned.kept(here));
        }
        Version::Same => (here, remove::prune(frame.shape, merged.clone(), &last.fields, &owned.kept(here))),
        Version::Other(other) => {
            let kept = owned.kept(&last.api_version);
            let left = remove::prune(other.frame.shape, other.of(&merged), &last.fields, &kept);
            (&last.api_version, other.back(left))
        }
    };
    for (version, fields) in owned.but(at) {
        pruned = match Version::of(frame, version) {
            Version::Gone => continue,
            Version::Same => put_back(frame, &merged, pruned, fields, &owned.kept(version)),
            Version::Other(other) => {
                let (whole, left) = (other.of(&merged), other.of(&pruned));
                other.back(put_back(&other.frame, &whole, left, fields, &owned.kept(version)))
            }
        };
    }
    pruned
}

/// `left` of `whole` with what of `owned` was removed.
fn put_back(frame: &Frame<'_>, whole: &Value, left: Value, owned: &FieldSet, kept: &FieldSet) -> Value {
    let lost = collect(frame.shape, whole).difference(&collect(frame.shape, &left));
    match lost.intersection(owned).is_empty() {
        true => left,
        false => remove::prune(frame.shape, whole.clone(), &lost, kept),
    }
}
