//! What a Service needs that only the state of its logical cluster can give: a cluster IP and node ports. Here is what is
//! needed, in which order candidates are tried, and how a choice is written down. The caller knows what is taken.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
};

use portolan_types::{
    GroupResource, NamespaceName, ObjectName,
    object::{self, child_mut},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::validation::{Errors, service_addresses};

/// The cluster IP that a Service needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterIp {
    /// None: it has one already, is headless, or is an external name.
    Nothing,
    /// This one; the caller refuses it when it is taken or out of range.
    Given(IpAddr),
    /// Any free one.
    Any,
}

/// What only one Service of a logical cluster can have, each with a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// A cluster IP: an IPAddress.
    Address,
    /// A node port: a record that is not served.
    Port,
}

impl Reserved {
    /// What records of it are stored as.
    pub fn stored_as(self) -> GroupResource {
        match self {
            Self::Address => GroupResource::new("networking.k8s.io", "ipaddresses"),
            Self::Port => GroupResource::new("portolan.dev", "nodeports"),
        }
    }
}

/// What a Service has of its own, each with the name of its record and once.
pub fn reserved(service: &Value) -> Vec<(Reserved, String)> {
    let address = Some(spec_text(service, "clusterIP")).filter(|ip| ip.parse::<IpAddr>().is_ok());
    let health_check = service.pointer("/spec/healthCheckNodePort");
    let numbers = ports(service).iter().filter_map(|port| port.get("nodePort")).chain(health_check);
    // One port may serve several protocols.
    let mut seen = HashSet::new();
    let numbers = numbers.filter_map(Value::as_u64).filter(|port| *port > 0 && seen.insert(*port));
    let address = address.map(|ip| (Reserved::Address, ip.to_owned()));
    address.into_iter().chain(numbers.map(|port| (Reserved::Port, port.to_string()))).collect()
}

/// Namespace and name of what a record of an address or port is for.
pub fn holder(record: &Value) -> Option<(NamespaceName, ObjectName)> {
    let parent = record.pointer("/spec/parentRef")?;
    let text = |key: &str| parent.get(key).and_then(Value::as_str);
    Some((text("namespace")?.parse().ok()?, text("name")?.parse().ok()?))
}

/// What cluster IP `new` needs. `old` is its stored state, whose address is its own already.
pub fn needs_cluster_ip(new: &Value, old: Option<&Value>) -> ClusterIp {
    if spec_text(new, "type") == "ExternalName" {
        return ClusterIp::Nothing;
    }
    let address = spec_text(new, "clusterIP");
    match address {
        "None" => ClusterIp::Nothing,
        "" => ClusterIp::Any,
        address if old.is_some_and(|old| spec_text(old, "clusterIP") == address) => ClusterIp::Nothing,
        address => address.parse().map_or(ClusterIp::Nothing, ClusterIp::Given),
    }
}

/// A range of addresses for Services, such as `10.96.0.0/12`. Its first and last address are never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    base: u32,
    size: u32,
}

impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), 32 - self.size.trailing_zeros())
    }
}

impl AddressRange {
    /// The range that a logical cluster has unless configured otherwise.
    pub const DEFAULT: Self = Self { base: u32::from_be_bytes([10, 96, 0, 0]), size: 1 << 20 };

    /// From network and prefix length; `None` for prefixes shorter than 8 or longer than 30 bits.
    pub fn new(network: Ipv4Addr, prefix: u8) -> Option<Self> {
        let size = (8..=30).contains(&prefix).then(|| 1_u32 << (32 - prefix))?;
        Some(Self { base: u32::from(network) & !(size - 1), size })
    }

    /// Whether a Service may ask for this address.
    pub fn contains(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let offset = u32::from(address).wrapping_sub(self.base);
                offset > 0 && offset < self.size - 1
            }
            IpAddr::V6(_) => false,
        }
    }

    /// The address of the logical cluster's own API Service: the first that is given out.
    pub fn first(self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1)
    }

    /// All addresses but the first, each once, starting at a place that follows from `seed` (the Service's uid).
    pub fn candidates(self, seed: &str) -> impl Iterator<Item = Ipv4Addr> {
        let count = self.size - 3;
        let start = hash(seed) % count;
        (0..count).map(move |step| Ipv4Addr::from(self.base + 2 + (start + step) % count))
    }
}

