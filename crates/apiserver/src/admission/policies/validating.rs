//! ValidatingAdmissionPolicies: refusals, warnings and audit annotations.

use std::{collections::BTreeMap, time::Duration};

use portolan_cel::policy::{AuditAnnotation, PolicyDecision, PolicyVerdict};
use portolan_types::{Status, StatusCause};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use super::{
    super::{
        AdmissionContext,
        config_cache::VALIDATING_POLICIES,
        forbidden,
        matching::{Invocation, RequestMatcher},
        review::ConvertedStates,
    },
    PolicyRequest,
    config::{AdmissionPolicy, PolicyBinding},
    is_exempt,
    params::{self, ParamsBudget, ParamsError, ParamsReader},
};
use crate::{hooks::AdmissionRequest, metrics};

/// Length limit of an annotation value, in bytes.
const MAX_ANNOTATION: usize = 10 * 1024;
// Validation actions of a binding.
const DENY: &str = "Deny";
const WARN: &str = "Warn";
const AUDIT: &str = "Audit";
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// Evaluates the policies of the logical cluster on the object; `None` for deletions.
///
/// # Errors
/// The refusal of the first policy that denies the request.
pub(in crate::admission) async fn validate(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let configuration = context.configuration.of(request.cluster.id).await?;
    let Some(configuration) = configuration.filter(|_| !is_exempt(request)) else { return Ok(()) };
    configuration.check_readable(&VALIDATING_POLICIES)?;
    let (namespace, rights) = (OnceCell::new(), OnceCell::new());
    let matching = RequestMatcher { context, request, object, old, namespace: &namespace };
    let asked = PolicyRequest { matching, versions: ConvertedStates::default(), rights: &rights };
    let mut review = PolicyReview { asked, budget: ParamsBudget::new(), denied: None };
    for policy in &configuration.validating_policies {
        review.policy(policy).await?;
    }
    match review.denied {
        Some(denied) => Err(denied.into_status(request, object.or(old))),
        None => Ok(()),
    }
}

/// First refusal, which the client sees.
struct PolicyDenial {
    message: String,
    reason: String,
}

impl PolicyDenial {
    fn into_status(self, request: &AdmissionRequest<'_>, object: Option<&Value>) -> Status {
        let status = forbidden(request, object, &self.message);
        let mut details = status.details().clone();
        details.causes.push(StatusCause { message: self.message, ..StatusCause::default() });
        let code = match self.reason.as_str() {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        Status::foreign(code, &self.reason, status.message(), Some(details))
    }
}

/// Audit annotations of one policy, each with the values that its bindings gave it.
type AuditAnnotations = BTreeMap<String, Vec<String>>;

/// Request under review.
struct PolicyReview<'a> {
    asked: PolicyRequest<'a>,
    budget: ParamsBudget,
    denied: Option<PolicyDenial>,
}

/// Validation of a policy that does not hold.
struct FailedValidation {
    /// Index of its expression.
    index: usize,
    message: String,
    reason: String,
}

/// Policy to evaluate for one of its bindings.
struct PolicyEvaluation<'p> {
    policy: &'p AdmissionPolicy,
    binding: &'p PolicyBinding,
    invocation: &'p Invocation,
    /// Parameter objects, each evaluated separately.
    params: &'p [Option<Value>],
}

