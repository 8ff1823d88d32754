//! Admission and quota of the pods of one object.

use portolan_placement::{AdmissionRecord, TemplateClaim, TemplatePod};
use portolan_types::{
    ObjectKey, ObjectName,
    placement::{ChargedClaims, ChargedPods},
};
use serde_json::Value;

use crate::{
    decide::scheduling_gates::refusal_of_template,
    inputs::DecisionInputs,
    seams::{NotAdmitted, PodCharge, PodChargeWrites, PodGate},
};

/// Admission and charge of the pods of one object.
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) gate: &'a dyn PodGate,
    pub(crate) inputs: &'a DecisionInputs,
    pub(crate) template_pod: &'a TemplatePod,
    /// Record of the last admission.
    pub(crate) known: &'a AdmissionRecord,
    /// Volume claims in its namespace, if it makes any.
    pub(crate) claims: &'a [ObjectName],
    /// Number of pods that it should have.
    pub(crate) wanted: i64,
    /// Counts the pods without refusing them, because they run already or are about to end.
    pub(crate) forced: bool,
    /// True if downstream autoscalers have set the number of pods.
    pub(crate) autoscaled: bool,
}

/// Admitted pods and claims, and the writes that charge them.
pub(crate) struct AdmissionAnswer {
    pub(crate) pods: Option<ChargedPods>,
    pub(crate) claims: Vec<ChargedClaims>,
    pub(crate) charged: Option<PodChargeWrites>,
}

impl AdmissionRequest<'_> {
    /// Returns true if the template has to pass admission: it has not in this generation.
    fn is_new(&self) -> bool {
        let is_placed = !self.inputs.record.clusters.is_empty();
        !is_placed || self.known.pods.is_none() || self.known.generation != Some(self.inputs.workload.generation)
    }

    pub(crate) async fn ask(&self) -> Result<AdmissionAnswer, NotAdmitted> {
        let claims = self.ask_claims().await?;
        let (mut pod, mut new) = (None, self.known.pods.clone());
        if self.wanted == 0 {
            new = None;
        } else if self.is_new() {
            match self.gate.admit(&self.inputs.key, &self.template_pod.pod, self.template_pod.by).await {
                Ok(admitted) => {
                    let refusal = refusal_of_template(&admitted.pod).filter(|_| !self.forced);
                    refusal.map_or(Ok(()), |refusal| Err(NotAdmitted::Refused(refusal)))?;
                    (pod, new) = (Some(admitted.pod), Some(admitted.one));
                }
                Err(NotAdmitted::Refused(_)) if self.forced => new = Some(self.gate.measure(&self.template_pod.pod)),
                Err(error) => return Err(error),
            }
        }
        let pods = new.map(|one| ChargedPods { count: self.wanted, ..one });
        let is_same = pods == self.known.pods && pod.is_none() && claims == self.known.claims;
        let charged = if is_same { None } else { Some(self.charge(pod.as_ref(), pods.as_ref(), &claims).await?) };
        Ok(AdmissionAnswer { pods, claims, charged })
    }

    async fn charge(
        &self,
        pod: Option<&Value>,
        new: Option<&ChargedPods>,
        claims: &[ChargedClaims],
    ) -> Result<PodChargeWrites, NotAdmitted> {
        let old = self.known.pods.as_ref();
        let only_more = self.autoscaled && old.zip(new).is_some_and(|(old, new)| old.each == new.each);
        let (old_claims, new_claims) = (self.missing(&self.known.claims), self.missing(claims));
        let (old_claims, new_claims) = (&old_claims[..], &new_claims[..]);
        let charge = PodCharge { pod, old, new, old_claims, new_claims, forced: self.forced || only_more };
        self.gate.charge(&self.inputs.key, charge).await
    }

    /// Admits the claims, before the pods, as their controller creates them first.
    async fn ask_claims(&self) -> Result<Vec<ChargedClaims>, NotAdmitted> {
        let mut all = Vec::new();
        for claim in self.template_pod.claims.iter().filter(|_| self.wanted > 0) {
            let known = self.known.claims.iter().find(|known| known.template == claim.template);
            let one = match known.filter(|_| !self.is_new()) {
                Some(known) => known.clone(),
                None => self.ask_claim(claim).await?,
            };
            all.push(ChargedClaims { count: self.wanted, ..one });
        }
        Ok(all)
    }

    /// Admits one claim of a template, unless all its claims exist.
    async fn ask_claim(&self, claim: &TemplateClaim) -> Result<ChargedClaims, NotAdmitted> {
        let one = self.gate.measure_claim(claim);
        let all = ChargedClaims { count: self.wanted, ..one.clone() };
        if self.missing(&[all]).is_empty() {
            return Ok(one);
        }
        match self.gate.admit_claim(&self.inputs.key, claim, self.template_pod.by).await {
            Err(NotAdmitted::Refused(_)) if self.forced => Ok(one),
            admitted => admitted,
        }
    }

    fn missing(&self, claims: &[ChargedClaims]) -> Vec<ChargedClaims> {
        missing_claims(&self.inputs.key, claims, self.claims)
    }
}

/// Returns the claims of a set that do not exist.
pub(crate) fn missing_claims(set: &ObjectKey, claims: &[ChargedClaims], names: &[ObjectName]) -> Vec<ChargedClaims> {
    let missing = claims.iter().map(|own| own.missing(&set.name, names.iter().map(|name| name.as_str())));
    missing.filter(|missing| missing.count > 0).collect()
}
