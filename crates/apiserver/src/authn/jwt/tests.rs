//! Tokens of a provider of our own, over TLS.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use jsonwebtoken::{EncodingKey, Header};
use rcgen::{KeyPair, PublicKeyData as _};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    config::{IssuerConfiguration, JwtConfiguration},
    routing::path::RequestedCluster,
};

const NOW: i64 = 1_800_000_000;
const AUDIENCE: &str = "portolan";

/// OpenID provider with one signing key.
struct Provider {
    url: String,
    ca: String,
    key: Arc<Mutex<(String, KeyPair)>>,
    /// Parameter of the key.
    parameter: Arc<Mutex<(&'static str, &'static str)>>,
    fetches: Arc<AtomicUsize>,
}

impl Provider {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let server_key = KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().self_signed(&server_key).unwrap();
        let private = rustls_pki_types::PrivateKeyDer::Pkcs8(server_key.serialize_der().into());
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate.der().clone()], private).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let key = Arc::new(Mutex::new(("first".to_owned(), KeyPair::generate().unwrap())));
        let parameter = Arc::new(Mutex::new(("use", "sig")));
        let fetches = Arc::new(AtomicUsize::new(0));
        let (shared, counted, own) = ((key.clone(), parameter.clone()), fetches.clone(), url.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(socket).await else { continue };
                let (shared, counted, own) = (shared.clone(), counted.clone(), own.clone());
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (shared, counted, own) = (shared.clone(), counted.clone(), own.clone());
                    async move {
                        let body = match request.uri().path() {
                            "/keys" => {
                                counted.fetch_add(1, Ordering::SeqCst);
                                keys_of(&shared.0.lock(), *shared.1.lock())
                            }
                            "/token" => {
                                let form = request.into_body().collect().await.unwrap().to_bytes();
                                token_for(&own, &shared.0.lock(), std::str::from_utf8(&form).unwrap())
                            }
                            _ => json!({
                                "issuer": own, "jwks_uri": format!("{own}/keys"), "token_endpoint": format!("{own}/token"),
                                "authorization_endpoint": format!("{own}/authorize?a=b"),
                                "scopes_supported": ["openid", "groups"],
                            }),
                        };
                        Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body.to_string()))))
                    }
                });
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { url, ca: certificate.pem(), key, parameter, fetches }
    }

    fn sign(&self, claims: &Value) -> String {
        signed(&self.key.lock(), claims)
    }

    /// Signs the usual claims of Ann with some others.
    fn token(&self, others: &Value) -> String {
        let mut claims = json!({
            "iss": self.url, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 60, "email": "ann@example.com",
            "groups": ["dev", "ops"],
        });
        for (name, value) in others.as_object().unwrap() {
            claims[name] = value.clone();
        }
        self.sign(&claims)
    }

    fn configuration(&self, rest: &Value) -> Vec<u8> {
        let mut jwt = json!({
            "issuer": {"url": self.url, "audiences": [AUDIENCE], "certificateAuthority": self.ca},
            "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}, "groups": {"claim": "groups", "prefix": "oidc:"}},
        });
        for (name, value) in rest.as_object().unwrap() {
            jwt[name] = value.clone();
        }
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [jwt]})
            .to_string()
            .into()
    }

    fn authenticators(&self, rest: &Value) -> JwtAuthenticators {
        let parsed = AuthenticationConfiguration::parse(&self.configuration(rest)).unwrap();
        let seams = Seams::seeded(1, jiff::Timestamp::from_second(NOW).unwrap());
        JwtAuthenticators::open(&AuthenticationSource::Fixed(Box::new(parsed)), "https://own", seams).unwrap()
    }
}

fn signed((id, pair): &(String, KeyPair), claims: &Value) -> String {
    let header = Header { kid: Some(id.clone()), ..Header::new(Algorithm::ES256) };
    let signing = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    jsonwebtoken::encode(&header, claims, &signing).unwrap()
}

