//! Tests of merged usage.

use serde_json::{Value, json};

use super::{merge, *};

fn usage(cpu: &str, memory: &str) -> Value {
    json!({"cpu": cpu, "memory": memory})
}

#[test]
fn usage_of_a_pod_has_its_upstream_name_and_nothing_else_of_the_answer() {
    let pod = json!({"metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c"}, {"name": "log"}]}});
    let item = |at: &str, container: &str, cpu: &str| {
        json!({"metadata": {"name": "web-x", "namespace": "p-1", "labels": {"foreign": "1"}}, "timestamp": at,
            "window": "15.1s", "containers": [{"name": container, "usage": {"cpu": cpu, "memory": "20Mi", "x": "y"}}]})
    };
    let now = "2026-01-01T00:00:00Z";
    let expected = json!({"metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"},
        "creationTimestamp": now}, "timestamp": now, "window": "15.1s",
        "containers": [{"name": "c", "usage": {"cpu": "1500u", "memory": "20Mi"}}]});
    assert_eq!(merge::pod(&pod, &item(now, "c", "1500000n")), Some(expected));
    for (case, item) in [
        ("a time", item("today", "c", "1m")),
        ("a container", item(now, "other", "1m")),
        ("an amount", item(now, "c", "much")),
        ("anything", json!({})),
    ] {
        assert_eq!(merge::pod(&pod, &item), None, "{case} that makes no sense");
    }
}

#[test]
fn usage_of_a_node_is_that_of_all_nodes_of_its_physical_cluster() {
    let node = json!({"metadata": {"name": "east"}});
    let item = |at: &str, window: &str, cpu: &str, memory: &str| json!({"timestamp": at, "window": window, "usage": usage(cpu, memory)});
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z");
    let items = [item(new, "10s", "250m", "1Gi"), item(old, "80s", "750m", "512Mi"), json!({"usage": {}})];
    let sum = |items: &[Value]| {
        let mut sum = merge::NodeUsage::default();
        items.iter().for_each(|item| sum.add(item));
        sum.of(&node)
    };
    let merged = sum(&items).unwrap();
    assert_eq!(merged["usage"], usage("1", "1536Mi"));
    assert_eq!((&merged["timestamp"], &merged["window"]), (&json!(old), &json!("1m20s")));
    assert_eq!(sum(&[]), None);
}

#[test]
fn warnings_name_the_physical_cluster_and_nothing_of_its_connection() {
    let asked = AskedCluster { name: "east".into(), uid: "u".parse().unwrap() };
    let refused = |code| StreamError::Refused { code, reason: String::new(), message: "10.0.0.1".into() };
    for (gap, why) in [
        (UsageGap::NoAnswer(StreamError::Unreachable("10.0.0.1".into())), "it cannot be reached"),
        (UsageGap::NoClient(ClusterClientError::Unusable("10.0.0.1".into())), "it cannot be reached"),
        (UsageGap::NoAnswer(refused(404)), "it does not serve metrics.k8s.io"),
        (UsageGap::NoAnswer(refused(500)), "it cannot be reached"),
        (UsageGap::Late, "it does not answer in time"),
    ] {
        assert_eq!(warning(&asked, &gap), format!("usage on physical cluster \"east\" is missing: {why}"));
    }
}

#[test]
fn containers_that_were_injected_downstream_cost_no_others() {
    let pod = json!({"metadata": {"name": "web-1", "namespace": "shop"}, "spec": {"containers": [{"name": "c"}]}});
    let container = |name: &str| json!({"name": name, "usage": usage("1m", "1Mi")});
    let item = json!({"timestamp": "2026-01-01T00:00:00Z", "window": "15s",
        "containers": [container("istio-proxy"), container("c"), json!({"usage": {}})]});
    assert_eq!(merge::pod(&pod, &item).unwrap()["containers"], json!([container("c")]));
}

#[tokio::test(start_paused = true)]
async fn silent_physical_clusters_hide_no_others() {
    let named = |n: usize| AskedCluster { name: format!("c{n:03}"), uid: format!("u{n}").parse().unwrap() };
    let clusters: Vec<_> = (0..100).map(named).collect();
    let asking = clusters.iter().enumerate().map(|(n, asked)| {
        let answer: BoxFuture<'_, Result<MeasuredItems, UsageGap>> = if n == 99 {
            Box::pin(async move { Ok(vec![(0, json!({"found": true}))]) })
        } else {
            Box::pin(std::future::pending())
        };
        AskedUsage { asked, answer }
    });
    let begun = Instant::now();
    let (found, warnings) = gather(asking.collect()).await;
    assert_eq!((found.len(), warnings.len()), (1, 99));
    assert_eq!(warnings[0], "usage on physical cluster \"c000\" is missing: it does not answer in time");
    assert!(begun.elapsed() <= PATIENCE, "{:?}", begun.elapsed());
}
