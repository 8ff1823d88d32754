//! Priority admission: resolves the priority class of pods.

use portolan_types::{
    Status,
    object::{self, child_mut},
};
use serde_json::{Value, json};

use super::super::{AdmissionConfigCache, config_cache::PRIORITIES, forbidden};
use crate::errors::corrupt;
use crate::hooks::{AdmissionRequest, Operation};

/// Priority classes that exist in every cluster.
const OF_THE_SYSTEM: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Sets the priority of a pod from its class; an update keeps the old one.
pub(super) async fn mutate(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if request.operation == Operation::Create {
        return resolve(configuration, request, pod).await;
    }
    for key in ["priority", "preemptionPolicy"] {
        let before = old.and_then(|old| old.get("spec")?.get(key)).cloned();
        if let Some((before, top)) = before.zip(pod.as_object_mut()) {
            child_mut(top, "spec").entry(key).or_insert(before);
        }
    }
    Ok(())
}

async fn resolve(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
) -> Result<(), Status> {
    let spec = |key: &str| pod.get("spec").and_then(|spec| spec.get(key)).filter(|value| !value.is_null());
    let name = spec("priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let class = match name {
        "" => default_class(configuration, request)
            .await?
            .unwrap_or_else(|| json!({"value": 0, "preemptionPolicy": "PreemptLowerPriority"})),
        name => match class(configuration, request, name).await? {
            Some(class) => class,
            None => return Err(forbidden(request, Some(pod), format!("no PriorityClass with name {name} was found"))),
        },
    };
    let because = "priority admission controller computed";
    let value = class.get("value").and_then(Value::as_i64).unwrap_or(0);
    if let Some(said) = spec("priority").and_then(Value::as_i64).filter(|said| *said != value) {
        let why = format!(
            "the integer value of priority ({said}) must not be provided in pod spec; {because} {value} from the given PriorityClass name"
        );
        return Err(forbidden(request, Some(pod), why));
    }
    let policy = class.get("preemptionPolicy").and_then(Value::as_str).map(str::to_owned);
    let said = spec("preemptionPolicy").and_then(Value::as_str);
    if let Some((said, policy)) = said.zip(policy.as_deref()).filter(|(said, policy)| said != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({said}) must not be provided in pod spec; {because} {policy} from the given PriorityClass name"
        );
        return Err(forbidden(request, Some(pod), why));
    }
    let name = if name.is_empty() { object::name(&class).to_owned() } else { name.to_owned() };
    let Some(top) = pod.as_object_mut() else { return Ok(()) };
    let spec = child_mut(top, "spec");
    if !name.is_empty() {
        spec.insert("priorityClassName".into(), name.into());
    }
    spec.insert("priority".into(), value.into());
    if let Some(policy) = policy {
        spec.insert("preemptionPolicy".into(), policy.into());
    }
    Ok(())
}

/// Reads a priority class by name, among those of the logical cluster and the predefined ones.
///
/// # Errors
/// 500 if it is damaged.
async fn class(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
    name: &str,
) -> Result<Option<Value>, Status> {
    if let Some(configured) = configuration.of(request.cluster.id).await? {
        if let Some(own) = configured.priorities.iter().find(|class| object::name(class) == name) {
            return Ok(Some(own.clone()));
        }
        if let Some(found) = configured.damaged(PRIORITIES).find(|found| *found.key.name == *name) {
            return Err(corrupt(&found.key, found.why));
        }
    }
    let of_the_system = OF_THE_SYSTEM.iter().find(|(own, _)| *own == name);
    Ok(of_the_system.map(
        |(name, value)| json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}),
    ))
}

/// Returns the default class; of several the one with the lowest value.
///
/// # Errors
/// 500 with the name of a damaged class that may be the default.
async fn default_class(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
) -> Result<Option<Value>, Status> {
    let Some(configured) = configuration.of(request.cluster.id).await? else { return Ok(None) };
    let all = configured.priorities.iter();
    let defaults = all.filter(|class| class.get("globalDefault") == Some(&Value::Bool(true)));
    let Some(found) = defaults.min_by_key(|class| class.get("value").and_then(Value::as_i64)) else {
        return configured.check_readable(&[PRIORITIES]).map(|()| None);
    };
    // No class besides the stored one is the default.
    Ok(Some(found.clone()))
}

/// Checks that at most one class is the default.
pub(super) async fn validate(
    configuration: &AdmissionConfigCache,
    request: &AdmissionRequest<'_>,
    class: &Value,
) -> Result<(), Status> {
    if class.get("globalDefault") != Some(&Value::Bool(true)) {
        return Ok(());
    }
    let Some(other) = default_class(configuration, request).await? else { return Ok(()) };
    let name = object::name(&other);
    if request.operation == Operation::Update && name == object::name(class) {
        return Ok(());
    }
    let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
    Err(forbidden(request, Some(class), why))
}
