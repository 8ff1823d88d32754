//! Many objects as an answer, made piece by piece.

use bytes::Bytes;
use futures::stream;
use http::{
    HeaderValue, Response,
    header::{CONTENT_ENCODING, VARY},
};
use portolan_machinery::{protobuf, table};
use portolan_store::StoredObject;
use portolan_types::{ResourceVersion, Status};
use serde_json::{Value, json};

use super::{
    Body, Form, Media, Shape,
    body::stream as streamed,
    compress::{MIN_SIZE, gzip},
    finish, full,
};

/// Bytes of one piece of a list.
const PIECE: usize = 64 * 1024;

/// A page of objects.
pub(crate) struct Listing {
    pub(crate) revision: ResourceVersion,
    pub(crate) objects: Vec<StoredObject>,
    pub(crate) token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

impl Listing {
    fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = self.remaining.filter(|_| self.token.is_some()) {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// A page as an answer.
pub(crate) fn list(shape: &Shape, listing: Listing) -> Result<Response<Body>, Status> {
    if !shape.is_stored_form() {
        let bytes = encoded(shape, &listing)?;
        return Ok(packed(finish(200, shape.content_type(), full(Bytes::new())), shape.gzip, bytes));
    }
    let head = head(shape, &listing.metadata());
    let size: usize = listing.objects.iter().map(|o| o.record.body().len() + 48).sum();
    if size <= MIN_SIZE {
        let mut bytes = head;
        write_items(&mut bytes, &mut listing.objects.iter(), true, usize::MAX);
        bytes.extend_from_slice(b"]}");
        return Ok(finish(200, "application/json", full(bytes)));
    }
    let pieces = pieces(head, listing.objects);
    let mut response = finish(200, "application/json", full(Bytes::new()));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if shape.gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = streamed(stream::iter(gzip(pieces)));
    } else {
        *response.body_mut() = streamed(stream::iter(pieces));
    }
    Ok(response)
}

fn list_kind(shape: &Shape) -> String {
    let kind = &shape.target.kind;
    kind.list_kind.as_deref().map_or_else(|| format!("{}List", kind.gvk.kind), str::to_owned)
}

fn head(shape: &Shape, metadata: &Value) -> Vec<u8> {
    let (kind, version) = (list_kind(shape), shape.target.kind.group_version());
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[").into_bytes()
}

/// Appends items until `limit` bytes are there.
fn write_items<'a>(out: &mut Vec<u8>, items: &mut impl Iterator<Item = &'a StoredObject>, first: bool, limit: usize) {
    let mut first = first;
    while out.len() < limit {
        let Some(item) = items.next() else { return };
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        item.record.write_json(item.revision, out);
    }
}

fn pieces(head: Vec<u8>, objects: Vec<StoredObject>) -> impl Iterator<Item = Bytes> + Send {
    let (mut at, mut head, mut done) = (0, Some(head), false);
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let mut out = head.take().unwrap_or_default();
        while out.len() < PIECE && at < objects.len() {
            write_items(&mut out, &mut objects[at..=at].iter(), at == 0, usize::MAX);
            at += 1;
        }
        if at == objects.len() {
            out.extend_from_slice(b"]}");
            done = true;
        }
        Some(Bytes::from(out))
    })
}

/// A page in a form that needs the trees.
fn encoded(shape: &Shape, listing: &Listing) -> Result<Vec<u8>, Status> {
    let trees = listing.objects.iter().map(|o| shape.tree(o)).collect::<Result<Vec<_>, _>>()?;
    let metadata = listing.metadata();
    let value = match shape.accepted.form {
        Form::Table => table::table(&shape.target.kind, &trees, metadata, shape.include, true, shape.now),
        Form::Metadata => {
            let items: Vec<Value> = trees.into_iter().map(super::object::metadata_only).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
        }
        Form::Object => {
            let version = shape.target.kind.group_version().to_string();
            json!({"kind": list_kind(shape), "apiVersion": version, "metadata": metadata, "items": trees})
        }
    };
    match shape.accepted.media {
        Media::Protobuf => {
            let (kind, gvk) = (list_kind(shape), &shape.target.kind.gvk);
            let schema = shape.target.table.object_type(&gvk.group, &gvk.version, &kind);
            let schema = schema.ok_or_else(|| Status::internal("the list has no protobuf form"))?;
            protobuf::encode(&value, schema, shape.target.table).map_err(Status::internal)
        }
        Media::Json | Media::Yaml => shape.bytes(&value),
    }
}

/// Puts bytes into an answer, compressed where it is worth it.
pub(crate) fn packed(mut response: Response<Body>, may_gzip: bool, bytes: impl Into<Bytes>) -> Response<Body> {
    let whole = bytes.into();
    if whole.len() <= MIN_SIZE || !may_gzip {
        *response.body_mut() = full(whole);
        return response;
    }
    let pieces =
        (0..whole.len().div_ceil(PIECE)).map(move |n| whole.slice(n * PIECE..whole.len().min((n + 1) * PIECE)));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    *response.body_mut() = streamed(stream::iter(gzip(pieces)));
    response
}
