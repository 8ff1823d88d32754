//! Resources of kube-apiserver, from its discovery: kind, plural name and verbs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use harness::client::HttpClient;

/// All kinds by (apiVersion, kind).
pub(super) struct ResourceCatalog(BTreeMap<(String, String), CatalogResource>);

/// Resource in one version.
#[derive(Clone, Debug)]
pub(super) struct CatalogResource {
    pub(super) api_version: String,
    pub(super) name: String,
    pub(super) namespaced: bool,
    pub(super) verbs: Vec<String>,
    pub(super) subresources: Vec<String>,
}

impl ResourceCatalog {
    /// Reads the discovery of every group version.
    pub(super) async fn read(client: &HttpClient) -> Result<Self> {
        let mut kinds = BTreeMap::new();
        for path in group_versions(client).await? {
            let document: Value = serde_json::from_slice(&client.get(&path).await?)?;
            kinds.extend(resources(&document));
        }
        Ok(Self(kinds))
    }

    /// Catalog with the kind of this object, and with every subresource that a kind can have.
    #[cfg(test)]
    pub(super) fn of_one(object: &Value) -> Self {
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let list = |words: &str| words.split(' ').map(str::to_owned).collect();
        let resource = CatalogResource {
            api_version: text("apiVersion"),
            name: "things".to_owned(),
            namespaced: true,
            verbs: list("create get list watch update patch delete deletecollection"),
            subresources: list("status scale"),
        };
        Self([((text("apiVersion"), text("kind")), resource)].into())
    }

    pub(super) fn find(&self, api_version: &str, kind: &str) -> Option<&CatalogResource> {
        self.0.get(&(api_version.to_owned(), kind.to_owned()))
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.keys().map(|(version, kind)| (version.as_str(), kind.as_str()))
    }
}

impl CatalogResource {
    /// `/api/v1/namespaces/${ns}/pods`, `/apis/rbac.authorization.k8s.io/v1/clusterroles`.
    pub(super) fn collection(&self) -> String {
        format!("{}/{}", self.prefix(), self.name)
    }

    /// Returns the prefix of the corpus's relative paths.
    pub(super) fn prefix(&self) -> String {
        let base = self.version_path();
        if self.namespaced { format!("{base}/namespaces/${{ns}}") } else { base }
    }

    /// Returns the path of the collection over all namespaces.
    pub(super) fn everywhere(&self) -> String {
        format!("{}/{}", self.version_path(), self.name)
    }

    /// `/api/v1`, `/apis/apps/v1`.
    pub(super) fn version_path(&self) -> String {
        let root = if self.api_version.contains('/') { "/apis" } else { "/api" };
        format!("{root}/{}", self.api_version)
    }

    pub(super) fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| own == verb)
    }

    pub(super) fn has(&self, subresource: &str) -> bool {
        self.subresources.iter().any(|own| own == subresource)
    }
}

async fn group_versions(client: &HttpClient) -> Result<Vec<String>> {
    let groups: Value = serde_json::from_slice(&client.get("/apis").await?)?;
    let groups = groups["groups"].as_array().context("/apis lists no groups")?;
    let versions = groups.iter().flat_map(|group| group["versions"].as_array().into_iter().flatten());
    let paths = versions.filter_map(|version| version["groupVersion"].as_str()).map(|text| format!("/apis/{text}"));
    Ok(std::iter::once("/api/v1".to_owned()).chain(paths).collect())
}

fn resources(document: &Value) -> Vec<((String, String), CatalogResource)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&document["groupVersion"]);
    let all: Vec<&Value> = document["resources"].as_array().into_iter().flatten().collect();
    let names: Vec<String> = all.iter().map(|resource| text(&resource["name"])).collect();
    let own = all.iter().filter(|resource| !text(&resource["name"]).contains('/'));
    own.map(|resource| {
        let name = text(&resource["name"]);
        let below = format!("{name}/");
        let found = CatalogResource {
            api_version: api_version.clone(),
            namespaced: resource["namespaced"].as_bool().unwrap_or_default(),
            verbs: resource["verbs"].as_array().into_iter().flatten().map(text).collect(),
            subresources: names.iter().filter_map(|name| name.strip_prefix(&below)).map(str::to_owned).collect(),
            name,
        };
        ((api_version.clone(), text(&resource["kind"])), found)
    })
    .collect()
}
