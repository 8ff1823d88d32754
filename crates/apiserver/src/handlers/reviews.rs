//! Create-only resources, which are answered and never stored.

use std::sync::Arc;

use http::Response;
use portolan_merge::{
    apply::{self, Conversions, UpdateRequest},
    patch,
};
use portolan_strategy::{lifecycle, rbac::User};
use portolan_types::{GroupKind, Seams, Status, object, quoted::go_quoted};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    accessible::{self, AccessCaller},
    authn::{Authenticator, user_info},
    authz::{AuthorizationDecision, AuthorizationSubject, RbacAuthorizer},
    encode::{self, ResponseShape},
    hooks::{Hooks, Operation},
    options::WriteOptions,
    request::{AdmittedOperation, CreateOnly, RequestContext, ResourceTarget, method_not_allowed},
    routing::attributes::Attributes,
};

use super::{body, credentials, invalid, selectors};

/// Answers a create-only resource.
pub(super) async fn answer(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    review: CreateOnly,
) -> Result<Response<Body>, Status> {
    if target.kind.namespaced && target.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let options = WriteOptions::of(call)?;
    let mut object = body::decode(call, target, options.validation, None)?;
    if target.kind.is_kubernetes() {
        lifecycle::match_namespace(&target.kind, &mut object, target.namespace.as_deref())?;
        let now = api.seams().now_text();
        let (manager, conversions) = (&*options.manager, Conversions::default());
        let request = UpdateRequest { old: None, manager, subresource: None, now: &now, conversions: &conversions };
        apply::track_update(&target.table, &target.kind, &request, &mut object)?;
    }
    let operation = Operation::Create;
    let admitted = AdmittedOperation { operation, name: "", subresource: "", dry_run: options.dry_run };
    let request = call.admission_request(target, admitted);
    api.writes.admission.admit_unstored(&request, &mut object).await?;
    let object = match review {
        CreateOnly::AccessReview { names_user } => {
            check_access(target, &object, names_user)?;
            let user = names_user.then(|| reviewed_user(&object));
            Box::pin(access(&api.access.rbac, call, object, user.as_ref())).await?
        }
        CreateOnly::SelfRules => Box::pin(rules(&api.access.rbac, call, object)).await?,
        CreateOnly::SelfSubject => self_subject(api.seams(), call, &object),
        CreateOnly::TokenReview => Box::pin(token(&api.access.authenticator, call, object)).await?,
        CreateOnly::ClusterAccess => {
            let caller = AccessCaller {
                access: &api.access,
                identity: &call.identity,
                seams: api.seams(),
                secret: &api.reads.continue_key,
            };
            Box::pin(accessible::answer(&caller, target, object)).await?
        }
        CreateOnly::TokenCredential => Box::pin(credentials::answer(api, call, object)).await?,
        CreateOnly::Binding | CreateOnly::Hooks => hook_review(&api.config.hooks, call, target, object).await?,
    };
    encode::value(&shape, 201, object)
}

async fn hook_review(
    hooks: &Hooks,
    call: &RequestContext,
    target: &ResourceTarget,
    mut object: Value,
) -> Result<Value, Status> {
    // The request was authorized for the namespace of its URL, so the review must be about that namespace.
    lifecycle::match_namespace(&target.kind, &mut object, target.namespace.as_deref())?;
    let caller = call.identity.requester();
    for reviews in &hooks.reviews {
        if let Some(answer) = reviews.review(&call.cluster, &target.kind, object.clone(), caller) {
            return answer.await;
        }
    }
    Err(method_not_allowed())
}

/// User that a review names.
struct ReviewedSubject<'a>(&'a User);

impl AuthorizationSubject for ReviewedSubject<'_> {
    fn user(&self) -> &User {
        self.0
    }

    fn is_impersonated(&self) -> bool {
        false
    }
}

fn spec<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get("spec")?.get(key).filter(|v| !v.is_null())
}

fn text<'a>(value: Option<&'a Value>, key: &str) -> &'a str {
    value.and_then(|v| v.get(key)).and_then(Value::as_str).unwrap_or_default()
}

fn strings(value: Option<&Value>) -> Vec<String> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the user that a review names.
fn reviewed_user(object: &Value) -> User {
    let extra = spec(object, "extra").and_then(Value::as_object).into_iter().flatten();
    User {
        name: text(object.get("spec"), "user").to_owned(),
        uid: text(object.get("spec"), "uid").to_owned(),
        groups: strings(spec(object, "groups")),
        extra: extra.map(|(key, values)| (key.clone(), strings(Some(values)))).collect(),
    }
}

