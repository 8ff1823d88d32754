//! Followers come with what names them, whatever was there first, and leave when nothing names or selects them any
//! more.

use super::*;

fn pod_naming(map: &str) -> Value {
    json!({"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": map}}]}]})
}

/// Objects that a physical cluster shows of a template that it keeps.
fn shown_from(physical: &str, mut object: Value) -> Value {
    let uid = format!("physicalclusters-{physical}").parse().unwrap();
    let copy = portolan_types::placement::PlacedCopy {
        name: physical.into(),
        uid,
        phase: CopyPhase::Projected,
        replicas: None,
        epoch: 0,
    };
    PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
    object
}

impl World {
    async fn content(&self, names: &[&str]) {
        for name in names {
            let kind = if name.starts_with("secrets") { "Secret" } else { "ConfigMap" };
            self.create(shop(name), "v1", kind, json!({})).await;
        }
    }

    async fn remove(&self, key: &ObjectKey) {
        let txn = portolan_store::Transaction::one(key.clone(), portolan_store::Expect::Anything, None);
        self.store.commit(txn).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_follows_its_ingress_in_any_order_of_creation() {
    let referrers = ["ingresses.networking.k8s.io/shop/web", "serviceaccounts/shop/robot"];
    for last in referrers {
        let world = World::new(&["east"]).await;
        world.content(&["secrets/shop/cert", "secrets/shop/pull"]).await;
        world.deployment("web", json!({"serviceAccountName": "robot", "containers": [{"name": "c"}]})).await;
        world.placed(&shop("deployments.apps/shop/web"), "east").await;
        world.create(shop("services/shop/web"), "v1", "Service", json!({"spec": {}})).await;
        let create = async |referrer: &str| {
            if referrer.starts_with("ingresses") {
                let spec = json!({"spec": {"tls": [{"hosts": ["a"], "secretName": "cert"}]}});
                world.create(shop(referrer), "networking.k8s.io/v1", "Ingress", spec).await
            } else {
                let pull = json!({"imagePullSecrets": [{"name": "pull"}]});
                world.create(shop(referrer), "v1", "ServiceAccount", pull).await
            }
        };
        for referrer in referrers.iter().filter(|referrer| **referrer != last).chain([&last]) {
            world.settle().await;
            create(referrer).await;
            world.placed(&shop(referrer), "east").await;
        }
        world.placed(&shop("secrets/shop/cert"), "east").await;
        world.placed(&shop("secrets/shop/pull"), "east").await;
        world.remove(&shop(last)).await;
        let left = if last.starts_with("ingresses") { "secrets/shop/cert" } else { "secrets/shop/pull" };
        world.placed(&shop(left), "east-").await;
    }
}

#[tokio::test(start_paused = true)]
async fn content_leaves_once_nothing_names_it_although_the_namespace_runs_there() {
    let world = World::new(&["east"]).await;
    world.content(&["configmaps/shop/old", "configmaps/shop/new", "secrets/shop/other"]).await;
    let web = shop("deployments.apps/shop/web");
    world.deployment("web", pod_naming("old")).await;
    world.deployment("api", json!({"containers": [{"name": "c"}]})).await;
    let old = shop("configmaps/shop/old");
    world.placed(&old, "east").await;
    // The ReplicaSet of the first template, which stays in the history for a while.
    let set = shop("replicasets.apps/shop/web-1");
    let template = json!({"spec": {"replicas": 0, "template": {"spec": pod_naming("old")}}});
    world.create(set.clone(), "apps/v1", "ReplicaSet", shown_from("east", template)).await;
    world
        .change(&web, |web| {
            web["spec"]["template"]["spec"] = pod_naming("new");
            web["metadata"]["generation"] = 2.into();
        })
        .await;
    world.placed(&shop("configmaps/shop/new"), "east").await;
    world.settle().await;
    assert_eq!(words(world.get(&old).await.as_ref()), "east", "a rollback needs it");
    world.remove(&set).await;
    world.placed(&old, "east-").await;
    world.confirm_gone(&old).await;
    world.settle().await;
    let placement = world.placement(&old).await.unwrap();
    assert_eq!(placement["status"]["clusters"], Value::Null, "its Placement shows no copy any more");
    assert_eq!(words(world.get(&shop("configmaps/shop/new")).await.as_ref()), "east");
}

#[tokio::test(start_paused = true)]
async fn content_leaves_when_its_label_or_its_policy_goes() {
    let world = World::new(&["east", "west"]).await;
    world.deployment("web", json!({"containers": [{"name": "c"}]})).await;
    world.placed(&shop("deployments.apps/shop/web"), "east").await;
    let selected = json!([{"kinds": ["ConfigMap", "Secret"], "selector": {"matchLabels": {"send": "yes"}}}]);
    world.policy(SHOP, "content", json!({"resources": selected, "clusters": {"names": ["east"]}})).await;
    let (map, secret) = (shop("configmaps/shop/a"), shop("secrets/shop/b"));
    let labelled = json!({"metadata": {"labels": {"send": "yes"}}});
    world.create(map.clone(), "v1", "ConfigMap", labelled.clone()).await;
    world.create(secret.clone(), "v1", "Secret", labelled).await;
    world.placed(&map, "east").await;
    world.placed(&secret, "east").await;
    world.change(&map, |map| map["metadata"]["labels"] = json!({})).await;
    world.placed(&map, "east-").await;
    world.settle().await;
    assert_eq!(words(world.get(&secret).await.as_ref()), "east");
    world.remove(&key(SHOP, "clusterplacementpolicies.portolan.dev/content")).await;
    world.placed(&secret, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_an_earlier_template_keep_its_content() {
    for (kind, resource, api_version, spec) in [
        ("Job", "jobs.batch/shop/once-1", "batch/v1", json!({"template": {"spec": pod_naming("old")}})),
        (
            "ControllerRevision",
            "controllerrevisions.apps/shop/db-1",
            "apps/v1",
            json!({"template": {"spec": pod_naming("old")}}),
        ),
    ] {
        let world = World::new(&["east"]).await;
        world.content(&["configmaps/shop/old"]).await;
        let db = shop("statefulsets.apps/shop/db");
        let set = json!({"spec": {"replicas": 1, "template": {"spec": pod_naming("old")}}});
        world.create(db.clone(), "apps/v1", "StatefulSet", set).await;
        let old = shop("configmaps/shop/old");
        world.placed(&old, "east").await;
        let mut kept = match kind {
            "Job" => json!({"spec": spec, "metadata": {"labels": {"portolan.dev/cluster": "east"}}}),
            _ => json!({"data": {"spec": spec}}),
        };
        kept = shown_from("east", kept);
        world.create(shop(resource), api_version, kind, kept).await;
        world
            .change(&db, |db| {
                db["spec"]["template"]["spec"] = json!({"containers": [{"name": "c"}]});
                db["metadata"]["generation"] = 2.into();
            })
            .await;
        world.settle().await;
        assert_eq!(words(world.get(&old).await.as_ref()), "east", "{kind}");
        world.remove(&shop(resource)).await;
        world.placed(&old, "east-").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_others_are_filled_from_comes_once_and_is_not_spread() {
    let world = World::new(&["east", "west"]).await;
    let claim = |source: Option<&str>| match source {
        None => json!({"spec": {}}),
        Some(name) => json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": name}}}),
    };
    let at = |name: &str| shop(&format!("persistentvolumeclaims/shop/{name}"));
    world.create(at("golden"), "v1", "PersistentVolumeClaim", claim(None)).await;
    world.create(at("middle"), "v1", "PersistentVolumeClaim", claim(Some("golden"))).await;
    world.create(at("clone"), "v1", "PersistentVolumeClaim", claim(Some("middle"))).await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "clone"}}]);
    world.deployment("web", json!({"containers": [{"name": "c"}], "volumes": volumes})).await;
    for name in ["clone", "middle", "golden"] {
        world.placed(&at(name), "east").await;
    }
    world.pin(&at("clone"), "west").await;
    world.settle().await;
    assert_eq!(words(world.get(&at("middle")).await.as_ref()), "east", "there it would be empty");
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_follows_its_target_alone() {
    let world = World::new(&["east", "west"]).await;
    for (name, to) in [("web", "east"), ("api", "west")] {
        world.deployment(name, json!({"containers": []})).await;
        let workload = shop(&format!("deployments.apps/shop/{name}"));
        world.pin(&workload, to).await;
        world.placed(&workload, to).await;
    }
    let scaler = shop("horizontalpodautoscalers.autoscaling/shop/s");
    let target = |kind: &str, name: &str| json!({"apiVersion": "apps/v1", "kind": kind, "name": name});
    let bounds = json!({"spec": {"maxReplicas": 9, "scaleTargetRef": target("Deployment", "web")}});
    world.create(scaler.clone(), "autoscaling/v2", "HorizontalPodAutoscaler", bounds).await;
    world.placed(&scaler, "east").await;
    world.change(&scaler, |scaler| scaler["spec"]["scaleTargetRef"] = target("Deployment", "api")).await;
    world.placed(&scaler, "east- west").await;
    world.confirm_gone(&scaler).await;
    world.change(&scaler, |scaler| scaler["spec"]["scaleTargetRef"] = target("StatefulSet", "none")).await;
    world.placed(&scaler, "west-").await;
}
