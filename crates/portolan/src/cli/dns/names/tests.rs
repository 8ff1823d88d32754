//! Names of two tenants on one physical cluster.

use serde_json::json;

use super::*;

fn namespace(name: &str, tenant: &str, upstream: &str) -> Value {
    let identity = json!({"cluster": tenant, "namespace": upstream, "physical": "east"}).to_string();
    json!({"metadata": {"name": name, "labels": {annotations::DOWN_TENANT: tenant},
        "annotations": {annotations::DOWN_IDENTITY: identity}}})
}

fn service(namespace: &str, name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": address}})
}

fn pod(namespace: &str, address: &str, phase: &str) -> Value {
    json!({"metadata": {"name": "p", "namespace": namespace}, "status": {"podIP": address, "phase": phase}})
}

fn table() -> NameTable {
    let endpoint = |address: &str, ready: bool| json!({"addresses": [address], "hostname": "db-0", "conditions": {"ready": ready}});
    let slice = |service: &str, endpoints: Value| {
        json!({"metadata": {"name": "s", "namespace": "shop-a",
            "labels": {"kubernetes.io/service-name": service}}, "endpoints": endpoints})
    };
    let importing = |mut namespace: Value, services: Value| {
        object::set_annotation(&mut namespace, annotations::DOWN_IMPORTED, Some(services.to_string()));
        namespace
    };
    let external = |name: &str, target: &str| json!({"metadata": {"name": name, "namespace": "shop-a"}, "spec": {"type": "ExternalName", "externalName": target}});
    NameTable::new(&NameSources {
        namespaces: vec![
            importing(
                namespace("shop-a", "one", "shop"),
                json!({"idle": {}, "db": {
                "west": [{"addresses": ["10.2.0.1"], "hostname": "db-0"}], "east": [{"addresses": ["10.1.0.8"]}]}}),
            ),
            namespace("pay-a", "one", "pay"),
            importing(namespace("shop-b", "two", "shop"), json!({"web": {"east": [{"addresses": ["10.1.0.6"]}]}})),
            json!({"metadata": {"name": "default"}}),
        ],
        pods: vec![
            pod("shop-a", "10.1.0.1", "Running"),
            pod("shop-b", "10.1.0.2", "Running"),
            pod("default", "10.1.0.3", "Running"),
            pod("shop-a", "10.1.0.4", "Succeeded"),
        ],
        services: vec![
            service("shop-a", "web", "10.96.0.1"),
            service("pay-a", "api", "10.96.0.2"),
            service("shop-b", "secret", "10.96.0.3"),
            service("shop-a", "db", "None"),
            service("default", "kubernetes", "10.96.0.9"),
            external("mail", "Mail.example.com."),
            external("near", "api.pay.svc.cluster.local"),
            external("nearer", "near.shop.svc.cluster.local."),
            external("foreign", "secret.shop.svc.cluster.local"),
            external("circle", "circle.shop.svc.cluster.local"),
            external("inside", "secret.shop-b.svc.k8s.corp"),
        ],
        slices: vec![
            slice("db", json!([endpoint("10.1.0.8", true), endpoint("10.1.0.9", false)])),
            slice("web", json!([endpoint("10.1.0.7", true)])),
        ],
    })
}

