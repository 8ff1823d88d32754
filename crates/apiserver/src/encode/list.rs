//! Many objects as an answer, written slice by slice while it is sent.

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{
    HeaderValue, Response,
    header::{CONTENT_ENCODING, VARY},
};
use portolan_machinery::protobuf::{self, ListNumbers};
use portolan_store::StoredObject;
use portolan_types::{ResourceVersion, Status};
use serde_json::{Value, json};

use crate::{call::Target, limits::Charge, objects::Slices};

use super::{
    Body, Form, Media, MetaVersion, Shape,
    body::{BodyError, stream as streamed},
    compress::{MIN_SIZE, gzip},
    finish, full,
    items::ListWriter,
};

/// Bytes of one piece of an answer that is there as a whole.
const PIECE: usize = 64 * 1024;
/// Bytes of items in protobuf that are kept until they are sent. A page is never longer.
const MAX_KEPT: usize = 16 * 1024 * 1024;

/// A page of objects, or a whole list of which the first slice has been read.
pub(crate) struct Listing {
    pub(crate) revision: ResourceVersion,
    pub(crate) objects: Vec<StoredObject>,
    pub(crate) rest: Option<Slices>,
    pub(crate) token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

impl Listing {
    /// What the list says of itself.
    pub(crate) fn metadata(&self, target: &Target) -> Value {
        let mut metadata = match target.has_no_revision() {
            true => json!({}),
            false => json!({"resourceVersion": self.revision.to_string()}),
        };
        if let Some(token) = &self.token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = self.remaining.filter(|_| self.token.is_some()) {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// A list as an answer.
pub(crate) async fn list(shape: Shape, listing: Listing, charge: &Charge) -> Result<Response<Body>, Status> {
    shape.fits()?;
    if shape.accepted.media == Media::Protobuf {
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

/// The next slice as bytes, or the end of the list.
async fn next_piece(
    state: Option<(ListWriter, Slices)>,
) -> Result<Option<(Bytes, Option<(ListWriter, Slices)>)>, Status> {
    let Some((mut writer, mut rest)) = state else { return Ok(None) };
    let mut out = Vec::new();
    let Some(objects) = rest.next().await? else {
        writer.tail(&mut out);
        return Ok(Some((out.into(), None)));
    };
    writer.items(&objects, &mut out)?;
    Ok(Some((out.into(), Some((writer, rest)))))
}

/// The length of a message stands before it, so the items are encoded before the first byte is sent. As far as they are few, and there
/// is room for them, they are kept; of more only the length is, and they are read and encoded once more while they are sent.
async fn in_protobuf(shape: Shape, mut listing: Listing, charge: &Charge) -> Result<Response<Body>, Status> {
    let mut items = Items { kept: Ok(Vec::new()), length: 0, charge };
    items.add(&shape, &listing.objects)?;
    while let Some(rest) = &mut listing.rest
        && let Some(objects) = rest.next().await?
    {
        items.add(&shape, &objects)?;
    }
    let (head, tail) = around(&shape, listing.metadata(&shape.target), items.length)?;
    let response = finish(200, shape.content_type(), full(Bytes::new()));
    let gzip = shape.gzip;
    match (items.kept, listing.rest) {
        (Ok(kept), _) if items.length <= MIN_SIZE => Ok(packed(response, false, [head, kept.concat(), tail].concat())),
        (Ok(kept), _) => Ok(sent(response, gzip, framed(head, stream::iter(kept.into_iter().map(Ok)), tail))),
        (Err(_), Some(rest)) => {
            let again = stream::try_unfold((shape, rest.again().await?), next_items);
            Ok(sent(response, gzip, framed(head, again, tail)))
        }
        (Err(why), None) => Err(why),
    }
}

/// Encoded items, or how long they are and why they are not kept.
struct Items<'a> {
    kept: Result<Vec<Bytes>, Status>,
    length: usize,
    charge: &'a Charge,
}

impl Items<'_> {
    fn add(&mut self, shape: &Shape, objects: &[StoredObject]) -> Result<(), Status> {
        self.keep(encoded(shape, objects)?);
        Ok(())
    }

    fn keep(&mut self, piece: Bytes) {
        self.length += piece.len();
        let Ok(kept) = &mut self.kept else { return };
        let room = match self.length <= MAX_KEPT {
            true => self.charge.grow_to(self.length),
            false => Err(Status::internal("a page is larger than its bound")),
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

fn encoded(shape: &Shape, objects: &[StoredObject]) -> Result<Bytes, Status> {
    let (item, table) = (shape.item_type()?, &shape.target.table);
    let mut piece = Vec::new();
    for object in objects {
        let shown = shape.formed(shape.tree_for_protobuf(object)?);
        protobuf::push_item(&mut piece, shape.list_numbers(), &shown, item, table).map_err(Status::internal)?;
    }
    Ok(piece.into())
}

async fn next_items((shape, mut rest): (Shape, Slices)) -> Result<Option<(Bytes, (Shape, Slices))>, Status> {
    let Some(objects) = rest.next().await? else { return Ok(None) };
    let piece = encoded(&shape, &objects)?;
    Ok(Some((piece, (shape, rest))))
}

fn framed(
    head: Vec<u8>,
    items: impl stream::Stream<Item = Result<Bytes, Status>> + Send + 'static,
    tail: Vec<u8>,
) -> impl stream::Stream<Item = Result<Bytes, Status>> + Send + 'static {
    let one = |bytes: Vec<u8>| stream::once(async move { Ok(Bytes::from(bytes)) });
    one(head).chain(items).chain(one(tail))
}

/// What stands before and behind the items of a list in protobuf.
fn around(shape: &Shape, metadata: Value, length: usize) -> Result<(Vec<u8>, Vec<u8>), Status> {
    let (list_version, list_kind) = (shape.list_version(), shape.list_kind());
    let (group, version) = match shape.accepted.form {
        Form::Object => list_version.split_once('/').unwrap_or(("", &list_version)),
        // The same in all versions, but for its numbers.
        Form::Metadata(_) | Form::Table => ("meta.k8s.io", "v1"),
    };
    let table = &shape.target.table;
    let schema = table.object_type(group, version, &list_kind);
    let schema = schema.ok_or_else(|| Status::internal("the list has no protobuf form"))?;
    let list = json!({"kind": list_kind, "apiVersion": list_version, "metadata": metadata});
    protobuf::around_items(&list, shape.list_numbers(), schema, table, length).map_err(Status::internal)
}

/// An answer in pieces.
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
    *response.body_mut() = match may_gzip {
        true => {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            streamed(gzip(Box::pin(pieces)))
        }
        false => streamed(pieces),
    };
    response
}

/// A list that is put together from trees and answered as a whole.
pub(crate) struct Deletions {
    out: Vec<u8>,
    written: Written,
    charge: Charge,
}

enum Written {
    Text(ListWriter),
    Protobuf(Shape, Value),
}

impl Deletions {
    pub(crate) fn new(shape: Shape, listing: &Listing, charge: Charge) -> Result<Self, Status> {
        let metadata = listing.metadata(&shape.target);
        if shape.accepted.media == Media::Protobuf {
            return Ok(Self { out: Vec::new(), written: Written::Protobuf(shape, metadata), charge });
        }
        let mut writer = ListWriter::new(shape, metadata);
        Ok(Self { out: writer.head()?, written: Written::Text(writer), charge })
    }

    /// # Errors
    /// 429 when there is no room for more: who asks again has the rest deleted.
    pub(crate) fn add(&mut self, object: Value) -> Result<(), Status> {
        self.charge.grow_to(self.out.len())?;
        match &mut self.written {
            Written::Text(writer) => writer.trees(vec![object], &mut self.out),
            Written::Protobuf(shape, _) => {
                let (item, table) = (shape.item_type()?, &shape.target.table);
                let shown = shape.formed(object);
                protobuf::push_item(&mut self.out, shape.list_numbers(), &shown, item, table).map_err(Status::internal)
            }
        }
    }

    /// # Errors
    /// Those of [`Shape::fits`]: what is deleted is deleted.
    pub(crate) fn answer(mut self) -> Result<Response<Body>, Status> {
        let (shape, out) = match self.written {
            Written::Text(mut writer) => {
                writer.tail(&mut self.out);
                (writer.into_shape(), self.out)
            }
            Written::Protobuf(shape, metadata) => {
                let (head, tail) = around(&shape, metadata, self.out.len())?;
                (shape, [head, self.out, tail].concat())
            }
        };
        shape.fits()?;
        Ok(packed(finish(200, shape.content_type(), full(Bytes::new())), shape.gzip, out))
    }
}

impl Shape {
    /// The kind of a list in this form.
    pub(super) fn list_kind(&self) -> String {
        let kind = &self.target.kind;
        match self.accepted.form {
            Form::Object => kind.list_kind.as_deref().map_or_else(|| format!("{}List", kind.gvk.kind), str::to_owned),
            Form::Metadata(_) => "PartialObjectMetadataList".into(),
            Form::Table => "Table".into(),
        }
    }

    fn list_numbers(&self) -> ListNumbers {
        match (self.accepted.form, self.accepted.meta) {
            (Form::Metadata(_), MetaVersion::V1Beta1) => ListNumbers::ItemsFirst,
            _ => ListNumbers::Usual,
        }
    }

    /// Its apiVersion.
    pub(super) fn list_version(&self) -> String {
        match self.accepted.form {
            Form::Object => self.target.kind.group_version().to_string(),
            Form::Metadata(_) | Form::Table => self.accepted.meta.api_version().into(),
        }
    }
}

/// Puts bytes into an answer, compressed where it is worth it.
pub(crate) fn packed(response: Response<Body>, may_gzip: bool, bytes: impl Into<Bytes>) -> Response<Body> {
    let whole = bytes.into();
    if whole.len() <= MIN_SIZE || !may_gzip {
        return response.map(|_| full(whole));
    }
    let pieces =
        (0..whole.len().div_ceil(PIECE)).map(move |n| whole.slice(n * PIECE..whole.len().min((n + 1) * PIECE)));
    sent(response, true, stream::iter(pieces.map(Ok)))
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;

    use super::*;
    use crate::{
        User,
        config::Limits,
        limits::{Admittance, Whose},
        metrics::Metrics,
    };

    #[test]
    fn a_page_that_nobody_has_room_for_may_be_asked_for_again() {
        let limits = Limits { bytes: 4 * MAX_KEPT, ..Limits::default() };
        let places = Admittance::new(&limits, &Metrics::new(prometheus::Registry::new()));
        let charge = |tenant| {
            let cluster = LogicalClusterId::new(tenant);
            places.charge(&Whose { tenant: cluster, cluster, user: &User::default() })
        };
        for (case, held, length, code) in [
            ("there is room", 0, MAX_KEPT, None),
            ("others have it", limits.bytes / 2, MAX_KEPT, Some(429)),
            ("no page is so long", 0, MAX_KEPT + 1, Some(500)),
        ] {
            let others = [charge(5), charge(6)];
            others[0].grow_to(held).unwrap();
            others[1].grow_to(held * 5 / 8).unwrap();
            let own = charge(7);
            let mut items = Items { kept: Ok(Vec::new()), length: 0, charge: &own };
            items.keep(vec![0; length / 2].into());
            items.keep(vec![0; length - length / 2].into());
            drop(others);
            assert_eq!(items.kept.map(drop).err().map(|why| why.code()), code, "{case}");
            assert_eq!(items.length, length, "{case}");
        }
    }
}
