//! Behavior of workloads, seen through the API of a simulated cluster.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use portolan_types::{Clock, Seams};
use serde_json::{Value, json};
use support::{APPS, BATCH, CORE, Fixture, template, workload};

const REVISION: &str = "deployment.kubernetes.io/revision";

fn count(list: &Value) -> usize {
    list["items"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_deployment_runs_rolls_over_and_goes_with_all_its_pods() {
    let f = Fixture::start().await;
    let web = &format!("{APPS}/deployments/web");
    f.create(&format!("{APPS}/deployments"), workload("Deployment", 3)).await;
    let seen = |d: &Value| d["status"]["observedGeneration"] == d["metadata"]["generation"];
    f.until(web, |d| d["status"]["readyReplicas"] == 3 && seen(d)).await;
    f.patch(web, json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}}})).await;
    let three = |d: &Value, field: &str| d["status"][field] == 3;
    let done = |d: &Value| ["updatedReplicas", "replicas", "availableReplicas"].iter().all(|field| three(d, field));
    f.until(web, |d| done(d) && seen(d) && d["metadata"]["annotations"][REVISION] == "2").await;
    let sets = f.get(&format!("{APPS}/replicasets")).await;
    assert_eq!(count(&sets), 2, "the old one stays for a rollback");
    f.patch(web, json!({"metadata": {"annotations": {"kubernetes.io/change-cause": "a test"}}})).await;
    let has_cause = |set: &Value| set["metadata"]["annotations"]["kubernetes.io/change-cause"] == "a test";
    f.until(&format!("{APPS}/replicasets"), |sets| sets["items"].as_array().unwrap().iter().any(has_cause)).await;
    f.delete(web, "Foreground").await;
    f.until(web, |d| d["reason"] == "NotFound").await;
    f.until(&format!("{CORE}/pods"), |pods| count(pods) == 0).await;
}

#[tokio::test]
async fn healthy_pods_stay_while_those_of_new_templates_find_no_node() {
    let f = Fixture::start().await;
    let web = &format!("{APPS}/deployments/web");
    f.create(&format!("{APPS}/deployments"), workload("Deployment", 2)).await;
    f.until(web, |d| d["status"]["readyReplicas"] == 2).await;
    for (revision, disk) in [("2", "none"), ("3", "no-such")] {
        f.patch(web, json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": disk}}}}})).await;
        let waits = |d: &Value| {
            d["metadata"]["annotations"][REVISION] == revision
                && d["status"]["updatedReplicas"] == 1
                && d["status"]["replicas"] == 3
        };
        let status = &f.until(web, waits).await["status"];
        assert_eq!((&status["availableReplicas"], &status["unavailableReplicas"]), (&json!(2), &json!(1)), "{disk}");
    }
    let pods = f.get(&format!("{CORE}/pods")).await;
    let addresses: Vec<&str> =
        pods["items"].as_array().unwrap().iter().filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
    assert_eq!(addresses.len(), 2);
    assert_ne!(addresses[0], addresses[1], "each pod has an address of its own");
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_keeps_its_pod_waiting() {
    let f = Fixture::start().await;
    let mut broken = workload("Deployment", 1);
    broken["spec"]["template"] = template("registry.example/does-not-exist:1", "Always");
    f.create(&format!("{APPS}/deployments"), broken).await;
    let waiting = |pods: &Value| pods.pointer("/items/0/status/containerStatuses/0/state/waiting/reason").cloned();
    f.until(&format!("{CORE}/pods"), |pods| waiting(pods) == Some("ImagePullBackOff".into())).await;
}

#[tokio::test]
async fn a_stateful_set_starts_in_order_each_pod_with_its_claim() {
    let f = Fixture::start().await;
    let mut set = workload("StatefulSet", 2);
    set["spec"]["serviceName"] = "web".into();
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": {"name": "data", "labels": {"tier": "gold", "app": "other"}, "annotations": {"example.com/own": "yes"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }]);
    f.create(&format!("{APPS}/statefulsets"), set).await;
    f.until(&format!("{APPS}/statefulsets/web"), |s| s["status"]["readyReplicas"] == 2).await;
    let claim = &format!("{CORE}/persistentvolumeclaims/data-web-1");
    let claim = f.until(claim, |c| c["status"]["phase"] == "Bound").await["metadata"].take();
    let told = (&claim["labels"], &claim["annotations"]["example.com/own"]);
    assert_eq!(
        told,
        (&json!({"tier": "gold", "app": "web"}), &json!("yes")),
        "as its template, and as the set selects"
    );
    let log = f.text(&format!("{CORE}/pods/web-0/log?container=web")).await;
    assert!(log.contains("simulated: web of pod web-0 started"), "{log}");
    let first = f.get(&format!("{CORE}/pods/web-0")).await;
    assert_eq!(first["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-web-0");
}

#[tokio::test]
async fn a_daemon_set_runs_once_on_every_node() {
    let f = Fixture::start().await;
    let mut set = workload("DaemonSet", 0);
    set["spec"].as_object_mut().unwrap().remove("replicas");
    f.create(&format!("{APPS}/daemonsets"), set).await;
    f.until(&format!("{APPS}/daemonsets/web"), |s| s["status"]["numberReady"] == 2).await;
}

#[tokio::test]
async fn a_daemon_set_is_replaced_pod_by_pod() {
    let f = Fixture::start().await;
    let mut set = workload("DaemonSet", 0);
    set["spec"].as_object_mut().unwrap().remove("replicas");
    f.create(&format!("{APPS}/daemonsets"), set).await;
    let path = &format!("{APPS}/daemonsets/web");
    f.until(path, |s| s["status"]["numberReady"] == 2).await;
    f.patch(path, json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}}})).await;
    let seen = |s: &Value| s["status"]["observedGeneration"] == s["metadata"]["generation"];
    f.until(path, |s| seen(s) && s["status"]["updatedNumberScheduled"] == 2 && s["status"]["numberReady"] == 2).await;
    let pods = f.get(&format!("{CORE}/pods")).await;
    let image = |pod: &Value| pod["spec"]["containers"][0]["image"].clone();
    assert!(pods["items"].as_array().unwrap().iter().all(|pod| image(pod) == "web:2"), "{pods}");
}

