mod coverage;
mod large;
pub(crate) mod verdicts;

use portolan_types::placement::{
    ClusterCount, ClusterSelector, Connection, DrainSpec, DrainStatus, Enforcement, PhysicalClusterSpec,
    PhysicalClusterStatus, PlacementPolicySpec, PlacementStatus, Replicas,
};
use serde_json::{Value, json};

use crate::defaults;
use portolan_codec::decode::{FieldValidation, prune_canonical};
use portolan_kinds::{Kind, KindTable};
use portolan_validation::{validate_create, validate_update};

fn kind(group: &str, name: &str) -> &'static Kind {
    let versions = ["v1", "v2", "v1alpha1"];
    let version = if group == "autoscaling" {
        "v2"
    } else {
        versions[usize::from(group.ends_with("portolan.dev") || group.ends_with("kcp.io")) * 2]
    };
    KindTable::builtin().kind_named(group, version, name).unwrap()
}

/// Object as validation sees it: canonical, with defaults.
fn complete(kind: &Kind, mut object: Value) -> Value {
    let table = KindTable::builtin();
    object["metadata"]["name"] = object["metadata"].get("name").cloned().unwrap_or("x".into());
    if kind.namespaced {
        object["metadata"]["namespace"] = "ns".into();
    }
    prune_canonical(table, kind, &mut object, FieldValidation::Strict).unwrap();
    defaults::apply(table, kind, &mut object).unwrap();
    if &*kind.gvk.kind == "Service" {
        crate::lifecycle::complete_service(&mut object);
    }
    object
}

fn lines(causes: Vec<portolan_types::StatusCause>) -> Vec<String> {
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn wrong(group: &str, name: &str, object: Value) -> Vec<String> {
    let kind = kind(group, name);
    lines(validate_create(KindTable::builtin(), kind, &complete(kind, object)))
}

fn wrong_update(group: &str, name: &str, old: &Value, new: Value) -> Vec<String> {
    let kind = kind(group, name);
    lines(validate_update(KindTable::builtin(), kind, None, &complete(kind, old.clone()), &complete(kind, new)))
}

fn pod() -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "x:1"}]}})
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.insert(name.into(), value)),
        Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
        other => panic!("{other}"),
    }
    object
}

fn workload() -> Value {
    json!({"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": {"metadata": {"labels": {"app": "a"}}, "spec": {
        "containers": [{"name": "c", "image": "x:1"}]}}}})
}

fn job() -> Value {
    with(
        with(
            json!({"metadata": {"uid": "u"}, "spec": {"template": {"metadata": {"labels": {
        "controller-uid": "u", "job-name": "x", "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "x"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x:1"}]}}}}),
            "/spec/selector",
            json!({"matchLabels": {
        "batch.kubernetes.io/controller-uid": "u"}}),
        ),
        "/spec/manualSelector",
        json!(false),
    )
}

