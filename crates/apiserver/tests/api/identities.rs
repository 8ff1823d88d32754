//! Identities and authorization from outside: certificates of other authorities, front proxies, webhooks.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use portolan_apiserver::{
    ApiServer, ApiServerConfig,
    config::{AccessConfig, CertificateFiles, RequestHeaderConfig, ServingConfig, TokenWebhookConfig},
    http::answer_connection,
};
use portolan_types::Seams;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::common::{MAPS, Plane, Reply, WebhookServer};

const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn kubeconfig(folder: &Path, hook: &WebhookServer, path: &str) -> PathBuf {
    let client = hook.client(path);
    let cluster = json!({"server": client["url"], "certificate-authority-data": client["caBundle"]});
    let text = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}], "users": [{"name": "u", "user": {}}],
    });
    let file = folder.join(format!("{}.kubeconfig", path.trim_matches('/')));
    std::fs::write(&file, text.to_string()).unwrap();
    file
}

async fn get(plane: &Plane, path: &str, token: &str) -> u16 {
    let request = Request::get(format!("/clusters/root{path}")).header("authorization", format!("Bearer {token}"));
    let request = request.body(Full::new(Bytes::new())).unwrap();
    answer_connection(plane.api.clone(), None, request).await.status().as_u16()
}

fn reply(status: &Value) -> Reply {
    Reply::Raw(200, Vec::new(), json!({"status": status}).to_string().into_bytes())
}

#[tokio::test]
async fn unknown_tokens_are_reviewed_by_the_webhook() {
    let folder = tempfile::tempdir().unwrap();
    let hook = WebhookServer::start(|_, review| match review["spec"]["token"].as_str().unwrap() {
        "t-bob" => reply(&json!({"authenticated": true, "user": {"username": "bob", "groups": ["system:masters"]}})),
        "t-agent" => {
            reply(&json!({"authenticated": true, "user": {"username": "x", "groups": ["system:portolan:agents"]}}))
        }
        "t-other" => reply(&json!({"authenticated": true, "user": {"username": "bob"}, "audiences": ["elsewhere"]})),
        "t-nameless" => reply(&json!({"authenticated": true})),
        "t-broken" => Reply::Raw(500, Vec::new(), Vec::new()),
        _ => reply(&json!({"authenticated": false})),
    })
    .await;
    let token_webhook =
        TokenWebhookConfig { kubeconfig: kubeconfig(folder.path(), &hook, "/tokens"), cache: Duration::from_secs(60) };
    let plane = Plane::with(|config| config.access.token_webhook = Some(token_webhook)).await;
    for (case, token, code) in [
        ("a token that it knows", "t-bob", 200),
        ("one that it does not know", "t-eve", 401),
        ("agents come from the own authority only", "t-agent", 401),
        ("a token for another audience", "t-other", 401),
        ("a user without a name", "t-nameless", 401),
        ("a failure", "t-broken", 401),
        ("a static token", "t-ann", 403),
    ] {
        assert_eq!(get(&plane, MAPS, token).await, code, "{case}");
    }
    let asked = hook.count("/tokens");
    assert_eq!((get(&plane, MAPS, "t-bob").await, get(&plane, MAPS, "t-eve").await), (200, 401));
    assert_eq!(hook.count("/tokens"), asked, "answers are remembered");
    let own = plane.admin().post("/api/v1/namespaces/default/serviceaccounts/default/token", json!({"spec": {}})).await;
    let own = own.expect(201).json()["status"]["token"].as_str().unwrap().to_owned();
    let cut = &own[..own.len() - 4];
    assert_eq!(
        (get(&plane, MAPS, cut).await, hook.count("/tokens")),
        (401, asked),
        "own tokens do not leave the server"
    );
}

