//! Kubeconfig with a context for every workspace, for programs that take each context as a cluster.

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};

use super::NamedServer;
use crate::cli::{cluster_api::ClusterApi, output, server::stop_signal};

/// Time between two looks for new and deleted workspaces.
const LOOK: Duration = Duration::from_secs(5);
/// Most workspaces in one file.
const MOST: usize = 10_000;

/// Kubeconfig of all workspaces, as the flags ask for it.
pub(super) struct AllWorkspaces<'a> {
    /// The administrator's kubeconfig.
    pub(super) admin: &'a str,
    /// Workspace whose descendants are included.
    pub(super) top: &'a LogicalClusterPath,
    /// File to write; standard output without one.
    pub(super) out: Option<PathBuf>,
    /// Keeps the file current until Ctrl-C.
    pub(super) watch: bool,
}

impl AllWorkspaces<'_> {
    /// Writes the kubeconfig, once or until Ctrl-C.
    ///
    /// # Errors
    /// The server does not answer at first, there are too many workspaces, or the file cannot be written.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let admin: Value = serde_saphyr::from_str(self.admin).context("admin.kubeconfig is damaged")?;
        let host = NamedServer::of(&admin, None)?.host;
        let mut last = serde_saphyr::to_string(&self.merged(&admin, &host).await?)?;
        let Some(file) = &self.out else { return output::print(&last) };
        write(file, &last)?;
        if !self.watch {
            return Ok(());
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                stop = stop_signal() => return stop,
            }
            match self.merged(&admin, &host).await {
                Ok(config) => {
                    let text = serde_saphyr::to_string(&config)?;
                    if text != last {
                        write(file, &text)?;
                        last = text;
                    }
                }
                // The file stays as it is while the server does not answer.
                Err(error) => eprintln!("{error:#}"),
            }
        }
    }

    async fn merged(&self, admin: &Value, host: &str) -> anyhow::Result<Value> {
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(Kubeconfig::from_yaml(self.admin)?, &options).await?;
        config.cluster_url = host.parse().context("admin.kubeconfig names no server")?;
        let paths = tree(&ClusterApi::new(config)?, self.top).await?;
        Ok(with_contexts(admin, host, &paths))
    }
}

/// Returns the paths of a workspace and of all below it that are ready, in order.
async fn tree(api: &ClusterApi, top: &LogicalClusterPath) -> anyhow::Result<Vec<LogicalClusterPath>> {
    let mut found = vec![top.clone()];
    let mut next = 0;
    while let Some(parent) = found.get(next).cloned() {
        next += 1;
        let list = api.get(&format!("/clusters/{parent}/apis/tenancy.kcp.io/v1alpha1/workspaces")).await?;
        let Some(list) = list else { bail!("the server has no workspace {parent}") };
        for workspace in list["items"].as_array().into_iter().flatten() {
            if workspace["status"]["phase"] == "Ready" {
                found.push(parent.child(workspace["metadata"]["name"].as_str().unwrap_or_default())?);
            }
        }
        ensure!(found.len() <= MOST, "there are more than {MOST} workspaces; choose one of them with --workspace");
    }
    found.sort_by_key(ToString::to_string);
    Ok(found)
}

/// Returns the administrator's kubeconfig with a context per path. Names have no colons, since clients put them into
/// URLs.
fn with_contexts(admin: &Value, host: &str, paths: &[LogicalClusterPath]) -> Value {
    let (user, template) = (&admin["users"][0]["name"], &admin["clusters"][0]["cluster"]);
    let (mut used, mut clusters, mut contexts) = (BTreeSet::new(), Vec::new(), Vec::new());
    for path in paths {
        let plain = path.to_string().replace(':', "-");
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
        let paths = ["root", "root:a-b", "root:a:b"].map(|path| path.parse().unwrap());
        let config = with_contexts(&admin, "https://a", &paths);
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
