//! Workspaces: types, home workspaces, and the requests of kcp's `kubectl ws` and `kubectl create workspace`.

use serde_json::{Value, json};

use crate::common::{Client, Plane};

const TENANCY: &str = "/apis/tenancy.kcp.io/v1alpha1";
const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
const TYPES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes";
const BINDINGS: &str = "/apis/apis.kcp.io/v1alpha2/apibindings";
const CLUSTER: &str = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster";

fn workspace(name: &str, of_type: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": of_type}})
}

fn at(path: &str, name: &str) -> Value {
    json!({"path": path, "name": name})
}

async fn define(client: &Client, name: &str, spec: Value) {
    client.post(TYPES, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

#[tokio::test]
async fn built_in_types_are_in_root_and_can_be_changed_there() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let listed = admin.get(TYPES).await.expect(200).json();
    assert_eq!(names(&listed), ["home", "organization", "root", "team", "universal"]);
    admin.post(WORKSPACES, json!({"metadata": {"name": "a"}})).await.expect(201);
    let below = admin.at("root:a");
    assert!(names(&below.get(TYPES).await.expect(200).json()).is_empty());
    below.get(&format!("{TYPES}/universal")).await.expect(404);

    let closed = json!({"spec": {"limitAllowedChildren": {"none": true}}});
    admin.merge(&format!("{TYPES}/universal"), closed).await.expect(200);
    let refused = below.post(WORKSPACES, json!({"metadata": {"name": "b"}})).await.expect(403);
    assert!(refused.message().contains("root:universal allows no child workspace"), "{}", refused.message());
    admin.delete(&format!("{TYPES}/universal")).await.expect(403);
    let open = json!({"spec": {"limitAllowedChildren": null}});
    admin.merge(&format!("{TYPES}/universal"), open).await.expect(200);
    below.post(WORKSPACES, json!({"metadata": {"name": "b"}})).await.expect(201);
}

#[tokio::test]
async fn pods_may_be_made_in_a_workspace_as_soon_as_it_is_created() {
    let plane = Plane::with(|config| config.makes_default_objects = true).await;
    let admin = plane.admin();
    admin.post(WORKSPACES, json!({"metadata": {"name": "shop"}})).await.expect(201);
    let shop = admin.at("root:shop");
    for namespace in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let path = format!("/api/v1/namespaces/{namespace}");
        let found = shop.get(&path).await.expect(200).json();
        assert_eq!(found["status"]["phase"], "Active", "{namespace}");
        let account = shop.get(&format!("{path}/serviceaccounts/default")).await.expect(200).json();
        let map = shop.get(&format!("{path}/configmaps/kube-root-ca.crt")).await.expect(200).json();
        assert!(map["data"]["ca.crt"].as_str().is_some_and(|pem| pem.starts_with("-----BEGIN CERTIFICATE")), "{map}");
        assert_ne!(account["metadata"]["uid"], map["metadata"]["uid"]);
    }
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    shop.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
}

