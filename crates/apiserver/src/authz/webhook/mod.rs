//! Chain of authorizers: webhooks before and after the roles of the logical cluster, as kube-apiserver's structured
//! authorization has it.

mod config;

use std::path::Path;

use parking_lot::Mutex;
use portolan_cel::{CelType, Environment, Expression, ExpressionAnswer, ExpressionVariables, PER_CALL_LIMIT};
use portolan_strategy::rbac::User;
use portolan_types::{BoxFuture, LogicalClusterId, Status};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    config::ConfigError,
    fair_cache::{CacheOwner, FairCache},
    routing::attributes::Attributes,
    webhooks::ConfiguredWebhook,
};

use super::AuthorizationDecision;
use config::{ConfiguredAuthorizer, WebhookSettings};

/// Limit of remembered answers of one webhook, which tenants share.
const MAX_REMEMBERED: usize = 8192;
/// Extra key with the logical cluster of a review, as in kcp.
const CLUSTER: &str = "authorization.kubernetes.io/cluster-name";

/// Authorizers in the order of their decisions. The first one with an opinion decides.
pub(crate) struct AuthorizerChain {
    before: Vec<WebhookAuthorizer>,
    uses_roles: bool,
    after: Vec<WebhookAuthorizer>,
}

struct WebhookAuthorizer {
    settings: WebhookSettings,
    webhook: ConfiguredWebhook,
    conditions: Vec<Expression>,
    remembered: Mutex<FairCache<[u8; 32], RememberedAnswer>>,
}

#[derive(Clone)]
struct RememberedAnswer {
    until: Instant,
    decision: Option<AuthorizationDecision>,
}

#[derive(Deserialize)]
struct ReviewAnswer {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

impl AuthorizerChain {
    /// Reads an `AuthorizationConfiguration`.
    ///
    /// # Errors
    /// Files that cannot be read, faults of the configuration, and expressions that do not compile.
    pub(crate) fn open(path: &Path) -> Result<Self, ConfigError> {
        let mut chain = Self { before: Vec::new(), uses_roles: false, after: Vec::new() };
        for authorizer in config::read(path)? {
            match authorizer {
                ConfiguredAuthorizer::Rbac => chain.uses_roles = true,
                ConfiguredAuthorizer::Webhook(settings) => {
                    let wrong = |what| ConfigError::Content { path: path.to_owned(), what };
                    let webhook = WebhookAuthorizer::open(settings, wrong)?;
                    if chain.uses_roles { chain.after.push(webhook) } else { chain.before.push(webhook) }
                }
            }
        }
        Ok(chain)
    }

    /// Decides on a request; `roles` is the decision by the roles of the logical cluster, made if it is needed.
    ///
    /// # Errors
    /// Failure to read the roles.
    pub(crate) async fn decide(
        &self,
        request: AuthorizedSubject<'_>,
        roles: BoxFuture<'_, Result<AuthorizationDecision, Status>>,
    ) -> Result<AuthorizationDecision, Status> {
        let spec = request.review_spec();
        for webhook in &self.before {
            if let Some(decision) = webhook.decide(&spec, request.owner()).await {
                return Ok(decision);
            }
        }
        let decided = if self.uses_roles { roles.await? } else { AuthorizationDecision::Denied(String::new()) };
        if decided.is_allowed() {
            return Ok(decided);
        }
        for webhook in &self.after {
            if let Some(decision) = webhook.decide(&spec, request.owner()).await {
                return Ok(decision);
            }
        }
        Ok(decided)
    }
}

/// Request that is decided on.
#[derive(Clone, Copy)]
pub(crate) struct AuthorizedSubject<'a> {
    pub(crate) cluster: LogicalClusterId,
    /// Workspace below root that contains the logical cluster, or is it.
    pub(crate) tenant: LogicalClusterId,
    pub(crate) user: &'a User,
    pub(crate) attributes: &'a Attributes,
}

