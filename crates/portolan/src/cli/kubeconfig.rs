//! `portolan kubeconfig`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use kube::config::Kubeconfig;
use portolan_types::LogicalClusterPath;

/// How long a server may take to say whether it has the workspace.
const PATIENCE: Duration = Duration::from_secs(2);

/// Print a kubeconfig for a workspace, with the administrator's credentials of `admin.kubeconfig`: they are good everywhere, not
/// only in that workspace. docs/access.md tells how to let others in.
#[derive(Args)]
pub(crate) struct Command {
    /// Data directory of the server.
    #[arg(long)]
    pub(super) data_dir: PathBuf,
    /// Path of the workspace.
    #[arg(long, default_value = "root")]
    pub(super) workspace: String,
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let path = self.data_dir.join("admin.kubeconfig");
        let admin = std::fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read; has a server been started there?", path.display()))?;
        let workspace: LogicalClusterPath =
            self.workspace.parse().with_context(|| format!("{:?} is no path of a workspace", self.workspace))?;
        let config = for_workspace(&admin, &workspace)?;
        if super::runtime()?.block_on(is_missing(&config)) {
            bail!("the server has no workspace {workspace}");
        }
        super::output::print(&config)
    }
}

/// Whether a server says that it does not have the workspace of `config`. One that does not answer says nothing.
async fn is_missing(config: &str) -> bool {
    let asking = async {
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(Kubeconfig::from_yaml(config)?, &options).await?;
        let request = http::Request::get("/api").body(kube::client::Body::empty())?;
        anyhow::Ok(kube::Client::try_from(config)?.send(request).await?.status())
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    matches!(answer, Ok(Ok(http::StatusCode::NOT_FOUND)))
}

/// The admin kubeconfig, pointed at another workspace; its one context is named after it.
pub(crate) fn for_workspace(admin: &str, workspace: &LogicalClusterPath) -> anyhow::Result<String> {
    let mut config: serde_json::Value = serde_saphyr::from_str(admin).context("admin.kubeconfig is damaged")?;
    let server = config.pointer("/clusters/0/cluster/server").and_then(serde_json::Value::as_str);
    let Some((host, _)) = server.and_then(|server| server.split_once("/clusters/")) else {
        bail!("admin.kubeconfig names no server with a logical cluster");
    };
    let name = workspace.as_str();
    config["clusters"][0]["cluster"]["server"] = format!("{host}/clusters/{name}").into();
    config["clusters"][0]["name"] = name.into();
    config["contexts"][0]["name"] = name.into();
    config["contexts"][0]["context"]["cluster"] = name.into();
    config["current-context"] = name.into();
    Ok(serde_saphyr::to_string(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_workspace_changes_the_server_and_the_names_only() {
        let admin = "apiVersion: v1\nkind: Config\ncurrent-context: root\nclusters:\n- name: root\n  cluster:\n    \
                     server: https://127.0.0.1:6443/clusters/root\ncontexts:\n- name: root\n  context:\n    cluster: root\n    \
                     user: admin\nusers:\n- name: admin\n  user: {}\n";
        let shop = for_workspace(admin, &"root:shop".parse().unwrap()).unwrap();
        let config: serde_json::Value = serde_saphyr::from_str(&shop).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443/clusters/root:shop");
        assert_eq!(
            (&config["current-context"], &config["contexts"][0]["context"]["user"]),
            (&"root:shop".into(), &"admin".into())
        );
    }
}
