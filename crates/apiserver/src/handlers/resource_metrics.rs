//! Resource usage, `metrics.k8s.io/v1beta1`, which `kubectl top` and autoscalers read. The objects are computed at each
//! request by a [`UsageSource`] from the pods or nodes that the request selects, as by metrics-server.

use std::sync::{Arc, LazyLock};

use http::Response;
use portolan_kinds::{Kind, KindTable};
use portolan_types::{GroupResource, GroupVersionKind, Status, annotations, object, quantity::Quantity};
use serde_json::{Map, Value, json};

use crate::{
    ApiServer, Body,
    encode::{self, FormOffer, OBJECT_TYPES, ObjectForm, OfferedForms, full},
    hooks::{MeasuredResource, UsageRequest, UsageSource},
    objects::{snapshot, tree},
    options::ListOptions,
    reach,
    request::{RequestContext, ResourceTarget, method_not_allowed},
    routing::routes::{self, RouteEndpoint},
};

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// Amounts that tables show.
const SHOWN: [&str; 2] = ["cpu", "memory"];

/// Returns the kinds of the group, as discovery shows them.
pub(super) fn kinds() -> &'static [Arc<Kind>; 2] {
    static KINDS: LazyLock<[Arc<Kind>; 2]> = LazyLock::new(|| [kind("Node", "NodeMetrics"), kind("Pod", "PodMetrics")]);
    &KINDS
}

fn kind(of: &str, name: &str) -> Arc<Kind> {
    let measured = KindTable::builtin().kind_named("", "v1", of).expect("the table has Kubernetes' kinds");
    Arc::new(Kind {
        gvk: GroupVersionKind::new(GROUP, VERSION, name),
        singular: Arc::from(""),
        list_kind: Some(Arc::from(format!("{name}List"))),
        short_names: Box::default(),
        categories: Box::default(),
        verbs: ["get", "list"].map(Arc::from).into(),
        subresources: Box::default(),
        ..Kind::clone(measured)
    })
}

/// Returns the source of the usage, if the request is for it.
pub(super) fn source<'a>(api: &'a ApiServer, call: &RequestContext) -> Option<&'a Arc<dyn UsageSource>> {
    let is_asked = call.captures.group == GROUP && call.captures.version == VERSION && call.view.is_none();
    let is_object = matches!(call.endpoint, RouteEndpoint::Collection | RouteEndpoint::Object);
    api.config.hooks.usage.as_ref().filter(|_| is_asked && is_object)
}

/// Answers a request for the usage of one or many pods or nodes.
pub(super) async fn answer(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    source: &Arc<dyn UsageSource>,
) -> Result<Response<Body>, Status> {
    let (resource, target) = measured(api, call)?;
    let offer = FormOffer { shown: OfferedForms::Table, protobuf: false, routed: OBJECT_TYPES };
    let accepted = encode::negotiate(&call.headers, offer)?;
    let is_one = match (call.endpoint, &*call.attributes.verb) {
        (RouteEndpoint::Object, "get") => true,
        (RouteEndpoint::Collection, "list") => false,
        _ => return Err(method_not_allowed()),
    };
    let objects = if is_one { vec![one(api, call, &target).await?] } else { all(api, call, &target).await? };
    let measured = source.usage(UsageRequest { cluster: call.cluster.clone(), resource, objects }).await?;
    call.warn(measured.warnings);
    let name = match resource {
        MeasuredResource::Pods => "PodMetrics",
        MeasuredResource::Nodes => "NodeMetrics",
    };
    let version = format!("{GROUP}/{VERSION}");
    let items = measured.items.into_iter().map(|mut item| {
        (item["kind"], item["apiVersion"]) = (name.into(), version.as_str().into());
        item
    });
    let items: Vec<Value> = items.collect();
    let answered = match (&accepted.form, is_one) {
        (_, true) if items.is_empty() => return Err(unmeasured(call)),
        (ObjectForm::Table, _) => table(accepted.meta.api_version(), items),
        (_, true) => items.into_iter().next().ok_or_else(|| unmeasured(call))?,
        (_, false) => json!({"kind": format!("{name}List"), "apiVersion": version, "metadata": {}, "items": items}),
    };
    let pretty = accepted.pretty || encode::wants_pretty(&call.headers, &call.query);
    let (media, bytes) = encode::own_kind(accepted.media, pretty, &answered)?;
    Ok(encode::finish(200, media, full(bytes)))
}

/// Returns the measured resource, and the pods or nodes to read.
///
/// # Errors
/// 404 for other resources and wrong scopes, 400 for a malformed namespace.
fn measured(api: &ApiServer, call: &RequestContext) -> Result<(MeasuredResource, ResourceTarget), Status> {
    let absent = || routes::not_found_at(&call.path);
    let namespace = Some(&*call.captures.namespace).filter(|text| !text.is_empty());
    let is_object = call.endpoint == RouteEndpoint::Object;
    let (resource, name) = match (&*call.captures.resource, namespace) {
        ("pods", None) if is_object => return Err(absent()),
        ("pods", _) => (MeasuredResource::Pods, "Pod"),
        ("nodes", None) => (MeasuredResource::Nodes, "Node"),
        _ => return Err(absent()),
    };
    let namespace = namespace.map(str::parse).transpose().map_err(|_| absent())?;
    let kind = match resource {
        MeasuredResource::Nodes if api.kinds.computes_nodes() => reach::computed_node().clone(),
        _ => KindTable::builtin().kind_named("", "v1", name).ok_or_else(absent)?.clone(),
    };
    Ok((resource, ResourceTarget { table: KindTable::shared(), kind, namespace, definition: None }))
}