/// Answers a code of the form `<challenge>.<nonce>` if the verifier matches the challenge.
fn token_for(own: &str, key: &(String, KeyPair), form: &str) -> Value {
    let field = |name: &str| form.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap();
    let (challenge, nonce) = field("code").split_once('.').unwrap();
    if URL_SAFE_NO_PAD.encode(Sha256::digest(field("code_verifier"))) != challenge {
        return json!({"error": "invalid_grant"});
    }
    let claims = json!({"iss": own, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 60, "nonce": nonce, "groups": []});
    json!({"id_token": signed(key, &claims), "token_type": "Bearer"})
}

fn keys_of((id, pair): &(String, KeyPair), (parameter, value): (&str, &str)) -> Value {
    let point = pair.der_bytes();
    let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
    json!({"keys": [{"kty": "unknown"}, {"kty": "EC", "crv": "P-256", "kid": id, "x": x, "y": y, parameter: value}]})
}

#[tokio::test]
async fn claims_become_a_user() {
    let provider = Provider::start().await;
    let expressions = json!({"claimMappings": {
        "username": {"expression": "claims.email_verified ? claims.email : claims.sub + '@unverified'"},
        "groups": {"expression": "claims.groups.map(g, 'corp-' + g)"},
        "uid": {"claim": "sub"},
        "extra": [{"key": "example.com/team", "valueExpression": "claims.?team.orValue('')"}],
    }});
    let user =
        |name: &str, groups: &[&str]| (name.to_owned(), groups.iter().map(ToString::to_string).collect::<Vec<_>>());
    let authenticated = "system:authenticated";
    for (case, rest, others, expected) in [
        ("claims with prefixes", json!({}), json!({}), user("oidc:ann", &["oidc:dev", "oidc:ops", authenticated])),
        ("one group as a text", json!({}), json!({"groups": "dev"}), user("oidc:ann", &["oidc:dev", authenticated])),
        ("no groups", json!({}), json!({"groups": null}), user("oidc:ann", &[authenticated])),
        (
            "expressions",
            expressions.clone(),
            json!({"email_verified": false, "groups": ["a", "a"]}),
            user("ann@unverified", &["corp-a", authenticated]),
        ),
        (
            "several audiences",
            json!({}),
            json!({"aud": ["x", AUDIENCE], "groups": []}),
            user("oidc:ann", &[authenticated]),
        ),
    ] {
        let found = provider.authenticators(&rest).verify(&provider.token(&others)).await.unwrap().unwrap();
        assert_eq!((found.name, found.groups), expected, "{case}");
    }
    let token = provider.token(&json!({"email_verified": true, "team": "blue"}));
    let found = provider.authenticators(&expressions).verify(&token).await.unwrap().unwrap();
    assert_eq!((&*found.uid, &found.extra["example.com/team"]), ("ann", &vec!["blue".to_owned()]));
}

#[tokio::test]
async fn tokens_with_faults_are_refused_with_a_reason() {
    let provider = Provider::start().await;
    let email = json!({"claimMappings": {"username": {"claim": "email", "prefix": ""}}});
    let rules = json!({
        "claimValidationRules": [
            {"claim": "hd", "requiredValue": "example.com"},
            {"expression": "claims.exp - claims.iat <= 3600", "message": "lives too long"},
        ],
        "userValidationRules": [{"expression": "!user.username.endsWith('mallory')", "message": "is mallory"}],
    });
    let valid = json!({"hd": "example.com", "iat": NOW});
    let with = |name: &str, value: Value| {
        let mut others = valid.clone();
        others[name] = value;
        others
    };
    for (case, rest, others, expected) in [
        ("expired", json!({}), json!({"exp": NOW}), "the token is expired"),
        ("no expiry", json!({}), json!({"exp": null}), "the token has no expiry"),
        ("from tomorrow on", json!({}), json!({"nbf": NOW + 301}), "the token is not valid yet"),
        ("another audience", json!({}), json!({"aud": ["portolan2"]}), "the token is meant for another audience"),
        ("no name", json!({}), json!({"sub": null}), "claim sub is not a string"),
        (
            "groups of another type",
            json!({}),
            json!({"groups": [1]}),
            "claim groups is neither a text nor a list of texts",
        ),
        ("an unverified address", email, json!({"email_verified": false}), "email not verified"),
        ("no required claim", rules.clone(), json!({}), "required claim hd not present in ID token"),
        (
            "another value of it",
            rules.clone(),
            with("hd", json!("example.org")),
            "required claim hd value does not match",
        ),
        ("a broken rule", rules.clone(), with("exp", json!(NOW + 4000)), "lives too long"),
        ("a broken rule about the user", rules, with("sub", json!("mallory")), "is mallory"),
    ] {
        let refused = provider.authenticators(&rest).verify(&provider.token(&others)).await.unwrap_err();
        assert_eq!(refused, expected, "{case}");
    }
    let plain = json!({"claimMappings": {
        "username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""},
    }});
    for (name, value) in [("sub", json!("system:admin")), ("groups", json!(["system:masters"]))] {
        let refused = provider.authenticators(&plain).verify(&provider.token(&json!({name: value}))).await.unwrap_err();
        assert!(refused.ends_with("is reserved for the system"), "{refused}");
    }
}

