//! Transcripts of the kubectl plugin against a whole control plane, over TLS and with a kubeconfig.

use std::ffi::OsString;

use super::*;
use crate::cli::plugin::{CapturedOutput, Terminal, UserEnvironment, applets::Applet, execute};

/// User with a kubeconfig of her own.
pub(super) struct PluginUser {
    folder: std::path::PathBuf,
}

impl PluginUser {
    /// Gives the administrator's kubeconfig to a user.
    pub(super) fn new(folder: &Path) -> Self {
        std::fs::copy(folder.join("data/admin.kubeconfig"), folder.join("kubeconfig")).unwrap();
        Self { folder: folder.to_owned() }
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Runs a command line, and returns exit code, standard output and standard error.
    pub(super) async fn run(&self, line: &str) -> (u8, String, String) {
        let (out, err) = (CapturedOutput::default(), CapturedOutput::default());
        let code = self.execute(line, Terminal::to(out.clone(), err.clone())).await;
        (code, out.text(), err.text())
    }

    /// Runs a command line without an end until its standard output is as expected, and returns it.
    pub(super) async fn run_until(&self, line: &str, holds: impl Fn(&str) -> bool) -> String {
        let (out, err) = (CapturedOutput::default(), CapturedOutput::default());
        let looking = async {
            while !holds(&out.text()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            code = self.execute(line, Terminal::to(out.clone(), err.clone())) => panic!("{line} ends with {code}: {}", err.text()),
            seen = tokio::time::timeout(PATIENCE, looking) => assert!(seen.is_ok(), "{line}: {} {}", out.text(), err.text()),
        }
        out.text()
    }

    async fn execute(&self, line: &str, terminal: Terminal) -> u8 {
        let programs = [
            ("kubectl create workspace", Applet::CreateWorkspace),
            ("kubectl ws", Applet::Ws),
            ("kubectl portolan", Applet::Portolan),
            ("kubectl_complete-portolan", Applet::CompletePortolan),
        ];
        let (prefix, applet) = programs.into_iter().find(|(prefix, _)| line.starts_with(prefix)).unwrap();
        // A word of two quotes is the empty word that completion begins with.
        let words = line[prefix.len()..].split_whitespace().map(|word| if word == "''" { "" } else { word });
        let args: Vec<OsString> = words.map(OsString::from).collect();
        let environment =
            UserEnvironment { kubeconfig: Some(self.kubeconfig().into()), home: Some(self.folder.join("home")) };
        execute(applet, args, environment, terminal).await
    }

    /// Runs command lines, and compares exit codes and both outputs.
    async fn transcript(&self, expected: &[(&str, u8, &str)]) {
        for (line, code, output) in expected {
            let (seen, out, err) = self.run(line).await;
            assert_eq!((seen, format!("{out}{err}").as_str()), (*code, *output), "{line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_walks_through_workspaces_as_with_kcps_plugin() {
    let (plane, folder) = start().await;
    let ann = PluginUser::new(folder.path());
    let address = plane.address();
    let made = |name: &str| {
        format!(
            "Workspace \"{name}\" (type root:universal) created. Waiting for it to be ready...\n\
             Workspace \"{name}\" (type root:universal) is ready to use.\n"
        )
    };
    let in_shop = "Current workspace is \"root:shop\" (type root:universal).\n";
    ann.transcript(&[
        ("kubectl ws .", 0, "Current workspace is \"root\".\n"),
        ("kubectl ws current --short", 0, "root\n"),
        ("kubectl ws current -o name", 0, "root\n"),
        ("kubectl ws -", 1, "error: no previous workspace exists in context\n"),
        ("kubectl create workspace shop --enter", 0, &format!("{}{in_shop}", made("shop"))),
        ("kubectl ws . --short", 0, "root:shop\n"),
        ("kubectl ws create team", 0, &made("team")),
        ("kubectl ws team", 0, "Current workspace is \"root:shop:team\" (type root:universal).\n"),
        ("kubectl ws -", 0, "Current workspace is \"root:shop\".\n"),
        ("kubectl ws -", 0, "Current workspace is \"root:shop:team\".\n"),
        ("kubectl ws ..:..", 0, "Current workspace is \"root\".\n"),
        ("kubectl ws ..", 1, "error: root has no parent workspace\n"),
        ("kubectl ws tree", 0, ".\n└── root\n    └── shop\n        └── team\n"),
        ("kubectl portolan ws tree --full", 0, ".\n└── root\n    └── root:shop\n        └── root:shop:team\n"),
        ("kubectl portolan tree -o name", 0, "root\nroot:shop\nroot:shop:team\n"),
        ("kubectl ws :root:shop", 0, in_shop),
        ("kubectl portolan ws use root", 0, "Current workspace is \"root\".\n"),
        ("kubectl ws ehop", 1, "error: workspace \"root:ehop\" not found; did you mean \"root:shop\"?\n"),
        ("kubectl ws shop/team", 1, "error: invalid workspace name format: shop/team\n"),
        ("kubectl ws . --short", 0, "root\n"),
        (
            "kubectl create workspace shop",
            1,
            "Error from server (AlreadyExists): workspaces.tenancy.kcp.io \"shop\" already exists\n",
        ),
        (
            "kubectl create workspace shop --ignore-existing --enter",
            0,
            &format!("Workspace \"shop\" (type root:universal) already exists.\n{in_shop}"),
        ),
        ("kubectl ws create-context mine", 0, "Created context \"mine\" and switched to it.\n"),
        (
            "kubectl ws create-context mine",
            1,
            "error: context \"mine\" already exists in kubeconfig, use --overwrite to update it\n",
        ),
        ("kubectl ws create-context mine --overwrite", 0, "Updated context \"mine\" and switched to it.\n"),
        ("kubectl ws team --short", 0, "root:shop:team\n"),
        ("kubectl ws use . --context mine --short", 0, "root:shop\n"),
        ("kubectl ws . --context nope", 1, "error: context \"nope\" does not exist\n"),
    ])
    .await;
    let kubeconfig: Value = serde_saphyr::from_str(&std::fs::read_to_string(ann.kubeconfig()).unwrap()).unwrap();
    let server = |name: &str| {
        let clusters = kubeconfig["clusters"].as_array().unwrap();
        clusters.iter().find(|cluster| cluster["name"] == name).unwrap()["cluster"]["server"].clone()
    };
    assert_eq!(kubeconfig["current-context"], "workspace.kcp.io/current");
    assert_eq!(server("workspace.kcp.io/current"), format!("https://{address}/clusters/root:shop:team"));
    assert_eq!(server("mine"), format!("https://{address}/clusters/root:shop"));
    assert_eq!(
        server(&format!("root@{address}")),
        format!("https://{address}/clusters/root"),
        "the first context stays"
    );
    plane.stop().await;
    let (code, _, err) = ann.run("kubectl ws ..").await;
    assert_eq!(code, 1);
    assert_eq!(
        err,
        format!("The connection to the server {address} was refused - did you specify the right host or port?\n")
    );
}

/// Starts a control plane with the physical clusters `east` and `west`, which are ready.
async fn with_two_clusters() -> (ControlPlane, tempfile::TempDir, WorkspaceClient) {
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    root.apply(&MEMBER.replace("east", "west").replace("region: eu", "region: us")).await.unwrap();
    let ready = |list: &Value| list.to_string().matches("the API server answers").count() == 2;
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", ready).await;
    (plane, folder, root)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_sees_where_and_why_and_moves_an_object() {
    let (plane, folder, root) = with_two_clusters().await;
    let ann = PluginUser::new(folder.path());
    let mut web = deployment("web");
    web["spec"]["replicas"] = 2.into();
    web["metadata"]["annotations"] = json!({"portolan.dev/pin": "east"});
    root.apply(&web.to_string()).await.unwrap();
    until(&root, "/apis/apps/v1/namespaces/default/deployments/web", |web| web["status"]["readyReplicas"] == 2).await;
    let placement = "/apis/portolan.dev/v1alpha1/namespaces/default/placements/deployments.apps-web";
    until(&root, placement, |placement| placement["status"]["clusters"][0]["ready"] == 2).await;

    let located = "OBJECT           CLUSTER   STATE     READY\ndeployment/web   east      Running   2/2\n";
    ann.transcript(&[
        ("kubectl portolan where deploy/web", 0, located),
        ("kubectl portolan where deployments -A --no-headers", 0, "default   deployment/web   east   Running   2/2\n"),
        ("kubectl portolan where deploy web -o name", 0, "placement.portolan.dev/deployments.apps-web\n"),
        ("kubectl portolan where deploy/wbe", 1, "Error from server (NotFound): deployments.apps \"wbe\" not found\n"),
        ("kubectl portolan where widgets/a", 1, "error: the server doesn't have a resource type \"widgets\"\n"),
    ])
    .await;
    let (code, json, _) = ann.run("kubectl portolan where deploy/web -o json").await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["kind"], &json["status"]["clusters"][0]["name"]), (0, &json!("Placement"), &json!("east")));

    let (code, why, _) = ann.run("kubectl portolan why deploy/web").await;
    assert_eq!(code, 0);
    let mut lines = why.lines().filter(|line| !line.is_empty());
    assert!(lines.next().unwrap().starts_with("deployment/web: "), "{why}");
    let row =
        |name: &str| why.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default().to_owned();
    assert!(row("CLUSTER").contains("CORDON") && row("east").contains("chosen") && row("west").contains("NO"), "{why}");
    let (code, one, _) = ann.run("kubectl portolan why deploy/web --cluster west").await;
    assert!(code == 0 && one.lines().any(|line| line.starts_with("pin ") && line.contains("NO")), "{one}");
    let (code, _, err) = ann.run("kubectl portolan why deploy/web --cluster wset").await;
    assert!(code == 1 && err.ends_with("did you mean \"west\"?\n"), "{err}");

    let (code, out, err) = ann.run("kubectl portolan move deploy/web --to west --timeout 30s").await;
    assert_eq!((code, out.as_str()), (0, "deployment.apps/web pinned to west\n"), "{err}");
    assert!(err.contains("deployment.apps/web runs on west 2/2"), "{err}");
    let moved = located.replace("east", "west");
    ann.transcript(&[("kubectl portolan where deploy/web", 0, &moved)]).await;
    let (code, _, err) = ann.run("kubectl portolan move deploy/web --to north --timeout 30s").await;
    assert!(code == 1 && err.contains("north"), "{code} {err}");
    let pin = &root.get("/apis/apps/v1/namespaces/default/deployments/web").await.unwrap()["metadata"]["annotations"];
    assert_eq!(pin["portolan.dev/pin"], "west", "a refused move leaves no pin behind");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    root.apply(&service.to_string()).await.unwrap();
    let (code, _, err) = ann.run("kubectl portolan move svc/web --to east --timeout 30s").await;
    assert!(code == 1 && err.contains("follows the objects that use it"), "{code} {err}");
    for (line, code, expected) in [
        ("kubectl portolan where ns/default", 0, "NotPlaced"),
        ("kubectl portolan where clusterrole/view -o wide", 0, "cluster-scoped objects are not placed by themselves"),
        ("kubectl portolan tree ns/default", 0, "default"),
        ("kubectl portolan move clusterrole/view --to west", 1, "it is none of the kinds that are placed"),
        ("kubectl portolan move ns/default --to west", 0, "namespace/default pinned to west\n"),
    ] {
        let (seen, out, err) = ann.run(line).await;
        assert!(seen == code && format!("{out}{err}").contains(expected), "{line}: {seen} {out} {err}");
    }
    root.apply(&deployment("api").to_string()).await.unwrap();
    until(&root, "/apis/apps/v1/namespaces/default/deployments/api", |api| api["status"]["readyReplicas"] == 1).await;
    for on in ["east", "west", "east"] {
        let (code, out, err) = ann.run(&format!("kubectl portolan move ns/default --to {on} --timeout 60s")).await;
        assert!(code == 0 && out == format!("namespace/default pinned to {on}\n"), "{out} {err}");
        let (_, seen, _) = ann.run("kubectl portolan where deploy/api --no-headers").await;
        assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["deployment/api", on, "Running", "1/1"], "{err}");
    }
    let (code, _, err) = ann.run("kubectl portolan move deploy/web --from east --to west").await;
    assert!(code == 1 && err.contains("web does not run on \"east\", but on west"), "{err}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_changes_physical_clusters_from_any_workspace() {
    let (plane, folder, root) = with_two_clusters().await;
    make_workspaces(&root, 0..1).await;
    let ann = PluginUser::new(folder.path());
    ann.run("kubectl ws team-0").await;
    ann.transcript(&[
        ("kubectl portolan cluster cordon west", 0, "physicalcluster.portolan.dev/west cordoned\n"),
        ("kubectl portolan cluster cordon west", 0, "physicalcluster.portolan.dev/west already cordoned\n"),
        ("kubectl portolan cluster uncordon west", 0, "physicalcluster.portolan.dev/west uncordoned\n"),
        ("kubectl portolan cluster label west zone=us-1", 0, "physicalcluster.portolan.dev/west labeled\n"),
        ("kubectl portolan cluster label west zone=us-1", 0, "physicalcluster.portolan.dev/west not labeled\n"),
        (
            "kubectl portolan cluster label west zone=us-2",
            1,
            "error: 'zone' already has a value (us-1), and --overwrite is false\n",
        ),
        ("kubectl portolan cluster label west zone=us-2 --overwrite -o name", 0, "physicalcluster.portolan.dev/west\n"),
        ("kubectl portolan cluster label west zone-", 0, "physicalcluster.portolan.dev/west unlabeled\n"),
        (
            "kubectl portolan cluster list -o name",
            0,
            "physicalcluster.portolan.dev/east\nphysicalcluster.portolan.dev/west\n",
        ),
        ("kubectl portolan cluster list -o jsonpath={.items[*].metadata.name}", 0, "east west"),
        (
            "kubectl portolan cluster list -o custom-columns=NAME:.metadata.name,REGION:.metadata.labels.region",
            0,
            "NAME   REGION\neast   eu\nwest   us\n",
        ),
        ("kubectl portolan cluster list -o custom-columns=N:.metadata.name --no-headers", 0, "east\nwest\n"),
        ("kubectl portolan cluster describe east -o jsonpath={.metadata.labels.region}", 0, "eu"),
        ("kubectl portolan ws current -o jsonpath={.path}", 0, "root:team-0"),
        (
            "kubectl portolan cluster list -o go-template={{.kind}}",
            2,
            "error: unable to match a printer suitable for the output format \"go-template={{.kind}}\", allowed \
             formats are: custom-columns,custom-columns-file,json,jsonpath,jsonpath-as-json,jsonpath-file,name,table,\
             wide,yaml\n",
        ),
    ])
    .await;
    let (code, list, _) = ann.run("kubectl portolan cluster list").await;
    let east = list.lines().find(|line| line.starts_with("east ")).unwrap_or_default();
    assert!(code == 0 && list.starts_with("NAME ") && east.contains("True") && east.contains("simulated"), "{list}");
    let (code, described, _) = ann.run("kubectl portolan cluster describe east").await;
    for line in
        ["Name:           east", "Workspace:      root", "Labels:         region=eu", "Mode:           simulated"]
    {
        assert!(code == 0 && described.lines().any(|found| found == line), "{line}: {described}");
    }
    assert_eq!(ann.run("kubectl ws root").await.0, 0);
    assert_eq!(ann.run("kubectl portolan cluster check east").await.0, 0);
    let (code, _, err) = ann.run("kubectl portolan cluster check nope").await;
    assert!(code == 1 && err.starts_with("error: physical cluster nope is not registered"), "{err}");
    let (code, _, err) = ann.run("kubectl portolan cluster describe esat").await;
    assert!(code == 1 && err.contains("not found") && err.ends_with("did you mean \"east\"?\n"), "{err}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_completed_from_commands_and_from_the_server() {
    let (plane, folder, root) = with_two_clusters().await;
    root.apply(&deployment("web").to_string()).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let ann = PluginUser::new(folder.path());
    ann.transcript(&[
        ("kubectl_complete-portolan wh", 0, "where\nwhy\n:4\n"),
        ("kubectl_complete-portolan cluster cordon ''", 0, "east\nwest\n:4\n"),
        ("kubectl_complete-portolan move deploy/web --to w", 0, "west\n:4\n"),
        ("kubectl_complete-portolan why deploy/w", 0, "deploy/web\n:4\n"),
        ("kubectl_complete-portolan why deployments", 0, "deployments/\n:6\n"),
        ("kubectl_complete-portolan ws te", 0, "team-0\n:4\n"),
        ("kubectl_complete-portolan cluster list --sel", 0, "--selector\n:4\n"),
        ("kubectl_complete-portolan why -n kube-p", 0, "kube-public\n:4\n"),
        ("kubectl_complete-portolan where deploy ''", 0, "web\n:4\n"),
        ("kubectl_complete-portolan why deploy/web ''", 0, ":4\n"),
        ("kubectl_complete-portolan policy plan --delete cl", 0, "clusterplacementpolicy/\n:6\n"),
        ("kubectl_complete-portolan policy plan --delete physicalcluster/e", 0, "physicalcluster/east\n:4\n"),
        ("kubectl_complete-portolan ws create x --type uni", 0, "universal\n:4\n"),
        ("kubectl_complete-portolan cluster describe east ''", 0, ":4\n"),
    ])
    .await;
    plane.stop().await;
    ann.transcript(&[("kubectl_complete-portolan cluster cordon ''", 0, ":4\n")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_and_missing_rights_read_as_kubectls() {
    let (plane, folder, _root) = with_two_clusters().await;
    let ann = PluginUser::new(folder.path());
    let (code, out, err) = ann.run("kubectl portolan where").await;
    assert!(code == 2 && out.is_empty() && err.contains("Usage: kubectl portolan where"), "{err}");
    let (code, out, _) = ann.run("kubectl ws --help").await;
    assert!(code == 0 && out.contains("Usage: kubectl ws"), "{out}");
    let (code, _, err) = ann.run("kubectl portolan cluster list --as nobody").await;
    assert!(
        code == 1
            && err.starts_with(
                "Error from server (Forbidden): physicalclusters.portolan.dev is forbidden: User \"nobody\""
            ),
        "{err}"
    );
    let (code, _, err) = ann.run("kubectl portolan cluster list --as-group dev").await;
    assert_eq!((code, err.as_str()), (1, "error: requesting uid or groups without impersonating a user\n"));
    let (code, _, err) = ann.run("kubectl portolan cluster list --token wrong").await;
    assert_eq!((code, err.as_str()), (1, "error: You must be logged in to the server (Unauthorized)\n"));
    let (code, _, err) = ann.run("kubectl portolan policy plan").await;
    assert!(code == 2 && err.contains("there is nothing to plan"), "{code} {err}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drainer_may_ask_for_the_plan_of_a_drain() {
    let (plane, folder, root) = with_two_clusters().await;
    let ann = PluginUser::new(folder.path());
    let api_group = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": format!("{api_group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "dora"},
        "subjects": [{"apiGroup": api_group, "kind": "User", "name": "dora"}],
        "roleRef": {"apiGroup": api_group, "kind": "ClusterRole", "name": "portolan:drainer"}});
    let line = "kubectl portolan drain east --dry-run --as dora";
    assert_eq!(ann.run(line).await.0, 1);
    root.apply(&binding.to_string()).await.unwrap();
    let granted = async {
        while ann.run(line).await.0 != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, granted).await.unwrap();
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_plans_a_policy_drains_a_cluster_and_takes_it_back() {
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    team.apply(&deployment("web").to_string()).await.unwrap();
    until(&team, "/apis/apps/v1/namespaces/default/deployments/web", |web| web["status"]["readyReplicas"] == 1).await;
    root.apply(&MEMBER.replace("east", "west")).await.unwrap();
    let ready = |list: &Value| list.to_string().matches("the API server answers").count() == 2;
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", ready).await;
    let ann = PluginUser::new(folder.path());

    let policy = folder.path().join("policy.yaml");
    let text = "apiVersion: portolan.dev/v1alpha1\nkind: ClusterPlacementPolicy\nmetadata: {name: web}\nspec:\n  resources: \
                [{apiGroup: apps, kinds: [Deployment]}]\n  clusters: {names: [west]}\n";
    std::fs::write(&policy, text).unwrap();
    let policy = policy.display();
    let (code, plan, err) = ann.run(&format!("kubectl portolan policy plan -f {policy}")).await;
    assert!(code == 1 && plan.starts_with("1 object would move"), "{code} {plan} {err}");
    let row = "root:team-0   default     deployment/web   east=1   west=1";
    assert!(plan.lines().any(|line| line.starts_with(row)), "{plan}");
    for (expected, code, last) in [
        ("{moves: 1, objects: {default/deployment/web: [west]}}", 0, "ok: 1 object would move"),
        ("{moves: 0}", 1, "failed: 1 object would move"),
        ("{move: 0}", 2, ""),
    ] {
        let file = folder.path().join("expected.yaml");
        std::fs::write(&file, expected).unwrap();
        let line = format!("kubectl portolan policy test -f {policy} --expect {}", file.display());
        let (seen, out, err) = ann.run(&line).await;
        assert!(seen == code && out.lines().last().unwrap_or_default().starts_with(last), "{line}: {seen} {out} {err}");
        let (seen, out, _) = ann.run(&format!("{line} -o json")).await;
        let result: Value = serde_json::from_str(&out).unwrap_or_default();
        let is_same = result["passed"] == (code == 0) && result["plan"]["kind"] == "PlacementPlan";
        assert!(seen == code && (is_same || code > 1), "{line}: {seen} {out}");
    }

    // From the tenant's workspace, where the physical cluster is inherited.
    ann.run("kubectl ws team-0").await;
    let (code, plan, err) = ann.run("kubectl portolan drain east --dry-run").await;
    assert!(code == 0 && plan.lines().any(|line| line.starts_with(row)), "{code} {plan} {err}");
    let (code, out, err) = ann.run("kubectl portolan cluster drain east --timeout 2m").await;
    let is_created = out.starts_with("drain.portolan.dev/east-") && out.ends_with(" created\n");
    assert!(code == 0 && is_created, "{code} {out} {err}");
    assert!(err.contains(" completed: ") && err.contains("Undo: kubectl portolan drain east --undo"), "{err}");
    let there =
        |on: &str| format!("OBJECT           CLUSTER   STATE     READY\ndeployment/web   {on}      Running   1/1\n");
    ann.transcript(&[("kubectl portolan where deploy/web", 0, &there("west"))]).await;
    let (code, out, err) = ann.run("kubectl portolan drain east").await;
    assert!(code == 0 && out.is_empty() && err.contains(" is there already\n"), "{code} {out} {err}");
    for flag in ["--expect-plan 6f3a", "--when-blocked force", "--max-moving 7"] {
        let (code, _, err) = ann.run(&format!("kubectl portolan drain east {flag}")).await;
        assert!(code == 1 && err.contains("its fields stay as they are"), "{flag}: {code} {err}");
    }
    let (code, out, err) = ann.run("kubectl portolan drain east --undo --timeout 2m").await;
    assert!(code == 0 && out.ends_with(" undone\n"), "{code} {out} {err}");
    ann.transcript(&[("kubectl portolan where deploy/web", 0, &there("east"))]).await;
    let (code, _, err) = ann.run("kubectl portolan drain east --resume").await;
    assert_eq!((code, err.as_str()), (1, "error: there is no drain of east that could be resumed\n"));
    let (code, _, err) = ann.run("kubectl portolan drain east --timeout 2m").await;
    assert!(code == 0 && err.contains(" completed: "), "{code} {err}");
    let (code, out, err) = ann.run("kubectl portolan cluster uncordon east").await;
    assert_eq!((code, out.as_str()), (0, "physicalcluster.portolan.dev/east already uncordoned\n"));
    assert!(err.starts_with("drain.portolan.dev \"east-") && err.ends_with("\" deleted\n"), "{err}");
    for (line, code, kind) in [
        (format!("kubectl portolan policy plan -f {policy} -o json"), 0, "PlacementPlan"),
        ("kubectl portolan policy plan --cordon west -o json".to_owned(), 0, "PlacementPlan"),
        ("kubectl portolan why deploy/web -o json".to_owned(), 0, "PlacementExplanation"),
        ("kubectl portolan cluster describe east -o json".to_owned(), 0, "PhysicalCluster"),
        ("kubectl portolan drain east --pause --wait=false -o json".to_owned(), 0, "Drain"),
    ] {
        let (seen, out, err) = ann.run(&line).await;
        let found: Value = serde_json::from_str(&out).unwrap_or_default();
        assert_eq!((seen, found["kind"].as_str().unwrap_or_default()), (code, kind), "{line}: {out} {err}");
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_a_certificate_has_the_rights_that_are_bound_to_her_group() {
    use clap::Parser as _;
    let (plane, folder, root) = with_two_clusters().await;
    let data_dir = folder.path().join("data").display().to_string();
    let line = ["portolan", "kubeconfig", "create", "ann", "--group", "dev", "--ttl", "1h", "--data-dir", &data_dir];
    let parsed = crate::cli::PortolanCli::try_parse_from(line).unwrap();
    let crate::cli::CliCommand::Kubeconfig(command) = parsed.command else { panic!("another command") };
    let Some(crate::cli::kubeconfig::KubeconfigCommand::Create(create)) = command.command else {
        panic!("another command")
    };
    let ann = PluginUser::new(folder.path());
    std::fs::write(ann.kubeconfig(), create.create(&portolan_types::Seams::system()).unwrap().0).unwrap();
    let (code, _, err) = ann.run("kubectl portolan cluster list").await;
    let refusal = "Error from server (Forbidden): physicalclusters.portolan.dev is forbidden: User \"ann\"";
    assert!(code == 1 && err.starts_with(refusal), "{err}");
    let api_group = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": format!("{api_group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "dev"},
        "subjects": [{"apiGroup": api_group, "kind": "Group", "name": "dev"}],
        "roleRef": {"apiGroup": api_group, "kind": "ClusterRole", "name": "view"}});
    root.apply(&binding.to_string()).await.unwrap();
    let granted = async {
        while ann.run("kubectl portolan cluster list -o name").await.0 != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, granted).await.unwrap();
    let (code, _, err) = ann.run("kubectl portolan cluster cordon east").await;
    assert!(code == 1 && err.contains("cannot patch resource \"physicalclusters\""), "{err}");
    plane.stop().await;
}
