//! Tests of admission through placement: the API server, the scheduler and the controllers on one memory store. No
//! physical cluster runs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, User};
use portolan_controllers::Plane;
use portolan_kinds::KindTable;
use portolan_store::{DynStore, LeaderElection};
use portolan_types::{Clock, Seams};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::scheduler_hooks::SchedulerHooks;

mod scheduling_gates;

const DEPLOYMENTS: &str = "apis/apps/v1/namespaces/shop/deployments";
const PLACEMENTS: &str = "apis/portolan.dev/v1alpha1/namespaces/shop/placements";
const CORE: &str = "api/v1/namespaces/shop";

struct World {
    api: Arc<ApiServer>,
    store: DynStore,
    stop: CancellationToken,
    _tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Clock that follows the runtime's time, which tests advance.
struct Jumping(jiff::Timestamp, Instant);

impl Clock for Jumping {
    fn now(&self) -> jiff::Timestamp {
        self.0 + self.1.elapsed()
    }
}

impl World {
    /// Makes a namespace `shop` in root, and a ready physical cluster.
    async fn new() -> Self {
        let store = portolan_store::memory();
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(Jumping(Seams::system().clock.now(), Instant::now()));
        let seams = Seams { clock, ..Seams::system() };
        let mut config = ApiServerConfig::in_directory(folder.path().join("server"), seams.clone());
        let placing = SchedulerHooks::default();
        placing.hook_into(&mut config.hooks);
        let api = ApiServer::new(store.clone(), config).await.unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        placing.start(&api, &store, &Arc::new(LeaderElection::standalone()), &stop, &mut tasks);
        let plane = Plane::new(store.clone(), KindTable::builtin(), seams).with_kinds(api.kinds());
        tasks.spawn(portolan_controllers::common(&Arc::new(plane), &api.pki().ca).run(stop.clone()));
        let world = Self { api, store, stop, _tasks: tasks, _folder: folder };
        world.post("api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
        let east = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": "east"},
            "spec": {"connection": {"simulated": {}}}});
        let clusters = "apis/portolan.dev/v1alpha1/physicalclusters";
        world.post(clusters, east).await;
        let ready = json!({"type": "Ready", "status": "True", "reason": "Reachable", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        world.merge(&format!("{clusters}/east/status"), json!({"status": {"conditions": [ready]}})).await;
        world
            .until("the account of the namespace", || async {
                world.get(&format!("{CORE}/serviceaccounts/default")).await.is_some()
            })
            .await;
        world
    }

    async fn send(&self, method: &str, path: &str, object: Value) -> (u16, Value) {
        let admin = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request =
            Request::builder().method(method).uri(format!("/clusters/root/{path}")).header("content-type", media);
        let request = request.body(Full::new(Bytes::from(object.to_string()))).unwrap();
        let answer = self.api.service_as(admin).oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    async fn post(&self, path: &str, object: Value) -> Value {
        let (code, answer) = self.send("POST", path, object).await;
        assert_eq!(code, 201, "{path}: {answer}");
        answer
    }

    async fn merge(&self, path: &str, patch: Value) {
        let (code, answer) = self.send("PATCH", path, patch).await;
        assert_eq!(code, 200, "{path}: {answer}");
    }

    async fn delete(&self, path: &str) {
        let (code, answer) = self.send("DELETE", path, json!({})).await;
        assert!(code < 300, "{path}: {answer}");
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let (code, answer) = self.send("GET", path, Value::Null).await;
        (code == 200).then_some(answer)
    }

    /// Waits for a condition. Paused time makes a futile wait short.
    async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        for _ in 0..5_000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it never comes: {what}");
    }

    async fn deploy(&self, name: &str, replicas: i64, pod: Value) {
        let labels = json!({"app": name});
        let template = json!({"metadata": {"labels": labels}, "spec": pod});
        let spec = json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
        self.post(DEPLOYMENTS, json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// Returns the physical clusters, and reason and message of the condition `Placed`.
    async fn placed(&self, name: &str) -> (String, String, String) {
        let object = self.get(&format!("{DEPLOYMENTS}/{name}")).await.unwrap_or_default();
        let placement = self.get(&format!("{PLACEMENTS}/deployments.apps-{name}")).await.unwrap_or_default();
        let text =
            |of: &Value, pointer: &str| of.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (
            text(&object, "/metadata/annotations/portolan.dev~1clusters"),
            text(&placement, "/status/conditions/0/reason"),
            text(&placement, "/status/conditions/0/message"),
        )
    }

    async fn until_placed(&self, name: &str) {
        self.until(&format!("{name} is placed"), || async {
            let (on, reason, _) = self.placed(name).await;
            (on.as_str(), reason.as_str()) == ("east", "Placed")
        })
        .await;
    }

    async fn until_refused(&self, name: &str, why: &str) {
        for _ in 0..5_000 {
            if self.placed(name).await.2.contains(why) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} is never refused with `{why}`, but {:?}", self.placed(name).await);
    }

    async fn used(&self, name: &str) -> String {
        let quota = self.get(&format!("{CORE}/resourcequotas/q")).await.unwrap_or_default();
        quota["status"]["used"][name].as_str().unwrap_or_default().to_owned()
    }

    async fn until_used(&self, name: &str, amount: &str) {
        self.until(&format!("{name}={amount} is used"), || async { self.used(name).await == amount }).await;
    }

    async fn quota(&self, hard: Value) {
        self.post(&format!("{CORE}/resourcequotas"), json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
        self.until("usage is known", || async {
            let quota = self.get(&format!("{CORE}/resourcequotas/q")).await.unwrap();
            quota["status"]["used"].is_object()
        })
        .await;
    }

    /// Returns the Deployments that are placed.
    async fn on_clusters(&self) -> BTreeSet<String> {
        let all = self.get(DEPLOYMENTS).await.unwrap();
        let placed = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|object| object.pointer("/metadata/annotations/portolan.dev~1clusters").is_some());
        placed.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"name": "a", "image": "a:1", "resources": {"requests": {"cpu": cpu}}}]})
}

fn plain() -> Value {
    json!({"containers": [{"name": "a", "image": "a:1"}]})
}

#[tokio::test(start_paused = true)]
async fn sixty_concurrent_placements_use_a_quota_exactly() {
    let world = World::new().await;
    world.quota(json!({"requests.cpu": "1", "pods": "50"})).await;
    let names: Vec<String> = (0..60).map(|n| format!("web-{n}")).collect();
    join_all(names.iter().map(|name| world.deploy(name, 1, asking("100m")))).await;
    let told = || async {
        let all = world.get(PLACEMENTS).await.unwrap();
        let reason = |placement: &Value| placement["status"]["conditions"][0]["reason"].as_str().map(str::to_owned);
        let reasons: Vec<_> = all["items"].as_array().unwrap().iter().filter_map(reason).collect();
        let count = |wanted: &str| reasons.iter().filter(|reason| *reason == wanted).count();
        (count("Placed"), count("QuotaExceeded"))
    };
    world.until("all are told", || async { told().await == (10, 50) }).await;
    assert_eq!(world.on_clusters().await.len(), 10);
    assert_eq!((world.used("requests.cpu").await, world.used("pods").await), ("1".into(), "10".into()));
    let placed = world.on_clusters().await;
    let waiting = names.iter().find(|name| !placed.contains(*name)).unwrap();
    let why = format!("pods \"{waiting}-\" is forbidden: exceeded quota: q, requested: requests.cpu=100m, used: ");
    world.until_refused(waiting, &why).await;

    // The quota grows, and deletions release charges.
    world.merge(&format!("{CORE}/resourcequotas/q"), json!({"spec": {"hard": {"requests.cpu": "2"}}})).await;
    world.until("twenty are placed", || async { told().await == (20, 40) }).await;
    world.until_used("requests.cpu", "2").await;
    let first: Vec<String> = world.on_clusters().await.into_iter().take(5).collect();
    for name in &first {
        // No syncer runs that would confirm the end of the copies.
        release(&world, name).await;
    }
    world.until("others take their room", || async { world.on_clusters().await.len() == 20 }).await;
    world.until_used("requests.cpu", "2").await;
    world.until_used("pods", "20").await;
}

/// Deletes a Deployment, and confirms the end of its copies.
async fn release(world: &World, name: &str) {
    use portolan_store::{Expect, Transaction};
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey};
    world.delete(&format!("{DEPLOYMENTS}/{name}")).await;
    let resource = GroupResource::new("apps", "deployments");
    let key = ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name.parse().unwrap());
    let _ = world.store.commit(Transaction::one(key, Expect::Present, None)).await;
}

