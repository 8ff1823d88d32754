//! Pods and volume claims that templates would make: charged when what has the template is placed, and not as they come and go
//! below.

use jiff::Timestamp;
use portolan_types::{
    GroupResource,
    placement::{ChargedClaims, ChargedPods},
    quantity::Quantity,
};
use serde_json::{Value, json};

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

/// A change of the volume claims of one template, as far as they are not there.
#[derive(Clone, Copy, Debug)]
pub struct ClaimsAsk<'a> {
    /// What was charged; `None` for nothing.
    pub old: Option<&'a ChargedClaims>,
    /// What is to be; `None` for nothing.
    pub new: Option<&'a ChargedClaims>,
    /// They are there in any case: they are charged whatever the limit.
    pub forced: bool,
}

/// One claim like this one, as quotas count it.
pub fn charged_claim(template: &str, start: i64, claim: &Value, now: Timestamp) -> ChargedClaims {
    let each = usage::usage(&claims(), claim, now);
    let class = claim.pointer("/spec/volumeAttributesClassName").and_then(Value::as_str).unwrap_or_default();
    let volume_attributes_class_name = class.to_owned();
    ChargedClaims { template: template.to_owned(), start, count: 1, each, volume_attributes_class_name }
}

pub(super) fn claims() -> GroupResource {
    GroupResource::new("", "persistentvolumeclaims")
}

/// Whether all scopes of a quota hold for claims of a template.
pub(super) fn match_claims(quota: &Value, charged: &ChargedClaims) -> bool {
    let claim = json!({"spec": {"volumeAttributesClassName": charged.volume_attributes_class_name}});
    scopes::matches(quota, &claims(), &claim)
}

/// What so many use together.
pub(super) fn together(each: &Amounts, count: i64) -> Amounts {
    each.iter().map(|(name, amount)| (name.clone(), amount.times(count))).collect()
}

/// The quotas whose usage changes, by their place in `quotas`, with their new `status.used`. What becomes less is given back
/// at once.
///
/// # Errors
/// When one of them would be exceeded, does not know yet what is used, or asks for amounts that the pod does not say; not for
/// what is forced, or uses no more than before.
pub fn charge_pods(quotas: &[Value], ask: &PodsAsk<'_>) -> Result<Vec<(usize, Value)>, Refusal> {
    let counted = |quota: &Value, pods: Option<&ChargedPods>| {
        let pods = pods.filter(|pods| pods.count > 0 && scopes::match_pods(quota, pods));
        pods.map(|pods| together(&pods.each, pods.count)).unwrap_or_default()
    };
    let change = Change { resource: &GroupResource::new("", "pods"), said: ask.pod, forced: ask.forced };
    change.charge(quotas, |quota| (counted(quota, ask.new), counted(quota, ask.old)))
}

/// The same for claims.
///
/// # Errors
/// As for pods.
pub fn charge_claims(quotas: &[Value], ask: &ClaimsAsk<'_>) -> Result<Vec<(usize, Value)>, Refusal> {
    let counted = |quota: &Value, claims: Option<&ChargedClaims>| {
        let claims = claims.filter(|claims| claims.count > 0 && match_claims(quota, claims));
        claims.map(|claims| together(&claims.each, claims.count)).unwrap_or_default()
    };
    let change = Change { resource: &claims(), said: None, forced: ask.forced };
    change.charge(quotas, |quota| (counted(quota, ask.new), counted(quota, ask.old)))
}

/// A change of what objects of a template use.
struct Change<'a> {
    resource: &'a GroupResource,
    /// An object that has to say amounts that quotas limit.
    said: Option<&'a Value>,
    forced: bool,
}

impl Change<'_> {
    /// `counted` tells what a quota counts now, and what it has counted.
    fn charge(
        &self,
        quotas: &[Value],
        counted: impl Fn(&Value) -> (Amounts, Amounts),
    ) -> Result<Vec<(usize, Value)>, Refusal> {
        let mut changed = Vec::new();
        for (at, quota) in quotas.iter().enumerate() {
            let hard = amounts(quota.pointer("/status/hard"));
            let names = tracked(self.resource, hard.keys());
            let (new, old) = counted(quota);
            if names.is_empty() || (new.is_empty() && old.is_empty()) {
                continue;
            }
            let of = |all: &Amounts, name: &str| all.get(name).copied().unwrap_or(Quantity::ZERO);
            let delta: Amounts =
                names.iter().map(|name| ((*name).to_owned(), of(&new, name).minus(of(&old, name)))).collect();
            if !self.forced && !new.is_empty() {
                self.check(quota, &hard, &names, &delta)?;
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

    fn check(&self, quota: &Value, hard: &Amounts, names: &[&str], delta: &Amounts) -> Result<(), Refusal> {
        if let Some(object) = self.said {
            check_said(quota, self.resource, object, names)?;
        }
        let more = delta.iter().filter(|(_, amount)| **amount > Quantity::ZERO);
        let more: Amounts = more.map(|(name, amount)| (name.clone(), *amount)).collect();
        if more.is_empty() {
            return Ok(());
        }
        check_known(quota, names)?;
        check_fits(quota, hard, &more)
    }
}
