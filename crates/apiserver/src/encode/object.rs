//! One object as an answer.

use bytes::Bytes;
use http::{HeaderMap, Response, header::USER_AGENT};
use portolan_machinery::{
    conversion,
    decode::{self, MediaType},
    kinds::TypeId,
    protobuf,
    table::{self, IncludeObject},
};
use portolan_store::StoredObject;
use portolan_types::{GroupVersionKind, ManagedFields, Reason, ResourceVersion, Status, quoted::go_quoted};
use serde_json::{Value, json};

use crate::{
    call::{Call, Target},
    errors::damaged,
    query::Query,
};

use super::{
    Accepted, Body, Form, Many, Media, MetaVersion, Offer, Shown, Written, finish, full, media_type, negotiate,
    negotiate::{LIST_TYPES, OBJECT_TYPES},
    wants_gzip,
};

/// How the objects of one answer look.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) target: Target,
    pub(crate) accepted: Accepted,
    pub(crate) pretty: bool,
    pub(crate) gzip: bool,
    pub(crate) include: IncludeObject,
    pub(crate) now: jiff::Timestamp,
    /// Why nothing can be shown like this.
    pub(crate) unfit: Option<Box<Status>>,
}

impl Shape {
    /// What the client of a call wants. Whether the answer can be shown like that is asked when there is one: [`Shape::fits`].
    ///
    /// # Errors
    /// 406 when it accepts nothing that there is.
    pub(crate) fn of(call: &Call, target: &Target, now: jiff::Timestamp) -> Result<Self, Status> {
        let routed = routed(call, target);
        let shown = if has_table(call, target) { Shown::Table } else { Shown::Metadata };
        let offer = Offer { shown, protobuf: target.has_protobuf(), routed };
        let accepted = negotiate(&call.headers, offer)?;
        let include = include(accepted.form, call.query.text("includeObject"));
        let unfit = check_many(call, target, accepted.form).and(include.clone().map(drop)).err();
        Ok(Self {
            target: target.clone(),
            accepted,
            pretty: accepted.pretty || wants_pretty(&call.headers, &call.query),
            gzip: wants_gzip(&call.headers),
            include: include.unwrap_or(IncludeObject::Metadata),
            now,
            unfit: unfit.map(Box::new),
        })
    }

    /// Whether what is asked for can be shown like this.
    ///
    /// # Errors
    /// 406 for the metadata of many of one, or of one of many, 400 for an unknown `includeObject`.
    pub(crate) fn fits(&self) -> Result<(), Status> {
        self.unfit.as_deref().map_or(Ok(()), |unfit| Err(unfit.clone()))
    }

    /// How a `Status` is written in this form.
    pub(crate) fn written(&self) -> Written {
        Written { media: self.accepted.media, pretty: self.pretty }
    }

    /// Whether stored bytes, with the resourceVersion spliced in, are the answer.
    pub(crate) fn is_stored_form(&self) -> bool {
        let plain = self.accepted.media == Media::Json && self.accepted.form == Form::Object;
        plain && !self.pretty && self.target.is_read_as_served() && !self.target.has_no_revision()
    }

    /// A stored object as a tree, in the served version; for a table as it is stored: rows are printed of what no version
    /// has rearranged.
    pub(crate) fn tree(&self, stored: &StoredObject) -> Result<Value, Status> {
        match self.accepted.form == Form::Table && self.target.kind.is_typed() {
            true => stored_tree(&self.target, stored),
            false => tree(&self.target, stored),
        }
    }

    /// Whether a row of a table holds the stored bytes of the metadata. Columns of one's own may print anything, managed
    /// fields too.
    pub(crate) fn rows_hold_stored_metadata(&self) -> bool {
        let json = self.accepted.media == Media::Json && self.accepted.form == Form::Table && !self.pretty;
        let kind = &self.target.kind;
        let built_in = kind.content.is_none() && self.target.is_read_as_served() && conversion::is_internal(kind);
        json && built_in && !self.target.has_no_revision() && self.include == IncludeObject::Metadata
    }

    /// Appends the row of a stored object, where [`Shape::rows_hold_stored_metadata`].
    pub(crate) fn write_row(&self, stored: &StoredObject, out: &mut Vec<u8>) -> Result<(), Status> {
        let (record, revision) = (&stored.record, stored.revision);
        let object = record.to_value_with(ManagedFields::LeftOut, revision).map_err(|e| damaged(&stored.key, &e))?;
        let hides = conversion::hides_number(&self.target.kind, &object);
        let row = table::printed(&self.target.kind.gvk, &object, self.now);
        serde_json::to_writer(&mut *out, &row).map_err(Status::internal)?;
        // The row goes on.
        out.pop();
        let version = self.accepted.meta.api_version();
        let begin =
            format!(",\"object\":{{\"apiVersion\":\"{version}\",\"kind\":\"PartialObjectMetadata\",\"metadata\":");
        out.extend_from_slice(begin.as_bytes());
        match hides {
            false => record.write_metadata(revision, out).map_err(|e| damaged(&stored.key, &e))?,
            true => {
                let metadata = self.metadata_only(self.tree(stored)?)["metadata"].take();
                serde_json::to_writer(&mut *out, &metadata).map_err(Status::internal)?;
            }
        }
        out.extend_from_slice(b"}}");
        Ok(())
    }

