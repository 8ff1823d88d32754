//! Entry of workspaces: the review of all that a user may enter, required groups, the verb `access`, inactive
//! workspaces, scopes and warrants, and the exchange of tokens for certificates.

use std::collections::BTreeMap;

use portolan_apiserver::User;
use serde_json::{Value, json};

use crate::common::{Client, MAPS, Plane, config_map, user};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
const REVIEWS: &str = "/apis/portolan.dev/v1alpha1/selfclusteraccessreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const EXCHANGES: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
const AUTHENTICATED: &str = "system:authenticated";

/// Returns a client of an authenticated user, in root.
fn as_member(plane: &Plane, name: &str, groups: &[&str]) -> Client {
    let groups: Vec<&str> = groups.iter().copied().chain([AUTHENTICATED]).collect();
    as_identity(plane, user(name, &groups))
}

fn as_identity(plane: &Plane, user: User) -> Client {
    Client { service: plane.api.service_as(user), base: "/clusters/root".into() }
}

fn binding(name: &str, kind: &str, subject: &str, role: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "metadata": {"name": name},
        "subjects": [{"kind": kind, "apiGroup": group, "name": subject}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": role},
    })
}

async fn workspace(admin: &Client, name: &str, annotations: Value) {
    admin.post(WORKSPACES, json!({"metadata": {"name": name, "annotations": annotations}})).await.expect(201);
}

async fn bind(admin: &Client, at: &str, binding: Value) {
    admin.at(at).post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
}

