//! MutatingAdmissionPolicies.

use portolan_cel::policy::{ConditionMatch, MutationPatch};
use portolan_codec::decode::FieldValidation;
use portolan_merge::{
    apply,
    patch::{self, PatchFailure},
};
use portolan_types::{GroupResource, Status, object};
use serde_json::Value;
use tokio::{sync::OnceCell, time::Instant};

use super::{
    super::{
        AdmissionContext,
        config_cache::MUTATING_POLICIES,
        expressions::{ExpressionInput, ExpressionRights, ExpressionSubject},
        lookup,
        matching::{Invocation, RequestMatcher},
        reinvocation::{self, MutatingRequest},
        reread::reread,
        review::{ConvertedStates, RequestView},
    },
    config::{AdmissionPolicy, PolicyBinding},
    failures::PolicyFailures,
    is_exempt,
    params::{self, ParamsBudget, ParamsError, ParamsReader},
};
use crate::{hooks::AdmissionRequest, metrics, storage::StorageContext};

/// Reinvocation state of policies, keyed by the uids of policy and binding and by the name of the parameters.
pub(in crate::admission) type PolicyReinvocation = reinvocation::ReinvocationState<InvocationKey>;
type InvocationKey = (String, String, ParamsName);
/// Namespace and name of parameters.
type ParamsName = (String, String);

/// Applies the policies of the logical cluster to the object.
///
/// # Errors
/// The error of the first failing policy whose failure policy is `Fail`.
pub(in crate::admission) async fn mutate(
    asked: MutatingRequest<'_>,
    object: &mut Value,
    reinvocation: &mut PolicyReinvocation,
) -> Result<(), Status> {
    let MutatingRequest { context, request, old } = asked;
    let configuration = context.configuration.of(request.cluster.id).await?;
    let Some(configuration) = configuration.filter(|_| !is_exempt(request)) else { return Ok(()) };
    configuration.check_readable(&MUTATING_POLICIES)?;
    let policies = &configuration.mutating_policies;
    if policies.is_empty() {
        return Ok(());
    }
    let mut state = MutationState::default();
    let invocations = invocations(asked, object, policies, &mut state).await?;
    if !invocations.is_empty() {
        let namespace = if request.kind.gvk.group.is_empty() && *request.kind.resource == *"namespaces" {
            None
        } else {
            namespace_of(&context.storage, request).await?
        };
        let rights = ExpressionRights::of(&context.rbac, request.cluster.id, request.user).await?;
        let mutation = PolicyMutation { context, request, old, namespace: namespace.as_ref(), rights: &rights };
        for one in &invocations {
            mutation.run(one, object, reinvocation, &mut state).await?;
        }
        reinvocation.end_first_round(Some(object));
    }
    state.failures.into_result(request, object)
}

async fn namespace_of(storage: &StorageContext, request: &AdmissionRequest<'_>) -> Result<Option<Value>, Status> {
    if request.namespace.is_empty() {
        return Ok(None);
    }
    let found = lookup::namespace(storage, request.cluster.id, request.namespace).await?;
    found.map(Some).ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), request.namespace))
}

/// State of all policies of one request.
#[derive(Default)]
struct MutationState {
    versions: ConvertedStates,
    failures: PolicyFailures,
}

/// Policy to evaluate for one of its bindings, with one parameter object.
struct BoundPolicy<'p> {
    policy: &'p AdmissionPolicy,
    binding: &'p PolicyBinding,
    invocation: Invocation,
    params: Option<Value>,
    key: InvocationKey,
}

