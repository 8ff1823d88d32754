use portolan_types::placement::NamespaceMapping;

use super::*;

const CLUSTER: LogicalClusterId = LogicalClusterId::ROOT;

fn naming() -> NamespaceNaming {
    NamespaceNaming { mapping: NamespaceMapping::Hashed, plane: Some("plane".into()) }
}

fn translated(kind: &str, mut copy: Value) -> Result<Value, SyncRefusal> {
    let kind = match kind {
        "NetworkPolicy" => GroupVersionKind::new("networking.k8s.io", "v1", kind),
        "Deployment" => GroupVersionKind::new("apps", "v1", kind),
        "ServiceMonitor" => GroupVersionKind::new("monitoring.coreos.com", "v1", kind),
        _ => GroupVersionKind::new("", "v1", kind),
    };
    translate(&kind, &naming(), CLUSTER, &mut copy).map(|()| copy)
}

fn downstream(namespace: &str) -> String {
    naming().downstream(CLUSTER, &namespace.parse().unwrap()).unwrap().to_string()
}

#[test]
fn namespace_selectors_stay_within_their_logical_cluster() {
    let tenant = || naming().tenant(CLUSTER);
    for (case, upstream, expected) in [
        ("all namespaces", json!({}), json!({"matchLabels": {"sync.portolan.dev/tenant": tenant()}})),
        (
            "by name",
            json!({"matchLabels": {"kubernetes.io/metadata.name": "front"}}),
            json!({"matchLabels": {"kubernetes.io.namespace.portolan.dev/metadata.name": "front", "sync.portolan.dev/tenant": tenant()}}),
        ),
        (
            "by an expression",
            json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]}),
            json!({"matchExpressions": [{"key": "namespace.portolan.dev/team", "operator": "NotIn", "values": ["red"]}],
                "matchLabels": {"sync.portolan.dev/tenant": tenant()}}),
        ),
        (
            "by the label of another tenant",
            json!({"matchLabels": {"sync.portolan.dev/tenant": "other"}}),
            json!({"matchLabels": {"sync.portolan.dev.namespace.portolan.dev/tenant": "other", "sync.portolan.dev/tenant": tenant()}}),
        ),
    ] {
        let peer =
            |selector: &Value| json!({"namespaceSelector": selector, "podSelector": {"matchLabels": {"a": "b"}}});
        let policy = |selector: &Value| json!({"spec": {"podSelector": {}, "ingress": [{"from": [peer(selector)]}], "egress": [{"to": [peer(selector)]}]}});
        assert_eq!(translated("NetworkPolicy", policy(&upstream)).unwrap(), policy(&expected), "{case}: policies");
        let term = |selector: &Value| json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": selector});
        let deployment = |selector: &Value| {
            json!({"spec": {"template": {"metadata": {"labels": {"namespaceSelector": "mine"}}, "spec": {"containers": [], "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term(selector)]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(selector)}]}}}}}})
        };
        let there = translated("Deployment", deployment(&upstream)).unwrap();
        assert_eq!(there, deployment(&expected), "{case}: affinities");
        let mut back = there;
        restore_selectors(&mut back);
        assert_eq!(back, deployment(&upstream), "{case}: and back");
    }
}

#[test]
fn names_of_namespaces_become_those_of_downstream() {
    let pod = |first: &str, second: &str| {
        json!({"spec": {"containers": [], "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "namespaces": [first, second]}]}}}})
    };
    assert_eq!(
        translated("Pod", pod("front", "kube-system")).unwrap(),
        pod(&downstream("front"), &downstream("kube-system"))
    );
    let claim = |namespace: &str| json!({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a", "namespace": namespace}}});
    assert_eq!(translated("PersistentVolumeClaim", claim("back")).unwrap(), claim(&downstream("back")));
    let untouched = json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}});
    assert_eq!(translated("NetworkPolicy", untouched.clone()).unwrap(), untouched, "no selector is the own namespace");
}

#[test]
fn selectors_that_cannot_be_translated_are_refused() {
    let long = format!("{}/x", "a.".repeat(120) + "example.com");
    for (kind, copy) in [
        (
            "NetworkPolicy",
            json!({"spec": {"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {(long): "x"}}}]}]}}),
        ),
        ("ServiceMonitor", json!({"spec": {"namespaceSelector": {"matchNames": ["kube-system"]}}})),
        ("ServiceMonitor", json!({"spec": {"namespaceSelector": "team=blue"}})),
        ("Pod", json!({"spec": {"affinity": {"x": {"topologyKey": "zone", "namespaces": [7]}}}})),
    ] {
        let refusal = translated(kind, copy.clone()).unwrap_err();
        assert!(refusal.message.contains("cannot be translated exactly"), "{copy}: {}", refusal.message);
    }
    let identity = NamespaceNaming { mapping: NamespaceMapping::Identity, plane: None };
    let mut pod = json!({"spec": {"affinity": {"x": {"topologyKey": "zone", "namespaces": ["kube-system"]}}}});
    assert!(translate(&GroupVersionKind::new("", "v1", "Pod"), &identity, CLUSTER, &mut pod).is_err());
}

#[test]
fn egress_to_the_dns_of_upstream_reaches_that_of_the_physical_cluster_and_nothing_else_there() {
    let dns = |ports: Value| {
        json!({"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}], "ports": ports})
    };
    let system = json!({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}});
    let pods = json!({"matchLabels": {"k8s-app": "kube-dns"}});
    let both = json!([{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]);
    let udp = json!([{"protocol": "UDP", "port": 53}]);
    for (case, peer, ports, expected) in [
        ("the usual rule", json!({"namespaceSelector": system, "podSelector": pods}), udp.clone(), Some(udp.clone())),
        ("of all ports", json!({"namespaceSelector": system, "podSelector": pods}), json!([]), Some(both.clone())),
        (
            "a range",
            json!({"namespaceSelector": system}),
            json!([{"port": 1, "endPort": 100, "protocol": "UDP"}]),
            Some(udp.clone()),
        ),
        ("all namespaces", json!({"namespaceSelector": {}}), json!([]), Some(both)),
        ("other ports", json!({"namespaceSelector": system, "podSelector": pods}), json!([{"port": 443}]), None),
        (
            "other pods",
            json!({"namespaceSelector": system, "podSelector": {"matchLabels": {"app": "x"}}}),
            json!([]),
            None,
        ),
        (
            "other namespaces",
            json!({"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": pods}),
            json!([]),
            None,
        ),
        ("the own namespace", json!({"podSelector": pods}), json!([]), None),
    ] {
        let egress = json!({"spec": {"egress": [{"to": [peer], "ports": ports}]}});
        let rules = translated("NetworkPolicy", egress).unwrap()["spec"]["egress"].as_array().unwrap().clone();
        assert_eq!(rules.get(1).cloned(), expected.map(dns), "{case}");
        let ingress = json!({"spec": {"ingress": [{"from": [peer], "ports": ports}]}});
        assert_eq!(
            translated("NetworkPolicy", ingress).unwrap()["spec"].get("egress"),
            None,
            "{case}: nothing for ingress"
        );
    }
}