#[tokio::test(start_paused = true)]
async fn a_placed_object_keeps_its_charge_until_growth_is_admitted() {
    let world = World::new().await;
    world.quota(json!({"requests.cpu": "1"})).await;
    world.deploy("web", 2, asking("300m")).await;
    world.until_placed("web").await;
    world.until_used("requests.cpu", "600m").await;
    let web = format!("{DEPLOYMENTS}/web");
    let generation = || async {
        let placement = world.get(&format!("{PLACEMENTS}/deployments.apps-web")).await.unwrap();
        placement["status"]["admittedGeneration"].as_i64()
    };
    assert_eq!(generation().await, Some(1));
    world.merge(&web, json!({"spec": {"replicas": 4}})).await;
    let why = "pods \"web-\" is forbidden: exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1; stays as it was on east";
    world.until_refused("web", why).await;
    assert_eq!((generation().await, world.used("requests.cpu").await), (Some(1), "600m".into()));
    assert_eq!(shown_answer(&world, &web).await, ("ReplicaFailure=True FailedCreate".into(), 2), "it is no rollout");
    assert_eq!(world.placed("web").await.0, "east", "what runs, runs on");
    world.merge(&web, json!({"spec": {"replicas": 3}})).await;
    world.until_placed("web").await;
    world.until_used("requests.cpu", "900m").await;
    assert_eq!(generation().await, Some(3));
    world.merge(&web, json!({"spec": {"replicas": 0}})).await;
    world.until_used("requests.cpu", "0").await;
    // Counting again changes nothing.
    world.merge(&web, json!({"spec": {"replicas": 2}})).await;
    world.until_used("requests.cpu", "600m").await;
    world.merge(&format!("{CORE}/resourcequotas/q"), json!({"spec": {"hard": {"pods": "9", "count/pods": "9"}}})).await;
    world.until_used("pods", "2").await;
    world.until_used("requests.cpu", "600m").await;
    release(&world, "web").await;
    world.until_used("requests.cpu", "0").await;
    world.until_used("count/pods", "0").await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_until_its_cause_ends() {
    let world = World::new().await;
    let robot = json!({"serviceAccountName": "robot", "containers": [{"name": "a", "image": "a:1"}]});
    world.deploy("account", 1, robot).await;
    world
        .until_refused("account", "error looking up service account shop/robot: serviceaccount \"robot\" not found")
        .await;
    let (on, reason, _) = world.placed("account").await;
    assert_eq!((on.as_str(), reason.as_str()), ("", "AdmissionRefused"));
    let event = world.get(&format!("{CORE}/events/account.placement-failedcreate")).await.unwrap();
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("FailedCreate")));
    assert_eq!(event["involvedObject"]["kind"], "Deployment");
    let said = event["message"].as_str().unwrap();
    assert!(said.starts_with("Error creating: pods \"account-\" is forbidden: error looking up"), "{said}");
    let about = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "account"});
    let explanations = "apis/portolan.dev/v1alpha1/namespaces/shop/placementexplanations";
    let explained = world.post(explanations, json!({"spec": {"object": about}})).await;
    let note = explained["status"]["notes"][0].as_str().unwrap();
    assert!(note.starts_with("its pods are not admitted: pods \"account-\" is forbidden: "), "{explained}");
    world.post(&format!("{CORE}/serviceaccounts"), json!({"metadata": {"name": "robot"}})).await;
    world.until_placed("account").await;

    let limits = json!({"limits": [{"type": "Container", "max": {"cpu": "100m"}}]});
    world.post(&format!("{CORE}/limitranges"), json!({"metadata": {"name": "small"}, "spec": limits})).await;
    world.deploy("large", 1, asking("200m")).await;
    let why = "Pod \"large-\" is invalid: spec.containers[0].resources.requests: Invalid value: \"200m\": must be less than or equal to cpu limit of 100m";
    world.until_refused("large", why).await;
    world.delete(&format!("{CORE}/limitranges/small")).await;
    world.until_placed("large").await;

    let class = json!({"priorityClassName": "important", "containers": [{"name": "a", "image": "a:1"}]});
    world.deploy("class", 1, class).await;
    world.until_refused("class", "no PriorityClass with name important was found").await;
    let classes = "apis/scheduling.k8s.io/v1/priorityclasses";
    world.post(classes, json!({"metadata": {"name": "important"}, "value": 1000})).await;
    world.until_placed("class").await;

    let level = |level: Value| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    world.merge("api/v1/namespaces/shop", level(json!("restricted"))).await;
    world.deploy("secure", 1, plain()).await;
    world.until_refused("secure", "violates PodSecurity \"restricted:latest\"").await;
    world
        .merge(&format!("{DEPLOYMENTS}/large"), json!({"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}}))
        .await;
    world.until_refused("large", "stays as it was on east").await;
    world.merge("api/v1/namespaces/shop", level(Value::Null)).await;
    world.until_placed("secure").await;
    world.until_placed("large").await;
}

/// Returns the conditions as sorted `type=status reason`, and the observed generation.
async fn shown_answer(world: &World, path: &str) -> (String, i64) {
    let status = world.get(path).await.unwrap_or_default()["status"].clone();
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut conditions: Vec<String> =
        conditions.map(|c| format!("{}={} {}", text(c, "type"), text(c, "status"), text(c, "reason"))).collect();
    conditions.sort_unstable();
    (conditions.join(", "), status["observedGeneration"].as_i64().unwrap_or(0))
}

#[tokio::test(start_paused = true)]
async fn the_status_tells_of_a_refusal_until_it_ends() {
    let world = World::new().await;
    world.quota(json!({"requests.cpu": "100m"})).await;
    let until_shown = async |path: &str, conditions: &str, observed: i64| {
        for _ in 0..5_000 {
            if shown_answer(&world, path).await == (conditions.to_owned(), observed) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{path} shows {:?}", shown_answer(&world, path).await);
    };
    let web = format!("{DEPLOYMENTS}/web");
    world.deploy("web", 1, asking("200m")).await;
    let waits = "Available=False MinimumReplicasUnavailable, Progressing=True ReplicaSetUpdated, ReplicaFailure=True FailedCreate";
    until_shown(&web, waits, 1).await;
    let status = world.get(&web).await.unwrap()["status"].clone();
    let failure = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "ReplicaFailure").unwrap();
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.starts_with("pods \"web-\" is forbidden: exceeded quota: q, requested: requests.cpu=200m"),
        "{message}"
    );
    assert_eq!(status["unavailableReplicas"], 1);

    // The next generation has a progress deadline of its own.
    world.merge(&web, json!({"spec": {"progressDeadlineSeconds": 40}})).await;
    until_shown(&web, waits, 2).await;
    let started = Instant::now();
    until_shown(&web, &waits.replace("True ReplicaSetUpdated", "False ProgressDeadlineExceeded"), 2).await;
    let took = started.elapsed().as_secs();
    assert!((39..43).contains(&took), "it took {took} s");

    world.merge(&format!("{CORE}/resourcequotas/q"), json!({"spec": {"hard": {"requests.cpu": "200m"}}})).await;
    world.until_placed("web").await;
    until_shown(&web, "Available=False MinimumReplicasUnavailable, Progressing=True ReplicaSetUpdated", 2).await;

    // Kinds without such a status report by an Event alone, as in Kubernetes.
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": asking("200m")});
    let selector = json!({"matchLabels": {"app": "x"}});
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = json!("Never");
    for (resource, spec, observed, says) in [
        (
            "apis/apps/v1/namespaces/shop/statefulsets",
            json!({"selector": selector, "template": template}),
            1,
            "create Pod x-0 in StatefulSet x failed error: pods \"x-0\" is forbidden: exceeded quota: q",
        ),
        (
            "apis/apps/v1/namespaces/shop/daemonsets",
            json!({"selector": selector, "template": template}),
            0,
            "Error creating: pods \"x-\" is forbidden: exceeded quota: q",
        ),
        (
            "apis/batch/v1/namespaces/shop/jobs",
            json!({"template": once}),
            0,
            "Error creating: pods \"x-\" is forbidden: exceeded quota: q",
        ),
    ] {
        let path = format!("{resource}/x");
        world.post(resource, json!({"metadata": {"name": "x"}, "spec": spec})).await;
        world
            .until(&format!("{resource} tells"), || async {
                let event = world.get(&format!("{CORE}/events/x.placement-failedcreate")).await.unwrap_or_default();
                event["message"].as_str().is_some_and(|message| message.starts_with(says))
            })
            .await;
        until_shown(&path, "", observed).await;
        world.delete(&path).await;
        let _ = world.send("DELETE", &format!("{CORE}/events/x.placement-failedcreate"), json!({})).await;
    }
    let path = "apis/apps/v1/namespaces/shop/replicasets";
    world.post(path, json!({"metadata": {"name": "y"}, "spec": {"selector": selector, "template": template}})).await;
    until_shown(&format!("{path}/y"), "ReplicaFailure=True FailedCreate", 1).await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_set_are_let_in_and_charged_before_it_is_placed() {
    const SETS: &str = "apis/apps/v1/namespaces/shop/statefulsets";
    let world = World::new().await;
    let fast = "fast.storageclass.storage.k8s.io/requests.storage";
    world.quota(json!({"requests.storage": "5Gi", "persistentvolumeclaims": "9", fast: "5Gi"})).await;
    let set = |name: &str, replicas: i64| {
        let labels = json!({"app": name});
        let asks = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}}});
        json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "serviceName": name,
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": plain()},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": asks}]}})
    };
    let until_told = async |name: &str, reason: &str, why: &str| {
        world
            .until(&format!("{name} is told {reason}: {why}"), || async {
                let placement = world.get(&format!("{PLACEMENTS}/statefulsets.apps-{name}")).await.unwrap_or_default();
                let condition = &placement["status"]["conditions"][0];
                condition["reason"] == reason && condition["message"].as_str().unwrap_or_default().contains(why)
            })
            .await;
    };
    world.post(SETS, set("db", 3)).await;
    until_told("db", "Placed", "").await;
    world.until_used("requests.storage", "3Gi").await;
    world.until_used(fast, "3Gi").await;

    world.post(SETS, set("more", 3)).await;
    let why = "persistentvolumeclaims \"data-more-0\" is forbidden: exceeded quota: q, requested: ";
    until_told("more", "QuotaExceeded", why).await;
    assert_eq!(world.used("persistentvolumeclaims").await, "3");

    // An existing claim is counted by itself, and once.
    let asks = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}});
    world
        .post(&format!("{CORE}/persistentvolumeclaims"), json!({"metadata": {"name": "data-db-0"}, "spec": asks}))
        .await;
    world.until_used("persistentvolumeclaims", "3").await;
    world.merge(&format!("{SETS}/db"), json!({"spec": {"replicas": 5}})).await;
    world.until_used("requests.storage", "5Gi").await;
    // A StatefulSet that is scaled down keeps its existing claims, and releases the charge of the others.
    world.merge(&format!("{SETS}/db"), json!({"spec": {"replicas": 0}})).await;
    until_told("more", "Placed", "").await;
    world.until_used("requests.storage", "4Gi").await;
    world.until_used("persistentvolumeclaims", "4").await;

    let limits = json!({"limits": [{"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}}]});
    world.post(&format!("{CORE}/limitranges"), json!({"metadata": {"name": "large"}, "spec": limits})).await;
    world.post(SETS, set("small", 1)).await;
    until_told("small", "AdmissionRefused", "persistentvolumeclaims \"data-small-0\" is forbidden: minimum storage")
        .await;
}

#[tokio::test(start_paused = true)]
async fn policies_about_pods_hold_for_templates() {
    let world = World::new().await;
    let policies = "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
    let checks = json!([{"expression": "object.metadata.labels.app != 'bad'", "message": "no bad apps"}]);
    let spec = json!({"matchConstraints": {"resourceRules": rules}, "validations": checks});
    world.post(policies, json!({"metadata": {"name": "good"}, "spec": spec})).await;
    let binding = json!({"metadata": {"name": "good"}, "spec": {"policyName": "good", "validationActions": ["Deny"]}});
    world.post("apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", binding).await;
    world.deploy("fine", 1, plain()).await;
    world.deploy("bad", 1, plain()).await;
    world.until_placed("fine").await;
    world
        .until_refused("bad", "ValidatingAdmissionPolicy 'good' with binding 'good' denied request: no bad apps")
        .await;
    world.delete(&format!("{policies}/good")).await;
    world.until_placed("bad").await;
}

#[tokio::test(start_paused = true)]
async fn limit_ranges_default_the_resources_that_quotas_need() {
    let world = World::new().await;
    world.quota(json!({"limits.memory": "1Gi"})).await;
    world.deploy("web", 2, plain()).await;
    world.until_refused("web", "pods \"web-\" is forbidden: failed quota: q: must specify limits.memory for: a").await;
    let limits = json!({"limits": [{"type": "Container", "default": {"memory": "256Mi"}}]});
    world.post(&format!("{CORE}/limitranges"), json!({"metadata": {"name": "l"}, "spec": limits})).await;
    world.until_placed("web").await;
    world.until_used("limits.memory", "512Mi").await;
    let scoped = json!({"hard": {"pods": "5"}, "scopes": ["BestEffort"]});
    world.post(&format!("{CORE}/resourcequotas"), json!({"metadata": {"name": "best"}, "spec": scoped})).await;
    world
        .until("the scope counts nothing", || async {
            let quota = world.get(&format!("{CORE}/resourcequotas/best")).await.unwrap();
            quota["status"]["used"]["pods"] == "0"
        })
        .await;
}
