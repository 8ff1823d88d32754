use super::*;
use portolan_kinds::KindTable;

const NOW: &str = "2026-11-21T04:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn print(api: &str, object: Value, include: IncludeObject) -> Value {
    let (api_version, kind) = api.rsplit_once(' ').expect("a version and a kind");
    let gvk = GroupVersionKind::parse(api_version, kind).unwrap();
    let metadata = json!({"resourceVersion": "7"});
    match KindTable::builtin().kind(&gvk) {
        Some(kind) => table(kind, vec![object], metadata, include, true, now()),
        None => table_of(&gvk, vec![object], metadata, include, true, now()),
    }
}

/// Returns the cells of one object, joined by ` | `; wide ones follow after `||`.
fn cells(api: &str, mut object: Value) -> String {
    object["metadata"]["name"] = json!("x");
    object["metadata"]["creationTimestamp"] = json!("2026-11-21T03:00:00Z");
    let table = print(api, object, IncludeObject::None);
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    let (columns, cells) =
        (table["columnDefinitions"].as_array().unwrap(), table["rows"][0]["cells"].as_array().unwrap());
    assert_eq!(columns.len(), cells.len(), "{api}");
    let of = |wide: i64| {
        let chosen = columns.iter().zip(cells).filter(|(column, _)| column["priority"] == wide);
        chosen.map(|(_, cell)| text(cell)).collect::<Vec<_>>().join(" | ")
    };
    match of(1) {
        wide if wide.is_empty() => of(0),
        wide => format!("{} || {wide}", of(0)),
    }
}

fn pod(spec: Value, status: Value) -> Value {
    json!({"metadata": {}, "spec": spec, "status": status})
}

fn container(ready: bool, restarts: i64, state: Value) -> Value {
    json!({"name": "c", "ready": ready, "restartCount": restarts, "state": state})
}

#[test]
fn pods() {
    let one = json!({"containers": [{"name": "c"}]});
    let init = json!({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]});
    let running = || json!({"running": {}});
    let deleting = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = json!(NOW);
        pod
    };
    for (case, object, expected) in [
        ("a new pod", pod(one.clone(), json!({"phase": "Pending"})), "x | 0/1 | Pending | 0 | 60m"),
        (
            "a running pod",
            pod(one.clone(), json!({"phase": "Running", "containerStatuses": [container(true, 0, running())]})),
            "x | 1/1 | Running | 0 | 60m",
        ),
        (
            "a pod that crashes",
            pod(
                one.clone(),
                json!({"phase": "Running", "containerStatuses": [{
                "name": "c", "ready": false, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"finishedAt": "2026-11-21T03:55:00Z"}}}]}),
            ),
            "x | 0/1 | CrashLoopBackOff | 3 (5m ago) | 60m",
        ),
        (
            "a pod whose end has no reason",
            pod(
                one.clone(),
                json!({"phase": "Failed", "containerStatuses": [container(false, 0, json!({"terminated": {"exitCode": 3}}))]}),
            ),
            "x | 0/1 | ExitCode:3 | 0 | 60m",
        ),
        (
            "a pod of which one container is done and one runs",
            pod(
                json!({"containers": [{}, {}]}),
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [container(false, 0, json!({"terminated": {"exitCode": 0, "reason": "Completed"}})), container(true, 0, running())]}),
            ),
            "x | 1/2 | Running | 0 | 60m",
        ),
        (
            "the same pod when it is not ready",
            pod(
                json!({"containers": [{}, {}]}),
                json!({"phase": "Running",
                "containerStatuses": [container(false, 0, json!({"terminated": {"exitCode": 0, "reason": "Completed"}})), container(true, 0, running())]}),
            ),
            "x | 1/2 | NotReady | 0 | 60m",
        ),
        (
            "a pod that is initialized",
            pod(
                init.clone(),
                json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "s", "state": {"waiting": {"reason": "PodInitializing"}}}]}),
            ),
            "x | 0/2 | Init:1/2 | 0 | 60m",
        ),
        (
            "a pod whose initialization fails",
            pod(
                init.clone(),
                json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}),
            ),
            "x | 0/2 | Init:Error | 2 | 60m",
        ),
        (
            "a pod with a sidecar",
            pod(
                init,
                json!({"phase": "Running", "containerStatuses": [container(true, 1, running())], "initContainerStatuses": [
                {"name": "i", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}},
                {"name": "s", "started": true, "ready": true, "restartCount": 1, "state": {"running": {}}}]}),
            ),
            "x | 2/2 | Running | 2 | 60m",
        ),
        (
            "a gated pod",
            pod(
                one.clone(),
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            ),
            "x | 0/1 | SchedulingGated | 0 | 60m",
        ),
        (
            "an evicted pod",
            pod(one.clone(), json!({"phase": "Failed", "reason": "Evicted"})),
            "x | 0/1 | Evicted | 0 | 60m",
        ),
        ("a deleted pod", deleting(pod(one.clone(), json!({"phase": "Running"}))), "x | 0/1 | Terminating | 0 | 60m"),
        (
            "a deleted pod of a lost node",
            deleting(pod(one.clone(), json!({"phase": "Running", "reason": "NodeLost"}))),
            "x | 0/1 | Unknown | 0 | 60m",
        ),
        (
            "a deleted pod that had ended",
            deleting(pod(one, json!({"phase": "Succeeded"}))),
            "x | 0/1 | Succeeded | 0 | 60m",
        ),
    ] {
        let got = cells("v1 Pod", object);
        assert_eq!(got, format!("{expected} || <none> | <none> | <none> | <none> | <none>"), "{case}");
    }
}

