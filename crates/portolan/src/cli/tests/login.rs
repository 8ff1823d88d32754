//! `kubectl portolan login` and `ui` against a whole control plane and a provider on loopback.

use std::{
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use portolan_apiserver::{User, authn::StaticToken};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::cli::plugin::{CapturedOutput, Terminal, UserEnvironment, applets::Applet, execute};

/// Returns an unsigned token with an end; the server of the test knows it as a static one.
fn token(nonce: &str, ends: i64) -> String {
    let claims = serde_json::json!({"iss": "here", "aud": "me", "exp": ends, "nonce": nonce}).to_string();
    format!("e30.{}.s", URL_SAFE_NO_PAD.encode(claims))
}

const FAR: i64 = 4_000_000_000;

/// Provider that answers a code with a token whose nonce is the code, and the second question about a device.
async fn provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let (own, asked) = (issuer.clone(), Arc::new(AtomicUsize::new(0)));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (own, asked) = (own.clone(), asked.clone());
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                let whole = |bytes: &[u8]| {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    (body.len() >= length.unwrap_or(0)).then(|| (head.to_owned(), body.to_owned()))
                };
                let (head, body) = loop {
                    if let Some(found) = whole(&bytes) {
                        break found;
                    }
                    if socket.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                        return;
                    }
                };
                let (code, answer) = answer(&own, &asked, head.split(' ').nth(1).unwrap_or_default(), &body);
                let text = answer.to_string();
                let head = format!(
                    "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    text.len()
                );
                let _ = socket.write_all(format!("{head}{text}").as_bytes()).await;
            });
        }
    });
    issuer
}

fn answer(own: &str, asked: &AtomicUsize, path: &str, body: &str) -> (u16, Value) {
    let field = |name: &str| body.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    match path {
        "/.well-known/openid-configuration" => (
            200,
            serde_json::json!({"issuer": own, "authorization_endpoint": format!("{own}/authorize"),
                "token_endpoint": format!("{own}/token"), "device_authorization_endpoint": format!("{own}/device")}),
        ),
        "/device" => (
            200,
            serde_json::json!({"device_code": "d", "user_code": "ABCD-EFGH", "verification_uri": format!("{own}/here"),
                "interval": 1, "expires_in": 60}),
        ),
        "/token" if field("device_code").is_some() && asked.fetch_add(1, Ordering::SeqCst) == 0 => {
            (400, serde_json::json!({"error": "authorization_pending"}))
        }
        "/token" if field("refresh_token") == Some("spent") => {
            (400, serde_json::json!({"error": "invalid_grant", "error_description": "it is spent"}))
        }
        "/token" if field("refresh_token").is_some() => (200, serde_json::json!({"id_token": token("renewed", FAR)})),
        "/token" if field("device_code").is_some() => (200, serde_json::json!({"id_token": token("device", FAR)})),
        "/token" => {
            let id = token(field("code").unwrap(), FAR);
            (200, serde_json::json!({"id_token": id, "refresh_token": "r"}))
        }
        _ => (404, Value::Null),
    }
}

/// Control plane that accepts the tokens as those of the user Ann, with an administrator's kubeconfig.
struct LoginFixture {
    plane: ControlPlane,
    folder: tempfile::TempDir,
    issuer: String,
}

impl LoginFixture {
    async fn start(nonces: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ann = User { name: "ann".into(), ..User::default() };
        let tokens = nonces.iter().map(|nonce| StaticToken { token: token(nonce, FAR), user: ann.clone() }).collect();
        let config = Config { tokens, ..config(folder.path(), Engine::Memory) };
        let plane = portolan_control_plane::open(config).await.unwrap().start().await.unwrap();
        std::fs::copy(folder.path().join("data/admin.kubeconfig"), folder.path().join("kubeconfig")).unwrap();
        Self { plane, folder, issuer: provider().await }
    }

    fn run(&self, line: &str) -> (impl Future<Output = u8> + use<>, CapturedOutput, CapturedOutput) {
        let args = line.split(' ').map(std::ffi::OsString::from).collect();
        let kubeconfig = Some(self.folder.path().join("kubeconfig").into());
        let environment = UserEnvironment { kubeconfig, home: Some(self.folder.path().to_owned()) };
        let (out, err) = (CapturedOutput::default(), CapturedOutput::default());
        let terminal = Terminal::to(out.clone(), err.clone());
        (execute(Applet::Portolan, args, environment, terminal), out, err)
    }

    async fn done(&self, line: &str) -> (u8, String, String) {
        let (running, out, err) = self.run(line);
        (running.await, out.text(), err.text())
    }

    fn login(&self) -> String {
        format!("login --issuer {} --client-id me", self.issuer)
    }

    /// Replaces the tokens that are kept.
    fn keep(&self, tokens: &Value) -> std::path::PathBuf {
        let mut files = std::fs::read_dir(self.folder.path().join(".kube/cache/portolan-login")).unwrap();
        let file = files.next().unwrap().unwrap().path();
        std::fs::write(&file, tokens.to_string()).unwrap();
        file
    }
}

