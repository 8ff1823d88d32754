//! The walk along the schema.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_types::{json_patch::go_word, quantity::InvalidQuantity, quoted::go_quoted};
use serde::{
    Deserialize as _,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{
    errors::Fault,
    scalar::{self, Misfit, Token},
    syntax::HUGE,
    tree::{PLAIN, Tree},
};
use crate::protobuf::absent;
use portolan_kinds::{Field, FieldKind, KindTable, Scalar, Special, Type, TypeId, WireTarget};

/// Maximum number of notes. It bounds the cost of a body that consists of unknown fields.
const MAX_NOTES: usize = 100;
/// A path this long, in bytes, gets no further steps, and of a longer name only the beginning is shown: a key of a
/// megabyte above many notes is not repeated with each of them.
const MAX_PATH: usize = 1024;

/// Result of a walk.
pub(super) struct Walk<'t> {
    table: &'t KindTable,
    notes: RefCell<Vec<Note>>,
    noted: Cell<usize>,
    fault: Cell<Option<Fault>>,
    /// True to skip faults that Go keeps for the end.
    patient: bool,
    /// True for JSON as the client sent it.
    spelled: Cell<bool>,
    /// Values are taken as Go's converter from maps takes them, and not as its decoder for JSON.
    converts: bool,
    /// True if strings may represent numbers that no float holds.
    respelled: Cell<bool>,
}

/// Unknown or duplicate field. Its path is built from the end while the walk returns.
#[derive(Clone, Debug)]
pub(super) struct Note {
    word: &'static str,
    path: String,
}

/// Messages for repeated fields.
const DUPLICATE: &str = "duplicate";
/// Messages for unknown fields.
const UNKNOWN: &str = "unknown";

impl Note {
    /// Returns the note about an unknown field.
    pub(super) fn unknown(path: String) -> Self {
        Self { word: UNKNOWN, path }
    }

    pub(super) fn into_path(self) -> String {
        self.path
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} field {}", self.word, go_quoted(&self.path))
    }
}

impl<'t> Walk<'t> {
    pub(super) fn new(table: &'t KindTable) -> Self {
        Self {
            table,
            notes: RefCell::default(),
            noted: Cell::new(0),
            fault: Cell::new(None),
            patient: false,
            spelled: Cell::new(false),
            converts: false,
            respelled: Cell::new(false),
        }
    }

    /// Returns a walk that stops only at errors at which Go's decoder stops.
    pub(super) fn patient(table: &'t KindTable) -> Self {
        Self { patient: true, ..Self::new(table) }
    }

    /// Continues in JSON as written.
    pub(super) fn spelled(&self) -> &Self {
        self.spelled.set(true);
        self
    }

    /// Returns a walk with the rules of Go's converter from maps, which strategic merge patches and applied objects go
    /// through.
    pub(super) fn converting(table: &'t KindTable) -> Self {
        Self { converts: true, ..Self::new(table) }
    }

    pub(super) fn converts(&self) -> bool {
        self.converts
    }

    /// Stops because of a number that no float holds, whose type is unknown.
    pub(super) fn stop_at(&self, why: String) {
        self.fault.set(Some(Fault::Value(why)));
    }

    /// Begins again, with JSON in which numbers that no float holds are texts.
    pub(super) fn begin_respelled(&self) {
        self.notes.take();
        self.noted.set(0);
        self.fault.set(None);
        self.respelled.set(true);
    }

    fn text(&self, text: String) -> Token {
        match text.strip_prefix(HUGE).filter(|_| self.respelled.get()) {
            Some(number) => Token::Huge(number.to_owned()),
            None => Token::Text(text),
        }
    }

