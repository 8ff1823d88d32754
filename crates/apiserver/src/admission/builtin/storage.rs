//! Storage admission: protects volumes and claims in use, and allows growth only where the class does.

use portolan_strategy::quota::amounts;
use portolan_types::{GroupResource, Status, object, quantity::Quantity};
use serde_json::{Value, json};

use super::super::{forbidden, lookup};
use crate::hooks::AdmissionRequest;
use crate::storage::StorageContext;

pub(super) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
pub(super) const ATTRIBUTES_FINALIZER: &str = "kubernetes.io/vac-protection";

/// Adds a finalizer that keeps an object until it is unused.
pub(super) fn protect(object: &mut Value, finalizer: &str) {
    if object::finalizers(object).any(|own| own == finalizer) {
        return;
    }
    let finalizers = object::metadata_mut(object).entry("finalizers").or_insert_with(|| json!([]));
    if finalizers.is_null() {
        *finalizers = json!([]);
    }
    if let Some(list) = finalizers.as_array_mut() {
        list.push(finalizer.into());
    }
}

/// Allows a claim to grow if it is bound and its class allows expansion.
pub(super) async fn check_growth(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    claim: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(old) = old else { return Ok(()) };
    let size = |claim: &Value| {
        amounts(claim.pointer("/spec/resources/requests")).get("storage").copied().unwrap_or(Quantity::ZERO)
    };
    if size(claim) <= size(old) {
        return Ok(());
    }
    if old.pointer("/status/phase").and_then(Value::as_str) != Some("Bound") {
        return Err(forbidden(request, Some(claim), "Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(claim);
    let grows = if class.is_empty() || class != class_of(old) {
        false
    } else {
        let resource = GroupResource::new("storage.k8s.io", "storageclasses");
        let class = lookup::cluster_scoped(storage, request.cluster.id, resource, class).await?;
        class.is_some_and(|class| class.get("allowVolumeExpansion") == Some(&Value::Bool(true)))
    };
    if grows {
        Ok(())
    } else {
        Err(forbidden(
            request,
            Some(claim),
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}

fn class_of(claim: &Value) -> &str {
    let of_old = object::annotation(claim, "volume.beta.kubernetes.io/storage-class");
    of_old.or_else(|| claim.pointer("/spec/storageClassName")?.as_str()).unwrap_or_default()
}
