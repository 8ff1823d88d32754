//! Objects and requests in the form that webhooks and policies see.

use std::{ops::Deref, sync::Arc};

use portolan_merge::scale;
use portolan_strategy::rbac::User;
use portolan_types::{GroupVersionKind, GroupVersionResource, Status};
use serde_json::{Map, Value, json};

use super::matching::{Invocation, kind_of, namespace_of, resource_of};
use crate::conversion::{ConversionContext, KindPair};
use crate::hooks::{AdmissionOptions, AdmissionRequest, Operation};

const NOTHING: &Value = &Value::Null;

/// State of an object, as stored or converted.
#[derive(Clone)]
pub(super) enum ObjectState<'a> {
    AsIs(&'a Value),
    Converted(Arc<Value>),
}

impl Deref for ObjectState<'_> {
    type Target = Value;

    fn deref(&self) -> &Value {
        match self {
            Self::AsIs(state) => state,
            Self::Converted(state) => state,
        }
    }
}

/// Object and old object as a webhook or a policy sees them; null if absent.
#[derive(Clone)]
pub(super) struct ObjectStates<'a> {
    pub(super) object: ObjectState<'a>,
    pub(super) old: ObjectState<'a>,
}

/// Reason why a request cannot be shown to a webhook or a policy.
pub(super) enum ShowError {
    /// Too many conversions are under way. The request fails, so that none is skipped.
    Busy(Status),
    /// The conversion failed.
    Failed(String),
}

impl From<Status> for ShowError {
    fn from(status: Status) -> Self {
        match status.code() {
            429 => Self::Busy(status),
            _ => Self::Failed(status.message().to_owned()),
        }
    }
}

impl From<ShowError> for Status {
    fn from(show_error: ShowError) -> Self {
        match show_error {
            ShowError::Busy(status) => status,
            ShowError::Failed(why) => Self::internal(why),
        }
    }
}

/// Object states in all versions that were requested, each converted once.
#[derive(Default)]
pub(super) struct ConvertedStates {
    object: ConversionList,
    old: ConversionList,
}

type ConversionList = Vec<(GroupVersionKind, Arc<Value>)>;

impl ConvertedStates {
    /// Returns the object and old object as `view` shows them.
    ///
    /// # Errors
    /// Failed conversion.
    pub(super) async fn get<'a>(
        &mut self,
        view: RequestView<'_>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> Result<ObjectStates<'a>, ShowError> {
        let object = view.state(object, &mut self.object).await?;
        let old = view.state(old, &mut self.old).await?;
        Ok(ObjectStates { object, old })
    }

    /// Invalidates the conversions of the object after a change.
    pub(super) fn object_changed(&mut self) {
        self.object.clear();
    }
}

/// Request in the form of one invocation.
#[derive(Clone, Copy)]
pub(super) struct RequestView<'a> {
    pub(super) conversion: &'a ConversionContext,
    pub(super) request: &'a AdmissionRequest<'a>,
    pub(super) invocation: &'a Invocation,
}

impl RequestView<'_> {
    async fn state<'o>(
        &self,
        state: Option<&'o Value>,
        known: &mut ConversionList,
    ) -> Result<ObjectState<'o>, ShowError> {
        let Self { request, invocation, .. } = *self;
        let Some(state) = state else { return Ok(ObjectState::AsIs(NOTHING)) };
        if invocation.other.is_none() && request.subresource != "scale" {
            return Ok(ObjectState::AsIs(state));
        }
        if let Some((_, known)) = known.iter().find(|(kind, _)| *kind == invocation.kind) {
            return Ok(ObjectState::Converted(known.clone()));
        }
        let made = Arc::new(self.converted(state).await?);
        known.push((invocation.kind.clone(), made.clone()));
        Ok(ObjectState::Converted(made))
    }

    /// Converts the object for the invocation: to its version, or to a Scale.
    ///
    /// # Errors
    /// An object that cannot be scaled or converted.
    pub(super) async fn converted(&self, object: &Value) -> Result<Value, Status> {
        let Self { conversion, request, invocation } = *self;
        if request.subresource == "scale" {
            return scale::scale_of(request.kind, object);
        }
        let Some(other) = &invocation.other else { return Ok(object.clone()) };
        let kinds = KindPair { from: request.kind, to: other };
        conversion.as_kind(request.cluster.id, request.table, kinds, object.clone()).await
    }

    /// Converts a changed object back to that of the request.
    ///
    /// # Errors
    /// An object that is not a Scale or cannot be converted.
    pub(super) async fn converted_back(&self, object: &Value, seen: Value) -> Result<Value, Status> {
        let Self { conversion, request, invocation } = *self;
        if request.subresource == "scale" {
            return scale::with_scale(request.kind, object, seen);
        }
        let Some(other) = &invocation.other else { return Ok(seen) };
        let kinds = KindPair { from: other, to: request.kind };
        conversion.as_kind(request.cluster.id, request.table, kinds, seen).await
    }
}

/// Builds the `request` of an AdmissionReview without its objects.
pub(super) fn request(request: &AdmissionRequest<'_>, invocation: &Invocation, object: Option<&Value>) -> Value {
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

fn options(request: &AdmissionRequest<'_>) -> Value {
    let kind = match (request.operation, request.options) {
        (_, AdmissionOptions::Nothing) | (Operation::Connect, _) => return Value::Null,
        (Operation::Create, _) => "CreateOptions",
        (Operation::Update, _) => "UpdateOptions",
        (Operation::Delete, _) => "DeleteOptions",
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if request.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    match request.options {
        AdmissionOptions::Nothing => {}
        AdmissionOptions::Write { manager, validation } => {
            for (key, text) in [("fieldManager", manager), ("fieldValidation", validation)] {
                if !text.is_empty() {
                    options[key] = text.into();
                }
            }
        }
        AdmissionOptions::Delete(deletion) => {
            if let Some(seconds) = deletion.grace_period_seconds {
                options["gracePeriodSeconds"] = seconds.into();
            }
            if let Some(propagation) = deletion.propagation {
                options["propagationPolicy"] = format!("{propagation:?}").into();
            }
            if let Some(orphan) = deletion.orphan_dependents {
                options["orphanDependents"] = orphan.into();
            }
            for (key, value) in [("uid", &deletion.uid), ("resourceVersion", &deletion.resource_version)] {
                if let Some(value) = value {
                    options["preconditions"][key] = value.as_str().into();
                }
            }
        }
    }
    options
}
