//! Claims for volumes, and templates of claims.

use crate::data_sources::same_sources;
use portolan_types::quantity::{Quantity, value};
use serde_json::Value;

use super::{
    super::{
        Errors, FieldError, internal, metadata, names, selectors,
        view::{At, IMMUTABLE, NOT_POSITIVE},
    },
    persistent_volumes::access_modes,
    pods,
};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    spec(&object.child("spec"), errors);
}

/// Checks a template of claims in a pod's volume: only labels and annotations may be given of its metadata.
pub(super) fn template(at: &At<'_>, errors: &mut Errors) {
    metadata::of_claim_template(&at.child("metadata"), errors);
    spec_given(&at.child("spec"), true, errors);
}

/// Checks the spec of a claim.
pub(crate) fn spec(spec: &At<'_>, errors: &mut Errors) {
    spec_given(spec, false, errors);
}

/// Checks the spec of a claim; a claim template in a pod's volume is always checked like a new one.
fn spec_given(spec: &At<'_>, is_new: bool, errors: &mut Errors) {
    if spec.count("accessModes") == 0 {
        errors.required(spec.path("accessModes"), "at least 1 access mode is required");
    }
    selectors::tolerated_selector(&spec.child("selector"), errors);
    access_modes(spec, errors);
    storage(spec, errors);
    spec.follows_if_set("storageClassName", names::dns_subdomain, errors);
    spec.supported_if_present("volumeMode", &["Block", "Filesystem"], errors);
    sources(spec, is_new, errors);
    spec.follows_if_set("volumeAttributesClassName", names::dns_subdomain, errors);
}

fn storage(spec: &At<'_>, errors: &mut Errors) {
    let wanted = At {
        value: spec.child("resources").child("requests").get("storage"),
        path: spec.path("resources").key("storage"),
    };
    match selectors::quantity(wanted.value) {
        None => errors.required(wanted.path, ""),
        Some(amount) if amount <= Quantity::ZERO => errors.invalid(wanted.path, wanted.value, NOT_POSITIVE),
        Some(_) => pods::quantity("storage", &wanted, errors),
    }
}

/// Rule for the group of a data source, which an object may still break.
const GROUP: &str = "group of a data source";

/// Validates the data source of a claim.
fn sources(spec: &At<'_>, is_new: bool, errors: &mut Errors) {
    for name in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.present(name) else { continue };
        source.needs("name", errors);
        source.needs("kind", errors);
        let group = source.text("apiGroup");
        if group.is_empty() && source.text("kind") != "PersistentVolumeClaim" {
            let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid(&source.path, &source.text("kind").into(), why);
        }
        let from = errors.len();
        source.follows_if_set("apiGroup", names::dns_subdomain, errors);
        if !is_new {
            errors.mark_tolerated(from, GROUP);
        }
        if source.has("apiGroup") && !is_new {
            errors.waive(GROUP);
        }
        if name == "dataSourceRef" {
            source.follows_if_set("namespace", names::dns_label, errors);
        }
    }
    let (Some(source), Some(reference)) = (spec.present("dataSource"), spec.present("dataSourceRef")) else { return };
    let why = if !reference.text("namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"].iter().any(|name| source.get(name) != reference.get(name)) {
        "must match dataSourceRef"
    } else {
        return;
    };
    errors.push(FieldError::invalid_shown(&spec.path, "{}", why));
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    frozen(old, new, errors);
    let size = |at: &At<'_>| selectors::quantity(at.get("storage")).unwrap_or(Quantity::ZERO);
    let wanted = |spec: &At<'_>| size(&spec.child("resources").child("requests"));
    let is = size(&old.child("status").child("capacity"));
    if wanted(&after) < wanted(&before) && wanted(&after) <= is {
        errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
    }
    if before.get("volumeMode") != after.get("volumeMode") {
        errors.invalid("volumeMode", after.get("volumeMode"), IMMUTABLE);
    }
    let class = "volumeAttributesClassName";
    if before.get(class) != after.get(class) && old.child("status").has("currentVolumeAttributesClassName") {
        let what = match (after.has(class), after.text(class)) {
            (false, _) => "nil",
            (true, "") => "empty string",
            (true, _) => return,
        };
        let why = format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.forbidden(after.path(class), &why);
    }
}

