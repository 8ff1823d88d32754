//! Custom resources on a simulated physical cluster, from the definition to the end of the copy.

use super::{kubectl_plugin::PluginUser, *};

fn definition(more: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: widgets.example.com\n  \
         annotations: {{portolan.dev/references: '{{\"spec.secret\": \"Secret\"}}'}}\nspec:\n  group: example.com\n  scope: \
         Namespaced\n  names: {{plural: widgets, singular: widget, kind: Widget}}\n  versions:\n  - name: v1\n    served: true\n    \
         storage: true\n    subresources: {{status: {{}}, scale: {{specReplicasPath: .spec.size, statusReplicasPath: \
         .status.size}}}}\n    schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: \
         {{size: {{type: integer}}, secret: {{type: string}}{more}}}}}, status: {{type: object, properties: {{size: {{type: \
         integer}}}}}}}}}}}}\n"
    )
}

const TAKEN: &str = "apiVersion: portolan.dev/v1alpha1\nkind: ClusterPlacementPolicy\nmetadata: {name: take-widgets}\nspec:\n  \
                     resources: [{apiGroup: example.com, kinds: [Widget], definition: Sync}]\n  enforcement: Constraint\n";
const POLICY: &str = "apiVersion: portolan.dev/v1alpha1\nkind: PlacementPolicy\nmetadata: {name: widgets, namespace: default}\nspec:\n  \
                      resources: [{apiGroup: example.com, kinds: [Widget]}]\n";
const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: default}\nstringData: {a: b}\n";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets/w";
const PLACEMENT: &str = "/apis/portolan.dev/v1alpha1/namespaces/default/placements/widgets.example.com-w";

fn clusters(object: &Value) -> &str {
    object["metadata"]["annotations"]["portolan.dev/clusters"].as_str().unwrap_or_default()
}

/// Applies the widget of the team.
async fn apply_widget(plane: &ControlPlane, spec: Value) {
    let user = User { name: "team".into(), groups: vec!["system:masters".into()], ..User::default() };
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": "default"}, "spec": spec});
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("/clusters/root:team-0{WIDGETS}?fieldManager=team&force=true"))
        .header(CONTENT_TYPE, "application/apply-patch+yaml")
        .body(Full::new(Bytes::from(widget.to_string())))
        .unwrap();
    let answer = plane.api().service_as(user).oneshot(request).await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

async fn established(workspace: &WorkspaceClient) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let is_established = |crd: &Value| {
        let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
    };
    until(workspace, path, is_established).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_goes_down_with_its_definition_and_leaves_nothing_behind() {
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    // The tenant's definition has one field more than that of the administrator.
    team.apply(&definition(", color: {type: string}")).await.unwrap();
    established(&team).await;
    for manifest in [SECRET, POLICY] {
        team.apply(manifest).await.unwrap();
    }
    apply_widget(&plane, json!({"size": 2, "secret": "keys"})).await;
    until(&team, PLACEMENT, |p| p["status"]["rejected"]["NotSynced"] == 1).await;
    root.apply(TAKEN).await.unwrap();
    until(&team, PLACEMENT, |p| p["status"]["rejected"]["KindNotServed"] == 1).await;
    root.apply(&definition("")).await.unwrap();
    until(&team, WIDGETS, |widget| clusters(widget) == "east").await;
    let synced = |p: &Value| {
        p["status"]["clusters"][0]["phase"] == "Active" && p["status"]["clusters"][0].get("reason").is_none()
    };
    until(&team, PLACEMENT, synced).await;
    until(&team, "/api/v1/namespaces/default/secrets/keys", |secret| clusters(secret) == "east").await;
    let ann = PluginUser::new(folder.path());
    for (line, expected) in [
        ("kubectl ws :root:team-0", "Current workspace is \"root:team-0\""),
        ("kubectl portolan move widgets/w --to east --dry-run", "would move"),
        ("kubectl portolan move widget.example.com/w --to east --timeout 30s", "pinned to east"),
    ] {
        let (code, out, err) = ann.run(line).await;
        assert!(code == 0 && out.contains(expected), "{line}: {code} {out} {err}");
    }
    // A field that the definition there does not have refuses the copy with the reason, and loses nothing.
    apply_widget(&plane, json!({"size": 2, "secret": "keys", "color": "red"})).await;
    until(&team, PLACEMENT, |p| p["status"]["clusters"][0]["reason"] == "Invalid").await;
    apply_widget(&plane, json!({"size": 3, "secret": "keys"})).await;
    until(&team, PLACEMENT, synced).await;
    // The definition goes upstream, with its objects and their copies.
    team.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com").await.unwrap();
    until(&team, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", is_empty).await;
    let only_that_of_the_secret = |list: &Value| list["items"].as_array().is_some_and(|all| all.len() == 1);
    until(&team, "/apis/portolan.dev/v1alpha1/namespaces/default/placements", only_that_of_the_secret).await;
    until(&team, "/api/v1/namespaces/default/secrets/keys", |secret| clusters(secret).is_empty()).await;
    root.delete("/apis/portolan.dev/v1alpha1/clusterplacementpolicies/take-widgets").await.unwrap();
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters/east", |east| {
        east["status"].get("customKinds").is_none()
    })
    .await;
    plane.stop().await;
}
