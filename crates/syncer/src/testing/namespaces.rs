//! Namespaces downstream that the worker did not make.

use std::{sync::Arc, time::Duration};

use portolan_types::{object, placement::CopyPhase, upstream::CopyState};
use serde_json::{Value, json};

use super::{FakeCluster, MemoryUpstream, suite::SyncStage};
use crate::NamespaceIdentity;

async fn stage(cluster: &FakeCluster) -> SyncStage {
    SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap()
}

fn data(value: &str) -> Value {
    json!({"metadata": {}, "data": {"a": value}})
}

#[tokio::test(start_paused = true)]
async fn a_foreign_namespace_is_not_used() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    cluster.put("namespaces", json!({"metadata": {"name": stage.namespace()}}));
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "Conflict");
    stage.until("the conflict is told", told).await.unwrap();
    assert_eq!(cluster.all("configmaps").len(), 0);
    let conflicts = |s: &SyncStage| s.upstream.cluster().map_or(0, |report| report.namespace_conflicts.len());
    stage.until("and told of the physical cluster", async |s| conflicts(s) == 1).await.unwrap();
    stage.upstream.delete(&key);
    stage.until("until nothing is to go there", async |s| conflicts(s) == 0).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_released_namespace_is_used_and_stays() {
    for (case, value, is_used) in [("released", "true", true), ("another value", "false", false)] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        let annotations = json!({crate::ADOPTABLE_NAMESPACE: value});
        cluster.put("namespaces", json!({"metadata": {"name": stage.namespace(), "annotations": annotations}}));
        let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        if is_used {
            stage.until(case, async |_| cluster.all("configmaps").len() == 1).await.unwrap();
            assert!(NamespaceIdentity::of(&cluster.all("namespaces")[0]).is_some(), "{case}");
        } else {
            let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { .. }));
            stage.until(case, told).await.unwrap();
        }
        stage.upstream.delete(&key);
        stage.until("nothing is there", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.all("namespaces").len(), 1, "{case}: it was there before");
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_taken_over_only_when_it_is_empty_and_its_owner_is_gone() {
    let left = |plane: Option<&str>, physical: &str| NamespaceIdentity {
        cluster: "elsewhere".into(),
        namespace: "shop".into(),
        physical: physical.parse().unwrap(),
        plane: plane.map(str::to_owned),
    };
    let ours = Some(MemoryUpstream::PLANE);
    for (case, identity, content, expected) in [
        ("of a physical cluster that is gone", left(ours, "gone"), None, None),
        ("of one that is gone, with a claim in it", left(ours, "gone"), Some("theirs"), Some("holds objects")),
        ("of one that is there", left(ours, "other"), None, Some("another PhysicalCluster")),
        ("of another control plane", left(Some("other"), "gone"), None, Some("another control plane")),
        ("of a control plane of before there were names", left(None, "gone"), None, Some("another control plane")),
    ] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        stage.upstream.register("other".parse().unwrap());
        cluster.put("namespaces", identity.to_namespace(&stage.namespace().parse().unwrap()));
        if let Some(name) = content {
            let claim = json!({"metadata": {"name": name, "namespace": stage.namespace()}});
            cluster.put("persistentvolumeclaims", claim);
        }
        let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        match expected {
            None => {
                stage.until(case, async |_| cluster.all("configmaps").len() == 1).await.unwrap();
                let owner = NamespaceIdentity::of(&cluster.all("namespaces")[0]).unwrap().physical;
                assert_ne!(&*owner, "gone", "{case}");
            }
            Some(text) => {
                let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { message, .. }) if message.contains(text));
                stage.until(case, told).await.unwrap();
                assert_eq!(cluster.all("configmaps").len(), 0, "{case}");
            }
        }
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_namespace_of_one_that_is_gone_is_removed() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.upstream.register("other".parse().unwrap());
    let identity = |physical: &str| NamespaceIdentity {
        cluster: "elsewhere".into(),
        namespace: "shop".into(),
        physical: physical.parse().unwrap(),
        plane: Some(MemoryUpstream::PLANE.into()),
    };
    for (name, physical) in [("of-nobody", "gone"), ("of-another", "other"), ("in-use", "gone")] {
        cluster.put("namespaces", identity(physical).to_namespace(&name.parse().unwrap()));
    }
    cluster.put("persistentvolumeclaims", json!({"metadata": {"name": "theirs", "namespace": "in-use"}}));
    let names = || -> Vec<String> { cluster.all("namespaces").iter().map(|n| object::name(n).to_owned()).collect() };
    stage.until("it is removed", async |_| !names().contains(&"of-nobody".to_owned())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(names(), ["in-use", "of-another"]);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_conflicting_namespace_is_hidden_from_tenants() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let identity = NamespaceIdentity {
        cluster: "another-tenant".into(),
        namespace: "secret-plans".into(),
        physical: "physical-9".parse().unwrap(),
        plane: Some(MemoryUpstream::PLANE.into()),
    };
    cluster.put("namespaces", identity.to_namespace(&stage.namespace().parse().unwrap()));
    let claim = json!({"metadata": {"name": "theirs", "namespace": stage.namespace()}});
    cluster.put("persistentvolumeclaims", claim);
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    let conflicts = |s: &SyncStage| s.upstream.cluster().map(|report| report.namespace_conflicts).unwrap_or_default();
    stage.until("the conflict is told", async |s| conflicts(s).len() == 1).await.unwrap();
    let Some(CopyState::Failed { reason, message, .. }) = stage.upstream.last_report(&key) else {
        panic!("it is told")
    };
    assert_eq!((&*reason, message), ("Conflict", format!("the namespace {} is in use", stage.namespace())));
    let whose = ", for the namespace secret-plans of the logical cluster another-tenant";
    assert_eq!(conflicts(&stage), [format!("the namespace {} is in use{whose}", stage.namespace())]);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn upstream_is_asked_once_a_minute_for_the_physical_cluster_of_many_namespaces() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.upstream.register("other".parse().unwrap());
    let put = |physical: &str, number: usize| {
        let identity = NamespaceIdentity {
            cluster: "elsewhere".into(),
            namespace: format!("shop-{number}"),
            physical: physical.parse().unwrap(),
            plane: Some(MemoryUpstream::PLANE.into()),
        };
        cluster.put("namespaces", identity.to_namespace(&format!("{physical}-{number}").parse().unwrap()));
    };
    (0..20).for_each(|number| put("other", number));
    (0..20).for_each(|number| put("physical-9", number));
    stage.until("its own are removed", async |_| cluster.all("namespaces").len() == 20).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.upstream.times_asked(), 1, "none for its own, one for the other's");
    tokio::time::sleep(Duration::from_secs(60)).await;
    (20..40).for_each(|number| put("other", number));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.upstream.times_asked(), 2);
    stage.handle.stop().await;
}
