//! Names of logical clusters on one physical cluster: who asks is known by the address of the pod. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use portolan_syncer::NamespaceIdentity;
use portolan_types::{annotations, object};
use serde_json::Value;

/// Most ExternalNames of a workspace, one after another.
const MAX_ALIASES: usize = 4;

/// Domain of the names of a workspace, which pods have in their search list.
const DOMAIN: &str = "cluster.local";
/// Domain of reverse names.
const REVERSE: &str = "arpa";

/// Domains whose names are answered here and never forwarded: the one of workspaces, and those of the physical cluster,
/// whose own resolver knows the names of all tenants.
#[derive(Clone, Debug)]
pub(super) struct ClusterDomains(Vec<String>);

impl ClusterDomains {
    /// Returns the domains, with those of the physical cluster.
    pub(super) fn with(own: impl IntoIterator<Item = String>) -> Self {
        let own = own.into_iter().map(|domain| domain.trim_matches('.').to_ascii_lowercase());
        Self(std::iter::once(DOMAIN.to_owned()).chain(own.filter(|domain| !domain.is_empty())).collect())
    }

    /// Returns true for a name that another resolver knows: none of a cluster, and no reverse name.
    fn is_elsewhere(&self, name: &str) -> bool {
        let is_reverse = name.rsplit('.').next() == Some(REVERSE);
        !is_reverse && self.strip(name).is_none() && !name.ends_with(".svc")
    }

    /// Returns a name without the domain, empty for the domain itself; `None` for a name of another domain.
    fn strip<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.0.iter().find_map(|domain| match name.strip_suffix(domain.as_str())? {
            "" => Some(""),
            rest => rest.strip_suffix('.'),
        })
    }
}

/// Namespace upstream: hash of its logical cluster, and name.
type LogicalNamespace = (String, String);

/// Objects of a physical cluster that names depend on.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    /// Logical clusters of the pods, by address.
    pods: HashMap<IpAddr, String>,
    /// Namespaces upstream that exist on the physical cluster.
    namespaces: HashSet<LogicalNamespace>,
    /// Addresses of Services, by namespace upstream and name.
    services: HashMap<(LogicalNamespace, String), BTreeSet<IpAddr>>,
    /// Names outside that Services of the type ExternalName stand for.
    aliases: HashMap<(LogicalNamespace, String), String>,
    /// Addresses of named endpoints, by namespace upstream, Service and name.
    endpoints: HashMap<(LogicalNamespace, String, String), BTreeSet<IpAddr>>,
}

