//! `serviceaccounts/token`, and what verifies such tokens elsewhere.

use std::sync::Arc;

use http::{HeaderValue, Response, header::CACHE_CONTROL};
use jiff::Timestamp;
use portolan_machinery::decode;
use portolan_types::{GroupKind, GroupResource, ObjectKey, Status, StatusCause, object, seams::seconds_text};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    admission::Operation,
    authn::TokenRequest,
    call::{Call, Target},
    encode::{self, finish, full, media_of, tree},
    errors::{damaged, status_for},
    options::WriteOptions,
};

const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 3600;

pub(super) async fn request(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let schema = target.table.object_type("authentication.k8s.io", "v1", "TokenRequest");
    let schema = schema.ok_or_else(|| Status::internal("no type TokenRequest"))?;
    let decoded = decode::decode_type(&target.table, schema, media_of(call)?, &call.body)?;
    call.warn(decoded.warnings);
    let mut answer = decoded.object;
    let dry_run = WriteOptions::of(call)?.dry_run;
    let request = call.asks(target, Operation::Create, (&call.captures.name, "token"), dry_run);
    api.admission.admit_passing(api, &request, &mut answer).await?;
    let (key, found) = api.found(call, target).await?;
    let account = tree(target, &found.stored)?;
    let spec = |name: &str| answer.get("spec").and_then(|spec| spec.get(name));
    let seconds = spec("expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    check_seconds(&key.name, seconds)?;
    let audiences = spec("audiences").and_then(Value::as_array).into_iter().flatten();
    let audiences = audiences.filter_map(Value::as_str).map(str::to_owned).collect();
    let bound = match spec("boundObjectRef").filter(|r| r.is_object()) {
        Some(reference) => Some(bound(api, &key, reference).await?),
        None => None,
    };
    let issued = api.tokens.issue(&TokenRequest {
        cluster: call.cluster.id,
        namespace: object::namespace(&account).to_owned(),
        name: object::name(&account).to_owned(),
        uid: object::meta_text(&account, "uid").to_owned(),
        audiences,
        seconds,
        bound,
    });
    let issued = issued.map_err(Status::internal)?;
    let ends = Timestamp::from_second(issued.expires).map_err(Status::internal)?;
    answer["apiVersion"] = "authentication.k8s.io/v1".into();
    answer["kind"] = "TokenRequest".into();
    answer["metadata"] = json!({
        "name": object::name(&account), "namespace": object::namespace(&account), "creationTimestamp": api.seams.now_text(),
    });
    answer["spec"]["audiences"] = json!(issued.audiences);
    answer["spec"]["expirationSeconds"] = seconds.into();
    answer["status"] = json!({"token": issued.token, "expirationTimestamp": seconds_text(ends)});
    Ok(encode::json(201, &answer))
}

fn check_seconds(name: &str, seconds: i64) -> Result<(), Status> {
    let why = match seconds {
        ..MIN_SECONDS => "may not specify a duration less than 10 minutes",
        MIN_SECONDS..=MAX_SECONDS => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let cause = StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {seconds}: {why}"),
        field: "spec.expirationSeconds".into(),
    };
    let kind = GroupKind { group: "authentication.k8s.io".into(), kind: "TokenRequest".into() };
    Err(Status::invalid(&kind, name, vec![cause]))
}

/// The Pod or Secret that a token is bound to, which must be there.
async fn bound(api: &ApiServer, account: &ObjectKey, reference: &Value) -> Result<(String, String, String), Status> {
    let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
    let resource = match text("kind") {
        "Pod" => "pods",
        "Secret" => "secrets",
        other => {
            return Err(Status::bad_request(format!("cannot bind token for serviceaccount to object of type {other}")));
        }
    };
    let resource = GroupResource::new("", resource);
    let name = text("name").parse().map_err(|e: portolan_types::InvalidName| Status::bad_request(e.to_string()))?;
    let key = ObjectKey { cluster: account.cluster, resource: resource.clone(), scope: account.scope.clone(), name };
    let stored = api.store.get(&key).await.map_err(|e| status_for(&e))?;
    let stored = stored.ok_or_else(|| Status::not_found(&resource, &key.name))?;
    if *key.resource.resource == *"pods" {
        let pod = stored.record.to_value(stored.revision).map_err(|e| damaged(&key, &e))?;
        if pod.pointer("/spec/serviceAccountName").and_then(Value::as_str) != Some(account.name.as_str()) {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                account.name.as_str()
            )));
        }
    }
    let uid = stored.record.header.uid.clone();
    if !matches!(text("uid"), "") && text("uid") != uid {
        let why = format!("the UID in the bound object reference ({}) does not match the UID in record", text("uid"));
        return Err(Status::conflict(&resource, &key.name, why));
    }
    Ok((text("kind").to_owned(), key.name.as_str().to_owned(), uid))
}

/// The key set of service account tokens.
pub(super) fn jwks(api: &ApiServer) -> Response<Body> {
    let text = api.tokens.jwks().to_string();
    cached(finish(200, "application/jwk-set+json", full(text)))
}

/// Keys change rarely: verifiers may keep them for an hour.
fn cached(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

/// OpenID discovery of the issuer.
pub(super) fn configuration(api: &ApiServer) -> Response<Body> {
    cached(encode::json(
        200,
        &json!({
            "issuer": api.tokens.issuer(),
            "jwks_uri": format!("https://{}/openid/v1/jwks", api.address()),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }),
    ))
}
