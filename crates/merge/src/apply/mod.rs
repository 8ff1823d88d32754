//! Server-side apply, and the record of who owns which field (`metadata.managedFields`).
//!
//! The model is that of Kubernetes' structured merge diff. Every write belongs to a manager. A manager that applies
//! owns the fields of its last configuration; one that writes in another way owns the fields it changed. Fields with
//! equal values may have several owners. The kind table says which lists and objects are owned as a whole, and by which
//! fields the elements of a list are distinguished.
//!
//! `managedFields` stay opaque until they are needed: a write that changes nothing does not read them, and a new object
//! gets its single entry straight from the tree.
//!
//! The fields of an owner that wrote in another version are compared in that version. For a custom resource this may
//! need a webhook: see [`Conversions`].

mod collect;
mod compare;
mod conflict;
mod conversions;
mod created;
#[cfg(test)]
mod custom_tests;
mod frame;
mod last_applied;
mod lay_over;
mod managers;
mod merge;
mod reconcile;
mod remove;
mod scale;
mod set;
mod shape;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unfit_tests;
mod validate;
mod versions;

use portolan_types::{
    GroupVersionKind, Reason, Status,
    object::{self, Object},
};
use serde_json::{Value, json};

use self::{
    compare::Difference,
    conflict::Conflicts,
    conversions::UnavailableVersion,
    frame::Frame,
    managers::{BEFORE_FIRST_APPLY, Entry, ManagerId, Managers, but},
    set::FieldSet,
    versions::{Differences, Owned},
};
use portolan_kinds::{Kind, KindTable};

pub use conversions::{Conversions, MissingConversion, Unapplied, Unconverted};
pub use lay_over::lay_over;
pub use scale::{AppliedScale, apply_scale, live_scale};

/// An apply patch for one object.
#[derive(Clone, Debug)]
pub struct ApplyRequest<'a> {
    /// The stored object; `None` creates it.
    pub live: Option<&'a Value>,
    /// The configuration as the client sent it, without defaults and not canonical: the manager owns only the fields
    /// that it contains.
    pub applied: Value,
    /// The field manager; it is required for apply.
    pub manager: &'a str,
    /// Takes fields in conflict over.
    pub force: bool,
    /// The subresource that is applied to.
    pub subresource: Option<&'a str>,
    /// The present moment, RFC 3339 in whole seconds.
    pub now: &'a str,
    /// Cache of this write's objects in other versions.
    pub conversions: &'a Conversions,
}

/// Lays an applied configuration over an object.
///
/// The result is the whole object with its new `managedFields`. It is not canonical yet: like every write, it still
/// passes decoding, defaults and lifecycle, and then [`keep_times`].
///
/// # Errors
/// - 400 if the configuration is of another version or kind, or contains `managedFields`.
/// - 409 if fields belong to others, with a cause for each.
/// - 500, as in kube-apiserver, if the configuration has unknown fields or values of a wrong type, if elements of a
///   list cannot be distinguished before or after, or if the object cannot be converted to the version of an owner.
/// - [`Unapplied::Unconverted`] if a webhook must convert an object first.
pub fn apply(table: &KindTable, kind: &Kind, request: ApplyRequest<'_>) -> Result<Value, Unapplied> {
    let frame = Frame::new(table, kind, request.subresource, request.conversions);
    check_is(&kind.gvk, &request.applied)?;
    let nothing = Value::Object(Object::new());
    let live = request.live.unwrap_or(&nothing);
    let id = ManagerId::applier(request.manager, frame.subresource);
    let apply = Apply { frame: &frame, live, applied: &request.applied, id: &id, now: request.now };
    let (mut merged, managers) = apply.run(Managers::of(live), request.force)?;
    if request.manager == last_applied::KUBECTL {
        last_applied::refresh(&mut merged, &request.applied);
    }
    managers::set_managed_fields(&mut merged, managers.encode());
    keep_times(live, &mut merged);
    Ok(merged)
}

/// # Errors
/// 400 when a configuration is of another version or kind.
fn check_is(expected: &GroupVersionKind, applied: &Value) -> Result<(), Status> {
    let text = |key: &str| applied.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") == expected.group_version().to_string() && text("kind") == &*expected.kind {
        return Ok(());
    }
    let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
    Err(Status::bad_request(format!("invalid object type: {group}/{version}, Kind={}", text("kind"))))
}

