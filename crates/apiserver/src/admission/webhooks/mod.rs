//! Mutating and validating webhooks.
//!
//! A webhook decides only on requests of its own logical cluster: configurations and connections are kept per logical
//! cluster. A slow webhook takes a share of the write permits, not all of them.

mod admission_review;
mod config;
mod failure;
mod patches;

use futures::{StreamExt as _, future::BoxFuture, stream};
use portolan_cel::policy::ConditionMatch;
use portolan_types::{GroupVersionKind, Status};
use serde_json::Value;
use tokio::{sync::OnceCell, time::Instant};

pub(super) use config::{WebhookConfig, webhooks_of};

use self::admission_review::{CheckedReview, EncodedStates, ReviewSubject, ReviewVersion, WebhookDecision};
use self::failure::WebhookFailure;
use self::patches::changed;
use super::{
    AdmissionContext,
    config_cache::{MUTATING, VALIDATING},
    expressions::{ExpressionInput, ExpressionRights, ExpressionSubject},
    forbidden,
    matching::{Invocation, RequestMatcher},
    reinvocation::{self, MutatingRequest},
    review::{ConvertedStates, ObjectStates, RequestView, ShowError},
};
use crate::{
    hooks::AdmissionRequest,
    limits::{FlowKey, Permit},
    metrics::{AdmissionStepLabels, WebhookOutcome},
    webhooks::WebhookRequestBody,
};

/// Kinds that no webhook is called for: otherwise a webhook that refuses everything could not be removed.
const EXEMPT: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Limit of concurrent validating calls of one write. kube-apiserver has none; but there tenants cannot configure
/// webhooks.
const AT_ONCE: usize = 16;

fn is_exempt(request: &AdmissionRequest<'_>) -> bool {
    let gvk = &request.kind.gvk;
    *gvk.group == *"admissionregistration.k8s.io" && EXEMPT.contains(&&*gvk.kind)
}

/// Reinvocation state of webhooks, keyed by the uid of their configuration and their name in it.
pub(super) type WebhookReinvocation = reinvocation::ReinvocationState<(String, String)>;

/// Calls mutating webhooks in order; `None` for deletions.
pub(super) async fn mutate(
    asked: MutatingRequest<'_>,
    mut object: Option<&mut Value>,
    reinvocation: &mut WebhookReinvocation,
) -> Result<(), Status> {
    let MutatingRequest { context, request, old } = asked;
    let configuration = context.configuration.of(request.cluster.id).await?;
    let Some(configuration) = configuration.filter(|_| !is_exempt(request)) else { return Ok(()) };
    configuration.check_readable(&[MUTATING])?;
    let (namespace, mut permit, mut versions) = (OnceCell::new(), None, ConvertedStates::default());
    for webhook in &configuration.mutating {
        let matching = RequestMatcher { context, request, object: object.as_deref(), old, namespace: &namespace };
        let mut asked = WebhookRequest { matching, versions: &mut versions, mutates: true };
        let Some(invocation) = asked.invocation(webhook).await? else { continue };
        if !reinvocation.includes(&webhook.key) {
            continue;
        }
        take_permit(context, request, &mut permit)?;
        let call = WebhookCall { webhook, kind: "admit", started: Instant::now() };
        let verdict = match asked.states(&invocation).await {
            Ok(states) => matching.ask(webhook, &invocation, &EncodedStates::of(&states), true).await,
            Err(show_error) => Err(WebhookFailure::Refused(show_error)),
        };
        let called = match verdict {
            Ok(verdict) => {
                let view = RequestView { conversion: &context.conversion, request, invocation: &invocation };
                changed(view, webhook, object.as_deref_mut(), &verdict).await
            }
            Err(failure) => Err(failure),
        };
        count(context, request, call, called.as_ref().err());
        let changed = called.or_else(|failure| failure.outcome(request, webhook).map(|()| false))?;
        if changed {
            versions.object_changed();
        }
        reinvocation.record_call(webhook.key.clone(), changed, webhook.reinvoked);
    }
    reinvocation.end_first_round(object.as_deref());
    Ok(())
}