fn ingress() -> Value {
    json!({"spec": {"rules": [{"host": "a.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix",
        "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}})
}

fn claim() -> Value {
    json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

fn policy() -> Value {
    json!({"spec": {"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}]}})
}

#[test]
fn valid_values_are_accepted() {
    for (group, name, object) in [
        ("", "Pod", pod()),
        ("", "ConfigMap", json!({"data": {"a": "b"}})),
        ("", "Secret", json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}})),
        ("", "Service", json!({"spec": {"ports": [{"port": 80}]}})),
        ("", "Service", json!({"spec": {"clusterIP": "None", "selector": {"a": "b"}}})),
        ("", "PersistentVolumeClaim", claim()),
        (
            "",
            "PersistentVolume",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}}),
        ),
        (
            "",
            "ReplicationController",
            json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}}),
        ),
        ("", "Namespace", json!({})),
        ("", "ServiceAccount", json!({})),
        (
            "",
            "ResourceQuota",
            json!({"spec": {"hard": {"pods": "1", "requests.cpu": "2", "count/deployments.apps": "1"}}}),
        ),
        ("", "LimitRange", json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}})),
        ("apps", "Deployment", workload()),
        ("apps", "ReplicaSet", workload()),
        ("apps", "DaemonSet", workload()),
        (
            "apps",
            "StatefulSet",
            with(
                with(
                    workload(),
                    "/spec/volumeClaimTemplates",
                    json!([{"metadata": {"name": "d"}, "spec": claim()["spec"]}]),
                ),
                "/spec/template/spec/containers/0/volumeMounts",
                json!([{"name": "d", "mountPath": "/d"}]),
            ),
        ),
        ("batch", "Job", job()),
        (
            "batch",
            "CronJob",
            json!({"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "x"}]}}}}}}),
        ),
        ("networking.k8s.io", "Ingress", ingress()),
        (
            "networking.k8s.io",
            "NetworkPolicy",
            json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]}}),
        ),
        (
            "networking.k8s.io",
            "NetworkPolicy",
            json!({"spec": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}}),
        ),
        (
            "autoscaling",
            "HorizontalPodAutoscaler",
            json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}}}),
        ),
        (
            "policy",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}}),
        ),
        (
            "rbac.authorization.k8s.io",
            "Role",
            json!({"metadata": {"name": "a:b"}, "rules": [{"verbs": ["*"], "apiGroups": [""], "resources": ["pods"]}]}),
        ),
        (
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "a"}, "subjects": [{"kind": "ServiceAccount", "name": "b"}]}),
        ),
        ("storage.k8s.io", "StorageClass", json!({"provisioner": "a.b/c"})),
        ("scheduling.k8s.io", "PriorityClass", json!({"value": 5})),
        ("coordination.k8s.io", "Lease", json!({"spec": {"holderIdentity": "a"}})),
        (
            "portolan.dev",
            "PhysicalCluster",
            json!({"spec": {"connection": {"simulated": {}}, "taints": [{"key": "a", "effect": "NoSchedule"}], "bounds": {"cpu": "200", "memory": "1Ti",
                "ephemeral-storage": "1Ti", "hugepages-2Mi": "1Gi", "nvidia.com/gpu": "3", "pods": "5"}}}),
        ),
        ("portolan.dev", "ClusterPlacementPolicy", policy()),
        (
            "portolan.dev",
            "Drain",
            json!({"spec": {"physicalClusters": ["a", "b"], "budget": {"maxMoving": 2, "maxUnavailable": 0}, "whenBlocked": "Skip"}}),
        ),
        ("portolan.dev", "PlacementPolicy", with(policy(), "/spec/count", json!("All"))),
        (
            "portolan.dev",
            "PlacementPolicy",
            with(
                policy(),
                "/spec",
                json!({
                    "resources": [{"apiGroup": "apps", "cel": "object.spec.replicas > 3"}],
                    "clusters": {"cel": "physicalCluster.metadata.labels['region'] == 'eu'", "fallback": [{"cel": "true"}], "fallbackMode": "Overflow"},
                    "spread": [{"topologyKey": "zone", "maxSkew": 2, "minGroups": 2, "maxGroups": 3}],
                    "replicas": {"mode": "Divide", "by": "Capacity", "limits": [{"selector": {"matchLabels": {"a": "b"}}, "max": 9}]},
                    "with": [{"selector": {"matchLabels": {"app": "db"}}, "topologyKey": "region"}],
                    "apartFrom": [{"selector": {"matchExpressions": [{"key": "noisy", "operator": "Exists"}]}}],
                    "suspend": {"dispatchOn": ["east"]},
                }),
            ),
        ),
        ("tenancy.kcp.io", "Workspace", json!({"spec": {"type": {"name": "universal", "path": "root"}}})),
    ] {
        assert_eq!(wrong(group, name, object.clone()), Vec::<String>::new(), "{name}: {object}");
        assert_eq!(wrong_update(group, name, &object, object.clone()), Vec::<String>::new(), "update of {name}");
    }
}

