//! Services and Ingresses get addresses, and Services their EndpointSlices. Addresses are from the ranges for
//! documentation and benchmarks (RFC 5737, RFC 2544): nothing answers there.

use std::sync::Arc;

use portolan_controllers::{Controller, Loops, Outcome, Plane, PlaneError};
use portolan_machinery::kinds::Kind;
use portolan_store::{Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, NamespaceName, ObjectKey, object};
use serde_json::{Value, json};

use crate::fields::{controller_ref, is_true, list, text};

/// The label of a Service's slices that says that it has no address.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Adds the loops of addresses and endpoints.
pub(crate) fn add(loops: Loops) -> Loops {
    let plane = loops.plane().clone();
    loops.with(Addresses { plane: plane.clone() }).with(Endpoints::new(plane))
}

/// The last byte of an address, from a uid.
fn host_number(uid: &str) -> u32 {
    uid.bytes().fold(7_u32, |n, b| n.wrapping_mul(31).wrapping_add(u32::from(b))) % 250 + 1
}

struct Addresses {
    plane: Arc<Plane>,
}

impl Controller for Addresses {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-addresses"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "services"), GroupResource::new("networking.k8s.io", "ingresses")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let is_service = &*key.resource.resource == "services";
            self.plane
                .force(key, |found| {
                    let wants = !is_service || text(found, "/spec/type") == "LoadBalancer";
                    let has = !list(found, "/status/loadBalancer/ingress").is_empty();
                    if has || !wants || object::is_deleting(found) {
                        return false;
                    }
                    let ip = format!("203.0.113.{}", host_number(object::meta_text(found, "uid")));
                    found["status"] = json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
                    true
                })
                .await?;
            Ok(Outcome::Done)
        })
    }
}

struct Endpoints {
    plane: Arc<Plane>,
    slices: &'static Kind,
}

impl Endpoints {
    fn new(plane: Arc<Plane>) -> Self {
        let gvk = GroupVersionKind::new("discovery.k8s.io", "v1", "EndpointSlice");
        let slices = plane.table().kind(&gvk).expect("the table has discovery/v1");
        Self { plane, slices }
    }

    async fn update(&self, service: &ObjectKey) -> Result<(), PlaneError> {
        let Some(found) = self.plane.get(service).await? else { return Ok(()) };
        let selector = found.object.pointer("/spec/selector").and_then(Value::as_object);
        let (Some(selector), Some(namespace)) = (selector, service.namespace()) else { return Ok(()) };
        let pods = RangeScope::Namespace(service.cluster, GroupResource::new("", "pods"), namespace.clone());
        let pods = self.plane.list(pods).await?;
        let selected = pods.iter().map(|p| &p.object).filter(|pod| {
            selector.iter().all(|(key, value)| object::label(pod, key) == value.as_str())
                && !text(pod, "/status/podIP").is_empty()
        });
        let endpoints: Vec<Value> = selected.map(endpoint).collect();
        let ports: Vec<Value> = list(&found.object, "/spec/ports").iter().map(port).collect();
        self.write(&found.object, service, endpoints, ports).await
    }

    async fn write(
        &self,
        service: &Value,
        key: &ObjectKey,
        endpoints: Vec<Value>,
        ports: Vec<Value>,
    ) -> Result<(), PlaneError> {
        let wanted = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("{}-sim", object::name(service)), "namespace": object::namespace(service),
                "ownerReferences": [controller_ref(service)],
                "labels": slice_labels(service),
            },
            "endpoints": endpoints, "ports": ports,
        });
        let slice = self.plane.key_of(self.slices, key.cluster, &wanted)?;
        let updated = self.plane.force(&slice, |current| {
            let places = ["/endpoints", "/ports", "/metadata/labels"];
            let same = places.iter().all(|place| current.pointer(place) == wanted.pointer(place));
            current["endpoints"] = wanted["endpoints"].clone();
            current["ports"] = wanted["ports"].clone();
            current["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
            !same
        });
        if updated.await?.is_none() {
            self.plane.create(self.slices, key.cluster, wanted.clone()).await?;
        }
        Ok(())
    }
}

/// Those of the Service, by which a syncer knows what is its own, and whose slice it is.
fn slice_labels(service: &Value) -> Value {
    let mut labels =
        object::metadata(service).get("labels").filter(|labels| labels.is_object()).cloned().unwrap_or(json!({}));
    labels["kubernetes.io/service-name"] = object::name(service).into();
    labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io".into();
    match text(service, "/spec/clusterIP") {
        "None" => labels[HEADLESS] = "".into(),
        _ => drop(labels.as_object_mut().and_then(|labels| labels.remove(HEADLESS))),
    }
    labels
}

fn endpoint(pod: &Value) -> Value {
    let ready = is_true(pod, "Ready");
    json!({
        "addresses": [text(pod, "/status/podIP")],
        "conditions": {"ready": ready, "serving": ready, "terminating": object::is_deleting(pod)},
        "nodeName": text(pod, "/spec/nodeName"),
        "targetRef": {
            "kind": "Pod", "name": object::name(pod), "namespace": object::namespace(pod), "uid": object::meta_text(pod, "uid"),
        },
    })
}

fn port(port: &Value) -> Value {
    let target = port.get("targetPort").filter(|t| t.is_number()).unwrap_or(&port["port"]);
    json!({"name": text(port, "/name"), "port": target, "protocol": port.get("protocol").cloned().unwrap_or("TCP".into())})
}

impl Controller for Endpoints {
    type Key = (portolan_types::LogicalClusterId, NamespaceName);

    fn name(&self) -> &'static str {
        "simulated-endpoints"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "services"), GroupResource::new("", "pods")]
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        event.key.namespace().map(|namespace| (event.key.cluster, namespace.clone())).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, (cluster, namespace): &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let services = RangeScope::Namespace(*cluster, GroupResource::new("", "services"), namespace.clone());
            for service in self.plane.list(services).await? {
                if !object::is_deleting(&service.object) {
                    self.update(&service.key).await?;
                }
            }
            Ok(Outcome::Done)
        })
    }
}
