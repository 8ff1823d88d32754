//! Moves with Services, budgets, time-outs and force, from the object to its front ends.

use portolan_types::{annotations, placement::PlacedCopy};

use super::{
    failover::{Fleet, seconds},
    *,
};

fn web() -> ObjectKey {
    shop("deployments.apps/shop/web")
}

fn service() -> ObjectKey {
    shop("services/shop/web")
}

impl Fleet {
    /// A Deployment on east with two ready pods behind a Service with a load balancer.
    async fn balanced() -> Self {
        let fleet = Self::start(&["east", "west"]).await;
        let pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}});
        let spec = json!({"replicas": 2, "template": pod});
        fleet.create(web(), "apps/v1", "Deployment", json!({"spec": spec})).await;
        let spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}});
        fleet.create(service(), "v1", "Service", json!({"spec": spec})).await;
        fleet.placed(&web(), "east").await;
        fleet.placed(&service(), "east").await;
        fleet.ready(&web(), "east", 2).await;
        fleet.address(&service(), "east", 1).await;
        fleet
    }

    /// Reports published addresses of a copy, as the syncer does.
    async fn address(&self, key: &ObjectKey, physical: &str, count: i64) {
        self.change(&placement_of(key), |placement| {
            let copies = placement["status"]["clusters"].as_array_mut().unwrap();
            copies.iter_mut().filter(|c| c["name"] == physical).for_each(|c| c["addresses"] = count.into());
        })
        .await;
    }

    /// Writes the EndpointSlice of the Service on a physical cluster, as the syncer shows it.
    async fn endpoint(&self, physical: &str, is_ready: bool) {
        let name = format!("web-{physical}");
        let key = shop(&format!("endpointslices.discovery.k8s.io/shop/{name}"));
        let copy = PlacedCopy {
            name: physical.into(),
            uid: format!("physicalclusters-{physical}").parse().unwrap(),
            phase: CopyPhase::Projected,
            replicas: None,
            epoch: 1,
        };
        let record = PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() };
        let mut slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "web", annotations::PROJECTED_FROM: physical}},
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": is_ready}}],
        });
        record.write_to(&mut slice);
        if self.get(&key).await.is_none() {
            self.create(key, "discovery.k8s.io/v1", "EndpointSlice", slice).await;
        } else {
            self.change(&key, |known| known["endpoints"] = slice["endpoints"].clone()).await;
        }
    }

    async fn record(&self, key: &ObjectKey) -> PlacementRecord {
        self.get(key).await.as_ref().and_then(PlacementRecord::of).unwrap_or_default()
    }

    /// Waits until exactly these physical clusters publish no address of the Service.
    async fn withdrawn(&self, names: &[&str]) {
        let is_so = |object: Option<&Value>| {
            let record = object.and_then(PlacementRecord::of).unwrap_or_default();
            let withdrawn: Vec<String> = record.withdrawn.iter().map(ToString::to_string).collect();
            let expected: Vec<String> = names.iter().map(|name| format!("physicalclusters-{name}")).collect();
            withdrawn == expected
        };
        self.until(&format!("withdrawn {names:?}"), &service(), is_so).await;
    }

    async fn reason(&self, key: &ObjectKey) -> (String, String) {
        condition(&self.placement(key).await.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn the_addresses_of_a_moving_workload_overlap() {
    let fleet = Fleet::balanced().await;
    fleet.pin(&web(), "west").await;
    fleet.placed(&web(), "east west").await;
    fleet.placed(&service(), "east west").await;
    fleet.withdrawn(&["west"]).await;
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(fleet.record(&service()).await.withdrawn.len(), 1, "what is not ready publishes nothing");
    fleet.ready(&web(), "west", 2).await;
    fleet.withdrawn(&[]).await;
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(words(fleet.get(&web()).await.as_ref()), "east west");
    let (reason, message) = fleet.reason(&web()).await;
    assert_eq!(reason, "Moving");
    assert!(message.contains("waiting for an address of service/web on west"), "{message}");
    fleet.address(&service(), "west", 1).await;
    fleet.withdrawn(&["east"]).await;
    fleet.address(&service(), "east", 0).await;
    tokio::time::sleep(seconds(25)).await;
    assert_eq!(words(fleet.get(&web()).await.as_ref()), "east west", "for 30 s its pods serve who has the old address");
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(words(fleet.get(&web()).await.as_ref()), "east- west");
    fleet.confirm_gone(&web()).await;
    fleet.placed(&service(), "east- west").await;
    fleet.confirm_gone(&service()).await;
    fleet.withdrawn(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_address_waits_for_a_ready_endpoint_behind_it() {
    let fleet = Fleet::balanced().await;
    fleet.endpoint("east", true).await;
    fleet.pin(&web(), "west").await;
    fleet.placed(&service(), "east west").await;
    fleet.withdrawn(&["west"]).await;
    // The load balancer and the slice exist already, but the endpoint is not ready.
    fleet.address(&service(), "west", 1).await;
    fleet.endpoint("west", false).await;
    fleet.ready(&web(), "west", 2).await;
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(fleet.record(&service()).await.withdrawn.len(), 1, "nothing takes requests there");
    let (_, message) = fleet.reason(&web()).await;
    assert!(message.contains("waiting for a ready endpoint of service/web on west"), "{message}");
    fleet.endpoint("west", true).await;
    fleet.withdrawn(&["east"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_endpoints_of_an_exported_service_overlap() {
    let fleet = Fleet::start(&["east", "west"]).await;
    let pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}});
    fleet.create(web(), "apps/v1", "Deployment", json!({"spec": {"replicas": 2, "template": pod}})).await;
    fleet.create(service(), "v1", "Service", json!({"spec": {"selector": {"app": "web"}}})).await;
    let export = shop("serviceexports.multicluster.x-k8s.io/shop/web");
    fleet.create(export, "multicluster.x-k8s.io/v1beta1", "ServiceExport", json!({})).await;
    fleet.placed(&web(), "east").await;
    fleet.ready(&web(), "east", 2).await;
    fleet.endpoint("east", true).await;
    fleet.pin(&web(), "west").await;
    fleet.placed(&service(), "east west").await;
    fleet.ready(&web(), "west", 2).await;
    tokio::time::sleep(seconds(20)).await;
    let (_, message) = fleet.reason(&web()).await;
    assert!(message.contains("waiting for a ready endpoint of serviceexport/web on west"), "{message}");
    fleet.endpoint("west", true).await;
    fleet.withdrawn(&["east"]).await;
    tokio::time::sleep(seconds(25)).await;
    assert_eq!(words(fleet.get(&web()).await.as_ref()), "east west", "for 30 s its pods serve who has the old names");
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(words(fleet.get(&web()).await.as_ref()), "east- west");
}

#[tokio::test(start_paused = true)]
async fn an_address_with_nothing_ready_behind_it_is_withdrawn_while_another_serves() {
    let fleet = Fleet::balanced().await;
    let spec = json!({"resources": [{"apiGroup": "apps"}], "count": 2});
    fleet.policy(SHOP, "both", spec).await;
    fleet.placed(&web(), "east west").await;
    fleet.placed(&service(), "east west").await;
    fleet.withdrawn(&["west"]).await;
    fleet.ready(&web(), "west", 2).await;
    fleet.withdrawn(&[]).await;
    fleet.ready(&web(), "east", 0).await;
    fleet.withdrawn(&["east"]).await;
    fleet.ready(&web(), "west", 0).await;
    fleet.withdrawn(&[]).await;
    fleet.ready(&web(), "east", 1).await;
    fleet.withdrawn(&["west"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_sets_the_grace_period_and_the_time_out() {
    let fleet = Fleet::balanced().await;
    let moves = json!({"addressGracePeriodSeconds": 3, "timeoutSeconds": 60});
    let spec = json!({"resources": [{"apiGroup": "*"}], "clusters": {"names": ["west"]}, "moves": moves});
    fleet.policy(SHOP, "west", spec).await;
    fleet.placed(&web(), "east west").await;
    tokio::time::sleep(seconds(70)).await;
    fleet.placed(&web(), "east west-").await;
    let placement = fleet.placement(&web()).await.unwrap();
    let cause = placement["status"]["transitions"][0]["cause"].as_str().unwrap().to_owned();
    let expected = "the move to west timed out after 60 s (waiting for west to be ready) and was taken back";
    assert_eq!(cause, expected);
    let (reason, message) = fleet.reason(&web()).await;
    assert_eq!(reason, "Moving");
    assert!(message.contains("timed out and was taken back"), "{message}");
    fleet.confirm_gone(&web()).await;
    tokio::time::sleep(seconds(70)).await;
    fleet.placed(&web(), "east west").await;
    fleet.ready(&web(), "west", 2).await;
    fleet.address(&service(), "west", 1).await;
    fleet.withdrawn(&["east"]).await;
    tokio::time::sleep(seconds(5)).await;
    assert_eq!(words(fleet.get(&web()).await.as_ref()), "east- west");
}

#[tokio::test(start_paused = true)]
async fn a_forced_move_waits_for_nothing_once() {
    let fleet = Fleet::balanced().await;
    let force = |object: &mut Value| {
        object::set_annotation(object, annotations::FORCE, Some("east burns".into()));
        object::set_annotation(object, annotations::PIN, Some("west".into()));
    };
    fleet.change(&web(), force).await;
    fleet.placed(&web(), "east- west").await;
    let after = fleet.get(&web()).await.unwrap();
    assert_eq!(object::annotation(&after, annotations::FORCE), None, "it is for one move");
    let placement = fleet.placement(&web()).await.unwrap();
    assert_eq!(placement["status"]["transitions"][0]["cause"], "forced (east burns) by its pin");
}

#[tokio::test(start_paused = true)]
async fn a_budget_over_all_physical_clusters_holds_a_restart() {
    let fleet = Fleet::start(&["east", "west"]).await;
    let db = shop("statefulsets.apps/shop/db");
    let pod = json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}});
    fleet.create(db.clone(), "apps/v1", "StatefulSet", json!({"spec": {"replicas": 1, "template": pod}})).await;
    let budget = shop("poddisruptionbudgets.policy/shop/db");
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}});
    fleet.create(budget.clone(), "policy/v1", "PodDisruptionBudget", json!({"spec": spec})).await;
    fleet.placed(&db, "east").await;
    fleet.ready(&db, "east", 1).await;
    fleet.pin(&db, "west").await;
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(words(fleet.get(&db).await.as_ref()), "east");
    let (reason, message) = fleet.reason(&db).await;
    assert_eq!(reason, "Moving");
    assert!(message.contains("the PodDisruptionBudget db needs 1 available pods of it"), "{message}");
    fleet.change(&budget, |budget| budget["spec"]["minAvailable"] = 0.into()).await;
    fleet.placed(&db, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn the_last_healthy_copy_stays_for_every_cause_of_a_move() {
    for case in ["policy", "taint", "label", "namespace pin", "default"] {
        let fleet = Fleet::balanced().await;
        let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
        let by_label =
            json!({"resources": [{"apiGroup": "*"}], "clusters": {"selector": {"matchLabels": {"ok": "yes"}}}});
        match case {
            "policy" => {
                let spec = json!({"resources": [{"apiGroup": "*"}], "clusters": {"exclude": ["east"]}});
                fleet.policy(SHOP, "p", spec).await;
            }
            "taint" => {
                let taints = json!([{"key": "m", "effect": "NoExecute"}]);
                fleet.change(&east, |east| east["spec"]["taints"] = taints.clone()).await;
            }
            "label" => {
                let west = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/west");
                for (at, value) in [(&east, "yes"), (&west, "yes")] {
                    fleet.change(at, |object| object::set_label(object, "ok", Some(value.into()))).await;
                }
                fleet.policy(SHOP, "p", by_label).await;
                fleet.settle().await;
                assert_eq!(words(fleet.get(&web()).await.as_ref()), "east");
                fleet.change(&east, |object| object::set_label(object, "ok", None)).await;
            }
            "namespace pin" => fleet.pin(&shop("namespaces/shop"), "west").await,
            _ => {
                fleet.change(&east, |east| east["spec"]["taints"] = json!([{"key": "d", "effect": "NoExecute"}])).await
            }
        }
        fleet.placed(&web(), "east west").await;
        tokio::time::sleep(seconds(300)).await;
        assert_eq!(words(fleet.get(&web()).await.as_ref()), "east west", "{case}: the new one is not available");
        let (reason, message) = fleet.reason(&web()).await;
        assert_eq!(reason, "Moving", "{case}");
        assert!(message.contains("waiting for west to be ready"), "{case}: {message}");
    }
}