#[test]
fn wide_pods() {
    let mut object = pod(
        json!({"containers": [], "nodeName": "n", "readinessGates": [{"conditionType": "A"}, {"conditionType": "B"}]}),
        json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "B", "status": "True"}], "nominatedNodeName": "m"}),
    );
    object["metadata"]["annotations"] = json!({"portolan.dev/clusters": "east,west"});
    assert_eq!(cells("v1 Pod", object), "x | 0/0 | Running | 0 | 60m || 10.0.0.1 | n | m | 1/2 | east,west");
    let record = json!({"clusters": [{"name": "eu-1", "uid": "u", "phase": "Projected", "epoch": 0}]}).to_string();
    let mut made = pod(json!({}), json!({}));
    made["metadata"]["annotations"] = json!({"portolan.dev/placement": record});
    assert!(cells("v1 Pod", made).ends_with("| eu-1"), "made by a physical cluster");
}

#[test]
fn pods_that_ended_are_marked() {
    let table = print("v1 Pod", pod(json!({}), json!({"phase": "Succeeded"})), IncludeObject::None);
    assert_eq!(
        table["rows"][0]["conditions"],
        json!([{"type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully."}])
    );
}

#[test]
fn workloads() {
    let template = json!({"spec": {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j:2"}], "nodeSelector": {"d": "ssd"}}});
    let selector = json!({"matchLabels": {"b": "2"}, "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"}]});
    let of = |status: Value| {
        json!({"metadata": {"annotations": {"portolan.dev/clusters": "east"}},
            "spec": {"replicas": 3, "template": template, "selector": selector}, "status": status})
    };
    let wide = "a,b | i:1,j:2 | a in (x,y),b=2,!c | east";
    for (api, status, expected) in [
        (
            "apps/v1 Deployment",
            json!({"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}),
            "x | 2/3 | 3 | 1 | 60m",
        ),
        ("apps/v1 ReplicaSet", json!({"replicas": 3, "readyReplicas": 2}), "x | 3 | 3 | 2 | 60m"),
        (
            "apps/v1 DaemonSet",
            json!({"desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3, "updatedNumberScheduled": 2, "numberAvailable": 1}),
            "x | 5 | 4 | 3 | 2 | 1 | d=ssd | 60m",
        ),
        (
            "batch/v1 Job",
            json!({"succeeded": 1, "startTime": "2026-11-21T03:30:00Z", "completionTime": "2026-11-21T03:31:30Z", "conditions": [{"type": "Complete", "status": "True"}]}),
            "x | Complete | 1/1 | 90s | 60m",
        ),
        ("batch/v1 Job", json!({"startTime": "2026-11-21T03:30:00Z"}), "x | Running | 0/1 | 30m | 60m"),
    ] {
        assert_eq!(cells(api, of(status)), format!("{expected} || {wide}"), "{api}");
    }
    assert_eq!(cells("apps/v1 StatefulSet", of(json!({"readyReplicas": 3}))), "x | 3/3 | 60m || a,b | i:1,j:2 | east");
    assert_eq!(
        cells(
            "batch/v1 CronJob",
            json!({"metadata": {}, "spec": {"schedule": "* * * * *", "suspend": false,
            "jobTemplate": {"spec": {"template": template}}}, "status": {"active": [{}], "lastScheduleTime": "2026-11-21T03:59:30Z"}})
        ),
        "x | * * * * * | <none> | False | 1 | 30s | 60m || a,b | i:1,j:2 | <none> | <none>"
    );
    assert_eq!(
        cells(
            "apps/v1 ControllerRevision",
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true}]}, "revision": 4})
        ),
        "x | statefulset.apps/db | 4 | 60m"
    );
}

