//! Response with one object.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, header::USER_AGENT};
use portolan_codec::{
    conversion,
    decode::{self, MediaType},
    protobuf,
};
use portolan_kinds::TypeId;
use portolan_store::StoredObject;
use portolan_strategy::table::{self, IncludeObject};
use portolan_types::{
    GroupVersionKind, LogicalClusterId, ManagedFields, Reason, ResourceVersion, Status, quoted::go_quoted,
};
use serde_json::{Value, json};

use crate::{
    errors::damaged,
    objects::{stored_tree, tree},
    request::{RequestContext, ResourceTarget},
    routing::query::Query,
    views::flattened::FlattenedNames,
};

use super::{
    Body, FormOffer, MetaVersion, MetadataShape, NegotiatedForm, ObjectForm, OfferedForms, ResponseFormat, StatusForm,
    finish, full, media_type, negotiate,
    negotiate::{LIST_TYPES, OBJECT_TYPES},
    wants_gzip,
};

/// Form of all objects of one response.
#[derive(Clone)]
pub(crate) struct ResponseShape {
    pub(crate) target: ResourceTarget,
    pub(crate) accepted: NegotiatedForm,
    pub(crate) pretty: bool,
    pub(crate) gzip: bool,
    pub(crate) include: IncludeObject,
    pub(crate) now: jiff::Timestamp,
    /// Error if the answer cannot have this form.
    pub(crate) form_error: Option<Box<Status>>,
    /// Names of the flattened view that shows the one object of the response, and its logical cluster.
    pub(crate) flattened: Option<(Arc<FlattenedNames>, LogicalClusterId)>,
}

impl ResponseShape {
    /// Negotiates the form of the response. If the answer can have that form is checked later: [`ResponseShape::fits`].
    ///
    /// # Errors
    /// 406 when the client accepts no form that exists.
    pub(crate) fn of(call: &RequestContext, target: &ResourceTarget, now: jiff::Timestamp) -> Result<Self, Status> {
        let routed = routed(call, target);
        let shown = if has_table(call, target) { OfferedForms::Table } else { OfferedForms::Metadata };
        let offer = FormOffer { shown, protobuf: target.has_protobuf(), routed };
        let accepted = negotiate(&call.headers, offer)?;
        let include = include(accepted.form, call.query.text("includeObject"));
        let form_error = check_many(call, target, accepted.form).and(include.clone().map(drop)).err();
        Ok(Self {
            target: target.clone(),
            accepted,
            pretty: accepted.pretty || wants_pretty(&call.headers, &call.query),
            gzip: wants_gzip(&call.headers),
            include: include.unwrap_or(IncludeObject::Metadata),
            now,
            form_error: form_error.map(Box::new),
            flattened: call.flattened().map(|names| (names.clone(), call.cluster.id)),
        })
    }

    /// Checks that the answer can have this form.
    ///
    /// # Errors
    /// 406 for the metadata of a list of one object, or of one object of a list; 400 for an unknown `includeObject`.
    pub(crate) fn fits(&self) -> Result<(), Status> {
        self.form_error.as_deref().map_or(Ok(()), |form_error| Err(form_error.clone()))
    }

    /// Returns the form of a `Status`.
    pub(crate) fn written(&self) -> StatusForm {
        StatusForm { media: self.accepted.media, pretty: self.pretty }
    }

    /// Returns true if the stored bytes, with the resourceVersion inserted, are the response.
    pub(crate) fn is_stored_form(&self) -> bool {
        let plain = self.accepted.media == ResponseFormat::Json && self.accepted.form == ObjectForm::Object;
        plain && !self.pretty && self.target.is_read_as_served() && !self.target.has_no_revision()
    }

    /// Returns a stored object as a tree in the served version. For a table it stays as stored: rows are printed from
    /// an object that no version has rearranged.
    pub(crate) fn tree(&self, stored: &StoredObject) -> Result<Value, Status> {
        if self.accepted.form == ObjectForm::Table && self.target.kind.is_typed() {
            stored_tree(&self.target, stored)
        } else {
            tree(&self.target, stored)
        }
    }

    /// Returns true if table rows contain the stored bytes of the metadata. Custom columns can print any field,
    /// including managed fields.
    pub(crate) fn rows_hold_stored_metadata(&self) -> bool {
        let json =
            self.accepted.media == ResponseFormat::Json && self.accepted.form == ObjectForm::Table && !self.pretty;
        let kind = &self.target.kind;
        let built_in = kind.content.is_none() && self.target.is_read_as_served() && conversion::is_internal(kind);
        json && built_in && !self.target.has_no_revision() && self.include == IncludeObject::Metadata
    }

