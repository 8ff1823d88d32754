//! Pods and volume claims of templates: they are charged when the object with the template is placed, not when they are
//! created downstream.

use jiff::Timestamp;
use portolan_types::{
    GroupResource,
    placement::{ChargedClaims, ChargedPods},
    quantity::Quantity,
};
use serde_json::{Value, json};

use super::{
    Amounts, Refusal, add, amounts,
    charge::{check_amounts_set, check_fits, check_known},
    list, scopes, tracked, usage,
};

/// Change of the pods of one template.
#[derive(Clone, Copy, Debug)]
pub struct PodChargeRequest<'a> {
    /// Sample pod with the changes of admission, if admission has run.
    pub pod: Option<&'a Value>,
    /// Former charge; `None` for none.
    pub old: Option<&'a ChargedPods>,
    /// New charge; `None` for none.
    pub new: Option<&'a ChargedPods>,
    /// True if they run already: then they are charged beyond the limit.
    pub forced: bool,
}

/// Returns the charge of `count` pods like this one.
pub fn charged_pods(pod: &Value, count: i64, now: Timestamp) -> ChargedPods {
    let each = usage::usage(&GroupResource::new("", "pods"), pod, now);
    ChargedPods { count, each, ..scopes::seen_in(pod) }
}

/// Change of the volume claims of one template that do not exist yet.
#[derive(Clone, Copy, Debug)]
pub struct ClaimsAsk<'a> {
    /// Former charge; `None` for none.
    pub old: Option<&'a ChargedClaims>,
    /// New charge; `None` for none.
    pub new: Option<&'a ChargedClaims>,
    /// The objects exist in any case, so they are charged even beyond the limit.
    pub forced: bool,
}

/// Returns the charge of one claim like this one.
pub fn charged_claim(template: &str, start: i64, claim: &Value, now: Timestamp) -> ChargedClaims {
    let each = usage::usage(&claims(), claim, now);
    let class = claim.pointer("/spec/volumeAttributesClassName").and_then(Value::as_str).unwrap_or_default();
    let volume_attributes_class_name = class.to_owned();
    ChargedClaims { template: template.to_owned(), start, count: 1, each, volume_attributes_class_name }
}

pub(super) fn claims() -> GroupResource {
    GroupResource::new("", "persistentvolumeclaims")
}

/// Returns true if all scopes of a quota match the claims of a template.
pub(super) fn match_claims(quota: &Value, charged: &ChargedClaims) -> bool {
    let claim = json!({"spec": {"volumeAttributesClassName": charged.volume_attributes_class_name}});
    scopes::matches(quota, &claims(), &claim)
}

/// Returns the usage of `count` equal objects.
pub(super) fn together(each: &Amounts, count: i64) -> Amounts {
    each.iter().map(|(name, amount)| (name.clone(), amount.times(count))).collect()
}

/// Returns the quotas whose usage changes, by their index in `quotas`, with their new `status.used`. A decrease is
/// credited at once.
///
/// # Errors
/// Fails if one of them would be exceeded, has no usage yet, or limits amounts that the pod does not set; but never if
/// the charge is forced or does not increase the usage.
pub fn charge_pods(quotas: &[Value], ask: &PodChargeRequest<'_>) -> Result<Vec<(usize, Value)>, Refusal> {
    let counted = |quota: &Value, pods: Option<&ChargedPods>| {
        let pods = pods.filter(|pods| pods.count > 0 && scopes::match_pods(quota, pods));
        pods.map(|pods| together(&pods.each, pods.count)).unwrap_or_default()
    };
    let change = Change { resource: &GroupResource::new("", "pods"), said: ask.pod, forced: ask.forced };
    change.charge(quotas, |quota| (counted(quota, ask.new), counted(quota, ask.old)))
}

/// Returns the quotas whose usage changes by volume claims of a template.
///
/// # Errors
/// Charges as for pods.
pub fn charge_claims(quotas: &[Value], ask: &ClaimsAsk<'_>) -> Result<Vec<(usize, Value)>, Refusal> {
    let counted = |quota: &Value, claims: Option<&ChargedClaims>| {
        let claims = claims.filter(|claims| claims.count > 0 && match_claims(quota, claims));
        claims.map(|claims| together(&claims.each, claims.count)).unwrap_or_default()
    };
    let change = Change { resource: &claims(), said: None, forced: ask.forced };
    change.charge(quotas, |quota| (counted(quota, ask.new), counted(quota, ask.old)))
}

/// Change of the usage by the objects of a template.
struct Change<'a> {
    resource: &'a GroupResource,
    /// Object that must set the amounts that quotas limit.
    said: Option<&'a Value>,
    forced: bool,
}

impl Change<'_> {
    /// Charges the change to the quotas. `counted` returns the new and the former usage for a quota.
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
            // The controller counts usage that is not known yet.
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
            check_amounts_set(quota, self.resource, object, names)?;
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
