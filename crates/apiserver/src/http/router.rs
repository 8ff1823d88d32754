//! Outer router. Probes, metrics, version and the keys of service account tokens are its routes; its fallback is the
//! pipeline of Kubernetes' API. Routes run behind the same stages of the pipeline, and the closed table of routes
//! holds their policies, so that none is reached without authorization.

use std::sync::{Arc, LazyLock};

use axum::{Router, routing::any};
use futures::future::Either;
use http::{Request, Response, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use portolan_types::agent::{CERTIFICATE_PATH, TUNNEL_PATH};
use tower::ServiceExt as _;

use crate::{
    ApiServer, Body,
    authn::Peer,
    pipeline::{self, RequestBody},
    routing::path::UrlPath,
};

use super::{
    agents, console, console_sign_in, openid, probes,
    routed::{ArrivedRequest, PipelineLayer, PipelineRoute, into_answer},
};

/// First segments of the paths of routes.
const FIRST_SEGMENTS: [&str; 10] = [
    "livez",
    "readyz",
    "healthz",
    "version",
    "metrics",
    "openid",
    ".well-known",
    "portolan",
    "portolan.tunnel.v1.Tunnel",
    console::SEGMENT,
];
/// Characters of a segment that are encoded for the router.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Router of all requests. Any method reaches a route: kube-apiserver's order of refusals decides, not the router's.
static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    Router::new()
        .route("/livez", any(probes::health))
        .route("/livez/{name}", any(probes::health))
        .route("/readyz", any(probes::health))
        .route("/readyz/{name}", any(probes::health))
        .route("/healthz", any(probes::health))
        .route("/healthz/{name}", any(probes::health))
        .route("/version", any(probes::version))
        .route("/metrics", any(probes::metrics))
        .route("/metrics/slis", any(probes::health_metrics))
        .route("/openid/v1/jwks", any(openid::jwks))
        .route("/.well-known/openid-configuration", any(openid::configuration))
        .route(CERTIFICATE_PATH, any(agents::certificate))
        .route(TUNNEL_PATH, any(agents::tunnel))
        .route("/ui", any(console::page))
        .route("/ui/settings", any(console::settings))
        .route("/ui/session", any(console::session))
        .route("/ui/link", any(console::link))
        .route("/ui/oidc/start", any(console_sign_in::start))
        .route("/ui/oidc/callback", any(console_sign_in::callback))
        .route("/ui/{*rest}", any(console::page))
        .route_layer(PipelineLayer)
        .fallback_service(PipelineRoute::kubernetes())
});

/// Answers a request. Paths that begin like no route skip the router, which costs a look at their first segment.
pub(crate) fn answer(
    api: Arc<ApiServer>,
    peer: Peer,
    request: Request<RequestBody>,
) -> impl Future<Output = Response<Body>> + Send {
    let (peer, request) = console::forwarded(peer, request);
    let routed = routed_uri(request.uri().path());
    // A session of the console reaches Kubernetes' API, and none of the console's own routes.
    match routed.filter(|uri| !matches!(peer, Peer::Console) || !console::is_own(uri.path())) {
        None => Either::Left(pipeline::answer(api, peer, request)),
        Some(uri) => Either::Right(Box::pin(route(api, peer, request, uri))),
    }
}

async fn route(api: Arc<ApiServer>, peer: Peer, request: Request<RequestBody>, routed: Uri) -> Response<Body> {
    let mut request = request.map(axum::body::Body::new);
    let uri = std::mem::replace(request.uri_mut(), routed);
    request.extensions_mut().insert(ArrivedRequest { api, peer, uri });
    let Ok(response) = ROUTER.clone().oneshot(request).await;
    into_answer(response)
}

/// Returns the normalized path within the logical cluster, if it may be that of a route.
fn routed_uri(path: &str) -> Option<Uri> {
    let mut segments = path.split('/').skip(1);
    let first = match segments.next() {
        Some("clusters") => segments.nth(1),
        // Below a flattened view.
        Some("services") => segments.nth(3),
        first => first,
    }?;
    let may_be_routed = |segment: &str| FIRST_SEGMENTS.contains(&segment);
    if !may_be_routed(first) && !path.contains('%') {
        return None;
    }
    let parsed = UrlPath::parse(path).ok()?;
    parsed.segments.first().filter(|first| may_be_routed(first))?;
    let encoded: String =
        parsed.segments.iter().map(|segment| format!("/{}", utf8_percent_encode(segment, ENCODED))).collect();
    encoded.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_routes_are_normalized() {
        for (path, expected) in [
            ("/livez", Some("/livez")),
            ("/livez/", Some("/livez")),
            ("/%6civez", Some("/livez")),
            ("/clusters/root/version", Some("/version")),
            ("/clusters/root%3Aa/version/", Some("/version")),
            ("/clusters/*/metrics/slis", Some("/metrics/slis")),
            ("/.well-known/openid-configuration", Some("/.well-known/openid-configuration")),
            ("/healthz/a%20b", Some("/healthz/a%20b")),
            ("/version/nothing", Some("/version/nothing")),
            ("/api/v1/namespaces", None),
            ("/clusters/root/api", None),
            ("/clusters/livez", None),
            ("/livez//ping", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(routed_uri(path).as_ref().map(Uri::path), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn the_router_adds_nothing_to_responses() {
        let config = crate::ApiServerConfig::in_memory(portolan_types::Seams::system());
        let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
        let masters = portolan_strategy::rbac::MASTERS;
        let admin = crate::User { name: "admin".into(), groups: vec![masters.into()], ..crate::User::default() };
        let peer = Peer::InProcess(Arc::new(crate::authn::Identity::global(admin)));
        for (path, code) in [
            ("/livez", 200),
            ("/readyz/ping", 200),
            ("/version/", 200),
            ("/metrics", 200),
            ("/metrics/slis", 200),
            ("/clusters/root/openid/v1/jwks", 200),
            ("/.well-known/openid-configuration", 200),
            ("/livez/nothing", 404),
            ("/version/nothing", 404),
            ("/clusters/root:nothing/openid/v1/jwks", 404),
        ] {
            for method in ["GET", "HEAD", "POST", "OPTIONS"] {
                let request = Request::builder().method(method).uri(path);
                let request = request.body(pipeline::boxed_body(http_body_util::Empty::<bytes::Bytes>::new())).unwrap();
                let response = answer(api.clone(), peer.clone(), request).await;
                if method == "GET" {
                    assert_eq!(response.status().as_u16(), code, "{path}");
                }
                for name in ["allow", "content-length"] {
                    assert_eq!(response.headers().get(name), None, "{method} {path}");
                }
            }
        }
    }
}
