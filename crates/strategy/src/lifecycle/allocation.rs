//! Allocation of cluster IPs and node ports, which depends on the state of a logical cluster: the needs of a Service,
//! the order of candidates, and the way to record a choice. The caller tracks the allocated values.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
};

use portolan_types::{GroupResource, NamespaceName, ObjectName, object::child_mut};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::node_ports;

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

/// Value that only one Service of a logical cluster can have. A record reserves each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// A cluster IP: an IPAddress.
    Address,
    /// A node port: a record that is not served.
    Port,
}

impl Reserved {
    /// Returns the resource of its records in the store.
    pub fn stored_as(self) -> GroupResource {
        match self {
            Self::Address => GroupResource::new("networking.k8s.io", "ipaddresses"),
            Self::Port => GroupResource::new("portolan.dev", "nodeports"),
        }
    }
}

/// Returns the reserved values of a Service with the names of their records, each once.
pub fn reserved(service: &Value) -> Vec<(Reserved, String)> {
    let address = Some(spec_text(service, "clusterIP")).filter(|ip| ip.parse::<IpAddr>().is_ok());
    // One port may serve several protocols.
    let mut seen = HashSet::new();
    let numbers = node_ports::held(service).map(|(_, port)| port).filter(|port| seen.insert(*port));
    let address = address.map(|ip| (Reserved::Address, ip.to_owned()));
    address.into_iter().chain(numbers.map(|port| (Reserved::Port, port.to_string()))).collect()
}

/// Returns the namespace and name of the Service for which a record reserves an address or port.
pub fn holder(record: &Value) -> Option<(NamespaceName, ObjectName)> {
    let parent = record.pointer("/spec/parentRef")?;
    let text = |key: &str| parent.get(key).and_then(Value::as_str);
    Some((text("namespace")?.parse().ok()?, text("name")?.parse().ok()?))
}

/// Returns the cluster IP that `new` needs. `old` is its stored state, whose address is its own already.
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

/// A range of addresses for Services, such as `10.96.0.0/12`. Its first and last address are never allocated.
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

    /// Returns the range of a network and prefix length; `None` for prefixes shorter than 8 or longer than 30 bits.
    pub fn new(network: Ipv4Addr, prefix: u8) -> Option<Self> {
        let size = (8..=30).contains(&prefix).then(|| 1_u32 << (32 - prefix))?;
        Some(Self { base: u32::from(network) & !(size - 1), size })
    }

    /// Returns true if a Service may request this address.
    pub fn contains(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let offset = u32::from(address).wrapping_sub(self.base);
                offset > 0 && offset < self.size - 1
            }
            IpAddr::V6(_) => false,
        }
    }

    /// Returns the address of the logical cluster's own API Service: the first that can be allocated.
    pub fn first(self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1)
    }

    /// Returns all addresses but the first, each once, starting at a place that follows from `seed` (the Service's
    /// uid).
    pub fn candidates(self, seed: &str) -> impl Iterator<Item = Ipv4Addr> {
        let count = self.size - 3;
        let start = hash(seed) % count;
        (0..count).map(move |step| Ipv4Addr::from(self.base + 2 + (start + step) % count))
    }
}

pub(super) fn hash(seed: &str) -> u32 {
    let digest = Sha256::digest(seed.as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// Writes a cluster IP down.
pub fn set_cluster_ip(service: &mut Value, address: IpAddr) {
    let Some(fields) = service.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    spec.insert("clusterIP".into(), address.to_string().into());
    list_address(service);
}

/// Old clients set only the first address; a list without it is refused.
pub(super) fn list_address(service: &mut Value) {
    let Some(fields) = service.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    let own = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default();
    if !own.is_empty() && spec.get("clusterIPs").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let list = json!([own]);
        spec.insert("clusterIPs".into(), list);
    }
}

/// Keeps allocated values that a client leaves out, if the type still has them (Kubernetes' `patchAllocatedValues` and
/// `normalizeClusterIPs`).
pub(super) fn carry_over(old: &Value, new: &mut Value) {
    let has_address = |service: &Value| spec_text(service, "type") != "ExternalName";
    if has_address(old) && has_address(new) {
        if spec_text(new, "clusterIP").is_empty() {
            copy(old, new, &["clusterIP"]);
        }
        if spec_list(new, "clusterIPs").is_empty() {
            copy(old, new, &["clusterIPs"]);
        }
    }
    if node_ports::are_given(old) && node_ports::are_given(new) {
        carry_node_ports(old, new);
    }
    let has_health_port = new.pointer("/spec/healthCheckNodePort").is_some_and(|port| port.as_i64() != Some(0));
    if node_ports::is_asked(old) && node_ports::is_asked(new) && !has_health_port {
        copy(old, new, &["healthCheckNodePort"]);
    }
    follow_cluster_ip(old, new);
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
    if address.is_empty() {
        drop(spec.remove("clusterIPs"))
    } else {
        drop(spec.insert("clusterIPs".into(), json!([address])))
    }
}

/// Keeps the node ports of ports with the same name, unless another port has taken them.
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

pub(super) fn ports(service: &Value) -> &[Value] {
    service.pointer("/spec/ports").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn spec_list<'a>(service: &'a Value, key: &str) -> &'a [Value] {
    let list = service.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

pub(super) fn spec_text<'a>(service: &'a Value, key: &str) -> &'a str {
    service.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_str).unwrap_or_default()
}