#[tokio::test]
async fn forged_tokens_are_refused_and_cause_one_fetch() {
    let provider = Provider::start().await;
    let authenticators = provider.authenticators(&json!({}));
    let token = provider.token(&json!({}));
    assert!(authenticators.verify(&token).await.unwrap().is_some());
    let (head, signature) = token.rsplit_once('.').unwrap();
    let other = Provider::start().await.token(&json!({"iss": provider.url}));
    let unknown = {
        provider.key.lock().0 = "unknown".into();
        provider.token(&json!({}))
    };
    let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), head.split('.').nth(1).unwrap());
    let secret = jsonwebtoken::encode(
        &Header::new(Algorithm::HS256),
        &json!({"iss": provider.url, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 60}),
        &EncodingKey::from_secret(b"x"),
    );
    for forged in
        [format!("{head}.{}", signature.replace(&signature[..4], "AAAA")), other, unknown, none, secret.unwrap()]
    {
        assert!(authenticators.verify(&forged).await.is_err(), "{forged}");
    }
    for foreign in ["", "a.b.c", "abc", &*provider.token(&json!({"iss": format!("{}/", provider.url)}))] {
        assert_eq!(authenticators.verify(foreign).await, Ok(None), "{foreign}");
    }
    assert_eq!(provider.fetches.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn keys_for_something_else_verify_no_tokens() {
    let provider = Provider::start().await;
    for (case, parameter, value, is_accepted) in [
        ("the algorithm", "alg", "ES256", true),
        ("another algorithm", "alg", "ES384", false),
        ("an unknown algorithm", "alg", "ES256K", false),
        ("encryption", "use", "enc", false),
        ("another use", "use", "tls", false),
    ] {
        *provider.parameter.lock() = (parameter, value);
        let found = provider.authenticators(&json!({})).verify(&provider.token(&json!({}))).await;
        assert_eq!(found.is_ok(), is_accepted, "{case}: {found:?}");
    }
}

#[tokio::test]
async fn clients_that_leave_cause_one_fetch() {
    let (provider, silent) = (Provider::start().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("https://{}", silent.local_addr().unwrap());
    let issuer = json!({"url": url, "audiences": [AUDIENCE], "certificateAuthority": provider.ca});
    let authenticators = provider.authenticators(&json!({"issuer": issuer}));
    let token = provider.token(&json!({"iss": url}));
    for _ in 0..3 {
        let left = tokio::time::timeout(Duration::from_millis(30), authenticators.verify(&token)).await;
        left.expect_err("the issuer does not answer");
    }
    let mut fetches = Vec::new();
    while let Ok(socket) = tokio::time::timeout(Duration::from_millis(100), silent.accept()).await {
        fetches.push(socket.unwrap());
    }
    assert_eq!(fetches.len(), 1);
}

#[tokio::test]
async fn new_keys_of_an_issuer_are_fetched() {
    let provider = Provider::start().await;
    let authenticators = provider.authenticators(&json!({}));
    let first = provider.token(&json!({}));
    assert!(authenticators.verify(&first).await.unwrap().is_some());
    *provider.key.lock() = ("second".into(), KeyPair::generate().unwrap());
    let second = provider.token(&json!({}));
    assert!(authenticators.verify(&second).await.is_err(), "a fetch was a moment ago");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    assert!(authenticators.verify(&second).await.unwrap().is_some());
    assert!(authenticators.verify(&first).await.is_err(), "the issuer has withdrawn its key");
}

#[tokio::test]
async fn changed_files_take_effect_and_invalid_ones_do_not() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authentication.yaml");
    std::fs::write(&path, provider.configuration(&json!({}))).unwrap();
    let seams = Seams::seeded(1, jiff::Timestamp::from_second(NOW).unwrap());
    let authenticators =
        JwtAuthenticators::open(&AuthenticationSource::File(path.clone()), "https://own", seams).unwrap();
    let (token, name) = (provider.token(&json!({})), |user: Option<User>| user.map(|user| user.name));
    assert_eq!(name(authenticators.verify(&token).await.unwrap()).as_deref(), Some("oidc:ann"));
    assert!(!authenticators.reread().unwrap(), "nothing has changed");
    std::fs::write(&path, "kind: AuthenticationConfiguration").unwrap();
    assert!(authenticators.reread().is_err());
    assert!(!authenticators.reread().unwrap(), "a fault is reported once");
    // No user, not even root, can read a directory as a file.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(authenticators.reread().is_err());
    assert!(authenticators.reread().is_err(), "it is tried again");
    std::fs::remove_dir(&path).unwrap();
    assert!(authenticators.reread().is_err());
    assert!(!authenticators.reread().unwrap(), "a missing file is reported once");
    assert_eq!(name(authenticators.verify(&token).await.unwrap()).as_deref(), Some("oidc:ann"));
    let mapped = json!({"claimMappings": {"username": {"claim": "email", "prefix": ""}}});
    std::fs::write(&path, provider.configuration(&mapped)).unwrap();
    assert!(authenticators.reread().unwrap());
    assert_eq!(name(authenticators.verify(&token).await.unwrap()).as_deref(), Some("ann@example.com"));
    std::fs::write(&path, "{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, anonymous: {enabled: true, conditions: [{path: /livez}]}}").unwrap();
    assert!(authenticators.reread().unwrap());
    assert_eq!(authenticators.verify(&token).await, Ok(None));
    assert_eq!(["/livez", "/api"].map(|path| authenticators.allows_anonymous(path)), [true, false]);
}

/// A watch checks its credential again while it runs.
#[tokio::test]
async fn a_token_that_means_another_user_is_valid_no_more() {
    use crate::{ApiServer, ApiServerConfig, authn::Peer};
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authentication.yaml");
    std::fs::write(&path, provider.configuration(&json!({}))).unwrap();
    let seams = Seams::seeded(1, jiff::Timestamp::from_second(NOW).unwrap());
    let authentication = AuthenticationSource::File(path.clone());
    let config = ApiServerConfig { authentication, ..ApiServerConfig::in_memory(seams) };
    let api = ApiServer::new(portolan_store::memory(), config).await.unwrap();
    let (authenticator, rbac) = (&api.access.authenticator, &api.access.rbac);
    let bearer = format!("Bearer {}", provider.token(&json!({})));
    let mut headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, bearer.parse().unwrap())]);
    let identity = authenticator
        .authenticate(&Peer::Connection(None), &mut headers, &RequestedCluster::Unspecified)
        .await
        .unwrap();
    let request = crate::routing::attributes::Attributes::default();
    let check =
        async || identity.check_again(authenticator, &**rbac, portolan_types::LogicalClusterId::ROOT, &request).await;
    check().await.unwrap();
    for (case, mappings) in [
        ("other groups", json!({"username": {"claim": "sub", "prefix": "oidc:"}})),
        (
            "another name",
            json!({"username": {"claim": "sub", "prefix": "x:"}, "groups": {"claim": "groups", "prefix": "oidc:"}}),
        ),
    ] {
        std::fs::write(&path, provider.configuration(&json!({"claimMappings": mappings}))).unwrap();
        assert!(authenticator.reread().unwrap(), "{case}");
        assert_eq!(check().await.unwrap_err().code(), 401, "{case}");
    }
    std::fs::write(&path, provider.configuration(&json!({"claimValidationRules": []}))).unwrap();
    assert!(authenticator.reread().unwrap());
    check().await.expect("it means the same user again");
}

