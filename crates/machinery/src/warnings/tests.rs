//! Warnings, in upstream's words.

use portolan_types::GroupVersionKind;
use serde_json::{Value, json};

use super::{on_create, on_update};
use crate::kinds::{Kind, KindTable};

fn kind(api_version: &str, name: &str) -> &'static Kind {
    KindTable::builtin().kind(&GroupVersionKind::parse(api_version, name).unwrap()).unwrap()
}

fn of_pod(spec: &Value) -> Vec<String> {
    on_create(kind("v1", "Pod"), &json!({"metadata": {"annotations": {}}, "spec": spec}))
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
        json!({"metadata": {"generation": generation}, "spec": {"template": pod}})
    };
    let expected = ["spec.template.spec.volumes[0].cephfs: deprecated in v1.28, non-functional in v1.31+"];
    assert_eq!(on_create(deployment, &of(1)), expected);
    assert_eq!(on_update(deployment, &of(1), &of(2)), expected);
    assert!(on_update(deployment, &of(2), &of(2)).is_empty());
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
