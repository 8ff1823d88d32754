//! Slices of one Service, and the ones among them to write. Pure.

use std::collections::{BTreeMap, HashMap};

use portolan_types::{ObjectName, object};
use serde_json::{Value, json};

use super::SERVICE;
use crate::{
    fields::{controller_ref, list, text},
    index::PodFacts,
};

/// Endpoints of a slice at most, the default of kube-controller-manager.
const MAX_ENDPOINTS: usize = 100;
/// Label of the slices of a Service without an address.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The slices of a Service as they are to be written.
pub(super) struct ServiceSlices {
    uid: String,
    template: SliceTemplate,
    slices: Vec<SliceState>,
    /// The slice of each pod.
    places: HashMap<ObjectName, usize>,
    /// Slices that are to be deleted.
    spare: Vec<ObjectName>,
}

/// Fields that are equal in all slices of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SliceTemplate {
    labels: Value,
    ports: Vec<Value>,
}

#[derive(Default)]
struct SliceState {
    /// Empty before it is created.
    name: String,
    endpoints: BTreeMap<ObjectName, Value>,
    is_changed: bool,
}

impl SliceTemplate {
    /// Returns the labels and ports of a Service's slices; `pod` says what its named ports are.
    pub(super) fn of(service: &Value, pod: Option<&PodFacts>) -> Self {
        let ports = list(service, "/spec/ports").iter().filter_map(|own| port(own, pod)).collect();
        Self { labels: labels(service), ports }
    }
}

/// Labels of the Service, by which a syncer knows its own, and the name of the Service.
fn labels(service: &Value) -> Value {
    let own = object::metadata(service).get("labels").filter(|labels| labels.is_object());
    let mut labels = own.cloned().unwrap_or_else(|| json!({}));
    labels[SERVICE] = object::name(service).into();
    labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io".into();
    match text(service, "/spec/clusterIP") {
        "None" => labels[HEADLESS] = "".into(),
        _ => drop(labels.as_object_mut().and_then(|labels| labels.remove(HEADLESS))),
    }
    labels
}

/// Returns a port of the pods; `None` for a name that the pod has no port of.
fn port(port: &Value, pod: Option<&PodFacts>) -> Option<Value> {
    let number = match port.get("targetPort") {
        Some(Value::Number(number)) if number.as_i64() != Some(0) => number.as_i64(),
        Some(Value::String(name)) if !name.is_empty() => match pod {
            Some(pod) => Some(pod.ports.iter().find(|own| own.name == *name)?.number),
            None => port["port"].as_i64(),
        },
        _ => port["port"].as_i64(),
    }?;
    let protocol = port.get("protocol").cloned().unwrap_or_else(|| "TCP".into());
    let mut shown = json!({"name": text(port, "/name"), "port": number, "protocol": protocol});
    if let Some(protocol) = port.get("appProtocol").filter(|protocol| !protocol.is_null()) {
        shown["appProtocol"] = protocol.clone();
    }
    Some(shown)
}

/// Returns the endpoint of a pod; `None` for one that has no address, or has ended.
fn endpoint(service: &Value, name: &ObjectName, pod: &PodFacts) -> Option<Value> {
    if pod.address.is_empty() || pod.has_ended() {
        return None;
    }
    let publishes = service.pointer("/spec/publishNotReadyAddresses").and_then(Value::as_bool) == Some(true);
    let mut endpoint = json!({
        "addresses": [pod.address],
        "conditions": {
            "ready": publishes || (pod.is_ready && !pod.is_deleting), "serving": pod.is_ready, "terminating": pod.is_deleting,
        },
        "nodeName": pod.node,
        "targetRef": {"kind": "Pod", "name": name.as_str(), "namespace": object::namespace(service), "uid": pod.uid},
    });
    if !pod.hostname.is_empty() && pod.subdomain == object::name(service) {
        endpoint["hostname"] = pod.hostname.as_str().into();
    }
    Some(endpoint)
}

