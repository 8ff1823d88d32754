//! Mutating and validating webhooks.
//!
//! What a webhook says of one logical cluster's requests counts there only: configurations are read per logical cluster, and so
//! are connections kept. A webhook that is slow takes a share of the places for writes, not all of them.

mod answer;
mod config;

use futures::{StreamExt as _, future::BoxFuture, stream};
use portolan_cel::policy::Matched;
use portolan_machinery::{apply, decode::FieldValidation, patch};
use portolan_types::{GroupVersionKind, Status, object};
use serde_json::Value;
use tokio::{sync::OnceCell, time::Instant};

pub(super) use config::{Webhook, webhooks_of};

use self::answer::{Texts, Typed, Verdict, Version};
use super::{
    Request,
    configured::{MUTATING, VALIDATING},
    expressions::{Rights, Seen, Subject},
    forbidden,
    matching::{Invocation, Matching},
    reread::reread,
    review::{self, States, Unfit, Versions},
    rounds,
};
use crate::{
    ApiServer,
    limits::{Place, Whose},
    metrics::{Called, Step},
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

/// Validating webhooks that one write asks at once. Upstream asks all of them; but there it is not tenants who configure them.
const AT_ONCE: usize = 16;

fn is_exempt(request: &Request<'_>) -> bool {
    let gvk = &request.kind.gvk;
    *gvk.group == *"admissionregistration.k8s.io" && EXEMPT.contains(&&*gvk.kind)
}

/// Why a call came to nothing.
enum Trouble {
    /// The webhook was not reached, or did not answer as it should.
    Calling(String),
    /// It refused.
    Denied(Status),
    /// It cannot be asked, or what it wants cannot be done.
    Refused(Status),
}

impl Trouble {
    /// As it is counted.
    fn called(&self, webhook: &Webhook) -> Called {
        match self {
            Self::Calling(_) => Called::Failed { ignored: webhook.fails_open },
            Self::Denied(status) => Called::Denied(status.code()),
            Self::Refused(_) => Called::Broken,
        }
    }

    /// What becomes of the request; nothing where the webhook's failure is to be ignored.
    fn outcome(self, request: &Request<'_>, webhook: &Webhook) -> Result<(), Status> {
        match self {
            Self::Denied(status) | Self::Refused(status) => Err(status),
            Self::Calling(why) if webhook.fails_open => {
                let (cluster, configuration, webhook) = (&request.cluster.path, &webhook.configuration, &webhook.name);
                tracing::warn!(%cluster, configuration, webhook, why, "failed calling webhook, going on");
                request.annotate("failed-open", webhook);
                Ok(())
            }
            Self::Calling(why) => Err(Status::internal(format!("failed calling webhook {:?}: {why}", webhook.name))),
        }
    }
}

/// Rounds of webhooks, by the uids of their configurations and their names there.
pub(super) type Rounds = rounds::Rounds<(String, String)>;

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
    configuration.check_readable(&[MUTATING])?;
    let (namespace, mut place, mut versions) = (OnceCell::new(), None, Versions::default());
    for webhook in &configuration.mutating {
        let matching = Matching { api, request, object: object.as_deref(), old, namespace: &namespace };
        let mut asked = Asked { matching, versions: &mut versions, mutates: true };
        let Some(invocation) = asked.invocation(webhook).await? else { continue };
        if !rounds.includes(&webhook.key) {
            continue;
        }
        take_place(api, request, &mut place)?;
        let started = Instant::now();
        let verdict = match asked.states(&invocation).await {
            Ok(states) => matching.ask(webhook, &invocation, &Texts::of(&states), true).await,
            Err(unfit) => Err(Trouble::Refused(unfit)),
        };
        let called = match verdict {
            Ok(verdict) => changed(api, request, webhook, &invocation, object.as_deref_mut(), &verdict).await,
            Err(trouble) => Err(trouble),
        };
        count(api, request, (webhook, "admit"), started, called.as_ref().err());
        let changed = called.or_else(|trouble| trouble.outcome(request, webhook).map(|()| false))?;
        if changed {
            versions.object_changed();
        }
        rounds.called(webhook.key.clone(), changed, webhook.reinvoked);
    }
    rounds.end(object.as_deref());
    Ok(())
}

