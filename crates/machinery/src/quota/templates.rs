//! Pods that templates would make: charged when what has the template is placed, and not as they come and go below.

use jiff::Timestamp;
use portolan_types::{GroupResource, placement::ChargedPods, quantity::Quantity};
use serde_json::Value;

use super::{
    Amounts, Refusal, add, amounts,
    charge::{check_fits, check_known, check_said},
    list, scopes, tracked, usage,
};

/// A change of the pods of one template.
#[derive(Clone, Copy, Debug)]
pub struct PodsAsk<'a> {
    /// One of them, as admission has left it, where it has just been looked at.
    pub pod: Option<&'a Value>,
    /// What was charged; `None` for nothing.
    pub old: Option<&'a ChargedPods>,
    /// What is to be; `None` for nothing.
    pub new: Option<&'a ChargedPods>,
    /// They run already: they are charged whatever the limit.
    pub forced: bool,
}

/// `count` pods like this one, as quotas count them.
pub fn charged_pods(pod: &Value, count: i64, now: Timestamp) -> ChargedPods {
    let each = usage::usage(&GroupResource::new("", "pods"), pod, now);
    ChargedPods { count, each, ..scopes::seen_in(pod) }
}

/// What they use together.
pub(super) fn amounts_of(pods: &ChargedPods) -> Amounts {
    pods.each.iter().map(|(name, amount)| (name.clone(), amount.times(pods.count))).collect()
}

/// The quotas whose usage changes, by their place in `quotas`, with their new `status.used`. What becomes less is given back
/// at once.
///
/// # Errors
/// When one of them would be exceeded, does not know yet what is used, or asks for amounts that the pod does not say; not for
/// what is forced, or uses no more than before.
pub fn charge_pods(quotas: &[Value], ask: &PodsAsk<'_>) -> Result<Vec<(usize, Value)>, Refusal> {
    let pods = GroupResource::new("", "pods");
    let mut changed = Vec::new();
    for (at, quota) in quotas.iter().enumerate() {
        let hard = amounts(quota.pointer("/status/hard"));
        let names = tracked(&pods, hard.keys());
        let counted = |pods: Option<&ChargedPods>| {
            let pods = pods.filter(|pods| pods.count > 0 && scopes::match_pods(quota, pods));
            pods.map(amounts_of).unwrap_or_default()
        };
        let (new, old) = (counted(ask.new), counted(ask.old));
        if names.is_empty() || (new.is_empty() && old.is_empty()) {
            continue;
        }
        let of = |all: &Amounts, name: &str| all.get(name).copied().unwrap_or(Quantity::ZERO);
        let delta: Amounts =
            names.iter().map(|name| ((*name).to_owned(), of(&new, name).minus(of(&old, name)))).collect();
        let more: Amounts =
            delta.iter().filter(|(_, amount)| **amount > Quantity::ZERO).map(|(n, a)| (n.clone(), *a)).collect();
        if !ask.forced && !new.is_empty() {
            if let Some(pod) = ask.pod {
                check_said(quota, &pods, pod, &names)?;
            }
            if !more.is_empty() {
                check_known(quota, &names)?;
                check_fits(quota, &hard, &more)?;
            }
        }
        let before = amounts(quota.pointer("/status/used"));
        let mut after = before.clone();
        // What is not known yet is counted by the loop.
        add(&mut after, &delta.into_iter().filter(|(name, _)| before.contains_key(name)).collect());
        after.values_mut().for_each(|amount| *amount = (*amount).max(Quantity::ZERO));
        if after != before {
            changed.push((at, list(&after)));
        }
    }
    Ok(changed)
}
