//! Requests for aggregated API servers ([`crate::aggregation`]), which are passed on.
//!
//! The workspace authorizes each request; the other server learns the user from `X-Remote-*` headers, which it believes
//! by the certificate of [`crate::front_proxy`], and gets no credential of the client. Addresses follow the rules for
//! webhooks. Built-in groups and those of CustomResourceDefinitions have precedence. Answers are not trusted: they are
//! confined as those of proxies, and redirects are refused.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use portolan_kinds::KindTable;
use portolan_types::{Reason, Status};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    aggregation::{
        AggregatedVersion, ResourceReader, answer_headers, api_group, by_group, group_discovery, request_headers,
    },
    encode,
    limits::Permit,
    metrics::GaugeGuard,
    request::RequestContext,
    routing::routes::{Captures, RouteEndpoint},
    webhooks::ForwardedRequest,
};

/// Longest wait for the head of an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Largest answer to a request that is no watch, in bytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Returns true for a request that another API server may serve. Built-in groups never are. Reads memory only.
pub(super) fn is_possible(call: &RequestContext) -> bool {
    let names_version = matches!(
        call.endpoint,
        RouteEndpoint::GroupVersion | RouteEndpoint::Collection | RouteEndpoint::Object | RouteEndpoint::Subresource
    );
    names_version && !call.captures.group.is_empty() && call.view.is_none() && !is_builtin(&call.captures.group)
}

/// Passes a request on, if another API server serves its version; only then takes the permit.
///
/// # Errors
/// Failure of the store, and those of [`forward`].
pub(super) async fn answer(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    permit: &mut Option<Permit>,
) -> Result<Option<Response<Body>>, Status> {
    match version_of(api, call).await? {
        Some(version) => forward(api, call, &version, permit.take()).await.map(Some),
        None => Ok(None),
    }
}

/// Returns the version that another API server serves, if the request is for one.
///
/// # Errors
/// Failure of the store.
async fn version_of(api: &ApiServer, call: &RequestContext) -> Result<Option<AggregatedVersion>, Status> {
    let Captures { group, version, resource, .. } = &call.captures;
    let served = api.kinds.served(call.cluster.id).await?;
    let is_own = if call.endpoint == RouteEndpoint::GroupVersion {
        served.kinds().iter().any(|kind| *kind.gvk.group == **group && *kind.gvk.version == **version)
    } else {
        served.surface.resource(group, version, resource).is_some()
    };
    if is_own {
        return Ok(None);
    }
    AggregatedVersion::read(&api.storage, call.cluster.id, (group, version)).await
}

fn is_builtin(group: &str) -> bool {
    static GROUPS: LazyLock<HashSet<&'static str>> =
        LazyLock::new(|| KindTable::builtin().kinds().map(|kind| &*kind.gvk.group).collect());
    GROUPS.contains(group)
}

/// Passes a request on, and returns the answer as it arrives.
///
/// # Errors
/// 503 if the other API server cannot be reached, 502 for a redirect.
pub(super) async fn forward(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    version: &AggregatedVersion,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    if call.headers.contains_key(header::UPGRADE) {
        return Err(Status::bad_request("aggregated API servers are asked without an upgrade of the connection"));
    }
    let name = format!("{}.{}", version.version, version.group);
    let unavailable = |why: &str| {
        tracing::info!(api_service = name, why, "an aggregated API server cannot be reached");
        Status::new(
            Reason::ServiceUnavailable,
            format!("the API server of APIService {name:?} cannot be reached: {why}"),
        )
    };
    let endpoint = version.endpoint.as_ref().map_err(|why| unavailable(why))?;
    let mut request = http::Request::builder().method(call.method.clone()).body(call.body.clone());
    if let Ok(request) = &mut request {
        *request.headers_mut() = request_headers(&call.headers, call.identity.acting_user());
    }
    let request = request.map_err(Status::internal)?;
    let query = call.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("{}{query}", call.path);
    let identity = api.front_proxies.of(call.cluster.id);
    let identity = identity.as_deref();
    let forwarded = ForwardedRequest { cluster: call.cluster.id, path: &path, request, identity };
    let sending = endpoint.send(&api.reads.conversion.webhooks, forwarded);
    let answered = tokio::time::timeout(ANSWER, sending).await;
    let answered = answered.map_err(|_| unavailable("it does not answer in time"))?.map_err(|why| unavailable(&why))?;
    let (parts, body) = answered.into_parts();
    if parts.status.is_redirection() && parts.status != http::StatusCode::NOT_MODIFIED {
        let why = format!("the API server of APIService {name:?} answered with a redirect, which is not followed");
        return Err(Status::foreign(502, "BadGateway", why, None));
    }
    if parts.status.is_informational() {
        return Err(Status::foreign(502, "BadGateway", format!("it answered {}", parts.status), None));
    }
    let mut response = Response::new(stopped_by(body, api, permit.is_none()));
    *response.status_mut() = parts.status;
    *response.headers_mut() = answer_headers(&parts.headers);
    let counted = permit.map(|permit| (permit, GaugeGuard::new(api.metrics.longrunning(&call.labels))));
    Ok(response.map(|body| encode::with_guard(body, counted, None, || api.metrics.size(&call.labels))))
}

