//! Nodes.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{
    super::{
        Errors, FieldError, internal, names, selectors,
        view::{At, NOT_POSITIVE},
    },
    pods,
};
use portolan_codec::decode::{self, json_error};
use portolan_kinds::KindTable;

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let (spec, status, metadata) = (object.child("spec"), object.child("status"), object.child("metadata"));
    avoided_pods(&metadata.child("annotations"), errors);
    // kube-apiserver looks for taints in metadata.
    taints(&At { value: spec.get("taints"), path: metadata.path("taints") }, errors);
    resources(&status, errors);
    let swap = status.child("nodeInfo").child("swap");
    if swap.has("capacity") && swap.number("capacity") <= 0 {
        let path = metadata.path("nodeSwapStatus").child("capacity");
        errors.invalid(path, swap.get("capacity"), NOT_POSITIVE);
    }
    features(&status, errors);
    networks(&spec, errors);
}

/// Annotation that names controllers whose pods should avoid the node.
const AVOIDED: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

fn avoided_pods(annotations: &At<'_>, errors: &mut Errors) {
    let text = annotations.text(AVOIDED);
    if text.is_empty() {
        return;
    }
    let value = match avoided(text) {
        Ok(value) => value,
        Err(why) => return errors.invalid(annotations.path("AvoidPods"), &AVOIDED.into(), &why),
    };
    for (index, entry) in At::root(&value).items("preferAvoidPods").enumerate() {
        let path = annotations.path(AVOIDED).index(index).child("PodSignature");
        match entry.child("podSignature").present("podController") {
            None => errors.required(path, ""),
            Some(controller) if !controller.flag("controller") => {
                let path = path.child("PodController").child("Controller");
                errors.invalid(path, &false.into(), "must point to a controller");
            }
            Some(_) => {}
        }
    }
}

/// Parses the annotation; the error is Go's for a value of another type.
fn avoided(text: &str) -> Result<Value, String> {
    let table = KindTable::builtin();
    if let Some(why) = json_error(text.as_bytes()) {
        return Err(why);
    }
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let Some(schema) = table.type_named("io.k8s.api.core.v1.AvoidPods") else { return Ok(value) };
    let (value, _) = decode::canonical(table, schema, value).map_err(|unfit| unfit.decoded())?;
    Ok(value)
}

fn networks(spec: &At<'_>, errors: &mut Errors) {
    for network in spec.items("podCIDRs") {
        selectors::legacy_cidr(&network.path, network.as_text(), &HashSet::new(), errors);
    }
    let all: Vec<&str> = spec.items("podCIDRs").map(|network| network.as_text()).collect();
    let addresses: Vec<&str> = all.iter().filter_map(|text| Some(text.split_once('/')?.0)).collect();
    if let Some(at) = all.iter().position(|text| all.len() > 1 && selectors::cidr(text).is_none()) {
        let what = format!("invalid CIDR[{at}]: <nil> (invalid CIDR address: {})", all[at]);
        let why = format!("invalid PodCIDRs. failed to check with dual stack with error:{what}");
        errors.push(FieldError::internal(spec.path("podCIDRs"), &why));
    }
    if all.len() > 1 && (all.len() > 2 || !selectors::is_dual_stack(&addresses)) {
        let why = "may specify no more than one CIDR for each IP family";
        errors.invalid(spec.path("podCIDRs"), spec.get("podCIDRs"), why);
    }
}

/// Checks taints; a key may have each effect once.
fn taints(list: &At<'_>, errors: &mut Errors) {
    let mut taken: HashSet<(&str, &str)> = HashSet::new();
    let all = list.value.as_array().map_or(&[][..], Vec::as_slice);
    for (index, value) in all.iter().enumerate() {
        let taint = At { value, path: list.path.index(index) };
        taint.follows("key", names::qualified_name, errors);
        let details = names::label_value(taint.text("value"));
        if !details.is_empty() {
            errors.invalid(taint.path("value"), &taint.text("value").into(), &details.join(";"));
        }
        taint.one_of("effect", &pods::TAINT_EFFECTS, errors);
        if !taken.insert((taint.text("effect"), taint.text("key"))) {
            let shown = internal::printed_value("Taint", taint.value);
            let why = "taints must be unique by key and effect pair";
            errors.push(FieldError::duplicate_shown(&taint.path, &shown, why));
        }
    }
}