#[test]
fn errors_are_kube_apiservers() {
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    let container = "/spec/containers/0";
    let bound = |name: &str| {
        format!(
            "spec.bounds[{name}]: Invalid value: \"{name}\": must be a resource that pods request: cpu, ephemeral-storage, memory, hugepages-<size>, or an extended resource such as nvidia.com/gpu; or pods, their number"
        )
    };
    let cases: Vec<(&str, &str, Value, Vec<String>)> = vec![
        ("", "Namespace", json!({"metadata": {"name": "A.b"}}), vec![format!("metadata.name: Invalid value: \"A.b\": {label}")]),
        ("", "ConfigMap", json!({"metadata": {"labels": {"a": "b c"}}}), vec!["metadata.labels: Invalid value: \"b c\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".into()]),
        ("", "ConfigMap", json!({"metadata": {"annotations": {"a": "x".repeat(256 * 1024)}}}), vec!["metadata.annotations: Too long: may not be more than 262144 bytes".into()]),
        ("", "ConfigMap", json!({"metadata": {"managedFields": [{"operation": "Update", "manager": "m".repeat(129)}]}}), vec!["metadata.managedFields[0].manager: Too long: may not be more than 128 bytes".into()]),
        ("", "ConfigMap", json!({"metadata": {"managedFields": [{"operation": "Apply"}, {"operation": "Apply", "manager": "m\u{a0}\u{200b}"}]}}), vec![
            "metadata.managedFields[1].manager: Invalid value: \"m\\u00a0\\u200b\": invalid character U+00A0 (at position 1)".into(),
            "metadata.managedFields[1].manager: Invalid value: \"m\\u00a0\\u200b\": invalid character U+200B (at position 3)".into(),
        ]),
        ("", "ConfigMap", json!({"metadata": {"managedFields": [{"operation": "Dance", "fieldsType": "FieldsV2", "subresource": "s".repeat(257)}]}}), vec![
            "metadata.managedFields[0].operation: Invalid value: \"Dance\": must be `Apply` or `Update`".into(),
            "metadata.managedFields[0].fieldsType: Invalid value: \"FieldsV2\": must be `FieldsV1`".into(),
            "metadata.managedFields[0].subresource: Too long: may not be more than 256 bytes".into(),
        ]),
        ("", "ConfigMap", json!({"data": {"a/b": "c"}}), vec!["data[a/b]: Invalid value: \"a/b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".into()]),
        ("", "ConfigMap", json!({"data": {"a": "x".repeat(1024 * 1024 + 1)}}), vec!["[]: Too long: may not be more than 1048576 bytes".into()]),
        ("", "Secret", json!({"type": "kubernetes.io/tls"}), vec!["data[tls.crt]: Required value".into(), "data[tls.key]: Required value".into()]),
        ("", "Pod", json!({"spec": {}}), vec!["spec.containers: Required value".into()]),
        ("", "Pod", with(pod(), "/spec/containers/0", json!({"name": "A"})), vec![format!("spec.containers[0].name: Invalid value: \"A\": {label}"), "spec.containers[0].image: Required value".into()]),
        ("", "Pod", with(pod(), "/spec/containers", json!([{"name": "c", "image": "x"}, {"name": "c", "image": "x"}])), vec!["spec.containers[1].name: Duplicate value: \"c\"".into()]),
        ("", "Pod", with(pod(), &format!("{container}/volumeMounts"), json!([{"name": "v", "mountPath": "/v"}])), vec!["spec.containers[0].volumeMounts[0].name: Not found: \"v\"".into()]),
        ("", "Pod", with(pod(), &format!("{container}/ports"), json!([{"containerPort": 70000}])), vec!["spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive".into()]),
        ("", "Pod", with(pod(), &format!("{container}/resources"), json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}})), vec!["spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1".into()]),
        ("", "Pod", with(pod(), &format!("{container}/livenessProbe"), json!({})), vec!["spec.containers[0].livenessProbe: Required value: must specify a handler type".into()]),
        ("", "Pod", with(pod(), "/spec/restartPolicy", json!("Sometimes")), vec!["spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"".into()]),
        ("", "Pod", with(pod(), "/spec/volumes", json!([{"name": "v", "secret": {}}])), vec!["spec.volumes[0].secret.secretName: Required value".into()]),
        ("apps", "Deployment", json!({"spec": {"template": workload()["spec"]["template"]}}), vec!["spec.selector: Required value".into(), "spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template `labels`".into()]),
        ("apps", "Deployment", with(workload(), "/spec/selector", json!({"matchLabels": {"app": "b"}})), vec!["spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template `labels`".into()]),
        ("apps", "Deployment", with(workload(), "/spec/replicas", json!(-1)), vec!["spec.replicas: Invalid value: -1: must be greater than or equal to 0".into()]),
        ("apps", "Deployment", with(workload(), "/spec/template/spec/restartPolicy", json!("Never")), vec!["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"".into()]),
        ("apps", "Deployment", with(workload(), "/spec/strategy", json!({"type": "Recreate", "rollingUpdate": {}})), vec!["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'".into()]),
        ("batch", "Job", with(job(), "/spec/template/spec/restartPolicy", json!("Always")), vec!["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"".into()]),
        ("batch", "CronJob", json!({"spec": {"schedule": "x", "jobTemplate": {"spec": {"template": job()["spec"]["template"]}}}}), vec!["spec.schedule: Invalid value: \"x\": expected exactly 5 fields, found 1: [x]".into()]),
        ("", "Service", json!({"spec": {}}), vec!["spec.ports: Required value".into()]),
        (
            "",
            "Service",
            json!({"metadata": {"name": "A"}, "spec": {"ports": [{"port": 80}]}}),
            vec![format!("metadata.name: Invalid value: \"A\": {label}")],
        ),
        ("", "Service", json!({"spec": {"ports": [{"port": 80}, {"port": 80}]}}), vec!["spec.ports[0].name: Required value".into(), "spec.ports[1].name: Required value".into(), "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}".into()]),
        ("networking.k8s.io", "Ingress", with(ingress(), "/spec/rules/0/http/paths/0/path", json!("a")), vec!["spec.rules[0].http.paths[0].path: Invalid value: \"a\": must be an absolute path".into()]),
        ("networking.k8s.io", "Ingress", json!({"spec": {}}), vec!["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified".into()]),
        ("networking.k8s.io", "NetworkPolicy", json!({"spec": {"ingress": [{"from": [{}]}]}}), vec!["spec.ingress[0].from[0]: Required value: must specify a peer".into()]),
        ("autoscaling", "HorizontalPodAutoscaler", json!({"spec": {"maxReplicas": 0, "scaleTargetRef": {"apiVersion": "a/b", "kind": "a", "name": "b"}}}), vec!["spec.maxReplicas: Required value: must be set and greater than 0".into(), "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`".into()]),
        ("policy", "PodDisruptionBudget", json!({"spec": {"minAvailable": "x"}}), vec!["spec.minAvailable: Invalid value: \"x\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')".into()]),
        ("rbac.authorization.k8s.io", "Role", json!({"rules": [{"resources": ["pods"]}]}), vec!["rules[0].verbs: Required value: verbs must contain at least one value".into(), "rules[0].apiGroups: Required value: resource rules must supply at least one api group".into()]),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding", json!({"roleRef": {"kind": "Role", "name": "a"}}), vec!["roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"".into()]),
        ("", "PersistentVolumeClaim", json!({"spec": {}}), vec!["spec.accessModes: Required value: at least 1 access mode is required".into(), "spec.resources[storage]: Required value".into()]),
        ("portolan.dev", "PhysicalCluster", json!({"spec": {"connection": {}}}), vec!["spec.connection: Required value: exactly one of `direct`, `tunnel`, `simulated` must be set".into()]),
        ("portolan.dev", "PhysicalCluster", json!({"spec": {"connection": {"tunnel": {}, "simulated": {}}}}), vec!["spec.connection.simulated: Forbidden: may not specify more than 1 connection".into()]),
        ("portolan.dev", "PhysicalCluster", json!({"spec": {"connection": {"tunnel": {}}, "taints": [{"key": "a", "effect": "Maybe"}]}}), vec!["spec.taints[0].effect: Unsupported value: \"Maybe\": supported values: \"NoExecute\", \"NoSchedule\"".into()]),
        ("portolan.dev", "PhysicalCluster", json!({"spec": {"connection": {"tunnel": {}}, "bounds": {"gpus": "3"}}}), vec![bound("gpus")]),
        ("portolan.dev", "PhysicalCluster", json!({"spec": {"connection": {"tunnel": {}}, "bounds": {"requests.cpu": "3"}}}), vec![bound("requests.cpu")]),
        ("portolan.dev", "Drain", json!({"spec": {}}), vec!["spec.physicalClusters: Required value: must name at least one physical cluster".into()]),
        ("portolan.dev", "Drain", json!({"spec": {"physicalClusters": ["a", "a"]}}), vec!["spec.physicalClusters[1]: Duplicate value: \"a\"".into()]),
        ("portolan.dev", "Drain", json!({"spec": {"physicalClusters": (0..17).map(|n| format!("a{n}")).collect::<Vec<_>>()}}), vec!["spec.physicalClusters: Forbidden: may not name more than 16 physical clusters".into()]),
        ("portolan.dev", "Drain", json!({"spec": {"physicalClusters": ["a"], "whenBlocked": "Kill"}}), vec!["spec.whenBlocked: Unsupported value: \"Kill\": supported values: \"Force\", \"Skip\", \"Wait\"".into()]),
        ("portolan.dev", "Drain", json!({"spec": {"physicalClusters": ["a"], "budget": {"maxMoving": 0}}}), vec!["spec.budget.maxMoving: Invalid value: 0: must be between 1 and 1000, inclusive".into()]),
        ("portolan.dev", "Drain", json!({"spec": {"physicalClusters": ["a"], "budget": {"maxUnavailable": -1}}}), vec!["spec.budget.maxUnavailable: Invalid value: -1: must be between 0 and 2147483647, inclusive".into()]),
        ("portolan.dev", "PhysicalCluster", json!({"spec": {"connection": {"tunnel": {}}, "taints": [{"key": "portolan.dev/unreachable", "effect": "NoExecute"}]}}), vec!["spec.taints[0].key: Forbidden: the server sets this taint, in the status".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/moves", json!({"addressGracePeriodSeconds": 86_401, "timeoutSeconds": -1})), vec!["spec.moves.addressGracePeriodSeconds: Invalid value: 86401: must be between 0 and 86400, inclusive".into(), "spec.moves.timeoutSeconds: Invalid value: -1: must be between 0 and 604800, inclusive".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/volumes", json!({"strategy": "Copy"})), vec!["spec.volumes.strategy: Unsupported value: \"Copy\": supported values: \"Recreate\", \"Refuse\", \"Shared\"".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/rollout", json!({"stages": [{"name": "first", "percent": 101, "waitSeconds": -1}], "timeoutSeconds": 604_801})), vec!["spec.rollout.timeoutSeconds: Invalid value: 604801: must be between 0 and 604800, inclusive".into(), "spec.rollout.stages[0].percent: Invalid value: 101: must be between 1 and 100, inclusive".into(), "spec.rollout.stages[0].waitSeconds: Invalid value: -1: must be between 0 and 604800, inclusive".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/count", json!(-1)), vec!["spec.count: Invalid value: -1: must be a number from 0 or \"All\"".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"names": vec!["a".repeat(60); 3_000]})), vec!["spec: Forbidden: may not be larger than 131072 bytes".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/yield", json!([format!("spec.{}", "x".repeat(5_000))])), vec!["spec.yield: Forbidden: may not be larger than 4096 bytes together".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"cel": "physicalCluster.metadata.label.a == 'b'"})), vec!["spec.clusters.cel: Invalid value: \"physicalCluster.metadata.label.a == 'b'\": compilation failed: ERROR: <input>:1:25: undefined field 'label'\n | physicalCluster.metadata.label.a == 'b'\n | ........................^".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"cel": "physicalCluster.metadata.name"})), vec!["spec.clusters.cel: Invalid value: \"physicalCluster.metadata.name\": must evaluate to bool but got string".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/resources", json!([{"apiGroup": "apps", "cel": "physicalCluster == 1"}])), vec!["spec.resources[0].cel: Invalid value: \"physicalCluster == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'physicalCluster' (in container '')\n | physicalCluster == 1\n | ^".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"fallback": vec![json!({"cel": "true"}); 17]})), vec!["spec: Forbidden: may not have more than 16 CEL expressions".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"names": ["a"], "exclude": ["b", "a"]})), vec!["spec.clusters.exclude: Invalid value: [\"b\",\"a\"]: may not exclude every physical cluster that is named".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"fallback": [{"fallbackMode": "Overflow"}]})), vec!["spec.clusters.fallback[0].fallbackMode: Forbidden: may only be used in `spec.clusters`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/clusters", json!({"fallbackMode": "Spill"})), vec!["spec.clusters.fallbackMode: Unsupported value: \"Spill\": supported values: \"Failover\", \"Overflow\"".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/overrides", json!([{"clusters": {"fallbackMode": "Failover"}, "labels": {"a": "b"}}])), vec!["spec.overrides[0].clusters.fallbackMode: Forbidden: may only be used in `spec.clusters`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/spread", json!([{"topologyKey": "zone", "minGroups": 3, "maxGroups": 2}])), vec!["spec.spread[0].minGroups: Invalid value: 3: must be less than or equal to `maxGroups`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(with(policy(), "/spec/count", json!(2)), "/spec/spread", json!([{"topologyKey": "zone", "minGroups": 3}])), vec!["spec.spread[0].minGroups: Invalid value: 3: must be less than or equal to `count`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/replicas", json!({"limits": [{"min": 1}]})), vec!["spec.replicas.limits: Forbidden: may only be used when `mode` is 'Divide'".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/replicas", json!({"mode": "Divide", "limits": [{"min": 5, "max": 3}, {"max": 0}]})), vec!["spec.replicas.limits[0].min: Invalid value: 5: must be less than or equal to `max`".into(), "spec.replicas.limits[1].max: Invalid value: 0: must be between 1 and 1000000, inclusive".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(with(policy(), "/spec/clusters", json!({"fallbackMode": "Overflow"})), "/spec/replicas", json!({"mode": "Divide", "limits": [{"min": 1}]})), vec!["spec.replicas.limits[0].min: Forbidden: may not be used when `fallbackMode` is 'Overflow'".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/with", json!([{"topologyKey": "zone"}])), vec!["spec.with[0].selector: Required value: must select other workloads".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(with(policy(), "/spec/with", json!([{"selector": {"matchLabels": {"a": "b"}}}])), "/spec/apartFrom", json!([{"selector": {"matchLabels": {"a": "b"}}}])), vec!["spec.apartFrom[0]: Invalid value: {\"selector\":{\"matchLabels\":{\"a\":\"b\"}}}: contradicts the same entry of `with`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/overrides", json!([{"imageRegistry": "https://mirror"}])), vec!["spec.overrides[0].imageRegistry: Invalid value: \"https://mirror\": must be a host, with a port and a path if need be, such as mirror.example:5000/hub".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/overrides", json!([{"labels": {"sync.portolan.dev/cluster": "x"}}])), vec!["spec.overrides[0].labels[sync.portolan.dev/cluster]: Forbidden: is set by the server only".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/overrides", json!([{"patch": [{"op": "add", "path": "/spec/x"}]}])), vec!["spec.overrides[0].patch[0]: Invalid value: {\"op\":\"add\",\"path\":\"/spec/x\"}: must be an operation of a JSON patch: `add`, `replace` and `test` need a `value`, `copy` and `move` a `from`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/overrides", json!([{"annotations": {"a": "x".repeat(20_000)}}])), vec!["spec.overrides: Forbidden: may not be larger than 16384 bytes together".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/yield", json!(["spec.template.spec.containers[0].image"])), vec!["spec.yield[0]: Invalid value: \"spec.template.spec.containers[0].image\": must be a path of fields below `spec`, such as `spec.replicas`".into()]),
        ("portolan.dev", "ClusterPlacementPolicy", with(policy(), "/spec/replicas", json!({"mode": "Divide", "by": "Weight", "weights": [{"weight": -1}, {"weight": 2}]})), vec!["spec.replicas.weights[0].weight: Invalid value: -1: must be greater than or equal to 0".into()]),
        ("tenancy.kcp.io", "Workspace", json!({"metadata": {"name": "a.b"}}), vec!["metadata.name: Invalid value: \"a.b\": must not contain dots".into()]),
    ];
    for (group, name, object, expected) in cases {
        assert_eq!(
            wrong(group, name, object.clone()),
            expected,
            "{name}: {}",
            object.to_string().chars().take(200).collect::<String>()
        );
    }
}

