//! Closed table of routes. A request reaches a handler only through this table and the pipeline.

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use portolan_kinds::KindTable;
use portolan_types::{
    Status,
    agent::{CERTIFICATE_PATH, TUNNEL_PATH},
};

/// Endpoint of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RouteEndpoint {
    /// `/`: the paths that are served.
    Index,
    /// `/livez` and its single checks.
    Livez,
    /// `/readyz` and its single checks.
    Readyz,
    /// `/healthz` and its single checks.
    Healthz,
    /// `/version`.
    Version,
    /// `/metrics`.
    Metrics,
    /// `/metrics/slis`: metrics of health checks only.
    HealthMetrics,
    /// `/snapshot`: the whole store.
    Snapshot,
    /// Public keys of service account tokens.
    Jwks,
    /// OpenID discovery of the issuer of service account tokens.
    OpenIdConfiguration,
    /// Certificate of an agent.
    AgentCertificate,
    /// Tunnel of an agent.
    AgentTunnel,
    /// Page of the console, or a file of it.
    ConsolePage,
    /// Ways to sign in to the console.
    ConsoleSettings,
    /// Session of the console: sign-in and sign-out.
    ConsoleSession,
    /// One-time link to a session of the console.
    ConsoleLink,
    /// Sign-in to the console at an issuer.
    ConsoleSignIn,
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
    /// Resource: list, watch, create, deletecollection.
    Collection,
    /// Object: get, update, patch, delete.
    Object,
    /// Subresource of an object.
    Subresource,
}

impl RouteEndpoint {
    /// Returns true for endpoints that describe kinds: discovery of groups and versions, and OpenAPI.
    pub(crate) fn describes_kinds(self) -> bool {
        matches!(
            self,
            Self::Groups
                | Self::Group
                | Self::GroupVersion
                | Self::OpenApiIndex
                | Self::OpenApiDocument
                | Self::OpenApiV2
        )
    }

    /// Returns true for endpoints that are routes of the outer router, and have no Kubernetes handler.
    pub(crate) fn is_outer(self) -> bool {
        matches!(
            self,
            Self::Livez
                | Self::Readyz
                | Self::Healthz
                | Self::Version
                | Self::Metrics
                | Self::HealthMetrics
                | Self::Jwks
                | Self::OpenIdConfiguration
                | Self::AgentCertificate
                | Self::AgentTunnel
                | Self::ConsolePage
                | Self::ConsoleSettings
                | Self::ConsoleSession
                | Self::ConsoleLink
                | Self::ConsoleSignIn
        )
    }
}

/// Authorization policy of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoutePolicy {
    /// The path is the same in all logical clusters, so none is resolved. The RBAC bindings of root decide.
    Server,
    /// The RBAC bindings of the logical cluster decide on the path.
    Path,
    /// The RBAC bindings of the logical cluster decide on the resource.
    Resource,
    /// Only agents may use the route, and no role changes that. An agent may use no other route.
    Agent,
    /// All clients but agents may use the route. Pages of the console and sign-in contain no data of tenants.
    Console,
}

/// Route of the API.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) pattern: &'static str,
    pub(crate) endpoint: RouteEndpoint,
    pub(crate) policy: RoutePolicy,
}

