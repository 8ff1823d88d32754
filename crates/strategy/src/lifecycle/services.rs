//! Fields that depend on the type of a Service.

use portolan_types::object::{Object, child_mut};
use serde_json::Value;

/// Test whether a Service with this spec needs a field.
type Need = fn(&Value) -> bool;

/// Removes fields that the new type does not need, if they are unchanged from the old type.
pub(super) fn drop_unneeded(old: &Value, new: &mut Value) {
    let (Some(before), Some(after)) = (old.get("spec"), new.get("spec")) else { return };
    let turned = |needs: Need| needs(before) && !needs(after);
    let same = |name: &str| before.get(name) == after.get(name);
    let mut gone = Vec::new();
    if turned(|spec| text(spec, "type") != "ExternalName") {
        if same("clusterIPs") {
            gone.extend(["clusterIP", "clusterIPs"]);
        }
        gone.extend(["ipFamilies", "ipFamilyPolicy"].into_iter().filter(|name| same(name)));
    }
    let is_balanced = |spec: &Value| text(spec, "type") == "LoadBalancer";
    let singles: [(Need, &str); 4] = [
        (
            |spec| text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local",
            "healthCheckNodePort",
        ),
        (is_balanced, "allocateLoadBalancerNodePorts"),
        (is_balanced, "loadBalancerClass"),
        (is_reachable, "externalTrafficPolicy"),
    ];
    gone.extend(singles.into_iter().filter(|(needs, name)| turned(*needs) && same(name)).map(|(_, name)| name));
    let had = node_ports(before);
    let portless = turned(has_node_ports) && node_ports(after).iter().all(|port| had.contains(port));
    let Some(object) = new.as_object_mut() else { return };
    let spec = child_mut(object, "spec");
    spec.retain(|name, _| !gone.contains(&name.as_str()));
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for port in ports.filter(|_| portless).filter_map(Value::as_object_mut) {
        port.remove("nodePort");
    }
    let balanced = spec.get("type").and_then(Value::as_str) == Some("LoadBalancer");
    // A Service of another type is not balanced, even while its load balancer still exists.
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut).filter(|_| !balanced) {
        status.insert("loadBalancer".to_owned(), Value::Object(Object::new()));
    }
}

fn text<'v>(spec: &'v Value, name: &str) -> &'v str {
    spec.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn has_node_ports(spec: &Value) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

/// Returns true for a Service with external traffic.
fn is_reachable(spec: &Value) -> bool {
    let has_addresses = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    matches!(text(spec, "type"), "LoadBalancer" | "NodePort") || (text(spec, "type") == "ClusterIP" && has_addresses)
}

fn node_ports(spec: &Value) -> Vec<i64> {
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| port.get("nodePort")?.as_i64()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_that_becomes_internal_releases_its_node_ports() {
        let port = |node_port: i64| json!([{"port": 80, "nodePort": node_port}]);
        let balanced = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30090,
            "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "a.b/c", "ports": port(30080)}});
        for (case, changes, expected) in [
            (
                "only the type changes",
                json!({"type": "ClusterIP"}),
                json!({"type": "ClusterIP", "ports": [{"port": 80}]}),
            ),
            (
                "another node port is asked for",
                json!({"type": "ClusterIP", "ports": port(30081)}),
                json!({"type": "ClusterIP", "ports": port(30081)}),
            ),
            ("the type stays", json!({}), balanced["spec"].clone()),
        ] {
            let mut new = balanced.clone();
            new["spec"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            drop_unneeded(&balanced, &mut new);
            assert_eq!(new["spec"], expected, "{case}");
        }
    }

    #[test]
    fn a_service_that_becomes_a_name_has_no_addresses() {
        let old = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}});
        let mut new = old.clone();
        new["spec"]["type"] = "ExternalName".into();
        drop_unneeded(&old, &mut new);
        assert_eq!(new["spec"], json!({"type": "ExternalName"}));
    }
}
