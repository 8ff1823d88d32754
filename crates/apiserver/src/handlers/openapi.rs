//! OpenAPI: v3 as an index and a document per group version, v2 as one document; each made once and shared by all logical
//! clusters that serve the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY},
};
use portolan_machinery::{
    kinds::{Kind, KindTable, Surface},
    openapi,
};
use portolan_types::{GroupVersion, Reason, Status};
use serde_json::Value;

use crate::{
    ApiServer, Body,
    call::Call,
    encode::{self, empty, finish, full},
    hooks::TextSource,
};

struct Document {
    bytes: Bytes,
    hash: String,
}

/// The documents, made when first asked for.
#[derive(Default)]
pub(crate) struct ApiDocuments {
    by_version: OnceLock<ByVersion>,
    swagger: OnceLock<Swagger>,
}

type ByVersion = BTreeMap<GroupVersion, Arc<Document>>;

/// The v2 document in both of its forms.
struct Swagger {
    json: Document,
    protobuf: Document,
}

/// The documents of a surface. `builtin` are those of the built-in kinds, which all others share.
fn made(surface: &Surface, builtin: Option<&ByVersion>, texts: &dyn TextSource) -> ByVersion {
    let served = |kinds: &mut dyn Iterator<Item = (&Arc<KindTable>, &Arc<Kind>)>| -> BTreeSet<GroupVersion> {
        kinds.filter(|(_, kind)| kind.served).map(|(_, kind)| kind.group_version()).collect()
    };
    let (mut documents, wanted) = match builtin {
        None => (ByVersion::new(), served(&mut surface.kinds())),
        Some(builtin) => (builtin.clone(), served(&mut surface.own_kinds())),
    };
    let texts = texts.read();
    for version in wanted {
        let kinds = surface.kinds().filter(|(_, kind)| kind.served && kind.group_version() == version);
        let kinds: Vec<(&KindTable, &Kind)> = kinds.map(|(table, kind)| (&**table, &**kind)).collect();
        let document = Document::of_json(&openapi::document(&version, &kinds, &*texts));
        documents.insert(version, Arc::new(document));
    }
    documents
}

impl Document {
    fn new(bytes: Vec<u8>) -> Self {
        Self { hash: openapi::hash(&bytes), bytes: bytes.into() }
    }

    fn of_json(value: &Value) -> Self {
        Self::new(serde_json::to_vec(value).expect("a JSON tree serializes into memory"))
    }
}

impl Swagger {
    fn of(documents: &ByVersion) -> Self {
        let parsed = documents.values().map(|document| serde_json::from_slice(&document.bytes));
        let parsed: Vec<Value> = parsed.collect::<Result<_, _>>().expect("we wrote this JSON ourselves");
        let swagger = openapi::swagger(&parsed);
        Self { json: Document::of_json(&swagger), protobuf: Document::new(openapi::swagger_protobuf(&swagger)) }
    }
}

impl ApiDocuments {
    /// Bytes that they take, those left out that are shared with others.
    pub(crate) fn bytes(&self) -> usize {
        let own =
            self.by_version.get().into_iter().flat_map(BTreeMap::values).filter(|own| Arc::strong_count(own) == 1);
        let swagger = self.swagger.get().map_or(0, |swagger| swagger.json.bytes.len() + swagger.protobuf.bytes.len());
        own.map(|own| own.bytes.len()).sum::<usize>() + swagger
    }

    #[cfg(test)]
    pub(crate) fn of_size(bytes: usize) -> Self {
        let swagger = || Document::new(vec![0; bytes / 2]);
        Self { swagger: OnceLock::from(Swagger { json: swagger(), protobuf: swagger() }), ..Self::default() }
    }
}

/// Making the documents takes a moment, which must not hold up other requests.
async fn prepared(api: &Arc<ApiServer>, call: &Call) -> Result<(Arc<ApiDocuments>, ByVersion), Status> {
    let served = api.kinds.served(call.cluster.id).await?;
    let documents = api.kinds.documents(&served);
    if let Some(known) = documents.by_version.get() {
        return Ok((documents.clone(), known.clone()));
    }
    let (own, builtin, texts) = (documents.clone(), api.kinds.builtin(), api.config.hooks.texts.clone());
    let shared = api.kinds.documents(&builtin);
    let making = tokio::task::spawn_blocking(move || {
        let all = shared.by_version.get_or_init(|| made(&builtin.surface, None, &*texts));
        own.by_version.get_or_init(|| made(&served.surface, Some(all), &*texts)).clone()
    });
    Ok((documents, making.await.map_err(Status::internal)?))
}

