//! Custom resources. The tests also set the conditions of definitions, because no controller runs here.

use crate::common::{Client, Hands, Plane};
use serde_json::{Value, json};

pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const WIDGETS: &str = "/apis/example.dev/v1/namespaces/default/widgets";

pub fn widgets() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
                {"name": "v1beta1", "served": true, "storage": false,
                 "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            ],
        },
    })
}

/// Defines a resource and says that it is established.
pub async fn define(client: &Client, crd: Value) -> Value {
    let mut made = client.post(CRDS, crd).await.expect(201).json();
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    made["status"]["acceptedNames"] = made["spec"]["names"].clone();
    made["status"]["conditions"] = json!([
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]);
    let path = format!("{CRDS}/{}/status", made["metadata"]["name"].as_str().unwrap());
    client.put(&path, made).await.expect(200).json()
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 3}})
}

/// A definition named as a resource that is built in, in a version that is not.
fn shadow(group: &str, plural: &str, kind: &str) -> Value {
    let mut crd = widgets();
    crd["metadata"] = json!({"name": format!("{plural}.{group}"), "annotations":
        {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}});
    crd["spec"]["group"] = group.into();
    crd["spec"]["scope"] = "Cluster".into();
    crd["spec"]["names"] = json!({"plural": plural, "kind": kind});
    crd["spec"]["versions"][0]["name"] = "v9".into();
    crd["spec"]["versions"].as_array_mut().unwrap().truncate(1);
    crd
}

#[tokio::test]
async fn definitions_of_built_in_resources_are_refused() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let all = portolan_kinds::KindTable::builtin().kinds();
    for kind in all.filter(|kind| kind.gvk.group.contains('.')) {
        let (group, plural) = (&*kind.gvk.group, &*kind.resource);
        let refused = admin.post(CRDS, shadow(group, plural, &kind.gvk.kind)).await.expect(422);
        let why = refused.message();
        assert!(why.contains("is built into the server") || why.contains("the group belongs to the server"), "{why}");
    }
}

#[tokio::test]
async fn a_definition_cannot_take_another_plural_by_its_status() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let group = "rbac.authorization.k8s.io";
    for (group, plural) in [(group, "clusterroles"), ("example.dev", "widgets")] {
        if group == "example.dev" {
            define(&admin, widgets()).await;
        }
        let mut boats = shadow(group, "boats", "Boat");
        boats["spec"]["versions"][0]["name"] = "v1".into();
        define(&admin, boats).await;
        let path = format!("{CRDS}/boats.{group}");
        let own = format!("/apis/{group}/v1/boats");
        admin.get(&own).await.expect(200);
        let mut made = admin.get(&path).await.json();
        made["status"]["acceptedNames"]["plural"] = plural.into();
        admin.put(&format!("{path}/status"), made).await.expect(200);
        admin.get(&own).await.expect(404);
        let listed = admin.get(&format!("/apis/{group}/v1/{plural}")).await.expect(200).json();
        assert_ne!(listed["kind"], "BoatList", "{group}");
    }
}

#[tokio::test]
async fn a_custom_kind_named_as_a_built_in_one_is_not_taken_for_it() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let mut crd = shadow("example.dev", "asks", "CertificateSigningRequest");
    crd["spec"]["versions"][0]["name"] = "v1".into();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] = true.into();
    define(&admin, crd).await;
    let ask = json!({"apiVersion": "example.dev/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "a"}});
    let made = admin.post("/apis/example.dev/v1/asks", ask).await.expect(201).json();
    assert!(made["spec"].is_null(), "the review names no user: {made}");
}

#[tokio::test]
async fn a_resource_is_served_as_soon_as_it_is_established_and_only_where_it_is_defined() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    admin.get(WIDGETS).await.expect(404);
    admin.post(CRDS, widgets()).await.expect(201);
    admin.get(WIDGETS).await.expect(404);
    admin.delete(&format!("{CRDS}/widgets.example.dev")).await.expect(200);
    let mut held = admin.get(&format!("{CRDS}/widgets.example.dev")).await.expect(200).json();
    assert_eq!(held["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    held["metadata"]["finalizers"] = json!([]);
    admin.put(&format!("{CRDS}/widgets.example.dev"), held).await.expect(200);
    define(&admin, widgets()).await;
    let made = admin.post(WIDGETS, widget("a")).await.expect(201).json();
    assert_eq!((&made["metadata"]["generation"], &made["spec"]["size"]), (&json!(1), &json!(3)));
    let listed = admin.get(WIDGETS).await.expect(200).json();
    assert_eq!((&listed["kind"], listed["items"].as_array().unwrap().len()), (&json!("WidgetList"), 1));
    let other = admin.get("/apis/example.dev/v1beta1/widgets").await.expect(200).json();
    assert_eq!(other["items"][0]["apiVersion"], "example.dev/v1beta1");

    let groups = admin.get("/apis").await.expect(200).json();
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "example.dev"));
    let list = admin.get("/apis/example.dev/v1").await.expect(200).json();
    assert_eq!(list["resources"][0]["shortNames"], json!(["wd"]));
    assert_eq!(list["resources"][1]["name"], "widgets/status");
    let index = admin.get("/openapi/v3").await.expect(200).json();
    assert!(index["paths"]["apis/example.dev/v1"].is_object() && index["paths"]["apis/apps/v1"].is_object());
    let document = admin.get("/openapi/v3/apis/example.dev/v1").await.expect(200).json();
    assert!(document["components"]["schemas"]["dev.example.v1.Widget"].is_object());

    let workspace = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "shop"}});
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await.expect(201);
    let shop = admin.at("root:shop");
    shop.get("/apis/example.dev/v1").await.expect(404);
    shop.get(WIDGETS).await.expect(404);
    assert!(shop.get("/openapi/v3").await.expect(200).json()["paths"]["apis/example.dev/v1"].is_null());
}

