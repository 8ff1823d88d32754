//! Services, endpoints and ingresses.

use std::collections::BTreeSet;

use portolan_types::object;
use serde_json::Value;

use super::{
    column::{AGE, CLUSTERS, Column, NAME, NONE, Row, UNKNOWN, UNSET, text},
    format,
};

pub(super) const SERVICE: &[Column] = &[
    NAME,
    text("Type", "Type of the service.", |row| row.text("/spec/type").into()),
    text("Cluster-IP", "Its address within the cluster.", |row| row.given_or("/spec/clusterIPs/0", NONE).into()),
    text("External-IP", "Its addresses outside of the cluster.", |row| external_ip(row).into()),
    text("Port(s)", "Its ports, with node ports.", |row| ports(row).into()),
    AGE,
    text("Selector", "Labels of its pods.", |row| format::labels(row.at("/spec/selector")).into()).wide(),
    CLUSTERS,
];

pub(super) const INGRESS: &[Column] = &[
    NAME,
    text("Class", "Name of the IngressClass.", |row| match row.at("/spec/ingressClassName").and_then(Value::as_str) {
        Some(class) => class.into(),
        None => NONE.into(),
    }),
    text("Hosts", "Hosts that requests are matched against.", |row| hosts(row).into()),
    text("Address", "Addresses of the load balancer.", |row| load_balancer(row).into()),
    text("Ports", "Ports that are open.", |row| match row.list("/spec/tls") {
        [] => "80".into(),
        _ => "80, 443".into(),
    }),
    AGE,
    CLUSTERS,
];

pub(super) const INGRESS_CLASS: &[Column] = &[
    text("Name", "Name of the class.", |row| {
        default_name(row, &["ingressclass.kubernetes.io/is-default-class"]).into()
    })
    .named(),
    text("Controller", "Controller that handles the class.", |row| row.text("/spec/controller").into()),
    text("Parameters", "Object with further parameters.", |row| parameters(row).into()),
    AGE,
];

pub(super) const NETWORK_POLICY: &[Column] = &[
    NAME,
    text("Pod-Selector", "Pods that the policy is about.", |row| format::selector(row.at("/spec/podSelector")).into()),
    AGE,
    CLUSTERS,
];

pub(super) const ENDPOINTS: &[Column] =
    &[NAME, text("Endpoints", "Addresses and ports.", |row| endpoints(row).into()), AGE];

pub(super) const ENDPOINT_SLICE: &[Column] = &[
    NAME,
    text("AddressType", "Kind of the addresses.", |row| row.text("/addressType").into()),
    text("Ports", "Ports of all endpoints.", |row| {
        let port = |port: &Value| match (&port["port"], port["name"].as_str()) {
            (Value::Number(number), _) => number.to_string(),
            (_, Some(name)) => name.to_owned(),
            _ => "*".into(),
        };
        few_or_unset(&row.list("/ports").iter().map(port).collect::<Vec<_>>()).into()
    }),
    text("Endpoints", "Addresses.", |row| {
        let all = row.list("/endpoints").iter().flat_map(|endpoint| list(endpoint, "addresses"));
        few_or_unset(&all.filter_map(|a| a.as_str().map(str::to_owned)).collect::<Vec<_>>()).into()
    }),
    AGE,
];

pub(super) const SERVICE_CIDR: &[Column] =
    &[NAME, text("CIDRs", "Address ranges.", |row| row.texts("/spec/cidrs").join(",").into()), AGE];

pub(super) const IP_ADDRESS: &[Column] =
    &[NAME, text("ParentRef", "Object that holds the address.", |row| parent(row).into()), AGE.hidden()];

/// Returns the name, marked if an annotation makes it the default.
pub(super) fn default_name(row: &Row<'_>, annotations: &[&str]) -> String {
    let is_default = annotations.iter().any(|key| object::annotation(row.object, key) == Some("true"));
    let name = object::name(row.object);
    if is_default { format!("{name} (default)") } else { name.to_owned() }
}

