//! Resource types of the server, from its discovery, and arguments that name objects of them.

use anyhow::{anyhow, bail};
use http::Method;
use serde_json::Value;

use super::session::{ApiRequest, ApiSession, RequestError};

/// Discovery of all groups in one answer.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Resource type in its preferred version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceType {
    pub(crate) group: String,
    pub(crate) version: String,
    /// Plural: `deployments`.
    pub(crate) resource: String,
    pub(crate) kind: String,
    pub(crate) is_namespaced: bool,
    /// Names by which users call it.
    pub(crate) names: Vec<String>,
}

impl ResourceType {
    /// Returns the path of an object, or of the collection without a name.
    pub(crate) fn path(&self, namespace: &str, name: Option<&str>) -> String {
        self.path_in(Some(namespace), name)
    }

    /// Returns the path of an object, or of the collection without a name, in one namespace or in all.
    pub(crate) fn path_in(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let base = match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        let space = namespace.filter(|_| self.is_namespaced).map(|name| format!("/namespaces/{name}"));
        let space = space.unwrap_or_default();
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        format!("{base}{space}/{}{name}", self.resource)
    }

    /// Returns `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns `deployment.apps/web`, as kubectl names objects.
    pub(crate) fn title(&self, name: &str) -> String {
        let kind = self.kind.to_lowercase();
        match self.group.as_str() {
            "" => format!("{kind}/{name}"),
            group => format!("{kind}.{group}/{name}"),
        }
    }
}

/// Resource types of a workspace, in the server's order.
pub(crate) struct ResourceCatalog(Vec<ResourceType>);

impl ResourceCatalog {
    /// Asks the server for its resource types.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(crate) async fn discover(session: &ApiSession) -> Result<Self, RequestError> {
        let read = async |path: &'static str, accept: &'static str| {
            session.send(ApiRequest { accept, ..ApiRequest::new(Method::GET, path) }).await
        };
        Self::discover_with(read).await
    }

    /// Asks for the resource types by a function that reads a path with an `Accept` header.
    ///
    /// # Errors
    /// The errors of the function.
    pub(crate) async fn discover_with(
        read: impl AsyncFn(&'static str, &'static str) -> Result<Value, RequestError>,
    ) -> Result<Self, RequestError> {
        let mut all = Vec::new();
        for path in ["/api", "/apis"] {
            all.extend(types_of(&read(path, AGGREGATED).await?));
        }
        Ok(Self(all))
    }

    /// Finds a type by its plural, singular or short name or its kind, also with `.group` or `.version.group`.
    ///
    /// # Errors
    /// kubectl's message for a type that the server does not have.
    pub(crate) fn find(&self, name: &str) -> anyhow::Result<&ResourceType> {
        let wanted = name.to_lowercase();
        let (short, qualifier) = wanted.split_once('.').unwrap_or((&wanted, ""));
        let is_qualified = |found: &&ResourceType| {
            let full = format!("{}.{}", found.version, found.group);
            qualifier.is_empty() || [&found.group, &found.version, &full].contains(&&qualifier.to_owned())
        };
        let is_it = |found: &&ResourceType| found.names.iter().any(|name| name == short) && is_qualified(found);
        // A plural counts before the short name of another type.
        let plural = self.0.iter().filter(is_qualified).find(|found| found.resource == short);
        let missing = || anyhow!("the server doesn't have a resource type \"{name}\"");
        plural.or_else(|| self.0.iter().find(is_it)).ok_or_else(missing)
    }

    /// Returns all types.
    pub(crate) fn all(&self) -> &[ResourceType] {
        &self.0
    }
}

fn types_of(discovery: &Value) -> Vec<ResourceType> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let mut types: Vec<ResourceType> = Vec::new();
    for group in list(discovery, "items") {
        let group_name = text(&group["metadata"], "name");
        for version in list(&group, "versions") {
            for resource in list(&version, "resources") {
                let plural = text(&resource, "resource");
                // The first version is the preferred one.
                if types.iter().any(|known| known.group == group_name && known.resource == plural) {
                    continue;
                }
                let kind = text(&resource["responseKind"], "kind");
                let mut names = vec![plural.clone(), text(&resource, "singularResource"), kind.to_lowercase()];
                names.extend(list(&resource, "shortNames").iter().filter_map(|name| name.as_str().map(str::to_owned)));
                types.push(ResourceType {
                    group: group_name.clone(),
                    version: text(&version, "version"),
                    resource: plural,
                    kind,
                    is_namespaced: resource["scope"] == "Namespaced",
                    names,
                });
            }
        }
    }
    types
}