#[test]
fn immutable_fields_do_not_change() {
    let sts = "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    let selector = json!({"matchLabels": {"app": "b"}});
    let moved = with(
        with(workload(), "/spec/selector", selector.clone()),
        "/spec/template/metadata/labels",
        json!({"app": "b"}),
    );
    let service = json!({"spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80}]}});
    let binding = json!({"roleRef": {"kind": "Role", "name": "a"}});
    let cases: Vec<(&str, &str, Value, Value, Vec<&str>)> = vec![
        (
            "apps",
            "Deployment",
            workload(),
            moved.clone(),
            vec!["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"b\"}}: field is immutable"],
        ),
        (
            "apps",
            "DaemonSet",
            workload(),
            moved,
            vec!["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"b\"}}: field is immutable"],
        ),
        ("apps", "StatefulSet", workload(), with(workload(), "/spec/serviceName", json!("x")), vec![sts]),
        ("apps", "StatefulSet", workload(), with(workload(), "/spec/replicas", json!(3)), vec![]),
        (
            "batch",
            "Job",
            job(),
            with(job(), "/spec/completions", json!(2)),
            vec!["spec.completions: Invalid value: 2: field is immutable"],
        ),
        (
            "batch",
            "Job",
            job(),
            with(job(), "/spec/parallelism", json!(2)),
            vec!["spec.completions: Invalid value: null: field is immutable"],
        ),
        (
            "",
            "ConfigMap",
            json!({"immutable": true, "data": {"a": "b"}}),
            json!({"data": {"a": "c"}}),
            vec![
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ],
        ),
        (
            "",
            "Secret",
            json!({"type": "a/b"}),
            json!({"type": "c/d"}),
            vec!["type: Invalid value: \"c/d\": field is immutable"],
        ),
        (
            "",
            "Service",
            service.clone(),
            with(with(service, "/spec/clusterIP", json!("10.96.0.8")), "/spec/clusterIPs", json!(["10.96.0.8"])),
            vec!["spec.clusterIPs[0]: Invalid value: [\"10.96.0.8\"]: may not change once set"],
        ),
        ("", "PersistentVolumeClaim", claim(), with(claim(), "/spec/storageClassName", json!("x")), vec![]),
        (
            "",
            "PersistentVolumeClaim",
            claim(),
            with(claim(), "/spec/accessModes", json!(["ReadWriteMany"])),
            vec![
                "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n@@ -1,6 +1,6 @@\n {\n  \"AccessModes\": [\n-  \"ReadWriteOnce\"\n+  \"ReadWriteMany\"\n  ],\n  \"Selector\": null,\n  \"Resources\": {\n",
            ],
        ),
        (
            "rbac.authorization.k8s.io",
            "RoleBinding",
            binding.clone(),
            with(binding, "/roleRef/name", json!("b")),
            vec![
                "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"b\"}: cannot change roleRef",
            ],
        ),
        (
            "storage.k8s.io",
            "StorageClass",
            json!({"provisioner": "a/b"}),
            json!({"provisioner": "a/c"}),
            vec!["provisioner: Invalid value: \"a/c\": field is immutable"],
        ),
        (
            "scheduling.k8s.io",
            "PriorityClass",
            json!({"value": 1}),
            json!({"value": 2}),
            vec!["value: Forbidden: may not be changed in an update."],
        ),
        (
            "portolan.dev",
            "Drain",
            json!({"spec": {"physicalClusters": ["a"], "undo": true}}),
            json!({"spec": {"physicalClusters": ["b"], "undo": false, "abort": true, "paused": true}}),
            vec![
                "spec.physicalClusters: Invalid value: [\"b\"]: field is immutable",
                "spec.undo: Forbidden: may not be taken back; create another Drain",
            ],
        ),
        (
            "portolan.dev",
            "Drain",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": "a", "uid": "u", "controller": true}]},
                "spec": {"physicalClusters": ["a"]}}),
            json!({"metadata": {"ownerReferences": [{"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": "a", "uid": "u", "controller": true}]},
                "spec": {"physicalClusters": ["a"], "abort": true, "paused": true}}),
            vec!["spec.abort: Forbidden: the PhysicalCluster is being deleted, which cannot be taken back"],
        ),
        ("", "Pod", pod(), with(pod(), "/spec/containers/0/image", json!("x:2")), vec![]),
        ("", "Pod", pod(), with(pod(), "/spec/tolerations", json!([{"key": "a", "operator": "Exists"}])), vec![]),
    ];
    for (group, name, old, new, expected) in cases {
        assert_eq!(wrong_update(group, name, &old, new.clone()), expected, "{name}: {new}");
    }
    let [one] = wrong_update("", "Pod", &pod(), with(pod(), "/spec/nodeName", json!("n"))).try_into().unwrap();
    assert!(
        one.starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"),
        "{one}"
    );
}

