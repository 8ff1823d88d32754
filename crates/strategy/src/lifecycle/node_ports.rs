//! Node ports of a Service: the ports that need one, those that share one, and those that conflict (Kubernetes'
//! `initNodePorts`, `updateNodePorts` and its port operations).

use std::collections::{HashMap, HashSet};

use portolan_types::{
    GroupKind, Reason, Status,
    object::{self, child_mut},
};
use serde_json::Value;

use super::{
    Allocates,
    allocation::{hash, ports, spec_text},
};
use portolan_kinds::field::FieldError;

/// The ports that node ports are taken from.
pub const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// Returns all node ports, each once, starting at a place that follows from `seed` (the Service's uid and the place of
/// the port).
pub fn node_port_candidates(seed: &str) -> impl Iterator<Item = u16> {
    let (first, last) = (u32::from(*NODE_PORTS.start()), u32::from(*NODE_PORTS.end()));
    let count = last - first + 1;
    let start = hash(seed) % count;
    (0..count).filter_map(move |step| u16::try_from(first + (start + step) % count).ok())
}

/// Location of a node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Port in `spec.ports[…]`.
    Port(usize),
    /// Port in `spec.healthCheckNodePort`.
    HealthCheck,
}

/// Returns the node ports that a Service holds, with their places. Services of other types hold none.
pub fn held(service: &Value) -> impl Iterator<Item = (Place, u64)> {
    let has_some = matches!(spec_text(service, "type"), "NodePort" | "LoadBalancer");
    let all = if has_some { ports(service) } else { &[] };
    let own = all.iter().enumerate().map(|(at, port)| (Place::Port(at), port.get("nodePort")));
    let health = is_asked(service).then(|| service.pointer("/spec/healthCheckNodePort"));
    let all = own.chain(health.map(|port| (Place::HealthCheck, port)));
    all.filter_map(|(place, port)| Some((place, port?.as_u64()?))).filter(|(_, port)| *port > 0)
}

/// Returns true if the ports of a Service get node ports.
pub(super) fn are_given(service: &Value) -> bool {
    match spec_text(service, "type") {
        "NodePort" => true,
        "LoadBalancer" => service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

/// Returns true if load balancers check the nodes of a Service for endpoints.
pub(super) fn is_asked(service: &Value) -> bool {
    spec_text(service, "type") == "LoadBalancer" && spec_text(service, "externalTrafficPolicy") == "Local"
}

/// Indices into `spec.ports` of the ports that need a node port and have none. In a new Service, ports of the same
/// number share a node port.
pub fn needs_node_ports(service: &Value, is_new: bool) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut of_number: HashMap<i64, usize> = HashMap::new();
    let missing = ports(service).iter().enumerate().filter(|(_, port)| number(port, "nodePort") == 0);
    for (at, port) in missing.filter(|_| are_given(service)) {
        match of_number.get(&number(port, "port")) {
            Some(group) if is_new => groups[*group].push(at),
            _ => {
                of_number.insert(number(port, "port"), groups.len());
                groups.push(vec![at]);
            }
        }
    }
    groups
}

/// Returns true if a Service needs a health check port.
pub fn needs_health_check_port(service: &Value) -> bool {
    let given = service.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0);
    is_asked(service) && given == 0
}

/// Writes the node port of `spec.ports[at]` down.
pub fn set_node_port(service: &mut Value, at: usize, port: i32) {
    if let Some(entry) = service.pointer_mut(&format!("/spec/ports/{at}")).and_then(Value::as_object_mut) {
        entry.insert("nodePort".into(), port.into());
    }
}

/// Writes the port for health checks down.
pub fn set_health_check_port(service: &mut Value, port: i32) {
    if let Some(fields) = service.as_object_mut() {
        child_mut(fields, "spec").insert("healthCheckNodePort".into(), port.into());
    }
}

/// First node port of a dry run without any port.
const FIRST_TRIED: i64 = 32_769;

/// Returns the next node port of a dry run: the number after the largest so far, cut to 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "kube-apiserver does so")]
fn next_tried(largest: &mut Option<i64>) -> i32 {
    let next = largest.map_or(FIRST_TRIED, |largest| largest.max(0) + 1);
    *largest = Some(next);
    next as i32
}