/// Returns the paths and verbs of all pages of a review.
async fn reviewed(client: &Client, spec: Value) -> BTreeMap<String, Vec<String>> {
    let (mut found, mut token) = (BTreeMap::new(), None::<String>);
    loop {
        let mut spec = spec.clone();
        if let Some(token) = &token {
            spec["continue"] = token.as_str().into();
        }
        let answer = client.post(REVIEWS, json!({"spec": spec})).await.expect(201).json();
        for cluster in answer["status"]["clusters"].as_array().unwrap() {
            let verbs = cluster["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned());
            let path = cluster["path"].as_str().unwrap().to_owned();
            assert_eq!(found.insert(path, verbs.collect()), None, "each once");
        }
        match answer["status"]["continue"].as_str() {
            Some(next) => token = Some(next.to_owned()),
            None => return found,
        }
    }
}

/// Asks one workspace for some verbs on config maps, or for entering.
async fn accessible_paths(client: &Client, path: &str, verbs: Option<&[&str]>) -> Vec<String> {
    let ask = async |attributes: Value| {
        let answer = client.at(path).post(ACCESS, json!({"spec": attributes})).await;
        answer.code == 201 && answer.json()["status"]["allowed"] == true
    };
    if !ask(json!({"nonResourceAttributes": {"verb": "access", "path": "/"}})).await {
        return Vec::new();
    }
    let Some(verbs) = verbs else { return vec!["access".into()] };
    let mut held = Vec::new();
    for verb in verbs {
        if ask(json!({"resourceAttributes": {"verb": verb, "resource": "configmaps"}})).await {
            held.push((*verb).to_owned());
        }
    }
    held
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[tokio::test]
async fn a_review_of_all_workspaces_equals_asking_each() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let mut numbers = Numbers(7);
    let users = [("ann", vec!["dev"]), ("bob", vec!["dev", "ops"]), ("cid", vec![]), ("dan", vec!["ops"])];
    let mut paths = vec!["root".to_owned()];
    for number in 0..24 {
        let above = paths[numbers.below(paths.len() as u64) as usize].clone();
        let annotations =
            if number % 6 == 5 { json!({"authorization.kcp.io/required-groups": "ops"}) } else { json!({}) };
        workspace(&admin.at(&above), &format!("w{number}"), annotations).await;
        paths.push(format!("{above}:w{number}"));
    }
    for round in 0..60 {
        let path = &paths[1 + numbers.below(24) as usize];
        let (kind, subject) = [("User", "ann"), ("User", "bob"), ("Group", "dev"), ("Group", "ops"), ("User", "cid")]
            [numbers.below(5) as usize];
        let role = ["view", "edit", "admin", "portolan:drainer"][numbers.below(4) as usize];
        match numbers.below(4) {
            0 => {
                let all = admin.at(path).get(&format!("{RBAC}/clusterrolebindings")).await.json();
                let mut own =
                    all["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap());
                if let Some(own) = own.rfind(|name| name.starts_with("b-")) {
                    admin.at(path).delete(&format!("{RBAC}/clusterrolebindings/{own}")).await.expect(200);
                }
            }
            1 => {
                let made = binding(&format!("b-{round}"), kind, subject, role);
                admin.at(path).post(&format!("{RBAC}/namespaces/default/rolebindings"), made).await.expect(201);
            }
            _ => bind(&admin, path, binding(&format!("b-{round}"), kind, subject, role)).await,
        }
        // The index is exact at once, before its next refresh.
        let (name, groups) = &users[round % users.len()];
        let client = as_member(&plane, name, groups);
        let verbs = ["get", "create", "delete"];
        let all = reviewed(&client, json!({"limit": 1 + numbers.below(9)})).await;
        let of_maps = json!({"resourceAttributes": {"resource": "configmaps", "verbs": verbs}, "limit": 3});
        let of_maps = reviewed(&client, of_maps).await;
        for path in &paths {
            let case = format!("{name} in {path} after round {round}");
            assert_eq!(
                all.get(path).cloned().unwrap_or_default(),
                accessible_paths(&client, path, None).await,
                "{case}"
            );
            let expected = accessible_paths(&client, path, Some(&verbs)).await;
            assert_eq!(of_maps.get(path).cloned().unwrap_or_default(), expected, "{case}");
        }
    }
}

#[tokio::test]
async fn pages_of_a_review() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    for number in 0..5 {
        workspace(&admin, &format!("w{number}"), json!({})).await;
    }
    bind(&admin, "root:w3", binding("ann", "User", "ann", "view")).await;
    let ann = as_member(&plane, "ann", &[]);
    let first = ann.post(REVIEWS, json!({"spec": {"limit": 1}})).await.expect(201).json();
    assert_eq!(first["status"]["clusters"][0]["path"], "root");
    let token = first["status"]["continue"].as_str().unwrap();
    let rest =
        ann.at("root:w3").post(REVIEWS, json!({"spec": {"limit": 5, "continue": token}})).await.expect(201).json();
    let cluster = plane.api.directory().by_path(&"root:w3".parse().unwrap()).unwrap();
    let expected = json!([{"id": cluster.id.to_string(), "path": "root:w3", "verbs": ["access"]}]);
    assert_eq!((&rest["status"]["clusters"], &rest["status"]["continue"]), (&expected, &Value::Null), "the last page");
    let bob = as_member(&plane, "bob", &[]);
    let refused = bob.post(REVIEWS, json!({"spec": {"continue": token}})).await.expect(400);
    assert_eq!(refused.message(), "invalid continue token", "a token is of its user");
    for (spec, field) in [
        (json!({"limit": 0}), "spec.limit"),
        (json!({"limit": 1001}), "spec.limit"),
        (json!({"resourceAttributes": {"verbs": ["get"]}}), "spec.resourceAttributes.resource"),
        (
            json!({"resourceAttributes": {"resource": "pods", "verbs": vec!["get"; 17]}}),
            "spec.resourceAttributes.verbs",
        ),
    ] {
        let refused = ann.post(REVIEWS, json!({"spec": spec})).await.expect(422).json();
        assert_eq!(refused["details"]["causes"][0]["field"], field);
    }
    assert_eq!(reviewed(&admin, json!({"limit": 2})).await.len(), 6, "an administrator may enter all");
    admin.get(REVIEWS).await.expect(405);
    bind(&admin, "root:w3", binding("boss", "User", "boss", "cluster-admin")).await;
    let boss = as_member(&plane, "boss", &[]).at("root:w3");
    let as_ann = [("impersonate-user", "ann"), ("content-type", "application/json")];
    let found = boss.send("POST", REVIEWS, &as_ann, "{}").await.expect(201).json();
    let found: Vec<&Value> = found["status"]["clusters"].as_array().unwrap().iter().map(|own| &own["path"]).collect();
    assert_eq!(found, [&json!("root:w3")], "who acts as another does so in one workspace");
}

#[tokio::test]
async fn an_inactive_workspace_answers_nothing_but_what_it_is() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a", json!({})).await;
    bind(&admin, "root:a", binding("ann", "User", "ann", "edit")).await;
    let (inside, ann) = (admin.at("root:a"), as_member(&plane, "ann", &[]).at("root:a"));
    ann.get(MAPS).await.expect(200);
    let set = |value: Value| json!({"metadata": {"annotations": {"core.kcp.io/inactive": value}}});
    admin.merge(&format!("{WORKSPACES}/a"), set(json!("true"))).await.expect(200);
    let id = plane.api.directory().by_path(&"root:a".parse().unwrap()).unwrap().id;
    let expected = format!("logicalclusters.core.kcp.io \"{id}\" is forbidden: logical cluster is marked inactive");
    for client in [&inside, &ann, &inside.at(&id.to_string())] {
        assert_eq!(client.get(MAPS).await.expect(403).message(), expected);
    }
    inside.post(MAPS, config_map("x", json!({}))).await.expect(403);
    inside.get("/api").await.expect(403);
    inside.get("/openapi/v3").await.expect(200);
    let shown = inside.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await.expect(200).json();
    assert_eq!(shown["metadata"]["annotations"]["core.kcp.io/inactive"], "true");
    let stranger = as_member(&plane, "eve", &[]).at("root:a").get(MAPS).await.expect(403);
    assert!(!stranger.message().contains("inactive"), "a stranger does not learn it: {}", stranger.message());
    assert!(!reviewed(&ann.at("root"), json!({})).await.contains_key("root:a"));
    admin.merge(&format!("{WORKSPACES}/a"), set(Value::Null)).await.expect(200);
    ann.get(MAPS).await.expect(200);
    inside.post(MAPS, config_map("x", json!({}))).await.expect(201);
}

