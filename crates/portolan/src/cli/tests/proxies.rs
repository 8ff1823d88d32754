//! Tests of requests that are passed to a physical cluster: by its subresource, by a mount, by KubeSphere's paths;
//! and of the rights to send them.

use http::{
    StatusCode,
    header::{CONNECTION, UPGRADE},
};
use portolan_simulator::SimulationConfig;
use portolan_syncer::{Addresses, Connector as _, DirectConnector};
use tokio_util::sync::CancellationToken;

use super::{
    agent::{RunningAgent, cluster_command, token_in},
    kubectl_plugin::PluginUser,
    streams::physical,
    *,
};

const PROXY: &str = "/apis/portolan.dev/v1alpha1/physicalclusters/east/proxy";

/// Answer with its code, headers and text.
struct Answered {
    code: StatusCode,
    headers: HeaderMap,
    text: String,
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|group| (*group).into()).collect(), ..User::default() }
}

fn admin() -> User {
    user("admin", &[portolan_strategy::rbac::MASTERS])
}

async fn send(plane: &ControlPlane, user: User, method: Method, path: &str, body: Value) -> Answered {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
    let request = request.header("cookie", "session=mine").header("x-remote-user", "root");
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let answer = plane.api().service_as(user).oneshot(request.body(Full::new(Bytes::from(text))).unwrap()).await;
    let (parts, body) = answer.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answered { code: parts.status, headers: parts.headers, text: String::from_utf8_lossy(&bytes).into_owned() }
}

async fn get(plane: &ControlPlane, user: User, path: &str) -> Answered {
    send(plane, user, Method::GET, path, Value::Null).await
}

/// Binds a group to the role of administrators on the physical cluster.
async fn bind(kubeconfig: &str, group: &str) {
    let addresses = Addresses { allow_private: true, allow_loopback: true };
    let client = DirectConnector::from_kubeconfig(kubeconfig, addresses).unwrap().connect().await.unwrap();
    let binding = json!({"metadata": {"name": "admins"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group}]});
    let request = Request::post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings");
    let request = request.header(CONTENT_TYPE, "application/json").body(binding.to_string().into_bytes()).unwrap();
    client.request_text(request).await.unwrap();
}

/// Control plane with a physical cluster `east` behind an agent, which was joined with access.
struct JoinedCluster {
    plane: ControlPlane,
    folder: tempfile::TempDir,
    kubeconfig: String,
    stop: CancellationToken,
    _agent: RunningAgent,
}

impl JoinedCluster {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts it, with further flags of the join.
    async fn start_with(more: &[&str]) -> Self {
        let stop = CancellationToken::new();
        let (_east, kubeconfig) = physical(SimulationConfig::named("east"), &stop).await;
        let (plane, folder) = start().await;
        let member = folder.path().join("member.kubeconfig");
        std::fs::write(&member, &kubeconfig).unwrap();
        let server = format!("https://{}", plane.address());
        let flags = ["--access", "--access-user", "ann", "--access-group", "system:masters=portolan:admins"];
        let join = ["join", "east", "--kubeconfig", member.to_str().unwrap(), "--agent", "--agent-server", &server];
        let join: Vec<&str> = join.into_iter().chain(flags).chain(more.iter().copied()).collect();
        let starting = async {
            std::fs::write(folder.path().join("token"), token_in(&kubeconfig).await).unwrap();
            RunningAgent::start(&kubeconfig, plane.address(), folder.path().to_owned()).await
        };
        let (joined, agent) = tokio::join!(cluster_command(folder.path(), &join), starting);
        joined.unwrap();
        bind(&kubeconfig, "portolan:admins").await;
        Self { plane, folder, kubeconfig, stop, _agent: agent }
    }

    /// Changes the registration by a merge patch.
    async fn change(&self, patch: Value) {
        let request = Request::patch(PROXY.replace("/proxy", "")).header(CONTENT_TYPE, "application/merge-patch+json");
        let request = request.body(Full::new(Bytes::from(patch.to_string()))).unwrap();
        assert_eq!(self.plane.api().service_as(admin()).oneshot(request).await.unwrap().status(), 200);
    }

