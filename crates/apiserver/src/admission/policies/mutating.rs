//! MutatingAdmissionPolicies: what they change.

use portolan_cel::policy::{Change, Matched};
use portolan_machinery::{
    apply,
    decode::FieldValidation,
    patch::{self, Misfit},
};
use portolan_types::{GroupResource, Status, StatusCause, object};
use serde_json::Value;
use tokio::{sync::OnceCell, time::Instant};

use crate::{ApiServer, metrics};

use super::{
    super::{
        Request,
        configured::MUTATING_POLICIES,
        expressions::{Rights, Seen, Subject},
        forbidden, lookup,
        matching::{Invocation, Matching},
        reread::reread,
        review::{self, Versions},
        rounds,
    },
    config::{Binding, Policy},
    is_exempt,
    params::{self, Allowance, Trouble},
};

/// Rounds of policies: by the uids of a policy and of one of its bindings, and by what its parameters are called.
pub(in crate::admission) type Rounds = rounds::Rounds<Key>;
type Key = (String, String, Params);
/// Parameters by namespace and name.
type Params = (String, String);

/// Lets the policies of the logical cluster change the object.
///
/// # Errors
/// What the first policy says that cannot be evaluated and must be.
pub(in crate::admission) async fn mutate(
    api: &ApiServer,
    request: &Request<'_>,
    object: &mut Value,
    old: Option<&Value>,
    rounds: &mut Rounds,
) -> Result<(), Status> {
    let Some(configuration) = api.configured.of(request.cluster.id).await?.filter(|_| !is_exempt(request)) else {
        return Ok(());
    };
    configuration.check_readable(&MUTATING_POLICIES)?;
    let policies = &configuration.mutating_policies;
    if policies.is_empty() {
        return Ok(());
    }
    let (mut complaints, mut versions) = (Complaints::default(), Versions::default());
    let invocations = invocations(api, request, (object, old), policies, &mut versions, &mut complaints).await?;
    if !invocations.is_empty() {
        let namespace = match request.kind.gvk.group.is_empty() && *request.kind.resource == *"namespaces" {
            true => None,
            false => namespace_of(api, request).await?,
        };
        let rights = Rights::of(api, request.cluster.id, request.user).await?;
        let mutation = Mutation { api, request, old, namespace: namespace.as_ref(), rights: &rights };
        for one in &invocations {
            mutation.run(one, object, rounds, &mut versions, &mut complaints).await?;
        }
        rounds.end(Some(object));
    }
    complaints.into_result(request, object)
}

async fn namespace_of(api: &ApiServer, request: &Request<'_>) -> Result<Option<Value>, Status> {
    if request.namespace.is_empty() {
        return Ok(None);
    }
    let found = lookup::namespace(api, request.cluster.id, request.namespace).await?;
    found.map(Some).ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), request.namespace))
}

/// What policies could not do, in the order in which it happened.
#[derive(Default)]
struct Complaints(Vec<Complaint>);

struct Complaint {
    message: String,
    /// Empty for that of a refusal.
    reason: &'static str,
}

impl Complaints {
    fn add(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str, reason: &'static str) {
        if policy.fails_open {
            return;
        }
        let name = &policy.name;
        let message = match binding {
            Some(binding) => format!("policy '{name}' with binding '{}' denied request: {why}", binding.name),
            None => format!("policy {name:?} denied request: {why}"),
        };
        self.0.push(Complaint { message, reason });
    }

    fn configured(&mut self, policy: &Policy, binding: Option<&Binding>, trouble: Trouble) -> Result<(), Status> {
        match trouble {
            Trouble::Failed(status) => Err(status),
            Trouble::Configured(why) => {
                let which = if binding.is_some() { "binding" } else { "policy" };
                self.add(policy, binding, &format!("failed to configure {which}: {why}"), "");
                Ok(())
            }
        }
    }

