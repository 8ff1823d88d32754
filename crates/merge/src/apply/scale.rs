//! Owners of the number of replicas where an object is written through its scale (Kubernetes' `ScaleHandler`).
//!
//! A scale is an object with a version of its own, and owners of the number of replicas own the field of the scale
//! there. After the write, the remaining owners are written back to the object. In this step an owner by an update
//! loses the number to an entry without a time, because kube-apiserver distinguishes updates by their version, which
//! differs in the scale. So an unchanged scale that is written may change ownership. The next write merges two entries
//! of one manager, and the one without the number wins.

use portolan_types::{
    Reason, Status,
    object::{self, Object},
};
use serde_json::Value;

use super::{
    Apply, ApplyRequest, Frame, Unapplied, UpdateRequest, check_is,
    frame::set_of,
    managers::{self, Entry, ManagerId, Managers},
    set::FieldSet,
};
use crate::scale;
use portolan_codec::decode;
use portolan_kinds::{Kind, KindTable};

/// The version of scales.
const VERSION: &str = "autoscaling/v1";
const SUBRESOURCE: &str = "scale";

/// A configuration that has been laid over the scale of an object.
pub struct AppliedScale {
    /// The scale, canonical.
    pub scale: Value,
    owners: Option<Value>,
}

impl AppliedScale {
    /// Returns the object changed as the scale requires, with its owners.
    ///
    /// # Errors
    /// Fails as [`scale::with_scale`] does.
    pub fn onto(self, kind: &Kind, live: &Value) -> Result<Value, Status> {
        let mut object = scale::with_scale(kind, live, self.scale)?;
        managers::set_managed_fields(&mut object, self.owners);
        Ok(object)
    }
}

/// Returns the scale of an object for a write, with the owners of the number of replicas.
///
/// # Errors
/// Fails as [`scale::scale_of`] does.
pub fn live_scale(table: &KindTable, kind: &Kind, object: &Value) -> Result<Value, Status> {
    let mut scale = scale::live_scale(kind, object)?;
    let owners = Paths { table, kind }.in_scale(&Managers::of(object));
    managers::set_managed_fields(&mut scale, owners.encode());
    Ok(scale)
}

/// Applies an `autoscaling/v1` `Scale` to the scale of an object. `request` is as for [`super::apply`], and its object
/// must exist.
///
/// # Errors
/// See [`super::apply`]. 500, as in kube-apiserver, for every custom resource, unless there is a conflict.
pub fn apply_scale(table: &KindTable, kind: &Kind, request: &ApplyRequest<'_>) -> Result<AppliedScale, Unapplied> {
    let taken = kind.subresource(SUBRESOURCE).map_or(&kind.gvk, |scale| &scale.gvk);
    check_is(taken, &request.applied)?;
    let scale_kind = decode::taken_by(table, kind, taken.clone())?;
    let nothing = Value::Object(Object::new());
    let object = request.live.unwrap_or(&nothing);
    let live = scale::live_scale(kind, object)?;
    let paths = Paths { table, kind };
    let before = Managers::of(object);
    let managers = paths.in_scale(&before);
    let convertible = |what: &str| if kind.is_typed() { Ok(()) } else { Err(unconverted(what)) };
    if managers.is_empty() {
        convertible("failed to create manager for existing fields: failed to convert live object (/; ")?;
    }
    let frame = Frame::new(table, &scale_kind, Some(SUBRESOURCE), request.conversions);
    let id = ManagerId::applier(request.manager, SUBRESOURCE);
    let apply = Apply { frame: &frame, live: &live, applied: &request.applied, id: &id, now: request.now };
    let (mut scale, managers) = apply.run(managers, request.force)?;
    let (namespace, name) = (object::namespace(&request.applied), object::name(&request.applied));
    convertible(&format!("failed to convert new object ({namespace}/{name}; "))?;
    decode::make_applied_canonical(table, &scale_kind, &request.applied, &mut scale)?;
    Ok(AppliedScale { scale, owners: paths.in_object(before, managers) })
}