/// Answer about one name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameAnswer {
    /// Addresses; none of a Service that has none now.
    Addresses(Vec<IpAddr>),
    /// The name stands for this one, which another resolver knows.
    Alias(String),
    /// The logical cluster has no such name yet: its namespace, or the Service of the endpoint, exists.
    Missing,
    /// The logical cluster cannot have such a name.
    Absent,
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
        table.namespaces.extend(namespaces.values().cloned());
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
            if service["spec"]["type"] == "ExternalName" {
                let target = service["spec"]["externalName"].as_str().unwrap_or_default();
                let target = target.trim_end_matches('.').to_ascii_lowercase();
                table.aliases.insert((home, object::name(service).to_owned()), target);
                continue;
            }
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

    /// Answers a pod that asks for a name. Reverse names have no answer: an address may be that of another tenant's
    /// pod.
    pub(super) fn resolve(&self, client: IpAddr, name: &str, domains: &ClusterDomains) -> NameAnswer {
        self.resolve_within(MAX_ALIASES, client, name, domains)
    }

    /// Returns true if a client is a pod of Portolan.
    pub(super) fn knows(&self, client: IpAddr) -> bool {
        self.pods.contains_key(&client)
    }

    /// Answers a name through at most `aliases` ExternalNames of the tenant itself.
    fn resolve_within(&self, aliases: usize, client: IpAddr, name: &str, domains: &ClusterDomains) -> NameAnswer {
        let Some(tenant) = self.pods.get(&client) else { return NameAnswer::UnknownClient };
        if domains.is_elsewhere(name) {
            return NameAnswer::Elsewhere;
        }
        let Some(path) = domains.strip(name).unwrap_or(name).strip_suffix(".svc") else { return NameAnswer::Absent };
        let home = |namespace: &str| (tenant.clone(), namespace.to_owned());
        let labels: Vec<&str> = path.split('.').collect();
        let (found, may_come) = match labels[..] {
            [service, namespace] => {
                let home = home(namespace);
                let may_come = self.namespaces.contains(&home);
                if let Some(target) = self.aliases.get(&(home.clone(), service.to_owned())) {
                    if domains.is_elsewhere(target) {
                        return NameAnswer::Alias(target.clone());
                    }
                    let Some(left) = aliases.checked_sub(1) else { return NameAnswer::Absent };
                    return self.resolve_within(left, client, target, domains);
                }
                (self.services.get(&(home, service.to_owned())), may_come)
            }
            [endpoint, service, namespace] => {
                let of_service = (home(namespace), service.to_owned());
                let may_come = self.services.contains_key(&of_service);
                (self.endpoints.get(&(of_service.0, of_service.1, endpoint.to_owned())), may_come)
            }
            _ => (None, false),
        };
        match found {
            Some(addresses) => NameAnswer::Addresses(addresses.iter().copied().collect()),
            None if may_come => NameAnswer::Missing,
            None => NameAnswer::Absent,
        }
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
        let external = |name: &str, target: &str| json!({"metadata": {"name": name, "namespace": "shop-a"}, "spec": {"type": "ExternalName", "externalName": target}});
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
                external("mail", "Mail.example.com."),
                external("near", "api.pay.svc.cluster.local"),
                external("nearer", "near.shop.svc.cluster.local."),
                external("foreign", "secret.shop.svc.cluster.local"),
                external("circle", "circle.shop.svc.cluster.local"),
                external("inside", "secret.shop-b.svc.k8s.corp"),
            ],
            slices: vec![
                slice("db", json!([endpoint("10.1.0.8", true), endpoint("10.1.0.9", false)])),
                slice("web", json!([endpoint("10.1.0.7", true)])),
            ],
        })
    }

    #[test]
    fn names_of_a_logical_cluster() {
        let (table, domains) = (table(), ClusterDomains::with(["K8s.corp.".to_owned()]));
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
            ("names of the physical cluster", "10.1.0.1", "kubernetes.default.svc", NameAnswer::Absent),
            ("a name downstream", "10.1.0.1", "web.shop-a.svc.cluster.local", NameAnswer::Absent),
            ("another name of the cluster", "10.1.0.1", "x.pod.cluster.local", NameAnswer::Absent),
            ("the domain itself", "10.1.0.1", "cluster.local", NameAnswer::Absent),
            ("an endpoint that may come", "10.1.0.1", "db-1.db.shop.svc", NameAnswer::Missing),
            (
                "a name of the world with the search list",
                "10.1.0.1",
                "example.com.svc.cluster.local",
                NameAnswer::Absent,
            ),
            ("and with the namespace", "10.1.0.1", "example.com.shop.svc.cluster.local", NameAnswer::Absent),
            ("the domain of the physical cluster", "10.1.0.1", "web.shop-b.svc.k8s.corp", NameAnswer::Absent),
            ("a name of the workspace in it", "10.1.0.1", "web.shop.svc.k8s.corp", found("10.96.0.1")),
            ("the address of a pod", "10.1.0.1", "2.0.1.10.in-addr.arpa", NameAnswer::Absent),
            ("one of IPv6", "10.1.0.1", "1.0.0.0.d.f.ip6.arpa", NameAnswer::Absent),
            (
                "an alias of a name of the world",
                "10.1.0.1",
                "mail.shop.svc",
                NameAnswer::Alias("mail.example.com".into()),
            ),
            ("one of a Service of the workspace", "10.1.0.1", "near.shop.svc", found("10.96.0.2")),
            ("an alias of that alias", "10.1.0.1", "nearer.shop.svc", found("10.96.0.2")),
            ("one of a Service of another tenant", "10.1.0.1", "foreign.shop.svc", NameAnswer::Missing),
            ("one of itself", "10.1.0.1", "circle.shop.svc", NameAnswer::Absent),
            ("one of a name of the physical cluster", "10.1.0.1", "inside.shop.svc", NameAnswer::Absent),
            ("an alias of another tenant", "10.1.0.2", "mail.shop.svc", NameAnswer::Missing),
            ("a name of the world", "10.1.0.1", "example.com", NameAnswer::Elsewhere),
            ("one that only ends alike", "10.1.0.1", "notcluster.local", NameAnswer::Elsewhere),
            ("a pod of somebody else", "10.1.0.3", "web.shop.svc", NameAnswer::UnknownClient),
            ("a pod that is over", "10.1.0.4", "web.shop.svc", NameAnswer::UnknownClient),
            ("an unknown address", "10.9.9.9", "example.com", NameAnswer::UnknownClient),
        ] {
            assert_eq!(table.resolve(client.parse().unwrap(), name, &domains), expected, "{case}");
        }
    }
}
