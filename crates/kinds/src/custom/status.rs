//! The status of a definition: its names, its conditions and the state of its instances.

use portolan_types::object::{self, Object, child_mut};
use serde_json::{Value, json};

use super::{Names, TakenNames};

/// Holds a definition until its instances are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// A condition without its time.
struct Condition {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn new(kind: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, holds, reason, message: message.into() }
    }

    fn status(&self) -> &'static str {
        if self.holds { "True" } else { "False" }
    }

    fn is_same(&self, other: &Value) -> bool {
        let text = |key: &str| other.get(key).and_then(Value::as_str).unwrap_or_default();
        text("status") == self.status() && text("reason") == self.reason && text("message") == self.message
    }
}

fn conditions(crd: &Value) -> &[Value] {
    crd.pointer("/status/conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn condition<'a>(crd: &'a Value, kind: &str) -> Option<&'a Value> {
    conditions(crd).iter().find(|own| own.get("type").and_then(Value::as_str) == Some(kind))
}

/// Returns true if a condition is `True`.
pub(super) fn is_true(crd: &Value, kind: &str) -> bool {
    condition(crd, kind).and_then(|own| own.get("status")).and_then(Value::as_str) == Some("True")
}

fn set(status: &mut Object, wanted: &Condition, now: &str) {
    if !status.get("conditions").is_some_and(Value::is_array) {
        status.insert("conditions".into(), json!([]));
    }
    let Some(all) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    let same_kind = |own: &&mut Value| own.get("type").and_then(Value::as_str) == Some(wanted.kind);
    match all.iter_mut().find(same_kind) {
        Some(own) if wanted.is_same(own) => {}
        Some(own) => {
            if own.get("status").and_then(Value::as_str) != Some(wanted.status()) {
                own["lastTransitionTime"] = now.into();
            }
            own["status"] = wanted.status().into();
            own["reason"] = wanted.reason.into();
            own["message"] = wanted.message.clone().into();
        }
        None => all.push(json!({
            "type": wanted.kind, "status": wanted.status(), "lastTransitionTime": now,
            "reason": wanted.reason, "message": wanted.message,
        })),
    }
}

/// Returns the approval condition of a definition in a group of the Kubernetes community.
fn approval(crd: &Value) -> Option<Condition> {
    let state = super::approval(crd)?;
    Some(Condition::new("KubernetesAPIApprovalPolicyConformant", state.is_given(), state.reason, state.message))
}

/// Returns true if the part of the status that does not depend on other definitions is up to date.
pub(super) fn is_settled_alone(crd: &Value) -> bool {
    let named = condition(crd, "NamesAccepted").is_some() && condition(crd, "Established").is_some();
    named && approval(crd).is_none_or(|wanted| condition(crd, wanted.kind).is_some_and(|own| wanted.is_same(own)))
}

/// Returns the status that a definition should have, or `None` if it has it. `taken` are the names of the others in its
/// group.
pub fn settled(crd: &Value, taken: &TakenNames, now: &str) -> Option<Value> {
    let part = |pointer: &str| crd.pointer(pointer).unwrap_or(&Value::Null);
    let (claimed, before) = (Names::of(part("/spec/names")), Names::of(part("/status/acceptedNames")));
    let (accepted, conflict) = before.accepted(&claimed, taken);
    let mut status = part("/status").as_object().cloned().unwrap_or_default();
    if accepted != before || condition(crd, "NamesAccepted").is_none() || conflict.is_some() {
        status.insert("acceptedNames".into(), accepted.to_value());
        let names = match &conflict {
            None => Condition::new("NamesAccepted", true, "NoConflicts", "no conflicts found"),
            Some((reason, message)) => Condition::new("NamesAccepted", false, reason, message.clone()),
        };
        set(&mut status, &names, now);
    }
    let names_are_good = conflict.is_none();
    if !is_true(crd, "Established") {
        // A client that sees this status is served by a server that has read it, so there is nothing to be waited for
        // in between.
        let established = if names_are_good {
            Condition::new("Established", true, "InitialNamesAccepted", "the initial names have been accepted")
        } else {
            Condition::new("Established", false, "NotAccepted", "not all names are accepted")
        };
        set(&mut status, &established, now);
    }
    if let Some(approval) = approval(crd) {
        set(&mut status, &approval, now);
    }
    let status = Value::Object(status);
    (status != *part("/status")).then_some(status)
}

/// Instances that are left of a definition in deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instances {
    /// There never were any.
    NeverServed,
    /// Some are left.
    Left,
    /// None is left.
    Gone,
}

/// Marks a definition, with its deletion, for the instances to be deleted first.
pub fn deletion_begins(crd: &mut Value, now: &str) {
    let metadata = object::metadata_mut(crd);
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|own| own == CLEANUP_FINALIZER)
    {
        list.push(CLEANUP_FINALIZER.into());
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    let Some(fields) = crd.as_object_mut() else { return };
    set(child_mut(fields, "status"), &Condition::new("Terminating", true, "InstanceDeletionPending", message), now);
}

/// Records the remaining instances in the status. Instances that never existed count as deleted.
pub fn with_instances(crd: &mut Value, instances: &Instances, now: &str) {
    let condition = match instances {
        Instances::NeverServed => {
            Condition::new("Terminating", false, "NeverEstablished", "resource was never established")
        }
        Instances::Left => {
            Condition::new("Terminating", true, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        }
        Instances::Gone => Condition::new("Terminating", false, "InstanceDeletionCompleted", "removed all instances"),
    };
    let Some(fields) = crd.as_object_mut() else { return };
    set(child_mut(fields, "status"), &condition, now);
    if *instances != Instances::Left {
        let finalizers = object::metadata_mut(crd).get_mut("finalizers").and_then(Value::as_array_mut);
        finalizers.into_iter().for_each(|list| list.retain(|own| own != CLEANUP_FINALIZER));
    }
}

/// Returns the status of a new definition, before a controller has seen it.
pub fn fresh_status(crd: &Value) -> Value {
    json!({
        "acceptedNames": Names::default().to_value(), "conditions": null,
        "storedVersions": stored_versions(&crd["spec"], &Value::Null),
    })
}

/// Returns the versions in which objects may be stored: the former ones and the storage version of `spec`.
pub fn stored_versions(spec: &Value, before: &Value) -> Value {
    let mut all = before.as_array().cloned().unwrap_or_default();
    let versions = spec.get("versions").and_then(Value::as_array).into_iter().flatten();
    let storage = versions.filter(|own| own.get("storage") == Some(&Value::Bool(true))).find_map(|own| own.get("name"));
    if let Some(name) = storage.filter(|name| !all.contains(name)) {
        all.push(name.clone());
    }
    all.into()
}
