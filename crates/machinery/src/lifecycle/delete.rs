//! Deleting.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use portolan_types::{GroupKind, GroupResource, Status, StatusCause, number, object, quoted::go_quoted, seams};
use serde_json::{Value, json};

use super::{WriteContext, is_held, is_removable};
use crate::{custom, kinds::Kind};

/// What happens to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Propagation {
    /// They are deleted after the object.
    Background,
    /// The object stays until they are gone.
    Foreground,
    /// They stay, and lose their reference to the object.
    Orphan,
}

/// The option that deletes what cannot be read (KEP-3926).
pub const UNSAFE_DELETE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// `DeleteOptions` of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds that a pod has left; the object's own when absent.
    pub grace_period_seconds: Option<i64>,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must be at this resourceVersion.
    pub resource_version: Option<String>,
    /// What happens to dependents; the kind's own way when absent.
    pub propagation: Option<Propagation>,
    /// The older word for it, which does not stand beside the newer one: whether dependents stay.
    pub orphan_dependents: Option<bool>,
    /// Everything but the write.
    pub dry_run: bool,
    /// An object that cannot be read is deleted unread, and no other.
    pub ignores_read_errors: bool,
}

impl DeleteOptions {
    /// From a request body.
    ///
    /// # Errors
    /// 422 for values that mean nothing or contradict each other.
    pub fn from_value(options: &Value) -> Result<Self, Status> {
        let text = |pointer: &str| options.pointer(pointer).and_then(Value::as_str);
        let own = options.get("dryRun").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let said = Said {
            orphan_dependents: options.get("orphanDependents").and_then(Value::as_bool),
            policy: text("/propagationPolicy"),
            dry_run: own.collect(),
            grace_period_seconds: options.get("gracePeriodSeconds").and_then(Value::as_i64),
            has_preconditions: options.get("preconditions").is_some_and(|conditions| !conditions.is_null()),
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            ignores_read_errors: options.get(UNSAFE_DELETE).and_then(Value::as_bool).unwrap_or(false),
        };
        said.checked()
    }

    /// From the query of a request without a body. Parameters that are not about deletion are passed over.
    ///
    /// # Errors
    /// 400 for numbers that are none, 422 as [`DeleteOptions::from_value`].
    pub fn from_query<'q>(query: impl IntoIterator<Item = (&'q str, &'q str)>) -> Result<Self, Status> {
        let mut said = Said::default();
        let given = |value: &'q str| Some(value).filter(|value| !value.is_empty());
        for (key, value) in query {
            match key {
                "gracePeriodSeconds" => {
                    said.grace_period_seconds = Some(number::parse(value).map_err(Status::bad_request)?);
                }
                "orphanDependents" => said.orphan_dependents = Some(is_true(value)),
                "propagationPolicy" => said.policy = Some(value),
                "uid" => said.uid = given(value),
                "resourceVersion" => said.resource_version = given(value),
                "dryRun" => said.dry_run.push(value),
                UNSAFE_DELETE => said.ignores_read_errors = is_true(value),
                _ => {}
            }
        }
        said.has_preconditions = said.uid.is_some() || said.resource_version.is_some();
        said.checked()
    }

    /// What is asked for in one word or the other. Namespaces take the older one for their own.
    fn asked(&self, is_namespace: bool) -> Option<Propagation> {
        match self.orphan_dependents {
            Some(true) => Some(Propagation::Orphan),
            Some(false) if is_namespace => Some(Propagation::Foreground),
            Some(false) => Some(Propagation::Background),
            None => self.propagation,
        }
    }
}

fn cause(field: &str, reason: &str, message: String) -> StatusCause {
    StatusCause { reason: reason.into(), message, field: field.into() }
}

/// A flag of a query.
fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

/// What is wrong with [`UNSAFE_DELETE`].
pub fn unsafe_delete_refused(why: &str) -> StatusCause {
    cause(UNSAFE_DELETE, "FieldValueInvalid", format!("Invalid value: true: {why}"))
}

/// Options in the words of a request.
#[derive(Default)]
struct Said<'a> {
    orphan_dependents: Option<bool>,
    policy: Option<&'a str>,
    dry_run: Vec<&'a str>,
    grace_period_seconds: Option<i64>,
    /// Also where they ask for nothing.
    has_preconditions: bool,
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    ignores_read_errors: bool,
}