impl PolicyReview<'_> {
    async fn policy(&mut self, policy: &AdmissionPolicy) -> Result<(), Status> {
        let RequestMatcher { context, request, .. } = self.asked.matching;
        let invocation = match self.asked.matching.invocation(&policy.criteria).await {
            Ok(Some(invocation)) => invocation,
            Ok(None) => return Ok(()),
            Err(why) => return self.error(policy, None, ParamsError::AdmissionConfigCache(why.message().to_owned())),
        };
        let kind = match params::kind(&context.kinds, request.cluster.id, policy).await {
            Ok(kind) => kind,
            Err(error) => return self.error(policy, None, error),
        };
        let reader = ParamsReader {
            conversion: &context.conversion,
            cluster: request.cluster.id,
            namespace: request.namespace,
            target: kind.as_ref(),
        };
        let mut annotations = AuditAnnotations::new();
        for binding in &policy.bindings {
            if !self.binding_matches(policy, binding).await? {
                continue;
            }
            match reader.collect(binding, &mut self.budget).await {
                Ok(params) => {
                    let evaluation = PolicyEvaluation { policy, binding, invocation: &invocation, params: &params };
                    self.evaluate(evaluation, &mut annotations).await?
                }
                Err(error) => self.error(policy, Some(binding), error)?,
            }
        }
        for (key, values) in annotations {
            request.annotate(&format!("{}/{key}", policy.name), &values.join(", "));
        }
        Ok(())
    }

    /// Returns true if a binding matches the request.
    async fn binding_matches(&mut self, policy: &AdmissionPolicy, binding: &PolicyBinding) -> Result<bool, Status> {
        let Some(criteria) = &binding.criteria else { return Ok(true) };
        match self.asked.matching.invocation(criteria).await {
            Ok(found) => Ok(found.is_some()),
            Err(why) => {
                let error = ParamsError::AdmissionConfigCache(why.message().to_owned());
                self.error(policy, Some(binding), error).map(|()| false)
            }
        }
    }

    /// Evaluates a policy for one of its bindings.
    async fn evaluate(
        &mut self,
        evaluation: PolicyEvaluation<'_>,
        annotations: &mut AuditAnnotations,
    ) -> Result<(), Status> {
        let PolicyEvaluation { policy, binding, invocation, params } = evaluation;
        if params.is_empty() {
            return Ok(());
        }
        let states = match self.asked.states(invocation).await {
            Ok(states) => states,
            Err(error) => return self.error(policy, Some(binding), error),
        };
        let expressions = &self.asked.matching.context.expressions;
        let mut verdicts = Vec::with_capacity(params.len());
        let input = self.asked.input(invocation, states).await?;
        for params in params {
            let started = Instant::now();
            let verdict = expressions.validates(&policy.source, &input, params.as_ref()).await?;
            verdicts.push((verdict, started.elapsed()));
        }
        drop(input);
        let labels = metrics::PolicyLabels { policy: &policy.name, binding: &binding.name };
        for (PolicyVerdict { decisions, annotations: found }, took) in verdicts {
            // All expressions are evaluated in one call; each is charged an equal part.
            let took = took / u32::try_from(decisions.len() + found.len()).unwrap_or(u32::MAX).max(1);
            for (at, decision) in decisions.into_iter().enumerate() {
                if let PolicyDecision::Deny { message, reason, .. } = decision {
                    self.count(labels, &message, &binding.actions, took);
                    self.act(policy, binding, &FailedValidation { index: at, message, reason });
                }
            }
            for found in found {
                if let Err(why) = &found.value {
                    self.count(labels, why, &[DENY.to_owned()], took);
                }
                self.collect(policy, binding, found, annotations);
            }
        }
        Ok(())
    }

    /// Counts a failed validation once for each action of the binding.
    fn count(&self, asked: metrics::PolicyLabels<'_>, why: &str, actions: &[String], took: Duration) {
        for action in actions {
            let action = match action.as_str() {
                DENY => "deny",
                WARN => "warn",
                AUDIT => "audit",
                _ => continue,
            };
            self.asked.matching.context.metrics.policies.refused(asked, why, action, took);
        }
    }

    /// Takes the binding's actions for a failed validation.
    fn act(&mut self, policy: &AdmissionPolicy, binding: &PolicyBinding, failed: &FailedValidation) {
        let request = self.asked.matching.request;
        let FailedValidation { index, message, reason } = failed;
        for action in &binding.actions {
            match action.as_str() {
                DENY => self.deny(policy, Some(binding), message, reason),
                WARN => request.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                    policy.name, binding.name
                )),
                AUDIT => {
                    let failure = json!([{
                        "message": message, "policy": policy.name, "binding": binding.name, "expressionIndex": index,
                        "validationActions": binding.actions,
                    }]);
                    request.annotate(FAILURE, &failure.to_string());
                }
                _ => {}
            }
        }
    }

    fn collect(
        &mut self,
        policy: &AdmissionPolicy,
        binding: &PolicyBinding,
        AuditAnnotation { key, value }: AuditAnnotation,
        annotations: &mut AuditAnnotations,
    ) {
        match value {
            Ok(mut value) => {
                value.truncate(value.floor_char_boundary(MAX_ANNOTATION));
                let values = annotations.entry(key).or_default();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            Err(why) => self.deny(policy, Some(binding), &why, "Invalid"),
        }
    }

    /// Handles an error of a policy according to its failure policy.
    fn error(
        &mut self,
        policy: &AdmissionPolicy,
        binding: Option<&PolicyBinding>,
        error: ParamsError,
    ) -> Result<(), Status> {
        match error {
            ParamsError::Failed(status) => return Err(status),
            ParamsError::AdmissionConfigCache(_) if policy.fails_open => {}
            ParamsError::AdmissionConfigCache(why) => {
                let which = if binding.is_some() { "binding" } else { "policy" };
                self.deny(policy, binding, &format!("failed to configure {which}: {why}"), "Invalid");
            }
        }
        Ok(())
    }

    fn deny(&mut self, policy: &AdmissionPolicy, binding: Option<&PolicyBinding>, why: &str, reason: &str) {
        let bound = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        self.denied.get_or_insert_with(|| PolicyDenial {
            message: format!("ValidatingAdmissionPolicy '{}'{bound} denied request: {why}", policy.name),
            reason: reason.to_owned(),
        });
    }
}
