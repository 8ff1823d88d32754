//! `SelfClusterAccessReview`: the logical clusters that the caller may enter, a page at a time. The index of subjects
//! finds candidates, and the authorizer decides on each, as it does on a request there.

mod page_token;

use std::time::Duration;

use portolan_types::{LogicalClusterId, Seams, Status, StatusCause};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    authn::{AccessContext, Identity},
    directory::LogicalCluster,
    request::ResourceTarget,
    routing::attributes::Attributes,
};

use page_token::TokenKey;

/// Number of logical clusters in an answer, unless the question has a limit; and the most.
const LIMITS: (usize, usize) = (500, 1000);
/// Logical clusters that one answer decides on, and the time for it: an answer ends then, and can be continued.
const MAX_DECIDED: usize = 2000;
const MAX_TIME: Duration = Duration::from_millis(250);
/// Number of candidates that are looked up at once.
const BATCH: usize = 256;
/// Most verbs of a question.
const MAX_VERBS: usize = 16;
/// Verb and path of entering.
const ENTER: (&str, &str) = ("access", "/");
/// Verbs to check if the review names none.
const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// Question of a review.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AccessQuestion {
    resource_attributes: Option<ResourceQuestion>,
    limit: Option<i64>,
    #[serde(rename = "continue")]
    token: String,
}

/// Verbs on a resource.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourceQuestion {
    namespace: String,
    verbs: Vec<String>,
    group: String,
    resource: String,
    subresource: String,
    name: String,
}

/// Caller of a review.
pub(crate) struct AccessCaller<'a> {
    pub(crate) access: &'a AccessContext,
    pub(crate) identity: &'a Identity,
    pub(crate) seams: &'a Seams,
    /// Secret of the control plane.
    pub(crate) secret: &'a [u8],
}

/// Part of an answer.
struct AccessPage {
    clusters: Vec<Value>,
    /// Last checked logical cluster, unless no more follow.
    next: Option<LogicalClusterId>,
}

/// Answers a review.
///
/// # Errors
/// 422 for an invalid question, 400 for a token of another question, failure to read the roles.
pub(crate) async fn answer(
    caller: &AccessCaller<'_>,
    target: &ResourceTarget,
    mut object: Value,
) -> Result<Value, Status> {
    let spec = object.get("spec").filter(|spec| !spec.is_null()).cloned().unwrap_or_else(|| json!({}));
    let question: AccessQuestion =
        serde_json::from_value(spec).map_err(|error| Status::bad_request(error.to_string()))?;
    let invalid = |causes| Status::invalid(&target.kind.gvk.group_kind(), "", causes);
    let limit = question.check().map_err(invalid)?;
    // A token continues the same question of the same user.
    let about = format!("{}\0{}", caller.identity.user.name, question.about());
    let key = TokenKey::derive(caller.secret);
    let after = match question.token.as_str() {
        "" => LogicalClusterId::new(0),
        token => key.open(token, &about).ok_or_else(|| Status::bad_request("invalid continue token"))?,
    };
    let page = caller.page(&question, after, limit).await?;
    let mut status = json!({"clusters": page.clusters});
    if let Some(next) = page.next {
        status["continue"] = key.seal(next, &about, caller.seams)?.into();
    }
    object["status"] = status;
    portolan_types::object::metadata_mut(&mut object);
    Ok(object)
}

impl AccessQuestion {
    /// Checks the question. Returns the limit of the answer.
    fn check(&self) -> Result<usize, Vec<StatusCause>> {
        let mut causes = Vec::new();
        let limit = self.limit.map_or(Some(LIMITS.0), |limit| usize::try_from(limit).ok());
        let limit = limit.filter(|limit| (1..=LIMITS.1).contains(limit));
        if limit.is_none() {
            let given = self.limit.unwrap_or_default();
            causes.push(invalid("spec.limit", given, &format!("must be between 1 and {}", LIMITS.1)));
        }
        if let Some(asked) = &self.resource_attributes {
            if asked.resource.is_empty() {
                causes.push(StatusCause {
                    reason: "FieldValueRequired".into(),
                    message: "Required value".into(),
                    field: "spec.resourceAttributes.resource".into(),
                });
            }
            if asked.verbs.len() > MAX_VERBS {
                let why = format!("must have at most {MAX_VERBS} items");
                causes.push(invalid("spec.resourceAttributes.verbs", asked.verbs.len() as i64, &why));
            }
        }
        match limit {
            Some(limit) if causes.is_empty() => Ok(limit),
            _ => Err(causes),
        }
    }

