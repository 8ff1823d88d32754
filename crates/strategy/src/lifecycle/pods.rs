//! Fields that the server computes in a pod: selectors that follow its labels, and profiles from annotations.

use std::collections::{HashMap, VecDeque};

use portolan_types::object;
use serde_json::{Map, Value, json};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Adds the pod's own labels to the selectors for which `matchLabelKeys` asks it.
pub(super) fn match_own_labels(pod: &mut Value) {
    let Some(labels) = object::metadata(pod).get("labels").cloned() else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        for term in list(pod, &format!("/spec/affinity/{kind}/{REQUIRED}")) {
            match_labels(term, &labels);
        }
        for term in list(pod, &format!("/spec/affinity/{kind}/{PREFERRED}")) {
            if let Some(term) = term.get_mut("podAffinityTerm") {
                match_labels(term, &labels);
            }
        }
    }
    list(pod, "/spec/topologySpreadConstraints").for_each(|one| match_labels(one, &labels));
}

fn list<'v>(pod: &'v mut Value, path: &str) -> impl Iterator<Item = &'v mut Value> {
    let items = pod.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter(|one| one.is_object())
}

fn match_labels(term: &mut Value, labels: &Value) {
    // Without a selector nothing matches anyway.
    if !term.get("labelSelector").is_some_and(Value::is_object) {
        return;
    }
    let mut wanted = Vec::new();
    for (keys, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(keys).and_then(Value::as_array).into_iter().flatten();
        for (key, value) in keys.filter_map(|key| Some((key, labels.get(key.as_str()?)?))) {
            wanted.push(json!({"key": key, "operator": operator, "values": [value]}));
        }
    }
    if wanted.is_empty() {
        return;
    }
    let expressions = &mut term["labelSelector"]["matchExpressions"];
    match expressions.as_array_mut() {
        Some(expressions) => expressions.extend(wanted),
        None => *expressions = wanted.into(),
    }
}

/// Annotations that name the AppArmor profile of a container, which follows.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Longest name of a profile.
const MAX_PROFILE: usize = 4095;

/// Gives containers the profiles that annotations name, where they have none themselves.
pub(super) fn profiles_from_annotations(pod: &mut Value) {
    if pod.pointer("/spec/os/name").and_then(Value::as_str) == Some("windows") {
        return;
    }
    let own = pod.pointer("/spec/securityContext/appArmorProfile").cloned();
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        let count = list(pod, &format!("/spec/{kind}")).count();
        for path in (0..count).map(|at| format!("/spec/{kind}/{at}")) {
            let Some(container) = pod.pointer(&path) else { continue };
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let named = object::annotation(pod, &format!("{APP_ARMOR}{name}")).and_then(profile_of_annotation);
            let has_one = container.pointer("/securityContext/appArmorProfile").is_some();
            if let Some(named) = named.filter(|named| !has_one && own.as_ref() != Some(named))
                && let Some(Value::Object(container)) = pod.pointer_mut(&path)
            {
                object::child_mut(container, "securityContext").insert("appArmorProfile".to_owned(), named);
            }
        }
    }
}

