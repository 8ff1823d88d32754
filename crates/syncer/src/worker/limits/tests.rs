//! A physical cluster that sends more data than the cache may hold.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::client::Body;
use portolan_types::{LogicalClusterId, annotations, object, placement::CopyPhase, upstream::CopyState};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::SyncLimits;
use crate::{
    SyncMemoryBudget,
    client::{DownstreamClient, DownstreamError},
    memory::RegistrationMemory,
    testing::{CannedAnswer, FakeCluster, suite::SyncStage},
};

/// Objects that these tests let be held.
const OBJECTS: u64 = 50;

async fn stage(cluster: &FakeCluster) -> SyncStage {
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.restarted_within(SyncLimits { objects: OBJECTS, bytes: 10_000_000 }).await
}

fn data(value: &str) -> Value {
    json!({"metadata": {}, "data": {"a": value}})
}

fn labelled(stage: &SyncStage, name: &str, data: &str) -> Value {
    let labels = json!({(annotations::DOWN_CLUSTER): "1009"});
    json!({"metadata": {"name": name, "namespace": stage.namespace(), "labels": labels}, "data": {"a": data}})
}

fn reason(stage: &SyncStage) -> String {
    match stage.upstream.cluster().map(|report| report.ready) {
        Some(Err((reason, _))) => reason,
        Some(Ok(())) => "Ready".to_owned(),
        None => "nothing".to_owned(),
    }
}

/// A list of ConfigMaps with a page for every token, of one object each.
fn endless_page(path: &str, next: &str, text: &str) -> Value {
    let name = format!("c{}", path.len() + path.bytes().map(usize::from).sum::<usize>());
    let labels = json!({(annotations::DOWN_CLUSTER): "1009"});
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": next},
        "items": [{"metadata": {"name": format!("{name}-{next}"), "namespace": "shop", "uid": next, "labels": labels}, "data": {"a": text}}]})
}

