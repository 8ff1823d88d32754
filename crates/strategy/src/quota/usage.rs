//! Usage of one object, and of all objects of a namespace.

use jiff::{SignedDuration, Timestamp};
use portolan_types::{
    GroupResource, object,
    placement::{ChargedClaims, ChargedPods},
    quantity::Quantity,
};
use serde_json::Value;

use super::{Amounts, add, amounts, held, resources, scopes, templates};

/// Suffix of resources that are counted per storage class.
const BY_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Suffix of resources that are counted per device class.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// Devices counted for a request of all devices that fit: no claim is allocated more.
const MOST_DEVICES: i64 = 32;
/// Prefix of requests in the names of quotas.
const REQUESTS: &str = "requests.";
/// Old quota names for the number of objects of a kind.
const ALIASES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
const POD_NAMES: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];

/// Returns true if quotas count objects of a resource. Events are not counted, as in kube-apiserver.
pub fn is_counted(resource: &GroupResource) -> bool {
    !matches!(
        (&*resource.group, &*resource.resource),
        ("" | "events.k8s.io", "events")
            | ("", "bindings" | "componentstatuses")
            | ("authentication.k8s.io" | "authorization.k8s.io", _)
    )
}

/// Returns the name under which the objects of a resource are counted.
pub fn count_name(resource: &GroupResource) -> String {
    format!("count/{resource}")
}

/// Returns true if objects of `resource` use the quota resource `name`.
pub(super) fn is_tracked(resource: &GroupResource, name: &str) -> bool {
    if name.strip_prefix("count/").is_some_and(|counted| counted == resource.to_string()) {
        return true;
    }
    if is_of_devices(resource) {
        return name.ends_with(DEVICES);
    }
    if !resource.group.is_empty() {
        return false;
    }
    match &*resource.resource {
        "pods" => POD_NAMES.contains(&name) || is_of_pods(name),
        "services" => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
        "persistentvolumeclaims" => {
            let plain = name.split_once(BY_CLASS).map_or(name, |(_, plain)| plain);
            matches!(plain, "persistentvolumeclaims" | "requests.storage")
        }
        own => ALIASES.contains(&own) && own == name,
    }
}

/// Returns true for resources that claim devices.
fn is_of_devices(resource: &GroupResource) -> bool {
    *resource.group == *"resource.k8s.io" && *resource.resource == *"resourceclaims"
}

/// Returns true for huge pages and extended resources.
fn is_of_pods(name: &str) -> bool {
    let extended = name.strip_prefix(REQUESTS).is_some_and(is_extended);
    extended || name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Returns true for a resource outside of Kubernetes and its domain.
fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    !is_native || name.starts_with("deviceclass.resource.kubernetes.io/")
}

/// Returns the usage of an object.
pub fn usage(resource: &GroupResource, object: &Value, now: Timestamp) -> Amounts {
    let one = Quantity::from_units(1);
    let mut all = Amounts::from([(count_name(resource), one)]);
    if is_of_devices(resource) {
        of_devices(object, &mut all);
    }
    if !resource.group.is_empty() {
        return all;
    }
    match &*resource.resource {
        "pods" if is_live(object, now) => of_pod(object, &mut all),
        "services" => of_service(object, &mut all),
        "persistentvolumeclaims" => of_claim(object, &mut all),
        own if ALIASES.contains(&own) => drop(all.insert(own.to_owned(), one)),
        _ => {}
    }
    all
}

/// Pods that have ended, or should have ended long ago, use only their name.
fn is_live(pod: &Value, now: Timestamp) -> bool {
    if matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Failed" | "Succeeded")) {
        return false;
    }
    let ends: Option<Timestamp> = object::meta_text(pod, "deletionTimestamp").parse().ok();
    let grace = object::metadata(pod).get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    let over = ends.zip(grace).and_then(|(ends, grace)| ends.checked_add(SignedDuration::from_secs(grace)).ok());
    over.is_none_or(|over| now <= over)
}

fn of_pod(pod: &Value, all: &mut Amounts) {
    let (requests, limits) = resources::with_overhead(&held::spec(pod));
    add(all, &compute(&requests, &limits));
}

/// Returns the names that quotas have for requests and limits.
pub(super) fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut all = Amounts::from([("pods".to_owned(), Quantity::from_units(1))]);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            all.insert(name.to_owned(), *request);
            all.insert(format!("{REQUESTS}{name}"), *request);
        }
        if let Some(limit) = limits.get(name) {
            all.insert(format!("limits.{name}"), *limit);
        }
    }
    for (name, request) in requests {
        if name.starts_with("hugepages-") {
            all.insert(name.clone(), *request);
            all.insert(format!("{REQUESTS}{name}"), *request);
        } else if is_extended(name) {
            all.insert(format!("{REQUESTS}{name}"), *request);
        }
    }
    all
}

