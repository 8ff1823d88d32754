//! Names of logical clusters on one physical cluster: who asks is known by the address of the pod. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use portolan_syncer::NamespaceIdentity;
use portolan_types::{annotations, object};
use serde_json::Value;

/// Domain of the names of a cluster.
const DOMAIN: &str = "cluster.local";
const SUFFIX: &str = ".cluster.local";

/// Namespace upstream: hash of its logical cluster, and name.
type LogicalNamespace = (String, String);

/// Objects of a physical cluster that names depend on.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    /// Logical clusters of the pods, by address.
    pods: HashMap<IpAddr, String>,
    /// Addresses of Services, by namespace upstream and name.
    services: HashMap<(LogicalNamespace, String), BTreeSet<IpAddr>>,
    /// Addresses of named endpoints, by namespace upstream, Service and name.
    endpoints: HashMap<(LogicalNamespace, String, String), BTreeSet<IpAddr>>,
}

/// Answer about one name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameAnswer {
    /// Addresses; none of a Service that has none now.
    Addresses(Vec<IpAddr>),
    /// The logical cluster has no such name.
    Missing,
    /// The name is none of the cluster's: another resolver knows it.
    Elsewhere,
    /// Nothing is known of the pod that asks.
    UnknownClient,
}

/// Lists of objects of a physical cluster.
pub(super) struct NameSources {
    pub(super) namespaces: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) services: Vec<Value>,
    pub(super) slices: Vec<Value>,
}

impl NameTable {
    /// Makes the table of all objects in namespaces of Portolan.
    pub(super) fn new(sources: &NameSources) -> Self {
        let mut table = Self::default();
        let namespaces: HashMap<&str, LogicalNamespace> = sources
            .namespaces
            .iter()
            .filter_map(|namespace| {
                let tenant = object::label(namespace, annotations::DOWN_TENANT)?.to_owned();
                Some((object::name(namespace), (tenant, NamespaceIdentity::of(namespace)?.namespace)))
            })
            .collect();
        let home = |found: &Value| namespaces.get(object::namespace(found)).cloned();
        for pod in &sources.pods {
            let Some((tenant, _)) = home(pod).filter(|_| pod["spec"]["hostNetwork"] != true) else { continue };
            let all =
                pod["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|entry| address(&entry["ip"]));
            let addresses = all.chain(address(&pod["status"]["podIP"]));
            let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            table.pods.extend(addresses.filter(|_| !is_over).map(|address| (address, tenant.clone())));
        }
        for service in &sources.services {
            let Some(home) = home(service) else { continue };
            let own = service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(address);
            let addresses = own.chain(address(&service["spec"]["clusterIP"])).collect();
            table.services.insert((home, object::name(service).to_owned()), addresses);
        }
        for slice in &sources.slices {
            if let (Some(home), Some(service)) = (home(slice), object::label(slice, "kubernetes.io/service-name")) {
                table.add_slice(home, service, slice);
            }
        }
        table
    }

    /// Adds the endpoints of a headless Service, and those with names of their own.
    fn add_slice(&mut self, home: LogicalNamespace, service: &str, slice: &Value) {
        let key = (home.clone(), service.to_owned());
        let is_headless = self.services.get(&key).is_some_and(BTreeSet::is_empty) || slice_is_headless(slice);
        if !self.services.contains_key(&key) || !is_headless {
            return;
        }
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] == false {
                continue;
            }
            let addresses: Vec<IpAddr> =
                endpoint["addresses"].as_array().into_iter().flatten().filter_map(address).collect();
            self.services.entry(key.clone()).or_default().extend(&addresses);
            if let Some(name) = endpoint["hostname"].as_str() {
                let named = (home.clone(), service.to_owned(), name.to_owned());
                self.endpoints.entry(named).or_default().extend(&addresses);
            }
        }
    }

    /// Answers a pod that asks for a name.
    pub(super) fn resolve(&self, client: IpAddr, name: &str) -> NameAnswer {
        let Some(tenant) = self.pods.get(&client) else { return NameAnswer::UnknownClient };
        let short = if name == DOMAIN { Some("") } else { name.strip_suffix(SUFFIX) };
        let Some(path) = short.unwrap_or(name).strip_suffix(".svc") else {
            return if short.is_some() { NameAnswer::Missing } else { NameAnswer::Elsewhere };
        };
        let home = |namespace: &str| (tenant.clone(), namespace.to_owned());
        let labels: Vec<&str> = path.split('.').collect();
        let found = match labels[..] {
            [service, namespace] => self.services.get(&(home(namespace), service.to_owned())),
            [endpoint, service, namespace] => {
                self.endpoints.get(&(home(namespace), service.to_owned(), endpoint.to_owned()))
            }
            _ => None,
        };
        found.map_or(NameAnswer::Missing, |addresses| NameAnswer::Addresses(addresses.iter().copied().collect()))
    }
}