/// Why a configuration cannot be laid over an object.
enum Unmerged {
    Conflicts(Conflicts),
    /// Lists that lose all fields of their elements, while no manager is known to have applied the elements.
    /// kube-apiserver fails there.
    Emptied(String),
    /// Object in the version of an owner.
    UnavailableVersion(UnavailableVersion),
}

impl From<UnavailableVersion> for Unmerged {
    fn from(stuck: UnavailableVersion) -> Self {
        Self::UnavailableVersion(stuck)
    }
}

impl From<Unmerged> for Unapplied {
    fn from(unmerged: Unmerged) -> Self {
        match unmerged {
            Unmerged::Conflicts(conflicts) => conflicts.to_status().into(),
            Unmerged::Emptied(why) => Status::new(Reason::Unknown, format!("failed to compare objects: {why}")).into(),
            Unmerged::UnavailableVersion(stuck) => stuck.into(),
        }
    }
}

/// Apply with validated parts.
struct Apply<'a> {
    frame: &'a Frame<'a>,
    live: &'a Value,
    applied: &'a Value,
    id: &'a ManagerId,
    now: &'a str,
}

impl Apply<'_> {
    /// Returns the object with the configuration applied, and its new owners. `owners` are those of the live object.
    fn run(&self, owners: Managers, force: bool) -> Result<(Value, Managers), Unapplied> {
        // Checked at the same point as in kube-apiserver, which fails when it gives the existing fields an owner.
        let unfit = validate::misfits(self.frame.shape, self.live);
        if let (Some(all), true) = (&unfit, owners.is_empty()) {
            let tried = "failed to create manager for existing fields: failed to convert new object";
            return Err(self.failed(self.live, (tried, " to smd typed"), all).into());
        }
        if object::metadata(self.applied).get("managedFields").is_some_and(|fields| !fields.is_null()) {
            return Err(Status::bad_request("metadata.managedFields must be nil").into());
        }
        self.check_merges()?;
        if let Some(all) = unfit {
            return Err(self.failed(self.live, ("failed to create typed live object", ""), &all).into());
        }
        let mut managers = if owners.is_empty() { self.before_first() } else { owners };
        versions::settle(self.frame, &mut managers, self.live)?;
        match self.lay_over(managers.clone(), force) {
            Err(Unmerged::Conflicts(conflicts)) => self.forgive_kubectl(managers, &conflicts),
            done => Ok(done?),
        }
    }

    fn check_merges(&self) -> Result<(), Status> {
        let complaints = validate::complaints(self.frame.shape, self.applied);
        let tried = ("failed to create typed patch object", "");
        complaints.map_or(Ok(()), |all| Err(self.failed(self.applied, tried, &all)))
    }

    /// Returns a 500, as kube-apiserver does for every object that it cannot convert to a typed value.
    fn failed(&self, object: &Value, (tried, into): (&str, &str), why: &str) -> Status {
        let (namespace, name) = (object::namespace(object), object::name(object));
        let GroupVersionKind { group, version, kind } = &self.frame.kind.gvk;
        let text = format!("{tried} ({namespace}/{name}; {group}/{version}, Kind={kind}){into}: {why}");
        Status::new(Reason::Unknown, text)
    }

    /// Returns the managers, with `before-first-apply` as owner of fields from before anything was recorded.
    fn before_first(&self) -> Managers {
        let Frame { api_version, subresource, .. } = self.frame;
        let fields = created_fields(self.frame, self.live);
        let mut managers = Managers::default();
        let fields = FieldSet::parse(&Value::Object(fields)).map(|fields| fields.difference(Frame::the_servers()));
        if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
            managers.give(
                ManagerId::updater(BEFORE_FIRST_APPLY, api_version, subresource),
                api_version,
                fields,
                Some(self.now.to_owned()),
            );
        }
        managers
    }

    fn lay_over(&self, mut managers: Managers, force: bool) -> Result<(Value, Managers), Unmerged> {
        let shape = self.frame.shape;
        let last = managers.get(self.id).cloned();
        let configured = collect::collect(shape, self.applied).outside(&self.frame.reset);
        let merged = merge::merge(shape, self.live, self.applied);
        let merged = match &last {
            None => merged,
            Some(last) => {
                let others = managers.others(self.id).map(|(_, entry)| entry);
                let owned = Owned::of(self.frame, configured.clone(), others);
                let pruned = versions::prune(self.frame, merged, last, &owned);
                let pruned = pruned.map_err(|stuck| stuck.while_it("failed to prune fields"))?;
                validate::emptied(shape, &pruned).map_or(Ok(pruned), |why| Err(Unmerged::Emptied(why)))?
            }
        };
        let written = self.frame.difference(self.live, &merged);
        let others = managers.others(self.id).map(|(_, entry)| entry);
        let changed = Differences::new(self.frame, others, written, (self.live, &merged))?;
        if !force {
            let conflicts = self.conflicts(&managers, &changed);
            if !conflicts.is_empty() {
                return Err(Unmerged::Conflicts(conflicts));
            }
        }
        managers.take_away(&changed, Some(self.id));
        let fields = configured.difference(Frame::never_owned());
        // A manager that only gains or loses ownership of unchanged fields keeps its time.
        let time = if merged == *self.live { last.and_then(|last| last.time) } else { Some(self.now.to_owned()) };
        managers.put(self.id.clone(), Entry { api_version: self.frame.api_version.clone(), time, fields });
        managers.sweep();
        Ok((merged, managers))
    }

    fn conflicts(&self, managers: &Managers, changed: &Differences) -> Conflicts {
        let lost = managers
            .others(self.id)
            .filter_map(|(id, entry)| Some((id.clone(), entry.fields.intersection(&changed.of(entry)?.written()))));
        Conflicts(lost.filter(|(_, fields)| !fields.is_empty()).collect())
    }

    /// Drops conflicts of kubectl with its own client-side applies.
    fn forgive_kubectl(&self, managers: Managers, conflicts: &Conflicts) -> Result<(Value, Managers), Unapplied> {
        let own = match &*self.id.manager {
            last_applied::KUBECTL => last_applied::still_applied(self.frame, self.live),
            _ => None,
        };
        let Some(own) = own else { return Err(conflicts.to_status().into()) };
        let left = conflicts.outside(&own);
        if left.is_empty() { Ok(self.lay_over(managers, true)?) } else { Err(left.to_status().into()) }
    }
}

