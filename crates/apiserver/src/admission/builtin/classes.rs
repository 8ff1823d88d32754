//! Classes that are meant for whoever names none: of storage and of ingresses.

use portolan_types::{
    Status,
    object::{self, child_mut},
};
use serde_json::Value;

use super::super::{Request, lookup};
use crate::ApiServer;

/// Gives a volume claim the default class.
pub(super) async fn default_storage(api: &ApiServer, request: &Request<'_>, claim: &mut Value) -> Result<(), Status> {
    let of_old = object::annotation(claim, "volume.beta.kubernetes.io/storage-class").is_some();
    let says = claim.pointer("/spec/storageClassName").is_some_and(|name| !name.is_null());
    if of_old || says {
        return Ok(());
    }
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let class = default_of(api, request, ("storage.k8s.io", "storageclasses"), &marks).await?;
    set(claim, "storageClassName", class);
    Ok(())
}

/// Gives an ingress the default class.
pub(super) async fn default_ingress(api: &ApiServer, request: &Request<'_>, ingress: &mut Value) -> Result<(), Status> {
    let of_old = object::annotation(ingress, "kubernetes.io/ingress.class").is_some();
    let says = ingress.pointer("/spec/ingressClassName").is_some_and(|name| !name.is_null());
    if of_old || says {
        return Ok(());
    }
    let marks = ["ingressclass.kubernetes.io/is-default-class"];
    let class = default_of(api, request, ("networking.k8s.io", "ingressclasses"), &marks).await?;
    set(ingress, "ingressClassName", class);
    Ok(())
}

fn set(object: &mut Value, key: &str, class: Option<String>) {
    if let Some((class, top)) = class.zip(object.as_object_mut()) {
        child_mut(top, "spec").insert(key.to_owned(), class.into());
    }
}

/// The newest class that is marked as default; of equally old ones the first by name.
async fn default_of(
    api: &ApiServer,
    request: &Request<'_>,
    resource: (&str, &str),
    marks: &[&str],
) -> Result<Option<String>, Status> {
    let is_default = |class: &Value| marks.iter().any(|mark| object::annotation(class, mark) == Some("true"));
    let mut defaults = lookup::in_cluster(api, request.cluster.id, resource, is_default).await?;
    defaults.sort_by(|a, b| {
        let made = [b, a].map(|class| object::meta_text(class, "creationTimestamp"));
        made[0].cmp(made[1]).then_with(|| object::name(a).cmp(object::name(b)))
    });
    Ok(defaults.first().map(|class| object::name(class).to_owned()))
}