    fn into_result(self, request: &Request<'_>, object: &Value) -> Result<(), Status> {
        let Some(first) = self.0.first() else { return Ok(()) };
        let status = forbidden(request, Some(object), "admission request denied by policy");
        let mut details = status.details().clone();
        let cause = |one: &Complaint| StatusCause { message: one.message.clone(), ..StatusCause::default() };
        details.causes.extend(self.0.iter().map(cause));
        // Whatever the reason, the code is that of a refusal.
        let reason = if first.reason.is_empty() { "Forbidden" } else { first.reason };
        Err(Status::foreign(403, reason, first.message.clone(), Some(details)))
    }
}

/// A policy to be evaluated for one of its bindings, with one object of parameters.
struct Bound<'p> {
    policy: &'p Policy,
    binding: &'p Binding,
    invocation: Invocation,
    params: Option<Value>,
    key: Key,
}

/// Which policies are for the request, as it is before any of them changes it.
async fn invocations<'p>(
    api: &ApiServer,
    request: &Request<'_>,
    (object, old): (&Value, Option<&Value>),
    policies: &'p [Policy],
    versions: &mut Versions,
    complaints: &mut Complaints,
) -> Result<Vec<Bound<'p>>, Status> {
    let namespace = OnceCell::new();
    let matching = Matching { api, request, object: Some(object), old, namespace: &namespace };
    let (mut found, mut allowance) = (Vec::new(), Allowance::new());
    for policy in policies {
        let invocation = match matching.invocation(&policy.criteria).await {
            Ok(Some(invocation)) => invocation,
            Ok(None) => continue,
            Err(why) => {
                complaints.configured(policy, None, Trouble::Configured(why.message().to_owned()))?;
                continue;
            }
        };
        let kind = match params::kind(api, request.cluster.id, policy).await {
            Ok(kind) => kind,
            Err(trouble) => {
                complaints.configured(policy, None, trouble)?;
                continue;
            }
        };
        for binding in &policy.bindings {
            if !is_for(&matching, binding)
                .await
                .or_else(|trouble| complaints.configured(policy, Some(binding), trouble).map(|()| false))?
            {
                continue;
            }
            if let Err(unfit) = versions.get(api, request, &invocation, (Some(object), old)).await {
                complaints.configured(policy, None, unfit.into())?;
                continue;
            }
            match params::collect(api, request.cluster.id, kind.as_ref(), binding, request.namespace, &mut allowance)
                .await
            {
                Ok(all) => found.extend(all.into_iter().map(|params| Bound {
                    policy,
                    binding,
                    invocation: invocation.clone(),
                    key: (policy.uid.clone(), binding.uid.clone(), name_of(params.as_ref())),
                    params,
                })),
                Err(trouble) => complaints.configured(policy, Some(binding), trouble)?,
            }
        }
    }
    Ok(found)
}

fn name_of(params: Option<&Value>) -> Params {
    params.map(|params| (object::namespace(params).to_owned(), object::name(params).to_owned())).unwrap_or_default()
}

/// Whether a binding is for the request.
async fn is_for(matching: &Matching<'_>, binding: &Binding) -> Result<bool, Trouble> {
    let Some(criteria) = &binding.criteria else { return Ok(true) };
    let matched = matching.invocation(criteria).await;
    matched.map(|found| found.is_some()).map_err(|why| Trouble::Configured(why.message().to_owned()))
}

/// A request, while policies change its object.
struct Mutation<'a> {
    api: &'a ApiServer,
    request: &'a Request<'a>,
    old: Option<&'a Value>,
    namespace: Option<&'a Value>,
    rights: &'a Rights,
}