#[test]
fn names_of_a_logical_cluster() {
    let (table, domains) = (table(), ClusterDomains::with(["K8s.corp.".to_owned()]));
    let found = |address: &str| NameAnswer::Addresses(vec![address.parse().unwrap()]);
    for (case, client, name, expected) in [
        ("a Service of the own namespace", "10.1.0.1", "web.shop.svc", found("10.96.0.1")),
        ("its full name", "10.1.0.1", "web.shop.svc.cluster.local", found("10.96.0.1")),
        ("one of another namespace", "10.1.0.1", "api.pay.svc", found("10.96.0.2")),
        ("a headless Service has its ready endpoints", "10.1.0.1", "db.shop.svc.cluster.local", found("10.1.0.8")),
        ("a named endpoint", "10.1.0.1", "db-0.db.shop.svc", found("10.1.0.8")),
        (
            "a Service of another tenant, in a namespace of the same name",
            "10.1.0.1",
            "secret.shop.svc",
            NameAnswer::Missing,
        ),
        ("its own tenant finds it", "10.1.0.2", "secret.shop.svc", found("10.96.0.3")),
        ("names of the physical cluster", "10.1.0.1", "kubernetes.default.svc", NameAnswer::Absent),
        ("a name downstream", "10.1.0.1", "web.shop-a.svc.cluster.local", NameAnswer::Absent),
        ("another name of the cluster", "10.1.0.1", "x.pod.cluster.local", NameAnswer::Absent),
        ("the domain itself", "10.1.0.1", "cluster.local", NameAnswer::Absent),
        ("an endpoint that may come", "10.1.0.1", "db-1.db.shop.svc", NameAnswer::Missing),
        ("a name of the world with the search list", "10.1.0.1", "example.com.svc.cluster.local", NameAnswer::Absent),
        ("and with the namespace", "10.1.0.1", "example.com.shop.svc.cluster.local", NameAnswer::Absent),
        ("the domain of the physical cluster", "10.1.0.1", "web.shop-b.svc.k8s.corp", NameAnswer::Absent),
        ("a name of the workspace in it", "10.1.0.1", "web.shop.svc.k8s.corp", found("10.96.0.1")),
        ("the address of a pod", "10.1.0.1", "2.0.1.10.in-addr.arpa", NameAnswer::Absent),
        ("one of IPv6", "10.1.0.1", "1.0.0.0.d.f.ip6.arpa", NameAnswer::Absent),
        ("an alias of a name of the world", "10.1.0.1", "mail.shop.svc", NameAnswer::Alias("mail.example.com".into())),
        ("one of a Service of the workspace", "10.1.0.1", "near.shop.svc", found("10.96.0.2")),
        ("an alias of that alias", "10.1.0.1", "nearer.shop.svc", found("10.96.0.2")),
        ("one of a Service of another tenant", "10.1.0.1", "foreign.shop.svc", NameAnswer::Missing),
        ("one of itself", "10.1.0.1", "circle.shop.svc", NameAnswer::Absent),
        ("one of a name of the physical cluster", "10.1.0.1", "inside.shop.svc", NameAnswer::Absent),
        ("an alias of another tenant", "10.1.0.2", "mail.shop.svc", NameAnswer::Missing),
        (
            "an imported Service has the ready endpoints of all physical clusters",
            "10.1.0.1",
            "db.shop.svc.clusterset.local",
            NameAnswer::Addresses(["10.1.0.8", "10.2.0.1"].map(|address| address.parse().unwrap()).into()),
        ),
        ("one endpoint of it", "10.1.0.1", "db-0.west.db.shop.svc.clusterset.local", found("10.2.0.1")),
        ("one without endpoints now", "10.1.0.1", "idle.shop.svc.clusterset.local", NameAnswer::Addresses(vec![])),
        ("one on no cluster", "10.1.0.1", "db-0.db.shop.svc.clusterset.local", NameAnswer::Missing),
        ("one of another tenant", "10.1.0.1", "web.shop.svc.clusterset.local", NameAnswer::Missing),
        ("its own tenant finds it there", "10.1.0.2", "web.shop.svc.clusterset.local", found("10.1.0.6")),
        ("an import in no namespace", "10.1.0.1", "web.else.svc.clusterset.local", NameAnswer::Absent),
        ("another name of that domain", "10.1.0.1", "db.shop.pod.clusterset.local", NameAnswer::Absent),
        ("that domain itself", "10.1.0.1", "clusterset.local", NameAnswer::Absent),
        ("a name of the world", "10.1.0.1", "example.com", NameAnswer::Elsewhere),
        ("one that only ends alike", "10.1.0.1", "notcluster.local", NameAnswer::Elsewhere),
        ("a pod of somebody else", "10.1.0.3", "web.shop.svc", NameAnswer::UnknownClient),
        ("a pod that is over", "10.1.0.4", "web.shop.svc", NameAnswer::UnknownClient),
        ("an unknown address", "10.9.9.9", "example.com", NameAnswer::UnknownClient),
    ] {
        assert_eq!(table.resolve(client.parse().unwrap(), name, &domains), expected, "{case}");
    }
}
