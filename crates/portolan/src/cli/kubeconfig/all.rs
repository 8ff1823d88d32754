//! Kubeconfig with a context for every workspace, for programs that take each context as a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};

use super::NamedServer;
use crate::cli::{cluster_api::ClusterApi, output, server::stop_signal};

/// Workspaces that are watched for their children. Beyond them, the tree is also listed at intervals.
const WATCHED: usize = 200;
/// Time between two lists of a tree with more workspaces than are watched.
const LIST_INTERVAL: Duration = Duration::from_secs(15);
/// Time for further events after one, since workspaces often come together.
const GATHER: Duration = Duration::from_millis(100);
/// Time after which a server that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// Most workspaces in one file.
const MOST: usize = 10_000;

/// Kubeconfig of all workspaces, as the flags ask for it.
pub(in crate::cli) struct AllWorkspaces<'a> {
    /// The administrator's kubeconfig.
    pub(in crate::cli) admin: &'a str,
    /// Workspace whose descendants are included.
    pub(in crate::cli) top: &'a LogicalClusterPath,
    /// File to write; standard output without one.
    pub(in crate::cli) out: Option<PathBuf>,
    /// Keeps the file current until Ctrl-C.
    pub(in crate::cli) watch: bool,
}

impl AllWorkspaces<'_> {
    /// Writes the kubeconfig, once or until Ctrl-C.
    ///
    /// # Errors
    /// The server does not answer at first, there are too many workspaces, or the file cannot be written.
    pub(in crate::cli) async fn run(self) -> anyhow::Result<()> {
        let admin: Value = serde_saphyr::from_str(self.admin).context("admin.kubeconfig is damaged")?;
        let host = NamedServer::of(&admin, None)?.host;
        let api = self.api(&host).await?;
        let tree = tree(&api, self.top).await?;
        let text = |tree: &WorkspaceVersions| serde_saphyr::to_string(&with_contexts(&admin, &host, tree.keys()));
        let first = text(&tree)?;
        let Some(file) = &self.out else { return output::print(&first) };
        write(file, &first)?;
        if !self.watch {
            return Ok(());
        }
        let mut last = first;
        let keeping = follow_tree(&api, self.top, tree, |tree| {
            let now = text(tree)?;
            if now != last {
                write(file, &now)?;
                last = now;
            }
            Ok(())
        });
        tokio::select! {
            kept = keeping => kept,
            stop = stop_signal() => stop,
        }
    }

    async fn api(&self, host: &str) -> anyhow::Result<ClusterApi> {
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(Kubeconfig::from_yaml(self.admin)?, &options).await?;
        config.cluster_url = host.parse().context("admin.kubeconfig names no server")?;
        ClusterApi::new(config)
    }
}