fn external_ip(row: &Row<'_>) -> String {
    let given = row.texts("/spec/externalIPs");
    let external = given.join(",");
    match row.text("/spec/type") {
        "ClusterIP" | "NodePort" if given.is_empty() => NONE.into(),
        "ClusterIP" | "NodePort" => external,
        "LoadBalancer" => match (load_balancer(row), external) {
            (balancer, _) if given.is_empty() && balancer.is_empty() => "<pending>".into(),
            (balancer, _) if given.is_empty() => balancer,
            (balancer, external) if balancer.is_empty() => external,
            (balancer, external) => format!("{balancer},{external}"),
        },
        "ExternalName" => row.text("/spec/externalName").into(),
        _ => UNKNOWN.into(),
    }
}

/// Addresses or host names of the load balancer, sorted.
fn load_balancer(row: &Row<'_>) -> String {
    let address = |ingress: &Value| {
        let text = |key: &str| ingress[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        text("ip").or_else(|| text("hostname"))
    };
    let all: BTreeSet<String> = row.list("/status/loadBalancer/ingress").iter().filter_map(address).collect();
    all.into_iter().collect::<Vec<_>>().join(",")
}

fn ports(row: &Row<'_>) -> String {
    let port = |port: &Value| {
        let number = port["port"].as_i64().unwrap_or(0);
        let protocol = port["protocol"].as_str().unwrap_or_default();
        match port["nodePort"].as_i64().unwrap_or(0) {
            ..=0 => format!("{number}/{protocol}"),
            node => format!("{number}:{node}/{protocol}"),
        }
    };
    format::or_none(row.list("/spec/ports").iter().map(port).collect::<Vec<_>>().join(","))
}

/// Returns the first three hosts. As in kube-apiserver, the rest is the number of further rules, not of hosts.
fn hosts(row: &Row<'_>) -> String {
    let rules = row.list("/spec/rules");
    let with_host = rules.iter().enumerate().filter_map(|(at, rule)| Some((at, rule["host"].as_str()?)));
    let shown: Vec<(usize, &str)> = with_host.filter(|(_, host)| !host.is_empty()).take(3).collect();
    let text = shown.iter().map(|(_, host)| *host).collect::<Vec<_>>().join(",");
    match shown.as_slice() {
        [] => "*".into(),
        [_, _, (third, _)] if third + 1 < rules.len() => format!("{text} + {} more...", rules.len() - 3),
        _ => text,
    }
}

fn parameters(row: &Row<'_>) -> String {
    if row.at("/spec/parameters").is_none() {
        return NONE.into();
    }
    let group = match row.at("/spec/parameters/apiGroup").and_then(Value::as_str) {
        Some(group) => format!(".{group}"),
        None => String::new(),
    };
    format!("{}{group}/{}", row.text("/spec/parameters/kind"), row.text("/spec/parameters/name"))
}

fn endpoints(row: &Row<'_>) -> String {
    let subsets = row.list("/subsets");
    if subsets.is_empty() {
        return NONE.into();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = list(subset, "addresses");
        let ips = || addresses.iter().filter_map(|address| address["ip"].as_str());
        let ports = list(subset, "ports");
        if ports.is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in ports {
            all.extend(ips().map(|ip| host_port(ip, port["port"].as_i64().unwrap_or(0))));
        }
    }
    format::first_of(&all, 3, ",")
}

fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object[key].as_array().map_or(&[], Vec::as_slice)
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn few_or_unset(all: &[String]) -> String {
    match format::first_of(all, 3, ",") {
        text if text.is_empty() => UNSET.into(),
        text => text,
    }
}

fn parent(row: &Row<'_>) -> String {
    if row.at("/spec/parentRef").is_none() {
        return NONE.into();
    }
    let text = |key: &str| row.text(&format!("/spec/parentRef/{key}"));
    let dotted = |group: &str| if group.is_empty() { String::new() } else { format!(".{group}") };
    let resource = format!("{}{}", text("resource"), dotted(text("group"))).to_lowercase();
    let below = |namespace: &str| if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
    format!("{resource}{}/{}", below(text("namespace")), text("name"))
}
