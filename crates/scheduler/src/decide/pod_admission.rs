//! Admission before placement: the pod that a template would make has to pass admission, and its pods are charged to
//! the quotas of the namespace in the transaction that places the object.

use std::time::Duration;

use portolan_placement::{AdmissionRecord, PodRefusal, Role, TemplatePod, template_fingerprint, wanted_pods};
use portolan_store::{ChangeKind as Operation, Event, RangeRequest, RangeScope, StoreError};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, Record, object, placement::ResourceAmounts,
};
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    decide::admission_request::{AdmissionAnswer, AdmissionRequest, missing_claims},
    decide::{PlannedStep, plan},
    inputs::{DecisionInputs, placement_key},
    kinds,
    queue::Task,
    reconcile::object::remove_record,
    scheduler::SchedulerError,
    seams::{NotAdmitted, PodCharge, PodChargeWrites, PodGate},
};

/// Interval after which a refusal is checked again, for changes without an event, such as those of a webhook.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Plan after admission, or the plan of a refusal.
pub(crate) struct AdmittedPlan {
    pub(crate) planned: PlannedStep,
    pub(crate) admitted: AdmissionRecord,
    /// Quota writes of the transaction.
    pub(crate) charged: Option<PodChargeWrites>,
}

/// Admits and charges the pods of an object that would be placed or has changed.
///
/// # Errors
/// If admission could not be asked.
pub(crate) async fn admit_plan(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    planned: PlannedStep,
) -> Result<AdmittedPlan, SchedulerError> {
    let nothing = |planned| Ok(AdmittedPlan { planned, admitted: AdmissionRecord::default(), charged: None });
    let (Some(gate), Role::Workload) = (&ctx.gate, inputs.workload.role) else { return nothing(planned) };
    let Some(template_pod) = TemplatePod::of(&inputs.workload.kind, &inputs.object) else {
        return nothing(planned);
    };
    let uid = object::meta_text(&inputs.object, "uid");
    let known = AdmissionRecord::of(inputs.placement.as_ref().map(|(placement, _)| placement), uid);
    let is_placed = !inputs.record.clusters.is_empty();
    let wanted = wanted_pods(&inputs.workload, &inputs.object, &planned.decision, &planned.step.record);
    // Pods that were placed before the check by admission are not stopped.
    let is_old = is_placed && known.generation.is_none();
    let forced = is_old || planned.decision.is_to_end();
    let followed = inputs.record.autoscaled;
    let autoscaled = followed.is_some() && followed == inputs.workload.replicas;
    let makes_claims = !(template_pod.claims.is_empty() && known.claims.is_empty());
    let claims = if makes_claims { claim_names(ctx, &inputs.key).await? } else { Vec::new() };
    let (gate, template_pod, known, claims) = (&**gate, &template_pod, &known, &claims[..]);
    let request = AdmissionRequest { gate, inputs, template_pod, known, claims, wanted, forced, autoscaled };
    ctx.refused.add(&inputs.key);
    match request.ask().await {
        Ok(AdmissionAnswer { pods, claims, charged }) => {
            ctx.refused.remove(&inputs.key);
            let there = !planned.step.record.clusters.is_empty();
            let generation = there.then_some(inputs.workload.generation);
            let template = template_of(inputs).filter(|_| there);
            Ok(AdmittedPlan { planned, admitted: AdmissionRecord { generation, pods, claims, template }, charged })
        }
        Err(NotAdmitted::Refused(refusal)) => plan_refusal(ctx, &request, refusal).await,
        Err(NotAdmitted::Failed(status)) => Err(SchedulerError::Admission(status)),
    }
}

/// Plans for an object whose pods are refused. Copies that exist stay as they are and keep their charge; without copies
/// nothing is charged.
async fn plan_refusal(
    ctx: &SchedulerContext,
    request: &AdmissionRequest<'_>,
    refusal: PodRefusal,
) -> Result<AdmittedPlan, SchedulerError> {
    let AdmissionRequest { inputs, gate, known, .. } = *request;
    ctx.queue.tasks.add_after(Task::Object(inputs.key.clone()), ASK_AGAIN);
    let planned = plan(ctx, inputs, Some(refusal))?;
    let gone = planned.step.record.clusters.is_empty();
    let admitted = if gone { AdmissionRecord::default() } else { known.clone() };
    let charged = if gone { release_charge(ctx, &inputs.key, gate, known).await? } else { None };
    Ok(AdmittedPlan { planned, admitted, charged })
}

