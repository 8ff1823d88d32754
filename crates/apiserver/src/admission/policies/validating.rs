//! ValidatingAdmissionPolicies: what they refuse, warn of, and write for auditors.

use std::{collections::BTreeMap, time::Duration};

use portolan_cel::policy::{AuditAnnotation, PolicyDecision, PolicyVerdict};
use portolan_types::{Status, StatusCause};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use crate::{ApiServer, metrics};

use super::{
    super::{
        Request,
        configured::VALIDATING_POLICIES,
        forbidden,
        matching::{Invocation, Matching},
        review::Versions,
    },
    Asked,
    config::{Binding, Policy},
    is_exempt,
    params::{self, Allowance, Trouble},
};

/// The longest value of an annotation, in bytes.
const MAX_ANNOTATION: usize = 10 * 1024;
/// What a binding may want to be done about a validation that does not hold.
const DENY: &str = "Deny";
const WARN: &str = "Warn";
const AUDIT: &str = "Audit";
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// Asks the policies of the logical cluster whether the object may be stored; `None` for deletions.
///
/// # Errors
/// What the first policy that refuses it says, with its reason.
pub(in crate::admission) async fn validate(
    api: &ApiServer,
    request: &Request<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(configuration) = api.configured.of(request.cluster.id).await?.filter(|_| !is_exempt(request)) else {
        return Ok(());
    };
    configuration.check_readable(&VALIDATING_POLICIES)?;
    let (namespace, rights) = (OnceCell::new(), OnceCell::new());
    let matching = Matching { api, request, object, old, namespace: &namespace };
    let asked = Asked { matching, versions: Versions::default(), rights: &rights };
    let mut review = Review { asked, allowance: Allowance::new(), denied: None };
    for policy in &configuration.validating_policies {
        review.policy(policy).await?;
    }
    match review.denied {
        Some(denied) => Err(denied.into_status(request, object.or(old))),
        None => Ok(()),
    }
}

/// The first refusal, which is the one that is told.
struct Denied {
    message: String,
    reason: String,
}

impl Denied {
    fn into_status(self, request: &Request<'_>, object: Option<&Value>) -> Status {
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

/// Annotations of one policy, each with the values that its bindings gave it.
type Annotations = BTreeMap<String, Vec<String>>;

/// A request under review.
struct Review<'a> {
    asked: Asked<'a>,
    allowance: Allowance,
    denied: Option<Denied>,
}

impl Review<'_> {
    async fn policy(&mut self, policy: &Policy) -> Result<(), Status> {
        let Matching { api, request, .. } = self.asked.matching;
        let invocation = match self.asked.matching.invocation(&policy.criteria).await {
            Ok(Some(invocation)) => invocation,
            Ok(None) => return Ok(()),
            Err(why) => return self.trouble(policy, None, Trouble::Configured(why.message().to_owned())),
        };
        let kind = match params::kind(api, request.cluster.id, policy).await {
            Ok(kind) => kind,
            Err(trouble) => return self.trouble(policy, None, trouble),
        };
        let mut annotations = Annotations::new();
        for binding in &policy.bindings {
            if !self.is_for(policy, binding).await? {
                continue;
            }
            let namespace = request.namespace;
            let allowance = &mut self.allowance;
            match params::collect(api, request.cluster.id, kind.as_ref(), binding, namespace, allowance).await {
                Ok(params) => self.bound(policy, binding, &invocation, &params, &mut annotations).await?,
                Err(trouble) => self.trouble(policy, Some(binding), trouble)?,
            }
        }
        for (key, values) in annotations {
            request.annotate(&format!("{}/{key}", policy.name), &values.join(", "));
        }
        Ok(())
    }

    /// Whether a binding is for the request.
    async fn is_for(&mut self, policy: &Policy, binding: &Binding) -> Result<bool, Status> {
        let Some(criteria) = &binding.criteria else { return Ok(true) };
        match self.asked.matching.invocation(criteria).await {
            Ok(found) => Ok(found.is_some()),
            Err(why) => {
                let trouble = Trouble::Configured(why.message().to_owned());
                self.trouble(policy, Some(binding), trouble).map(|()| false)
            }
        }
    }

    /// Evaluates a policy for one of its bindings.
    async fn bound(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        invocation: &Invocation,
        params: &[Option<Value>],
        annotations: &mut Annotations,
    ) -> Result<(), Status> {
        if params.is_empty() {
            return Ok(());
        }
        let states = match self.asked.states(invocation).await {
            Ok(states) => states,
            Err(trouble) => return self.trouble(policy, Some(binding), trouble),
        };
        let api = self.asked.matching.api;
        let mut verdicts = Vec::with_capacity(params.len());
        let seen = self.asked.seen(invocation, states).await?;
        for params in params {
            let started = Instant::now();
            let verdict = api.expressions.validates(&policy.source, &seen, params.as_ref()).await?;
            verdicts.push((verdict, started.elapsed()));
        }
        drop(seen);
        for (PolicyVerdict { decisions, annotations: found }, took) in verdicts {
            // All expressions are evaluated at once: each has taken its part.
            let took = took / u32::try_from(decisions.len() + found.len()).unwrap_or(u32::MAX).max(1);
            for (at, decision) in decisions.into_iter().enumerate() {
                if let PolicyDecision::Deny { message, reason, .. } = decision {
                    self.count(policy, binding, &message, &binding.actions, took);
                    self.act(policy, binding, at, (message, reason));
                }
            }
            for found in found {
                if let Err(why) = &found.value {
                    self.count(policy, binding, why, &[DENY.to_owned()], took);
                }
                self.collect(policy, binding, found, annotations);
            }
        }
        Ok(())
    }

    /// Counts a validation that does not hold, for each thing that the binding wants to be done.
    fn count(&self, policy: &Policy, binding: &Binding, why: &str, actions: &[String], took: Duration) {
        let asked = metrics::Asked { policy: &policy.name, binding: &binding.name };
        for action in actions {
            let action = match action.as_str() {
                DENY => "deny",
                WARN => "warn",
                AUDIT => "audit",
                _ => continue,
            };
            self.asked.matching.api.metrics.policies.refused(asked, why, action, took);
        }
    }

    /// Does what the binding wants to be done about a validation that does not hold.
    fn act(&mut self, policy: &Policy, binding: &Binding, at: usize, (message, reason): (String, String)) {
        let request = self.asked.matching.request;
        for action in &binding.actions {
            match action.as_str() {
                DENY => self.deny(policy, Some(binding), &message, &reason),
                WARN => request.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                    policy.name, binding.name
                )),
                AUDIT => {
                    let failure = json!([{
                        "message": message, "policy": policy.name, "binding": binding.name, "expressionIndex": at,
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
        policy: &Policy,
        binding: &Binding,
        AuditAnnotation { key, value }: AuditAnnotation,
        annotations: &mut Annotations,
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

    /// The policy cannot be evaluated, which it may not matter.
    fn trouble(&mut self, policy: &Policy, binding: Option<&Binding>, trouble: Trouble) -> Result<(), Status> {
        match trouble {
            Trouble::Failed(status) => return Err(status),
            Trouble::Configured(_) if policy.fails_open => {}
            Trouble::Configured(why) => {
                let which = if binding.is_some() { "binding" } else { "policy" };
                self.deny(policy, binding, &format!("failed to configure {which}: {why}"), "Invalid");
            }
        }
        Ok(())
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str, reason: &str) {
        let bound = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        self.denied.get_or_insert_with(|| Denied {
            message: format!("ValidatingAdmissionPolicy '{}'{bound} denied request: {why}", policy.name),
            reason: reason.to_owned(),
        });
    }
}
