//! Services that a namespace imports from physical clusters (KEP-1645), in the form in which the syncer gives them to
//! the DNS responder of a physical cluster: as an annotation of the downstream namespace.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{GroupResource, annotations, object};

/// Label of an EndpointSlice of an imported Service that names it.
pub const IMPORTED_SERVICE: &str = "multicluster.kubernetes.io/service-name";
/// Label of an EndpointSlice of an imported Service that names the physical cluster of its endpoints.
pub const SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";
/// Most endpoints of one Service on one physical cluster.
const MAX_ENDPOINTS: usize = 500;
/// Most bytes of all Services of a namespace. Kubernetes allows 256 KiB of annotations.
const MAX_BYTES: usize = 128 << 10;

/// Returns the resource of imports. A namespace imports the Services that have one.
pub fn imports() -> GroupResource {
    GroupResource::new("multicluster.x-k8s.io", "serviceimports")
}

/// Imported Services by name, each with its ready endpoints by physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImportedServices {
    /// Services by name.
    pub services: BTreeMap<String, ImportedEndpoints>,
}

/// Ready endpoints of a Service by physical cluster.
pub type ImportedEndpoints = BTreeMap<String, Vec<ImportedEndpoint>>;

/// Endpoint of an imported Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImportedEndpoint {
    /// IP addresses.
    pub addresses: Vec<String>,
    /// Name of the endpoint; empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
}

impl ImportedServices {
    /// Returns the Services of these names, with the endpoints of these slices. Slices of other Services do not count.
    pub fn of<'a>(names: BTreeSet<String>, slices: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut services: BTreeMap<_, _> = names.into_iter().map(|name| (name, ImportedEndpoints::new())).collect();
        for slice in slices {
            let labels = object::label(slice, IMPORTED_SERVICE).zip(object::label(slice, SOURCE_CLUSTER));
            let Some((name, cluster)) = labels else { continue };
            let Some(service) = services.get_mut(name) else { continue };
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false).map(ImportedEndpoint::of);
            let known = service.entry(cluster.to_owned()).or_default();
            known.extend(ready.take(MAX_ENDPOINTS - known.len().min(MAX_ENDPOINTS)));
            known.sort();
        }
        Self { services }
    }

    /// Returns the value of the annotation; `None` without Services. The last Services are left out where all take more
    /// than an annotation has room for.
    pub fn to_text(&self) -> Option<String> {
        let mut bytes = 0;
        let fits = |(name, endpoints): &(&String, &ImportedEndpoints)| {
            let text = serde_json::to_string(endpoints).unwrap_or_default();
            bytes += name.len() + text.len();
            bytes <= MAX_BYTES
        };
        let kept: BTreeMap<_, _> = self.services.iter().take_while(fits).collect();
        (!kept.is_empty()).then(|| serde_json::to_string(&kept).expect("strings serialize"))
    }

    /// Reads the annotation of a downstream namespace. One that cannot be read has no Services.
    pub fn of_namespace(namespace: &Value) -> Self {
        let text = object::annotation(namespace, annotations::DOWN_IMPORTED).unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }
}

impl ImportedEndpoint {
    fn of(endpoint: &Value) -> Self {
        let addresses = endpoint["addresses"].as_array().into_iter().flatten();
        Self {
            addresses: addresses.filter_map(|address| Some(address.as_str()?.to_owned())).collect(),
            hostname: endpoint["hostname"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(service: &str, cluster: &str, endpoints: &Value) -> Value {
        json!({"metadata": {"labels": {IMPORTED_SERVICE: service, SOURCE_CLUSTER: cluster}}, "endpoints": endpoints})
    }

    #[test]
    fn services_with_an_import_have_their_ready_endpoints() {
        let slices = [
            slice("db", "west", &json!([{"addresses": ["10.2.0.2"]}, {"addresses": ["10.2.0.1"], "hostname": "db-0"}])),
            slice("db", "east", &json!([{"addresses": ["10.1.0.1"], "conditions": {"ready": false}}])),
            slice("gone", "east", &json!([{"addresses": ["10.1.0.9"]}])),
            json!({"metadata": {"labels": {"kubernetes.io/service-name": "db"}}, "endpoints": [{"addresses": ["1.1.1.1"]}]}),
        ];
        let found = ImportedServices::of(BTreeSet::from(["db".to_owned(), "empty".to_owned()]), &slices);
        let text = found.to_text().unwrap();
        let expected = json!({"empty": {}, "db": {"east": [], "west": [
            {"addresses": ["10.2.0.1"], "hostname": "db-0"}, {"addresses": ["10.2.0.2"]}]}});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        let namespace = json!({"metadata": {"annotations": {annotations::DOWN_IMPORTED: text}}});
        assert_eq!(ImportedServices::of_namespace(&namespace), found);
        assert_eq!(ImportedServices::default().to_text(), None);
    }

    #[test]
    fn an_annotation_is_bounded() {
        let many: Vec<Value> =
            (0..900).map(|n| json!({"addresses": [format!("10.0.{}.{}", n / 250, n % 250)]})).collect();
        let names: BTreeSet<String> = (0..60).map(|n| format!("web-{n:02}")).collect();
        let slices: Vec<Value> = names.iter().map(|name| slice(name, "east", &json!(many))).collect();
        let found = ImportedServices::of(names, &slices);
        assert_eq!(found.services["web-00"]["east"].len(), MAX_ENDPOINTS);
        let text = found.to_text().unwrap();
        assert!(text.len() < MAX_BYTES + 1024, "{}", text.len());
        assert!(text.contains("web-00") && !text.contains("web-59"), "the first ones are kept");
    }
}