impl Said<'_> {
    /// The options, unless something is wrong with them, all of which is told.
    fn checked(self) -> Result<DeleteOptions, Status> {
        let mut causes = Vec::new();
        if let Some((_, policy)) = self.orphan_dependents.zip(self.policy) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            causes.push(cause(
                "propagationPolicy",
                "FieldValueInvalid",
                format!("Invalid value: {}: {why}", go_quoted(policy)),
            ));
        }
        let propagation = match self.policy {
            None => None,
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let known = r#""Foreground", "Background", "Orphan", "nil""#;
                let message = format!("Unsupported value: {}: supported values: {known}", go_quoted(other));
                causes.push(cause("propagationPolicy", "FieldValueNotSupported", message));
                None
            }
        };
        if self.dry_run.iter().any(|value| *value != "All") {
            let message = format!("Unsupported value: {}: supported values: \"All\"", json!(self.dry_run));
            causes.push(cause("dryRun", "FieldValueNotSupported", message));
        }
        causes.extend(
            self.beside_unsafe().map(|field| unsafe_delete_refused(&format!("cannot be set together with .{field}"))),
        );
        if !causes.is_empty() {
            return Err(Status::invalid(&delete_options(), "", causes));
        }
        Ok(DeleteOptions {
            grace_period_seconds: self.grace_period_seconds,
            uid: self.uid.map(str::to_owned),
            resource_version: self.resource_version.map(str::to_owned),
            propagation,
            orphan_dependents: self.orphan_dependents,
            dry_run: !self.dry_run.is_empty(),
            ignores_read_errors: self.ignores_read_errors,
        })
    }

    /// What is set beside [`UNSAFE_DELETE`]: whoever deletes what cannot be read can set no condition, nor ask what becomes of it.
    fn beside_unsafe(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("dryRun", !self.dry_run.is_empty()),
            ("propagationPolicy", self.policy.is_some()),
            ("orphanDependents", self.orphan_dependents.is_some()),
            ("gracePeriodSeconds", self.grace_period_seconds.is_some()),
            ("preconditions", self.has_preconditions),
        ];
        let is_unsafe = self.ignores_read_errors;
        fields.into_iter().filter(move |(_, is_set)| is_unsafe && *is_set).map(|(field, _)| field)
    }
}

/// What refusals of options are about.
pub fn delete_options() -> GroupKind {
    GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() }
}

/// What a delete comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// The object goes at once. Its last state.
    Remove(Value),
    /// A pod to which no time is left: it is to be stored like this, with its deletionTimestamp, and then goes at once.
    MarkAndRemove(Value),
    /// The object is to be stored like this, with its deletionTimestamp, and goes later.
    Mark(Value),
    /// It is already on its way as asked: nothing is to be written. Its present state.
    Already(Value),
    /// As [`Self::Already`], and nobody is to be asked about it: a pod that stops already and would not be given less time, or a
    /// namespace that is being emptied.
    Pending(Value),
}

/// What deleting `old`, which has its resourceVersion, comes to.
///
/// # Errors
/// 409 for preconditions that do not hold, 403 for namespaces that may not be deleted.
pub fn prepare_delete(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    old: &Value,
    options: &DeleteOptions,
) -> Result<Deletion, Status> {
    let is = |group: &str, name: &str| *kind.gvk.group == *group && *kind.gvk.kind == *name;
    let is_namespace = is("", "Namespace");
    let is_definition = is(custom::GROUP, "CustomResourceDefinition");
    if is_namespace {
        check_namespace(kind, old, options)?;
    }
    check_preconditions(kind, old, options)?;
    if is_namespace && matches!(object::name(old), "default" | "kube-system" | "kube-public") {
        let why = "this namespace may not be deleted";
        return Err(Status::forbidden(&kind.group_resource(), object::name(old), why));
    }
    let mut new = old.clone();
    let now = ctx.seams.clock.now();
    let is_pod = is("", "Pod");
    if is_pod && !give_grace(&mut new, options, now) {
        return Ok(Deletion::Pending(new));
    }
    if is_namespace && object::is_deleting(old) && is_being_emptied(old) {
        return Ok(Deletion::Pending(new));
    }
    set_finalizers(kind, &mut new, options.asked(is_namespace && !object::is_deleting(old)));
    if !object::is_deleting(&new) {
        if !is_held(&new) && !is_definition {
            return Ok(Deletion::Remove(new));
        }
        match is_definition {
            true => {
                drop(object::metadata_mut(&mut new).insert("deletionTimestamp".into(), seams::seconds_text(now).into()))
            }
            false => mark(&mut new, now, 0),
        }
    }
    if is_definition && !object::is_deleting(old) {
        custom::deletion_begins(&mut new, &ctx.seams.now_text());
    }
    if is_namespace {
        if let Some(fields) = new.as_object_mut() {
            object::child_mut(fields, "status").insert("phase".into(), "Terminating".into());
        }
        object::metadata_mut(&mut new).remove("deletionGracePeriodSeconds");
    }
    Ok(match (is_removable(&new), new == *old) {
        (true, false) if is_pod => Deletion::MarkAndRemove(new),
        (true, _) => Deletion::Remove(new),
        (false, true) => Deletion::Already(new),
        (false, false) => Deletion::Mark(new),
    })
}

/// Whether there may be objects in a namespace yet.
fn is_being_emptied(namespace: &Value) -> bool {
    namespace.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|held| !held.is_empty())
}