/// A write that is not an apply.
#[derive(Clone, Debug)]
pub struct UpdateRequest<'a> {
    /// The stored object; `None` for a create.
    pub old: Option<&'a Value>,
    /// The field manager.
    pub manager: &'a str,
    /// The subresource that is written to. Through `scale` the number of replicas is.
    pub subresource: Option<&'a str>,
    /// The present moment, RFC 3339 in whole seconds.
    pub now: &'a str,
    /// Cache of this write's objects in other versions.
    pub conversions: &'a Conversions,
}

/// Records a write that is not an apply: the manager owns the fields it changed, and other owners lose them.
///
/// `new` is the object to store, with the `managedFields` that the client sent, if any. A client may edit them, or
/// reset them by `[]` or `[{}]`; without any, those of the old object hold. Call this after defaults and before the
/// server fills in its own fields (`prepare_create`, `prepare_update`), which have no owner. All ownership is dropped,
/// as in kube-apiserver, if the object cannot be converted to the version of an owner, or if it has values that its
/// schema forbids or elements that cannot be distinguished.
///
/// # Errors
/// Fails if a webhook has to be asked first; `new` is unchanged then.
pub fn track_update(
    table: &KindTable,
    kind: &Kind,
    request: &UpdateRequest<'_>,
    new: &mut Value,
) -> Result<(), Unconverted> {
    let UpdateRequest { old, manager, subresource, now, conversions } = *request;
    if let (Some("scale"), Some(old)) = (subresource, old) {
        let owners = scale::updated(table, kind, request, old, new);
        managers::set_managed_fields(new, owners);
        return Ok(());
    }
    let frame = Frame::new(table, kind, subresource, conversions);
    let id = ManagerId::updater(manager, &frame.api_version, frame.subresource);
    let tracked = match old {
        None => created(&frame, new, id, now),
        Some(old) => updated(&frame, old, new, id, now),
    };
    let tracked = match tracked {
        Ok(tracked) => tracked,
        Err(UnavailableVersion::Failed(_)) => None,
        Err(UnavailableVersion::Unconverted) => return Err(Unconverted),
    };
    managers::set_managed_fields(new, tracked);
    Ok(())
}

/// Returns the owners that a client sends, if it sends some that can be read. They cannot be edited through a
/// subresource.
fn sent(frame: &Frame<'_>, new: &Value) -> Option<Managers> {
    let given = managers::managed_fields(new).filter(|_| frame.subresource.is_empty())?;
    let mut given = Managers::decode(Some(given)).ok().filter(|given| !given.is_empty())?;
    given.disown(Frame::the_servers());
    Some(given)
}