    pub(super) fn table(&self) -> &'t KindTable {
        self.table
    }

    /// Reads a value of this kind; `None` when it is null.
    pub(super) fn seed<'w>(&'w self, kind: &'w FieldKind) -> WalkNode<'w, 't> {
        WalkNode { walk: self, kind }
    }

    /// Returns the unknown and duplicate fields, in the order they were found, each once.
    pub(super) fn notes(&self) -> Vec<Note> {
        let mut told = HashSet::new();
        self.notes.take().into_iter().filter(|note| told.insert(note.to_string())).collect()
    }

    /// Returns the reason why the walk stopped, unless the body itself is malformed.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.take()
    }

    /// Puts the number at which the walk stopped into the error, in its original spelling.
    pub(super) fn spell(&self, number: Option<&str>) {
        let mut fault = self.fault.take();
        if let (Some(Fault::Type { found, .. }), Some(number)) = (&mut fault, number)
            && found.starts_with("number ")
        {
            *found = format!("number {number}");
        }
        self.fault.set(fault);
    }

    /// Returns the number of messages.
    pub(super) fn mark(&self) -> usize {
        self.noted.get()
    }

    /// Notes a duplicate key of the object whose start the mark `start` is.
    pub(super) fn duplicate(&self, start: usize, name: &str) {
        self.note(start, DUPLICATE, name);
    }

    /// Records that the object that the walk entered at the mark `start` has no such field.
    pub(super) fn unknown(&self, start: usize, name: &str) {
        self.note(start, UNKNOWN, name);
    }

    /// Adds a note. Like Go, counts only distinct notes: an endlessly repeated key hides no later one.
    fn note(&self, start: usize, word: &'static str, name: &str) {
        let mut notes = self.notes.borrow_mut();
        let name = beginning_of_name(name);
        if notes.len() < MAX_NOTES && !notes[start..].iter().any(|note| note.word == word && note.path == name) {
            notes.push(Note { word, path: name.to_owned() });
            self.noted.set(notes.len());
        }
    }

    /// Puts a step in front of the paths of all notes since `mark`.
    pub(super) fn prefix(&self, mark: usize, step: impl FnOnce() -> Step) {
        if self.noted.get() == mark {
            return;
        }
        let step = step();
        for note in self.notes.borrow_mut()[mark..].iter_mut().filter(|note| note.path.len() < MAX_PATH) {
            let dot = if note.path.starts_with('[') { "" } else { "." };
            note.path = match &step {
                Step::Name(name) => format!("{}{dot}{}", beginning_of_name(name), note.path),
                Step::Index(at) => format!("[{at}]{dot}{}", note.path),
            };
        }
    }

    fn stop<E: serde::de::Error>(&self, fault: Fault) -> E {
        self.fault.set(Some(fault));
        E::custom("the value does not fit")
    }

    /// Notes the field in a type fault that is on its way up.
    fn in_field(&self, owner: &Type, field: &Field) {
        // Go reads the metadata of custom resources by itself.
        if owner.preserve_unknown {
            return;
        }
        let mut fault = self.fault.take();
        if let Some(Fault::Type { wanted, named, owner: innermost, fields, .. }) = &mut fault {
            if innermost.is_empty() {
                *innermost = short_name(&owner.name).to_owned();
                *named = self.named(field, wanted);
            }
            fields.push(self.with_inlined(owner, &field.name));
        }
        self.fault.set(fault);
    }

    /// Returns Go's type of a part of the field `wanted`: the field, or an element.
    fn named(&self, field: &Field, wanted: &str) -> Option<String> {
        let name = field.go.as_deref()?;
        match &field.kind {
            kind if go_type(self.table, kind) == wanted => Some(name.to_owned()),
            FieldKind::List(_) => name.strip_prefix("[]").map(str::to_owned),
            FieldKind::Map(_) => name.strip_prefix("map[")?.split_once(']').map(|(_, element)| element.to_owned()),
            _ => None,
        }
    }

    /// Returns the name of a field, prefixed with the names of types that Go inlines before it.
    fn with_inlined(&self, owner: &Type, name: &str) -> String {
        let (mut path, mut at) = (String::new(), Some(owner));
        while let Some(owner) = at {
            let parts = owner.wire.iter().filter_map(|wire| match wire.target {
                WireTarget::Inline(id) => Some(self.table.get(id)),
                WireTarget::Field(_) => None,
            });
            at = parts.into_iter().find(|part| part.field(name).is_some());
            path.extend(at.map(|part| format!("{}.", short_name(&part.name))));
        }
        path + name
    }
}

/// Returns the beginning of a name.
fn beginning_of_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_PATH)]
}

/// A step of a path.
pub(super) enum Step {
    Name(String),
    Index(usize),
}

/// One value of the walk.
#[derive(Clone, Copy)]
pub(super) struct WalkNode<'w, 't> {
    walk: &'w Walk<'t>,
    kind: &'w FieldKind,
}