/// `/openapi/v3`.
pub(super) async fn index(api: &Arc<ApiServer>, call: &Call) -> Result<Response<Body>, Status> {
    let (_, documents) = prepared(api, call).await?;
    let value = openapi::index(documents.iter().map(|(version, document)| (version, document.hash.as_str())));
    // The type is kube-apiserver's, wrong as it is.
    Ok(finish(200, "text/plain; charset=utf-8", full(value.to_string())))
}

/// `/openapi/v3/apis/<group>/<version>`.
pub(super) async fn document(api: &Arc<ApiServer>, call: &Call) -> Result<Response<Body>, Status> {
    let version = GroupVersion::new(call.captures.group.as_str(), call.captures.version.as_str());
    let (_, documents) = prepared(api, call).await?;
    let document = documents.get(&version).ok_or_else(Status::no_such_path)?;
    let accept = call.header(http::header::ACCEPT);
    let takes_json =
        accept.is_empty() || ["application/json", "*/*", "application/*"].iter().any(|m| accept.contains(m));
    if !takes_json {
        return Err(Status::new(
            Reason::NotAcceptable,
            "only the following media types are accepted: application/json",
        ));
    }
    let asked = call.query.text("hash");
    if !asked.is_empty() && asked != document.hash {
        return Ok(moved(call, &document.hash));
    }
    let mut response = sent(call, document, "application/json");
    let headers = response.headers_mut();
    match asked.is_empty() {
        true => drop(headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"))),
        false => {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
            if let Some(value) = next_year(api) {
                headers.insert(EXPIRES, value);
            }
        }
    }
    Ok(response)
}

/// `/openapi/v2`: protobuf for those who ask for it, else JSON.
pub(super) async fn swagger(api: &Arc<ApiServer>, call: &Call) -> Result<Response<Body>, Status> {
    let (own, documents) = prepared(api, call).await?;
    if own.swagger.get().is_none() {
        let (own, all) = (own.clone(), documents.clone());
        let making = tokio::task::spawn_blocking(move || {
            own.swagger.get_or_init(|| Swagger::of(&all));
        });
        making.await.map_err(Status::internal)?;
    }
    let swagger = own.swagger.get_or_init(|| Swagger::of(&documents));
    let accept = call.header(http::header::ACCEPT);
    let known = ["application/json", "*/*", "application/*", "proto-openapi.spec.v2"];
    if !accept.is_empty() && !known.iter().any(|media| accept.contains(media)) {
        return Ok(finish(406, "application/json", empty()));
    }
    Ok(match accept.contains("proto-openapi.spec.v2") {
        true => sent(call, &swagger.protobuf, openapi::SWAGGER_PROTOBUF),
        false => sent(call, &swagger.json, "application/json"),
    })
}

/// The document, or that the client has it already.
fn sent(call: &Call, document: &Document, media: &'static str) -> Response<Body> {
    let etag = format!("\"{}\"", document.hash);
    let known = call.headers.get(IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == etag.as_bytes());
    let mut response = match known {
        true => finish(304, media, empty()),
        false => encode::packed(
            finish(200, media, full(Bytes::new())),
            encode::wants_gzip(&call.headers),
            document.bytes.clone(),
        ),
    };
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, value);
    }
    response
}

/// A hash that is not the present one leads to it.
fn moved(call: &Call, hash: &str) -> Response<Body> {
    let mut response = finish(301, "application/json", empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let path = call.uri.path();
    if let Ok(value) = HeaderValue::from_str(&format!("{path}?hash={hash}")) {
        response.headers_mut().insert(LOCATION, value);
    }
    response
}

fn next_year(api: &ApiServer) -> Option<HeaderValue> {
    let later = api.seams.clock.now() + jiff::SignedDuration::from_hours(365 * 24);
    HeaderValue::from_str(&later.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()).ok()
}
