//! Bodies of writes, decoded against their kind; and answers to writes.

use http::Response;
use memchr::memmem;
use portolan_machinery::{
    decode::{self, FieldValidation},
    lifecycle,
};
use portolan_types::{Status, annotations};
use serde_json::Value;

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::{self, Shape, media_of},
    limits::SMALL,
    objects::Changed,
};

use super::patch;

/// The object in a body, in the version of the target, to be put in the place of `old`.
pub(super) fn decode(
    call: &Call,
    target: &Target,
    validation: FieldValidation,
    old: Option<&Value>,
) -> Result<Value, Status> {
    let decoded = decode::decode(&target.table, &target.kind, media_of(call)?, &call.body, validation)?;
    call.warn(decoded.warnings);
    warn_of_server_keys(call, &decoded.object, old);
    Ok(decoded.object)
}

/// What the client sent of an object or its status, read without a schema; of a patch what it makes of `old`. `None` of much: it is for
/// a text, and takes as much memory as the object.
pub(crate) fn sent_again(call: &Call, target: &Target, old: Option<&Value>) -> Option<Value> {
    if call.body.len() > SMALL {
        return None;
    }
    match (call.attributes.verb.as_str(), call.captures.subresource.as_str()) {
        ("create" | "update", "" | "status" | "ephemeralcontainers") => {
            decode::decode_any(media_of(call).ok()?, &call.body).ok()
        }
        ("patch", "" | "status" | "ephemeralcontainers") => match old {
            Some(old) => patch::patched(call, target, old).ok(),
            None => patch::applied_body(call).ok(),
        },
        _ => None,
    }
}

/// Whether a word is in what the client sent, wherever it stands; of much that is not read again, it is not.
pub(crate) fn sent_names(call: &Call, word: &str) -> bool {
    call.body.len() <= SMALL && memmem::find(&call.body, word.as_bytes()).is_some()
}

/// Placement is the server's: what clients say of it is ignored, and they are told.
pub(super) fn warn_of_server_keys(call: &Call, object: &Value, old: Option<&Value>) {
    if lifecycle::sends_server_keys(object, old) {
        let keys = [&annotations::SERVER_OWNED[..], &annotations::SERVER_OWNED_LABELS].concat().join(", ");
        call.warn([format!("metadata: {keys} are written by the server only; the values sent are ignored")]);
    }
}

/// The answer to a write.
pub(super) fn changed(
    api: &ApiServer,
    call: &Call,
    shape: &Shape,
    code: u16,
    changed: Changed,
) -> Result<Response<Body>, Status> {
    advise(api, call, shape, &changed);
    match changed {
        Changed::Stored(stored, _) => encode::object(shape, code, &stored),
        Changed::Dry(object) | Changed::Removed(object) => encode::value(shape, code, object),
    }
}

fn advise(api: &ApiServer, call: &Call, shape: &Shape, changed: &Changed) {
    let Some(advisor) = api.config.hooks.advisor.as_ref().filter(|_| call.captures.subresource.is_empty()) else {
        return;
    };
    match changed {
        Changed::Stored(_, object) | Changed::Dry(object) => {
            call.warn(advisor.advise(&call.cluster, &shape.target.kind, object));
        }
        Changed::Removed(_) => {}
    }
}
