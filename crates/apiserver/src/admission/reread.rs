//! Reading again what webhooks and policies have made of an object.

use std::borrow::Cow;

use portolan_machinery::{
    decode::{self, FieldValidation},
    defaults,
    kinds::Kind,
};
use portolan_types::{GroupVersionKind, Reason, Status, json_patch::json_len};
use serde_json::Value;

use super::{
    Request,
    matching::{Invocation, changed_as},
    review,
};
use crate::ApiServer;

/// Most bytes of an object that webhooks and policies have changed. Each may add as much as one patch; all of them together could
/// add thousands of times that.
const MAX_CHANGED_BYTES: usize = 3 * 1024 * 1024;

/// The object of the request out of what was made of what was seen: in canonical form, complete, and in its own version. It
/// is read as what it says that it is.
///
/// # Errors
/// An object that cannot be read, converted, or be an object of the request; 413 when it has grown beyond 3 MiB.
pub(super) async fn reread(
    api: &ApiServer,
    request: &Request<'_>,
    invocation: &Invocation,
    (object, mut seen): (&Value, Value),
    validation: FieldValidation,
) -> Result<Value, Status> {
    if json_len(&seen) > MAX_CHANGED_BYTES {
        return Err(Status::too_large(format!("limit is {MAX_CHANGED_BYTES}")));
    }
    // What a custom resource says that it is is checked where it is stored.
    if request.subresource == "scale" || request.table.conversion().is_some() {
        let mut changed = review::unshown(api, request, invocation, object, seen).await?;
        if let Some(kind) = changed_as(request) {
            complete(request, &kind, &mut changed, validation)?;
        }
        return Ok(changed);
    }
    let own = changed_as(request);
    let expected = match &invocation.other {
        Some(other) => Some(&**other),
        None => own.as_deref(),
    };
    let Some(expected) = expected else { return Ok(seen) };
    let said = decode::said_type(&expected.gvk, &seen).map_err(Status::internal)?;
    let kind = if said == expected.gvk { Cow::Borrowed(expected) } else { registered(request, &said)? };
    complete(request, &kind, &mut seen, validation)?;
    if kind.gvk == expected.gvk && invocation.other.is_none() {
        return Ok(seen);
    }
    if kind.storage.group_resource() != expected.storage.group_resource() || kind.gvk.kind != expected.gvk.kind {
        return Err(Status::new(Reason::Unknown, not_of(request, expected, &said)));
    }
    api.as_kind(request.cluster.id, request.table, (&kind, request.kind), seen).await
}

/// A kind that something can be read as, whatever the request is about.
fn registered<'r>(request: &'r Request<'_>, said: &GroupVersionKind) -> Result<Cow<'r, Kind>, Status> {
    if let Some(kind) = request.table.kind(said) {
        return Ok(Cow::Borrowed(kind));
    }
    let schema = request.table.object_type(&said.group, &said.version, &said.kind);
    let schema = schema.ok_or_else(|| Status::internal(not_of(request, request.kind, said)))?;
    // Nothing else is known of it, and it is nothing that a request can be about.
    let gvk = said.clone();
    Ok(Cow::Owned(Kind { gvk, schema, decoded_as: schema, content: None, defaults: [].into(), ..request.kind.clone() }))
}

fn not_of(request: &Request<'_>, kind: &Kind, said: &GroupVersionKind) -> String {
    // As one of that type it has been read by then.
    decode::other_type(request.table, kind, (&said.group_version().to_string(), &said.kind), &Value::Null)
}

fn complete(request: &Request<'_>, kind: &Kind, object: &mut Value, validation: FieldValidation) -> Result<(), Status> {
    decode::prune_canonical(request.table, kind, object, validation)
        .map_err(|unfit| Status::internal(unfit.decoded()))?;
    defaults::apply(request.table, kind, object)
}
