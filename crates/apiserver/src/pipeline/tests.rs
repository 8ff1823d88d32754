//! Every route is behind the pipeline.

use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_strategy::rbac::User;
use portolan_types::Seams;

use crate::{
    ApiServer, ApiServerConfig,
    authn::{Identity, Peer},
    routing::routes::{ROUTES, RoutePolicy},
};

/// Paths that need no authorization, with any method.
const ALWAYS: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// Path that every authenticated user may read.
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
async fn every_route_refuses_users_without_rights() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let stranger = Identity::global(User { name: "eve".into(), ..User::default() });
    for route in ROUTES.iter().filter(|route| route.policy != RoutePolicy::Console) {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
            for (who, peer) in [
                ("an anonymous client", Peer::Connection(None)),
                ("a stranger", Peer::InProcess(std::sync::Arc::new(stranger.clone()))),
            ] {
                let request =
                    Request::builder().method(method).uri(filled(route.pattern)).body(Full::default()).unwrap();
                let answer = crate::http::answer(api.clone(), peer, request.map(super::boxed_body)).await;
                let open = ALWAYS.contains(&route.pattern)
                    || (route.pattern == OPEN && method == "GET" && who == "an anonymous client");
                let code = answer.status().as_u16();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                if open {
                    assert_eq!(code, 200, "{who}: {method} {}", route.pattern)
                } else {
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

/// The console's own routes need no role, so each is listed here with what a client without any gets.
#[tokio::test]
async fn the_routes_of_the_console_give_strangers_pages_and_sign_in_only() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let own: Vec<&str> =
        ROUTES.iter().filter(|route| route.policy == RoutePolicy::Console).map(|route| route.pattern).collect();
    let expected =
        ["/ui", "/ui/settings", "/ui/session", "/ui/link", "/ui/oidc/start", "/ui/oidc/callback", "/ui/{rest}"];
    assert_eq!(own, expected);
    let stranger = Identity::global(User { name: "eve".into(), ..User::default() });
    for (method, path, anonymous, authenticated) in [
        ("GET", "/ui", 404, 404),
        ("GET", "/ui/app.js", 404, 404),
        ("PUT", "/ui/app.js", 405, 405),
        ("GET", "/ui/settings", 200, 200),
        ("POST", "/ui/settings", 405, 405),
        ("POST", "/ui/session", 403, 403),
        ("DELETE", "/ui/session", 403, 403),
        ("PUT", "/ui/session", 405, 405),
        ("POST", "/ui/link", 403, 404),
        ("GET", "/ui/link", 403, 405),
        ("GET", "/ui/oidc/start", 404, 404),
        ("GET", "/ui/oidc/callback", 303, 303),
        ("POST", "/ui/oidc/callback", 405, 405),
        ("GET", "/ui/api/api/v1/pods", 403, 403),
        ("POST", "/ui/api/ui/link", 403, 403),
    ] {
        for (peer, code) in [
            (Peer::Connection(None), anonymous),
            (Peer::InProcess(std::sync::Arc::new(stranger.clone())), authenticated),
        ] {
            assert_eq!(code_of(&api, &peer, method, path).await, code, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn unknown_and_forbidden_paths_look_alike() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    for path in ["/debug/pprof", "/clusters/root/x", "/apis/a/b/c/d/e/f/g/h/i"] {
        let request = Request::get(path).body(Full::default()).unwrap();
        assert_eq!(
            super::answer(api.clone(), Peer::Connection(None), request.map(super::boxed_body)).await.status().as_u16(),
            403,
            "{path}"
        );
    }
}

/// Every request is moved as a future before it runs, and occupies memory while it waits.
#[tokio::test]
async fn a_request_takes_little_room_while_it_waits() {
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let request = Request::get("/api").body(Full::new(bytes::Bytes::new())).unwrap();
    let size = std::mem::size_of_val(&super::answer(api, Peer::Connection(None), request.map(super::boxed_body)));
    assert!(size < 6 * 1024, "{size} bytes; box what a handler keeps (handlers/mod.rs)");
}

/// Returns the identity of an agent, by a certificate or by a bootstrap token.
fn agent(group: &str) -> Peer {
    let user = User {
        name: "system:portolan:agent:root:east".into(),
        uid: "u-1".into(),
        groups: vec![group.into(), "system:authenticated".into()],
        ..User::default()
    };
    Peer::Connection(Some(std::sync::Arc::new(user)))
}

async fn code_of(api: &std::sync::Arc<ApiServer>, peer: &Peer, method: &str, path: &str) -> u16 {
    let request = Request::builder().method(method).uri(path).body(Full::default()).unwrap();
    crate::http::answer(api.clone(), peer.clone(), request.map(super::boxed_body)).await.status().as_u16()
}

#[tokio::test]
async fn an_agent_reaches_its_own_routes_and_nothing_else() {
    use portolan_types::agent::{AGENT_BOOTSTRAPPERS, AGENTS, CERTIFICATE_PATH, TUNNEL_PATH};
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    // Roles that are bound to agents by mistake, and to everybody, change nothing.
    let admin = User { name: "a".into(), groups: vec!["system:masters".into()], ..User::default() };
    let admin = Peer::InProcess(std::sync::Arc::new(Identity::global(admin)));
    let subjects = [AGENTS, AGENT_BOOTSTRAPPERS, "system:authenticated"]
        .map(|group| serde_json::json!({"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}));
    let binding = serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "all"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let physical = serde_json::json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": "east"}, "spec": {"connection": {"tunnel": {}}}});
    for (path, object) in [
        ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
        ("/apis/portolan.dev/v1alpha1/physicalclusters", physical),
    ] {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Full::from(object.to_string())).unwrap();
        let answer = crate::http::answer(api.clone(), admin.clone(), request.map(super::boxed_body)).await;
        assert_eq!(answer.status().as_u16(), 201, "{path}");
    }
    let others = ["/", "/clusters/root:x/api", "/clusters/*/api/v1/pods", "/apis/a/b/c/d/e/f/g", "/debug"];
    let paths: Vec<String> =
        ROUTES.iter().map(|route| filled(route.pattern)).chain(others.map(str::to_owned)).collect();
    for (who, group) in [("a certificate", AGENTS), ("a bootstrap token", AGENT_BOOTSTRAPPERS)] {
        for path in &paths {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
                let code = code_of(&api, &agent(group), method, path).await;
                let is_own = method == "POST" && (path == CERTIFICATE_PATH || (path == TUNNEL_PATH && group == AGENTS));
                // Behind the authorization it turns out that the uid is another one.
                let expected: &[u16] = if is_own { &[400, 403] } else { &[403] };
                assert!(expected.contains(&code), "{who}: {method} {path}: {code}");
            }
        }
    }
    for peer in [admin, Peer::Connection(None)] {
        for path in [CERTIFICATE_PATH, TUNNEL_PATH] {
            assert_eq!(code_of(&api, &peer, "POST", path).await, 403, "{path} is for agents only");
        }
    }
}

#[tokio::test]
async fn a_bootstrap_token_leads_to_one_certificate_of_its_own_agent() {
    use portolan_types::agent::{AgentId, CERTIFICATE_PATH};
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let admin = User { name: "a".into(), groups: vec!["system:masters".into()], ..User::default() };
    let admin = Peer::InProcess(std::sync::Arc::new(Identity::global(admin)));
    let send = async |peer: &Peer, path: &str, bearer: Option<&str>, body: serde_json::Value| {
        let mut request = Request::post(path).header("content-type", "application/json");
        if let Some(bearer) = bearer {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let request = request.body(Full::from(body.to_string())).unwrap();
        let answer = crate::http::answer(api.clone(), peer.clone(), request.map(super::boxed_body)).await;
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice::<serde_json::Value>(&bytes).unwrap_or_default())
    };
    const CLUSTERS: &str = "/apis/portolan.dev/v1alpha1/physicalclusters";
    let physical = serde_json::json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": "east"}, "spec": {"connection": {"tunnel": {}}}});
    let (_, physical) = send(&admin, CLUSTERS, None, physical).await;
    let uid = physical["metadata"]["uid"].as_str().unwrap();
    let asked = serde_json::json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let (code, token) = send(&admin, &format!("{CLUSTERS}/east/token"), None, asked.clone()).await;
    assert_eq!(code, 201, "{token}");
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    assert!(token.starts_with(&format!("portolan-agent_{uid}_")), "{token}");
    for (path, body, expected) in [
        (format!("{CLUSTERS}/west/token"), asked.clone(), 404),
        (format!("{CLUSTERS}/east/token"), serde_json::json!({"spec": {"audiences": [], "expirationSeconds": 5}}), 422),
    ] {
        assert_eq!(send(&admin, &path, None, body).await.0, expected, "{path}");
    }
    let anonymous = Peer::Connection(None);
    let request = || {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let key = rcgen::KeyPair::generate().unwrap();
        serde_json::json!({"request": params.serialize_request(&key).unwrap().pem().unwrap()})
    };
    let (mine, thiefs) = (request(), request());
    for (case, bearer, body, expected) in [
        ("a wrong token", Some("portolan-agent_x_y"), &mine, 401),
        ("no token", None, &mine, 403),
        ("no request", Some(token.as_str()), &serde_json::json!({}), 400),
        ("the first key", Some(token.as_str()), &mine, 201),
        ("the first key again, since the answer was lost", Some(token.as_str()), &mine, 201),
        ("another key", Some(token.as_str()), &thiefs, 401),
    ] {
        let (code, answer) = send(&anonymous, CERTIFICATE_PATH, bearer, body.clone()).await;
        assert_eq!(code, expected, "{case}: {answer}");
        if code == 201 {
            let der = crate::pki::certificates(answer["certificate"].as_str().unwrap()).unwrap();
            let user = crate::authn::user_of_certificate(&der[0]).unwrap();
            let id = AgentId::of_user(&user.name, &user.uid).unwrap();
            assert_eq!((id.name.as_str(), id.uid.as_str()), ("east", uid));
            // The certificate renews itself, with another key.
            let peer = Peer::Connection(Some(std::sync::Arc::new(user)));
            assert_eq!(send(&peer, CERTIFICATE_PATH, None, request()).await.0, 201);
        }
    }
}

/// Requests of a tenant's agents wait and count with those of its users, not with the administrator's in root.
#[tokio::test]
async fn an_agent_is_charged_to_the_workspace_of_its_physical_cluster() {
    use portolan_types::{
        LogicalClusterId,
        agent::{AGENT_BOOTSTRAPPERS, AGENTS, AgentId, CERTIFICATE_PATH},
    };
    let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    let admin = User { name: "a".into(), groups: vec!["system:masters".into()], ..User::default() };
    let admin = Peer::InProcess(std::sync::Arc::new(Identity::global(admin)));
    let workspace =
        serde_json::json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "team"}});
    let request = Request::post("/apis/tenancy.kcp.io/v1alpha1/workspaces").header("content-type", "application/json");
    let request = request.body(Full::from(workspace.to_string())).unwrap();
    assert_eq!(crate::http::answer(api.clone(), admin, request.map(super::boxed_body)).await.status().as_u16(), 201);
    let path = crate::routing::path::RequestedCluster::Path("root:team".parse().unwrap());
    let team = api.directory().resolve(&path, None).expect("a workspace is there at once").id;
    let gone = LogicalClusterId::new(team.get() + 1);
    for (workspace, group, charged) in [
        (team, AGENTS, team),
        (team, AGENT_BOOTSTRAPPERS, team),
        (LogicalClusterId::ROOT, AGENTS, LogicalClusterId::ROOT),
        (gone, AGENTS, LogicalClusterId::ROOT),
    ] {
        let agent = AgentId { workspace, name: "east".parse().unwrap(), uid: "u-1".parse().unwrap() };
        let (name, uid) = (agent.user_name(), agent.uid.to_string());
        let identity = Identity::global(User { name, uid, groups: vec![group.into()], ..User::default() });
        let (mut parts, ()) = Request::post(CERTIFICATE_PATH).body(()).unwrap().into_parts();
        let head = super::head::parse_head(&parts).unwrap();
        let request = super::agents::AgentRequest::of(&head, &identity).unwrap();
        let admitted = request.authorize(api.directory(), head, identity, &mut parts.headers).unwrap();
        assert_eq!(
            (admitted.charged.id, admitted.cluster.id),
            (charged, LogicalClusterId::ROOT),
            "{workspace} {group}"
        );
    }
}