#[tokio::test]
async fn required_groups_are_inherited_and_set_by_administrators() {
    const KEY: &str = "authorization.kcp.io/required-groups";
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a", json!({KEY: "corp;dev,ops"})).await;
    bind(&admin, "root:a", binding("all", "Group", AUTHENTICATED, "cluster-admin")).await;
    let maps_of = async |groups: &[&str]| as_member(&plane, "ann", groups).at("root:a").get(MAPS).await.code;
    assert_eq!(maps_of(&["ops"]).await, 200);
    assert_eq!(maps_of(&["corp", "dev"]).await, 200);
    assert_eq!(maps_of(&["corp"]).await, 403);
    let refused = as_member(&plane, "ann", &[]).at("root:a").get(MAPS).await.expect(403);
    assert!(
        refused.message().ends_with("user is not a member of required groups: corp;dev,ops"),
        "{}",
        refused.message()
    );

    let ops = as_member(&plane, "ann", &["ops"]).at("root:a");
    let below = ops.post(WORKSPACES, json!({"metadata": {"name": "b"}})).await.expect(201).json();
    assert_eq!(below["metadata"]["annotations"][KEY], "corp;dev,ops", "a workspace below inherits them");
    let known = reviewed(&ops.at("root"), json!({})).await;
    assert!(known.contains_key("root:a:b"), "its creator finds it at once: {known:?}");
    as_member(&plane, "ann", &[]).at("root:a:b").get(MAPS).await.expect(403);
    as_member(&plane, "ann", &["ops"]).at("root:a:b").get(MAPS).await.expect(200);

    let limited = json!({"metadata": {"name": "limits"}, "rules": [
        {"apiGroups": ["tenancy.kcp.io"], "resources": ["workspaces"], "verbs": ["get", "patch"]}]});
    admin.post(&format!("{RBAC}/clusterroles"), limited).await.expect(201);
    bind(&admin, "root", binding("limits", "User", "ann", "limits")).await;
    let change = json!({"metadata": {"annotations": {KEY: "dev"}}});
    as_member(&plane, "ann", &[]).merge(&format!("{WORKSPACES}/a"), change.clone()).await.expect(403);
    admin.merge(&format!("{WORKSPACES}/a"), change).await.expect(200);
    assert_eq!((maps_of(&["dev"]).await, maps_of(&["ops"]).await), (200, 403), "changes apply at once");
    let wrong = json!({"metadata": {"annotations": {KEY: "a,,b"}}});
    admin.merge(&format!("{WORKSPACES}/a"), wrong).await.expect(422);
}

#[tokio::test]
async fn a_workspace_can_demand_the_verb_access() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    workspace(&admin, "a", json!({})).await;
    bind(&admin, "root:a", binding("ann", "User", "ann", "edit")).await;
    bind(&admin, "root:a", binding("bob", "User", "bob", "view")).await;
    let [ann, bob] = ["ann", "bob"].map(|name| as_member(&plane, name, &[]).at("root:a"));
    ann.get(MAPS).await.expect(200);
    let mut closed = binding("portolan:workspace-access", "User", "bob", "system:kcp:workspace:access");
    closed["metadata"]["name"] = "portolan:workspace-access".into();
    admin.at("root:a").put(&format!("{RBAC}/clusterrolebindings/portolan:workspace-access"), closed).await.expect(200);
    bob.get(MAPS).await.expect(200);
    let refused = ann.get(MAPS).await.expect(403);
    assert!(refused.message().ends_with("workspace access not permitted"), "{}", refused.message());
    assert!(!reviewed(&ann.at("root"), json!({})).await.contains_key("root:a"));
    assert!(reviewed(&bob.at("root"), json!({})).await.contains_key("root:a"));
    bind(&admin, "root:a", binding("enters", "User", "ann", "system:kcp:workspace:access")).await;
    ann.get(MAPS).await.expect(200);
    let account = json!({"metadata": {"name": "robot"}});
    admin.at("root:a").post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let mut robot = binding("robot", "User", "system:serviceaccount:default:robot", "view");
    robot["subjects"] = json!([{"kind": "ServiceAccount", "namespace": "default", "name": "robot"}]);
    bind(&admin, "root:a", robot).await;
    let asked = json!({"spec": {"user": "system:serviceaccount:default:robot", "groups": [AUTHENTICATED],
        "resourceAttributes": {"verb": "get", "resource": "configmaps"}}});
    let answer = admin.at("root:a").post("/apis/authorization.k8s.io/v1/subjectaccessreviews", asked).await;
    assert_eq!(answer.expect(201).json()["status"]["allowed"], true, "a service account may enter its own workspace");
}