impl<'w> WalkNode<'w, '_> {
    fn of(self, kind: &'w FieldKind) -> Self {
        WalkNode { kind, ..self }
    }

    fn token<E: serde::de::Error>(self, token: Token) -> Result<Option<Value>, E> {
        let token = if self.walk.converts { token.converted(self.kind) } else { Ok(token) };
        let done = token.and_then(|token| match self.kind {
            FieldKind::Scalar(scalar) => token.scalar(*scalar),
            FieldKind::Special(special) => token.special(*special),
            FieldKind::Message(_) | FieldKind::List(_) | FieldKind::Map(_) => Err(Misfit::Type(token.word())),
        });
        done.map(Some).or_else(|misfit| self.misfit(misfit))
    }

    /// Stops at a misfit, or skips it.
    fn misfit<E: serde::de::Error>(self, misfit: Misfit) -> Result<Option<Value>, E> {
        self.refuse(misfit, || go_type(self.walk.table, self.kind))
    }

    fn refuse<E: serde::de::Error>(self, misfit: Misfit, wanted: impl Fn() -> String) -> Result<Option<Value>, E> {
        if self.walk.patient && !reads_itself(self.kind) {
            return Ok(None);
        }
        Err(self.walk.stop(match misfit {
            Misfit::Type(found) if self.walk.converts && reads_json(self.kind) => {
                Fault::Value(format!("json: cannot unmarshal {found} into Go value of type {}", wanted()))
            }
            Misfit::Type(found) => {
                Fault::Type { found, wanted: wanted(), named: None, owner: String::new(), fields: Vec::new() }
            }
            Misfit::Text(text) if self.walk.converts && *self.kind == FieldKind::Scalar(Scalar::Bytes) => {
                Fault::Value(format!("error decoding from json: {text}"))
            }
            Misfit::Text(text) => Fault::Value(text),
        }))
    }

    /// Returns the message for a list or object in place of a scalar. Go reads a quantity from any JSON, and refuses
    /// these afterwards.
    fn no_place_for(self, found: &str) -> Misfit {
        match self.kind {
            FieldKind::Special(Special::Quantity) => Misfit::Text(InvalidQuantity::Shape.to_string()),
            _ => Misfit::Type(found.into()),
        }
    }

    /// Returns base64 text for bytes in the form of a list of numbers.
    fn octets<'de, A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(item) = items.next_element_seed(PLAIN)? {
            let byte = item.as_u64().and_then(|number| u8::try_from(number).ok());
            if let (None, false) = (byte, item.is_null()) {
                let found = if item.is_number() { format!("number {item}") } else { go_word(&item).to_owned() };
                self.refuse::<A::Error>(Misfit::Type(found), || "uint8".into())?;
            }
            bytes.push(byte.unwrap_or_default());
        }
        Ok(Some(STANDARD.encode(bytes).into()))
    }

    fn list<'de, A: SeqAccess<'de>>(self, element: &'w FieldKind, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let mark = self.walk.mark();
            let Some(item) = items.next_element_seed(self.of(element))? else { return Ok(Value::Array(list)) };
            self.walk.prefix(mark, || Step::Index(list.len()));
            list.push(item.unwrap_or_else(|| zero(self.walk.table, element)));
        }
    }

    fn map<'de, A: MapAccess<'de>>(self, element: &'w FieldKind, mut entries: A) -> Result<Value, A::Error> {
        let start = self.walk.mark();
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let mark = self.walk.mark();
            let value = entries.next_value_seed(self.of(element))?;
            self.walk.prefix(mark, || Step::Name(key.clone()));
            let value = value.unwrap_or_else(|| zero(self.walk.table, element));
            if map.contains_key(&key) {
                self.walk.duplicate(start, &key);
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn message<'de, A: MapAccess<'de>>(self, id: TypeId, mut entries: A) -> Result<Value, A::Error> {
        let schema = self.walk.table.get(id);
        let start = self.walk.mark();
        let (mut map, mut nulls) = (Map::new(), Vec::new());
        while let Some(name) = entries.next_key_seed(Name(schema))? {
            match name {
                FieldName::Known(field) => {
                    // Fields whose value is left out count as seen, too: they are recorded as null and removed below.
                    let mark = self.walk.mark();
                    // The schema outlives the walk; the node's kind has the lifetime of the schema.
                    let value = entries
                        .next_value_seed(WalkNode { walk: self.walk, kind: &field.kind })
                        .inspect_err(|_| self.walk.in_field(schema, field))?;
                    self.walk.prefix(mark, || Step::Name(field.name.to_string()));
                    // The zero time is null, which is not left out behind a pointer.
                    if field.pointer && value == Some(Value::Null) {
                        nulls.push(&*field.name);
                    }
                    let mut value = value.filter(|value| keeps(schema, field, value)).unwrap_or(Value::Null);
                    if *field.name == *"metadata" && !sees_reset(schema) {
                        forget_reset(&mut value);
                    }
                    if map.insert((*field.name).to_owned(), value).is_some() {
                        self.walk.duplicate(start, &field.name);
                    }
                }
                FieldName::Unknown(name) if schema.preserve_unknown => {
                    let mark = self.walk.mark();
                    let value = entries.next_value_seed(Tree::of(self.walk))?;
                    self.walk.prefix(mark, || Step::Name(name.clone()));
                    if map.contains_key(&name) {
                        self.walk.duplicate(start, &name);
                    }
                    map.insert(name, value);
                }
                FieldName::Unknown(name) => {
                    entries.next_value::<IgnoredAny>()?;
                    self.walk.unknown(start, &name);
                }
            }
        }
        complete(self.walk.table, schema, &mut map);
        for name in nulls {
            map.entry(name).or_insert(Value::Null);
        }
        Ok(Value::Object(map))
    }
}

/// Returns true if the Go type has its own `UnmarshalJSON`.
fn reads_itself(kind: &FieldKind) -> bool {
    matches!(kind, FieldKind::Special(special) if *special != Special::Strings)
}

/// Returns true if the Go type has its own `UnmarshalJSON`, which is also used where the rest is converted from maps.
fn reads_json(kind: &FieldKind) -> bool {
    let FieldKind::Special(special) = kind else { return false };
    matches!(special, Special::IntOrString | Special::Time | Special::MicroTime | Special::Duration)
}

/// Removes nulls and adds the fields that are always written.
fn complete(table: &KindTable, schema: &Type, map: &mut Map<String, Value>) {
    if map.values().any(Value::is_null) {
        map.retain(|name, value| !value.is_null() || schema.field(name).is_none_or(|field| field.nullable));
    }
    for field in &schema.fields {
        if map.contains_key(&*field.name) {
            continue;
        }
        let value = match &field.kind {
            FieldKind::Message(_) if !field.pointer && !field.omitzero => Some(zero(table, &field.kind)),
            _ => absent(field),
        };
        if let Some(value) = value {
            map.insert((*field.name).to_owned(), value);
        }
    }
}

/// Fields in which an empty list has a meaning: in managed fields it asks for their reset, in policies of an autoscaler
/// it disables the default ones.
const MEANINGFUL_EMPTY_LISTS: [(&str, &str); 2] = [
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "managedFields"),
    ("io.k8s.api.autoscaling.v2.HPAScalingRules", "policies"),
];