#[test]
fn network() {
    for (api, object, expected) in [
        (
            "v1 Service",
            json!({"spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}], "selector": {"a": "b"}}}),
            "x | NodePort | 10.0.0.1 | <none> | 80:30080/TCP,53/UDP | 60m || a=b | <none>",
        ),
        (
            "v1 Service",
            json!({"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]}, "status": {"loadBalancer": {"ingress": [{"ip": "2.2.2.2"}, {"hostname": "1.example"}]}}}),
            "x | LoadBalancer | <none> | 1.example,2.2.2.2,9.9.9.9 | <none> | 60m || <none> | <none>",
        ),
        (
            "v1 Service",
            json!({"spec": {"type": "LoadBalancer"}}),
            "x | LoadBalancer | <none> | <pending> | <none> | 60m || <none> | <none>",
        ),
        (
            "v1 Service",
            json!({"spec": {"type": "ExternalName", "externalName": "db.example"}}),
            "x | ExternalName | <none> | db.example | <none> | 60m || <none> | <none>",
        ),
        (
            "networking.k8s.io/v1 Ingress",
            json!({"spec": {"ingressClassName": "nginx", "tls": [{}], "rules": [{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}]}}),
            "x | nginx | a,b,c + 1 more... |  | 80, 443 | 60m || <none>",
        ),
        ("networking.k8s.io/v1 Ingress", json!({"spec": {"rules": [{}]}}), "x | <none> | * |  | 80 | 60m || <none>"),
        (
            "networking.k8s.io/v1 IngressClass",
            json!({"metadata": {"annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
                "spec": {"controller": "c", "parameters": {"apiGroup": "g.example", "kind": "P", "name": "p"}}}),
            "x (default) | c | P.g.example/p | 60m",
        ),
        (
            "v1 Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "::1"}], "ports": [{"port": 80}, {"port": 443}]}]}),
            "x | 1.1.1.1:80,[::1]:80,1.1.1.1:443 + 1 more... | 60m",
        ),
        (
            "discovery.k8s.io/v1 EndpointSlice",
            json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "n"}, {}], "endpoints": [{"addresses": ["1.1.1.1"]}]}),
            "x | IPv4 | 80,n,* | 1.1.1.1 | 60m",
        ),
        ("discovery.k8s.io/v1 EndpointSlice", json!({"addressType": "IPv4"}), "x | IPv4 | <unset> | <unset> | 60m"),
        ("networking.k8s.io/v1 NetworkPolicy", json!({"spec": {"podSelector": {}}}), "x | <none> | 60m || <none>"),
    ] {
        assert_eq!(cells(api, object), expected);
    }
}

#[test]
fn addresses_have_an_age_without_a_column() {
    let spec = json!({"parentRef": {"resource": "services", "namespace": "n", "name": "s"}});
    let metadata = json!({"name": "x", "creationTimestamp": "2026-11-21T03:00:00Z"});
    let object = json!({"metadata": metadata, "spec": spec});
    let table = print("networking.k8s.io/v1 IPAddress", object, IncludeObject::None);
    let names: Vec<&Value> = table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["Name", "ParentRef"]);
    assert_eq!(table["rows"][0]["cells"], json!(["x", "services/n/s", "60m"]));
}