impl AuthorizedSubject<'_> {
    /// Returns the owner of the answer among the remembered ones: the tenant, and in root, which all users share, the
    /// user.
    fn owner(&self) -> CacheOwner {
        match self.tenant {
            LogicalClusterId::ROOT => CacheOwner::of(&self.user.name),
            tenant => CacheOwner::of(&tenant),
        }
    }

    /// Returns the `spec` of a SubjectAccessReview.
    fn review_spec(&self) -> Value {
        let User { name, uid, groups, extra } = self.user;
        let mut extra = extra.clone();
        extra.insert(CLUSTER.into(), vec![self.cluster.to_string()]);
        let of = self.attributes;
        let given = |fields: &[(&str, &str)]| {
            let fields = fields.iter().filter(|(_, value)| !value.is_empty());
            Value::Object(fields.map(|(field, value)| ((*field).to_owned(), (*value).into())).collect::<Map<_, _>>())
        };
        let mut spec = json!({"user": name, "groups": groups, "extra": extra});
        if !uid.is_empty() {
            spec["uid"] = uid.as_str().into();
        }
        if of.is_resource() {
            spec["resourceAttributes"] = given(&[
                ("namespace", &of.namespace),
                ("verb", &of.verb),
                ("group", &of.group),
                ("version", &of.version),
                ("resource", &of.resource),
                ("subresource", &of.subresource),
                ("name", &of.name),
            ]);
        } else {
            spec["nonResourceAttributes"] = given(&[("path", &of.path), ("verb", &of.verb)]);
        }
        spec
    }
}

impl WebhookAuthorizer {
    fn open(settings: WebhookSettings, wrong: impl Fn(String) -> ConfigError) -> Result<Self, ConfigError> {
        let variable = ("request".into(), CelType::map(CelType::String, CelType::Dyn));
        let environment = Environment { variables: [variable].into(), ..Environment::default() };
        let compile = |(at, text): (usize, &String)| {
            let place = format!("{}: matchConditions[{at}].expression", settings.name);
            let compiled = Expression::compile(text, &environment);
            let compiled = compiled.map_err(|why| wrong(format!("{place}: compilation failed: {why}")))?;
            match compiled.output() {
                CelType::Bool | CelType::Dyn | CelType::Any => Ok(compiled),
                _ => Err(wrong(format!("{place}: must evaluate to bool"))),
            }
        };
        let conditions = settings.conditions.iter().enumerate().map(compile).collect::<Result<Vec<_>, _>>()?;
        let webhook = ConfiguredWebhook::open(&settings.kubeconfig)?;
        Ok(Self { settings, webhook, conditions, remembered: Mutex::new(FairCache::new(MAX_REMEMBERED)) })
    }

    /// Returns the decision; `None` without an opinion.
    async fn decide(&self, spec: &Value, owner: CacheOwner) -> Option<AuthorizationDecision> {
        match self.is_concerned(spec) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(why) => return self.failed(&why),
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec,
        });
        let body = review.to_string();
        let hash: [u8; 32] = Sha256::digest(body.as_bytes()).into();
        if let Some(known) = self.remembered.lock().get(&hash)
            && Instant::now() < known.until
        {
            return known.decision.clone();
        }
        let answer = match self.webhook.post(body.into(), self.settings.timeout).await {
            Ok(answer) => answer,
            Err(error) => return self.failed(&error.to_string()),
        };
        let Ok(ReviewAnswer { status }) = serde_json::from_slice(&answer) else {
            return self.failed("the answer is not a SubjectAccessReview");
        };
        let ReviewStatus { allowed, denied, reason } = status;
        let decision = match (allowed, denied) {
            (true, true) => return self.failed("the answer both allows and denies the request"),
            (true, false) => Some(AuthorizationDecision::Allowed(reason)),
            (false, true) => Some(AuthorizationDecision::Denied(reason)),
            (false, false) => None,
        };
        let time = if allowed { self.settings.authorized_ttl } else { self.settings.unauthorized_ttl };
        if !time.is_zero() {
            let answer = RememberedAnswer { until: Instant::now() + time, decision: decision.clone() };
            self.remembered.lock().insert(owner, hash, answer);
        }
        decision
    }

    /// Returns true if all match conditions are true. As in kube-apiserver, a false one outweighs an error.
    fn is_concerned(&self, spec: &Value) -> Result<bool, String> {
        let data = [("request", spec)];
        let variables = ExpressionVariables { data: &data, ..ExpressionVariables::default() };
        let mut failure = None;
        for condition in &self.conditions {
            match condition.evaluate(&variables, PER_CALL_LIMIT).answer {
                Ok(ExpressionAnswer::Bool(true)) => {}
                Ok(ExpressionAnswer::Bool(false)) => return Ok(false),
                Ok(_) => failure = Some("a match condition did not evaluate to a bool".to_owned()),
                Err(error) => failure = Some(error.message),
            }
        }
        failure.map_or(Ok(true), Err)
    }

    fn failed(&self, why: &str) -> Option<AuthorizationDecision> {
        tracing::warn!(authorizer = self.settings.name, why, "an authorization webhook failed");
        let denial = || AuthorizationDecision::Denied(format!("authorizer {:?} failed", self.settings.name));
        self.settings.denies_on_failure.then(denial)
    }
}
