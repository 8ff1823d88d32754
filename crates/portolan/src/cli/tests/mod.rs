//! Tests of a whole control plane in one process, on the memory store and a simulated physical cluster.

mod agent;
mod custom;
mod damage;
mod drains;
mod inventory;
mod kubeconfigs;
mod kubectl_plugin;
mod login;
mod moves;
mod plans;
mod policies;
mod proxies;
mod reference;
mod streams;
mod usage;

use std::{path::Path, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request,
    header::{ACCEPT, CONTENT_TYPE, WARNING},
};
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::User;
use portolan_apiserver::authn::AuthenticationSource;
use portolan_control_plane::{
    ClusterAddresses, Config, ControlPlane, HISTORY, Storage, WORKSPACE_LIMITS, WorkspaceClient,
};
use portolan_store::Engine;
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::snapshot::{SaveArgs, saved_line};

/// Timeout of waits, which only failing tests reach.
const PATIENCE: Duration = Duration::from_secs(30);
const MEMBER: &str = "apiVersion: portolan.dev/v1alpha1\nkind: PhysicalCluster\nmetadata: {name: east, labels: {region: eu}}\nspec:\n  connection: \
                      {simulated: {nodes: 1}}\n";

async fn start() -> (ControlPlane, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (start_in(folder.path(), Engine::Memory).await, folder)
}

async fn start_in(folder: &Path, engine: Engine) -> ControlPlane {
    portolan_control_plane::open(config(folder, engine)).await.unwrap().start().await.unwrap()
}

fn config(folder: &Path, engine: Engine) -> Config {
    Config {
        data_dir: folder.join("data"),
        bind_address: "127.0.0.1:0".parse().unwrap(),
        storage: Storage::Embedded(engine),
        name: None,
        tls_sans: Vec::new(),
        addresses: ClusterAddresses {
            root: portolan_syncer::Addresses { allow_private: true, allow_loopback: true },
            ..ClusterAddresses::default()
        },
        simulate_for_tenants: false,
        webhooks: portolan_apiserver::webhooks::WebhookAddresses::default(),
        goaway_chance: 0.0,
        workspace_limits: WORKSPACE_LIMITS,
        sync_limits: portolan_syncer::SyncLimits::default(),
        sync_memory: portolan_syncer::SyncMemoryBudget::DEFAULT_BYTES,
        computes_nodes: true,
        tokens: Vec::new(),
        authentication: AuthenticationSource::None,
        token_max: portolan_apiserver::config::TOKEN_MAX,
        token_signing_key: None,
        token_keys: Vec::new(),
        history: HISTORY,
        failover: portolan_control_plane::FailoverTiming::default(),
        console: crate::cli::console::files(),
        security: portolan_control_plane::SecurityConfig::default(),
    }
}

