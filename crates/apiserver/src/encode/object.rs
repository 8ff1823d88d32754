//! One object as an answer.

use bytes::Bytes;
use http::Response;
use portolan_machinery::{
    conversion,
    decode::MediaType,
    protobuf,
    table::{self, IncludeObject},
};
use portolan_store::StoredObject;
use portolan_types::{ResourceVersion, Status};
use serde_json::{Value, json};

use crate::{
    call::{Call, Target},
    errors::damaged,
};

use super::{Accepted, Body, Form, Media, Offer, finish, full, negotiate, wants_gzip};

/// How the objects of one answer look.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) target: Target,
    pub(crate) accepted: Accepted,
    pub(crate) pretty: bool,
    pub(crate) gzip: bool,
    pub(crate) include: IncludeObject,
    pub(crate) now: jiff::Timestamp,
}

impl Shape {
    /// What the client of a call wants.
    ///
    /// # Errors
    /// 406 when it accepts nothing that there is, 400 for an unknown `includeObject`.
    pub(crate) fn of(call: &Call, target: &Target, now: jiff::Timestamp) -> Result<Self, Status> {
        let offer = Offer { forms: target.kind.has_verb("get"), protobuf: target.has_protobuf() };
        let include = match call.query.text("includeObject") {
            "" | "Metadata" => IncludeObject::Metadata,
            "None" => IncludeObject::None,
            "Object" => IncludeObject::Object,
            other => return Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        };
        Ok(Self {
            target: target.clone(),
            accepted: negotiate(&call.headers, offer)?,
            pretty: wants_pretty(call),
            gzip: wants_gzip(&call.headers),
            include,
            now,
        })
    }

    /// Whether stored bytes, with the resourceVersion spliced in, are the answer.
    pub(crate) fn is_stored_form(&self) -> bool {
        let plain = Accepted { media: Media::Json, form: Form::Object };
        self.accepted == plain && !self.pretty && self.target.is_storage_version()
    }

    /// A stored object as a tree, in the served version.
    pub(crate) fn tree(&self, stored: &StoredObject) -> Result<Value, Status> {
        tree(&self.target, stored)
    }

    /// The form of one object, without its bytes.
    pub(crate) fn formed(&self, object: Value) -> Value {
        match self.accepted.form {
            Form::Object => object,
            Form::Metadata => metadata_only(object),
            Form::Table => {
                let version = portolan_types::object::meta_text(&object, "resourceVersion");
                let metadata = if version.is_empty() { json!({}) } else { json!({"resourceVersion": version}) };
                table::table(&self.target.kind, &[object], metadata, self.include, true, self.now)
            }
        }
    }

    /// A tree as bytes.
    pub(crate) fn bytes(&self, value: &Value) -> Result<Vec<u8>, Status> {
        match self.accepted.media {
            Media::Json => Ok(json_bytes(value, self.pretty)),
            Media::Yaml => yaml(value).map(String::into_bytes),
            Media::Protobuf => {
                protobuf::encode(value, self.target.kind.schema, self.target.table).map_err(Status::internal)
            }
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

/// A stored object as a tree, in the version of the target.
pub(crate) fn tree(target: &Target, stored: &StoredObject) -> Result<Value, Status> {
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    Ok(if target.is_storage_version() { value } else { conversion::from_storage(&target.kind, value) })
}

fn wants_pretty(call: &Call) -> bool {
    call.query.maybe_flag("pretty").unwrap_or_else(|| call.header(http::header::USER_AGENT).starts_with("Mozilla/"))
}

pub(super) fn json_bytes(value: &Value, pretty: bool) -> Vec<u8> {
    let bytes = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    bytes.expect("a JSON tree serializes into memory")
}

/// A value as YAML.
pub(crate) fn yaml(value: &impl serde::Serialize) -> Result<String, Status> {
    serde_saphyr::to_string(value).map_err(Status::internal)
}

/// `PartialObjectMetadata` of an object.
pub(crate) fn metadata_only(mut object: Value) -> Value {
    let metadata = object.get_mut("metadata").map(Value::take).unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// A stored object as an answer: where possible its stored bytes.
pub(crate) fn object(shape: &Shape, code: u16, stored: &StoredObject) -> Result<Response<Body>, Status> {
    if shape.is_stored_form() {
        let bytes = stored.record.to_json(stored.revision);
        return Ok(answer(shape, code, bytes));
    }
    value(shape, code, shape.tree(stored)?)
}

/// A tree as an answer.
pub(crate) fn value(shape: &Shape, code: u16, object: Value) -> Result<Response<Body>, Status> {
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
    match text.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" => Ok(MediaType::Json),
        "application/yaml" | "text/yaml" | "application/x-yaml" => Ok(MediaType::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(MediaType::Protobuf),
        _ => Err(Status::new(
            portolan_types::Reason::UnsupportedMediaType,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// The resourceVersion in a tree.
pub(crate) fn with_revision(mut object: Value, revision: ResourceVersion) -> Value {
    portolan_types::object::metadata_mut(&mut object).insert("resourceVersion".into(), revision.to_string().into());
    object
}