/// Returns true if an empty list of managed fields has a meaning in the metadata of this type: objects reset their
/// owners, and claim templates with any list are refused.
fn sees_reset(schema: &Type) -> bool {
    let of_claims = ["ResourceClaimTemplateSpec", "PersistentVolumeClaimTemplate"];
    schema.field("kind").is_some() || of_claims.contains(&short_name(&schema.name))
}

fn forget_reset(metadata: &mut Value) {
    let Some(metadata) = metadata.as_object_mut() else { return };
    if metadata.get("managedFields").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        metadata.remove("managedFields");
    }
}

/// Returns true if Go writes this value of a field of `schema`.
fn keeps(schema: &Type, field: &Field, value: &Value) -> bool {
    if field.pointer
        || MEANINGFUL_EMPTY_LISTS.iter().any(|(owner, name)| *field.name == **name && *schema.name == **owner)
    {
        return true;
    }
    match (&field.kind, value) {
        (FieldKind::Message(_), Value::Object(map)) => !field.omitzero || !map.is_empty(),
        (FieldKind::Scalar(_) | FieldKind::List(_) | FieldKind::Map(_), value) => !field.omitempty || !is_zero(value),
        (FieldKind::Special(Special::Strings), Value::Array(list)) => !field.omitempty || !list.is_empty(),
        _ => true,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Returns the value for a missing field: null if the type has no other.
pub fn zero(table: &KindTable, kind: &FieldKind) -> Value {
    match kind {
        FieldKind::Scalar(Scalar::String | Scalar::Bytes) => "".into(),
        FieldKind::Scalar(Scalar::Bool) => false.into(),
        FieldKind::Scalar(_) => 0.into(),
        FieldKind::Special(Special::Quantity) => "0".into(),
        FieldKind::Special(Special::IntOrString) => 0.into(),
        FieldKind::Special(_) | FieldKind::List(_) | FieldKind::Map(_) => Value::Null,
        FieldKind::Message(id) => {
            let mut map = Map::new();
            complete(table, table.get(*id), &mut map);
            Value::Object(map)
        }
    }
}

enum FieldName<'t> {
    Known(&'t Field),
    Unknown(String),
}

/// Reads the name of a field.
struct Name<'t>(&'t Type);

impl<'de, 't> DeserializeSeed<'de> for Name<'t> {
    type Value = FieldName<'t>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'t> Visitor<'_> for Name<'t> {
    type Value = FieldName<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(match self.0.field(name) {
            Some(field) => FieldName::Known(field),
            None => FieldName::Unknown(name.to_owned()),
        })
    }
}

impl<'de> DeserializeSeed<'de> for WalkNode<'_, '_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        match self.kind {
            FieldKind::Special(Special::Quantity) if self.walk.spelled.get() => {
                let json = <&RawValue>::deserialize(deserializer)?;
                scalar::spelled_quantity(json.get()).or_else(|misfit| self.misfit(misfit))
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for WalkNode<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Self::Value, E> {
        self.token(Token::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.token(Token::Int(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.token(Token::Uint(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Self::Value, E> {
        self.token(Token::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Self::Value, E> {
        self.token(self.walk.text(value.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Self::Value, E> {
        self.token(self.walk.text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        match self.kind {
            FieldKind::List(element) => self.list(element, items).map(Some),
            FieldKind::Special(Special::Strings) => self.list(&FieldKind::Scalar(Scalar::String), items).map(Some),
            FieldKind::Special(
                Special::Json
                | Special::Any
                | Special::RawExtension
                | Special::FieldsV1
                | Special::SchemaOrArray
                | Special::SchemaOrStrings,
            ) => PLAIN.visit_seq(items).map(Some),
            FieldKind::Scalar(Scalar::Bytes) => self.octets(items),
            FieldKind::Special(_) | FieldKind::Scalar(_) | FieldKind::Message(_) | FieldKind::Map(_) => {
                let passed = self.misfit(self.no_place_for("array"))?;
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(passed)
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        match self.kind {
            FieldKind::Message(id) => self.message(*id, entries).map(Some),
            FieldKind::Map(element) => self.map(element, entries).map(Some),
            FieldKind::Special(
                Special::Json
                | Special::Any
                | Special::RawExtension
                | Special::FieldsV1
                | Special::SchemaOrBool
                | Special::SchemaOrArray
                | Special::SchemaOrStrings,
            ) => PLAIN.visit_map(entries).map(Some),
            FieldKind::Special(_) | FieldKind::Scalar(_) | FieldKind::List(_) => {
                let passed = self.misfit(self.no_place_for("object"))?;
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(passed)
            }
        }
    }
}

fn short_name(definition: &str) -> &str {
    definition.rsplit('.').next().unwrap_or(definition)
}

/// Returns Go's name of a type, as its JSON decoder prints it.
fn go_type(table: &KindTable, kind: &FieldKind) -> String {
    match kind {
        FieldKind::Scalar(scalar) => match scalar {
            Scalar::String => "string",
            Scalar::Bool => "bool",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Uint32 => "uint32",
            Scalar::Uint64 => "uint64",
            Scalar::Double => "float64",
            Scalar::Bytes => "[]uint8",
        }
        .into(),
        FieldKind::Special(special) => match special {
            Special::Time | Special::MicroTime => "string",
            Special::Duration => "string",
            Special::Quantity => "resource.Quantity",
            Special::IntOrString => "int32",
            Special::RawExtension => "runtime.RawExtension",
            Special::FieldsV1 => "v1.FieldsV1",
            Special::Json | Special::Any => "v1.JSON",
            Special::SchemaOrBool => "v1.JSONSchemaPropsOrBool",
            Special::SchemaOrArray => "v1.JSONSchemaPropsOrArray",
            Special::SchemaOrStrings => "v1.JSONSchemaPropsOrStringArray",
            Special::Strings => "[]string",
        }
        .into(),
        FieldKind::List(element) => format!("[]{}", go_type(table, element)),
        FieldKind::Map(element) => format!("map[string]{}", go_type(table, element)),
        FieldKind::Message(id) => {
            let mut parts = table.get(*id).name.rsplit('.');
            let name = parts.next().unwrap_or_default().to_owned();
            format!("{}.{name}", parts.next().unwrap_or_default())
        }
    }
}