/// All routes. The first match wins.
pub(crate) static ROUTES: &[Route] = &[
    route("/", RouteEndpoint::Index, RoutePolicy::Path),
    route("/livez", RouteEndpoint::Livez, RoutePolicy::Server),
    route("/livez/{name}", RouteEndpoint::Livez, RoutePolicy::Server),
    route("/readyz", RouteEndpoint::Readyz, RoutePolicy::Server),
    route("/readyz/{name}", RouteEndpoint::Readyz, RoutePolicy::Server),
    route("/healthz", RouteEndpoint::Healthz, RoutePolicy::Server),
    route("/healthz/{name}", RouteEndpoint::Healthz, RoutePolicy::Server),
    route("/version", RouteEndpoint::Version, RoutePolicy::Server),
    route("/metrics", RouteEndpoint::Metrics, RoutePolicy::Server),
    route("/metrics/slis", RouteEndpoint::HealthMetrics, RoutePolicy::Server),
    route("/snapshot", RouteEndpoint::Snapshot, RoutePolicy::Server),
    route("/openid/v1/jwks", RouteEndpoint::Jwks, RoutePolicy::Path),
    route("/.well-known/openid-configuration", RouteEndpoint::OpenIdConfiguration, RoutePolicy::Path),
    route(CERTIFICATE_PATH, RouteEndpoint::AgentCertificate, RoutePolicy::Agent),
    route(TUNNEL_PATH, RouteEndpoint::AgentTunnel, RoutePolicy::Agent),
    route("/ui", RouteEndpoint::ConsolePage, RoutePolicy::Console),
    route("/ui/settings", RouteEndpoint::ConsoleSettings, RoutePolicy::Console),
    route("/ui/session", RouteEndpoint::ConsoleSession, RoutePolicy::Console),
    route("/ui/link", RouteEndpoint::ConsoleLink, RoutePolicy::Console),
    route("/ui/oidc/start", RouteEndpoint::ConsoleSignIn, RoutePolicy::Console),
    route("/ui/oidc/callback", RouteEndpoint::ConsoleSignIn, RoutePolicy::Console),
    route("/ui/{rest}", RouteEndpoint::ConsolePage, RoutePolicy::Console),
    route("/openapi/v3", RouteEndpoint::OpenApiIndex, RoutePolicy::Path),
    route("/openapi/v3/{rest}", RouteEndpoint::OpenApiDocument, RoutePolicy::Path),
    route("/openapi/v2", RouteEndpoint::OpenApiV2, RoutePolicy::Path),
    route("/api", RouteEndpoint::Groups, RoutePolicy::Path),
    route("/api/{version}", RouteEndpoint::GroupVersion, RoutePolicy::Path),
    route("/api/{version}/namespaces/{name}/status", RouteEndpoint::Subresource, RoutePolicy::Resource),
    route("/api/{version}/namespaces/{name}/finalize", RouteEndpoint::Subresource, RoutePolicy::Resource),
    route("/api/{version}/{resource}", RouteEndpoint::Collection, RoutePolicy::Resource),
    route("/api/{version}/{resource}/{name}", RouteEndpoint::Object, RoutePolicy::Resource),
    route("/api/{version}/namespaces/{namespace}/{resource}", RouteEndpoint::Collection, RoutePolicy::Resource),
    route("/api/{version}/namespaces/{namespace}/{resource}/{name}", RouteEndpoint::Object, RoutePolicy::Resource),
    route(
        "/api/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}",
        RouteEndpoint::Subresource,
        RoutePolicy::Resource,
    ),
    route(
        "/api/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}/{rest}",
        RouteEndpoint::Subresource,
        RoutePolicy::Resource,
    ),
    route("/api/{version}/{resource}/{name}/{subresource}", RouteEndpoint::Subresource, RoutePolicy::Resource),
    route("/api/{version}/{resource}/{name}/{subresource}/{rest}", RouteEndpoint::Subresource, RoutePolicy::Resource),
    route("/apis", RouteEndpoint::Groups, RoutePolicy::Path),
    route("/apis/{group}", RouteEndpoint::Group, RoutePolicy::Path),
    route("/apis/{group}/{version}", RouteEndpoint::GroupVersion, RoutePolicy::Path),
    route("/apis/{group}/{version}/{resource}", RouteEndpoint::Collection, RoutePolicy::Resource),
    route("/apis/{group}/{version}/{resource}/{name}", RouteEndpoint::Object, RoutePolicy::Resource),
    route(
        "/apis/{group}/{version}/namespaces/{namespace}/{resource}",
        RouteEndpoint::Collection,
        RoutePolicy::Resource,
    ),
    route(
        "/apis/{group}/{version}/namespaces/{namespace}/{resource}/{name}",
        RouteEndpoint::Object,
        RoutePolicy::Resource,
    ),
    route(
        "/apis/{group}/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}",
        RouteEndpoint::Subresource,
        RoutePolicy::Resource,
    ),
    route("/apis/{group}/{version}/{resource}/{name}/{subresource}", RouteEndpoint::Subresource, RoutePolicy::Resource),
    route(PROXY_PATTERN, RouteEndpoint::Subresource, RoutePolicy::Resource),
];