#[tokio::test]
async fn a_stateful_set_is_replaced_from_its_end() {
    let f = Fixture::start().await;
    f.create(&format!("{APPS}/statefulsets"), workload("StatefulSet", 2)).await;
    let path = &format!("{APPS}/statefulsets/web");
    f.until(path, |s| s["status"]["readyReplicas"] == 2).await;
    f.patch(path, json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}}})).await;
    let seen = |s: &Value| s["status"]["observedGeneration"] == s["metadata"]["generation"];
    f.until(path, |s| seen(s) && s["status"]["updatedReplicas"] == 2 && s["status"]["readyReplicas"] == 2).await;
    let created = |pod: Value| pod["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let (first, second) = (f.get(&format!("{CORE}/pods/web-0")).await, f.get(&format!("{CORE}/pods/web-1")).await);
    assert_eq!(
        (&first["spec"]["containers"][0]["image"], &second["spec"]["containers"][0]["image"]),
        (&json!("web:2"), &json!("web:2"))
    );
    assert!(created(second) < created(first), "the last one was replaced first");
}

#[tokio::test]
async fn templates_are_kept_as_revisions_as_many_as_are_wanted() {
    let f = Fixture::start().await;
    let path = &format!("{APPS}/daemonsets/web");
    let mut set = workload("DaemonSet", 1);
    set["spec"].as_object_mut().unwrap().remove("replicas");
    set["spec"]["revisionHistoryLimit"] = json!(1);
    f.create(&format!("{APPS}/daemonsets"), set).await;
    let images = |list: &Value| -> Vec<(i64, String)> {
        let of = |item: &Value| {
            let image = &item["data"]["spec"]["template"]["spec"]["containers"][0]["image"];
            (item["revision"].as_i64().unwrap(), image.as_str().unwrap().to_owned())
        };
        let mut all: Vec<_> = list["items"].as_array().unwrap().iter().map(of).collect();
        all.sort();
        all
    };
    for (image, expected) in [
        ("web:1", &[(1, "web:1")][..]),
        ("web:2", &[(1, "web:1"), (2, "web:2")]),
        ("web:1", &[(2, "web:2"), (3, "web:1")]),
        ("web:3", &[(3, "web:1"), (4, "web:3")]),
    ] {
        f.patch(path, json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}})).await;
        let expected: Vec<_> = expected.iter().map(|(n, image)| (*n, (*image).to_owned())).collect();
        f.until(&format!("{APPS}/controllerrevisions"), |list| images(list) == expected).await;
    }
}

