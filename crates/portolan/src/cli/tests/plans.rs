//! Plans through the API, with simulated physical clusters: what a plan says, what a dry run warns of, and writes that
//! expect a plan.

use std::collections::BTreeSet;

use super::*;

const JSON: &str = "application/json";
const PLANS: &str = "/clusters/root/apis/portolan.dev/v1alpha1/placementplans";
const POLICIES: &str = "/clusters/root/apis/portolan.dev/v1alpha1/clusterplacementpolicies";

fn plan_of(changes: Value) -> Value {
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PlacementPlan", "metadata": {"name": "p"}, "spec": {"changes": changes}})
}

fn policy(on: &str) -> Value {
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterPlacementPolicy", "metadata": {"name": "web"},
        "spec": {"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}], "clusters": {"names": [on]}}})
}

fn expecting(mut object: Value, hash: &str) -> Value {
    object["metadata"]["annotations"] = json!({"portolan.dev/expect-plan": hash});
    object
}

/// Sends a request as a user without rights of an administrator.
async fn ask_as(plane: &ControlPlane, user: &str, path: &str, body: Value) -> Value {
    let user = User { name: user.into(), groups: vec!["system:authenticated".into()], ..User::default() };
    let request = Request::builder().method(Method::POST).uri(path).header(CONTENT_TYPE, JSON);
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let answer = plane.api().service_as(user).oneshot(request).await.unwrap();
    serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// Starts a control plane with east and west, and Deployments in `root:team-0` that run on east.
async fn start_with_two() -> (ControlPlane, tempfile::TempDir, WorkspaceClient) {
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    for name in ["web", "api"] {
        team.apply(&deployment(name).to_string()).await.unwrap();
        let path = format!("/apis/apps/v1/namespaces/default/deployments/{name}");
        until(&team, &path, |d| d["status"]["readyReplicas"] == 1).await;
    }
    root.apply(&MEMBER.replace("east", "west")).await.unwrap();
    let ready = |list: &Value| list.to_string().matches("the API server answers").count() == 2;
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", ready).await;
    (plane, folder, team)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_does_what_its_plan_said() {
    let (plane, _folder, team) = start_with_two().await;
    let (_, answer) = ask(&plane, Method::POST, PLANS, JSON, plan_of(json!([{"apply": policy("west")}]))).await;
    let status = &answer["status"];
    let moves = status["moves"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let row = |row: &Value| (row["object"]["name"].to_string(), row["from"].to_string(), row["to"].to_string());
    let found: BTreeSet<_> = moves.iter().filter(|row| row["follows"] != true).map(row).collect();
    let expected = ["\"api\"", "\"web\""].map(|name| {
        let copy = |on: &str| format!("[{{\"cluster\":\"{on}\",\"replicas\":1}}]");
        (name.to_owned(), copy("east"), copy("west"))
    });
    assert_eq!(found, BTreeSet::from(expected), "{answer}");
    assert_eq!(moves[0]["object"]["workspace"], "root:team-0");
    assert_eq!(status["counts"]["moves"], 2, "{status}");
    let hash = status["hash"].as_str().unwrap();
    assert!(status["summary"].as_str().unwrap().starts_with("2 objects would move"), "{status}");

    let (headers, dry) = ask(&plane, Method::POST, &format!("{POLICIES}?dryRun=All"), JSON, policy("west")).await;
    let warnings: Vec<_> = headers.get_all(WARNING).iter().map(|line| line.to_str().unwrap().to_owned()).collect();
    assert!(warnings.iter().any(|line| line.contains(&format!("plan {hash}"))), "{warnings:?} {dry}");

    let (_, other) = ask(&plane, Method::POST, POLICIES, JSON, expecting(policy("west"), "0123456789")).await;
    assert_eq!((&other["code"], &other["reason"]), (&json!(409), &json!("Conflict")), "{other}");
    let (_, stored) = ask(&plane, Method::POST, POLICIES, JSON, expecting(policy("west"), hash)).await;
    assert_eq!(stored["kind"], "ClusterPlacementPolicy", "{stored}");
    assert_eq!(stored["metadata"].get("annotations"), None, "the expected plan is no part of the object: {stored}");
    for name in ["web", "api"] {
        let path = format!("/apis/apps/v1/namespaces/default/deployments/{name}");
        until(&team, &path, |d| d["metadata"]["annotations"]["portolan.dev/clusters"] == "west").await;
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_are_planned_and_other_writes_have_no_plan() {
    let (plane, _folder, team) = start_with_two().await;
    let path = "/clusters/root:team-0/apis/apps/v1/namespaces/default/deployments/web";
    let (_, mut web) = ask(&plane, Method::GET, path, JSON, Value::Null).await;
    web["metadata"]["annotations"]["portolan.dev/pin"] = json!("west");
    let (headers, _) = ask(&plane, Method::PUT, &format!("{path}?dryRun=All"), JSON, web.clone()).await;
    let warnings: Vec<_> = headers.get_all(WARNING).iter().map(|line| line.to_str().unwrap().to_owned()).collect();
    let plan =
        warnings.iter().find(|line| line.contains("1 object would move")).unwrap_or_else(|| panic!("{warnings:?}"));
    let hash = plan.rsplit("plan ").next().unwrap().trim_end_matches('"').to_owned();
    web["metadata"]["annotations"]["portolan.dev/expect-plan"] = json!(hash);
    let (_, stored) = ask(&plane, Method::PUT, path, JSON, web).await;
    assert_eq!(stored["metadata"]["annotations"]["portolan.dev/pin"], "west", "{stored}");
    assert_eq!(stored["metadata"]["annotations"].get("portolan.dev/expect-plan"), None, "{stored}");
    until(&team, &path["/clusters/root:team-0".len()..], |d| {
        d["metadata"]["annotations"]["portolan.dev/clusters"] == "west"
    })
    .await;

    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let (_, answer) = ask(&plane, Method::POST, PLANS, JSON, plan_of(json!([{"apply": policy("west")}]))).await;
    let applied = root.apply(&expecting(policy("west"), answer["status"]["hash"].as_str().unwrap()).to_string()).await;
    let applied = applied.unwrap().remove(0).to_string();
    assert!(!applied.contains("expect-plan"), "no field manager of an apply owns it: {applied}");

    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let maps = "/clusters/root:team-0/api/v1/namespaces/default/configmaps";
    let (_, refused) = ask(&plane, Method::POST, maps, JSON, expecting(map, &hash)).await;
    let field = "metadata.annotations[portolan.dev/expect-plan]";
    assert_eq!(
        (&refused["code"], &refused["details"]["causes"][0]["field"]),
        (&json!(422), &json!(field)),
        "{refused}"
    );
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_plans_are_refused_with_the_path_of_the_field() {
    let (plane, _folder) = start().await;
    let mut wrong = policy("west");
    wrong["spec"]["enforcement"] = "Maybe".into();
    for (case, changes, field) in [
        ("none", json!([]), "spec.changes"),
        ("an unknown physical cluster", json!([{"drain": ["nowhere"]}]), "spec.changes[0].drain[0]"),
        ("a policy that would be refused", json!([{"apply": wrong}]), "spec.changes[0].apply.spec.enforcement"),
        ("two changes in one", json!([{"lose": ["a"], "cordon": {"cluster": "a"}}]), "spec.changes[0]"),
    ] {
        let (_, answer) = ask(&plane, Method::POST, PLANS, JSON, plan_of(changes)).await;
        assert_eq!(answer["code"], 422, "{case}: {answer}");
        assert_eq!(answer["details"]["causes"][0]["field"], field, "{case}: {answer}");
    }
    let (_, gone) = ask(&plane, Method::GET, PLANS, JSON, Value::Null).await;
    assert_eq!(gone["code"], 405, "a plan is an answer, and nothing is stored");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_limited_and_a_race_of_writes_is_refused() {
    let (plane, _folder, _team) = start_with_two().await;
    let one = || ask(&plane, Method::POST, PLANS, JSON, plan_of(json!([{"drain": ["east"]}])));
    let (a, b, c, d, e) = tokio::join!(one(), one(), one(), one(), one());
    for (headers, answer) in [a, b, c, d, e] {
        let refused = answer["code"] == 429;
        assert!(refused || answer["status"]["counts"]["moves"] == 2, "{answer}");
        assert_eq!(headers.contains_key("retry-after"), refused, "{headers:?}");
    }

    // Two writers expect plans of the same state. The second one's plan is another once the first is written.
    let named = |name: &str, on: &str| {
        let mut policy = policy(on);
        policy["metadata"]["name"] = name.into();
        policy
    };
    let mut writes = Vec::new();
    for name in ["one", "two"] {
        let wanted = named(name, "west");
        let (_, answer) = ask(&plane, Method::POST, PLANS, JSON, plan_of(json!([{"apply": wanted.clone()}]))).await;
        let hash = answer["status"]["hash"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        writes.push(expecting(wanted, &hash));
    }
    let (_, first) = ask(&plane, Method::POST, POLICIES, JSON, writes.remove(0)).await;
    assert_eq!(first["kind"], "ClusterPlacementPolicy", "{first}");
    let settled = |plan: &(HeaderMap, Value)| plan.1["status"]["counts"]["moves"] == 0;
    while !settled(&ask(&plane, Method::POST, PLANS, JSON, plan_of(json!([{"cordon": {"cluster": "east"}}]))).await) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (_, second) = ask(&plane, Method::POST, POLICIES, JSON, writes.remove(0)).await;
    assert_eq!((&second["code"], &second["reason"]), (&json!(409), &json!("Conflict")), "{second}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_only_objects_that_its_caller_may_get() {
    let (plane, _folder, _team) = start_with_two().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let grant = |name: &str, rules: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {name}}}\nrules: {rules}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {name}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {name}}}\n\
             subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {name}}}]\n"
        )
    };
    let plans = "{apiGroups: [portolan.dev], resources: [placementplans], verbs: [create]}";
    let workspaces = "{apiGroups: [tenancy.kcp.io], resources: [workspaces], verbs: [get]}";
    root.apply(&grant("stranger", &format!("[{plans}]"))).await.unwrap();
    root.apply(&grant("neighbor", &format!("[{plans}, {workspaces}]"))).await.unwrap();
    for (user, workspace) in [("stranger", json!(null)), ("neighbor", json!("root:team-0"))] {
        let answer = ask_as(&plane, user, PLANS, plan_of(json!([{"drain": ["east"]}]))).await;
        let status = &answer["status"];
        assert_eq!(status.get("moves"), None, "{user}: {answer}");
        assert_eq!(status["counts"]["moves"], 2, "{user}: {answer}");
        assert_eq!(status["hidden"][0]["counts"]["moves"], 2, "{user}: {answer}");
        assert_eq!(status["hidden"][0].get("workspace").cloned().unwrap_or_default(), workspace, "{user}: {answer}");
        assert_eq!(status.get("capacity"), None, "{user} may not get physical clusters: {answer}");
    }
    let refused = ask_as(&plane, "nobody", PLANS, plan_of(json!([{"drain": ["east"]}]))).await;
    assert_eq!(refused["code"], 403, "{refused}");
    plane.stop().await;
}