    async fn end(self) {
        self.plane.stop().await;
        self.stop.cancel();
    }
}

/// Workspace that mounts `east`.
fn mount() -> Value {
    json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "mounted"},
        "spec": {"mount": {"ref": {"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": "east"}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_the_api_of_a_physical_cluster() {
    let joined = JoinedCluster::start().await;
    let plane = &joined.plane;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(&mount().to_string()).await.unwrap();
    let nodes = |base: &str| format!("{base}/api/v1/nodes?limit=1");
    for (case, path, code, expected) in [
        ("the subresource", nodes(PROXY), 200, "\"kind\":\"NodeList\""),
        ("in its workspace", nodes(&format!("/clusters/root{PROXY}")), 200, "\"kind\":\"NodeList\""),
        ("a mount", nodes("/clusters/root:mounted"), 200, "\"kind\":\"NodeList\""),
        ("discovery of a mount", "/clusters/root:mounted/apis".into(), 200, "APIGroupList"),
        ("a route of this server below a mount", "/clusters/root:mounted/readyz?verbose".into(), 200, "ping"),
        ("below a mount is nothing", "/clusters/root:mounted:deeper/api/v1/pods".into(), 404, "not found"),
        ("a form of KubeSphere", "/api/v1/clusters/east/nodes".into(), 200, "\"kind\":\"NodeList\""),
        ("another one", "/api/clusters/east/v1/nodes".into(), 200, "\"kind\":\"NodeList\""),
        ("a group", "/apis/apps/v1/clusters/east/deployments".into(), 200, "\"kind\":\"DeploymentList\""),
        ("an unknown cluster", "/api/v1/clusters/nope/nodes".into(), 400, "cluster nope not exists"),
        ("kcp's form is a workspace", "/clusters/east/api/v1/pods".into(), 404, "not found"),
        ("kubelets are out of reach", format!("{PROXY}/api/v1/nodes/n/proxy/run"), 403, "nodes/proxy"),
        ("dot segments", format!("{PROXY}/api/v1/%2e%2e/x"), 400, "dot segments"),
        (
            "a 404 of the physical cluster",
            format!("{PROXY}/api/v1/namespaces/nope"),
            404,
            "namespaces \\\"nope\\\" not found",
        ),
    ] {
        let answer = get(plane, admin(), &path).await;
        assert!(answer.code == code && answer.text.contains(expected), "{case}: {} {}", answer.code, answer.text);
        if answer.code == 200 {
            assert_eq!(answer.headers["content-security-policy"], "sandbox", "{case}");
        }
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made"}});
    let made = send(plane, admin(), Method::POST, "/clusters/root:mounted/api/v1/namespaces", namespace).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let east = root.get(&PROXY.replace("/proxy", "")).await.unwrap();
    assert_eq!(east["metadata"]["annotations"]["experimental.tenancy.kcp.io/is-mount"], "true");
    assert_eq!(east["status"]["phase"], "Ready", "{east}");
    assert!(east["status"]["URL"].as_str().unwrap().ends_with(PROXY), "{east}");
    joined.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_mapped_users_with_the_right_reach_a_physical_cluster() {
    let joined = JoinedCluster::start().await;
    let plane = &joined.plane;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "proxy"},
        "rules": [{"apiGroups": ["portolan.dev"], "resources": ["physicalclusters/proxy"], "verbs": ["get"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "proxy"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "proxy"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "proxied"}]});
    for object in [role, binding, mount()] {
        root.apply(&object.to_string()).await.unwrap();
    }
    let nodes = format!("{PROXY}/api/v1/nodes");
    let mounted = "/clusters/root:mounted/api/v1/nodes".to_owned();
    for (case, user, path, expected) in [
        ("without the right", user("ann", &[]), &nodes, "cannot get resource \\\"physicalclusters/proxy\\\""),
        ("a mount names nothing to strangers", user("ann", &[]), &mounted, "cannot list resource \\\"nodes\\\""),
        ("mapped to no identity", user("eve", &["proxied"]), &nodes, "is mapped to no user or group"),
        (
            "mapped, without rights there",
            user("ann", &["proxied"]),
            &nodes,
            "User \\\"ann\\\" cannot list resource \\\"nodes\\\"",
        ),
    ] {
        let answer = get(plane, user, path).await;
        assert!(answer.code == 403 && answer.text.contains(expected), "{case}: {} {}", answer.code, answer.text);
    }
    let write = send(plane, user("ann", &["proxied"]), Method::POST, &nodes, json!({})).await;
    assert!(write.code == 403 && write.text.contains("cannot create resource"), "{}", write.text);
    // An upgrade enters a pod: reading rights are not enough.
    let enter = Request::get(format!("{PROXY}/api/v1/namespaces/a/pods/p/exec")).header(CONNECTION, "Upgrade");
    let enter = enter.header(UPGRADE, "SPDY/3.1").body(Full::new(Bytes::new())).unwrap();
    let answer = plane.api().service_as(user("ann", &["proxied"])).oneshot(enter).await.unwrap();
    assert_eq!(answer.status(), 403);
    // The same by a direct connection.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "east"},
        "stringData": {"kubeconfig": joined.kubeconfig}});
    root.apply(&secret.to_string()).await.unwrap();
    let reference = json!({"kubeconfigSecretRef": {"namespace": "default", "name": "east"}});
    joined.change(json!({"spec": {"connection": {"tunnel": null, "direct": reference}}})).await;
    let answer = get(plane, admin(), &nodes).await;
    assert!(answer.code == 200 && answer.text.contains("NodeList"), "{}", answer.text);
    let answer = get(plane, user("ann", &["proxied"]), &nodes).await;
    assert!(answer.code == 403 && answer.text.contains("User \\\"ann\\\" cannot list"), "{}", answer.text);
    // A registration without access says so.
    joined.change(json!({"spec": {"access": null}})).await;
    let refused = get(plane, admin(), &nodes).await;
    assert!(refused.code == 503 && refused.text.contains("joined with --access"), "{}", refused.text);
    joined.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_lists_the_objects_of_physical_clusters_themselves() {
    let joined = JoinedCluster::start().await;
    let plane = &joined.plane;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(&MEMBER.replace("name: east", "name: west")).await.unwrap();
    let ann = PluginUser::new(joined.folder.path());
    let (code, out, err) = ann.run("kubectl portolan get ns kube-system --cluster east").await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["CLUSTER", "NAME", "STATUS", "AGE"]);
    assert_eq!(lines[1][..3], ["east", "kube-system", "Active"]);
    assert_eq!(lines.len(), 2, "{out}");
    // A simulated physical cluster has no API of its own that could be reached.
    let (code, out, err) = ann.run("kubectl portolan get nodes --all-clusters -o json").await;
    let list: Value = serde_json::from_str(&out).unwrap();
    let items = list["items"].as_array().unwrap();
    assert!(!items.is_empty(), "{out}");
    assert!(items.iter().all(|node| node["metadata"]["annotations"]["portolan.dev/cluster"] == "east"), "{out}");
    assert_eq!(items[0]["kind"], "Node");
    assert_eq!(code, 0, "{err}");
    assert!(err.starts_with("Warning: physical cluster \"west\" is missing: "), "{err}");
    let (code, out, _) = ann.run("kubectl portolan get nodes --all-clusters -o jsonpath={.items[0].kind}").await;
    assert_eq!((code, out.as_str()), (0, "Node"));
    for (line, message) in [
        (
            "kubectl portolan get nodes",
            "error: add --all-clusters, or --cluster NAME; kubectl get has the objects of the workspace\n",
        ),
        (
            "kubectl portolan get nodes --cluster nope",
            "Error from server (NotFound): physicalclusters.portolan.dev \"nope\" not found\n",
        ),
        (
            "kubectl portolan get ns,deploy --cluster east -w",
            "error: --watch is for one type or object, and for tables\n",
        ),
        ("kubectl portolan get widgets --cluster east", "error: the server doesn't have a resource type \"widgets\"\n"),
        ("kubectl portolan get deploy -A --cluster east -l app=none", "No resources found.\n"),
        (
            "kubectl portolan get ns nope --cluster east",
            "Error from server (NotFound): namespaces \"nope\" not found\n",
        ),
    ] {
        assert_eq!(ann.run(line).await.2, message, "{line}");
    }
    let (code, out, err) = ann.run("kubectl portolan get ns kube-system nope --cluster east").await;
    assert_eq!((code, err.as_str()), (1, "Error from server (NotFound): namespaces \"nope\" not found\n"));
    assert!(out.contains("kube-system"), "{out}");
    let line = "kubectl portolan get ns --all-clusters -l team=shop -w";
    let make = async {
        let made =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made", "labels": {"team": "shop"}}});
        let answer = send(plane, admin(), Method::POST, &format!("{PROXY}/api/v1/namespaces"), made).await;
        assert_eq!(answer.code, 201, "{}", answer.text);
    };
    let (seen, ()) = tokio::join!(ann.run_until(line, |out| out.contains("made")), make);
    let rows: Vec<Vec<&str>> = seen.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (rows[0][..2].to_vec(), rows[1][..2].to_vec()),
        (vec!["CLUSTER", "NAME"], vec!["east", "made"]),
        "{seen}"
    );
    let (code, _, err) = ann.run("kubectl portolan adopt deploy/legacy --from east").await;
    assert!(code == 1 && err.contains("namespaceMapping: Hashed"), "{err}");
    let (_, types, _) = ann.run("kubectl_complete-portolan get configm --cluster ''").await;
    assert_eq!(types, "east\nwest\n:4\n");
    let (_, types, _) = ann.run("kubectl_complete-portolan get --cluster east configm").await;
    assert_eq!(types, "configmaps\n:4\n");
    joined.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_adopts_an_object_of_a_physical_cluster() {
    let joined = JoinedCluster::start_with(&["--namespace-mapping", "identity"]).await;
    let plane = &joined.plane;
    let ann = PluginUser::new(joined.folder.path());
    let mut legacy = deployment("legacy");
    legacy["metadata"]["annotations"] = json!({"team": "shop"});
    let path = format!("{PROXY}/apis/apps/v1/namespaces/default/deployments");
    let made = send(plane, admin(), Method::POST, &path, legacy).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let uid = serde_json::from_str::<Value>(&made.text).unwrap()["metadata"]["uid"].clone();
    let (code, out, err) = ann.run("kubectl portolan adopt deploy/nope --from east").await;
    assert!(code == 1 && out.is_empty() && err.contains("\"nope\" not found"), "{err}");
    let (code, out, err) = ann.run("kubectl portolan adopt deploy/legacy --from east --dry-run -o json").await;
    let dry: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!((code, &dry["metadata"]["annotations"]["portolan.dev/pin"]), (0, &json!("east")));
    assert_eq!(dry["metadata"]["annotations"]["team"], "shop");
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let of_member =
        || async { serde_json::from_str::<Value>(&get(plane, admin(), &format!("{path}/legacy")).await.text) };
    for (flags, why) in [("", "fields differ"), (" --overwrite", "would restart its pods")] {
        let line = format!("kubectl portolan adopt deploy/legacy --from east --timeout 30s{flags}");
        let (code, out, err) = ann.run(&line).await;
        assert_eq!((code, out.as_str()), (1, "deployment.apps/legacy created\n"), "{err}");
        assert!(err.contains(why), "{line}: {err}");
        root.delete("/apis/apps/v1/namespaces/default/deployments/legacy").await.unwrap();
        assert_eq!(of_member().await.unwrap()["metadata"]["uid"], uid, "a refused adoption leaves it as it is");
    }
    let line = "kubectl portolan adopt deploy/legacy --from east --allow-restart --overwrite --timeout 30s";
    let (code, _, err) = ann.run(line).await;
    assert!(code == 0 && err.contains("deployment.apps/legacy of east is adopted"), "{code} {err}");
    let adopted = of_member().await.unwrap();
    assert_eq!(adopted["metadata"]["uid"], uid, "{adopted}");
    assert!(adopted["metadata"]["annotations"]["sync.portolan.dev/identity"].is_string(), "{adopted}");
    joined.end().await;
}
