//! One logical cluster's flood leaves room for the others (row R5 of the threat model).

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use portolan_apiserver::Body;
use serde_json::json;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::common::{Client, MAPS, Plane, config_map};

const WRITES: usize = 8;
const WAITING: usize = 20;

/// Sends a write whose body never comes.
fn hang(client: &Client, flood: &mut JoinSet<Response<Body>>) {
    let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let request = Request::post(format!("{}{MAPS}", client.base)).header("content-type", "application/json");
    let sent = client.service.clone().oneshot(request.body(body).unwrap());
    flood.spawn(async move { sent.await.unwrap() });
}

/// Lets what was sent get as far as it gets.
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
    assert_eq!(turned_away, WRITES - seats + 30, "the rest is told to come back");
    for n in 0..3 {
        calm.post(MAPS, config_map(&format!("m{n}"), json!({}))).await.expect(201);
        noisy.get(MAPS).await.expect(200);
    }
    let metrics = admin.get("/metrics").await.expect(200).text();
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"logical-clusters\",priority_level=\"writes\",\
                    reason=\"queue-full\"}";
    assert!(metrics.contains(&format!("{rejected} {turned_away}")), "{metrics}");
    flood.shutdown().await;
    noisy.post(MAPS, config_map("after", json!({}))).await.expect(201);
}