#[tokio::test]
async fn orphans_of_a_deleted_workload_are_adopted() {
    for (kind, resource) in
        [("Deployment", "deployments"), ("StatefulSet", "statefulsets"), ("ReplicaSet", "replicasets")]
    {
        let f = Fixture::start().await;
        let web = &format!("{APPS}/{resource}/web");
        f.create(&format!("{APPS}/{resource}"), workload(kind, 2)).await;
        f.until(web, |d| d["status"]["readyReplicas"] == 2).await;
        let uids = |pods: &Value| -> BTreeSet<String> {
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect()
        };
        let all = &format!("{CORE}/pods");
        let before = uids(&f.get(all).await);
        f.delete(web, "Orphan").await;
        f.until(web, |d| d["reason"] == "NotFound").await;
        assert_eq!(uids(&f.get(all).await), before, "{kind}: they run on");
        f.create(&format!("{APPS}/{resource}"), workload(kind, 2)).await;
        f.until(web, |d| d["status"]["readyReplicas"] == 2).await;
        assert_eq!(uids(&f.get(all).await), before, "{kind}: and are adopted");
    }
}

#[tokio::test]
async fn a_deployment_that_recreates_has_no_two_templates_at_once() {
    let f = Fixture::start().await;
    let mut web = workload("Deployment", 2);
    web["spec"]["strategy"] = json!({"type": "Recreate"});
    f.create(&format!("{APPS}/deployments"), web).await;
    let path = &format!("{APPS}/deployments/web");
    f.until(path, |d| d["status"]["readyReplicas"] == 2).await;
    f.patch(path, json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}}})).await;
    let images = |pods: &Value| {
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].to_string()).collect::<BTreeSet<_>>()
    };
    let all = &format!("{CORE}/pods");
    f.until(all, |pods| {
        assert!(images(pods).len() < 2, "{pods}");
        images(pods).contains("\"web:2\"")
    })
    .await;
    f.until(path, |d| d["status"]["updatedReplicas"] == 2 && d["status"]["readyReplicas"] == 2).await;
}

/// A clock that a test moves.
struct Moved(Mutex<Timestamp>);

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

#[tokio::test]
async fn a_cron_job_starts_a_job_when_it_is_due() {
    let clock = Arc::new(Moved(Mutex::new("2026-01-01T00:00:30Z".parse().unwrap())));
    let f = Fixture::start_at(Seams { clock: clock.clone(), ..Seams::system() }).await;
    let cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
        "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": template("web:1", "Never")}}},
    });
    f.create(&format!("{BATCH}/cronjobs"), cron).await;
    let (path, jobs) = (&format!("{BATCH}/cronjobs/tick"), &format!("{BATCH}/jobs"));
    f.until(path, |cron| cron["status"]["active"] == json!([])).await;
    assert_eq!(count(&f.get(jobs).await), 0, "it is not due yet");
    *clock.0.lock().unwrap() = "2026-01-01T00:05:10Z".parse().unwrap();
    f.relabel(path, "now").await;
    let scheduled = |cron: &Value| cron["status"]["lastScheduleTime"] == "2026-01-01T00:05:00Z";
    f.until(path, scheduled).await;
    f.until(jobs, |jobs| jobs.pointer("/items/0/status/succeeded") == Some(&json!(1))).await;
    f.until(path, |cron| cron["status"]["lastSuccessfulTime"] == "2026-01-01T00:05:10Z").await;
    let owner = f.get(jobs).await["items"][0]["metadata"]["ownerReferences"][0]["name"].clone();
    assert_eq!((owner, count(&f.get(jobs).await)), (json!("tick"), 1), "one for one time");
}

#[tokio::test]
async fn a_claim_is_bound_to_a_volume_that_goes_with_it() {
    let f = Fixture::start().await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    f.create(&format!("{CORE}/persistentvolumeclaims"), claim).await;
    let path = &format!("{CORE}/persistentvolumeclaims/data");
    let bound = f.until(path, |claim| claim["status"]["phase"] == "Bound").await;
    let volume = format!("/api/v1/persistentvolumes/{}", bound["spec"]["volumeName"].as_str().unwrap());
    let made = f.get(&volume).await;
    assert_eq!((&made["spec"]["claimRef"]["name"], &made["status"]["phase"]), (&json!("data"), &json!("Bound")));
    f.delete(path, "Background").await;
    f.until(&volume, |volume| volume["reason"] == "NotFound").await;
}

