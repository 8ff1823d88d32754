use serde_json::json;

use super::*;
use portolan_codec::decode::{FieldValidation, prune_canonical};

fn defaulted(group: &str, version: &str, name: &str, object: Value) -> Value {
    let table = KindTable::builtin();
    let kind = table.kind_named(group, version, name).unwrap();
    let mut object = object;
    prune_canonical(table, kind, &mut object, FieldValidation::Strict).unwrap();
    apply(table, kind, &mut object).unwrap();
    let once = object.clone();
    apply(table, kind, &mut object).unwrap();
    assert_eq!(object, once, "defaults are idempotent");
    prune_canonical(table, kind, &mut object, FieldValidation::Strict).unwrap();
    assert_eq!(object, once, "defaults are canonical");
    object
}

#[test]
fn a_deployment_is_completed() {
    let object = defaulted(
        "apps",
        "v1",
        "Deployment",
        json!({"metadata": {"name": "web"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{
                "name": "c", "image": "nginx", "ports": [{"containerPort": 80}],
                "readinessProbe": {"httpGet": {"port": 80}},
            }]}},
        }}),
    );
    let expected = json!({
        "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "securityContext": {}, "schedulerName": "default-scheduler",
            "containers": [{
                "name": "c", "image": "nginx", "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {},
                "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "readinessProbe": {
                    "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
            }],
        }},
    });
    assert_eq!(object["spec"], expected);
    assert_eq!(object["status"], json!({}));
}