#[test]
fn storage_and_nodes() {
    for (api, object, expected) in [
        (
            "v1 PersistentVolume",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "n", "name": "c"}, "storageClassName": "fast", "volumeMode": "Block"}, "status": {"phase": "Bound"}}),
            "x | 1Gi | RWO,RWX | Retain | Bound | n/c | fast | <unset> |  | 60m || Block",
        ),
        (
            "v1 PersistentVolumeClaim",
            json!({"spec": {"volumeName": "v", "storageClassName": "fast"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}),
            "x | Bound | v | 1Gi | RWO | fast | <unset> | 60m || <unset> | <none>",
        ),
        (
            "v1 PersistentVolumeClaim",
            json!({"status": {"phase": "Pending"}}),
            "x | Pending |  |  |  |  | <unset> | 60m || <unset> | <none>",
        ),
        (
            "storage.k8s.io/v1 StorageClass",
            json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p"}),
            "x (default) | p | Delete | Immediate | false | 60m",
        ),
        (
            "storage.k8s.io/v1 CSIDriver",
            json!({"spec": {"podInfoOnMount": true, "volumeLifecycleModes": ["Persistent"]}}),
            "x | true | true | false | <unset> | false | Persistent | 60m",
        ),
        (
            "v1 Node",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}}, "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.1", "architecture": "arm64"}}}),
            "x | Ready,SchedulingDisabled | edge,worker | 60m | v1.36.3 || 10.0.0.1 | <none> | <unknown> | 6.1 (arm64) | <unknown>",
        ),
        ("coordination.k8s.io/v1 Lease", json!({"spec": {"holderIdentity": "h"}}), "x | h | 60m"),
        ("scheduling.k8s.io/v1 PriorityClass", json!({"value": 5}), "x | 5 | false | 60m | "),
    ] {
        assert_eq!(cells(api, object), expected);
    }
}

#[test]
fn configuration_and_access() {
    let subjects = json!([{"kind": "User", "name": "u"}, {"kind": "User", "name": "v"}, {"kind": "Group", "name": "g"},
        {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]);
    for (api, object, expected) in [
        ("v1 Namespace", json!({"status": {"phase": "Active"}}), "x | Active | 60m"),
        ("v1 ConfigMap", json!({"data": {"a": "", "b": ""}, "binaryData": {"c": ""}}), "x | 3 | 60m || <none>"),
        ("v1 Secret", json!({"type": "Opaque", "data": {"a": ""}}), "x | Opaque | 1 | 60m || <none>"),
        ("v1 LimitRange", json!({}), "x | 2026-11-21T03:00:00Z"),
        ("rbac.authorization.k8s.io/v1 Role", json!({}), "x | 2026-11-21T03:00:00Z"),
        (
            "rbac.authorization.k8s.io/v1 RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}),
            "x | Role/r | 60m || u, v | g | n/s",
        ),
        (
            "v1 ResourceQuota",
            json!({"status": {"hard": {"limits.cpu": "2", "pods": "10", "cpu": "1"}, "used": {"pods": "3"}}}),
            "x | cpu: 0/1, pods: 3/10 | limits.cpu: 0/2 | 60m",
        ),
        (
            "policy/v1 PodDisruptionBudget",
            json!({"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 1}}),
            "x | 50% | N/A | 1 | 60m || <none>",
        ),
        (
            "autoscaling/v2 HorizontalPodAutoscaler",
            json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                {"type": "Pods", "pods": {"target": {"averageValue": "10"}}},
                {"type": "External", "external": {"target": {"value": "1k"}}}]},
                "status": {"currentReplicas": 2, "currentMetrics": [{"resource": {"current": {"averageUtilization": 40}}}]}}),
            "x | Deployment/web | cpu: 40%/80%, <unknown>/10 + 1 more... | <unset> | 5 | 2 | 60m || <none>",
        ),
        (
            "autoscaling/v1 HorizontalPodAutoscaler",
            json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "minReplicas": 1, "maxReplicas": 5, "targetCPUUtilizationPercentage": 80}}),
            "x | Deployment/web | cpu: <unknown>/80% | 1 | 5 | 0 | 60m || <none>",
        ),
        (
            "autoscaling/v1 HorizontalPodAutoscaler",
            json!({"apiVersion": "autoscaling/v2", "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5,
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                {"type": "Pods", "pods": {"target": {"averageValue": "10"}}},
            ]}}),
            "x | Deployment/web | cpu: <unknown>/80%, <unknown>/10 | <unset> | 5 | 0 | 60m || <none>",
        ),
        ("autoscaling/v1 Scale", json!({"spec": {"replicas": 3}, "status": {"replicas": 2}}), "x | 3 | 2 | 60m"),
    ] {
        assert_eq!(cells(api, object), expected);
    }
}

