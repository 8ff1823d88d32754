//! `serviceaccounts/token`, and what verifies such tokens elsewhere.

use std::sync::Arc;

use http::{HeaderValue, Response, header::CACHE_CONTROL};
use jiff::Timestamp;
use portolan_machinery::{
    apply::{self, Conversions, UpdateRequest},
    decode,
    kinds::Kind,
    lifecycle,
};
use portolan_types::{
    GroupResource, GroupVersionKind, ObjectKey, ObjectName, Scope, Status, object, quoted::go_quoted,
    seams::seconds_text,
};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    admission::Operation,
    authn::{Bound, Reference, TokenRequest},
    call::{Call, Target, unkeyed},
    encode::{self, Shape, finish, full, media_of, tree},
    errors::{damaged, status_for},
    options::WriteOptions,
};

use super::invalid;

const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 3600;

pub(super) async fn request(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let kind = token_kind(target)?;
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = WriteOptions::of(call)?;
    let decoded = decode::decode(&target.table, &kind, media_of(call)?, &call.body, options.validation)?;
    call.warn(decoded.warnings);
    let mut answer = decoded.object;
    lifecycle::match_namespace(&target.kind, &mut answer, target.namespace.as_deref())?;
    if spec(&answer, "expirationSeconds").is_none() {
        answer["spec"]["expirationSeconds"] = DEFAULT_SECONDS.into();
    }
    let now = api.seams.now_text();
    let (manager, conversions) = (&*options.manager, Conversions::default());
    let written =
        UpdateRequest { old: None, manager, subresource: Some("token"), now: &now, conversions: &conversions };
    apply::track_update(&target.table, &kind, &written, &mut answer)?;
    let request = call.asks(target, Operation::Create, (&call.captures.name, "token"), options.dry_run);
    api.admission.mutate_passing(api, &request, &mut answer).await?;
    check_name(&kind, &call.captures.name, &answer)?;
    let (key, found) = api.found(call, target).await?;
    let account = tree(target, &found.stored)?;
    take_identity(&kind, &mut answer, &account)?;
    if audiences(&answer).is_empty() {
        answer["spec"]["audiences"] = json!([api.tokens.issuer()]);
    }
    object::metadata_mut(&mut answer).insert("creationTimestamp".into(), now.into());
    answer["status"] = json!({"expirationTimestamp": null, "token": ""});
    let seconds = spec(&answer, "expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    check_seconds(&kind, seconds)?;
    api.admission.validate_passing(api, &request, &answer).await?;
    let bound = match spec(&answer, "boundObjectRef") {
        Some(reference) => Some(bound(api, &key, reference).await?),
        None => None,
    };
    let seconds = shortened(api, call, &mut answer, seconds);
    let issued = api.tokens.issue(&TokenRequest {
        cluster: call.cluster.id,
        namespace: object::namespace(&account).to_owned(),
        name: object::name(&account).to_owned(),
        uid: object::meta_text(&account, "uid").to_owned(),
        audiences: audiences(&answer),
        seconds,
        bound,
    });
    let issued = issued.map_err(Status::internal)?;
    let ends = Timestamp::from_second(issued.expires).map_err(Status::internal)?;
    answer["status"] = json!({"token": issued.token, "expirationTimestamp": seconds_text(ends)});
    encode::value(&shape, 201, answer)
}

fn audiences(request: &Value) -> Vec<String> {
    let audiences = spec(request, "audiences").and_then(Value::as_array).into_iter().flatten();
    audiences.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The kind of a request for a token: a part of an account that is of a type of its own.
fn token_kind(target: &Target) -> Result<Kind, Status> {
    let gvk = GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest");
    let schema = target.table.object_type(&gvk.group, &gvk.version, &gvk.kind);
    let schema = schema.ok_or_else(|| Status::internal("no type TokenRequest"))?;
    Ok(Kind { gvk, schema, decoded_as: schema, ..Kind::clone(&target.kind) })
}

fn spec<'a>(request: &'a Value, key: &str) -> Option<&'a Value> {
    request.get("spec")?.get(key).filter(|value| !value.is_null())
}

fn check_name(kind: &Kind, account: &str, request: &Value) -> Result<(), Status> {
    let named = object::name(request);
    if named.is_empty() || named == account {
        return Ok(());
    }
    let cause = invalid("metadata.name", &go_quoted(named), "must match the service account name if specified");
    Err(Status::invalid(&kind.gvk.group_kind(), account, vec![cause]))
}

