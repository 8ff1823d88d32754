//! Sum of the resources that the containers of a pod request.

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{Amounts, amounts};

/// Requests or limits of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// `resources.requests`.
    Requests,
    /// `resources.limits`.
    Limits,
}

impl Compute {
    fn key(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// Adds `more` to `sum`.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let before = sum.get(name).copied().unwrap_or(Quantity::ZERO);
        sum.insert(name.clone(), before + *amount);
    }
}

/// Raises amounts to others that are more.
pub(super) fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let most = most.entry(name.clone()).or_insert(*amount);
        if *amount > *most {
            *most = *amount;
        }
    }
}

/// Returns the amounts of a pod, without its overhead: the sum of its containers, or one of its init containers if that
/// is more. Sidecars count with both. Pod-level amounts take precedence for `of_pod`.
pub fn pod_amounts(spec: &Value, compute: Compute, of_pod: fn(&str) -> bool) -> Amounts {
    let list = |key: &str| spec.get(key).and_then(Value::as_array).into_iter().flatten();
    let own = |container: &Value| amounts(container.get("resources").and_then(|all| all.get(compute.key())));
    let mut sum = Amounts::new();
    list("containers").for_each(|container| add(&mut sum, &own(container)));
    let (mut running, mut most) = (Amounts::new(), Amounts::new());
    for container in list("initContainers") {
        let amounts = own(container);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add(&mut sum, &amounts);
            add(&mut running, &amounts);
            raise(&mut most, &running);
        } else {
            let mut with_running = amounts;
            add(&mut with_running, &running);
            raise(&mut most, &with_running);
        }
    }
    raise(&mut sum, &most);
    let whole = amounts(spec.get("resources").and_then(|all| all.get(compute.key())));
    sum.extend(whole.into_iter().filter(|(name, _)| of_pod(name)));
    sum
}

/// Returns true for a pod-level resource that quotas count.
fn for_quota(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Returns true if a pod has pod-level resources.
pub(super) fn has_pod_level_resources(spec: &Value) -> bool {
    let said = |compute: Compute| {
        let list = spec.get("resources").and_then(|all| all.get(compute.key()));
        amounts(list).keys().any(|name| for_quota(name))
    };
    said(Compute::Requests) || said(Compute::Limits)
}

/// Requests and limits of a pod, its overhead included.
pub(super) fn with_overhead(spec: &Value) -> (Amounts, Amounts) {
    let mut requests = pod_amounts(spec, Compute::Requests, for_quota);
    let mut limits = pod_amounts(spec, Compute::Limits, for_quota);
    let overhead = amounts(spec.get("overhead"));
    add(&mut requests, &overhead);
    for (name, amount) in &overhead {
        if let Some(limit) = limits.get_mut(name).filter(|limit| **limit != Quantity::ZERO) {
            *limit = *limit + *amount;
        }
    }
    (requests, limits)
}
