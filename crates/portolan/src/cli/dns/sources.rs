//! Reads the inputs of names from the API of a physical cluster.

use anyhow::{Context as _, ensure};
use portolan_types::{annotations, object};
use serde_json::{Map, Value, json};

use super::{
    super::cluster_api::ClusterApi,
    names::{NameSources, NameTable},
};

/// Objects of one request.
const PAGE: usize = 500;
/// Most objects of one resource. With more, the responder keeps the names that it knows.
const MAX_OBJECTS: usize = 50_000;
/// Fields that names depend on. Other fields of objects are dropped.
const KEPT: [(&str, &[&str]); 3] = [
    ("spec", &["clusterIP", "clusterIPs", "externalName", "hostNetwork", "type"]),
    ("status", &["podIP", "podIPs", "phase"]),
    ("endpoints", &[]),
];

/// Reads the objects in namespaces of Portolan, and makes the table of their names.
///
/// # Errors
/// No answer, a refusal, or more objects than are held.
pub(super) async fn read(api: &ClusterApi) -> anyhow::Result<NameTable> {
    let sources = NameSources {
        namespaces: list(api, "/api/v1/namespaces").await?,
        services: list(api, "/api/v1/services").await?,
        slices: list(api, "/apis/discovery.k8s.io/v1/endpointslices").await?,
        pods: list(api, "/api/v1/pods").await?,
    };
    Ok(NameTable::new(&sources))
}

async fn list(api: &ClusterApi, path: &str) -> anyhow::Result<Vec<Value>> {
    let (mut objects, mut after) = (Vec::new(), String::new());
    loop {
        let query = format!("{path}?labelSelector={}&limit={PAGE}&continue={after}", annotations::DOWN_CLUSTER);
        let page = api.get(&query).await?.with_context(|| format!("{} has no {path}", api.server()))?;
        objects.extend(page["items"].as_array().into_iter().flatten().map(reduced));
        ensure!(objects.len() <= MAX_OBJECTS, "{path} has more than {MAX_OBJECTS} objects of Portolan");
        after = object::meta_text(&page, "continue").to_owned();
        // It goes into a query.
        let is_plain = after.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        ensure!(is_plain, "{path}: a continue token that is not base64url");
        if after.is_empty() {
            return Ok(objects);
        }
    }
}

/// Returns the parts of an object that names depend on.
fn reduced(object: &Value) -> Value {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "labels"] {
        metadata.insert(key.into(), object["metadata"][key].clone());
    }
    let all = &object["metadata"]["annotations"];
    let named = [annotations::DOWN_IDENTITY, annotations::DOWN_IMPORTED].map(|key| (key.to_owned(), all[key].clone()));
    metadata
        .insert("annotations".into(), Map::from_iter(named.into_iter().filter(|(_, text)| text.is_string())).into());
    let mut kept = json!({"metadata": metadata});
    for (part, fields) in KEPT {
        if fields.is_empty() {
            kept[part] = object[part].clone();
        }
        for field in fields {
            kept[part][*field] = object[part][*field].clone();
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fields_that_determine_names_are_kept() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "annotations": {"big": "x".repeat(1000)}},
            "spec": {"containers": [{"env": []}]}, "status": {"podIP": "10.0.0.1", "conditions": [{}]}});
        let kept = reduced(&pod);
        assert_eq!((&kept["metadata"]["name"], &kept["status"]["podIP"]), (&json!("p"), &json!("10.0.0.1")));
        assert!(kept.to_string().len() < 300, "{kept}");
    }
}
