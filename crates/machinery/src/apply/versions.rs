//! Owners that wrote in other versions of the kind. What they own are fields of theirs, so what a write changes is told in the
//! fields of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    collect::{collect, with_declared},
    compare::Difference,
    conversions::Stuck,
    frame::Frame,
    managers::{self, Entry, Managers},
    reconcile::reconcile,
    remove,
    set::FieldSet,
    shape::Shape,
    validate,
};
use crate::kinds::Kind;

/// What the version of an owner is to a write.
enum Version<'t> {
    /// That of the write.
    Same,
    Other(Box<Other<'t>>),
    /// None that is served, or one of another group, as events have: upstream forgets such owners with the next write.
    Gone,
}

/// Another version of the kind.
struct Other<'t> {
    frame: Frame<'t>,
    /// The version of the write.
    written: &'t Kind,
}

impl<'t> Version<'t> {
    /// Of a custom resource also versions that are not served.
    fn named(frame: &Frame<'t>, api_version: &str) -> Self {
        let written = frame.kind;
        if api_version == frame.api_version {
            return Self::Same;
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let kind = frame.table.kind_named(group, version, &written.gvk.kind);
        let is_of_group = group == &*written.gvk.group;
        let fits =
            |kind: &&Arc<Kind>| is_of_group && (kind.served || !kind.is_typed()) && kind.storage == written.storage;
        match kind.filter(fits) {
            None => Self::Gone,
            Some(kind) => {
                let subresource = Some(frame.subresource).filter(|part| !part.is_empty());
                let frame = Frame::new(frame.table, kind, subresource, frame.conversions);
                Self::Other(Box::new(Other { frame, written }))
            }
        }
    }

    fn shape(&self, frame: &Frame<'t>) -> Shape<'t> {
        match self {
            Self::Other(other) => other.frame.shape,
            Self::Same | Self::Gone => frame.shape,
        }
    }

    /// An object of the write in this version.
    fn of(&self, object: &Value) -> Result<Value, Stuck> {
        match self {
            Self::Other(other) => other.of(object),
            Self::Same | Self::Gone => Ok(object.clone()),
        }
    }

    /// And back again, with the record of owners that `whole` has.
    fn back(&self, object: Value, whole: &Value) -> Result<Value, Stuck> {
        match self {
            Self::Other(other) => other.back(&object, whole),
            Self::Same | Self::Gone => Ok(object),
        }
    }
}

impl Other<'_> {
    /// An object of the write in this version.
    fn of(&self, object: &Value) -> Result<Value, Stuck> {
        let frame = &self.frame;
        let converted = frame.conversions.between(frame.table, (self.written, frame.kind), object)?;
        checked(frame, converted)
    }

    /// An object of this version in that of the write, with the record of owners that `whole` has.
    fn back(&self, object: &Value, whole: &Value) -> Result<Value, Stuck> {
        let frame = &self.frame;
        let mut object = frame.conversions.between(frame.table, (frame.kind, self.written), object)?;
        if let Some(fields) = managers::managed_fields(whole) {
            managers::set_managed_fields(&mut object, Some(fields.clone()));
        }
        Ok(object)
    }
}

/// A converted object, if it is one of its version.
fn checked(frame: &Frame<'_>, converted: Value) -> Result<Value, Stuck> {
    let complaints = (!frame.kind.is_typed()).then(|| validate::complaints(frame.shape, &converted)).flatten();
    complaints.map_or(Ok(converted), |all| Err(Stuck::Failed(all)))
}

/// The owners that an object has, as its schema is now: what has come to be owned as a whole is. For a custom resource it has to be
/// known in the version of each of them.
///
/// # Errors
/// Where it is not, or not as that version has it.
pub(super) fn settle(frame: &Frame<'_>, managers: &mut Managers, live: &Value) -> Result<(), Stuck> {
    if frame.kind.is_typed() {
        return Ok(());
    }
    let versions: BTreeSet<String> = managers.entries().map(|entry| entry.api_version.clone()).collect();
    for version in versions {
        let known = Version::named(frame, &version);
        match &known {
            Version::Same => {}
            Version::Other(other) => drop(other.of(live)?),
            Version::Gone => return Err(no_version(frame, &version)),
        }
        let shape = known.shape(frame);
        managers.of_version(&version).for_each(|entry| reconcile(shape, &mut entry.fields));
    }
    Ok(())
}

/// What is said of a version that the definition does not have any more.
fn no_version(frame: &Frame<'_>, api_version: &str) -> Stuck {
    let checked = frame.table.conversion().map(|conversion| conversion.check(&frame.api_version, api_version));
    Stuck::Failed(checked.and_then(Result::err).unwrap_or_else(|| format!("{api_version} is not known")))
}

/// What a write changes, in the fields of each version that somebody owns fields of.
pub(super) struct Differences {
    written: Difference,
    /// Nothing for versions that are not served.
    others: BTreeMap<String, Option<Difference>>,
}

impl Differences {
    /// Those from `old` to `new`, both in the version of the write, in which it is `written`, for these owners.
    ///
    /// # Errors
    /// Where one of them is not known in another version.
    pub(super) fn new<'a>(
        frame: &Frame<'_>,
        owners: impl Iterator<Item = &'a Entry>,
        written: Difference,
        (old, new): (&Value, &Value),
    ) -> Result<Self, Stuck> {
        let mut others = BTreeMap::new();
        for version in owners.map(|entry| &entry.api_version).filter(|version| **version != frame.api_version) {
            if others.contains_key(version) {
                continue;
            }
            let difference = match Version::named(frame, version) {
                Version::Same => continue,
                Version::Gone => None,
                Version::Other(other) => {
                    let old = other.of(old).map_err(|stuck| stuck.while_it("failed to convert old object"))?;
                    let new = other.of(new).map_err(|stuck| stuck.while_it("failed to convert new object"))?;
                    Some(other.frame.difference(&old, &new))
                }
            };
            others.insert(version.clone(), difference);
        }
        Ok(Self { written, others })
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
            let fields = all.remove(&entry.api_version).unwrap_or_default().union(entry.fields.clone());
            all.insert(entry.api_version.clone(), fields);
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
///
/// # Errors
/// Where what is left is not known in another version.
pub(super) fn prune(frame: &Frame<'_>, merged: Value, last: &Entry, owned: &Owned) -> Result<Value, Stuck> {
    let (here, before) = (&frame.api_version, &last.api_version);
    let version = match Version::named(frame, before) {
        // Nobody knows what those fields are.
        Version::Gone => return Ok(merged),
        Version::Same if owned.but(here).next().is_none() => {
            return Ok(remove::prune(frame.shape, merged, &last.fields, &owned.kept(here)));
        }
        version => version,
    };
    let shape = version.shape(frame);
    let last = with_declared(&last.fields, shape);
    let whole = version
        .of(&merged)
        .map_err(|stuck| stuck.while_it("failed to convert merged object to last applied version"))?;
    let left = put_back(shape, &whole, &remove::remove(shape, &whole, &last), &owned.kept(before));
    let mut pruned = version.back(left, &merged)?;
    for other in owned.but(before).map(|(other, _)| other) {
        let known = Version::named(frame, other);
        if !matches!(known, Version::Gone) {
            pruned = put_back_in(frame, &known, (&merged, &pruned), &owned.kept(other)).map_err(|(stuck, what)| {
                let tried = format!("failed add back owned items: failed to convert {what} object at version {other}");
                stuck.while_it(&tried)
            })?;
        }
    }
    let tried = "failed add back dangling items: failed to convert pruned object to last applied version";
    let left = version.of(&pruned).map_err(|stuck| stuck.while_it(tried))?;
    // Only what the manager had itself goes; the rest hung on to it unowned.
    let lost = fields_of(shape, &whole).difference(&fields_of(shape, &left)).intersection(&last);
    version.back(remove::remove(shape, &whole, &lost), &merged)
}

/// What is left of an object, and in another version is left of it or owned, in the version of the write. Whatever it is converted to
/// on the way, the values are those that it had.
fn put_back_in(
    frame: &Frame<'_>,
    version: &Version<'_>,
    (merged, left): (&Value, &Value),
    owned: &FieldSet,
) -> Result<Value, (Stuck, &'static str)> {
    let whole = version.of(merged).map_err(|stuck| (stuck, "merged"))?;
    let left = version.of(left).map_err(|stuck| (stuck, "pruned"))?;
    let left = put_back(version.shape(frame), &whole, &left, owned);
    version.back(left, merged).map_err(|stuck| (stuck, "pruned"))
}

/// `whole` without what is neither in `left` nor owned.
fn put_back(shape: Shape<'_>, whole: &Value, left: &Value, owned: &FieldSet) -> Value {
    let rest = fields_of(shape, left).union(with_declared(owned, shape));
    remove::remove(shape, whole, &fields_of(shape, whole).difference(&rest))
}

fn fields_of(shape: Shape<'_>, value: &Value) -> FieldSet {
    with_declared(&collect(shape, value), shape)
}
