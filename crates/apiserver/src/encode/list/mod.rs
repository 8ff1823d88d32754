//! Responses with many objects, encoded slice by slice while they are sent.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{
    HeaderValue, Response,
    header::{CONTENT_ENCODING, VARY},
};
use portolan_codec::protobuf::{self, ListNumbers};
use portolan_store::StoredObject;
use portolan_types::Status;
use serde_json::{Value, json};

use crate::{
    limits::MemoryCharge,
    objects::{ListResult, ObjectSlices},
};

use super::{
    Body, MetaVersion, ObjectForm, ResponseFormat, ResponseShape,
    body::{BodyError, stream as streamed},
    compress::{MIN_SIZE, gzip},
    finish, full,
    items::ListWriter,
};

/// Bytes of one piece of a complete response.
const PIECE_BYTES: usize = 64 * 1024;
/// Most bytes of protobuf items that are kept until they are sent. A page is never longer.
const MAX_KEPT_ITEMS: usize = 16 * 1024 * 1024;

/// Encodes a list as a response.
pub(crate) async fn list(
    shape: ResponseShape,
    listing: ListResult,
    charge: &MemoryCharge,
) -> Result<Response<Body>, Status> {
    shape.fits()?;
    if shape.accepted.media == ResponseFormat::Protobuf {
        return in_protobuf(shape, listing, charge).await;
    }
    let (content_type, may_gzip) = (shape.content_type(), shape.gzip);
    let mut writer = {
        let metadata = listing.metadata(&shape.target);
        ListWriter::new(shape, metadata)
    };
    let mut out = writer.head()?;
    writer.items(&listing.objects, &mut out)?;
    let response = finish(200, content_type, full(Bytes::new()));
    let Some(rest) = listing.rest else {
        writer.tail(&mut out);
        return Ok(packed(response, may_gzip, out));
    };
    let first = stream::once(async move { Ok(Bytes::from(out)) });
    let pieces = first.chain(stream::try_unfold(Some((writer, rest)), next_piece));
    Ok(sent(response, may_gzip, pieces))
}

/// Returns the next slice as bytes, or the end of the list.
async fn next_piece(
    state: Option<(ListWriter, ObjectSlices)>,
) -> Result<Option<(Bytes, Option<(ListWriter, ObjectSlices)>)>, Status> {
    let Some((mut writer, mut rest)) = state else { return Ok(None) };
    let mut out = Vec::new();
    let Some(objects) = rest.next().await? else {
        writer.tail(&mut out);
        return Ok(Some((out.into(), None)));
    };
    writer.items(&objects, &mut out)?;
    Ok(Some((out.into(), Some((writer, rest)))))
}

/// Encodes a list as protobuf. The length of a message precedes it, so all items are encoded before the first byte is
/// sent. They are kept up to a bound; beyond it only their length is kept, and they are read and encoded again while
/// they are sent.
async fn in_protobuf(
    shape: ResponseShape,
    mut listing: ListResult,
    charge: &MemoryCharge,
) -> Result<Response<Body>, Status> {
    let mut items = ProtobufItems { kept: Ok(Vec::new()), length: 0, charge };
    items.add(&shape, &listing.objects)?;
    while let Some(rest) = &mut listing.rest
        && let Some(objects) = rest.next().await?
    {
        items.add(&shape, &objects)?;
    }
    let (head, tail) = list_envelope(&shape, listing.metadata(&shape.target), items.length)?;
    let response = finish(200, shape.content_type(), full(Bytes::new()));
    let gzip = shape.gzip;
    match (items.kept, listing.rest) {
        (Ok(kept), _) if items.length <= MIN_SIZE => Ok(packed(response, false, [head, kept.concat(), tail].concat())),
        (Ok(kept), _) => Ok(sent(response, gzip, framed(head, stream::iter(kept.into_iter().map(Ok)), tail))),
        (Err(_), Some(rest)) => {
            let rest = rest.restart().await?;
            let again = stream::try_unfold(UnencodedItems { shape, rest }, UnencodedItems::encode_next);
            Ok(sent(response, gzip, framed(head, again, tail)))
        }
        (Err(why), None) => Err(why),
    }
}

