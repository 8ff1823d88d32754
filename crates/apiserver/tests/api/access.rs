//! Access: RBAC, tokens and impersonation.

use crate::common::{Client, Hands, MAPS, Plane, config_map, user};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";

async fn workspace(admin: &Client, name: &str) -> Value {
    admin.post(WORKSPACES, json!({"metadata": {"name": name}})).await.expect(201).json()
}

fn binding(name: &str, user: &str, role: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
    })
}

#[tokio::test]
async fn a_workspace_is_a_logical_cluster_of_its_own() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let made = workspace(&admin, "a").await;
    assert_eq!((&made["status"]["phase"], &made["spec"]["type"]["name"]), (&json!("Ready"), &json!("universal")));
    assert_eq!(made["spec"]["URL"], "https://127.0.0.1:6443/clusters/root:a");
    let id = made["spec"]["cluster"].as_str().unwrap().to_owned();

    let inside = admin.at("root:a");
    let spaces = inside.get("/api/v1/namespaces").await.expect(200).json();
    assert_eq!(spaces["items"].as_array().map(Vec::len), Some(4));
    inside.post(MAPS, config_map("x", json!({}))).await.expect(201);
    admin.get(&format!("{MAPS}/x")).await.expect(404);
    admin.at(&id).get(&format!("{MAPS}/x")).await.expect(200);
    let face = inside.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await.expect(200).json();
    assert_eq!((&face["status"]["phase"], &face["spec"]["owner"]["name"]), (&json!("Ready"), &json!("a")));
    inside.post("/apis/core.kcp.io/v1alpha1/logicalclusters", json!({"metadata": {"name": "b"}})).await.expect(405);

    workspace(&inside, "b").await;
    admin.at("root:a:b").get("/api/v1/namespaces/default").await.expect(200);
    admin.post(WORKSPACES, json!({"metadata": {"name": "a"}})).await.expect(409);
    admin.post(WORKSPACES, json!({"metadata": {"name": "a.b"}})).await.expect(422);
    let kept = admin
        .merge(&format!("{WORKSPACES}/a"), json!({"spec": {"cluster": "x", "URL": null}}))
        .await
        .expect(200)
        .json();
    assert_eq!((&kept["spec"]["cluster"], &kept["spec"]["URL"]), (&made["spec"]["cluster"], &made["spec"]["URL"]));
}

#[tokio::test]
async fn a_deleted_workspace_is_as_if_it_had_never_been() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    let marked = admin.delete(&format!("{WORKSPACES}/a")).await.expect(200).json();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let inside = admin.at("root:a");
    inside.post(WORKSPACES, json!({"metadata": {"name": "late"}})).await.expect(403);
    let cluster = plane.api.directory().by_path(&"root:a".parse().unwrap()).unwrap();
    plane.api.directory().remove(cluster.id).await.unwrap();
    admin.merge(&format!("{WORKSPACES}/a"), json!({"metadata": {"finalizers": null}})).await.expect(200);
    inside.get("/api/v1/namespaces").await.expect(404);

    let again = workspace(&admin, "a").await;
    assert_ne!(again["spec"]["cluster"], cluster.id.to_string(), "ids are never used again");
    inside.get("/api/v1/namespaces").await.expect(200);
}

#[tokio::test]
async fn the_directory_is_read_back_after_a_restart() {
    let store = portolan_store::memory();
    let config = || portolan_apiserver::ApiServerConfig::in_memory(portolan_types::Seams::system());
    let start = || portolan_apiserver::ApiServer::new(store.clone(), config());
    let first = start().await.unwrap();
    let client =
        Client { service: first.service_as(user("admin", &["system:masters"])), base: "/clusters/root".into() };
    workspace(&client, "a").await;
    let second = start().await.unwrap();
    let client =
        Client { service: second.service_as(user("admin", &["system:masters"])), base: "/clusters/root:a".into() };
    client.get("/api/v1/namespaces/default").await.expect(200);
    assert_eq!(second.directory().len(), 2);
}

#[tokio::test]
async fn strangers_cannot_tell_which_logical_clusters_there_are() {
    let plane = Plane::new().await;
    workspace(&plane.admin(), "a").await;
    let eve = plane.as_user("eve");
    for path in [
        "/api",
        "/api/v1/namespaces",
        "/apis/apps/v1/deployments",
        "/openapi/v3",
        "/api/v1/namespaces/default/pods/x/log",
    ] {
        let (there, nowhere) = (eve.at("root:a").get(path).await, eve.at("root:zz").get(path).await);
        assert_eq!((there.code, there.bytes), (403, nowhere.bytes), "{path}");
    }
    for path in ["system", "root:system", "zzzzzzzzzzzzz"] {
        assert_eq!(eve.at(path).get("/api/v1/pods").await.code, 403, "{path}");
    }
    assert_eq!(eve.at("*").get("/api/v1/pods").await.code, 403);
    assert_eq!(plane.admin().at("*").post("/api/v1/pods", json!({})).await.code, 405);
    assert_eq!(eve.at("root:a").get("/version").await.code, 200);
}

#[tokio::test]
async fn bindings_serve_the_named_resources() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let refused = ann.get(MAPS).await.expect(403);
    assert_eq!(
        refused.message(),
        r#"configmaps is forbidden: User "ann" cannot list resource "configmaps" in API group "" in the namespace "default""#
    );
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), binding("b", "ann", "view")).await.expect(201);
    ann.get(MAPS).await.expect(200);
    ann.get("/api/v1/configmaps").await.expect(403);
    ann.post(MAPS, config_map("a", json!({}))).await.expect(403);
    let secrets = ann.get("/api/v1/namespaces/default/secrets").await.expect(403);
    assert_eq!(secrets.json()["reason"], "Forbidden");
    admin.delete(&format!("{RBAC}/namespaces/default/rolebindings/b")).await.expect(200);
    ann.get(MAPS).await.expect(403);
}