#[tokio::test]
async fn a_deprecated_version_has_a_warning() {
    const OLD: &str = "/apis/example.dev/v1beta1/namespaces/default/widgets";
    let admin = Plane::new().await.admin();
    let mut crd = widgets();
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    let old = versions.iter_mut().find(|version| version["name"] == "v1beta1").unwrap();
    old["deprecated"] = true.into();
    define(&admin, crd).await;
    let expected = r#"299 - "example.dev/v1beta1 Widget is deprecated; use example.dev/v1 Widget""#;
    admin.post(WIDGETS, widget("a")).await.expect(201);
    for answer in [admin.get(OLD).await, admin.get(&format!("{OLD}/a")).await, admin.delete(&format!("{OLD}/a")).await]
    {
        assert_eq!(answer.expect(200).headers["warning"], expected);
    }
    assert!(!admin.get(WIDGETS).await.expect(200).headers.contains_key("warning"));
}

#[tokio::test]
async fn a_resource_that_is_being_undefined_takes_no_new_objects() {
    let admin = Plane::new().await.admin();
    define(&admin, widgets()).await;
    let mut held = widget("a");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    admin.post(WIDGETS, held).await.expect(201);
    let marked = admin.delete(&format!("{CRDS}/widgets.example.dev")).await.expect(200).json();
    assert_eq!(marked["status"]["conditions"][2]["reason"], "InstanceDeletionPending");
    assert_eq!(marked["metadata"]["generation"], 1);
    assert!(marked["metadata"].get("deletionGracePeriodSeconds").is_none());
    let refused = admin.post(WIDGETS, widget("b")).await.expect(403);
    let expected =
        r#"widgets.example.dev "b" is forbidden: create not allowed while custom resource definition is terminating"#;
    assert_eq!(refused.message(), expected);
    let merge = "application/merge-patch+json";
    admin.patch(&format!("{WIDGETS}/a"), merge, json!({"metadata": {"finalizers": null}})).await.expect(200);
    let verbs = admin.get("/apis/example.dev/v1").await.json()["resources"][0]["verbs"].clone();
    assert_eq!(verbs, json!(["delete", "deletecollection", "get", "list", "watch"]));
}

#[tokio::test]
async fn a_status_says_which_versions_are_stored_and_has_no_names_of_its_own() {
    let admin = Plane::new().await.admin();
    let made = define(&admin, widgets()).await;
    let path = format!("{CRDS}/widgets.example.dev/status");
    let none = json!({"status": {"storedVersions": [], "acceptedNames": {"singular": null, "listKind": null}}});
    let status = admin.merge(&path, none).await.expect(200).json()["status"].clone();
    assert_eq!(status["storedVersions"], made["status"]["storedVersions"]);
    let names = (status["acceptedNames"].get("singular"), status["acceptedNames"].get("listKind"));
    assert_eq!(names, (None, None), "what was not accepted");
    let one = [("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")];
    let refused = admin.send("GET", WIDGETS, &one, "").await.expect(406).message();
    assert!(refused.ends_with("the requested object is a list (*unstructured.UnstructuredList)"), "{refused}");
}

/// A definition of another resource, small.
fn other(plural: &str) -> Value {
    let mut crd = widgets();
    crd["metadata"]["name"] = format!("{plural}.example.dev").into();
    let kind = plural.to_uppercase().replace('-', "");
    crd["spec"]["names"] =
        json!({"plural": plural, "singular": plural, "kind": kind, "listKind": format!("{kind}List")});
    crd
}