    /// Appends the row of a stored object if [`ResponseShape::rows_hold_stored_metadata`].
    pub(crate) fn write_row(&self, stored: &StoredObject, out: &mut Vec<u8>) -> Result<(), Status> {
        let (record, revision) = (&stored.record, stored.revision);
        let object = record.to_value_with(ManagedFields::LeftOut, revision).map_err(|e| damaged(&stored.key, &e))?;
        let hides = conversion::hides_number(&self.target.kind, &object);
        let row = table::printed(&self.target.kind.gvk, &object, self.now);
        serde_json::to_writer(&mut *out, &row).map_err(Status::internal)?;
        // The row continues.
        out.pop();
        let version = self.accepted.meta.api_version();
        let begin =
            format!(",\"object\":{{\"apiVersion\":\"{version}\",\"kind\":\"PartialObjectMetadata\",\"metadata\":");
        out.extend_from_slice(begin.as_bytes());
        if hides {
            let metadata = self.metadata_only(self.tree(stored)?)["metadata"].take();
            serde_json::to_writer(&mut *out, &metadata).map_err(Status::internal)?;
        } else {
            record.write_metadata(revision, out).map_err(|e| damaged(&stored.key, &e))?
        }
        out.extend_from_slice(b"}}");
        Ok(())
    }

    /// Returns a stored object as a tree for protobuf.
    pub(super) fn tree_for_protobuf(&self, stored: &StoredObject) -> Result<Value, Status> {
        if !self.target.is_read_as_served() {
            return self.tree(stored);
        }
        let tree = stored.record.to_value_with(ManagedFields::AsText, stored.revision);
        tree.map_err(|e| damaged(&stored.key, &e))
    }

    /// Returns one object in this form, as a tree.
    pub(crate) fn formed(&self, object: Value) -> Value {
        match self.accepted.form {
            ObjectForm::Object => object,
            ObjectForm::Metadata(_) => self.metadata_only(object),
            ObjectForm::Table => {
                let version = portolan_types::object::meta_text(&object, "resourceVersion");
                let metadata = if version.is_empty() { json!({}) } else { json!({"resourceVersion": version}) };
                self.table(vec![object], metadata, true)
            }
        }
    }

    /// Returns the `PartialObjectMetadata` of an object.
    pub(crate) fn metadata_only(&self, object: Value) -> Value {
        let mut object = conversion::internal(&self.target.kind, object);
        let metadata = object.get_mut("metadata").map(Value::take).unwrap_or_else(|| json!({}));
        let version = self.accepted.meta.api_version();
        json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata})
    }

    /// Returns objects as a table.
    pub(crate) fn table(&self, objects: Vec<Value>, metadata: Value, with_columns: bool) -> Value {
        let kind = &self.target.kind;
        self.versioned(table::table(kind, objects, metadata, self.include, with_columns, self.now))
    }

    /// Sets the requested version of a table.
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

    /// Encodes a tree.
    pub(crate) fn bytes(&self, value: &Value) -> Result<Vec<u8>, Status> {
        match self.accepted.media {
            ResponseFormat::Json => Ok(json_bytes(value, self.pretty)),
            ResponseFormat::Yaml => yaml(value).map(String::into_bytes),
            ResponseFormat::Protobuf => {
                let schema = self.named_type(value).map_or_else(|| self.item_type(), Ok)?;
                protobuf::encode(value, schema, &self.target.table).map_err(Status::internal)
            }
        }
    }

    /// Returns the type of a part such as a scale, which is not a resource.
    fn named_type(&self, value: &Value) -> Option<TypeId> {
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let gvk = GroupVersionKind::parse(text("apiVersion"), text("kind")).ok()?;
        self.target.table.object_type(&gvk.group, &gvk.version, &gvk.kind)
    }

    /// Returns the type of one object in this form.
    pub(crate) fn item_type(&self) -> Result<TypeId, Status> {
        let table = &self.target.table;
        match self.accepted.form {
            ObjectForm::Object | ObjectForm::Table => Ok(self.target.kind.schema),
            ObjectForm::Metadata(_) => table
                .object_type("meta.k8s.io", "v1", "PartialObjectMetadata")
                .ok_or_else(|| Status::internal("no type PartialObjectMetadata")),
        }
    }

    /// Returns the content type of the response.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.accepted.media {
            ResponseFormat::Json => "application/json",
            ResponseFormat::Yaml => "application/yaml",
            ResponseFormat::Protobuf => protobuf::CONTENT_TYPE,
        }
    }
}

/// Returns true if the answer has a table; not all subresources have one (kube-apiserver's `TableConvertor`).
fn has_table(call: &RequestContext, target: &ResourceTarget) -> bool {
    let kind = &target.kind;
    let part = match (call.captures.subresource.as_str(), &*kind.gvk.group) {
        ("status", "apiextensions.k8s.io" | "apiregistration.k8s.io") => false,
        ("status", "resource.k8s.io") => &*kind.resource != "resourceclaims",
        ("" | "status" | "scale" | "finalize", _) => true,
        _ => false,
    };
    part && kind.has_verb("get")
}

