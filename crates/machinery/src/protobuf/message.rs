//! From messages to trees.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    ProtobufError,
    json::{absent, is_zero},
    read::{Reader, WireType},
    special,
};
use crate::kinds::{Field, FieldKind, KindTable, Scalar, TypeId, WireTarget};

/// How deep messages may nest. The deepest object of the table without JSON schemas has about 20 levels.
const MAX_DEPTH: u32 = 100;

/// Messages allowed besides one per eight bytes: no object comes near, and JSON text needs as many bytes per object.
const SPARE_MESSAGES: usize = 4096;

/// Decodes one body.
pub(super) struct Decoder<'t> {
    pub(super) table: &'t KindTable,
    depth: u32,
    left: usize,
}

impl<'t> Decoder<'t> {
    pub(super) fn new(table: &'t KindTable, size: usize) -> Self {
        Self { table, depth: 0, left: SPARE_MESSAGES + size / 8 }
    }

    /// A whole message, as Go prints it.
    pub(super) fn object(&mut self, schema: TypeId, data: &[u8]) -> Result<Map<String, Value>, ProtobufError> {
        let mut object = Map::new();
        self.merge(schema, data, &mut object)?;
        Ok(object)
    }

    /// A message over what an earlier one of the same field has left, as protobuf wants it.
    fn merge(&mut self, schema: TypeId, data: &[u8], object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        self.left = self.left.checked_sub(1).ok_or(ProtobufError::TooMany)?;
        self.fields(schema, data, object)?;
        self.complete(schema, object)
    }

    /// Adds what Go prints for fields that were not on the wire.
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
        let mut reader = Reader::new(data);
        let name = || own.name.rsplit('.').next().unwrap_or_default().to_owned();
        let named = |error| match error {
            ProtobufError::IllegalTag { number, tag, .. } => ProtobufError::IllegalTag { message: name(), number, tag },
            other => other,
        };
        while let Some((number, wire)) = reader.tag().map_err(named)? {
            match own.on_wire(number) {
                _ if wire == WireType::EndGroup => return Err(ProtobufError::EndGroup(name())),
                None => reader.skip(wire)?,
                Some(WireTarget::Inline(inner)) if wire == WireType::Bytes => {
                    self.fields(inner, reader.bytes()?, object)?;
                }
                Some(WireTarget::Inline(_)) => {
                    return Err(ProtobufError::WireType { field: own.name.to_string(), wire: wire.number() });
                }
                Some(WireTarget::Field(at)) => self.field(&own.fields[at as usize], wire, &mut reader, object)?,
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(
        &mut self,
        field: &Field,
        wire: WireType,
        reader: &mut Reader<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
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
                return self.element(field, element, wire, reader, into);
            }
            FieldKind::Map(element) => {
                let (key, value) = self.entry(field, element, wire, reader)?;
                match object.entry(&*field.name).or_insert(Value::Null) {
                    Value::Object(entries) => drop(entries.insert(key, value)),
                    other => *other = Value::Object(Map::from_iter([(key, value)])),
                }
                return Ok(());
            }
            kind => self.value(field, kind, wire, reader)?,
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
        field: &Field,
        element: &FieldKind,
        wire: WireType,
        reader: &mut Reader<'_>,
        into: &mut Value,
    ) -> Result<(), ProtobufError> {
        if !into.is_array() {
            *into = Value::Array(Vec::new());
        }
        let Value::Array(list) = into else { return Ok(()) };
        let packed = match element {
            FieldKind::Scalar(Scalar::String | Scalar::Bytes) => None,
            FieldKind::Scalar(Scalar::Double) => Some(WireType::Fixed64),
            FieldKind::Scalar(_) => Some(WireType::Varint),
            _ => None,
        };
        match packed {
            Some(single) if wire == WireType::Bytes => {
                let mut run = Reader::new(reader.bytes()?);
                while !run.is_empty() {
                    list.push(self.value(field, element, single, &mut run)?);
                }
            }
            _ => list.push(self.value(field, element, wire, reader)?),
        }
        Ok(())
    }

    /// An entry of a map: a message of key and value.
    fn entry(
        &mut self,
        field: &Field,
        element: &FieldKind,
        wire: WireType,
        reader: &mut Reader<'_>,
    ) -> Result<(String, Value), ProtobufError> {
        if wire != WireType::Bytes {
            return Err(unexpected(field, wire));
        }
        let mut entry = Reader::new(reader.bytes()?);
        let (mut key, mut value) = (String::new(), None);
        while let Some((number, wire)) = entry.tag()? {
            match (number, wire) {
                (1, WireType::Bytes) => key = text(entry.bytes()?),
                (2, wire) => value = Some(self.value(field, element, wire, &mut entry)?),
                (_, wire) => entry.skip(wire)?,
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.value(field, element, default_wire(element), &mut Reader::new(&[0; 8]))?,
        };
        Ok((key, value))
    }

    fn value(
        &mut self,
        field: &Field,
        kind: &FieldKind,
        wire: WireType,
        reader: &mut Reader<'_>,
    ) -> Result<Value, ProtobufError> {
        match (kind, wire) {
            (FieldKind::Scalar(scalar), wire) => {
                scalar_value(*scalar, wire, reader)?.ok_or_else(|| unexpected(field, wire))
            }
            (FieldKind::Special(special), WireType::Bytes) => special::decode(self, field, *special, reader.bytes()?),
            (FieldKind::Message(inner), WireType::Bytes) => {
                let mut object = Map::new();
                self.merge(*inner, reader.bytes()?, &mut object)?;
                Ok(Value::Object(object))
            }
            _ => Err(unexpected(field, wire)),
        }
    }
}

/// `None` when the wire type does not fit.
fn scalar_value(scalar: Scalar, wire: WireType, reader: &mut Reader<'_>) -> Result<Option<Value>, ProtobufError> {
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

/// Go prints whole numbers without a fraction. What JSON cannot say (infinity) becomes null, which the strict decoder refuses.
fn double(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT { Value::from(value as i64) } else { Value::from(value) }
}

fn default_wire(kind: &FieldKind) -> WireType {
    match kind {
        FieldKind::Scalar(Scalar::String | Scalar::Bytes) | FieldKind::Special(_) | FieldKind::Message(_) => {
            WireType::Bytes
        }
        FieldKind::Scalar(Scalar::Double) => WireType::Fixed64,
        _ => WireType::Varint,
    }
}

/// Go keeps bytes that are no UTF-8 and prints them as replacement characters.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn unexpected(field: &Field, wire: WireType) -> ProtobufError {
    ProtobufError::WireType { field: field.name.to_string(), wire: wire.number() }
}
