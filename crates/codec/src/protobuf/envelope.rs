//! The envelope around objects, and the frames of watches.

use portolan_gocompat::protowire;
use portolan_types::GroupVersionKind;
use serde_json::Value;

use super::{
    ProtobufError,
    message::Decoder,
    read::{WireReader, WireType},
    write::Encoder,
};
use portolan_kinds::{KindTable, TypeId};

/// The media type of enveloped objects; watches add `;stream=watch`.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
/// The envelope's content encoding and content type, both empty.
const END: [u8; 4] = [3 << 3 | 2, 0, 4 << 3 | 2, 0];

/// Numbers of the fields of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListNumbers {
    /// `metadata` is 1, `items` 2.
    Usual,
    /// `items` is 1, `metadata` 2, in the `PartialObjectMetadataList` of `meta.k8s.io/v1beta1` alone.
    ItemsFirst,
}

impl ListNumbers {
    fn metadata(self) -> u8 {
        match self {
            Self::Usual => 1,
            Self::ItemsFirst => 2,
        }
    }

    fn items(self) -> u32 {
        match self {
            Self::Usual => 2,
            Self::ItemsFirst => 1,
        }
    }
}

/// Returns true if a body starts as an enveloped object.
pub fn is_protobuf(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

/// Returns the object in an enveloped body, as Go would print it in JSON, with the apiVersion and kind of the envelope.
///
/// Options kinds (`DeleteOptions`, …) are taken under any apiVersion: clients send them under that of the resource.
/// Unknown fields are skipped. Memory stays within a fixed multiple of the body's size.
///
/// # Errors
/// Fails if the bytes are no such body, or its kind has no protobuf form in this table.
pub fn decode(body: &[u8], table: &KindTable) -> Result<Value, ProtobufError> {
    decode_also(body, table, None)
}

/// Decodes like [`decode`], but as the given type, so that the table need not have a kind of this name.
///
/// # Errors
/// Fails as [`decode`] does.
pub fn decode_also(
    body: &[u8],
    table: &KindTable,
    also: Option<(&GroupVersionKind, TypeId)>,
) -> Result<Value, ProtobufError> {
    let envelope = Envelope::of(body)?;
    if !envelope.encoding.is_empty() {
        return Err(ProtobufError::Encoded(envelope.encoding));
    }
    let (group, version) = envelope.api_version.split_once('/').unwrap_or(("", &envelope.api_version));
    let is_also =
        |gvk: &GroupVersionKind| (&*gvk.group, &*gvk.version, &*gvk.kind) == (group, version, &*envelope.kind);
    let also = also.filter(|(gvk, _)| is_also(gvk)).map(|(_, schema)| schema);
    let schema = table.object_type(group, version, &envelope.kind).or(also);
    let schema = schema.filter(|id| !table.get(*id).wire.is_empty()).ok_or_else(|| ProtobufError::UnknownKind {
        api_version: envelope.api_version.clone(),
        kind: envelope.kind.clone(),
    })?;
    let mut object = Decoder::new(table, envelope.raw.len()).object(schema, envelope.raw)?;
    object.insert("apiVersion".into(), envelope.api_version.into());
    object.insert("kind".into(), envelope.kind.into());
    Ok(Value::Object(object))
}

/// Returns the object in an enveloped body as one of this type, whatever the envelope states, without apiVersion and
/// kind.
///
/// # Errors
/// Fails if the bytes are no such body, or the message is of another type.
pub fn decode_raw(body: &[u8], schema: TypeId, table: &KindTable) -> Result<Value, ProtobufError> {
    let raw = Envelope::of(body)?.raw;
    Decoder::new(table, raw.len()).object(schema, raw).map(Value::Object)
}

/// Returns the apiVersion and kind of an enveloped body.
///
/// # Errors
/// Fails if the bytes are no such body.
pub fn type_of(body: &[u8]) -> Result<(String, String), ProtobufError> {
    Envelope::of(body).map(|envelope| (envelope.api_version, envelope.kind))
}

/// Returns the enveloped form of an object of this type. apiVersion and kind are taken from the object.
///
/// # Errors
/// `UnknownKind` when the type has no protobuf form, `InvalidValue` when a value does not fit its field.
pub fn encode(object: &Value, schema: TypeId, table: &KindTable) -> Result<Vec<u8>, ProtobufError> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if table.get(schema).wire.is_empty() {
        return Err(ProtobufError::UnknownKind { api_version: api_version.into(), kind: kind.into() });
    }
    let mut out = begin(api_version, kind);
    protowire::message(&mut out, 2, |out| Encoder::new(table).object(schema, object, out))?;
    out.extend_from_slice(&END);
    Ok(out)
}

