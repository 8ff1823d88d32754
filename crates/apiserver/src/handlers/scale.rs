//! `scale`: the number of replicas as an object of its own.

use std::sync::Arc;

use http::Response;
use portolan_machinery::{
    apply::{self, ApplyRequest, Conversions},
    decode::{self, FieldValidation},
    lifecycle, table,
};
use portolan_types::{GroupResource, GroupVersionKind, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    call::{Call, Target, method_not_allowed},
    encode::{self, Accepted, Form, Shape, media_of, tree},
    objects::{Changed, Found, Writer},
    options::WriteOptions,
};

use super::{
    patch::{Patch, PatchKind},
    update,
};

pub(super) async fn handle(api: &Arc<ApiServer>, call: &Arc<Call>, target: &Target) -> Result<Response<Body>, Status> {
    let (key, found) = api.found(call, target).await?;
    if call.attributes.verb == "get" {
        let object = tree(target, &found.stored)?;
        return answer(api, call, target, lifecycle::read_scale(&target.kind, &object)?);
    }
    let options = WriteOptions::of(call)?;
    let kind = match call.attributes.verb.as_str() {
        "update" => None,
        "patch" => Some(PatchKind::of(call, target)?),
        _ => return Err(method_not_allowed()),
    };
    let applied = kind == Some(PatchKind::Apply);
    let writer = Writer { api, call, target, options: &options, applied, conversions: Conversions::default() };
    let changed = match kind {
        None => {
            let sent = decode_scale(call, target, &options)?;
            change(&writer, &key, found, &|_| Ok(sent.clone())).await?
        }
        Some(PatchKind::Apply) => apply(&writer, &key, found).await?,
        Some(kind) => {
            let taken = decode::taken_by(&target.table, &target.kind, scale_kind())?;
            let scales = Target { kind: Arc::new(taken), ..target.clone() };
            let patch = Patch::read(call, &scales, kind)?;
            change(&writer, &key, found, &|scale| patched(target, &patch, scale, options.validation)).await?
        }
    };
    match changed {
        Changed::Stored(stored, _) => {
            let scale = lifecycle::scale_of(&target.kind, &tree(target, &stored)?)?;
            answer(api, call, target, scale)
        }
        Changed::Dry(object) | Changed::Removed(object) => {
            answer(api, call, target, lifecycle::scale_of(&target.kind, &object)?)
        }
    }
}

fn scale_kind() -> GroupVersionKind {
    GroupVersionKind::new("autoscaling", "v1", "Scale")
}

fn patched(target: &Target, patch: &Patch<'_>, old: &Value, validation: FieldValidation) -> Result<Value, Status> {
    let mut new = patch.typed(old, validation)?;
    match target.is_custom() {
        // As upstream, which looks at it for built-in kinds only.
        true => drop(object::metadata_mut(&mut new).insert("uid".into(), object::meta_text(old, "uid").into())),
        false => check_uid(target, old, &new)?,
    }
    Ok(new)
}

/// A patch asks for no uid, as an update does. Upstream holds the one that it leaves behind against the object.
fn check_uid(target: &Target, old: &Value, new: &Value) -> Result<(), Status> {
    let (uid, asked) = (object::meta_text(old, "uid"), object::meta_text(new, "uid"));
    if asked.is_empty() || asked == uid {
        return Ok(());
    }
    let GroupResource { group, resource } = target.resource();
    let about = GroupResource::new(group, format!("{resource}/scale"));
    let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}");
    Err(Status::conflict(&about, object::name(old), why))
}

/// Writes a changed scale through to the object.
async fn change(
    writer: &Writer<'_>,
    key: &portolan_types::ObjectKey,
    found: Found,
    make: &(dyn Fn(&Value) -> Result<Value, Status> + Sync),
) -> Result<Changed, Status> {
    let (kind, table) = (&writer.target.kind, &writer.target.table);
    let through = |old: &Value| lifecycle::with_scale(kind, old, make(&apply::live_scale(table, kind, old)?)?);
    writer.change(key, found, Some("scale"), &through).await
}

async fn apply(writer: &Writer<'_>, key: &portolan_types::ObjectKey, found: Found) -> Result<Changed, Status> {
    let (call, target) = (writer.call, writer.target);
    let wanted = super::patch::applied_body(call)?;
    let now = writer.api.seams.now_text();
    let make = |old: &Value| {
        let request = ApplyRequest {
            live: Some(old),
            applied: wanted.clone(),
            manager: &writer.options.manager,
            force: call.query.flag("force"),
            subresource: Some("scale"),
            now: &now,
            conversions: &writer.conversions,
        };
        let applied = apply::apply_scale(&target.table, &target.kind, &request)?;
        super::patch::check_repeated(call, writer.options.validation)?;
        update::check_name(object::name(&applied.scale), &key.name)?;
        check_uid(target, old, &applied.scale)?;
        applied.onto(&target.kind, old)
    };
    writer.change(key, found, Some("scale"), &make).await
}

fn decode_scale(call: &Call, target: &Target, options: &WriteOptions) -> Result<Value, Status> {
    let (taken, media) = (scale_kind(), media_of(call)?);
    let decoded = decode::decode_as(&target.table, &target.kind, taken, media, &call.body, options.validation)?;
    call.warn(decoded.warnings);
    let mut scale = decoded.object;
    lifecycle::match_namespace(&target.kind, &mut scale, target.namespace.as_deref())?;
    update::check_name(object::name(&scale), &call.captures.name)?;
    Ok(scale)
}

fn answer(api: &ApiServer, call: &Call, target: &Target, scale: Value) -> Result<Response<Body>, Status> {
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let media = shape.accepted.media;
    let scale = match shape.accepted.form {
        Form::Object => scale,
        Form::Metadata(_) => shape.metadata_only(scale),
        Form::Table => {
            let kind = scale_kind();
            let metadata = json!({"resourceVersion": object::meta_text(&scale, "resourceVersion")});
            shape.versioned(table::table_of(&kind, vec![scale], metadata, shape.include, true, shape.now))
        }
    };
    let shape = Shape { accepted: Accepted::plain(media), ..shape };
    encode::value(&shape, 200, scale)
}