#[tokio::test]
async fn objects_show_that_the_cluster_is_simulated() {
    let f = Fixture::start().await;
    f.create(&format!("{APPS}/deployments"), workload("Deployment", 1)).await;
    f.until(&format!("{APPS}/deployments/web"), |d| d["status"]["readyReplicas"] == 1).await;
    let pod = f.get(&format!("{CORE}/pods")).await["items"][0].clone();
    let name = pod["metadata"]["name"].as_str().unwrap();
    let nodes = f.get("/api/v1/nodes").await;
    let node = nodes["items"][0].clone();
    let class = f.get("/apis/storage.k8s.io/v1/storageclasses/standard").await;
    for (place, text) in [
        ("the version", f.get("/version").await["gitVersion"].to_string()),
        ("a node's labels", node["metadata"]["labels"].to_string()),
        ("its conditions", node["status"]["conditions"].to_string()),
        ("its version, as `get nodes` shows it", node["status"]["nodeInfo"]["kubeletVersion"].to_string()),
        ("a pod's containers", pod["status"]["containerStatuses"].to_string()),
        ("its log", f.text(&format!("{CORE}/pods/{name}/log")).await),
        ("an attempt to run something in it", f.text(&format!("{CORE}/pods/{name}/exec?command=sh")).await),
        ("a storage class", class["provisioner"].to_string()),
    ] {
        assert!(text.contains("simulated"), "{place}: {text}");
    }
}

#[tokio::test]
async fn a_job_completes_or_gives_up() {
    let f = Fixture::start().await;
    let job = |name: &str, command: Value| {
        let mut template = template("web:1", "Never");
        template["spec"]["containers"][0]["command"] = command;
        json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 1, "completions": 2, "template": template},
        })
    };
    f.create(&format!("{BATCH}/jobs"), job("good", json!(["true"]))).await;
    f.create(&format!("{BATCH}/jobs"), job("bad", json!(["false"]))).await;
    let has = |job: &Value, kind: &str| {
        job["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|c| c["type"] == kind))
    };
    f.until(&format!("{BATCH}/jobs/good"), |job| has(job, "Complete") && job["status"]["succeeded"] == 2).await;
    f.until(&format!("{BATCH}/jobs/bad"), |job| has(job, "Failed")).await;
}

#[tokio::test]
async fn a_service_gets_an_address_and_endpoints() {
    let f = Fixture::start().await;
    f.create(&format!("{APPS}/deployments"), workload("Deployment", 2)).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "labels": {"tier": "front"}},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    f.create(&format!("{CORE}/services"), service).await;
    let made = f.get(&format!("{CORE}/services/web")).await;
    assert!(made["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{made}");
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let ready = |list: &Value| {
        let endpoints = list.pointer("/items/0/endpoints").and_then(Value::as_array).cloned().unwrap_or_default();
        endpoints.iter().filter(|e| e["conditions"]["ready"] == true).count()
    };
    f.until(slices, |list| ready(list) == 2).await;
    let labels = f.get(slices).await["items"][0]["metadata"]["labels"].clone();
    let expected = json!({"tier": "front", "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"});
    assert_eq!(labels, expected, "with those of the Service, as in Kubernetes");
}

#[tokio::test]
async fn a_replication_controller_runs_its_pods() {
    let f = Fixture::start().await;
    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"app": "web"}, "template": template("web:1", "Always")},
    });
    f.create(&format!("{CORE}/replicationcontrollers"), controller).await;
    let path = &format!("{CORE}/replicationcontrollers/web");
    let seen = |c: &Value| c["status"]["observedGeneration"] == c["metadata"]["generation"];
    f.until(path, |c| seen(c) && c["status"]["readyReplicas"] == 2 && c["status"]["availableReplicas"] == 2).await;
    f.patch(path, json!({"spec": {"replicas": 0}})).await;
    f.until(&format!("{CORE}/pods"), |pods| count(pods) == 0).await;
}

#[tokio::test]
async fn a_suspended_job_may_still_be_changed_and_starts_when_it_is_resumed() {
    let f = Fixture::start().await;
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "queued"},
        "spec": {"suspend": true, "template": template("web:1", "Never")},
    });
    f.create(&format!("{BATCH}/jobs"), job).await;
    let path = &format!("{BATCH}/jobs/queued");
    let suspended = |job: &Value| job["status"]["conditions"][0]["reason"] == "JobSuspended";
    let queued = f.until(path, suspended).await;
    assert_eq!(queued["status"].get("startTime"), None, "{queued}");
    // What queues do when they start it: they also say where it runs.
    let start = json!({"spec": {"suspend": false, "template": {"metadata": {"labels": {"x": "y"}}}}});
    f.patch(path, start).await;
    let done =
        f.until(path, |job| job["status"]["succeeded"] == 1 && job["status"]["completionTime"].is_string()).await;
    assert!(done["status"]["startTime"].is_string(), "{done}");
    let reasons: Vec<_> =
        done["status"]["conditions"].as_array().unwrap().iter().map(|own| own["reason"].clone()).collect();
    assert!(reasons.contains(&json!("JobResumed")), "{reasons:?}");
}