    /// Returns the question without its page.
    fn about(&self) -> String {
        let of = |asked: &ResourceQuestion| {
            let ResourceQuestion { namespace, verbs, group, resource, subresource, name } = asked;
            json!([namespace, verbs, group, resource, subresource, name]).to_string()
        };
        self.resource_attributes.as_ref().map(of).unwrap_or_default()
    }

    /// Returns the requests to check, each with its verb.
    fn requested_attributes(&self) -> Vec<Attributes> {
        let Some(of) = &self.resource_attributes else { return Vec::new() };
        let verbs: Vec<&str> =
            if of.verbs.is_empty() { VERBS.to_vec() } else { of.verbs.iter().map(String::as_str).collect() };
        let attributes = |verb: &str| Attributes {
            verb: verb.into(),
            group: of.group.clone(),
            resource: of.resource.clone(),
            subresource: of.subresource.clone(),
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            ..Attributes::default()
        };
        verbs.into_iter().map(attributes).collect()
    }
}

fn invalid(field: &str, value: i64, why: &str) -> StatusCause {
    StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {value}: {why}"),
        field: field.into(),
    }
}

impl AccessCaller<'_> {
    /// Returns the logical clusters after one, in the order of their ids.
    async fn page(
        &self,
        question: &AccessQuestion,
        after: LogicalClusterId,
        limit: usize,
    ) -> Result<AccessPage, Status> {
        let (asked, started) = (question.requested_attributes(), Instant::now());
        let (mut clusters, mut last, mut decided) = (Vec::new(), after, 0);
        loop {
            let batch = self.candidates(last);
            let is_end = batch.len() < BATCH;
            for id in batch {
                last = id;
                decided += 1;
                // A logical cluster that was just deleted is still in the index.
                let Some(cluster) = self.access.directory.by_id(id) else { continue };
                if let Some(verbs) = self.verbs_in(&cluster, &asked).await? {
                    clusters.push(json!({"id": id.to_string(), "path": cluster.path, "verbs": verbs}));
                }
                if clusters.len() == limit || decided == MAX_DECIDED || started.elapsed() >= MAX_TIME {
                    return Ok(AccessPage { clusters, next: Some(last) });
                }
            }
            if is_end {
                return Ok(AccessPage { clusters, next: None });
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns the first logical clusters after one in which the caller may have rights, at most [`BATCH`].
    fn candidates(&self, after: LogicalClusterId) -> Vec<LogicalClusterId> {
        if let Some(home) = self.identity.home {
            return [home].into_iter().filter(|home| *home > after).collect();
        }
        let known = self.access.rbac.candidates(self.identity, after, BATCH);
        known.unwrap_or_else(|| self.access.directory.following(after, BATCH))
    }

    /// Returns the verbs of the review that the caller has in a logical cluster; `None` if it may not enter, or has
    /// none of them.
    async fn verbs_in(&self, cluster: &LogicalCluster, asked: &[Attributes]) -> Result<Option<Vec<String>>, Status> {
        let (verb, path) = ENTER;
        if cluster.is_inactive() || !self.may(cluster, &Attributes::of_path(verb, path)).await? {
            return Ok(None);
        }
        if asked.is_empty() {
            return Ok(Some(vec![verb.to_owned()]));
        }
        let mut verbs = Vec::new();
        for attributes in asked {
            if self.may(cluster, attributes).await? {
                verbs.push(attributes.verb.clone());
            }
        }
        Ok((!verbs.is_empty()).then_some(verbs))
    }

    async fn may(&self, cluster: &LogicalCluster, attributes: &Attributes) -> Result<bool, Status> {
        let decision = self.access.rbac.authorize_identity(cluster.id, self.identity, attributes).await?;
        Ok(decision.is_allowed())
    }
}
