//! Volumes and claims: protected while they are used, grown only where their class allows it.

use portolan_machinery::quota::amounts;
use portolan_types::{Status, object, quantity::Quantity};
use serde_json::{Value, json};

use super::super::{Request, forbidden, lookup};
use crate::ApiServer;

pub(super) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
pub(super) const ATTRIBUTES_FINALIZER: &str = "kubernetes.io/vac-protection";

/// Keeps an object until nothing uses it.
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

/// A claim grows when it is bound and its class allows it.
pub(super) async fn check_growth(
    api: &ApiServer,
    request: &Request<'_>,
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
    let grows = match class.is_empty() || class != class_of(old) {
        true => false,
        false => {
            let class = lookup::cluster_scoped(api, request.cluster.id, ("storage.k8s.io", "storageclasses"), class);
            class.await?.is_some_and(|class| class.get("allowVolumeExpansion") == Some(&Value::Bool(true)))
        }
    };
    match grows {
        true => Ok(()),
        false => Err(forbidden(
            request,
            Some(claim),
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        )),
    }
}

fn class_of(claim: &Value) -> &str {
    let of_old = object::annotation(claim, "volume.beta.kubernetes.io/storage-class");
    of_old.or_else(|| claim.pointer("/spec/storageClassName")?.as_str()).unwrap_or_default()
}
