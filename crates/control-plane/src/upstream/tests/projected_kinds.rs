//! Tests that every projected kind accepts a user's write, such as a new label.

use portolan_controllers::plane::PlaneChange;
use portolan_syncer::project::{self, PodLookup, ProjectionOrigin, ProjectionOwner};

use super::*;

/// Resources with projected objects.
const PROJECTED: [&str; 6] = [
    "pods",
    "replicasets.apps",
    "controllerrevisions.apps",
    "jobs.batch",
    "persistentvolumeclaims",
    "endpointslices.discovery.k8s.io",
];

fn pod_spec() -> Value {
    json!({
        "containers": [{"name": "c", "image": "reg.example/c:1", "imagePullPolicy": "IfNotPresent", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}]}],
        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
        "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
    })
}

/// Returns a Pod as a kubelet runs it.
fn running_pod(name: &str, labels: &Value) -> Value {
    let mut spec = pod_spec();
    let own = json!({"enableServiceLinks": true, "nodeName": "node-1", "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "volumes": [{"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}]});
    spec.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop-x", "uid": "down-pod", "generateName": "web-", "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec, "status": {"phase": "Running", "qosClass": "BestEffort", "podIP": "10.0.0.7",
            "podIPs": [{"ip": "10.0.0.7"}], "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn template(labels: &Value) -> Value {
    let mut spec = pod_spec();
    ["serviceAccount", "serviceAccountName"]
        .iter()
        .for_each(|field| drop(spec.as_object_mut().unwrap().remove(*field)));
    spec["containers"][0].as_object_mut().unwrap().remove("volumeMounts");
    spec["automountServiceAccountToken"] = json!(false);
    json!({"metadata": {"labels": labels, "creationTimestamp": null}, "spec": spec})
}

/// Returns an upstream object with a copy on east.
fn placed(api_version: &str, kind: &str, uid: &str, spec: &Value) -> Value {
    let object = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": "web", "namespace": "shop", "uid": uid, "generation": 1}, "spec": spec});
    with_record(object, vec![copy("east", CopyPhase::Active, None, 1)])
}

/// Returns a CronJob's Job as the downstream Job controller leaves it.
fn downstream_job() -> Value {
    let labels = json!({"app": "web", "controller-uid": "down-job", "job-name": "web-1",
        "batch.kubernetes.io/controller-uid": "down-job", "batch.kubernetes.io/job-name": "web-1"});
    let mut template = template(&labels);
    template["spec"]["restartPolicy"] = json!("Never");
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "web-1", "namespace": "shop-x", "uid": "down-job", "labels": labels, "generation": 1,
            "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-01-01T00:00:00Z"}},
        "spec": {"backoffLimit": 6, "completionMode": "NonIndexed", "completions": 1, "manualSelector": false, "parallelism": 1,
            "podReplacementPolicy": "TerminatingOrFailed", "suspend": false,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "down-job"}}, "template": template},
        "status": {"active": 1, "ready": 0, "startTime": "2026-01-01T00:00:00Z", "terminating": 0, "uncountedTerminatedPods": {}}})
}

fn downstream_claim() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-web-0", "namespace": "shop-x", "uid": "down-claim", "labels": {"app": "web"},
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}, "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast",
            "volumeMode": "Filesystem", "volumeName": "pvc-down-claim"},
        "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}})
}

