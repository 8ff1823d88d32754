//! Deleting.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use portolan_types::{GroupKind, GroupResource, Status, StatusCause, number, object, quoted::go_quoted, seams};
use serde_json::{Value, json};

use super::{WriteContext, is_held, is_removable};
use portolan_kinds::{Kind, custom};

/// Propagation of a delete to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Propagation {
    /// They are deleted after the object.
    Background,
    /// The object stays until they are gone.
    Foreground,
    /// They stay, and lose their reference to the object.
    Orphan,
}

/// Option that deletes objects that cannot be read (KEP-3926).
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
    /// Propagation to dependents; the kind's default when absent.
    pub propagation: Option<Propagation>,
    /// True if dependents stay: the older form of the propagation, which excludes the newer one.
    pub orphan_dependents: Option<bool>,
    /// Everything but the write.
    pub dry_run: bool,
    /// An object that cannot be read is deleted unread, and no other.
    pub ignores_read_errors: bool,
}

impl DeleteOptions {
    /// Reads options from a request body.
    ///
    /// # Errors
    /// 422 for values that mean nothing or contradict each other.
    pub fn from_value(options: &Value) -> Result<Self, Status> {
        let text = |pointer: &str| options.pointer(pointer).and_then(Value::as_str);
        let own = options.get("dryRun").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let said = SentDeleteOptions {
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

    /// Parses the query of a request without a body. Other parameters are ignored.
    ///
    /// # Errors
    /// 400 for malformed numbers, 422 as in [`DeleteOptions::from_value`].
    pub fn from_query<'q>(query: impl IntoIterator<Item = (&'q str, &'q str)>) -> Result<Self, Status> {
        let mut said = SentDeleteOptions::default();
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

    /// Returns the requested propagation, in the current or the older field. For namespaces the older one has a
    /// meaning of its own.
    fn requested_propagation(&self, is_namespace: bool) -> Option<Propagation> {
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

/// Parses a flag of a query.
fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

/// Returns the cause of a refused [`UNSAFE_DELETE`].
pub fn unsafe_delete_refused(why: &str) -> StatusCause {
    cause(UNSAFE_DELETE, "FieldValueInvalid", format!("Invalid value: true: {why}"))
}

/// Options in the words of a request.
#[derive(Default)]
struct SentDeleteOptions<'a> {
    orphan_dependents: Option<bool>,
    policy: Option<&'a str>,
    dry_run: Vec<&'a str>,
    grace_period_seconds: Option<i64>,
    /// Also for requests without options.
    has_preconditions: bool,
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    ignores_read_errors: bool,
}

impl SentDeleteOptions<'_> {
    /// Returns the options, or all errors in them.
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

    /// Returns the options that are set beside [`UNSAFE_DELETE`]: an unreadable object can be deleted without
    /// preconditions and propagation only.
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

/// Returns the kind that refusals of options name.
pub fn delete_options() -> GroupKind {
    GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() }
}

/// Result of a delete request.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// The object is removed at once. Contains its last state.
    Remove(Value),
    /// A pod without a grace period: it is stored in this state, with its deletionTimestamp, and removed right
    /// afterwards.
    MarkAndRemove(Value),
    /// The object is stored in this state, with its deletionTimestamp, and removed later.
    Mark(Value),
    /// The deletion is already in progress as requested, and nothing is written. Holds the present state.
    Already(Value),
    /// Already being deleted, like [`Self::Already`], and admission is skipped: a pod that terminates and would not get
    /// less time, or a namespace that is being emptied.
    Pending(Value),
}

/// Decides a delete of `old`, which has its resourceVersion.
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
    set_finalizers(kind, &mut new, options.requested_propagation(is_namespace && !object::is_deleting(old)));
    if !object::is_deleting(&new) {
        if !is_held(&new) && !is_definition {
            return Ok(Deletion::Remove(new));
        }
        if is_definition {
            drop(object::metadata_mut(&mut new).insert("deletionTimestamp".into(), seams::seconds_text(now).into()))
        } else {
            mark(&mut new, now, 0)
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

/// Returns true if a namespace may still contain objects.
fn is_being_emptied(namespace: &Value) -> bool {
    namespace.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|held| !held.is_empty())
}

/// Checks the deletion of a namespace, whose registry has its own rules and errors.
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

/// Checks the preconditions of a delete against the current object.
///
/// # Errors
/// 409 if its uid or resourceVersion is another.
pub fn check_preconditions(kind: &Kind, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    // kube-apiserver names the kind here, and the resource in other errors.
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

/// Sets the fields that mark an object as being deleted.
fn mark(object: &mut Value, at: Timestamp, grace: i64) {
    let generation = object::generation(object);
    let metadata = object::metadata_mut(object);
    metadata.insert("deletionTimestamp".into(), seams::seconds_text(at).into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    if generation > 0 {
        metadata.insert("generation".into(), (generation + 1).into());
    }
}

/// Sets the remaining grace period of a pod. Returns false if the pod is already being deleted and the period would not
/// get shorter.
fn give_grace(pod: &mut Value, options: &DeleteOptions, now: Timestamp) -> bool {
    let asked = options.grace_period_seconds.map(|asked| if asked < 0 { 1 } else { asked });
    if !object::is_deleting(pod) {
        let own = || pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_over = matches!(text("/status/phase"), "Failed" | "Succeeded");
        let grace = if text("/spec/nodeName").is_empty() || is_over { 0 } else { asked.unwrap_or_else(own) };
        let grace = if grace < 0 { 1 } else { grace };
        mark(pod, later(now, grace), grace);
        return true;
    }
    let left = object::metadata(pod).get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let Some(asked) = asked.filter(|asked| left != 0 && *asked < left) else { return left == 0 };
    let ends: Timestamp = object::meta_text(pod, "deletionTimestamp").parse().unwrap_or(now);
    let ends = later(ends, asked - left);
    // An expired grace period becomes the shortest one that a kubelet still observes.
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
/// Finalizer of an owner whose dependents stay.
pub const ORPHAN_FINALIZER: &str = "orphan";

/// Sets the finalizer that tells the garbage collector how to treat dependents. If it is the only one of its sort
/// already, the list keeps its order.
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
    if names.is_empty() {
        drop(metadata.remove("finalizers"))
    } else {
        drop(metadata.insert("finalizers".into(), json!(names)))
    }
}
