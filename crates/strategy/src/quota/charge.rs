//! Check whether a write fits into the quotas of its namespace, and the amounts that they are charged.

use std::collections::BTreeSet;

use jiff::Timestamp;
use portolan_types::{GroupResource, object, quantity::Quantity};
use serde_json::Value;

use super::{Amounts, add, amounts, list, printed_amounts, resources, scopes, tracked, usage};

/// Names that every container must ask for where they are limited.
const REQUIRED_AMOUNTS: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Write that a quota must admit.
pub struct Ask<'a> {
    /// Resource of the object.
    pub resource: &'a GroupResource,
    /// The subresource that is written, empty for the object itself.
    pub subresource: &'a str,
    /// The object to store.
    pub object: &'a Value,
    /// The stored object; `None` on create.
    pub old: Option<&'a Value>,
    /// The present moment.
    pub now: Timestamp,
}

/// Reason why a write is refused, as kube-apiserver words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl Ask<'_> {
    /// Returns true if any quota could be charged. An unchanged usage is charged nowhere; for pods and claims
    /// their scopes matter too.
    #[must_use]
    pub fn may_charge(&self) -> bool {
        let is_same =
            |old: &Value| *self.resource.resource == *"services" && self.usage_of(old) == self.usage_of(self.object);
        usage::is_counted(self.resource) && self.counts() && !self.old.is_some_and(is_same)
    }

    /// Returns true if this kind of write can change usage: the number of objects changes only on create.
    fn counts(&self) -> bool {
        let is_core = self.resource.group.is_empty();
        match (&*self.resource.resource, self.subresource, self.old) {
            ("pods", "", Some(old)) if is_core => scopes::is_terminating(old) != scopes::is_terminating(self.object),
            ("pods", "resize", Some(_)) if is_core => true,
            ("services" | "persistentvolumeclaims", "", Some(_)) if is_core => true,
            (_, "", None) => true,
            _ => false,
        }
    }

    fn usage_of(&self, object: &Value) -> Amounts {
        usage::usage(self.resource, object, self.now)
    }

    /// Returns the amounts that the write adds to a quota that counts the object.
    fn delta(&self, quota: &Value) -> Amounts {
        let new = self.usage_of(self.object);
        let before = self.old.filter(|old| scopes::matches(quota, self.resource, old));
        let Some(before) = before.map(|old| self.usage_of(old)) else { return new };
        let less = |(name, amount): (String, Quantity)| {
            let was = before.get(&name).copied().unwrap_or(Quantity::ZERO);
            (name, amount.minus(was))
        };
        new.into_iter().map(less).collect()
    }
}

/// Returns the quotas that a write is charged to, by their index in `quotas`, with their new `status.used`.
///
/// # Errors
/// Fails if one of them would be exceeded, has no usage yet, or limits amounts that the object does not set.
pub fn charge(quotas: &[Value], ask: &Ask<'_>) -> Result<Vec<(usize, Value)>, Refusal> {
    if !usage::is_counted(ask.resource) || !ask.counts() {
        return Ok(Vec::new());
    }
    let mut matching = Vec::new();
    for (at, quota) in quotas.iter().enumerate() {
        let hard = amounts(quota.pointer("/status/hard"));
        let names = tracked(ask.resource, hard.keys());
        if names.is_empty() || !scopes::matches(quota, ask.resource, ask.object) {
            continue;
        }
        check_amounts_set(quota, ask.resource, ask.object, &names)?;
        check_known(quota, &names)?;
        matching.push((at, quota, hard));
    }
    let mut charged = Vec::new();
    for (at, quota, hard) in matching {
        if let Some(used) = fit(quota, &hard, ask)? {
            charged.push((at, list(&used)));
        }
    }
    Ok(charged)
}

pub(super) fn check_known(quota: &Value, names: &[&str]) -> Result<(), Refusal> {
    let used = amounts(quota.pointer("/status/used"));
    if names.iter().all(|name| used.contains_key(*name)) {
        Ok(())
    } else {
        let why = format!("status unknown for quota: {}, resources: {}", object::name(quota), names.join(","));
        Err(Refusal(why))
    }
}

/// Returns the new usage, or `None` if it is unchanged.
fn fit(quota: &Value, hard: &Amounts, ask: &Ask<'_>) -> Result<Option<Amounts>, Refusal> {
    let asked: Amounts = ask
        .delta(quota)
        .into_iter()
        .filter(|(name, amount)| *amount > Quantity::ZERO && hard.contains_key(name))
        .collect();
    if asked.is_empty() {
        return Ok(None);
    }
    check_fits(quota, hard, &asked)?;
    let mut after = amounts(quota.pointer("/status/used"));
    add(&mut after, &asked);
    Ok(Some(after))
}

/// Checks that the hard limits leave room for the requested amounts.
pub(super) fn check_fits(quota: &Value, hard: &Amounts, asked: &Amounts) -> Result<(), Refusal> {
    let before = amounts(quota.pointer("/status/used"));
    let mut after = before.clone();
    add(&mut after, asked);
    let exceeded: BTreeSet<&String> = asked.keys().filter(|name| after[*name] > hard[*name]).collect();
    if exceeded.is_empty() {
        return Ok(());
    }
    let only = |amounts: &Amounts| printed_amounts(amounts.iter().filter(|(name, _)| exceeded.contains(name)));
    Err(Refusal(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        object::name(quota),
        only(asked),
        only(&before),
        only(hard)
    )))
}

/// Requires that every container states its needs where a quota limits CPU or memory.
pub(super) fn check_amounts_set(
    quota: &Value,
    resource: &GroupResource,
    object: &Value,
    names: &[&str],
) -> Result<(), Refusal> {
    let nothing = Value::Null;
    let spec = object.get("spec").unwrap_or(&nothing);
    if !resource.group.is_empty() || *resource.resource != *"pods" || resources::has_pod_level_resources(spec) {
        return Ok(());
    }
    let mut needed: Vec<&str> = names.iter().copied().filter(|name| REQUIRED_AMOUNTS.contains(name)).collect();
    needed.sort_unstable();
    let mut missing: Vec<String> = Vec::new();
    for name in needed {
        let silent = silent_containers(spec, name);
        if !silent.is_empty() {
            missing.push(format!("{name} for: {}", silent.into_iter().collect::<Vec<_>>().join(",")));
        }
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Refusal(format!("failed quota: {}: must specify {}", object::name(quota), missing.join("; "))))
    }
}

fn silent_containers<'a>(spec: &'a Value, name: &str) -> BTreeSet<&'a str> {
    let list = |key: &str| spec.get(key).and_then(Value::as_array).into_iter().flatten();
    let silent = list("containers").chain(list("initContainers")).filter(|container| {
        let of = |key: &str| amounts(container.get("resources").and_then(|all| all.get(key)));
        !usage::compute(&of("requests"), &of("limits")).contains_key(name)
    });
    silent.map(|container| container.get("name").and_then(Value::as_str).unwrap_or_default()).collect()
}