/// Returns the media types of the route. Kinds without protobuf do not go through kube-apiserver's router.
fn routed(call: &RequestContext, target: &ResourceTarget) -> &'static [&'static str] {
    match call.attributes.verb.as_str() {
        _ if !target.has_protobuf() => &[],
        "list" | "watch" if target.kind.has_verb("watch") => LIST_TYPES,
        _ => OBJECT_TYPES,
    }
}

/// Parses `includeObject`, the part of objects in table rows. Other forms ignore it.
fn include(form: ObjectForm, asked: &str) -> Result<IncludeObject, Status> {
    match asked {
        "" | "Metadata" => Ok(IncludeObject::Metadata),
        "None" => Ok(IncludeObject::None),
        "Object" => Ok(IncludeObject::Object),
        _ if form != ObjectForm::Table => Ok(IncludeObject::Metadata),
        other => {
            let why = "must be 'Metadata', 'Object', 'None', or empty";
            Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {}: {why}",
                go_quoted(other)
            )))
        }
    }
}

/// Checks that metadata of a list is requested of a list, and of one object of an object.
fn check_many(call: &RequestContext, target: &ResourceTarget, form: ObjectForm) -> Result<(), Status> {
    // Go type behind the endpoint, as Go's fmt prints it.
    let behind = if target.is_custom() {
        "*unstructured.Unstructured".to_owned()
    } else {
        format!("*{}.{}", decode::package(&target.kind), target.kind.gvk.kind)
    };
    let refused = |text: String| Err(Status::new(Reason::NotAcceptable, text));
    let verb = call.attributes.verb.as_str();
    let is_many = matches!(verb, "list" | "deletecollection");
    match form {
        ObjectForm::Metadata(MetadataShape::One) if is_many => {
            refused(format!("you requested PartialObjectMetadata, but the requested object is a list ({behind}List)"))
        }
        // A watch ends with its first object.
        ObjectForm::Metadata(MetadataShape::List) if !is_many && verb != "watch" => refused(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list ({behind})"
        )),
        ObjectForm::Object | ObjectForm::Table | ObjectForm::Metadata(_) => Ok(()),
    }
}

/// Returns true for indented output: requested, or for browsers and command line tools that print responses.
pub(crate) fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let asked = query.get("pretty").filter(|text| !text.is_empty()).map(|_| query.strict_flag("pretty"));
    asked.unwrap_or_else(|| ["Mozilla/5.0", "curl", "Wget"].iter().any(|known| agent.starts_with(known)))
}

/// Encodes a value as JSON. Like Go's encoder it ends in a line break unless it is indented.
pub(crate) fn json_bytes(value: &Value, pretty: bool) -> Vec<u8> {
    let bytes = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let mut bytes = bytes.expect("a JSON tree serializes into memory");
    if !pretty {
        bytes.push(b'\n');
    }
    bytes
}

/// Encodes a value as YAML.
pub(crate) fn yaml(value: &impl serde::Serialize) -> Result<String, Status> {
    serde_saphyr::to_string(value).map_err(Status::internal)
}

/// Encodes a stored object as a response, from its stored bytes if possible.
pub(crate) fn object(shape: &ResponseShape, code: u16, stored: &StoredObject) -> Result<Response<Body>, Status> {
    shape.fits()?;
    if shape.is_stored_form() && shape.flattened.is_none() {
        let mut bytes = stored.record.to_json(stored.revision);
        bytes.push(b'\n');
        return Ok(answer(shape, code, bytes));
    }
    value(shape, code, shape.tree(stored)?)
}

/// Encodes a tree as a response.
pub(crate) fn value(shape: &ResponseShape, code: u16, mut object: Value) -> Result<Response<Body>, Status> {
    shape.fits()?;
    if let Some((names, cluster)) = &shape.flattened {
        names.show((&shape.target.table, &shape.target.kind), *cluster, &mut object);
    }
    Ok(answer(shape, code, shape.bytes(&shape.formed(object))?))
}

fn answer(shape: &ResponseShape, code: u16, bytes: Vec<u8>) -> Response<Body> {
    super::list::packed(finish(code, shape.content_type(), full(Bytes::new())), shape.gzip, bytes)
}

/// Returns the media type of a request body.
///
/// # Errors
/// 415 for an unsupported type.
pub(crate) fn media_of(call: &RequestContext) -> Result<MediaType, Status> {
    media_in(&call.headers)
}

/// Returns the media type of a body with these headers.
///
/// # Errors
/// 415 for an unsupported type.
pub(crate) fn media_in(headers: &HeaderMap) -> Result<MediaType, Status> {
    let text = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
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

/// Sets the resourceVersion of a tree.
pub(crate) fn with_revision(mut object: Value, revision: ResourceVersion) -> Value {
    portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
    object
}
