//! Request bodies of writes, decoded against their kind, and the responses to writes.

use http::Response;
use memchr::memmem;
use portolan_codec::decode::{self, FieldValidation};
use portolan_strategy::lifecycle;
use portolan_types::{Status, annotations};
use serde_json::Value;

use crate::{
    Body,
    encode::{self, ResponseShape, media_of},
    hooks::Hooks,
    limits::UNCHARGED_BYTES,
    objects::{WriteResult, write_pipeline::QuotedBody},
    request::{RequestContext, ResourceTarget},
};

use super::{apply, patch};

/// Decodes the object in a request body in the version of the target; `old` is the object that it replaces.
pub(super) fn decode(
    call: &RequestContext,
    target: &ResourceTarget,
    validation: FieldValidation,
    old: Option<&Value>,
) -> Result<Value, Status> {
    let decoded = decode::decode(&target.table, &target.kind, media_of(call)?, &call.body, validation)?;
    call.warn(decoded.warnings);
    let object = with_stored_names(call, target, decoded.object, old)?;
    warn_of_server_keys(call, &object, old);
    Ok(object)
}

/// Returns an object that was sent to a flattened view with the names of its logical cluster; others stay as they are.
///
/// # Errors
/// 403 for a name of another logical cluster.
pub(super) fn with_stored_names(
    call: &RequestContext,
    target: &ResourceTarget,
    mut object: Value,
    old: Option<&Value>,
) -> Result<Value, Status> {
    if let Some(names) = call.flattened() {
        names.store((&target.table, &target.kind), call.cluster.id, (&mut object, old))?;
    }
    Ok(object)
}

/// Body of a request, which error messages of the write pipeline quote.
pub(super) struct RequestBody<'a> {
    pub(super) call: &'a RequestContext,
    pub(super) target: &'a ResourceTarget,
}

impl QuotedBody for RequestBody<'_> {
    /// Returns `None` for a body of more than [`UNCHARGED_BYTES`] bytes, because the copy needs as much memory as the
    /// object.
    fn decode_untyped(&self, old: Option<&Value>) -> Option<Value> {
        let Self { call, target } = self;
        if call.body.len() > UNCHARGED_BYTES {
            return None;
        }
        match (call.attributes.verb.as_str(), call.captures.subresource.as_str()) {
            ("create" | "update", "" | "status" | "ephemeralcontainers") => {
                decode::decode_any(media_of(call).ok()?, &call.body).ok()
            }
            ("patch", "" | "status" | "ephemeralcontainers") => match old {
                Some(old) => patch::apply_to(call, target, old).ok(),
                None => apply::decode_apply_patch(call).ok(),
            },
            _ => None,
        }
    }

    /// Returns false for a body of more than [`UNCHARGED_BYTES`] bytes.
    fn contains(&self, word: &str) -> bool {
        self.call.body.len() <= UNCHARGED_BYTES && memmem::find(&self.call.body, word.as_bytes()).is_some()
    }
}

/// Warns a client that sends placement keys, which only the server writes: its values are ignored.
pub(super) fn warn_of_server_keys(call: &RequestContext, object: &Value, old: Option<&Value>) {
    if lifecycle::sends_server_keys(object, old) {
        let keys = [&annotations::SERVER_OWNED[..], &annotations::SERVER_OWNED_LABELS].concat().join(", ");
        call.warn([format!("metadata: {keys} are written by the server only; the values sent are ignored")]);
    }
}

/// Result of a write with its status code.
pub(super) struct AnsweredWrite {
    pub(super) code: u16,
    pub(super) result: WriteResult,
}

/// Encodes the response to a write.
pub(super) fn write_response(
    hooks: &Hooks,
    call: &RequestContext,
    shape: &ResponseShape,
    answered: AnsweredWrite,
) -> Result<Response<Body>, Status> {
    let AnsweredWrite { code, result: changed } = answered;
    warn_by_advisor(hooks, call, shape, &changed);
    match changed {
        WriteResult::Stored(stored, _) => encode::object(shape, code, &stored),
        WriteResult::DryRun(object) | WriteResult::Removed(object) => encode::value(shape, code, object),
    }
}

fn warn_by_advisor(hooks: &Hooks, call: &RequestContext, shape: &ResponseShape, changed: &WriteResult) {
    let Some(advisor) = hooks.advisor.as_ref().filter(|_| call.captures.subresource.is_empty()) else {
        return;
    };
    match changed {
        WriteResult::Stored(_, object) | WriteResult::DryRun(object) => {
            call.warn(advisor.advise(&call.cluster, &shape.target.kind, object));
        }
        WriteResult::Removed(_) => {}
    }
}
