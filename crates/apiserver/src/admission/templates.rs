//! Quota charges of pods and volume claims that a controller would create from a template, in the transaction that
//! places the object with the template.

use portolan_store::Write;
use portolan_strategy::quota::{ClaimsAsk, PodChargeRequest, Refusal, charge_claims, charge_pods};
use portolan_types::{GroupResource, LogicalClusterId, Status, placement::ChargedClaims};
use serde_json::Value;

use super::quota::{self, QuotaContext};
use crate::sync::KeyedGuard;

/// Change of the pods and claims that controllers create from the templates of one object.
#[derive(Clone, Copy, Debug)]
pub struct TemplateCharge<'a> {
    /// Its pods.
    pub pods: PodChargeRequest<'a>,
    /// Charged claims that do not exist yet, one entry per template.
    pub old_claims: &'a [ChargedClaims],
    /// Claims to charge that do not exist yet.
    pub new_claims: &'a [ChargedClaims],
}

impl TemplateCharge<'_> {
    /// Returns the change of claims per template.
    fn claims(&self) -> impl Iterator<Item = ClaimsAsk<'_>> {
        let of =
            |all: &'_ [ChargedClaims], one: &ChargedClaims| all.iter().position(|other| other.template == one.template);
        let changed = self.new_claims.iter().map(move |new| {
            let old = of(self.old_claims, new).map(|at| &self.old_claims[at]);
            ClaimsAsk { old, new: Some(new), forced: self.pods.forced }
        });
        let gone = self.old_claims.iter().filter(move |old| of(self.new_claims, old).is_none());
        changed.chain(gone.map(|old| ClaimsAsk { old: Some(old), new: None, forced: self.pods.forced }))
    }
}

/// Quota writes of a charge. Other charges in the namespace wait until it is dropped.
pub struct TemplateQuotaWrites {
    /// Writes, each conditional on the revision that was read.
    pub writes: Vec<Write>,
    /// Lock to hold until they are committed.
    pub turn: QuotaGuard,
}

/// Lock on the quotas of a namespace; empty if it has none.
pub struct QuotaGuard {
    _turn: Option<KeyedGuard<quota::QuotaNamespace>>,
}

/// Address and names of the object with the templates.
#[derive(Clone, Copy, Debug)]
pub struct TemplateOwner<'a> {
    /// Logical cluster.
    pub cluster: LogicalClusterId,
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Name prefix of its pods.
    pub pod_prefix: &'a str,
}

/// Charges the quotas of a namespace for the pods and claims of the templates of `owner`.
///
/// # Errors
/// 403 if a quota would be exceeded, as for a claim or a pod.
pub(crate) async fn charge(
    context: &QuotaContext,
    owner: &TemplateOwner<'_>,
    ask: &TemplateCharge<'_>,
) -> Result<TemplateQuotaWrites, Status> {
    let TemplateOwner { cluster, namespace, name, pod_prefix } = *owner;
    if !context.has_quotas(cluster, namespace).await? {
        return Ok(TemplateQuotaWrites { writes: Vec::new(), turn: QuotaGuard { _turn: None } });
    }
    let turn = context.lock((cluster, namespace.to_owned())).await;
    let quotas = quota::stored(&context.commits.storage, cluster, namespace).await?;
    let mut trees: Vec<Value> = quotas.iter().map(|quota| quota.tree.clone()).collect();
    let [pods, claims] = ["pods", "persistentvolumeclaims"].map(|resource| GroupResource::new("", resource));
    for claim in ask.claims() {
        let refused = |refusal: Refusal| {
            let claimed = claim.new.map(|new| format!("{}{}", new.prefix(name), new.start)).unwrap_or_default();
            Status::forbidden(&claims, &claimed, refusal.0)
        };
        let charged = charge_claims(&trees, &claim).map_err(refused)?;
        use_more(&mut trees, charged);
    }
    let refused = |refusal: Refusal| Status::forbidden(&pods, pod_prefix, refusal.0);
    let charged = charge_pods(&trees, &ask.pods).map_err(refused)?;
    use_more(&mut trees, charged);
    let changed = quotas.iter().zip(trees).filter(|(quota, after)| quota.tree != *after);
    let writes = changed.map(|(quota, after)| quota::with_usage(quota, after["status"]["used"].clone())).collect();
    Ok(TemplateQuotaWrites { writes, turn: QuotaGuard { _turn: Some(turn) } })
}

/// Adds charges to the usage of `quotas`, so that the next charge sees them.
pub(super) fn use_more(quotas: &mut [Value], charged: Vec<(usize, Value)>) {
    for (at, used) in charged {
        quotas[at]["status"]["used"] = used;
    }
}