/// Encoded items, or their length if they are too large to keep.
struct ProtobufItems<'a> {
    kept: Result<Vec<Bytes>, Status>,
    length: usize,
    charge: &'a MemoryCharge,
}

impl ProtobufItems<'_> {
    fn add(&mut self, shape: &ResponseShape, objects: &[StoredObject]) -> Result<(), Status> {
        self.keep(encoded(shape, objects)?);
        Ok(())
    }

    fn keep(&mut self, piece: Bytes) {
        self.length += piece.len();
        let Ok(kept) = &mut self.kept else { return };
        let room = if self.length <= MAX_KEPT_ITEMS {
            self.charge.grow_to(self.length)
        } else {
            Err(Status::internal("a page is larger than its bound"))
        };
        match room {
            Ok(()) => kept.push(piece),
            Err(why) => {
                self.kept = Err(why);
                self.charge.shrink_to(0);
            }
        }
    }
}

fn encoded(shape: &ResponseShape, objects: &[StoredObject]) -> Result<Bytes, Status> {
    let (item, table) = (shape.item_type()?, &shape.target.table);
    let mut piece = Vec::new();
    for object in objects {
        let shown = shape.formed(shape.tree_for_protobuf(object)?);
        protobuf::push_item(&mut piece, shape.list_numbers(), &shown, item, table).map_err(Status::internal)?;
    }
    Ok(piece.into())
}

/// Items that are encoded while they are sent.
struct UnencodedItems {
    shape: ResponseShape,
    rest: ObjectSlices,
}

impl UnencodedItems {
    async fn encode_next(mut self) -> Result<Option<(Bytes, Self)>, Status> {
        let Some(objects) = self.rest.next().await? else { return Ok(None) };
        let piece = encoded(&self.shape, &objects)?;
        Ok(Some((piece, self)))
    }
}

fn framed(
    head: Vec<u8>,
    items: impl stream::Stream<Item = Result<Bytes, Status>> + Send + 'static,
    tail: Vec<u8>,
) -> impl stream::Stream<Item = Result<Bytes, Status>> + Send + 'static {
    let one = |bytes: Vec<u8>| stream::once(async move { Ok(Bytes::from(bytes)) });
    one(head).chain(items).chain(one(tail))
}

/// Encodes the bytes before and after the items of a list in protobuf.
fn list_envelope(shape: &ResponseShape, metadata: Value, length: usize) -> Result<(Vec<u8>, Vec<u8>), Status> {
    let (list_version, list_kind) = (shape.list_version(), shape.list_kind());
    let (group, version) = match shape.accepted.form {
        ObjectForm::Object => list_version.split_once('/').unwrap_or(("", &list_version)),
        // All versions have the same fields and numbers.
        ObjectForm::Metadata(_) | ObjectForm::Table => ("meta.k8s.io", "v1"),
    };
    let table = &shape.target.table;
    let schema = table.object_type(group, version, &list_kind);
    let schema = schema.ok_or_else(|| Status::internal("the list has no protobuf form"))?;
    let list = json!({"kind": list_kind, "apiVersion": list_version, "metadata": metadata});
    protobuf::around_items(&list, shape.list_numbers(), schema, table, length).map_err(Status::internal)
}

/// Returns a response that is sent in pieces.
fn sent(
    mut response: Response<Body>,
    may_gzip: bool,
    pieces: impl stream::Stream<Item = Result<Bytes, Status>> + Send + 'static,
) -> Response<Body> {
    let pieces = pieces.map_err(|failure| {
        tracing::warn!(error = %failure, "a list is cut off");
        BodyError::from(failure)
    });
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    *response.body_mut() = if may_gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        streamed(gzip(Box::pin(pieces)))
    } else {
        streamed(pieces)
    };
    response
}