/// Gives a service that is only tried numbers in place of node ports; they are not allocated.
pub fn try_node_ports(old: Option<&Value>, service: &mut Value) {
    let before = old.map(numbers).unwrap_or_default();
    let groups = needs_node_ports(service, old.is_none());
    let mut firsts: HashMap<usize, &Vec<usize>> = groups.iter().map(|group| (group[0], group)).collect();
    let given: Vec<i64> = ports(service).iter().map(|port| number(port, "nodePort")).collect();
    let mut largest = None;
    for (at, given) in given.into_iter().enumerate() {
        if let Some(group) = firsts.remove(&at) {
            let next = next_tried(&mut largest);
            group.iter().for_each(|at| set_node_port(service, *at, next));
        } else if given != 0 && !before.contains(&given) {
            largest = largest.max(Some(given));
        }
    }
    if needs_health_check_port(service) {
        let next = next_tried(&mut largest);
        set_health_check_port(service, next);
    }
}

/// Gives ports of one number the node port that one of them names, and refuses conflicts.
///
/// # Errors
/// 422 and 500, as in kube-apiserver.
pub(super) fn settle(allocates: Allocates, old: Option<&Value>, new: &mut Value) -> Result<(), Status> {
    if matches!(spec_text(new, "type"), "NodePort" | "LoadBalancer") {
        match old {
            Some(_) => each_once(new)?,
            None => share(allocates, new)?,
        }
    }
    let health = new.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0);
    let starts = health != 0 && is_asked(new) && !old.is_some_and(is_asked);
    if starts && old.into_iter().chain([&*new]).any(|service| numbers(service).contains(&health)) {
        let why = format!("failed to allocate requested HealthCheck NodePort {health}: {ALLOCATED}");
        return Err(Status::internal(&why));
    }
    Ok(())
}

/// Message for a node port that is taken.
pub const ALLOCATED: &str = "provided port is already allocated";

fn number(port: &Value, name: &str) -> i64 {
    port.get(name).and_then(Value::as_i64).unwrap_or(0)
}

