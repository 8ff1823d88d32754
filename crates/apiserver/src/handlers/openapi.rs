//! OpenAPI: v3 as an index and a document per group version, v2 as one document. Each document is built once and shared
//! by all logical clusters that serve the same kinds.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY},
};
use portolan_kinds::openapi;
use portolan_types::{Seams, Status};

use crate::{
    ApiServer, Body,
    encode::{self, empty, finish, full},
    hooks::TextSource,
    kinds::{ApiDocuments, DefinitionCatalog, OpenApiFiles, build_files, swagger_of},
    request::RequestContext,
};

use super::aggregation;

/// Form of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenApiForm {
    Json,
    Protobuf,
}

const V3: [(&str, OpenApiForm); 3] = [
    (JSON, OpenApiForm::Json),
    (openapi::DOCUMENT_PROTOBUF, OpenApiForm::Protobuf),
    ("application/com.github.proto-openapi.spec.v3@v1.0+protobuf", OpenApiForm::Protobuf),
];
const V2: [(&str, OpenApiForm); 3] = [
    (JSON, OpenApiForm::Json),
    (openapi::SWAGGER_PROTOBUF, OpenApiForm::Protobuf),
    ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", OpenApiForm::Protobuf),
];
const JSON: &str = "application/json";

/// Returns the documents, built on a blocking thread so that other requests are not delayed.
async fn load_files(
    kinds: &DefinitionCatalog,
    texts: &Arc<dyn TextSource>,
    call: &RequestContext,
) -> Result<(Arc<ApiDocuments>, OpenApiFiles), Status> {
    let served = match &call.view {
        None => kinds.served(call.cluster.id).await?,
        // Not restricted, because it is shared: the schemas of built-in kinds are not secret.
        Some(view) if view.flattened.is_some() => kinds.flattened(view).await?,
        Some(view) => kinds.viewed(view).await?,
    };
    let documents = kinds.documents(&served);
    if let Some(known) = documents.by_name.get() {
        return Ok((documents.clone(), known.clone()));
    }
    let (own, builtin, texts) = (documents.clone(), kinds.builtin(), texts.clone());
    let shared = kinds.documents(&builtin);
    let making = tokio::task::spawn_blocking(move || {
        let all = shared.by_name.get_or_init(|| build_files(&builtin.surface, None, &*texts));
        own.by_name.get_or_init(|| build_files(&served.surface, Some(all), &*texts)).clone()
    });
    Ok((documents, making.await.map_err(Status::internal)?))
}

/// `/openapi/v3`.
pub(super) async fn index(api: &Arc<ApiServer>, call: &RequestContext) -> Result<Response<Body>, Status> {
    let (_, documents) = load_files(&api.kinds, &api.config.hooks.texts, call).await?;
    let mut value = openapi::index(documents.iter().map(|(name, document)| (name.as_str(), document.hash.as_str())));
    Box::pin(aggregation::add_documents(api, call, &mut value)).await?;
    // kube-apiserver sends this type, although it is wrong.
    Ok(finish(200, "text/plain; charset=utf-8", full(value.to_string())))
}

