//! Admission reaches through placement: before an object is placed, the pod that its template would make is let in, and its
//! pods are charged to the quotas of the namespace in the transaction that places it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_placement::{Admitted, Refusal, Role, WouldBeClaim, WouldBePod, template_fingerprint, wanted_pods};
use portolan_store::{Change as Operation, Event, RangeRequest, RangeScope, StoreError};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, Record, object,
    placement::{ChargedClaims, ChargedPods, Resources},
};
use serde_json::Value;

use crate::{
    gates::refusal_of_template,
    gather::{Gathered, Planned, placement_key},
    kinds,
    queue::Task,
    scheduler::{Inner, SchedulerError},
    seams::{Charge, Charged, NotAdmitted, PodGate},
};

/// When to ask again what nobody tells of: whether a policy or a webhook has changed its mind.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Objects whose pods are refused, or are being asked about: what lets them in may come at any moment.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<BTreeMap<LogicalClusterId, BTreeSet<ObjectKey>>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LogicalClusterId, BTreeSet<ObjectKey>>> {
        self.0.lock().expect("no code panics under this lock")
    }

    pub(crate) fn add(&self, key: &ObjectKey) {
        self.lock().entry(key.cluster).or_default().insert(key.clone());
    }

    pub(crate) fn remove(&self, key: &ObjectKey) {
        let mut waiting = self.lock();
        let Some(own) = waiting.get_mut(&key.cluster) else { return };
        own.remove(key);
        if own.is_empty() {
            waiting.remove(&key.cluster);
        }
    }

    /// Returns the objects of all logical clusters.
    pub(crate) fn all(&self) -> Vec<ObjectKey> {
        self.lock().values().flatten().cloned().collect()
    }

    /// Those of a logical cluster, or of one namespace.
    fn of(&self, cluster: LogicalClusterId, namespace: Option<&NamespaceName>) -> Vec<ObjectKey> {
        let within = |key: &&ObjectKey| namespace.is_none_or(|namespace| key.namespace() == Some(namespace));
        self.lock().get(&cluster).into_iter().flatten().filter(within).cloned().collect()
    }
}

/// A plan that has been let through, or turned into that of a refusal.
pub(crate) struct Passed {
    pub(crate) planned: Planned,
    pub(crate) admitted: Admitted,
    /// What is committed with it.
    pub(crate) charged: Option<Charged>,
}

/// What is asked for one object.
struct Asking<'a> {
    gate: &'a dyn PodGate,
    gathered: &'a Gathered,
    would_be: &'a WouldBePod,
    /// What was let in before.
    known: &'a Admitted,
    /// The volume claims of its namespace, where it makes any.
    claims: &'a [ObjectName],
    /// How many pods it is to have.
    wanted: i64,
    /// They run already, or are about to end, and have to be counted only.
    forced: bool,
    /// Autoscalers below have made them as many as they are.
    autoscaled: bool,
}

/// What is let in, and the quotas that are charged for it.
struct Asked {
    pods: Option<ChargedPods>,
    claims: Vec<ChargedClaims>,
    charged: Option<Charged>,
}