/// Returns the profile of AppArmor that an annotation names, if it is valid.
pub(crate) fn profile_of_annotation(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let name = annotation.strip_prefix("localhost/")?;
            let good = !name.is_empty() && name.trim() == name && name.len() <= MAX_PROFILE;
            good.then(|| json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

/// Replaces the condition of the same type by one without a time, which gets the time of its last change.
pub(super) fn put_condition(status: &mut Map<String, Value>, mut condition: Value, now: &str) {
    if !status.get("conditions").is_some_and(Value::is_array) {
        status.insert("conditions".to_owned(), json!([]));
    }
    let Some(all) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    let place = all.iter().position(|known| known.get("type") == condition.get("type"));
    let since = place.map(|at| &all[at]).filter(|known| known.get("status") == condition.get("status"));
    let since = since.and_then(|known| known.get("lastTransitionTime")).filter(|time| time.is_string()).cloned();
    condition["lastTransitionTime"] = since.unwrap_or_else(|| now.into());
    match place {
        Some(at) => all[at] = condition,
        None => all.push(condition),
    }
}

/// Status and conditions without a generation have been seen at the one that they had.
pub(super) fn keep_observed_generation(old: &Value, new: &mut Value) {
    let seen =
        |at: &Value| at.get("observedGeneration").filter(|seen| seen.as_i64().is_some_and(|seen| seen != 0)).cloned();
    let keep = |new: &mut Value, seen_before: Option<Value>| {
        if let (None, Some(before), Some(fields)) = (seen(new), seen_before, new.as_object_mut()) {
            fields.insert("observedGeneration".to_owned(), before);
        }
    };
    let (Some(before), Some(after)) = (old.get("status"), new.get_mut("status")) else { return };
    keep(after, seen(before));
    let kind = |condition: &Value| condition.get("type").cloned();
    let all = before.get("conditions").and_then(Value::as_array);
    let mut left: HashMap<Option<Value>, VecDeque<Option<Value>>> = HashMap::new();
    for condition in all.into_iter().flatten() {
        left.entry(kind(condition)).or_default().push_back(seen(condition));
    }
    let conditions = after.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten();
    for condition in conditions {
        if let Some(seen) = left.get_mut(&kind(condition)).and_then(VecDeque::pop_front) {
            keep(condition, seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_follow_the_labels_of_the_pod() {
        let mut pod = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {
            "affinity": {
                "podAffinity": {REQUIRED: [{"labelSelector": {}, "matchLabelKeys": ["a", "z"], "mismatchLabelKeys": ["b"]}]},
                "podAntiAffinity": {PREFERRED: [{"podAffinityTerm": {"matchLabelKeys": ["a"]}}]},
            },
            "topologySpreadConstraints": [{"labelSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
                "matchLabelKeys": ["b"]}],
        }});
        match_own_labels(&mut pod);
        let wanted =
            |key: &str, operator: &str, value: &str| json!({"key": key, "operator": operator, "values": [value]});
        let affinity = pod.pointer(&format!("/spec/affinity/podAffinity/{REQUIRED}/0/labelSelector/matchExpressions"));
        assert_eq!(affinity, Some(&json!([wanted("a", "In", "1"), wanted("b", "NotIn", "2")])));
        let none = pod.pointer(&format!("/spec/affinity/podAntiAffinity/{PREFERRED}/0/podAffinityTerm/labelSelector"));
        assert_eq!(none, None, "a selector of nothing stays one");
        let spread = pod.pointer("/spec/topologySpreadConstraints/0/labelSelector/matchExpressions");
        assert_eq!(spread, Some(&json!([{"key": "x", "operator": "Exists"}, wanted("b", "In", "2")])));
    }

    #[test]
    fn annotations_name_profiles_where_fields_do_not() {
        for (case, annotation, context, of_pod, expected) in [
            ("a file", "localhost/p", json!({}), json!({}), json!({"type": "Localhost", "localhostProfile": "p"})),
            ("none", "unconfined", json!({}), json!({}), json!({"type": "Unconfined"})),
            ("what is said twice", "runtime/default", json!({}), json!({"type": "RuntimeDefault"}), Value::Null),
            (
                "the field is first",
                "unconfined",
                json!({"appArmorProfile": {"type": "X"}}),
                json!({}),
                json!({"type": "X"}),
            ),
            ("nonsense", "localhost/", json!({}), json!({}), Value::Null),
        ] {
            let mut pod = json!({"metadata": {"annotations": {format!("{APP_ARMOR}c"): annotation}}, "spec": {
                "securityContext": {"appArmorProfile": of_pod}, "containers": [{"name": "c", "securityContext": context}]}});
            profiles_from_annotations(&mut pod);
            let found = &pod["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
            assert_eq!(*found, expected, "{case}");
        }
    }

    #[test]
    fn a_condition_keeps_its_place_and_time() {
        let put = |status: &mut Value, kind: &str, is: &str, now: &str| {
            put_condition(status.as_object_mut().unwrap(), json!({"type": kind, "status": is}), now);
        };
        let mut status = json!({});
        put(&mut status, "A", "True", "1");
        put(&mut status, "B", "True", "2");
        put(&mut status, "A", "True", "3");
        put(&mut status, "B", "False", "4");
        let of = |kind: &str, is: &str, time: &str| json!({"type": kind, "status": is, "lastTransitionTime": time});
        assert_eq!(status["conditions"], json!([of("A", "True", "1"), of("B", "False", "4")]));
    }

    #[test]
    fn observed_generations_of_conditions_are_kept() {
        let of = |status: Value| json!({"status": status});
        let old = of(json!({"observedGeneration": 3, "conditions": [
            {"type": "A", "observedGeneration": 1}, {"type": "A", "observedGeneration": 2}]}));
        let mut new = of(json!({"conditions": [{"type": "A"}, {"type": "B"}, {"type": "A", "observedGeneration": 7}]}));
        keep_observed_generation(&old, &mut new);
        let expected = json!({"observedGeneration": 3, "conditions": [
            {"type": "A", "observedGeneration": 1}, {"type": "B"}, {"type": "A", "observedGeneration": 7}]});
        assert_eq!(new, of(expected));
    }
}