/// Validates a question about access; `names_user` is true if it must name a user or group.
fn check_access(target: &ResourceTarget, object: &Value, names_user: bool) -> Result<(), Status> {
    // kube-apiserver's message omits the kind.
    let kind = GroupKind { group: target.kind.gvk.group.clone(), kind: "".into() };
    let mut causes = Vec::new();
    let (resource, path) = (spec(object, "resourceAttributes"), spec(object, "nonResourceAttributes"));
    match (resource, path) {
        (Some(_), Some(path)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            causes.push(invalid("spec.nonResourceAttributes", &printed_path(path), why));
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.push(invalid("spec.resourceAttributes", "null", why));
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    let named = !text(object.get("spec"), "user").is_empty() || spec(object, "groups").is_some();
    if names_user && !named {
        causes.push(invalid("spec.user", "\"\"", "at least one of user or group must be specified"));
    }
    for kind in ["fieldSelector", "labelSelector"] {
        causes.extend(
            resource.and_then(|resource| resource.get(kind)).map(|s| selectors::check(kind, s)).unwrap_or_default(),
        );
    }
    let is_local = target.namespace.is_some();
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    let is_said = |(key, value): (&String, &Value)| {
        !value.is_null() && key != "managedFields" && !(is_local && key == "namespace")
    };
    if metadata.as_object().is_some_and(|fields| fields.iter().any(is_said)) {
        let why = if is_local { "must be empty except for namespace" } else { "must be empty" };
        causes.push(invalid(
            "metadata",
            &patch::in_go_order(&target.table, "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", metadata),
            why,
        ));
    }
    if let Some(namespace) = &target.namespace {
        let asked = text(resource, "namespace");
        if resource.is_some() && asked != namespace.as_str() {
            causes.push(invalid(
                "spec.resourceAttributes.namespace",
                &go_quoted(asked),
                "must match metadata.namespace",
            ));
        }
        if let Some(path) = path {
            causes.push(invalid(
                "spec.nonResourceAttributes",
                &printed_path(path),
                "disallowed on this kind of request",
            ));
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, "", causes)) }
}

/// Prints the attributes of a path as kube-apiserver's internal type.
fn printed_path(path: &Value) -> String {
    json!({"Path": text(Some(path), "path"), "Verb": text(Some(path), "verb")}).to_string()
}

/// Answers if `user`, or the caller, has access.
async fn access(
    rbac: &RbacAuthorizer,
    call: &RequestContext,
    mut object: Value,
    user: Option<&User>,
) -> Result<Value, Status> {
    let (resource, path) = (spec(&object, "resourceAttributes"), spec(&object, "nonResourceAttributes"));
    let asked = match resource {
        Some(_) => Attributes {
            verb: text(resource, "verb").into(),
            group: text(resource, "group").into(),
            version: text(resource, "version").into(),
            resource: text(resource, "resource").into(),
            subresource: text(resource, "subresource").into(),
            namespace: text(resource, "namespace").into(),
            name: text(resource, "name").into(),
            ..Attributes::default()
        },
        None => Attributes::of_path(text(path, "verb"), text(path, "path")),
    };
    let evaluation_error = resource.and_then(selectors::evaluation_error);
    let verdict = match user {
        Some(user) => rbac.authorize_identity(call.cluster.id, &ReviewedSubject(user), &asked).await?,
        None => rbac.authorize_identity(call.cluster.id, &call.identity, &asked).await?,
    };
    let (AuthorizationDecision::Allowed(why) | AuthorizationDecision::Denied(why)) = &verdict;
    let mut status = json!({"allowed": verdict.is_allowed()});
    for (key, text) in [("reason", why.as_str()), ("evaluationError", evaluation_error.as_deref().unwrap_or_default())]
    {
        if !text.is_empty() {
            status[key] = text.into();
        }
    }
    object["status"] = status;
    object::metadata_mut(&mut object);
    Ok(object)
}

async fn rules(rbac: &RbacAuthorizer, call: &RequestContext, object: Value) -> Result<Value, Status> {
    let namespace = text(object.get("spec"), "namespace").to_owned();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let held = rbac.rules_of_identity(call.cluster.id, &call.identity, &namespace).await?;
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in held {
        let value = serde_json::to_value(&rule).map_err(Status::internal)?;
        if rule.non_resource_urls.is_empty() { resources.push(value) } else { paths.push(value) }
    }
    // A new object: kube-apiserver does not return the question.
    let status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    let key = |name: &str| object.get(name).cloned().unwrap_or_default();
    Ok(json!({"kind": key("kind"), "apiVersion": key("apiVersion"), "metadata": {}, "spec": {}, "status": status}))
}

/// Returns a new object, because kube-apiserver does not return the request.
fn self_subject(seams: &Seams, call: &RequestContext, object: &Value) -> Value {
    let key = |name: &str| object.get(name).cloned().unwrap_or_default();
    let metadata = json!({"creationTimestamp": seams.now_text()});
    let status = json!({"userInfo": user_info(&call.identity.user)});
    json!({"kind": key("kind"), "apiVersion": key("apiVersion"), "metadata": metadata, "status": status})
}

/// Answers a TokenReview. A bad token is an answer, not a failure.
async fn token(authenticator: &Authenticator, call: &RequestContext, mut object: Value) -> Result<Value, Status> {
    let (token, audiences) = (text(object.get("spec"), "token").to_owned(), strings(spec(&object, "audiences")));
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let found = match authenticator.token(&token, &audiences).await {
        Ok(found) => Some(found),
        Err(_) => authenticator.reviewed_in(call.cluster.id, &token, &audiences).await,
    };
    let here = found.filter(|(identity, _)| identity.home.is_none_or(|home| home == call.cluster.id));
    object["status"] = match here {
        Some((identity, audiences)) => {
            let mut status = json!({"authenticated": true, "user": user_info(&identity.user)});
            if !audiences.is_empty() {
                status["audiences"] = json!(audiences);
            }
            status
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    };
    object::metadata_mut(&mut object);
    Ok(object)
}