/// The ports that node ports are taken from.
pub const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// All node ports, each once, starting at a place that follows from `seed` (the Service's uid and the place of the port).
pub fn node_port_candidates(seed: &str) -> impl Iterator<Item = u16> {
    let (first, last) = (u32::from(*NODE_PORTS.start()), u32::from(*NODE_PORTS.end()));
    let count = last - first + 1;
    let start = hash(seed) % count;
    (0..count).filter_map(move |step| u16::try_from(first + (start + step) % count).ok())
}

fn hash(seed: &str) -> u32 {
    let digest = Sha256::digest(seed.as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// Indices into `spec.ports` of the ports that need a node port which the Service does not give.
pub fn needs_node_ports(service: &Value) -> Vec<usize> {
    let missing = |port: &Value| port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) == 0;
    match has_node_ports(service) {
        true => ports(service).iter().enumerate().filter(|(_, port)| missing(port)).map(|(at, _)| at).collect(),
        false => Vec::new(),
    }
}

/// Whether its ports are given node ports.
fn has_node_ports(service: &Value) -> bool {
    match spec_text(service, "type") {
        "NodePort" => true,
        "LoadBalancer" => service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

/// Whether it needs a port for health checks of its nodes.
pub fn needs_health_check_port(service: &Value) -> bool {
    spec_text(service, "type") == "LoadBalancer"
        && spec_text(service, "externalTrafficPolicy") == "Local"
        && service.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0) == 0
}

/// Writes a cluster IP down.
pub fn set_cluster_ip(service: &mut Value, address: IpAddr) {
    let Some(fields) = service.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    spec.insert("clusterIP".into(), address.to_string().into());
    normalize(service);
}

/// Writes the node port of `spec.ports[at]` down.
pub fn set_node_port(service: &mut Value, at: usize, port: u16) {
    if let Some(entry) = service.pointer_mut(&format!("/spec/ports/{at}")).and_then(Value::as_object_mut) {
        entry.insert("nodePort".into(), port.into());
    }
}

/// Writes the port for health checks down.
pub fn set_health_check_port(service: &mut Value, port: u16) {
    if let Some(fields) = service.as_object_mut() {
        child_mut(fields, "spec").insert("healthCheckNodePort".into(), port.into());
    }
}

/// Clients of old give the first address alone; the list alone is refused.
fn list_address(spec: &mut object::Object) {
    let own = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default();
    if !own.is_empty() && spec.get("clusterIPs").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let list = json!([own]);
        spec.insert("clusterIPs".into(), list);
    }
}

/// What a logical cluster cannot give a service: it has addresses of one family. Upstream allocates before it checks the rest,
/// and tells nothing else then.
pub(crate) fn faults(old: Option<&Value>, new: &Value) -> Errors {
    let (mut errors, mut listed) = (Errors::default(), new.clone());
    if let Some(fields) = listed.as_object_mut() {
        list_address(child_mut(fields, "spec"));
    }
    let new = &listed;
    let spec = new.get("spec").unwrap_or(&Value::Null);
    if spec_text(new, "type") == "ExternalName" || old.is_some_and(|old| keeps_two_families(old, new)) {
        return errors;
    }
    let before = old.unwrap_or(&Value::Null);
    service_addresses(before, new, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    let (addresses, families) = (spec_list(new, "clusterIPs"), spec_list(new, "ipFamilies"));
    let (path, policy) = ("spec.ipFamilyPolicy", spec.get("ipFamilyPolicy").unwrap_or(&Value::Null));
    let headless = spec_text(new, "clusterIP") == "None";
    let selects = spec.get("selector").and_then(Value::as_object).is_some_and(|selector| !selector.is_empty());
    let single = match policy.as_str() {
        None => !headless || selects,
        Some(policy) => policy == "SingleStack",
    };
    let shown = if policy.is_null() { &json!("SingleStack") } else { policy };
    for (key, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (was, is) = (spec_list(before, key).len(), spec_list(new, key).len());
        if !single && is > 0 && is < was {
            errors.invalid(path, shown, &format!("must be 'SingleStack' to release the secondary {what}"));
        }
    }
    for (count, what) in [(addresses.len(), "cluster IPs"), (families.len(), "IP families")] {
        if single && count == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            errors.invalid(path, shown, &why);
        }
    }
    let is_other = |address: &Value| address.as_str().is_some_and(|text| text.contains(':'));
    for (index, _) in addresses.iter().enumerate().skip(families.len()).filter(|(_, address)| is_other(address)) {
        let why = "IPv6 is not configured on this cluster";
        errors.invalid(format!("spec.clusterIPs[{index}]"), &addresses.into(), why);
    }
    if !errors.is_empty() || headless && !selects {
        return errors;
    }
    if policy == "RequireDualStack" {
        errors.invalid(path, policy, "this cluster is not configured for dual-stack services");
    }
    for (index, family) in families.iter().enumerate().filter(|(_, family)| *family != "IPv4") {
        errors.invalid(format!("spec.ipFamilies[{index}]"), family, "not configured on this cluster");
    }
    errors
}

/// Whether a service that takes two families where there are two stays as it was.
fn keeps_two_families(old: &Value, new: &Value) -> bool {
    let prefers = |service: &Value| spec_text(service, "ipFamilyPolicy") == "PreferDualStack";
    let same = |name: &str| old.pointer(&format!("/spec/{name}")) == new.pointer(&format!("/spec/{name}"));
    prefers(old) && prefers(new) && ["type", "clusterIPs", "ipFamilies"].into_iter().all(same)
}

/// Brings `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` in line with `clusterIP`.
pub(crate) fn normalize(service: &mut Value) {
    let Some(fields) = service.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    let text = |spec: &object::Object, key: &str| spec.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    list_address(spec);
    if text(spec, "type") == "ExternalName" {
        spec.remove("internalTrafficPolicy");
        return;
    }
    let address = text(spec, "clusterIP");
    let families = if address.contains(':') { "IPv6" } else { "IPv4" };
    let has_selector = spec.get("selector").and_then(Value::as_object).is_some_and(|selector| !selector.is_empty());
    if address == "None" && !has_selector {
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4", "IPv6"]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| "RequireDualStack".into());
    } else {
        spec.entry("ipFamilies").or_insert_with(|| json!([families]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| "SingleStack".into());
    }
}

/// A client that leaves allocated values out keeps them, as long as the type still has them (upstream's
/// `patchAllocatedValues` and `normalizeClusterIPs`).
pub(super) fn carry_over(old: &Value, new: &mut Value) {
    let has_address = |service: &Value| spec_text(service, "type") != "ExternalName";
    if has_address(old) && has_address(new) {
        if spec_text(new, "clusterIP").is_empty() {
            copy(old, new, &["clusterIP"]);
        }
        if spec_list(new, "clusterIPs").is_empty() {
            copy(old, new, &["clusterIPs"]);
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if new.pointer(&format!("/spec/{key}")).is_none() {
                copy(old, new, &[key]);
            }
        }
    }
    if has_node_ports(old) && has_node_ports(new) {
        carry_node_ports(old, new);
    }
    let wants_health = |service: &Value| {
        spec_text(service, "type") == "LoadBalancer" && spec_text(service, "externalTrafficPolicy") == "Local"
    };
    let has_health_port = new.pointer("/spec/healthCheckNodePort").is_some_and(|port| port.as_i64() != Some(0));
    if wants_health(old) && wants_health(new) && !has_health_port {
        copy(old, new, &["healthCheckNodePort"]);
    }
    follow_cluster_ip(old, new);
    if has_address(new) && spec_text(new, "ipFamilyPolicy") == "SingleStack" {
        release_second(old, new);
    }
}

/// Clients that know only `clusterIP` leave `clusterIPs` out, or send the old ones along when they change it.
fn follow_cluster_ip(old: &Value, new: &mut Value) {
    let is_same = spec_text(new, "clusterIP") == spec_text(old, "clusterIP");
    if is_same && spec_list(new, "clusterIPs").is_empty() {
        return copy(old, new, &["clusterIPs"]);
    }
    if is_same || spec_list(new, "clusterIPs") != spec_list(old, "clusterIPs") {
        return;
    }
    let address = spec_text(new, "clusterIP").to_owned();
    let Some(fields) = new.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    match address.is_empty() {
        true => drop(spec.remove("clusterIPs")),
        false => drop(spec.insert("clusterIPs".into(), json!([address]))),
    }
}

/// What wants one family from now on lets the second go, unless it names it itself.
fn release_second(old: &Value, new: &mut Value) {
    for key in ["clusterIPs", "ipFamilies"] {
        if spec_list(new, key) != spec_list(old, key) {
            continue;
        }
        if let Some(list) = new.pointer_mut(&format!("/spec/{key}")).and_then(Value::as_array_mut) {
            list.truncate(1);
        }
    }
}

/// A port of the same name keeps its node port, unless another has taken it.
fn carry_node_ports(old: &Value, new: &mut Value) {
    let name = |port: &Value| port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let taken: Vec<Value> = ports(new).iter().filter_map(|port| port.get("nodePort").cloned()).collect();
    let known: HashMap<_, Value> =
        ports(old).iter().filter_map(|port| Some((name(port), port.get("nodePort")?.clone()))).collect();
    let list = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in list.into_iter().flatten() {
        let before = known.get(&name(port)).filter(|number| !taken.contains(number));
        if let (Some(number), Some(fields)) = (before, port.as_object_mut())
            && fields.get("nodePort").and_then(Value::as_i64).unwrap_or(0) == 0
        {
            fields.insert("nodePort".into(), number.clone());
        }
    }
}

fn copy(old: &Value, new: &mut Value, keys: &[&str]) {
    let Some(fields) = new.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    for key in keys {
        if let Some(value) = old.pointer(&format!("/spec/{key}")) {
            spec.insert((*key).to_owned(), value.clone());
        }
    }
}

fn ports(service: &Value) -> &[Value] {
    service.pointer("/spec/ports").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn spec_list<'a>(service: &'a Value, key: &str) -> &'a [Value] {
    let list = service.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

fn spec_text<'a>(service: &'a Value, key: &str) -> &'a str {
    service.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_given_what_there_is_or_told_what_there_is_not() {
        let old = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ipFamilies": ["IPv4"]}});
        for (spec, old, expected) in [
            (json!({"type": "ClusterIP"}), None, None),
            (json!({"type": "ClusterIP", "clusterIP": "10.96.0.5"}), None, None),
            (json!({"type": "ExternalName", "ipFamilies": ["IPv6"]}), None, None),
            (json!({"type": "ClusterIP", "clusterIP": "None", "ipFamilyPolicy": "RequireDualStack"}), None, None),
            (
                json!({"type": "ClusterIP", "clusterIPs": ["10.96.0.5"]}),
                None,
                Some("Invalid value: [\"10.96.0.5\"]: must be empty when `clusterIP` is not specified"),
            ),
            (
                json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"}),
                None,
                Some("Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services"),
            ),
            (
                json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]}),
                None,
                Some("Invalid value: \"IPv6\": not configured on this cluster"),
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "fd00::1"}),
                None,
                Some("Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster"),
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ipFamilies": ["IPv6"]}),
                Some(&old),
                Some("Invalid value: \"10.96.0.5\": expected an IPv6 value as indicated by `ipFamilies[0]`"),
            ),
        ] {
            let told: Vec<_> = faults(old, &json!({"spec": spec})).into_causes();
            let told: Vec<&str> = told.iter().map(|cause| cause.message.as_str()).collect();
            assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{spec}");
        }
    }
}