async fn until(workspace: &WorkspaceClient, path: &str, test: impl Fn(&Value) -> bool) {
    let looking = async {
        loop {
            if workspace.get(path).await.is_ok_and(|found| test(&found)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(PATIENCE, looking).await.is_err() {
        panic!("{path}: {:?}", workspace.get(path).await);
    }
}

fn is_empty(list: &Value) -> bool {
    list["items"].as_array().is_some_and(Vec::is_empty)
}

async fn make_workspaces(root: &WorkspaceClient, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let manifest =
            format!("apiVersion: tenancy.kcp.io/v1alpha1\nkind: Workspace\nmetadata: {{name: team-{number}}}\n");
        root.apply(&manifest).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_and_no_series_runs_per_logical_cluster() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let series = || plane.api().registry().gather().iter().map(|family| family.get_metric().len()).sum::<usize>();
    make_workspaces(&root, 0..5).await;
    let before = (tasks(), series());
    make_workspaces(&root, 5..105).await;
    let after = (tasks(), series());
    // Requests in progress may have tasks of their own; a hundred logical clusters must not.
    assert!(after.0 < before.0 + 20, "tasks: {before:?} -> {after:?}");
    assert!(after.1 < before.1 + 20, "series: {before:?} -> {after:?}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_runs_downstream_and_leaves_nothing_behind() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    for manifest in super::demo::MANIFESTS {
        team.apply(manifest).await.unwrap();
    }
    let web = "/apis/apps/v1/namespaces/default/deployments/web";
    until(&team, web, |d| d["status"]["readyReplicas"] == 6).await;
    until(&team, "/apis/apps/v1/namespaces/default/statefulsets/db", |s| s["status"]["readyReplicas"] == 1).await;
    root.delete("/apis/tenancy.kcp.io/v1alpha1/workspaces/team-0").await.unwrap();
    until(&root, "/apis/tenancy.kcp.io/v1alpha1/workspaces", is_empty).await;
    assert!(team.get(web).await.is_err(), "its workspace is gone");
    root.delete("/apis/portolan.dev/v1alpha1/physicalclusters/east").await.unwrap();
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", is_empty).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_eviction_replaces_the_downstream_pod() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    for manifest in super::demo::MANIFESTS {
        team.apply(manifest).await.unwrap();
    }
    until(&team, WEB, |web| web["status"]["readyReplicas"] == 6).await;
    let of_web = |pod: &&Value| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("web-"));
    until(&team, PODS, |pods| pods["items"].as_array().unwrap().iter().filter(of_web).count() == 6).await;
    let pods = team.get(PODS).await.unwrap();
    let evicted = pods["items"].as_array().unwrap().iter().find(of_web).unwrap()["metadata"].clone();
    let name = evicted["name"].as_str().unwrap();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    team.post(&format!("{PODS}/{name}/eviction"), &eviction).await.unwrap();
    until(&team, PODS, |pods| {
        let pods = pods["items"].as_array().unwrap();
        pods.iter().all(|pod| pod["metadata"]["uid"] != evicted["uid"]) && pods.iter().filter(of_web).count() == 6
    })
    .await;
    until(&team, WEB, |web| web["status"]["readyReplicas"] == 6).await;
    plane.stop().await;
}

/// Sends a request as an administrator, and returns headers and body.
async fn ask(plane: &ControlPlane, method: Method, path: &str, accept: &str, body: Value) -> (HeaderMap, Value) {
    let user = User { name: "admin".into(), groups: vec![portolan_strategy::rbac::MASTERS.into()], ..User::default() };
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path);
    let request =
        request.header(ACCEPT, accept).header(CONTENT_TYPE, "application/json").body(Full::new(body)).unwrap();
    let answer = plane.api().service_as(user).oneshot(request).await.unwrap();
    let headers = answer.headers().clone();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (headers, serde_json::from_slice(&bytes).unwrap())
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn users_see_where_and_why_objects_are_placed() {
    const JSON: &str = "application/json";
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    root.apply(&MEMBER.replace("east", "west").replace("spec:\n", "spec:\n  unschedulable: true\n")).await.unwrap();
    let ready = |list: &Value| list.to_string().matches("the API server answers").count() == 2;
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", ready).await;
    let deployments = "/clusters/root/apis/apps/v1/namespaces/default/deployments";
    ask(&plane, Method::POST, deployments, JSON, deployment("web")).await;
    let placed = |d: &Value| d["metadata"]["annotations"]["portolan.dev/clusters"] == "east";
    until(&root, "/apis/apps/v1/namespaces/default/deployments/web", placed).await;
    let (headers, _) = ask(&plane, Method::POST, deployments, JSON, deployment("api")).await;
    assert_eq!(headers.get(WARNING), None, "nothing that goes well is told");
    until(&root, "/apis/apps/v1/namespaces/default/deployments/api", placed).await;

    let mut lost = deployment("lost");
    lost["metadata"]["annotations"] = json!({"portolan.dev/pin": "eats"});
    let (headers, _) = ask(&plane, Method::POST, deployments, JSON, lost).await;
    let warnings: Vec<_> = headers.get_all(WARNING).iter().map(|line| line.to_str().unwrap()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("did you mean \\\"east\\\"?"), "{warnings:?}");
    assert!(warnings[1].contains("0/2 physical clusters fit"), "{warnings:?}");

    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) = ask(&plane, Method::GET, deployments, table, Value::Null).await;
    let columns = table["columnDefinitions"].as_array().unwrap();
    let at = columns.iter().position(|column| column["name"] == "Clusters").expect("it is there");
    assert!(columns[at]["priority"].as_i64().unwrap() > 0, "only a wide table shows it");
    let cells = |row: &Value| (row["cells"][0].clone(), row["cells"][at].clone());
    let rows: Vec<_> = table["rows"].as_array().unwrap().iter().map(cells).collect();
    let expected = [("api", "east"), ("lost", "<none>"), ("web", "east")].map(|(name, on)| (json!(name), json!(on)));
    assert_eq!(rows, expected);

    let about = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let review =
        json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PlacementExplanation", "spec": {"object": about}});
    let path = "/clusters/root/apis/portolan.dev/v1alpha1/namespaces/default/placementexplanations";
    let (_, answer) = ask(&plane, Method::POST, path, JSON, review.clone()).await;
    let trace = |at: usize| answer["status"]["clusters"][at].clone();
    assert_eq!((&trace(0)["name"], &trace(0)["chosen"]), (&json!("east"), &json!(true)), "{answer}");
    let why = (&trace(1)["name"], &trace(1)["reason"], &trace(1)["message"]);
    assert_eq!(why, (&json!("west"), &json!("Cordoned"), &json!("it is cordoned")), "{answer}");
    let mut elsewhere = review;
    elsewhere["metadata"] = json!({"namespace": "kube-system"});
    let (_, refused) = ask(&plane, Method::POST, path, JSON, elsewhere).await;
    assert_eq!(refused["code"], 400, "only about the namespace that the request was authorized for: {refused}");
    let (_, gone) = ask(&plane, Method::GET, path, JSON, Value::Null).await;
    assert_eq!(gone["code"], 405, "it is an answer, and nothing is stored");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_change_only_the_copy() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    let policy = "apiVersion: portolan.dev/v1alpha1\nkind: ClusterPlacementPolicy\nmetadata: {name: mirror}\nspec:\n  \
                  resources: [{apiGroup: apps}]\n  overrides: [{clusters: {names: [east]}, imageRegistry: mirror.example}]\n";
    root.apply(policy).await.unwrap();
    root.apply(&deployment("web").to_string()).await.unwrap();
    let image = |pods: &Value| pods.pointer("/items/0/spec/containers/0/image").cloned();
    until(&root, "/api/v1/namespaces/default/pods", |pods| image(pods) == Some(json!("mirror.example/i:1"))).await;
    let upstream = root.get("/apis/apps/v1/namespaces/default/deployments/web").await.unwrap();
    assert_eq!(upstream["spec"]["template"]["spec"]["containers"][0]["image"], "i:1");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_placed_in_a_workspace_that_is_being_deleted() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    make_workspaces(&root, 0..2).await;
    let [going, staying] =
        ["root:team-0", "root:team-1"].map(|path| WorkspaceClient::new(plane.api(), &path.parse().unwrap()));
    let held = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n";
    going.apply(held).await.unwrap();
    for team in [&going, &staying] {
        team.apply(&deployment("web").to_string()).await.unwrap();
    }
    root.delete("/apis/tenancy.kcp.io/v1alpha1/workspaces/team-0").await.unwrap();
    root.apply(MEMBER).await.unwrap();
    let web = "/apis/apps/v1/namespaces/default/deployments/web";
    until(&staying, web, |web| web["status"]["readyReplicas"] == 1).await;
    let upstream = going.get(web).await.unwrap();
    assert_eq!(upstream["metadata"]["annotations"].get("portolan.dev/clusters"), None, "{upstream}");
    plane.stop().await;
}