/// Asks webhooks whether the object may be stored; `None` for deletions. They are asked at once, as many as [`AT_ONCE`]; all of
/// them, also when one has refused. What the first one said that refuses is told.
pub(super) async fn validate(
    api: &ApiServer,
    request: &Request<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(configuration) = api.configured.of(request.cluster.id).await?.filter(|_| !is_exempt(request)) else {
        return Ok(());
    };
    configuration.check_readable(&[VALIDATING])?;
    let (namespace, mut relevant, mut place) = (OnceCell::new(), Vec::new(), None);
    let matching = Matching { api, request, object, old, namespace: &namespace };
    let (mut versions, mut texts) = (Versions::default(), Vec::<(GroupVersionKind, Texts)>::new());
    let mut asked = Asked { matching, versions: &mut versions, mutates: false };
    for webhook in &configuration.validating {
        let Some(invocation) = asked.invocation(webhook).await? else { continue };
        let at = match texts.iter().position(|(kind, _)| *kind == invocation.kind) {
            Some(at) => at,
            None => {
                texts.push((invocation.kind.clone(), Texts::of(&asked.states(&invocation).await?)));
                texts.len() - 1
            }
        };
        relevant.push((webhook, invocation, at));
    }
    if relevant.is_empty() {
        return Ok(());
    }
    drop(versions);
    take_place(api, request, &mut place)?;
    let texts = &texts;
    let mut calls: Vec<BoxFuture<'_, _>> = Vec::with_capacity(relevant.len());
    for (index, (webhook, invocation, at)) in relevant.iter().enumerate() {
        calls.push(Box::pin(async move {
            let started = Instant::now();
            let verdict = matching.ask(webhook, invocation, &texts[*at].1, false).await;
            count(api, request, (*webhook, "validating"), started, verdict.as_ref().err());
            (index, verdict.map(drop).or_else(|trouble| trouble.outcome(request, webhook)))
        }));
    }
    let (mut calls, mut first) = (stream::iter(calls).buffer_unordered(AT_ONCE), None);
    while let Some((index, outcome)) = calls.next().await {
        match (outcome, &first) {
            (Ok(()), _) => {}
            (Err(_), Some((earlier, _))) if *earlier < index => {}
            (Err(refused), _) => first = Some((index, refused)),
        }
    }
    first.map_or(Ok(()), |(_, refused)| Err(refused))
}

/// Counts a call under upstream's word for its sort.
fn count(
    api: &ApiServer,
    request: &Request<'_>,
    (webhook, kind): (&Webhook, &'static str),
    started: Instant,
    trouble: Option<&Trouble>,
) {
    let step = Step { name: &webhook.name, kind, operation: request.operation.word() };
    let called = trouble.map_or(Called::Allowed, |trouble| trouble.called(webhook));
    api.metrics.admission.webhook(step, called, started.elapsed());
}

/// A request, while webhooks are asked about it.
struct Asked<'a, 'v> {
    matching: Matching<'a>,
    versions: &'v mut Versions,
    mutates: bool,
}

impl<'a> Asked<'a, '_> {
    /// As what the webhook is asked; `None` when it is not.
    async fn invocation(&mut self, webhook: &Webhook) -> Result<Option<Invocation>, Status> {
        let Some(invocation) = self.matching.invocation(&webhook.criteria).await? else { return Ok(None) };
        let Some(conditions) = &webhook.conditions else { return Ok(Some(invocation)) };
        let Matching { api, request, object, old, .. } = self.matching;
        let rights = Rights::of(api, request.cluster.id, request.user).await?;
        let subject = Subject { api, request, invocation: &invocation, object: object.or(old) };
        let seen = Seen::of(subject, self.states(&invocation).await?, None, &rights);
        match api.expressions.matches(conditions, &seen).await? {
            Matched::Yes => {}
            Matched::No(_) | Matched::Ignored => return Ok(None),
            Matched::Failed(why) => {
                let (cluster, configuration, webhook) = (&request.cluster.path, &webhook.configuration, &webhook.name);
                tracing::warn!(%cluster, configuration, webhook, why, "failed evaluating match conditions, failing closed");
                return Err(forbidden(request, object, why));
            }
        }
        drop(seen);
        Ok(Some(invocation))
    }

    /// The states in the version of an invocation.
    ///
    /// # Errors
    /// As [`unfit`].
    async fn states(&mut self, invocation: &Invocation) -> Result<States<'a>, Status> {
        let Matching { api, request, object, old, .. } = self.matching;
        let states = self.versions.get(api, request, invocation, (object, old)).await;
        states.map_err(|why| unfit(why, self.mutates))
    }
}

