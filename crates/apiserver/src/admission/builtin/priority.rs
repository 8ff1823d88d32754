//! The priority of pods, by their class.

use portolan_types::{
    Status,
    object::{self, child_mut},
};
use serde_json::{Value, json};

use super::super::{Operation, Request, configured::PRIORITIES, forbidden};
use crate::{ApiServer, errors::corrupt};

/// The classes that every cluster has.
const OF_THE_SYSTEM: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Gives a pod the priority of its class; an update keeps what it had.
pub(super) async fn mutate(
    api: &ApiServer,
    request: &Request<'_>,
    pod: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if request.operation == Operation::Create {
        return resolve(api, request, pod).await;
    }
    for key in ["priority", "preemptionPolicy"] {
        let before = old.and_then(|old| old.get("spec")?.get(key)).cloned();
        if let Some((before, top)) = before.zip(pod.as_object_mut()) {
            child_mut(top, "spec").entry(key).or_insert(before);
        }
    }
    Ok(())
}

async fn resolve(api: &ApiServer, request: &Request<'_>, pod: &mut Value) -> Result<(), Status> {
    let spec = |key: &str| pod.get("spec").and_then(|spec| spec.get(key)).filter(|value| !value.is_null());
    let name = spec("priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let class = match name {
        "" => default_class(api, request)
            .await?
            .unwrap_or_else(|| json!({"value": 0, "preemptionPolicy": "PreemptLowerPriority"})),
        name => match class(api, request, name).await? {
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

/// A class by its name, of the logical cluster or of those that every one has.
///
/// # Errors
/// 500 where it cannot be read.
async fn class(api: &ApiServer, request: &Request<'_>, name: &str) -> Result<Option<Value>, Status> {
    if let Some(configured) = api.configured.of(request.cluster.id).await? {
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

/// The class for pods that name none: of several the one that gives least.
///
/// # Errors
/// 500 with the name of a class that cannot be read and may be it.
async fn default_class(api: &ApiServer, request: &Request<'_>) -> Result<Option<Value>, Status> {
    let Some(configured) = api.configured.of(request.cluster.id).await? else { return Ok(None) };
    let all = configured.priorities.iter();
    let defaults = all.filter(|class| class.get("globalDefault") == Some(&Value::Bool(true)));
    let Some(found) = defaults.min_by_key(|class| class.get("value").and_then(Value::as_i64)) else {
        return configured.check_readable(&[PRIORITIES]).map(|()| None);
    };
    // Beside it there is no other default.
    Ok(Some(found.clone()))
}

/// There is one default at most.
pub(super) async fn validate(api: &ApiServer, request: &Request<'_>, class: &Value) -> Result<(), Status> {
    if class.get("globalDefault") != Some(&Value::Bool(true)) {
        return Ok(());
    }
    let Some(other) = default_class(api, request).await? else { return Ok(()) };
    let name = object::name(&other);
    if request.operation == Operation::Update && name == object::name(class) {
        return Ok(());
    }
    let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
    Err(forbidden(request, Some(class), why))
}
