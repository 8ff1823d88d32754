//! The API server's admission, as the scheduler needs it: what a template's pods are let in by before anything is placed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use portolan_apiserver::{ApiServer, User, admission::MadeAsk};
use portolan_machinery::quota::PodsAsk;
use portolan_scheduler::{AdmittedPod, Charge, Charged, NotAdmitted, PodGate, Refusal, WouldBeClaim};
use portolan_types::{
    BoxFuture, LogicalClusterId, ObjectKey, Reason, Status,
    placement::{ChargedClaims, ChargedPods},
};
use serde_json::Value;

/// Pods of one logical cluster, and of all, that wait for webhooks at once: a slow one must not hold up who places for others.
const WAITING_FOR_ONE: usize = 2;
const WAITING: usize = 8;

/// Admission and quotas of the API server.
pub(crate) struct Gate {
    api: Arc<ApiServer>,
    /// How many pods of each logical cluster wait for webhooks.
    waiting: Mutex<HashMap<LogicalClusterId, usize>>,
}

/// A place among those who wait for webhooks.
struct Seat<'a>(&'a Gate, LogicalClusterId);

impl Drop for Seat<'_> {
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

impl Gate {
    pub(crate) fn new(api: Arc<ApiServer>) -> Self {
        Self { api, waiting: Mutex::default() }
    }

    fn seat(&self, cluster: LogicalClusterId) -> Option<Seat<'_>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = waiting.values().sum();
        let own = waiting.get(&cluster).copied().unwrap_or(0);
        if own >= WAITING_FOR_ONE || all >= WAITING {
            return None;
        }
        waiting.insert(cluster, own + 1);
        Some(Seat(self, cluster))
    }

    /// Lets in what the controller `by` would make of a template of `owner`.
    async fn admitted(
        &self,
        owner: &ObjectKey,
        (resource, made): (&str, &Value),
        by: &str,
    ) -> Result<Value, NotAdmitted> {
        let _seat = match self.api.calls_webhooks(owner.cluster).await.map_err(not_admitted)? {
            false => None,
            true => {
                let busy = || Status::too_many_requests("too many pods wait for webhooks", 1);
                Some(self.seat(owner.cluster).ok_or_else(|| NotAdmitted::Failed(busy()))?)
            }
        };
        let namespace = owner.namespace().map_or("", |namespace| namespace.as_str());
        let place = (namespace, resource);
        let admitted = self.api.admit_made(owner.cluster, place, made.clone(), &controller(by)).await;
        admitted.map_err(|status| without_made_up_name(not_admitted(status.clone()), &status, made))
    }

    async fn charged(&self, owner: &ObjectKey, charge: Charge<'_>) -> Result<Charged, NotAdmitted> {
        let namespace = owner.namespace().map_or("", |namespace| namespace.as_str());
        let Charge { pod, old, new, old_claims, new_claims, forced } = charge;
        let called = match &*owner.resource.resource {
            "statefulsets" => format!("{}-0", owner.name),
            _ => format!("{}-", owner.name),
        };
        let ask = MadeAsk { pods: PodsAsk { pod, old, new, forced }, old_claims, new_claims };
        let charges = self.api.charge_made(owner.cluster, namespace, (&owner.name, &called), &ask).await;
        let charges = charges.map_err(|status| match not_admitted(status) {
            NotAdmitted::Refused(refusal) => NotAdmitted::Refused(Refusal { reason: "QuotaExceeded", ..refusal }),
            failed @ NotAdmitted::Failed(_) => failed,
        })?;
        Ok(Charged { writes: charges.writes, turn: Box::new(charges.turn) })
    }
}

/// The account of a controller of Kubernetes, which the pods of its kind are made by on any cluster.
fn controller(name: &str) -> User {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    User {
        name: format!("system:serviceaccount:kube-system:{name}"),
        groups: groups.map(str::to_owned).to_vec(),
        ..User::default()
    }
}

/// A failure of the server's own is none of the pod's.
fn not_admitted(status: Status) -> NotAdmitted {
    match status.reason() {
        Reason::ServerTimeout | Reason::ServiceUnavailable | Reason::Timeout | Reason::TooManyRequests => {
            NotAdmitted::Failed(status)
        }
        _ => NotAdmitted::Refused(Refusal { reason: "AdmissionRefused", message: status.message().to_owned() }),
    }
}

/// The same refusal, with what the pod's name would begin with for a name that was made up: asked again it is the same.
fn without_made_up_name(error: NotAdmitted, status: &Status, pod: &Value) -> NotAdmitted {
    let prefix = pod.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
    let name = &*status.details().name;
    match error {
        NotAdmitted::Refused(refusal)
            if !prefix.is_empty() && name.len() > prefix.len() && name.starts_with(prefix) =>
        {
            let message = refusal.message.replace(&format!("\"{name}\""), &format!("\"{prefix}\""));
            NotAdmitted::Refused(Refusal { message, ..refusal })
        }
        error => error,
    }
}

impl PodGate for Gate {
    fn admit<'a>(
        &'a self,
        owner: &'a ObjectKey,
        pod: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Result<AdmittedPod, NotAdmitted>> {
        Box::pin(async move {
            let pod = self.admitted(owner, ("pods", pod), by).await?;
            Ok(AdmittedPod { one: self.measure(&pod), pod })
        })
    }

    fn admit_claim<'a>(
        &'a self,
        owner: &'a ObjectKey,
        claim: &'a WouldBeClaim,
        by: &'a str,
    ) -> BoxFuture<'a, Result<ChargedClaims, NotAdmitted>> {
        Box::pin(async move {
            let admitted = self.admitted(owner, ("persistentvolumeclaims", &claim.claim), by).await?;
            Ok(self.api.measure_claim(&claim.template, claim.start, &admitted))
        })
    }

    fn measure_claim(&self, claim: &WouldBeClaim) -> ChargedClaims {
        self.api.measure_claim(&claim.template, claim.start, &claim.claim)
    }

    fn measure(&self, pod: &Value) -> ChargedPods {
        self.api.measure_pods(pod, 1)
    }

    fn charge<'a>(&'a self, owner: &'a ObjectKey, charge: Charge<'a>) -> BoxFuture<'a, Result<Charged, NotAdmitted>> {
        Box::pin(self.charged(owner, charge))
    }
}

#[cfg(test)]
mod tests;