#[tokio::test]
async fn the_type_of_a_workspace_is_resolved_when_it_is_created() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, "labelled", json!({"additionalWorkspaceLabels": {"tier": "gold"}})).await;
    define(&admin, "extended", json!({"extend": {"with": [at("root", "organization"), at("root", "labelled")]}})).await;
    define(&admin, "parent", json!({"defaultChildWorkspaceType": {"name": "labelled"}})).await;
    define(&admin, "loop-a", json!({"extend": {"with": [{"name": "loop-b"}]}})).await;
    define(&admin, "loop-b", json!({"extend": {"with": [{"name": "loop-a"}]}})).await;
    for (case, parent, name, of_type, expected) in [
        ("without a type it is the parent's default", "root", "plain", Value::Null, Ok("root:universal")),
        ("a name is looked up here and above", "root", "org", json!({"name": "organization"}), Ok("root:organization")),
        ("a team may be below an organization", "root:org", "team", json!({"name": "team"}), Ok("root:team")),
        ("and below a team", "root:org:team", "inner", at("root", "team"), Ok("root:team")),
        ("but not below root", "root", "team", json!({"name": "team"}), Err("only allows parent workspaces")),
        ("an organization is below root only", "root:org", "x", at("root", "organization"), Err("only allows parent")),
        ("a type stands for those it extends", "root", "ext", json!({"name": "extended"}), Ok("root:extended")),
        ("also as a parent", "root:ext", "team", json!({"name": "team"}), Ok("root:team")),
        ("and has their limits", "root:ext", "ext", json!({"name": "extended"}), Err("only allows parent workspaces")),
        ("a type of the user's has a default, too", "root", "parent", json!({"name": "parent"}), Ok("root:parent")),
        ("which its children get", "root:parent", "child", Value::Null, Ok("root:labelled")),
        ("the type of root is for root", "root", "r", json!({"name": "root"}), Err("allows no parent workspace")),
        ("an unknown type", "root", "x", json!({"name": "nope"}), Err("workspace type \"nope\" does not exist")),
        ("an unknown path", "root", "x", at("root:nope", "universal"), Err("\"root:nope:universal\" does not exist")),
        ("types that extend each other", "root", "x", json!({"name": "loop-a"}), Err("extends itself")),
    ] {
        let answer = admin.at(parent).post(WORKSPACES, workspace(name, of_type)).await;
        match expected {
            Ok(expected) => {
                let made = answer.expect(201).json();
                let of_type = &made["spec"]["type"];
                let named = format!("{}:{}", of_type["path"].as_str().unwrap(), of_type["name"].as_str().unwrap());
                assert_eq!(named, expected, "{case}");
                assert_eq!(made["status"]["phase"], "Ready", "{case}");
                let is_gold = made["metadata"]["labels"]["tier"] == "gold";
                assert_eq!(is_gold, name == "ext" || name == "child", "{case}");
            }
            Err(expected) => {
                let refused = answer.expect(403);
                assert!(refused.message().contains(expected), "{case}: {}", refused.message());
            }
        }
    }
}

#[tokio::test]
async fn a_type_takes_the_right_to_use_it() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, "gold", json!({})).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |name: &str, rule: Value| json!({"metadata": {"name": name}, "rules": [rule]});
    let bind = |role: &str| {
        json!({
            "metadata": {"name": role},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
            "roleRef": {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": role},
        })
    };
    let rule =
        |verb: &str, resource: &str| json!({"apiGroups": ["tenancy.kcp.io"], "resources": [resource], "verbs": [verb]});
    admin.post(&format!("{rbac}/clusterroles"), role("maker", rule("create", "workspaces"))).await.expect(201);
    admin.post(&format!("{rbac}/clusterrolebindings"), bind("maker")).await.expect(201);
    let ann = plane.as_user("ann");
    ann.post(WORKSPACES, json!({"metadata": {"name": "plain"}})).await.expect(201);
    let refused = ann.post(WORKSPACES, workspace("x", json!({"name": "gold"}))).await.expect(403);
    let missing = ann.post(WORKSPACES, workspace("x", json!({"name": "gone"}))).await.expect(403);
    assert_eq!(
        refused.message().replace("gold", "gone"),
        missing.message(),
        "a type that she may not use looks like one that is missing"
    );
    admin.post(&format!("{rbac}/clusterroles"), role("gold-user", rule("use", "workspacetypes"))).await.expect(201);
    admin.post(&format!("{rbac}/clusterrolebindings"), bind("gold-user")).await.expect(201);
    ann.post(WORKSPACES, workspace("x", json!({"name": "gold"}))).await.expect(201);
}

#[tokio::test]
async fn types_that_cannot_be_served_are_refused() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    for (case, name, spec, expected) in [
        ("a reserved name", "any", json!({}), "is a reserved name"),
        ("issuers", "x", json!({"authenticationConfigurations": [{"name": "A"}]}), "spec.authenticationConfigurations"),
        (
            "a binding to nothing",
            "x",
            json!({"defaultAPIBindings": [{"export": ""}]}),
            "spec.defaultAPIBindings[0].export",
        ),
        (
            "a binding to nowhere",
            "x",
            json!({"defaultAPIBindings": [{"path": "Root:", "export": "a"}]}),
            "spec.defaultAPIBindings[0].path",
        ),
        (
            "too many bindings",
            "x",
            json!({"defaultAPIBindings": (0..33).map(|n| json!({"export": format!("e{n}")})).collect::<Vec<_>>()}),
            "has at most 32 entries",
        ),
        (
            "maintained bindings",
            "x",
            json!({"defaultAPIBindingLifecycle": "Maintain"}),
            "Maintain is not supported yet",
        ),
        ("all and none", "x", json!({"limitAllowedParents": {"none": true, "types": [at("root", "a")]}}), "with types"),
        (
            "a reference without a name",
            "x",
            json!({"extend": {"with": [{"path": "root"}]}}),
            "spec.extend.with[0].name",
        ),
        (
            "too many",
            "x",
            json!({"extend": {"with": (0..33).map(|n| at("root", &format!("t{n}"))).collect::<Vec<_>>()}}),
            "has at most 32 entries",
        ),
    ] {
        let refused = admin.post(TYPES, json!({"metadata": {"name": name}, "spec": spec})).await;
        assert_eq!(refused.code, 422, "{case}: {}", refused.text());
        assert!(refused.message().contains(expected), "{case}: {}", refused.message());
    }
    let unknown = admin.get(&format!("{TENANCY}/workspacetype")).await;
    assert_eq!(unknown.code, 404);
}

