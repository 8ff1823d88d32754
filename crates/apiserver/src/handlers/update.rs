//! PUT of an object or of a subresource that is part of it.

use std::sync::Arc;

use http::Response;
use portolan_merge::apply::Conversions;
use portolan_merge::preconditions;
use portolan_store::DynStore;
use portolan_strategy::lifecycle;
use portolan_types::{BoxFuture, GroupResource, NamespaceName, ObjectKey, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    authz::{AuthorizationDecision, Authorizer as _, RbacAuthorizer, authorize_provider},
    encode::ResponseShape,
    errors::status_for,
    objects::{CreateOrUpdate, ManagerRecording, ObjectChange, ObjectWriter},
    options::WriteOptions,
    request::{RequestContext, ResourceTarget},
    routing::attributes::Attributes,
    views::Answer,
};

use super::body::{self, AnsweredWrite, RequestBody};

pub(super) async fn replace(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    subresource: Option<&str>,
) -> Result<Response<Body>, Status> {
    let options = WriteOptions::of(call)?;
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let decode = |old: Option<&Value>| decoded(call, target, &options, old);
    let writer = ObjectWriter {
        context: &api.writes,
        call,
        target,
        options: &options,
        recording: ManagerRecording::Tracked,
        body: &RequestBody { call, target },
        conversions: Conversions::default(),
    };
    let key = target.key(call, &call.captures.name)?;
    let allowed = || -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(async {
            // A malformed body is reported before a missing object.
            let new = decode(None)?;
            if !lifecycle::creates_on_update(&target.kind, subresource) {
                return Err(Status::not_found(&target.resource(), &key.name));
            }
            match object::meta_text(&new, "uid") {
                "" => authorize_create(&api.access.rbac, &api.storage.store, call).await,
                uid => Err(preconditions::uid_conflict(&target.kind, &empty_object(&key), uid)),
            }
        })
    };
    let change = ObjectChange { key: &key, subresource, make: &|old| decode(Some(old)) };
    let put = CreateOrUpdate { authorize_create: &allowed, fresh: &|| decode(None), change };
    let (code, result) = writer.create_or_update(&put).await?;
    body::write_response(&api.config.hooks, call, &shape, AnsweredWrite { code, result })
}

/// Returns the empty object that a uid precondition is compared with when no object exists.
fn empty_object(key: &ObjectKey) -> Value {
    let namespace = key.namespace().map(NamespaceName::as_str).unwrap_or_default();
    json!({"metadata": {"name": key.name.as_str(), "namespace": namespace}})
}

/// Decodes the body, whose name and namespace must be those of the URL.
fn decoded(
    call: &RequestContext,
    target: &ResourceTarget,
    options: &WriteOptions,
    old: Option<&Value>,
) -> Result<Value, Status> {
    let mut new = body::decode(call, target, options.validation, old)?;
    lifecycle::match_namespace(&target.kind, &mut new, target.namespace.as_deref())?;
    let (name, wanted) = (object::name(&new), call.captures.name.as_str());
    check_name(name, wanted)?;
    Ok(new)
}

/// Checks the name of a sent object against the URL.
///
/// # Errors
/// 400 when it differs or is missing.
pub(super) fn check_name(name: &str, wanted: &str) -> Result<(), Status> {
    match name {
        "" => Err(missing_name(wanted)),
        _ if name == wanted => Ok(()),
        _ => {
            let why = format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
            Err(Status::bad_request(why))
        }
    }
}

/// Returns the 400 for an object without the name that the URL has.
pub(super) fn missing_name(wanted: &str) -> Status {
    Status::bad_request(format!(
        "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
    ))
}

/// Checks the right to create, which an update that creates its object needs too.
pub(super) async fn authorize_create(
    rbac: &RbacAuthorizer,
    store: &DynStore,
    call: &RequestContext,
) -> Result<(), Status> {
    let asked = Attributes { verb: "create".into(), ..Attributes::clone(&call.attributes) };
    if let Some(view) = &call.view {
        authorize_provider(rbac, &view.export.address, call.identity.requester(), &asked).await?;
        let resource = GroupResource::new(asked.group.as_str(), asked.resource.as_str());
        let answer = view.answer(store, Some((&resource, "create"))).await.map_err(|e| status_for(&e))?;
        return match answer {
            Some(Answer::Granted(_)) => Ok(()),
            _ => Err(asked.denial(&call.identity.user, "no APIBinding consents to the verb")),
        };
    }
    match rbac.authorize(call.cluster.id, call.identity.acting_user(), &asked).await? {
        AuthorizationDecision::Allowed(_) => Ok(()),
        AuthorizationDecision::Denied(why) => Err(asked.denial(&call.identity.user, &why)),
    }
}
