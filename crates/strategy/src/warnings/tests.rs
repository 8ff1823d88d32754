//! Warnings, in kube-apiserver's words.

use portolan_types::GroupVersionKind;
use serde_json::{Value, json};

use super::{before_create, on_create, on_update};
use portolan_kinds::{Kind, KindTable};

fn kind(api_version: &str, name: &str) -> &'static Kind {
    KindTable::builtin().kind(&GroupVersionKind::parse(api_version, name).unwrap()).unwrap()
}

fn of_pod(spec: &Value) -> Vec<String> {
    on_create(kind("v1", "Pod"), &json!({"metadata": {"name": "p"}, "spec": spec}))
}

#[test]
fn pods_are_warned_of() {
    let port = |host: i64| json!({"containerPort": 80, "protocol": "TCP", "hostPort": host});
    for (case, spec, expected) in [
        ("nothing", json!({"containers": [{"name": "c"}]}), &[][..]),
        (
            "volumes of old",
            json!({"volumes": [{"name": "v", "rbd": {}}, {"name": "w", "gitRepo": {}}]}),
            &[
                "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
                "spec.volumes[1].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            ],
        ),
        (
            "a variable that hides another",
            json!({"containers": [{"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A)3"}]}]}),
            &["spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"],
        ),
        (
            "ports",
            json!({"initContainers": [{"ports": [port(0)]}], "containers": [{"ports": [port(0), port(5)]}]}),
            &[
                "spec.containers[0].ports[0]: duplicate port definition with spec.initContainers[0].ports[0]",
                "spec.containers[0].ports[1]: overlapping port definition with spec.initContainers[0].ports[0]",
                "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            ],
        ),
        (
            "pull secrets",
            json!({"imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}]}),
            &[
                "spec.imagePullSecrets[1].name: duplicate name \"a\"",
                "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            ],
        ),
        (
            "paths of two sources",
            json!({"volumes": [{"name": "v", "projected": {"sources": [
                {"secret": {"name": "b", "items": [{"key": "k", "path": "p/q"}]}}, {"serviceAccountToken": {"path": "p"}}, {},
            ]}}]}),
            &[
                "volume \"v\" (Projected): overlapping paths: \"p\" (ServiceAccountToken) with \"p/q\" (Secret \"b\")",
                "volume \"v\" (Projected) has no sources provided",
            ],
        ),
        (
            "labels of old",
            json!({
                "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "affinity": {"nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "In", "values": ["a b"]}]}]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"preference": {"matchExpressions": [{"key": "node-role.kubernetes.io/master", "operator": "Exists"}]}}],
                }},
            }),
            &[
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key: node-role.kubernetes.io/master is use \"node-role.kubernetes.io/control-plane\" instead",
            ],
        ),
        (
            "halves of bytes, an address without a port, and an end before it begins",
            json!({
                "terminationGracePeriodSeconds": -1,
                "dnsConfig": {"nameservers": ["010.0.0.1"]},
                "containers": [{"resources": {"limits": {"memory": "1500m"}}, "ports": [{"containerPort": 80, "hostIP": "1.2.3.4", "protocol": "TCP"}]}],
                "volumes": [{"name": "v", "storageos": {}}, {"name": "w", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "100m"}}}}}}],
            }),
            &[
                "spec.volumes[0].storageOS: deprecated in v1.22, non-functional in v1.25+",
                "spec.volumes[1].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value \"100m\" is invalid, must be an integer",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                "spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.2.3.4}",
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                "spec.dnsConfig.nameservers[0]: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\"",
            ],
        ),
        (
            "spread over nothing",
            json!({"topologySpreadConstraints": [{"topologyKey": "zone"}]}),
            &["spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod"],
        ),
    ] {
        assert_eq!(of_pod(&spec), expected, "{case}");
    }
}

#[test]
fn templates_are_warned_of_when_they_may_have_changed() {
    let deployment = kind("apps/v1", "Deployment");
    let of = |generation: i64| {
        let pod = json!({"spec": {"volumes": [{"name": "v", "cephfs": {}}]}});
        json!({"metadata": {"name": "d", "generation": generation}, "spec": {"template": pod}})
    };
    let expected = ["spec.template.spec.volumes[0].cephfs: deprecated in v1.28, non-functional in v1.31+"];
    assert_eq!(on_create(deployment, &of(1)), expected);
    assert_eq!(on_update(deployment, None, &of(1), &of(2)), expected);
    assert!(on_update(deployment, None, &of(2), &of(2)).is_empty());
}