#[tokio::test]
async fn grants_are_limited_to_held_rights() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    admin.post(&format!("{RBAC}/clusterrolebindings"), binding("b", "ann", "admin")).await.expect(201);
    let roles = format!("{RBAC}/namespaces/default/roles");
    let role = |name: &str, resource: &str| json!({"metadata": {"name": name}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]});
    ann.post(&roles, role("pods", "pods")).await.expect(201);
    let refused = ann.post(&roles, role("nodes", "nodes")).await.expect(403);
    assert!(
        refused.message().contains("is attempting to grant RBAC permissions not currently held"),
        "{}",
        refused.message()
    );
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    ann.post(&bindings, binding("eve", "eve", "view")).await.expect(201);
    ann.post(&bindings, binding("mallory", "mallory", "cluster-admin")).await.expect(403);
}

#[tokio::test]
async fn names_in_rules_are_for_reads_of_one_object_by_a_selector_not_for_deletions() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"],
        "verbs": ["get", "list", "watch", "delete", "deletecollection"]});
    admin.post(&format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "r"}, "rules": [rule]})).await.expect(201);
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), binding("b", "ann", "r")).await.expect(201);
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let one = format!("{MAPS}?fieldSelector=metadata.name%3Da");
    ann.get(&one).await.expect(200);
    ann.get(MAPS).await.expect(403);
    ann.delete(&one).await.expect(403);
    ann.delete(&format!("{MAPS}/b")).await.expect(403);
    ann.delete(&format!("{MAPS}/a")).await.expect(200);
}