#[tokio::test(start_paused = true)]
async fn lists_without_end_stop_only_their_own_syncing_and_delete_nothing() {
    let number = |path: &str| -> usize {
        let token = path.rsplit_once("continue=").map_or("0", |(_, token)| token);
        token.parse().unwrap_or(0)
    };
    let fresh = move |path: &str| (number(path) + 1).to_string();
    let repeated = move |path: &str| (number(path) % 2 + 1).to_string();
    let large = "x".repeat(1_000_000);
    type Next = Box<dyn Fn(&str) -> String + Send>;
    let cases: [(&str, Next, &str, &str); 3] = [
        ("pages without end", Box::new(fresh), "", "LimitExceeded"),
        ("pages of large objects", Box::new(fresh), &large, "LimitExceeded"),
        ("a token that was given before", Box::new(repeated), "", "Ready"),
    ];
    for (case, next, text, expected) in cases {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        let text = text.to_owned();
        cluster.script(move |_, path| {
            let is_list = path.starts_with("/api/v1/configmaps?") && !path.contains("watch=true");
            is_list.then(|| CannedAnswer::Answer(200, endless_page(path, &next(path), &text)))
        });
        let stage = stage.restarted().await;
        let key = stage.place("configmaps", "b", data("1"), CopyPhase::Active);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(reason(&stage), expected, "{case}");
        assert_eq!(cluster.all("configmaps").len(), 1, "{case}: nothing is made, and nothing deleted");
        stage.upstream.delete(&key);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(cluster.requests("DELETE").is_empty(), "{case}");
        let before = cluster.requests("GET").len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(cluster.requests("GET").len() - before < 3000, "{case}: it is not asked without a pause");
        cluster.heal();
        stage.place("configmaps", "c", data("1"), CopyPhase::Active);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!((reason(&stage).as_str(), cluster.all("configmaps").len()), ("Ready", 2), "{case}: it recovers");
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_send_objects_without_end_stop_only_their_own_syncing_until_there_are_fewer() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let extra: Vec<Value> =
        (0..OBJECTS).map(|n| cluster.put("pods", labelled(&stage, &format!("extra-{n}"), ""))).collect();
    stage.until("it is reported on the physical cluster", async |s| reason(s) == "LimitExceeded").await.unwrap();
    let why = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { message, .. }) if message.contains("at most 50 objects"));
    stage.until("and of the copy", why).await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(reason(&stage), "LimitExceeded", "as long as they are there");
    stage.upstream.delete(&key);
    stage.until("what is deleted becomes a debt", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((stage.upstream.recorded_debts().len(), cluster.all("configmaps").len()), (0, 0), "which is paid");
    assert_eq!(cluster.all("pods").len(), extra.len(), "nothing else is deleted");
    extra.iter().for_each(|pod| cluster.remove("pods", pod));
    stage.place("configmaps", "b", data("1"), CopyPhase::Active);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!((reason(&stage).as_str(), cluster.all("configmaps").len()), ("Ready", 1));
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn objects_with_excessive_names_are_ignored() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let strange = cluster.put("configmaps", labelled(&stage, &"x".repeat(100_000), ""));
    tokio::time::sleep(Duration::from_secs(10)).await;
    cluster.remove("configmaps", &strange);
    stage.place("configmaps", "b", data("1"), CopyPhase::Active);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let names: Vec<String> = cluster.all("configmaps").iter().map(|copy| object::name(copy).to_owned()).collect();
    assert_eq!(names, ["a", "b"]);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_one_logical_cluster_take_no_more_than_its_share() {
    let cluster = FakeCluster::default();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    let stage = stage.restarted_within(SyncLimits { objects: 1000, bytes: 4_000_000 }).await;
    let large = data(&"x".repeat(400_000));
    let first = stage.place("configmaps", "a", large.clone(), CopyPhase::Active);
    stage.place("configmaps", "b", large.clone(), CopyPhase::Active);
    stage.until("two fit", async |_| cluster.all("configmaps").len() == 2).await.unwrap();
    let third = stage.place("configmaps", "c", large.clone(), CopyPhase::Active);
    let template = json!({"metadata": {"labels": {"app": "a"}, "annotations": {"a": "x".repeat(10_000)}}, "spec": {}});
    let many = json!({"metadata": {}, "spec": {"replicas": 100, "template": template}});
    let many = stage.place("deployments", "many", many, CopyPhase::Active);
    for key in [third, many] {
        let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "ShareExceeded");
        stage.until("a third and a hundred pods do not", told).await.unwrap();
    }
    let mut other = stage.key("configmaps", "d");
    other.cluster = portolan_types::LogicalClusterId::new(77);
    let kind = portolan_types::GroupVersionKind::new("", "v1", "ConfigMap");
    stage.upstream.place(&other, &kind, large, CopyPhase::Active, 1);
    stage.until("another workspace's does", async |_| cluster.all("configmaps").len() == 3).await.unwrap();
    assert_eq!(reason(&stage), "Ready");
    stage.upstream.delete(&first);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut names: Vec<String> = cluster.all("configmaps").iter().map(|copy| object::name(copy).to_owned()).collect();
    names.sort();
    assert_eq!(names, ["b", "c", "d"], "what did not fit comes when there is room");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn objects_with_too_large_trees_are_refused_and_reported() {
    let cluster = FakeCluster::default();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    let items = |count: usize| vec![json!({"a": 1}); count];
    let key = stage.place("configmaps", "a", json!({"metadata": {}, "items": items(30_000)}), CopyPhase::Active);
    let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "TooLarge");
    stage.until("a copy of 20 MB is refused", told).await.unwrap();
    assert_eq!((cluster.all("configmaps").len(), reason(&stage).as_str()), (0, "Ready"));
    stage.place("configmaps", "b", json!({"metadata": {}, "items": vec![json!({}); 200_000]}), CopyPhase::Active);
    stage.until("empty items take little", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let mut huge = labelled(&stage, "huge", "");
    huge["items"] = items(170_000).into();
    let huge = cluster.put("configmaps", huge);
    stage.until("an unreadable kind is reported", async |s| reason(s) == "LimitExceeded").await.unwrap();
    stage.place("services", "web", json!({"metadata": {}, "spec": {}}), CopyPhase::Active);
    stage.until("other kinds are synced", async |_| cluster.all("services").len() == 1).await.unwrap();
    cluster.remove("configmaps", &huge);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(reason(&stage), "Ready");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_registrations_of_one_workspace_stop_only_each_other() {
    let memory = Arc::new(SyncMemoryBudget::new(26_666_668));
    let (tenant, neighbor) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
    let mut stages = Vec::new();
    for (number, workspace) in
        (1..=6).map(|number| (number, tenant)).chain([(7, neighbor), (8, LogicalClusterId::ROOT)])
    {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), number).await.unwrap();
        let stage = stage.restarted_sharing(&memory, workspace).await;
        stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        stages.push((cluster, stage));
    }
    let mut hostile = Vec::new();
    for (cluster, stage) in &stages[..6] {
        let labels = json!({(annotations::DOWN_CLUSTER): "1"});
        let pod = |name: String| json!({"metadata": {"name": name, "namespace": stage.namespace(), "labels": labels}, "data": "x".repeat(1_000_000)});
        hostile.extend((0..5).map(|n| (cluster, cluster.put("pods", pod(format!("p{n}"))))));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let reasons: Vec<_> = stages.iter().map(|(_, stage)| reason(stage)).collect();
    let exceeded = reasons[..6].iter().filter(|reason| *reason == "LimitExceeded").count();
    assert!((3..=6).contains(&exceeded), "30 MB in a share of 10 MB: {reasons:?}");
    assert!(memory.used() <= 11_000_000, "{}", memory.used());
    let message = stages[..6].iter().filter_map(|(_, stage)| stage.upstream.cluster()?.ready.err()).next().unwrap().1;
    // Half of the rest that the neighbor leaves of three quarters.
    assert!(message.contains("registered in this workspace may take 99"), "{message}");
    for (cluster, stage) in &stages[6..] {
        stage.place("configmaps", "b", data("1"), CopyPhase::Active);
        stage.until("others are synced", async |_| cluster.all("configmaps").len() == 2).await.unwrap();
        assert_eq!(reason(stage), "Ready");
    }
    hostile.iter().for_each(|(cluster, pod)| cluster.remove("pods", pod));
    tokio::time::sleep(Duration::from_secs(120)).await;
    let reasons: Vec<_> = stages.iter().map(|(_, stage)| reason(stage)).collect();
    assert!(reasons.iter().all(|reason| reason == "Ready"), "all recover: {reasons:?}");
    for (_, stage) in stages {
        stage.handle.stop().await;
    }
}

fn frames(receiver: UnboundedReceiver<Bytes>) -> impl Stream<Item = Result<Frame<Bytes>, tower::BoxError>> {
    stream::unfold(receiver, async |mut receiver| Some((Ok(Frame::data(receiver.recv().await?)), receiver)))
}

#[tokio::test(start_paused = true)]
async fn answers_that_arrive_slowly_count_while_they_arrive() {
    let memory = Arc::new(SyncMemoryBudget::new(10_666_668));
    let registration = RegistrationMemory::new(memory.clone(), LogicalClusterId::new(7), SyncLimits::default());
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let parts = receiver.lock().unwrap().take();
        async move {
            let parts = StreamBody::new(Box::pin(frames(parts.unwrap())));
            Ok::<_, tower::BoxError>(http::Response::new(parts))
        }
    });
    let api = DownstreamClient::new(kube::Client::new(service, "default"), Duration::from_secs(5))
        .charging(registration.clone());
    let reading = tokio::spawn(async move { api.get("/api/v1/pods").await });
    sender.send(Bytes::from(vec![b' '; 1_000_000])).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((memory.used(), registration.bytes_arriving()), (1_000_000, 1_000_000));
    sender.send(Bytes::from(vec![b' '; 4_000_000])).unwrap();
    let answer = reading.await.unwrap();
    assert!(matches!(answer, Err(DownstreamError::Excessive(_))), "{answer:?}");
    assert_eq!(memory.used(), 0);
}