    /// A stored object as a tree to be encoded as protobuf.
    pub(super) fn tree_for_protobuf(&self, stored: &StoredObject) -> Result<Value, Status> {
        if !self.target.is_read_as_served() {
            return self.tree(stored);
        }
        let tree = stored.record.to_value_with(ManagedFields::AsText, stored.revision);
        tree.map_err(|e| damaged(&stored.key, &e))
    }

    /// The form of one object, without its bytes.
    pub(crate) fn formed(&self, object: Value) -> Value {
        match self.accepted.form {
            Form::Object => object,
            Form::Metadata(_) => self.metadata_only(object),
            Form::Table => {
                let version = portolan_types::object::meta_text(&object, "resourceVersion");
                let metadata = if version.is_empty() { json!({}) } else { json!({"resourceVersion": version}) };
                self.table(vec![object], metadata, true)
            }
        }
    }

    /// `PartialObjectMetadata` of an object.
    pub(crate) fn metadata_only(&self, object: Value) -> Value {
        let mut object = conversion::internal(&self.target.kind, object);
        let metadata = object.get_mut("metadata").map(Value::take).unwrap_or_else(|| json!({}));
        let version = self.accepted.meta.api_version();
        json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata})
    }

    /// Objects as a table.
    pub(crate) fn table(&self, objects: Vec<Value>, metadata: Value, with_columns: bool) -> Value {
        let kind = &self.target.kind;
        self.versioned(table::table(kind, objects, metadata, self.include, with_columns, self.now))
    }

    /// A table in the version that is asked for.
    pub(crate) fn versioned(&self, mut table: Value) -> Value {
        if self.accepted.meta == MetaVersion::V1 {
            return table;
        }
        let version = self.accepted.meta.api_version();
        table["apiVersion"] = version.into();
        let rows = table.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten();
        for object in rows.filter_map(|row| row.get_mut("object")).filter(|o| o["kind"] == "PartialObjectMetadata") {
            object["apiVersion"] = version.into();
        }
        table
    }

    /// A tree as bytes.
    pub(crate) fn bytes(&self, value: &Value) -> Result<Vec<u8>, Status> {
        match self.accepted.media {
            Media::Json => Ok(json_bytes(value, self.pretty)),
            Media::Yaml => yaml(value).map(String::into_bytes),
            Media::Protobuf => {
                let schema = self.named_type(value).map_or_else(|| self.item_type(), Ok)?;
                protobuf::encode(value, schema, &self.target.table).map_err(Status::internal)
            }
        }
    }

    /// The type of what is no resource, such as the scale of one.
    fn named_type(&self, value: &Value) -> Option<TypeId> {
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let gvk = GroupVersionKind::parse(text("apiVersion"), text("kind")).ok()?;
        self.target.table.object_type(&gvk.group, &gvk.version, &gvk.kind)
    }

    /// The type of one object in this form.
    pub(crate) fn item_type(&self) -> Result<TypeId, Status> {
        let table = &self.target.table;
        match self.accepted.form {
            Form::Object | Form::Table => Ok(self.target.kind.schema),
            Form::Metadata(_) => table
                .object_type("meta.k8s.io", "v1", "PartialObjectMetadata")
                .ok_or_else(|| Status::internal("no type PartialObjectMetadata")),
        }
    }

    /// The content type of the answer.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.accepted.media {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => protobuf::CONTENT_TYPE,
        }
    }
}

/// Whether there is a table of what a call is about: not of all parts of objects (upstream's `TableConvertor`).
fn has_table(call: &Call, target: &Target) -> bool {
    let kind = &target.kind;
    let part = match (call.captures.subresource.as_str(), &*kind.gvk.group) {
        ("status", "apiextensions.k8s.io" | "apiregistration.k8s.io") => false,
        ("status", "resource.k8s.io") => &*kind.resource != "resourceclaims",
        ("" | "status" | "scale" | "finalize", _) => true,
        _ => false,
    };
    part && kind.has_verb("get")
}

/// What upstream's router knows of a route; nothing of what has no protobuf form, which does not go through it.
fn routed(call: &Call, target: &Target) -> &'static [&'static str] {
    match call.attributes.verb.as_str() {
        _ if !target.has_protobuf() => &[],
        "list" | "watch" if target.kind.has_verb("watch") => LIST_TYPES,
        _ => OBJECT_TYPES,
    }
}

