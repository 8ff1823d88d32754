//! Endpoints of Services, the old form of EndpointSlices, for clients that know no other. They are made of the slices
//! that physical clusters show; kube-controller-manager makes them of Pods.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event, RangeScope};
use portolan_strategy::lifecycle::DeleteOptions;
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, ObjectKey, ResourceVersion, object};
use serde_json::{Map, Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

/// Label of a slice that names its Service.
const SERVICE: &str = "kubernetes.io/service-name";
/// Label of Endpoints that this controller made.
const MANAGED: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Annotation of Endpoints that leave addresses out, and the most addresses, as in kube-controller-manager.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MOST: usize = 1000;
/// Delay in which a reconcile collects further slices: each reads, and may write, all addresses of a Service.
const LINGER: Duration = Duration::from_millis(200);

/// Controller of Services with a selector. Endpoints of other Services belong to their users.
pub struct EndpointsController {
    plane: Arc<Plane>,
    services: &'static Kind,
    endpoints: &'static Kind,
    slices: &'static Kind,
}

impl EndpointsController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>) -> Self {
        let kind = |group, name| {
            let gvk = GroupVersionKind::new(group, "v1", name);
            plane.table().kind(&gvk).expect("the table has core/v1 and discovery/v1")
        };
        let (services, endpoints, slices) =
            (kind("", "Service"), kind("", "Endpoints"), kind("discovery.k8s.io", "EndpointSlice"));
        Self { services, endpoints, slices, plane }
    }

    /// Returns the Endpoints that a Service should have; `None` if they are not this controller's.
    async fn wanted(&self, key: &ObjectKey, service: &Value) -> Result<Option<DesiredEndpoints>, PlaneError> {
        let has_selector = service.pointer("/spec/selector").is_some_and(|selector| !selector.is_null());
        if !has_selector || is_external(service) {
            return Ok(None);
        }
        // The Service owns its slices, and may own any number of other objects.
        let owned = RangeScope::OwnedBy(key.cluster, object::meta_text(service, "uid").to_owned());
        let (mut pages, mut slices) = (self.plane.slices(owned), Vec::new());
        while let Some(page) = pages.next().await? {
            page.check()?;
            let found = page.found.into_iter().map(|found| (found.key.resource, found.object));
            let own =
                found.filter(|(resource, slice)| *resource == self.slices.group_resource() && is_of(slice, service));
            slices.extend(own.map(|(_, slice)| slice));
            // Endpoints hold no more addresses.
            if slices.iter().map(addresses).sum::<usize>() > MOST {
                break;
            }
        }
        Ok(Some(DesiredEndpoints::of(service, slices.iter())))
    }

    async fn ensure(&self, key: &ObjectKey, service: &Value, wanted: &DesiredEndpoints) -> Result<(), PlaneError> {
        let found = self.plane.change(self.endpoints, &self.key(key), |current| wanted.write_to(current)).await?;
        if found.is_none() {
            let mut new = json!({
                "apiVersion": "v1", "kind": "Endpoints",
                "metadata": {"name": object::name(service), "namespace": object::namespace(service)},
            });
            wanted.write_to(&mut new);
            self.plane.create_within(self.endpoints, key.cluster, &new).await?;
        }
        Ok(())
    }

    /// Removes the Endpoints of a Service that is gone.
    async fn remove(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let key = self.key(key);
        self.plane.delete_if(self.endpoints, &key, &DeleteOptions::default(), is_ours).await
    }

    /// Returns the key of the Endpoints, which have the name of their Service.
    fn key(&self, service: &ObjectKey) -> ObjectKey {
        ObjectKey { resource: self.endpoints.group_resource(), ..service.clone() }
    }
}

fn is_external(service: &Value) -> bool {
    service.pointer("/spec/type").and_then(Value::as_str) == Some("ExternalName")
}

fn is_ours(endpoints: &Value) -> bool {
    object::label(endpoints, MANAGED.0) == Some(MANAGED.1)
}

/// Returns true if a slice has addresses of a Service in its first IP family, the only one of Endpoints.
fn is_of(slice: &Value, service: &Value) -> bool {
    let family = service.pointer("/spec/ipFamilies/0").and_then(Value::as_str).unwrap_or("IPv4");
    object::label(slice, SERVICE) == Some(object::name(service))
        && slice.get("addressType").and_then(Value::as_str) == Some(family)
}

