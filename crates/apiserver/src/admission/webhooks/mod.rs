//! Mutating and validating webhooks.
//!
//! What a webhook says of one logical cluster's requests counts there only: configurations are read per logical cluster, and so
//! are connections kept. A webhook that is slow takes a share of the places for writes, not all of them.

mod answer;
mod config;

use std::collections::BTreeSet;

use futures::future::join_all;
use portolan_cel::policy::Matched;
use portolan_machinery::{
    apply,
    decode::{self, FieldValidation},
    defaults, patch,
};
use portolan_types::{Status, object};
use serde_json::Value;
use tokio::sync::OnceCell;

pub(super) use config::{Webhook, webhooks_of};

use self::answer::{Verdict, Version};
use super::{
    Request,
    expressions::{Rights, Seen, Subject},
    forbidden,
    matching::{Invocation, Matching, kind_of},
    review,
};
use crate::{
    ApiServer,
    limits::{Place, Whose},
};

/// Kinds that no webhook is asked about: one that refuses everything could never be removed.
const EXEMPT: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

fn is_exempt(request: &Request<'_>) -> bool {
    let gvk = &request.kind.gvk;
    *gvk.group == *"admissionregistration.k8s.io" && EXEMPT.contains(&&*gvk.kind)
}

/// Why a call came to nothing.
enum Trouble {
    /// The webhook was not reached, or did not answer as it should.
    Calling(String),
    /// It refused, or what it wants cannot be done.
    Refused(Status),
}

impl Trouble {
    /// What becomes of the request; nothing where the webhook's failure is to be ignored.
    fn outcome(self, request: &Request<'_>, webhook: &Webhook) -> Result<(), Status> {
        match self {
            Self::Refused(status) => Err(status),
            Self::Calling(why) if webhook.fails_open => {
                let (cluster, configuration, webhook) = (request.cluster.id, &webhook.configuration, &webhook.name);
                tracing::warn!(%cluster, configuration, webhook, why, "failed calling webhook, going on");
                request.annotate("failed-open", webhook);
                Ok(())
            }
            Self::Calling(why) => Err(Status::internal(format!("failed calling webhook {:?}: {why}", webhook.name))),
        }
    }
}

/// What the two rounds of mutating webhooks know of each other.
#[derive(Default)]
pub(super) struct Rounds {
    /// Something was changed: the whole chain runs once more.
    pub(super) changed: bool,
    second: bool,
    /// Webhooks that want to be called again, and have not seen the last change.
    invoked: BTreeSet<usize>,
    again: BTreeSet<usize>,
    last: Option<Value>,
}

impl Rounds {
    /// The second round begins, after Kubernetes' own steps have run again.
    pub(super) fn begin_second(&mut self, object: &Value) {
        self.second = true;
        if self.last.as_ref() != Some(object) {
            self.require();
        }
    }

    fn require(&mut self) {
        self.again.append(&mut self.invoked);
    }
}

/// Lets webhooks change the object; `None` for deletions.
pub(super) async fn mutate(
    api: &ApiServer,
    request: &Request<'_>,
    mut object: Option<&mut Value>,
    old: Option<&Value>,
    rounds: &mut Rounds,
) -> Result<(), Status> {
    let Some(configuration) = api.configured.of(request.cluster.id).await?.filter(|_| !is_exempt(request)) else {
        return Ok(());
    };
    let (namespace, mut place) = (OnceCell::new(), None);
    for (at, webhook) in configuration.mutating.iter().enumerate() {
        let matching = Matching { api, request, object: object.as_deref(), old, namespace: &namespace };
        let Some(invocation) = invocation(&matching, webhook).await? else { continue };
        if rounds.second && !rounds.again.contains(&at) {
            continue;
        }
        take_place(api, request, &mut place)?;
        match call_mutating(api, request, webhook, &invocation, object.as_deref_mut(), old).await {
            Ok(false) => {}
            Ok(true) => {
                rounds.require();
                rounds.changed = true;
            }
            Err(trouble) => trouble.outcome(request, webhook)?,
        }
        if webhook.reinvoked {
            rounds.invoked.insert(at);
        }
    }
    if rounds.changed || !rounds.invoked.is_empty() {
        rounds.last = object.as_deref().cloned();
    }
    Ok(())
}

/// Asks webhooks whether the object may be stored; `None` for deletions. They are asked at once.
pub(super) async fn validate(
    api: &ApiServer,
    request: &Request<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(configuration) = api.configured.of(request.cluster.id).await?.filter(|_| !is_exempt(request)) else {
        return Ok(());
    };
    let (namespace, mut relevant) = (OnceCell::new(), Vec::new());
    for webhook in &configuration.validating {
        let matching = Matching { api, request, object, old, namespace: &namespace };
        if let Some(invocation) = invocation(&matching, webhook).await? {
            relevant.push((webhook, invocation));
        }
    }
    if relevant.is_empty() {
        return Ok(());
    }
    let mut place = None;
    take_place(api, request, &mut place)?;
    let calls = relevant.iter().map(|(webhook, invocation)| async move {
        let verdict = ask(api, request, webhook, invocation, (object, old), false).await;
        verdict.map(drop).or_else(|trouble| trouble.outcome(request, webhook))
    });
    join_all(calls).await.into_iter().collect()
}

