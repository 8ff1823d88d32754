//! Owners of the number of replicas where an object is written through its scale (upstream's `ScaleHandler`).
//!
//! A scale is an object of its own, in a version of its own, and those who own the number of replicas own it there. What the
//! write leaves of them goes back to the object. On that way whoever owned the number by an update loses it to an entry of no time,
//! since upstream tells updates apart by their version, which is another one in the scale. So a scale that is written as it is
//! may change who owns what; two entries of one manager are one again with the next write, when the one without the number counts.

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
use crate::{
    decode,
    kinds::{Kind, KindTable},
    lifecycle,
};

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
    /// The object as the scale asks for it, with its owners.
    ///
    /// # Errors
    /// As [`lifecycle::with_scale`].
    pub fn onto(self, kind: &Kind, live: &Value) -> Result<Value, Status> {
        let mut object = lifecycle::with_scale(kind, live, self.scale)?;
        managers::set_managed_fields(&mut object, self.owners);
        Ok(object)
    }
}

/// The scale of an object as a write finds it, with those who own the number of replicas.
///
/// # Errors
/// As [`lifecycle::scale_of`].
pub fn live_scale(table: &KindTable, kind: &Kind, object: &Value) -> Result<Value, Status> {
    let mut scale = lifecycle::live_scale(kind, object)?;
    let owners = Paths { table, kind }.in_scale(&Managers::of(object));
    managers::set_managed_fields(&mut scale, owners.encode());
    Ok(scale)
}

/// Lays an `autoscaling/v1` `Scale` over that of an object. `request` is as for [`super::apply`], of an object that is there.
///
/// # Errors
/// As [`super::apply`]. 500, as upstream, of every custom resource, unless there is a conflict.
pub fn apply_scale(table: &KindTable, kind: &Kind, request: &ApplyRequest<'_>) -> Result<AppliedScale, Unapplied> {
    let taken = kind.subresource(SUBRESOURCE).map_or(&kind.gvk, |scale| &scale.gvk);
    check_is(taken, &request.applied)?;
    let scale_kind = decode::taken_by(table, kind, taken.clone())?;
    let nothing = Value::Object(Object::new());
    let object = request.live.unwrap_or(&nothing);
    let live = lifecycle::live_scale(kind, object)?;
    let paths = Paths { table, kind };
    let before = Managers::of(object);
    let managers = paths.in_scale(&before);
    let convertible = |what: &str| match kind.is_typed() {
        true => Ok(()),
        false => Err(unconverted(what)),
    };
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

/// What upstream says when it wants to convert the scale of a custom resource, which it does whenever one is applied.
fn unconverted(what: &str) -> Status {
    let why = format!("request to convert CR to an invalid group/version: {VERSION}");
    Status::new(Reason::Unknown, format!("{what}{VERSION}, Kind=Scale) to proper version: {why}"))
}

/// The owners of an object after a write through its scale that is no apply.
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
    let shown = shown(kind, new);
    // A scale that nobody owns anything of stays so.
    if !managers.is_empty() && shown != self::shown(kind, old) {
        managers = Managers::default();
        if shown.is_some() {
            let id = ManagerId::updater(request.manager, VERSION, SUBRESOURCE);
            managers.give(id, VERSION, in_scales(), None);
        }
    }
    paths.in_object(before, managers)
}

/// The number of replicas as a scale shows it: 0 is none. That of a custom resource without one is a number of its own.
fn shown(kind: &Kind, object: &Value) -> Option<i64> {
    let found = lifecycle::replicas_path(kind).iter().try_fold(object, |value, name| value.get(name));
    let unset = (!kind.is_typed()).then_some(lifecycle::NO_REPLICAS);
    found.and_then(Value::as_i64).or(unset).filter(|count| *count != 0)
}

/// Where a scale has the number of replicas.
fn in_scales() -> FieldSet {
    set_of(&[&["spec", "replicas"]])
}

/// Where the versions of a kind have the number of replicas.
struct Paths<'t> {
    table: &'t KindTable,
    kind: &'t Kind,
}

impl Paths<'_> {
    /// `None` for a version that is not known, nothing for one without a scale.
    fn of(&self, api_version: &str) -> Option<FieldSet> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let known = self.table.kind_named(group, version, &self.kind.gvk.kind)?;
        if known.storage != self.kind.storage || known.is_typed() && !known.served {
            return None;
        }
        let path = known.subresource(SUBRESOURCE).map(|_| set_of(&[&lifecycle::replicas_path(known)]));
        Some(path.unwrap_or_default())
    }

    /// The owners of the scale, among those of the object.
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

    /// The owners of the object, with those that its scale has now. Entries of versions that are not known go.
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
        let own = set_of(&[&lifecycle::replicas_path(self.kind)]);
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