#[tokio::test]
async fn aggregated_shared_roles_get_a_new_revision_and_an_event() {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let admin = Plane::new().await.admin();
    let rule = json!({"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]});
    let plain = json!({"metadata": {"name": "plain", "labels": {"a": "b"}}, "rules": [rule]});
    admin.post(ROLES, plain).await.expect(201);
    let before = admin.get(&format!("{ROLES}/view")).await.expect(200).json();
    let list = admin.get(ROLES).await.expect(200).json();
    let since = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = admin.watch(&format!("{ROLES}?watch=true&resourceVersion={since}"), &[]).await;
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    admin.post(ROLES, json!({"metadata": {"name": "more", "labels": labels}, "rules": [rule]})).await.expect(201);
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(watch.seen().await);
    }
    seen.sort();
    let seen: Vec<(&str, &str)> = seen.iter().map(|(word, name)| (&**word, &**name)).collect();
    assert_eq!(seen, [("ADDED", "more"), ("MODIFIED", "admin"), ("MODIFIED", "edit"), ("MODIFIED", "view")]);
    for name in ["view", "edit", "admin"] {
        let now = admin.get(&format!("{ROLES}/{name}")).await.expect(200).json();
        assert!(now["rules"].as_array().unwrap().contains(&rule), "{name}");
        assert_ne!(now["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "{name}");
    }
    let now = admin.get(&format!("{ROLES}/view")).await.expect(200).json();
    assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn a_shared_object_that_leaves_a_selector_is_sent_as_deleted() {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let admin = Plane::new().await.admin();
    let list = admin.get(ROLES).await.expect(200).json();
    let since = list["metadata"]["resourceVersion"].as_str().unwrap();
    let selected = "labelSelector=kubernetes.io/bootstrapping%3Drbac-defaults";
    let mut watch = admin.watch(&format!("{ROLES}?watch=true&{selected}&resourceVersion={since}"), &[]).await;
    let off = json!({"metadata": {"labels": {"kubernetes.io/bootstrapping": null}}});
    admin.merge(&format!("{ROLES}/view"), off).await.expect(200);
    let gone = watch.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("view")));
    assert_eq!(gone["object"]["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    admin.merge(&format!("{ROLES}/edit"), json!({"metadata": {"annotations": {"a": "b"}}})).await.expect(200);
    assert_eq!(watch.seen().await, ("MODIFIED".into(), "edit".into()));
}

#[tokio::test]
async fn a_refusal_repeats_no_markup() {
    let refused = Plane::new().await.as_user("ann").get("/a%3Cb%3E").await.expect(403);
    assert_eq!(refused.message(), r#"forbidden: User "ann" cannot get path "/a&lt;b&gt;""#);
    assert_eq!(refused.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn roles_of_more_than_one_holds_are_not_changed_nor_aggregated() {
    const AGGREGATE: &str = "must have cluster-admin privileges to use the aggregationRule";
    const GRANT: &str = "is attempting to grant RBAC permissions not currently held";
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let roles = format!("{RBAC}/clusterroles");
    let rule = |groups: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [groups], "resources": [resource], "verbs": verbs});
    let keeper = rule("rbac.authorization.k8s.io", "clusterroles", &["get", "create", "update", "patch"]);
    let collected = json!({"clusterRoleSelectors": [{"matchLabels": {"collected": "true"}}]});
    for (name, body) in [
        ("keeper", json!({"rules": [keeper]})),
        ("strong", json!({"rules": [rule("", "secrets", &["get"])]})),
        ("gathers", json!({"aggregationRule": collected})),
        ("weak", json!({"rules": []})),
    ] {
        let mut role = body;
        role["metadata"] = json!({"name": name});
        admin.post(&roles, role).await.expect(201);
    }
    admin.post(&format!("{RBAC}/clusterrolebindings"), binding("b", "ann", "keeper")).await.expect(201);
    let labels = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    for (case, name, change, says) in [
        ("labels, by which it becomes part of others", "strong", labels.clone(), GRANT),
        ("a rule that collects from others", "weak", json!({"aggregationRule": collected}), AGGREGATE),
        ("no such rule any more", "gathers", json!({"aggregationRule": null}), AGGREGATE),
        ("labels of a role that collects", "gathers", labels.clone(), AGGREGATE),
    ] {
        let refused = ann.merge(&format!("{roles}/{name}"), change).await;
        assert_eq!(refused.code, 403, "{case}: {}", refused.text());
        let said = refused.message();
        assert!(
            said.starts_with(&format!("clusterroles.rbac.authorization.k8s.io \"{name}\" is forbidden: ")),
            "{said}"
        );
        assert!(said.contains(says), "{case}: {said}");
    }
    let gathers = json!({"metadata": {"name": "new"}, "aggregationRule": collected});
    assert!(ann.post(&roles, gathers).await.expect(403).message().ends_with(AGGREGATE));
    ann.merge(&format!("{roles}/weak"), labels).await.expect(200);
    let kept = json!({"metadata": {"finalizers": ["example.com/kept"]}});
    ann.merge(&format!("{roles}/strong"), kept).await.expect(200);
}

#[tokio::test]
async fn bindings_of_more_than_one_holds_are_not_changed() {
    const GRANT: &str = "is attempting to grant RBAC permissions not currently held";
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let (roles, bindings) = (format!("{RBAC}/clusterroles"), format!("{RBAC}/clusterrolebindings"));
    let rule = |groups: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [groups], "resources": [resource], "verbs": verbs});
    let keeper = rule("rbac.authorization.k8s.io", "clusterrolebindings", &["get", "create", "update", "patch"]);
    let secrets = rule("", "secrets", &["get"]);
    let own = json!({"metadata": {"name": "keeper"}, "rules": [keeper, rule("", "configmaps", &["get"])]});
    admin.post(&roles, own).await.expect(201);
    let part = json!({
        "metadata": {"name": "part", "labels": {"collected": "true"}},
        "rules": [secrets],
    });
    admin.post(&roles, part).await.expect(201);
    let gathers = json!({
        "metadata": {"name": "gathers"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"collected": "true"}}]},
        "rules": [secrets],
    });
    admin.post(&roles, gathers).await.expect(201);
    admin
        .post(&roles, json!({"metadata": {"name": "weak"}, "rules": [rule("", "configmaps", &["get"])]}))
        .await
        .expect(201);
    for (name, role) in [("b", "keeper"), ("of-weak", "weak"), ("of-gathers", "gathers")] {
        admin.post(&bindings, binding(name, "ann", role)).await.expect(201);
    }
    admin.merge(&format!("{bindings}/of-gathers"), json!({"subjects": []})).await.expect(200);

    let labels = json!({"metadata": {"labels": {"collected": "true"}}});
    let more = json!({"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    for (case, change) in [("labels", labels.clone()), ("subjects", more.clone())] {
        let refused = ann.merge(&format!("{bindings}/of-gathers"), change).await.expect(403).message();
        let named = "clusterrolebindings.rbac.authorization.k8s.io \"of-gathers\" is forbidden: ";
        assert!(refused.starts_with(named) && refused.contains(GRANT), "{case}: {refused}");
        assert!(refused.ends_with(r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#), "{case}: {refused}");
    }
    ann.post(&bindings, binding("new", "ann", "gathers")).await.expect(403);
    ann.merge(&format!("{bindings}/of-weak"), labels).await.expect(200);
    ann.merge(&format!("{bindings}/of-weak"), more).await.expect(200);
    let kept = json!({"metadata": {"finalizers": ["example.com/kept"]}});
    ann.merge(&format!("{bindings}/of-gathers"), kept).await.expect(200);
}

#[tokio::test]
async fn shared_roles_are_there_until_they_are_written() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    let inside = admin.at("root:a");
    let roles = format!("{RBAC}/clusterroles");
    let list = inside.get(&roles).await.expect(200).json();
    let count = list["items"].as_array().map_or(0, Vec::len);
    assert!(count > 10);
    let page = inside.get(&format!("{roles}?limit=3")).await.expect(200).json();
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = inside.get(&format!("{roles}?limit=500&continue={token}")).await.expect(200).json();
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(count - 3));

    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = inside.watch(&format!("{roles}?watch=true&resourceVersion={version}"), &[]).await;
    let view = inside.get(&format!("{roles}/view")).await.expect(200).json();
    assert!(view["rules"].as_array().is_some_and(|rules| !rules.is_empty()), "aggregated");
    let changed =
        inside.merge(&format!("{roles}/view"), json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200).json();
    assert_eq!(changed["metadata"]["uid"], view["metadata"]["uid"]);
    assert_eq!(watch.seen().await, ("MODIFIED".into(), "view".into()));
    assert_eq!(inside.get(&roles).await.json()["items"].as_array().map(Vec::len), Some(count));
    assert!(
        admin.get(&format!("{roles}/view")).await.json()["metadata"]["labels"]["x"].is_null(),
        "others keep theirs"
    );
    inside.delete(&format!("{roles}/view")).await.expect(403);

    let reader = json!({
        "metadata": {"name": "things", "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["things"]}],
    });
    inside.post(&roles, reader).await.expect(201);
    let edit = inside.get(&format!("{roles}/edit")).await.expect(200).json();
    let has = |role: &Value| role["rules"].to_string().contains("example.com");
    assert!(has(&edit) && !has(&admin.get(&format!("{roles}/edit")).await.json()));
}

#[tokio::test]
async fn a_service_accounts_token_is_good_at_home_only() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    let inside = admin.at("root:a");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = inside.post(accounts, json!({"metadata": {"name": "bot"}})).await.expect(201).json();
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let made = inside.post(&format!("{accounts}/bot/token"), request).await.expect(201).json();
    let token = made["status"]["token"].as_str().unwrap().to_owned();
    inside.post(&format!("{accounts}/bot/token"), json!({"spec": {"expirationSeconds": 10}})).await.expect(422);

    let ask = |path: &str, token: &str| {
        let request =
            Request::get(path).header("authorization", format!("Bearer {token}")).body(Full::new(Bytes::new()));
        let api = plane.api.clone();
        let request = request.unwrap();
        async move { portolan_apiserver::http::answer_connection(api, None, request).await.status().as_u16() }
    };
    assert_eq!(ask("/clusters/root:a/api", &token).await, 200);
    assert_eq!(ask("/api", &token).await, 200, "without a logical cluster in the path it is the token's");
    assert_eq!(ask("/clusters/root/api", &token).await, 401);
    assert_eq!(ask("/clusters/root:zz/api", &token).await, 401);
    assert_eq!(ask("/clusters/root:a/api", &format!("{token}x")).await, 401);
    assert_eq!(ask("/clusters/root:a/api", "eyJhbGciOiJub25lIn0.e30.").await, 401);
    assert_eq!(ask("/clusters/root/api", "t-ann").await, 200);
    assert_eq!(ask("/clusters/root/api", "t-eve").await, 401);

    let review = |token: &str| json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let good = inside.post(reviews, review(&token)).await.expect(201).json();
    assert_eq!(good["status"]["user"]["username"], "system:serviceaccount:default:bot");
    assert_eq!(good["status"]["user"]["uid"], account["metadata"]["uid"]);
    for (case, client, token) in [("elsewhere", &admin, token.as_str()), ("a forged one", &inside, "x.y.z")] {
        let bad = client.post(reviews, review(token)).await.expect(201).json();
        assert_eq!(bad["status"], json!({"user": {}, "error": "invalid bearer token"}), "{case}");
    }
    inside.delete(&format!("{accounts}/bot")).await.expect(200);
    assert_eq!(ask("/clusters/root:a/api", &token).await, 401, "an account that is gone has no tokens");
}

#[tokio::test]
async fn a_token_that_dies_with_a_pod_tells_the_node_the_pod_is_on() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let (accounts, pods) = ("/api/v1/namespaces/default/serviceaccounts", "/api/v1/namespaces/default/pods");
    admin.post(accounts, json!({"metadata": {"name": "bot"}})).await.expect(201);
    let node = admin.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.expect(201).json();
    for (pod, on) in [("known", Some("n1")), ("unknown", Some("n2")), ("nowhere", None)] {
        let spec = json!({"serviceAccountName": "bot", "nodeName": on, "containers": [{"name": "c", "image": "i"}]});
        admin.post(pods, json!({"metadata": {"name": pod}, "spec": spec})).await.expect(201);
    }
    let told = |pod: &'static str| {
        let admin = admin.clone();
        async move {
            let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": pod});
            let request = json!({"spec": {"boundObjectRef": bound}});
            let made = admin.post(&format!("{accounts}/bot/token"), request).await.expect(201).json();
            let review = json!({"spec": {"token": made["status"]["token"]}});
            let review = admin.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.expect(201).json();
            assert_eq!(review["status"]["authenticated"], true, "{pod}: {review}");
            let extra = review["status"]["user"]["extra"].clone();
            let of = |key: &str| extra[format!("authentication.kubernetes.io/{key}")][0].clone();
            assert_eq!(of("pod-name"), pod);
            (of("node-name"), of("node-uid"))
        }
    };
    assert_eq!(told("known").await, (json!("n1"), node["metadata"]["uid"].clone()));
    assert_eq!(told("unknown").await, (json!("n2"), json!(null)), "a missing node is reported by its name");
    assert_eq!(told("nowhere").await, (json!(null), json!(null)));
}

