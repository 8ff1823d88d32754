//! Names of logical clusters on one physical cluster: who asks is known by the address of the pod. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use portolan_syncer::NamespaceIdentity;
use portolan_types::{annotations, imported_services::ImportedServices, object};
use serde_json::Value;

/// Most ExternalNames of a workspace, one after another.
const MAX_ALIASES: usize = 4;

/// Domain of the names of a workspace, which pods have in their search list.
const DOMAIN: &str = "cluster.local";
/// Domain of Services that are imported from all physical clusters (KEP-1645).
const CLUSTERSET: &str = "clusterset.local";
/// Domain of reverse names.
const REVERSE: &str = "arpa";

/// Domains that are answered here and never forwarded: the domain of workspaces, and those of the physical cluster,
/// because its resolver knows the names of all tenants.
#[derive(Clone, Debug)]
pub(super) struct ClusterDomains(Vec<String>);

impl ClusterDomains {
    /// Returns the domains, with those of the physical cluster.
    pub(super) fn with(own: impl IntoIterator<Item = String>) -> Self {
        let own = own.into_iter().map(|domain| domain.trim_matches('.').to_ascii_lowercase());
        Self(std::iter::once(DOMAIN.to_owned()).chain(own.filter(|domain| !domain.is_empty())).collect())
    }

    /// Returns true for a name that another resolver answers: neither a name of a cluster nor a reverse name.
    fn is_elsewhere(&self, name: &str) -> bool {
        let is_reverse = name.rsplit('.').next() == Some(REVERSE);
        !is_reverse && self.strip(name).is_none() && within(name, CLUSTERSET).is_none() && !name.ends_with(".svc")
    }

    /// Returns a name without the domain, empty for the domain itself; `None` for a name of another domain.
    fn strip<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.0.iter().find_map(|domain| within(name, domain))
    }
}

/// Returns a name without its domain, empty for the domain itself; `None` for a name of another domain.
fn within<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    match name.strip_suffix(domain)? {
        "" => Some(""),
        rest => rest.strip_suffix('.'),
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
    /// External names of Services of the type ExternalName.
    aliases: HashMap<(LogicalNamespace, String), String>,
    /// Addresses of named endpoints, by namespace upstream, Service and name.
    endpoints: HashMap<(LogicalNamespace, String, String), BTreeSet<IpAddr>>,
    /// Addresses of the endpoints of imported Services, by namespace upstream and name. Those of one endpoint have its
    /// name and its physical cluster before that of the Service.
    imported: HashMap<(LogicalNamespace, String), BTreeSet<IpAddr>>,
}

/// Answer about one name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameAnswer {
    /// Addresses; empty for a Service without any.
    Addresses(Vec<IpAddr>),
    /// Alias of this name, which another resolver answers.
    Alias(String),
    /// The logical cluster has no such name yet: its namespace, or the Service of the endpoint, exists.
    Missing,
    /// The name cannot exist in the logical cluster.
    Absent,
    /// The name does not belong to the cluster: another resolver answers it.
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
            if let Some((home, service)) = home(slice).zip(object::label(slice, "kubernetes.io/service-name")) {
                table.add_slice(home, service, slice);
            }
        }
        for namespace in &sources.namespaces {
            if let Some(home) = namespaces.get(object::name(namespace)) {
                table.add_imported(home, &ImportedServices::of_namespace(namespace));
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
        for (endpoint, addresses) in ready_endpoints(slice) {
            self.services.entry(key.clone()).or_default().extend(&addresses);
            if let Some(name) = endpoint["hostname"].as_str() {
                let named = (home.clone(), service.to_owned(), name.to_owned());
                self.endpoints.entry(named).or_default().extend(&addresses);
            }
        }
    }

    /// Adds the endpoints of the imported Services of a namespace.
    fn add_imported(&mut self, home: &LogicalNamespace, imported: &ImportedServices) {
        for (service, clusters) in &imported.services {
            self.imported.entry((home.clone(), service.clone())).or_default();
            for (cluster, endpoint) in
                clusters.iter().flat_map(|(cluster, all)| all.iter().map(move |one| (cluster, one)))
            {
                let addresses = endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
                let addresses: Vec<IpAddr> = addresses.collect();
                let own = (!endpoint.hostname.is_empty()).then(|| format!("{}.{cluster}.{service}", endpoint.hostname));
                for name in std::iter::once(service.clone()).chain(own) {
                    self.imported.entry((home.clone(), name)).or_default().extend(&addresses);
                }
            }
        }
    }

    /// Answers a name of an imported Service, without its domain.
    fn resolve_imported(&self, tenant: &str, path: &str) -> NameAnswer {
        let parts = path.strip_suffix(".svc").and_then(|path| path.rsplit_once('.'));
        let Some((service, namespace)) = parts else { return NameAnswer::Absent };
        let home = (tenant.to_owned(), namespace.to_owned());
        let may_come = self.namespaces.contains(&home);
        match self.imported.get(&(home, service.to_owned())) {
            Some(addresses) => NameAnswer::Addresses(addresses.iter().copied().collect()),
            None if may_come => NameAnswer::Missing,
            None => NameAnswer::Absent,
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
        if let Some(path) = within(name, CLUSTERSET) {
            return self.resolve_imported(tenant, path);
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

/// Returns the ready endpoints of a slice with their addresses.
fn ready_endpoints(slice: &Value) -> impl Iterator<Item = (&Value, Vec<IpAddr>)> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let addresses =
        |endpoint: &Value| endpoint["addresses"].as_array().into_iter().flatten().filter_map(address).collect();
    endpoints
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .map(move |endpoint| (endpoint, addresses(endpoint)))
}

/// Returns true if the controller of slices marked it as of a Service without an address.
fn slice_is_headless(slice: &Value) -> bool {
    object::label(slice, "service.kubernetes.io/headless").is_some()
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests;
