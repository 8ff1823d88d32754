//! Bounds of physical clusters: their effect on placement, and their status.

use super::*;
use crate::{SchedulerError, kinds, observe::feed::list_with_retry, reconcile::object::reconcile_object};

fn limits(object: Option<&Value>) -> Vec<(String, i64)> {
    let record = object.and_then(PlacementRecord::of).unwrap_or_default();
    record.limits.iter().map(|(uid, limit)| (uid.to_string(), *limit)).collect()
}

#[tokio::test(start_paused = true)]
async fn growth_of_a_pinned_object_over_the_bounds_is_not_admitted_and_usage_is_shown() {
    let world = World::new(&[]).await;
    world.physical("west", json!({"bounds": {"cpu": "7"}}), true).await;
    let container = json!({"resources": {"requests": {"cpu": "500m"}}});
    world.deployment("one", json!({"containers": [container]})).await;
    let (one, west) =
        (shop("deployments.apps/shop/one"), key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/west"));
    world.placed(&one, "west").await;
    world.pin(&one, "west").await;
    world.settle().await;
    world.ready(&one, "west", 2).await;
    let scale = |replicas: i64| {
        move |object: &mut Value| {
            object["spec"]["replicas"] = replicas.into();
            object["metadata"]["generation"] = (replicas + 1).into();
        }
    };
    world.change(&one, scale(20)).await;
    world.until("a limit", &one, |object| limits(object) == [("physicalclusters-west".to_owned(), 14)]).await;
    world.settle().await;
    let (reason, message) = condition(&world.placement(&one).await.unwrap());
    assert_eq!(reason, "PartlyPlaced");
    assert!(message.ends_with("only 14 of 20 replicas fit the bounds of west"), "{message}");
    let status = world.get(&west).await.unwrap()["status"].clone();
    assert_eq!(
        (&status["usage"], &status["bounds"]),
        (&json!({"cpu": "7", "memory": "0", "pods": "14"}), &json!({"cpu": "7"}))
    );
    let explained = world.scheduler.explain_object(&one).await.unwrap().unwrap();
    let verdicts = explained["clusters"][0]["verdicts"].as_array().unwrap();
    let room = verdicts.iter().find(|verdict| verdict["filter"] == "room").unwrap();
    assert_eq!(room["message"], "its bounds leave room for 14 of 20 pods; what runs stays");
    world.change(&one, scale(3)).await;
    world.until("no limit", &one, |object| limits(object).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn growth_is_decided_only_once_it_is_counted() {
    let world = World::on(memory(), Arc::new(UseByAll));
    world.create(shop("namespaces/shop"), "v1", "Namespace", json!({})).await;
    world.physical("west", json!({"bounds": {"cpu": "7"}}), true).await;
    world.deployment("one", json!({"containers": [{"resources": {"requests": {"cpu": "500m"}}}]})).await;
    let (one, ctx) = (shop("deployments.apps/shop/one"), &*world.scheduler.ctx);
    world.pin(&one, "west").await;
    let deployments = one.resource.clone();
    for resource in [kinds::physical_clusters(), deployments.clone()] {
        list_with_retry(ctx, &resource).await;
    }
    reconcile_object(ctx, &one).await.unwrap();
    let grow = |object: &mut Value| {
        object["spec"]["replicas"] = 20.into();
        object["metadata"]["generation"] = 2.into();
    };
    world.change(&one, grow).await;
    // Another event, as of its status, may bring the object here before the event of its growth is observed.
    assert!(matches!(reconcile_object(ctx, &one).await, Err(SchedulerError::Behind)));
    assert!(limits(world.get(&one).await.as_ref()).is_empty());
    list_with_retry(ctx, &deployments).await;
    reconcile_object(ctx, &one).await.unwrap();
    assert_eq!(limits(world.get(&one).await.as_ref()), [("physicalclusters-west".to_owned(), 14)]);
}

#[tokio::test(start_paused = true)]
async fn room_that_is_freed_within_bounds_is_used() {
    let world = World::new(&[]).await;
    world.physical("west", json!({"bounds": {"cpu": "4"}}), true).await;
    let spec = json!({"containers": [{"resources": {"requests": {"cpu": "2"}}}]});
    world.deployment("first", spec.clone()).await;
    let (first, second) = (shop("deployments.apps/shop/first"), shop("deployments.apps/shop/second"));
    world.placed(&first, "west").await;
    world.settle().await;
    world.deployment("second", spec).await;
    world.settle().await;
    assert_eq!(condition(&world.placement(&second).await.unwrap()).0, "NoClusterFits");
    let shrink = |object: &mut Value| {
        object["spec"]["replicas"] = 0.into();
        object["metadata"]["generation"] = 2.into();
    };
    world.change(&first, shrink).await;
    world.settle().await;
    world.placed(&second, "west").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_has_ended_leaves_its_room_to_others() {
    let world = World::new(&[]).await;
    world.physical("west", json!({"bounds": {"cpu": "4"}}), true).await;
    let container = |cpu: &str| json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}]});
    let (job, web) = (shop("jobs.batch/shop/once"), shop("deployments.apps/shop/web"));
    let spec = json!({"spec": {"template": {"spec": container("3")}}});
    world.create(job.clone(), "batch/v1", "Job", spec).await;
    world.placed(&job, "west").await;
    world.settle().await;
    world.deployment("web", container("2")).await;
    world.settle().await;
    assert_eq!(condition(&world.placement(&web).await.unwrap()).0, "NoClusterFits");
    let end = |object: &mut Value| object["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
    world.change(&job, end).await;
    world.settle().await;
    world.placed(&web, "west").await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_ready_keep_their_place_when_bounds_are_lowered() {
    let world = World::new(&[]).await;
    world.physical("west", json!({"bounds": {"cpu": "10"}}), true).await;
    let spec = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
    world.deployment("web", spec).await;
    let (web, west) =
        (shop("deployments.apps/shop/web"), key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/west"));
    let scale = |replicas: i64| {
        move |object: &mut Value| {
            object["spec"]["replicas"] = replicas.into();
            object["status"]["replicas"] = replicas.min(8).into();
            object["metadata"]["generation"] = (replicas + 1).into();
        }
    };
    world.change(&web, scale(8)).await;
    world.placed(&web, "west").await;
    world.pin(&web, "west").await;
    // In the middle of a rolling update.
    world.ready(&web, "west", 6).await;
    world.settle().await;
    world.change(&west, |west| west["spec"]["bounds"]["cpu"] = "5".into()).await;
    world.settle().await;
    assert_eq!(limits(world.get(&web).await.as_ref()), [], "what runs stays");
    let unreachable = |placement: &mut Value| placement["status"]["clusters"][0]["reason"] = "Unreachable".into();
    world.change(&placement_of(&web), unreachable).await;
    world.change(&west, |west| west["spec"]["bounds"]["cpu"] = "4".into()).await;
    world.settle().await;
    assert_eq!(limits(world.get(&web).await.as_ref()), [], "what cannot be seen is taken to run");
    world.change(&web, scale(20)).await;
    world.until("a limit", &web, |object| limits(object) == [("physicalclusters-west".to_owned(), 8)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_move_ends_when_the_new_copy_is_available() {
    let world = World::new(&["east", "west"]).await;
    let web = shop("deployments.apps/shop/web");
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&web, "east").await;
    world.pin(&web, "west").await;
    world.placed(&web, "east west").await;
    let report = |available: i64| {
        move |placement: &mut Value| {
            let copies = placement["status"]["clusters"].as_array_mut().unwrap();
            for copy in copies.iter_mut().filter(|copy| copy["name"] == "west") {
                (copy["ready"], copy["available"]) = (2.into(), available.into());
            }
        }
    };
    world.change(&placement_of(&web), report(0)).await;
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "east west", "it is ready, and not for long enough");
    world.change(&placement_of(&web), report(2)).await;
    world.placed(&web, "east- west").await;
}

#[tokio::test(start_paused = true)]
async fn two_that_run_once_do_not_stop_for_the_same_room() {
    let world = World::new(&["east"]).await;
    world.physical("west", json!({"bounds": {"cpu": "1"}}), true).await;
    world.settle().await;
    let spec = json!({"spec": {"replicas": 1, "template": {"spec":
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}}});
    let sets = ["first", "second"].map(|name| shop(&format!("statefulsets.apps/shop/{name}")));
    for set in &sets {
        world.create(set.clone(), "apps/v1", "StatefulSet", spec.clone()).await;
        world.pin(set, "east").await;
        world.placed(set, "east").await;
        world.ready(set, "east", 1).await;
    }
    world.pin(&sets[0], "west").await;
    world.placed(&sets[0], "east-").await;
    world.settle().await;
    world.pin(&sets[1], "west").await;
    world.settle().await;
    assert_eq!(words(world.get(&sets[1]).await.as_ref()), "east", "the room on west is taken");
    let store = world.store.clone();
    drop(world);
    let world = World::on(store, Arc::new(UseByAll));
    world.run();
    world.settle().await;
    assert_eq!(words(world.get(&sets[1]).await.as_ref()), "east", "another scheduler knows it too");
    world.confirm_gone(&sets[0]).await;
    world.placed(&sets[0], "west").await;
    world.settle().await;
    let (first, second) = (world.get(&sets[0]).await, world.get(&sets[1]).await);
    assert_eq!((words(first.as_ref()), words(second.as_ref())), ("west".to_owned(), "east".to_owned()));
    assert!(PlacementRecord::of(&first.unwrap()).unwrap().awaited.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_frees_the_room_that_it_waits_for() {
    let world = World::new(&["east"]).await;
    world.physical("west", json!({"bounds": {"cpu": "1"}}), true).await;
    world.settle().await;
    let spec = json!({
        "metadata": {"finalizers": ["example.dev/hold"]},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}},
    });
    let sets = ["first", "second"].map(|name| shop(&format!("statefulsets.apps/shop/{name}")));
    for set in &sets {
        world.create(set.clone(), "apps/v1", "StatefulSet", spec.clone()).await;
        world.pin(set, "east").await;
        world.placed(set, "east").await;
        world.ready(set, "east", 1).await;
    }
    world.pin(&sets[0], "west").await;
    world.placed(&sets[0], "east-").await;
    world.pin(&sets[1], "west").await;
    world.settle().await;
    assert_eq!(words(world.get(&sets[1]).await.as_ref()), "east", "the room on west is taken");
    // A finalizer keeps the first one for longer than its place is needed.
    let deleted = json!("2027-01-15T08:00:00Z");
    world
        .change(&sets[0], |set| drop(object::metadata_mut(set).insert("deletionTimestamp".into(), deleted.clone())))
        .await;
    world.placed(&sets[1], "east-").await;
}