impl Mutation<'_> {
    /// Evaluates one policy for one of its bindings, mutation after mutation.
    async fn run(
        &self,
        bound: &Bound<'_>,
        object: &mut Value,
        rounds: &mut Rounds,
        versions: &mut Versions,
        complaints: &mut Complaints,
    ) -> Result<(), Status> {
        let Bound { policy, binding, params, .. } = bound;
        let expressions = &self.api.expressions;
        let compiled = expressions.mutating(&policy.source);
        let seen = self.seen(bound, object, versions).await?;
        match expressions.applies(&compiled, &seen, params.as_ref()).await? {
            Matched::Yes => {}
            Matched::No(_) | Matched::Ignored => return Ok(()),
            Matched::Failed(why) => {
                complaints.add(policy, Some(binding), &why, "Invalid");
                return Ok(());
            }
        }
        drop(seen);
        if !rounds.includes(&bound.key) {
            return Ok(());
        }
        let asked = metrics::Asked { policy: &policy.name, binding: &binding.name };
        let mut changed = false;
        for at in 0..compiled.mutations() {
            let (started, seen) = (Instant::now(), self.seen(bound, object, versions).await?);
            let made = match expressions.change(&compiled, at, &seen, params.as_ref()).await? {
                Ok(Some(change)) => self.changed(bound, object, &change).await,
                Ok(None) => continue,
                Err(why) => Err(Failed::Policy(why)),
            };
            drop(seen);
            let told = match &made {
                Ok(_) => Ok(()),
                Err(Failed::Policy(why)) => Err(why.as_str()),
                Err(Failed::Request(status)) => Err(status.message()),
            };
            self.api.metrics.policies.mutated(asked, told, started.elapsed());
            match made {
                Ok(made) if made == *object => {}
                Ok(made) => {
                    (*object, changed) = (made, true);
                    versions.object_changed();
                }
                Err(Failed::Policy(why)) => complaints.add(policy, Some(binding), &why, "Invalid"),
                Err(Failed::Request(status)) => return Err(status),
            }
        }
        rounds.called(bound.key.clone(), changed, policy.reinvoked);
        Ok(())
    }

    async fn seen<'s>(
        &'s self,
        bound: &'s Bound<'_>,
        object: &'s Value,
        versions: &mut Versions,
    ) -> Result<Seen<'s>, Status> {
        let (request, invocation) = (self.request, &bound.invocation);
        let states = versions.get(self.api, request, invocation, (Some(object), self.old)).await?;
        let subject = Subject { api: self.api, request, invocation, object: Some(object) };
        Ok(Seen::of(subject, states, self.namespace, self.rights))
    }

    /// The object with a change, in canonical form and complete.
    async fn changed(&self, bound: &Bound<'_>, object: &Value, change: &Change) -> Result<Value, Failed> {
        let (request, invocation) = (self.request, &bound.invocation);
        let seen = review::shown(self.api, request, invocation, object).await.map_err(Failed::Request)?;
        let (changed, validation) = match change {
            Change::Apply(configuration) => (self.laid_over(bound, &seen, configuration)?, FieldValidation::Ignore),
            Change::Patch(operations) => match patch::apply_operations(&seen, operations) {
                Ok(changed) => (changed, FieldValidation::Strict),
                // A test that does not hold leaves the object as it is.
                Err(Misfit::Test(_)) => return Ok(object.clone()),
                Err(Misfit::Operation(why) | Misfit::Budget(why)) => {
                    return Err(Failed::Policy(format!("JSON Patch: {why}")));
                }
            },
        };
        let read = reread(self.api, request, invocation, (object, changed), validation).await;
        read.map_err(Failed::Request)
    }

    fn laid_over(&self, bound: &Bound<'_>, seen: &Value, configuration: &Value) -> Result<Value, Failed> {
        let kind = &bound.invocation.kind;
        let Some(schema) = self.request.table.object_type(&kind.group, &kind.version, &kind.kind) else {
            let (group, version, kind) = (&kind.group, &kind.version, &kind.kind);
            return Err(Failed::Request(Status::new(
                portolan_types::Reason::ServiceUnavailable,
                format!(
                    "Resource kind {group}/{version}, Kind={kind} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available."
                ),
            )));
        };
        let mut configuration = configuration.clone();
        for key in ["apiVersion", "kind"] {
            configuration[key] = seen.get(key).cloned().unwrap_or_default();
        }
        apply::lay_over(self.request.table, schema, seen, &configuration)
            .map_err(|why| Failed::Policy(format!("error applying patch: {why}")))
    }
}

/// Why a change cannot be made.
enum Failed {
    /// The policy is wrong, which it may not matter.
    Policy(String),
    /// The request fails, whatever the policy says.
    Request(Status),
}
