//! Discovery: which groups, versions and resources there are.

use std::sync::{Arc, LazyLock};

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
    encode::{self, empty, full},
    routes,
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The kinds of all logical clusters.
pub(super) fn kinds() -> &'static [Arc<Kind>] {
    static SERVED: LazyLock<Vec<Arc<Kind>>> =
        LazyLock::new(|| KindTable::builtin().kinds().filter(|kind| kind.served).cloned().collect());
    &SERVED
}

/// A document that is made once, with its hash.
struct Document {
    bytes: Vec<u8>,
    etag: String,
}

impl Document {
    fn new(value: &Value) -> Self {
        let bytes = serde_json::to_vec(value).expect("a JSON tree serializes into memory");
        let hash: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02X}")).collect();
        Self { etag: format!("\"{hash}\""), bytes }
    }

    fn answer(&self, call: &Call) -> Response<Body> {
        let known = call.headers.get(IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == self.etag.as_bytes());
        let mut response = Response::new(if known { empty() } else { full(self.bytes.clone()) });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(ETAG, etag);
        }
        response
    }
}

/// Whether the client wants one document for all groups, before any other form.
fn wants_aggregated(call: &Call) -> bool {
    let values = call.headers.get_all(http::header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = values.flat_map(|value| value.split(',')).map(str::trim);
    ranges
        .find_map(|range| {
            let has = |part: &str| range.split(';').any(|own| own.trim() == part);
            let json = has("application/json") || has("*/*");
            match (json, has("as=APIGroupDiscoveryList")) {
                (true, true) if has("v=v2") && has("g=apidiscovery.k8s.io") => Some(true),
                (true, false) => Some(false),
                _ => None,
            }
        })
        .unwrap_or(false)
}

/// `/api` and `/apis`.
pub(super) fn groups(api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    static CORE: LazyLock<Document> = LazyLock::new(|| Document::new(&discovery::aggregated_core(kinds())));
    static GROUPS: LazyLock<Document> = LazyLock::new(|| Document::new(&discovery::aggregated_groups(kinds())));
    let is_core = call.path == "/api";
    if wants_aggregated(call) {
        return Ok(if is_core { CORE.answer(call) } else { GROUPS.answer(call) });
    }
    let document = match is_core {
        true => discovery::api_versions(&api.address().to_string()),
        false => discovery::api_group_list(kinds()),
    };
    Ok(encode::json(200, &document))
}

/// `/apis/<group>`.
pub(super) fn group(_api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let document = discovery::api_group(kinds(), &call.captures.group).ok_or_else(Status::no_such_path)?;
    Ok(encode::json(200, &document))
}

/// `/api/v1`, `/apis/<group>/<version>`.
pub(super) fn group_version(_api: &ApiServer, call: &Call) -> Result<Response<Body>, Status> {
    let version = GroupVersion::new(call.captures.group.as_str(), call.captures.version.as_str());
    let document = discovery::api_resource_list(kinds(), &version).ok_or_else(Status::no_such_path)?;
    Ok(encode::json(200, &document))
}

/// `/`: what paths there are.
pub(super) fn index(_api: &ApiServer) -> Response<Body> {
    let mut paths: Vec<String> = routes::ROUTES
        .iter()
        .filter(|route| !route.pattern.contains('{') && route.pattern != "/")
        .map(|route| route.pattern.to_owned())
        .collect();
    for kind in kinds() {
        let path = match &*kind.gvk.group {
            "" => format!("/api/{}", kind.gvk.version),
            group => format!("/apis/{group}/{}", kind.gvk.version),
        };
        paths.push(path);
    }
    paths.sort();
    paths.dedup();
    encode::json(200, &json!({"paths": paths}))
}
