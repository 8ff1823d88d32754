//! One logical cluster's flood leaves room for the others (row R5 of the threat model).

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use portolan_apiserver::{ApiServerConfig, Body};
use portolan_types::Seams;
use serde_json::json;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::common::{Client, Faulty, MAPS, Plane, config_map};

const WRITES: usize = 8;
const WAITING: usize = 20;

/// Sends a write whose body never comes.
fn hang(client: &Client, flood: &mut JoinSet<Response<Body>>) {
    let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let request = Request::post(format!("{}{MAPS}", client.base)).header("content-type", "application/json");
    let sent = client.service.clone().oneshot(request.body(body).unwrap());
    flood.spawn(async move { sent.await.unwrap() });
}

/// Lets pending requests make progress.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_flood_of_slow_writes_leaves_others_their_share() {
    let plane = Plane::with(|config| {
        (config.limits.writes, config.limits.waiting) = (WRITES, WAITING);
        config.limits.patience = Duration::from_secs(3600);
        config.limits.write_timeout = Duration::from_secs(3600);
        config.limits.body_timeout = Duration::from_secs(3600);
    })
    .await;
    let admin = plane.admin();
    for name in ["flood", "calm"] {
        admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": name}})).await.expect(201);
    }
    let (noisy, calm) = (admin.at("root:flood"), admin.at("root:calm"));
    let mut flood = JoinSet::new();
    for _ in 0..WRITES + WAITING + 30 {
        hang(&noisy, &mut flood);
    }
    settle().await;
    let mut turned_away = 0;
    while let Some(answer) = flood.try_join_next() {
        let answer = answer.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &http::HeaderValue::from(1)));
        turned_away += 1;
    }
    let seats = WRITES * 3 / 4;
    assert_eq!(flood.len(), seats + WAITING, "what has a seat or waits for one");
    assert_eq!(turned_away, WRITES - seats + 30, "the others get 429");
    for n in 0..3 {
        calm.post(MAPS, config_map(&format!("m{n}"), json!({}))).await.expect(201);
        noisy.get(MAPS).await.expect(200);
    }
    let metrics = admin.get("/metrics").await.expect(200).text();
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"logical-clusters\",priority_level=\"bodies\",\
                    reason=\"queue-full\"}";
    assert!(metrics.contains(&format!("{rejected} {turned_away}")), "{metrics}");
    flood.shutdown().await;
    noisy.post(MAPS, config_map("after", json!({}))).await.expect(201);
}

#[tokio::test]
async fn a_tenant_has_no_more_seats_for_having_more_workspaces() {
    let plane = Plane::with(|config| {
        (config.limits.writes, config.limits.waiting) = (WRITES, 200);
        config.limits.patience = Duration::from_secs(3600);
        config.limits.write_timeout = Duration::from_secs(3600);
        config.limits.body_timeout = Duration::from_secs(3600);
    })
    .await;
    let admin = plane.admin();
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    for name in ["flood", "calm"] {
        admin.post(workspaces, json!({"metadata": {"name": name}})).await.expect(201);
    }
    let (noisy, calm) = (admin.at("root:flood"), admin.at("root:calm"));
    for n in 0..6 {
        noisy.post(workspaces, json!({"metadata": {"name": format!("w{n}")}})).await.expect(201);
    }
    let mut flood = JoinSet::new();
    for n in (0..6).cycle().take(60) {
        hang(&admin.at(&format!("root:flood:w{n}")), &mut flood);
    }
    settle().await;
    assert_eq!(flood.len(), 60, "they have seats or wait");
    for n in 0..3 {
        calm.post(MAPS, config_map(&format!("m{n}"), json!({}))).await.expect(201);
    }
    flood.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_ends_soon_and_holds_no_seat() {
    let plane = Plane::with(|config| config.limits.writes = WRITES).await;
    let admin = plane.admin();
    let mut flood = JoinSet::new();
    for _ in 0..WRITES / 2 {
        hang(&admin, &mut flood);
    }
    settle().await;
    admin.delete(&format!("{MAPS}/none")).await.expect(404);
    let started = tokio::time::Instant::now();
    while let Some(answer) = flood.join_next().await {
        assert_eq!(answer.unwrap().status(), 504);
    }
    assert_eq!(started.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn a_full_queue_is_answered_with_retry_after() {
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    store.overload(true);
    let refused = admin.post(MAPS, config_map("m", json!({}))).await.expect(429);
    assert_eq!(refused.headers["retry-after"], "1");
    let status = refused.json();
    assert_eq!((&status["reason"], &status["details"]["retryAfterSeconds"]), (&json!("TooManyRequests"), &json!(1)));
    admin.get(&format!("{MAPS}/m")).await.expect(404);
    store.overload(false);
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
}

#[tokio::test]
async fn answers_that_are_not_read_and_large_bodies_take_no_more_bytes_than_a_tenants_share() {
    const MIB: usize = 1024 * 1024;
    let plane = Plane::with(|config| config.limits.bytes = 4 * MIB).await;
    let admin = plane.admin();
    for name in ["flood", "calm"] {
        admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": name}})).await.expect(201);
    }
    let (noisy, calm) = (admin.at("root:flood"), admin.at("root:calm"));
    let large = |name: &str| {
        let mut object = config_map(name, json!({}));
        object["data"] = json!({"k": "v".repeat(MIB * 3 / 5)});
        object
    };
    for client in [&noisy, &calm] {
        client.post(MAPS, large("a")).await.expect(201);
    }
    let get = |client: &Client, query: &str| {
        let (client, uri) = (client.clone(), format!("{}{MAPS}{query}", client.base));
        async move { client.raw(Request::get(uri).body(Full::default()).unwrap()).await }
    };
    // One user may use half of all memory.
    let mut unread = Vec::new();
    for query in ["/a", "?limit=1", "/a"] {
        let answer = get(&noisy, query).await;
        assert_eq!(answer.status().as_u16(), 200);
        unread.push(answer);
    }
    for query in ["/a", "?limit=1"] {
        let refused = get(&noisy, query).await;
        assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &http::HeaderValue::from(1)));
    }
    noisy.post(MAPS, large("b")).await.expect(429);
    noisy.post(MAPS, config_map("small", json!({}))).await.expect(201);
    noisy.get(&format!("{MAPS}/small")).await.expect(200);
    calm.post(MAPS, large("b")).await.expect(201);
    calm.get(&format!("{MAPS}/b")).await.expect(200);
    drop(unread);
    noisy.post(MAPS, large("b")).await.expect(201);
    assert_eq!(
        noisy.get(&format!("{MAPS}?limit=1")).await.expect(200).json()["items"].as_array().map(Vec::len),
        Some(1)
    );
}
