//! Warnings about renamed node labels in the fields that select nodes (`pkg/api/node`).

use serde_json::Value;

use super::{Warnings, addresses, items, text};
use portolan_validation::names::label_value;

/// Deprecated labels and their replacements.
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// Returns the successor of a deprecated label.
pub(super) fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(own, _)| *own == key).map(|(_, what)| *what)
}

/// Returns the old labels among the keys of a map.
pub(super) fn old_keys(map: Option<&Value>) -> impl Iterator<Item = (&str, &'static str)> {
    let keys = map.and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
    keys.filter_map(|key| Some((key.as_str(), old_label(key)?)))
}

/// The expressions of a selector at `path`; whether their values can be labels is reported where it matters.
pub(super) fn expressions(selector: &Value, path: &str, with_values: bool, warnings: &mut Warnings) {
    for (index, expression) in items(selector, "/matchExpressions").enumerate() {
        let key = text(expression, "/key");
        if let Some(what) = old_label(key) {
            warnings.add(format!("{path}.matchExpressions[{index}].key: {key} is {what}"));
        }
        for (at, value) in items(expression, "/values").enumerate().filter(|_| with_values) {
            let value = value.as_str().unwrap_or_default();
            for why in label_value(value) {
                warnings.add(format!("{path}.matchExpressions[{index}].values[{at}]: {value} is invalid, {why}"));
            }
        }
    }
}

pub(super) fn node(node: &Value, warnings: &mut Warnings) {
    if node.pointer("/spec/configSource").is_some_and(|source| !source.is_null()) {
        warnings.add("spec.configSource: the feature is removed");
    }
    if !text(node, "/spec/externalID").is_empty() {
        warnings.add("spec.externalID: this field is deprecated, and is unused by Kubernetes");
    }
    addresses::networks(node, "/spec/podCIDRs", "spec.podCIDRs", warnings);
}

pub(super) fn runtime_class(class: &Value, warnings: &mut Warnings) {
    for (_, what) in old_keys(class.pointer("/scheduling/nodeSelector")) {
        warnings.add(format!("scheduling.nodeSelector: {what}"));
    }
}
