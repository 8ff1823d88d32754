//! Default storage and ingress classes, for objects that name none.

use portolan_types::{
    GroupResource, Status,
    object::{self, child_mut},
};
use serde_json::Value;

use super::super::lookup;
use crate::hooks::AdmissionRequest;
use crate::storage::StorageContext;

/// Sets the default storage class of a volume claim.
pub(super) async fn default_storage(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    claim: &mut Value,
) -> Result<(), Status> {
    let of_old = object::annotation(claim, "volume.beta.kubernetes.io/storage-class").is_some();
    let says = claim.pointer("/spec/storageClassName").is_some_and(|name| !name.is_null());
    if of_old || says {
        return Ok(());
    }
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let class = default_of(storage, request, GroupResource::new("storage.k8s.io", "storageclasses"), &marks).await?;
    set(claim, "storageClassName", class);
    Ok(())
}

/// Sets the default ingress class of an ingress.
pub(super) async fn default_ingress(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    ingress: &mut Value,
) -> Result<(), Status> {
    let of_old = object::annotation(ingress, "kubernetes.io/ingress.class").is_some();
    let says = ingress.pointer("/spec/ingressClassName").is_some_and(|name| !name.is_null());
    if of_old || says {
        return Ok(());
    }
    let marks = ["ingressclass.kubernetes.io/is-default-class"];
    let class = default_of(storage, request, GroupResource::new("networking.k8s.io", "ingressclasses"), &marks).await?;
    set(ingress, "ingressClassName", class);
    Ok(())
}

fn set(object: &mut Value, key: &str, class: Option<String>) {
    if let Some((class, top)) = class.zip(object.as_object_mut()) {
        child_mut(top, "spec").insert(key.to_owned(), class.into());
    }
}

/// Returns the newest class marked as default; of equally old ones the first by name.
async fn default_of(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    resource: GroupResource,
    marks: &[&str],
) -> Result<Option<String>, Status> {
    let is_default = |class: &Value| marks.iter().any(|mark| object::annotation(class, mark) == Some("true"));
    let mut defaults = lookup::in_cluster(storage, request.cluster.id, resource, is_default).await?;
    defaults.sort_by(|a, b| {
        let made = [b, a].map(|class| object::meta_text(class, "creationTimestamp"));
        made[0].cmp(made[1]).then_with(|| object::name(a).cmp(object::name(b)))
    });
    Ok(defaults.first().map(|class| object::name(class).to_owned()))
}