/// Argument that names objects: a type, and a name or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectArg {
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
}

impl ObjectArg {
    /// Parses `TYPE/NAME…`, `TYPE NAME…` or `TYPE,…`.
    ///
    /// # Errors
    /// kubectl's messages for other forms.
    pub(crate) fn parse(args: &[String]) -> anyhow::Result<Vec<Self>> {
        let pair = |arg: &String| {
            let parts: Vec<&str> = arg.split('/').collect();
            match parts[..] {
                [kind, name] if !kind.is_empty() && !name.is_empty() => {
                    Ok(Self { kind: kind.to_owned(), name: Some(name.to_owned()) })
                }
                _ => bail!("arguments in resource/name form must have a single resource and name"),
            }
        };
        match args {
            [] => bail!("You must specify the type of resource, and its name: TYPE/NAME"),
            [one] if !one.contains('/') => {
                Ok(one.split(',').map(|kind| Self { kind: kind.to_owned(), name: None }).collect())
            }
            all if all.iter().all(|arg| arg.contains('/')) => all.iter().map(pair).collect(),
            [kind, names @ ..] if !kind.contains('/') && names.iter().all(|name| !name.contains('/')) => {
                Ok(names.iter().map(|name| Self { kind: kind.clone(), name: Some(name.clone()) }).collect())
            }
            _ => bail!(
                "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form \
                 (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_named_as_for_kubectl() {
        let parse = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let parsed = ObjectArg::parse(&args).ok()?;
            let shown = parsed.into_iter().map(|arg| format!("{}:{}", arg.kind, arg.name.unwrap_or_default()));
            Some(shown.collect::<Vec<_>>().join(" "))
        };
        for (line, expected) in [
            ("deploy/web", Some("deploy:web")),
            ("deploy/web svc/web", Some("deploy:web svc:web")),
            ("deploy web api", Some("deploy:web deploy:api")),
            ("deploy", Some("deploy:")),
            ("deploy,sts", Some("deploy: sts:")),
            ("deploy web svc/web", None),
            ("deploy/web api", None),
            ("deploy/", None),
            ("a/b/c", None),
            ("", None),
        ] {
            assert_eq!(parse(line).as_deref(), expected, "{line:?}");
        }
    }

    #[test]
    fn types_are_found_by_every_name() {
        let resource = |plural: &str, kind: &str, short: &str, scope: &str| {
            json!({"resource": plural, "singularResource": kind.to_lowercase(), "shortNames": [short], "scope": scope,
                "responseKind": {"kind": kind}})
        };
        let core = json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
            resource("namespaces", "Namespace", "ns", "Cluster"), resource("events", "Event", "ev", "Namespaced")]}]}]});
        let groups = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v1", "resources": [resource("deployments", "Deployment", "deploy", "Namespaced")]},
                {"version": "v1beta1", "resources": [resource("deployments", "Deployment", "deploy", "Namespaced")]}]},
            {"metadata": {"name": "events.k8s.io"}, "versions": [
                {"version": "v1", "resources": [resource("events", "Event", "ns", "Namespaced")]}]}]});
        let catalog = ResourceCatalog([types_of(&core), types_of(&groups)].concat());
        for (name, path) in [
            ("deploy", Some("/apis/apps/v1/namespaces/shop/deployments/a")),
            ("deployment", Some("/apis/apps/v1/namespaces/shop/deployments/a")),
            ("Deployment", Some("/apis/apps/v1/namespaces/shop/deployments/a")),
            ("deployments.apps", Some("/apis/apps/v1/namespaces/shop/deployments/a")),
            ("deployments.v1.apps", Some("/apis/apps/v1/namespaces/shop/deployments/a")),
            ("deployments.batch", None),
            ("ns", Some("/api/v1/namespaces/a")),
            ("events", Some("/api/v1/namespaces/shop/events/a")),
            ("events.events.k8s.io", Some("/apis/events.k8s.io/v1/namespaces/shop/events/a")),
            ("widgets", None),
        ] {
            let found = catalog.find(name).map(|found| found.path("shop", Some("a")));
            assert_eq!(found.ok().as_deref(), path, "{name}");
        }
        let deployments = catalog.find("deploy").unwrap();
        assert_eq!(
            (deployments.api_version().as_str(), deployments.title("a").as_str()),
            ("apps/v1", "deployment.apps/a")
        );
        assert_eq!(
            catalog.find("widgets").unwrap_err().to_string(),
            "the server doesn't have a resource type \"widgets\""
        );
    }
}
