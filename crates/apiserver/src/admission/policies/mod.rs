//! Admission policies: CEL expressions of a logical cluster, bound to the requests they decide on.
//!
//! A policy has no effect without a binding. It is evaluated once for each matching binding and each parameter object
//! that the binding names.

mod config;
mod failures;
mod mutating;
mod params;
mod validating;

use portolan_types::Status;
use tokio::sync::OnceCell;

use super::{
    expressions::{ExpressionInput, ExpressionRights, ExpressionSubject},
    matching::{Invocation, RequestMatcher},
    review::{ConvertedStates, ObjectStates},
};
use crate::hooks::AdmissionRequest;
use params::ParamsError;

pub(super) use config::{AdmissionPolicy, policies_of, policy_name};
pub(super) use mutating::{PolicyReinvocation, mutate};
pub(super) use validating::validate;

/// Group that policies never apply to: a policy that refuses everything could not be removed otherwise.
const GROUP: &str = "admissionregistration.k8s.io";
const EXEMPT: [&str; 4] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];
/// Reviews of identity and permission, exempt because a policy that refuses them would lock everyone out.
const QUESTIONS: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

fn is_exempt(request: &AdmissionRequest<'_>) -> bool {
    let (group, resource) = (&*request.kind.gvk.group, &*request.kind.resource);
    (group == GROUP && EXEMPT.contains(&resource)) || QUESTIONS.contains(&(group, resource))
}

/// Request under evaluation by policies.
struct PolicyRequest<'a> {
    matching: RequestMatcher<'a>,
    versions: ConvertedStates,
    /// Rights of the requesting user, read at most once.
    rights: &'a OnceCell<ExpressionRights>,
}

impl<'a> PolicyRequest<'a> {
    /// Builds the input of expressions in the version of `states`.
    async fn input<'s>(
        &'s self,
        invocation: &'s Invocation,
        states: ObjectStates<'s>,
    ) -> Result<ExpressionInput<'s>, Status> {
        let RequestMatcher { context, request, object, old, .. } = self.matching;
        let read = || ExpressionRights::of(&context.rbac, request.cluster.id, request.user);
        let rights = self.rights.get_or_try_init(read).await?;
        let namespace = self.matching.own_namespace().await?;
        let directory = &*context.storage.directory;
        let subject = ExpressionSubject { directory, request, invocation, object: object.or(old) };
        Ok(ExpressionInput::of(subject, states, namespace, rights))
    }

    /// Returns the object states in the version of an invocation.
    ///
    /// # Errors
    /// Error of the binding that asks for that version.
    async fn states(&mut self, invocation: &Invocation) -> Result<ObjectStates<'a>, ParamsError> {
        let RequestMatcher { object, old, .. } = self.matching;
        self.versions.get(self.matching.view(invocation), object, old).await.map_err(|show_error| {
            match ParamsError::from(show_error) {
                ParamsError::AdmissionConfigCache(why) => {
                    ParamsError::AdmissionConfigCache(format!("failed to convert object version: {why}"))
                }
                failed => failed,
            }
        })
    }
}
