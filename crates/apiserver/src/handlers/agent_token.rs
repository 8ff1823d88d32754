//! `physicalclusters/token`: bootstrap tokens of agents.

use std::sync::Arc;

use http::Response;
use portolan_types::{Status, agent::AgentId, object, seams::seconds_text};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body, encode,
    errors::status_for,
    hooks::Operation,
    request::{AdmittedOperation, RequestContext, ResourceTarget},
};

use super::{invalid, token_request::DecodedTokenRequest};

const MIN_SECONDS: i64 = 60;
const MAX_SECONDS: i64 = 24 * 3600;
const DEFAULT_SECONDS: i64 = 3600;

/// Issues a bootstrap token for the agent of a physical cluster, as a `TokenRequest`. It revokes an earlier one.
pub(super) async fn request(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let DecodedTokenRequest { kind, shape, options, object: mut answer } = DecodedTokenRequest::of(api, call, target)?;
    let seconds = answer.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    if !(MIN_SECONDS..=MAX_SECONDS).contains(&seconds) {
        let why = format!("must be from {MIN_SECONDS} to {MAX_SECONDS}");
        let cause = invalid("spec.expirationSeconds", &seconds.to_string(), &why);
        return Err(Status::invalid(&kind.gvk.group_kind(), &call.captures.name, vec![cause]));
    }
    let request = call.admission_request(
        target,
        AdmittedOperation {
            operation: Operation::Create,
            name: &call.captures.name,
            subresource: "token",
            dry_run: options.dry_run,
        },
    );
    api.writes.admission.mutate_unstored(&request, &mut answer).await?;
    // Read from the store: one that is inherited from an ancestor is the ancestor's.
    let key = target.key(call, &call.captures.name)?;
    let stored = api.storage.store.get(&key).await.map_err(|error| status_for(&error))?;
    let stored = stored.ok_or_else(|| Status::not_found(&target.resource(), &key.name))?;
    api.writes.admission.validate_unstored(&request, &answer).await?;
    let uid = stored.record.header.uid.parse().map_err(Status::internal)?;
    let agent = AgentId { workspace: key.cluster, name: key.name.clone(), uid };
    let (name, uid) = (agent.name.to_string(), agent.uid.to_string());
    let status = if options.dry_run {
        json!({"token": "", "expirationTimestamp": null})
    } else {
        let (token, expires) = api.bootstrap_tokens.issue(agent, seconds, api.pki.authority_pin()).await?;
        json!({"token": token.text(), "expirationTimestamp": seconds_text(expires)})
    };
    answer["spec"]["expirationSeconds"] = seconds.into();
    answer["status"] = status;
    let metadata = object::metadata_mut(&mut answer);
    metadata.insert("name".into(), name.into());
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), api.seams().now_text().into());
    encode::value(&shape, 201, answer)
}
