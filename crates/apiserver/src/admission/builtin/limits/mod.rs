//! LimitRanger: defaults of containers' requests and limits, and checks against the ranges of the namespace.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use portolan_store::DamagedObject;
use portolan_strategy::quota::{Amounts, Compute, amounts, pod_amounts};
use portolan_types::{
    Status,
    object::{self, child_mut},
    quantity::Quantity,
};
use serde_json::Value;

use super::super::{
    AdmissionConfigCache,
    config_cache::{AdmissionConfiguration, LIMITS},
    forbidden,
};
use crate::errors::corrupt;
use crate::hooks::AdmissionRequest;

/// Annotation that lists the defaults that were set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Size limit of the text about all ranges, multiplied by the containers of a pod, in bytes.
const MAX_BYTES: usize = 8 << 20;
/// Estimate of the bytes of one amount with its text.
const EACH: usize = 64;

/// Sets the defaults of containers.
pub(super) async fn mutate(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
) -> Result<(), Status> {
    if let Some(configured) = configuration.of(request.cluster.id).await? {
        let ranges = ranges(&configured, request)?;
        check_text_size(request, ranges, pod)?;
        ranges.iter().for_each(|range| fill(range, pod));
    }
    Ok(())
}

/// Checks the worst case that each container gets, and is reported for, each amount of the ranges.
///
/// # Errors
/// 403 beyond the limit.
fn check_text_size(request: &AdmissionRequest<'_>, ranges: &[Value], pod: &Value) -> Result<(), Status> {
    if text_size(ranges, pod) > MAX_BYTES {
        let why = format!("the limits that LimitRanges set on its containers take more than {MAX_BYTES} bytes");
        Err(forbidden(request, Some(pod), why))
    } else {
        Ok(())
    }
}

/// Estimates the bytes of the text about all ranges, for each container.
fn text_size(ranges: &[Value], pod: &Value) -> usize {
    let list = |key: &str| pod.pointer(&format!("/spec/{key}")).and_then(Value::as_array).map_or(0, Vec::len);
    let limits = ranges.iter().filter_map(|range| range.pointer("/spec/limits")?.as_array()).flatten();
    let lists = limits.filter_map(Value::as_object).flat_map(|limit| limit.values().filter_map(Value::as_object));
    let bytes: usize = lists.flat_map(|list| list.keys()).map(|name| name.len() + EACH).sum();
    bytes.saturating_mul(list("containers") + list("initContainers"))
}

/// Checks pods and volume claims against the ranges of their namespace.
pub(super) async fn validate(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if old.is_some_and(object::is_deleting) {
        return Ok(());
    }
    let Some(configured) = configuration.of(request.cluster.id).await? else { return Ok(()) };
    for range in ranges(&configured, request)? {
        let mut errors = match &*request.kind.resource {
            "pods" => {
                check_text_size(request, std::slice::from_ref(range), object)?;
                pod_errors(range, object)
            }
            _ => claim_errors(range, object),
        };
        // A violation of several containers is reported once.
        let mut told = HashSet::new();
        errors.retain(|error| told.insert(error.clone()));
        match errors.as_slice() {
            [] => {}
            [one] => return Err(forbidden(request, Some(object), one)),
            several => return Err(forbidden(request, Some(object), format!("[{}]", several.join(", ")))),
        }
    }
    Ok(())
}

/// Returns the ranges of the namespace.
///
/// # Errors
/// 500 with the name of a damaged one.
fn ranges<'a>(configured: &'a AdmissionConfiguration, request: &AdmissionRequest<'_>) -> Result<&'a [Value], Status> {
    let is_own = |found: &&DamagedObject| found.key.namespace().is_some_and(|own| **own == *request.namespace);
    match configured.damaged(LIMITS).find(is_own) {
        Some(found) => Err(corrupt(&found.key, found.why)),
        None => Ok(configured.limits.get(request.namespace).map_or(&[], Vec::as_slice)),
    }
}

fn limits<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten();
    all.filter(move |limit| limit.get("type").and_then(Value::as_str) == Some(kind))
}