#[test]
fn other_kinds_are_warned_of() {
    for (version, name, object, expected) in [
        (
            "v1",
            "Service",
            json!({"spec": {"type": "ClusterIP", "externalName": "x", "trafficDistribution": "PreferClose"}}),
            &[
                "spec.externalName is ignored when spec.type is not \"ExternalName\"",
                "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
            ][..],
        ),
        (
            "v1",
            "PersistentVolume",
            json!({"spec": {"rbd": {}}}),
            &["spec.rbd: deprecated in v1.28, non-functional in v1.31+"],
        ),
        (
            "v1",
            "ReplicationController",
            json!({"metadata": {"name": "a.b"}, "spec": {}}),
            &[
                "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
            ],
        ),
        (
            "v1",
            "ResourceQuota",
            json!({"spec": {"hard": {"cpu": "2", "limits.cpu": "1500m", "requests.storage": "1", "limits.storage": "1"}}}),
            &["ResourceQuota cpu (2) should be less than limits.cpu (1500m)"],
        ),
        (
            "v1",
            "Secret",
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "e30=", "tls.key": "e30="}}),
            &["tls: failed to find any PEM data in certificate input"],
        ),
        (
            "v1",
            "Node",
            json!({"spec": {"externalID": "x"}}),
            &["spec.externalID: this field is deprecated, and is unused by Kubernetes"],
        ),
        (
            "batch/v1",
            "Job",
            json!({"metadata": {"name": "j"}, "spec": {"completionMode": "Indexed", "completions": 100_001, "parallelism": 10_001}}),
            &[
                "spec: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
            ],
        ),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({"endpoints": [{"addresses": ["1.2.3.4", "01.2.3.4"]}]}),
            &["endpoints[0].addresses[1]: non-standard IP address \"01.2.3.4\" is invalid: use \"1.2.3.4\""],
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"spec": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.1/24"}}]}]}}),
            &[
                "spec.egress[0].to[0].ipBlock.cidr: CIDR value \"10.0.0.1/24\" is ambiguous in this context (should be \"10.0.0.0/24\" or \"10.0.0.1/32\"?)",
            ],
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}}),
            &["annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"],
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}, "spec": {"ingressClassName": "x"}}),
            &[],
        ),
    ] {
        assert_eq!(on_create(kind(version, name), &object), expected, "{name}");
    }
}

#[test]
fn annotations_that_become_fields_cause_warnings() {
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let told =
        [format!("metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead")];
    for (case, named, of_pod, of_container, expected) in [
        ("it becomes one", "runtime/default", json!({}), json!({}), &told[..]),
        ("it is of no sense", "nonsense", json!({}), json!({}), &told),
        (
            "the pod says the same",
            "runtime/default",
            json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            json!({}),
            &[],
        ),
        ("the field is there", "runtime/default", json!({}), json!({"appArmorProfile": {"type": "Unconfined"}}), &[]),
    ] {
        let spec = json!({"securityContext": of_pod, "containers": [{"name": "c", "securityContext": of_container}]});
        let pod = json!({"metadata": {"name": "p", "annotations": {key: named}}, "spec": spec});
        assert_eq!(before_create(kind("v1", "Pod"), &pod), expected, "{case}");
        assert!(on_create(kind("v1", "Pod"), &pod).is_empty(), "{case}");
    }
}

#[test]
fn changes_are_warned_of() {
    let status = json!({"status": {"podIPs": [{"ip": "010.0.0.1"}], "loadBalancer": {"ingress": [{"ip": "::FFFF"}]}}});
    for (version, name, subresource, old, new, expected) in [
        (
            "v1",
            "Pod",
            Some("status"),
            json!({}),
            status.clone(),
            &["status.podIPs[0].ip: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\""][..],
        ),
        (
            "v1",
            "Service",
            Some("status"),
            json!({}),
            status,
            &[
                "status.loadBalancer.ingress[0]: IPv6 address \"::FFFF\" should be in RFC 5952 canonical format (\"::ffff\")",
            ],
        ),
        (
            "batch/v1",
            "CronJob",
            None,
            json!({}),
            json!({"spec": {"schedule": "TZ=UTC * * * * *"}}),
            &[
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
            ],
        ),
        (
            "v1",
            "ServiceAccount",
            None,
            json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}),
            json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}),
            &[],
        ),
        (
            "apps/v1",
            "StatefulSet",
            None,
            json!({}),
            json!({"spec": {"volumeClaimTemplates": [{"spec": {"resources": {"requests": {"storage": "100m"}}}}]}}),
            &[
                "spec.volumeClaimTemplates[0].Spec.resources.requests[storage]: fractional byte value \"100m\" is invalid, must be an integer",
            ],
        ),
    ] {
        assert_eq!(on_update(kind(version, name), subresource, &old, &new), expected, "{name}");
    }
}