/// Validates the immutable fields of a claim.
fn frozen(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (mut before, mut after) = (old.get("spec").clone(), new.get("spec").clone());
    // Old claims may have one source only.
    before.as_object_mut().into_iter().for_each(same_sources);
    let (was, is) = (annotation(old, BETA_CLASS), annotation(new, BETA_CLASS));
    let class = |spec: &Value| spec.get("storageClassName").and_then(Value::as_str).map(str::to_owned);
    if class(&before).is_none() && class(&after).is_some() {
        let same = was.is_some() && class(&after).as_deref() == was;
        if same && is.is_none_or(|is| Some(is) == was) {
            set(&mut after, "storageClassName", None);
        } else {
            annotation_stays(was, is, errors);
            if was.is_none() || same {
                set(&mut after, "storageClassName", None);
            }
        }
    } else {
        annotation_stays(was, is, errors);
    }
    if before.get("volumeName").is_none() {
        set(&mut before, "volumeName", after.get("volumeName").cloned());
    }
    if new.child("status").text("phase") == "Bound" {
        let wanted = before.pointer("/resources/requests/storage").cloned();
        if let (Some(requests), Some(wanted)) = (after.pointer_mut("/resources/requests"), wanted) {
            set(requests, "storage", Some(wanted));
        }
        let kept = before.get("volumeAttributesClassName").cloned();
        set(&mut after, "volumeAttributesClassName", kept);
    }
    if before != after {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let diff = internal::diff("PersistentVolumeClaimSpec", &before, &after);
        errors.forbidden("spec", &format!("{why}\n{diff}"));
    }
}

fn annotation<'v>(object: &At<'v>, key: &str) -> Option<&'v str> {
    object.child("metadata").child("annotations").get(key).as_str()
}

fn annotation_stays(was: Option<&str>, is: Option<&str>, errors: &mut Errors) {
    let (was, is) = (was.unwrap_or_default(), is.unwrap_or_default());
    if was != is {
        errors.invalid(format!("metadata.annotations.{BETA_CLASS}"), &is.into(), IMMUTABLE);
    }
}

fn set(value: &mut Value, name: &str, to: Option<Value>) {
    let Some(fields) = value.as_object_mut() else { return };
    match to {
        Some(to) => drop(fields.insert(name.to_owned(), to)),
        None => drop(fields.remove(name)),
    }
}

const RESIZE_STATES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    for (_, amount) in status.entries("capacity") {
        not_negative(&amount, errors);
    }
    let states = status.path("allocatedResourceStatuses");
    for (name, state) in status.entries("allocatedResourceStatuses") {
        storage_key(name, &At { value: state.value, path: states.clone() }, errors);
        if !RESIZE_STATES.contains(&state.as_text()) {
            errors.not_supported(&states, &name.into(), &RESIZE_STATES);
        }
    }
    for (name, amount) in status.entries("allocatedResources") {
        let place = At { value: amount.value, path: status.path("allocatedResources") };
        if storage_key(name, &place, errors) && not_negative(&amount, errors) {
            pods::quantity("storage", &amount, errors);
        }
    }
}

/// Returns true if an amount is not negative; reports a fault otherwise.
pub(super) fn not_negative(amount: &At<'_>, errors: &mut Errors) -> bool {
    let units = amount.value.as_str().and_then(|text| value(text).ok()).unwrap_or_default();
    if units < 0 {
        errors.invalid(&amount.path, &units.into(), "must be a valid resource quantity");
    }
    units >= 0
}

fn storage_key(name: &str, at: &At<'_>, errors: &mut Errors) -> bool {
    let details = names::qualified_name(name);
    let foreign = details.is_empty() && pods::is_native(name) && name != "storage";
    if foreign {
        errors.not_supported(&at.path, &name.into(), &["storage"]);
    }
    let good = details.is_empty() && !foreign;
    errors.invalid_each(&at.path, &name.into(), details);
    good
}