#[test]
fn configuration_errors_name_the_field() {
    let issuer = r#"issuer: {url: "https://a", audiences: [x]}"#;
    for (case, jwt, expected) in [
        ("nothing", "{}", "jwt[0].issuer.url: Required value: URL is required"),
        (
            "http",
            r#"{issuer: {url: "http://a"}}"#,
            r#"jwt[0].issuer.url: Invalid value: "http://a": URL scheme must be https"#,
        ),
        (
            "a query",
            r#"{issuer: {url: "https://a?b"}}"#,
            r#"jwt[0].issuer.url: Invalid value: "https://a?b": URL must not contain a query"#,
        ),
        (
            "several audiences",
            r#"{issuer: {url: "https://a", audiences: [x, z]}}"#,
            r#"jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be set to MatchAny when multiple audiences are specified"#,
        ),
        (
            "no user",
            &format!("{{{issuer}}}"),
            "jwt[0].claimMappings.username: Required value: claim or expression is required",
        ),
        (
            "no prefix",
            &format!("{{{issuer}, claimMappings: {{username: {{claim: sub}}}}}}"),
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        ),
        (
            "both",
            &format!("{{{issuer}, claimMappings: {{username: {{claim: sub, expression: claims.sub, prefix: ''}}}}}}"),
            "jwt[0].claimMappings.username: Invalid value: claim and expression can't both be set",
        ),
        (
            "an unguarded address",
            &format!("{{{issuer}, claimMappings: {{username: {{expression: claims.email}}}}}}"),
            "claims.email_verified must be used",
        ),
        (
            "a reserved key",
            &format!("{{{issuer}, claimMappings: {{extra: [{{key: a.k8s.io/b, valueExpression: claims.a}}]}}}}"),
            "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use",
        ),
        ("an unknown field", "{issuers: {}}", "unknown field `issuers`"),
    ] {
        let text =
            format!("{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, jwt: [{jwt}]}}");
        let fault = AuthenticationConfiguration::parse(text.as_bytes()).unwrap_err();
        assert!(fault.contains(expected), "{case}: {fault}");
    }
    let compile = |mappings: &str| {
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, jwt: [{{{issuer}, claimMappings: {mappings}}}]}}"
        );
        let parsed = AuthenticationConfiguration::parse(text.as_bytes()).unwrap();
        AuthenticatorSet::compile(&parsed, &SetContext::of_server("https://own")).err().unwrap_or_default()
    };
    let broken = compile("{username: {expression: 'claims.'}}");
    assert!(
        broken
            .starts_with("jwt[0].claimMappings.username.expression: Invalid value: \"claims.\": compilation failed: "),
        "{broken}"
    );
    let number = compile("{username: {expression: '1'}}");
    assert!(number.ends_with("must evaluate to string"), "{number}");
    let own = AuthenticationConfiguration {
        jwt: vec![JwtConfiguration {
            issuer: IssuerConfiguration { url: "https://own".into(), ..IssuerConfiguration::default() },
            ..JwtConfiguration::default()
        }],
        ..AuthenticationConfiguration::default()
    };
    let refused = AuthenticatorSet::compile(&own, &SetContext::of_server("https://own")).err().unwrap_or_default();
    assert!(refused.contains("is the issuer of service account tokens"), "{refused}");
}

