//! OpenAPI: v3 as an index and a document per group version and for what is around those, v2 as one document; each made once and
//! shared by all logical clusters that serve the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY},
};
use portolan_machinery::{
    kinds::{Kind, KindTable, Surface},
    openapi::{self, Texts},
};
use portolan_types::{GroupVersion, Status};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::discovery::DiscoveryDocuments;
use crate::{
    ApiServer, Body,
    call::Call,
    encode::{self, empty, finish, full},
    hooks::TextSource,
};

struct Document {
    json: Bytes,
    /// Of the JSON, and as upstream of both forms.
    hash: String,
    /// Made when first asked for.
    protobuf: OnceCell<Bytes>,
}

/// A form of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Protobuf,
}

const V3: [(&str, Form); 3] = [
    (JSON, Form::Json),
    (openapi::DOCUMENT_PROTOBUF, Form::Protobuf),
    ("application/com.github.proto-openapi.spec.v3@v1.0+protobuf", Form::Protobuf),
];
const V2: [(&str, Form); 3] = [
    (JSON, Form::Json),
    (openapi::SWAGGER_PROTOBUF, Form::Protobuf),
    ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", Form::Protobuf),
];
const JSON: &str = "application/json";

/// The documents, made when first asked for.
#[derive(Default)]
pub(crate) struct ApiDocuments {
    pub(super) discovery: DiscoveryDocuments,
    by_name: OnceLock<ByName>,
    swagger: OnceLock<Document>,
}

/// By their names in the index.
type ByName = BTreeMap<String, Arc<Document>>;

/// The documents of a surface. `builtin` are those of the built-in kinds, which all others share.
fn made(surface: &Surface, builtin: Option<&ByName>, texts: &dyn TextSource) -> ByName {
    let served = |kinds: &mut dyn Iterator<Item = (&Arc<KindTable>, &Arc<Kind>)>| -> BTreeSet<GroupVersion> {
        kinds.filter(|(_, kind)| kind.served).map(|(_, kind)| kind.group_version()).collect()
    };
    let texts = texts.read();
    let (mut documents, wanted) = match builtin {
        None => {
            let wanted = served(&mut surface.kinds());
            (around(&wanted, &*texts), wanted)
        }
        Some(builtin) => (builtin.clone(), served(&mut surface.own_kinds())),
    };
    for version in wanted {
        let kinds = surface.kinds().filter(|(_, kind)| kind.served && kind.group_version() == version);
        let kinds: Vec<(&KindTable, &Kind)> = kinds.map(|(table, kind)| (&**table, &**kind)).collect();
        let document = Document::of(&openapi::document(&version, &kinds, &*texts));
        documents.insert(openapi::name(&version), Arc::new(document));
    }
    documents
}

/// The documents of what is around these versions.
fn around(versions: &BTreeSet<GroupVersion>, texts: &dyn Texts) -> ByName {
    let groups: BTreeSet<&str> = versions.iter().map(|version| &*version.group).collect();
    let documents = openapi::around(groups, texts).into_iter();
    documents.map(|(name, document)| (name, Arc::new(Document::of(&document)))).collect()
}

impl Document {
    fn of(value: &Value) -> Self {
        let json = serde_json::to_vec(value).expect("a JSON tree serializes into memory");
        Self { hash: openapi::hash(&json), json: json.into(), protobuf: OnceCell::new() }
    }

    fn bytes(&self) -> usize {
        self.json.len() + self.protobuf.get().map_or(0, Bytes::len)
    }

    /// In protobuf. It is made once, also when whoever asked first does not wait for it.
    ///
    /// # Errors
    /// 500 when the server is going down.
    async fn in_protobuf(self: &Arc<Self>) -> Result<Bytes, Status> {
        if let Some(made) = self.protobuf.get() {
            return Ok(made.clone());
        }
        let document = self.clone();
        let making = tokio::spawn(async move {
            let json = document.json.clone();
            let make = || tokio::task::spawn_blocking(move || openapi::document_protobuf(&parsed(&json)).into());
            document.protobuf.get_or_try_init(make).await.cloned()
        });
        making.await.map_err(Status::internal)?.map_err(Status::internal)
    }
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("we wrote this JSON ourselves")
}

/// The v2 document in both of its forms.
fn swagger_of(documents: &ByName) -> Document {
    let all: Vec<Value> = documents.values().map(|document| parsed(&document.json)).collect();
    let swagger = openapi::swagger(&all);
    let protobuf = OnceCell::new_with(Some(openapi::swagger_protobuf(&swagger).into()));
    Document { protobuf, ..Document::of(&swagger) }
}

impl ApiDocuments {
    /// Bytes that they take, those left out that are shared with others.
    pub(crate) fn bytes(&self) -> usize {
        let own = self.by_name.get().into_iter().flat_map(BTreeMap::values).filter(|own| Arc::strong_count(own) == 1);
        let swagger = self.swagger.get().map_or(0, Document::bytes);
        own.map(|own| own.bytes()).sum::<usize>() + swagger + self.discovery.bytes()
    }