#[tokio::test]
async fn a_pods_default_token_goes_on_for_a_year_and_not_after_the_pod() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let hands = Hands::now();
    let plane = Plane::with(|config| config.seams = hands.seams()).await;
    let admin = plane.admin();
    let (accounts, pods) = ("/api/v1/namespaces/default/serviceaccounts", "/api/v1/namespaces/default/pods");
    admin.post(accounts, json!({"metadata": {"name": "bot"}})).await.expect(201);
    let spec = json!({"serviceAccountName": "bot", "nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
    let kept = json!({"metadata": {"name": "p", "finalizers": ["example.dev/stay"]}, "spec": spec});
    admin.post(pods, kept).await.expect(201);
    let token = async |seconds: i64, audiences: Value| {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
        let spec = json!({"boundObjectRef": bound, "expirationSeconds": seconds, "audiences": audiences});
        let made = admin.post(&format!("{accounts}/bot/token"), json!({"spec": spec})).await.expect(201).json();
        made["status"]["token"].as_str().unwrap().to_owned()
    };
    let claims = |token: &str| -> Value {
        let part = token.split('.').nth(1).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    let life = |claims: &Value| claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    let by_default = token(3607, Value::Null).await;
    let said = claims(&by_default);
    assert_eq!(life(&said), 365 * 24 * 3600);
    assert_eq!(said["kubernetes.io"]["warnafter"].as_i64(), Some(said["iat"].as_i64().unwrap() + 3607));
    for (seconds, audiences) in [(3606, Value::Null), (3607, json!(["vault"]))] {
        let said = claims(&token(seconds, audiences).await);
        assert_eq!((life(&said), &said["kubernetes.io"]["warnafter"]), (seconds, &Value::Null));
    }

    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let is_good = async || {
        let review = json!({"spec": {"token": by_default}});
        admin.post(reviews, review).await.expect(201).json()["status"]["authenticated"] == true
    };
    hands.forward(2 * 3600);
    assert!(is_good().await);
    admin.send("DELETE", &format!("{pods}/p"), &[], r#"{"gracePeriodSeconds": 30}"#).await.expect(200);
    hands.forward(30 + 60);
    assert!(is_good().await, "a minute is for clocks that differ");
    hands.forward(1);
    assert!(!is_good().await, "the pod was to be gone, whatever keeps it");
}

#[tokio::test]
async fn a_token_request_is_validated_as_it_will_be_answered() {
    const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
    let plane = Plane::new().await;
    let admin = plane.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin.post(accounts, json!({"metadata": {"name": "bot"}})).await.expect(201);
    let tokens = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["serviceaccounts/token"], "operations": ["CREATE"]});
    let says = "object.metadata.name + ' ' + object.metadata.namespace + ' ' + string(has(object.metadata.uid)) + ' ' \
                + string(has(object.metadata.creationTimestamp)) + ' ' + string(size(object.spec.audiences))";
    let spec = json!({
        "matchConstraints": {"resourceRules": [tokens]},
        "validations": [{"expression": "object.spec.expirationSeconds != 601", "messageExpression": says}],
    });
    admin
        .post(&format!("{GROUP}/validatingadmissionpolicies"), json!({"metadata": {"name": "p"}, "spec": spec}))
        .await
        .expect(201);
    let bound = json!({"policyName": "p", "validationActions": ["Deny"]});
    admin
        .post(&format!("{GROUP}/validatingadmissionpolicybindings"), json!({"metadata": {"name": "b"}, "spec": bound}))
        .await
        .expect(201);
    let path = format!("{accounts}/bot/token");
    let refused = admin.post(&path, json!({"spec": {"expirationSeconds": 601}})).await.expect(422).message();
    assert!(refused.ends_with("denied request: bot default true true 1"), "{refused}");
    // Validation precedes every lookup.
    let refused = admin.post(&path, json!({"spec": {"expirationSeconds": 10}})).await.expect(422).message();
    assert!(refused.contains("may not specify a duration less than 10 minutes"), "{refused}");
    admin.post(&path, json!({"spec": {}})).await.expect(201);
}

#[tokio::test]
async fn impersonation_needs_permission_and_never_reaches_system_groups() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let me = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let post = |client: Client, headers: Vec<(&'static str, &'static str)>| async move {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        client.send("POST", me, &all, "{}").await
    };
    let seen =
        post(admin.clone(), vec![("impersonate-user", "bob"), ("impersonate-group", "dev")]).await.expect(201).json();
    assert_eq!(
        (&seen["status"]["userInfo"]["username"], &seen["status"]["userInfo"]["groups"][0]),
        (&json!("bob"), &json!("dev"))
    );
    post(ann.clone(), vec![("impersonate-user", "bob")]).await.expect(403);
    let role = json!({
        "metadata": {"name": "impersonator"},
        "rules": [{"verbs": ["impersonate"], "apiGroups": ["*"], "resources": ["*"]}],
    });
    admin.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    admin.post(&format!("{RBAC}/clusterrolebindings"), binding("i", "ann", "impersonator")).await.expect(201);
    post(ann.clone(), vec![("impersonate-user", "bob")]).await.expect(201);
    for (case, headers) in [
        ("a system group", vec![("impersonate-user", "bob"), ("impersonate-group", "system:masters")]),
        ("a system user", vec![("impersonate-user", "system:admin")]),
        (
            "a reserved attribute",
            vec![
                ("impersonate-user", "bob"),
                ("impersonate-extra-authentication.kubernetes.io%2fcluster-name", "root"),
            ],
        ),
    ] {
        assert_eq!(post(ann.clone(), headers).await.code, 403, "{case}");
    }
    post(admin, vec![("impersonate-group", "dev")]).await.expect(400);
}