#[tokio::test]
async fn the_first_read_of_a_home_workspace_creates_it() {
    let plane = Plane::new().await;
    let (ann, bob) = (plane.as_user("ann"), plane.as_user("bob@example.com"));
    let home = ann.get(&format!("{WORKSPACES}/~")).await.expect(200).json();
    let id = home["spec"]["cluster"].as_str().unwrap().to_owned();
    assert_eq!((&home["metadata"]["name"], &home["status"]["phase"]), (&json!("cluster"), &json!("Ready")));
    assert_eq!(home["spec"]["URL"], format!("https://127.0.0.1:6443/clusters/{id}"));
    assert_eq!(home["spec"]["type"], json!({"name": "home", "path": "root"}));
    let again = ann.get(&format!("{WORKSPACES}/~")).await.expect(200).json();
    assert_eq!(again["spec"]["cluster"], home["spec"]["cluster"], "there is one");

    let inside = ann.at(&id);
    inside.get("/api").await.expect(200);
    let own = inside.get(CLUSTER).await.expect(200).json();
    assert_eq!(own["metadata"]["annotations"]["kcp.io/path"], "user:ann");
    let made = inside.post(WORKSPACES, json!({"metadata": {"name": "play"}})).await.expect(201).json();
    assert_eq!(made["spec"]["URL"], "https://127.0.0.1:6443/clusters/user:ann:play");
    ann.at("user:ann:play").get("/api/v1/namespaces/default").await.expect(200);

    bob.at(&id).get(WORKSPACES).await.expect(403);
    let of_bob = bob.get(&format!("{WORKSPACES}/~")).await.expect(200).json();
    assert_ne!(of_bob["spec"]["cluster"], home["spec"]["cluster"]);
    assert_ne!(plane.as_user("Ann").get(&format!("{WORKSPACES}/~")).await.expect(200).json()["spec"], home["spec"]);
    inside.get(&format!("{WORKSPACES}/~")).await.expect(404);
    let listed = plane.admin().get(WORKSPACES).await.expect(200).json();
    assert!(names(&listed).is_empty(), "a home is no workspace of root: {listed}");
}

#[tokio::test]
async fn concurrent_first_reads_create_one_home_workspace() {
    let plane = Plane::new().await;
    let ann = plane.as_user("ann");
    let reads = (0..16).map(|_| {
        let ann = ann.clone();
        tokio::spawn(async move { ann.get(&format!("{WORKSPACES}/~")).await })
    });
    let mut clusters = std::collections::HashSet::new();
    for read in reads.collect::<Vec<_>>() {
        clusters.insert(read.await.unwrap().expect(200).json()["spec"]["cluster"].to_string());
    }
    assert_eq!(clusters.len(), 1, "{clusters:?}");
}

#[tokio::test]
async fn the_server_is_the_only_shard() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let shards = admin.get("/apis/core.kcp.io/v1alpha1/shards").await.expect(200).json();
    assert_eq!(names(&shards), ["root"]);
    assert_eq!(shards["items"][0]["spec"]["externalURL"], "https://127.0.0.1:6443");
    admin.post(WORKSPACES, json!({"metadata": {"name": "a"}})).await.expect(201);
    let below = admin.at("root:a");
    assert!(names(&below.get("/apis/core.kcp.io/v1alpha1/shards").await.expect(200).json()).is_empty());
    let own = below.get(CLUSTER).await.expect(200).json();
    assert_eq!(own["status"]["URL"], "https://127.0.0.1:6443/clusters/root:a");
    assert_eq!(own["spec"]["owner"]["resource"], "workspaces");
}