#[test]
fn conditional_defaults_follow_other_fields() {
    let cases = [
        (
            "Recreate has no rolling update",
            "apps",
            "Deployment",
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
            "/spec/strategy",
            json!({"type": "Recreate"}),
        ),
        (
            "OnDelete has no rolling update",
            "apps",
            "DaemonSet",
            json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}),
            "/spec/updateStrategy",
            json!({"type": "OnDelete"}),
        ),
        (
            "maxSurge is 0 in the rollingUpdate of another strategy",
            "apps",
            "DaemonSet",
            json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 2}}}}),
            "/spec/updateStrategy/rollingUpdate",
            json!({"maxUnavailable": 2, "maxSurge": 0}),
        ),
        (
            "maxSurge is 0 in a deployment of an unknown strategy",
            "apps",
            "Deployment",
            json!({"spec": {"strategy": {"type": "RollingUpdatex", "rollingUpdate": {"maxUnavailable": "25%"}}}}),
            "/spec/strategy/rollingUpdate",
            json!({"maxUnavailable": "25%", "maxSurge": 0}),
        ),
        (
            "partition is 0 in a stateful set of another strategy",
            "apps",
            "StatefulSet",
            json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {}}}}),
            "/spec/updateStrategy/rollingUpdate",
            json!({"partition": 0}),
        ),
        (
            "a stateful set rolls from 0",
            "apps",
            "StatefulSet",
            json!({"spec": {}}),
            "/spec/updateStrategy",
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
        ),
        (
            "a type given leaves rollingUpdate out",
            "apps",
            "StatefulSet",
            json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
            "/spec/updateStrategy",
            json!({"type": "RollingUpdate"}),
        ),
        (
            "a claim template is a claim",
            "apps",
            "StatefulSet",
            json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "d"}}]}}),
            "/spec/volumeClaimTemplates/0",
            json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "d"},
            "spec": {"resources": {}, "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}),
        ),
        (
            "a tag is kept",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "r:5000/x/y:v1"}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("IfNotPresent"),
        ),
        (
            "latest is pulled",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "r:5000/x/y:latest"}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("Always"),
        ),
        (
            "no tag is latest",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "r:5000/x/y"}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("Always"),
        ),
        (
            "an invalid image reference does not mean latest",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "Upper"}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("IfNotPresent"),
        ),
        (
            "64 hexadecimal digits are not a valid image reference",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "0".repeat(64)}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("IfNotPresent"),
        ),
        (
            "a registry may be an IP address with a port",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "[fe80::1]:5000/x__y/a.b--c"}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("Always"),
        ),
        (
            "a digest is kept",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": format!("x@sha256:{}", "0".repeat(64))}]}}),
            "/spec/containers/0/imagePullPolicy",
            json!("IfNotPresent"),
        ),
        (
            "limits become requests",
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}}),
            "/spec/containers/0/resources/requests",
            json!({"cpu": "1"}),
        ),
        (
            "host ports follow",
            "",
            "Pod",
            json!({"spec": {"hostNetwork": true, "containers": [{"name": "a", "ports": [{"containerPort": 1}]}]}}),
            "/spec/containers/0/ports/0/hostPort",
            json!(1),
        ),
        (
            "a volume is an empty directory",
            "",
            "Pod",
            json!({"spec": {"containers": [], "volumes": [{"name": "v"}]}}),
            "/spec/volumes/0",
            json!({"name": "v", "emptyDir": {}}),
        ),
        (
            "a projected mode",
            "",
            "Pod",
            json!({"spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": "x"}}]}}),
            "/spec/volumes/0/configMap/defaultMode",
            json!(420),
        ),
        (
            "a job runs once",
            "batch",
            "Job",
            json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
            "/spec",
            json!({
            "completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": false,
            "podReplacementPolicy": "TerminatingOrFailed", "manualSelector": false,
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": null, "restartPolicy": "Always"}}}),
        ),
        (
            "work queues have no completions",
            "batch",
            "Job",
            json!({"spec": {"parallelism": 2, "template": {}}}),
            "/spec/completions",
            Value::Null,
        ),
        (
            "a job is labelled like its pods",
            "batch",
            "Job",
            json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
            "/metadata/labels",
            json!({"a": "b"}),
        ),
        (
            "a port is its own target",
            "",
            "Service",
            json!({"spec": {"ports": [{"port": 80}]}}),
            "/spec",
            json!({
            "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}),
        ),
        (
            "a balancer takes node ports",
            "",
            "Service",
            json!({"spec": {"type": "LoadBalancer"}}),
            "/spec/allocateLoadBalancerNodePorts",
            json!(true),
        ),
        (
            "node ports are cluster wide",
            "",
            "Service",
            json!({"spec": {"type": "NodePort"}}),
            "/spec/externalTrafficPolicy",
            json!("Cluster"),
        ),
        (
            "an external name has no policy",
            "",
            "Service",
            json!({"spec": {"type": "ExternalName"}}),
            "/spec/internalTrafficPolicy",
            Value::Null,
        ),
        (
            "texts of a secret are folded",
            "",
            "Secret",
            json!({"stringData": {"a": "b"}, "data": {"a": "eA==", "c": "eA=="}}),
            "/data",
            json!({"a": "Yg==", "c": "eA=="}),
        ),
        ("a secret is opaque", "", "Secret", json!({}), "/type", json!("Opaque")),
        (
            "a namespace has its name as label",
            "",
            "Namespace",
            json!({"metadata": {"name": "x"}}),
            "/metadata/labels",
            json!({"kubernetes.io/metadata.name": "x"}),
        ),
        (
            "a volume is retained",
            "",
            "PersistentVolume",
            json!({}),
            "/spec",
            json!({"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"}),
        ),
        (
            "a policy with egress covers both",
            "networking.k8s.io",
            "NetworkPolicy",
            json!({"spec": {"egress": [{}]}}),
            "/spec/policyTypes",
            json!(["Ingress", "Egress"]),
        ),
        (
            "users are of the RBAC group",
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"subjects": [{"kind": "User", "name": "a"}, {"kind": "ServiceAccount", "name": "b"}]}),
            "/subjects",
            json!([
            {"kind": "User", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}, {"kind": "ServiceAccount", "name": "b"}]),
        ),
        (
            "a role is of the RBAC group",
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "a"}}),
            "/roleRef/apiGroup",
            json!("rbac.authorization.k8s.io"),
        ),
    ];
    for (case, group, kind, object, pointer, expected) in cases {
        let object = defaulted(group, "v1", kind, object);
        let got = object.pointer(pointer).cloned().unwrap_or_default();
        match pointer {
            "/spec" if kind == "Job" => {
                let (mut got, mut expected) = (got, expected);
                got["template"] = Value::Null;
                expected["template"] = Value::Null;
                assert_eq!(got, expected, "{case}");
            }
            _ => assert_eq!(got, expected, "{case}"),
        }
    }
}