#[tokio::test]
async fn narrow_modes_of_impersonation_are_for_one_sort_of_users_and_one_verb() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let me = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let mut rules = Vec::new();
    for (mode, resource, name) in
        [("user-info", "users", "bob"), ("serviceaccount", "serviceaccounts", "a"), ("arbitrary-node", "nodes", "n")]
    {
        let group = "authentication.k8s.io";
        let on = format!("impersonate-on:{mode}:create");
        rules.push(json!({"verbs": [on], "apiGroups": [group], "resources": ["selfsubjectreviews"]}));
        let verb = format!("impersonate:{mode}");
        rules.push(json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": [name]}));
    }
    let role = json!({"metadata": {"name": "narrow"}, "rules": rules});
    admin.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    admin.post(&format!("{RBAC}/clusterrolebindings"), binding("n", "ann", "narrow")).await.expect(201);
    let who = "system:authenticated";
    for (case, name, expected) in [
        ("a user", "bob", vec![who]),
        (
            "a service account",
            "system:serviceaccount:default:a",
            vec!["system:serviceaccounts", "system:serviceaccounts:default", who],
        ),
        ("a node", "system:node:n", vec!["system:nodes", who]),
    ] {
        let headers = [("content-type", "application/json"), ("impersonate-user", name)];
        let seen = ann.send("POST", me, &headers, "{}").await.expect(201).json();
        assert_eq!(seen["status"]["userInfo"]["username"], name, "{case}");
        assert_eq!(seen["status"]["userInfo"]["groups"], json!(expected), "{case}");
    }
    let authentication = "in API group \"authentication.k8s.io\" at the cluster scope";
    for (case, method, path, headers, expected) in [
        (
            "another user",
            "POST",
            me,
            vec![("impersonate-user", "eve")],
            format!("users.authentication.k8s.io \"eve\" is forbidden: User \"ann\" cannot impersonate:user-info resource \"users\" {authentication}"),
        ),
        (
            "another node",
            "POST",
            me,
            vec![("impersonate-user", "system:node:m")],
            format!("nodes.authentication.k8s.io \"m\" is forbidden: User \"ann\" cannot impersonate:arbitrary-node resource \"nodes\" {authentication}"),
        ),
        (
            "another verb",
            "GET",
            MAPS,
            vec![("impersonate-user", "bob")],
            "configmaps is forbidden: User \"ann\" cannot impersonate-on:user-info:list resource \"configmaps\" in API group \"\" in the namespace \"default\"".into(),
        ),
        (
            "a group of masters",
            "POST",
            me,
            vec![("impersonate-user", "bob"), ("impersonate-group", "system:masters")],
            format!("groups.authentication.k8s.io \"system:masters\" is forbidden: User \"ann\" cannot impersonate:user-info resource \"groups\" {authentication}: impersonating the system:masters group is not allowed"),
        ),
    ] {
        let all: Vec<_> = [("content-type", "application/json")].into_iter().chain(headers).collect();
        assert_eq!(ann.send(method, path, &all, "{}").await.expect(403).message(), expected, "{case}");
    }
}

