//! Body of a `TokenRequest`, as service accounts and agents send it.

use std::sync::Arc;

use portolan_codec::decode;
use portolan_kinds::Kind;
use portolan_types::{GroupVersionKind, Status};
use serde_json::Value;

use crate::{
    ApiServer,
    encode::{ResponseShape, media_of},
    options::WriteOptions,
    request::{RequestContext, ResourceTarget},
};

/// Decoded request, with the data that its answer needs.
pub(super) struct DecodedTokenRequest {
    pub(super) kind: Kind,
    pub(super) shape: ResponseShape,
    pub(super) options: WriteOptions,
    pub(super) object: Value,
}

impl DecodedTokenRequest {
    /// Decodes the body of a request.
    ///
    /// # Errors
    /// Invalid options, or a body that is not a TokenRequest.
    pub(super) fn of(api: &ApiServer, call: &Arc<RequestContext>, target: &ResourceTarget) -> Result<Self, Status> {
        let kind = token_kind(target)?;
        let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
        let options = WriteOptions::of(call)?;
        let decoded = decode::decode(&target.table, &kind, media_of(call)?, &call.body, options.validation)?;
        call.warn(decoded.warnings);
        Ok(Self { kind, shape, options, object: decoded.object })
    }
}

/// Returns the kind TokenRequest, a subresource with a type of its own.
fn token_kind(target: &ResourceTarget) -> Result<Kind, Status> {
    let gvk = GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest");
    let schema = target.table.object_type(&gvk.group, &gvk.version, &gvk.kind);
    let schema = schema.ok_or_else(|| Status::internal("no type TokenRequest"))?;
    Ok(Kind { gvk, schema, decoded_as: schema, ..Kind::clone(&target.kind) })
}