/// Returns true if the controller of slices marked it as of a Service without an address.
fn slice_is_headless(slice: &Value) -> bool {
    object::label(slice, "service.kubernetes.io/headless").is_some()
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn namespace(name: &str, tenant: &str, upstream: &str) -> Value {
        let identity = json!({"cluster": tenant, "namespace": upstream, "physical": "east"}).to_string();
        json!({"metadata": {"name": name, "labels": {annotations::DOWN_TENANT: tenant},
            "annotations": {annotations::DOWN_IDENTITY: identity}}})
    }

    fn service(namespace: &str, name: &str, address: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": address}})
    }

    fn pod(namespace: &str, address: &str, phase: &str) -> Value {
        json!({"metadata": {"name": "p", "namespace": namespace}, "status": {"podIP": address, "phase": phase}})
    }

    fn table() -> NameTable {
        let endpoint = |address: &str, ready: bool| json!({"addresses": [address], "hostname": "db-0", "conditions": {"ready": ready}});
        let slice = |service: &str, endpoints: Value| {
            json!({"metadata": {"name": "s", "namespace": "shop-a",
                "labels": {"kubernetes.io/service-name": service}}, "endpoints": endpoints})
        };
        NameTable::new(&NameSources {
            namespaces: vec![
                namespace("shop-a", "one", "shop"),
                namespace("pay-a", "one", "pay"),
                namespace("shop-b", "two", "shop"),
                json!({"metadata": {"name": "default"}}),
            ],
            pods: vec![
                pod("shop-a", "10.1.0.1", "Running"),
                pod("shop-b", "10.1.0.2", "Running"),
                pod("default", "10.1.0.3", "Running"),
                pod("shop-a", "10.1.0.4", "Succeeded"),
            ],
            services: vec![
                service("shop-a", "web", "10.96.0.1"),
                service("pay-a", "api", "10.96.0.2"),
                service("shop-b", "secret", "10.96.0.3"),
                service("shop-a", "db", "None"),
                service("default", "kubernetes", "10.96.0.9"),
            ],
            slices: vec![
                slice("db", json!([endpoint("10.1.0.8", true), endpoint("10.1.0.9", false)])),
                slice("web", json!([endpoint("10.1.0.7", true)])),
            ],
        })
    }

    #[test]
    fn names_of_a_logical_cluster() {
        let table = table();
        let found = |address: &str| NameAnswer::Addresses(vec![address.parse().unwrap()]);
        for (case, client, name, expected) in [
            ("a Service of the own namespace", "10.1.0.1", "web.shop.svc", found("10.96.0.1")),
            ("its full name", "10.1.0.1", "web.shop.svc.cluster.local", found("10.96.0.1")),
            ("one of another namespace", "10.1.0.1", "api.pay.svc", found("10.96.0.2")),
            ("a headless Service has its ready endpoints", "10.1.0.1", "db.shop.svc.cluster.local", found("10.1.0.8")),
            ("a named endpoint", "10.1.0.1", "db-0.db.shop.svc", found("10.1.0.8")),
            (
                "a Service of another tenant, in a namespace of the same name",
                "10.1.0.1",
                "secret.shop.svc",
                NameAnswer::Missing,
            ),
            ("its own tenant finds it", "10.1.0.2", "secret.shop.svc", found("10.96.0.3")),
            ("names of the physical cluster", "10.1.0.1", "kubernetes.default.svc", NameAnswer::Missing),
            ("a name downstream", "10.1.0.1", "web.shop-a.svc.cluster.local", NameAnswer::Missing),
            ("another name of the cluster", "10.1.0.1", "x.pod.cluster.local", NameAnswer::Missing),
            ("the domain itself", "10.1.0.1", "cluster.local", NameAnswer::Missing),
            ("a name of the world", "10.1.0.1", "example.com", NameAnswer::Elsewhere),
            ("one that only ends alike", "10.1.0.1", "notcluster.local", NameAnswer::Elsewhere),
            ("a pod of somebody else", "10.1.0.3", "web.shop.svc", NameAnswer::UnknownClient),
            ("a pod that is over", "10.1.0.4", "web.shop.svc", NameAnswer::UnknownClient),
            ("an unknown address", "10.9.9.9", "example.com", NameAnswer::UnknownClient),
        ] {
            assert_eq!(table.resolve(client.parse().unwrap(), name), expected, "{case}");
        }
    }
}