#[tokio::test]
async fn an_indexed_job_completes_each_index_once() {
    let f = Fixture::start().await;
    let spec = json!({"completions": 3, "parallelism": 2, "completionMode": "Indexed", "template": template("web:1", "Never")});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "shards"}, "spec": spec});
    f.create(&format!("{BATCH}/jobs"), job).await;
    f.until(&format!("{BATCH}/jobs/shards"), |job| job["status"]["completedIndexes"] == "0-2").await;
    let pods = f.get(&format!("{CORE}/pods")).await;
    let index = |pod: &Value| pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].clone();
    let mut indexes: Vec<_> = pods["items"].as_array().unwrap().iter().map(|pod| index(pod).to_string()).collect();
    indexes.sort();
    assert_eq!(indexes, ["\"0\"", "\"1\"", "\"2\""]);
}

#[tokio::test]
async fn slices_are_named_as_kubernetes_names_them() {
    let (one, other) = (Fixture::start().await, Fixture::start().await);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let mut names = BTreeSet::new();
    for f in [&one, &other] {
        f.create(&format!("{CORE}/services"), service.clone()).await;
        let slice = f.until(slices, |list| count(list) == 1).await["items"][0]["metadata"].clone();
        let name = slice["name"].as_str().unwrap();
        assert_eq!((slice["generateName"].as_str(), name.len()), (Some("web-"), "web-x7k2p".len()), "{name}");
        names.insert(name.to_owned());
        f.delete(&format!("{slices}/{name}"), "Background").await;
        f.until(slices, |list| {
            list["items"].as_array().is_some_and(|all| all.iter().any(|s| s["metadata"]["uid"] != slice["uid"]))
        })
        .await;
    }
    assert_eq!(names.len(), 2, "no two clusters give a slice the same name");
}

#[tokio::test]
async fn a_paused_deployment_keeps_its_template_and_is_scaled() {
    let f = Fixture::start().await;
    let web = &format!("{APPS}/deployments/web");
    f.create(&format!("{APPS}/deployments"), workload("Deployment", 2)).await;
    f.until(web, |d| d["status"]["readyReplicas"] == 2).await;
    let image = json!([{"name": "web", "image": "web:2"}]);
    f.patch(web, json!({"spec": {"paused": true, "replicas": 3, "template": {"spec": {"containers": image}}}})).await;
    let paused = |d: &Value| {
        let conditions = d["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|own| own["reason"] == "DeploymentPaused" && own["status"] == "Unknown")
    };
    let seen = |d: &Value| d["status"]["observedGeneration"] == d["metadata"]["generation"];
    let scaled = f.until(web, |d| paused(d) && seen(d) && d["status"]["readyReplicas"] == 3).await;
    assert_eq!(
        (count(&f.get(&format!("{APPS}/replicasets")).await), &scaled["status"]["updatedReplicas"]),
        (1, &json!(0))
    );
    f.patch(web, json!({"spec": {"paused": false}})).await;
    f.until(web, |d| seen(d) && d["status"]["updatedReplicas"] == 3 && d["status"]["replicas"] == 3 && !paused(d))
        .await;
}

#[tokio::test]
async fn a_pod_is_available_once_it_has_been_ready_for_long_enough() {
    let clock = Arc::new(Moved(Mutex::new("2026-01-01T00:00:00Z".parse().unwrap())));
    let f = Fixture::start_at(Seams { clock: clock.clone(), ..Seams::system() }).await;
    let mut slow = workload("Deployment", 1);
    slow["spec"]["minReadySeconds"] = json!(10);
    f.create(&format!("{APPS}/deployments"), slow).await;
    let web = &format!("{APPS}/deployments/web");
    let ready = f.until(web, |d| d["status"]["readyReplicas"] == 1).await;
    assert_ne!(ready["status"]["availableReplicas"], 1, "{ready}");
    *clock.0.lock().unwrap() = "2026-01-01T00:00:10Z".parse().unwrap();
    let pods = f.get(&format!("{CORE}/pods")).await;
    let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    f.relabel(&format!("{CORE}/pods/{pod}"), "now").await;
    f.until(web, |d| d["status"]["availableReplicas"] == 1).await;
}