fn resources(status: &At<'_>, errors: &mut Errors) {
    for list in ["capacity", "allocatable"] {
        for (name, amount) in status.entries(list) {
            let path = status.path(list).child(name);
            pods::quantity(name, &At { value: amount.value, path }, errors);
        }
    }
}

/// Longest name of a feature.
const MAX_FEATURE: usize = 253;

fn features(status: &At<'_>, errors: &mut Errors) {
    let mut last: Option<&str> = None;
    for feature in status.items("declaredFeatures") {
        let name = feature.as_text();
        match last {
            Some(before) if before == name => errors.duplicate(&feature.path, feature.value),
            Some(before) if before > name => {
                errors.invalid(&feature.path, feature.value, "list must be sorted alphabetically");
            }
            _ => {}
        }
        last = Some(name);
        if name.len() > MAX_FEATURE {
            let why = format!("invalid feature name {name:?}: must be no more than {MAX_FEATURE} characters");
            errors.invalid(&feature.path, feature.value, &why);
        } else if !is_feature(name) {
            let why = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments \
                 separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters \
                 and slashes"
            );
            errors.invalid(&feature.path, feature.value, &why);
        }
    }
}

fn is_feature(name: &str) -> bool {
    let segment = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(segment)
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let status = new.child("status");
    resources(&status, errors);
    features(&status, errors);
    let mut taken: HashMap<String, ()> = HashMap::new();
    for address in status.items("addresses") {
        if taken.insert(address.value.to_string(), ()).is_some() {
            let shown = internal::printed_value("NodeAddress", address.value);
            errors.push(FieldError::duplicate_shown(&address.path, &shown, ""));
        }
    }
    let (before, after) = (old.child("spec"), new.child("spec"));
    fixed(&before, &after, errors);
    if let Some(source) = after.present("configSource") {
        config_source(&source, false, errors);
    }
    for name in ["assigned", "active", "lastKnownGood"] {
        if let Some(source) = status.child("config").present(name) {
            config_source(&source, true, errors);
        }
    }
    taints(&At { value: after.get("taints"), path: new.child("metadata").path("taints") }, errors);
    if before.get("externalID") != after.get("externalID") {
        errors.forbidden(after.path("externalID"), "may not be updated");
    }
}

fn fixed(before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    let why = "node updates may not change podCIDR except from \"\" to valid";
    match (before.count("podCIDRs"), after.count("podCIDRs")) {
        (0, _) => {}
        (was, is) if was != is => errors.forbidden(after.path("podCIDRs"), why),
        _ => {
            let pairs = before.items("podCIDRs").zip(after.items("podCIDRs"));
            for _ in pairs.filter(|(was, is)| was.value != is.value) {
                errors.forbidden(after.path("podCIDRs"), why);
            }
        }
    }
    let id = "providerID";
    if !before.text(id).is_empty() && before.text(id) != after.text(id) {
        errors.forbidden(after.path(id), "node updates may not change providerID except from \"\" to valid");
    }
}

/// Validates the source of a node's configuration; a status also names the state that was read.
fn config_source(source: &At<'_>, of_status: bool, errors: &mut Errors) {
    let Some(map) = source.present("configMap") else {
        let shown = internal::printed_value("NodeConfigSource", source.value);
        let why = "exactly one reference subfield must be non-nil";
        errors.push(FieldError::invalid_shown(&source.path, &shown, why));
        return;
    };
    for name in ["uid", "resourceVersion"] {
        match (of_status, map.text(name).is_empty()) {
            (true, true) => errors.required(map.path(name), ""),
            (false, false) => errors.forbidden(map.path(name), &format!("{name} must not be set in spec")),
            _ => {}
        }
    }
    map.needs_to_follow("namespace", names::dns_label, errors);
    map.needs_to_follow("name", names::dns_subdomain, errors);
    map.needs_to_follow("kubeletConfigKey", names::config_key, errors);
}