fn of_service(service: &Value, all: &mut Amounts) {
    let spec = |key: &str| service.get("spec").and_then(|spec| spec.get(key));
    let ports: Vec<&Value> = spec("ports").and_then(Value::as_array).into_iter().flatten().collect();
    let chosen = || ports.iter().filter(|port| port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0).count();
    let (node_ports, balancers) = match spec("type").and_then(Value::as_str) {
        Some("NodePort") => (ports.len(), 0),
        Some("LoadBalancer") if spec("allocateLoadBalancerNodePorts") == Some(&Value::Bool(false)) => (chosen(), 1),
        Some("LoadBalancer") => (ports.len(), 1),
        _ => (0, 0),
    };
    let amount = |n: usize| Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX));
    all.insert("services".into(), amount(1));
    all.insert("services.nodeports".into(), amount(node_ports));
    all.insert("services.loadbalancers".into(), amount(balancers));
}

fn of_claim(claim: &Value, all: &mut Amounts) {
    let one = Quantity::from_units(1);
    let of_old = object::annotation(claim, "volume.beta.kubernetes.io/storage-class");
    let class = of_old.or_else(|| claim.pointer("/spec/storageClassName")?.as_str()).filter(|class| !class.is_empty());
    let storage = |pointer: &str| amounts(claim.pointer(pointer)).get("storage").copied();
    let asked = storage("/spec/resources/requests");
    let asked = asked.map(|asked| asked.max(storage("/status/allocatedResources").unwrap_or(asked)));
    let mut put = |name: &str, amount: Quantity| {
        all.insert(name.to_owned(), amount);
        if let Some(class) = class {
            all.insert(format!("{class}{BY_CLASS}{name}"), amount);
        }
    };
    put("persistentvolumeclaims", one);
    if let Some(asked) = asked {
        put("requests.storage", asked.rounded_up());
    }
}

/// The devices that a ResourceClaim asks for, by their class. Of a request's alternatives each class counts with the
/// largest.
fn of_devices(claim: &Value, all: &mut Amounts) {
    let requests = claim.pointer("/spec/devices/requests").and_then(Value::as_array);
    for request in requests.into_iter().flatten() {
        let alternatives = request.get("firstAvailable").and_then(Value::as_array).filter(|list| !list.is_empty());
        let mut most = Amounts::new();
        match alternatives {
            Some(list) => list.iter().for_each(|one| resources::raise(&mut most, &devices(one))),
            None => request.get("exactly").into_iter().for_each(|one| most = devices(one)),
        }
        add(all, &most);
    }
}

/// Returns the devices that one request may be given.
fn devices(request: &Value) -> Amounts {
    let text = |key: &str| request.get(key).and_then(Value::as_str).unwrap_or_default();
    let count = match text("allocationMode") {
        "ExactCount" => request.get("count").and_then(Value::as_i64).unwrap_or(0),
        "All" => MOST_DEVICES,
        _ => 0,
    };
    Amounts::from([(format!("{}{DEVICES}", text("deviceClassName")), Quantity::from_units(count))])
}

/// Usage of one quota by all objects of a namespace, counted one by one.
pub struct Tally<'a> {
    quota: &'a Value,
    names: Vec<String>,
    sum: Amounts,
    now: Timestamp,
}

impl<'a> Tally<'a> {
    /// Returns an empty count. `known` selects the names in `spec.hard` that anything can use; others are not reported.
    pub fn new(quota: &'a Value, known: impl Fn(&str) -> bool, now: Timestamp) -> Self {
        let names: Vec<String> = amounts(quota.pointer("/spec/hard")).into_keys().filter(|name| known(name)).collect();
        let sum = names.iter().map(|name| (name.clone(), Quantity::ZERO)).collect();
        Self { quota, names, sum, now }
    }

    /// Returns true if objects of a resource count at all.
    pub fn wants(&self, resource: &GroupResource) -> bool {
        self.names.iter().any(|name| is_tracked(resource, name))
    }

    /// Counts one more object.
    pub fn count(&mut self, resource: &GroupResource, object: &Value) {
        if !self.wants(resource) || !scopes::matches(self.quota, resource, object) {
            return;
        }
        let own = usage(resource, object, self.now);
        let own = own.into_iter().filter(|(name, _)| self.sum.contains_key(name)).collect();
        add(&mut self.sum, &own);
    }

    /// Counts the pods of a placed template.
    pub fn count_pods(&mut self, pods: &ChargedPods) {
        if scopes::match_pods(self.quota, pods) {
            self.add_template(&pods.each, pods.count);
        }
    }

    /// Counts the claims of a placed template that do not exist yet.
    pub fn count_claims(&mut self, claims: &ChargedClaims) {
        if templates::match_claims(self.quota, claims) {
            self.add_template(&claims.each, claims.count);
        }
    }

    fn add_template(&mut self, each: &Amounts, count: i64) {
        let own =
            templates::together(each, count).into_iter().filter(|(name, _)| self.sum.contains_key(name)).collect();
        add(&mut self.sum, &own);
    }

    /// Returns `status.used`.
    pub fn used(self) -> Amounts {
        self.sum
    }
}

/// Returns true if the usage of an object follows from its kind alone: one of its kind.
pub fn is_plain(resource: &GroupResource) -> bool {
    let is_measured = matches!(&*resource.resource, "pods" | "services" | "persistentvolumeclaims");
    !(resource.group.is_empty() && is_measured || is_of_devices(resource))
}