#[tokio::test]
async fn reviews_answer_questions() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let group = "/apis/authorization.k8s.io/v1";
    let asks = |verb: &str| json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"}}});
    let own = ann.post(&format!("{group}/selfsubjectaccessreviews"), asks("get")).await.expect(201).json();
    assert_eq!(own["status"]["allowed"], false);
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), binding("b", "ann", "view")).await.expect(201);
    let own = ann.post(&format!("{group}/selfsubjectaccessreviews"), asks("get")).await.expect(201).json();
    assert_eq!(own["status"]["allowed"], true);
    let mut about = asks("list");
    about["spec"]["user"] = "ann".into();
    let other = admin.post(&format!("{group}/subjectaccessreviews"), about).await.expect(201).json();
    let why = r#"RBAC: allowed by RoleBinding "b/default" of ClusterRole "view" to User "ann""#;
    assert_eq!(other["status"], json!({"allowed": true, "reason": why}));
    for role in ["gone", "gone too"] {
        let bound = binding(role, "bob", role);
        admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), bound).await.expect(201);
    }
    let mut about = asks("list");
    about["spec"]["user"] = "bob".into();
    let other = admin.post(&format!("{group}/subjectaccessreviews"), about).await.expect(201).json();
    let missing =
        ["gone", "gone too"].map(|role| format!("clusterrole.rbac.authorization.k8s.io \"{role}\" not found"));
    let why = format!("RBAC: [{}]", missing.join(", "));
    assert_eq!(other["status"], json!({"allowed": false, "reason": why}));
    let rules = ann
        .post(&format!("{group}/selfsubjectrulesreviews"), json!({"spec": {"namespace": "default"}}))
        .await
        .expect(201)
        .json();
    assert!(rules["status"]["resourceRules"].to_string().contains("pods"), "{rules}");
    assert_eq!(rules["status"]["incomplete"], false);
}

#[tokio::test]
async fn the_creator_of_a_workspace_may_use_it() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let role = json!({
        "metadata": {"name": "maker"},
        "rules": [{"verbs": ["create"], "apiGroups": ["tenancy.kcp.io"], "resources": ["workspaces"]}],
    });
    admin.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    admin.post(&format!("{RBAC}/clusterrolebindings"), binding("m", "ann", "maker")).await.expect(201);
    workspace(&ann, "hers").await;
    ann.at("root:hers").post(MAPS, config_map("a", json!({}))).await.expect(201);
    plane.as_user("eve").at("root:hers").get(MAPS).await.expect(403);
}

