//! Owners that wrote in other versions of the kind. They own fields of those versions, so the changes of a write are
//! computed in each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    collect::{collect, with_declared},
    compare::Difference,
    conversions::UnavailableVersion,
    frame::Frame,
    managers::{self, Entry, Managers},
    reconcile::reconcile,
    remove,
    set::FieldSet,
    shape::OwnershipShape,
    validate,
};
use portolan_kinds::Kind;

/// Version of an owner, as seen from a write.
enum Version<'t> {
    /// Version of the write.
    Same,
    Other(Box<Other<'t>>),
    /// The version is not served, or is of another group, as for events: kube-apiserver drops such owners at the next
    /// write.
    Gone,
}

/// Another version of the kind.
struct Other<'t> {
    frame: Frame<'t>,
    /// The version of the write.
    written: &'t Kind,
}

impl<'t> Version<'t> {
    /// Returns a version by name; for a custom resource it need not be served.
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

    fn shape(&self, frame: &Frame<'t>) -> OwnershipShape<'t> {
        match self {
            Self::Other(other) => other.frame.shape,
            Self::Same | Self::Gone => frame.shape,
        }
    }

    /// Returns an object of the write in this version.
    fn of(&self, object: &Value) -> Result<Value, UnavailableVersion> {
        match self {
            Self::Other(other) => other.of(object),
            Self::Same | Self::Gone => Ok(object.clone()),
        }
    }

    /// Converts back, with the `managedFields` of `whole`.
    fn back(&self, object: Value, whole: &Value) -> Result<Value, UnavailableVersion> {
        match self {
            Self::Other(other) => other.back(&object, whole),
            Self::Same | Self::Gone => Ok(object),
        }
    }
}

impl Other<'_> {
    /// Returns an object of the write in this version.
    fn of(&self, object: &Value) -> Result<Value, UnavailableVersion> {
        let frame = &self.frame;
        let converted = frame.conversions.between(frame.table, (self.written, frame.kind), object)?;
        checked(frame, converted)
    }

    /// Returns an object of this version in that of the write, with the record of owners that `whole` has.
    fn back(&self, object: &Value, whole: &Value) -> Result<Value, UnavailableVersion> {
        let frame = &self.frame;
        let mut object = frame.conversions.between(frame.table, (frame.kind, self.written), object)?;
        if let Some(fields) = managers::managed_fields(whole) {
            managers::set_managed_fields(&mut object, Some(fields.clone()));
        }
        Ok(object)
    }
}

/// Returns a converted object, if it is one of its version.
fn checked(frame: &Frame<'_>, converted: Value) -> Result<Value, UnavailableVersion> {
    let complaints = (!frame.kind.is_typed()).then(|| validate::complaints(frame.shape, &converted)).flatten();
    complaints.map_or(Ok(converted), |all| Err(UnavailableVersion::Failed(all)))
}

/// Returns the owners of an object under its present schema: fields inside of newly atomic values are replaced by
/// those. A custom resource has to be known in the version of each owner.
///
/// # Errors
/// Fails if it is not, or does not fit that version.
pub(super) fn settle(frame: &Frame<'_>, managers: &mut Managers, live: &Value) -> Result<(), UnavailableVersion> {
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

/// Returns the error for a version that the definition no longer has.
fn no_version(frame: &Frame<'_>, api_version: &str) -> UnavailableVersion {
    let checked = frame.table.conversion().map(|conversion| conversion.check(&frame.api_version, api_version));
    UnavailableVersion::Failed(checked.and_then(Result::err).unwrap_or_else(|| format!("{api_version} is not known")))
}

/// Changes of a write, in the fields of each version that has owners.
pub(super) struct Differences {
    written: Difference,
    /// Nothing for versions that are not served.
    others: BTreeMap<String, Option<Difference>>,
}

impl Differences {
    /// Returns the differences from `old` to `new`, both in the version of the write, in which it is `written`, for
    /// these owners.
    ///
    /// # Errors
    /// A field that is unknown in another version.
    pub(super) fn new<'a>(
        frame: &Frame<'_>,
        owners: impl Iterator<Item = &'a Entry>,
        written: Difference,
        (old, new): (&Value, &Value),
    ) -> Result<Self, UnavailableVersion> {
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

    /// Returns the change in the version of an owner; `None` if it is not served.
    pub(super) fn of(&self, owner: &Entry) -> Option<&Difference> {
        self.others.get(&owner.api_version).map_or(Some(&self.written), Option::as_ref)
    }
}

/// Owned fields by version.
pub(super) struct Owned(BTreeMap<String, FieldSet>);

impl Owned {
    /// Collects the fields configured in the version of the write, and the fields that `others` own.
    pub(super) fn of<'a>(frame: &Frame<'_>, configured: FieldSet, others: impl Iterator<Item = &'a Entry>) -> Self {
        let mut all = BTreeMap::from([(frame.api_version.clone(), configured)]);
        for entry in others {
            let fields = all.remove(&entry.api_version).unwrap_or_default().union(entry.fields.clone());
            all.insert(entry.api_version.clone(), fields);
        }
        Self(all)
    }

    /// Returns the fields that may not be removed in a version.
    fn protected_fields(&self, version: &str) -> FieldSet {
        self.0.get(version).cloned().unwrap_or_default().union(Frame::never_owned().clone())
    }

    fn but(&self, version: &str) -> impl Iterator<Item = (&String, &FieldSet)> {
        self.0.iter().filter(move |(other, _)| *other != version)
    }
}

