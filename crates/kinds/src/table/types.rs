//! Types and their fields.

use std::sync::Arc;

use serde_json::Value;

/// Place of a type in its table (or in the table below it, see [`super::TableBuilder`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(super) u32);

/// A message, or a special leaf with a definition of its own in the OpenAPI documents.
#[derive(Clone, Debug)]
pub struct Type {
    /// The OpenAPI definition name, such as `io.k8s.api.core.v1.PodSpec`.
    pub name: Arc<str>,
    /// True for leaves: their JSON form is not an object described by `fields`.
    pub special: Option<Special>,
    /// Server-side apply treats a value of this type as one.
    pub atomic: bool,
    /// Unknown fields belong to the value (`x-kubernetes-preserve-unknown-fields`). Never set for built-in types.
    pub preserve_unknown: bool,
    /// The value is a whole object with apiVersion, kind and metadata (`x-kubernetes-embedded-resource`).
    pub embedded_resource: bool,
    /// Fields that exclude each other, in OpenAPI's form (`x-kubernetes-unions`).
    pub unions: Option<Value>,
    /// The JSON view, sorted by name: fields of messages that Go inlines are listed here like own ones.
    pub fields: Box<[Field]>,
    /// The protobuf view, sorted by number. Empty for types without protobuf form.
    pub wire: Box<[Wire]>,
    /// Schema for OpenAPI documents instead of the one derived from the fields, because it has more than fields can
    /// express (patterns, bounds, rules). References in it have to be to types of the fields.
    pub published: Option<Arc<str>>,
}

impl Type {
    /// Returns a message type with these fields and nothing else.
    pub fn new(name: impl Into<Arc<str>>, fields: impl Into<Box<[Field]>>) -> Self {
        Self {
            name: name.into(),
            special: None,
            atomic: false,
            preserve_unknown: false,
            embedded_resource: false,
            unions: None,
            fields: fields.into(),
            wire: Box::default(),
            published: None,
        }
    }

    /// Returns the field with this JSON name. Names are case-sensitive.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok().map(|at| &self.fields[at])
    }

    /// Returns the target of this number on the protobuf wire.
    pub fn on_wire(&self, number: u32) -> Option<WireTarget> {
        self.wire.binary_search_by_key(&number, |wire| wire.number).ok().map(|at| self.wire[at].target)
    }
}

/// A number of a protobuf message.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// The protobuf field number.
    pub number: u32,
    /// Target of the number.
    pub target: WireTarget,
}

/// Target of a protobuf number.
#[derive(Clone, Copy, Debug)]
pub enum WireTarget {
    /// The field at this index of [`Type::fields`].
    Field(u32),
    /// A message whose fields belong to the same JSON object.
    Inline(TypeId),
}

/// A field of a message.
#[derive(Clone, Debug)]
pub struct Field {
    /// The JSON name.
    pub name: Arc<str>,
    /// The protobuf number in the message that declares it; 0 for fields that are not on the wire (apiVersion, kind).
    pub number: u32,
    /// Its place in the Go type, which is that in JSON written by Go; inlined fields count.
    pub place: u16,
    /// The form of the value.
    pub kind: FieldKind,
    /// Name of its Go type, if it does not follow from `kind`: `v1.DNSPolicy`, `[]v1.Capability`.
    pub go: Option<Arc<str>>,
    /// Go keeps a pointer: absence differs from the zero value.
    pub pointer: bool,
    /// The zero value (for a pointer: nil) is left out of JSON. Without it a missing field reads as its zero value, or
    /// `null` for pointers, lists and maps.
    pub omitempty: bool,
    /// A struct whose value is zero is left out of JSON (Go's `omitzero`; `omitempty` has no effect on Go structs).
    pub omitzero: bool,
    /// Listed in `required` of the OpenAPI definition.
    pub required: bool,
    /// `null` is a value of its own. Never set for built-in types.
    pub nullable: bool,
    /// Merge of a list by server-side apply. `Atomic` if the field is not a list.
    pub list: ListType,
    /// True if the OpenAPI definition declares it.
    pub tells_list: bool,
    /// The OpenAPI definition is a reference to its type and nothing else.
    pub bare: bool,
    /// Merge of a map or object by server-side apply, if the field declares it.
    pub map: Option<MapType>,
    /// Treatment of the field by strategic merge patch.
    pub patch: PatchStrategy,
    /// The key by which strategic merge patch matches elements of a list.
    pub merge_key: Option<Arc<str>>,
    /// Default that the server sets whenever the enclosing object is present, whatever its other fields are.
    pub default: Option<Value>,
    /// The default that the OpenAPI document states, apart from the trivial one that follows from the Go type
    /// ([`Field::trivial_default`]). Missing keys of map lists have it too.
    pub declared: Option<Value>,
    /// The allowed values of the string, or of the strings in the list. Empty when not an enumeration.
    pub values: Box<[Arc<str>]>,
    /// The OpenAPI format, where it does not follow from `kind`.
    pub format: Option<Arc<str>>,
}