#[tokio::test]
async fn scopes_limit_a_user_and_warrants_add_rights() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    for name in ["a", "b"] {
        workspace(&admin, name, json!({})).await;
        bind(&admin, &format!("root:{name}"), binding("ann", "User", "ann", "view")).await;
    }
    bind(&admin, "root:a", binding("bob", "User", "bob", "edit")).await;
    let id = plane.api.directory().by_path(&"root:a".parse().unwrap()).unwrap().id;
    let with = |key: &str, value: String| {
        let extra = [(key.to_owned(), vec![value])].into_iter().collect();
        as_identity(&plane, User { extra, ..user("ann", &[AUTHENTICATED]) })
    };
    let scoped = with("authentication.kcp.io/scopes", format!("cluster:{id}"));
    scoped.at("root:a").get(MAPS).await.expect(200);
    scoped.at("root:b").get(MAPS).await.expect(403);
    let entered: Vec<String> = reviewed(&scoped, json!({})).await.into_keys().collect();
    assert_eq!(entered, ["root", "root:a"], "outside of its scopes it is a user without a name");
    let warranted = with("authorization.kcp.io/warrant", json!({"user": "bob"}).to_string());
    as_member(&plane, "ann", &[]).at("root:a").post(MAPS, config_map("x", json!({}))).await.expect(403);
    let made = warranted.at("root:a").post(MAPS, config_map("x", json!({}))).await.expect(201).json();
    assert_eq!(made["metadata"]["name"], "x");
    warranted.at("root:b").post(MAPS, config_map("x", json!({}))).await.expect(403);
}

#[tokio::test]
async fn a_token_is_exchanged_for_a_certificate_of_its_user() {
    let boss =
        portolan_apiserver::authn::StaticToken { token: "t-boss".into(), user: user("boss", &["system:masters"]) };
    let plane = Plane::with(|config| config.static_tokens.push(boss)).await;
    let admin = plane.admin();
    workspace(&admin, "a", json!({})).await;
    let account = json!({"metadata": {"name": "robot"}});
    admin.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let token = admin.post("/api/v1/namespaces/default/serviceaccounts/robot/token", json!({"spec": {}})).await;
    let token = token.expect(201).json()["status"]["token"].as_str().unwrap().to_owned();
    let anonymous = as_identity(&plane, user("system:anonymous", &["system:unauthenticated"]));
    let request = |token: &str| {
        json!({"spec": {"token": token, "authenticator": {
            "apiGroup": "authentication.concierge.pinniped.dev", "kind": "JWTAuthenticator", "name": "any"}}})
    };
    for place in ["root", "root:a", "root:none"] {
        let client = anonymous.at(place);
        let issued = client.post(EXCHANGES, request("t-ann")).await.expect(201).json();
        assert_eq!(issued["spec"]["token"], Value::Null, "the answer has no secret of the question");
        let credential = &issued["status"]["credential"];
        let pem = credential["clientCertificateData"].as_str().unwrap();
        let der = portolan_apiserver::pki::certificates(pem).unwrap();
        let found = portolan_apiserver::authn::user_of_certificate(&der[0]).unwrap();
        assert_eq!((found.name.as_str(), found.is_in("dev")), ("ann", true));
        assert!(credential["clientKeyData"].as_str().unwrap().contains("PRIVATE KEY"));
        assert!(credential["expirationTimestamp"].as_str().unwrap().ends_with('Z'));
        for (case, refused) in [
            ("an unknown token", "nope"),
            ("no token", ""),
            ("an administrator's", "t-boss"),
            ("a service account's, which counts in one workspace", &*token),
        ] {
            let answer = client.post(EXCHANGES, request(refused)).await;
            assert_eq!(answer.code, 403, "{case} at {place}: {}", answer.text());
        }
    }
    anonymous.at("root:a").get(MAPS).await.expect(403);
}
