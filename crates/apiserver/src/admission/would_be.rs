//! Pods and volume claims that are not sent, but that a controller would make of a template: let in before what has the template is placed, and
//! charged to quotas in the transaction that places it.

use std::sync::Arc;

use portolan_machinery::{
    defaults,
    lifecycle::{self, WriteContext},
    quota::{ClaimsAsk, PodsAsk, Refusal, charge_claims, charge_pods, charged_claim, charged_pods},
    rbac::User,
};
use portolan_store::Write;
use portolan_types::{
    GroupResource, LogicalClusterId, Status, object,
    placement::{ChargedClaims, ChargedPods},
};
use serde_json::Value;

use super::{Brief, Operation, Request, Sent, Turn, quota};
use crate::{ApiServer, directory::LogicalCluster, notes::Notes, warnings::Warnings};

/// A change of what one object has pods and claims made of.
#[derive(Clone, Copy, Debug)]
pub struct MadeAsk<'a> {
    /// Its pods.
    pub pods: PodsAsk<'a>,
    /// Claims that were charged and are not there, one for each template.
    pub old_claims: &'a [ChargedClaims],
    /// Claims that are to be and are not there.
    pub new_claims: &'a [ChargedClaims],
}

impl MadeAsk<'_> {
    /// The claims of each template.
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

/// Quotas as they are to be written. Who else charges those of the namespace waits until it is dropped.
pub struct PodCharges {
    /// Each on the condition that nobody has written it since.
    pub writes: Vec<Write>,
    /// Kept until they are written.
    pub turn: PodsTurn,
}

/// The turn to charge the quotas of a namespace; nothing where there are none.
pub struct PodsTurn {
    _turn: Option<Turn<quota::Namespace>>,
}

impl ApiServer {
    /// The pod or claim as it would be stored, if `user` created it in `namespace` now: a dry run of everything but quotas.
    ///
    /// # Errors
    /// What the answer to such a request would be.
    pub async fn admit_made(
        &self,
        cluster: LogicalClusterId,
        (namespace, resource): (&str, &str),
        made: Value,
        user: &User,
    ) -> Result<Value, Status> {
        let cluster = self.known(cluster)?;
        let served = self.kinds.served(cluster.id).await?.surface.resource("", "v1", resource);
        let served = served.ok_or_else(Status::no_such_path)?;
        let (kind, table) = (&served.kind, &served.table);
        let (warnings, notes, brief) = (Warnings::default(), Notes::default(), Brief::default());
        let name = object::name(&made).to_owned();
        let request = Request {
            cluster: &cluster,
            kind,
            namespace,
            name: &name,
            url_name: "",
            operation: Operation::Create,
            subresource: "",
            user,
            dry_run: true,
            warnings: &warnings,
            notes: &notes,
            brief: &brief,
            table,
            sent: Sent::Nothing,
        };
        self.admission.guard(self, &request, &made).await?;
        let mut made = made;
        defaults::apply(table, kind, &mut made)?;
        self.admission.mutate(self, &request, &mut made, None).await?;
        let context = WriteContext::new(table, &self.seams);
        let mut made = lifecycle::prepare_create(&context, kind, made, Some(namespace), None)?;
        if name.is_empty() {
            // Refusals call it by what its name would begin with, however often they are given.
            object::metadata_mut(&mut made).remove("name");
        }
        self.admission.validate(self, &request, Some(&made), None).await?;
        Ok(made)
    }

    /// `count` pods like this one, as quotas count them.
    pub fn measure_pods(&self, pod: &Value, count: i64) -> ChargedPods {
        charged_pods(pod, count, self.seams.clock.now())
    }

    /// One claim of a template like this one, as quotas count it.
    pub fn measure_claim(&self, template: &str, start: i64, claim: &Value) -> ChargedClaims {
        charged_claim(template, start, claim, self.seams.clock.now())
    }

    /// Charges the quotas of a namespace for what is made of the templates of `owner`; `called` is what the name of a pod
    /// begins with.
    ///
    /// # Errors
    /// 403 when a quota would be exceeded, as for a claim or a pod.
    pub async fn charge_made(
        &self,
        cluster: LogicalClusterId,
        namespace: &str,
        (owner, called): (&str, &str),
        ask: &MadeAsk<'_>,
    ) -> Result<PodCharges, Status> {
        let configured = self.configured.of(cluster).await?;
        if !configured.is_some_and(|configured| configured.with_quotas.contains(namespace)) {
            return Ok(PodCharges { writes: Vec::new(), turn: PodsTurn { _turn: None } });
        }
        let turn = self.charging.wait((cluster, namespace.to_owned())).await;
        let quotas = quota::stored(self, cluster, namespace).await?;
        let mut trees: Vec<Value> = quotas.iter().map(|(_, tree)| tree.clone()).collect();
        let [pods, claims] = ["pods", "persistentvolumeclaims"].map(|resource| GroupResource::new("", resource));
        for claim in ask.claims() {
            let refused = |refusal: Refusal| {
                let name = claim.new.map(|new| format!("{}{}", new.prefix(owner), new.start)).unwrap_or_default();
                Status::forbidden(&claims, &name, refusal.0)
            };
            let charged = charge_claims(&trees, &claim).map_err(refused)?;
            use_more(&mut trees, charged);
        }
        let charged = charge_pods(&trees, &ask.pods).map_err(|refusal| Status::forbidden(&pods, called, refusal.0))?;
        use_more(&mut trees, charged);
        let changed = quotas.iter().zip(trees).filter(|((_, before), after)| before != after);
        let writes = changed.map(|(quota, after)| quota::with_usage(quota, after["status"]["used"].clone())).collect();
        Ok(PodCharges { writes, turn: PodsTurn { _turn: Some(turn) } })
    }

    /// Whether webhooks of a logical cluster may have to be waited for.
    ///
    /// # Errors
    /// When its configuration cannot be read.
    pub async fn calls_webhooks(&self, cluster: LogicalClusterId) -> Result<bool, Status> {
        let configured = self.configured.of(cluster).await?;
        Ok(configured.is_some_and(|own| !own.mutating.is_empty() || !own.validating.is_empty()))
    }

    fn known(&self, cluster: LogicalClusterId) -> Result<Arc<LogicalCluster>, Status> {
        self.directory.by_id(cluster).ok_or_else(Status::no_such_path)
    }
}

/// Lets the next who is charged see what has been.
pub(super) fn use_more(quotas: &mut [Value], charged: Vec<(usize, Value)>) {
    for (at, used) in charged {
        quotas[at]["status"]["used"] = used;
    }
}