/// Sends a request over a connection without a certificate, with a token if it is not empty.
async fn send(api: &Arc<crate::ApiServer>, token: &str, path: &str, object: Option<Value>) -> (u16, Value) {
    let method = if object.is_some() { "POST" } else { "GET" };
    let mut request = Request::builder().method(method).uri(format!("/clusters/{path}"));
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = object.map(|object| object.to_string()).unwrap_or_default();
    let request = request.header("content-type", "application/json");
    let request = request.body(crate::pipeline::boxed_body(Full::new(Bytes::from(body)))).unwrap();
    let answer = crate::http::answer(api.clone(), crate::authn::Peer::Connection(None), request).await;
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn an_issuer_of_a_type_of_workspaces_counts_in_them_only() {
    const TENANCY: &str = "root/apis/tenancy.kcp.io/v1alpha1";
    let provider = Provider::start().await;
    let seams = Seams::seeded(1, jiff::Timestamp::from_second(NOW).unwrap());
    let mut config = crate::ApiServerConfig::in_memory(seams);
    config.webhooks.allow_local = true;
    let admin = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
    config.static_tokens = vec![crate::config::StaticToken { token: "t-admin".into(), user: admin }];
    let store = portolan_store::memory();
    let api = crate::ApiServer::new(store.clone(), config).await.unwrap();
    let make = async |path: &str, object: Value| {
        let (code, made) = send(&api, "t-admin", path, Some(object)).await;
        assert_eq!(code, 201, "{path}: {made}");
    };
    let jwt: Value = serde_json::from_slice(&provider.configuration(&json!({}))).unwrap();
    let sso = json!({"metadata": {"name": "sso"}, "spec": {"jwt": jwt["jwt"]}});
    make(&format!("{TENANCY}/workspaceauthenticationconfigurations"), sso).await;
    let kind = json!({"metadata": {"name": "corp"}, "spec": {"authenticationConfigurations": [{"name": "sso"}]}});
    make(&format!("{TENANCY}/workspacetypes"), kind).await;
    for (name, kind) in [("a", "corp"), ("b", "corp"), ("c", "universal")] {
        let workspace = json!({"metadata": {"name": name}, "spec": {"type": {"name": kind, "path": "root"}}});
        make(&format!("{TENANCY}/workspaces"), workspace).await;
    }
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "ann"}, "subjects": [{"kind": "User", "apiGroup": group, "name": "oidc:ann"}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": "view"},
    });
    make(&format!("root:a/apis/{group}/v1/clusterrolebindings"), binding).await;
    let token = provider.token(&json!({}));
    let maps = "api/v1/namespaces/default/configmaps";
    for (place, code) in [("root:a", 200), ("root:b", 403), ("root:c", 401), ("root", 401), ("root:none", 401)] {
        assert_eq!(send(&api, &token, &format!("{place}/{maps}"), None).await.0, code, "{place}");
    }
    let own = "apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (_, known) = send(&api, &token, &format!("root:a/{own}"), Some(json!({}))).await;
    let id = api.directory().by_path(&"root:a".parse().unwrap()).unwrap().id;
    let user = &known["status"]["userInfo"];
    assert_eq!(user["username"], "oidc:ann");
    assert_eq!(user["extra"]["authentication.kcp.io/scopes"], json!([format!("cluster:{id}")]));
    let review = json!({"spec": {"token": token}});
    for (place, expected) in [("root:a", json!(true)), ("root:c", Value::Null)] {
        let path = format!("{place}/apis/authentication.k8s.io/v1/tokenreviews");
        let (_, answer) = send(&api, "t-admin", &path, Some(review.clone())).await;
        assert_eq!(answer["status"]["authenticated"], expected, "a review in {place}: {answer}");
    }
    let identity = api.access.authenticator.reviewed_in(id, &token, &[]).await.unwrap().0.with_token(token.clone());
    let check = async || {
        let request = crate::routing::attributes::Attributes::default();
        identity.check_again(&api.access.authenticator, &*api.access.rbac, id, &request).await
    };
    check().await.expect("a watch continues");
    let configurations = portolan_types::GroupResource::new("tenancy.kcp.io", "workspaceauthenticationconfigurations");
    let (root, name) = (portolan_types::LogicalClusterId::ROOT, "sso".parse().unwrap());
    let key = portolan_types::ObjectKey::cluster_scoped(root, configurations, name);
    let removal = portolan_store::Transaction::one(key, portolan_store::Expect::Present, None);
    store.commit(removal).await.unwrap();
    assert_eq!(send(&api, &token, &format!("root:a/{maps}"), None).await.0, 401, "a configuration that is gone");
    check().await.expect_err("a watch ends");
}

