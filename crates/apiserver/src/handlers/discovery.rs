//! Discovery: which groups, versions and resources there are.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY},
};
use portolan_machinery::{
    discovery,
    kinds::{Kind, KindTable},
};
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

/// The kinds of all logical clusters.
pub(super) fn kinds() -> &'static [Arc<Kind>] {
    static SERVED: LazyLock<Vec<Arc<Kind>>> =
        LazyLock::new(|| KindTable::builtin().kinds().filter(|kind| kind.served).cloned().collect());
    &SERVED
}

/// A document that is made once, with its hash.
struct Document {
    value: Value,
    bytes: Bytes,
    etag: String,
}

impl Document {
    fn new(value: Value) -> Self {
        let bytes = Bytes::from(serde_json::to_vec(&value).expect("a JSON tree serializes into memory"));
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
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(aggregated_type(media)));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(ETAG, etag);
        }
        Ok(response)
    }
}

/// `/api` and `/apis`.
pub(super) fn groups(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    static CORE: LazyLock<Document> = LazyLock::new(|| Document::new(discovery::aggregated_core(kinds())));
    static GROUPS: LazyLock<Document> = LazyLock::new(|| Document::new(discovery::aggregated_groups(kinds())));
    let is_core = call.path == "/api";
    if let Some(media) = aggregated(&call.headers) {
        return if is_core { CORE.answer(call, media) } else { GROUPS.answer(call, media) };
    }
    let document = match is_core {
        true => discovery::api_versions(&api.address().to_string()),
        false => discovery::api_group_list(kinds()),
    };
    encode::document(call, &[], &document)
}

/// `/apis/<group>`.
pub(super) fn group(_api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let document = discovery::api_group(kinds(), &call.captures.group).ok_or_else(Status::no_such_path)?;
    encode::document(call, OBJECT_TYPES, &document)
}

/// `/api/v1`, `/apis/<group>/<version>`.
pub(super) fn group_version(_api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let version = GroupVersion::new(call.captures.group.as_str(), call.captures.version.as_str());
    let document = discovery::api_resource_list(kinds(), &version).ok_or_else(Status::no_such_path)?;
    encode::document(call, OBJECT_TYPES, &document)
}

/// `/`: what paths there are.
pub(super) fn index(_api: &ApiServer) -> Response<Body> {
    let mut paths: Vec<String> = routes::ROUTES
        .iter()
        .filter(|route| !route.pattern.contains('{') && route.pattern != "/")
        .map(|route| route.pattern.to_owned())
        .collect();
    paths.push("/apis/".into());
    for kind in kinds() {
        match &*kind.gvk.group {
            "" => paths.push(format!("/api/{}", kind.gvk.version)),
            group => paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{}", kind.gvk.version)]),
        }
    }
    paths.sort();
    paths.dedup();
    encode::json(200, &json!({"paths": paths}))
}