impl Asking<'_> {
    /// Whether the template has to be asked about: what is there was, in the generation that is known.
    fn is_new(&self) -> bool {
        let is_placed = !self.gathered.record.clusters.is_empty();
        !is_placed || self.known.pods.is_none() || self.known.generation != Some(self.gathered.workload.generation)
    }

    async fn ask(&self) -> Result<Asked, NotAdmitted> {
        let claims = self.ask_claims().await?;
        let (mut pod, mut new) = (None, self.known.pods.clone());
        if self.wanted == 0 {
            new = None;
        } else if self.is_new() {
            match self.gate.admit(&self.gathered.key, &self.would_be.pod, self.would_be.by).await {
                Ok(admitted) => {
                    let refusal = refusal_of_template(&admitted.pod).filter(|_| !self.forced);
                    refusal.map_or(Ok(()), |refusal| Err(NotAdmitted::Refused(refusal)))?;
                    (pod, new) = (Some(admitted.pod), Some(admitted.one));
                }
                Err(NotAdmitted::Refused(_)) if self.forced => new = Some(self.gate.measure(&self.would_be.pod)),
                Err(error) => return Err(error),
            }
        }
        let pods = new.map(|one| ChargedPods { count: self.wanted, ..one });
        let is_same = pods == self.known.pods && pod.is_none() && claims == self.known.claims;
        let charged = if is_same { None } else { Some(self.charge(pod.as_ref(), pods.as_ref(), &claims).await?) };
        Ok(Asked { pods, claims, charged })
    }

    async fn charge(
        &self,
        pod: Option<&Value>,
        new: Option<&ChargedPods>,
        claims: &[ChargedClaims],
    ) -> Result<Charged, NotAdmitted> {
        let old = self.known.pods.as_ref();
        let only_more = self.autoscaled && old.zip(new).is_some_and(|(old, new)| old.each == new.each);
        let (old_claims, new_claims) = (self.missing(&self.known.claims), self.missing(claims));
        let (old_claims, new_claims) = (&old_claims[..], &new_claims[..]);
        let charge = Charge { pod, old, new, old_claims, new_claims, forced: self.forced || only_more };
        self.gate.charge(&self.gathered.key, charge).await
    }

    /// The claims that are to be. Before pods, as their controller makes them.
    async fn ask_claims(&self) -> Result<Vec<ChargedClaims>, NotAdmitted> {
        let mut all = Vec::new();
        for claim in self.would_be.claims.iter().filter(|_| self.wanted > 0) {
            let known = self.known.claims.iter().find(|known| known.template == claim.template);
            let one = match known.filter(|_| !self.is_new()) {
                Some(known) => known.clone(),
                None => self.ask_claim(claim).await?,
            };
            all.push(ChargedClaims { count: self.wanted, ..one });
        }
        Ok(all)
    }

    /// One claim of a template. Where all are there, none is made.
    async fn ask_claim(&self, claim: &WouldBeClaim) -> Result<ChargedClaims, NotAdmitted> {
        let one = self.gate.measure_claim(claim);
        let all = ChargedClaims { count: self.wanted, ..one.clone() };
        if self.missing(&[all]).is_empty() {
            return Ok(one);
        }
        match self.gate.admit_claim(&self.gathered.key, claim, self.would_be.by).await {
            Err(NotAdmitted::Refused(_)) if self.forced => Ok(one),
            admitted => admitted,
        }
    }

    fn missing(&self, claims: &[ChargedClaims]) -> Vec<ChargedClaims> {
        missing(&self.gathered.key, claims, self.claims)
    }
}

/// Of the claims of a set those that are not there.
fn missing(set: &ObjectKey, claims: &[ChargedClaims], names: &[ObjectName]) -> Vec<ChargedClaims> {
    let missing = claims.iter().map(|own| own.missing(&set.name, names.iter().map(|name| name.as_str())));
    missing.filter(|missing| missing.count > 0).collect()
}

impl Inner {
    /// Asks whether the pods of an object are let in, where it would be placed or has changed, and charges what they use.
    ///
    /// # Errors
    /// When nobody could be asked.
    pub(crate) async fn pass_gate(&self, gathered: &Gathered, planned: Planned) -> Result<Passed, SchedulerError> {
        let nothing = |planned| Ok(Passed { planned, admitted: Admitted::default(), charged: None });
        let (Some(gate), Role::Workload) = (&self.gate, gathered.workload.role) else { return nothing(planned) };
        let Some(would_be) = WouldBePod::of(&gathered.workload.kind, &gathered.object) else { return nothing(planned) };
        let uid = object::meta_text(&gathered.object, "uid");
        let known = Admitted::of(gathered.placement.as_ref().map(|(placement, _)| placement), uid);
        let is_placed = !gathered.record.clusters.is_empty();
        let wanted = wanted_pods(&gathered.workload, &gathered.object, &planned.decision, &planned.step.record);
        // Who was placed before anybody asked is not stopped.
        let is_old = is_placed && known.generation.is_none();
        let forced = is_old || planned.decision.is_to_end();
        let followed = gathered.record.autoscaled;
        let autoscaled = followed.is_some() && followed == gathered.workload.replicas;
        let makes_claims = !(would_be.claims.is_empty() && known.claims.is_empty());
        let claims = if makes_claims { self.claim_names(&gathered.key).await? } else { Vec::new() };
        let (gate, would_be, known, claims) = (&**gate, &would_be, &known, &claims[..]);
        let asking = Asking { gate, gathered, would_be, known, claims, wanted, forced, autoscaled };
        self.refused.add(&gathered.key);
        match asking.ask().await {
            Ok(Asked { pods, claims, charged }) => {
                self.refused.remove(&gathered.key);
                let there = !planned.step.record.clusters.is_empty();
                let generation = there.then_some(gathered.workload.generation);
                let template = template_of(gathered).filter(|_| there);
                Ok(Passed { planned, admitted: Admitted { generation, pods, claims, template }, charged })
            }
            Err(NotAdmitted::Refused(refusal)) => self.refuse(gathered, gate, known, refusal).await,
            Err(NotAdmitted::Failed(status)) => Err(SchedulerError::Admission(status)),
        }
    }