impl ServiceSlices {
    /// One without endpoints, as a Service has from its creation on.
    pub(super) fn new(uid: &str) -> Self {
        let slices = vec![SliceState { is_changed: true, ..SliceState::default() }];
        let template = SliceTemplate::default();
        Self { uid: uid.to_owned(), template, slices, places: HashMap::new(), spare: Vec::new() }
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn has(&self, slice: &ObjectName) -> bool {
        self.slices.iter().any(|own| own.name == slice.as_str())
    }

    /// Writes all slices again.
    pub(super) fn rewrite(&mut self) {
        self.slices.iter_mut().for_each(|slice| slice.is_changed = true);
    }

    pub(super) fn set_template(&mut self, template: SliceTemplate) {
        if self.template != template {
            self.template = template;
            self.rewrite();
        }
    }

    /// Applies the present state of a pod.
    pub(super) fn put(&mut self, service: &Value, name: ObjectName, pod: Option<&PodFacts>) {
        let Some(endpoint) = pod.and_then(|pod| endpoint(service, &name, pod)) else { return self.remove(&name) };
        let at = match self.places.get(&name) {
            Some(at) => *at,
            None => self.with_room(),
        };
        let slice = &mut self.slices[at];
        slice.is_changed |= slice.endpoints.get(&name) != Some(&endpoint);
        slice.endpoints.insert(name.clone(), endpoint);
        self.places.insert(name, at);
    }

    fn with_room(&mut self) -> usize {
        // The last ones fill up first; a slice in which room was made is found when it is among them.
        let last = self.slices.iter().rposition(|slice| slice.endpoints.len() < MAX_ENDPOINTS);
        last.unwrap_or_else(|| {
            self.slices.push(SliceState::default());
            self.slices.len() - 1
        })
    }

    fn remove(&mut self, name: &ObjectName) {
        let Some(at) = self.places.remove(name) else { return };
        let slice = &mut self.slices[at];
        slice.endpoints.remove(name);
        slice.is_changed = true;
        if slice.endpoints.is_empty() && self.slices.len() > 1 {
            let gone = self.slices.swap_remove(at);
            self.spare.extend(gone.name.parse::<ObjectName>().ok());
            if let Some(moved) = self.slices.get(at) {
                moved.endpoints.keys().for_each(|pod| _ = self.places.insert(pod.clone(), at));
            }
        }
    }

    /// Returns a slice that has to be written, and its place.
    pub(super) fn next_to_write(&self, service: &Value) -> Option<(usize, Value)> {
        let at = self.slices.iter().position(|slice| slice.is_changed)?;
        let slice = &self.slices[at];
        let endpoints: Vec<&Value> = slice.endpoints.values().collect();
        let wanted = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": slice.name, "namespace": object::namespace(service), "labels": self.template.labels,
                "ownerReferences": [controller_ref(service)],
            },
            "endpoints": endpoints, "ports": self.template.ports,
        });
        Some((at, wanted))
    }

    /// The slice at a place is written, under this name.
    pub(super) fn is_written(&mut self, at: usize, name: &str) {
        let slice = &mut self.slices[at];
        slice.is_changed = false;
        slice.name = name.to_owned();
    }

    /// Returns a slice that has to be deleted.
    pub(super) fn next_to_delete(&mut self) -> Option<ObjectName> {
        self.spare.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop", "uid": "s"},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]}})
    }

    fn pod(ready: bool) -> PodFacts {
        let status = json!({"phase": "Running", "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]});
        let ports = json!([{"name": "http", "containerPort": 8080}]);
        PodFacts::of(
            &json!({"metadata": {"uid": "p"}, "spec": {"containers": [{"name": "c", "ports": ports}]}, "status": status}),
        )
    }

    fn name(number: usize) -> ObjectName {
        format!("web-{number}").parse().unwrap()
    }

    /// Writes the planned changes, and returns the number of endpoints in each written slice.
    fn write(slices: &mut ServiceSlices) -> Vec<usize> {
        let mut written = Vec::new();
        while let Some((at, slice)) = slices.next_to_write(&service()) {
            written.push(slice["endpoints"].as_array().unwrap().len());
            slices.is_written(at, &format!("web-slice-{at}"));
        }
        written
    }

    #[test]
    fn a_pod_that_changes_costs_one_slice() {
        let mut slices = ServiceSlices::new("s");
        slices.set_template(SliceTemplate::of(&service(), Some(&pod(true))));
        assert_eq!(write(&mut slices), [0], "a Service without pods has one slice");
        (0..250).for_each(|number| slices.put(&service(), name(number), Some(&pod(false))));
        assert_eq!(write(&mut slices), [100, 100, 50]);
        slices.put(&service(), name(7), Some(&pod(true)));
        slices.put(&service(), name(8), Some(&pod(false)));
        assert_eq!(write(&mut slices), [100]);
        (0..100).for_each(|number| slices.put(&service(), name(number), None));
        assert_eq!(slices.next_to_delete(), Some("web-slice-0".parse().unwrap()));
        slices.put(&service(), name(249), None);
        assert_eq!(write(&mut slices), [49], "slices keep their places");
        assert_eq!(slices.places.len(), 149);
    }

    #[test]
    fn named_ports_are_those_of_the_pods() {
        let template = SliceTemplate::of(&service(), Some(&pod(true)));
        assert_eq!(template.ports, [json!({"name": "http", "port": 8080, "protocol": "TCP"})]);
    }
}
