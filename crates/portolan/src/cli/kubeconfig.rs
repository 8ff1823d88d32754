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
    /// Name of the server in the kubeconfig: its context is named <workspace>@<name>. As in admin.kubeconfig unless given.
    #[arg(long, value_name = "NAME", value_parser = super::values::server_name)]
    pub(super) name: Option<String>,
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let path = self.data_dir.join("admin.kubeconfig");
        let admin = std::fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read; has a server been started there?", path.display()))?;
        let workspace: LogicalClusterPath =
            self.workspace.parse().with_context(|| format!("{:?} is no path of a workspace", self.workspace))?;
        let config = for_workspace(&admin, &workspace, self.name.as_deref())?;
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
        // Discovery shows the built-in kinds there, too.
        let request = http::Request::get("/api/v1/namespaces?limit=1").body(kube::client::Body::empty())?;
        anyhow::Ok(kube::Client::try_from(config)?.send(request).await?.status())
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    matches!(answer, Ok(Ok(http::StatusCode::NOT_FOUND)))
}

/// Returns the administrator's kubeconfig for another workspace. Its context and cluster are named after the workspace and the server, its
/// user after the server: so kubeconfigs of several workspaces and servers can be merged.
pub(crate) fn for_workspace(
    admin: &str,
    workspace: &LogicalClusterPath,
    server_name: Option<&str>,
) -> anyhow::Result<String> {
    let mut config: serde_json::Value = serde_saphyr::from_str(admin).context("admin.kubeconfig is damaged")?;
    let server = config.pointer("/clusters/0/cluster/server").and_then(serde_json::Value::as_str);
    let Some((host, _)) = server.and_then(|server| server.split_once("/clusters/")) else {
        bail!("admin.kubeconfig names no server with a logical cluster");
    };
    let named = config["current-context"].as_str().and_then(|context| context.split_once('@'));
    // A file that an earlier version wrote names no server.
    let of_file = named.map_or_else(|| host.trim_start_matches("https://"), |(_, name)| name);
    let server_name = server_name.unwrap_or(of_file);
    let user = config["users"][0]["name"].as_str().unwrap_or_default();
    let user = format!("{}@{server_name}", user.split_once('@').map_or(user, |(user, _)| user));
    let context = format!("{workspace}@{server_name}");
    config["clusters"][0]["cluster"]["server"] = format!("{host}/clusters/{workspace}").into();
    config["clusters"][0]["name"] = context.as_str().into();
    config["contexts"][0]["name"] = context.as_str().into();
    config["contexts"][0]["context"] = serde_json::json!({"cluster": context, "user": user});
    config["users"][0]["name"] = user.into();
    config["current-context"] = context.into();
    Ok(serde_saphyr::to_string(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(context: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {context}\nclusters:\n- name: {context}\n  cluster:\n    \
             server: https://127.0.0.1:6443/clusters/root\ncontexts:\n- name: {context}\n  context:\n    cluster: {context}\n    \
             user: {user}\nusers:\n- name: {user}\n  user: {{}}\n"
        )
    }

    #[test]
    fn kubeconfigs_of_workspaces_and_servers_have_names_of_their_own() {
        for (case, context, user, name, context_of_shop, user_of_shop) in [
            ("a named server", "root@prod", "portolan-admin@prod", None, "root:shop@prod", "portolan-admin@prod"),
            ("another name", "root@prod", "portolan-admin@prod", Some("eu"), "root:shop@eu", "portolan-admin@eu"),
            (
                "a file of an earlier version",
                "root",
                "portolan-admin",
                None,
                "root:shop@127.0.0.1:6443",
                "portolan-admin@127.0.0.1:6443",
            ),
        ] {
            let shop = for_workspace(&admin(context, user), &"root:shop".parse().unwrap(), name).unwrap();
            let config: serde_json::Value = serde_saphyr::from_str(&shop).unwrap();
            assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443/clusters/root:shop");
            for pointer in ["/current-context", "/contexts/0/name", "/contexts/0/context/cluster", "/clusters/0/name"] {
                assert_eq!(config.pointer(pointer).unwrap(), context_of_shop, "{case}: {pointer}");
            }
            for pointer in ["/contexts/0/context/user", "/users/0/name"] {
                assert_eq!(config.pointer(pointer).unwrap(), user_of_shop, "{case}: {pointer}");
            }
        }
    }
}
