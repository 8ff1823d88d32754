//! Every route is behind the pipeline.

use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_machinery::rbac::User;
use portolan_types::Seams;

use crate::{
    ApiServer, ApiServerConfig,
    authn::{Identity, Peer},
    routes::ROUTES,
};

/// What everybody may ask, in whatever way.
const ALWAYS: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// What nobody in particular may see.
const OPEN: &str = "/version";

fn filled(pattern: &str) -> String {
    let values = [
        ("{group}", "apps"),
        ("{version}", "v1"),
        ("{namespace}", "default"),
        ("{resource}", "pods"),
        ("{name}", "default"),
        ("{subresource}", "status"),
        ("{rest}", "x"),
    ];
    values.iter().fold(pattern.to_owned(), |path, (key, value)| path.replace(key, value))
}

#[tokio::test]
async fn no_route_answers_those_who_may_nothing() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let stranger = Identity::global(User { name: "eve".into(), ..User::default() });
    for route in ROUTES {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
            for (who, peer) in [
                ("an anonymous client", Peer::Connection(None)),
                ("a stranger", Peer::InProcess(std::sync::Arc::new(stranger.clone()))),
            ] {
                let request =
                    Request::builder().method(method).uri(filled(route.pattern)).body(Full::default()).unwrap();
                let answer = super::answer(api.clone(), peer, request).await;
                let open = ALWAYS.contains(&route.pattern)
                    || (route.pattern == OPEN && method == "GET" && who == "an anonymous client");
                let code = answer.status().as_u16();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                match open {
                    true => assert_eq!(code, 200, "{who}: {method} {}", route.pattern),
                    false => {
                        assert_eq!(code, 403, "{who}: {method} {}", route.pattern);
                        if method == "HEAD" {
                            assert!(body.is_empty());
                            continue;
                        }
                        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
                        assert_eq!(status["kind"], "Status");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn unknown_paths_are_not_told_from_forbidden_ones() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    for path in ["/debug/pprof", "/clusters/root/x", "/apis/a/b/c/d/e/f/g/h/i"] {
        let request = Request::get(path).body(Full::default()).unwrap();
        assert_eq!(super::answer(api.clone(), Peer::Connection(None), request).await.status().as_u16(), 403, "{path}");
    }
}

/// Every request is moved about as its future before it runs, and takes memory while it waits.
#[tokio::test]
async fn a_request_takes_little_room_while_it_waits() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let request = Request::get("/api").body(Full::new(bytes::Bytes::new())).unwrap();
    let size = std::mem::size_of_val(&super::answer(api, Peer::Connection(None), request));
    assert!(size < 6 * 1024, "{size} bytes; box what a handler keeps (handlers/mod.rs)");
}