#[test]
fn events_in_both_forms() {
    let core = json!({"type": "Warning", "reason": "Failed", "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "f"},
        "message": " m\n", "count": 4, "firstTimestamp": "2026-11-21T03:00:00Z", "lastTimestamp": "2026-11-21T03:59:00Z",
        "source": {"component": "kubelet", "host": "n"}});
    assert_eq!(cells("v1 Event", core), "60s | Warning | Failed | pod/p | m || f | kubelet, n | 60m | 4 | x");
    let new = json!({"type": "Normal", "reason": "Done", "regarding": {"kind": "Pod", "name": "p"}, "note": "m",
        "eventTime": "2026-11-21T03:58:00.000000Z", "reportingController": "c"});
    assert_eq!(cells("events.k8s.io/v1 Event", new), "2m | Normal | Done | pod/p | m ||  | c | 2m | 1 | x");
}

#[test]
fn own_kinds() {
    for (api, object, expected) in [
        (
            "portolan.dev/v1alpha1 PhysicalCluster",
            json!({"spec": {"connection": {"tunnel": {}}}, "status": {"version": "v1.36.3", "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "8", "memory": "32Gi"}, "usage": {"cpu": "5", "memory": "0", "pods": "7"}, "bounds": {"cpu": "7"}}}),
            "x | True | v1.36.3 | false | tunnel | 5/7 | 0 | 7 | <unknown> | <none> | 60m || <unknown> | 8 | 32Gi | <none>",
        ),
        (
            "portolan.dev/v1alpha1 PhysicalCluster",
            json!({"spec": {}}),
            "x | Unknown | <unknown> | false | <none> | <unknown> | <unknown> | <unknown> | <unknown> | <none> | 60m || <unknown> | <unknown> | <unknown> | <none>",
        ),
        (
            "portolan.dev/v1alpha1 PhysicalCluster",
            json!({"metadata": {"annotations": {"portolan.dev/mode": "direct"}}, "spec": {},
                "status": {"workloads": 20, "drain": {"name": "d", "phase": "Paused", "done": 12, "total": 20}}}),
            "x | Unknown | <unknown> | false | direct | <unknown> | <unknown> | <unknown> | 20 | 12/20,Paused | 60m || <unknown> | <unknown> | <unknown> | <none>",
        ),
        (
            "portolan.dev/v1alpha1 Drain",
            json!({"spec": {"physicalClusters": ["east", "west"]}, "status": {"phase": "Blocked", "unavailableReplicas": 2,
                "counts": {"total": 20, "moved": 12, "moving": 1, "blocked": 7},
                "conditions": [{"type": "Accepted", "status": "True", "message": "-"}, {"type": "Blocked", "status": "True", "message": "volumes"}]}}),
            "x | east,west | Blocked | 12/20 | 1 | 7 | 2/1 | 60m || <unknown> | volumes",
        ),
        (
            "portolan.dev/v1alpha1 Drain",
            json!({"spec": {"physicalClusters": ["east"], "budget": {"maxUnavailable": 3}}, "status": {"phase": "Completed",
                "counts": {"total": 2, "moved": 2}, "completionTime": "2026-01-01T00:00:00Z", "report": {"summary": "all moved"}}}),
            "x | east | Completed | 2/2 | 0 | 0 | 0/3 | 60m || 2026-01-01T00:00:00Z | all moved",
        ),
        (
            "portolan.dev/v1alpha1 PlacementPolicy",
            json!({"spec": {"enforcement": "Constraint", "priority": 3}, "status": {"matched": 12}}),
            "x | Constraint | 3 | 12 | 60m",
        ),
        ("portolan.dev/v1alpha1 ClusterPlacementPolicy", json!({"spec": {}}), "x | Default | 0 | 0 | 60m"),
        (
            "portolan.dev/v1alpha1 Placement",
            json!({"spec": {"object": {"kind": "Deployment", "name": "web"}}, "status": {
                "clusters": [{"name": "east", "phase": "Active", "replicas": 3, "ready": 2}, {"name": "west", "phase": "Leaving", "ready": 1},
                    {"name": "north", "phase": "Active", "ready": 1}, {"name": "south", "phase": "Active", "ready": 0},
                    {"name": "up", "phase": "Active", "desired": 2, "ready": 0, "reason": "Conflict"}],
                "policy": {"kind": "PlacementPolicy", "workspace": "root:acme", "namespace": "shop", "name": "spread"},
                "conditions": [{"type": "Placed", "status": "True", "reason": "Moving", "message": "to north"}],
                "waitingFor": "waiting for north to be ready"}}),
            "x | Deployment | web | east(2/3),west(leaving),north,south(Pending),up(0/2,Conflict) | root:acme:shop/spread | Moving | 60m || waiting for north to be ready | to north",
        ),
        (
            "portolan.dev/v1alpha1 Placement",
            json!({"spec": {}}),
            "x |  |  | <none> | <default> | <none> | 60m || <none> | <none>",
        ),
        (
            "tenancy.kcp.io/v1alpha1 Workspace",
            json!({"metadata": {"labels": {"region": "eu"}}, "spec": {"type": {"name": "universal"}, "URL": "https://x/clusters/root:a"}, "status": {"phase": "Ready"}}),
            "x | universal | eu | Ready | 60m || https://x/clusters/root:a",
        ),
    ] {
        assert_eq!(cells(api, object), expected);
    }
}

#[test]
fn tables_have_the_form_that_kubectl_reads() {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "v"}});
    let table = print("v1 ConfigMap", object.clone(), IncludeObject::Metadata);
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["metadata"], json!({"resourceVersion": "7"}));
    let first = &table["columnDefinitions"][0];
    assert_eq!(
        (&first["name"], &first["type"], &first["format"], &first["priority"]),
        (&json!("Name"), &json!("string"), &json!("name"), &json!(0))
    );
    assert_eq!(
        table["rows"][0]["object"],
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "x", "labels": {"a": "b"}}})
    );
    assert_eq!(print("v1 ConfigMap", object.clone(), IncludeObject::Object)["rows"][0]["object"], object);
    let kind = KindTable::builtin().resource("", "v1", "configmaps").unwrap();
    let next = super::table(kind, vec![object], json!({}), IncludeObject::None, false, now());
    assert_eq!((&next["columnDefinitions"], &next["rows"][0]["object"]), (&Value::Null, &Value::Null));
    assert_eq!(super::table(kind, Vec::new(), json!({}), IncludeObject::None, true, now())["rows"], json!([]));
}

#[test]
fn every_kind_prints_an_empty_object() {
    for kind in KindTable::builtin().kinds() {
        let table = super::table(kind, vec![json!({})], json!({}), IncludeObject::Metadata, true, now());
        let named =
            table["columnDefinitions"].as_array().unwrap().iter().filter(|column| column["format"] == "name").count();
        assert!(named >= 1, "{}", kind.gvk);
        let hidden = usize::from(&*kind.gvk.kind == "IPAddress");
        assert_eq!(
            table["columnDefinitions"].as_array().unwrap().len() + hidden,
            table["rows"][0]["cells"].as_array().unwrap().len()
        );
    }
}
