//! The closed table of routes. A request reaches a handler through this table and the pipeline, or not at all.

use std::sync::LazyLock;

use portolan_machinery::kinds::KindTable;
use portolan_types::Status;

/// What answers a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    /// `/`: what paths there are.
    Index,
    /// `/livez` and its checks.
    Livez,
    /// `/readyz` and its checks.
    Readyz,
    /// `/healthz` and its checks.
    Healthz,
    /// `/version`.
    Version,
    /// `/metrics`.
    Metrics,
    /// `/metrics/slis`: those of health alone.
    HealthMetrics,
    /// The whole store.
    Snapshot,
    /// Keys of service account tokens.
    Jwks,
    /// Who issues service account tokens.
    OpenIdConfiguration,
    /// Index of OpenAPI v3.
    OpenApiIndex,
    /// One document of OpenAPI v3.
    OpenApiDocument,
    /// OpenAPI v2.
    OpenApiV2,
    /// `/api` and `/apis`.
    Groups,
    /// `/apis/<group>`.
    Group,
    /// `/api/v1`, `/apis/<group>/<version>`.
    GroupVersion,
    /// A resource: list, watch, create, deletecollection.
    Collection,
    /// An object: get, update, patch, delete.
    Object,
    /// A subresource of an object.
    Subresource,
}

/// How access to a route is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The same in all logical clusters, so none is resolved: the shared bindings decide over the path.
    Server,
    /// The logical cluster's bindings decide over the path.
    Path,
    /// The logical cluster's bindings decide over the resource.
    Resource,
}

/// A route.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) pattern: &'static str,
    pub(crate) endpoint: Endpoint,
    pub(crate) policy: Policy,
}

/// Every route. The first that fits counts.
pub(crate) static ROUTES: &[Route] = &[
    route("/", Endpoint::Index, Policy::Path),
    route("/livez", Endpoint::Livez, Policy::Server),
    route("/livez/{name}", Endpoint::Livez, Policy::Server),
    route("/readyz", Endpoint::Readyz, Policy::Server),
    route("/readyz/{name}", Endpoint::Readyz, Policy::Server),
    route("/healthz", Endpoint::Healthz, Policy::Server),
    route("/healthz/{name}", Endpoint::Healthz, Policy::Server),
    route("/version", Endpoint::Version, Policy::Server),
    route("/metrics", Endpoint::Metrics, Policy::Server),
    route("/metrics/slis", Endpoint::HealthMetrics, Policy::Server),
    route("/snapshot", Endpoint::Snapshot, Policy::Server),
    route("/openid/v1/jwks", Endpoint::Jwks, Policy::Path),
    route("/.well-known/openid-configuration", Endpoint::OpenIdConfiguration, Policy::Path),
    route("/openapi/v3", Endpoint::OpenApiIndex, Policy::Path),
    route("/openapi/v3/{rest}", Endpoint::OpenApiDocument, Policy::Path),
    route("/openapi/v2", Endpoint::OpenApiV2, Policy::Path),
    route("/api", Endpoint::Groups, Policy::Path),
    route("/api/{version}", Endpoint::GroupVersion, Policy::Path),
    route("/api/{version}/namespaces/{name}/status", Endpoint::Subresource, Policy::Resource),
    route("/api/{version}/namespaces/{name}/finalize", Endpoint::Subresource, Policy::Resource),
    route("/api/{version}/{resource}", Endpoint::Collection, Policy::Resource),
    route("/api/{version}/{resource}/{name}", Endpoint::Object, Policy::Resource),
    route("/api/{version}/namespaces/{namespace}/{resource}", Endpoint::Collection, Policy::Resource),
    route("/api/{version}/namespaces/{namespace}/{resource}/{name}", Endpoint::Object, Policy::Resource),
    route(
        "/api/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}",
        Endpoint::Subresource,
        Policy::Resource,
    ),
    route(
        "/api/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}/{rest}",
        Endpoint::Subresource,
        Policy::Resource,
    ),
    route("/api/{version}/{resource}/{name}/{subresource}", Endpoint::Subresource, Policy::Resource),
    route("/api/{version}/{resource}/{name}/{subresource}/{rest}", Endpoint::Subresource, Policy::Resource),
    route("/apis", Endpoint::Groups, Policy::Path),
    route("/apis/{group}", Endpoint::Group, Policy::Path),
    route("/apis/{group}/{version}", Endpoint::GroupVersion, Policy::Path),
    route("/apis/{group}/{version}/{resource}", Endpoint::Collection, Policy::Resource),
    route("/apis/{group}/{version}/{resource}/{name}", Endpoint::Object, Policy::Resource),
    route("/apis/{group}/{version}/namespaces/{namespace}/{resource}", Endpoint::Collection, Policy::Resource),
    route("/apis/{group}/{version}/namespaces/{namespace}/{resource}/{name}", Endpoint::Object, Policy::Resource),
    route(
        "/apis/{group}/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}",
        Endpoint::Subresource,
        Policy::Resource,
    ),
    route("/apis/{group}/{version}/{resource}/{name}/{subresource}", Endpoint::Subresource, Policy::Resource),
];

