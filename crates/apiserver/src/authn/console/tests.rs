//! Sessions and links of the console, over whole requests.

use std::sync::Arc;

use http::{Request, Response, header::SET_COOKIE};
use http_body_util::{BodyExt as _, Full};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use portolan_strategy::rbac::User;
use portolan_types::{Seams, seams::Clock};
use serde_json::{Value, json};

use crate::{
    ApiServer, ApiServerConfig, Body,
    authn::{Identity, Peer, StaticToken},
    hooks::ConsoleFile,
    http::answer,
    pipeline::boxed_body,
};

use super::{
    ConsoleSession, SessionCredential,
    cookies::{session_cookies, take},
};

/// Clock that a test moves.
struct MovedClock(Mutex<Timestamp>);

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

struct Fixture {
    api: Arc<ApiServer>,
    clock: Arc<MovedClock>,
}

/// Answer: code, headers and JSON.
struct Answer {
    code: u16,
    cookies: Vec<String>,
    headers: http::HeaderMap,
    body: Value,
}

impl Fixture {
    async fn new() -> Self {
        let clock = Arc::new(MovedClock(Mutex::new("2026-11-27T12:00:00Z".parse().unwrap())));
        let seams = Seams { clock: clock.clone(), ..Seams::system() };
        let mut config = ApiServerConfig::in_memory(seams);
        let ann = User { name: "ann".into(), groups: vec!["system:masters".into()], ..User::default() };
        config.static_tokens = vec![StaticToken { token: "t-ann".into(), user: ann }];
        let gzip: &[u8] = Box::leak(gzip(b"<!doctype html>").into_boxed_slice());
        config.hooks.console = vec![ConsoleFile { path: "index.html", media_type: "text/html", etag: "\"1\"", gzip }];
        Self { api: ApiServer::new(portolan_store::memory(), config).await.unwrap(), clock }
    }

    fn pass(&self, time: SignedDuration) {
        let mut now = self.clock.0.lock();
        *now = now.saturating_add(time).unwrap();
    }

    async fn send(&self, peer: Peer, line: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(Full::from(body)).unwrap().map(boxed_body);
        read(answer(self.api.clone(), peer, request).await).await
    }

    async fn sign_in(&self, body: Value) -> Answer {
        self.send(Peer::Connection(None), "POST /ui/session", &[CONSOLE], body).await
    }

    async fn reviews(&self, headers: &[(&str, &str)]) -> Answer {
        const LINE: &str = "POST /ui/api/clusters/root/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let headers = [&[("content-type", "application/json")], headers].concat();
        self.send(Peer::Connection(None), LINE, &headers, asked).await
    }
}

const CONSOLE: (&str, &str) = ("x-portolan-console", "1");