/// Removes from `merged` the fields that were applied last time and are not now, unless somebody owns them in any
/// version.
///
/// # Errors
/// Fails if the remaining object is not known in another version.
pub(super) fn prune(
    frame: &Frame<'_>,
    merged: Value,
    last: &Entry,
    owned: &Owned,
) -> Result<Value, UnavailableVersion> {
    let (here, before) = (&frame.api_version, &last.api_version);
    let version = match Version::named(frame, before) {
        // The fields of an unserved version are unknown.
        Version::Gone => return Ok(merged),
        Version::Same if owned.but(here).next().is_none() => {
            return Ok(remove::prune(frame.shape, merged, &last.fields, &owned.protected_fields(here)));
        }
        version => version,
    };
    let shape = version.shape(frame);
    let last = with_declared(&last.fields, shape);
    let whole = version
        .of(&merged)
        .map_err(|stuck| stuck.while_it("failed to convert merged object to last applied version"))?;
    let left = put_back(shape, &whole, &remove::remove(shape, &whole, &last), &owned.protected_fields(before));
    let mut pruned = version.back(left, &merged)?;
    for other in owned.but(before).map(|(other, _)| other) {
        let known = Version::named(frame, other);
        if !matches!(known, Version::Gone) {
            pruned = put_back_in(frame, &known, (&merged, &pruned), &owned.protected_fields(other)).map_err(
                |(stuck, what)| {
                    let tried =
                        format!("failed add back owned items: failed to convert {what} object at version {other}");
                    stuck.while_it(&tried)
                },
            )?;
        }
    }
    let tried = "failed add back dangling items: failed to convert pruned object to last applied version";
    let left = version.of(&pruned).map_err(|stuck| stuck.while_it(tried))?;
    // Only the manager's own fields are removed; the rest was inside of them without an owner.
    let lost = fields_of(shape, &whole).difference(&fields_of(shape, &left)).intersection(&last);
    version.back(remove::remove(shape, &whole, &lost), &merged)
}

/// Puts back, in the version of the write, the left or owned fields of an object in another version. Conversions on the
/// way do not change the values.
fn put_back_in(
    frame: &Frame<'_>,
    version: &Version<'_>,
    (merged, left): (&Value, &Value),
    owned: &FieldSet,
) -> Result<Value, (UnavailableVersion, &'static str)> {
    let whole = version.of(merged).map_err(|stuck| (stuck, "merged"))?;
    let left = version.of(left).map_err(|stuck| (stuck, "pruned"))?;
    let left = put_back(version.shape(frame), &whole, &left, owned);
    version.back(left, merged).map_err(|stuck| (stuck, "pruned"))
}

/// Returns `whole` without the fields that are neither in `left` nor owned.
fn put_back(shape: OwnershipShape<'_>, whole: &Value, left: &Value, owned: &FieldSet) -> Value {
    let rest = fields_of(shape, left).union(with_declared(owned, shape));
    remove::remove(shape, whole, &fields_of(shape, whole).difference(&rest))
}

fn fields_of(shape: OwnershipShape<'_>, value: &Value) -> FieldSet {
    with_declared(&collect(shape, value), shape)
}