/// Namespaces have a registry of their own, with words of its own.
fn check_namespace(kind: &Kind, namespace: &Value, options: &DeleteOptions) -> Result<(), Status> {
    let conflict = |why| Err(Status::conflict(&kind.group_resource(), object::name(namespace), why));
    let (uid, version) = (object::meta_text(namespace, "uid"), object::meta_text(namespace, "resourceVersion"));
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return conflict(format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"));
    }
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != version) {
        return conflict(format!(
            "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {version}"
        ));
    }
    Ok(())
}

/// What a deletion expects of the object, as it is now.
///
/// # Errors
/// 409 when it is another one, or another state of it.
pub fn check_preconditions(kind: &Kind, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    // Upstream names the kind here where it names the resource elsewhere.
    let called = kind.called();
    let named = GroupResource::new(called.group, called.kind);
    let conflict = |why| Err(Status::conflict(&named, object::name(old), why));
    let uid = object::meta_text(old, "uid");
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let after = "The object might have been deleted and then recreated";
        return conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). {after}"
        ));
    }
    let version = object::meta_text(old, "resourceVersion");
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != version) {
        let (what, after) = ("the ResourceVersion in the precondition", "The object might have been modified");
        return conflict(format!(
            "{what} ({wanted}) does not match the ResourceVersion in record ({version}). {after}"
        ));
    }
    Ok(())
}

/// Sets what marks an object as deleting.
fn mark(object: &mut Value, at: Timestamp, grace: i64) {
    let generation = object::generation(object);
    let metadata = object::metadata_mut(object);
    metadata.insert("deletionTimestamp".into(), seams::seconds_text(at).into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    if generation > 0 {
        metadata.insert("generation".into(), (generation + 1).into());
    }
}

/// Gives a pod the time it has left. `false` when it is already deleting and would not get less.
fn give_grace(pod: &mut Value, options: &DeleteOptions, now: Timestamp) -> bool {
    let asked = options.grace_period_seconds.map(|asked| if asked < 0 { 1 } else { asked });
    if !object::is_deleting(pod) {
        let own = || pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_over = matches!(text("/status/phase"), "Failed" | "Succeeded");
        let grace = match text("/spec/nodeName").is_empty() || is_over {
            true => 0,
            false => asked.unwrap_or_else(own),
        };
        let grace = if grace < 0 { 1 } else { grace };
        mark(pod, later(now, grace), grace);
        return true;
    }
    let left = object::metadata(pod).get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let Some(asked) = asked.filter(|asked| left != 0 && *asked < left) else { return left == 0 };
    let ends: Timestamp = object::meta_text(pod, "deletionTimestamp").parse().unwrap_or(now);
    let ends = later(ends, asked - left);
    // A grace period that is over already is as short as one can be that its kubelet still gets to see.
    let (ends, grace) = if ends < now { (now, asked.min(1)) } else { (ends, asked) };
    let metadata = object::metadata_mut(pod);
    metadata.insert("deletionTimestamp".into(), seams::seconds_text(ends).into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    true
}

fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(at)
}

/// Finalizer of an owner that waits for its dependents.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are to be kept.
pub const ORPHAN_FINALIZER: &str = "orphan";

/// Leaves the garbage collector the finalizer that says what to do with dependents. Where it is there already, and no other,
/// the list stays as it is, in its order.
fn set_finalizers(kind: &Kind, object: &mut Value, propagation: Option<Propagation>) {
    let has = |name| object::finalizers(object).any(|finalizer| finalizer == name);
    let wanted = match (propagation, &*kind.gvk.group, &*kind.gvk.kind) {
        (_, "" | "events.k8s.io", "Event") => return,
        (Some(propagation), ..) => propagation,
        (None, ..) if has(ORPHAN_FINALIZER) => Propagation::Orphan,
        (None, ..) if has(FOREGROUND_FINALIZER) => Propagation::Foreground,
        (None, "batch", "Job") | (None, "", "ReplicationController") => Propagation::Orphan,
        (None, ..) => Propagation::Background,
    };
    let mut names: Vec<String> = object::finalizers(object)
        .filter(|name| !matches!(*name, FOREGROUND_FINALIZER | ORPHAN_FINALIZER))
        .map(str::to_owned)
        .collect();
    match wanted {
        Propagation::Background => {}
        Propagation::Foreground => names.push(FOREGROUND_FINALIZER.into()),
        Propagation::Orphan => names.push(ORPHAN_FINALIZER.into()),
    }
    let before: BTreeSet<&str> = object::finalizers(object).collect();
    if before == names.iter().map(String::as_str).collect::<BTreeSet<&str>>() {
        return;
    }
    let metadata = object::metadata_mut(object);
    match names.is_empty() {
        true => drop(metadata.remove("finalizers")),
        false => drop(metadata.insert("finalizers".into(), json!(names))),
    }
}