/// Returns the policies that match the request as it is before any of them changes it.
async fn invocations<'p>(
    asked: MutatingRequest<'_>,
    object: &Value,
    policies: &'p [AdmissionPolicy],
    state: &mut MutationState,
) -> Result<Vec<BoundPolicy<'p>>, Status> {
    let (MutatingRequest { context, request, old }, failures) = (asked, &mut state.failures);
    let namespace = OnceCell::new();
    let matching = RequestMatcher { context, request, object: Some(object), old, namespace: &namespace };
    let (mut found, mut budget) = (Vec::new(), ParamsBudget::new());
    for policy in policies {
        let invocation = match matching.invocation(&policy.criteria).await {
            Ok(Some(invocation)) => invocation,
            Ok(None) => continue,
            Err(why) => {
                failures.configured(policy, None, ParamsError::AdmissionConfigCache(why.message().to_owned()))?;
                continue;
            }
        };
        let kind = match params::kind(&context.kinds, request.cluster.id, policy).await {
            Ok(kind) => kind,
            Err(error) => {
                failures.configured(policy, None, error)?;
                continue;
            }
        };
        let reader = ParamsReader {
            conversion: &context.conversion,
            cluster: request.cluster.id,
            namespace: request.namespace,
            target: kind.as_ref(),
        };
        for binding in &policy.bindings {
            if !binding_matches(&matching, binding)
                .await
                .or_else(|error| failures.configured(policy, Some(binding), error).map(|()| false))?
            {
                continue;
            }
            if let Err(show_error) = state.versions.get(matching.view(&invocation), Some(object), old).await {
                failures.configured(policy, None, show_error.into())?;
                continue;
            }
            match reader.collect(binding, &mut budget).await {
                Ok(all) => found.extend(all.into_iter().map(|params| BoundPolicy {
                    policy,
                    binding,
                    invocation: invocation.clone(),
                    key: (policy.uid.clone(), binding.uid.clone(), name_of(params.as_ref())),
                    params,
                })),
                Err(error) => failures.configured(policy, Some(binding), error)?,
            }
        }
    }
    Ok(found)
}

fn name_of(params: Option<&Value>) -> ParamsName {
    params.map(|params| (object::namespace(params).to_owned(), object::name(params).to_owned())).unwrap_or_default()
}

/// Returns true if a binding matches the request.
async fn binding_matches(matching: &RequestMatcher<'_>, binding: &PolicyBinding) -> Result<bool, ParamsError> {
    let Some(criteria) = &binding.criteria else { return Ok(true) };
    let matched = matching.invocation(criteria).await;
    matched.map(|found| found.is_some()).map_err(|why| ParamsError::AdmissionConfigCache(why.message().to_owned()))
}

/// Request whose object policies change.
struct PolicyMutation<'a> {
    context: &'a AdmissionContext,
    request: &'a AdmissionRequest<'a>,
    old: Option<&'a Value>,
    namespace: Option<&'a Value>,
    rights: &'a ExpressionRights,
}

