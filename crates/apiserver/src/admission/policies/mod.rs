//! Admission policies: expressions of a logical cluster's own that decide on requests, bound to what they are for.
//!
//! A policy does nothing without a binding. It is evaluated once for each of its bindings that match, and for each object that a
//! binding names as parameters.

mod config;
mod mutating;
mod params;
mod validating;

use portolan_types::Status;
use tokio::sync::OnceCell;

use super::{
    Request,
    expressions::{Rights, Seen, Subject},
    matching::{Invocation, Matching},
    review::{States, Versions},
};
use params::Trouble;

pub(super) use config::{Policy, policies_of, policy_name};
pub(super) use mutating::{Rounds, mutate};
pub(super) use validating::validate;

/// The group of the objects that no policy is asked about: one that refuses everything could never be removed.
const GROUP: &str = "admissionregistration.k8s.io";
const EXEMPT: [&str; 4] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];
/// Questions of who somebody is and what they may do: a policy that refuses them would lock everybody out.
const QUESTIONS: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

fn is_exempt(request: &Request<'_>) -> bool {
    let (group, resource) = (&*request.kind.gvk.group, &*request.kind.resource);
    (group == GROUP && EXEMPT.contains(&resource)) || QUESTIONS.contains(&(group, resource))
}

/// A request, while policies look at it.
struct Asked<'a> {
    matching: Matching<'a>,
    versions: Versions,
    /// The rights of who asks are looked up at most once.
    rights: &'a OnceCell<Rights>,
}

impl<'a> Asked<'a> {
    /// What expressions see of it, in the version of these states.
    async fn seen<'s>(&'s self, invocation: &'s Invocation, states: States<'s>) -> Result<Seen<'s>, Status> {
        let Matching { api, request, object, old, .. } = self.matching;
        let rights = self.rights.get_or_try_init(|| Rights::of(api, request.cluster.id, request.user)).await?;
        let namespace = self.matching.own_namespace().await?;
        Ok(Seen::of(Subject { api, request, invocation, object: object.or(old) }, states, namespace, rights))
    }

    /// The states in the version of an invocation.
    ///
    /// # Errors
    /// What is wrong with the binding that wants them so.
    async fn states(&mut self, invocation: &Invocation) -> Result<States<'a>, Trouble> {
        let Matching { api, request, object, old, .. } = self.matching;
        self.versions.get(api, request, invocation, (object, old)).await.map_err(|unfit| match Trouble::from(unfit) {
            Trouble::Configured(why) => Trouble::Configured(format!("failed to convert object version: {why}")),
            failed => failed,
        })
    }
}
