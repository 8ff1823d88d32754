//! From messages to trees.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    ProtobufError,
    json::{absent, is_zero},
    names::go_field,
    read::{WireReader, WireType},
    special,
};
use portolan_kinds::{Field, FieldKind, KindTable, Scalar, TypeId, WireTarget};

/// Nesting limit of messages. The deepest object of the table, JSON schemas aside, has about 20 levels.
const MAX_DEPTH: u32 = 100;

/// Number of messages allowed in addition to one per eight bytes. Real objects have far fewer, and JSON text needs at
/// least as many bytes per object.
const SPARE_MESSAGES: usize = 4096;

/// Decodes one body.
pub(super) struct Decoder<'t> {
    pub(super) table: &'t KindTable,
    depth: u32,
    left: usize,
    /// Budget of bytes that may be read twice, because an entry of a map ended before its content.
    again: usize,
}

impl<'t> Decoder<'t> {
    pub(super) fn new(table: &'t KindTable, size: usize) -> Self {
        Self { table, depth: 0, left: SPARE_MESSAGES + size / 8, again: size }
    }

    /// Returns a whole message, as Go prints it.
    pub(super) fn object(&mut self, schema: TypeId, data: &[u8]) -> Result<Map<String, Value>, ProtobufError> {
        let mut object = Map::new();
        self.merge(schema, data, &mut object)?;
        Ok(object)
    }

    /// Merges a message into an earlier one of the same field, as protobuf requires.
    fn merge(&mut self, schema: TypeId, data: &[u8], object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        self.left = self.left.checked_sub(1).ok_or(ProtobufError::TooMany)?;
        self.fields(schema, data, object)?;
        self.complete(schema, object)
    }

    /// Adds the fields that Go prints although they were not on the wire.
    fn complete(&mut self, schema: TypeId, object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        for field in self.table.get(schema).fields.iter().filter(|field| field.number != 0) {
            if object.contains_key(&*field.name) {
                continue;
            }
            match &field.kind {
                FieldKind::Message(inner) if !field.pointer && !field.omitzero => {
                    let value = self.object(*inner, &[])?;
                    object.insert(field.name.to_string(), Value::Object(value));
                }
                _ => {
                    if let Some(value) = absent(field) {
                        object.insert(field.name.to_string(), value);
                    }
                }
            }
        }
        Ok(())
    }