/// As what the webhook is asked; `None` when it is not.
async fn invocation(matching: &Matching<'_>, webhook: &Webhook) -> Result<Option<Invocation>, Status> {
    let Some(invocation) = matching.invocation(&webhook.criteria).await? else { return Ok(None) };
    let Some(conditions) = &webhook.conditions else { return Ok(Some(invocation)) };
    let Matching { api, request, object, old, .. } = *matching;
    let rights = Rights::of(api, request.cluster.id, request.user).await?;
    let seen = Seen::of(api, Subject { request, invocation: &invocation, object, old }, None, &rights).await?;
    match api.expressions.matches(conditions, &seen).await? {
        Matched::Yes => Ok(Some(invocation)),
        Matched::No(_) | Matched::Ignored => Ok(None),
        Matched::Failed(why) => {
            let (cluster, configuration, webhook) = (request.cluster.id, &webhook.configuration, &webhook.name);
            tracing::warn!(%cluster, configuration, webhook, why, "failed evaluating match conditions, failing closed");
            Err(forbidden(request, object, why))
        }
    }
}

fn take_place(api: &ApiServer, request: &Request<'_>, place: &mut Option<Place>) -> Result<(), Status> {
    if place.is_none() {
        let tenant = api.directory.tenant(request.cluster);
        let whose = Whose { tenant, cluster: request.cluster.id, user: request.user };
        *place = Some(api.admittance.webhook(&whose)?);
    }
    Ok(())
}

/// Whether the object was changed.
async fn call_mutating(
    api: &ApiServer,
    request: &Request<'_>,
    webhook: &Webhook,
    invocation: &Invocation,
    object: Option<&mut Value>,
    old: Option<&Value>,
) -> Result<bool, Trouble> {
    let verdict = ask(api, request, webhook, invocation, (object.as_deref(), old), true).await?;
    if verdict.patch.is_empty() {
        return Ok(false);
    }
    let Some(object) = object else {
        // A list without operations changes nothing.
        return match serde_json::from_slice::<Vec<Value>>(&verdict.patch).is_ok_and(|list| list.is_empty()) {
            true => Ok(false),
            false => Err(Trouble::Refused(Status::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                webhook.name
            )))),
        };
    };
    let patched = patched(api, request, webhook, invocation, (object, &verdict.patch)).await?;
    if patched == *object {
        return Ok(false);
    }
    let before = object::metadata(object).get("managedFields").cloned();
    *object = patched;
    keep_owners(request, object, before);
    Ok(true)
}

/// The object with a webhook's patch, in canonical form and complete.
async fn patched(
    api: &ApiServer,
    request: &Request<'_>,
    webhook: &Webhook,
    invocation: &Invocation,
    (object, patch): (&Value, &[u8]),
) -> Result<Value, Trouble> {
    let broken = |why: &str| Trouble::Refused(Status::internal(format!("admission webhook {:?}: {why}", webhook.name)));
    let seen = review::shown(api, request, invocation, object).await.map_err(Trouble::Refused)?;
    let changed = patch::json_patch(&seen, patch).map_err(|status| match status.code() {
        400 => Trouble::Calling(format!("received undecodable patch in webhook response: {}", status.message())),
        _ => broken("the patch does not apply to the object"),
    })?;
    let changed = review::unshown(api, request, invocation, object, changed).await;
    let mut changed = changed.map_err(Trouble::Refused)?;
    let is_own_kind = kind_of(request, request.kind) == request.kind.gvk || request.subresource == "scale";
    if is_own_kind {
        decode::prune_canonical(request.table, request.kind, &mut changed, FieldValidation::Ignore)
            .map_err(|unfit| broken(&unfit.decoded()))?;
        defaults::apply(request.table, request.kind, &mut changed).map_err(Trouble::Refused)?;
    }
    Ok(changed)
}

/// Owners of fields that cannot be read are as they were.
fn keep_owners(request: &Request<'_>, object: &mut Value, before: Option<Value>) {
    let Err(why) = apply::check_managed_fields(object) else { return };
    let metadata = object::metadata_mut(object);
    match before {
        Some(before) => metadata.insert("managedFields".into(), before),
        None => metadata.remove("managedFields"),
    };
    request.warn(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"
    ));
}

/// Asks one webhook.
async fn ask(
    api: &ApiServer,
    request: &Request<'_>,
    webhook: &Webhook,
    invocation: &Invocation,
    (object, old): (Option<&Value>, Option<&Value>),
    mutates: bool,
) -> Result<Verdict, Trouble> {
    if request.dry_run && !matches!(webhook.side_effects.as_str(), "None" | "NoneOnDryRun") {
        let why = format!("admission webhook {:?} does not support dry run", webhook.name);
        return Err(Trouble::Refused(Status::bad_request(why)));
    }
    let versions = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
    let version = Version::of(webhook)
        .ok_or_else(|| Trouble::Calling(format!("could not create admission objects: {versions}")))?;
    let show = async |object: Option<&Value>| match object {
        Some(object) => review::shown(api, request, invocation, object).await.map(Some).map_err(Trouble::Refused),
        None => Ok(None),
    };
    let states = (show(object).await?, show(old).await?);
    let uid = api.seams.uid().to_string();
    let question = answer::question(version, &uid, request, invocation, states);
    let sent = (question.to_string().into_bytes(), "AdmissionReview");
    let answer = webhook.endpoint.ask(api, request.cluster.id, webhook.timeout, sent).await;
    let answer = answer.map_err(|why| Trouble::Calling(format!("failed to call webhook: {why}")))?;
    let verdict = answer::verdict(version, &uid, mutates, &answer)
        .map_err(|why| Trouble::Calling(format!("received invalid webhook response: {why}")))?;
    for (key, text) in &verdict.audit_annotations {
        request.annotate(&format!("{}/{key}", webhook.name), text.as_str().unwrap_or_default());
    }
    verdict.warnings.iter().for_each(|warning| request.warn(warning.clone()));
    match verdict.allowed {
        true => Ok(verdict),
        false => Err(Trouble::Refused(answer::refusal(&webhook.name, &verdict.result))),
    }
}
