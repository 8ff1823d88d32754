//! What a Service needs that only the state of its logical cluster can give: a cluster IP and node ports. Here is what is
//! needed, in which order candidates are tried, and how a choice is written down. The caller knows what is taken.

use std::net::{IpAddr, Ipv4Addr};

use portolan_types::object::{self, child_mut};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

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
    let wants = match spec_text(service, "type") {
        "NodePort" => true,
        "LoadBalancer" => service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    };
    let missing = |port: &Value| port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) == 0;
    match wants {
        true => ports(service).iter().enumerate().filter(|(_, port)| missing(port)).map(|(at, _)| at).collect(),
        false => Vec::new(),
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

/// Brings `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` in line with `clusterIP`.
pub(crate) fn normalize(service: &mut Value) {
    let Some(fields) = service.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    let text = |spec: &object::Object, key: &str| spec.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if text(spec, "type") == "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.remove(key);
        }
        return;
    }
    let first = spec.get("clusterIPs").and_then(|list| list.get(0)).and_then(Value::as_str).map(str::to_owned);
    match (text(spec, "clusterIP").as_str(), first) {
        ("", Some(first)) => drop(spec.insert("clusterIP".into(), first.into())),
        ("", None) => {}
        (own, None) => drop(spec.insert("clusterIPs".into(), json!([own]))),
        (..) => {}
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

/// A client that leaves allocated values out keeps them, as long as the type still has them.
pub(super) fn carry_over(old: &Value, new: &mut Value) {
    follow_cluster_ip(old, new);
    let has_address = |service: &Value| spec_text(service, "type") != "ExternalName";
    if has_address(old) && has_address(new) {
        let given = !spec_text(new, "clusterIP").is_empty()
            || new.pointer("/spec/clusterIPs/0").and_then(Value::as_str).is_some_and(|first| !first.is_empty());
        if !given {
            copy(old, new, &["clusterIP", "clusterIPs"]);
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if new.pointer(&format!("/spec/{key}")).is_none() {
                copy(old, new, &[key]);
            }
        }
    }
    let has_node_ports = |service: &Value| matches!(spec_text(service, "type"), "NodePort" | "LoadBalancer");
    if has_node_ports(old) && has_node_ports(new) {
        carry_node_ports(old, new);
    }
    let wants_health = |service: &Value| {
        spec_text(service, "type") == "LoadBalancer" && spec_text(service, "externalTrafficPolicy") == "Local"
    };
    if wants_health(old) && wants_health(new) && new.pointer("/spec/healthCheckNodePort").is_none() {
        copy(old, new, &["healthCheckNodePort"]);
    }
}

/// Clients that know only `clusterIP` send the old `clusterIPs` along when they change it.
fn follow_cluster_ip(old: &Value, new: &mut Value) {
    let list = |service: &Value| service.pointer("/spec/clusterIPs").cloned();
    let address = spec_text(new, "clusterIP").to_owned();
    if address == spec_text(old, "clusterIP") || list(new) != list(old) {
        return;
    }
    let Some(fields) = new.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    match address.is_empty() {
        true => drop(spec.remove("clusterIPs")),
        false => drop(spec.insert("clusterIPs".into(), json!([address]))),
    }
}

fn carry_node_ports(old: &Value, new: &mut Value) {
    let key = |port: &Value| (port.get("protocol").cloned(), port.get("port").cloned());
    let taken: Vec<Value> = ports(new).iter().filter_map(|port| port.get("nodePort").cloned()).collect();
    let known: Vec<(_, Value)> =
        ports(old).iter().filter_map(|port| Some((key(port), port.get("nodePort")?.clone()))).collect();
    let list = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in list.into_iter().flatten() {
        let own = key(port);
        let before = known.iter().find(|(key, number)| *key == own && !taken.contains(number));
        if let (Some((_, number)), Some(fields)) = (before, port.as_object_mut())
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

fn spec_text<'a>(service: &'a Value, key: &str) -> &'a str {
    service.get("spec").and_then(|spec| spec.get(key)).and_then(Value::as_str).unwrap_or_default()
}