async fn read(response: Response<Body>) -> Answer {
    let code = response.status().as_u16();
    let headers = response.headers().clone();
    let cookies = headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    Answer { code, cookies, headers, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

/// Returns the `Cookie` header of a browser that has got these cookies.
fn sent(cookies: &[String]) -> String {
    let pairs = cookies.iter().filter(|cookie| !cookie.contains("Max-Age=0"));
    pairs.map(|cookie| cookie.split(';').next().unwrap()).collect::<Vec<_>>().join("; ")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn certified(name: &str) -> Peer {
    Peer::Connection(Some(Arc::new(User {
        name: name.into(),
        groups: vec!["system:authenticated".into()],
        ..User::default()
    })))
}

#[tokio::test]
async fn a_pasted_token_becomes_a_session_that_only_the_console_can_use() {
    let fixture = Fixture::new().await;
    let signed_in = fixture.sign_in(json!({"token": " t-ann\n"})).await;
    assert_eq!((signed_in.code, signed_in.body["user"].as_str()), (201, Some("ann")), "{}", signed_in.body);
    for cookie in &signed_in.cookies {
        for part in ["__Secure-portolan-session-", "; Path=/ui/api/;", "; HttpOnly; Secure; SameSite=Strict"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        assert!(!cookie.contains("t-ann"), "the token is sealed");
    }
    let cookie = sent(&signed_in.cookies);
    let cookie = ("cookie", cookie.as_str());
    for (case, headers, code) in [
        ("the console", vec![cookie, CONSOLE], 201),
        ("a request of the same origin", vec![cookie, CONSOLE, ("sec-fetch-site", "same-origin")], 201),
        ("without the header", vec![cookie], 403),
        ("another value of the header", vec![cookie, ("x-portolan-console", "true")], 403),
        ("another origin", vec![cookie, CONSOLE, ("sec-fetch-site", "cross-site")], 403),
        ("a sandboxed page", vec![cookie, CONSOLE, ("origin", "null")], 403),
        ("without a cookie", vec![CONSOLE], 401),
        ("a token instead of a cookie", vec![CONSOLE, ("authorization", "Bearer t-ann")], 401),
        ("a forged cookie", vec![CONSOLE, ("cookie", "__Secure-portolan-session-0=abcdefghijklmnopqrstuvwxyz")], 401),
    ] {
        let found = fixture.reviews(&headers).await;
        assert_eq!(found.code, code, "{case}: {}", found.body);
        if code == 201 {
            assert_eq!(found.body["status"]["userInfo"]["username"], "ann", "{case}");
        }
    }
    for path in ["GET /clusters/root/api/v1/namespaces", "GET /api/v1/namespaces", "POST /ui/link"] {
        let found = fixture.send(Peer::Connection(None), path, &[cookie, CONSOLE], Value::Null).await;
        assert_eq!(found.code, 403, "{path}: the cookie counts below /ui/api/ only");
    }
    for path in ["POST /ui/api/ui/link", "POST /ui/api/ui/session", "GET /ui/api/ui"] {
        let found = fixture.send(Peer::Connection(None), path, &[cookie, CONSOLE], Value::Null).await;
        assert_ne!(found.code / 100, 2, "{path}: a session makes no other session");
    }
    let version = fixture.send(Peer::Connection(None), "GET /ui/api/version", &[cookie, CONSOLE], Value::Null).await;
    assert_eq!(version.code, 200);
    fixture.pass(SignedDuration::from_hours(13));
    assert_eq!(fixture.reviews(&[cookie, CONSOLE]).await.code, 401, "a session lasts twelve hours at most");
}

#[tokio::test]
async fn a_link_leads_to_one_session_of_its_user_within_a_minute() {
    let fixture = Fixture::new().await;
    let issue = async |peer: Peer| fixture.send(peer, "POST /ui/link", &[], Value::Null).await;
    let issued = issue(certified("bob")).await;
    assert_eq!((issued.code, issued.body["seconds"].as_i64()), (201, Some(60)), "{}", issued.body);
    let code = issued.body["code"].as_str().unwrap().to_owned();
    let signed_in = fixture.sign_in(json!({"code": code})).await;
    assert_eq!((signed_in.code, signed_in.body["user"].as_str()), (201, Some("bob")), "{}", signed_in.body);
    assert_eq!(fixture.sign_in(json!({"code": code})).await.code, 401, "a code is used once");
    let cookie = sent(&signed_in.cookies);
    let cookie = ("cookie", cookie.as_str());
    assert_eq!(fixture.reviews(&[cookie, CONSOLE]).await.body["status"]["userInfo"]["username"], "bob");
    let list = "GET /ui/api/clusters/root/api/v1/secrets";
    let found = fixture.send(Peer::Connection(None), list, &[cookie, CONSOLE], Value::Null).await;
    assert_eq!(found.code, 403, "a session has its user's rights");
    let late = issue(certified("bob")).await.body["code"].as_str().unwrap().to_owned();
    fixture.pass(SignedDuration::from_secs(61));
    assert_eq!(fixture.sign_in(json!({"code": late})).await.code, 401, "a code expires");
    assert_eq!(issue(Peer::Connection(None)).await.code, 403, "an anonymous client gets none");
    for (seconds, code) in [(600, 201), (601, 400), (0, 400)] {
        let found = fixture.send(certified("bob"), "POST /ui/link", &[], json!({"seconds": seconds})).await;
        assert_eq!(found.code, code, "{seconds} s: {}", found.body);
    }
    let impersonating = [("impersonate-user", "carl")];
    let found = fixture.send(certified("bob"), "POST /ui/link", &impersonating, Value::Null).await;
    assert_eq!(found.code, 403, "nor does an impersonated user");
}

#[tokio::test]
async fn sign_ins_that_are_wrong_are_refused() {
    let fixture = Fixture::new().await;
    for (case, body, code) in [
        ("a wrong token", json!({"token": "t-eve"}), 401),
        ("an unknown code", json!({"code": "00"}), 401),
        ("a code longer than any", json!({"code": "0".repeat(4096)}), 401),
        ("a token longer than a session", json!({"token": "t".repeat(9000)}), 413),
        ("both", json!({"token": "t-ann", "code": "0"}), 400),
        ("neither", json!({}), 400),
        ("an unknown field", json!({"user": "ann"}), 400),
        ("no object", json!("t-ann"), 400),
    ] {
        let found = fixture.sign_in(body).await;
        assert_eq!((found.code, found.cookies.len()), (code, 0), "{case}: {}", found.body);
    }
    let plain = fixture.send(Peer::Connection(None), "POST /ui/session", &[], json!({"token": "t-ann"})).await;
    assert_eq!(plain.code, 403, "another page cannot sign a user in");
    let out = fixture.send(Peer::Connection(None), "DELETE /ui/session", &[CONSOLE], Value::Null).await;
    assert!(out.code == 200 && out.cookies.iter().all(|cookie| cookie.contains("Max-Age=0")), "{:?}", out.cookies);
}

#[tokio::test]
async fn pages_are_served_to_everybody_with_a_strict_policy() {
    let fixture = Fixture::new().await;
    let get = async |line: &str, headers: &[(&str, &str)]| {
        fixture.send(Peer::Connection(None), line, headers, Value::Null).await
    };
    for (line, headers, code) in [
        ("GET /ui", vec![], 200),
        ("GET /ui/", vec![], 200),
        ("HEAD /ui", vec![], 200),
        ("GET /ui/index.html", vec![("accept-encoding", "br, gzip")], 200),
        ("GET /ui", vec![("if-none-match", "\"1\"")], 304),
        ("GET /ui/nothing.js", vec![], 404),
        ("POST /ui", vec![], 405),
        ("GET /ui/session", vec![], 405),
        ("GET /clusters/root/ui", vec![], 404),
        ("GET /ui/settings", vec![], 200),
    ] {
        let found = get(line, &headers).await;
        assert_eq!(found.code, code, "{line} {headers:?}");
        let policy = found.headers.get("content-security-policy").map(|value| value.to_str().unwrap());
        if code < 400 && !line.ends_with("settings") {
            assert!(policy.unwrap().starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{line}");
            assert!(!policy.unwrap().contains("unsafe"), "{line}");
        }
        let encoding = found.headers.get("content-encoding").map(|value| value.to_str().unwrap());
        assert_eq!(encoding, (headers.len() == 1 && code == 200).then_some("gzip"), "{line}");
    }
}

#[tokio::test]
async fn a_session_ends_with_the_certificate_of_its_user() {
    let fixture = Fixture::new().await;
    let console = fixture.api.access.authenticator.console();
    let bob = User { name: "bob".into(), ..User::default() };
    let until = "2026-11-27T13:00:00Z".parse().unwrap();
    let user = super::SessionUser { user: bob.clone(), certificate: None, until: Some(until) };
    let session = console.start(SessionCredential::User(user.into())).unwrap();
    assert_eq!(session.until, until, "it is no longer than the certificate");
    let sealed = console.seal(&session).unwrap();
    assert_eq!(console.open(&sealed).unwrap(), session);
    let identity = fixture.api.access.authenticator.identity_of(&session.credential).await.unwrap();
    assert_eq!(identity.user, bob);
    let held = identity.session_credential(None);
    assert!(matches!(held, SessionCredential::User(_)));
    fixture.pass(SignedDuration::from_hours(1));
    assert_eq!(console.open(&sealed).unwrap_err().code(), 401);
    let ended = fixture.api.access.authenticator.identity_of(&session.credential).await;
    assert_eq!(ended.map(|identity: Identity| identity.user.name).unwrap_err().code(), 401);
}

#[test]
fn long_sessions_are_divided_over_cookies() {
    for (length, pieces) in [(1, Some(1)), (3600, Some(1)), (3601, Some(2)), (14_400, Some(4)), (14_401, None)] {
        let sealed: String = "abcdefgh".chars().cycle().take(length).collect();
        let cookies = session_cookies(&sealed, 60).ok();
        let set =
            cookies.as_ref().map(|cookies| cookies.iter().filter(|c| c.to_str().unwrap().contains("=60;")).count());
        assert_eq!(set, pieces, "{length}");
        let Some(cookies) = cookies else { continue };
        let cookies: Vec<String> = cookies.iter().map(|cookie| cookie.to_str().unwrap().to_owned()).collect();
        let mut headers = http::HeaderMap::new();
        headers.insert("cookie", format!("a=b; {}", sent(&cookies)).parse().unwrap());
        assert_eq!(take(&mut headers), Some(sealed), "{length}");
        assert!(headers.is_empty(), "no handler sees the cookies");
    }
}

#[test]
fn a_session_shows_no_token_in_debug_output() {
    let until = Timestamp::UNIX_EPOCH;
    let session = ConsoleSession { credential: SessionCredential::Token("secret".into()), until };
    assert!(!format!("{session:?}").contains("secret"));
}
