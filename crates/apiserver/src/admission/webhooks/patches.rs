//! Patches of mutating webhooks.

use portolan_codec::decode::FieldValidation;
use portolan_merge::{apply, patch};
use portolan_types::{Status, object};
use serde_json::Value;

use crate::hooks::AdmissionRequest;

use super::{
    super::{reread::reread, review::RequestView},
    WebhookConfig,
    admission_review::WebhookDecision,
    failure::WebhookFailure,
};

/// Applies a webhook's patch to the object. Returns true if it changed.
pub(super) async fn changed(
    view: RequestView<'_>,
    webhook: &WebhookConfig,
    object: Option<&mut Value>,
    verdict: &WebhookDecision,
) -> Result<bool, WebhookFailure> {
    if verdict.patch.is_empty() {
        return Ok(false);
    }
    let calling = |why: String| WebhookFailure::Calling(why);
    let operations = patch::read_operations(&verdict.patch)
        .map_err(|why| calling(format!("received undecodable patch in webhook response: {why}")))?;
    if operations.is_empty() {
        return Ok(false);
    }
    let Some(object) = object else {
        return Err(WebhookFailure::Refused(Status::internal(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            webhook.name
        ))));
    };
    if let Some(other) = &verdict.other_patch {
        return Err(calling(format!("unsupported patch type {other:?}")));
    }
    let patched = patched(view, object, &operations).await.map_err(WebhookFailure::Refused)?;
    if patched == *object {
        return Ok(false);
    }
    let before = object::metadata(object).get("managedFields").cloned();
    *object = patched;
    restore_owners(view.request, object, before);
    Ok(true)
}

/// Returns the patched object, canonical and complete.
async fn patched(view: RequestView<'_>, object: &Value, operations: &[Value]) -> Result<Value, Status> {
    let seen = view.converted(object).await?;
    let changed = patch::apply_operations(&seen, operations).map_err(|misfit| Status::internal(misfit.into_text()))?;
    reread(view, object, changed, FieldValidation::Ignore).await
}

/// Restores managedFields if the patch made them unreadable.
fn restore_owners(request: &AdmissionRequest<'_>, object: &mut Value, before: Option<Value>) {
    let Err(why) = apply::check_managed_fields(object) else {
        // A missing list equals an empty one, which clients never see.
        let owners = object::metadata(object).get("managedFields").and_then(Value::as_array);
        if owners.is_some_and(Vec::is_empty) {
            object::metadata_mut(object).remove("managedFields");
        }
        return;
    };
    let metadata = object::metadata_mut(object);
    match before {
        Some(before) => metadata.insert("managedFields".into(), before),
        None => metadata.remove("managedFields"),
    };
    request.warn(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"
    ));
}
