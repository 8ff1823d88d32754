//! Adoption: a new workload adopts the orphans of a deleted one of its kind that its selector matches.

use portolan_controllers::{
    PlaneError,
    plane::{ObjectList, PlaneObject},
};
use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{
    labels::{LabelSelector, LabelSelectorSpec},
    object,
};
use serde_json::Value;

use super::children::ChildKinds;
use crate::fields::controller_ref;

impl ChildKinds {
    /// Makes `parent` the controller of the orphans that it selects. Only a parent without earlier reconciles can find
    /// any: later orphans belong to a deleted parent.
    pub(super) async fn adopt(&self, parent: &PlaneObject) -> Result<(), PlaneError> {
        let has = |pointer: &str| parent.object.pointer(pointer).is_some_and(|value| !value.is_null());
        // A suspended Job has no start.
        let known = ["observedGeneration", "startTime", "uncountedTerminatedPods"];
        let is_known = known.iter().any(|field| has(&format!("/status/{field}")));
        let (Some(selector), Some(namespace)) = (selector_of(&parent.object), parent.key.namespace()) else {
            return Ok(());
        };
        if is_known {
            return Ok(());
        }
        let scope = RangeScope::Namespace(parent.key.cluster, self.child.group_resource(), namespace.clone());
        // The store reads only selected objects.
        let request = RangeRequest { labels: selector, ..RangeRequest::all(scope) };
        let selected = ObjectList::of(self.plane.store().range(request).await?)?.whole()?;
        for orphan in selected.into_iter().filter(|found| is_orphan(&found.object)) {
            if may_have(&parent.object, object::name(&orphan.object)) {
                self.plane.force(&orphan.key, |current| take(current, &parent.object)).await?;
                self.note_adopted(&orphan.key).await?;
            }
        }
        Ok(())
    }
}

fn is_orphan(object: &Value) -> bool {
    object::controller_of(object).is_none() && !object::is_deleting(object)
}

fn take(object: &mut Value, parent: &Value) -> bool {
    if !is_orphan(object) {
        return false;
    }
    let owners = object::metadata_mut(object).entry("ownerReferences").or_insert_with(|| Value::Array(Vec::new()));
    owners.as_array_mut().map(|owners| owners.push(controller_ref(parent))).is_some()
}

/// A ReplicationController has a map of labels, all others have a selector. One that selects everything selects
/// nothing.
fn selector_of(parent: &Value) -> Option<LabelSelector> {
    let selector = parent.pointer("/spec/selector")?;
    let spec = if parent["kind"] == "ReplicationController" {
        let match_labels = serde_json::from_value(selector.clone()).ok()?;
        LabelSelectorSpec { match_labels, ..LabelSelectorSpec::default() }
    } else {
        serde_json::from_value(selector.clone()).ok()?
    };
    LabelSelector::try_from(&spec).ok().filter(|selector| !selector.is_everything())
}

/// The pods of a StatefulSet are known by their names, too.
fn may_have(parent: &Value, name: &str) -> bool {
    let ordinal = name.strip_prefix(object::name(parent)).and_then(|rest| rest.strip_prefix('-'));
    parent["kind"] != "StatefulSet" || ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
}
