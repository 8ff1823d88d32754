//! A request as webhooks and policies see it.

use portolan_machinery::{lifecycle, rbac::User};
use portolan_types::{GroupVersionKind, GroupVersionResource, Status};
use serde_json::{Map, Value, json};

use super::{
    Operation, Request, Sent,
    matching::{Invocation, kind_of, namespace_of, resource_of},
};
use crate::ApiServer;

/// The object as a webhook or a policy sees it: in its version; a scale for what is scaled.
///
/// # Errors
/// When it cannot be scaled, or not be converted.
pub(super) async fn shown(
    api: &ApiServer,
    request: &Request<'_>,
    invocation: &Invocation,
    object: &Value,
) -> Result<Value, Status> {
    if request.subresource == "scale" {
        return lifecycle::scale_of(request.kind, object);
    }
    match &invocation.other {
        None => Ok(object.clone()),
        Some(other) => api.as_kind(request.cluster.id, request.table, (request.kind, other), object.clone()).await,
    }
}

/// The object of the request out of what was made of what was seen.
///
/// # Errors
/// When that is no scale, or cannot be converted.
pub(super) async fn unshown(
    api: &ApiServer,
    request: &Request<'_>,
    invocation: &Invocation,
    object: &Value,
    seen: Value,
) -> Result<Value, Status> {
    if request.subresource == "scale" {
        return lifecycle::with_scale(request.kind, object, seen);
    }
    match &invocation.other {
        None => Ok(seen),
        Some(other) => api.as_kind(request.cluster.id, request.table, (other, request.kind), seen).await,
    }
}

/// The request of an AdmissionReview, without its objects; `object` is the one that it is about.
pub(super) fn request(request: &Request<'_>, invocation: &Invocation, object: Option<&Value>) -> Value {
    let namespace = namespace_of(request, object).to_owned();
    let mut asked = json!({
        "kind": kind(&invocation.kind),
        "resource": resource(&invocation.resource),
        "requestKind": kind(&kind_of(request, request.kind)),
        "requestResource": resource(&resource_of(request.kind)),
        "operation": request.operation.word(),
        "userInfo": user(request.user),
        "dryRun": request.dry_run,
        "options": options(request),
    });
    let texts = [
        ("subResource", request.subresource),
        ("requestSubResource", request.subresource),
        ("name", request.name),
        ("namespace", &namespace),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        asked[key] = text.into();
    }
    asked
}

fn kind(kind: &GroupVersionKind) -> Value {
    json!({"group": *kind.group, "version": *kind.version, "kind": *kind.kind})
}

fn resource(resource: &GroupVersionResource) -> Value {
    json!({"group": *resource.group, "version": *resource.version, "resource": *resource.resource})
}

fn user(user: &User) -> Value {
    let mut info = Map::new();
    for (key, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            info.insert(key.into(), text.as_str().into());
        }
    }
    if !user.groups.is_empty() {
        info.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".into(), json!(user.extra));
    }
    Value::Object(info)
}

fn options(request: &Request<'_>) -> Value {
    let kind = match (request.operation, request.sent) {
        (_, Sent::Nothing) | (Operation::Connect, _) => return Value::Null,
        (Operation::Create, _) => "CreateOptions",
        (Operation::Update, _) => "UpdateOptions",
        (Operation::Delete, _) => "DeleteOptions",
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if request.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    match request.sent {
        Sent::Nothing => {}
        Sent::Write { manager, validation } => {
            for (key, text) in [("fieldManager", manager), ("fieldValidation", validation)] {
                if !text.is_empty() {
                    options[key] = text.into();
                }
            }
        }
        Sent::Delete(sent) => {
            if let Some(seconds) = sent.grace_period_seconds {
                options["gracePeriodSeconds"] = seconds.into();
            }
            if let Some(propagation) = sent.propagation {
                options["propagationPolicy"] = format!("{propagation:?}").into();
            }
            for (key, value) in [("uid", &sent.uid), ("resourceVersion", &sent.resource_version)] {
                if let Some(value) = value {
                    options["preconditions"][key] = value.as_str().into();
                }
            }
        }
    }
    options
}
