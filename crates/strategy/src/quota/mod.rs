//! Usage of a namespace's quotas, and the check whether a write fits into them. Pure: the caller passes the stored
//! quotas of the namespace, and writes back the resulting usage.

mod charge;
mod held;
mod resources;
mod scopes;
mod templates;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::BTreeMap;

use portolan_types::{GroupResource, quantity::Quantity};
use serde_json::Value;

pub use charge::{Ask, Refusal, charge};
pub use resources::{Compute, add, pod_amounts};
pub use templates::{ClaimsAsk, PodChargeRequest, charge_claims, charge_pods, charged_claim, charged_pods};
pub use usage::{Tally, count_name, is_counted, is_plain, usage};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Returns the amounts in a resource list; malformed quantities are left out.
pub fn amounts(list: Option<&Value>) -> Amounts {
    let all = list.and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), quantity(amount)?))).collect()
}

fn quantity(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the amounts as a resource list.
pub fn list(amounts: &Amounts) -> Value {
    amounts.iter().map(|(name, amount)| (name.clone(), Value::String(amount.to_string()))).collect()
}

/// Returns `name=amount` for each, joined by commas, as in messages.
fn printed_amounts<'a>(amounts: impl Iterator<Item = (&'a String, &'a Quantity)>) -> String {
    amounts.map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
}

/// Returns the names among those of a quota that objects of `resource` use.
fn tracked<'a>(resource: &GroupResource, names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    names.map(String::as_str).filter(|name| usage::is_tracked(resource, name)).collect()
}
