//! A request as webhooks and policies see it.

use std::{ops::Deref, sync::Arc};

use portolan_machinery::{lifecycle, rbac::User};
use portolan_types::{GroupVersionKind, GroupVersionResource, Status};
use serde_json::{Map, Value, json};

use super::{
    Operation, Request, Sent,
    matching::{Invocation, kind_of, namespace_of, resource_of},
};
use crate::ApiServer;

const NOTHING: &Value = &Value::Null;

/// A state of an object, as it is or converted.
#[derive(Clone)]
pub(super) enum State<'a> {
    AsIs(&'a Value),
    Converted(Arc<Value>),
}

impl Deref for State<'_> {
    type Target = Value;

    fn deref(&self) -> &Value {
        match self {
            Self::AsIs(state) => state,
            Self::Converted(state) => state,
        }
    }
}

/// The states of an object as a webhook or a policy sees them; null where there is none.
#[derive(Clone)]
pub(super) struct States<'a> {
    pub(super) object: State<'a>,
    pub(super) old: State<'a>,
}

/// Why a request cannot be put before a webhook or a policy.
pub(super) enum Unfit {
    /// Too much is being converted for now. Nobody gets past what would have been asked for that.
    Busy(Status),
    /// It cannot be converted.
    Failed(String),
}

impl From<Status> for Unfit {
    fn from(status: Status) -> Self {
        match status.code() {
            429 => Self::Busy(status),
            _ => Self::Failed(status.message().to_owned()),
        }
    }
}

impl From<Unfit> for Status {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Busy(status) => status,
            Unfit::Failed(why) => Self::internal(why),
        }
    }
}

/// The states of an object in all versions in which they are wanted, each of which is made once.
#[derive(Default)]
pub(super) struct Versions {
    object: Conversions,
    old: Conversions,
}

type Conversions = Vec<(GroupVersionKind, Arc<Value>)>;

impl Versions {
    /// An object and its old state, as an invocation wants them.
    ///
    /// # Errors
    /// When they cannot be shown like that.
    pub(super) async fn get<'a>(
        &mut self,
        api: &ApiServer,
        request: &Request<'_>,
        invocation: &Invocation,
        (object, old): (Option<&'a Value>, Option<&'a Value>),
    ) -> Result<States<'a>, Unfit> {
        let object = as_wanted(api, request, invocation, object, &mut self.object).await?;
        let old = as_wanted(api, request, invocation, old, &mut self.old).await?;
        Ok(States { object, old })
    }

    /// The object is another from now on.
    pub(super) fn object_changed(&mut self) {
        self.object.clear();
    }
}

async fn as_wanted<'a>(
    api: &ApiServer,
    request: &Request<'_>,
    invocation: &Invocation,
    state: Option<&'a Value>,
    known: &mut Conversions,
) -> Result<State<'a>, Unfit> {
    let Some(state) = state else { return Ok(State::AsIs(NOTHING)) };
    if invocation.other.is_none() && request.subresource != "scale" {
        return Ok(State::AsIs(state));
    }
    if let Some((_, known)) = known.iter().find(|(kind, _)| *kind == invocation.kind) {
        return Ok(State::Converted(known.clone()));
    }
    let made = Arc::new(shown(api, request, invocation, state).await?);
    known.push((invocation.kind.clone(), made.clone()));
    Ok(State::Converted(made))
}

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
            if let Some(orphan) = sent.orphan_dependents {
                options["orphanDependents"] = orphan.into();
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
