//! Failures of mutating policies.

use portolan_types::{Status, StatusCause};
use serde_json::Value;

use crate::hooks::AdmissionRequest;

use super::{
    super::forbidden,
    config::{AdmissionPolicy, PolicyBinding},
    params::ParamsError,
};

/// Failures of policies, in order.
#[derive(Default)]
pub(super) struct PolicyFailures(Vec<PolicyFailure>);

struct PolicyFailure {
    message: String,
    /// Status reason; empty for `Forbidden`.
    reason: &'static str,
}

impl PolicyFailures {
    pub(super) fn add(
        &mut self,
        policy: &AdmissionPolicy,
        binding: Option<&PolicyBinding>,
        why: &str,
        reason: &'static str,
    ) {
        if policy.fails_open {
            return;
        }
        let name = &policy.name;
        let message = match binding {
            Some(binding) => format!("policy '{name}' with binding '{}' denied request: {why}", binding.name),
            None => format!("policy {name:?} denied request: {why}"),
        };
        self.0.push(PolicyFailure { message, reason });
    }

    pub(super) fn configured(
        &mut self,
        policy: &AdmissionPolicy,
        binding: Option<&PolicyBinding>,
        error: ParamsError,
    ) -> Result<(), Status> {
        match error {
            ParamsError::Failed(status) => Err(status),
            ParamsError::AdmissionConfigCache(why) => {
                let which = if binding.is_some() { "binding" } else { "policy" };
                self.add(policy, binding, &format!("failed to configure {which}: {why}"), "");
                Ok(())
            }
        }
    }

    pub(super) fn into_result(self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), Status> {
        let Some(first) = self.0.first() else { return Ok(()) };
        let status = forbidden(request, Some(object), "admission request denied by policy");
        let mut details = status.details().clone();
        let cause = |one: &PolicyFailure| StatusCause { message: one.message.clone(), ..StatusCause::default() };
        details.causes.extend(self.0.iter().map(cause));
        // The code is always that of a refusal.
        let reason = if first.reason.is_empty() { "Forbidden" } else { first.reason };
        Err(Status::foreign(403, reason, first.message.clone(), Some(details)))
    }
}
