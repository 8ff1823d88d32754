//! What objects use of a namespace's quotas, and whether a write fits into them.
//!
//! Pure: the caller hands over the quotas of the namespace as they are stored, and writes back the usage that comes out.

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
pub use templates::{ClaimsAsk, PodsAsk, charge_claims, charge_pods, charged_claim, charged_pods};
pub use usage::{Tally, count_name, is_counted, is_plain, usage};

/// Amounts by the name of what they are of.
pub type Amounts = BTreeMap<String, Quantity>;

/// The amounts in a resource list; what is no quantity is left out.
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

/// As a resource list.
pub fn list(amounts: &Amounts) -> Value {
    amounts.iter().map(|(name, amount)| (name.clone(), Value::String(amount.to_string()))).collect()
}

/// `name=amount` of all, joined by commas, as in messages.
fn shown<'a>(amounts: impl Iterator<Item = (&'a String, &'a Quantity)>) -> String {
    amounts.map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
}

/// The names among those of a quota that objects of `resource` use.
fn tracked<'a>(resource: &GroupResource, names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    names.map(String::as_str).filter(|name| usage::is_tracked(resource, name)).collect()
}
