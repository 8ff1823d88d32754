//! Tests of a server with two damaged objects, in one of two logical clusters.

use super::*;
use crate::cli::workspaces::inspect_named;

/// Content of objects that are to be damaged.
const MARK: &str = "no reader decodes this";
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const UNSAFE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

fn map(name: &str, text: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop}}\ndata: {{text: {text}}}\n")
}

fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
}

/// Sends a request as a user.
async fn answer(plane: &ControlPlane, user: &str, method: Method, path: &str, body: Value) -> Value {
    let masters = if user == "admin" { vec![portolan_strategy::rbac::MASTERS.into()] } else { Vec::new() };
    let user = User { name: user.into(), groups: masters, ..User::default() };
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
    let answer = plane.api().service_as(user).oneshot(request.body(Full::new(body)).unwrap()).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()))
}

async fn runs(team: &WorkspaceClient, name: &str) {
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
    });
    team.post("/apis/apps/v1/namespaces/default/deployments", &web).await.unwrap();
    let path = format!("/apis/apps/v1/namespaces/default/deployments/{name}");
    until(team, &path, |found| found["status"]["readyReplicas"] == 1).await;
}

/// Makes two workspaces, with damaged objects in the first: a ConfigMap, and a placed workload.
async fn damaged(folder: &Path) -> ControlPlane {
    let plane = start_in(folder, Engine::Redb).await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..2).await;
    for team in ["root:team-0", "root:team-1"] {
        let team = WorkspaceClient::new(plane.api(), &team.parse().unwrap());
        team.apply(&namespace("shop")).await.unwrap();
        team.apply(&map("fine", "well")).await.unwrap();
    }
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    team.apply(&map("broken", MARK)).await.unwrap();
    runs(&team, "lame").await;
    let mark = json!({"metadata": {"annotations": {"mark": MARK}}});
    let lame = "/clusters/root:team-0/apis/apps/v1/namespaces/default/deployments/lame";
    let user = User { name: "admin".into(), groups: vec![portolan_strategy::rbac::MASTERS.into()], ..User::default() };
    let request =
        Request::builder().method(Method::PATCH).uri(lame).header(CONTENT_TYPE, "application/merge-patch+json");
    let request = request.body(Full::new(Bytes::from(mark.to_string()))).unwrap();
    assert!(plane.api().service_as(user).oneshot(request).await.unwrap().status().is_success());
    plane.stop().await;
    assert!(portolan_store::testing::damage(&folder.join("data/store"), MARK).unwrap() >= 2);
    start_in(folder, Engine::Redb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_objects_affect_no_other_and_can_be_deleted_unread() {
    let folder = tempfile::tempdir().unwrap();
    let plane = damaged(folder.path()).await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let one = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    let two = WorkspaceClient::new(plane.api(), &"root:team-1".parse().unwrap());
    for team in [&one, &two] {
        runs(team, "web").await;
        team.apply(&namespace("fresh")).await.unwrap();
        until(team, "/api/v1/namespaces/fresh/serviceaccounts/default", |found| found["kind"] == "ServiceAccount")
            .await;
        team.delete("/api/v1/namespaces/fresh").await.unwrap();
        until(team, "/api/v1/namespaces", |found| !found.to_string().contains("\"fresh\"")).await;
    }

    let broken = format!("/clusters/root:team-0{MAPS}/broken");
    let get = answer(&plane, "admin", Method::GET, &broken, Value::Null).await;
    assert_eq!((get["code"].as_u64(), &get["reason"]), (Some(500), &json!("InternalError")), "{get}");
    assert!(get["message"].as_str().unwrap().contains("corrupt object, configmaps/shop/broken"), "{get}");
    let list = answer(&plane, "admin", Method::GET, &format!("/clusters/root:team-0{MAPS}"), Value::Null).await;
    assert_eq!((list["code"].as_u64(), &list["reason"]), (Some(500), &json!("StorageReadError")), "{list}");
    assert_eq!(list["details"]["causes"][0]["field"], "configmaps/shop/broken", "{list}");
    assert_eq!(list["details"]["causes"].as_array().unwrap().len(), 1, "{list}");
    assert!(two.get(MAPS).await.unwrap().to_string().contains("\"fine\""));
    let ready = answer(&plane, "admin", Method::GET, "/readyz?verbose", Value::Null).await;
    assert!(ready.as_str().unwrap().contains("[+]store ok: 2 stored objects are damaged"), "{ready}");
    let ready = answer(&plane, "ann", Method::GET, "/readyz?verbose", Value::Null).await;
    assert!(!ready.to_string().contains("damaged"), "that is for those who run the server: {ready}");
    let metrics = answer(&plane, "admin", Method::GET, "/metrics", Value::Null).await;
    assert!(metrics.as_str().unwrap().contains("\nportolan_store_damaged_objects 2\n"), "{metrics}");

    let option = |value: bool| json!({"kind": "DeleteOptions", "apiVersion": "v1", UNSAFE: value});
    let plain = answer(&plane, "admin", Method::DELETE, &broken, Value::Null).await;
    assert_eq!(plain["code"], 500, "{plain}");
    let rights = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: cleaner}\nrules:\n\
                  - {apiGroups: [\"\"], resources: [configmaps], verbs: [get, delete]}\n---\n\
                  apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: cleaner}\n\
                  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cleaner}\n\
                  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}]\n";
    one.apply(rights).await.unwrap();
    for (case, user, path, body, code, words) in [
        (
            "without the right",
            "ann",
            &broken,
            option(true),
            403,
            "not permitted to do \"unsafe-delete-ignore-read-errors\"",
        ),
        (
            "with another option",
            "admin",
            &broken,
            json!({UNSAFE: true, "gracePeriodSeconds": 0}),
            422,
            "together with .gracePeriodSeconds",
        ),
        ("dry", "admin", &broken, json!({UNSAFE: true, "dryRun": ["All"]}), 422, "together with .dryRun"),
        ("not asked for", "admin", &broken, option(false), 500, "corrupt object"),
        (
            "what can be read",
            "admin",
            &broken.replace("broken", "fine"),
            option(true),
            422,
            "exclusively used to delete corrupt object(s)",
        ),
        (
            "many at once",
            "admin",
            &broken.replace("/broken", ""),
            option(true),
            422,
            "not allowed with DELETECOLLECTION",
        ),
    ] {
        let answered = answer(&plane, user, Method::DELETE, path, body).await;
        assert_eq!(answered["code"], code, "{case}: {answered}");
        assert!(answered["message"].as_str().unwrap().contains(words), "{case}: {answered}");
    }
    one.delete("/api/v1/namespaces/shop").await.unwrap();
    until(&one, "/api/v1/namespaces/shop", |found| found.to_string().contains("shop/broken is damaged")).await;
    let gone = answer(&plane, "admin", Method::DELETE, &broken, option(true)).await;
    assert_eq!((&gone["status"], &gone["details"]["name"]), (&json!("Success"), &json!("broken")), "{gone}");
    until(&one, "/api/v1/namespaces", |found| !found.to_string().contains("\"shop\"")).await;

    root.delete("/apis/tenancy.kcp.io/v1alpha1/workspaces/team-0").await.unwrap();
    until(&root, "/apis/tenancy.kcp.io/v1alpha1/workspaces", |list| list["items"].as_array().unwrap().len() == 1).await;
    let metrics = answer(&plane, "admin", Method::GET, "/metrics", Value::Null).await;
    assert!(metrics.as_str().unwrap().contains("\nportolan_store_damaged_objects 0\n"), "{metrics}");
    until(&two, "/apis/apps/v1/namespaces/default/deployments/web", |found| found["status"]["readyReplicas"] == 1)
        .await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_without_damaged_objects_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let plane = damaged(folder.path()).await;
    let (data_dir, file) = (folder.path().join("data"), folder.path().join("backup"));
    let save = |skip_damaged| {
        let save = SaveArgs { data_dir: data_dir.clone(), skip_damaged, file: file.clone() };
        tokio::task::spawn_blocking(move || save.run().map_err(|error| format!("{error:#}")))
    };
    let stream = |skip_damaged| {
        let save = SaveArgs { data_dir: data_dir.clone(), skip_damaged, file: "-".into() };
        tokio::task::spawn_blocking(move || {
            let mut out = Vec::new();
            let saved = save.to_stream(&mut out).map(|summary| saved_line("standard output", &summary));
            (saved.map_err(|error| format!("{error:#}")), out)
        })
    };
    let check = |refused: &str| {
        for part in [
            "2 objects in the store are damaged",
            "configmaps \"shop/broken\" of workspace root:team-0 (",
            "deployments.apps \"default/lame\" of workspace root:team-0 (",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    };
    let refused = save(false).await.unwrap().unwrap_err();
    check(&refused);
    assert!(refused.contains("--skip-damaged") && !file.exists(), "{refused}");
    assert!(!folder.path().join("backup.part").exists(), "nothing goes on there");
    save(true).await.unwrap().unwrap();
    let streamed = async || {
        let (refused, cut) = stream(false).await.unwrap();
        let refused = refused.unwrap_err();
        check(&refused);
        assert!(refused.contains("--skip-damaged"), "{refused}");
        assert!(!cut.is_empty() && portolan_store::inspect(&*cut).is_err(), "it must not be restored");
        let (saved, out) = stream(true).await.unwrap();
        let saved = saved.unwrap();
        check(&saved);
        assert!(saved.starts_with("standard output: ") && saved.contains("the snapshot is partial: "), "{saved}");
        check(&inspect_named(&*out).unwrap().damaged.to_string());
    };
    streamed().await;
    let running = inspect_named(std::fs::File::open(&file).unwrap()).unwrap();
    check(&running.damaged.to_string());
    plane.stop().await;
    check(&save(false).await.unwrap().unwrap_err());
    save(true).await.unwrap().unwrap();
    streamed().await;
    let stopped = inspect_named(std::fs::File::open(&file).unwrap()).unwrap();
    assert_eq!(stopped.damaged, running.damaged);
    let verify = super::super::verify::VerifyArgs { data_dir };
    let told = tokio::task::spawn_blocking(move || verify.run().map_err(|error| format!("{error:#}"))).await.unwrap();
    let told = told.unwrap_err();
    for part in
        ["configmaps \"shop/broken\" of workspace root:team-0 (", "deployments.apps \"default/lame\" of workspace"]
    {
        assert!(told.contains(part), "{part:?} in {told}");
    }
}
