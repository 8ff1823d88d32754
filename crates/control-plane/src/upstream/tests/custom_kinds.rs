//! Custom kinds that policies let onto a physical cluster.

use super::*;

fn policy(resources: Value) -> Value {
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterPlacementPolicy", "metadata": {"name": "p"},
        "spec": {"resources": resources}})
}

#[tokio::test]
async fn the_workspace_of_the_registration_names_the_kinds() {
    let world = World::new();
    let (root, shop) = (LogicalClusterId::ROOT, LogicalClusterId::new(7));
    let at = |cluster, resource: &str, name: &str| {
        let resource = GroupResource::new("portolan.dev", resource);
        ObjectKey::cluster_scoped(cluster, resource, name.parse().unwrap())
    };
    let east = at(root, "physicalclusters", "east");
    world.write(&east, &json!({"metadata": {"name": "east", "uid": "east"}, "spec": {}})).await;
    world.0.register(uid("east"), east);
    for (name, resources) in [
        ("one", json!([{"apiGroup": "example.com", "kinds": ["Widget", "Gadget"]}])),
        ("again", json!([{"apiGroup": "example.com", "kinds": ["Widget"], "definition": "Sync"}])),
        ("any-kind", json!([{"apiGroup": "any.io"}])),
        ("any-group", json!([{"apiGroup": "*", "kinds": ["Thing"]}])),
        ("built-in", json!([{"apiGroup": "apps", "kinds": ["Deployment"]}, {"apiGroup": "networking.k8s.io"}])),
        ("governing", json!([{"apiGroup": "rbac.authorization.k8s.io", "kinds": ["Boat"]}, {"apiGroup": "a.kcp.io"}])),
    ] {
        world.write(&at(root, "clusterplacementpolicies", name), &policy(resources)).await;
    }
    let tenants = policy(json!([{"apiGroup": "helm.cattle.io", "kinds": ["HelmChart"], "definition": "Sync"}]));
    world.write(&at(shop, "clusterplacementpolicies", "tenant"), &tenants).await;
    let rules = world.0.custom_kinds(&uid("east")).await.unwrap();
    let allowed: Vec<String> = rules.allowed.iter().map(ToString::to_string).collect();
    assert_eq!(allowed, ["*.any.io", "Gadget.example.com", "Widget.example.com"]);
    assert!(rules.definitions.is_empty(), "the workspace does not have the definition");
    assert!(world.0.custom_kinds(&uid("west")).await.is_err(), "nothing is known of another one");
    let gone = at(root, "physicalclusters", "north");
    world.0.register(uid("north"), gone);
    assert!(world.0.custom_kinds(&uid("north")).await.is_err(), "nor of one whose registration is gone");
}
