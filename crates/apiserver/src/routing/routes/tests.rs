//! Tests of the route table.

use super::*;

fn at(path: &str) -> Option<(RouteEndpoint, Captures)> {
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
        form: ProxyForm::Subresource,
    };
    for (path, endpoint, expected) in [
        ("/api/v1/pods", RouteEndpoint::Collection, captures("", "pods", "", "", "")),
        ("/api/v1/namespaces", RouteEndpoint::Collection, captures("", "namespaces", "", "", "")),
        ("/api/v1/namespaces/a", RouteEndpoint::Object, captures("", "namespaces", "a", "a", "")),
        ("/api/v1/namespaces/a/status", RouteEndpoint::Subresource, captures("", "namespaces", "a", "a", "status")),
        ("/api/v1/namespaces/a/finalize", RouteEndpoint::Subresource, captures("", "namespaces", "a", "a", "finalize")),
        ("/api/v1/namespaces/a/pods", RouteEndpoint::Collection, captures("", "pods", "a", "", "")),
        ("/api/v1/namespaces/a/pods/p", RouteEndpoint::Object, captures("", "pods", "a", "p", "")),
        ("/api/v1/namespaces/a/pods/p/log", RouteEndpoint::Subresource, captures("", "pods", "a", "p", "log")),
        ("/api/v1/nodes/n/status", RouteEndpoint::Subresource, captures("", "nodes", "", "n", "status")),
        (
            "/apis/apps/v1/namespaces/a/deployments/d",
            RouteEndpoint::Object,
            captures("apps", "deployments", "a", "d", ""),
        ),
        (
            "/apis/tenancy.kcp.io/v1/workspaces/w",
            RouteEndpoint::Object,
            captures("tenancy.kcp.io", "workspaces", "", "w", ""),
        ),
    ] {
        assert_eq!(at(path), Some((endpoint, expected)), "{path}");
    }
    let proxied = at("/api/v1/namespaces/a/pods/p/proxy/x/y").unwrap().1;
    assert_eq!((proxied.subresource.as_str(), proxied.rest.as_str()), ("proxy", "x/y"));
    let member = at("/apis/portolan.dev/v1alpha1/physicalclusters/east/proxy/api/v1/pods").unwrap().1;
    let words = (member.resource.as_str(), member.name.as_str(), member.subresource.as_str(), member.rest.as_str());
    assert_eq!(words, ("physicalclusters", "east", "proxy", "api/v1/pods"));
    assert_eq!(at("/clusters"), None);
    assert_eq!(at("/apis/a/b/c/d/e/f/g/h"), None);
}

#[test]
fn only_paths_of_the_api_get_a_status_object() {
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
        assert_eq!(not_found_at(path).is_plain(), is_plain, "{path}");
    }
}