/// The request is about the account, under its name and uid.
fn take_identity(kind: &Kind, request: &mut Value, account: &Value) -> Result<(), Status> {
    let (name, uid) = (object::name(account), object::meta_text(account, "uid"));
    let asked = object::meta_text(request, "uid");
    if !asked.is_empty() && asked != uid {
        // Upstream names the kind in the place of a resource.
        let resource = GroupResource::new(kind.gvk.group.clone(), kind.gvk.kind.clone());
        let why =
            format!("the UID in the token request ({asked}) does not match the UID of the service account ({uid})");
        return Err(Status::conflict(&resource, name, why));
    }
    let metadata = object::metadata_mut(request);
    for (key, value) in [("name", name), ("namespace", object::namespace(account)), ("uid", uid)] {
        metadata.insert(key.into(), value.into());
    }
    Ok(())
}

fn check_seconds(kind: &Kind, seconds: i64) -> Result<(), Status> {
    let why = match seconds {
        ..MIN_SECONDS => "may not specify a duration less than 10 minutes",
        MIN_SECONDS..=MAX_SECONDS => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    // Upstream names no account here.
    let cause = invalid("spec.expirationSeconds", &seconds.to_string(), why);
    Err(Status::invalid(&kind.gvk.group_kind(), "", vec![cause]))
}

/// Shortens a lifetime to the longest one that the server issues, with kube-apiserver's warning.
fn shortened(api: &ApiServer, call: &Call, request: &mut Value, seconds: i64) -> i64 {
    let longest = i64::try_from(api.config.token_max.as_secs()).unwrap_or(i64::MAX);
    if longest == 0 || seconds <= longest {
        return seconds;
    }
    call.warn([format!("requested expiration of {seconds} seconds shortened to {longest} seconds")]);
    request["spec"]["expirationSeconds"] = longest.into();
    longest
}

/// The Pod, Node or Secret that a token is bound to, which must be there.
async fn bound(api: &ApiServer, account: &ObjectKey, reference: &Value) -> Result<Bound, Status> {
    let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let (resource, scope) = match (group, text("kind")) {
        ("", "Pod") => ("pods", account.scope.clone()),
        ("", "Node") => ("nodes", Scope::Cluster),
        ("", "Secret") => ("secrets", account.scope.clone()),
        (_, kind) => {
            let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(why));
        }
    };
    let resource = GroupResource::new("", resource);
    let name = text("name");
    let missing = || unkeyed(name).unwrap_or_else(|| Status::not_found(&resource, name));
    let name = name.parse().map_err(|_| missing())?;
    let key = ObjectKey { cluster: account.cluster, resource, scope, name };
    let stored = api.store.get(&key).await.map_err(|e| status_for(&e))?;
    let stored = stored.ok_or_else(|| Status::not_found(&key.resource, &key.name))?;
    let uid = stored.record.header.uid.clone();
    let found = Reference { name: key.name.as_str().to_owned(), uid: uid.clone() };
    let bound = match &*key.resource.resource {
        "pods" => {
            let pod = stored.record.to_value(stored.revision).map_err(|e| damaged(&key, &e))?;
            Bound::Pod { node: node_of(api, account, &pod).await?, pod: found }
        }
        "nodes" => Bound::Node(found),
        _ => Bound::Secret(found),
    };
    if !matches!(text("uid"), "") && text("uid") != uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
            text("uid")
        );
        return Err(Status::conflict(&GroupResource::new("", text("kind")), &key.name, why));
    }
    Ok(bound)
}

/// The node of a pod that runs as the account. A node that is not there is told by its name alone.
async fn node_of(api: &ApiServer, account: &ObjectKey, pod: &Value) -> Result<Option<Reference>, Status> {
    let text = |key: &str| pod.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_str).unwrap_or_default();
    if text("serviceAccountName") != account.name.as_str() {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
            go_quoted(account.name.as_str())
        )));
    }
    // What is no name is the name of no node.
    let Ok(name) = text("nodeName").parse::<ObjectName>() else {
        return Ok(None);
    };
    let resource = GroupResource::new("", "nodes");
    let key = ObjectKey { cluster: account.cluster, resource, scope: Scope::Cluster, name };
    let stored = api.store.get(&key).await.map_err(|e| status_for(&e))?;
    let uid = stored.map(|stored| stored.record.header.uid.clone()).unwrap_or_default();
    Ok(Some(Reference { name: key.name.as_str().to_owned(), uid }))
}

/// The key set of service account tokens.
///
/// # Errors
/// 406 for those who do not take it as what it is.
pub(super) fn jwks(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    const KEY_SET: &str = "application/jwk-set+json";
    encode::route(&call.headers, &[KEY_SET])?;
    Ok(cached(finish(200, KEY_SET, full(api.tokens.jwks().to_string()))))
}

/// Keys change rarely: verifiers may keep them for an hour.
fn cached(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

/// OpenID discovery of the issuer.
///
/// # Errors
/// 406 for those who take no JSON.
pub(super) fn configuration(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    encode::route(&call.headers, &["application/json"])?;
    Ok(cached(encode::json(
        200,
        &json!({
            "issuer": api.tokens.issuer(),
            "jwks_uri": format!("https://{}/openid/v1/jwks", api.address()),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }),
    )))
}