/// List of deleted objects, encoded as they are deleted and sent as a whole.
pub(crate) struct DeletedList {
    out: Vec<u8>,
    written: DeletedItems,
    charge: MemoryCharge,
}

enum DeletedItems {
    Text(ListWriter),
    Protobuf(ResponseShape, Value),
}

impl DeletedList {
    pub(crate) fn new(shape: ResponseShape, listing: &ListResult, charge: MemoryCharge) -> Result<Self, Status> {
        let metadata = listing.metadata(&shape.target);
        if shape.accepted.media == ResponseFormat::Protobuf {
            return Ok(Self { out: Vec::new(), written: DeletedItems::Protobuf(shape, metadata), charge });
        }
        let mut writer = ListWriter::new(shape, metadata);
        Ok(Self { out: writer.head()?, written: DeletedItems::Text(writer), charge })
    }

    /// Appends a deleted object.
    ///
    /// # Errors
    /// 429 when there is no memory for more; a repeated request deletes the rest.
    pub(crate) fn add(&mut self, object: Value) -> Result<(), Status> {
        self.charge.grow_to(self.out.len())?;
        match &mut self.written {
            DeletedItems::Text(writer) => writer.trees(vec![object], &mut self.out),
            DeletedItems::Protobuf(shape, _) => {
                let (item, table) = (shape.item_type()?, &shape.target.table);
                let shown = shape.formed(object);
                protobuf::push_item(&mut self.out, shape.list_numbers(), &shown, item, table).map_err(Status::internal)
            }
        }
    }

    /// Returns the response.
    ///
    /// # Errors
    /// The errors of [`ResponseShape::fits`]; the objects are deleted by then.
    pub(crate) fn answer(mut self) -> Result<Response<Body>, Status> {
        let (shape, out) = match self.written {
            DeletedItems::Text(mut writer) => {
                writer.tail(&mut self.out);
                (writer.into_shape(), self.out)
            }
            DeletedItems::Protobuf(shape, metadata) => {
                let (head, tail) = list_envelope(&shape, metadata, self.out.len())?;
                (shape, [head, self.out, tail].concat())
            }
        };
        shape.fits()?;
        Ok(packed(finish(200, shape.content_type(), full(Bytes::new())), shape.gzip, out))
    }
}

impl ResponseShape {
    /// Returns the kind of a list in this form.
    pub(super) fn list_kind(&self) -> String {
        let kind = &self.target.kind;
        match self.accepted.form {
            ObjectForm::Object => {
                kind.list_kind.as_deref().map_or_else(|| format!("{}List", kind.gvk.kind), str::to_owned)
            }
            ObjectForm::Metadata(_) => "PartialObjectMetadataList".into(),
            ObjectForm::Table => "Table".into(),
        }
    }

    fn list_numbers(&self) -> ListNumbers {
        match (self.accepted.form, self.accepted.meta) {
            (ObjectForm::Metadata(_), MetaVersion::V1Beta1) => ListNumbers::ItemsFirst,
            _ => ListNumbers::Usual,
        }
    }

    /// Returns the apiVersion of a list in this form.
    pub(super) fn list_version(&self) -> String {
        match self.accepted.form {
            ObjectForm::Object => self.target.kind.group_version().to_string(),
            ObjectForm::Metadata(_) | ObjectForm::Table => self.accepted.meta.api_version().into(),
        }
    }
}

/// Sets the body of a response, compressed if it is large enough.
pub(crate) fn packed(response: Response<Body>, may_gzip: bool, bytes: impl Into<Bytes>) -> Response<Body> {
    let whole = bytes.into();
    if whole.len() <= MIN_SIZE || !may_gzip {
        return response.map(|_| full(whole));
    }
    let pieces = (0..whole.len().div_ceil(PIECE_BYTES))
        .map(move |n| whole.slice(n * PIECE_BYTES..whole.len().min((n + 1) * PIECE_BYTES)));
    sent(response, true, stream::iter(pieces.map(Ok)))
}
