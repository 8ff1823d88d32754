//! PATCH: JSON patch, merge patch, strategic merge patch, server-side apply.

use std::sync::Arc;

use http::{Response, header::CONTENT_TYPE};
use portolan_machinery::{
    apply::{self, ApplyRequest},
    decode::{self, FieldValidation, MediaType},
    patch,
};
use portolan_types::{GroupKind, Reason, Status, StatusCause, object};
use serde_json::Value;

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::Shape,
    objects::{Changed, Found, Writer},
    options::{WriteOptions, invalid},
};

use super::{body, update::may_create};

/// How a patch is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// From the content type.
    ///
    /// # Errors
    /// 415 for anything else.
    pub(super) fn of(call: &Call) -> Result<Self, Status> {
        let text = call.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        match text.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ => Err(Status::new(
                Reason::UnsupportedMediaType,
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }
}

pub(super) async fn patch(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    subresource: Option<&str>,
) -> Result<Response<Body>, Status> {
    let options = WriteOptions::of(call)?;
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let kind = PatchKind::of(call)?;
    if kind != PatchKind::Apply && call.query.get("force").is_some() {
        return Err(invalid(
            "PatchOptions",
            "force",
            "FieldValueForbidden",
            "Forbidden: may not be specified for non-apply patch",
        ));
    }
    let writer = Writer { api, call, target, options: &options, applied: kind == PatchKind::Apply };
    let key = target.key(call, &call.captures.name)?;
    let found = api.find(call, target, &key).await?;
    let (code, changed) = match (kind, found) {
        (PatchKind::Apply, found) => applied(api, call, &writer, found, subresource).await?,
        (_, None) => return Err(Status::not_found(&target.resource(), &key.name)),
        (kind, Some(found)) => {
            let patch = Patch::read(call, target, kind)?;
            let make = |old: &Value| patch.on(old, options.validation);
            (200, writer.change(&key, found, subresource, &make).await?)
        }
    };
    body::changed(api, call, &shape, code, changed)
}

/// A patch that has been read once and may be tried several times.
pub(super) struct Patch<'a> {
    call: &'a Call,
    target: &'a Target,
    kind: PatchKind,
    tree: Value,
}

impl<'a> Patch<'a> {
    pub(super) fn read(call: &'a Call, target: &'a Target, kind: PatchKind) -> Result<Self, Status> {
        // Apart from JSON patches, which are lists and are read where they are applied.
        let tree = match kind {
            PatchKind::Json => Value::Null,
            _ => decode::decode_any(MediaType::Json, &call.body)?,
        };
        if kind != PatchKind::Json && !tree.is_object() {
            return Err(Status::bad_request("a patch is an object"));
        }
        Ok(Self { call, target, kind, tree })
    }

    /// The patched document, whatever it is of.
    pub(super) fn raw(&self, old: &Value) -> Result<Value, Status> {
        match self.kind {
            PatchKind::Json => patch::json_patch(old, &self.call.body),
            PatchKind::Merge => Ok(patch::merge_patch(old, &self.tree)),
            PatchKind::Strategic => patch::strategic_merge(self.target.table, self.target.kind.schema, old, &self.tree),
            PatchKind::Apply => Err(Status::bad_request("an apply patch is not taken here")),
        }
    }

    fn on(&self, old: &Value, validation: FieldValidation) -> Result<Value, Status> {
        let mut new = self.raw(old)?;
        let identity = |value: &Value, key: &str| value.get(key).cloned();
        if identity(&new, "kind") != identity(old, "kind")
            || identity(&new, "apiVersion") != identity(old, "apiVersion")
        {
            let why = "Invalid value: a patch cannot change the kind or the apiVersion of an object";
            return Err(Status::invalid(
                &GroupKind { group: "".into(), kind: "".into() },
                "",
                vec![cause("patch", why)],
            ));
        }
        // A PUT names the object that it means; a patch that names another one wants to change it.
        if let Some(uid) = object::metadata(&new).get("uid").filter(|uid| object::metadata(old).get("uid") != Some(uid))
        {
            let why = format!("Invalid value: {uid}: field is immutable");
            let kind = self.target.kind.gvk.group_kind();
            return Err(Status::invalid(&kind, object::name(old), vec![cause("metadata.uid", &why)]));
        }
        let warnings = decode::prune_canonical(self.target.table, &self.target.kind, &mut new, validation)?;
        self.call.warn(warnings);
        Ok(new)
    }
}

fn cause(field: &str, message: &str) -> StatusCause {
    StatusCause { reason: "FieldValueInvalid".into(), message: message.into(), field: field.into() }
}

async fn applied(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    writer: &Writer<'_>,
    found: Option<Found>,
    subresource: Option<&str>,
) -> Result<(u16, Changed), Status> {
    let (target, options) = (writer.target, writer.options);
    if call.query.text("fieldManager").is_empty() {
        let why = "Required value: is required for apply patch";
        return Err(invalid("PatchOptions", "fieldManager", "FieldValueRequired", why));
    }
    let wanted = decode::decode_any(MediaType::Yaml, &call.body)?;
    check_applied(call, target, &wanted, options.validation)?;
    body::warn_of_server_annotations(call, &wanted);
    let now = api.seams.now_text();
    let make = |live: Option<&Value>| {
        let request = ApplyRequest {
            live,
            applied: wanted.clone(),
            manager: &options.manager,
            force: call.query.flag("force"),
            subresource,
            now: &now,
        };
        let mut merged = apply::apply(target.table, &target.kind, request)?;
        decode::prune_canonical(target.table, &target.kind, &mut merged, FieldValidation::Ignore)?;
        Ok(merged)
    };
    let key = target.key(call, &call.captures.name)?;
    match found {
        Some(found) => Ok((200, writer.change(&key, found, subresource, &|old| make(Some(old))).await?)),
        None if subresource.is_some() => Err(Status::not_found(&target.resource(), &key.name)),
        None => {
            may_create(api, call).await?;
            if let Some(uid) = object::uid(&wanted) {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(Status::conflict(&target.resource(), &key.name, why));
            }
            let fresh = || {
                let mut new = make(None)?;
                object::metadata_mut(&mut new).remove("resourceVersion");
                Ok(new)
            };
            Ok((201, writer.create(&fresh, Some(&call.captures.name)).await?))
        }
    }
}

/// Type and unknown fields of an applied object. The object itself stays as sent: only what is in it is owned.
fn check_applied(call: &Call, target: &Target, wanted: &Value, validation: FieldValidation) -> Result<(), Status> {
    let text = |key: &str| wanted.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (target.kind.group_version().to_string(), &*target.kind.gvk.kind);
    if text("apiVersion") != version || text("kind") != kind {
        return Err(Status::bad_request(format!(
            "the object in the body is a {:?} of {:?}, and the request is about a {kind:?} of {version:?}",
            text("kind"),
            text("apiVersion")
        )));
    }
    let mut scratch = wanted.clone();
    let notes = decode::prune_canonical(target.table, &target.kind, &mut scratch, FieldValidation::Warn)?;
    match validation {
        FieldValidation::Strict if !notes.is_empty() => {
            Err(Status::bad_request(format!("error strict decoding patch: {}", notes.join(", "))))
        }
        FieldValidation::Strict | FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            call.warn(notes);
            Ok(())
        }
    }
}