#[test]
fn the_table_knows_every_field_of_portolans_types() {
    let spec = PlacementPolicySpec {
        clusters: ClusterSelector {
            names: vec!["a".into()],
            fallback: vec![ClusterSelector::default()],
            ..ClusterSelector::default()
        },
        count: Some(ClusterCount::Exactly(0)),
        replicas: Some(Replicas::default()),
        enforcement: Enforcement::Constraint,
        yields: vec!["spec.replicas".into()],
        autoscaling: Some(portolan_types::placement::AutoscalingMode::Global),
        priority: 3,
        resources: vec![
            serde_json::from_value(
                json!({"apiGroup": "apps", "kinds": ["X"], "names": ["n"], "selector": {"matchLabels": {"a": "b"}}}),
            )
            .unwrap(),
        ],
        spread: vec![serde_json::from_value(json!({"topologyKey": "region", "maxSkew": 2})).unwrap()],
        tolerations: vec![
            serde_json::from_value(
                json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}),
            )
            .unwrap(),
        ],
        overrides: vec![
            serde_json::from_value(
                json!({"imageRegistry": "r", "labels": {"a": "b"}, "annotations": {"a": "b"}, "env": {"A": "b"},
            "patch": [{"op": "add", "path": "/spec/x", "value": null}], "clusters": {"names": ["a"]}}),
            )
            .unwrap(),
        ],
        ..PlacementPolicySpec::default()
    };
    let cluster = PhysicalClusterSpec {
        connection: Connection {
            direct: Some(
                serde_json::from_value(json!({"kubeconfigSecretRef": {"namespace": "a", "name": "b", "key": "c"}}))
                    .unwrap(),
            ),
            ..Connection::default()
        },
        taints: vec![serde_json::from_value(json!({"key": "a", "value": "b", "effect": "NoExecute"})).unwrap()],
        unschedulable: true,
        bounds: serde_json::from_value(json!({"cpu": "1"})).unwrap(),
        synced_resources: vec!["x".into()],
        ..PhysicalClusterSpec::default()
    };
    let status: PlacementStatus = serde_json::from_value(json!({
        "clusters": [{"name": "a", "uid": "u", "phase": "Active", "replicas": 0, "ready": 1, "message": "m"}],
        "policy": {"kind": "PlacementPolicy", "workspace": "root", "namespace": "n", "name": "p"},
        "rejected": {"Cordoned": 1},
        "conditions": [{"type": "Placed", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}],
        "transitions": [{"time": "2026-01-01T00:00:00Z", "from": "", "to": "a", "cause": "c", "reason": "Drain", "actor": "Drain root:a", "revision": "7"}],
        "waitingFor": "a",
    })).unwrap();
    let drain = json!({"spec": {"physicalClusters": ["a"], "budget": {"maxUnavailable": 0, "maxMoving": 3}, "whenBlocked": "Force",
        "paused": true, "abort": true, "undo": true, "expectPlan": "h"}});
    let row = json!({"workspace": "root", "namespace": "n", "resource": "r", "name": "a", "state": "Moving", "from": "a", "to": "b",
        "reason": "r", "message": "m", "since": "2026-01-01T00:00:00Z"});
    let drained: DrainStatus = serde_json::from_value(json!({
        "phase": "Running", "observedGeneration": 1, "clusters": [{"name": "a", "uid": "u"}], "startTime": "2026-01-01T00:00:00Z",
        "plan": {"hash": "h", "moves": 1, "refused": 2, "time": "2026-01-01T00:00:00Z"}, "objects": [row], "objectsOmitted": 1,
        "report": {"summary": "s", "left": {"a": 1}, "revision": "7", "exceptions": [row]},
    })).unwrap();
    let policy = json!({"spec": spec});
    let seen = json!({"workloads": 3, "drain": {"name": "a", "phase": "Paused", "done": 1, "total": 2}});
    let seen: PhysicalClusterStatus = serde_json::from_value(seen).unwrap();
    let cluster_object = json!({"spec": cluster, "status": seen});
    for (name, object) in [
        ("PlacementPolicy", policy.clone()),
        ("ClusterPlacementPolicy", policy),
        ("PhysicalCluster", cluster_object),
        (
            "Placement",
            json!({"status": status.clone(), "spec": {"object": {"apiVersion": "v1", "kind": "a", "name": "b"}}}),
        ),
        ("Drain", json!({"spec": drain["spec"], "status": drained.clone()})),
    ] {
        let kind = kind("portolan.dev", name);
        let mut object = object;
        let notes = prune_canonical(KindTable::builtin(), kind, &mut object, FieldValidation::Warn).unwrap();
        assert_eq!(notes, Vec::<String>::new(), "{name}");
        match name {
            "PhysicalCluster" => {
                assert_eq!(serde_json::from_value::<PhysicalClusterSpec>(object["spec"].clone()).unwrap(), cluster)
            }
            "Placement" => {
                assert_eq!(serde_json::from_value::<PlacementStatus>(object["status"].clone()).unwrap(), status)
            }
            "Drain" => {
                assert_eq!(serde_json::from_value::<DrainStatus>(object["status"].clone()).unwrap(), drained);
                let spec: DrainSpec = serde_json::from_value(object["spec"].clone()).unwrap();
                assert_eq!(json!(spec), drain["spec"]);
            }
            _ => assert_eq!(serde_json::from_value::<PlacementPolicySpec>(object["spec"].clone()).unwrap(), spec),
        }
    }
}