/// Sends a browser to an address of this machine, and returns the answer.
async fn browse(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut socket = TcpStream::connect(host).await.unwrap();
    socket.write_all(format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

fn parameter(text: &str, name: &str) -> String {
    let found = text.split(['?', '&', '\n', ' ']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap();
    found.replace("%3A", ":").replace("%2F", "/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_signs_in_in_a_browser_and_the_kubeconfig_renews_the_token() {
    let fixture = LoginFixture::start(&["renewed"]).await;
    let (running, out, err) = fixture.run(&fixture.login());
    let browser = async {
        let page = until_text(&err, "code_challenge_method=S256").await;
        let redirect = parameter(&page, "redirect_uri");
        assert!(browse(&format!("{redirect}?code=x&state=other")).await.starts_with("HTTP/1.1 400"), "another sign-in");
        assert!(browse(&redirect.replace("callback", "favicon.ico")).await.starts_with("HTTP/1.1 404"));
        // The nonce of this sign-in is not among the server's tokens.
        let (state, nonce) = (parameter(&page, "state"), parameter(&page, "nonce"));
        assert!(browse(&format!("{redirect}?code={nonce}&state={state}")).await.contains("You are signed in."));
    };
    let (code, ()) = tokio::join!(running, browser);
    assert_eq!(code, 1, "{}{}", out.text(), err.text());
    assert!(err.text().contains("the server does not accept the token"), "{}", err.text());
    assert!(err.text().contains("its issuer is \"here\", its audience \"me\""), "{}", err.text());
    fixture.plane.stop().await;
}

async fn until_text(output: &CapturedOutput, wanted: &str) -> String {
    for _ in 0..1000 {
        if output.text().contains(wanted) {
            return output.text();
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{}", output.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_signs_in_on_another_device() {
    let fixture = LoginFixture::start(&["device", "renewed"]).await;
    let (code, out, err) = fixture.done(&format!("{} --device", fixture.login())).await;
    assert_eq!(code, 0, "{err}");
    let address = fixture.plane.address();
    assert_eq!(out, format!("Signed in as \"ann\" in the context \"root@{address}\".\n"));
    assert!(err.contains("ABCD-EFGH"), "{err}");
    let (code, out, err) = fixture.done(&format!("{} --device -o json", fixture.login())).await;
    let signed_in: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {code} {out} {err}"));
    let context = format!("root@{address}");
    assert_eq!((&signed_in["user"], &signed_in["context"]), (&json!("ann"), &json!(context)));
    assert!(signed_in["expires"].is_string() && !out.contains(&token("device", FAR)), "{out}");
    let kubeconfig = std::fs::read_to_string(fixture.folder.path().join("kubeconfig")).unwrap();
    assert!(!kubeconfig.contains(&token("device", FAR)), "no token is in the kubeconfig");
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    let user = kubeconfig["contexts"][0]["context"]["user"].as_str().unwrap();
    assert!(user.starts_with("oidc@127.0.0.1:"), "{user}");
    let users = kubeconfig["users"].as_array().unwrap();
    assert_eq!(users.len(), 2, "the administrator stays");
    let exec = &users.iter().find(|one| one["name"] == user).unwrap()["user"]["exec"];
    let args: Vec<&str> = exec["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args[..3], ["portolan", "login", "--credential"]);

    // kubectl runs this line.
    let line = args[1..].join(" ");
    let credential = async || {
        let (code, out, err) = fixture.done(&line).await;
        (code, serde_json::from_str::<Value>(&out).unwrap_or_default()["status"]["token"].clone(), err)
    };
    assert_eq!(credential().await.1, token("device", FAR).as_str(), "the token as it is");
    let file = fixture.keep(&serde_json::json!({"idToken": token("old", 1), "refreshToken": "r"}));
    assert_eq!(credential().await.1, token("renewed", FAR).as_str(), "an ended one is renewed");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for (case, kept, expected) in [
        ("a spent one", serde_json::json!({"idToken": token("old", 1), "refreshToken": "spent"}), "it is spent"),
        ("none", serde_json::json!({"idToken": token("old", 1)}), "cannot be renewed"),
    ] {
        fixture.keep(&kept);
        let (code, _, err) = credential().await;
        assert!(code == 1 && err.contains(expected) && err.contains("kubectl portolan login"), "{case}: {err}");
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(credential().await.2.contains("can be read by others"));
    fixture.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_is_named_by_flags_or_by_the_server() {
    let fixture = LoginFixture::start(&[]).await;
    for (line, expected) in [
        ("login", "the server has no issuer of tokens"),
        ("login --issuer http://issuer.example --client-id me", "is not of https"),
        ("login --issuer http://127.0.0.1:1 --client-id me", "does not answer"),
    ] {
        let (code, _, err) = fixture.done(line).await;
        assert!(code == 1 && err.contains(expected), "{line}: {err}");
    }
    assert_eq!(fixture.done("login --issuer https://a").await.0, 2, "an issuer has a client");
    fixture.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_the_console_is_printed_and_signs_in_once() {
    let fixture = LoginFixture::start(&[]).await;
    let (code, out, err) = fixture.done("ui").await;
    let address = fixture.plane.address();
    let prefix = format!("https://{address}/ui#/root/objects?link=");
    assert!(code == 0 && out.starts_with(&prefix), "{out}{err}");
    assert_eq!(err, "It signs portolan-admin in once, within 60 s.\n");
    let (_, out, err) = fixture.done("ui -o json").await;
    let link: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((link["seconds"].as_i64(), link["user"].as_str()), (Some(60), Some("portolan-admin")), "{err}");
    let code = link["url"].as_str().unwrap().split("link=").nth(1).unwrap().to_owned();
    for expected in [201, 401] {
        let body = serde_json::json!({"code": code}).to_string();
        let request = http::Request::post("/ui/session").header("x-portolan-console", "1");
        let request = request.body(http_body_util::Full::new(bytes::Bytes::from(body))).unwrap();
        let answer = portolan_apiserver::http::answer_connection(fixture.plane.api().clone(), None, request).await;
        assert_eq!(answer.status().as_u16(), expected);
    }
    let (code, _, err) = fixture.done("ui --as bob").await;
    assert!(code == 1 && err.contains("no sessions of impersonated users"), "{err}");
    fixture.plane.stop().await;
}