fn downstream_slice() -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-abcde", "namespace": "shop-x", "uid": "down-slice", "generateName": "web-",
            "labels": {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
        "endpoints": [{"addresses": ["10.0.0.7"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-1", "targetRef": {"kind": "Pod", "namespace": "shop-x", "name": "web-7c9f-a", "uid": "down-pod"}}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]})
}

impl World {
    /// Projects a downstream object and returns the upstream one.
    async fn shown(&self, resource: &str, shown: Value) -> (ObjectKey, Value) {
        let at = key(resource, object::name(&shown));
        self.show("east", (at.clone(), shown)).await;
        let stored = self.get(&at).await.unwrap_or_else(|| panic!("{at} is not shown"));
        (at, stored)
    }

    async fn all_kinds(&self) -> Vec<(ObjectKey, Value)> {
        let east = uid("east");
        let origin = ProjectionOrigin { name: "east", uid: &east };
        let own = json!({"app": "web"});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": own}, "template": {"metadata": {"labels": own}, "spec":
            {"containers": [{"name": "c", "image": "reg.example/c:1"}]}}});
        let owners = [
            ("deployments.apps", placed("apps/v1", "Deployment", "up-deployment", &spec)),
            ("statefulsets.apps", placed("apps/v1", "StatefulSet", "up-set", &spec)),
            ("cronjobs.batch", placed("batch/v1", "CronJob", "up-cronjob", &json!({}))),
            ("services", placed("v1", "Service", "up-service", &json!({"selector": own}))),
        ];
        for (resource, owner) in &owners {
            self.write(&key(resource, "web"), owner).await;
        }
        let keys = owners.each_ref().map(|(resource, _)| key(resource, "web"));
        let owner = |at: usize| ProjectionOwner { key: &keys[at], object: &owners[at].1 };

        let hashed = json!({"app": "web", "pod-template-hash": "7c9f", "sync.portolan.dev/cluster": "root"});
        let set_below = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "web-7c9f", "namespace": "shop-x", "uid": "down-rs", "labels": hashed,
                "annotations": {"deployment.kubernetes.io/revision": "1", "deployment.kubernetes.io/desired-replicas": "1"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": hashed}, "template": template(&hashed)}});
        let set = project::replica_set(&set_below, "shop", owner(0), true, origin).unwrap();
        let set = self.shown("replicasets.apps", set).await;
        let set_owner = ProjectionOwner { key: &set.0, object: &set.1 };
        let pod =
            project::projected_object(&running_pod("web-7c9f-a", &hashed), "shop", Some(set_owner), origin).unwrap();
        let pod = self.shown("pods", pod).await;

        let mut data = template(&own);
        data["$patch"] = json!("replace");
        let revision_below = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
            "metadata": {"name": "web-6f", "namespace": "shop-x", "uid": "down-rev"}, "data": {"spec": {"template": data}}});
        let revision = project::revision(&revision_below, "shop", owner(1), origin).unwrap();
        let revision = self.shown("controllerrevisions.apps", revision).await;
        let claim = project::projected_object(&downstream_claim(), "shop", None, origin).unwrap();
        let claim = self.shown("persistentvolumeclaims", claim).await;

        let downstream_job = downstream_job();
        let job = self
            .shown("jobs.batch", project::projected_object(&downstream_job, "shop", Some(owner(2)), origin).unwrap())
            .await;
        let job_owner = ProjectionOwner { key: &job.0, object: &job.1 };
        let labels = downstream_job["spec"]["template"]["metadata"]["labels"].clone();
        let job_pod =
            project::projected_object(&running_pod("web-1-b", &labels), "shop", Some(job_owner), origin).unwrap();
        let job_pod = self.shown("pods", job_pod).await;

        let mut slice = project::projected_object(&downstream_slice(), "shop", Some(owner(3)), origin).unwrap();
        assert!(project::rename_targets(&mut slice, "shop", |pod| PodLookup::As(
            pod.name.to_owned(),
            Some(uid("up-pod"))
        )));
        let slice = self.shown("endpointslices.discovery.k8s.io", slice).await;
        vec![set, pod, revision, claim, job, job_pod, slice]
    }
}

#[tokio::test]
async fn every_projected_kind_accepts_writes() {
    let world = World::new();
    let all = world.all_kinds().await;
    let plane = &world.0.plane;
    for resource in PROJECTED {
        assert!(all.iter().any(|(at, _)| at.resource == key(resource, "x").resource), "{resource} has no case");
    }
    for (at, _) in all {
        let kind = plane.stored_kind(&at.resource).unwrap();
        let label = |object: &mut Value| {
            object["metadata"]["labels"]["a"] = json!("b");
            object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
            PlaneChange::Write(None)
        };
        let written = plane.change(kind, &at, label).await;
        let written = written.unwrap_or_else(|error| panic!("{at} refuses a label: {error}")).unwrap();
        assert_eq!(object::label(&written, "a"), Some("b"), "{at}");
        let dropped = plane.drop_finalizer(kind, &at, "foregroundDeletion").await;
        dropped.unwrap_or_else(|error| panic!("{at} keeps its finalizer: {error}"));
    }
}

#[tokio::test]
async fn a_job_and_its_pods_carry_the_uid_that_the_job_has_upstream() {
    let world = World::new();
    let all = world.all_kinds().await;
    let job = &all.iter().find(|(at, _)| at.resource == key("jobs.batch", "x").resource).unwrap().1;
    let pod = &all.iter().find(|(at, _)| &*at.name == "web-1-b").unwrap().1;
    let own = object::meta_text(job, "uid");
    assert_ne!(own, "down-job");
    let selected = &job["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"];
    assert_eq!(selected, own);
    for name in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        assert_eq!(object::label(pod, name), Some(own), "its selector finds the pod");
        assert_eq!(object::label(job, name), Some(own));
        assert_eq!(job["spec"]["template"]["metadata"]["labels"][name], own);
    }
    assert_eq!(object::label(pod, "batch.kubernetes.io/job-name"), Some("web-1"));
}