/// A stored object as a tree, in the version of the target.
pub(crate) fn tree(target: &Target, stored: &StoredObject) -> Result<Value, Status> {
    let value = stored_tree(target, stored)?;
    Ok(if target.is_read_as_served() { value } else { conversion::from_storage(&target.kind, value) })
}

fn stored_tree(target: &Target, stored: &StoredObject) -> Result<Value, Status> {
    let mut value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    if target.has_no_revision() {
        portolan_types::object::metadata_mut(&mut value).remove("resourceVersion");
    }
    Ok(value)
}

/// What rows of a table hold of their objects. Nobody else looks at it.
fn include(form: Form, asked: &str) -> Result<IncludeObject, Status> {
    match asked {
        "" | "Metadata" => Ok(IncludeObject::Metadata),
        "None" => Ok(IncludeObject::None),
        "Object" => Ok(IncludeObject::Object),
        _ if form != Form::Table => Ok(IncludeObject::Metadata),
        other => {
            let why = "must be 'Metadata', 'Object', 'None', or empty";
            Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {}: {why}",
                go_quoted(other)
            )))
        }
    }
}

/// The metadata of a list is a list, that of an object is none.
fn check_many(call: &Call, target: &Target, form: Form) -> Result<(), Status> {
    // The type behind the endpoint, as Go's fmt writes it.
    let behind = match target.is_custom() {
        true => "*unstructured.Unstructured".to_owned(),
        false => format!("*{}.{}", decode::package(&target.kind), target.kind.gvk.kind),
    };
    let refused = |text: String| Err(Status::new(Reason::NotAcceptable, text));
    let verb = call.attributes.verb.as_str();
    let is_many = matches!(verb, "list" | "deletecollection");
    match form {
        Form::Metadata(Many::One) if is_many => {
            refused(format!("you requested PartialObjectMetadata, but the requested object is a list ({behind}List)"))
        }
        // A watch ends with the first object.
        Form::Metadata(Many::List) if !is_many && verb != "watch" => refused(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list ({behind})"
        )),
        Form::Object | Form::Table | Form::Metadata(_) => Ok(()),
    }
}

/// Asked for, or for people: browsers and command line tools that show answers as they come.
pub(crate) fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let asked = query.get("pretty").filter(|text| !text.is_empty()).map(|_| query.says_yes("pretty"));
    asked.unwrap_or_else(|| ["Mozilla/5.0", "curl", "Wget"].iter().any(|known| agent.starts_with(known)))
}

/// A value as JSON. As Go's encoder, it ends in a line break where it is not in lines anyway.
pub(crate) fn json_bytes(value: &Value, pretty: bool) -> Vec<u8> {
    let bytes = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let mut bytes = bytes.expect("a JSON tree serializes into memory");
    if !pretty {
        bytes.push(b'\n');
    }
    bytes
}

/// A value as YAML.
pub(crate) fn yaml(value: &impl serde::Serialize) -> Result<String, Status> {
    serde_saphyr::to_string(value).map_err(Status::internal)
}

/// A stored object as an answer: where possible its stored bytes.
pub(crate) fn object(shape: &Shape, code: u16, stored: &StoredObject) -> Result<Response<Body>, Status> {
    shape.fits()?;
    if shape.is_stored_form() {
        let mut bytes = stored.record.to_json(stored.revision);
        bytes.push(b'\n');
        return Ok(answer(shape, code, bytes));
    }
    value(shape, code, shape.tree(stored)?)
}

/// A tree as an answer.
pub(crate) fn value(shape: &Shape, code: u16, object: Value) -> Result<Response<Body>, Status> {
    shape.fits()?;
    Ok(answer(shape, code, shape.bytes(&shape.formed(object))?))
}

fn answer(shape: &Shape, code: u16, bytes: Vec<u8>) -> Response<Body> {
    super::list::packed(finish(code, shape.content_type(), full(Bytes::new())), shape.gzip, bytes)
}

/// The media type of a request body.
///
/// # Errors
/// 415 for types that are none of ours.
pub(crate) fn media_of(call: &Call) -> Result<MediaType, Status> {
    let text = call.header(http::header::CONTENT_TYPE);
    let media = if text.is_empty() { Some("application/json".into()) } else { media_type::parse(text) };
    match media.as_deref() {
        Some("application/json") => Ok(MediaType::Json),
        Some("application/yaml") => Ok(MediaType::Yaml),
        Some("application/vnd.kubernetes.protobuf") => Ok(MediaType::Protobuf),
        _ => Err(Status::new(
            Reason::UnsupportedMediaType,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// The resourceVersion in a tree.
pub(crate) fn with_revision(mut object: Value, revision: ResourceVersion) -> Value {
    portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
    object
}
