//! PUT of an object or of a subresource that is a part of it.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{apply::Conversions, lifecycle};
use portolan_types::{BoxFuture, NamespaceName, ObjectKey, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    attributes::Attributes,
    authz::{Authorizer as _, Verdict},
    call::{Call, Target},
    encode::Shape,
    objects::{Put, Writer},
    options::WriteOptions,
};

use super::body;

pub(super) async fn replace(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    subresource: Option<&str>,
) -> Result<Response<Body>, Status> {
    let options = WriteOptions::of(call)?;
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let decode = |old: Option<&Value>| decoded(call, target, &options, old);
    let writer = Writer { api, call, target, options: &options, applied: false, conversions: Conversions::default() };
    let key = target.key(call, &call.captures.name)?;
    let allowed = || -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(async {
            // A body of no sense is told before that there is nothing to replace.
            let new = decode(None)?;
            if !lifecycle::creates_on_update(&target.kind, subresource) {
                return Err(Status::not_found(&target.resource(), &key.name));
            }
            match object::meta_text(&new, "uid") {
                "" => may_create(api, call).await,
                uid => Err(lifecycle::uid_conflict(&target.kind, &nothing(&key), uid)),
            }
        })
    };
    let put = Put { may_create: &allowed, fresh: &|| decode(None), changed: &|old| decode(Some(old)) };
    let (code, written) = writer.put(&key, subresource, &put).await?;
    body::changed(api, call, &shape, code, written)
}

/// What stands where there is no object: nothing but the name.
fn nothing(key: &ObjectKey) -> Value {
    let namespace = key.namespace().map(NamespaceName::as_str).unwrap_or_default();
    json!({"metadata": {"name": key.name.as_str(), "namespace": namespace}})
}

/// The object in the body, which must be the one of the URL.
fn decoded(call: &Call, target: &Target, options: &WriteOptions, old: Option<&Value>) -> Result<Value, Status> {
    let mut new = body::decode(call, target, options.validation, old)?;
    lifecycle::match_namespace(&target.kind, &mut new, target.namespace.as_deref())?;
    let (name, wanted) = (object::name(&new), call.captures.name.as_str());
    check_name(name, wanted)?;
    Ok(new)
}

/// The name of what is sent, which must be that of the URL.
///
/// # Errors
/// 400 when it is another one, or none.
pub(super) fn check_name(name: &str, wanted: &str) -> Result<(), Status> {
    match name {
        "" => Err(nameless(wanted)),
        _ if name == wanted => Ok(()),
        _ => {
            let why = format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
            Err(Status::bad_request(why))
        }
    }
}

/// What is said of an object without the name that the URL has.
pub(super) fn nameless(wanted: &str) -> Status {
    Status::bad_request(format!(
        "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
    ))
}

/// An update that creates needs the right to create, too.
pub(super) async fn may_create(api: &ApiServer, call: &Call) -> Result<(), Status> {
    let asked = Attributes { verb: "create".into(), ..Attributes::clone(&call.attributes) };
    match api.rbac.authorize(call.cluster.id, &call.identity.user, &asked).await? {
        Verdict::Allowed(_) => Ok(()),
        Verdict::Denied(why) => Err(asked.denial(&call.identity.user, &why)),
    }
}