fn unmeasured(call: &RequestContext) -> Status {
    Status::not_found(&GroupResource::new(GROUP, &*call.captures.resource), &call.captures.name)
}

async fn one(api: &ApiServer, call: &RequestContext, target: &ResourceTarget) -> Result<Value, Status> {
    let key = target.key(call, &call.captures.name).map_err(|_| unmeasured(call))?;
    let found = api.reads.find_object(call, target, &key).await?.ok_or_else(|| unmeasured(call))?;
    tree(target, &found.stored).map(|object| measured_part(&object))
}

/// Returns the part of a pod or node that its usage depends on. A list holds thousands of them.
fn measured_part(found: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "labels"] {
        if let Some(value) = object::metadata(found).get(field) {
            metadata[field] = value.clone();
        }
    }
    for name in [annotations::PLACEMENT, annotations::SOURCE] {
        if let Some(text) = object::annotation(found, name) {
            metadata["annotations"][name] = text.into();
        }
    }
    let mut spec = json!({});
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        if let Some(containers) = found["spec"][list].as_array() {
            spec[list] = containers.iter().map(|container| fields(container, ["name", "resources"])).collect();
        }
    }
    let mut part = json!({"metadata": metadata, "spec": spec});
    if let Some(statuses) = found["status"]["containerStatuses"].as_array() {
        part["status"]["containerStatuses"] = statuses.iter().map(|status| fields(status, ["name", "state"])).collect();
    }
    part
}

/// Returns an object with these fields of another, as far as it has them.
fn fields(of: &Value, names: [&str; 2]) -> Value {
    names.into_iter().filter_map(|name| Some((name.to_owned(), of.get(name)?.clone()))).collect::<Map<_, _>>().into()
}

async fn all(api: &Arc<ApiServer>, call: &RequestContext, target: &ResourceTarget) -> Result<Vec<Value>, Status> {
    let selection = ListOptions::of(target, &call.query)?.selection;
    let mut slices = snapshot(&api.reads, call, target, &selection).await?;
    let (mut objects, mut bytes) = (Vec::new(), 0);
    while let Some(slice) = slices.next().await? {
        bytes += slice.iter().map(|stored| stored.record.body().len()).sum::<usize>();
        call.charge.grow_to(bytes)?;
        for stored in &slice {
            objects.push(measured_part(&tree(target, stored)?));
        }
    }
    Ok(objects)
}

/// Returns the table of metrics-server: the usage of all containers together.
fn table(meta: &str, items: Vec<Value>) -> Value {
    let column = |name: &str, format: &str, description: &str| json!({"name": name, "type": "string", "format": format, "description": description, "priority": 0});
    let mut columns = vec![column("Name", "name", "Name of the resource")];
    columns.extend(SHOWN.map(|name| column(name, "quantity", "")));
    columns.push(column("Window", "duration", ""));
    let rows = items.into_iter().map(|item| {
        let amounts = SHOWN.map(|name| Value::from(total(&item, name).to_string()));
        let mut cells = vec![object::name(&item).into()];
        cells.extend(amounts);
        cells.push(item["window"].clone());
        json!({"cells": cells, "object": item})
    });
    let rows: Vec<Value> = rows.collect();
    json!({"kind": "Table", "apiVersion": meta, "metadata": {}, "columnDefinitions": columns, "rows": rows})
}

/// Returns the amount of a resource that a node or all containers of a pod use.
fn total(item: &Value, name: &str) -> Quantity {
    let amount = |usage: &Value| usage[name].as_str()?.parse::<Quantity>().ok();
    let containers = item["containers"].as_array().into_iter().flatten().map(|container| &container["usage"]);
    containers.chain(item.get("usage")).filter_map(amount).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_what_usage_depends_on_and_no_more() {
        let annotations = json!({"portolan.dev/placement": "{}", "sync.portolan.dev/source": "{}", "note": "x"});
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"},
            "annotations": annotations, "managedFields": [{}]});
        let pod = json!({"metadata": metadata, "status": {"phase": "Running",
                "containerStatuses": [{"name": "c", "state": {"running": {}}, "imageID": "i"}]},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "env": [{"name": "A"}], "resources": {"requests": {"cpu": "1"}}}], "initContainers": [{"name": "i"}]}});
        let kept = json!({"portolan.dev/placement": "{}", "sync.portolan.dev/source": "{}"});
        let expected = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"},
            "annotations": kept}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "i"}]}, "status": {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}});
        assert_eq!(measured_part(&pod), expected);
    }
}
