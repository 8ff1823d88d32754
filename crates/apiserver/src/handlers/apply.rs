//! PATCH: server-side apply.

use portolan_codec::decode::{self, FieldValidation, MediaType};
use portolan_merge::apply::{self, ApplyRequest};
use portolan_strategy::lifecycle;
use portolan_types::{BoxFuture, ObjectKey, Status, json_patch::go_word, object};
use serde_json::{Value, json};

use crate::{
    objects::{CreateOrUpdate, ObjectChange, ObjectWriter, WriteResult},
    request::{RequestContext, ResourceTarget},
};

use super::{
    body,
    update::{authorize_create, check_name},
};

/// Applies the patch of a request; the object is created if it does not exist.
pub(super) async fn apply_patch(
    writer: &ObjectWriter<'_>,
    key: &ObjectKey,
    subresource: Option<&str>,
) -> Result<(u16, WriteResult), Status> {
    let ObjectWriter { context, call, target, options, .. } = *writer;
    let wanted = body::with_stored_names(call, target, decode_apply_patch(call)?, None)?;
    let now = context.reads.storage.seams.now_text();
    let make = |live: Option<&Value>| {
        body::warn_of_server_keys(call, &wanted, live);
        let request = ApplyRequest {
            live,
            applied: wanted.clone(),
            manager: &options.manager,
            force: call.query.flag("force"),
            subresource,
            now: &now,
            conversions: &writer.conversions,
        };
        let mut merged = apply::apply(&target.table, &target.kind, request)?;
        decode::make_applied_canonical(&target.table, &target.kind, &wanted, &mut merged)?;
        check_duplicate_keys(call, options.validation)?;
        lifecycle::match_namespace(&target.kind, &mut merged, target.namespace.as_deref())?;
        check_name(object::name(&merged), &key.name)?;
        Ok(merged)
    };
    let allowed = || -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(async {
            if subresource.is_some() && !lifecycle::creates_on_update(&target.kind, subresource) {
                return Err(Status::not_found(&target.resource(), &key.name));
            }
            authorize_create(&context.admission.context.rbac, &context.reads.storage.store, call).await?;
            refuse_uid(target, key, &wanted)
        })
    };
    let change = ObjectChange { key, subresource, make: &|old| make(Some(old)) };
    let put = CreateOrUpdate { authorize_create: &allowed, fresh: &|| make(None), change };
    writer.create_or_update(&put).await
}

/// Refuses to create an object for a patch that names a uid.
fn refuse_uid(target: &ResourceTarget, key: &ObjectKey, wanted: &Value) -> Result<(), Status> {
    let Some(uid) = object::uid(wanted) else { return Ok(()) };
    let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
    Err(Status::conflict(&target.resource(), &key.name, why))
}

/// Decodes the body of an apply patch.
///
/// # Errors
/// 400 when it is not YAML, or not an object.
pub(super) fn decode_apply_patch(call: &RequestContext) -> Result<Value, Status> {
    let bad = |why: String| Status::bad_request(format!("error decoding YAML: error {why}"));
    let unread = |why: String| bad(format!("converting YAML to JSON: {why}"));
    match decode::decode_any(MediaType::Yaml, &call.body).map_err(unread)? {
        wanted @ Value::Object(_) => Ok(wanted),
        Value::Null => Ok(json!({})),
        other => Err(bad(format!(
            "unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            go_word(&other)
        ))),
    }
}

/// Reports duplicate keys of an apply patch. kube-apiserver checks them after it has merged the patch.
///
/// # Errors
/// 400 under `Strict`.
pub(super) fn check_duplicate_keys(call: &RequestContext, validation: FieldValidation) -> Result<(), Status> {
    let repeated = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn | FieldValidation::Strict => decode::repeated_in_yaml(&call.body),
    };
    if validation == FieldValidation::Strict && !repeated.is_empty() {
        let lines = repeated.join("\n  ");
        return Err(Status::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {lines}"
        )));
    }
    call.warn(repeated);
    Ok(())
}
