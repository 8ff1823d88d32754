//! Credentials that end, that are for others, and what they tell of places that are not theirs.

use crate::common::{Client, Hands, MAPS, Plane, Watch};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use portolan_apiserver::serve::answer_connection;
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

/// An account that may look at everything, and a token of it for an hour.
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
    ends(&mut of_gone, 401).await;
    let quiet = tokio::time::timeout(Duration::from_secs(60), of_late.next()).await;
    assert!(quiet.is_err(), "the other one goes on: {quiet:?}");
    hands.forward(3600);
    ends(&mut of_late, 401).await;
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
async fn a_token_from_the_file_is_for_this_server_and_for_nobody_else() {
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
async fn strangers_are_told_the_same_of_places_that_are_there_and_that_are_not() {
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