/// `/openapi/v3/<name>`: `apis/<group>/<version>` and so on.
pub(super) async fn document(api: &Arc<ApiServer>, call: &Arc<RequestContext>) -> Result<Response<Body>, Status> {
    let (_, documents) = load_files(&api.kinds, &api.config.hooks.texts, call).await?;
    let Some(document) = documents.get(&call.captures.rest) else {
        return match Box::pin(aggregation::version_of_document(api, call)).await? {
            Some(version) => Box::pin(aggregation::forward(api, call, &version, None)).await,
            None => Ok(without_body(404)),
        };
    };
    let Some(form) = encode::preferred(&call.headers, &V3) else {
        return Ok(with_vary(without_body(406), &["Accept"]));
    };
    let media = if form == OpenApiForm::Json { JSON } else { openapi::DOCUMENT_PROTOBUF };
    let asked = call.query.text("hash");
    if !asked.is_empty() && asked != document.hash {
        return Ok(with_vary(redirect(call, media, &document.hash), &["Accept"]));
    }
    let body = match form {
        _ if has_current_hash(call, &document.hash) => None,
        OpenApiForm::Json => Some(document.json.clone()),
        OpenApiForm::Protobuf => Some(document.in_protobuf().await?),
    };
    let mut response = with_hash(call, &document.hash, media, body);
    let headers = response.headers_mut();
    if asked.is_empty() {
        drop(headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private")))
    } else {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        if let Some(value) = next_year(api.seams()) {
            headers.insert(EXPIRES, value);
        }
    }
    Ok(response)
}

/// `/openapi/v2`: protobuf for clients that request it, else JSON.
pub(super) async fn swagger(api: &Arc<ApiServer>, call: &RequestContext) -> Result<Response<Body>, Status> {
    let (own, documents) = load_files(&api.kinds, &api.config.hooks.texts, call).await?;
    if own.swagger.get().is_none() {
        let (own, all) = (own.clone(), documents.clone());
        let making = tokio::task::spawn_blocking(move || {
            own.swagger.get_or_init(|| swagger_of(&all));
        });
        making.await.map_err(Status::internal)?;
    }
    let swagger = own.swagger.get_or_init(|| swagger_of(&documents));
    let varying = ["Accept-Encoding", "Accept"];
    let (media, body) = match encode::preferred(&call.headers, &V2) {
        None => return Ok(with_vary(without_body(406), &varying)),
        Some(OpenApiForm::Json) => (JSON, Some(&swagger.json)),
        Some(OpenApiForm::Protobuf) => (openapi::SWAGGER_PROTOBUF, swagger.protobuf.get()),
    };
    let body = body.filter(|_| !has_current_hash(call, &swagger.hash)).cloned();
    Ok(with_vary(with_hash(call, &swagger.hash, media, body), &varying))
}

/// Returns true if the client has the document with this hash.
fn has_current_hash(call: &RequestContext, hash: &str) -> bool {
    let own = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag) == format!("\"{hash}\"");
    call.header(IF_NONE_MATCH).split(',').map(str::trim).any(|tag| tag == "*" || own(tag))
}

/// Returns the document with its hash, or 304 if the client has it.
fn with_hash(call: &RequestContext, hash: &str, media: &'static str, body: Option<Bytes>) -> Response<Body> {
    let mut response = match body {
        None => without_body(304),
        Some(body) => encode::packed(finish(200, media, full(Bytes::new())), encode::wants_gzip(&call.headers), body),
    };
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(value) = HeaderValue::from_str(&format!("\"{hash}\"")) {
        headers.insert(ETAG, value);
    }
    response
}

/// Returns a response without body and content type.
fn without_body(code: u16) -> Response<Body> {
    let mut response = finish(code, "text/plain", empty());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

fn with_vary(mut response: Response<Body>, with: &[&'static str]) -> Response<Body> {
    response.headers_mut().remove(VARY);
    for name in with {
        response.headers_mut().append(VARY, HeaderValue::from_static(name));
    }
    response
}

/// Redirects a request with an outdated hash to the current one.
fn redirect(call: &RequestContext, media: &'static str, hash: &str) -> Response<Body> {
    let mut response = finish(301, media, empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let path = call.uri.path();
    if let Ok(value) = HeaderValue::from_str(&format!("{path}?hash={hash}")) {
        response.headers_mut().insert(LOCATION, value);
    }
    if let Ok(value) = HeaderValue::from_str(&format!("\"{hash}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

fn next_year(seams: &Seams) -> Option<HeaderValue> {
    let later = seams.clock.now() + jiff::SignedDuration::from_hours(365 * 24);
    HeaderValue::from_str(&later.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()).ok()
}