/// Returns the owners of a new object: its creator owns all its fields. Managers in the `managedFields` it was sent
/// with keep only fields that it lacks.
fn created(frame: &Frame<'_>, new: &Value, id: ManagerId, now: &str) -> Result<Option<Value>, UnavailableVersion> {
    if !validate::fits(frame.shape, new) {
        return Ok(None);
    }
    let fields = Value::Object(created_fields(frame, new));
    let Some(mut managers) = sent(frame, new) else {
        let has_fields = fields.as_object().is_some_and(|fields| !fields.is_empty());
        let entry = || managers::encode_fields(&id, &frame.api_version, Some(now), fields);
        return Ok(has_fields.then(|| Value::Array(vec![entry()])));
    };
    let nothing = json!({});
    versions::settle(frame, &mut managers, &nothing)?;
    let added = FieldSet::parse(&fields).unwrap_or_default();
    let difference = Difference { added: added.clone(), ..Difference::default() };
    let changed = Differences::new(frame, managers.entries(), difference, (&nothing, new))?;
    managers.take_away(&changed, None);
    managers.sweep();
    if !added.is_empty() {
        managers.give(id, &frame.api_version, added, Some(now.to_owned()));
    }
    managers.cap();
    Ok(managers.encode())
}

/// Returns the fields of a new object, as `fieldsV1`.
fn created_fields(frame: &Frame<'_>, object: &Value) -> Object {
    let excluded = frame.reset.clone().union(Frame::never_owned().clone());
    created::fields(frame.shape, frame.table, object, &excluded)
}

fn updated(
    frame: &Frame<'_>,
    old: &Value,
    new: &Value,
    id: ManagerId,
    now: &str,
) -> Result<Option<Value>, UnavailableVersion> {
    let stored = managers::managed_fields(old);
    let given = managers::managed_fields(new).filter(|_| frame.subresource.is_empty());
    if given.is_some_and(managers::is_reset) {
        return Ok(None);
    }
    let difference = frame.difference(old, new);
    let is_unchanged = difference.is_empty() && given.is_none_or(|given| Some(given) == stored);
    let fits = validate::fits(frame.shape, new);
    if is_unchanged && fits && frame.kind.is_typed() {
        return Ok(stored.cloned());
    }
    let mut managers = sent(frame, new).unwrap_or_else(|| Managers::of(old));
    if managers.is_empty() || !fits || !validate::fits(frame.shape, old) {
        return Ok(None);
    }
    let before = is_unchanged.then(|| managers.clone());
    versions::settle(frame, &mut managers, old)?;
    let written = difference.written();
    if before.as_ref() == Some(&managers) {
        return Ok(stored.cloned());
    }
    managers.take_away(&Differences::new(frame, managers.entries(), difference, (old, new))?, None);
    managers.sweep();
    if !written.is_empty() {
        managers.give(id, &frame.api_version, written, Some(now.to_owned()));
    }
    managers.cap();
    Ok(managers.encode())
}

/// Checks that the owners in `managedFields` can be read.
///
/// # Errors
/// Reason why they cannot.
pub fn check_managed_fields(object: &Value) -> Result<(), String> {
    Managers::decode(managers::managed_fields(object)).map(drop).map_err(|invalid| invalid.to_string())
}

/// Undoes a change of nothing but times in `managedFields`, so that a write without effect stays one. Returns whether
/// `new` now equals `old`, `resourceVersion` aside.
pub fn keep_times(old: &Value, new: &mut Value) -> bool {
    let unchanged = equal_but_bookkeeping(old, new)
        && match (managers::managed_fields(old), managers::managed_fields(new)) {
            (None, None) => return true,
            (Some(old), Some(new)) => managers::equal_but_times(old, new),
            _ => false,
        };
    if unchanged {
        managers::set_managed_fields(new, managers::managed_fields(old).cloned());
    }
    unchanged
}

/// Returns true if two states of an object are equal except for the owners of their fields.
pub fn equal_but_bookkeeping(old: &Value, new: &Value) -> bool {
    let (Some(a), Some(b)) = (old.as_object(), new.as_object()) else { return old == new };
    let bookkeeping = ["managedFields", "resourceVersion"];
    but(object::metadata(old), &bookkeeping).eq(but(object::metadata(new), &bookkeeping))
        && but(a, &["metadata"]).eq(but(b, &["metadata"]))
}
