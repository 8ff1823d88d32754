//! Discovery: the groups, versions and resources that are served.

use std::sync::Arc;

use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY},
};
use portolan_kinds::{Kind, discovery};
use portolan_types::{GroupVersion, Status};
use serde_json::{Value, json};

use super::aggregation;
use super::resource_metrics;
use crate::{
    ApiServer, Body,
    encode::{self, OBJECT_TYPES, ResponseFormat, aggregated, empty, full},
    kinds::{DiscoveryDocument, ServedKinds},
    request::RequestContext,
    routing::routes,
};

/// Returns the content type of aggregated discovery.
fn aggregated_type(media: ResponseFormat) -> &'static str {
    match media {
        ResponseFormat::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ResponseFormat::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ResponseFormat::Protobuf => {
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
    }
}

/// Returns an aggregated document, or 304 if the client has it.
fn answer(
    document: &DiscoveryDocument,
    call: &RequestContext,
    media: ResponseFormat,
) -> Result<Response<Body>, Status> {
    let known = call.headers.get(IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == document.etag.as_bytes());
    let body = match (known, media) {
        (true, _) => empty(),
        (false, ResponseFormat::Json) => full(document.bytes.clone()),
        (false, ResponseFormat::Yaml | ResponseFormat::Protobuf) => {
            full(encode::own_kind(media, false, &document.value)?.1)
        }
    };
    let mut response = Response::new(body);
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(aggregated_type(media)));
    }
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(etag) = HeaderValue::from_str(&document.etag) {
        headers.insert(ETAG, etag);
    }
    Ok(response)
}

/// Returns the served kinds in discovery order, the measured ones last.
fn kinds_in_discovery_order(api: &ApiServer, call: &RequestContext, served: &ServedKinds) -> Vec<Arc<Kind>> {
    let mut kinds = served.kinds();
    if call.view.is_none() && api.config.hooks.usage.is_some() {
        kinds.extend(resource_metrics::kinds().iter().cloned());
    }
    kinds
}

/// Returns a document with the groups of aggregated API servers; `None` without any.
fn with_groups(own: &DiscoveryDocument, added: Vec<Value>) -> Option<DiscoveryDocument> {
    if added.is_empty() {
        return None;
    }
    let mut value = own.value.clone();
    value["items"].as_array_mut()?.extend(added);
    Some(DiscoveryDocument::new(value))
}

/// `/api` and `/apis`.
pub(super) async fn groups(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let served = api.kinds.served_to(call).await?;
    let is_core = call.path == "/api";
    if let Some(media) = aggregated(&call.headers) {
        let documents = api.kinds.documents(&served);
        let documents = &documents.discovery;
        if is_core {
            let core =
                || DiscoveryDocument::new(discovery::aggregated_core(&kinds_in_discovery_order(api, call, &served)));
            return answer(documents.core.get_or_init(core), call, media);
        }
        let groups =
            || DiscoveryDocument::new(discovery::aggregated_groups(&kinds_in_discovery_order(api, call, &served)));
        let own = documents.groups.get_or_init(groups);
        let added = Box::pin(aggregation::discovered_groups(api, call, &own.value)).await?;
        return answer(with_groups(own, added).as_ref().unwrap_or(own), call, media);
    }
    let document = if is_core {
        discovery::api_versions(&api.config.public_authority())
    } else {
        let mut list = discovery::api_group_list(&kinds_in_discovery_order(api, call, &served));
        Box::pin(aggregation::add_groups(api, call, &mut list)).await?;
        list
    };
    encode::document(call, &[], &document)
}

/// `/apis/<group>`.
pub(super) async fn group(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let kinds = kinds_in_discovery_order(api, call, &*api.kinds.served_to(call).await?);
    let document = match discovery::api_group(&kinds, &call.captures.group) {
        Some(own) => Some(own),
        None => Box::pin(aggregation::group(api, call)).await?,
    };
    let document = document.ok_or_else(|| routes::not_found_at(&call.path))?;
    // In kube-apiserver a handler answers this path, not the router.
    encode::document(call, &[], &document)
}

/// `/api/v1`, `/apis/<group>/<version>`.
pub(super) async fn group_version(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let kinds = kinds_in_discovery_order(api, call, &*api.kinds.served_to(call).await?);
    let version = GroupVersion::new(call.captures.group.as_str(), call.captures.version.as_str());
    let document = discovery::api_resource_list(&kinds, &version);
    let document = document.ok_or_else(|| routes::not_found_at(&call.path))?;
    encode::document(call, OBJECT_TYPES, &document)
}

/// `/`: the paths that are served.
pub(super) async fn index(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let mut paths: Vec<String> = routes::ROUTES
        .iter()
        .filter(|route| !route.pattern.contains('{') && route.pattern != "/")
        .map(|route| route.pattern.to_owned())
        .collect();
    paths.push("/apis/".into());
    for kind in kinds_in_discovery_order(api, call, &*api.kinds.served_to(call).await?) {
        match &*kind.gvk.group {
            "" => paths.push(format!("/api/{}", kind.gvk.version)),
            group => paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{}", kind.gvk.version)]),
        }
    }
    paths.sort();
    paths.dedup();
    Ok(encode::indented(&json!({"paths": paths})))
}