#[tokio::test]
async fn a_tenant_defines_a_bounded_number_of_resources_wherever_below_root_it_is() {
    let hands = Hands::now();
    let plane = Plane::with(|config| {
        config.seams = hands.seams();
        (config.limits.definitions, config.limits.defined_names) = (4, 8);
    })
    .await;
    let admin = plane.admin();
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    let workspace =
        |name: &str| json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": name}});
    admin.post(workspaces, workspace("shop")).await.expect(201);
    let shop = admin.at("root:shop");
    for name in ["a", "b", "c"] {
        shop.post(workspaces, workspace(name)).await.expect(201);
    }
    let inside = ["a", "b", "c"].map(|name| admin.at(&format!("root:shop:{name}")));
    // Each may use half of the tenant's share.
    for (n, client) in [(0, &inside[0]), (1, &inside[1])] {
        for m in 0..4 {
            client.post(CRDS, other(&format!("w{n}-{m}"))).await.expect(201);
        }
    }
    let refused = inside[0].post(CRDS, other("more")).await.expect(403);
    assert!(refused.message().ends_with("a logical cluster has at most 4 definitions"), "{}", refused.message());
    let refused = inside[2].post(CRDS, other("more")).await.expect(403);
    let expected = "a workspace in root and all below it define at most 8 different resources";
    assert!(refused.message().ends_with(expected), "{}", refused.message());
    inside[2].post(CRDS, other("w0-1")).await.expect(201);
    admin.post(CRDS, other("more")).await.expect(201);

    let gone = format!("{CRDS}/w1-3.example.dev");
    inside[1].delete(&gone).await.expect(200);
    inside[1].merge(&gone, json!({"metadata": {"finalizers": null}})).await.expect(200);
    inside[2].post(CRDS, other("more")).await.expect(403);
    hands.forward(2 * 3600);
    inside[2].post(CRDS, other("more")).await.expect(201);
    inside[2].post(CRDS, other("again")).await.expect(403);
}

/// A definition with an annotation of so many bytes.
fn long(plural: &str, bytes: usize) -> Value {
    let mut crd = other(plural);
    crd["metadata"]["annotations"] = json!({"a": "x".repeat(bytes)});
    crd
}

#[tokio::test]
async fn the_size_of_a_definition_is_its_own_and_that_of_now() {
    let admin = Plane::with(|config| config.limits.definition_bytes = 100_000).await.admin();
    admin.post(CRDS, long("a", 0)).await.expect(201);
    for bytes in [40_000, 80_000] {
        let grown = json!({"metadata": {"annotations": {"a": "x".repeat(bytes)}}});
        admin.merge(&format!("{CRDS}/a.example.dev"), grown).await.expect(200);
    }
    admin.post(CRDS, long("b", 30_000)).await.expect(403);

    let of = |name: &str| (json!({"metadata": {"name": name}}), admin.at(&format!("root:{name}")));
    let [(padded, large), (plain, small)] = ["padded", "plain"].map(of);
    for workspace in [padded, plain] {
        admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await.expect(201);
    }
    large.post(CRDS, long("p", 80_000)).await.expect(201);
    small.post(CRDS, long("p", 0)).await.expect(201);
    small.post(CRDS, long("q", 50_000)).await.expect(201);
}

#[tokio::test]
async fn the_definitions_of_a_logical_cluster_have_a_bounded_size() {
    let admin = Plane::with(|config| config.limits.definition_bytes = 40_000).await.admin();
    admin.post(CRDS, long("a", 20_000)).await.expect(201);
    let refused = admin.post(CRDS, long("b", 20_000)).await.expect(403);
    let expected = "the definitions of a logical cluster have at most 40000 bytes";
    assert!(refused.message().ends_with(expected), "{}", refused.message());
    admin.post(CRDS, long("b", 10_000)).await.expect(201);
    let path = format!("{CRDS}/b.example.dev");
    admin.merge(&path, json!({"metadata": {"annotations": {"a": "x".repeat(20_000)}}})).await.expect(403);
    admin.merge(&path, json!({"metadata": {"annotations": {"a": "x"}}})).await.expect(200);
}

#[tokio::test]
async fn groups_of_definitions_are_listed_by_name() {
    let admin = Plane::new().await.admin();
    for (plural, kind, group) in
        [("as", "A", "test.dev"), ("bs", "B", "bar.dev"), ("cs", "C", "zoo.dev"), ("ds", "D", "bar.dev")]
    {
        let versions = json!([{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]);
        let names = json!({"plural": plural, "kind": kind});
        let spec = json!({"group": group, "scope": "Namespaced", "names": names, "versions": versions});
        define(&admin, json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": spec})).await;
    }
    let groups = admin.get("/apis").await.expect(200).json();
    let told: Vec<_> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    let (own, last) = (["bar.dev", "test.dev", "zoo.dev"], &told[told.len() - 3..]);
    assert_eq!(last, own, "{told:?}");
    let accept = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let aggregated = admin.send("GET", "/apis", &[accept], "").await.expect(200).json();
    let names = aggregated["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), told);
}