/// Starts a proxy of a server that cuts the first connection after so many bytes to the client.
async fn cutting_proxy(server: std::net::SocketAddr, after: usize) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bounds = [after].into_iter().chain(std::iter::repeat(usize::MAX));
        while let (Ok((client, _)), Some(mut bound)) = (listener.accept().await, bounds.next()) {
            let server = tokio::net::TcpStream::connect(server).await.unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut piece = vec![0; 16 << 10];
                while let Ok(read @ 1..) = from_server.read(&mut piece).await {
                    if read > bound || to_client.write_all(&piece[..read]).await.is_err() {
                        break;
                    }
                    bound -= read;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_is_made_for_a_workspace_that_the_server_has() {
    let (plane, folder) = start().await;
    for (workspace, is_there) in [("root", true), ("root:nosuch", false)] {
        let command = super::kubeconfig::KubeconfigArgs {
            command: None,
            data_dir: Some(folder.path().join("data")),
            workspace: workspace.to_owned(),
            name: None,
            all: Default::default(),
        };
        let made = tokio::task::spawn_blocking(move || command.run().map_err(|error| error.to_string()));
        let made = made.await.unwrap();
        assert_eq!(made.is_ok(), is_there, "{workspace}: {made:?}");
        assert!(is_there || made.unwrap_err() == format!("the server has no workspace {workspace}"));
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_reports_its_contents() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start_in(folder.path(), Engine::Redb).await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    make_workspaces(&root, 0..2).await;
    root.apply(MEMBER).await.unwrap();
    let kubeconfig = folder.path().join("data/admin.kubeconfig");
    let counted = async {
        loop {
            let told = super::status::ask(&kubeconfig).await.unwrap();
            if (told.logical_clusters, told.physical_clusters) == (Some(3), Some(1)) {
                return told;
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, counted).await.unwrap();
    assert!(told.ready && told.notes.is_empty() && told.version.starts_with("v1.36"), "{told:?}");
    assert_eq!((told.store.as_deref(), told.damaged_objects), (Some("redb"), Some(0)), "{told:?}");
    assert_eq!(told.server, format!("https://{}", plane.address()));
    assert!(
        told.store_bytes.is_some_and(|bytes| bytes > 0) && told.free_bytes.is_some() && told.objects > Some(3),
        "{told:?}"
    );
    assert!(told.revision.is_some_and(|revision| revision.parse::<u64>().is_ok()));
    let address = plane.address().to_string();
    plane.stop().await;
    let silent = super::status::ask(&kubeconfig).await.unwrap_err().to_string();
    assert!(silent.contains(&address) && silent.contains("does not answer"), "{silent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_connection_is_cut_goes_on_at_its_revision() {
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let map = |name: &str| {
        let text: String = (0..40_000u32).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\ndata: {{text: {text}}}\n"
        )
    };
    for number in 0..30 {
        root.apply(&map(&format!("m{number}"))).await.unwrap();
    }
    let proxy = cutting_proxy(plane.address(), 700_000).await;
    let kubeconfig = std::fs::read_to_string(folder.path().join("data/admin.kubeconfig")).unwrap();
    let (data_dir, file) = (folder.path().join("remote"), folder.path().join("backup"));
    std::fs::create_dir(&data_dir).unwrap();
    let through = kubeconfig.replace(&plane.address().to_string(), &proxy.to_string());
    std::fs::write(data_dir.join("admin.kubeconfig"), through).unwrap();
    let save = || {
        let save = SaveArgs { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() };
        tokio::task::spawn_blocking(move || save.run())
    };
    let cut = save().await.unwrap().unwrap_err().to_string();
    assert!(cut.contains("the same command goes on there"), "{cut}");
    let part = std::fs::File::open(folder.path().join("backup.part")).unwrap();
    let begun = portolan_store::read_partial(part).unwrap();
    assert!(begun.bytes > 100_000 && !file.exists(), "{begun:?}");
    root.apply(&map("later")).await.unwrap();
    save().await.unwrap().unwrap();
    let whole = portolan_store::inspect(std::fs::File::open(&file).unwrap()).unwrap();
    assert_eq!((whole.revision, &whole.taken), (begun.revision, &begun.taken));
    let bytes = std::fs::read(&file).unwrap();
    let has = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
    assert!(has("\"m29\"") && !has("\"later\""), "it holds the state of its revision");
    plane.stop().await;
}