/// Sends the requests of a command of kcp's plugin, one after the other, and compares the codes.
async fn replay(client: &Client, command: &str, requests: &[(&str, &str, u16)]) {
    for (cluster, path, code) in requests {
        let answer = client.at(cluster).get(path).await;
        assert_eq!(answer.code, *code, "{command}: GET /clusters/{cluster}{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_requests_of_kcps_plugin_are_answered() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let post = |name: &str, of_type: Value| admin.post(WORKSPACES, workspace(name, of_type));

    // kubectl create workspace shop --type root:universal
    let made = post("shop", at("root", "universal")).await.expect(201).json();
    assert_eq!(made["spec"]["type"], at("root", "universal"), "the plugin reads it unchecked");
    let read = admin.get(&format!("{WORKSPACES}/shop")).await.expect(200).json();
    assert_eq!(read["status"]["phase"], "Ready");
    // Again: exists. With --ignore-existing the plugin reads it.
    post("shop", at("root", "universal")).await.expect(409);
    admin.at("root:shop").post(WORKSPACES, json!({"metadata": {"name": "inner"}})).await.expect(201);

    let (shop, inner) = (format!("{WORKSPACES}/shop"), format!("{WORKSPACES}/inner"));
    let (nope, home) = (format!("{WORKSPACES}/nope"), format!("{WORKSPACES}/~"));
    replay(&admin, "ws tree", &[("root", WORKSPACES, 200), ("root:shop", WORKSPACES, 200)]).await;
    let enter =
        [("root:shop", "/api", 200), ("root:shop", "/apis", 200), ("root", &*shop, 200), ("root:shop", BINDINGS, 200)];
    replay(&admin, "ws shop", &enter).await;
    let enter = [("root:shop:inner", "/api", 200), ("root:shop:inner", "/apis", 200), ("root:shop", &*inner, 200)];
    replay(&admin, "ws :root:shop:inner", &enter).await;
    replay(&admin, "ws -", &[("root:shop", BINDINGS, 200)]).await;
    replay(&admin, "ws nope", &[("root", &nope, 404), ("root:nope", BINDINGS, 404)]).await;
    replay(&admin, "ws ~", &[("root", &home, 200)]).await;
    let missing = admin.at("root:nope").get(WORKSPACES).await.expect(404);
    assert!(missing.message().contains("\"root:nope\" not found"), "{}", missing.message());

    let ann = plane.as_user("ann");
    let own = ann.get(&home).await.expect(200).json();
    let id = own["spec"]["cluster"].as_str().unwrap();
    replay(&ann, "ws ~ of a user", &[(id, "/api", 200), (id, "/apis", 200), (id, BINDINGS, 200)]).await;
    replay(&ann, "ws shop without rights", &[("root:shop", BINDINGS, 403), ("root", &shop, 403)]).await;
}

#[tokio::test]
async fn a_mount_names_no_logical_cluster() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    for name in ["tenant", "victim"] {
        admin.post(WORKSPACES, workspace(name, Value::Null)).await.expect(201);
    }
    let victim = admin.get(&format!("{WORKSPACES}/victim")).await.expect(200).json()["spec"]["cluster"].clone();
    let tenant = admin.at("root:tenant");
    let cluster = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": "east"});
    for (name, named) in [("of-a-neighbor", victim), ("of-root", "root".into())] {
        let mount = json!({"metadata": {"name": name, "finalizers": ["core.kcp.io/logicalcluster"]},
            "spec": {"mount": {"ref": cluster}, "cluster": named}});
        let made = tenant.post(WORKSPACES, mount).await.expect(201).json();
        assert_eq!(made["spec"].get("cluster"), None, "{made}");
        let path = format!("{WORKSPACES}/{name}");
        let changed = tenant.merge(&path, json!({"spec": {"cluster": named}})).await.expect(200).json();
        assert_eq!(changed["spec"].get("cluster"), None, "{changed}");
        tenant.delete(&path).await.expect(200);
    }
    let configmap = json!({"metadata": {"name": "kept"}});
    admin.at("root:victim").post("/api/v1/namespaces/default/configmaps", configmap.clone()).await.expect(201);
    admin.post("/api/v1/namespaces/default/configmaps", configmap).await.expect(201);
}