/// Path below the `proxy` subresource of a cluster-scoped object.
const PROXY_PATTERN: &str = "/apis/{group}/{version}/{resource}/{name}/proxy/{rest}";

const fn route(pattern: &'static str, endpoint: RouteEndpoint, policy: RoutePolicy) -> Route {
    Route { pattern, endpoint, policy }
}

/// Form of a path to a physical cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProxyForm {
    /// The subresource `proxy`, also of pods and services.
    #[default]
    Subresource,
    /// A workspace that mounts the physical cluster.
    Mount,
    /// One of KubeSphere's paths, whose clients expect its own answers for clusters that cannot be reached.
    Alias,
}

/// Values of a route's placeholders; empty where it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captures {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) rest: String,
    /// Name of the object that is watched by an old path.
    pub(crate) watched: Option<String>,
    /// Form of the path, for a proxied request.
    pub(crate) form: ProxyForm,
}

enum PatternSegment {
    Literal(&'static str),
    Capture(fn(&mut Captures) -> &mut String),
    Rest,
}

static PARSED_ROUTES: LazyLock<Vec<(Vec<PatternSegment>, &'static Route)>> =
    LazyLock::new(|| ROUTES.iter().map(|route| (parts(route.pattern), route)).collect());

fn parts(pattern: &'static str) -> Vec<PatternSegment> {
    let part = |text: &'static str| match text {
        "{group}" => PatternSegment::Capture(|c| &mut c.group),
        "{version}" => PatternSegment::Capture(|c| &mut c.version),
        "{resource}" => PatternSegment::Capture(|c| &mut c.resource),
        "{namespace}" => PatternSegment::Capture(|c| &mut c.namespace),
        "{name}" => PatternSegment::Capture(|c| &mut c.name),
        "{subresource}" => PatternSegment::Capture(|c| &mut c.subresource),
        "{rest}" => PatternSegment::Rest,
        literal => PatternSegment::Literal(literal),
    };
    pattern.split('/').filter(|text| !text.is_empty()).map(part).collect()
}

/// Returns the route of a path and its captures; `None` when there is none.
pub(crate) fn find(segments: &[String]) -> Option<(&'static Route, Captures)> {
    let (parts, route) = PARSED_ROUTES.iter().find(|(parts, _)| fits(parts, segments))?;
    let mut captures = Captures::default();
    for (at, part) in parts.iter().enumerate() {
        match part {
            PatternSegment::Literal(_) => {}
            PatternSegment::Capture(place) => place(&mut captures).clone_from(&segments[at]),
            PatternSegment::Rest => captures.rest = segments[at..].join("/"),
        }
    }
    if route.policy == RoutePolicy::Resource {
        complete(route, &mut captures);
    }
    Some((route, captures))
}

/// Returns the 404 for a path without a route. Under the prefixes of the API it is the router's `Status`; elsewhere,
/// including groups of custom resources, it is the plain text of kube-apiserver's last handler.
pub(crate) fn not_found_at(path: &str) -> Status {
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

/// Completes captures that no placeholder has: a subresource that is part of the pattern, and the namespace of a
/// request for a Namespace. As in Kubernetes, authorization treats a Namespace as an object within itself.
fn complete(route: &Route, captures: &mut Captures) {
    if route.pattern.ends_with("/namespaces/{name}/status") || route.pattern.ends_with("/namespaces/{name}/finalize") {
        captures.resource = "namespaces".into();
        captures.subresource = route.pattern.rsplit('/').next().unwrap_or_default().into();
    }
    if route.pattern == PROXY_PATTERN {
        captures.subresource = "proxy".into();
    }
    if captures.resource == "namespaces" && captures.group.is_empty() {
        captures.namespace.clone_from(&captures.name);
    }
}

fn fits(parts: &[PatternSegment], segments: &[String]) -> bool {
    let open = matches!(parts.last(), Some(PatternSegment::Rest));
    let length = if open { segments.len() >= parts.len() } else { segments.len() == parts.len() };
    length
        && parts.iter().zip(segments).all(|(part, segment)| match part {
            PatternSegment::Literal(text) => text == segment,
            PatternSegment::Capture(_) | PatternSegment::Rest => true,
        })
}
