//! Admission gate of the scheduler: runs the API server's admission and quotas on the pods of a template before it is
//! placed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use portolan_apiserver::{
    ApiServer, TemplatedObject, User,
    admission::{TemplateCharge, TemplateOwner},
};
use portolan_scheduler::{AdmittedPod, NotAdmitted, PodCharge, PodChargeWrites, PodGate, PodRefusal, TemplateClaim};
use portolan_strategy::quota::PodChargeRequest;
use portolan_types::{
    BoxFuture, LogicalClusterId, ObjectKey, Reason, Status,
    placement::{ChargedClaims, ChargedPods},
};
use serde_json::Value;

/// Most pods of one logical cluster, and of all, that wait for webhooks at once: a slow webhook must not delay other
/// tenants.
const WAITING_FOR_ONE: usize = 2;
const WAITING: usize = 8;

/// Gate over admission and quotas of the API server.
pub(crate) struct AdmissionGate {
    api: Arc<ApiServer>,
    /// Number of pods per logical cluster that wait for webhooks.
    waiting: Mutex<HashMap<LogicalClusterId, usize>>,
}

/// Permit to wait for webhooks.
struct WebhookPermit<'a>(&'a AdmissionGate, LogicalClusterId);

impl Drop for WebhookPermit<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seats) = waiting.get_mut(&self.1) {
            *seats -= 1;
            if *seats == 0 {
                waiting.remove(&self.1);
            }
        }
    }
}

impl AdmissionGate {
    pub(crate) fn new(api: Arc<ApiServer>) -> Self {
        Self { api, waiting: Mutex::default() }
    }

    fn seat(&self, cluster: LogicalClusterId) -> Option<WebhookPermit<'_>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = waiting.values().sum();
        let own = waiting.get(&cluster).copied().unwrap_or(0);
        if own >= WAITING_FOR_ONE || all >= WAITING {
            return None;
        }
        waiting.insert(cluster, own + 1);
        Some(WebhookPermit(self, cluster))
    }

    /// Admits the object that the controller `by` would make from a template of `owner`.
    async fn admitted(&self, owner: &ObjectKey, resource: &str, made: &Value, by: &str) -> Result<Value, NotAdmitted> {
        let _seat = if self.api.calls_webhooks(owner.cluster).await.map_err(not_admitted)? {
            let busy = || Status::too_many_requests("too many pods wait for webhooks", 1);
            Some(self.seat(owner.cluster).ok_or_else(|| NotAdmitted::Failed(busy()))?)
        } else {
            None
        };
        let namespace = owner.namespace().map_or("", |namespace| namespace.as_str());
        let templated = TemplatedObject { cluster: owner.cluster, namespace, resource, user: &controller(by) };
        let admitted = self.api.admit_from_template(templated, made.clone()).await;
        admitted.map_err(|status| without_made_up_name(not_admitted(status.clone()), &status, made))
    }

    async fn charged(&self, owner: &ObjectKey, charge: PodCharge<'_>) -> Result<PodChargeWrites, NotAdmitted> {
        let namespace = owner.namespace().map_or("", |namespace| namespace.as_str());
        let PodCharge { pod, old, new, old_claims, new_claims, forced } = charge;
        let pod_prefix = match &*owner.resource.resource {
            "statefulsets" => format!("{}-0", owner.name),
            _ => format!("{}-", owner.name),
        };
        let ask = TemplateCharge { pods: PodChargeRequest { pod, old, new, forced }, old_claims, new_claims };
        let owner = TemplateOwner { cluster: owner.cluster, namespace, name: &owner.name, pod_prefix: &pod_prefix };
        let charges = self.api.charge_templates(&owner, &ask).await;
        let charges = charges.map_err(|status| match not_admitted(status) {
            NotAdmitted::Refused(refusal) => NotAdmitted::Refused(PodRefusal { reason: "QuotaExceeded", ..refusal }),
            failed @ NotAdmitted::Failed(_) => failed,
        })?;
        Ok(PodChargeWrites { writes: charges.writes, turn: Box::new(charges.turn) })
    }
}

/// Returns the account of a kube-controller-manager controller, which makes the pods of its kind on any cluster.
fn controller(name: &str) -> User {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    User {
        name: format!("system:serviceaccount:kube-system:{name}"),
        groups: groups.map(str::to_owned).to_vec(),
        ..User::default()
    }
}

/// Tells a failure of the server from a refusal of the pod.
fn not_admitted(status: Status) -> NotAdmitted {
    match status.reason() {
        Reason::ServerTimeout | Reason::ServiceUnavailable | Reason::Timeout | Reason::TooManyRequests => {
            NotAdmitted::Failed(status)
        }
        _ => NotAdmitted::Refused(PodRefusal { reason: "AdmissionRefused", message: status.message().to_owned() }),
    }
}

/// Replaces a generated name in the refusal by its prefix, so that repeated refusals are equal.
fn without_made_up_name(error: NotAdmitted, status: &Status, pod: &Value) -> NotAdmitted {
    let prefix = pod.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
    let name = &*status.details().name;
    match error {
        NotAdmitted::Refused(refusal)
            if !prefix.is_empty() && name.len() > prefix.len() && name.starts_with(prefix) =>
        {
            let message = refusal.message.replace(&format!("\"{name}\""), &format!("\"{prefix}\""));
            NotAdmitted::Refused(PodRefusal { message, ..refusal })
        }
        error => error,
    }
}

impl PodGate for AdmissionGate {
    fn admit<'a>(
        &'a self,
        owner: &'a ObjectKey,
        pod: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Result<AdmittedPod, NotAdmitted>> {
        Box::pin(async move {
            let pod = self.admitted(owner, "pods", pod, by).await?;
            Ok(AdmittedPod { one: self.measure(&pod), pod })
        })
    }

    fn admit_claim<'a>(
        &'a self,
        owner: &'a ObjectKey,
        claim: &'a TemplateClaim,
        by: &'a str,
    ) -> BoxFuture<'a, Result<ChargedClaims, NotAdmitted>> {
        Box::pin(async move {
            let admitted = self.admitted(owner, "persistentvolumeclaims", &claim.claim, by).await?;
            Ok(self.api.measure_claim(&claim.template, claim.start, &admitted))
        })
    }

    fn measure_claim(&self, claim: &TemplateClaim) -> ChargedClaims {
        self.api.measure_claim(&claim.template, claim.start, &claim.claim)
    }

    fn measure(&self, pod: &Value) -> ChargedPods {
        self.api.measure_pods(pod, 1)
    }

    fn charge<'a>(
        &'a self,
        owner: &'a ObjectKey,
        charge: PodCharge<'a>,
    ) -> BoxFuture<'a, Result<PodChargeWrites, NotAdmitted>> {
        Box::pin(self.charged(owner, charge))
    }
}

#[cfg(test)]
mod tests;