/// Returns the magic bytes and the type, which precede an object's message.
fn begin(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = Vec::from(MAGIC);
    protowire::message::<std::convert::Infallible>(&mut out, 1, |out| {
        protowire::bytes(out, 1, api_version.as_bytes());
        protowire::bytes(out, 2, kind.as_bytes());
        Ok(())
    })
    .unwrap_or_else(|never| match never {});
    out
}

/// Appends an object to the items of a list, which [`around_items`] frames.
///
/// # Errors
/// Fails as [`encode`] does.
pub fn push_item(
    out: &mut Vec<u8>,
    numbers: ListNumbers,
    object: &Value,
    schema: TypeId,
    table: &KindTable,
) -> Result<(), ProtobufError> {
    protowire::message(out, numbers.items(), |out| Encoder::new(table).object(schema, object, out))
}

/// Returns the bytes before and after the items of an enveloped list whose items take `length` bytes. `list` is the
/// list without its items, `schema` its type.
///
/// # Errors
/// Fails as [`encode`] does.
pub fn around_items(
    list: &Value,
    numbers: ListNumbers,
    schema: TypeId,
    table: &KindTable,
    length: usize,
) -> Result<(Vec<u8>, Vec<u8>), ProtobufError> {
    let text = |name: &str| list.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut metadata = Vec::new();
    Encoder::new(table).object(schema, list, &mut metadata)?;
    let mut head = begin(text("apiVersion"), text("kind"));
    protowire::head(&mut head, 2, metadata.len() + length);
    if numbers == ListNumbers::Usual {
        head.extend_from_slice(&metadata);
        return Ok((head, END.to_vec()));
    }
    // Fields are written in the order of their numbers.
    if let Some(tag) = metadata.first_mut() {
        *tag = numbers.metadata() << 3 | 2;
    }
    metadata.extend_from_slice(&END);
    Ok((head, metadata))
}

/// Returns a frame of a watch: its length, then an event of this type (`ADDED`, …) around an enveloped object.
pub fn watch_frame(event: &str, enveloped: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    protowire::bytes(&mut out, 1, event.as_bytes());
    protowire::message::<std::convert::Infallible>(&mut out, 2, |out| {
        protowire::bytes(out, 1, enveloped);
        Ok(())
    })
    .unwrap_or_else(|never| match never {});
    let length = u32::try_from(out.len() - 4).expect("objects are bounded far below 4 GiB");
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// `runtime.Unknown`.
#[derive(Default)]
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: &'a [u8],
    encoding: String,
}

impl<'a> Envelope<'a> {
    fn of(body: &'a [u8]) -> Result<Self, ProtobufError> {
        match body.strip_prefix(MAGIC) {
            None if body.is_empty() => Err(ProtobufError::Empty("data")),
            None => Err(ProtobufError::NotEnveloped),
            Some([]) => Err(ProtobufError::Empty("body")),
            Some(message) => Self::read(message),
        }
    }

    fn read(data: &'a [u8]) -> Result<Self, ProtobufError> {
        const FIELDS: [&str; 4] = ["TypeMeta", "Raw", "ContentEncoding", "ContentType"];
        let mut envelope = Self::default();
        let mut reader = WireReader::new(data);
        while let Some((field, bytes)) = next_known_field(&mut reader, "Unknown", &FIELDS)? {
            match field {
                0 => envelope.read_type(bytes)?,
                1 => envelope.raw = bytes,
                2 => envelope.encoding = text(bytes),
                _ => {}
            }
        }
        Ok(envelope)
    }

    fn read_type(&mut self, data: &[u8]) -> Result<(), ProtobufError> {
        let mut reader = WireReader::new(data);
        while let Some((field, bytes)) = next_known_field(&mut reader, "TypeMeta", &["APIVersion", "Kind"])? {
            match field {
                0 => self.api_version = text(bytes),
                _ => self.kind = text(bytes),
            }
        }
        Ok(())
    }
}

/// Returns the next of a message's known fields, by its place among them, and its bytes; others are skipped.
fn next_known_field<'a>(
    reader: &mut WireReader<'a>,
    message: &str,
    fields: &[&str],
) -> Result<Option<(usize, &'a [u8])>, ProtobufError> {
    while let Some((number, wire)) = reader.tag(|| message.to_owned())? {
        let at = number as usize - 1;
        match (fields.get(at), wire) {
            (None, wire) => reader.skip(wire)?,
            (Some(_), WireType::Bytes) => return Ok(Some((at, reader.bytes()?))),
            (Some(field), wire) => {
                return Err(ProtobufError::WireType { field: (*field).to_owned(), wire: wire.number() });
            }
        }
    }
    Ok(None)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
