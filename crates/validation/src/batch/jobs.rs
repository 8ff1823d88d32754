//! Jobs.

use serde_json::{Value, json};

use super::{
    super::{
        Errors, FieldError, apps, core, internal, names, selectors,
        view::{At, IMMUTABLE, is_same},
    },
    failure_policy,
};

const UID: &str = "batch.kubernetes.io/controller-uid";
const NAME: &str = "batch.kubernetes.io/job-name";

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    selected(&spec, errors);
    let name = object.child("metadata").text("name");
    if spec.text("completionMode") == "Indexed" && spec.number("completions") > 0 {
        let host = format!("{name}-{}", spec.number("completions") - 1);
        if !names::dns_label(&host).is_empty() {
            let why = format!("will not able to create pod with invalid DNS label: {host}");
            errors.invalid("metadata.name", &name.into(), &why);
        }
    }
}

/// Checks the spec of a job, and whether its selector fits its template.
fn selected(spec: &At<'_>, errors: &mut Errors) {
    check_spec(spec, errors);
    let selector = spec.child("selector");
    if selector.is_missing() {
        errors.required(&selector.path, "")
    } else {
        selectors::tolerated_selector(&selector, errors)
    }
    let labels = spec.child("template").child("metadata").child("labels");
    let fits = if selector.is_missing() { Some(false) } else { selectors::matches(selector.value, labels.value) };
    if fits == Some(false) {
        errors.invalid(&labels.path, labels.value, apps::MISMATCH);
    }
}

/// Checks that a generated selector selects by the job's own uid. Old Jobs need not have the labels with a
/// prefix.
pub(super) fn generated_selector(old: Option<&At<'_>>, object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.flag("manualSelector") || !spec.has("selector") {
        return;
    }
    let metadata = object.child("metadata");
    let (uid, name) = (metadata.text("uid"), metadata.text("name"));
    metadata.needs("uid", errors);
    let labels = spec.child("template").child("metadata").child("labels");
    let has_prefixed = |job: &At<'_>| {
        let labels = job.child("spec").child("template").child("metadata").child("labels");
        labels.has(UID) && labels.has(NAME)
    };
    let mut all = vec![("controller-uid", uid), ("job-name", name)];
    if old.is_none_or(has_prefixed) {
        all.extend([(UID, uid), (NAME, name)]);
    }
    for (key, wanted) in &all {
        let why = format!("must be '{wanted}'");
        match labels.get(key) {
            Value::Null => errors.required(labels.path.key(key), &why),
            is if is.as_str() != Some(*wanted) => errors.invalid(labels.path.key(key), labels.value, &why),
            _ => {}
        }
    }
    let wanted: Value = all.iter().map(|(key, wanted)| ((*key).to_owned(), Value::from(*wanted))).collect();
    if selectors::matches(spec.get("selector"), &wanted) == Some(false) {
        let shown = internal::printed_value("LabelSelector", spec.get("selector"));
        errors.push(FieldError::invalid_shown(spec.path("selector"), &shown, "`selector` not auto-generated"));
    }
}

/// Most pods of an indexed job at one time, most of its indexes that may fail, and the completions above which both are
/// fewer.
const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED: i64 = 100_000;
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_WITH_MANY: i64 = 10_000;
const MAX_MANAGER: usize = 63;