    /// What is there stays as it was and keeps its charge; what is nowhere is charged nothing.
    async fn refuse(
        &self,
        gathered: &Gathered,
        gate: &dyn PodGate,
        known: &Admitted,
        refusal: Refusal,
    ) -> Result<Passed, SchedulerError> {
        self.queue.tasks.add_after(Task::Object(gathered.key.clone()), ASK_AGAIN);
        let planned = self.plan(gathered, Some(refusal))?;
        let gone = planned.step.record.clusters.is_empty();
        let admitted = if gone { Admitted::default() } else { known.clone() };
        let charged = if gone { self.give_back(&gathered.key, gate, known).await? } else { None };
        Ok(Passed { planned, admitted, charged })
    }

    async fn give_back(
        &self,
        key: &ObjectKey,
        gate: &dyn PodGate,
        known: &Admitted,
    ) -> Result<Option<Charged>, SchedulerError> {
        let names = if known.claims.is_empty() { Vec::new() } else { self.claim_names(key).await? };
        let (old, old_claims) = (known.pods.as_ref(), &missing(key, &known.claims, &names)[..]);
        if old.is_none() && old_claims.is_empty() {
            return Ok(None);
        }
        let charge = Charge { pod: None, old, new: None, old_claims, new_claims: &[], forced: true };
        gate.charge(key, charge).await.map(Some).map_err(|error| match error {
            NotAdmitted::Failed(status) => SchedulerError::Admission(status),
            NotAdmitted::Refused(refusal) => {
                SchedulerError::Admission(portolan_types::Status::internal(refusal.message))
            }
        })
    }

    /// The volume claims that are there in the namespace of a set.
    async fn claim_names(&self, set: &ObjectKey) -> Result<Vec<ObjectName>, StoreError> {
        let Some(namespace) = set.namespace() else { return Ok(Vec::new()) };
        let resource = GroupResource::new("", "persistentvolumeclaims");
        let scope = RangeScope::Namespace(set.cluster, resource, namespace.clone());
        let (mut next, mut names) = (Some(RangeRequest::slices(scope).past_damage()), Vec::new());
        while let Some(request) = next {
            let page = self.objects.store().range(request.clone()).await?;
            let damaged = page.damaged.iter().map(|found| &found.key);
            names.extend(page.objects.iter().map(|stored| &stored.key).chain(damaged).map(|key| key.name.clone()));
            next = request.next(&page);
        }
        Ok(names)
    }

    /// Removes the `Placement` of an object that is gone, and gives back what its pods were charged.
    pub(crate) async fn forget_placement(&self, of: &ObjectKey) -> Result<(), SchedulerError> {
        let key = placement_key(of);
        let Some((placement, revision)) = self.objects.get_value(&key).await? else { return Ok(()) };
        let uid = placement.pointer("/spec/object/uid").and_then(Value::as_str).unwrap_or_default();
        let charged = match &self.gate {
            Some(gate) => self.give_back(of, &**gate, &Admitted::of(Some(&placement), uid)).await?,
            None => None,
        };
        let (charges, turn) = charged.map(|charged| (charged.writes, charged.turn)).unzip();
        let forgotten = self.forget_at(key, revision, charges.unwrap_or_default()).await;
        drop(turn);
        forgotten
    }

    /// What pods may be refused by has changed: what waits is looked at again.
    pub(crate) fn observe_cause(&self, event: &Event) {
        if event.key.resource == quotas() && !gives_room(event) {
            return;
        }
        self.ask_again(event.key.cluster, event.key.namespace());
    }

    pub(crate) fn ask_again(&self, cluster: LogicalClusterId, namespace: Option<&NamespaceName>) {
        self.refused.of(cluster, namespace).into_iter().for_each(|key| self.queue.tasks.add(Task::Object(key)));
    }
}

/// Tells the template of an object from others that it has had.
pub(crate) fn template_of(gathered: &Gathered) -> Option<String> {
    template_fingerprint(&gathered.workload.kind, &gathered.object)
}

fn quotas() -> GroupResource {
    kinds::CAUSES[0].resource()
}

/// Whether a quota, written, may let in what it did not before: its limits are others, or less is used. Each charge writes it,
/// and lets in nobody.
fn gives_room(event: &Event) -> bool {
    let tree = |record: &Record| serde_json::from_slice::<Value>(record.body()).unwrap_or_default();
    let (Operation::Updated, Some(previous)) = (event.change, event.previous.as_deref()) else { return true };
    let (old, new) = (tree(previous), tree(&event.record));
    let part = |quota: &Value, pointer: &str| quota.pointer(pointer).cloned().unwrap_or_default();
    if ["/spec", "/status/hard"].iter().any(|pointer| part(&old, pointer) != part(&new, pointer)) {
        return true;
    }
    let used = |quota| serde_json::from_value::<Resources>(part(quota, "/status/used")).unwrap_or_default();
    let (before, now) = (used(&old), used(&new));
    now.iter().any(|(name, amount)| before.get(name).is_none_or(|before| amount < before))
}
