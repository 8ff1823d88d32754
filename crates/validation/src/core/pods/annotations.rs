//! Annotations of pods that once were fields, and annotations that became fields.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    super::super::{Errors, Path, view::At},
    Part,
};
use portolan_codec::decode::json_error;

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Returns true for a mirror pod.
pub(super) fn is_mirror(metadata: &Value) -> bool {
    metadata.get("annotations").is_some_and(|annotations| annotations.get(MIRROR).is_some())
}

/// Checks annotations of a pod or of a template, which are at `path`.
pub(super) fn check(part: &Part<'_>, path: &Path, errors: &mut Errors) {
    if let Some(value) = part.annotation(MIRROR)
        && part.spec.text("nodeName").is_empty()
    {
        errors.invalid(path.key(MIRROR), &value.into(), "must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(text) = part.annotation(TOLERATIONS).filter(|text| !text.is_empty()) {
        match serde_json::from_str::<Vec<Value>>(text) {
            Ok(list) => {
                let value = serde_json::json!({"tolerations": list});
                let mut own = Errors::default();
                super::tolerations(&At { value: &value, path: path.child(TOLERATIONS) }, &mut own);
                errors.append(own);
            }
            Err(error) => {
                let why = json_error(text.as_bytes()).unwrap_or_else(|| error.to_string());
                errors.invalid(path, &TOLERATIONS.into(), &why);
            }
        }
    }
    if let Some(cost) = part.annotation(DELETION_COST)
        && !is_deletion_cost(cost)
    {
        let from = errors.len();
        errors.invalid(path.key(DELETION_COST), &cost.into(), "must be a 32bit integer");
        errors.mark_tolerated(from, "deletion cost");
    }
    let all = part.metadata.get("annotations").and_then(Value::as_object);
    if let Some(profile) = part.annotation(SECCOMP_POD) {
        seccomp(profile, &path.child(SECCOMP_POD), errors);
    }
    for (key, value) in all.into_iter().flatten().filter(|(key, _)| key.starts_with(SECCOMP_CONTAINER)) {
        seccomp(value.as_str().unwrap_or_default(), &path.child(key), errors);
    }
    let containers: HashSet<&str> = part.containers().map(|one| one.text("name")).collect();
    for (key, value) in all.into_iter().flatten() {
        let Some(container) = key.strip_prefix(APPARMOR) else { continue };
        if !containers.contains(container) {
            errors.invalid(path.key(key), &container.into(), "container not found");
        }
        let profile = value.as_str().unwrap_or_default();
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
            errors.invalid(path.key(key), value, &format!("invalid AppArmor profile name: {profile:?}"));
        }
    }
}

/// Returns true for a 32-bit number in the form that kube-apiserver writes: no sign but `-`, no leading zero.
fn is_deletion_cost(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !text.starts_with('+') && (text == "0" || !digits.starts_with('0'));
    plain && text.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, path: &Path, errors: &mut Errors) {
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) => super::volumes::descending_path(file, path, errors),
        None => errors.invalid(path, &profile.into(), "must be a valid seccomp profile"),
    }
}

/// Requires that a field and the annotation for the same setting agree.
pub(super) fn match_fields(part: &Part<'_>, errors: &mut Errors) {
    let of_pod = part.spec.child("securityContext");
    if let (Some(profile), Some(annotation)) = (of_pod.present("seccompProfile"), part.annotation(SECCOMP_POD)) {
        agree(&profile, annotation, &SECCOMP, errors);
    }
    for container in part.containers() {
        let key = format!("{SECCOMP_CONTAINER}{}", container.text("name"));
        let profile = container.child("securityContext").present("seccompProfile");
        if let (Some(profile), Some(annotation)) = (profile, part.annotation(&key)) {
            agree(&profile, annotation, &SECCOMP, errors);
        }
    }
    if part.spec.child("os").text("name") == "windows" {
        return;
    }
    for container in part.containers() {
        let own = container.child("securityContext").child("appArmorProfile");
        let value = if own.is_missing() { of_pod.get("appArmorProfile") } else { own.value };
        let key = format!("{APPARMOR}{}", container.text("name"));
        if let (false, Some(annotation)) = (value.is_null(), part.annotation(&key)) {
            agree(&At { value, path: own.path }, annotation, &APPARMOR_WORDS, errors);
        }
    }
}

/// Names of a kind of profile, and its annotation value for the runtime's default.
struct Words {
    name: &'static str,
    runtime_default: &'static [&'static str],
}

const SECCOMP: Words = Words { name: "seccomp", runtime_default: &["runtime/default", "docker/default"] };
const APPARMOR_WORDS: Words = Words { name: "apparmor", runtime_default: &["runtime/default"] };

fn agree(profile: &At<'_>, annotation: &str, words: &Words, errors: &mut Errors) {
    let file = annotation.strip_prefix("localhost/");
    let fits = match profile.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => words.runtime_default.contains(&annotation),
        "Localhost" => file.is_some(),
        _ => true,
    };
    let name = words.name;
    if !fits {
        errors.forbidden(profile.path("type"), &format!("{name} type in annotation and field must match"));
    } else if profile.text("type") == "Localhost" && file != profile.get("localhostProfile").as_str() {
        let why = format!("{name} profile in annotation and field must match");
        errors.forbidden(profile.path("localhostProfile"), &why);
    }
}

/// Checks annotations that may not be added, changed or removed.
pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let path = new.path("metadata").child("annotations");
    let of = |object: &At<'_>| object.child("metadata").get("annotations").as_object().cloned().unwrap_or_default();
    let (before, after) = (of(old), of(new));
    for key in before.iter().filter(|(key, value)| after.get(*key) != Some(value)).map(|(key, _)| key) {
        if key.starts_with(APPARMOR) {
            errors.forbidden(path.key(key), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(path.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for key in after.keys().filter(|key| !before.contains_key(*key)) {
        if key.starts_with(APPARMOR) {
            errors.forbidden(path.key(key), "may not add AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(path.key(key), "may not add mirror pod annotation");
        }
    }
    check(&super::part_of(new), &path, errors);
}
