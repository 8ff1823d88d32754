//! Conditions of a namespace that is being deleted, in kube-controller-manager's words
//! (`namespace/deletion/status_condition_utils.go`).

use portolan_kinds::Kind;
use portolan_types::Status;
use serde_json::{Value, json};

use crate::{
    plane::{PlaneError, PlaneObject},
    remaining_content::{RemainingContent, set_conditions},
};

/// Result of a pass over a namespace.
#[derive(Default)]
pub(super) struct EmptyingReport {
    /// Reason why not all resources of the logical cluster are known.
    pub(super) undiscovered: Option<Status>,
    /// Errors of deletions, one per kind.
    pub(super) failures: Vec<PlaneError>,
    remains: RemainingContent,
}

/// Type, reason and message of a healthy condition.
type HealthyCondition = (&'static str, &'static str, &'static str);

const DISCOVERED: HealthyCondition =
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered");
const PARSED: HealthyCondition =
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed");
const DELETED: HealthyCondition = (
    "NamespaceDeletionContentFailure",
    "ContentDeleted",
    "All content successfully deleted, may be waiting on finalization",
);
const REMOVED: HealthyCondition = ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed");
const FINALIZED: HealthyCondition =
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished");

impl EmptyingReport {
    /// Records the remaining objects of a kind.
    pub(super) fn add(&mut self, kind: &Kind, left: &[PlaneObject]) {
        let resource = kind.group_resource();
        left.iter().for_each(|found| self.remains.add(&resource, &found.object));
    }

    /// Returns true if no remaining content is known.
    pub(super) fn is_done(&self) -> bool {
        self.remains.is_empty() && self.undiscovered.is_none() && self.failures.is_empty()
    }

    /// Returns the first error, if any.
    pub(super) fn into_error(self) -> Option<PlaneError> {
        self.undiscovered.map(PlaneError::from).or_else(|| self.failures.into_iter().next())
    }

    /// Writes the conditions. Returns true if any has changed; its time changes with its status only.
    pub(super) fn write_to(&self, namespace: &mut Value, now: &str) -> bool {
        set_conditions(namespace, self.conditions(), now)
    }

    fn conditions(&self) -> [Value; 5] {
        [
            condition(DISCOVERED, "DiscoveryFailed", self.undiscovered.as_ref().map(ToString::to_string)),
            condition(PARSED, "GroupVersionParsingFailed", None),
            condition(DELETED, "ContentDeletionFailed", self.failed()),
            condition(REMOVED, "SomeResourcesRemain", self.remains.resources()),
            condition(FINALIZED, "SomeFinalizersRemain", self.remains.finalizers("namespace")),
        ]
    }

    fn failed(&self) -> Option<String> {
        let mut failures: Vec<_> = self.failures.iter().map(ToString::to_string).collect();
        failures.sort();
        let (many, all) = (failures.len(), failures.join(", "));
        (many > 0).then(|| format!("Failed to delete all resource types, {many} remaining: {all}"))
    }
}

fn condition((kind, fine, all_is_well): HealthyCondition, reason: &str, wrong: Option<String>) -> Value {
    match wrong {
        None => json!({"type": kind, "status": "False", "reason": fine, "message": all_is_well}),
        Some(message) => json!({"type": kind, "status": "True", "reason": reason, "message": message}),
    }
}

#[cfg(test)]
mod tests {
    use portolan_kinds::KindTable;
    use portolan_types::{GroupVersionKind, ObjectKey, ResourceVersion};

    use super::*;

    fn remaining_objects(finalizers: &[&[&str]]) -> Vec<PlaneObject> {
        let found = |finalizers: &&[&str]| PlaneObject {
            key: ObjectKey::cluster_scoped(
                portolan_types::LogicalClusterId::ROOT,
                portolan_types::GroupResource::new("", "any"),
                "any".parse().unwrap(),
            ),
            revision: ResourceVersion::FIRST,
            object: json!({"metadata": {"finalizers": finalizers}}),
        };
        finalizers.iter().map(found).collect()
    }

    fn condition_texts(namespace: &Value) -> Vec<String> {
        let all = namespace["status"]["conditions"].as_array().unwrap();
        let text = |condition: &Value| {
            let of = |key: &str| condition[key].as_str().unwrap().to_owned();
            [of("type"), of("status"), of("reason"), of("message"), of("lastTransitionTime")].join(" | ")
        };
        all.iter().map(text).collect()
    }

    #[test]
    fn a_namespace_reports_its_deletion_in_kube_apiservers_words() {
        let table = KindTable::builtin();
        let kind = |group: &str, kind: &str| table.kind(&GroupVersionKind::new(group, "v1", kind)).unwrap();
        let mut namespace = json!({"status": {"phase": "Terminating", "conditions": [
            {"type": "example.com/Own", "status": "True"}]}});
        let mut emptied = EmptyingReport::default();
        emptied.add(kind("", "Secret"), &remaining_objects(&[&[]]));
        emptied.add(kind("", "ConfigMap"), &remaining_objects(&[&["x/y", "a/b"], &["x/y"]]));
        emptied.add(kind("apps", "Deployment"), &remaining_objects(&[&["x/y"]]));
        let refused = |why: &str| PlaneError::from(Status::bad_request(why));
        emptied.failures = vec![refused("second"), refused("first")];
        assert!(emptied.write_to(&mut namespace, "1"));
        assert!(!emptied.write_to(&mut namespace, "2"), "nothing is new");
        assert_eq!(namespace["status"]["conditions"].as_array_mut().unwrap().remove(0)["type"], "example.com/Own");
        let fine = [
            "NamespaceDeletionDiscoveryFailure | False | ResourcesDiscovered | All resources successfully discovered | 1",
            "NamespaceDeletionGroupVersionParsingFailure | False | ParsedGroupVersions | All legacy kube types \
             successfully parsed | 1",
        ];
        assert_eq!(condition_texts(&namespace)[..2], fine);
        assert_eq!(
            condition_texts(&namespace)[2..],
            [
                "NamespaceDeletionContentFailure | True | ContentDeletionFailed | Failed to delete all resource types, \
                 2 remaining: first, second | 1",
                "NamespaceContentRemaining | True | SomeResourcesRemain | Some resources are remaining: configmaps. has \
                 2 resource instances, deployments.apps has 1 resource instances, secrets. has 1 resource instances | 1",
                "NamespaceFinalizersRemaining | True | SomeFinalizersRemain | Some content in the namespace has \
                 finalizers remaining: a/b in 1 resource instances, x/y in 3 resource instances | 1",
            ]
        );
        let mut later = EmptyingReport::default();
        later.add(kind("", "ConfigMap"), &remaining_objects(&[&["x/y"]]));
        later.undiscovered = Some(Status::bad_request("no answer"));
        assert!(later.write_to(&mut namespace, "3"));
        assert_eq!(
            condition_texts(&namespace),
            [
                "NamespaceDeletionDiscoveryFailure | True | DiscoveryFailed | no answer | 3",
                fine[1],
                "NamespaceDeletionContentFailure | False | ContentDeleted | All content successfully deleted, may be \
                 waiting on finalization | 3",
                "NamespaceContentRemaining | True | SomeResourcesRemain | Some resources are remaining: configmaps. has \
                 1 resource instances | 1",
                "NamespaceFinalizersRemaining | True | SomeFinalizersRemain | Some content in the namespace has \
                 finalizers remaining: x/y in 1 resource instances | 1",
            ]
        );
    }
}