/// Returns kube-apiserver's error for converting the scale of a custom resource, which it tries whenever one is
/// applied.
fn unconverted(what: &str) -> Status {
    let why = format!("request to convert CR to an invalid group/version: {VERSION}");
    Status::new(Reason::Unknown, format!("{what}{VERSION}, Kind=Scale) to proper version: {why}"))
}

/// Returns the owners of an object after a write through its scale that is no apply.
pub(super) fn updated(
    table: &KindTable,
    kind: &Kind,
    request: &UpdateRequest<'_>,
    old: &Value,
    new: &Value,
) -> Option<Value> {
    let paths = Paths { table, kind };
    let before = Managers::of(old);
    let mut managers = paths.in_scale(&before);
    let shown = scale_replicas(kind, new);
    // A scale without owners stays without.
    if !managers.is_empty() && shown != scale_replicas(kind, old) {
        managers = Managers::default();
        if shown.is_some() {
            let id = ManagerId::updater(request.manager, VERSION, SUBRESOURCE);
            managers.give(id, VERSION, in_scales(), None);
        }
    }
    paths.in_object(before, managers)
}

/// Returns the number of replicas as a scale shows it: a zero is absent. A custom resource without a number shows its
/// own placeholder.
fn scale_replicas(kind: &Kind, object: &Value) -> Option<i64> {
    let found = scale::replicas_path(kind).iter().try_fold(object, |value, name| value.get(name));
    let unset = (!kind.is_typed()).then_some(scale::NO_REPLICAS);
    found.and_then(Value::as_i64).or(unset).filter(|count| *count != 0)
}

/// Returns the path of the replicas in a scale.
fn in_scales() -> FieldSet {
    set_of(&[&["spec", "replicas"]])
}

/// Paths of the replicas in the versions of a kind.
struct Paths<'t> {
    table: &'t KindTable,
    kind: &'t Kind,
}

impl Paths<'_> {
    /// Returns the path in a version: `None` if it is unknown, an empty set if it has no scale.
    fn of(&self, api_version: &str) -> Option<FieldSet> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let known = self.table.kind_named(group, version, &self.kind.gvk.kind)?;
        if known.storage != self.kind.storage || known.is_typed() && !known.served {
            return None;
        }
        let path = known.subresource(SUBRESOURCE).map(|_| set_of(&[&scale::replicas_path(known)]));
        Some(path.unwrap_or_default())
    }

    /// Returns the owners of the scale, among those of the object.
    fn in_scale(&self, owners: &Managers) -> Managers {
        let mut managers = Managers::default();
        for (id, entry) in owners.iter() {
            if self.of(&entry.api_version).is_some_and(|path| has(entry, &path)) {
                let Entry { time, .. } = entry.clone();
                managers.put(id.in_version(VERSION), Entry { api_version: VERSION.into(), time, fields: in_scales() });
            }
        }
        managers
    }

    /// Returns the owners of the object, with those that its scale has now. Entries of versions that are not known go.
    fn in_object(&self, before: Managers, mut scale: Managers) -> Option<Value> {
        let times: Vec<_> = before.iter().map(|(id, entry)| (id.clone(), entry.time.clone())).collect();
        let mut entries = Vec::new();
        for (id, mut entry) in before {
            let Some(path) = self.of(&entry.api_version) else { continue };
            if has(&entry, &path) && scale.take(&id).is_none() {
                entry.fields = entry.fields.difference(&path);
                if entry.fields.is_empty() {
                    continue;
                }
            }
            entries.push((id, entry));
        }
        let api_version = self.kind.group_version().to_string();
        let own = set_of(&[&scale::replicas_path(self.kind)]);
        for (id, _) in scale.into_iter().filter(|(_, entry)| has(entry, &in_scales())) {
            let time = times.iter().find(|(before, _)| *before == id).and_then(|(_, time)| time.clone());
            entries.push((id, Entry { api_version: api_version.clone(), time, fields: own.clone() }));
        }
        managers::encode(entries.iter().map(|(id, entry)| (id, entry)))
    }
}

fn has(entry: &Entry, path: &FieldSet) -> bool {
    !entry.fields.intersection(path).is_empty()
}