#[tokio::test]
async fn forged_identity_headers_authenticate_as_anonymous() {
    let plane = Plane::new().await;
    for name in ["x-remote-user", "X_Remote_User", "x-remote-group"] {
        let request =
            Request::get("/clusters/root/api").header(name, "system:masters").body(Full::new(Bytes::new())).unwrap();
        let answer = portolan_apiserver::http::answer_connection(plane.api.clone(), None, request).await;
        assert_eq!(answer.status().as_u16(), 403, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_the_right_to_it_does() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    admin.post(&bindings, binding("b", "ann", "view")).await.expect(201);
    let mut watch = ann.watch(&format!("{MAPS}?watch=true&resourceVersion=1"), &[]).await;
    admin.delete(&format!("{bindings}/b")).await.expect(200);
    let started = tokio::time::Instant::now();
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(403)));
    assert!(started.elapsed() <= std::time::Duration::from_secs(11));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_token_is_good_as_long_as_its_secret_holds_it() {
    use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
    let plane = Plane::new().await;
    let admin = plane.admin();
    let made = workspace(&admin, "a").await;
    let inside = admin.at("root:a");
    let (accounts, secrets) = ("/api/v1/namespaces/default/serviceaccounts", "/api/v1/namespaces/default/secrets");
    let account = inside.post(accounts, json!({"metadata": {"name": "bot"}})).await.expect(201).json();
    let cluster: portolan_types::LogicalClusterId = made["spec"]["cluster"].as_str().unwrap().parse().unwrap();
    let sign = |uid: &Value, secret: &str| {
        let text = |text: &str| text.to_owned();
        let uid = text(uid.as_str().unwrap());
        let claims =
            portolan_apiserver::authn::SecretClaims::new(cluster, text("default"), text("bot"), uid, text(secret));
        plane.api.tokens().issue_for_secret(&claims).unwrap()
    };
    let uid = &account["metadata"]["uid"];
    let token = sign(uid, "held");
    let secret = |token: &str| {
        json!({"metadata": {"name": "held", "annotations": {"kubernetes.io/service-account.name": "bot"}},
            "type": "kubernetes.io/service-account-token", "data": {"token": BASE64.encode(token)}})
    };
    let ask = async |path: &str, token: &str| {
        let request =
            Request::get(path).header("authorization", format!("Bearer {token}")).body(Full::new(Bytes::new()));
        let answer = portolan_apiserver::http::answer_connection(plane.api.clone(), None, request.unwrap()).await;
        answer.status().as_u16()
    };
    assert_eq!(ask("/clusters/root:a/api", &token).await, 401, "no Secret holds it");
    inside.post(secrets, secret(&token)).await.expect(201);
    assert_eq!(ask("/clusters/root:a/api", &token).await, 200);
    assert_eq!(ask("/clusters/root/api", &token).await, 401, "it is good at home only");
    assert_eq!(ask("/clusters/root:a/api", &sign(uid, "other")).await, 401, "that Secret is not there");
    assert_eq!(ask("/clusters/root:a/api", &sign(&json!("another"), "held")).await, 401, "it is held by no such token");

    let review = async |spec: Value| {
        let spec = json!({"spec": spec});
        inside.post("/apis/authentication.k8s.io/v1/tokenreviews", spec).await.expect(201).json()["status"].clone()
    };
    let good = review(json!({"token": token})).await;
    assert_eq!(good["user"]["username"], "system:serviceaccount:default:bot");
    assert_eq!(review(json!({"token": token, "audiences": ["elsewhere"]})).await["authenticated"], Value::Null);

    let warned = async |token: &str| {
        let request = Request::get("/clusters/root:a/api").header("authorization", format!("Bearer {token}"));
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let answer = portolan_apiserver::http::answer_connection(plane.api.clone(), None, request).await;
        answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned())
    };
    assert_eq!(warned(&token).await, None);
    let account = format!("{accounts}/bot");
    inside.merge(&account, json!({"secrets": [{"name": "held"}]})).await.expect(200);
    assert!(warned(&token).await.unwrap().contains("instead of auto-generated secret-based tokens."));

    let held = format!("{secrets}/held");
    let label = |since: Value| json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": since}}});
    inside.merge(&held, label(json!("2026-01-01"))).await.expect(200);
    assert_eq!(ask("/clusters/root:a/api", &token).await, 401, "it was put out of use");
    inside.merge(&held, label(Value::Null)).await.expect(200);
    assert_eq!(ask("/clusters/root:a/api", &token).await, 200);
    inside.merge(&held, json!({"data": {"token": BASE64.encode("another")}})).await.expect(200);
    assert_eq!(ask("/clusters/root:a/api", &token).await, 401, "its Secret holds another one");
    inside.merge(&held, json!({"data": {"token": BASE64.encode(&token)}})).await.expect(200);
    inside.delete(&format!("{accounts}/bot")).await.expect(200);
    assert_eq!(ask("/clusters/root:a/api", &token).await, 401, "an account that is gone has no tokens");
}

#[tokio::test]
async fn a_token_is_bound_to_a_pod_of_its_own_account_only() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for name in ["bot", "other"] {
        admin.post(accounts, json!({"metadata": {"name": name}})).await.expect(201);
    }
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "bot", "containers": [{"name": "c", "image": "i"}]},
    });
    admin.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let request = json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}});
    admin.post(&format!("{accounts}/bot/token"), request.clone()).await.expect(201);
    admin.post(&format!("{accounts}/other/token"), request).await.expect(400);
}

#[tokio::test]
async fn a_service_account_that_makes_a_workspace_opens_it_to_no_namesake() {
    let plane = Plane::new().await;
    let account = plane.api.service_as(user("system:serviceaccount:default:maker", &[]));
    let account = Client { service: account, base: "/clusters/root".into() };
    let role = json!({
        "metadata": {"name": "maker"},
        "rules": [{"verbs": ["create"], "apiGroups": ["tenancy.kcp.io"], "resources": ["workspaces"]}],
    });
    plane.admin().post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let bound = binding("maker", "system:serviceaccount:default:maker", "maker");
    plane.admin().post(&format!("{RBAC}/clusterrolebindings"), bound).await.expect(201);
    workspace(&account, "made").await;
    let bindings = plane.admin().at("root:made").get(&format!("{RBAC}/clusterrolebindings/workspace-admin")).await;
    bindings.expect(404);
}

#[tokio::test]
async fn a_workspace_cannot_be_torn_from_its_logical_cluster() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    let path = format!("{WORKSPACES}/a");
    let kept = admin.merge(&path, json!({"metadata": {"finalizers": null}})).await.expect(200).json();
    assert_eq!(kept["metadata"]["finalizers"], json!(["core.kcp.io/logicalcluster"]));
    admin.delete(&path).await.expect(200);
    admin.merge(&path, json!({"metadata": {"finalizers": null}})).await.expect(403);
    admin.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    let cluster = plane.api.directory().by_path(&"root:a".parse().unwrap()).unwrap();
    plane.api.directory().remove(cluster.id).await.unwrap();
    admin.merge(&path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn events_without_pause_do_not_put_off_the_look_at_permissions() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    admin.post(&bindings, binding("b", "ann", "view")).await.expect(201);
    let mut watch = ann.watch(&format!("{MAPS}?watch=true&resourceVersion=1"), &[]).await;
    admin.post(MAPS, config_map("seen", json!({}))).await.expect(201);
    assert_eq!(watch.seen().await, ("ADDED".into(), "seen".into()));
    admin.delete(&format!("{bindings}/b")).await.expect(200);
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    admin.post(MAPS, config_map("secret", json!({}))).await.expect(201);
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(403)));
}