impl PolicyMutation<'_> {
    fn view<'v>(&'v self, invocation: &'v Invocation) -> RequestView<'v> {
        RequestView { conversion: &self.context.conversion, request: self.request, invocation }
    }

    /// Evaluates the mutations of one policy for one of its bindings, in order.
    async fn run(
        &self,
        bound: &BoundPolicy<'_>,
        object: &mut Value,
        reinvocation: &mut PolicyReinvocation,
        state: &mut MutationState,
    ) -> Result<(), Status> {
        let MutationState { versions, failures } = state;
        let BoundPolicy { policy, binding, params, .. } = bound;
        let expressions = &self.context.expressions;
        let compiled = expressions.mutating(&policy.source);
        let input = self.input(bound, object, versions).await?;
        match expressions.applies(&compiled, &input, params.as_ref()).await? {
            ConditionMatch::Yes => {}
            ConditionMatch::No(_) | ConditionMatch::Ignored => return Ok(()),
            ConditionMatch::Failed(why) => {
                failures.add(policy, Some(binding), &why, "Invalid");
                return Ok(());
            }
        }
        drop(input);
        if !reinvocation.includes(&bound.key) {
            return Ok(());
        }
        let asked = metrics::PolicyLabels { policy: &policy.name, binding: &binding.name };
        let mut changed = false;
        for at in 0..compiled.mutations() {
            let (started, input) = (Instant::now(), self.input(bound, object, versions).await?);
            let made = match expressions.change(&compiled, at, &input, params.as_ref()).await? {
                Ok(Some(change)) => self.changed(bound, object, &change).await,
                Ok(None) => continue,
                Err(why) => Err(MutationError::AdmissionPolicy(why)),
            };
            drop(input);
            let told = match &made {
                Ok(_) => Ok(()),
                Err(MutationError::AdmissionPolicy(why)) => Err(why.as_str()),
                Err(MutationError::AdmissionRequest(status)) => Err(status.message()),
            };
            self.context.metrics.policies.mutated(asked, told, started.elapsed());
            match made {
                Ok(made) if made == *object => {}
                Ok(made) => {
                    (*object, changed) = (made, true);
                    versions.object_changed();
                }
                Err(MutationError::AdmissionPolicy(why)) => failures.add(policy, Some(binding), &why, "Invalid"),
                Err(MutationError::AdmissionRequest(status)) => return Err(status),
            }
        }
        reinvocation.record_call(bound.key.clone(), changed, policy.reinvoked);
        Ok(())
    }

    async fn input<'s>(
        &'s self,
        bound: &'s BoundPolicy<'_>,
        object: &'s Value,
        versions: &mut ConvertedStates,
    ) -> Result<ExpressionInput<'s>, Status> {
        let (request, invocation) = (self.request, &bound.invocation);
        let states = versions.get(self.view(invocation), Some(object), self.old).await?;
        let directory = &*self.context.storage.directory;
        let subject = ExpressionSubject { directory, request, invocation, object: Some(object) };
        Ok(ExpressionInput::of(subject, states, self.namespace, self.rights))
    }

    /// Applies a change to the object and returns it canonical and complete.
    async fn changed(
        &self,
        bound: &BoundPolicy<'_>,
        object: &Value,
        change: &MutationPatch,
    ) -> Result<Value, MutationError> {
        let view = self.view(&bound.invocation);
        let input = view.converted(object).await.map_err(MutationError::AdmissionRequest)?;
        let (changed, validation) = match change {
            MutationPatch::Apply(configuration) => {
                (self.laid_over(bound, &input, configuration)?, FieldValidation::Ignore)
            }
            MutationPatch::Patch(operations) => match patch::apply_operations(&input, operations) {
                Ok(changed) => (changed, FieldValidation::Strict),
                // A JSON patch `test` that fails leaves the object unchanged.
                Err(PatchFailure::Test(_)) => return Ok(object.clone()),
                Err(PatchFailure::Operation(why) | PatchFailure::Budget(why)) => {
                    return Err(MutationError::AdmissionPolicy(format!("JSON Patch: {why}")));
                }
            },
        };
        let read = reread(view, object, changed, validation).await;
        read.map_err(MutationError::AdmissionRequest)
    }

    fn laid_over(&self, bound: &BoundPolicy<'_>, input: &Value, configuration: &Value) -> Result<Value, MutationError> {
        let kind = &bound.invocation.kind;
        let Some(schema) = self.request.table.object_type(&kind.group, &kind.version, &kind.kind) else {
            let (group, version, kind) = (&kind.group, &kind.version, &kind.kind);
            return Err(MutationError::AdmissionRequest(Status::new(
                portolan_types::Reason::ServiceUnavailable,
                format!(
                    "Resource kind {group}/{version}, Kind={kind} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available."
                ),
            )));
        };
        let mut configuration = configuration.clone();
        for key in ["apiVersion", "kind"] {
            configuration[key] = input.get(key).cloned().unwrap_or_default();
        }
        apply::lay_over(self.request.table, schema, input, &configuration)
            .map_err(|why| MutationError::AdmissionPolicy(format!("error applying patch: {why}")))
    }
}

/// Error of a mutation.
enum MutationError {
    /// Error of the policy, subject to its failure policy.
    AdmissionPolicy(String),
    /// Error of the request, which fails under any failure policy.
    AdmissionRequest(Status),
}
