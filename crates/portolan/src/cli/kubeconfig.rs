//! `portolan kubeconfig`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_types::LogicalClusterPath;

/// Print a kubeconfig for a workspace, with the credentials of `admin.kubeconfig`.
#[derive(Args)]
pub(crate) struct Kubeconfig {
    /// Data directory of the server.
    #[arg(long)]
    data_dir: PathBuf,
    /// Path of the workspace.
    #[arg(long, default_value = "root")]
    workspace: String,
}

impl Kubeconfig {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let path = self.data_dir.join("admin.kubeconfig");
        let admin = std::fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read; has a server been started there?", path.display()))?;
        let workspace: LogicalClusterPath =
            self.workspace.parse().with_context(|| format!("{:?} is no path of a workspace", self.workspace))?;
        print!("{}", for_workspace(&admin, &workspace)?);
        Ok(())
    }
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
