//! Discovery: which groups, versions and resources there are.

use std::sync::OnceLock;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY},
};
use portolan_machinery::discovery;
use portolan_types::{GroupVersion, Status};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    ApiServer, Body,
    call::Call,
    encode::{self, Media, OBJECT_TYPES, aggregated, empty, full},
    routes,
};

/// The content type of one document for all groups.
fn aggregated_type(media: Media) -> &'static str {
    match media {
        Media::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Media::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Media::Protobuf => "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    }
}

/// The aggregated documents of the logical clusters that serve the same, made when first asked for.
#[derive(Default)]
pub(crate) struct DiscoveryDocuments {
    core: OnceLock<Document>,
    groups: OnceLock<Document>,
}

impl DiscoveryDocuments {
    /// Bytes that they take, about: trees are so much larger than their text.
    pub(super) fn bytes(&self) -> usize {
        const GROWTH: usize = 5;
        let made = [&self.core, &self.groups].into_iter().filter_map(OnceLock::get);
        made.map(|document| GROWTH * document.bytes.len()).sum()
    }
}

/// A document that is made once, with its hash.
struct Document {
    value: Value,
    bytes: Bytes,
    etag: String,
}

impl Document {
    fn new(value: Value) -> Self {
        let bytes = Bytes::from(encode::json_bytes(&value, false));
        let hash: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02X}")).collect();
        Self { etag: format!("\"{hash}\""), bytes, value }
    }

    fn answer(&self, call: &Call, media: Media) -> Result<Response<Body>, Status> {
        let known = call.headers.get(IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == self.etag.as_bytes());
        let body = match (known, media) {
            (true, _) => empty(),
            (false, Media::Json) => full(self.bytes.clone()),
            (false, Media::Yaml | Media::Protobuf) => full(encode::own_kind(media, false, &self.value)?.1),
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
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(ETAG, etag);
        }
        Ok(response)
    }
}

/// `/api` and `/apis`.
pub(super) async fn groups(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let served = api.kinds.served(call.cluster.id).await?;
    let is_core = call.path == "/api";
    if let Some(media) = aggregated(&call.headers) {
        let documents = api.kinds.documents(&served);
        let documents = &documents.discovery;
        let document = match is_core {
            true => documents.core.get_or_init(|| Document::new(discovery::aggregated_core(&served.kinds()))),
            false => documents.groups.get_or_init(|| Document::new(discovery::aggregated_groups(&served.kinds()))),
        };
        return document.answer(call, media);
    }
    let document = match is_core {
        true => discovery::api_versions(&api.address().to_string()),
        false => discovery::api_group_list(&served.kinds()),
    };
    encode::document(call, &[], &document)
}

/// `/apis/<group>`.
pub(super) async fn group(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let kinds = api.kinds.served(call.cluster.id).await?.kinds();
    let document = discovery::api_group(&kinds, &call.captures.group);
    let document = document.ok_or_else(|| routes::nothing_at(&call.path))?;
    // No route of upstream's is behind it, but a handler of its own.
    encode::document(call, &[], &document)
}

/// `/api/v1`, `/apis/<group>/<version>`.
pub(super) async fn group_version(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let kinds = api.kinds.served(call.cluster.id).await?.kinds();
    let version = GroupVersion::new(call.captures.group.as_str(), call.captures.version.as_str());
    let document = discovery::api_resource_list(&kinds, &version);
    let document = document.ok_or_else(|| routes::nothing_at(&call.path))?;
    encode::document(call, OBJECT_TYPES, &document)
}

/// `/`: what paths there are.
pub(super) async fn index(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let mut paths: Vec<String> = routes::ROUTES
        .iter()
        .filter(|route| !route.pattern.contains('{') && route.pattern != "/")
        .map(|route| route.pattern.to_owned())
        .collect();
    paths.push("/apis/".into());
    for kind in api.kinds.served(call.cluster.id).await?.kinds() {
        match &*kind.gvk.group {
            "" => paths.push(format!("/api/{}", kind.gvk.version)),
            group => paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{}", kind.gvk.version)]),
        }
    }
    paths.sort();
    paths.dedup();
    Ok(encode::indented(&json!({"paths": paths})))
}
