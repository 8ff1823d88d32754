//! Warnings for users of deprecated versions.

use std::sync::Arc;

use serde_json::Value;

use crate::discovery::version_order;

/// Returns the warning of a version: its own, or one that names the best version that is newer and stays.
pub(super) fn warning(crd: &Value, version: &Value) -> Option<Arc<str>> {
    if !is(version, "deprecated") {
        return None;
    }
    if let Some(own) = version.get("deprecationWarning").and_then(Value::as_str) {
        return Some(own.into());
    }
    let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, kind) = (text("/spec/group"), text("/spec/names/kind"));
    let said = format!("{group}/{} {kind} is deprecated", name(version));
    let all = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let newer = all
        .filter(|other| is(other, "served") && !is(other, "deprecated"))
        .map(name)
        .filter(|other| version_order(other, name(version)).is_lt())
        .min_by(|a, b| version_order(a, b));
    Some(match newer {
        Some(newer) => format!("{said}; use {group}/{newer} {kind}").into(),
        None => said.into(),
    })
}

fn is(version: &Value, key: &str) -> bool {
    version.get(key) == Some(&Value::Bool(true))
}

fn name(version: &Value) -> &str {
    version.get("name").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_versions_cause_warnings() {
        let version = |name: &str, served: bool, deprecated: bool| json!({"name": name, "served": served, "deprecated": deprecated});
        let mut spoken = version("v1", true, true);
        spoken["deprecationWarning"] = "no more".into();
        for (case, versions, expected) in [
            ("it stays", vec![version("v1", true, false)], None),
            ("it speaks for itself", vec![spoken, version("v2", true, false)], Some("no more")),
            (
                "nothing is newer",
                vec![version("v1", true, true), version("v1beta1", true, false)],
                Some("g.x/v1 K is deprecated"),
            ),
            (
                "the best of those that stay",
                vec![
                    version("v1beta1", true, true),
                    version("v1beta2", true, false),
                    version("v2", true, false),
                    version("v3", false, false),
                    version("v4", true, true),
                ],
                Some("g.x/v1beta1 K is deprecated; use g.x/v2 K"),
            ),
        ] {
            let crd = json!({"spec": {"group": "g.x", "names": {"kind": "K"}, "versions": versions}});
            assert_eq!(warning(&crd, &crd["spec"]["versions"][0]).as_deref(), expected, "{case}");
        }
    }
}
