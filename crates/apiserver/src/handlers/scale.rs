//! `scale`: the number of replicas as an object of its own.

use std::sync::Arc;

use http::Response;
use portolan_codec::decode::{self, FieldValidation};
use portolan_merge::apply::{self, ApplyRequest, Conversions};
use portolan_merge::scale;
use portolan_strategy::{lifecycle, table};
use portolan_types::{GroupResource, GroupVersionKind, Seams, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    encode::{self, NegotiatedForm, ObjectForm, ResponseShape, media_of},
    objects::{FoundObject, ManagerRecording, ObjectChange, ObjectWriter, WriteResult, tree},
    options::WriteOptions,
    request::{RequestContext, ResourceTarget, method_not_allowed},
};

use super::{
    body::RequestBody,
    patch::{Patch, PatchFormat},
    update,
};

pub(super) async fn handle(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
) -> Result<Response<Body>, Status> {
    let (key, found) = api.reads.existing_object(call, target).await?;
    if call.attributes.verb == "get" {
        let object = tree(target, &found.stored)?;
        return answer(api.seams(), call, target, scale::read_scale(&target.kind, &object)?);
    }
    let options = WriteOptions::of(call)?;
    let kind = match call.attributes.verb.as_str() {
        "update" => None,
        "patch" => Some(PatchFormat::of(call, target)?),
        _ => return Err(method_not_allowed()),
    };
    let is_apply = kind == Some(PatchFormat::Apply);
    let writer = ObjectWriter {
        context: &api.writes,
        call,
        target,
        options: &options,
        recording: if is_apply { ManagerRecording::Applied } else { ManagerRecording::Tracked },
        body: &RequestBody { call, target },
        conversions: Conversions::default(),
    };
    let changed = match kind {
        None => {
            let sent = decode_scale(call, target, &options)?;
            change(&writer, &key, found, &|_| Ok(sent.clone())).await?
        }
        Some(PatchFormat::Apply) => apply(&writer, &key, found).await?,
        Some(kind) => {
            let taken = decode::taken_by(&target.table, &target.kind, scale_kind())?;
            let scales = ResourceTarget { kind: Arc::new(taken), ..target.clone() };
            let patch = Patch::read(call, &scales, kind)?;
            change(&writer, &key, found, &|scale| patched(target, &patch, scale, options.validation)).await?
        }
    };
    match changed {
        WriteResult::Stored(stored, _) => {
            let scale = scale::scale_of(&target.kind, &tree(target, &stored)?)?;
            answer(api.seams(), call, target, scale)
        }
        WriteResult::DryRun(object) | WriteResult::Removed(object) => {
            answer(api.seams(), call, target, scale::scale_of(&target.kind, &object)?)
        }
    }
}

fn scale_kind() -> GroupVersionKind {
    GroupVersionKind::new("autoscaling", "v1", "Scale")
}

fn patched(
    target: &ResourceTarget,
    patch: &Patch<'_>,
    old: &Value,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let mut new = patch.apply_typed(old, validation)?;
    if target.is_custom() {
        // kube-apiserver checks the uid of built-in kinds only.
        object::metadata_mut(&mut new).insert("uid".into(), object::meta_text(old, "uid").into());
    } else {
        check_uid(target, old, &new)?;
    }
    Ok(new)
}

/// Checks the uid that a patched scale has. A patch states no uid precondition as an update does, but kube-apiserver
/// compares the uid that the patch leaves in the scale.
fn check_uid(target: &ResourceTarget, old: &Value, new: &Value) -> Result<(), Status> {
    let (uid, asked) = (object::meta_text(old, "uid"), object::meta_text(new, "uid"));
    if asked.is_empty() || asked == uid {
        return Ok(());
    }
    let GroupResource { group, resource } = target.resource();
    let about = GroupResource::new(group, format!("{resource}/scale"));
    let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}");
    Err(Status::conflict(&about, object::name(old), why))
}

/// Writes a changed scale to its object.
async fn change(
    writer: &ObjectWriter<'_>,
    key: &portolan_types::ObjectKey,
    found: FoundObject,
    make: &(dyn Fn(&Value) -> Result<Value, Status> + Sync),
) -> Result<WriteResult, Status> {
    let (kind, table) = (&writer.target.kind, &writer.target.table);
    let through = |old: &Value| scale::with_scale(kind, old, make(&apply::live_scale(table, kind, old)?)?);
    writer.change(&ObjectChange { key, subresource: Some("scale"), make: &through }, found).await
}

async fn apply(
    writer: &ObjectWriter<'_>,
    key: &portolan_types::ObjectKey,
    found: FoundObject,
) -> Result<WriteResult, Status> {
    let (call, target) = (writer.call, writer.target);
    let wanted = super::apply::decode_apply_patch(call)?;
    let wanted = super::body::with_stored_names(call, target, wanted, None)?;
    let now = writer.context.reads.storage.seams.now_text();
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
        super::apply::check_duplicate_keys(call, writer.options.validation)?;
        update::check_name(object::name(&applied.scale), &key.name)?;
        check_uid(target, old, &applied.scale)?;
        applied.onto(&target.kind, old)
    };
    writer.change(&ObjectChange { key, subresource: Some("scale"), make: &make }, found).await
}

fn decode_scale(call: &RequestContext, target: &ResourceTarget, options: &WriteOptions) -> Result<Value, Status> {
    let (taken, media) = (scale_kind(), media_of(call)?);
    let decoded = decode::decode_as(&target.table, &target.kind, taken, media, &call.body, options.validation)?;
    call.warn(decoded.warnings);
    let mut scale = super::body::with_stored_names(call, target, decoded.object, None)?;
    lifecycle::match_namespace(&target.kind, &mut scale, target.namespace.as_deref())?;
    update::check_name(object::name(&scale), &call.captures.name)?;
    Ok(scale)
}

fn answer(
    seams: &Seams,
    call: &RequestContext,
    target: &ResourceTarget,
    scale: Value,
) -> Result<Response<Body>, Status> {
    let shape = ResponseShape::of(call, target, seams.clock.now())?;
    let media = shape.accepted.media;
    let scale = match shape.accepted.form {
        ObjectForm::Object => scale,
        ObjectForm::Metadata(_) => shape.metadata_only(scale),
        ObjectForm::Table => {
            let kind = scale_kind();
            let metadata = json!({"resourceVersion": object::meta_text(&scale, "resourceVersion")});
            shape.versioned(table::table_of(&kind, vec![scale], metadata, shape.include, true, shape.now))
        }
    };
    let shape = ResponseShape { accepted: NegotiatedForm::plain(media), ..shape };
    encode::value(&shape, 200, scale)
}