const fn route(pattern: &'static str, endpoint: Endpoint, policy: Policy) -> Route {
    Route { pattern, endpoint, policy }
}

/// What a route's pattern takes out of a path. Empty where it takes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captures {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) rest: String,
    /// The name of the one object that is watched by an old path.
    pub(crate) watched: Option<String>,
}

enum Part {
    Literal(&'static str),
    Capture(fn(&mut Captures) -> &mut String),
    Rest,
}

static PARSED: LazyLock<Vec<(Vec<Part>, &'static Route)>> =
    LazyLock::new(|| ROUTES.iter().map(|route| (parts(route.pattern), route)).collect());

fn parts(pattern: &'static str) -> Vec<Part> {
    let part = |text: &'static str| match text {
        "{group}" => Part::Capture(|c| &mut c.group),
        "{version}" => Part::Capture(|c| &mut c.version),
        "{resource}" => Part::Capture(|c| &mut c.resource),
        "{namespace}" => Part::Capture(|c| &mut c.namespace),
        "{name}" => Part::Capture(|c| &mut c.name),
        "{subresource}" => Part::Capture(|c| &mut c.subresource),
        "{rest}" => Part::Rest,
        literal => Part::Literal(literal),
    };
    pattern.split('/').filter(|text| !text.is_empty()).map(part).collect()
}

/// The route of a path and what it captures; `None` when there is none.
pub(crate) fn find(segments: &[String]) -> Option<(&'static Route, Captures)> {
    let (parts, route) = PARSED.iter().find(|(parts, _)| fits(parts, segments))?;
    let mut captures = Captures::default();
    for (at, part) in parts.iter().enumerate() {
        match part {
            Part::Literal(_) => {}
            Part::Capture(place) => place(&mut captures).clone_from(&segments[at]),
            Part::Rest => captures.rest = segments[at..].join("/"),
        }
    }
    if route.policy == Policy::Resource {
        complete(route, &mut captures);
    }
    Some((route, captures))
}

/// What is said of a path behind which there is nothing. Where a part of the API begins, its router says so; elsewhere, custom
/// resources included, upstream comes to the end of its servers, which know of no API.
pub(crate) fn nothing_at(path: &str) -> Status {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let is_routed = match segments.as_slice() {
        ["api" | "version", ..] | ["openid", "v1", "jwks", ..] | [".well-known", "openid-configuration", ..] => true,
        ["apis", group, ..] => is_builtin(group),
        _ => false,
    };
    if is_routed { Status::no_such_path() } else { Status::no_such_page() }
}

fn is_builtin(group: &str) -> bool {
    KindTable::builtin().kinds().any(|kind| kind.served && *kind.gvk.group == *group)
}

/// `namespaces` is a resource whose objects lie in themselves, as far as authorization goes.
fn complete(route: &Route, captures: &mut Captures) {
    if route.pattern.ends_with("/namespaces/{name}/status") || route.pattern.ends_with("/namespaces/{name}/finalize") {
        captures.resource = "namespaces".into();
        captures.subresource = route.pattern.rsplit('/').next().unwrap_or_default().into();
    }
    if captures.resource == "namespaces" && captures.group.is_empty() {
        captures.namespace.clone_from(&captures.name);
    }
}

fn fits(parts: &[Part], segments: &[String]) -> bool {
    let open = matches!(parts.last(), Some(Part::Rest));
    let length = if open { segments.len() >= parts.len() } else { segments.len() == parts.len() };
    length
        && parts.iter().zip(segments).all(|(part, segment)| match part {
            Part::Literal(text) => text == segment,
            Part::Capture(_) | Part::Rest => true,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> Option<(Endpoint, Captures)> {
        let segments: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        find(&segments).map(|(route, captures)| (route.endpoint, captures))
    }

    #[test]
    fn paths_find_their_routes() {
        let captures = |group: &str, resource: &str, namespace: &str, name: &str, subresource: &str| Captures {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            subresource: subresource.into(),
            rest: String::new(),
            watched: None,
        };
        for (path, endpoint, expected) in [
            ("/api/v1/pods", Endpoint::Collection, captures("", "pods", "", "", "")),
            ("/api/v1/namespaces", Endpoint::Collection, captures("", "namespaces", "", "", "")),
            ("/api/v1/namespaces/a", Endpoint::Object, captures("", "namespaces", "a", "a", "")),
            ("/api/v1/namespaces/a/status", Endpoint::Subresource, captures("", "namespaces", "a", "a", "status")),
            ("/api/v1/namespaces/a/finalize", Endpoint::Subresource, captures("", "namespaces", "a", "a", "finalize")),
            ("/api/v1/namespaces/a/pods", Endpoint::Collection, captures("", "pods", "a", "", "")),
            ("/api/v1/namespaces/a/pods/p", Endpoint::Object, captures("", "pods", "a", "p", "")),
            ("/api/v1/namespaces/a/pods/p/log", Endpoint::Subresource, captures("", "pods", "a", "p", "log")),
            ("/api/v1/nodes/n/status", Endpoint::Subresource, captures("", "nodes", "", "n", "status")),
            (
                "/apis/apps/v1/namespaces/a/deployments/d",
                Endpoint::Object,
                captures("apps", "deployments", "a", "d", ""),
            ),
            (
                "/apis/tenancy.kcp.io/v1/workspaces/w",
                Endpoint::Object,
                captures("tenancy.kcp.io", "workspaces", "", "w", ""),
            ),
        ] {
            assert_eq!(at(path), Some((endpoint, expected)), "{path}");
        }
        let proxied = at("/api/v1/namespaces/a/pods/p/proxy/x/y").unwrap().1;
        assert_eq!((proxied.subresource.as_str(), proxied.rest.as_str()), ("proxy", "x/y"));
        assert_eq!(at("/clusters"), None);
        assert_eq!(at("/apis/a/b/c/d/e/f/g/h"), None);
    }

    #[test]
    fn only_the_router_of_the_api_tells_of_nothing_with_an_object() {
        for (path, is_plain) in [
            ("/nothing", true),
            ("/livez/nothing", true),
            ("/openapi/v2/nothing", true),
            ("/apis/nothing.example.com", true),
            ("/apis/nothing.example.com/v1/things/a", true),
            ("/apis/internal.apiserver.k8s.io/v1alpha1", true),
            ("/apis/apps2/v1", true),
            ("/apis/apps/v9", false),
            ("/apis/apps/v1/nothing", false),
            ("/apis/apps/v1/a/b/c/d/e/f", false),
            ("/apis/portolan.dev/v9", false),
            ("/api/v9", false),
            ("/version/nothing", false),
            ("/openid/v1/jwks/nothing", false),
            ("/openid/v1", true),
            ("/.well-known/openid-configuration/nothing", false),
        ] {
            assert_eq!(nothing_at(path).is_plain(), is_plain, "{path}");
        }
    }
}
