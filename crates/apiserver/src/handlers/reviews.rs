//! Create-only resources: answered, never stored.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{
    apply::{self, Conversions, UpdateRequest},
    lifecycle, patch,
    rbac::User,
};
use portolan_types::{GroupKind, Status, object, quoted::go_quoted};
use serde_json::{Map, Value, json};

use crate::{
    ApiServer, Body,
    admission::Operation,
    attributes::Attributes,
    authz::{Authorizer as _, Verdict},
    call::{Call, Target, method_not_allowed},
    encode::{self, Shape},
    options::WriteOptions,
};

use super::{body, invalid, selectors};

pub(super) async fn answer(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    if target.kind.namespaced && target.namespace.is_none() {
        return Err(method_not_allowed());
    }
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = WriteOptions::of(call)?;
    let mut object = body::decode(call, target, options.validation, None)?;
    let group = &*target.kind.gvk.group;
    if target.kind.is_kubernetes() {
        lifecycle::match_namespace(&target.kind, &mut object, target.namespace.as_deref())?;
        let now = api.seams.now_text();
        let (manager, conversions) = (&*options.manager, Conversions::default());
        let request = UpdateRequest { old: None, manager, subresource: None, now: &now, conversions: &conversions };
        apply::track_update(&target.table, &target.kind, &request, &mut object)?;
    }
    let request = call.asks(target, Operation::Create, ("", ""), options.dry_run);
    api.admission.admit_passing(api, &request, &mut object).await?;
    let object = match (group, &*target.kind.resource) {
        ("authorization.k8s.io", "selfsubjectaccessreviews") => {
            check_access(target, &object, false)?;
            access(api, call, object, None).await?
        }
        ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews") => {
            check_access(target, &object, true)?;
            let user = subject(&object);
            access(api, call, object, Some(&user)).await?
        }
        ("authorization.k8s.io", "selfsubjectrulesreviews") => rules(api, call, object).await?,
        ("authentication.k8s.io", "selfsubjectreviews") => myself(api, call, &object),
        ("authentication.k8s.io", "tokenreviews") => token(api, call, object).await?,
        _ => plugged_in(api, call, target, object).await?,
    };
    encode::value(&shape, 201, object)
}

async fn plugged_in(api: &ApiServer, call: &Call, target: &Target, mut object: Value) -> Result<Value, Status> {
    // The request was authorized for the namespace of its URL, so no other may be asked about.
    lifecycle::match_namespace(&target.kind, &mut object, target.namespace.as_deref())?;
    for reviews in &api.config.hooks.reviews {
        if let Some(answer) = reviews.review(&call.cluster, &target.kind, object.clone(), &call.identity.user) {
            return answer.await;
        }
    }
    Err(method_not_allowed())
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

/// The user that a review asks about.
fn subject(object: &Value) -> User {
    let extra = spec(object, "extra").and_then(Value::as_object).into_iter().flatten();
    User {
        name: text(object.get("spec"), "user").to_owned(),
        uid: text(object.get("spec"), "uid").to_owned(),
        groups: strings(spec(object, "groups")),
        extra: extra.map(|(key, values)| (key.clone(), strings(Some(values)))).collect(),
    }
}

/// What a question about access must be; `asks_of_others` says that it names whom it is about.
fn check_access(target: &Target, object: &Value, asks_of_others: bool) -> Result<(), Status> {
    // Upstream's message has lost the kind here.
    let kind = GroupKind { group: target.kind.gvk.group.clone(), kind: "".into() };
    let mut causes = Vec::new();
    let (resource, path) = (spec(object, "resourceAttributes"), spec(object, "nonResourceAttributes"));
    match (resource, path) {
        (Some(_), Some(path)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            causes.push(invalid("spec.nonResourceAttributes", &shown(path), why));
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.push(invalid("spec.resourceAttributes", "null", why));
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    let named = !text(object.get("spec"), "user").is_empty() || spec(object, "groups").is_some();
    if asks_of_others && !named {
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
            causes.push(invalid("spec.nonResourceAttributes", &shown(path), "disallowed on this kind of request"));
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, "", causes)) }
}

/// Attributes of a path as upstream's own type has them.
fn shown(path: &Value) -> String {
    json!({"Path": text(Some(path), "path"), "Verb": text(Some(path), "verb")}).to_string()
}

/// Whether `user`, or whoever asks, may do what the question is about.
async fn access(api: &ApiServer, call: &Call, mut object: Value, user: Option<&User>) -> Result<Value, Status> {
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
    let ignored = resource.and_then(selectors::ignored);
    let verdict = match user {
        Some(user) => api.rbac.authorize(call.cluster.id, user, &asked).await?,
        None => api.rbac.authorize_identity(call.cluster.id, &call.identity, &asked).await?,
    };
    let (Verdict::Allowed(why) | Verdict::Denied(why)) = &verdict;
    let mut status = json!({"allowed": verdict.is_allowed()});
    for (key, text) in [("reason", why.as_str()), ("evaluationError", ignored.as_deref().unwrap_or_default())] {
        if !text.is_empty() {
            status[key] = text.into();
        }
    }
    object["status"] = status;
    object::metadata_mut(&mut object);
    Ok(object)
}

async fn rules(api: &ApiServer, call: &Call, object: Value) -> Result<Value, Status> {
    let namespace = text(object.get("spec"), "namespace").to_owned();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let held = api.rbac.rules_of_identity(call.cluster.id, &call.identity, &namespace).await?;
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in held {
        let value = serde_json::to_value(&rule).map_err(Status::internal)?;
        if rule.non_resource_urls.is_empty() { resources.push(value) } else { paths.push(value) }
    }
    // A new object: upstream does not give the question back.
    let status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    let key = |name: &str| object.get(name).cloned().unwrap_or_default();
    Ok(json!({"kind": key("kind"), "apiVersion": key("apiVersion"), "metadata": {}, "spec": {}, "status": status}))
}

/// A new object: upstream does not give back what was sent.
fn myself(api: &ApiServer, call: &Call, object: &Value) -> Value {
    let key = |name: &str| object.get(name).cloned().unwrap_or_default();
    let metadata = json!({"creationTimestamp": api.seams.now_text()});
    let status = json!({"userInfo": user_info(&call.identity.user)});
    json!({"kind": key("kind"), "apiVersion": key("apiVersion"), "metadata": metadata, "status": status})
}

/// A bad token is an answer, not a failure.
async fn token(api: &ApiServer, call: &Call, mut object: Value) -> Result<Value, Status> {
    let (token, audiences) = (text(object.get("spec"), "token").to_owned(), strings(spec(&object, "audiences")));
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let found = api.authenticator.token(&token, &audiences).await;
    let here = found.ok().filter(|(identity, _)| identity.home.is_none_or(|home| home == call.cluster.id));
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

/// A user as reviews and signing requests show it.
pub(crate) fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    info.insert("username".into(), user.name.as_str().into());
    if !user.uid.is_empty() {
        info.insert("uid".into(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".into(), json!(user.extra));
    }
    Value::Object(info)
}