/// Checks the spec of a job, also in a template.
pub(super) fn check_spec(spec: &At<'_>, errors: &mut Errors) {
    let numbers = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    spec.nonnegatives(&numbers, errors);
    if spec.has("maxFailedIndexes") && !spec.has("backoffLimitPerIndex") {
        errors.required(spec.path("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if spec.has("managedBy") {
        manager(spec, errors);
    }
    spec.supported_if_present("completionMode", &["NonIndexed", "Indexed"], errors);
    match spec.text("completionMode") {
        "Indexed" => indexed(spec, errors),
        _ if !spec.has("completionMode") || spec.text("completionMode") == "NonIndexed" => {
            for name in ["backoffLimitPerIndex", "maxFailedIndexes"].into_iter().filter(|name| spec.has(name)) {
                errors.invalid(spec.path(name), spec.get(name), "requires indexed completion mode");
            }
        }
        _ => {}
    }
    if let Some(policy) = spec.present("podFailurePolicy") {
        failure_policy::check(spec, &policy, errors);
    }
    if let Some(policy) = spec.present("successPolicy") {
        match spec.text("completionMode") {
            "Indexed" => failure_policy::success(spec, &policy, errors),
            _ => {
                let shown = internal::printed_value("SuccessPolicy", policy.value);
                errors.push(FieldError::invalid_shown(&policy.path, &shown, "requires indexed completion mode"));
            }
        }
    }
    let known: &[&str] = if spec.has("podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    spec.supported_if_present("podReplacementPolicy", known, errors);
    core::template(&spec.child("template"), errors);
    restart_policy(spec, errors);
}

fn manager(spec: &At<'_>, errors: &mut Errors) {
    let (text, path) = (spec.text("managedBy"), spec.path("managedBy"));
    match names::domain_prefixed_path(text) {
        None => errors.required(&path, ""),
        Some(wrong) => wrong.into_iter().for_each(|(part, why)| errors.invalid(&path, &part.into(), &why)),
    }
    if text.len() > MAX_MANAGER {
        errors.push(FieldError::too_long(&path, MAX_MANAGER));
    }
}

fn indexed(spec: &At<'_>, errors: &mut Errors) {
    let mode = "when completion mode is Indexed";
    let at_most = |name: &str, most: i64, rest: &str, errors: &mut Errors| {
        if spec.int(name).is_some_and(|number| number > most) {
            errors.invalid(spec.path(name), spec.get(name), &format!("must be less than or equal to {rest}"));
        }
    };
    let completions = spec.int("completions");
    if completions.is_none() {
        errors.required(spec.path("completions"), mode);
    }
    at_most("parallelism", MAX_PARALLELISM, &format!("{MAX_PARALLELISM} {mode}"), errors);
    at_most("maxFailedIndexes", completions.unwrap_or(i64::MAX), "completions", errors);
    at_most("maxFailedIndexes", MAX_FAILED, &MAX_FAILED.to_string(), errors);
    if completions.is_some_and(|count| count > MANY_COMPLETIONS) && spec.has("backoffLimitPerIndex") {
        if !spec.has("maxFailedIndexes") {
            let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            errors.required(spec.path("maxFailedIndexes"), &why);
        }
        let rest = format!(
            "{MAX_WITH_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        );
        at_most("parallelism", MAX_WITH_MANY, &rest, errors);
        at_most("maxFailedIndexes", MAX_WITH_MANY, &rest, errors);
    }
}

fn restart_policy(spec: &At<'_>, errors: &mut Errors) {
    let pod = spec.child("template").child("spec");
    let (policy, path) = (pod.text("restartPolicy"), pod.path("restartPolicy"));
    match policy {
        "Always" | "" => errors.required(path, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.has("podFailurePolicy") => {
            errors.invalid(path, &policy.into(), "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        _ => errors.not_supported(path, &policy.into(), &["OnFailure", "Never"]),
    }
}

/// Fields that stay, with their internal types.
const FROZEN: [(&str, &str); 5] = [
    ("completionMode", ""),
    ("podFailurePolicy", "*PodFailurePolicy"),
    ("backoffLimitPerIndex", ""),
    ("managedBy", ""),
    ("successPolicy", "*SuccessPolicy"),
];

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    let from = errors.len();
    selected(&after, errors);
    errors.tolerate(from, || {
        let mut broken = Errors::default();
        selected(&before, &mut broken);
        broken
    });
    completions(&before, &after, errors);
    let frozen = |name: &str, kind: &str, errors: &mut Errors| {
        if !is_same(before.get(name), after.get(name)) {
            let shown = internal::printed_value(kind, after.get(name));
            errors.push(FieldError::invalid_shown(after.path(name), &shown, IMMUTABLE));
        }
    };
    frozen("selector", "*LabelSelector", errors);
    template(old, &after, errors);
    for (name, kind) in FROZEN {
        frozen(name, kind, errors);
    }
}

fn completions(before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    let name = "completions";
    if before.get(name) == after.get(name) {
        return;
    }
    if after.text("completionMode") != "Indexed" {
        errors.invalid(after.path(name), after.get(name), IMMUTABLE);
    } else if after.has(name) && after.get(name) != after.get("parallelism") {
        let why = "can only be modified in tandem with spec.parallelism";
        errors.invalid(after.path(name), after.get(name), why);
    }
}

/// Checks the template: scheduling directives and resources of a suspended job may still change.
fn template(old: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    let (spec, status) = (old.child("spec"), old.child("status"));
    let suspended = spec.flag("suspend");
    let was_suspended = super::job_status::holds(&status, "Suspended");
    let waits = suspended && (!status.has("startTime") || was_suspended) && status.number("active") == 0;
    let mut was = spec.get("template").clone();
    let is = after.child("template");
    if !waits {
        if was != *is.value {
            let shown = internal::printed_value("PodTemplateSpec", is.value);
            errors.push(FieldError::invalid_shown(&is.path, &shown, IMMUTABLE));
        }
        return;
    }
    take_over(&mut was, is.value);
    if was["spec"] != *is.get("spec") {
        let shown = internal::printed_value("PodSpec", is.get("spec"));
        errors.push(FieldError::invalid_shown(is.path("spec"), &shown, IMMUTABLE));
    }
}

/// Copies the scheduling directives and resources of the new template to the old one.
fn take_over(was: &mut Value, is: &Value) {
    let empty = Value::Null;
    let (pod, new) = (&mut was["spec"], is.get("spec").unwrap_or(&empty));
    let affinity = new.get("affinity").and_then(|affinity| affinity.get("nodeAffinity")).cloned();
    match (pod.get_mut("affinity"), affinity) {
        (Some(own), Some(affinity)) => own["nodeAffinity"] = affinity,
        (Some(own), None) => {
            if let Some(fields) = own.as_object_mut() {
                fields.remove("nodeAffinity");
            }
        }
        (None, Some(affinity)) => pod["affinity"] = json!({"nodeAffinity": affinity}),
        (None, None) => {}
    }
    let Some(fields) = pod.as_object_mut() else { return };
    if new.get("affinity").is_none() && fields.get("affinity") == Some(&json!({})) {
        fields.remove("affinity");
    }
    for name in ["nodeSelector", "tolerations", "schedulingGates"] {
        match new.get(name) {
            Some(value) => drop(fields.insert(name.into(), value.clone())),
            None => drop(fields.remove(name)),
        }
    }
    for list in ["containers", "initContainers"] {
        let (Some(own), Some(new)) =
            (fields.get_mut(list).and_then(Value::as_array_mut), new.get(list).and_then(Value::as_array))
        else {
            continue;
        };
        let same = own.len() == new.len();
        for (own, new) in own.iter_mut().zip(new).filter(|(own, new)| same && own.get("name") == new.get("name")) {
            own["resources"] = new.get("resources").cloned().unwrap_or_default();
        }
    }
}