/// Calls validating webhooks concurrently, up to [`AT_ONCE`] at a time; `None` for deletions. All are called even if
/// one refuses. Returns the refusal of the first in order.
pub(super) async fn validate(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let configuration = context.configuration.of(request.cluster.id).await?;
    let Some(configuration) = configuration.filter(|_| !is_exempt(request)) else { return Ok(()) };
    configuration.check_readable(&[VALIDATING])?;
    let (namespace, mut relevant, mut permit) = (OnceCell::new(), Vec::new(), None);
    let matching = RequestMatcher { context, request, object, old, namespace: &namespace };
    let (mut versions, mut texts) = (ConvertedStates::default(), Vec::<(GroupVersionKind, EncodedStates)>::new());
    let mut asked = WebhookRequest { matching, versions: &mut versions, mutates: false };
    for webhook in &configuration.validating {
        let Some(invocation) = asked.invocation(webhook).await? else { continue };
        let at = match texts.iter().position(|(kind, _)| *kind == invocation.kind) {
            Some(at) => at,
            None => {
                texts.push((invocation.kind.clone(), EncodedStates::of(&asked.states(&invocation).await?)));
                texts.len() - 1
            }
        };
        relevant.push((webhook, invocation, at));
    }
    if relevant.is_empty() {
        return Ok(());
    }
    drop(versions);
    take_permit(context, request, &mut permit)?;
    let texts = &texts;
    let mut calls: Vec<BoxFuture<'_, _>> = Vec::with_capacity(relevant.len());
    for (index, (webhook, invocation, at)) in relevant.iter().enumerate() {
        calls.push(Box::pin(async move {
            let call = WebhookCall { webhook, kind: "validating", started: Instant::now() };
            let verdict = matching.ask(webhook, invocation, &texts[*at].1, false).await;
            count(context, request, call, verdict.as_ref().err());
            (index, verdict.map(drop).or_else(|failure| failure.outcome(request, webhook)))
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

/// Call of a webhook.
#[derive(Clone, Copy)]
struct WebhookCall<'a> {
    webhook: &'a WebhookConfig,
    /// kube-apiserver's label for its type.
    kind: &'static str,
    started: Instant,
}

/// Counts a call.
fn count(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    call: WebhookCall<'_>,
    failure: Option<&WebhookFailure>,
) {
    let WebhookCall { webhook, kind, started } = call;
    let step = AdmissionStepLabels { name: &webhook.name, kind, operation: request.operation.word() };
    let called = failure.map_or(WebhookOutcome::Allowed, |failure| failure.called(webhook));
    context.metrics.admission.webhook(step, called, started.elapsed());
}

/// Request that webhooks are called for.
struct WebhookRequest<'a, 'v> {
    matching: RequestMatcher<'a>,
    versions: &'v mut ConvertedStates,
    mutates: bool,
}

impl<'a> WebhookRequest<'a, '_> {
    /// Returns the invocation of a webhook; `None` if it does not match.
    async fn invocation(&mut self, webhook: &WebhookConfig) -> Result<Option<Invocation>, Status> {
        let Some(invocation) = self.matching.invocation(&webhook.criteria).await? else { return Ok(None) };
        let Some(conditions) = &webhook.conditions else { return Ok(Some(invocation)) };
        let RequestMatcher { context, request, object, old, .. } = self.matching;
        let rights = ExpressionRights::of(&context.rbac, request.cluster.id, request.user).await?;
        let directory = &*context.storage.directory;
        let subject = ExpressionSubject { directory, request, invocation: &invocation, object: object.or(old) };
        let seen = ExpressionInput::of(subject, self.states(&invocation).await?, None, &rights);
        match context.expressions.matches(conditions, &seen).await? {
            ConditionMatch::Yes => {}
            ConditionMatch::No(_) | ConditionMatch::Ignored => return Ok(None),
            ConditionMatch::Failed(why) => {
                let (cluster, configuration, webhook) = (&request.cluster.path, &webhook.configuration, &webhook.name);
                tracing::warn!(%cluster, configuration, webhook, why, "match conditions cannot be evaluated, request is refused");
                return Err(forbidden(request, object, why));
            }
        }
        drop(seen);
        Ok(Some(invocation))
    }

    /// Returns the object states in the version of an invocation.
    ///
    /// # Errors
    /// As [`show_error`].
    async fn states(&mut self, invocation: &Invocation) -> Result<ObjectStates<'a>, Status> {
        let RequestMatcher { object, old, .. } = self.matching;
        let states = self.versions.get(self.matching.view(invocation), object, old).await;
        states.map_err(|why| show_error(why, self.mutates))
    }
}

/// Builds the 500 for a failed conversion, which no failure policy can ignore. kube-apiserver repeats the prefix if the
/// object may change.
fn show_error(why: ShowError, mutates: bool) -> Status {
    match why {
        ShowError::Failed(why) if mutates => Status::internal(Status::internal(why).message()),
        why => why.into(),
    }
}

fn take_permit(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    permit: &mut Option<Permit>,
) -> Result<(), Status> {
    if permit.is_none() {
        let tenant = context.storage.directory.tenant(request.cluster);
        let flow_key = FlowKey { tenant, cluster: request.cluster.id, user: request.user };
        *permit = Some(context.limiter.webhook(&flow_key)?);
    }
    Ok(())
}

impl RequestMatcher<'_> {
    /// Calls one webhook.
    async fn ask(
        &self,
        webhook: &WebhookConfig,
        invocation: &Invocation,
        texts: &EncodedStates,
        mutates: bool,
    ) -> Result<WebhookDecision, WebhookFailure> {
        let Self { context, request, object, old, .. } = *self;
        if request.dry_run && !matches!(webhook.side_effects.as_str(), "None" | "NoneOnDryRun") {
            let why = format!("admission webhook {:?} does not support dry run", webhook.name);
            return Err(WebhookFailure::Refused(Status::bad_request(why)));
        }
        let versions = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        let version = ReviewVersion::of(webhook)
            .ok_or_else(|| WebhookFailure::Calling(format!("could not create admission objects: {versions}")))?;
        let uid = context.storage.seams.uid().to_string();
        let subject = ReviewSubject { request, invocation, object: object.or(old) };
        let question = admission_review::question(version, &uid, subject, texts);
        let call = WebhookRequestBody { timeout: webhook.timeout, review: question };
        let webhooks = &context.conversion.webhooks;
        let posted = webhook.endpoint.post_and_parse(webhooks, request.cluster.id, call, "AdmissionReview");
        let admission_review = posted.await;
        let typed = admission_review.as_ref().map_err(String::clone).and_then(CheckedReview::of);
        let typed = typed.map_err(|why| WebhookFailure::Calling(format!("failed to call webhook: {why}")))?;
        let verdict = admission_review::verdict(version, &uid, mutates, typed)
            .map_err(|why| WebhookFailure::Calling(format!("received invalid webhook response: {why}")))?;
        for (key, text) in &verdict.audit_annotations {
            request.annotate(&format!("{}/{key}", webhook.name), text.as_str().unwrap_or_default());
        }
        verdict.warnings.iter().for_each(|warning| request.warn(warning.clone()));
        if verdict.allowed {
            Ok(verdict)
        } else {
            Err(WebhookFailure::Denied(admission_review::refusal(&webhook.name, &verdict.result)))
        }
    }
}
