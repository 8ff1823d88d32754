//! The subresource `proxy`: requests that are passed to a physical cluster, or to a pod or service in one.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, Uri, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use portolan_types::{GroupResource, Reason, Status};
use serde_json::{Value, json};

use super::{streams::forwarded, update::authorize_create};
use crate::{
    ApiServer, Body, encode,
    errors::{damaged, status_for},
    hooks::{AdmissionOptions, AdmissionRequest, Operation, ProxyEndpoint, ProxyRequest, ProxyTarget, StreamPermit},
    limits::Permit,
    metrics::GaugeGuard,
    objects::tree,
    reach::physical_clusters,
    request::{AdmittedOperation, RequestContext, ResourceTarget},
    routing::routes::{Captures, ProxyForm},
};

/// Characters of a path segment that are encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'@')
    .remove(b',')
    .remove(b'=')
    .remove(b'+')
    .remove(b'$')
    .remove(b'!')
    .remove(b'*')
    .remove(b'(')
    .remove(b')');

/// Passes a request on, and returns the answer.
pub(super) async fn forward(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let permit = permit.ok_or_else(|| Status::internal("a proxied request without a permit"))?;
    let is_cluster = target.resource() == physical_clusters();
    let path = path_on_target(call)?;
    if is_cluster && call.headers.contains_key(header::UPGRADE) {
        // A stream into a pod is opened with GET, but it is not a read.
        authorize_create(&api.access.rbac, &api.storage.store, call).await?;
    }
    admit(api, call, target, &path).await?;
    let proxied = if is_cluster {
        ProxyTarget::PhysicalCluster(physical_cluster(api, call, target, &path).await?)
    } else {
        workload(api, call, target).await?
    };
    let permit = StreamPermit::new(permit, GaugeGuard::new(api.metrics.longrunning(&call.labels)));
    let request = ProxyRequest {
        cluster: call.cluster.clone(),
        target: proxied,
        user: call.identity.user.clone(),
        token: if is_cluster { call.identity.forwardable_token() } else { None },
        request: with_path(forwarded(call)?, path)?,
        permit: permit.clone(),
    };
    let mut answered = api.config.hooks.streams.proxy(request).await?;
    if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
        let kept = answered.headers_mut().entry(header::CACHE_CONTROL);
        kept.or_insert(HeaderValue::from_static("no-cache, private"));
    }
    Ok(answered.map(|body| encode::with_guard(body, permit, None, || api.metrics.size(&call.labels))))
}

/// Returns the path on the target with the query. It is encoded again from the segments that were authorized, so that
/// the target reads no other path.
///
/// # Errors
/// 400 for dot segments, which the target could resolve.
fn path_on_target(call: &RequestContext) -> Result<String, Status> {
    let Captures { rest, .. } = &call.captures;
    if rest.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(Status::bad_request("a proxied path has no dot segments"));
    }
    let mut path: String =
        rest.split('/').map(|segment| format!("/{}", utf8_percent_encode(segment, ENCODED))).collect();
    if call.uri.path().ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    if let Some(query) = call.uri.query() {
        path.push('?');
        path.push_str(query);
    }
    Ok(path)
}

fn with_path(mut request: http::Request<bytes::Bytes>, path: String) -> Result<http::Request<bytes::Bytes>, Status> {
    let uri = Uri::try_from(path).map_err(|error| Status::bad_request(format!("the proxied path: {error}")))?;
    *request.uri_mut() = uri;
    Ok(request)
}

/// Asks admission, which sees the options as an object.
async fn admit(api: &ApiServer, call: &RequestContext, target: &ResourceTarget, path: &str) -> Result<(), Status> {
    let kind = target.kind.subresource("proxy").map(|subresource| subresource.gvk.kind.to_string());
    let mut options = json!({"kind": kind.unwrap_or_default(), "apiVersion": "v1", "path": path});
    let name = &*call.captures.name;
    let admitted = AdmittedOperation { operation: Operation::Connect, name, subresource: "proxy", dry_run: false };
    let request = AdmissionRequest { options: AdmissionOptions::Nothing, ..call.admission_request(target, admitted) };
    api.writes.admission.admit_unstored(&request, &mut options).await
}

/// Returns the physical cluster of the request. One that is inherited is the ancestor's, and is not proxied to.
async fn physical_cluster(
    api: &ApiServer,
    call: &RequestContext,
    target: &ResourceTarget,
    path: &str,
) -> Result<Value, Status> {
    if let ["api", "v1", "nodes", _, "proxy", ..] = *path.split(['/', '?']).skip(1).collect::<Vec<_>>() {
        return Err(Status::forbidden(&nodes(), "", "nodes/proxy of a physical cluster is not served"));
    }
    let name = &*call.captures.name;
    let is_alias = call.captures.form == ProxyForm::Alias;
    let absent = || match call.captures.form {
        // KubeSphere's own answer.
        ProxyForm::Alias => Status::bad_request(format!("cluster {name} not exists")),
        ProxyForm::Mount => Status::new(
            Reason::ServiceUnavailable,
            format!("the workspace mounts the physical cluster {name:?}, which does not exist"),
        ),
        ProxyForm::Subresource => Status::not_found(&target.resource(), name),
    };
    let Ok(key) = target.key(call, name) else { return Err(absent()) };
    let stored = api.storage.store.get(&key).await.map_err(|error| status_for(&error))?.ok_or_else(absent)?;
    let physical = stored.record.to_value(stored.revision).map_err(|error| damaged(&key, &error))?;
    if is_alias && !is_ready(&physical) {
        return Err(Status::new(Reason::ServiceUnavailable, format!("cluster {name} is not ready")));
    }
    Ok(physical)
}

fn nodes() -> GroupResource {
    GroupResource::new("", "nodes")
}

fn is_ready(physical: &Value) -> bool {
    let conditions = physical.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Returns the port of the pod or service that the URL names.
async fn workload(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<ProxyTarget, Status> {
    let text = &call.captures.name;
    let invalid = || Status::bad_request(format!("invalid {} request {text:?}", target.kind.singular));
    let endpoint = ProxyEndpoint::parse(text).ok_or_else(invalid)?;
    let key = target.key(call, &endpoint.name)?;
    let found = api.reads.find_object(call, target, &key).await?;
    let found = found.ok_or_else(|| Status::not_found(&target.resource(), &endpoint.name))?;
    if target.kind.subresource("exec").is_none() && target.resource() != GroupResource::new("", "services") {
        let why = format!("{}/proxy is not served", target.resource());
        return Err(Status::forbidden(&target.resource(), &endpoint.name, why));
    }
    Ok(ProxyTarget::Workload { object: tree(target, &found.stored)?, endpoint })
}