/// Sends a GET over a connection without a certificate. Returns the code, the headers and the location.
async fn visit(api: &Arc<crate::ApiServer>, path: &str, cookie: &str) -> (u16, http::HeaderMap, String) {
    let request = Request::get(path).header("host", "portolan.example:6443").header("cookie", cookie);
    let request = request.body(crate::pipeline::boxed_body(Full::<Bytes>::default())).unwrap();
    let answer = crate::http::answer(api.clone(), crate::authn::Peer::Connection(None), request).await;
    let location = answer.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
    (answer.status().as_u16(), answer.headers().clone(), location.unwrap_or_default())
}

fn parameter(url: &str, name: &str) -> String {
    let query = url.split_once('?').unwrap().1;
    let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap();
    percent_encoding::percent_decode_str(found).decode_utf8().unwrap().into_owned()
}

fn cookies(headers: &http::HeaderMap) -> Vec<String> {
    headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_browser_signs_in_at_an_issuer_by_a_code_with_a_proof() {
    let provider = Provider::start().await;
    let parsed = AuthenticationConfiguration::parse(&provider.configuration(&json!({}))).unwrap();
    let seams = Seams::seeded(1, jiff::Timestamp::from_second(NOW).unwrap());
    let mut config = crate::ApiServerConfig::in_memory(seams);
    config.authentication = AuthenticationSource::Fixed(Box::new(parsed));
    let api = crate::ApiServer::new(portolan_store::memory(), config).await.unwrap();
    let start = format!("/ui/oidc/start?issuer={}&to=%23/root:shop/objects", provider.url.replace(':', "%3A"));

    assert_eq!(visit(&api, "/ui/oidc/start?issuer=https://other", "").await.0, 404);
    let (code, headers, url) = visit(&api, &start, "").await;
    assert_eq!(code, 303);
    assert!(
        url.starts_with(&format!("{}/authorize?a=b&response_type=code&client_id=portolan&", provider.url)),
        "{url}"
    );
    assert_eq!(parameter(&url, "redirect_uri"), "https://portolan.example:6443/ui/oidc/callback");
    assert_eq!(parameter(&url, "scope"), "openid email profile groups");
    let pending = cookies(&headers).pop().unwrap();
    assert!(pending.contains("; Path=/ui/oidc/; Max-Age=600; HttpOnly; Secure; SameSite=Lax"), "{pending}");
    let pending = pending.split(';').next().unwrap();
    let (state, challenge) = (parameter(&url, "state"), parameter(&url, "code_challenge"));
    let answer = format!("{challenge}.{}", parameter(&url, "nonce"));

    for (case, query, cookie, failure) in [
        ("another state", format!("code={answer}&state=x"), pending, "expired"),
        ("another browser", format!("code={answer}&state={state}"), "", "expired"),
        ("no code", format!("state={state}"), pending, "expired"),
        ("another proof", format!("code=x.{}&state={state}", parameter(&url, "nonce")), pending, "token"),
        ("the token of another sign-in", format!("code={challenge}.x&state={state}"), pending, "token"),
        ("a refusal", "error=access_denied&error_description=call+me".to_owned(), pending, "refused"),
    ] {
        let (code, headers, location) = visit(&api, &format!("/ui/oidc/callback?{query}"), cookie).await;
        let expected = format!("/ui#/root/objects?sign-in-failed={failure}");
        assert_eq!((code, location), (303, expected), "{case}");
        assert!(cookies(&headers).is_empty(), "{case}");
    }
    let back = format!("/ui/oidc/callback?code={answer}&state={state}");
    let (code, headers, location) = visit(&api, &back, pending).await;
    assert_eq!((code, location.as_str()), (303, "/ui#/root:shop/objects"));
    let session = cookies(&headers).into_iter().find(|cookie| cookie.contains("session-0=")).unwrap();
    assert!(session.contains("; Path=/ui/api/;") && session.contains("SameSite=Strict"), "{session}");
    let request = Request::get("/ui/api/version").header("x-portolan-console", "1");
    let request = request.header("cookie", session.split(';').next().unwrap());
    let request = request.body(crate::pipeline::boxed_body(Full::<Bytes>::default())).unwrap();
    let answer = crate::http::answer(api.clone(), crate::authn::Peer::Connection(None), request).await;
    assert_eq!(answer.status().as_u16(), 200, "the session serves");
}
