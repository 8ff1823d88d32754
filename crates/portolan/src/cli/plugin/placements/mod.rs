//! Commands about placed objects: `where`, `why` and `move`.

mod adoption;
mod explain;
mod locate;
mod namespace_move;
mod pod_tree;
mod preflight;
mod relocate;

use http::Method;
use portolan_types::{
    GroupResource, object,
    placement::{GROUP, PlacementRecord, VERSION, placement_name},
};
use serde_json::{Value, json};

pub(crate) use self::adoption::{AdoptionState, adoption_state};
pub(crate) use self::explain::WhyArgs;
pub(crate) use self::locate::{WhereArgs, encoded};
pub(crate) use self::pod_tree::TreeArgs;
pub(crate) use self::relocate::{DryRun, MoveArgs};

use super::{
    context::PluginContext,
    resources::ResourceType,
    session::{ApiRequest, ApiSession, RequestError},
};

/// Returns the path of the Placement of an object.
fn placement_path(of: &ResourceType, namespace: &str, name: &str) -> String {
    let resource = GroupResource::new(&*of.group, &*of.resource);
    let name = placement_name(&resource, name);
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/placements/{name}")
}

/// Reads the Placement of an object; for one that has none, as those that only follow others, the same from the record
/// on the object.
async fn placement_of(session: &ApiSession, of: &ResourceType, read: &Value) -> Result<Value, RequestError> {
    let (namespace, name) = (object::namespace(read), object::name(read));
    // Placements are namespaced: a cluster-scoped object has none.
    if namespace.is_empty() {
        return Ok(placement_from_record(of, read));
    }
    match session.send(ApiRequest::new(Method::GET, &placement_path(of, namespace, name))).await {
        Err(error) if error.is_not_found() => Ok(placement_from_record(of, read)),
        other => other,
    }
}

/// Returns a Placement with the copies in the record on an object.
fn placement_from_record(of: &ResourceType, read: &Value) -> Value {
    let record = PlacementRecord::of(read).unwrap_or_default();
    let copy = |copy: &portolan_types::placement::PlacedCopy| json!({"name": copy.name, "uid": copy.uid, "phase": copy.phase, "replicas": copy.replicas});
    let copies: Vec<_> = record.clusters.iter().map(copy).collect();
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "Placement",
        "metadata": {
            "name": placement_name(&GroupResource::new(&*of.group, &*of.resource), object::name(read)),
            "namespace": object::namespace(read),
        },
        "spec": {"object": {"apiVersion": of.api_version(), "kind": of.kind, "name": object::name(read)}},
        "status": {"clusters": copies},
    })
}

/// Returns a field of the condition `Placed` of a Placement.
fn placed_condition<'p>(placement: &'p Value, field: &str) -> &'p str {
    let conditions = placement["status"]["conditions"].as_array();
    let placed = conditions.into_iter().flatten().find(|condition| condition["type"] == "Placed");
    placed.and_then(|condition| condition[field].as_str()).unwrap_or_default()
}

/// Finds the one object that the arguments name.
async fn single_object(ctx: &PluginContext, args: &[String]) -> anyhow::Result<(ResourceType, String)> {
    use super::resources::{ObjectArg, ResourceCatalog};
    let mut parsed = ObjectArg::parse(args)?;
    let (Some(one), None) = (parsed.pop(), parsed.pop()) else { anyhow::bail!("name one object: TYPE/NAME") };
    let Some(name) = one.name else { anyhow::bail!("name the object: {}/NAME", one.kind) };
    let catalog = ResourceCatalog::discover(ctx.session()).await?;
    Ok((catalog.find(&one.kind)?.clone(), name))
}