fn fill(range: &Value, pod: &mut Value) {
    let (mut requests, mut most) = (BTreeMap::new(), BTreeMap::new());
    for limit in limits(range, "Container") {
        let list = |key: &str| limit.get(key).and_then(Value::as_object).into_iter().flatten();
        requests.extend(list("defaultRequest").map(|(name, amount)| (name.clone(), amount.clone())));
        most.extend(list("default").map(|(name, amount)| (name.clone(), amount.clone())));
    }
    let mut told = Vec::new();
    for (key, what) in [("containers", "container"), ("initContainers", "init container")] {
        let list = pod.pointer_mut(&format!("/spec/{key}")).and_then(Value::as_array_mut);
        for container in list.into_iter().flatten().filter_map(Value::as_object_mut) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            for (key, word, wanted) in [("requests", "request", &requests), ("limits", "limit", &most)] {
                let set = fill_list(container, key, wanted);
                if !set.is_empty() {
                    told.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !told.is_empty() {
        object::set_annotation(pod, ANNOTATION, Some(format!("LimitRanger plugin set: {}", told.join("; "))));
    }
}

/// Sets the missing entries of one resource list and returns their names.
fn fill_list(container: &mut object::Object, key: &str, wanted: &BTreeMap<String, Value>) -> Vec<String> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let list = child_mut(child_mut(container, "resources"), key);
    let missing: Vec<_> = wanted.iter().filter(|(name, _)| !list.contains_key(*name)).collect();
    for (name, amount) in &missing {
        list.insert((*name).clone(), (*amount).clone());
    }
    missing.into_iter().map(|(name, _)| name.clone()).collect()
}

fn pod_errors(range: &Value, pod: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    let list = |key: &str| pod.pointer(&format!("/spec/{key}")).and_then(Value::as_array).into_iter().flatten();
    let all = range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten();
    for limit in all {
        match limit.get("type").and_then(Value::as_str) {
            Some("Container") => {
                for container in list("containers").chain(list("initContainers")) {
                    let own = |key: &str| amounts(container.get("resources").and_then(|all| all.get(key)));
                    let asked =
                        RequestedAmounts { kind: "Container", requests: own("requests"), limits: own("limits") };
                    asked.check(limit, &mut errors);
                }
            }
            Some("Pod") => {
                let spec = pod.get("spec").unwrap_or(&Value::Null);
                let of_pod = |name: &str| matches!(name, "cpu" | "memory");
                let all = |compute| pod_amounts(spec, compute, of_pod);
                let asked =
                    RequestedAmounts { kind: "Pod", requests: all(Compute::Requests), limits: all(Compute::Limits) };
                asked.check(limit, &mut errors);
            }
            _ => {}
        }
    }
    errors
}

fn claim_errors(range: &Value, claim: &Value) -> Vec<String> {
    const KIND: &str = "PersistentVolumeClaim";
    let mut errors = Vec::new();
    let requests = amounts(claim.pointer("/spec/resources/requests"));
    let asked = RequestedAmounts { kind: KIND, requests, limits: Amounts::new() };
    for limit in limits(range, KIND) {
        for (name, least) in amounts(limit.get("min")) {
            errors.extend(asked.below(&name, least));
        }
        for (name, most) in amounts(limit.get("max")) {
            errors.extend(asked.requests_above(&name, most));
        }
    }
    errors
}

/// Amounts that are checked against a range.
struct RequestedAmounts {
    kind: &'static str,
    requests: Amounts,
    limits: Amounts,
}

impl RequestedAmounts {
    fn check(&self, limit: &Value, errors: &mut Vec<String>) {
        for (name, least) in amounts(limit.get("min")) {
            errors.extend(self.below(&name, least));
        }
        for (name, most) in amounts(limit.get("max")) {
            errors.extend(self.above(&name, most));
        }
        for (name, ratio) in amounts(limit.get("maxLimitRequestRatio")) {
            errors.extend(self.too_far_apart(&name, ratio));
        }
    }

    fn below(&self, name: &str, least: Quantity) -> Option<String> {
        let rule = format!("minimum {name} usage per {} is {least}", self.kind);
        let Some(request) = self.requests.get(name) else { return Some(format!("{rule}.  No request is specified")) };
        if *request < least {
            return Some(format!("{rule}, but request is {request}"));
        }
        let limit = self.limits.get(name).filter(|limit| **limit < least)?;
        Some(format!("{rule}, but limit is {limit}"))
    }

    fn above(&self, name: &str, most: Quantity) -> Option<String> {
        let rule = format!("maximum {name} usage per {} is {most}", self.kind);
        let Some(limit) = self.limits.get(name) else { return Some(format!("{rule}.  No limit is specified")) };
        if *limit > most {
            return Some(format!("{rule}, but limit is {limit}"));
        }
        let request = self.requests.get(name).filter(|request| **request > most)?;
        Some(format!("{rule}, but request is {request}"))
    }

    fn requests_above(&self, name: &str, most: Quantity) -> Option<String> {
        let rule = format!("maximum {name} usage per {} is {most}", self.kind);
        let Some(request) = self.requests.get(name) else { return Some(format!("{rule}.  No request is specified")) };
        (*request > most).then(|| format!("{rule}, but request is {request}"))
    }

    fn too_far_apart(&self, name: &str, most: Quantity) -> Option<String> {
        let rule = format!("{name} max limit to request ratio per {} is {most}", self.kind);
        let positive = |list: &Amounts| list.get(name).copied().filter(|amount| *amount != Quantity::ZERO);
        let Some(request) = positive(&self.requests) else {
            return Some(format!("{rule}, but no request is specified or request is 0"));
        };
        let Some(limit) = positive(&self.limits) else {
            return Some(format!("{rule}, but no limit is specified or limit is 0"));
        };
        #[allow(clippy::cast_precision_loss, reason = "upstream works it out in floating point, too")]
        let (ratio, most) = (limit.nanos() as f64 / request.nanos() as f64, most.nanos() as f64 / 1e9);
        (ratio > most).then(|| format!("{rule}, but provided ratio is {ratio:.6}"))
    }
}