/// 500 for what cannot be converted, whatever is to become of calls that fail. Upstream says it twice where the object may change.
fn unfit(why: Unfit, mutates: bool) -> Status {
    match why {
        Unfit::Failed(why) if mutates => Status::internal(Status::internal(why).message()),
        why => why.into(),
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

/// Changes the object as a webhook wants; whether that changed anything.
async fn changed(
    api: &ApiServer,
    request: &Request<'_>,
    webhook: &Webhook,
    invocation: &Invocation,
    object: Option<&mut Value>,
    verdict: &Verdict,
) -> Result<bool, Trouble> {
    if verdict.patch.is_empty() {
        return Ok(false);
    }
    let calling = |why: String| Trouble::Calling(why);
    let operations = patch::read_operations(&verdict.patch)
        .map_err(|why| calling(format!("received undecodable patch in webhook response: {why}")))?;
    if operations.is_empty() {
        return Ok(false);
    }
    let Some(object) = object else {
        return Err(Trouble::Refused(Status::internal(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            webhook.name
        ))));
    };
    if let Some(other) = &verdict.other_patch {
        return Err(calling(format!("unsupported patch type {other:?}")));
    }
    let patched = patched(api, request, invocation, object, &operations).await.map_err(Trouble::Refused)?;
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
    invocation: &Invocation,
    object: &Value,
    operations: &[Value],
) -> Result<Value, Status> {
    let seen = review::shown(api, request, invocation, object).await?;
    let changed = patch::apply_operations(&seen, operations).map_err(|misfit| Status::internal(misfit.into_text()))?;
    reread(api, request, invocation, (object, changed), FieldValidation::Ignore).await
}

/// Owners of fields that cannot be read are as they were.
fn keep_owners(request: &Request<'_>, object: &mut Value, before: Option<Value>) {
    let Err(why) = apply::check_managed_fields(object) else {
        // None is the same as an empty list, which nobody is shown.
        let owners = object::metadata(object).get("managedFields").and_then(Value::as_array);
        if owners.is_some_and(Vec::is_empty) {
            object::metadata_mut(object).remove("managedFields");
        }
        return;
    };
    let metadata = object::metadata_mut(object);
    match before {
        Some(before) => metadata.insert("managedFields".into(), before),
        None => metadata.remove("managedFields"),
    };
    request.warn(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"
    ));
}

impl Matching<'_> {
    /// Asks one webhook.
    async fn ask(
        &self,
        webhook: &Webhook,
        invocation: &Invocation,
        texts: &Texts,
        mutates: bool,
    ) -> Result<Verdict, Trouble> {
        let Self { api, request, object, old, .. } = *self;
        if request.dry_run && !matches!(webhook.side_effects.as_str(), "None" | "NoneOnDryRun") {
            let why = format!("admission webhook {:?} does not support dry run", webhook.name);
            return Err(Trouble::Refused(Status::bad_request(why)));
        }
        let versions = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        let version = Version::of(webhook)
            .ok_or_else(|| Trouble::Calling(format!("could not create admission objects: {versions}")))?;
        let uid = api.seams.uid().to_string();
        let question = answer::question(version, &uid, request, (invocation, object.or(old)), texts);
        let sent = (question, "AdmissionReview");
        let answer = webhook.endpoint.ask(api, request.cluster.id, webhook.timeout, sent).await;
        let typed = answer.as_ref().map_err(String::clone).and_then(Typed::of);
        let typed = typed.map_err(|why| Trouble::Calling(format!("failed to call webhook: {why}")))?;
        let verdict = answer::verdict(version, &uid, mutates, typed)
            .map_err(|why| Trouble::Calling(format!("received invalid webhook response: {why}")))?;
        for (key, text) in &verdict.audit_annotations {
            request.annotate(&format!("{}/{key}", webhook.name), text.as_str().unwrap_or_default());
        }
        verdict.warnings.iter().for_each(|warning| request.warn(warning.clone()));
        match verdict.allowed {
            true => Ok(verdict),
            false => Err(Trouble::Denied(answer::refusal(&webhook.name, &verdict.result))),
        }
    }
}