async fn release_charge(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    gate: &dyn PodGate,
    known: &AdmissionRecord,
) -> Result<Option<PodChargeWrites>, SchedulerError> {
    let names = if known.claims.is_empty() { Vec::new() } else { claim_names(ctx, key).await? };
    let (old, old_claims) = (known.pods.as_ref(), &missing_claims(key, &known.claims, &names)[..]);
    if old.is_none() && old_claims.is_empty() {
        return Ok(None);
    }
    let charge = PodCharge { pod: None, old, new: None, old_claims, new_claims: &[], forced: true };
    gate.charge(key, charge).await.map(Some).map_err(|error| match error {
        NotAdmitted::Failed(status) => SchedulerError::Admission(status),
        NotAdmitted::Refused(refusal) => SchedulerError::Admission(portolan_types::Status::internal(refusal.message)),
    })
}

/// Returns the names of the volume claims in the namespace of a set.
async fn claim_names(ctx: &SchedulerContext, set: &ObjectKey) -> Result<Vec<ObjectName>, StoreError> {
    let Some(namespace) = set.namespace() else { return Ok(Vec::new()) };
    let resource = GroupResource::new("", "persistentvolumeclaims");
    let scope = RangeScope::Namespace(set.cluster, resource, namespace.clone());
    let (mut next, mut names) = (Some(RangeRequest::slices(scope).skip_damaged()), Vec::new());
    while let Some(request) = next {
        let page = ctx.objects.store().range(request.clone()).await?;
        let damaged = page.damaged.iter().map(|found| &found.key);
        names.extend(page.objects.iter().map(|stored| &stored.key).chain(damaged).map(|key| key.name.clone()));
        next = request.next(&page);
    }
    Ok(names)
}

/// Removes the `Placement` of an object that is gone, and releases its charge.
pub(crate) async fn remove_placement(ctx: &SchedulerContext, of: &ObjectKey) -> Result<(), SchedulerError> {
    let key = placement_key(of);
    let Some((placement, revision)) = ctx.objects.get_value(&key).await? else { return Ok(()) };
    let uid = placement.pointer("/spec/object/uid").and_then(Value::as_str).unwrap_or_default();
    let charged = match &ctx.gate {
        Some(gate) => release_charge(ctx, of, &**gate, &AdmissionRecord::of(Some(&placement), uid)).await?,
        None => None,
    };
    let (charges, turn) = charged.map(|charged| (charged.writes, charged.turn)).unzip();
    let forgotten = remove_record(ctx, key, revision, charges.unwrap_or_default()).await;
    drop(turn);
    forgotten
}

/// Queues refused objects when something has changed that may admit them.
pub(crate) fn observe_refusal_source(ctx: &SchedulerContext, event: &Event) {
    if event.key.resource == quotas() && !gives_room(event) {
        return;
    }
    recheck_refused(ctx, event.key.cluster, event.key.namespace());
}

pub(crate) fn recheck_refused(ctx: &SchedulerContext, cluster: LogicalClusterId, namespace: Option<&NamespaceName>) {
    ctx.refused.of(cluster, namespace).into_iter().for_each(|key| ctx.queue.tasks.add(Task::Object(key)));
}

/// Returns the fingerprint of the template of an object.
pub(crate) fn template_of(inputs: &DecisionInputs) -> Option<String> {
    template_fingerprint(&inputs.workload.kind, &inputs.object)
}

fn quotas() -> GroupResource {
    kinds::REFUSAL_SOURCES[0].resource()
}

/// Returns true if a write of a quota may admit more: its limits have changed, or less is used. A charge writes the
/// quota, too, and admits nothing.
fn gives_room(event: &Event) -> bool {
    let value = |record: &Record| serde_json::from_slice::<Value>(record.body()).unwrap_or_default();
    let (Operation::Updated, Some(previous)) = (event.change, event.previous.as_deref()) else { return true };
    let (old, new) = (value(previous), value(&event.record));
    let part = |quota: &Value, pointer: &str| quota.pointer(pointer).cloned().unwrap_or_default();
    if ["/spec", "/status/hard"].iter().any(|pointer| part(&old, pointer) != part(&new, pointer)) {
        return true;
    }
    let used = |quota| serde_json::from_value::<ResourceAmounts>(part(quota, "/status/used")).unwrap_or_default();
    let (before, now) = (used(&old), used(&new));
    now.iter().any(|(name, amount)| before.get(name).is_none_or(|before| amount < before))
}