fn addresses(slice: &Value) -> usize {
    slice.get("endpoints").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Endpoints that a Service should have.
struct DesiredEndpoints {
    labels: Map<String, Value>,
    subsets: Vec<Value>,
    is_cut: bool,
}

impl DesiredEndpoints {
    fn of<'a>(service: &Value, slices: impl Iterator<Item = &'a Value>) -> Self {
        let labels = object::metadata(service).get("labels").and_then(Value::as_object);
        let mut labels = labels.cloned().unwrap_or_default();
        labels.insert(MANAGED.0.into(), MANAGED.1.into());
        labels.remove(HEADLESS);
        if service.pointer("/spec/clusterIP").and_then(Value::as_str) == Some("None") {
            labels.insert(HEADLESS.into(), "".into());
        }
        let (subsets, is_cut) = subsets(slices);
        Self { labels, subsets, is_cut }
    }

    fn write_to(&self, endpoints: &mut Value) -> PlaneChange {
        let labels = object::metadata(endpoints).get("labels").and_then(Value::as_object);
        let subsets = endpoints.get("subsets").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let is_cut = object::annotation(endpoints, OVER_CAPACITY).is_some();
        if labels == Some(&self.labels) && subsets == self.subsets && is_cut == self.is_cut {
            return PlaneChange::Keep;
        }
        object::metadata_mut(endpoints).insert("labels".into(), self.labels.clone().into());
        object::set_annotation(endpoints, OVER_CAPACITY, self.is_cut.then(|| "truncated".to_owned()));
        endpoints["subsets"] = self.subsets.clone().into();
        PlaneChange::Write(None)
    }
}

/// Addresses with the same ports, by IP.
#[derive(Default)]
struct EndpointSubset {
    ports: Vec<Value>,
    ready: BTreeMap<String, Value>,
    not_ready: BTreeMap<String, Value>,
}

/// Returns the addresses of slices by their ports, in a stable order, and true if some were left out: those that are
/// not ready first.
fn subsets<'a>(slices: impl Iterator<Item = &'a Value>) -> (Vec<Value>, bool) {
    let mut by_ports: BTreeMap<String, EndpointSubset> = BTreeMap::new();
    for slice in slices {
        let mut ports: Vec<Value> = list(slice, "ports").iter().map(port).collect();
        ports.sort_by_key(Value::to_string);
        let subset = by_ports.entry(Value::from(ports.clone()).to_string()).or_default();
        subset.ports = ports;
        list(slice, "endpoints").iter().for_each(|endpoint| subset.add(endpoint));
    }
    let mut room = MOST;
    let mut is_cut = false;
    let mut cut = |addresses: BTreeMap<String, Value>| -> Vec<Value> {
        is_cut |= addresses.len() > room;
        let kept: Vec<Value> = addresses.into_values().take(room).collect();
        room -= kept.len();
        kept
    };
    let ready: Vec<_> =
        by_ports.into_values().map(|subset| (cut(subset.ready), subset.not_ready, subset.ports)).collect();
    let all = ready.into_iter().map(|(ready, not_ready, ports)| [ready, cut(not_ready), ports]);
    let written: Vec<Value> = all.filter_map(written).collect();
    (written, is_cut)
}

/// Returns a subset as it is written: without empty lists, `None` without addresses.
fn written([ready, not_ready, ports]: [Vec<Value>; 3]) -> Option<Value> {
    let has_addresses = !ready.is_empty() || !not_ready.is_empty();
    let fields = [("addresses", ready), ("notReadyAddresses", not_ready), ("ports", ports)];
    let fields = fields.into_iter().filter(|(_, list)| !list.is_empty());
    has_addresses.then(|| fields.map(|(name, list)| (name.to_owned(), list.into())).collect::<Map<_, _>>().into())
}

impl EndpointSubset {
    /// Adds an endpoint. One that is terminating is left out, unless its Service publishes all: then it counts as
    /// ready.
    fn add(&mut self, endpoint: &Value) {
        let Some(ip) = list(endpoint, "addresses").first().and_then(Value::as_str) else { return };
        let says = |condition: &str| endpoint.pointer(&format!("/conditions/{condition}")).and_then(Value::as_bool);
        let mut address = json!({"ip": ip});
        for field in ["hostname", "nodeName", "targetRef"] {
            if let Some(value) = endpoint.get(field).filter(|value| !value.is_null()) {
                address[field] = value.clone();
            }
        }
        match (says("ready").unwrap_or(true), says("terminating").unwrap_or(false)) {
            (true, _) => drop(self.ready.insert(ip.to_owned(), address)),
            (false, false) => drop(self.not_ready.insert(ip.to_owned(), address)),
            (false, true) => {}
        }
    }
}

