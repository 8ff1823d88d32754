//! `serviceaccounts/token`.

use std::{sync::Arc, time::Duration};

use http::Response;
use jiff::Timestamp;
use portolan_kinds::Kind;
use portolan_merge::apply::{self, Conversions, UpdateRequest};
use portolan_strategy::lifecycle;
use portolan_types::{
    GroupResource, ObjectKey, ObjectName, Scope, Status, object, quoted::go_quoted, seams::seconds_text,
};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    authn::{TokenBinding, TokenObjectRef, TokenRequest},
    encode,
    errors::{damaged, status_for},
    hooks::Operation,
    objects::tree,
    request::{AdmittedOperation, RequestContext, ResourceTarget, invalid_path_name},
    storage::StorageContext,
};

use super::{invalid, token_request::DecodedTokenRequest};

const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 3600;

pub(super) async fn request(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let DecodedTokenRequest { kind, shape, options, object: mut answer } = DecodedTokenRequest::of(api, call, target)?;
    lifecycle::match_namespace(&target.kind, &mut answer, target.namespace.as_deref())?;
    if spec(&answer, "expirationSeconds").is_none() {
        answer["spec"]["expirationSeconds"] = DEFAULT_SECONDS.into();
    }
    let now = api.seams().now_text();
    let (manager, conversions) = (&*options.manager, Conversions::default());
    let written =
        UpdateRequest { old: None, manager, subresource: Some("token"), now: &now, conversions: &conversions };
    apply::track_update(&target.table, &kind, &written, &mut answer)?;
    let (operation, name) = (Operation::Create, &*call.captures.name);
    let admitted = AdmittedOperation { operation, name, subresource: "token", dry_run: options.dry_run };
    let request = call.admission_request(target, admitted);
    api.writes.admission.mutate_unstored(&request, &mut answer).await?;
    check_name(&kind, &call.captures.name, &answer)?;
    let (key, found) = api.reads.existing_object(call, target).await?;
    let account = tree(target, &found.stored)?;
    take_identity(&kind, &mut answer, &account)?;
    if audiences(&answer).is_empty() {
        answer["spec"]["audiences"] = json!([api.tokens.issuer()]);
    }
    object::metadata_mut(&mut answer).insert("creationTimestamp".into(), now.into());
    answer["status"] = json!({"expirationTimestamp": null, "token": ""});
    let seconds = spec(&answer, "expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    check_seconds(&kind, seconds)?;
    api.writes.admission.validate_unstored(&request, &answer).await?;
    let bound = match spec(&answer, "boundObjectRef") {
        Some(reference) => Some(bound_object(&api.storage, &key, reference).await?),
        None => None,
    };
    let seconds = shorten_lifetime(api.config.token_max, call, &mut answer, seconds);
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

/// Sets the name, namespace and uid of the service account in the request.
fn take_identity(kind: &Kind, request: &mut Value, account: &Value) -> Result<(), Status> {
    let (name, uid) = (object::name(account), object::meta_text(account, "uid"));
    let asked = object::meta_text(request, "uid");
    if !asked.is_empty() && asked != uid {
        // kube-apiserver names the kind in place of the resource.
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
    // kube-apiserver names no account here.
    let cause = invalid("spec.expirationSeconds", &seconds.to_string(), why);
    Err(Status::invalid(&kind.gvk.group_kind(), "", vec![cause]))
}

/// Shortens a lifetime to the longest one that the server issues, with kube-apiserver's warning.
fn shorten_lifetime(longest: Duration, call: &RequestContext, request: &mut Value, seconds: i64) -> i64 {
    let longest = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
    if longest == 0 || seconds <= longest {
        return seconds;
    }
    call.warn([format!("requested expiration of {seconds} seconds shortened to {longest} seconds")]);
    request["spec"]["expirationSeconds"] = longest.into();
    longest
}

/// Returns the Pod, Node or Secret that the token is bound to; it must exist.
async fn bound_object(
    storage: &StorageContext,
    account: &ObjectKey,
    reference: &Value,
) -> Result<TokenBinding, Status> {
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
    let missing = || invalid_path_name(name).unwrap_or_else(|| Status::not_found(&resource, name));
    let name = name.parse().map_err(|_| missing())?;
    let key = ObjectKey { cluster: account.cluster, resource, scope, name };
    let stored = storage.store.get(&key).await.map_err(|e| status_for(&e))?;
    let stored = stored.ok_or_else(|| Status::not_found(&key.resource, &key.name))?;
    let uid = stored.record.header.uid.clone();
    let found = TokenObjectRef { name: key.name.as_str().to_owned(), uid: uid.clone() };
    let bound = match &*key.resource.resource {
        "pods" => {
            let pod = stored.record.to_value(stored.revision).map_err(|e| damaged(&key, &e))?;
            TokenBinding::Pod { node: node_of(storage, account, &pod).await?, pod: found }
        }
        "nodes" => TokenBinding::Node(found),
        _ => TokenBinding::Secret(found),
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

/// Returns the node of a pod that runs as the account. A node that does not exist has its name only.
async fn node_of(storage: &StorageContext, account: &ObjectKey, pod: &Value) -> Result<Option<TokenObjectRef>, Status> {
    let text = |key: &str| pod.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_str).unwrap_or_default();
    if text("serviceAccountName") != account.name.as_str() {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
            go_quoted(account.name.as_str())
        )));
    }
    // An invalid name is the name of no node.
    let Ok(name) = text("nodeName").parse::<ObjectName>() else {
        return Ok(None);
    };
    let resource = GroupResource::new("", "nodes");
    let key = ObjectKey { cluster: account.cluster, resource, scope: Scope::Cluster, name };
    let stored = storage.store.get(&key).await.map_err(|e| status_for(&e))?;
    let uid = stored.map(|stored| stored.record.header.uid.clone()).unwrap_or_default();
    Ok(Some(TokenObjectRef { name: key.name.as_str().to_owned(), uid }))
}