fn protocol(port: &Value) -> &str {
    port.get("protocol").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the node ports that ports of a service name.
fn numbers(service: &Value) -> HashSet<i64> {
    ports(service).iter().map(|port| number(port, "nodePort")).filter(|port| *port != 0).collect()
}

/// Ports of one number have one node port in a new service, unless they name others.
fn share(allocates: Allocates, new: &mut Value) -> Result<(), Status> {
    let mut named: HashMap<i64, i64> = HashMap::new();
    for port in ports(new).iter().filter(|port| number(port, "nodePort") != 0) {
        named.entry(number(port, "port")).or_insert_with(|| number(port, "nodePort"));
    }
    let (mut taken, mut begun, mut shared) = (HashSet::new(), HashSet::new(), Vec::new());
    for (at, port) in ports(new).iter().enumerate() {
        let (own, common) = (number(port, "nodePort"), named.get(&number(port, "port")));
        let Some(common) = common.copied().filter(|_| own != 0 || are_given(new)) else { continue };
        let is_first = begun.insert(number(port, "port"));
        let wanted = if own == 0 || is_first { common } else { own };
        if (is_first || wanted != common) && !taken.insert(wanted) {
            return Err(is_taken(new, at, wanted));
        }
        shared.extend((own == 0).then_some((at, common)));
    }
    for (at, common) in shared {
        set_node_port(new, at, i32::try_from(common).unwrap_or(i32::MAX));
    }
    draw_for_twins(allocates, new);
    Ok(())
}

/// Two ports of one number and one protocol are refused, which is reported with the node port that they share.
fn draw_for_twins(allocates: Allocates, new: &mut Value) {
    let groups = needs_node_ports(new, true);
    let is_twin = |group: &&Vec<usize>| {
        let mut seen = HashSet::new();
        !group.iter().all(|at| seen.insert(protocol(&ports(new)[*at])))
    };
    let twins: Vec<_> = groups.iter().filter(is_twin).cloned().collect();
    if !twins.is_empty() && allocates == Allocates::Tried {
        return try_node_ports(None, new);
    }
    for group in twins {
        let drawn = node_port_candidates(&format!("{}/{}", object::meta_text(new, "uid"), group[0])).next();
        group.iter().for_each(|at| set_node_port(new, *at, drawn.unwrap_or_default().into()));
    }
}

/// Checks that no two ports of a changed service share a node port.
fn each_once(new: &Value) -> Result<(), Status> {
    let mut seen = HashSet::new();
    for port in ports(new).iter().filter(|port| number(port, "nodePort") != 0) {
        let own = (protocol(port), number(port, "nodePort"));
        if !seen.insert(own) {
            return Err(Status::new(Reason::Unknown, format!("duplicate nodePort: {{{} {}}}", own.0, own.1)));
        }
    }
    Ok(())
}

/// Returns a 422 for a node port that another Service holds.
fn is_taken(service: &Value, at: usize, port: i64) -> Status {
    let cause = FieldError::invalid(format!("spec.ports[{at}].nodePort"), &port.into(), ALLOCATED);
    let kind = GroupKind { group: "".into(), kind: "Service".into() };
    Status::invalid(&kind, object::name(service), vec![cause.into()])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(ports: Value) -> Value {
        json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"type": "NodePort", "ports": ports}})
    }

    fn numbers_of(service: &Value) -> Vec<i64> {
        ports(service).iter().map(|port| number(port, "nodePort")).collect()
    }

    #[test]
    fn ports_of_one_number_share_a_node_port_in_a_new_service() {
        let port = |port: i64, protocol: &str, node: i64| json!({"port": port, "protocol": protocol, "nodePort": node});
        for (case, list, expected) in [
            (
                "none is named",
                vec![port(53, "TCP", 0), port(53, "UDP", 0), port(80, "TCP", 0)],
                Ok(vec![32769, 32769, 32770]),
            ),
            ("one is named", vec![port(53, "TCP", 0), port(53, "UDP", 30100)], Ok(vec![30100, 30100])),
            ("the next is tried", vec![port(53, "TCP", 30100), port(80, "TCP", 0)], Ok(vec![30100, 30101])),
            ("of another number", vec![port(53, "TCP", 30100), port(54, "UDP", 30100)], Err("spec.ports[1].nodePort")),
            ("of one number", vec![port(53, "TCP", 30100), port(53, "UDP", 30100)], Ok(vec![30100, 30100])),
        ] {
            let mut new = service(list.into());
            let told = settle(Allocates::Tried, None, &mut new);
            try_node_ports(None, &mut new);
            let told = told.map(|()| numbers_of(&new)).map_err(|status| status.details().causes[0].field.clone());
            assert_eq!(told, expected.map_err(str::to_owned), "{case}");
        }
    }

    #[test]
    fn a_node_port_is_named_once_by_each_protocol_when_a_service_changes() {
        let old = service(json!([{"port": 80, "protocol": "TCP", "nodePort": 30001}]));
        let twice = json!([{"port": 80, "protocol": "TCP", "nodePort": 30001}, {"port": 81, "protocol": "TCP", "nodePort": 30001}]);
        let status = settle(Allocates::Given, Some(&old), &mut service(twice)).unwrap_err();
        assert_eq!((status.code(), status.message()), (500, "duplicate nodePort: {TCP 30001}"));
        let other = json!([{"port": 80, "protocol": "TCP", "nodePort": 30001}, {"port": 81, "protocol": "UDP", "nodePort": 30001}]);
        assert!(settle(Allocates::Given, Some(&old), &mut service(other)).is_ok());
    }

    #[test]
    fn a_service_of_type_external_name_holds_no_node_ports() {
        let mut named = service(json!([{"port": 80, "nodePort": 30001}]));
        assert_eq!(held(&named).collect::<Vec<_>>(), [(Place::Port(0), 30_001)]);
        named["spec"]["type"] = "ExternalName".into();
        assert_eq!(held(&named).count(), 0);
    }
}