/// Returns a port as Endpoints name it: without an empty name.
fn port(port: &Value) -> Value {
    let fields = ["name", "port", "protocol", "appProtocol"];
    let fields = fields.into_iter().filter_map(|field| Some((field.to_owned(), port.get(field)?.clone())));
    fields.filter(|(_, value)| !value.is_null() && value != "").collect::<Map<_, _>>().into()
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Controller for EndpointsController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "endpoints"
    }

    fn resources(&self) -> Vec<GroupResource> {
        [self.services, self.endpoints, self.slices].map(Kind::group_resource).to_vec()
    }

    /// Returns the keys of Services, by their own name, that of their Endpoints, and the label of a slice.
    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let services = self.services.group_resource();
        let named = |name| ObjectKey { resource: services.clone(), name, ..event.key.clone() };
        match &*event.key.resource.resource {
            "endpointslices" => {
                let records = [Some(&event.record), event.previous.as_ref()].into_iter().flatten();
                let slices = records.filter_map(|record| record.to_value(ResourceVersion::FIRST).ok());
                slices.filter_map(|slice| object::label(&slice, SERVICE)?.parse().ok()).map(named).collect()
            }
            "endpoints" if event.change == ChangeKind::Created => Vec::new(),
            _ => vec![named(event.key.name.clone())],
        }
    }

    fn linger(&self, event: &Event, _: &ObjectKey) -> Duration {
        if event.key.resource == self.slices.group_resource() { LINGER } else { Duration::ZERO }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            match self.plane.get_reconciled(key).await? {
                None => self.remove(key).await?,
                Some(found) => {
                    if let Some(wanted) = self.wanted(key, &found.object).await? {
                        self.ensure(key, &found.object, &wanted).await?;
                    }
                }
            }
            Ok(WorkOutcome::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(endpoints: &Value) -> Value {
        json!({"addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}]})
    }

    #[test]
    fn addresses_of_several_slices_come_by_their_ports() {
        let target = json!({"kind": "Pod", "name": "a", "namespace": "default"});
        let east = slice(&json!([
            {"addresses": ["198.18.0.2"], "conditions": {"ready": false}},
            {"addresses": ["198.18.0.1"], "conditions": {"ready": true}, "nodeName": "n", "targetRef": target},
            {"addresses": ["198.18.0.3"], "conditions": {"ready": false, "terminating": true}},
        ]));
        let west = slice(&json!([{"addresses": ["198.18.0.0"]}]));
        let other = json!({"endpoints": [{"addresses": ["198.18.0.1"]}], "ports": [{"name": "", "port": 1}]});
        let expected = json!([
            {"addresses": [{"ip": "198.18.0.0"}, {"ip": "198.18.0.1", "nodeName": "n", "targetRef": target}],
             "notReadyAddresses": [{"ip": "198.18.0.2"}],
             "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}]},
            {"addresses": [{"ip": "198.18.0.1"}], "ports": [{"port": 1}]},
        ]);
        for slices in [[&east, &west, &other], [&other, &west, &east]] {
            let (found, is_cut) = subsets(slices.into_iter());
            assert_eq!((Value::from(found), is_cut), (expected.clone(), false));
        }
    }

    #[test]
    fn excess_content_is_omitted_and_reported() {
        let many = |ready: bool, from: usize, count: usize| -> Value {
            let endpoint = |n: usize| json!({"addresses": [format!("198.18.{}.{}", n / 250, n % 250)], "conditions": {"ready": ready}});
            (from..from + count).map(endpoint).collect::<Vec<_>>().into()
        };
        let (ready, rest) = (slice(&many(true, 0, MOST - 1)), slice(&many(false, 2000, 2)));
        let (found, is_cut) = subsets([&rest, &ready].into_iter());
        assert_eq!((list(&found[0], "addresses").len(), list(&found[0], "notReadyAddresses").len()), (MOST - 1, 1));
        assert!(is_cut);
        assert_eq!(subsets([&slice(&json!([]))].into_iter()), (vec![], false), "no addresses, no subset");
    }
}
