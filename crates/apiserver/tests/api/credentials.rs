//! Credentials that expire or belong elsewhere, and the answers to them that must reveal nothing.

use crate::common::{Client, Hands, MAPS, Plane, Watch};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use portolan_apiserver::http::answer_connection;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

fn binding(name: &str, subject: Value, role: &str) -> Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
    json!({"metadata": {"name": name}, "subjects": [subject], "roleRef": role})
}

fn person(name: &str) -> Value {
    json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name})
}

/// A ServiceAccount that may read everything, and a token of it for an hour.
async fn account(admin: &Client, name: &str) -> String {
    admin.post(ACCOUNTS, json!({"metadata": {"name": name}})).await.expect(201);
    let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": "default"});
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    admin.post(&bindings, binding(name, subject, "view")).await.expect(201);
    let request = json!({"spec": {"expirationSeconds": 3600}});
    let made = admin.post(&format!("{ACCOUNTS}/{name}/token"), request).await.expect(201).json();
    made["status"]["token"].as_str().unwrap().to_owned()
}

async fn watch_by(plane: &Plane, token: &str) -> Watch {
    let request = Request::get(format!("/clusters/root{MAPS}?watch=true&resourceVersion=1"));
    let request = request.header("authorization", format!("Bearer {token}")).body(Full::new(Bytes::new())).unwrap();
    Watch::of(answer_connection(plane.api.clone(), None, request).await)
}

/// A watch ends without an error, soon: the client starts it again, with a new token.
async fn ends_quietly(watch: &mut Watch) {
    let started = Instant::now();
    assert_eq!(watch.next().await, None);
    assert!(started.elapsed() <= Duration::from_secs(11));
}

/// A watch ends with this code, soon.
async fn ends(watch: &mut Watch, code: u16) {
    let started = Instant::now();
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(code)));
    assert!(started.elapsed() <= Duration::from_secs(11));
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_the_token_it_began_by() {
    let hands = Hands::now();
    let plane = Plane::with(|config| config.seams = hands.seams()).await;
    let admin = plane.admin();
    let (gone, late) = (account(&admin, "gone").await, account(&admin, "late").await);
    let (mut of_gone, mut of_late) = (watch_by(&plane, &gone).await, watch_by(&plane, &late).await);
    admin.delete(&format!("{ACCOUNTS}/gone")).await.expect(200);
    ends_quietly(&mut of_gone).await;
    let quiet = tokio::time::timeout(Duration::from_secs(60), of_late.next()).await;
    assert!(quiet.is_err(), "the other one goes on: {quiet:?}");
    hands.forward(3600);
    ends_quietly(&mut of_late).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_in_anothers_name_ends_with_the_right_to_it() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let role = json!({"metadata": {"name": "impersonator"},
        "rules": [{"verbs": ["impersonate"], "apiGroups": ["*"], "resources": ["*"]}]});
    admin.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let bindings = format!("{RBAC}/clusterrolebindings");
    admin.post(&bindings, binding("i", person("ann"), "impersonator")).await.expect(201);
    admin.post(&bindings, binding("v", person("bob"), "view")).await.expect(201);
    let path = format!("{MAPS}?watch=true&resourceVersion=1");
    let mut watch = ann.watch(&path, &[("impersonate-user", "bob")]).await;
    let quiet = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
    assert!(quiet.is_err(), "it goes on: {quiet:?}");
    admin.delete(&format!("{bindings}/i")).await.expect(200);
    ends(&mut watch, 403).await;
}

#[tokio::test]
async fn a_token_of_the_file_has_this_servers_audience_only() {
    let plane = Plane::new().await;
    let (admin, own) = (plane.admin(), plane.api.tokens().issuer().to_owned());
    let none = json!({"user": {}, "error": "invalid bearer token"});
    for (case, asked, good) in [
        ("nothing is asked for", json!(null), Some(json!([own]))),
        ("itself", json!([own]), Some(json!([own]))),
        ("itself and another", json!(["vault", own]), Some(json!([own]))),
        ("another", json!(["vault"]), None),
    ] {
        let review = json!({"spec": {"token": "t-ann", "audiences": asked}});
        let status = admin.post(REVIEWS, review).await.expect(201).json()["status"].clone();
        match good {
            Some(good) => {
                assert_eq!(
                    (&status["authenticated"], &status["user"]["username"]),
                    (&json!(true), &json!("ann")),
                    "{case}"
                );
                assert_eq!(status["audiences"], good, "{case}");
            }
            None => assert_eq!(status, none, "{case}"),
        }
    }
}