    fn fields(&mut self, schema: TypeId, data: &[u8], object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        if self.depth == MAX_DEPTH {
            return Err(ProtobufError::TooDeep);
        }
        self.depth += 1;
        let own = self.table.get(schema);
        let owner = short(&own.name);
        let mut reader = WireReader::new(data);
        while let Some((number, wire)) = reader.tag(|| owner.to_owned())? {
            match own.on_wire(number) {
                None => reader.skip(wire)?,
                Some(WireTarget::Inline(inner)) if wire == WireType::Bytes => {
                    self.fields(inner, reader.bytes()?, object)?;
                }
                // Go embeds it under the name of its type.
                Some(WireTarget::Inline(inner)) => {
                    let field = short(&self.table.get(inner).name).to_owned();
                    return Err(ProtobufError::WireType { field, wire: wire.number() });
                }
                Some(WireTarget::Field(at)) => {
                    let place = Place { owner, field: &own.fields[at as usize] };
                    self.field(place, wire, &mut reader, object)?;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(
        &mut self,
        place: Place<'_>,
        wire: WireType,
        reader: &mut WireReader<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        let field = place.field;
        let value = match &field.kind {
            FieldKind::Message(inner) if wire == WireType::Bytes => {
                let mut into = match object.remove(&*field.name) {
                    Some(Value::Object(earlier)) => earlier,
                    _ => Map::new(),
                };
                self.merge(*inner, reader.bytes()?, &mut into)?;
                Value::Object(into)
            }
            FieldKind::List(element) => {
                let into = object.entry(&*field.name).or_insert(Value::Null);
                return self.element(place, (element, wire), reader, into);
            }
            FieldKind::Map(element) => {
                let (key, value) = self.entry(place, element, wire, reader)?;
                match object.entry(&*field.name).or_insert(Value::Null) {
                    Value::Object(entries) => drop(entries.insert(key, value)),
                    other => *other = Value::Object(Map::from_iter([(key, value)])),
                }
                return Ok(());
            }
            kind => self.value(place, kind, wire, reader)?,
        };
        if field.omitempty && !field.pointer && is_zero(&field.kind, &value) || field.omitzero && value.is_null() {
            object.remove(&*field.name);
        } else {
            object.insert(field.name.to_string(), value);
        }
        Ok(())
    }

    /// Appends one element, or all elements of a packed run of numbers.
    fn element(
        &mut self,
        place: Place<'_>,
        (element, wire): (&FieldKind, WireType),
        reader: &mut WireReader<'_>,
        into: &mut Value,
    ) -> Result<(), ProtobufError> {
        if !into.is_array() {
            *into = Value::Array(Vec::new());
        }
        let Value::Array(list) = into else { return Ok(()) };
        match own_wire(element) {
            single @ (WireType::Varint | WireType::Fixed64) if wire == WireType::Bytes => {
                reader.run(|run| {
                    list.push(self.value(place, element, single, run)?);
                    Ok(())
                })?;
            }
            _ => list.push(self.value(place, element, wire, reader)?),
        }
        Ok(())
    }

    /// Reads an entry of a map: a message of key and value. Go checks only the field numbers and ignores wire types.
    fn entry(
        &mut self,
        place: Place<'_>,
        element: &FieldKind,
        wire: WireType,
        reader: &mut WireReader<'_>,
    ) -> Result<(String, Value), ProtobufError> {
        if wire != WireType::Bytes {
            return Err(place.unexpected(wire));
        }
        let mut entry = reader.entry()?;
        let (mut key, mut value) = (String::new(), None);
        while let Some((number, wire, _)) = entry.any_tag()? {
            match number {
                1 => key = text(entry.bytes()?),
                2 => value = Some(self.value(place, element, own_wire(element), &mut entry)?),
                _ => entry.skip(wire)?,
            }
        }
        self.again = self.again.checked_sub(entry.beyond()).ok_or(ProtobufError::TooMany)?;
        let value = match value {
            Some(value) => value,
            None => self.value(place, element, own_wire(element), &mut WireReader::new(&[0; 8]))?,
        };
        Ok((key, value))
    }

    fn value(
        &mut self,
        place: Place<'_>,
        kind: &FieldKind,
        wire: WireType,
        reader: &mut WireReader<'_>,
    ) -> Result<Value, ProtobufError> {
        match (kind, wire) {
            (FieldKind::Scalar(scalar), wire) => {
                scalar_value(*scalar, wire, reader)?.ok_or_else(|| place.unexpected(wire))
            }
            (FieldKind::Special(special), WireType::Bytes) => {
                special::decode(self, place.field, *special, reader.bytes()?)
            }
            (FieldKind::Message(inner), WireType::Bytes) => {
                let mut object = Map::new();
                self.merge(*inner, reader.bytes()?, &mut object)?;
                Ok(Value::Object(object))
            }
            _ => Err(place.unexpected(wire)),
        }
    }
}

/// Field of a message, with the name of the message.
#[derive(Clone, Copy)]
struct Place<'f> {
    owner: &'f str,
    field: &'f Field,
}

impl Place<'_> {
    fn unexpected(self, wire: WireType) -> ProtobufError {
        ProtobufError::WireType { field: go_field(self.owner, &self.field.name), wire: wire.number() }
    }
}

/// Returns the name of a type without its package.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// Reads a scalar; `None` if the wire type does not fit.
fn scalar_value(scalar: Scalar, wire: WireType, reader: &mut WireReader<'_>) -> Result<Option<Value>, ProtobufError> {
    Ok(Some(match (scalar, wire) {
        (Scalar::String, WireType::Bytes) => Value::String(text(reader.bytes()?)),
        (Scalar::Bytes, WireType::Bytes) => Value::String(STANDARD.encode(reader.bytes()?)),
        (Scalar::Bool, WireType::Varint) => Value::Bool(reader.varint()? != 0),
        (Scalar::Int32, WireType::Varint) => Value::from(reader.varint()? as i32),
        (Scalar::Int64, WireType::Varint) => Value::from(reader.varint()? as i64),
        (Scalar::Uint32, WireType::Varint) => Value::from(reader.varint()? as u32),
        (Scalar::Uint64, WireType::Varint) => Value::from(reader.varint()?),
        (Scalar::Double, WireType::Fixed64) => double(f64::from_bits(reader.fixed64()?)),
        _ => return Ok(None),
    }))
}

/// Converts a double. Go prints whole numbers without a fraction. Infinity and NaN, which JSON lacks, become null; the
/// strict decoder refuses it.
fn double(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT { Value::from(value as i64) } else { Value::from(value) }
}

/// Returns the form of a value of this kind.
fn own_wire(kind: &FieldKind) -> WireType {
    match kind {
        FieldKind::Scalar(Scalar::String | Scalar::Bytes) | FieldKind::Special(_) | FieldKind::Message(_) => {
            WireType::Bytes
        }
        FieldKind::Scalar(Scalar::Double) => WireType::Fixed64,
        _ => WireType::Varint,
    }
}

/// Returns text. Go keeps bytes that are not UTF-8 and prints them as replacement characters.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