#[tokio::test]
async fn an_own_copy_of_a_shared_binding_makes_members_of_whom_it_adds() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    let inside = admin.at("root:a");
    let shared = format!("{RBAC}/clusterrolebindings/system:discovery");
    inside.merge(&shared, json!({"metadata": {"labels": {"touched": "yes"}}})).await.expect(200);
    let (ann, eve) = (plane.as_user("ann").at("root:a"), plane.as_user("eve").at("root:a"));
    eve.get("/api").await.expect(403);
    let mut binding = inside.get(&shared).await.expect(200).json();
    let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"});
    binding["subjects"].as_array_mut().unwrap().push(subject);
    inside.put(&shared, binding).await.expect(200);
    ann.get("/api").await.expect(200);
    eve.get("/api").await.expect(403);
}

#[tokio::test]
async fn a_user_impersonated_inside_a_workspace_is_no_stranger() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    let inside = admin.at("root:a");
    let group = "/apis/authorization.k8s.io/v1";
    let asks =
        json!({"spec": {"resourceAttributes": {"verb": "create", "resource": "deployments", "namespace": "default"}}});
    let rules = json!({"spec": {"namespace": "default"}});
    let me = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let stranger = [("content-type", "application/json"), ("impersonate-user", "stranger")];
    let post = |path: String, body: Value| {
        let inside = inside.clone();
        async move { inside.send("POST", &path, &stranger, body.to_string()).await }
    };
    let answer = post(format!("{group}/selfsubjectaccessreviews"), asks.clone()).await.expect(201).json();
    assert_eq!(answer["status"], json!({"allowed": false}));
    let answer = post(format!("{group}/selfsubjectrulesreviews"), rules).await.expect(201).json();
    let held = answer["status"].to_string();
    assert!(held.contains("selfsubjectrulesreviews") && held.contains("/openapi"), "what everybody may: {held}");
    let answer = post(me.into(), json!({})).await.expect(201).json();
    assert_eq!(answer["status"]["userInfo"]["username"], "stranger");
    inside.send("GET", "/api", &stranger, "").await.expect(200);
    inside.send("GET", "/api/v1/namespaces", &stranger, "").await.expect(403);
    let as_anonymous = [("content-type", "application/json"), ("impersonate-user", "system:anonymous")];
    for path in [format!("{group}/selfsubjectaccessreviews"), format!("{group}/selfsubjectrulesreviews"), me.into()] {
        inside.send("POST", &path, &as_anonymous, "{}").await.expect(403);
    }
    let eve = plane.as_user("eve").at("root:a");
    eve.post(&format!("{group}/selfsubjectaccessreviews"), asks).await.expect(403);
    eve.send("GET", "/api", &stranger, "").await.expect(403);
}

#[tokio::test]
async fn a_workspace_and_its_entry_are_marked_in_one_transaction() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let made = workspace(&admin, "a").await;
    let marked = admin.delete(&format!("{WORKSPACES}/a")).await.expect(200).json();
    let version: u64 = marked["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let entry = portolan_types::ObjectKey::cluster_scoped(
        portolan_types::LogicalClusterId::SYSTEM,
        portolan_types::GroupResource::new("core.kcp.io", "logicalclusters"),
        made["spec"]["cluster"].as_str().unwrap().parse().unwrap(),
    );
    let entry = plane.store.get(&entry).await.unwrap().unwrap();
    assert_eq!(entry.revision.get(), version + 1);
    assert_eq!(entry.record.to_value(entry.revision).unwrap()["status"]["phase"], "Deleting");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_watches_end_lists_again_and_goes_on() {
    let memory = portolan_store::memory();
    let faulty = crate::common::Faulty::over(memory.clone());
    let config = || portolan_apiserver::ApiServerConfig::in_memory(portolan_types::Seams::system());
    let other = Plane::on(memory, config()).await.admin();
    let plane = Plane::on(faulty.clone(), config()).await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    workspace(&other, "old").await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    admin.at("root:old").get("/api/v1/namespaces").await.expect(200);
    ann.get(MAPS).await.expect(403);

    faulty.cut_watches(20);
    tokio::task::yield_now().await;
    workspace(&other, "new").await;
    let gone = plane.api.directory().by_path(&"root:old".parse().unwrap()).unwrap().id;
    let entry = portolan_types::ObjectKey::cluster_scoped(
        portolan_types::LogicalClusterId::SYSTEM,
        portolan_types::GroupResource::new("core.kcp.io", "logicalclusters"),
        gone.to_string().parse().unwrap(),
    );
    let removal = portolan_store::Transaction::one(entry, portolan_store::Expect::Present, None);
    plane.store.commit(removal).await.unwrap();
    other.post(&format!("{RBAC}/namespaces/default/rolebindings"), binding("b", "ann", "view")).await.expect(201);
    ann.get(MAPS).await.expect(200);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    admin.at("root:new").get("/api/v1/namespaces").await.expect(200);
    admin.at("root:old").get("/api/v1/namespaces").await.expect(404);
    workspace(&other, "newer").await;
    other.delete(&format!("{RBAC}/namespaces/default/rolebindings/b")).await.expect(200);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    admin.at("root:newer").get("/api/v1/namespaces").await.expect(200);
    ann.get(MAPS).await.expect(403);
}