impl Field {
    /// Returns a field with defaults for the rest: no pointer, omitted when empty, atomic if a list.
    pub fn new(name: impl Into<Arc<str>>, kind: FieldKind) -> Self {
        Self {
            name: name.into(),
            number: 0,
            place: 0,
            kind,
            go: None,
            pointer: false,
            omitempty: true,
            omitzero: false,
            required: false,
            nullable: false,
            list: ListType::Atomic,
            tells_list: false,
            bare: false,
            map: None,
            patch: PatchStrategy::default(),
            merge_key: None,
            default: None,
            declared: None,
            values: Box::default(),
            format: None,
        }
    }

    /// Returns the default that OpenAPI documents state because of the Go type alone: `""`, `0` and `false` for scalars
    /// that are always written, `{}` for objects that are not pointers.
    pub fn trivial_default(&self) -> Option<Value> {
        let omitted = self.omitempty || self.omitzero;
        match &self.kind {
            _ if self.pointer => None,
            FieldKind::Message(_) => Some(Value::Object(serde_json::Map::new())),
            FieldKind::Scalar(scalar) if !omitted => scalar.zero(),
            _ => None,
        }
    }
}

/// The form of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A plain value.
    Scalar(Scalar),
    /// A value with a special form.
    Special(Special),
    /// An object with known fields.
    Message(TypeId),
    /// A JSON array.
    List(Box<FieldKind>),
    /// A JSON object with free keys.
    Map(Box<FieldKind>),
}

impl FieldKind {
    /// Returns the kind of the elements of a list or a map, else the kind itself.
    pub fn element(&self) -> &FieldKind {
        match self {
            FieldKind::List(element) | FieldKind::Map(element) => element,
            other => other,
        }
    }

    /// Returns the message type of the value or of its elements.
    pub fn message(&self) -> Option<TypeId> {
        match self.element() {
            FieldKind::Message(id) => Some(*id),
            _ => None,
        }
    }
}

/// Plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A JSON string.
    String,
    /// A JSON boolean.
    Bool,
    /// A JSON number without fraction, 32 bits.
    Int32,
    /// A JSON number without fraction, 64 bits.
    Int64,
    /// A JSON number without fraction or sign, 32 bits.
    Uint32,
    /// A JSON number without fraction or sign, 64 bits.
    Uint64,
    /// A JSON number.
    Double,
    /// A JSON string in standard base64.
    Bytes,
}

impl Scalar {
    fn zero(self) -> Option<Value> {
        match self {
            Scalar::String => Some(Value::from("")),
            Scalar::Bool => Some(Value::from(false)),
            Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 | Scalar::Double => Some(Value::from(0)),
            Scalar::Bytes => None,
        }
    }
}

/// Values whose JSON or protobuf form follows no general rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// RFC 3339 in UTC, whole seconds. Protobuf {1 seconds, 2 nanos}.
    Time,
    /// RFC 3339 in UTC, six decimals. Protobuf {1 seconds, 2 nanos}.
    MicroTime,
    /// A Go duration such as `1m30s`. Protobuf {1 nanoseconds}.
    Duration,
    /// A quantity such as `100m`, string or number. Protobuf {1 string}.
    Quantity,
    /// A number or a string. Protobuf {1 type, 2 int, 3 string}.
    IntOrString,
    /// Any object, stored unchanged. Protobuf {1 raw JSON}.
    RawExtension,
    /// Set of fields, stored unchanged. Protobuf {1 raw JSON}.
    FieldsV1,
    /// Any JSON value. Protobuf {1 raw JSON}.
    Json,
    /// A JSON schema or a boolean. Protobuf {1 bool, 2 schema}.
    SchemaOrBool,
    /// A JSON schema or an array of them. Protobuf {1 schema, 2 repeated schema}.
    SchemaOrArray,
    /// A JSON schema or an array of strings. Protobuf {1 schema, 2 repeated string}.
    SchemaOrStrings,
    /// An array of strings that is a message of its own on the protobuf wire: {1 repeated string}.
    Strings,
    /// Any JSON value, without protobuf form.
    Any,
}

/// Merge of lists by server-side apply (`x-kubernetes-list-type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    /// One value, owned as a whole.
    Atomic,
    /// Scalars, each owned on its own.
    Set,
    /// Objects, distinguished by the values of these fields.
    Map(Box<[Arc<str>]>),
}

/// Merge of objects by server-side apply (`x-kubernetes-map-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapType {
    /// One value, owned as a whole.
    Atomic,
    /// Each entry is owned on its own.
    Granular,
}

/// Treatment of a field by strategic merge patch (Go's `patchStrategy` tag).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PatchStrategy {
    /// Elements of a list are merged by the merge key, or as a set of scalars. Otherwise the list is replaced.
    pub merge: bool,
    /// Of a union, only the keys that the patch names remain.
    pub retain_keys: bool,
    /// An object is replaced, not merged.
    pub replace: bool,
}