#[tokio::test]
async fn strangers_get_equal_answers_for_existing_and_missing_workspaces() {
    let plane = Plane::new().await;
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    plane.admin().post(workspaces, json!({"metadata": {"name": "secret"}})).await.expect(201);
    let ann = plane.as_user("ann");
    let headers: [&[(&str, &str)]; 8] = [
        &[],
        &[("impersonate-user", "bob")],
        &[("impersonate-user", "bob"), ("impersonate-group", "system:masters")],
        &[("impersonate-user", "system:node:n")],
        &[("impersonate-user", "system:serviceaccount:default:default")],
        &[("impersonate-user", "ann")],
        &[("impersonate-group", "g")],
        &[("impersonate-uid", "7")],
    ];
    for path in ["/api/v1/pods", "/api", "/apis/apps/v1/namespaces/a/deployments/d", "/livez", "/version", "/nothing"] {
        for headers in headers {
            let (there, nowhere) = (ann.at("root:secret"), ann.at("root:nothere"));
            let there = there.send("GET", path, headers, "").await;
            let nowhere = nowhere.send("GET", path, headers, "").await;
            assert_eq!((there.code, there.text()), (nowhere.code, nowhere.text()), "{path} {headers:?}");
        }
    }
}

#[tokio::test]
async fn a_lifetime_beyond_the_longest_is_shortened_with_a_warning() {
    const DAY: i64 = 24 * 60 * 60;
    for (longest, asked, given) in
        [(DAY, 1_000_000_000, DAY), (DAY, DAY, DAY), (DAY, 600, 600), (0, 1_000_000_000, 1_000_000_000)]
    {
        let plane = Plane::with(|config| config.token_max = Duration::from_secs(longest.unsigned_abs())).await;
        let admin = plane.admin();
        admin.post(ACCOUNTS, json!({"metadata": {"name": "bot"}})).await.expect(201);
        let request = json!({"spec": {"expirationSeconds": asked}});
        let answer = admin.post(&format!("{ACCOUNTS}/bot/token"), request).await.expect(201);
        let warnings: Vec<_> =
            answer.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
        let expected = format!("299 - \"requested expiration of {asked} seconds shortened to {given} seconds\"");
        assert_eq!(warnings, if asked > given { vec![expected.as_str()] } else { Vec::new() });
        let made = answer.json();
        assert_eq!(made["spec"]["expirationSeconds"], given);
        let time = |text: &Value| text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second();
        let ends = time(&made["status"]["expirationTimestamp"]) - time(&made["metadata"]["creationTimestamp"]);
        assert!((given - 1..=given + 1).contains(&ends), "{ends}");
    }
}

#[tokio::test]
async fn a_new_signing_key_keeps_sessions_while_the_old_one_verifies() {
    let folder = tempfile::tempdir().unwrap();
    let (store, data) = (portolan_store::memory(), folder.path().join("data"));
    let config = || portolan_apiserver::ApiServerConfig::in_directory(data.clone(), portolan_types::Seams::system());
    let old_key = data.join("pki/service-accounts.key");
    let new_key = folder.path().join("new.key");
    let first = Plane::on(store.clone(), config()).await;
    let old = account(&first.admin(), "bot").await;
    let other =
        portolan_apiserver::ApiServerConfig::in_directory(folder.path().join("other"), portolan_types::Seams::system());
    portolan_apiserver::pki::Pki::open(&other).unwrap();
    std::fs::copy(folder.path().join("other/pki/service-accounts.key"), &new_key).unwrap();

    let is_good = async |plane: &Plane, token: &str| {
        let review = plane.admin().post(REVIEWS, json!({"spec": {"token": token}})).await.expect(201).json();
        review["status"]["authenticated"] == true
    };
    let token = async |plane: &Plane| {
        let made = plane.admin().post(&format!("{ACCOUNTS}/bot/token"), json!({"spec": {}})).await.expect(201).json();
        made["status"]["token"].as_str().unwrap().to_owned()
    };
    let keys = async |plane: &Plane| {
        plane.admin().get("/openid/v1/jwks").await.expect(200).json()["keys"].as_array().unwrap().len()
    };
    // Before a server signs with the new key, all have to know it.
    let mut announced = config();
    announced.token_keys = vec![new_key.clone()];
    let announced = Plane::on(store.clone(), announced).await;
    let mut switched = config();
    (switched.token_signing_key, switched.token_keys) = (Some(new_key.clone()), vec![old_key]);
    let switched = Plane::on(store.clone(), switched).await;
    let new = token(&switched).await;
    assert_eq!((keys(&first).await, keys(&announced).await, keys(&switched).await), (1, 2, 2));
    for plane in [&announced, &switched] {
        assert!(is_good(plane, &old).await && is_good(plane, &new).await);
    }
    assert!(is_good(&announced, &token(&announced).await).await, "it signs with the old one");
    let mut done = config();
    done.token_signing_key = Some(new_key);
    let done = Plane::on(store, done).await;
    assert!(is_good(&done, &new).await && !is_good(&done, &old).await, "the old key is out of use");
}