#[test]
fn a_given_scaling_rule_is_completed() {
    let object = defaulted(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        json!({"spec": {"maxReplicas": 3, "behavior": {"scaleUp": {"stabilizationWindowSeconds": 5}}}}),
    );
    assert_eq!(object.pointer("/spec/behavior/scaleUp/stabilizationWindowSeconds"), Some(&json!(5)));
    assert_eq!(object.pointer("/spec/behavior/scaleUp/policies/0/type"), Some(&json!("Pods")));
    assert_eq!(object.pointer("/spec/behavior/scaleDown/policies/0/value"), Some(&json!(100)));
    assert_eq!(object.pointer("/spec/minReplicas"), Some(&json!(1)));
    assert_eq!(object.pointer("/spec/metrics/0/resource/target/averageUtilization"), Some(&json!(80)));
}

#[test]
fn parts_of_resources_below_thousandths_are_rounded_up() {
    let limits = json!({"memory": "100u", "cpu": "1n", "example.com/a": "1100u", "storage": "1500m"});
    let container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
    let template = json!({"metadata": {}, "spec": {"containers": [container]}});
    let spec = json!({"selector": {}, "template": template});
    let object = defaulted("apps", "v1", "Deployment", json!({"spec": spec}));
    let got = object.pointer("/spec/template/spec/containers/0/resources/limits");
    assert_eq!(got, Some(&json!({"memory": "1m", "cpu": "1m", "example.com/a": "2m", "storage": "1500m"})));
    let quota = defaulted("", "v1", "ResourceQuota", json!({"spec": {"hard": {"cpu": "1u"}}}));
    assert_eq!(quota.pointer("/spec/hard/cpu"), Some(&json!("1m")));
    let class = json!({"handler": "h", "overhead": {"podFixed": {"cpu": "1u"}}});
    let class = defaulted("node.k8s.io", "v1", "RuntimeClass", class);
    assert_eq!(
        class.pointer("/overhead/podFixed/cpu"),
        Some(&json!("1u")),
        "kube-apiserver rounds only in the core group"
    );
}

#[test]
fn a_pod_takes_limits_of_huge_pages_from_its_containers() {
    let huge = json!({"limits": {"hugepages-2Mi": "2Mi"}, "requests": {"cpu": "10m", "memory": "1Mi"}});
    let pod = |resources: Value| {
        let containers =
            json!([{"name": "a", "image": "i", "resources": huge}, {"name": "b", "image": "i", "resources": huge}]);
        let pod = json!({"spec": {"containers": containers, "resources": resources}});
        defaulted("", "v1", "Pod", pod)["spec"]["resources"].clone()
    };
    for (case, resources, expected) in [
        ("the pod has no resources", json!({}), json!({})),
        (
            "the pod requests CPU",
            json!({"requests": {"cpu": "1"}}),
            json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1", "memory": "2Mi", "hugepages-2Mi": "4Mi"}}),
        ),
        (
            "the pod requests huge pages",
            json!({"requests": {"hugepages-2Mi": "6Mi"}}),
            json!({"requests": {"hugepages-2Mi": "6Mi"}}),
        ),
    ] {
        assert_eq!(pod(resources), expected, "{case}");
    }
}