/// Calls `changed` with the tree of workspaces whenever it may have changed. Never returns without a failure.
///
/// # Errors
/// Those of `changed`. A server that does not answer is asked again.
async fn follow_tree(
    api: &ClusterApi,
    top: &LogicalClusterPath,
    mut known: WorkspaceVersions,
    mut changed: impl FnMut(&WorkspaceVersions) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut watches, mut failure) = (ChildWatches::default(), String::new());
    loop {
        watches.follow(api, &known);
        watches.changed().await;
        match tree(api, top).await {
            Ok(tree) => {
                known = tree;
                failure.clear();
                changed(&known)?;
            }
            Err(error) => {
                let now = format!("{error:#}");
                if now != failure {
                    output::note(&now);
                    failure = now;
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Paths of workspaces that are ready, in order, with the resourceVersion at which their children were listed.
type WorkspaceVersions = BTreeMap<String, String>;

/// Watches of the children of workspaces. Each ends with its first event; the tree is then listed, and watched from
/// that list on, so that no change is missed.
#[derive(Default)]
struct ChildWatches {
    tasks: JoinSet<String>,
    running: BTreeSet<String>,
    /// True if some workspaces have no watch.
    is_partial: bool,
}

impl ChildWatches {
    /// Watches the workspaces of a tree that are not watched yet. Watches of others end with the workspaces.
    fn follow(&mut self, api: &ClusterApi, tree: &WorkspaceVersions) {
        for (path, version) in tree {
            if self.running.len() >= WATCHED || !self.running.insert(path.clone()) {
                continue;
            }
            let (api, path, version) = (api.clone(), path.clone(), version.clone());
            self.tasks.spawn(async move {
                if api.first_event(&children_path(&path), &version).await.is_err() {
                    tokio::time::sleep(RETRY).await;
                }
                path
            });
        }
        self.is_partial = tree.keys().any(|path| !self.running.contains(path));
    }

    /// Waits until a watch ends, or until the interval of a tree that is watched in part.
    async fn changed(&mut self) {
        let interval = tokio::time::sleep(LIST_INTERVAL);
        tokio::select! {
            Some(ended) = self.tasks.join_next() => self.forget(ended),
            () = interval, if self.is_partial || self.tasks.is_empty() => {}
        }
        tokio::time::sleep(GATHER).await;
        while let Some(ended) = self.tasks.try_join_next() {
            self.forget(ended);
        }
    }

    fn forget(&mut self, ended: Result<String, JoinError>) {
        match ended {
            Ok(path) => drop(self.running.remove(&path)),
            Err(error) if error.is_cancelled() => {}
            // It does not say which one has failed: all are watched again.
            Err(_) => {
                self.tasks.abort_all();
                self.running.clear();
            }
        }
    }
}

fn children_path(parent: &str) -> String {
    format!("/clusters/{parent}/apis/tenancy.kcp.io/v1alpha1/workspaces")
}

/// Lists a workspace and all below it that are ready.
async fn tree(api: &ClusterApi, top: &LogicalClusterPath) -> anyhow::Result<WorkspaceVersions> {
    let mut found = WorkspaceVersions::new();
    let mut open = vec![top.clone()];
    while let Some(parent) = open.pop() {
        let list = api.get(&children_path(parent.as_str())).await?;
        // One below may be deleted meanwhile.
        let Some(list) = list else {
            ensure!(parent != *top, "the server has no workspace {parent}");
            continue;
        };
        found.insert(parent.to_string(), list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned());
        for workspace in list["items"].as_array().into_iter().flatten() {
            if workspace["status"]["phase"] == "Ready" {
                open.push(parent.child(workspace["metadata"]["name"].as_str().unwrap_or_default())?);
            }
        }
        let most = found.len() + open.len();
        ensure!(most <= MOST, "there are more than {MOST} workspaces; choose one of them with --workspace");
    }
    Ok(found)
}

/// Returns the administrator's kubeconfig with a context per path. Names have no colons, since clients put them into
/// URLs.
fn with_contexts<'p>(admin: &Value, host: &str, paths: impl Iterator<Item = &'p String>) -> Value {
    let (user, template) = (&admin["users"][0]["name"], &admin["clusters"][0]["cluster"]);
    let (mut used, mut clusters, mut contexts) = (BTreeSet::new(), Vec::new(), Vec::new());
    for path in paths {
        let plain = path.replace(':', "-");
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let name = std::iter::once(plain.clone()).chain(numbered).find(|name| used.insert(name.clone()));
        let mut cluster = template.clone();
        cluster["server"] = format!("{host}/clusters/{path}").into();
        clusters.push(json!({"name": name, "cluster": cluster}));
        contexts.push(json!({"name": name, "context": {"cluster": name, "user": user}}));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": contexts.first().map(|context| context["name"].clone()),
        "clusters": clusters,
        "contexts": contexts,
        "users": admin["users"],
    })
}

/// Replaces a file in one step, readable by its owner alone.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut name = file.file_name().context("--out names no file")?.to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    // A leftover, or a link that another user put there, is never written to.
    let _ = std::fs::remove_file(&new);
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut out| out.write_all(text.as_bytes())).and_then(|()| std::fs::rename(&new, file));
    written.with_context(|| format!("{} cannot be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workspace_has_a_context_under_a_name_of_its_own() {
        let admin = json!({
            "clusters": [{"name": "root@a", "cluster": {"server": "https://a/clusters/root", "certificate-authority-data": "Q0E="}}],
            "users": [{"name": "portolan-admin@a", "user": {}}],
        });
        let paths = ["root", "root:a-b", "root:a:b"].map(str::to_owned);
        let config = with_contexts(&admin, "https://a", paths.iter());
        let names: Vec<&str> =
            config["contexts"].as_array().unwrap().iter().filter_map(|context| context["name"].as_str()).collect();
        assert_eq!(names, ["root", "root-a-b", "root-a-b-2"]);
        assert_eq!(config["clusters"][2]["cluster"]["server"], "https://a/clusters/root:a:b");
        assert_eq!(config["clusters"][2]["cluster"]["certificate-authority-data"], "Q0E=");
        assert_eq!(config["contexts"][1]["context"]["user"], "portolan-admin@a");
    }

    #[test]
    fn the_file_is_replaced_and_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("all.kubeconfig");
        for text in ["one", "two"] {
            write(&file, text).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let [file, new, other] = ["all", "all.new", "other"].map(|name| folder.path().join(name));
        std::fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, &new).unwrap();
        write(&file, "secret").unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
        assert!(std::fs::symlink_metadata(&file).unwrap().is_file());

        std::fs::write(&new, "left").unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
        write(&file, "secret").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