#[tokio::test]
async fn webhooks_decide_before_and_after_the_roles() {
    let folder = tempfile::tempdir().unwrap();
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let hook = WebhookServer::start(move |path, review| {
        if down.load(Ordering::SeqCst) {
            return Reply::Raw(503, Vec::new(), Vec::new());
        }
        let (user, of) = (&review["spec"]["user"], &review["spec"]["resourceAttributes"]);
        match (path, user.as_str().unwrap()) {
            ("/before", "eve") => reply(&json!({"allowed": false, "denied": true, "reason": "eve is out"})),
            ("/after", "bob") if of["verb"] == "list" => reply(&json!({"allowed": true, "reason": "as a guest"})),
            _ => reply(&json!({"allowed": false})),
        }
    })
    .await;
    let webhook = |name: &str, policy: &str, condition: &str| {
        let file = kubeconfig(folder.path(), &hook, &format!("/{name}"));
        json!({"type": "Webhook", "name": name, "webhook": {
            "timeout": "3s", "unauthorizedTTL": "1ms", "authorizedTTL": "1ms", "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1", "failurePolicy": policy,
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": file},
            "matchConditions": [{"expression": condition}],
        }})
    };
    let authorizers = json!([
        webhook("before", "Deny", "has(request.resourceAttributes) && request.user != 'carl'"),
        {"type": "RBAC", "name": "rbac"},
        webhook("after", "NoOpinion", "true"),
    ]);
    let file = folder.path().join("authorization.yaml");
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
        "authorizers": authorizers});
    std::fs::write(&file, config.to_string()).unwrap();
    let plane = Plane::with(|config| config.access.authorization = Some(file)).await;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    for name in ["eve", "ann", "carl"] {
        let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
        let binding = json!({"metadata": {"name": name}, "subjects": [subject], "roleRef": role});
        plane.admin().post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    }
    for (case, user, path, code) in [
        ("a role allows", "ann", MAPS, 200),
        ("a webhook before it denies", "eve", MAPS, 403),
        ("a webhook after it allows", "bob", MAPS, 200),
        ("and has no opinion on other verbs", "bob", &format!("{MAPS}/x")[..], 403),
    ] {
        assert_eq!(plane.as_user(user).get(path).await.code, code, "{case}");
    }
    let denied = plane.as_user("eve").get(MAPS).await.message();
    assert!(denied.ends_with(": eve is out"), "{denied}");
    let review = hook.asked.lock().iter().rfind(|(path, _)| path == "/before").unwrap().1.clone();
    assert_eq!(review["spec"]["extra"]["authorization.kubernetes.io/cluster-name"].as_array().unwrap().len(), 1);
    let before = hook.asked.lock().len();
    plane.admin().get(MAPS).await.expect(200);
    assert_eq!(hook.asked.lock().len(), before, "administrators do not depend on webhooks");
    is_down.store(true, Ordering::SeqCst);
    tokio::time::timeout(Duration::from_secs(1), async {
        for (case, user, code) in
            [("failure policy Deny", "ann", 403), ("a request that the webhook is not concerned with", "carl", 200)]
        {
            assert_eq!(plane.as_user(user).get(&format!("{MAPS}?limit=1")).await.code, code, "{case}");
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_server_does_not_start_with_a_faulty_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("authorization.yaml");
    std::fs::write(&file, "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n").unwrap();
    let missing = folder.path().join("missing.pem");
    let suites = ServingConfig { cipher_suites: vec!["TLS_RSA_WITH_RC4_128_SHA".into()], ..ServingConfig::default() };
    for (case, access, words) in [
        ("authorization", AccessConfig { authorization: Some(file), ..AccessConfig::default() }, "at least one"),
        ("an authority", AccessConfig { client_ca: Some(missing), ..AccessConfig::default() }, "missing.pem"),
    ] {
        let config = ApiServerConfig { access, ..ApiServerConfig::in_memory(Seams::system()) };
        let why = ApiServer::new(portolan_store::memory(), config).await.err().unwrap().to_string();
        assert!(why.contains(words), "{case}: {why}");
    }
    let config = ApiServerConfig { serving: suites, ..ApiServerConfig::in_memory(Seams::system()) };
    let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let why = api.serve(listener, CancellationToken::new()).await.unwrap_err().to_string();
    assert!(why.contains("TLS_RSA_WITH_RC4_128_SHA") && why.contains("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), "{why}");
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns certificate and key, PEM.
    fn issue(&self, name: &str, sans: &[&str]) -> (String, String) {
        let sans: Vec<String> = sans.iter().map(|san| (*san).to_owned()).collect();
        let mut params = CertificateParams::new(sans).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Client of a served server.
#[derive(Clone, Copy)]
struct Dialer<'a> {
    address: SocketAddr,
    trusted: &'a str,
    server_name: &'a str,
    identity: Option<&'a (String, String)>,
    versions: &'a [&'static SupportedProtocolVersion],
}

impl Dialer<'_> {
    async fn connect(&self) -> std::io::Result<http1::SendRequest<Full<Bytes>>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusted.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(self.versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let socket = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(self.server_name.to_owned()).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Returns the user that the server sees, or its code.
    async fn whoami(&self, headers: &[(&str, &str)]) -> Result<String, u16> {
        let mut request = Request::post(format!("/clusters/root{WHOAMI}")).header("host", self.server_name);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.header("content-type", "application/json").body(Full::new(Bytes::from("{}"))).unwrap();
        let response = self.connect().await.unwrap().send_request(request).await.unwrap();
        let code = response.status().as_u16();
        let body: Value = serde_json::from_slice(&response.collect().await.unwrap().to_bytes()).unwrap();
        body["status"]["userInfo"]["username"].as_str().map(str::to_owned).ok_or(code)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_others_proxies_and_own_serving_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let [clients, proxies, public] = [Authority::new(), Authority::new(), Authority::new()];
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let serving = public.issue("public", &["plane.example.com", "agents.example.com"]);
    let mut config = ApiServerConfig::in_memory(Seams::system());
    config.tls_sans = vec!["agents.example.com".into()];
    config.serving = ServingConfig {
        files: Some(CertificateFiles { certificate: file("tls.crt", &serving.0), key: file("tls.key", &serving.1) }),
        only_tls13: true,
        cipher_suites: Vec::new(),
        external_url: None,
    };
    config.access.client_ca = Some(file("clients.crt", &clients.pem));
    config.access.request_header = Some(RequestHeaderConfig {
        client_ca: file("proxies.crt", &proxies.pem),
        allowed_names: vec!["front".into()],
        username_headers: vec!["X-Remote-User".into()],
        uid_headers: vec!["X-Remote-Uid".into()],
        group_headers: vec!["X-Remote-Group".into()],
        extra_prefixes: vec!["X-Remote-Extra-".into()],
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    config.bind_address = address;
    let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
    let (shutdown, own) = (CancellationToken::new(), api.pki().ca.clone());
    let task = tokio::spawn(api.serve(listener, shutdown.clone()));
    let dial = Dialer { address, trusted: &own, server_name: "127.0.0.1", identity: None, versions: &[&TLS13, &TLS12] };

    let forged = [("x-remote-user", "ann"), ("X_Remote_User", "ann"), ("x-remote-group", "system:masters")];
    let identities = [clients.issue("bob", &[]), proxies.issue("front", &[]), proxies.issue("back", &[])];
    for (case, identity, headers, expected) in [
        ("a certificate of another authority", Some(&identities[0]), &[][..], Ok("bob")),
        ("its holder is not a proxy", Some(&identities[0]), &forged[..], Ok("bob")),
        ("a proxy states its client", Some(&identities[1]), &forged[..], Ok("ann")),
        ("a proxy without a client is anonymous", Some(&identities[1]), &[], Err(403)),
        ("no other connection asserts a user", None, &forged, Err(403)),
    ] {
        let found = Dialer { identity, ..dial }.whoami(headers).await;
        assert_eq!(found.as_deref().map_err(|code| *code), expected, "{case}");
    }
    let back = Dialer { identity: Some(&identities[2]), ..dial };
    let request = Request::get("/version").body(Full::new(Bytes::new())).unwrap();
    let refused = match back.connect().await {
        Err(_) => true,
        Ok(mut sender) => sender.send_request(request).await.is_err(),
    };
    assert!(refused, "a proxy of another name gets no answer");

    for (case, server_name, trusted, is_good) in [
        ("the public name has the public certificate", "plane.example.com", &public.pem, true),
        ("an address has the own one", "127.0.0.1", &own, true),
        ("and so has a name of --tls-san", "agents.example.com", &own, true),
        ("the own authority has not signed the public one", "plane.example.com", &own, false),
    ] {
        assert_eq!(Dialer { server_name, trusted, ..dial }.connect().await.is_ok(), is_good, "{case}");
    }
    assert!(Dialer { versions: &[&TLS12], ..dial }.connect().await.is_err(), "TLS 1.2 is refused");

    let next = Authority::new();
    let renewed = next.issue("public", &["plane.example.com"]);
    file("tls.crt", &renewed.0);
    file("tls.key", &renewed.1);
    let dial = Dialer { server_name: "plane.example.com", trusted: &next.pem, ..dial };
    let replaced = async {
        while dial.connect().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), replaced).await.expect("the files are read again");
    shutdown.cancel();
    task.await.unwrap().unwrap();
}