    #[cfg(test)]
    pub(crate) fn of_size(bytes: usize) -> Self {
        let document = Document { json: vec![0; bytes].into(), hash: String::new(), protobuf: OnceCell::new() };
        Self { swagger: OnceLock::from(document), ..Self::default() }
    }
}

/// Making the documents takes a moment, which must not hold up other requests.
async fn prepared(api: &Arc<ApiServer>, call: &Call) -> Result<(Arc<ApiDocuments>, ByName), Status> {
    let served = api.kinds.served(call.cluster.id).await?;
    let documents = api.kinds.documents(&served);
    if let Some(known) = documents.by_name.get() {
        return Ok((documents.clone(), known.clone()));
    }
    let (own, builtin, texts) = (documents.clone(), api.kinds.builtin(), api.config.hooks.texts.clone());
    let shared = api.kinds.documents(&builtin);
    let making = tokio::task::spawn_blocking(move || {
        let all = shared.by_name.get_or_init(|| made(&builtin.surface, None, &*texts));
        own.by_name.get_or_init(|| made(&served.surface, Some(all), &*texts)).clone()
    });
    Ok((documents, making.await.map_err(Status::internal)?))
}

/// `/openapi/v3`.
pub(super) async fn index(api: &Arc<ApiServer>, call: &Call) -> Result<Response<Body>, Status> {
    let (_, documents) = prepared(api, call).await?;
    let value = openapi::index(documents.iter().map(|(name, document)| (name.as_str(), document.hash.as_str())));
    // The type is kube-apiserver's, wrong as it is.
    Ok(finish(200, "text/plain; charset=utf-8", full(value.to_string())))
}

/// `/openapi/v3/<name>`: `apis/<group>/<version>` and so on.
pub(super) async fn document(api: &Arc<ApiServer>, call: &Call) -> Result<Response<Body>, Status> {
    let (_, documents) = prepared(api, call).await?;
    let Some(document) = documents.get(&call.captures.rest) else { return Ok(bare(404)) };
    let Some(form) = encode::preferred(&call.headers, &V3) else { return Ok(varies(bare(406), &["Accept"])) };
    let media = if form == Form::Json { JSON } else { openapi::DOCUMENT_PROTOBUF };
    let asked = call.query.text("hash");
    if !asked.is_empty() && asked != document.hash {
        return Ok(varies(moved(call, media, &document.hash), &["Accept"]));
    }
    let body = match form {
        _ if is_known(call, &document.hash) => None,
        Form::Json => Some(document.json.clone()),
        Form::Protobuf => Some(document.in_protobuf().await?),
    };
    let mut response = sent(call, &document.hash, media, body);
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
            own.swagger.get_or_init(|| swagger_of(&all));
        });
        making.await.map_err(Status::internal)?;
    }
    let swagger = own.swagger.get_or_init(|| swagger_of(&documents));
    let varying = ["Accept-Encoding", "Accept"];
    let (media, body) = match encode::preferred(&call.headers, &V2) {
        None => return Ok(varies(bare(406), &varying)),
        Some(Form::Json) => (JSON, Some(&swagger.json)),
        Some(Form::Protobuf) => (openapi::SWAGGER_PROTOBUF, swagger.protobuf.get()),
    };
    let body = body.filter(|_| !is_known(call, &swagger.hash)).cloned();
    Ok(varies(sent(call, &swagger.hash, media, body), &varying))
}

/// Whether the client has the document of this hash.
fn is_known(call: &Call, hash: &str) -> bool {
    let own = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag) == format!("\"{hash}\"");
    call.header(IF_NONE_MATCH).split(',').map(str::trim).any(|tag| tag == "*" || own(tag))
}

/// The document of a hash; nothing, of no type, where the client has it already.
fn sent(call: &Call, hash: &str, media: &'static str, body: Option<Bytes>) -> Response<Body> {
    let mut response = match body {
        None => bare(304),
        Some(body) => encode::packed(finish(200, media, full(Bytes::new())), encode::wants_gzip(&call.headers), body),
    };
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(value) = HeaderValue::from_str(&format!("\"{hash}\"")) {
        headers.insert(ETAG, value);
    }
    response
}

/// An answer of a code alone.
fn bare(code: u16) -> Response<Body> {
    let mut response = finish(code, "text/plain", empty());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

fn varies(mut response: Response<Body>, with: &[&'static str]) -> Response<Body> {
    response.headers_mut().remove(VARY);
    for name in with {
        response.headers_mut().append(VARY, HeaderValue::from_static(name));
    }
    response
}

/// A hash that is not the present one leads to it.
fn moved(call: &Call, media: &'static str, hash: &str) -> Response<Body> {
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

fn next_year(api: &ApiServer) -> Option<HeaderValue> {
    let later = api.seams.clock.now() + jiff::SignedDuration::from_hours(365 * 24);
    HeaderValue::from_str(&later.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()).ok()
}
