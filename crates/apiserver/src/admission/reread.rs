//! Decoding of objects that webhooks and policies have changed.

use std::borrow::Cow;

use portolan_codec::decode::{self, FieldValidation};
use portolan_kinds::Kind;
use portolan_strategy::defaults;
use portolan_types::{GroupVersionKind, Reason, Status, json_patch::json_len};
use serde_json::Value;

use super::{matching::changed_as, review::RequestView};
use crate::{conversion::KindPair, hooks::AdmissionRequest};

/// Size limit of an object changed by webhooks and policies, in bytes. Each may add a patch; together they could add
/// thousands.
const MAX_CHANGED_BYTES: usize = 3 * 1024 * 1024;

/// Decodes a changed object, which was `seen`, under its own apiVersion and kind. `object` is its state before.
/// Returns it canonical, complete, and in the version of the request.
///
/// # Errors
/// An object that cannot be decoded or converted or is of another kind than the request; 413 beyond 3 MiB.
pub(super) async fn reread(
    view: RequestView<'_>,
    object: &Value,
    mut seen: Value,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let RequestView { conversion, request, invocation } = view;
    if json_len(&seen) > MAX_CHANGED_BYTES {
        return Err(Status::too_large(format!("limit is {MAX_CHANGED_BYTES}")));
    }
    // The type of a custom resource is checked where it is stored.
    if request.subresource == "scale" || request.table.conversion().is_some() {
        let mut changed = view.converted_back(object, seen).await?;
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
    let said = decode::stated_type(&expected.gvk, &seen).map_err(Status::internal)?;
    let kind = if said == expected.gvk { Cow::Borrowed(expected) } else { registered(request, &said)? };
    complete(request, &kind, &mut seen, validation)?;
    if kind.gvk == expected.gvk && invocation.other.is_none() {
        return Ok(seen);
    }
    if kind.storage.group_resource() != expected.storage.group_resource() || kind.gvk.kind != expected.gvk.kind {
        return Err(Status::new(Reason::Unknown, not_of(request, expected, &said)));
    }
    conversion.as_kind(request.cluster.id, request.table, KindPair { from: &kind, to: request.kind }, seen).await
}

/// Returns the kind that decodes this type, independently of the kind of the request.
fn registered<'r>(request: &'r AdmissionRequest<'_>, said: &GroupVersionKind) -> Result<Cow<'r, Kind>, Status> {
    if let Some(kind) = request.table.kind(said) {
        return Ok(Cow::Borrowed(kind));
    }
    let schema = request.table.object_type(&said.group, &said.version, &said.kind);
    let schema = schema.ok_or_else(|| Status::internal(not_of(request, request.kind, said)))?;
    // An unknown type is decoded without a schema; no request can have it.
    let gvk = said.clone();
    Ok(Cow::Owned(Kind { gvk, schema, decoded_as: schema, content: None, defaults: [].into(), ..request.kind.clone() }))
}

fn not_of(request: &AdmissionRequest<'_>, kind: &Kind, said: &GroupVersionKind) -> String {
    // Decoding as that type has succeeded before.
    decode::other_type(request.table, kind, (&said.group_version().to_string(), &said.kind), &Value::Null)
}

fn complete(
    request: &AdmissionRequest<'_>,
    kind: &Kind,
    object: &mut Value,
    validation: FieldValidation,
) -> Result<(), Status> {
    decode::prune_canonical(request.table, kind, object, validation)
        .map_err(|show_error| Status::internal(show_error.decoded()))?;
    defaults::apply(request.table, kind, object)
}