/// Returns a body that passes pieces on until the server stops. That of a request that is no watch is bounded.
fn stopped_by(body: hyper::body::Incoming, api: &ApiServer, is_bounded: bool) -> Body {
    let stopping = api.streams.stopping.clone();
    let bound = if is_bounded { MAX_ANSWER } else { usize::MAX };
    let pieces = futures::stream::unfold(Some((body.into_data_stream(), 0_usize)), move |state| {
        let stopping = stopping.clone();
        async move {
            let (mut pieces, sent) = state?;
            let piece: Option<Result<Bytes, hyper::Error>> = tokio::select! {
                piece = pieces.next() => piece,
                () = stopping.cancelled() => return Some((Err(encode::BodyError::from("the server stops")), None)),
            };
            match piece? {
                Err(error) => Some((Err(error.into()), None)),
                Ok(piece) => {
                    let sent = sent + piece.len();
                    if sent > bound {
                        return Some((Err(encode::BodyError::from("the answer is too large")), None));
                    }
                    Some((Ok(Frame::data(piece)), Some((pieces, sent))))
                }
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Adds the groups of aggregated API servers to an `APIGroupList`. Groups that are served here stay as they are.
///
/// # Errors
/// Failure of the store.
pub(super) async fn add_groups(api: &ApiServer, call: &RequestContext, list: &mut Value) -> Result<(), Status> {
    let versions = shown_versions(api, call).await?;
    let Some(groups) = list["groups"].as_array_mut() else { return Ok(()) };
    for (group, versions) in by_group(&versions) {
        if !groups.iter().any(|known| known["name"] == group) {
            groups.push(api_group(group, &versions));
        }
    }
    Ok(())
}

/// Returns the groups of aggregated API servers in the form of aggregated discovery, without those that `known` has.
///
/// # Errors
/// Failure of the store.
pub(super) async fn discovered_groups(
    api: &ApiServer,
    call: &RequestContext,
    known: &Value,
) -> Result<Vec<Value>, Status> {
    let mut versions = shown_versions(api, call).await?;
    let items = known["items"].as_array().map_or(&[][..], Vec::as_slice);
    versions.retain(|own| !items.iter().any(|item| item["metadata"]["name"] == own.group));
    let identity = api.front_proxies.of(call.cluster.id);
    let webhooks = &api.reads.conversion.webhooks;
    let reader = ResourceReader { webhooks, cluster: call.cluster.id, identity: identity.as_deref() };
    let resources = api.aggregated.of_all(&reader, &versions).await;
    let all: Vec<_> = versions.iter().zip(resources).collect();
    let groups = by_group(&versions).into_iter().map(|(group, own)| {
        let list = |version: &AggregatedVersion| {
            all.iter().find(|(known, _)| std::ptr::eq(*known, version)).and_then(|(_, list)| list.clone())
        };
        let versions: Vec<_> = own.into_iter().map(|version| (version, list(version))).collect();
        group_discovery(group, &versions)
    });
    Ok(groups.collect())
}

/// Returns the `APIGroup` of a group that aggregated API servers serve; `None` if none does.
///
/// # Errors
/// Failure of the store.
pub(super) async fn group(api: &ApiServer, call: &RequestContext) -> Result<Option<Value>, Status> {
    if call.view.is_some() {
        return Ok(None);
    }
    let versions = shown_versions(api, call).await?;
    let groups = by_group(&versions);
    let found = groups.iter().find(|(group, _)| *group == call.captures.group);
    Ok(found.map(|(group, versions)| {
        let mut document = api_group(group, versions);
        (document["kind"], document["apiVersion"]) = ("APIGroup".into(), "v1".into());
        document
    }))
}

/// Adds the documents of aggregated API servers to the index of OpenAPI v3. Their hashes are not known here.
///
/// # Errors
/// Failure of the store.
pub(super) async fn add_documents(api: &ApiServer, call: &RequestContext, index: &mut Value) -> Result<(), Status> {
    let versions = shown_versions(api, call).await?;
    let Some(paths) = index["paths"].as_object_mut() else { return Ok(()) };
    for own in versions {
        let name = format!("apis/{}/{}", own.group, own.version);
        let url = format!("/openapi/v3/{name}");
        paths.entry(name).or_insert_with(|| json!({"serverRelativeURL": url}));
    }
    Ok(())
}

/// Returns the version whose OpenAPI document a request names, if another API server serves it.
///
/// # Errors
/// Failure of the store.
pub(super) async fn version_of_document(
    api: &ApiServer,
    call: &RequestContext,
) -> Result<Option<AggregatedVersion>, Status> {
    let segments: Vec<&str> = call.captures.rest.split('/').collect();
    match *segments {
        ["apis", group, version] if call.view.is_none() && !is_builtin(group) => {
            AggregatedVersion::read(&api.storage, call.cluster.id, (group, version)).await
        }
        _ => Ok(None),
    }
}

async fn shown_versions(api: &ApiServer, call: &RequestContext) -> Result<Vec<AggregatedVersion>, Status> {
    if call.view.is_some() {
        return Ok(Vec::new());
    }
    let mut versions = AggregatedVersion::all(&api.storage, call.cluster.id).await?;
    versions.retain(|own| !is_builtin(&own.group));
    Ok(versions)
}
